//! Running the same tests as root and as an ordinary user, in processes of one thread.

#![allow(dead_code)] // Each test program uses its part.

use skep_sys::process::{Namespaces, clone_with, wait_for};

/// The user that owns nothing.
pub const NOBODY: u32 = 65534;

/// Runs every test in a child of its own; as root, once more as an ordinary user. A first
/// argument picks tests by a part of their name, as `cargo test` does.
pub fn run_as_both(tests: &[(&str, fn())]) {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let users: &[Option<u32>] =
        if rustix::process::geteuid().is_root() { &[None, Some(NOBODY)] } else { &[None] };
    let mut failed = Vec::new();
    for user in users {
        for (name, test) in tests {
            if wanted.as_ref().is_some_and(|wanted| !name.contains(wanted.as_str())) {
                continue;
            }
            let code = run(*user, *test);
            let who = user.map_or("caller".to_owned(), |user| format!("user {user}"));
            println!("test {name} ({who}) ... {}", if code == 0 { "ok" } else { "FAILED" });
            if code != 0 {
                failed.push(format!("{name} ({who})"));
            }
        }
    }
    assert!(failed.is_empty(), "failed: {}", failed.join(", "));
}

fn run(user: Option<u32>, test: fn()) -> i32 {
    let child = clone_with(Namespaces::NONE, || {
        if let Some(user) = user {
            become_user(user);
        }
        test();
        0
    });
    wait_for(&child.unwrap()).unwrap()
}

/// This process has one thread, so that the ids of the thread are those of the process.
pub fn become_user(user: u32) {
    let (uid, gid) = (rustix::process::Uid::from_raw(user), rustix::process::Gid::from_raw(user));
    rustix::thread::set_thread_groups(&[]).unwrap();
    rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
    rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
    // A change of user makes a process undumpable and its /proc entries root's.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable).unwrap();
}
