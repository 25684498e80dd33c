//! Whose reading and writing comes first: weights, and whether the disk at hand heeds them.
//!
//! A weight is a number in a file of a group. What makes it count is the scheduler of the disk (`bfq`), or
//! with version 2 a model of costs that the host has switched on for the disk (`io.cost.qos`). With anything
//! else the kernel keeps the number and nothing comes of it. So a weight holds only on disks that heed it,
//! and which disks those are is asked of the kernel, down through partitions and mapped devices.

use super::{Feature, Group, Version, read_knob};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The files of the scheduler `bfq`.
pub(super) const BFQ_V1: &str = "blkio.bfq.weight";
pub(super) const BFQ_V2: &str = "io.bfq.weight";
/// The file of the model of costs.
pub(super) const COST: &str = "io.weight";

/// Deeper than any stack of mapped devices.
const MOST_DEVICES: usize = 256;

/// A disk that nothing lies below.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Disk {
    name: String,
    /// `254:0`.
    number: String,
    scheduler: String,
}

/// A weight that holds, and by what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weighed {
    /// The weight; 100 is what everybody has who was given none.
    pub weight: u64,
    /// The file it stands in.
    pub file: &'static str,
    /// The disks that heed it.
    pub disks: String,
    /// Whether what is written through the page cache is left out: version 1 does not know whose it is.
    pub direct_only: bool,
}

/// The weight that a group has on the disks below a directory, or why it has none there.
pub(super) fn in_force(group: &Group, place: &Path) -> Result<Weighed, String> {
    let part = group.part(Feature::Io).ok_or_else(|| {
        let noted = group.missing().get(&Feature::Io).cloned();
        noted.unwrap_or_else(|| "no cgroup hierarchy has it".to_owned())
    })?;
    let disks = disks_below(Path::new("/sys"), place)?;
    let file = match part.version {
        Version::V2 if heed_costs(&part.directory, &disks) => COST,
        Version::V2 => heed_bfq(&disks).map(|()| BFQ_V2)?,
        Version::V1 => heed_bfq(&disks).map(|()| BFQ_V1)?,
    };
    let weight = read_knob(&part.directory, file).ok().and_then(|text| weight_in(&text));
    let weight = weight.ok_or_else(|| format!("this kernel has no `{file}` for groups"))?;
    let names: Vec<&str> = disks.iter().map(|disk| disk.name.as_str()).collect();
    let direct_only = part.version == Version::V1;
    Ok(Weighed { weight, file, disks: names.join(", "), direct_only })
}

/// `default 100`, or the number alone.
fn weight_in(text: &str) -> Option<u64> {
    text.lines().next()?.split_whitespace().next_back()?.parse().ok()
}

fn heed_bfq(disks: &[Disk]) -> Result<(), String> {
    match disks.iter().find(|disk| disk.scheduler != "bfq") {
        None => Ok(()),
        Some(Disk { name, scheduler, .. }) => Err(format!(
            "the disk `{name}` has the scheduler `{scheduler}`, which knows no weights (root can change that: \
             `echo bfq > /sys/block/{name}/queue/scheduler`)"
        )),
    }
}

/// Whether the model of costs is on for all of them. Its switch is at the top of the hierarchy.
fn heed_costs(group: &Path, disks: &[Disk]) -> bool {
    let settings = group.ancestors().find_map(|directory| read_knob(directory, "io.cost.qos").ok());
    let on = |disk: &Disk| {
        let lines = settings.iter().flat_map(|text| text.lines());
        let mut words = lines.map(|line| line.split_whitespace());
        words.any(|mut words| {
            words.next() == Some(disk.number.as_str()) && words.any(|word| word == "enable=1")
        })
    };
    disks.iter().all(on)
}

/// The disks on which a directory lies.
fn disks_below(sys: &Path, place: &Path) -> Result<Vec<Disk>, String> {
    let stat = rustix::fs::stat(place)
        .map_err(|error| format!("`{}` cannot be looked at: {error}", place.display()))?;
    let number = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    disks_of(sys, &format!("{}:{}", number.0, number.1))
        .ok_or_else(|| format!("`{}` lies on no disk that can be told", place.display()))
}

/// The disks that a block device is made of.
fn disks_of(sys: &Path, number: &str) -> Option<Vec<Disk>> {
    let mut waiting = vec![fs::canonicalize(sys.join("dev/block").join(number)).ok()?];
    let mut found = BTreeMap::new();
    for _ in 0..MOST_DEVICES {
        let Some(device) = waiting.pop() else {
            return Some(found.into_values().collect());
        };
        let whole = whole_disk(device)?;
        let below = parts_of(&whole);
        if below.is_empty() {
            let disk = disk_at(&whole)?;
            found.insert(disk.number.clone(), disk);
        }
        waiting.extend(below);
    }
    None
}

/// A partition is queued with its disk.
fn whole_disk(device: PathBuf) -> Option<PathBuf> {
    if device.join("partition").exists() {
        return device.parent().map(Path::to_owned);
    }
    Some(device)
}

/// What a mapped device (LVM, RAID, encryption) is made of.
fn parts_of(device: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(device.join("slaves")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::canonicalize(entry.path()).ok()).collect()
}

fn disk_at(directory: &Path) -> Option<Disk> {
    let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
    let schedulers = read("queue/scheduler")?;
    let chosen = schedulers.split_whitespace().find_map(|word| {
        word.strip_prefix('[').and_then(|word| word.strip_suffix(']')).map(str::to_owned)
    });
    Some(Disk {
        name: directory.file_name()?.to_str()?.to_owned(),
        number: read("dev")?.trim().to_owned(),
        scheduler: chosen.unwrap_or_else(|| schedulers.trim().to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A `/sys` with the disk `sda` (two partitions), the disk `sdb`, and `dm-0` over a partition and a disk.
    fn sys(schedulers: [&str; 2]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = |path: &str, number: &str| {
            let directory = root.path().join("devices").join(path);
            fs::create_dir_all(directory.join("slaves")).unwrap();
            fs::write(directory.join("dev"), format!("{number}\n")).unwrap();
            fs::create_dir_all(root.path().join("dev/block")).unwrap();
            symlink(&directory, root.path().join("dev/block").join(number)).unwrap();
            directory
        };
        for (name, number, scheduler) in
            [("sda", "8:0", schedulers[0]), ("sdb", "8:16", schedulers[1])]
        {
            let disk = device(name, number);
            fs::create_dir(disk.join("queue")).unwrap();
            fs::write(disk.join("queue/scheduler"), scheduler).unwrap();
        }
        for (path, number) in [("sda/sda1", "8:1"), ("sda/sda2", "8:2")] {
            fs::write(device(path, number).join("partition"), "1\n").unwrap();
        }
        let mapped = device("dm-0", "252:0");
        for part in ["sda/sda2", "sdb"] {
            let target = root.path().join("devices").join(part);
            symlink(&target, mapped.join("slaves").join(target.file_name().unwrap())).unwrap();
        }
        root
    }

    fn names(disks: &[Disk]) -> Vec<&str> {
        disks.iter().map(|disk| disk.name.as_str()).collect()
    }

    #[test]
    fn a_partition_and_a_mapped_device_lie_on_whole_disks() {
        let sys = sys(["none mq-deadline [bfq]\n", "[none] bfq\n"]);
        let partition = disks_of(sys.path(), "8:1").unwrap();
        assert_eq!(names(&partition), ["sda"]);
        assert_eq!(heed_bfq(&partition), Ok(()));
        let mapped = disks_of(sys.path(), "252:0").unwrap();
        assert_eq!(names(&mapped), ["sda", "sdb"]);
        // One that does not heed it is enough for nothing to be promised.
        let reason = heed_bfq(&mapped).unwrap_err();
        assert!(reason.contains("`sdb`") && reason.contains("`none`"), "{reason}");
        assert_eq!(disks_of(sys.path(), "0:45"), None);
    }

    #[test]
    fn costs_count_where_they_are_on_for_every_disk() {
        let sys = sys(["[none]", "[none]"]);
        let mapped = disks_of(sys.path(), "252:0").unwrap();
        let top = tempfile::tempdir().unwrap();
        let group = top.path().join("skep/x");
        fs::create_dir_all(&group).unwrap();
        let set = |text: &str| fs::write(top.path().join("io.cost.qos"), text).unwrap();
        assert!(!heed_costs(&group, &mapped), "no such file");
        set("8:0 enable=1 ctrl=auto\n8:16 enable=0 ctrl=auto\n");
        assert!(!heed_costs(&group, &mapped));
        set("8:0 enable=1 ctrl=auto\n8:16 enable=1 ctrl=auto\n");
        assert!(heed_costs(&group, &mapped));
    }

    #[test]
    fn a_weight_is_the_default_of_its_file() {
        assert_eq!(weight_in("default 50\n8:0 70\n"), Some(50));
        assert_eq!(weight_in("50\n"), Some(50));
        assert_eq!(weight_in(""), None);
    }
}
