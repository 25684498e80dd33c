//! Whether a host can be reached, tried from inside by a process that wears what an exec wears
//! ([`skep_knock`]).

use crate::confinement::Confinement;
use rustix::fd::OwnedFd;
use skep_knock::Question;
use skep_sys::process::{Namespaces, clone_with};
use std::io::Write;

/// Starts a child that tries and writes what it found to the descriptor. Init does not wait for
/// it; without an answer, the reader sees the end.
pub fn start(question: &Question, confinement: &Confinement, descriptors: Vec<OwnedFd>) {
    let Some(answer) = descriptors.into_iter().next() else { return };
    let _ = clone_with(Namespaces::NONE, || {
        let worn = confinement
            .drop_privileges()
            .and_then(|()| confinement.raise_fence())
            .and_then(|()| confinement.filter_system_calls());
        if worn.is_err() {
            return 1;
        }
        let written = std::fs::File::from(answer).write_all(&question.try_all());
        i32::from(written.is_err())
    });
}
