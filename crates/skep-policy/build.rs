//! Turns the lists in `resources/*.toml` into what a program reads without parsing TOML: JSON, and for the list
//! that every run needs, constants.
//!
//! People read and edit TOML; a program reads JSON ten times faster, and every start of `skep`
//! reads some of these lists.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::{env, fs};
use toml::{Table, Value};

const LISTS: [&str; 4] = ["environment", "profiles", "risky-paths", "system-secrets"];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let resources = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../resources");
    let output = env::var("OUT_DIR")?;
    let read = |list: &str| -> Result<Table, Failure> {
        let source = resources.join(format!("{list}.toml"));
        println!("cargo::rerun-if-changed={}", source.display());
        let table = toml::from_str(&fs::read_to_string(&source)?);
        Ok(table.map_err(|error| format!("{}: {error}", source.display()))?)
    };
    for list in LISTS {
        let value = read(list)?;
        fs::write(Path::new(&output).join(format!("{list}.json")), serde_json::to_vec(&value)?)?;
    }
    let hidden = hidden(read("hidden")?).map_err(|error| format!("hidden.toml: {error}"))?;
    fs::write(Path::new(&output).join("hidden.rs"), hidden)?;
    Ok(())
}

/// The list of hidden files as constants of `hidden.rs`. Whatever it does not know is an error.
fn hidden(mut list: Table) -> Result<String, Failure> {
    let mut hasher = DefaultHasher::new();
    list.to_string().hash(&mut hasher);
    let mut out = String::from("/// Changes when the list does.\n");
    writeln!(out, "const FINGERPRINT: &str = \"{:016x}\";", hasher.finish())?;
    list.remove("version").ok_or("`version` is missing")?;
    let rows = [
        ("hide", "ENTRIES", "HiddenEntry", &["pattern", "kind", "sample", "reason"][..]),
        ("except", "EXCEPT", "Exception", &["pattern", "reason"]),
        ("copies", "COPIES", "CopyName", &["prefix", "suffix", "reason"]),
    ];
    for (key, name, kind, fields) in rows {
        writeln!(out, "const {name}: &[{kind}] = &[")?;
        for row in array(&mut list, key)? {
            let Value::Table(mut row) = row else { return Err(format!("{key}: no table").into()) };
            write!(out, "    {kind} {{ ")?;
            for field in fields {
                let value = match row.remove(*field) {
                    Some(Value::String(text)) => text,
                    None if *field == "prefix" => String::new(),
                    other => return Err(format!("{key}: `{field}` is {other:?}").into()),
                };
                match *field {
                    "kind" => write!(out, "kind: {}, ", kind_of(&value)?)?,
                    "reason" if kind != "HiddenEntry" => {}
                    field => write!(out, "{field}: {value:?}, ")?,
                }
            }
            if !row.is_empty() {
                return Err(format!("{key}: unknown {row:?}").into());
            }
            writeln!(out, "}},")?;
        }
        writeln!(out, "];")?;
    }
    let Some(Value::Table(mut search)) = list.remove("search") else {
        return Err("`search` is missing".into());
    };
    writeln!(out, "const SKIPPED: &[&str] = &{:?};", texts(array(&mut search, "skip")?)?)?;
    if !search.is_empty() || !list.is_empty() {
        return Err(format!("unknown {search:?} {list:?}").into());
    }
    Ok(out)
}

fn array(table: &mut Table, key: &str) -> Result<Vec<Value>, Failure> {
    match table.remove(key) {
        Some(Value::Array(rows)) => Ok(rows),
        other => Err(format!("`{key}` is {other:?}").into()),
    }
}

fn texts(values: Vec<Value>) -> Result<Vec<String>, Failure> {
    let text = |value: Value| value.as_str().map(str::to_owned).ok_or("not a text".into());
    values.into_iter().map(text).collect()
}

fn kind_of(word: &str) -> Result<&'static str, Failure> {
    Ok(match word {
        "file" => "HiddenKind::File",
        "dir" => "HiddenKind::Dir",
        "any" => "HiddenKind::Any",
        other => return Err(format!("unknown kind `{other}`").into()),
    })
}
