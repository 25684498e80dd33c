//! The docker provider, on a real engine that each test starts for itself.

mod ends;
mod faults;
mod fetched;
mod hostile;
mod images;
mod network;
mod odd;
mod refusals;
mod work;

pub(crate) use hostile::plant_library;

use crate::harness::{Call, Docker, Lab, Who, skip};

/// Runs a test as root and as an ordinary user who may use the engine's socket, and audits the lab
/// and the engine at the end.
fn for_both(test: impl Fn(&Lab, &mut Docker)) {
    let Some(mut engine) = Docker::start() else { return };
    for who in [Who::root(), Who::user()] {
        match who {
            Ok(who) => {
                println!("as {who:?}");
                let lab = lab(who, &engine);
                test(&lab, &mut engine);
                lab.audit();
                engine.assert_empty();
            }
            Err(reason) => skip(&reason),
        }
    }
}

/// A lab whose calls know the engine.
fn lab(who: Who, engine: &Docker) -> Lab {
    let mut lab = Lab::new(who);
    lab.variables.push(("DOCKER_HOST".into(), engine.host()));
    lab
}

/// `skep run --provider docker FLAGS -- sh -c SCRIPT`.
fn run(lab: &Lab, flags: &[&str], script: &str) -> Call {
    lab.skep(["run", "--provider", "docker"]).args(flags).args(["--", "sh", "-c", script])
}
