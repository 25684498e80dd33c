//! Sandboxes and enforcement reports for people.

use super::overlaps;
use super::style::Style;
use super::table::{Cut, fits, fitted, table};
use skep_engine::api::{SandboxView, SnapshotView};
use skep_types::escape::{visible, visible_text};
use skep_types::{
    Access, ByteSize, EnforcementReport, Layer, LayerReport, Limits, NetworkMode, Sandbox,
    show_duration,
};
use std::fmt::Write as _;

/// Whose sandboxes a list holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listed {
    /// Those of one project, which whoever asked has named or stands in.
    OneProject,
    /// Those of all.
    AllProjects,
}

/// `ls`, for a terminal of so many columns, if it is one.
pub(crate) fn list(
    style: Style,
    columns: Option<usize>,
    views: &[SandboxView],
    listed: Listed,
) -> String {
    let mut heading = vec!["NAME", "STATE", "PROVIDER", "SIZE", "EXECS", "CREATED"];
    // A program finds the same columns in every list.
    let with_project = columns.is_none() || listed == Listed::AllProjects;
    if with_project {
        heading.push("PROJECT");
    }
    let rows = |at: fn(&str) -> String| -> Vec<Vec<String>> {
        let mut rows: Vec<_> = views.iter().map(|view| row(view, at)).collect();
        rows.iter_mut().for_each(|row| row.truncate(heading.len()));
        rows
    };
    let mut shown = rows(instant);
    if !fits(columns, &heading, &shown) {
        shown = rows(day);
    }
    let mut text = fitted(style, columns, &heading, shown, &[(6, Cut::Left)]);
    for warning in overlaps::folded(views) {
        let line = folded(&format!("! {}", visible_text(warning.as_bytes())), 2, columns);
        let _ = writeln!(text, "{}", style.yellow(&line));
    }
    text
}

fn row(view: &SandboxView, at: fn(&str) -> String) -> Vec<String> {
    let sandbox = &view.sandbox;
    vec![
        sandbox.name.to_string(),
        sandbox.state.to_string(),
        sandbox.provider.clone(),
        ByteSize(view.upper_bytes.saturating_add(view.system_bytes)).to_string(),
        view.running.len().to_string(),
        at(&sandbox.created_at),
        sandbox.project.to_string(),
    ]
}

/// `show`, for a terminal of so many columns, if it is one.
pub(crate) fn show(
    style: Style,
    columns: Option<usize>,
    view: &SandboxView,
    snapshots: &[SnapshotView],
) -> String {
    let sandbox = &view.sandbox;
    let mut text = String::new();
    let mut field = |name: &str, value: &str| {
        let value = folded(value, 12, columns);
        let _ = writeln!(text, "{} {value}", style.bold(&format!("{name:<11}")));
    };
    field("name", sandbox.name.as_str());
    field("id", sandbox.id.as_str());
    field("state", &state(sandbox));
    field("project", &sandbox.project.to_string());
    if let Some(workdir) = &sandbox.policy.workdir {
        field("starts in", &workdir.to_string());
    }
    field("provider", &format!("{} ({})", sandbox.provider, sandbox.driver.as_str()));
    for (name, value) in &view.facts {
        field("", &visible_text(format!("{name}: {value}").as_bytes()));
    }
    field("base", sandbox.base.commit.as_deref().unwrap_or("the project as it was at create"));
    field("created", &instant(&sandbox.created_at));
    let mut size = format!("{} in {} entries", ByteSize(view.upper_bytes), view.upper_inodes);
    if view.system_bytes > 0 {
        let _ = write!(size, ", and {} in the copy of the system", ByteSize(view.system_bytes));
    }
    if view.base_bytes > 0 {
        let _ = write!(size, ", and {} kept of the base", ByteSize(view.base_bytes));
    }
    field("size", &size);
    if !view.running.is_empty() {
        let running: Vec<_> = view.running.iter().map(skep_types::ExecId::as_str).collect();
        field("running", &running.join(" "));
    }
    let limits = limits(&sandbox.policy.limits);
    if !limits.is_empty() {
        field("limits", &limits.join(", "));
    }
    for mount in &sandbox.policy.mounts {
        let access = if mount.access == Access::Rw { "writable" } else { "read-only" };
        field("mount", &format!("{} at {}, {access}", mount.source, mount.target));
    }
    let egress = &sandbox.policy.egress;
    if sandbox.policy.network == NetworkMode::Allow {
        let rules = if egress.allow.is_empty() { "nothing".into() } else { egress.allow.join(" ") };
        field("may reach", &rules);
    }
    for secret in &egress.secrets {
        let hosts = secret.hosts.join(", ");
        field("secret", &format!("{} from {} for {hosts}", secret.name, secret.source));
    }
    for secret in &egress.secret_env {
        field("secret", &format!("{} from {}, IN THE CLEAR inside", secret.name, secret.source));
    }
    for port in &egress.publish {
        field("publishes", &format!("127.0.0.1:{} leads to {} inside", port.host, port.inside));
    }
    let rules = |globs: &[String]| visible_text(format!("`{}`", globs.join("`, `")).as_bytes());
    if !sandbox.policy.allow_changes.is_empty() {
        let allow = rules(&sandbox.policy.allow_changes);
        field("changes", &format!("only of {allow} may be approved"));
    }
    if !sandbox.policy.deny_changes.is_empty() {
        let deny = rules(&sandbox.policy.deny_changes);
        field("changes", &format!("of {deny} may not be approved"));
    }
    for (key, value) in &sandbox.labels {
        field("label", &visible(format!("{key}={value}").as_bytes()));
    }
    for (path, bytes) in &view.largest {
        field("large", &format!("{path} ({})", ByteSize(*bytes)));
    }
    for snapshot in snapshots {
        let label = visible(snapshot.label.as_bytes());
        field("snapshot", &format!("{label} ({})", instant(&snapshot.created_at)));
    }
    for warning in &view.warnings {
        field("warning", &visible_text(warning.as_bytes()));
    }
    text.push('\n');
    text.push_str(&match columns {
        Some(columns) => narrow_enforcement(style, columns, &sandbox.enforcement),
        None => enforcement(style, &sandbox.enforcement),
    });
    text
}

fn state(sandbox: &Sandbox) -> String {
    match &sandbox.state_reason {
        Some(reason) => format!("{} ({})", sandbox.state, visible_text(reason.as_bytes())),
        None => sandbox.state.to_string(),
    }
}

/// The enforcement report as a table.
pub(crate) fn enforcement(style: Style, report: &EnforcementReport) -> String {
    let row = |layer: Layer| match report.0.get(&layer) {
        Some(found) => vec![
            layer.to_string(),
            if found.enforced { "yes" } else { "no" }.to_owned(),
            visible_text(found.how.as_bytes()),
            visible_text(found.reason.as_deref().unwrap_or_default().as_bytes()),
        ],
        None => {
            vec![layer.to_string(), "no".to_owned(), "none".to_owned(), "not reported".to_owned()]
        }
    };
    let rows: Vec<_> = Layer::ALL.into_iter().map(row).collect();
    table(style, &["LAYER", "ENFORCED", "HOW", "REASON"], &rows)
}

/// The same for a terminal: what is said of a layer stands in as many lines as it needs.
fn narrow_enforcement(style: Style, columns: usize, report: &EnforcementReport) -> String {
    let mut text = style.bold("LAYER       ENFORCED  HOW") + "\n";
    for layer in Layer::ALL {
        let (enforced, said) = match report.0.get(&layer) {
            Some(LayerReport { enforced, how, reason: Some(reason) }) => {
                (*enforced, format!("{how}; {reason}"))
            }
            Some(LayerReport { enforced, how, .. }) => (*enforced, how.clone()),
            None => (false, "none; not reported".to_owned()),
        };
        let said = folded(&visible_text(said.as_bytes()), 22, Some(columns));
        let word = if enforced { "yes" } else { "no" };
        let _ = writeln!(text, "{:<12}{word:<10}{said}", layer.to_string());
    }
    text
}

/// A text that begins behind `indent` columns, in lines that fit and begin there too. Words stay whole.
pub(crate) fn folded(text: &str, indent: usize, columns: Option<usize>) -> String {
    // In less than this nothing can be read anyway.
    let Some(room) = columns.map(|columns| columns.saturating_sub(indent).max(20)) else {
        return text.to_owned();
    };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let Some(line) = lines.last_mut() else { continue };
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= room {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join(&format!("\n{:indent$}", ""))
}

/// The limits that are set, in words.
fn limits(limits: &Limits) -> Vec<String> {
    let size = |name: &str, value: Option<ByteSize>| value.map(|size| format!("{name} {size}"));
    let count = |name: &str, value: Option<u64>| value.map(|number| format!("{name} {number}"));
    let time = |name: &str, value: Option<std::time::Duration>| {
        value.map(|time| format!("{name} {}", show_duration(time)))
    };
    let all = [
        size("memory", limits.memory),
        limits.cpus.map(|number| format!("cpus {number}")),
        time("cpu time", limits.cpu_time),
        count("pids", limits.pids),
        size("disk", limits.disk),
        count("io weight", limits.io_weight),
        count("inodes", limits.inodes),
        count("open files", limits.open_files),
        time("timeout", limits.timeout),
        time("grace", limits.grace),
        time("idle", limits.idle_timeout),
        time("silence", limits.silence_timeout),
        size("output", limits.output),
    ];
    all.into_iter().flatten().collect()
}

/// An RFC 3339 instant to the second, which is enough to look at.
pub(crate) fn instant(text: &str) -> String {
    match text.parse::<jiff::Timestamp>() {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
        Err(_) => visible(text.as_bytes()),
    }
}

/// The same to the day, for where there is no room.
pub(crate) fn day(text: &str) -> String {
    instant(text).split(' ').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn a_sandbox_is_shown_with_every_layer() {
        let view = fake::view("bar1");
        for columns in [None, Some(80), Some(200)] {
            let text = show(Style::PLAIN, columns, &view, &[]);
            for word in ["bar1", "stopped", "/p", "filesystem", "kernel", "not reported"] {
                assert!(text.contains(word), "{word}:\n{text}");
            }
        }
        let text = list(Style::PLAIN, None, &[view], Listed::OneProject);
        assert!(text.starts_with("NAME "), "{text}");
    }

    #[test]
    fn a_list_fits_the_terminal_and_is_whole_elsewhere() {
        let mut views = vec![fake::view("calm-petal-920"), fake::view("fix-login")];
        for view in &mut views {
            view.sandbox.project = "/home/somebody/work/clients/a-company/web-shop".into();
            view.warnings.push("the copy holds more than `warn.upper_size` says; ".repeat(3));
        }
        let text = |columns, listed| list(Style::PLAIN, columns, &views, listed);
        for columns in [80, 100, 120] {
            for listed in [Listed::OneProject, Listed::AllProjects] {
                let text = text(Some(columns), listed);
                let widest = text.lines().map(|line| line.chars().count()).max();
                assert!(widest <= Some(columns), "{text}");
                assert!(text.contains("calm-petal-920  stopped"), "{text}");
            }
        }
        assert!(!text(Some(80), Listed::OneProject).contains("PROJECT"));
        let narrow = text(Some(80), Listed::AllProjects);
        assert!(narrow.contains("2026-11-15  …") && narrow.contains("web-shop\n"), "{narrow}");
        for listed in [Listed::OneProject, Listed::AllProjects] {
            let whole = text(None, listed);
            assert!(whole.contains("21:00:00Z  /home/somebody/work/clients/a-company/web-shop\n"));
        }
    }

    #[test]
    fn a_terminal_is_not_overrun() {
        let mut view = fake::view("bar1");
        let how =
            "guarded by a long list of things that hold, each of which is named here; ".repeat(4);
        let report = LayerReport { enforced: true, how, reason: Some("no quota".into()) };
        view.sandbox.enforcement.0.insert(Layer::Disk, report);
        view.warnings
            .push("sandbox `other` also touched `a`, `b`, `c` and a great many more ".repeat(3));
        let text = show(Style::PLAIN, Some(80), &view, &[]);
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{text}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let wide = show(Style::PLAIN, Some(1000), &view, &[]);
        assert_eq!(words(&text), words(&wide), "nothing is lost");
    }

    #[test]
    fn instants_to_the_second() {
        assert_eq!(instant("2026-11-15T21:00:00.123456789Z"), "2026-11-15 21:00:00Z");
        assert_eq!(instant("\x1b[2J"), "\\x1b[2J");
    }
}
