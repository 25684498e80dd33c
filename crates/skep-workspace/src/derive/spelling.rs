//! Whether the project has an entry of exactly this name.
//!
//! A directory that folds case (`chattr +F`, FAT, many network filesystems) finds `README` when it is
//! asked for `Readme`, and a composed letter when it is asked for the decomposed one. To the sandbox
//! these are two files. Taken for one, a rename from one spelling to the other would be a deletion,
//! and a new file would replace an old one that nobody named. A listing tells.
//!
//! overlayfs has no lower layer whose names fold otherwise than those of the upper, so that only
//! workspaces that are made without it can meet this; those look at directories as a whole anyway.

use crate::error::is_mounted_over;
use crate::held::Held;
use crate::tree::means_absent;
use skep_types::{RelPath, WorkspaceDriver};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::rc::Rc;

/// The names of a directory, or nothing where it could not be listed.
type Names = Option<Rc<HashSet<Vec<u8>>>>;

/// Compares names with those that the project's directories list.
pub(crate) struct Spelling<'a> {
    /// The project, where names may fold.
    project: Option<&'a Held<'a>>,
    listed: RefCell<HashMap<RelPath, Names>>,
}

impl<'a> Spelling<'a> {
    pub(crate) fn new(project: &'a Held<'a>, driver: WorkspaceDriver) -> Self {
        let folds = match driver {
            WorkspaceDriver::OverlayUserns | WorkspaceDriver::OverlayRoot => false,
            WorkspaceDriver::FuseOverlayfs | WorkspaceDriver::Copy => true,
        };
        Self { project: folds.then_some(project), listed: RefCell::default() }
    }

    /// Whether `path` and its parents, as far as the project has them, have these very names.
    pub(crate) fn is_exact(&self, path: &RelPath) -> io::Result<bool> {
        let Some(project) = self.project else { return Ok(true) };
        let mut parent = RelPath::root();
        for name in path.components() {
            let at = parent.join(name).map_err(io::Error::other)?;
            match self.names(project, parent)? {
                Some(names) if !names.contains(name) => return Ok(project.meta(&at)?.is_none()),
                _ => parent = at,
            }
        }
        Ok(true)
    }

    fn names(&self, project: &Held<'_>, directory: RelPath) -> io::Result<Names> {
        if let Some(names) = self.listed.borrow().get(&directory) {
            return Ok(names.clone());
        }
        let names = match project.list(&directory) {
            Ok(list) => Some(Rc::new(list.into_iter().map(|(name, _)| name).collect())),
            // It may be entered and not read, it is no directory, or it is gone: what a look-up says
            // is believed.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) if means_absent(&error) || is_mounted_over(&error) => None,
            Err(error) => return Err(error),
        };
        self.listed.borrow_mut().insert(directory, names.clone());
        Ok(names)
    }
}
