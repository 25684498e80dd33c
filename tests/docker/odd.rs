//! Engines that are not as expected: on a port, and such as do something else than they are told.

use super::{for_both, lab, run};
use crate::harness::{Docker, Who, skip};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// An engine that hears some of the bytes it is told as others. For `DOCKER_HOST`.
fn mishearing(engine: &Docker, old: &'static str, new: &'static str) -> String {
    assert_eq!(old.len(), new.len());
    let host = engine.host();
    let behind = host.strip_prefix("unix://").unwrap().to_owned();
    let place = format!("{behind}-{}", new.trim_matches(|c: char| !c.is_alphanumeric()));
    let _ = std::fs::remove_file(&place);
    let listener = UnixListener::bind(&place).unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o666)).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(engine) = UnixStream::connect(Path::new(&behind)) else { return };
            let (to, from) = (engine.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || pass(from, to, old, new));
            std::thread::spawn(move || pass(engine, client, "", ""));
        }
    });
    format!("unix://{place}")
}

/// Passes everything on until it ends. A request comes in one piece.
fn pass(mut from: UnixStream, mut to: UnixStream, old: &str, new: &str) {
    let mut buffer = vec![0; 1 << 20];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let piece = &mut buffer[..length];
        let places = (0..length.saturating_sub(old.len())).filter(|_| !old.is_empty());
        let found: Vec<_> = places.filter(|at| piece[*at..].starts_with(old.as_bytes())).collect();
        for at in found {
            piece[at..at + new.len()].copy_from_slice(new.as_bytes());
        }
        if to.write_all(piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// The volume is not mounted, or another directory is: work there would be in no review.
#[test]
fn clean_8_a_workspace_that_is_not_ours_is_refused() {
    for_both(|lab, engine| {
        lab.write("file", "one\n");
        let faults: &[(&str, &str)] = match lab.who.is_root() {
            // Without its options the volume is an empty directory; or an overlay with another upper.
            true => &[("DriverConfig", "DriverConfic"), ("/upper,", "/execs,")],
            false => &[("/upper\"", "/execs\"")],
        };
        for (old, new) in faults {
            let host = mishearing(engine, old, new);
            let call = run(lab, &["--name", "s"], "ls; echo lost > work").within(60);
            let refused = call.env("DOCKER_HOST", &host).run().exits(5);
            assert_eq!(refused.text(), "", "{new}");
            // By the keeper, who looks for the nonce, or by init, who looks at the filesystem.
            refused.says("nothing is run in it");
            assert!(lab.sandboxes().is_empty(), "{new}");
            engine.assert_empty();
        }
        // The control: by the same way, with nothing misheard.
        let host = mishearing(engine, "nothing-of-it", "nothing-of-it");
        run(lab, &["--name", "s"], "echo kept > work").env("DOCKER_HOST", &host).run().ok();
        assert_eq!(lab.diff("s")["changes"][0]["path"], "work");
        lab.skep(["rm", "--discard", "s"]).run().ok();
    });
}

/// The engine of this host by a port, on which both sides show who they are; and only so.
#[test]
fn an_engine_of_this_host_is_used_through_tls() {
    let Some(engine) = Docker::start_with_tls() else { return };
    for who in [Who::root(), Who::user()] {
        let who = match who {
            Ok(who) => who,
            Err(reason) => {
                skip(&reason);
                continue;
            }
        };
        let mut lab = lab(who, &engine);
        lab.variables.clear();
        lab.variables.push(("DOCKER_HOST".into(), engine.port_host()));
        let certificates = engine.certificates().display().to_string();
        let secure = [("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", &certificates)];
        let with = |call: crate::harness::Call| {
            secure.iter().fold(call, |call, (name, value)| call.env(name, value)).within(60)
        };
        lab.write("file", "one\n");
        let script = "echo two >> file; mkdir new; echo x > new/x";
        with(run(&lab, &["--name", "s"], script)).run().ok();
        lab.skep(["run", "--name", "t", "--", "sh", "-c", script]).run().ok();
        assert_eq!(lab.diff("s")["digest"], lab.diff("t")["digest"]);
        let created = ["create", "live", "--provider", "docker"];
        with(lab.skep(created)).run().ok();
        let shown = lab.skep(["show", "live", "--json"]).run().ok().json();
        assert_eq!(shown["provider_facts"]["socket"], engine.port_host());
        // Whoever stops it later finds the engine by what was written down.
        lab.skep(["rm", "live"]).env("DOCKER_HOST", "").run().ok();
        engine.assert_empty();
        let listed = with(lab.skep(["image", "ls"])).run().ok().text();
        assert!(listed.contains("skep/host-view"), "{listed}");

        run(&lab, &[], "true").run().exits(5).says("DOCKER_TLS_VERIFY");
        let nothing = lab.root.join("nothing");
        let refused = with(run(&lab, &[], "true")).env("DOCKER_CERT_PATH", &nothing).run();
        refused.exits(5).says("ca.pem");
        // Signed by nobody that the other side knows.
        let strange = lab.root.join("strange");
        std::fs::create_dir(&strange).unwrap();
        std::fs::set_permissions(&strange, std::fs::Permissions::from_mode(0o755)).unwrap();
        for (file, from) in
            [("ca.pem", "cert.pem"), ("cert.pem", "cert.pem"), ("key.pem", "key.pem")]
        {
            std::fs::copy(engine.certificates().join(from), strange.join(file)).unwrap();
        }
        let refused = with(run(&lab, &[], "true")).env("DOCKER_CERT_PATH", &strange).run();
        refused.exits(5).says("certificate");
        lab.audit();
    }
}
