//! `skep net`: what a sandbox may reach, what it tried, and changes to it.

use crate::arguments::{AfterDashes, Json};
use crate::asking;
use crate::context::Context;
use crate::exit::Outcome;
use crate::naming;
use crate::render::egress;
use crate::render::style::Style;
use crate::tree::Run;
use clap::{Args, Subcommand};
use serde::Serialize;
use skep_engine::api::{EgressChange, EgressView};
use skep_policy::egress::Host;
use skep_types::{Code, Problem, Sandbox};
use std::fmt::Write as _;

/// Where nothing was said about the port.
const USUAL_PORT: u16 = 443;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Net {
    #[command(subcommand)]
    what: Option<What>,
    /// Sandbox (default: the project's newest)
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Only what was denied
    #[arg(long)]
    denied: bool,
    #[command(flatten)]
    json: Json,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Let a sandbox reach more, also while it runs
    Allow(Words),
    /// Take rules away, also while it runs; open connections that they allowed are cut
    Deny(Words),
    /// Try from inside whether hosts can be reached, and say why not
    Test(Words),
    /// Propose rules for what was tried and denied
    Learn {
        /// Sandbox (default: the project's newest)
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Ask at the terminal, then allow the proposed rules in this sandbox
        #[arg(long)]
        apply: bool,
        #[command(flatten)]
        json: Json,
    },
    /// Forget a secret in a sandbox, also while it runs
    Revoke(Words),
}

/// `[NAME] WORD…`.
#[derive(Debug, Args)]
struct Words {
    /// Sandbox (default: the project's newest), then rules, hosts or names of secrets
    #[arg(value_name = "NAME|WORD", required = true)]
    words: Vec<String>,
    /// Sandbox, as an option (then every word is what it is about)
    #[arg(short, long, value_name = "NAME")]
    sandbox: Option<String>,
    #[command(flatten)]
    json: Json,
}

impl Words {
    /// The first word is a sandbox if one is called so. Otherwise it must look like what the command
    /// is about: a mistyped name shall never change another sandbox.
    fn split(
        &self,
        context: &Context,
        find: naming::Find,
        is_meant: fn(&str) -> bool,
    ) -> Result<(Sandbox, &[String]), Problem> {
        if let Some(name) = &self.sandbox {
            return Ok((find(context, name)?, &self.words));
        }
        let Some((first, rest)) = self.words.split_first() else {
            return Ok((naming::named_or_newest(context, None)?, &[]));
        };
        match find(context, first) {
            Ok(sandbox) if rest.is_empty() => Err(nothing_after(&sandbox, first)),
            Ok(sandbox) => Ok((sandbox, rest)),
            Err(problem) if is_not_found(&problem) && is_meant(first) => {
                Ok((naming::named_or_newest(context, None)?, &self.words))
            }
            Err(problem) => Err(problem),
        }
    }
}

/// Also a beginning that fits several ids names no sandbox.
fn is_not_found(problem: &Problem) -> bool {
    matches!(problem.code, Code::NotFound | Code::Usage)
}

fn nothing_after(sandbox: &Sandbox, word: &str) -> Problem {
    let message = format!("`{word}` is a sandbox, and nothing stands behind it");
    Problem::new(Code::Usage, message).hint(format!(
        "write what it is about behind the name; `-s {} {word}` if `{word}` is that",
        sandbox.name
    ))
}

/// Rules and hosts have one of these in them; a name that is none but has a dot was looked for as
/// a sandbox before.
fn looks_like_a_host(word: &str) -> bool {
    word.contains(['.', ':', '*', '/', '@'])
}

/// Names of secrets look like names of sandboxes. A wrong one is refused by the sandbox.
fn any_word(_: &str) -> bool {
    true
}

impl Run for Net {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        // clap could refuse this, but it would refuse global options there too.
        if self.what.is_some() && (self.name.is_some() || self.denied || self.json.json) {
            let message = "a name and options of `skep net` stand behind its sub-command";
            let hint = "as in `skep net test NAME HOST --json`";
            return Err(Problem::new(Code::Usage, message).hint(hint).into());
        }
        match self.what {
            None => log(context, self.name.as_deref(), self.denied, self.json),
            Some(What::Allow(words)) => change(context, &words, Direction::Allow),
            Some(What::Deny(words)) => change(context, &words, Direction::Deny),
            Some(What::Test(words)) => test(context, &words),
            Some(What::Learn { name, apply, json }) => learn(context, name.as_deref(), apply, json),
            Some(What::Revoke(words)) => revoke(context, &words),
        }
    }
}

fn log(context: &Context, name: Option<&str>, denied: bool, json: Json) -> Outcome {
    let sandbox = naming::named_or_newest(context, name)?;
    let mut view = context.api()?.egress(&sandbox.id)?;
    if denied {
        view.entries.retain(|entry| entry.verdict == skep_types::EgressVerdict::Deny);
    }
    if json.json {
        for entry in &view.entries {
            context.output.json_line(entry)?;
        }
    } else {
        context.output.text(&egress::log(context.output.style, &view))?;
        say_denials(context, &view);
    }
    Ok(0)
}

fn say_denials(context: &Context, view: &EgressView) {
    if let Some(text) = egress::after_run(context.output.error_style, view) {
        context.output.say(text.trim_end());
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Allow,
    Deny,
}

fn change(context: &Context, words: &Words, direction: Direction) -> Outcome {
    let (sandbox, rules) = words.split(context, naming::whole, looks_like_a_host)?;
    let change = match direction {
        Direction::Allow => EgressChange { allow: rules.to_vec(), deny: Vec::new() },
        Direction::Deny => EgressChange { allow: Vec::new(), deny: rules.to_vec() },
    };
    apply(context, &sandbox, &change, words.json)
}

fn apply(context: &Context, sandbox: &Sandbox, change: &EgressChange, json: Json) -> Outcome {
    let changed = context.api()?.change_egress(&sandbox.id, change)?;
    for (text, rules) in egress::still_allowed(&change.deny, &changed.allow) {
        let rules = rules.join("`, `");
        context.output.warn(&format!("`{text}` can still be reached in part, by `{rules}`"));
    }
    if json.json {
        context.output.document(&changed)?;
    } else {
        let rules = match changed.allow.is_empty() {
            true => "nothing".to_owned(),
            false => changed.allow.join(" "),
        };
        let cut = match changed.cut {
            0 => String::new(),
            1 => "; one connection was cut".to_owned(),
            many => format!("; {many} connections were cut"),
        };
        context.output.say(&format!("sandbox {} may reach: {rules}{cut}", sandbox.name));
    }
    Ok(0)
}

fn test(context: &Context, words: &Words) -> Outcome {
    let (sandbox, hosts) = words.split(context, naming::named, looks_like_a_host)?;
    let target = |text: &String| {
        let (host, port) = Host::parse_authority(text)
            .map_err(|error| Problem::new(Code::Usage, format!("`{text}` is no host: {error}")))?;
        let host = match host.address() {
            Some(address) => address.to_string(),
            None => host.to_string(),
        };
        Ok((host, port.unwrap_or(USUAL_PORT)))
    };
    let targets = hosts.iter().map(target).collect::<Result<Vec<_>, Problem>>()?;
    let probes = context.api()?.probe_egress(&sandbox.id, &targets)?;
    if words.json.json {
        context.output.document(&probes)?;
    } else {
        context.output.text(&egress::probes(context.output.style, &probes))?;
    }
    Ok(u8::from(!probes.iter().all(|probe| probe.reached)))
}

/// What `learn` proposes.
#[derive(Serialize)]
struct Proposal<'a> {
    sandbox: &'a str,
    /// In force now.
    allow: &'a [String],
    /// What was tried and denied, with the rule that would permit it.
    tried: &'a [egress::Denied],
    /// The rules to add.
    add: Vec<&'a str>,
}

fn learn(context: &Context, name: Option<&str>, apply_now: bool, json: Json) -> Outcome {
    let sandbox = match apply_now {
        true => naming::whole_or_newest(context, name)?,
        false => naming::named_or_newest(context, name)?,
    };
    let view = context.api()?.egress(&sandbox.id)?;
    let tried = egress::denied(&view);
    let add: Vec<&str> = tried.iter().filter_map(|denied| denied.rule.as_deref()).collect();
    if json.json && !apply_now {
        let name = sandbox.name.as_str();
        context.output.document(&Proposal {
            sandbox: name,
            allow: &view.allow,
            tried: &tried,
            add,
        })?;
        return Ok(0);
    }
    let shown = proposal(&view, &tried, &add);
    let command = format!("skep net allow {} {}", sandbox.name, quoted(&add).join(" "));
    if !apply_now {
        context.output.text(&shown)?;
        if !add.is_empty() {
            context.output.say(&format!("{command}   allows this"));
        }
        return Ok(0);
    }
    if add.is_empty() {
        context.output.say("there is nothing to allow");
        return Ok(0);
    }
    // Programs inside choose what is proposed, and may go on choosing: only what somebody has seen is allowed.
    if !asking::somebody(context) {
        let message = "nobody is there to look at what would be allowed";
        return Err(Problem::new(Code::Refused, message).hint(command).into());
    }
    context.output.say(shown.trim_end());
    asking::ask(context, "allow this?", "nothing was allowed")?;
    let allow = add.iter().map(|rule| (*rule).to_owned()).collect();
    apply(context, &sandbox, &EgressChange { allow, deny: Vec::new() }, json)
}

/// As a shell reads them.
fn quoted(rules: &[&str]) -> Vec<String> {
    let plain = |rule: &&str| {
        rule.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:/@".contains(&byte))
    };
    rules
        .iter()
        .map(|rule| if plain(rule) { (*rule).to_owned() } else { format!("'{rule}'") })
        .collect()
}

/// A difference of the `[egress]` part of the user's settings, to be read and approved.
fn proposal(view: &EgressView, tried: &[egress::Denied], add: &[&str]) -> String {
    let mut text = String::from("--- allowed now\n+++ proposed\n [egress]\n allow = [\n");
    for rule in &view.allow {
        let _ = writeln!(text, "   \"{rule}\",");
    }
    for rule in add {
        let times: usize = tried
            .iter()
            .filter(|denied| denied.rule.as_deref() == Some(*rule))
            .map(|denied| denied.times)
            .sum();
        let _ = writeln!(text, "+  \"{rule}\", # tried {times}×");
    }
    text.push_str(" ]\n");
    for denied in tried.iter().filter(|denied| denied.rule.is_none()) {
        let _ = writeln!(text, "# by no rule: {}", egress::line(Style::PLAIN, denied));
    }
    text
}

fn revoke(context: &Context, words: &Words) -> Outcome {
    let (sandbox, names) = words.split(context, naming::whole, any_word)?;
    for name in names {
        let cut = context.api()?.revoke_secret(&sandbox.id, name)?;
        context.output.say(&format!("secret {name} is forgotten; connections cut: {cut}"));
    }
    Ok(0)
}
