//! Opening: the address, the schema, and its migrations.

use super::fault::{Fault, Outcome};
use super::pool::Pool;
use super::session::Session;
use super::{PostgresStore, WRITE_LOCK};
use crate::{NewInstance, Result, StoreError};
use std::net::ToSocketAddrs as _;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// The step at index `n` leads from schema `n` to `n + 1`; the numbers are those of SQLite's. A
/// step that was released never changes.
const MIGRATIONS: &[&str] =
    &[include_str!("schema-1.sql"), include_str!("schema-2.sql"), include_str!("schema-3.sql")];

/// Which database, and who we are.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// `postgresql://user@host:port/database`, or `postgresql:///database?host=/run/postgresql`.
    pub url: String,
    /// What a database is told about itself when it is made, and the node of this handle.
    pub first: NewInstance,
    /// Who holds the node's lease: the same for all processes that share a state directory.
    pub holder: String,
    /// Random: operation ids of this handle begin with it.
    pub session: String,
    /// How long the lease of the node is good for without a write.
    pub lease: Duration,
    /// At most so many connections.
    pub connections: usize,
    /// How long to wait for an answer of the server.
    pub stall: Duration,
    /// How long to wait for a free connection.
    pub patience: Duration,
    /// How long to ask for the outcome of a commit whose answer was lost.
    pub settling: Duration,
}

impl PostgresOptions {
    /// With the usual times: a lease of a minute, eight connections, half a minute for an answer.
    pub fn new(url: &str, first: NewInstance, holder: &str, session: &str) -> Self {
        Self {
            url: url.to_owned(),
            first,
            holder: holder.to_owned(),
            session: session.to_owned(),
            lease: Duration::from_secs(60),
            connections: 8,
            stall: Duration::from_secs(30),
            patience: Duration::from_secs(10),
            settling: Duration::from_secs(15),
        }
    }
}

impl PostgresStore {
    /// Connects, and brings the schema up to date. The tables are made in the first schema of the
    /// `search_path`. Nothing is written when the schema is current.
    ///
    /// Errors: `BadAddress`, `Unreachable`, `NewerSchema`, `ReadOnly` (a standby with an older
    /// schema), `Busy`, `Backend`.
    pub fn open(options: &PostgresOptions) -> Result<Self> {
        let (config, path) = parse(&options.url)?;
        let pool = Pool::new(config, options.connections, options.stall, options.patience);
        let store = Self {
            pool,
            path,
            node: options.first.node.clone(),
            holder: options.holder.clone(),
            session: options.session.clone(),
            lease: options.lease,
            settling: options.settling,
            operations: AtomicU64::new(0),
            epoch: Mutex::new(None),
            stopped: OnceLock::new(),
        };
        store
            .migrate(&options.first, MIGRATIONS)
            .map_err(|fault| fault.into_error("migrate", &store.path))?;
        Ok(store)
    }

    /// One transaction per step, under the write lock: of several processes that find an old
    /// schema one goes first, and a kill anywhere rolls the step back whole.
    fn migrate(&self, first: &NewInstance, migrations: &[&str]) -> Outcome<()> {
        let known = migrations.len() as u32;
        loop {
            let mut lent = self.begin("read the schema of", "BEGIN")?;
            let session = lent.session()?;
            let found = schema_version(session)?;
            if found > known {
                let path = self.path.clone();
                return Err(StoreError::NewerSchema { path, found, known }.into());
            }
            if found == known {
                return session.batch("COMMIT");
            }
            session.batch(&format!("SELECT pg_advisory_xact_lock({WRITE_LOCK})"))?;
            // Somebody else may have gone first while we waited for the lock.
            let found = schema_version(session)?;
            let Some(step) = migrations.get(found as usize) else { continue };
            session.batch(step)?;
            if found == 0 {
                session.batch("CREATE TABLE skep_schema (version INTEGER NOT NULL)")?;
                session.batch("INSERT INTO skep_schema (version) VALUES (0)")?;
                let insert = "INSERT INTO meta (key, value) VALUES ('instance', $1)";
                session.execute(insert, &[&first.instance])?;
            }
            session.batch("UPDATE skep_schema SET version = version + 1")?;
            session.batch("COMMIT")?;
        }
    }
}

fn schema_version(session: &mut Session) -> Outcome<u32> {
    let sql = "SELECT to_regclass('skep_schema') IS NOT NULL";
    let there: bool = match session.first(sql, &[])? {
        Some(row) => row.try_get(0)?,
        None => false,
    };
    if !there {
        return Ok(0);
    }
    let row = session.first("SELECT version FROM skep_schema", &[])?;
    let version: i32 = row.ok_or(Fault::Stalled)?.try_get(0)?;
    Ok(version as u32)
}

/// The configuration, and the address as errors show it: without the password.
fn parse(url: &str) -> Result<(Config, PathBuf)> {
    let bad = |reason: String| StoreError::BadAddress { reason };
    let known = ["postgresql://", "postgres://"].iter().any(|scheme| url.starts_with(scheme));
    if !known {
        return Err(bad("it must begin with `postgresql://`".into()));
    }
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        bad(std::error::Error::source(&error).map_or(error.to_string(), |why| why.to_string()))
    })?;
    if matches!(config.get_ssl_mode(), SslMode::Require) {
        return Err(
            bad("`sslmode=require` is not supported: this skep speaks no TLS to it".into()),
        );
    }
    let local = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost"
                || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
    };
    let said = url.contains("sslmode=disable");
    if config.get_hosts().is_empty() {
        return Err(bad("it names no host".into()));
    }
    if !said && !config.get_hosts().iter().all(local) {
        let reason = "it is not on this machine, and the connection would not be encrypted; \
                      use a tunnel, or say `sslmode=disable`";
        return Err(bad(reason.into()));
    }
    skep_sys::names::keep_built_in();
    resolve(&mut config).map_err(bad)?;
    config.application_name("skep");
    config.connect_timeout(Duration::from_secs(5));
    config.tcp_user_timeout(Duration::from_secs(15));
    let shown = shown(&config);
    Ok((config, shown))
}

/// Names are looked up here, by the C library: the client would start a thread for it.
fn resolve(config: &mut Config) -> std::result::Result<(), String> {
    let hosts = config.get_hosts().to_vec();
    if !config.get_hostaddrs().is_empty() || hosts.iter().any(|host| matches!(host, Host::Unix(_)))
    {
        return Ok(());
    }
    for host in hosts {
        let Host::Tcp(name) = host else { continue };
        let found = (name.as_str(), 0).to_socket_addrs();
        let found = found.map_err(|error| format!("`{name}` cannot be looked up: {error}"))?;
        let address = found.map(|address| address.ip()).next();
        config.hostaddr(address.ok_or_else(|| format!("`{name}` has no address"))?);
    }
    Ok(())
}

fn shown(config: &Config) -> PathBuf {
    let host = config.get_hosts().first().map_or_else(String::new, |host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    let user = config.get_user().map_or_else(String::new, |user| format!("{user}@"));
    format!("postgresql://{user}{host}/{}", config.get_dbname().unwrap_or_default()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_shown_without_their_password_and_strange_ones_refused() {
        let shown = |url: &str| parse(url).map(|(_, path)| path.display().to_string());
        assert_eq!(
            shown("postgresql://me:secret@127.0.0.1/skep").unwrap(),
            "postgresql://me@127.0.0.1/skep"
        );
        assert_eq!(
            shown("postgresql:///skep?host=/run/pg&user=me").unwrap(),
            "postgresql://me@/run/pg/skep"
        );
        for bad in [
            "sqlite:///x",
            "host=/tmp",
            "postgresql://",
            "postgresql:///skep",
            "postgresql://localhost/skep?sslmode=require",
            "postgresql://192.0.2.1/skep",
            "postgresql://localhost/skep?colour=red",
        ] {
            let refused = shown(bad).unwrap_err();
            assert!(matches!(refused, StoreError::BadAddress { .. }), "{bad}: {refused:?}");
            assert!(!refused.to_string().contains("secret"));
        }
        shown("postgresql://192.0.2.1/skep?sslmode=disable").unwrap();
    }
}
