//! Carries out what a plan writes through the view, as strictly as the kernel does.

use super::{Node, World};
use skep_types::EntryState;
use skep_workspace::ViewWrite;
use skep_workspace::apply::Source;

/// Carries out view writes on the model. Only an empty directory can go, or give way to something else.
#[track_caller]
pub fn write_view(world: &mut World, writes: &[ViewWrite]) {
    for write in writes {
        let there = world.view.get(&write.path);
        let bytes = match &write.content {
            Source::Bytes(bytes) => bytes.clone(),
            Source::File { root, path } => std::fs::read(root.join(path.as_path())).unwrap(),
            Source::None | Source::Backup { .. } => match there {
                Some(Node::File(bytes, _)) => bytes.clone(),
                _ => Vec::new(),
            },
        };
        let directory = matches!(write.state, EntryState::Dir { .. });
        let is_in_it = |path: &&skep_types::RelPath| {
            **path != write.path && path.starts_with(&write.path) && !directory
        };
        let below: Vec<_> = world.view.keys().filter(is_in_it).collect();
        assert!(below.is_empty(), "{write:?}: the directory is not empty: {below:?} of {writes:?}");
        match &write.state {
            EntryState::Absent => world.remove(&write.path),
            EntryState::File { mode, .. } => world.put(&write.path, Node::File(bytes, *mode)),
            EntryState::Dir { mode } if matches!(there, Some(Node::Dir(_))) => {
                world.chmod(&write.path, *mode);
            }
            EntryState::Dir { mode } => world.put(&write.path, Node::Dir(*mode)),
            EntryState::Symlink { target } => {
                world.put(&write.path, Node::Link(target.as_bytes().to_vec()));
            }
            EntryState::Special { .. } => unreachable!("never written"),
        }
    }
}
