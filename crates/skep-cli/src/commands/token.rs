//! `skep token`: who may ask the server over TCP.

use crate::arguments::{AfterDashes, Json};
use crate::commands::serve::refuse_host;
use crate::context::Context;
use crate::exit::{Failure, Outcome};
use crate::render::sandbox::instant;
use crate::render::table::table;
use crate::tree::Run;
use clap::{Args, Subcommand};
use serde::Serialize;
use skep_server::{NewToken, Role, Token as Kept, Tokens};
use skep_types::{Code, Problem, parse_duration};
use std::time::Duration;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a token and print it; it is shown only this once
    Create {
        /// viewer, operator, approver, or agent (works in one sandbox only)
        #[arg(long)]
        role: Role,
        /// The sandbox of an agent: a name, an id, or the beginning of an id
        #[arg(short, long, value_name = "NAME")]
        sandbox: Option<String>,
        /// A word to know it by
        #[arg(long, value_name = "WORD", default_value = "unnamed")]
        name: String,
        /// Refused after this time
        #[arg(long, value_name = "D", value_parser = parse_duration)]
        expires: Option<Duration>,
        #[command(flatten)]
        json: Json,
    },
    /// List tokens; their secrets are kept nowhere
    Ls {
        #[command(flatten)]
        json: Json,
    },
    /// Refuse tokens from now on
    Revoke {
        /// Ids, as `ls` shows them
        #[arg(value_name = "TOKEN", required = true)]
        tokens: Vec<String>,
    },
}

#[derive(Serialize)]
struct TokenDocument<'a> {
    id: &'a str,
    role: Role,
    name: &'a str,
    sandbox: Option<&'a str>,
    created_at: &'a str,
    expires_at: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
}

impl<'a> TokenDocument<'a> {
    fn new(kept: &'a Kept, token: Option<&'a str>) -> Self {
        Self {
            id: &kept.id,
            role: kept.role,
            name: &kept.name,
            sandbox: kept.sandbox.as_ref().map(skep_types::SandboxId::as_str),
            created_at: &kept.created_at,
            expires_at: kept.expires_at.as_deref(),
            token,
        }
    }
}

impl Run for Token {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        refuse_host(context, "token")?;
        let tokens = Tokens::of(&crate::wiring::prepare(context.global())?);
        match self.what {
            What::Create { role, sandbox, name, expires, json } => {
                let sandbox = sandbox.map(|name| context.api()?.find(&name)).transpose()?;
                let now = crate::wiring::now();
                let expires_at = expires.map(|after| later(&now, after)).transpose()?;
                let sandbox = sandbox.map(|sandbox| sandbox.id);
                // Without a server nobody else does it.
                tokens.sweep(&now)?;
                let (kept, text) =
                    tokens.create(NewToken { role, sandbox, name, expires_at, now })?;
                if json.json {
                    context.output.document(&TokenDocument::new(&kept, Some(&text)))?;
                } else {
                    context.output.text(&format!("{text}\n"))?;
                }
            }
            What::Ls { json } => list(context, &tokens.list()?, json)?,
            What::Revoke { tokens: named } => {
                for text in named {
                    let kept = tokens.revoke(&text)?;
                    context.output.say(&format!("token {} is revoked", kept.id));
                }
            }
        }
        Ok(0)
    }
}

fn later(now: &str, after: Duration) -> Result<String, Problem> {
    let time = now.parse::<jiff::Timestamp>().ok().and_then(|now| {
        let after = jiff::SignedDuration::try_from(after).ok()?;
        now.checked_add(after).ok()
    });
    time.map(|time| time.to_string())
        .ok_or_else(|| Problem::new(Code::Usage, "--expires: that is too far away"))
}

fn list(context: &Context, tokens: &[Kept], json: Json) -> Result<(), Failure> {
    if json.json {
        let all: Vec<_> = tokens.iter().map(|kept| TokenDocument::new(kept, None)).collect();
        return context.output.document(&all);
    }
    let now = crate::wiring::now();
    let rows: Vec<Vec<String>> = tokens
        .iter()
        .map(|kept| {
            vec![
                kept.id.clone(),
                kept.role.to_string(),
                skep_types::escape::visible(kept.name.as_bytes()),
                kept.sandbox.as_ref().map_or_else(|| "-".into(), ToString::to_string),
                expiry(kept, &now),
            ]
        })
        .collect();
    context.output.text(&table(
        context.output.style,
        &["TOKEN", "ROLE", "NAME", "SANDBOX", "EXPIRES"],
        &rows,
    ))
}

/// When it is refused, or that it is.
fn expiry(kept: &Kept, now: &str) -> String {
    match kept.expires_at.as_deref() {
        None => "never".into(),
        Some(end) if kept.is_fresh(now) => instant(end),
        Some(end) => format!("{} (expired)", instant(end)),
    }
}
