//! Templates: named states that outlive their sandbox, and what `create --from` starts on.

use super::needs_overlay;
use super::system::needs_plain_system;
use crate::Engine;
use crate::api::SnapshotView;
use crate::create::{Remembered, Start};
use crate::problems::{OrProblem, io_problem};
use serde_json::json;
use skep_store::{Snapshot, StoreError, Template};
use skep_types::{Code, Problem, SandboxId, SandboxName, WorkspaceDriver};
use skep_workspace::tree::TreeRoot;
use std::path::{Path, PathBuf};

impl Engine {
    pub(crate) fn make_template(
        &self,
        id: &SandboxId,
        name: &SandboxName,
    ) -> Result<SnapshotView, Problem> {
        let (sandbox, _lock) = self.lock_sandbox(id)?;
        needs_overlay(&sandbox, "a template")?;
        needs_plain_system(&sandbox, "a template")?;
        if self.store.template(name.as_str()).is_ok() {
            let message = format!("there is a template `{name}` already");
            return Err(Problem::new(Code::AlreadyExists, message)
                .hint(format!("choose another name, or `skep template rm {name}`")));
        }
        let (sandbox, layers) = self.state_as_layers(sandbox)?;
        let memory = self.template_memory(name.as_str());
        crate::trash::discard(&memory, &self.layout().trash())
            .map_err(|error| io_problem("replace", &memory, &error))?;
        self.carry_memory(&self.layout().sandbox(id).join("base"), &memory)?;
        let snapshot = self.describe(&sandbox, name.to_string(), layers)?;
        let now = self.now();
        let template = Template { name: name.to_string(), snapshot, created_at: now };
        let event = self.event("template.saved", id, None, json!({ "name": name }));
        self.store.insert_template(&template, &[event]).or_problem()?;
        Ok(self.template_view(&template))
    }

    pub(crate) fn list_templates(&self) -> Result<Vec<SnapshotView>, Problem> {
        let templates = self.store.list_templates().or_problem()?;
        Ok(templates.iter().map(|template| self.template_view(template)).collect())
    }

    fn template_view(&self, template: &Template) -> SnapshotView {
        let id = &template.snapshot.sandbox;
        let name = self.store.sandbox(id).map(|sandbox| sandbox.name.to_string());
        SnapshotView {
            label: template.name.clone(),
            sandbox: name.unwrap_or_else(|_| id.to_string()),
            created_at: template.created_at.clone(),
            layers: template.snapshot.layers.len(),
        }
    }

    pub(crate) fn forget_template(&self, name: &SandboxName) -> Result<(), Problem> {
        let template = self.store.template(name.as_str()).or_problem()?;
        self.store.remove_template(name.as_str()).or_problem()?;
        let memory = self.template_memory(name.as_str());
        crate::trash::discard(&memory, &self.layout().trash())
            .map_err(|error| io_problem("remove", &memory, &error))?;
        self.sweep_layers(&template.snapshot.layers)
    }

    /// What is remembered of the base goes with the template: its sandbox may be gone by then.
    fn template_memory(&self, name: &str) -> PathBuf {
        self.layout().root().join("templates").join(name)
    }

    /// What `--from` names: `NAME:LABEL` is a snapshot, a single word an archive or a template.
    pub(crate) fn resolve_start(&self, from: &str, project: &Path) -> Result<Start, Problem> {
        let (snapshot, directory) = match from.split_once(':') {
            Some((name, label)) => {
                let sandbox = self.store.find_sandbox(name).or_problem()?;
                let snapshot = self.store.snapshot(&sandbox.id, label).or_problem()?;
                (snapshot, self.layout().sandbox(&sandbox.id).join("base"))
            }
            None if self.is_archive(from) => return self.start_from_archive(from, project),
            None => match self.store.template(from) {
                Err(error @ StoreError::NotFound { .. }) => {
                    let problem = Problem::from_error(Code::NotFound, &error);
                    return Err(problem.hint(
                        "`--from` takes a template (`skep template ls`), a snapshot (`NAME:LABEL`) or an \
                         archive (of `skep gc`)",
                    ));
                }
                other => (other.or_problem()?.snapshot, self.template_memory(from)),
            },
        };
        check_same_project(&snapshot, from, project)?;
        Ok(Start {
            layers: snapshot.layers,
            base: Some(snapshot.base),
            driver: Some(snapshot.driver),
            workdir: snapshot.workdir,
            memory: Some(Remembered { directory, reach: snapshot.reach }),
            scratch: None,
            rules: snapshot.rules,
        })
    }
}

/// Layers hold changes against one project; on another they would be nonsense.
pub(crate) fn check_same_project(
    snapshot: &Snapshot,
    from: &str,
    project: &Path,
) -> Result<(), Problem> {
    let refuse = |message: String| Err(Problem::new(Code::Refused, message));
    if snapshot.project.as_path() != project {
        return refuse(format!("`{from}` is a state of project `{}`", snapshot.project));
    }
    if snapshot.driver == WorkspaceDriver::Copy {
        return refuse(format!(
            "`{from}` is a full copy, which only its own sandbox can go back to"
        ));
    }
    let identity = TreeRoot::open(project)
        .and_then(|root| root.identity())
        .map_err(|error| io_problem("open project", project, &error))?;
    if identity != (snapshot.base.device, snapshot.base.inode) {
        return refuse(format!("project `{}` was replaced since `{from}`", project.display()));
    }
    Ok(())
}
