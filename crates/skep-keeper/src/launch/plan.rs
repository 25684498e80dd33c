//! What a sandbox is made from, decided by the keeper before anything of it exists.

use crate::failure::Failure;
use crate::identity::IdMap;
use crate::init::{InitSpec, Manner, Outlet, Places};
use crate::vessel::{Tasks, Vessel};
use crate::view::apply::WorkspaceParts;
use crate::view::fuse::SeenOwners;
use crate::view::plan::{CowDirectory, CowMethod};
use crate::view::sources::{self, Below, Owners, SourceSpec};
use crate::view::{image, system};
use skep_provider::RunSpec;
use skep_types::{InsideUser, Limits, SystemView, WorkspaceDriver};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// The plan of a sandbox: everything of the host that its view is made from, and who it is.
pub fn make<'a>(
    spec: &'a RunSpec,
    vessel: &'a Vessel,
    counted: bool,
) -> Result<InitSpec<'a>, Failure> {
    let map = map_for(spec, vessel);
    if spec.driver == WorkspaceDriver::OverlayRoot && map != IdMap::Range {
        return Err(Failure::missing(
            "the workspace driver `overlay-root`",
            "only root can mount it",
            "start the sandbox as root, who made it",
        ));
    }
    let plain = |path: PathBuf| SourceSpec {
        path,
        owners: Owners::Plain,
        below: Below::Included,
        identity: None,
    };
    let mut sources = vec![
        SourceSpec {
            path: spec.project.clone(),
            // A copy has the owners it needs, and may be one because the original could not.
            owners: match spec.driver {
                WorkspaceDriver::Copy => Owners::Plain,
                _ => Owners::Mapped,
            },
            below: Below::Excluded,
            identity: Some(spec.root_identity),
        },
        SourceSpec { below: Below::Excluded, ..plain(spec.directory.clone()) },
        plain(spec.directory.join("messages")),
    ];
    let layers: Vec<usize> = (0..spec.layers.len()).map(|index| 3 + index).collect();
    sources.extend(spec.layers.iter().cloned().map(plain));
    let named = spec.policy.home.iter().map(|piece| piece.as_path());
    let mut named = named.filter(|piece| sources::exists(&spec.home.join(piece)));
    named.try_for_each(|piece| refuse_way_to_state(spec, piece))?;
    let shown = crate::view::home::shown(spec)?;
    let home = sources.len();
    sources.extend(shown.pieces.iter().map(|piece| plain(spec.home.join(piece))));
    let mounts = sources.len();
    sources.extend(spec.policy.mounts.iter().map(|mount| SourceSpec {
        owners: match mount.access {
            skep_types::Access::Rw => Owners::Mapped,
            skep_types::Access::Ro => Owners::Plain,
        },
        ..plain(mount.source.as_path().to_owned())
    }));
    let init_program = vessel.init_program().map(|program| {
        sources.push(plain(program.to_owned()));
        sources.len() - 1
    });
    let copy_on_write = match spec.policy.system {
        SystemView::Ro => Vec::new(),
        SystemView::Cow => system_directories(spec, map, &mut sources)?,
    };
    let image = match vessel.image() {
        Some(root) => Some(image::parts(spec, vessel, root, &mut sources)?),
        None => None,
    };
    let ready = (spec.driver == WorkspaceDriver::OverlayRoot).then_some(sources.len());
    Ok(InitSpec {
        run: Cow::Borrowed(spec),
        machine: vessel.machine().map(Cow::Borrowed),
        manner: manner_of(vessel),
        host_kernel: vessel.init_program().map(|_| host_kernel()),
        map,
        sources,
        home_pieces: shown.pieces,
        home_directories: shown.directories,
        home_links: shown.links,
        image,
        copy_on_write,
        parts: WorkspaceParts {
            driver: spec.driver,
            project: 0,
            directory: 1,
            layers,
            ready,
            masked: !spec.hidden.is_empty(),
            owners: match map {
                IdMap::Range | IdMap::Host => SeenOwners::AsStored,
                IdMap::Own { .. } => SeenOwners::Inside,
            },
        },
        places: Places { messages: 2, home, mounts, init_program },
        scratch_size: scratch_size(&spec.policy.limits, counted),
        late: Vec::new(),
        first: false,
        known: None,
    })
}

/// The state directory is covered where a piece of the home shows it under its own name. A piece that
/// lies in it, or leads to it by a link, is refused: who sees skep's sockets approves for the user.
fn refuse_way_to_state(spec: &RunSpec, piece: &Path) -> Result<(), Failure> {
    let state = spec.directory.ancestors().nth(2).unwrap_or(&spec.directory);
    let named = spec.home.join(piece);
    let real = std::fs::canonicalize(&named).unwrap_or_else(|_| named.clone());
    let state = std::fs::canonicalize(state).unwrap_or_else(|_| state.to_owned());
    if !real.starts_with(&state) && (real == named || !state.starts_with(&real)) {
        return Ok(());
    }
    Err(Failure::missing(
        format!("`{}` of the home", piece.display()),
        format!("it leads to skep's own state in `{}`", state.display()),
        "take it out of `sandbox.home`, or name parts of it",
    ))
}

fn host_kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Whose ids those inside have.
pub(super) fn map_for(spec: &RunSpec, vessel: &Vessel) -> IdMap {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let map = |user, system| IdMap::for_caller(uid.as_raw(), gid.as_raw(), user, system);
    let policy = &spec.policy;
    match vessel {
        Vessel::Bare { mounts } if uid.is_root() || !mounts => IdMap::Host,
        // Containers of an engine have the host's ids.
        Vessel::Attended(_) => IdMap::Host,
        Vessel::Namespaces | Vessel::Machine(_) => map(policy.user, policy.system),
        // Only the keeper itself maps subordinate ids, which a system to be changed asks for.
        Vessel::Bubblewrap { .. } | Vessel::Bare { .. } => map(policy.user, SystemView::Ro),
        // The runtime expects to be root where it is; in the container there is another map.
        Vessel::Runtime(_) => map(InsideUser::Root, SystemView::Ro),
    }
}

/// What `--system cow` makes writable, with its sources.
fn system_directories(
    spec: &RunSpec,
    map: IdMap,
    sources: &mut Vec<SourceSpec>,
) -> Result<Vec<CowDirectory>, Failure> {
    let how = system::method(map)?;
    let mut directories = Vec::new();
    for path in system::directories() {
        system::prepare(&spec.directory, path, how, map)?;
        let lower = sources.len();
        let owners = match how {
            CowMethod::Overlay => Owners::Mapped,
            CowMethod::Fuse => Owners::Plain,
        };
        let below = Below::Excluded;
        sources.push(SourceSpec { path: path.into(), owners, below, identity: None });
        let area = system::area(&spec.directory, path);
        sources.push(SourceSpec { path: area, owners: Owners::Plain, below, identity: None });
        directories.push(CowDirectory { path: path.into(), lower, area: lower + 1, how });
    }
    Ok(directories)
}

/// Bytes for each filesystem in memory. Where a cgroup counts, they are charged to the memory limit;
/// where none does, none of them can hold more than that limit by itself.
pub fn scratch_size(limits: &Limits, counted: bool) -> u64 {
    let size = limits.disk.map_or(10 << 30, |size| size.0);
    match limits.memory {
        Some(memory) if !counted => size.min(memory.0),
        _ => size,
    }
}

fn manner_of(vessel: &Vessel) -> Manner {
    match vessel {
        Vessel::Namespaces | Vessel::Machine(_) => Manner::Forked,
        Vessel::Bubblewrap { .. } => Manner::Wrapped,
        Vessel::Bare { mounts } => Manner::Bare { mounts: *mounts },
        Vessel::Runtime(runtime) => Manner::Contained(match runtime.tasks {
            Tasks::Host => Outlet::Open,
            Tasks::Foreign => Outlet::Closed,
        }),
        Vessel::Attended(_) => Manner::Contained(Outlet::Open),
    }
}
