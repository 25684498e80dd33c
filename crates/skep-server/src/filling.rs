//! Sandboxes made ahead: kept at the number that the settings say while the server runs.

use crate::app::Shared;
use crate::calls::Call;
use crate::serve::told;
use skep_engine::{Filled, PoolOwner};
use skep_types::{Code, KeeperIdentity, Problem};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Between two looks, when nothing was missing.
const PAUSE: Duration = Duration::from_secs(2);
/// How long those that wait may take to go at the end. What is left then goes with the next start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Looks again and again, until the server stops; the settings are read anew each time.
pub(crate) async fn fill(app: Shared) {
    let Ok(owner) = owner(&app) else {
        tracing::warn!("no sandboxes are made ahead: this process cannot tell who it is");
        return;
    };
    let mut said = BTreeMap::new();
    let mut stopping = app.stopping.clone();
    while !*stopping.borrow() && app.pool.halted().is_none() {
        match look(&app, &owner).await {
            Ok(filled) => {
                if filled.failed != said {
                    for (pool, reason) in &filled.failed {
                        tracing::warn!(pool, reason, "a pool cannot be filled");
                    }
                    said.clone_from(&filled.failed);
                }
                if filled.made > 0 {
                    continue;
                }
            }
            Err(problem) => tracing::warn!(%problem, "cannot look after the pools"),
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = told(&mut stopping) => {}
        }
    }
}

/// Lets go those that wait, once no more are made.
pub(crate) async fn drain(app: &Shared, filling: JoinHandle<()>) {
    let drained = async {
        let _ = filling.await;
        match app.pool.halted() {
            None => app.ask_own(Call::DrainPools).await.map(drop),
            Some(_) => Ok(()),
        }
    };
    let asked = tokio::time::timeout(PATIENCE, drained).await;
    let left = match asked {
        Ok(Ok(())) => None,
        Ok(Err(problem)) => Some(problem.to_string()),
        Err(_) => Some("it took too long".to_owned()),
    };
    if let Some(reason) = left {
        tracing::warn!(reason, "sandboxes made ahead are left; the next start lets them go");
    }
}

async fn look(app: &Shared, owner: &PoolOwner) -> Result<Filled, Problem> {
    let value = app.ask_own(Call::FillPools { owner: owner.clone() }).await?.json()?;
    serde_json::from_value(value).map_err(|error| Problem::new(Code::Internal, error.to_string()))
}

/// They are this process's: should it be killed, whoever comes next takes them away.
fn owner(app: &Shared) -> io::Result<PoolOwner> {
    let pid = std::process::id();
    Ok(PoolOwner {
        maker: KeeperIdentity {
            pid,
            start_ticks: skep_sys::process::start_ticks(pid as i32)?,
            boot_id: skep_sys::process::boot_id()?,
            directory: None,
        },
        home: app.home.clone(),
        environment: app.environment.clone(),
    })
}
