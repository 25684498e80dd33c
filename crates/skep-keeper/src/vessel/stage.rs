//! The stage an OCI runtime plays on: namespaces of the keeper's, in which the view stands.
//!
//! Number 1 of the stage builds the same view as everywhere, except `/proc` and `/dev`, which
//! belong to whoever makes the processes; puts the bundle beside it; and starts the runtime with
//! the channel to the keeper as its standard input, which runtimes hand on to the container's
//! process, and that is init. The workspace is mounted here, outside the container, so the upper is
//! ours and a change set is read from it as ever. The stage dies with the keeper, and with it the
//! runtime and everything in the container: it is number 1 of a pid namespace around them all.

use super::{BUNDLE, Cgroups, RUNTIME_STATE, Runtime, STAGE, Tasks, without_cgroups};
use crate::channel::Channel;
use crate::failure::{Failure, Step};
use crate::init::{self, InitSpec};
use crate::protocol::FromInit;
use crate::view::apply;
use rustix::fd::{AsFd, OwnedFd};
use skep_sys::process::{Child, Namespaces, clone_with, execve};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The life of the stage. Returns its exit code.
pub fn run(spec: &InitSpec<'_>, runtime: &Runtime, channel: Channel, said: OwnedFd) -> i32 {
    let started = set_up(spec, runtime, &channel, &said);
    match started {
        Ok(child) => {
            // Init alone speaks from here on; its end must be seen as the end.
            drop(channel);
            wait_for_all(&child)
        }
        Err(failure) => {
            let _ = channel.send(&FromInit::Failed(failure), &[]);
            1
        }
    }
}

fn set_up(
    spec: &InitSpec<'_>,
    runtime: &Runtime,
    channel: &Channel,
    said: &OwnedFd,
) -> Result<Child, Failure> {
    skep_sys::process::close_all_but(&[channel.as_fd(), said.as_fd()])
        .step(|| "close inherited descriptors".into())?;
    init::die_with_parent()?;
    let opened = init::settle(spec, channel)?;
    // Changing ids has cleared the death signal.
    init::die_with_parent()?;
    apply::stage((&init::plan_of(spec), spec.scratch_size), opened, &spec.parts, &|order| {
        init::have_served(order, channel)
    })?;
    // The container has no network namespace of its own: it shares this one.
    init::connect(spec.run.policy.network, channel)?;
    let step = || "put the bundle in place".to_owned();
    for directory in [BUNDLE, RUNTIME_STATE] {
        std::fs::create_dir_all(directory).step(step)?;
    }
    std::fs::write(Path::new(BUNDLE).join("config.json"), &runtime.config).step(step)?;
    clone_with(Namespaces::NONE, || {
        let error = execute(runtime, channel, said).err().unwrap_or_else(io::Error::last_os_error);
        let text = format!("cannot execute `{}`: {error}", runtime.program.display());
        let _ = rustix::io::write(said, text.as_bytes());
        127
    })
    .step(|| format!("start `{}`", runtime.program.display()))
}

fn execute(runtime: &Runtime, channel: &Channel, said: &OwnedFd) -> io::Result<()> {
    let mut words = vec![runtime.program.as_os_str().as_bytes().to_vec()];
    words.extend(runtime.arguments.iter().map(|word| word.clone().into_bytes()));
    let text = |words: Vec<Vec<u8>>| -> io::Result<Vec<CString>> {
        words.into_iter().map(CString::new).collect::<Result<_, _>>().map_err(io::Error::other)
    };
    let words = text(words)?;
    let environment = text(vec![
        b"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_vec(),
        format!("XDG_RUNTIME_DIR={RUNTIME_STATE}").into_bytes(),
        format!("TMPDIR={STAGE}").into_bytes(),
        b"HOME=/".to_vec(),
    ])?;
    rustix::stdio::dup2_stdin(channel)?;
    rustix::stdio::dup2_stdout(said)?;
    rustix::stdio::dup2_stderr(said)?;
    // gVisor hands standard input on as it is. Others read it to fill a pipe, and would swallow
    // our messages: they hand on the first descriptor behind the standard ones.
    skep_sys::process::close_all_but(&[])?;
    if runtime.tasks == Tasks::Host {
        let second = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
        rustix::io::fcntl_setfd(&second, rustix::io::FdFlags::empty())?;
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        std::mem::forget(second);
    }
    if runtime.cgroups == Cgroups::Hidden {
        without_cgroups::enter()?;
    }
    rustix::process::chdir(BUNDLE)?;
    skep_sys::signal::reset_all();
    Err(execve(&words[0], &words, &environment))
}

/// Until the runtime has ended; whoever else is left dies with this process.
fn wait_for_all(runtime: &Child) -> i32 {
    skep_sys::process::wait_for(runtime).unwrap_or(1)
}
