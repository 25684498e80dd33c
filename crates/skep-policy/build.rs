//! Turns the lists in `resources/*.toml` into JSON.
//!
//! People read and edit TOML; a program reads JSON ten times faster, and every start of `skep`
//! reads some of these lists.

use std::path::Path;
use std::{env, fs};

const LISTS: [&str; 5] = ["environment", "hidden", "profiles", "risky-paths", "system-secrets"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let resources = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../resources");
    let output = env::var("OUT_DIR")?;
    for list in LISTS {
        let source = resources.join(format!("{list}.toml"));
        println!("cargo::rerun-if-changed={}", source.display());
        let value: toml::Table = toml::from_str(&fs::read_to_string(&source)?)
            .map_err(|error| format!("{}: {error}", source.display()))?;
        fs::write(Path::new(&output).join(format!("{list}.json")), serde_json::to_vec(&value)?)?;
    }
    Ok(())
}
