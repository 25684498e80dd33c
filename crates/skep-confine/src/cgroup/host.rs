//! Where groups can be made on this host, and making them.

use super::group::{Group, Level, Part};
use super::tables::{MountedHierarchy, mounted_hierarchies, own_path};
use super::{CgroupError, Feature, GroupLimits, Version, read_knob, write_knob};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::process::Pid;
use skep_types::SandboxId;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The directory under which all groups of one installation stand; `skep` unless configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentName(String);

impl ParentName {
    /// Accepts letters, digits and `-`, at most 64: never a path.
    pub fn parse(text: &str) -> Result<Self, CgroupError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let good = (1..=64).contains(&text.len()) && text.bytes().all(plain);
        if good { Ok(Self(text.to_owned())) } else { Err(CgroupError::BadParentName(text.into())) }
    }
}

impl Default for ParentName {
    fn default() -> Self {
        Self("skep".to_owned())
    }
}

/// How often those who are in the way are moved.
const STEPS_ASIDE: u32 = 8;

/// One hierarchy in which groups can be made.
#[derive(Debug, Clone)]
struct Hierarchy {
    version: Version,
    /// The directory this process may write to.
    base: PathBuf,
    /// What it is used for here.
    features: BTreeSet<Feature>,
}

/// What the host's cgroups offer to this process.
#[derive(Debug, Clone)]
pub struct CgroupHost {
    parent: ParentName,
    hierarchies: Vec<Hierarchy>,
    missing: BTreeMap<Feature, String>,
}

impl CgroupHost {
    /// Reads where groups can be made, without making any: a few file reads.
    pub fn locate(parent: ParentName) -> Self {
        let read = |path| super::read_file(Path::new(path)).unwrap_or_default();
        let own = String::from_utf8(read("/proc/self/cgroup")).unwrap_or_default();
        let mountinfo = read("/proc/self/mountinfo");
        Self::locate_in(parent, &mountinfo, &own)
    }

    /// [`Self::locate`] for given contents of `/proc/self/mountinfo` and `/proc/self/cgroup`.
    pub fn locate_in(parent: ParentName, mountinfo: &[u8], self_cgroup: &str) -> Self {
        let mut host = Self { parent, hierarchies: Vec::new(), missing: BTreeMap::new() };
        let mut mounted = mounted_hierarchies(mountinfo);
        // The unified hierarchy first: what it offers is not asked of the old ones.
        mounted.sort_by_key(|hierarchy| std::cmp::Reverse(hierarchy.version));
        for hierarchy in &mounted {
            host.consider(hierarchy, own_path(self_cgroup, hierarchy));
        }
        for feature in Feature::ALL {
            if host.hierarchy_of(feature).is_none() {
                let reason = host.missing.entry(feature);
                reason.or_insert_with(|| "no cgroup hierarchy has it".to_owned());
            } else {
                host.missing.remove(&feature);
            }
        }
        host
    }

    /// [`Self::locate`], and then makes, joins and removes a group to see which of it is true.
    ///
    /// Joining takes a child, and so a process of one thread; with more it is not tried. Leaves
    /// nothing behind.
    pub fn detect(parent: ParentName) -> Self {
        let mut host = Self::locate(parent);
        let name = format!("probe-{}", rustix::process::getpid().as_raw_nonzero());
        match host.create_named(&name, &GroupLimits::default()) {
            Err(error) => {
                let reason = skep_types::chain(&error);
                host.hierarchies.clear();
                for feature in Feature::ALL {
                    host.missing.entry(feature).or_insert_with(|| reason.clone());
                }
            }
            Ok(group) => {
                if let Err(reason) = try_to_join(&group) {
                    host.missing.extend(Feature::ALL.map(|feature| (feature, reason.clone())));
                }
                for (feature, reason) in group.missing() {
                    host.missing.insert(*feature, reason.clone());
                    host.hierarchies.iter_mut().for_each(|h| {
                        h.features.remove(feature);
                    });
                }
                if let Err(error) = group.remove() {
                    host.missing.insert(Feature::Kill, skep_types::chain(&error));
                }
            }
        }
        host
    }

    /// Makes a group with a weight, says whether that would count on the disks below a directory, and takes the
    /// group away again.
    pub fn try_weight(&self, place: &Path) -> Result<super::Weighed, String> {
        let name = format!("weighed-{}", rustix::process::getpid().as_raw_nonzero());
        let limits = GroupLimits { io_weight: Some(50), ..GroupLimits::default() };
        let group = self.create_named(&name, &limits).map_err(|error| skep_types::chain(&error))?;
        let found = group.io_weight(place);
        group.remove().map_err(|error| skep_types::chain(&error))?;
        found.and_then(|found| match found.weight {
            50 => Ok(found),
            other => Err(format!("the kernel shows a weight of {other}")),
        })
    }

    /// What cannot be had, and why.
    pub fn missing(&self) -> &BTreeMap<Feature, String> {
        &self.missing
    }

    /// Where a feature comes from, in words: `cgroup v1 at /sys/fs/cgroup/pids`.
    pub fn describe(&self, feature: Feature) -> Option<String> {
        let hierarchy = self.hierarchy_of(feature)?;
        Some(format!("cgroup {} at {}", hierarchy.version.as_str(), hierarchy.base.display()))
    }

    fn hierarchy_of(&self, feature: Feature) -> Option<&Hierarchy> {
        self.hierarchies.iter().find(|hierarchy| hierarchy.features.contains(&feature))
    }

    /// Takes from a mounted hierarchy what is not had yet.
    fn consider(&mut self, mounted: &MountedHierarchy, own: Option<PathBuf>) {
        // What an old one has to offer is known without looking.
        if mounted.version == Version::V1
            && offered_features(mounted, &mounted.mount_point)
                .iter()
                .all(|feature| self.hierarchy_of(*feature).is_some())
        {
            return;
        }
        let base = writable_base(mounted, own.as_deref());
        let probe = base.as_deref().unwrap_or(&mounted.mount_point);
        let offered = offered_features(mounted, probe);
        let wanted: BTreeSet<Feature> =
            offered.into_iter().filter(|feature| self.hierarchy_of(*feature).is_none()).collect();
        if wanted.is_empty() {
            return;
        }
        match base {
            Some(base) => {
                self.hierarchies.push(Hierarchy {
                    version: mounted.version,
                    base,
                    features: wanted,
                });
            }
            None => {
                let version = mounted.version.as_str();
                let place = mounted.mount_point.display();
                let reason = format!("cgroup {version} at {place} is not writable for this user");
                for feature in wanted {
                    self.missing.insert(feature, reason.clone());
                }
            }
        }
    }

    /// Makes the group of a sandbox and sets its limits.
    ///
    /// What the host lacks is in [`Group::missing`]. On error nothing is left.
    pub fn create(&self, id: &SandboxId, limits: &GroupLimits) -> Result<Group, CgroupError> {
        self.create_named(id.as_str(), limits)
    }

    fn create_named(&self, name: &str, limits: &GroupLimits) -> Result<Group, CgroupError> {
        let mut parts = Vec::new();
        let mut missing = self.missing.clone();
        // Being in one more hierarchy costs every process a move: only who asks for a weight is in that one.
        let needed = |hierarchy: &&Hierarchy| {
            limits.io_weight.is_some() || hierarchy.features != BTreeSet::from([Feature::Io])
        };
        for hierarchy in self.hierarchies.iter().filter(needed) {
            match self.create_part(hierarchy, name, limits) {
                Ok((part, lost)) => {
                    parts.push(part);
                    missing.extend(lost);
                }
                Err(error @ CgroupError::InUse { .. }) => {
                    let _ = Group::from_parts(parts, missing, Level::Sandbox).remove();
                    return Err(error);
                }
                Err(error) => {
                    let reason = skep_types::chain(&error);
                    missing.extend(hierarchy.features.iter().map(|f| (*f, reason.clone())));
                }
            }
        }
        if parts.is_empty() {
            let reasons: BTreeSet<String> = missing.into_values().collect();
            let reasons = reasons.into_iter().collect::<Vec<_>>().join("; ");
            return Err(CgroupError::NoneUsable { reasons });
        }
        let mut group = Group::from_parts(parts, missing, Level::Sandbox);
        // Looks from outside hold a little where a group holds nothing.
        let limiting = [Feature::Memory, Feature::Cpu, Feature::Pids];
        if limiting.iter().all(|feature| group.missing().contains_key(feature)) {
            let reason = group.missing().get(&Feature::Memory).cloned().unwrap_or_default();
            group.remove()?;
            return Err(CgroupError::LimitsNothing { reason });
        }
        group.set_limits(limits);
        Ok(group)
    }

    /// The directory of a group in one hierarchy, with the controllers that could be enabled for
    /// it; those that could not come back with the reason.
    fn create_part(
        &self,
        hierarchy: &Hierarchy,
        name: &str,
        limits: &GroupLimits,
    ) -> Result<(Part, BTreeMap<Feature, String>), CgroupError> {
        let parent = hierarchy.base.join(&self.parent.0);
        let mut lost = BTreeMap::new();
        if hierarchy.version == Version::V2 {
            lost = self.enable(hierarchy, &hierarchy.base, limits);
        }
        let directory = parent.join(name);
        make_group(&parent, &directory)?;
        let mut part = Part {
            version: hierarchy.version,
            directory: directory.clone(),
            features: hierarchy.features.clone(),
        };
        if hierarchy.version == Version::V2 {
            for place in [&parent, &directory] {
                // What is missing higher up is why it is missing here.
                for (feature, reason) in self.enable(hierarchy, place, limits) {
                    lost.entry(feature).or_insert(reason);
                }
            }
            // A v2 group that hands controllers down may hold no processes itself.
            if let Err(error) = make_directory(&part.leaf()) {
                let _ = fs::remove_dir(&directory);
                return Err(error);
            }
        }
        part.features.retain(|feature| !lost.contains_key(feature));
        Ok((part, lost))
    }

    /// Hands the controllers of a v2 hierarchy down from `directory` to its children.
    fn enable(
        &self,
        hierarchy: &Hierarchy,
        directory: &Path,
        limits: &GroupLimits,
    ) -> BTreeMap<Feature, String> {
        let enabled = read_knob(directory, "cgroup.subtree_control").unwrap_or_default();
        let unasked = |feature: Feature| feature == Feature::Io && limits.io_weight.is_none();
        let is_on = |controller: &str| enabled.split_whitespace().any(|word| word == controller);
        let off: Vec<(Feature, &str)> = hierarchy
            .features
            .iter()
            .filter(|feature| !unasked(**feature))
            .filter_map(|feature| Some((*feature, v2_controller(*feature)?)))
            .filter(|(_, controller)| !is_on(controller))
            .collect();
        if !off.is_empty() && is_inhabited(directory) && !self.step_aside(directory) {
            return off.into_iter().map(|(feature, _)| (feature, in_the_way(directory))).collect();
        }
        let mut lost = BTreeMap::new();
        for (feature, controller) in off {
            let on = format!("+{controller}");
            if let Err(error) = write_knob(directory, "cgroup.subtree_control", &on) {
                lost.insert(feature, skep_types::chain(&error));
            }
        }
        lost
    }

    /// When only skep's own processes are in the directory that is to be divided, as in a service or a scope that
    /// was handed over to it, they move into a leaf beside the groups. Others are never moved.
    fn step_aside(&self, directory: &Path) -> bool {
        let leaf = directory.join(format!("{}-keeper", self.parent.0));
        // One of them may start another meanwhile.
        for _ in 0..STEPS_ASIDE {
            let Ok(pids) = read_knob(directory, "cgroup.procs") else { return false };
            let pids: Vec<&str> = pids.lines().map(str::trim).collect();
            if pids.is_empty() {
                return true;
            }
            if !pids.iter().all(|pid| is_ours(pid)) || make_directory(&leaf).is_err() {
                return false;
            }
            for pid in pids {
                if write_knob(&leaf, "cgroup.procs", pid).is_err() && lives(pid) {
                    return false;
                }
            }
        }
        false
    }

    /// The group of a sandbox, if there is one: made by this process or an earlier one.
    pub fn open(&self, id: &SandboxId) -> Option<Group> {
        let mut parts = Vec::new();
        let mut missing = self.missing.clone();
        for hierarchy in &self.hierarchies {
            let directory = hierarchy.base.join(&self.parent.0).join(id.as_str());
            let (version, features) = (hierarchy.version, hierarchy.features.clone());
            if directory.is_dir() {
                parts.push(Part { version, directory, features });
            } else {
                let gone = |feature: &Feature| (*feature, "the group is gone".to_owned());
                missing.extend(features.iter().map(gone));
            }
        }
        (!parts.is_empty()).then(|| Group::from_parts(parts, missing, Level::Sandbox))
    }

    /// The group that a process is in, whoever made it: to be read, not to be changed.
    pub fn around(pid: Pid) -> Option<Group> {
        let read = |path: &str| super::read_file(Path::new(path)).unwrap_or_default();
        let place = read(&format!("/proc/{}/cgroup", pid.as_raw_nonzero()));
        let place = String::from_utf8(place).unwrap_or_default();
        let mut mounted = mounted_hierarchies(&read("/proc/self/mountinfo"));
        mounted.sort_by_key(|hierarchy| std::cmp::Reverse(hierarchy.version));
        let mut had = BTreeSet::new();
        let mut parts = Vec::new();
        for hierarchy in &mounted {
            let Some(path) = own_path(&place, hierarchy) else { continue };
            let Ok(below) = path.strip_prefix(&hierarchy.root) else { continue };
            let directory = hierarchy.mount_point.join(below);
            let offered = offered_features(hierarchy, &directory).into_iter();
            let features: BTreeSet<Feature> = offered.filter(|one| had.insert(*one)).collect();
            if !features.is_empty() {
                parts.push(Part { version: hierarchy.version, directory, features });
            }
        }
        (!parts.is_empty()).then(|| Group::from_parts(parts, BTreeMap::new(), Level::Exec))
    }

    /// Sandboxes that have a group under our parent.
    ///
    /// Another state directory may use the same parent: an id that is not in the caller's store
    /// is not the caller's to remove.
    pub fn find_owned(&self) -> BTreeSet<SandboxId> {
        let parents = self.hierarchies.iter().map(|h| h.base.join(&self.parent.0));
        parents
            .filter_map(|parent| fs::read_dir(parent).ok())
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect()
    }

    /// Ends everything in the group of a sandbox and removes it. Succeeds if it is already gone.
    pub fn remove_by_id(&self, id: &SandboxId) -> Result<(), CgroupError> {
        match self.open(id) {
            None => Ok(()),
            Some(group) => {
                group.kill()?;
                group.remove()
            }
        }
    }
}

/// Having made a group is not the right to move a process into it.
fn try_to_join(group: &Group) -> Result<(), String> {
    use skep_sys::process::{Namespaces, clone_with, is_single_threaded, wait_for};
    if !is_single_threaded().unwrap_or(false) {
        return Ok(());
    }
    let failed =
        |error: &dyn std::error::Error| format!("cannot join: {}", skep_types::chain(error));
    let files = group.procs_files().map_err(|error| failed(&error))?;
    let child = clone_with(Namespaces::NONE, || match super::join(&files) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(1),
    });
    match child.and_then(|child| wait_for(&child)).map_err(|error| failed(&error))? {
        0 => Ok(()),
        code => Err(failed(&io::Error::from_raw_os_error(code))),
    }
}

/// Whether a process runs the program that we run, for the same user. One that is gone is in nobody's way.
fn is_ours(pid: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let program = |pid: &str| {
        let program = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
        let owner = fs::metadata(format!("/proc/{pid}")).ok()?;
        Some((program.dev(), program.ino(), owner.uid()))
    };
    let own = program("self");
    (own.is_some() && program(pid) == own) || !lives(pid)
}

fn lives(pid: &str) -> bool {
    Path::new("/proc").join(pid).exists()
}

/// Whether processes are in a group itself. Where there are, memory cannot be handed down; the number of tasks and the
/// rate can, and that would turn what is below into groups of threads, which nobody can join. The group at the top is
/// free to have both, and has no type.
fn is_inhabited(directory: &Path) -> bool {
    directory.join("cgroup.type").exists()
        && read_knob(directory, "cgroup.procs").is_ok_and(|pids| !pids.trim().is_empty())
}

fn in_the_way(directory: &Path) -> String {
    let place = directory.display();
    format!(
        "other processes are in {place}; start skep in a group of its own: `systemd-run --user --scope -p Delegate=yes`"
    )
}

fn v2_controller(feature: Feature) -> Option<&'static str> {
    match feature {
        Feature::Memory => Some("memory"),
        Feature::Cpu => Some("cpu"),
        Feature::Pids => Some("pids"),
        Feature::Io => Some("io"),
        // Part of every v2 group.
        Feature::CpuTime | Feature::Freeze | Feature::Kill => None,
    }
}

fn offered_features(mounted: &MountedHierarchy, directory: &Path) -> Vec<Feature> {
    match mounted.version {
        Version::V1 => {
            let of = |controller: &str| -> &[Feature] {
                match controller {
                    "memory" => &[Feature::Memory],
                    "cpu" => &[Feature::Cpu],
                    "pids" => &[Feature::Pids],
                    "cpuacct" => &[Feature::CpuTime],
                    "blkio" => &[Feature::Io],
                    "freezer" => &[Feature::Freeze, Feature::Kill],
                    _ => &[],
                }
            };
            mounted.controllers.iter().flat_map(|name| of(name)).copied().collect()
        }
        Version::V2 => {
            let available = read_knob(directory, "cgroup.controllers").unwrap_or_default();
            let has = |feature: &Feature| {
                v2_controller(*feature)
                    .is_none_or(|name| available.split_whitespace().any(|word| word == name))
            };
            Feature::ALL.into_iter().filter(has).collect()
        }
    }
}

/// The topmost directory on the way to our own group that this process may make groups in: root
/// gets the top, an ordinary user what was delegated to it.
fn writable_base(mounted: &MountedHierarchy, own: Option<&Path>) -> Option<PathBuf> {
    let below = own.and_then(|own| own.strip_prefix(&mounted.root).ok()).unwrap_or(Path::new(""));
    let mut candidate = mounted.mount_point.clone();
    let mut candidates = vec![candidate.clone()];
    for component in below.components() {
        candidate.push(component);
        candidates.push(candidate.clone());
    }
    candidates.into_iter().find(|directory| {
        // Moving a process needs the right to write to the common ancestor's cgroup.procs as well.
        may_write(directory) && may_write(&directory.join("cgroup.procs"))
    })
}

fn may_write(path: &Path) -> bool {
    accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// Makes a group's directory, and its parent, which another process may be removing right now.
fn make_group(parent: &Path, directory: &Path) -> Result<(), CgroupError> {
    for _ in 0..100 {
        make_directory(parent)?;
        match fs::create_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Left by a keeper that was killed: taken away if nothing is in it.
                if super::group::remove_tree(directory, 1).is_err() {
                    return Err(CgroupError::InUse { path: directory.to_owned() });
                }
            }
            Err(source) => return Err(CgroupError::Create { path: directory.to_owned(), source }),
        }
    }
    let source = io::Error::other("it was removed again and again");
    Err(CgroupError::Create { path: directory.to_owned(), source })
}

fn make_directory(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::Create { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
