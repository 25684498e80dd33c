//! Sandboxes made ahead: a server has some started before anybody asks, and whoever asks for one like
//! them is given one.
//!
//! One that waits is a row in `creating` whose maker is the server. So nobody else sees it, and should
//! the server die, the next engine that opens takes it away as it does with every create that was
//! interrupted. Giving it away is one transaction: the row gets its name, its labels and a new maker,
//! and from there on it is an ordinary create whose keeper happens to run. It never comes back.
//!
//! *Like* is decided as if there were no pool: what is asked for is planned anew, down to the list of
//! hidden files, and must be the same in everything that a keeper is started with. What a keeper can
//! still be told is left out: the name, the environment and the base.

use crate::api::CreateRequest;
use crate::create::{Planned, Start, self_identity};
use crate::problems::{OrProblem, io_problem};
use crate::{Desk, Engine};
use serde::{Deserialize, Serialize};
use serde_json::json;
use skep_policy::PoolSection;
use skep_provider::Started;
use skep_store::{Expect, SandboxFilter, ScopeMode, StoreError};
use skep_types::{
    ByteString, Code, ContentHash, Exec, ExecSpec, KeeperIdentity, Policy, Problem, RelPath,
    Sandbox, SandboxState, SystemView, WorkspaceDriver,
};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Of one that waits: its pool, and what it is like.
const WAITS: &str = "skep.pool";
/// Of one that was given away: its pool.
const CAME_FROM: &str = "skep.pool.claimed";

/// Who has sandboxes made ahead, and with what surroundings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PoolOwner {
    /// The server: they go when it is gone.
    pub maker: KeeperIdentity,
    /// Its home directory.
    pub home: PathBuf,
    /// Its environment.
    pub environment: BTreeMap<String, ByteString>,
}

/// What a look at the pools came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// Sandboxes that were made.
    pub made: u64,
    /// Those that nobody would be given any more, and went.
    pub drained: u64,
    /// Pools that cannot be filled, and why.
    pub failed: BTreeMap<String, String>,
}

/// Figures of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolFigures {
    /// How many are to wait.
    pub size: u64,
    /// How many do.
    pub waiting: u64,
    /// How many are somebody's, and not deleted.
    pub claimed: u64,
}

/// Everything a keeper is started with and cannot be told later.
#[derive(Serialize)]
struct Likeness<'a> {
    program: &'static str,
    /// The kernel, QEMU or runtime.
    made_from: String,
    project: &'a ByteString,
    root: (u64, u64),
    provider: &'a str,
    home: Option<&'a ByteString>,
    hidden: &'a [RelPath],
    policy: Policy,
}

/// What a sandbox is like, if one made ahead could stand in for it.
fn likeness(desk: &Desk, planned: &Planned) -> Option<ContentHash> {
    let sandbox = &planned.sandbox;
    let egress = &sandbox.policy.egress;
    let own = !egress.secrets.is_empty()
        || !egress.secret_env.is_empty()
        || !egress.publish.is_empty()
        || !sandbox.layers.is_empty()
        || !planned.asked.is_empty()
        // What is shown of these was looked through for secrets when it started, and may have been
        // replaced since.
        || !sandbox.policy.home.is_empty()
        || !sandbox.policy.mounts.is_empty()
        || sandbox.policy.system == SystemView::Cow
        // A name may mean another image by now.
        || sandbox.policy.image.is_some()
        || planned.memory.is_some()
        || planned.scope == ScopeMode::Exclusive;
    if own {
        return None;
    }
    let made_from = desk.provider(&sandbox.provider).ok()?.circumstances(&sandbox.provider);
    let likeness = Likeness {
        program: env!("CARGO_PKG_VERSION"),
        made_from,
        project: &sandbox.project,
        root: (sandbox.base.device, sandbox.base.inode),
        provider: &sandbox.provider,
        home: sandbox.policy.env.get("HOME"),
        hidden: &sandbox.hidden,
        policy: Policy { env: BTreeMap::new(), ..sandbox.policy.clone() },
    };
    serde_json::to_vec(&likeness).ok().map(|bytes| ContentHash::of(&bytes))
}

/// The pool of a sandbox that waits, and what it is like.
fn waits(sandbox: &Sandbox) -> Option<(&str, &str)> {
    let label = sandbox.labels.get(WAITS).filter(|_| sandbox.state == SandboxState::Creating);
    label?.split_once(' ')
}

/// Whether it can be given away: what it enforces is written down when it is up.
fn is_up(sandbox: &Sandbox) -> bool {
    is_nobodys(sandbox) && !sandbox.enforcement.0.is_empty()
}

/// Whether it was made ahead, or is being so, and is nobody's yet.
pub(crate) fn is_nobodys(sandbox: &Sandbox) -> bool {
    waits(sandbox).is_some()
}

impl Engine {
    /// Has as many sandboxes wait as the settings say, and lets go what nobody would be given. Makes at
    /// most one at a time: whoever asks for something else is not to wait for all of them.
    pub fn fill_pools(&self, owner: &PoolOwner) -> Result<Filled, Problem> {
        let (settings, _) = self.settings(None, None)?;
        let mut filled = Filled::default();
        let mut waiting = self.waiting()?;
        let mut wanted = Vec::new();
        for (name, pool) in &settings.pools {
            match self.plan_ahead(name, pool, owner) {
                Ok(label) => wanted.push((name, pool, label)),
                Err(problem) => drop(filled.failed.insert(name.clone(), problem.to_string())),
            }
        }
        for (name, pool, label) in wanted {
            let fits = |one: &Sandbox| one.labels.get(WAITS) == Some(&label) && self.answers(one);
            let (mut stay, others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(fits);
            waiting = others;
            waiting.extend(stay.split_off(stay.len().min(pool.size as usize)));
            if (stay.len() as u64) < pool.size && filled.made == 0 {
                match self.make_ahead(name, pool, owner) {
                    Ok(()) => filled.made += 1,
                    Err(problem) => drop(filled.failed.insert(name.clone(), problem.to_string())),
                }
            }
        }
        for one in waiting {
            filled.drained += u64::from(self.let_go(&one, "nobody would be given it any more")?);
        }
        Ok(filled)
    }

    /// Lets go all that wait.
    pub fn drain_pools(&self) -> Result<u64, Problem> {
        let mut drained = 0;
        for one in self.waiting()? {
            drained += u64::from(self.let_go(&one, "the server ends")?);
        }
        Ok(drained)
    }

    /// Figures by pool: those of the settings, and those that still have sandboxes.
    pub(crate) fn pool_figures(&self) -> Result<BTreeMap<String, PoolFigures>, Problem> {
        let (settings, _) = self.settings(None, None)?;
        let mut pools: BTreeMap<String, PoolFigures> = settings
            .pools
            .iter()
            .map(|(name, pool)| (name.clone(), PoolFigures { size: pool.size, ..<_>::default() }))
            .collect();
        for sandbox in self.store.list_sandboxes(&SandboxFilter::default()).or_problem()? {
            if let Some((name, _)) = waits(&sandbox) {
                pools.entry(name.to_owned()).or_default().waiting += u64::from(is_up(&sandbox));
            } else if let Some(name) = sandbox.labels.get(CAME_FROM) {
                pools.entry(name.clone()).or_default().claimed += 1;
            }
        }
        Ok(pools)
    }

    /// Gives away one that waits, if there is one like what is planned.
    pub(crate) fn claim_ahead(
        &self,
        planned: &Planned,
        first: Option<&ExecSpec>,
    ) -> Result<Option<(Sandbox, Option<Exec>)>, Problem> {
        if planned.settings.pools.is_empty() {
            return Ok(None);
        }
        let Some(likeness) = likeness(self, planned).map(|hash| hash.to_string()) else {
            return Ok(None);
        };
        for one in self.waiting()? {
            if waits(&one).is_some_and(|(_, like)| like == likeness)
                && let Some(claimed) = self.give_away(&one, planned, first)?
            {
                return Ok(Some(claimed));
            }
        }
        Ok(None)
    }

    /// 1. The row, if it is still as it was read: one of those who try at once gets it.
    /// 2. The keeper. One that does not answer, or in which something was written, is of no use.
    /// 3. Ready, as with every create.
    fn give_away(
        &self,
        one: &Sandbox,
        planned: &Planned,
        first: Option<&ExecSpec>,
    ) -> Result<Option<(Sandbox, Option<Exec>)>, Problem> {
        let Some(sandbox) = self.claim_row(one, planned)? else { return Ok(None) };
        let adopted = self.untouched(&sandbox).and_then(|()| {
            self.provider(&sandbox.provider)?.adopt(&self.run_spec(&sandbox)).or_problem()
        });
        let Ok(keeper) = adopted else {
            self.tear_down(&sandbox, "it could not be given away");
            return Ok(None);
        };
        let started = Started { keeper, enforcement: sandbox.enforcement.clone() };
        let ready = self.note_ready(&sandbox, (sandbox.driver, started), planned, first);
        if ready.is_err() {
            self.tear_down(&sandbox, "create failed");
        }
        ready.map(Some)
    }

    fn claim_row(&self, one: &Sandbox, planned: &Planned) -> Result<Option<Sandbox>, Problem> {
        let Some((pool, _)) = waits(one) else { return Ok(None) };
        let (wanted, maker, now) = (&planned.sandbox, self_identity()?, self.now());
        let name = if planned.made_up { &one.name } else { &wanted.name };
        let data = json!({ "name": name, "pool": pool });
        let event = self.event("sandbox.claimed", &one.id, None, data);
        let expect = Expect { version: Some(one.version), ..Expect::default() };
        let claimed = self.store.claim_sandbox(&one.id, expect, &[event], &mut |row| {
            row.name = name.clone();
            row.labels = wanted.labels.clone();
            row.labels.insert(CAME_FROM.into(), pool.to_owned());
            row.policy = wanted.policy.clone();
            row.base = wanted.base.clone();
            row.keeper = Some(maker.clone());
            row.created_at.clone_from(&now);
            row.updated_at.clone_from(&now);
        });
        match claimed {
            Ok(claimed) => Ok(Some(claimed)),
            // Somebody was quicker, or it has gone.
            Err(
                StoreError::StaleVersion { .. }
                | StoreError::NotFound { .. }
                | StoreError::IllegalState { .. },
            ) => Ok(None),
            Err(error @ StoreError::AlreadyExists { .. }) => {
                Err(crate::bring_up::name_taken(&error, name))
            }
            Err(error) => Err(error).or_problem(),
        }
    }

    /// Nothing was written in it.
    fn untouched(&self, sandbox: &Sandbox) -> Result<(), Problem> {
        let upper = self.layout().sandbox(&sandbox.id).join("upper");
        let mut entries =
            std::fs::read_dir(&upper).map_err(|error| io_problem("look into", &upper, &error))?;
        match entries.next() {
            None => Ok(()),
            Some(_) => Err(Problem::new(Code::IllegalState, "something was written in it")),
        }
    }

    fn waiting(&self) -> Result<Vec<Sandbox>, Problem> {
        let states = [SandboxState::Creating].into();
        let filter = SandboxFilter { states, ..SandboxFilter::default() };
        let mut all = self.store.list_sandboxes(&filter).or_problem()?;
        all.retain(is_up);
        Ok(all)
    }

    /// The newest sandbox of a project that is somebody's.
    pub(crate) fn newest_of(&self, project: &ByteString) -> Result<Option<Sandbox>, Problem> {
        let newest = self.store.newest_sandbox(project).or_problem()?;
        if !newest.as_ref().is_some_and(is_nobodys) {
            return Ok(newest);
        }
        let filter = SandboxFilter { project: Some(project.clone()), ..SandboxFilter::default() };
        let all = self.store.list_sandboxes(&filter).or_problem()?;
        Ok(all.into_iter().rev().find(|sandbox| !is_nobodys(sandbox)))
    }

    /// Whether its keeper is there.
    fn answers(&self, one: &Sandbox) -> bool {
        let provider = self.provider(&one.provider);
        provider.is_ok_and(|provider| provider.status(&self.run_spec(one)).is_ok())
    }

    /// What one of this pool would be like, as its label says it.
    fn plan_ahead(
        &self,
        name: &str,
        pool: &PoolSection,
        owner: &PoolOwner,
    ) -> Result<String, Problem> {
        self.planned_ahead(pool, owner).and_then(|planned| label_of(self, name, &planned))
    }

    fn planned_ahead(&self, pool: &PoolSection, owner: &PoolOwner) -> Result<Planned, Problem> {
        let request = CreateRequest {
            project: pool.project.as_path().to_owned(),
            profile: pool.profile.clone(),
            provider: pool.provider.clone(),
            home: owner.home.clone(),
            host_env: owner.environment.clone(),
            ..CreateRequest::default()
        };
        self.planned(self.decide(&request)?, &request, Start::default())
    }

    fn make_ahead(&self, name: &str, pool: &PoolSection, owner: &PoolOwner) -> Result<(), Problem> {
        let mut planned = self.planned_ahead(pool, owner)?;
        let label = label_of(self, name, &planned)?;
        planned.sandbox.labels.insert(WAITS.into(), label);
        planned.sandbox.keeper = Some(owner.maker.clone());
        planned.ahead = true;
        self.bring_up(planned, None, &|| Ok(self)).map(drop)
    }

    /// It runs, and waits.
    pub(crate) fn note_waiting(
        &self,
        sandbox: &Sandbox,
        driver: WorkspaceDriver,
        started: &Started,
    ) -> Result<Sandbox, Problem> {
        if !matches!(driver, WorkspaceDriver::OverlayUserns | WorkspaceDriver::OverlayRoot) {
            let message = format!(
                "the project can only be copied or served by a program here (`{}`), so that one made \
                 ahead would not see what the project is when it is given away",
                driver.as_str()
            );
            return Err(Problem::new(Code::MissingCapability, message));
        }
        let data = json!({ "driver": driver });
        let event = self.event("sandbox.waiting", &sandbox.id, None, data);
        // The server may have died meanwhile, and somebody taken it for a create that was interrupted.
        let expect = Expect { version: Some(sandbox.version), ..Expect::default() };
        let now = self.now();
        let waits = self.store.update_sandbox(&sandbox.id, expect, &[event], &mut |row| {
            row.driver = driver;
            row.enforcement = started.enforcement.clone();
            row.updated_at.clone_from(&now);
        });
        waits.or_problem()
    }

    /// Takes away one that waits, unless somebody was just given it; whether it did. The row goes first,
    /// as with every removal.
    fn let_go(&self, one: &Sandbox, reason: &str) -> Result<bool, Problem> {
        let event = self.event("sandbox.drained", &one.id, None, json!({ "reason": reason }));
        let expect = Expect { version: Some(one.version), ..Expect::default() };
        let now = self.now();
        let gone = self.store.update_sandbox(&one.id, expect, &[event], &mut |row| {
            row.state = SandboxState::Deleted;
            row.state_reason = Some(reason.to_owned());
            // Not what holds it, but who had it made.
            row.keeper = None;
            row.updated_at.clone_from(&now);
        });
        match gone {
            Ok(gone) => self.finish_deleting(&gone).map(|()| true),
            Err(StoreError::StaleVersion { .. } | StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error).or_problem(),
        }
    }
}

fn label_of(desk: &Desk, name: &str, planned: &Planned) -> Result<String, Problem> {
    let likeness = likeness(desk, planned).ok_or_else(|| {
        let message = "a sandbox that shows an image, pieces of the home, mounts or a system to change, or has \
                       secrets or published ports of its own, cannot be made ahead";
        Problem::new(Code::Usage, message)
    })?;
    Ok(format!("{name} {likeness}"))
}
