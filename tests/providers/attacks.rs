//! The attack program on every provider that claims isolation, and what SECURITY.md says of it.

use super::for_these;
use crate::harness::Lab;
use crate::isolation::escape::{attempts, open, place};

/// What works on a provider, by the table in SECURITY.md that begins with these words.
const TABLE: &str = "| attack suite |";

/// The names in the cell of a provider: none of them is a way to the host, each has its reason there.
fn said_to_work(provider: &str) -> Vec<String> {
    let security = include_str!("../../SECURITY.md");
    // A runtime that was named by its path has the row of its name.
    let (kind, name) = provider.split_once(':').unwrap_or((provider, ""));
    let row = match name.rsplit('/').next().unwrap() {
        "" => format!("| `{kind}` |"),
        name => format!("| `{kind}:{name}` |"),
    };
    let table = security.lines().skip_while(|line| !line.starts_with(TABLE));
    let cells = table
        .take_while(|line| line.starts_with('|'))
        .find(|line| line.starts_with(&row))
        .unwrap_or_else(|| panic!("SECURITY.md has no row for {provider}"));
    let cell = cells.split('|').nth(2).unwrap();
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Runs all attempts once and compares with what is said.
pub(crate) fn assert_as_said(lab: &Lab, provider: &str) {
    let Some(program) = place(lab) else { return };
    let before = lab.tree();
    let flags = ["run", "--provider", provider, "--env", "IN_A_SANDBOX=1", "--"];
    let call = lab.skep(flags).arg(&program).env("SKEP_MICROVM_EMULATION", "1").within(240);
    let found = attempts(call);
    assert!(found.len() > 90, "{provider}: only {} attempts were made", found.len());
    let said = said_to_work(provider);
    let unsaid: Vec<_> =
        open(&found).into_iter().filter(|name| !said.iter().any(|said| said == name)).collect();
    assert!(unsaid.is_empty(), "{provider}: these worked: {unsaid:?}");
    // What is said to work and does not, for anyone, makes the table worth nothing.
    if lab.who.is_root() {
        let shut: Vec<_> = said.iter().filter(|name| found[*name].is_some()).collect();
        assert!(shut.is_empty(), "{provider}: these do not work: {shut:?}");
    }
    lab.tree().assert_equals(&before, "the project was changed");
}

#[test]
fn proc_4_to_12_a_hundred_ways_out_are_shut_on_every_provider() {
    let providers = ["namespace", "bubblewrap", "oci:runc", "oci:crun", "oci:runsc"];
    for_these(&providers, assert_as_said);
}
