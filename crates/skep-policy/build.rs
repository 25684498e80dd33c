//! Turns the lists in `resources/*.toml` into what a program reads without parsing TOML: JSON, and for those
//! that every run needs, constants.
//!
//! People read and edit TOML; a program reads JSON ten times faster, and need not read constants at all.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::{env, fs};
use toml::{Table, Value};

const LISTS: [&str; 1] = ["system-secrets"];

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
    let write = |list: &str, constants: Result<String, Failure>| -> Result<(), Failure> {
        let text = constants.map_err(|error| format!("{list}.toml: {error}"))?;
        Ok(fs::write(Path::new(&output).join(format!("{list}.rs")), text)?)
    };
    write("hidden", hidden(read("hidden")?))?;
    write("environment", environment(read("environment")?))?;
    write("profiles", profiles(read("profiles")?))?;
    write("risky-paths", risky_paths(read("risky-paths")?))
}

/// The list of hidden files as constants of `hidden.rs`. Whatever it does not know is an error.
fn hidden(mut list: Table) -> Result<String, Failure> {
    let mut hasher = DefaultHasher::new();
    list.to_string().hash(&mut hasher);
    let mut out = String::from("/// Changes when the list does.\n");
    writeln!(out, "const FINGERPRINT: &str = \"{:016x}\";", hasher.finish())?;
    list.remove("version").ok_or("`version` is missing")?;
    let hide = array(&mut list, "hide")?;
    let patterns: Vec<(usize, String)> = names(&hide, "pattern")?.into_iter().enumerate().collect();
    let kinds = names(&hide, "kind")?;
    let but = |kind: &str| patterns.iter().filter(|(at, _)| kinds[*at] != kind).cloned().collect();
    name_table(&mut out, "DIRECTORIES", but("file"))?;
    name_table(&mut out, "FILES", but("dir"))?;
    rows(&mut out, ("ENTRIES", "HiddenEntry"), hide, &["pattern", "kind", "sample", "reason"])?;
    let except = names(&array(&mut list, "except")?, "pattern")?;
    writeln!(out, "#[cfg(test)]\nconst EXCEPT: &[&str] = &{except:?};")?;
    name_table(&mut out, "EXCEPT", except.into_iter().enumerate().collect())?;
    let mut copies = array(&mut list, "copies")?;
    for copy in copies.iter_mut().filter_map(Value::as_table_mut) {
        copy.remove("reason").ok_or("copies: no reason")?;
        copy.entry("prefix").or_insert_with(|| Value::String(String::new()));
    }
    rows(&mut out, ("COPIES", "CopyName"), copies, &["prefix", "suffix"])?;
    let Some(Value::Table(mut search)) = list.remove("search") else {
        return Err("`search` is missing".into());
    };
    writeln!(out, "const SKIPPED: &[&str] = &{:?};", texts(array(&mut search, "skip")?)?)?;
    nothing_left(search)?;
    nothing_left(list)?;
    Ok(out)
}

/// The list of variables as constants of `environment.rs`.
fn environment(mut list: Table) -> Result<String, Failure> {
    let mut out = version(&mut list)?;
    let (pass, never) = (array(&mut list, "pass")?, array(&mut list, "never")?);
    rows(&mut out, ("PASS", "PassedVariable"), pass, &["name", "reason"])?;
    let fields = ["name", "unless_named", "sample", "reason"];
    rows(&mut out, ("NEVER", "WithheldVariable"), never, &fields)?;
    writeln!(out, "const PATH: &[&str] = &{:?};", texts(array(&mut list, "path")?)?)?;
    let Some(Value::Table(set)) = list.remove("set") else { return Err("`set` is missing".into()) };
    let (names, values): (Vec<String>, Vec<Value>) = set.into_iter().unzip();
    let set: Vec<(String, String)> = names.into_iter().zip(texts(values)?).collect();
    writeln!(out, "const SET: &[(&str, &str)] = &{set:?};")?;
    nothing_left(list)?;
    Ok(out)
}

/// The list of risky paths as constants of `risk.rs`.
fn risky_paths(mut list: Table) -> Result<String, Failure> {
    let mut out = version(&mut list)?;
    let entries = array(&mut list, "entry")?;
    let bare = |pattern: String| pattern.strip_suffix("/**").unwrap_or(&pattern).to_owned();
    let patterns: Vec<String> = names(&entries, "pattern")?.into_iter().map(bare).collect();
    // What is above an entry, nearest first.
    let above = |(entry, pattern): (usize, &String)| -> Vec<(usize, String)> {
        let slashes = pattern.match_indices('/').map(|(at, _)| pattern[..at].to_owned());
        slashes.rev().map(|parent| (entry, parent)).collect()
    };
    let leading = patterns.iter().enumerate().flat_map(above);
    let (leading_entry, leading): (Vec<usize>, Vec<String>) = leading.unzip();
    writeln!(out, "static LEADING_ENTRY: &[usize] = &{leading_entry:?};")?;
    name_table(&mut out, "PATTERNS", patterns.into_iter().enumerate().collect())?;
    name_table(&mut out, "LEADING", leading.into_iter().enumerate().collect())?;
    let fields = ["class", "pattern", "sample", "reason"];
    rows(&mut out, ("ENTRIES", "RiskEntry"), entries, &fields)?;
    nothing_left(list)?;
    Ok(out)
}

/// The version of a list, as a constant.
fn version(list: &mut Table) -> Result<String, Failure> {
    let version = list.remove("version").ok_or("`version` is missing")?;
    Ok(format!("const VERSION: u32 = {version};\n"))
}

/// The profiles as constants of `profiles.rs`: each by itself, because a start needs one or two of them.
fn profiles(mut list: Table) -> Result<String, Failure> {
    list.remove("version").ok_or("`version` is missing")?;
    let texts =
        list.into_iter().map(|(name, profile)| Ok((name, serde_json::to_string(&profile)?)));
    let profiles = texts.collect::<Result<Vec<(String, String)>, Failure>>()?;
    Ok(format!("const PROFILES: &[(&str, &str)] = &{profiles:?};\n"))
}

/// A constant of as many values of this type, with exactly these fields.
fn rows(
    out: &mut String,
    (name, kind): (&str, &str),
    rows: Vec<Value>,
    fields: &[&str],
) -> Result<(), Failure> {
    writeln!(out, "const {name}: &[{kind}] = &[")?;
    for row in rows {
        let Value::Table(mut row) = row else { return Err(format!("{name}: no table").into()) };
        write!(out, "    {kind} {{ ")?;
        for field in fields {
            match row.remove(*field) {
                Some(Value::String(text)) if matches!(*field, "kind" | "class") => {
                    write!(out, "{field}: {}, ", word_of(&text)?)?;
                }
                Some(Value::String(text)) => write!(out, "{field}: {text:?}, ")?,
                Some(Value::Boolean(value)) => write!(out, "{field}: {value}, ")?,
                other => return Err(format!("{name}: `{field}` is {other:?}").into()),
            }
        }
        nothing_left(row)?;
        writeln!(out, "}},")?;
    }
    writeln!(out, "];")?;
    Ok(())
}

/// The two parts of a table of names, in the order in which it is searched (`names.rs`; a test compares).
fn name_table(out: &mut String, name: &str, patterns: Vec<(usize, String)>) -> Result<(), Failure> {
    fn last(pattern: &str) -> &str {
        pattern.rsplit('/').next().unwrap_or_default()
    }
    let (mut wild, mut plain): (Vec<_>, Vec<_>) =
        patterns.into_iter().partition(|(_, pattern)| last(pattern).contains('*'));
    plain.sort_by(|(_, one), (_, other)| last(one).cmp(last(other)));
    let edge = |pattern: &str| match *last(pattern).as_bytes() {
        [.., end] if end != b'*' => (0, end),
        [start, ..] if start != b'*' => (1, start),
        _ => (2, 0),
    };
    wild.sort_by_key(|(_, pattern)| edge(pattern));
    writeln!(out, "static {name}_PLAIN: &[Numbered] = &[")?;
    for (number, pattern) in plain {
        writeln!(out, "    Numbered::of({number}, b{pattern:?}),")?;
    }
    writeln!(out, "];\nstatic {name}_WILD: &[(Edge, Numbered)] = &[")?;
    for (number, pattern) in wild {
        let edge = match edge(&pattern) {
            (0, end) => format!("Edge::End({end})"),
            (1, start) => format!("Edge::Start({start})"),
            _ => "Edge::Nowhere".to_owned(),
        };
        writeln!(out, "    ({edge}, Numbered::of({number}, b{pattern:?})),")?;
    }
    writeln!(out, "];")?;
    Ok(())
}

fn names(rows: &[Value], field: &str) -> Result<Vec<String>, Failure> {
    texts(rows.iter().map(|row| row.get(field).cloned().unwrap_or(false.into())).collect())
}

fn nothing_left(table: Table) -> Result<(), Failure> {
    if table.is_empty() { Ok(()) } else { Err(format!("unknown {table:?}").into()) }
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

fn word_of(word: &str) -> Result<&'static str, Failure> {
    Ok(match word {
        "file" => "HiddenKind::File",
        "dir" => "HiddenKind::Dir",
        "any" => "HiddenKind::Any",
        "note" => "Risk::Note",
        "ask" => "Risk::Ask",
        "block" => "Risk::Block",
        other => return Err(format!("unknown word `{other}`").into()),
    })
}
