//! Images that skep makes itself from Debian packages: no registry and no Dockerfile are needed,
//! only `mmdebstrap` and a mirror, which may be a directory.

use crate::engine::Engine;
use crate::error::{At, DockerError};
use crate::images::Image;
use serde::Deserialize;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const AGENT: &str = include_str!("../../../resources/agent/recipe.toml");
const ENTRY: &str = include_str!("../../../resources/agent/entry");
const HEALTH: &str = include_str!("../../../resources/agent/health");

/// Where the two scripts are in the image.
const ENTRY_INSIDE: &str = "/usr/local/bin/agent-entry";
const HEALTH_INSIDE: &str = "/usr/local/bin/agent-health";

const BUILDER: &str = "/usr/bin/mmdebstrap";

/// What an image is made from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    #[serde(rename = "version")]
    _version: u32,
    /// Which release of Debian.
    pub suite: String,
    /// The user without privileges whom its commands are.
    pub user: String,
    /// Packages.
    pub packages: Vec<String>,
}

/// What may be said about one build.
#[derive(Debug, Clone, Default)]
pub struct Build {
    /// Another release than the recipe's.
    pub suite: Option<String>,
    /// Where packages come from: an address, or a directory with a repository in it.
    pub mirror: Option<String>,
    /// Instead of the recipe's packages.
    pub packages: Vec<String>,
}

impl Recipe {
    /// The image for coding agents.
    ///
    /// # Errors
    /// Never, as a test makes sure.
    pub fn agent() -> Result<Self, DockerError> {
        toml::from_str(AGENT)
            .map_err(|error| DockerError::Invalid(format!("the built-in recipe is wrong: {error}")))
    }

    /// Makes the root filesystem, as an archive at `archive`. `progress` hears a line at a time. On
    /// error no archive is left.
    pub fn make(
        &self,
        build: &Build,
        archive: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), DockerError> {
        if !Path::new(BUILDER).exists() {
            return Err(DockerError::Tool {
                tool: "mmdebstrap",
                reason: format!("there is no `{BUILDER}`"),
                remedy: "install the Debian package mmdebstrap",
            });
        }
        let scripts = archive.with_extension("scripts");
        let made =
            write_scripts(&scripts).and_then(|()| self.run(build, &scripts, archive, progress));
        let _ = std::fs::remove_dir_all(&scripts);
        if made.is_err() {
            let _ = std::fs::remove_file(archive);
        }
        made
    }

    fn run(
        &self,
        build: &Build,
        scripts: &Path,
        archive: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), DockerError> {
        let step = || "make a root filesystem with mmdebstrap".to_owned();
        let mut child = Command::new(BUILDER)
            .args(self.words(build, scripts, archive))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .at(step)?;
        let mut last = String::new();
        if let Some(said) = child.stderr.take() {
            for line in std::io::BufRead::lines(std::io::BufReader::new(said)) {
                let Ok(line) = line else { break };
                progress(&line);
                if !line.trim().is_empty() {
                    last = line;
                }
            }
        }
        let ended = child.wait().at(step)?;
        match ended.success() {
            true => Ok(()),
            false => Err(DockerError::Io {
                operation: step(),
                source: std::io::Error::other(format!("{ended}: {last}")),
            }),
        }
    }

    fn words(&self, build: &Build, scripts: &Path, archive: &Path) -> Vec<String> {
        let packages = match build.packages.is_empty() {
            true => &self.packages,
            false => &build.packages,
        };
        let upload = |name: &str, inside: &str| {
            format!("--customize-hook=upload {} {inside}", scripts.join(name).display())
        };
        let user = &self.user;
        let add = format!(
            "--customize-hook=chroot \"$1\" useradd --create-home --uid 1000 --shell /bin/bash {user}"
        );
        let allow = format!("chmod 755 \"$1{ENTRY_INSIDE}\" \"$1{HEALTH_INSIDE}\"");
        let mut words = vec![
            "--variant=minbase".to_owned(),
            "--format=tar".to_owned(),
            format!("--include={}", packages.join(",")),
            add,
            upload("entry", ENTRY_INSIDE),
            upload("health", HEALTH_INSIDE),
            format!("--customize-hook={allow}"),
            build.suite.clone().unwrap_or_else(|| self.suite.clone()),
            archive.display().to_string(),
        ];
        words.extend(build.mirror.clone());
        words
    }

    /// What the image says about itself to the engine.
    fn says(&self) -> Vec<String> {
        let user = &self.user;
        vec![
            format!("USER {user}"),
            format!("WORKDIR /home/{user}"),
            format!("ENV HOME=/home/{user}"),
            format!("HEALTHCHECK --interval=30s --timeout=5s CMD [\"{HEALTH_INSIDE}\"]"),
            format!("ENTRYPOINT [\"{ENTRY_INSIDE}\"]"),
        ]
    }

    /// Gives a root filesystem that was made to the engine, under a name.
    pub fn hand_over(
        &self,
        engine: &Engine,
        archive: &Path,
        reference: &str,
    ) -> Result<Image, DockerError> {
        engine.import_saying(archive, reference, self.says())
    }
}

/// Plain names of ours: mmdebstrap takes hooks apart at blanks.
fn write_scripts(directory: &Path) -> Result<(), DockerError> {
    let step = || format!("write `{}`", directory.display());
    if directory.as_os_str().as_encoded_bytes().iter().any(u8::is_ascii_whitespace) {
        return Err(DockerError::Invalid(format!(
            "`{}` has blanks in it, which mmdebstrap cannot be told; name another place",
            directory.display()
        )));
    }
    std::fs::create_dir_all(directory).at(step)?;
    for (name, text) in [("entry", ENTRY), ("health", HEALTH)] {
        let path: PathBuf = directory.join(name);
        let mut file = std::fs::File::create(&path).at(step)?;
        file.write_all(text.as_bytes()).at(step)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).at(step)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipe_and_the_dockerfile_name_the_same_packages() {
        let recipe = Recipe::agent().unwrap();
        let dockerfile = include_str!("../../../resources/agent/Dockerfile");
        let (_, rest) = dockerfile.split_once("--no-install-recommends").unwrap();
        let (listed, _) = rest.split_once("&&").unwrap();
        let listed: Vec<&str> = listed.split_whitespace().filter(|word| *word != "\\").collect();
        assert_eq!(listed, recipe.packages);
    }

    #[test]
    fn a_build_may_have_its_own_packages_and_mirror() {
        let recipe = Recipe::agent().unwrap();
        let build = Build {
            packages: vec!["git".into()],
            mirror: Some("/srv/debian".into()),
            suite: Some("trixie".into()),
        };
        let words = recipe.words(&build, Path::new("/s"), Path::new("/a.tar"));
        assert!(words.contains(&"--include=git".to_owned()), "{words:?}");
        assert_eq!(words[words.len() - 3..], ["trixie", "/a.tar", "/srv/debian"]);
    }
}
