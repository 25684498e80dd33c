//! What was typed for `run`, `create` and `exec` becomes requests. Pure: files were read before.

use crate::arguments::exec::ExecLimitArguments;
use crate::arguments::sandbox::SandboxArguments;
use crate::environment::{self, Environment};
use crate::paths;
use crate::surroundings::Surroundings;
use skep_engine::api::{CreateRequest, MountRequest};
use skep_types::{
    Access, ByteString, Code, ExecSpec, Limits, PlainSecret, Problem, PublishedPort, SandboxName,
    Secret, SecretSource, TerminalSize, escape,
};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The request for a sandbox.
pub(crate) fn create(
    typed: &SandboxArguments,
    exec_limits: &ExecLimitArguments,
    env: Environment,
    project: PathBuf,
    around: &Surroundings,
) -> Result<CreateRequest, Problem> {
    let here = &around.directory;
    let start = paths::start(here, &project);
    let scope = typed.scope.iter().map(|path| {
        paths::in_project(path, start, &project).map(|path| path.as_path_or_dot().to_owned())
    });
    Ok(CreateRequest {
        trial: false,
        name: typed.name.clone(),
        scope: scope.collect::<Result<_, _>>()?,
        provider: typed.provider.clone(),
        from: typed.from.clone(),
        fresh: typed.fresh,
        discard: typed.discard,
        exclusive: typed.exclusive,
        user: typed.user.map(Into::into),
        system: typed.system.map(Into::into),
        image: typed.image.clone(),
        profile: typed.profile.clone(),
        network: typed.net.map(Into::into),
        allow: typed.allow.clone(),
        secrets: typed.secret.iter().map(|text| secret(text, here)).collect::<Result<_, _>>()?,
        secret_env: typed
            .secret_env
            .iter()
            .map(|text| plain_secret(text, here))
            .collect::<Result<_, _>>()?,
        publish: typed.publish.iter().map(|text| published(text)).collect::<Result<_, _>>()?,
        env,
        workdir: typed.workdir.as_deref().map(|path| inside(path, here, &project).into()),
        mounts: typed.mount.iter().map(|word| mount(word, here)).collect::<Result<_, _>>()?,
        archive: typed.archive.as_ref().map(|path| here.join(path)),
        datasets: datasets(&typed.dataset, here)?,
        hide: typed.hide.clone(),
        show: typed.show.clone(),
        allow_changes: typed.allow_changes.clone(),
        deny_changes: typed.deny_changes.clone(),
        limits: limits(typed, exec_limits),
        ttl: typed.ttl,
        require: typed.require.iter().copied().collect(),
        best_effort: typed.best_effort,
        labels: typed
            .label
            .iter()
            .map(|word| environment::label(word))
            .collect::<Result<_, _>>()?,
        keep: false,
        idempotency_key: typed.idempotency_key.clone(),
        host_env: around.environment(),
        home: around.home.clone(),
        project,
    })
}

fn secret(text: &str, here: &Path) -> Result<Secret, Problem> {
    let mut secret = skep_policy::parse_secret(text)
        .map_err(|error| Problem::from_error(Code::Usage, &error))?;
    absolute(&mut secret.source, here);
    Ok(secret)
}

fn plain_secret(text: &str, here: &Path) -> Result<PlainSecret, Problem> {
    let mut secret = skep_policy::parse_plain_secret(text)
        .map_err(|error| Problem::from_error(Code::Usage, &error))?;
    absolute(&mut secret.source, here);
    Ok(secret)
}

/// A later start may be made from somewhere else.
fn absolute(source: &mut SecretSource, here: &Path) {
    if let SecretSource::File(path) = source {
        *path = here.join(path.as_path()).into();
    }
}

fn published(text: &str) -> Result<PublishedPort, Problem> {
    skep_policy::parse_published_port(text)
        .map_err(|error| Problem::from_error(Code::Usage, &error))
}

fn limits(typed: &SandboxArguments, exec: &ExecLimitArguments) -> Limits {
    Limits {
        memory: typed.memory,
        cpus: typed.cpus,
        pids: typed.pids,
        disk: typed.disk,
        io_weight: typed.io_weight,
        idle_timeout: typed.idle_timeout,
        ..exec_limits(exec)
    }
}

/// The limits that are one command's own.
pub(crate) fn exec_limits(typed: &ExecLimitArguments) -> Limits {
    Limits {
        timeout: typed.timeout,
        grace: typed.grace,
        silence_timeout: typed.silence_timeout,
        cpu_time: typed.cpu_time,
        output: typed.output_limit,
        ..Limits::default()
    }
}

/// What to run, where, and how.
pub(crate) struct Command<'a> {
    /// The command and its arguments.
    pub(crate) words: Vec<OsString>,
    /// `--workdir`.
    pub(crate) workdir: Option<&'a Path>,
    /// Variables.
    pub(crate) env: Environment,
    /// Limits.
    pub(crate) limits: Limits,
    /// A terminal of this size.
    pub(crate) tty: Option<TerminalSize>,
}

/// Where a command is typed, and for which sandbox.
pub(crate) struct Place<'a> {
    /// The current directory.
    pub(crate) here: &'a Path,
    /// The sandbox's project.
    pub(crate) project: &'a Path,
    /// The sandbox's own directory to start in.
    pub(crate) own: &'a Option<ByteString>,
}

/// A directory that was typed. Also a relative one is meant inside, where the project is at its own
/// path.
fn inside(typed: &Path, here: &Path, project: &Path) -> PathBuf {
    if here.starts_with(project) { here.join(typed) } else { project.join(typed) }
}

/// The exec for a command typed at `place`. Where one stands counts only if nobody named a
/// directory: neither with the command nor when the sandbox was made.
pub(crate) fn exec(command: Command<'_>, place: &Place<'_>) -> Result<ExecSpec, Problem> {
    if command.words.first().is_none_or(|word| word.is_empty()) {
        return Err(Problem::new(Code::Usage, "there is no command to run")
            .hint("write it behind `--`, such as: -- make test"));
    }
    let Place { here, project, own } = place;
    let workdir = match command.workdir {
        Some(path) => Some(inside(path, here, project)),
        None => (own.is_none() && here.starts_with(project)).then(|| here.to_path_buf()),
    };
    Ok(ExecSpec {
        argv: command.words.into_iter().map(ByteString::from).collect(),
        env: command.env,
        workdir: workdir.map(ByteString::from),
        tty: command.tty,
        limits: command.limits,
    })
}

/// `SRC:DST[:ro|rw]`. The destination is absolute, so the last `:/` is where it starts; the source
/// may hold colons of its own.
fn mount(word: &OsStr, here: &Path) -> Result<MountRequest, Problem> {
    let refuse = |why: &str| {
        let message = format!("--mount: `{}` {why}", escape::visible(word.as_bytes()));
        Problem::new(Code::Usage, message)
            .hint("write SRC:DST, SRC:DST:ro or SRC:DST:rw, with an absolute DST")
    };
    let bytes = word.as_bytes();
    let (rest, access) = if let Some(rest) = bytes.strip_suffix(b":rw") {
        (rest, Access::Rw)
    } else {
        (bytes.strip_suffix(b":ro").unwrap_or(bytes), Access::Ro)
    };
    let at = rest.windows(2).rposition(|pair| pair == b":/");
    let at = at.ok_or_else(|| refuse("has no absolute path to mount at"))?;
    let (source, target) = (OsStr::from_bytes(&rest[..at]), OsStr::from_bytes(&rest[at + 1..]));
    // A target may hold a colon of its own only where nobody could have meant a mode by it.
    let last = target.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    if rest.len() == bytes.len() && last.contains(&b':') {
        return Err(refuse("ends with a mode that is neither `ro` nor `rw`"));
    }
    if source.is_empty() {
        return Err(refuse("has no path of the host before the `:`"));
    }
    if Path::new(target).components().any(|part| part == std::path::Component::ParentDir) {
        return Err(refuse("has a `..` in the path to mount at"));
    }
    Ok(MountRequest { source: here.join(source), target: target.into(), access })
}

/// Each name once: the last of two would silently stand for both.
fn datasets(words: &[OsString], here: &Path) -> Result<BTreeMap<String, PathBuf>, Problem> {
    let mut found = BTreeMap::new();
    for word in words {
        let (name, path) = dataset(word, here)?;
        if found.insert(name.clone(), path).is_some() {
            let message = format!("--dataset: the name `{name}` is there twice");
            return Err(Problem::new(Code::Usage, message).hint("give each data set its own name"));
        }
    }
    Ok(found)
}

/// `NAME=PATH`; the name becomes a directory below `/datasets`.
fn dataset(word: &OsStr, here: &Path) -> Result<(String, PathBuf), Problem> {
    let refuse = |why: &str| {
        let message = format!("--dataset: `{}` {why}", escape::visible(word.as_bytes()));
        Problem::new(Code::Usage, message).hint("write NAME=PATH")
    };
    let bytes = word.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=').ok_or_else(|| refuse("has no `=`"))?;
    let (name, path) = (&bytes[..at], &bytes[at + 1..]);
    // The rules for names of sandboxes are those of a single safe file name.
    let name = std::str::from_utf8(name).ok().filter(|name| is_plain(name));
    let name = name.ok_or_else(|| refuse("has no plain name before the `=`"))?;
    if path.is_empty() {
        return Err(refuse("has no path behind the `=`"));
    }
    Ok((name.to_owned(), here.join(OsStr::from_bytes(path))))
}

fn is_plain(name: &str) -> bool {
    !matches!(SandboxName::parse(name), Err(skep_types::NameError::Malformed(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn around() -> Surroundings {
        Surroundings {
            directory: "/p/src".into(),
            home: "/home/u".into(),
            variables: [("PATH".into(), "/bin".into())].into(),
            ..Surroundings::default()
        }
    }

    #[test]
    fn nothing_typed_is_nothing_asked() {
        let request = create(
            &SandboxArguments::default(),
            &ExecLimitArguments::default(),
            Environment::new(),
            "/p".into(),
            &around(),
        )
        .unwrap();
        assert_eq!(request.limits, Limits::default());
        assert_eq!(request.project, Path::new("/p"));
        assert_eq!(request.home, Path::new("/home/u"));
        assert_eq!(request.host_env["PATH"].as_bytes(), b"/bin");
        assert!(request.network.is_none() && request.scope.is_empty() && !request.best_effort);
    }

    #[test]
    fn every_option_arrives() {
        let typed = SandboxArguments {
            scope: vec!["sub".into(), "../doc".into()],
            mount: vec!["data:/data:rw".into()],
            archive: Some("../x.tar".into()),
            dataset: vec!["set1=/d".into()],
            label: vec!["team=bees".into()],
            pids: Some(32),
            ..SandboxArguments::default()
        };
        let exec =
            ExecLimitArguments { timeout: Some(Duration::from_secs(1)), ..Default::default() };
        let request = create(&typed, &exec, Environment::new(), "/p".into(), &around()).unwrap();
        assert_eq!(request.scope, [PathBuf::from("src/sub"), PathBuf::from("doc")]);
        assert_eq!(request.mounts[0].source, Path::new("/p/src/data"));
        assert_eq!(request.mounts[0].access, Access::Rw);
        assert_eq!(request.archive.unwrap(), Path::new("/p/src/../x.tar"));
        assert_eq!(request.datasets["set1"], Path::new("/d"));
        assert_eq!(request.labels["team"], "bees");
        assert_eq!(request.limits.pids, Some(32));
        assert_eq!(request.limits.timeout, Some(Duration::from_secs(1)));
    }

    #[test]
    fn mounts_split_at_the_absolute_target() {
        let parse = |text: &str| mount(text.as_ref(), Path::new("/here"));
        let odd = parse("/a:b:/c:d:ro").unwrap();
        assert_eq!(
            (odd.source.as_path(), odd.target.as_path()),
            ("/a:b".as_ref(), "/c:d".as_ref())
        );
        assert_eq!(parse("/a:/b:ro").unwrap().access, Access::Ro);
        for bad in ["", "/a", "/a:b", ":/b", "/a:/b:zz", "/a:/b:", "/a:/b:RO", "/a:/b/../c"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(parse("/a:/b:x/c").unwrap().target, Path::new("/b:x/c"));
    }

    #[test]
    fn datasets_have_plain_names() {
        let parse = |text: &str| dataset(text.as_ref(), Path::new("/here"));
        assert_eq!(parse("run=x").unwrap(), ("run".into(), "/here/x".into()));
        for bad in ["x", "=x", "../a=x", "a/b=x", "..=x", "a="] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let twice = ["a=x", "b=x", "a=y"].map(OsString::from);
        assert!(datasets(&twice, Path::new("/here")).unwrap_err().message.contains("`a`"));
    }

    fn spec(workdir: Option<&str>, here: &str, own: Option<&str>) -> Option<String> {
        let command = Command {
            words: vec!["true".into()],
            workdir: workdir.map(Path::new),
            env: Environment::new(),
            limits: Limits::default(),
            tty: None,
        };
        let own = own.map(ByteString::from);
        let place = Place { here: Path::new(here), project: Path::new("/p"), own: &own };
        let spec = exec(command, &place).unwrap();
        spec.workdir.map(|path| path.to_string())
    }

    #[test]
    fn the_command_starts_where_one_stands() {
        assert_eq!(spec(None, "/p/src", None).unwrap(), "/p/src");
        assert_eq!(spec(None, "/elsewhere", None), None);
        assert_eq!(spec(Some("sub"), "/p/src", None).unwrap(), "/p/src/sub");
        assert_eq!(spec(Some("sub"), "/elsewhere", None).unwrap(), "/p/sub");
        assert_eq!(spec(Some("/tmp"), "/p/src", None).unwrap(), "/tmp");
    }

    #[test]
    fn the_sandboxs_own_directory_is_the_keepers_to_know() {
        assert_eq!(spec(None, "/p/src", Some("/tmp")), None);
        assert_eq!(spec(Some("sub"), "/p/src", Some("/tmp")).unwrap(), "/p/src/sub");
        let typed = SandboxArguments { workdir: Some("sub".into()), ..Default::default() };
        let limits = ExecLimitArguments::default();
        let request = create(&typed, &limits, Environment::new(), "/p".into(), &around()).unwrap();
        assert_eq!(request.workdir.unwrap(), "/p/src/sub".into());
    }
}
