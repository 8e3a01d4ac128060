//! The past events that a new reader of a long thread gets.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::v2::find;
use crate::support::sse::Frame;
use crate::support::viewer::{ALL, Viewer, data, depth, in_short, name, seq, until_ends};
use crate::support::{TestServer, call, on_both_engines, script, task};

/// An agent whose summaries are `SUMMARY`.
const LOOKER: &str = r#"
[agents.looker]
model = "scripted:lab"
system_prompt = "You look."
tools = ["big"]

[agents.looker.summarization]
summary_prompt = '{"script": [{"text": "SUMMARY"}]}'

[[agents.looker.subagents]]
name = "helper"
description = "Helps."
system_prompt = "You help."
"#;

/// Configures the agent `looker`, and a size of states that some turns exceed.
pub(crate) async fn has_small_states(server: &TestServer) {
    server.configuration_changes("[runtime]\n", "[runtime]\nmax_state_bytes = 60000\n");
    server.is_configured_with(LOOKER).await;
}

on_both_engines! {
    a_replay_has_no_messages_that_have_left_the_state,
    only_the_last_of_many_large_states_is_replayed,
    a_replay_for_a_subagent_begins_with_the_run_in_which_it_worked,
    the_states_of_a_copied_thread_are_those_of_its_branches,
}

/// Returns what a user says in a turn, and the agent with them.
fn said(turn: usize) -> String {
    format!("turn {turn}: {}", "so it goes ".repeat(200))
}

fn ids(values: &Value) -> Vec<String> {
    let messages = values["messages"].as_array().expect("messages");
    messages.iter().map(|message| message["id"].to_string()).collect()
}

/// Returns the number of messages that have left the state.
fn left(values: &Value) -> u64 {
    values["summarization"]["left_messages"].as_u64().unwrap_or(0)
}

async fn a_replay_has_no_messages_that_have_left_the_state(server: TestServer) {
    has_small_states(&server).await;
    let alice = server.human("looker").await;
    for turn in 0..20 {
        alice.says(said(turn)).await;
    }
    let before = left(&alice.state().await["values"]);
    let steps = (0..20).fold(script(), |plan, step| {
        plan.calls(call(&format!("c{step}"), "big", json!({"chars": 4000})))
    });
    alice.says(steps.says("all found").to_string()).await;
    let newest = alice.state().await["values"].clone();
    assert!(before > 0 && left(&newest) > before, "{before} and {}", left(&newest));
    let runs = alice.client().get(&alice.path("/runs?limit=1")).await.ok();
    let run = runs[0]["run_id"].as_str().expect("a run").to_owned();

    let frames = Viewer::of(&server, &alice.thread).replays(2).await;
    assert_eq!(name(frames.last().unwrap()), format!("synth:{run}:lc||completed"));
    let known: HashSet<String> = ids(&newest).into_iter().collect();
    let of_main: Vec<&Frame> = frames.iter().filter(|frame| depth(frame) == 0).collect();
    let states: Vec<&Frame> = of_main
        .iter()
        .filter(|frame| frame.event == "values")
        .copied()
        .collect();
    for state in &states {
        assert!(ids(data(state)).iter().all(|id| known.contains(id)), "{state:#?}");
    }
    assert_eq!(ids(data(states.last().unwrap())), ids(&newest));
    let begun = of_main.iter().filter(|frame| data(frame)["event"] == "message-start");
    let begun: Vec<String> = begun.map(|frame| data(frame)["id"].to_string()).collect();
    assert!(!begun.is_empty());
    assert!(begun.iter().all(|id| known.contains(id)), "{begun:?}");
}

async fn only_the_last_of_many_large_states_is_replayed(server: TestServer) {
    let viewer = Viewer::of_new(&server);
    let filter = json!({"channels": ["values", "checkpoints", "lifecycle"]});
    let mut live = viewer.opens(filter.clone()).await;
    let mut heard = vec![];
    for _ in 0..4 {
        viewer.starts("plain", "x".repeat(60_000)).await;
        heard.extend(until_ends(&mut live, 1).await);
    }
    let all: Vec<String> = (1..=8).map(|count| format!("values {count}")).collect();
    assert_eq!(in_short(&heard, &["values"]), all);

    let replayed = until_ends(&mut viewer.opens(filter.clone()).await, 4).await;
    let first_and_last = [&all[..6], &all[7..]].concat();
    assert_eq!(in_short(&replayed, &["values"]), first_and_last);
    let others = |frames: &[Frame]| in_short(frames, &["checkpoints", "lifecycle"]);
    assert_eq!(others(&replayed), others(&heard));
    let is_known = |frame: &Frame| heard.iter().any(|other| other.data == frame.data);
    assert!(
        replayed.iter().all(is_known),
        "the numbers are those of the live stream"
    );

    // Whoever has a part of it goes on behind that.
    let at = replayed.iter().position(|frame| frame.event == "values").unwrap();
    let mut rest = filter;
    rest["since"] = json!(seq(&replayed[at]));
    let rest = until_ends(&mut viewer.opens(rest).await, 4).await;
    assert_eq!(seq(&rest[0]), seq(&heard[at + 1]));
    assert_eq!(rest.last().unwrap().data, heard.last().unwrap().data);
    assert_eq!(in_short(&rest, &["values"]).last(), all.last());
}

async fn a_replay_for_a_subagent_begins_with_the_run_in_which_it_worked(server: TestServer) {
    has_small_states(&server).await;
    let alice = server.human("looker").await;
    let help = script().says("it is done");
    alice
        .says(script().calls(task("t1", "helper", help)).says("done").to_string())
        .await;
    let viewer = Viewer::of(&server, &alice.thread);
    let first = viewer.replays(1).await;
    let below: Vec<Frame> = first.into_iter().filter(|frame| depth(frame) == 1).collect();
    let namespace = find(&below, "lifecycle").data["params"]["namespace"].clone();
    for turn in 0..20 {
        alice.says(said(turn)).await;
    }
    assert!(left(&alice.state().await["values"]) > 0);
    let mut stream = viewer.opens(json!({"channels": ALL, "namespaces": [namespace]})).await;
    let frames = stream.until(|frame| data(frame)["event"] == "completed").await;
    assert_eq!(
        in_short(&frames, &["lifecycle", "values"]),
        [
            "lifecycle@1 started helper",
            "values@1 1",
            "values@1 2",
            "lifecycle@1 completed helper",
        ]
    );
}

async fn the_states_of_a_copied_thread_are_those_of_its_branches(server: TestServer) {
    let alice = server.human("plain").await;
    alice.says("one").await;
    alice.says("two").await;
    let first = alice.history().await.pop().expect("a checkpoint");
    let again = alice.run_body("", json!({"input": null, "checkpoint": first["checkpoint"]}));
    alice.starts(again).await.finishes().await;
    let copied = alice.client().post(&alice.path("/copy"), json!({})).await.ok();
    let copy = alice.on(copied["thread_id"].as_str().expect("an id"));
    copy.says("three").await;

    let filter = json!({"channels": ["values", "checkpoints", "lifecycle"]});
    let frames = until_ends(&mut Viewer::of(&server, &copy.thread).opens(filter).await, 1).await;
    let history = copy.history().await;
    let mut compared = 0;
    for pair in frames.windows(2) {
        if pair[0].event == "checkpoints" && pair[1].event == "values" {
            let id = &data(&pair[0])["id"];
            let found = history.iter().find(|state| state["checkpoint_id"] == *id);
            let state = &found.expect("a checkpoint")["values"];
            assert_eq!(ids(data(&pair[1])), ids(state));
            compared += 1;
        }
    }
    assert_eq!(compared, 8);
}
