//! Bodies of requests: into memory where they are JSON or input, into files without a name where they are
//! files. How much arrives at once is bounded, and so is how slowly.

use crate::app::Shared;
use crate::failure::Failure;
use crate::guard::Principal;
use crate::places::{Held, Holder, Share};
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use rustix::fs::{Mode, OFlags};
use skep_types::{Code, Problem};
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A body of which nothing comes for so long is given up; so is one that by then comes slower than this.
const PATIENCE: Duration = Duration::from_secs(30);
const SLOWEST: u64 = 4 << 10;

/// A body as it arrives.
struct Arriving {
    body: axum::body::Body,
    began: Instant,
    come: u64,
    limit: u64,
    who: Option<Principal>,
    share: Arc<Share>,
    held: Vec<Held>,
}

impl Arriving {
    fn new(request: Request, limit: u64, share: &Arc<Share>) -> Self {
        let who = request.extensions().get::<Principal>().cloned();
        let (began, share) = (Instant::now(), Arc::clone(share));
        Self { body: request.into_body(), began, come: 0, limit, who, share, held: Vec::new() }
    }

    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = match tokio::time::timeout(PATIENCE, self.body.frame()).await {
                Err(_) => return Err(too_slow()),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => {
                    let message = format!("the body broke off: {error}");
                    return Err(Failure::new(Code::Usage, message));
                }
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(bytes) = frame.into_data() else { continue };
            self.count(bytes.len() as u64)?;
            return Ok(Some(bytes));
        }
    }

    fn count(&mut self, bytes: u64) -> Result<(), Failure> {
        self.come += bytes;
        if self.come > self.limit {
            let message = format!("the body is larger than {} bytes", self.limit);
            return Err(Failure::new(Code::TooLarge, message));
        }
        let late = self.began.elapsed();
        if late > PATIENCE && self.come / late.as_secs().max(1) < SLOWEST {
            return Err(too_slow());
        }
        if let Some(who) = &self.who {
            self.held.push(self.share.take(who, bytes)?);
        }
        Ok(())
    }
}

fn too_slow() -> Failure {
    Failure::new(Code::Usage, "the body did not arrive in time")
}

/// Reads a body whole.
pub(crate) async fn whole(app: &Shared, request: Request, limit: usize) -> Result<Bytes, Failure> {
    let holder = request.extensions().get::<Holder>().cloned();
    let mut arriving = Arriving::new(request, limit as u64, &app.memory);
    let mut all = arriving.next().await?.unwrap_or_default();
    while let Some(piece) = arriving.next().await? {
        let mut longer = all.try_into_mut().unwrap_or_else(|all| BytesMut::from(all.as_ref()));
        longer.extend_from_slice(&piece);
        all = longer.freeze();
    }
    if let Some(holder) = holder {
        holder.keep(arriving.held);
    }
    Ok(all)
}

/// A body in a file without a name.
pub(crate) struct Kept {
    /// From its first byte on.
    pub(crate) file: Arc<File>,
    /// By what it is known again.
    pub(crate) hash: String,
    /// Its share of the disk, for as long as it is there.
    _held: Vec<Held>,
}

/// Writes a body into a file.
pub(crate) async fn into_file(app: &Shared, request: Request, limit: u64) -> Result<Kept, Failure> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(&app.state_dir, flags, Mode::RUSR | Mode::WUSR);
    let file = Arc::new(File::from(file.map_err(|errno| not_kept(errno.into()))?));
    let mut hasher = blake3::Hasher::new();
    let mut arriving = Arriving::new(request, limit, &app.disk);
    while let Some(bytes) = arriving.next().await? {
        hasher.update(&bytes);
        let to = Arc::clone(&file);
        let written = tokio::task::spawn_blocking(move || (&*to).write_all(&bytes)).await;
        written.map_err(io::Error::other).flatten().map_err(not_kept)?;
    }
    (&*file).rewind().map_err(not_kept)?;
    Ok(Kept { file, hash: hasher.finalize().to_hex().to_string(), _held: arriving.held })
}

fn not_kept(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Failure(Problem::new(Code::NoSpace, "there is no room for the body"))
        }
        _ => Failure::new(Code::Io, format!("cannot keep a body: {error}")),
    }
}
