//! Work of every kind, for tests that do it in several places and compare the reviews.

use super::lab::Lab;

/// Every kind that a path can be turned from and into, in the root and below.
pub(crate) const EVERY_KIND: &str = r#"
set -e
echo new > added; : > empty; mkdir -p nested/deep; echo z > nested/deep/z; mkdir bare
echo more >> text; printf '\0\1bin' > text.bin
rm gone; rm -r tree; mkdir tree; echo other > tree/other
chmod 755 plain; chmod 644 runs
rm link; ln -s tree link; rm swap; mkdir swap; echo in > swap/in
rm -r turned; echo file > turned; rm -r pointed; ln -s text pointed
mv moved renamed
"#;

/// The project that [`EVERY_KIND`] works on.
pub(crate) fn plant_every_kind(lab: &Lab) {
    for name in
        ["text", "gone", "plain", "swap", "tree/one", "tree/two/three", "turned/x", "pointed/y"]
    {
        lab.write(name, format!("{name}\none\ntwo\nthree\n"));
    }
    lab.write("moved", "a file that keeps its content\nwhen it is renamed\n");
    lab.write("runs", "#!/bin/sh\n");
    let script = "chmod 755 runs; ln -s text link";
    lab.program("sh").args(["-c", script]).directory(&lab.project).run().ok();
}
