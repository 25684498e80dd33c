//! The writable parts of a view: the workspace by each driver, and copy-on-write system
//! directories.

use super::apply::Builder;
use super::fuse::{FuseOrder, SeenOwners};
use super::overlay::{self, Markers, OverlayParts};
use super::plan::CowMethod;
use crate::failure::{Failure, Step};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use skep_sys::mount::{MountAttributes, mount_settle};
use skep_types::{RelPath, WorkspaceDriver};
use std::path::Path;

/// Where the parts of a mount are put for as long as mounting takes, beside the new root.
pub(super) const ASIDE: &str = "/.skep";

impl Builder<'_> {
    pub(super) fn workspace(&mut self, target: &Path, scope: &[RelPath]) -> Result<(), Failure> {
        let mount = self.mount_workspace()?;
        self.place_workspace(&mount, target, scope)
    }

    /// The workspace, not yet anywhere.
    pub(super) fn mount_workspace(&mut self) -> Result<OwnedFd, Failure> {
        match self.parts.driver {
            WorkspaceDriver::OverlayUserns => self.overlay(Markers::User),
            // Made outside, by the keeper. Without it there is no workspace: the project itself
            // must never stand in.
            WorkspaceDriver::OverlayRoot => match self.parts.ready {
                Some(ready) => self.take(ready),
                None => Err(Failure::invalid("the workspace overlay was not made by root")),
            },
            WorkspaceDriver::FuseOverlayfs => self.fused(),
            WorkspaceDriver::Copy => self.copied(),
        }
    }

    /// Shows it at the project's path, writable in `scope`.
    pub(super) fn place_workspace(
        &self,
        mount: &OwnedFd,
        target: &Path,
        scope: &[RelPath],
    ) -> Result<(), Failure> {
        let at = self.ground.directory(target, 0o755)?;
        let step = || format!("limit the scope in `{}`", target.display());
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        self.ground.attach(mount.as_fd(), at.as_fd(), target)?;
        let mut parts = Vec::new();
        for part in scope.iter().filter(|part| !part.is_root()) {
            let inside = target.join(part.as_path());
            let place = self.ground.open(&inside).map_err(|error| match error {
                Errno::NOENT => {
                    Failure::invalid(format!("scope `{part}` does not exist in the project"))
                }
                error => Failure::Step { operation: step(), errno: error.raw_os_error() },
            })?;
            let tree = open_tree(&place, "", flags | OpenTreeFlags::AT_EMPTY_PATH).step(step)?;
            parts.push((tree, inside));
        }
        if parts.is_empty() {
            return Ok(());
        }
        self.ground.read_only(target)?;
        for (tree, inside) in &parts {
            let at = self.ground.open(inside).step(step)?;
            self.ground.attach(tree.as_fd(), at.as_fd(), inside)?;
        }
        Ok(())
    }

    /// An overlay's directories must be mounted in this namespace: they are put aside for as long
    /// as the mount takes, which keeps its own references.
    pub(super) fn overlay(&mut self, markers: Markers) -> Result<OwnedFd, Failure> {
        let project = self.set_aside(self.parts.project)?;
        let directory = self.set_aside(self.parts.directory)?;
        let layers = self.parts.layers.clone();
        let layers: Vec<_> =
            layers.into_iter().map(|index| self.set_aside(index)).collect::<Result<_, _>>()?;
        let below = |name: &str| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            openat(&directory, name, flags, Mode::empty())
                .step(|| format!("open `{name}` of the sandbox"))
        };
        let (upper, work) = (below("upper")?, below("work")?);
        let mask = if self.parts.masked { Some(below("mask")?) } else { None };
        let lowers = layers.iter().chain(mask.iter()).chain([&project]).map(AsFd::as_fd).collect();
        let parts = OverlayParts { lowers, upper: upper.as_fd(), work: work.as_fd(), markers };
        overlay::mount(&parts)
    }

    /// The whole copy stands in `upper`.
    fn copied(&mut self) -> Result<OwnedFd, Failure> {
        let directory = self.set_aside(self.parts.directory)?;
        let step = || "open the copy of the project".to_owned();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let upper = openat(&directory, "upper", flags, Mode::empty()).step(step)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        let tree = open_tree(&upper, "", flags).step(step)?;
        let attributes = MountAttributes::NO_SUID.with(MountAttributes::NO_DEVICES);
        mount_settle(&tree, attributes).step(step)?;
        Ok(tree)
    }

    /// The same parts, by a program instead of the kernel. Its files are named below the landing
    /// place: plain short paths of ours, because its options are parsed.
    fn fused(&mut self) -> Result<OwnedFd, Failure> {
        let (project, directory) = (self.parts.project, self.parts.directory);
        let mask = self.parts.masked.then_some(directory);
        let layers = self.parts.layers.clone();
        for index in layers.iter().chain([&project, &directory]) {
            self.set_aside(*index)?;
        }
        let mut lowers: Vec<String> = layers.iter().map(|index| Self::aside(*index, "")).collect();
        lowers.extend(mask.map(|index| Self::aside(index, "/mask")));
        lowers.push(Self::aside(project, ""));
        (self.serve)(&FuseOrder {
            what: "workspace overlay".into(),
            parts: format!("{}{ASIDE}", self.ground.landing),
            lowers,
            upper: Self::aside(directory, "/upper"),
            work: Self::aside(directory, "/work"),
            owners: self.parts.owners,
        })
    }

    fn aside(index: usize, below: &str) -> String {
        format!("{ASIDE}/{index}{below}")
    }

    /// A directory of the system that can be written: what is written goes to `area`.
    pub(super) fn copy_on_write(
        &mut self,
        target: &Path,
        lower: usize,
        area: usize,
        how: CowMethod,
    ) -> Result<(), Failure> {
        let step = || format!("make `{}` copy-on-write", target.display());
        let system = self.set_aside(lower)?;
        let own = self.set_aside(area)?;
        let mount = match how {
            CowMethod::Fuse => (self.serve)(&FuseOrder {
                what: format!("copy-on-write `{}`", target.display()),
                parts: format!("{}{ASIDE}", self.ground.landing),
                lowers: vec![Self::aside(area, "/mask"), Self::aside(lower, "")],
                upper: Self::aside(area, "/upper"),
                work: Self::aside(area, "/work"),
                owners: SeenOwners::Inside,
            })?,
            CowMethod::Overlay => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let below = |name| openat(&own, name, flags, Mode::empty()).step(step);
                let (upper, work, mask) = (below("upper")?, below("work")?, below("mask")?);
                overlay::mount(&OverlayParts {
                    lowers: vec![mask.as_fd(), system.as_fd()],
                    upper: upper.as_fd(),
                    work: work.as_fd(),
                    markers: Markers::User,
                })
                .map_err(|failure| match failure {
                    Failure::Step { errno, .. } => Failure::Step { operation: step(), errno },
                    other => other,
                })?
            }
        };
        let at = self.ground.directory(target, 0o755)?;
        self.ground.attach(mount.as_fd(), at.as_fd(), target)
    }

    fn set_aside(&mut self, index: usize) -> Result<OwnedFd, Failure> {
        let source = self.take(index)?;
        let name = index.to_string();
        let step = || format!("put source {index} of the view aside");
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        mkdirat(&self.ground.aside, name.as_str(), Mode::from_raw_mode(0o700)).step(step)?;
        let to = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&source, "", &self.ground.aside, name.as_str(), to).step(step)?;
        openat(&self.ground.aside, name.as_str(), flags, Mode::empty()).step(step)
    }
}
