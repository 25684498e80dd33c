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
        let script = with_names(self.shell, &String::from_utf8_lossy(&script));
        context.output.bytes(script.as_bytes())?;
        Ok(0)
    }
}

/// The script knows only what is the same everywhere. Names are asked for when they are wanted.
fn with_names(shell: Shell, script: &str) -> String {
    let names = names_for(shell, &tree::whole());
    match shell {
        // What was called `_skep` there, by whoever loads the script too, is now a part of it.
        Shell::Zsh => script.replacen(ZSH_BEGIN, "\n_skep_words() {\n", 1).replacen(
            ZSH_END,
            &format!("{names}{ZSH_END}"),
            1,
        ),
        _ => script.to_owned() + &names,
    }
}

/// What offers the names of sandboxes, where somebody has written it for this shell.
fn names_for(shell: Shell, whole: &clap::Command) -> String {
    let commands = named_commands(whole);
    match shell {
        Shell::Bash => BASH_NAMES.replace("COMMANDS", &commands.join("|")),
        Shell::Zsh => ZSH_NAMES.replace("COMMANDS", &commands.join("|")),
        Shell::Fish => FISH_NAMES
            .replace("COMMANDS", &commands.join(" "))
            .replace("OPTIONS", &commands_with_option(whole).join(" ")),
        _ => String::new(),
    }
}

/// Where the script for zsh begins what completes, and where it is called or announced.
const ZSH_BEGIN: &str = "\n_skep() {\n";
const ZSH_END: &str = "\nif [ \"$funcstack[1]\" = \"_skep\" ]; then\n";

/// Before what clap has written, which moves the words.
const ZSH_NAMES: &str = r#"
_skep() {
    local word
    local -a names
    if [[ "${words[CURRENT]}" != -* ]]; then
        for word in "${(@)words[2,CURRENT-1]}"; do
            case "${word}" in
                --) break ;;
                COMMANDS)
                    names=("${(@)${(f)$(skep ls --all 2>/dev/null)}[2,-1]%% *}")
                    names=("${(@)names:#!}")
                    case "${words[CURRENT-1]}" in
                        -s | --sandbox) compadd -V sandboxes -a names; return ;;
                        -*) ;;
                        *) compadd -V sandboxes -a names ;;
                    esac
                    break
                    ;;
            esac
        done
    fi
    _skep_words "$@"
}
"#;

const FISH_NAMES: &str = r#"
function __skep_names
    skep ls --all 2>/dev/null | tail -n +2 | string replace -r ' .*' '' | string match -v '!'
end

function __skep_wants_names
    __fish_skep_using_subcommand COMMANDS
    and not contains -- -- (commandline -opc)
end

complete -c skep -n __skep_wants_names -k -a '(__skep_names)'
complete -c skep -n '__fish_skep_using_subcommand OPTIONS' -s s -l sandbox -x -k -a '(__skep_names)'
"#;

/// Names are taken as they are: `compgen -W` would run what stands in a word.
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

/// Those that take one by `-s`.
fn commands_with_option(whole: &clap::Command) -> Vec<&str> {
    let option =
        |one: &clap::Arg| one.get_long() == Some("sandbox") && one.get_short() == Some('s');
    let takes = |command: &&clap::Command| command.get_arguments().any(option);
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
    const BASH_TRIES: &str = r#"
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

    /// The same for zsh, which itself leaves out what does not fit.
    const ZSH_TRIES: &str = r#"
skep() { printf '%s\n' 'NAME  STATE' 'alpha  ready' 'also  ready' 'beta  stopped' '! beta: warning'; }
_skep_words() { offers+=(--from-clap) }
compadd() { offers+=("${names[@]}") }
offered() {
    local -a words=("$@") offers=()
    local CURRENT=$#
    _skep
    print -r -- "${offers[*]}"
}
offered skep diff al
offered skep --quiet rm ''
offered skep diff -s be
offered skep exec alpha -- b
offered skep create al
offered skep diff --st
"#;

    /// And for fish, which is asked itself, with the whole script: files stand here in no name's way.
    const FISH_TRIES: &str = r#"
function skep; printf '%s\n' 'NAME  STATE' 'alpha  ready' 'also  ready' 'beta  stopped' '! beta: warning'; end
cd (mktemp -d)
for line in 'skep diff al' 'skep --quiet rm ' 'skep diff -s be' 'skep exec alpha -- b' 'skep create al' 'skep diff --sta'
    echo (complete -C $line | string replace -r '\t.*' '')
end
rmdir $PWD
"#;

    /// What a shell prints. Without the shell nothing can be asked, which CI does not let pass.
    fn lines_of(shell: &str, arguments: &[&str]) -> Option<Vec<String>> {
        let ran = match std::process::Command::new(shell).args(arguments).output() {
            Err(error) if std::env::var_os("SKEP_TEST_STRICT").is_none() => {
                println!("skipped: {shell}: {error}");
                return None;
            }
            ran => ran.unwrap(),
        };
        assert!(ran.stderr.is_empty(), "{ran:?}");
        Some(String::from_utf8_lossy(&ran.stdout).lines().map(str::to_owned).collect())
    }

    #[test]
    fn bash_offers_names_where_they_are_wanted() {
        let script = names_for(Shell::Bash, &tree::whole()) + BASH_TRIES;
        let Some(offered) = lines_of("bash", &["--norc", "-c", &script]) else { return };
        let expected = [
            "alpha also --from-clap",
            "beta --from-clap",
            "alpha also beta --from-clap",
            "beta",
            "--from-clap",
            "--from-clap",
            "--from-clap",
        ];
        assert_eq!(offered, expected);
    }

    #[test]
    fn zsh_offers_names_where_they_are_wanted() {
        let script = names_for(Shell::Zsh, &tree::whole()) + ZSH_TRIES;
        let Some(offered) = lines_of("zsh", &["-f", "-c", &script]) else { return };
        let expected = [
            "alpha also beta --from-clap",
            "alpha also beta --from-clap",
            "alpha also beta",
            "--from-clap",
            "--from-clap",
            "--from-clap",
        ];
        assert_eq!(offered, expected);
    }

    #[test]
    fn fish_offers_names_where_they_are_wanted() {
        let script = whole_script(Shell::Fish) + FISH_TRIES;
        let Some(offered) = lines_of("fish", &["--no-config", "-c", &script]) else { return };
        assert_eq!(offered, ["alpha also", "alpha also beta", "beta", "", "", "--stat"]);
    }

    /// What clap writes is taken apart by its own words: they have to be there.
    #[test]
    fn the_script_for_zsh_calls_both_parts() {
        let script = whole_script(Shell::Zsh);
        for (part, times) in [(ZSH_BEGIN, 1), ("\n_skep_words() {\n", 1), (ZSH_END, 1)] {
            assert_eq!(script.matches(part).count(), times, "{part}");
        }
        let place = |part: &str| script.find(part).unwrap();
        assert!(place("\n_skep_words() {\n") < place(ZSH_BEGIN));
        assert!(place(ZSH_BEGIN) < place(ZSH_END));
    }

    fn whole_script(shell: Shell) -> String {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut tree::whole(), "skep", &mut script);
        with_names(shell, &String::from_utf8(script).unwrap())
    }
}
