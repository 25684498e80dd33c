//! The process beside a container: has it made, and has it removed when it is over.
//!
//! It is started by the keeper with its order as the first line of a pipe, and lives until that
//! pipe ends or the container does. It talks to the engine; the keeper never does.

use crate::address::Address;
use crate::container::ProjectLink;
use crate::engine;
use crate::error::{Asked, At, DockerError, status};
use crate::record::Record;
use bollard::Docker;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveVolumeOptions,
};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;
use tokio::net::unix::pipe::Receiver;

/// The hidden command that is this process.
pub const ATTENDANT_COMMAND: &str = "__docker";

/// How often and how long the engine is asked whether a container is gone.
const GONE_PAUSE: Duration = Duration::from_millis(20);
const GONE_TRIES: u32 = 500;

/// The libraries that the loader puts into every program.
pub(crate) const PRELOAD: &str = "/etc/ld.so.preload";

/// Between two attempts to hear from an engine that does not answer.
const AGAIN: Duration = Duration::from_millis(500);

/// What is to be made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Where the engine listens.
    pub address: Address,
    /// Its version.
    pub engine: String,
    /// The sandbox's directory.
    pub directory: PathBuf,
    /// The number of the state directory.
    pub instance: String,
    /// The container's name.
    pub name: String,
    /// The project, where the engine mounts it.
    pub project: Option<ProjectLink>,
    /// The container.
    pub body: ContainerCreateBody,
    /// Its system is an image's.
    pub foreign: bool,
}

/// The life of the attendant. Returns its exit code.
pub fn attend() -> u8 {
    match attended() {
        Ok(()) => 0,
        Err(error) => {
            let _ =
                rustix::io::write(rustix::stdio::stderr(), skep_types::chain(&error).as_bytes());
            1
        }
    }
}

fn attended() -> Result<(), DockerError> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).at(|| "read the order".into())?;
    let order: Order =
        serde_json::from_str(&line).map_err(io::Error::other).at(|| "read the order".into())?;
    let runtime = engine::runtime()?;
    runtime.block_on(async {
        let life = rustix::io::dup(rustix::stdio::stdin()).map_err(io::Error::from);
        let life = life.and_then(Receiver::from_owned_fd);
        let life = life.at(|| "watch the keeper".into())?;
        run(&order, &life).await
    })
}

async fn run(order: &Order, life: &Receiver) -> Result<(), DockerError> {
    let docker = engine::open(&order.address).await?;
    let _project = order.project.as_ref().map(hold).transpose()?;
    let container = create(&docker, order).await?;
    let volume = match volume_of(&docker, &container).await {
        Ok(volume) => volume,
        Err(error) => return remove(&docker, &container, None).await.and(Err(error)),
    };
    let record = Record {
        instance: order.instance.clone(),
        container: container.clone(),
        volume,
        image: order.body.image.clone().unwrap_or_default(),
        engine: order.engine.clone(),
        address: order.address.clone(),
    };
    let lived = match record.write(&order.directory) {
        Ok(()) => match refuse_links(&docker, &container, order).await {
            Ok(()) => live(&docker, &container, life).await,
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    let removed = match engine::answered(&order.address, docker.ping()).await {
        Ok(_) => remove(&docker, &container, record.volume.as_deref()).await,
        // It stands still. What it holds is in the record, for whoever comes next.
        Err(error) => Err(error),
    };
    if removed.is_ok() {
        Record::remove(&order.directory);
    }
    lived.and(removed)
}

/// Numbers that no other process uses for a directory, if this one is somebody else where the engine is.
const HELD_FROM: i32 = 700;

/// Has the engine mount this very directory, whatever it sees at the project's path. The link leads to a
/// descriptor of this process: the kernel refuses to make an overlay from it in another mount namespace, and
/// in another pid namespace it leads nowhere. So an engine that could mount another tree starts nothing.
fn hold(project: &ProjectLink) -> Result<OwnedFd, DockerError> {
    let path = &project.project;
    let step = || format!("hold the project `{}`", path.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from).at(step)?;
    let seen = rustix::fs::fstat(&opened).map_err(io::Error::from).at(step)?;
    if (seen.st_dev, seen.st_ino) != project.identity {
        return Err(DockerError::Invalid(format!(
            "`{}` is another directory than when the sandbox was created",
            path.display()
        )));
    }
    let held =
        rustix::io::fcntl_dupfd_cloexec(&opened, HELD_FROM).map_err(io::Error::from).at(step)?;
    let place = format!("/proc/{}/fd/{}", std::process::id(), held.as_raw_fd());
    std::fs::remove_file(&project.link)
        .and_then(|()| std::os::unix::fs::symlink(place, &project.link))
        .at(step)?;
    Ok(held)
}

/// What the engine says when [`hold`]'s link leads it nowhere, or to a mount that is not in its namespace.
fn sees_another_tree(reason: &str) -> bool {
    reason.contains("failed to mount local volume")
        && ["invalid argument", "no such file or directory"].iter().any(|end| reason.ends_with(end))
}

/// Makes it. One of the same name is what a crash left of this very sandbox: nobody holds it.
async fn create(docker: &Docker, order: &Order) -> Result<String, DockerError> {
    let options = || CreateContainerOptionsBuilder::default().name(&order.name).build();
    let made = docker.create_container(Some(options()), order.body.clone()).await;
    let made = match made {
        Err(error) if status(&error) == Some(409) => {
            remove(docker, &order.name, None).await?;
            docker.create_container(Some(options()), order.body.clone()).await
        }
        made => made,
    };
    made.map(|made| made.id).asked(|| "make a container".into()).map_err(|error| match error {
        DockerError::Refused { operation, reason } if reason.contains(NOT_SEEN) => {
            let reason = format!("it does not see this host's files ({reason})");
            DockerError::Refused { operation, reason }
        }
        other => other,
    })
}

/// What an engine says that cannot find what it is told to mount.
const NOT_SEEN: &str = "bind source path does not exist";

/// Init, its libraries and what covers [`PRELOAD`] are mounted at names. A link of the image's in
/// one of them could lead into the workspace, which is mounted later: init would be a file of the
/// project's. (Docker's own engine puts a directory in the place of a link at `/etc`.)
async fn refuse_links(docker: &Docker, container: &str, order: &Order) -> Result<(), DockerError> {
    let places: &[&str] = if order.foreign { &["/run", "/etc", PRELOAD] } else { &[] };
    for place in places {
        let options = ContainerArchiveInfoOptionsBuilder::default().path(place).build();
        match docker.get_container_archive_info(container, Some(options)).await {
            Ok(found) if found.link_target.is_empty() => {}
            Ok(_) => {
                return Err(DockerError::Invalid(format!(
                    "`{place}` of the image is a link: what init is executed from could be exchanged"
                )));
            }
            Err(error) if status(&error) == Some(404) => {}
            Err(error) => return Err(error).asked(|| format!("look at `{place}` of an image")),
        }
    }
    Ok(())
}

/// What the engine has called the volume of a new container.
async fn volume_of(docker: &Docker, container: &str) -> Result<Option<String>, DockerError> {
    let seen = docker.inspect_container(container, None).await;
    let mounts = seen.asked(|| "look at a container".into())?.mounts.unwrap_or_default();
    Ok(mounts.into_iter().filter_map(|mount| mount.name).find(|name| !name.is_empty()))
}

/// Until the container has ended, or nobody needs it any more.
async fn live(docker: &Docker, container: &str, life: &Receiver) -> Result<(), DockerError> {
    docker.start_container(container, None).await.asked(|| "start a container".into()).map_err(
        |error| match error {
            DockerError::Refused { operation, reason } if sees_another_tree(&reason) => {
                let reason = format!(
                    "it cannot mount this project, as an engine with mounts or processes of its own cannot ({reason})"
                );
                DockerError::Refused { operation, reason }
            }
            other => other,
        },
    )?;
    let nobody = pin!(unneeded(life));
    let over = pin!(ended(docker, container));
    match select(nobody, over).await {
        Either::Right((Some(code), _)) if code != 0 => Err(DockerError::Refused {
            operation: "keep a container running".into(),
            reason: format!("it ended with code {code}"),
        }),
        Either::Left(_) | Either::Right(_) => Ok(()),
    }
}

/// The keeper's end of the pipe is closed, by it or by its death.
async fn unneeded(life: &Receiver) {
    let mut buffer = [0; 64];
    loop {
        if life.readable().await.is_err() {
            return;
        }
        match life.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// The engine says that it has ended, and with which code. One that does not answer says nothing of the container,
/// whose commands do not go through it.
async fn ended(docker: &Docker, container: &str) -> Option<i64> {
    loop {
        let mut answers = pin!(docker.wait_container(container, None));
        match answers.next().await {
            Some(Ok(ended)) => return Some(ended.status_code),
            Some(Err(bollard::errors::Error::DockerContainerWaitError { code, .. })) => {
                return Some(code);
            }
            Some(Err(error)) if status(&error) == Some(404) => return None,
            Some(Err(_)) | None => tokio::time::sleep(AGAIN).await,
        }
    }
}

/// Removes a container with everything that is only its own, and sees it gone.
pub(crate) async fn remove(
    docker: &Docker,
    container: &str,
    volume: Option<&str>,
) -> Result<(), DockerError> {
    remove_container(docker, container).await?;
    match volume {
        Some(volume) => remove_volume(docker, volume).await,
        None => Ok(()),
    }
}

/// Removes a volume that may have gone with its container.
pub(crate) async fn remove_volume(docker: &Docker, volume: &str) -> Result<(), DockerError> {
    match docker.remove_volume(volume, None::<RemoveVolumeOptions>).await {
        Err(error) if status(&error) != Some(404) => {
            Err(error).asked(|| format!("remove the volume `{volume}`"))
        }
        _ => Ok(()),
    }
}

async fn remove_container(docker: &Docker, container: &str) -> Result<(), DockerError> {
    let operation = || format!("remove the container `{container}`");
    let options = || RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    for _ in 0..GONE_TRIES {
        match docker.remove_container(container, Some(options())).await {
            Ok(()) => return Ok(()),
            Err(error) if status(&error) == Some(404) => return Ok(()),
            // Somebody is removing it already, the engine itself for instance.
            Err(error) if status(&error) == Some(409) => tokio::time::sleep(GONE_PAUSE).await,
            Err(error) => return Err(error).asked(operation),
        }
    }
    Err(DockerError::Refused { operation: operation(), reason: "it does not go away".into() })
}
