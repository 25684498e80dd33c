//! Moves of one sandbox by many at once: whatever is answered, there is one history behind it.

use super::load::ask;
use crate::harness::{Lab, Server, Who, for_each, long};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Instant;

const CLIENTS: usize = 8;

/// One answered request.
struct Move {
    word: &'static str,
    began: Instant,
    ended: Instant,
    version: u64,
    state: String,
}

/// A thousand in the long run.
fn count() -> usize {
    if long() { 1000 } else { 200 }
}

/// Every client moves the sandbox about, by a sequence of its own; refusals are 409.
fn move_about(server: &Server<'_>) -> Vec<Move> {
    let client = |number: usize| {
        let mut random = 0x9e37_79b9_u32.wrapping_mul(number as u32 + 1);
        let mut moves = Vec::new();
        for _ in 0..count() / CLIENTS {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let word = ["start", "stop", "freeze", "thaw"][(random >> 24) as usize % 4];
            let began = Instant::now();
            let (status, answer) =
                ask(server.port, &format!("POST /v1/sandboxes/s/{word}"), &json!({}));
            let ended = Instant::now();
            match status {
                200 => moves.push(Move {
                    word,
                    began,
                    ended,
                    version: answer["version"].as_u64().unwrap(),
                    state: answer["state"].as_str().unwrap().to_owned(),
                }),
                409 => assert_eq!(answer["code"], "illegal_state", "{word}: {answer}"),
                _ => panic!("{word}: {status} {answer}"),
            }
        }
        moves
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

/// What the log of events says that happened, as moves from state to state.
fn history(lab: &Lab, server: &Server<'_>) -> Vec<&'static str> {
    let mut states = vec!["ready"];
    let mut after = 0;
    loop {
        let page = server.get(&format!("/v1/events?after={after}&limit=1000")).is(200).json();
        let Some(last) = page.as_array().unwrap().last() else { break };
        after = last["sequence"].as_u64().unwrap();
        for event in page.as_array().unwrap() {
            let from = *states.last().unwrap();
            let (sources, to): (&[&str], _) = match event["kind"].as_str().unwrap() {
                "sandbox.frozen" => (&["ready"], "frozen"),
                "sandbox.thawed" => (&["frozen"], "ready"),
                "sandbox.stopped" => (&["ready", "frozen"], "stopped"),
                "sandbox.started" => (&["stopped"], "ready"),
                _ => continue,
            };
            assert!(sources.contains(&from), "from {from}: {event}\n{}", lab.server_log());
            states.push(to);
        }
    }
    states
}

/// The answers fit into one order: a version has one state, what ended before another began has no later
/// version, and each answer is what was asked for.
#[test]
fn api_10_moves_at_once_have_one_history() {
    for_each([Who::user()], |lab| {
        let server = lab.serve(&[]);
        server.create("s");
        let moves = move_about(&server);
        assert!(moves.len() > count() / 8, "only {} of {} were moves", moves.len(), count());
        let mut by_version: BTreeMap<u64, &str> = BTreeMap::new();
        for one in &moves {
            let wanted = match one.word {
                "start" | "thaw" => "ready",
                "stop" => "stopped",
                _ => "frozen",
            };
            assert_eq!(one.state, wanted, "{} at version {}", one.word, one.version);
            let known = by_version.entry(one.version).or_insert(&one.state);
            assert_eq!(*known, one.state, "two states at version {}", one.version);
        }
        let mut latest: Option<&Move> = None;
        let mut ended: Vec<&Move> = moves.iter().collect();
        ended.sort_by_key(|one| one.ended);
        let mut begun: Vec<&Move> = moves.iter().collect();
        begun.sort_by_key(|one| one.began);
        let mut over = ended.iter().peekable();
        for one in begun {
            while let Some(before) = over.next_if(|before| before.ended < one.began) {
                if latest.is_none_or(|latest| before.version > latest.version) {
                    latest = Some(before);
                }
            }
            let before = latest.map_or(0, |latest| latest.version);
            assert!(
                before <= one.version,
                "{} went back from {before} to {}",
                one.word,
                one.version
            );
        }
        let states = history(lab, &server);
        let shown: Value = server.get("/v1/sandboxes/s").is(200).json();
        assert_eq!(shown["state"], *states.last().unwrap());
        // Each state that was answered is in the log, in the order of the versions.
        let mut told = by_version.values().copied().collect::<Vec<_>>();
        told.dedup();
        let mut log = states.iter();
        for state in told {
            assert!(log.any(|logged| *logged == state), "`{state}` is not in the log at its place");
        }
        if shown["state"] == "frozen" {
            server.post("/v1/sandboxes/s/thaw", &json!({})).is(200);
        }
        server.stop();
    });
}
