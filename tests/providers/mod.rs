//! One set of cases for every provider: the same review, the same ends, and reports that tell the
//! truth about what each of them is.

pub(crate) mod attacks;
mod choice;
mod ends;
pub(crate) mod images;
mod network;
mod same_review;

use crate::harness::{Call, Lab, for_both, skip};

/// Providers that must work on a machine prepared by `ci/provision providers`, and that start
/// quickly. Machines have tests of their own.
const ALL: [&str; 6] =
    ["namespace", "bubblewrap", "subprocess", "oci:runc", "oci:crun", "oci:runsc"];
/// Those that have a way out, but for the namespaces, of which the tests of egress are.
const WITH_A_WAY_OUT: [&str; 4] = ["bubblewrap", "oci:runc", "oci:crun", "oci:runsc"];
/// Names a `youki`, which Debian does not have: it then runs whatever runc does.
const YOUKI: &str = "SKEP_TEST_YOUKI";

/// Runs a case on every provider, as root and as an ordinary user.
fn for_all(case: impl Fn(&Lab, &str)) {
    for_these(&ALL, case);
}

/// The same, for some of them.
fn for_these(providers: &[&str], case: impl Fn(&Lab, &str)) {
    let mut providers: Vec<String> = providers.iter().map(|word| (*word).to_owned()).collect();
    if let (Ok(program), true) = (std::env::var(YOUKI), providers.contains(&"oci:runc".to_owned()))
    {
        providers.push(format!("oci:{program}"));
    }
    for provider in providers.iter().map(String::as_str) {
        for_both(|lab| {
            let created = lab.skep(["create", "probe", "--json", "--provider", provider]).run();
            if created.code() == 5 {
                skip(&format!("{provider}: {}", created.errors()));
                return;
            }
            created.ok();
            lab.skep(["rm", "--discard", "probe"]).run().ok();
            case(lab, provider);
        });
    }
}

/// `skep run --provider PROVIDER FLAGS -- sh -c SCRIPT`.
fn run(lab: &Lab, provider: &str, flags: &[&str], script: &str) -> Call {
    lab.skep(["run", "--provider", provider]).args(flags).args(["--", "sh", "-c", script])
}
