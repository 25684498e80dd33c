//! The table of settings as a JSON schema, a reference page and an annotated example.

use super::environment::variable_of;
use super::table::{Kind, ProjectMay, Setting, TABLE};
use serde_json::{Map, Value, json};

/// A JSON schema of a config file.
pub fn json_schema() -> Value {
    let mut root = object();
    for row in TABLE {
        let names: Vec<&str> = row.key.split('.').collect();
        place(&mut root, &names, leaf(row));
    }
    // A profile may hold these sections, too.
    for section in ["limits", "sandbox", "changes", "egress"] {
        let inner = root["properties"][section].clone();
        root["properties"]["profiles"]["additionalProperties"]["properties"][section] = inner;
    }
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("skep configuration");
    root
}

fn object() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

fn place(node: &mut Value, names: &[&str], leaf: Value) {
    let Some((name, rest)) = names.split_first() else { return };
    let slot = match *name {
        "*" => {
            let any = &mut node["additionalProperties"];
            if any == &Value::Bool(false) && !rest.is_empty() {
                *any = object();
            }
            any
        }
        name => {
            let Some(properties) = node["properties"].as_object_mut() else { return };
            entry(properties, name)
        }
    };
    if rest.is_empty() {
        *slot = leaf;
    } else {
        place(slot, rest, leaf);
    }
}

fn entry<'a>(properties: &'a mut Map<String, Value>, name: &str) -> &'a mut Value {
    properties.entry(name).or_insert_with(object)
}

fn leaf(row: &Setting) -> Value {
    let size = json!({ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?[KMGT]i?B?$" });
    let time = json!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|min|h|d)$" });
    let count = json!({ "type": "integer", "minimum": 1 });
    let none = json!({ "const": "none" });
    let mut schema = match row.kind {
        Kind::Size => size,
        Kind::SizeOrNone => json!({ "anyOf": [size, none] }),
        Kind::Time => time,
        Kind::TimeOrNone => json!({ "anyOf": [time, none] }),
        Kind::Count => count,
        Kind::CountOrNone => json!({ "anyOf": [count, none] }),
        Kind::CpusOrNone => json!({ "anyOf": [{ "type": "number", "exclusiveMinimum": 0 }, none] }),
        Kind::Percent => json!({ "type": "integer", "minimum": 1, "maximum": 100 }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Text => json!({ "type": "string" }),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::Choices(words) => json!({ "type": "array", "items": { "enum": words } }),
        Kind::TextsByName => {
            let texts = json!({ "type": "array", "items": { "type": "string" } });
            json!({ "type": "object", "additionalProperties": texts })
        }
    };
    schema["description"] = json!(row.about);
    schema
}

fn kind_word(kind: Kind) -> String {
    let words = |words: &[&str]| words.join(", ");
    match kind {
        Kind::Size => "size".into(),
        Kind::SizeOrNone => "size or `none`".into(),
        Kind::Time => "duration".into(),
        Kind::TimeOrNone => "duration or `none`".into(),
        Kind::Count => "number".into(),
        Kind::CountOrNone | Kind::CpusOrNone => "number or `none`".into(),
        Kind::Percent => "1 to 100".into(),
        Kind::Flag => "`true` or `false`".into(),
        Kind::Text => "text".into(),
        Kind::Choice(list) => format!("one of {}", words(list)),
        Kind::Texts => "list".into(),
        Kind::Choices(list) => format!("list of {}", words(list)),
        Kind::TextsByName => "lists by name".into(),
    }
}

/// The reference, in Markdown.
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         Made from the table in `crates/skep-policy/src/config/table.rs` by `skep config --reference`; \
         a test compares them.\n\n\
         ## Where settings come from\n\n\
         Later ones are stronger: built-in values, the profile, `/etc/skep/config.toml`, \
         `~/.config/skep/config.toml` (`$XDG_CONFIG_HOME`), the project's `skep.toml`, `SKEP_…` variables, \
         the command line. All files have the same shape. An unknown or malformed key is an error that \
         names the file, the key and the nearest known one; nothing is ignored.\n\n\
         A project's file comes with the code, which is not trusted: it may only make things stricter, and \
         what is marked *never* below it may not say at all. `skep config --origin` shows every value in \
         force and where it comes from; `skep config --schema` prints a JSON schema, `skep config --example` \
         an annotated file.\n\n\
         In variables a list is separated by commas. `SKEP_STORE` is `store.url`, `SKEP_MICROVM_EMULATION` \
         is `provider.microvm.emulation`; `SKEP_HOME` (the state directory) is no setting.\n\n\
         Sizes are numbers with `K`, `M`, `G` or `T` (powers of 1024); durations have `ms`, `s`, `m`, `h` or `d`.\n\n\
         A limit from a file or a variable that cannot be held on this host is gone without, and the report says so; \
         one that was typed, or whose layer is required (`--require`), is refused.\n\n\
         ## Settings\n\n\
         | key | value | default | in a project | what it is for |\n|---|---|---|---|---|\n",
    );
    for row in TABLE {
        let default = match row.default {
            "" => "none".to_owned(),
            text if text.contains(' ') => text.to_owned(),
            text => format!("`{text}`"),
        };
        let project = match row.project {
            ProjectMay::Narrow => "stricter",
            ProjectMay::Never => "never",
        };
        let variable = match row.key.contains('*') {
            true => String::new(),
            false => format!("<br>`{}`", variable_of(row.key)),
        };
        let (kind, about) = (kind_word(row.kind), row.about);
        page.push_str(&format!(
            "| `{}`{variable} | {kind} | {default} | {project} | {about} |\n",
            row.key
        ));
    }
    page
}

/// An annotated file with every setting, all commented out.
pub fn example_file() -> String {
    let mut file = String::from(
        "# skep: every setting with its default. Made by `skep config --example`.\n\
         # For /etc/skep/config.toml or ~/.config/skep/config.toml; take away the `#` of what you change.\n",
    );
    let mut section = "";
    // What has a name of the user's choice is shown whole, below.
    let named = |row: &&Setting| row.key.starts_with("profiles.") || row.key.starts_with("pools.");
    for row in TABLE.iter().filter(|row| !named(row)) {
        let (above, name) = row.key.split_once('.').unwrap_or(("", row.key));
        if above != section {
            section = above;
            file.push_str(&format!("\n[{section}]\n"));
        }
        let plain =
            !row.default.is_empty() && (row.default.starts_with('[') || !row.default.contains(' '));
        let (name, value) = match (name.strip_suffix(".*"), plain) {
            (Some(name), _) => (format!("{name}.NAME"), "\"value\"".to_owned()),
            (None, true) => (name.to_owned(), row.default.to_owned()),
            (None, false) if row.default.is_empty() => (name.to_owned(), "\"…\"".to_owned()),
            (None, false) => (name.to_owned(), format!("…  # {}", row.default)),
        };
        file.push_str(&format!("# {}\n#{name} = {value}\n", row.about));
    }
    file.push_str(
        "\n# A profile of your own: limits, sandbox and changes as above.\n\
         #[profiles.mine]\n#description = \"small\"\n#from = \"agent\"\n#limits.pids = 100\n\
         \n# Sandboxes that `skep serve` has ready for whoever asks for one like them.\n\
         #[pools.mine]\n#project = \"/home/me/project\"\n#provider = \"microvm\"\n#size = 2\n",
    );
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_says_nothing_and_is_read() {
        let document = crate::ConfigDocument::parse(example_file().as_bytes(), "x").unwrap();
        assert_eq!(document, crate::ConfigDocument::default());
    }

    #[test]
    fn the_schema_knows_every_key_and_closes_every_section() {
        let schema = json_schema();
        assert_eq!(schema["properties"]["limits"]["additionalProperties"], false);
        assert_eq!(
            schema["properties"]["provider"]["properties"]["microvm"]["properties"]["emulation"]["type"],
            "boolean"
        );
        assert_eq!(
            schema["properties"]["sandbox"]["properties"]["env"]["additionalProperties"]["type"],
            "string"
        );
        assert!(
            schema["properties"]["pools"]["additionalProperties"]["properties"]["size"].is_object()
        );
        let profile = &schema["properties"]["profiles"]["additionalProperties"]["properties"];
        assert!(profile["limits"]["properties"]["pids"].is_object() && profile["from"].is_object());
    }
}
