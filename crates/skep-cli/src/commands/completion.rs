//! `skep completion`: a completion script.

use crate::arguments::AfterDashes;
use crate::context::Context;
use crate::exit::Outcome;
use crate::tree;
use crate::tree::Run;
use clap::Args;
use clap_complete::Shell;

/// What can be typed.
#[derive(Debug, Args)]
pub(crate) struct Completion {
    /// For this shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl Run for Completion {
    fn run(self, _: AfterDashes, context: &Context) -> Outcome {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut tree::whole(), "skep", &mut script);
        if self.shell == Shell::Bash {
            let commands = named_commands(&tree::whole()).join("|");
            script.extend(BASH_NAMES.replace("COMMANDS", &commands).into_bytes());
        }
        context.output.bytes(&script)?;
        Ok(0)
    }
}

/// The script knows only what is the same everywhere. Names are asked for when they are wanted, and are taken
/// as they are: `compgen -W` would run what stands in a word.
const BASH_NAMES: &str = r#"
_skep_and_names() {
    _skep "$@"
    local cur="$2" prev="$3" word name
    local -a found=()
    [[ "${cur}" == -* ]] && return 0
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case "${word}" in
            --) return 0 ;;
            COMMANDS)
                while read -r name _; do
                    [[ "${name}" != "!" && "${name}" == "${cur}"* ]] && found+=("${name}")
                done < <("$1" ls --all 2>/dev/null | tail -n +2)
                case "${prev}" in
                    -s | --sandbox) COMPREPLY=("${found[@]}") ;;
                    -*) ;;
                    *) COMPREPLY=("${found[@]}" "${COMPREPLY[@]}") ;;
                esac
                return 0
                ;;
        esac
    done
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _skep_and_names -o nosort -o bashdefault -o default skep
else
    complete -F _skep_and_names -o bashdefault -o default skep
fi
"#;

/// The commands that take the name of a sandbox that is there.
fn named_commands(whole: &clap::Command) -> Vec<&str> {
    let takes = |command: &&clap::Command| {
        let sandbox = command.get_arguments().any(|one| one.get_id() == "sandbox");
        let named = command.get_positionals().any(|one| {
            let mut names = one.get_value_names().into_iter().flatten();
            names.any(|name| name.as_str().starts_with("NAME"))
        });
        command.get_name() != "create" && (sandbox || named)
    };
    whole.get_subcommands().filter(takes).map(clap::Command::get_name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_take_a_name_are_found() {
        let whole = tree::whole();
        let found = named_commands(&whole);
        for name in ["diff", "approve", "rm", "exec", "show", "restore", "compare", "net"] {
            assert!(found.contains(&name), "{name}: {found:?}");
        }
        for name in ["create", "run", "doctor", "ls", "gc"] {
            assert!(!found.contains(&name), "{name}: {found:?}");
        }
    }

    /// A list as `skep ls --all` prints it, and what bash offers for lines that end in their last word.
    const TRIES: &str = r#"
skep() { printf '%s\n' 'NAME  STATE' 'alpha  ready' 'also  ready' 'beta  stopped' '! beta: warning'; }
_skep() { COMPREPLY=(--from-clap); }
offered() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    _skep_and_names skep "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[*]}"
}
offered skep diff al
offered skep diff b
offered skep --quiet rm ''
offered skep diff -s be
offered skep exec alpha -- b
offered skep create al
offered skep diff --st
"#;

    #[test]
    fn bash_offers_names_where_they_are_wanted() {
        let names = BASH_NAMES.replace("COMMANDS", &named_commands(&tree::whole()).join("|"));
        let ran = std::process::Command::new("bash")
            .args(["--norc", "-c", &format!("{names}\n{TRIES}")])
            .output()
            .unwrap();
        let lines = [
            "alpha also --from-clap",
            "beta --from-clap",
            "alpha also beta --from-clap",
            "beta",
            "--from-clap",
            "--from-clap",
            "--from-clap",
        ];
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert_eq!(said.lines().collect::<Vec<_>>(), lines, "{ran:?}");
    }
}
