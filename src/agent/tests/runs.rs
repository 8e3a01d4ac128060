//! Tests of the start, end, resumption and failure of runs.

use std::sync::Arc;

use serde_json::json;

use super::cast::{BREAK, COUNT, FAIL, INQUIRE, JOT, PAY, SEND, World, careful_agent, plain_agent};
use super::memory::Crash;
use super::{RunInput, Stage, questions, says, script};
use crate::agent::{Breakpoints, ExitReason, LoopOutcome};
use crate::domain::call::CallStatus;
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::RunId;
use crate::domain::machine::{MODEL, Phase, TOOLS};
use crate::domain::message::{InvalidToolCall, Message, Role};
use crate::domain::state::Update;

fn stage() -> (Stage, Arc<World>) {
    let world = Arc::new(World::default());
    (Stage::new(plain_agent(&world, 1)), world)
}

fn before(nodes: &[&str]) -> Breakpoints {
    Breakpoints {
        before: nodes.iter().map(|node| (*node).to_owned()).collect(),
        after: vec![],
    }
}

/// Returns the nodes of the steps so far.
fn nodes(stage: &Stage) -> Vec<String> {
    stage.store.rows(Lane::Main).into_iter().map(|row| row.node).collect()
}

fn class(outcome: &LoopOutcome) -> &str {
    match outcome {
        LoopOutcome::Failed(failure) => &failure.class,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_run_leaves_its_steps_in_order() {
    let (stage, _) = stage();
    assert_eq!(
        stage.hears(script(&[&[("a", JOT, json!({}))]])).await,
        LoopOutcome::Done
    );
    assert_eq!(nodes(&stage), ["__start__", "__start__", MODEL, TOOLS, MODEL]);
    let facts = stage.store.facts(Lane::Main);
    assert!(
        matches!(
            facts.as_slice(),
            [
                Fact::Started { resumed: false, .. },
                Fact::Calling { .. },
                Fact::Ended { .. }
            ]
        ),
        "{facts:?}"
    );
}

#[tokio::test]
async fn without_input_on_a_fresh_thread_there_is_nothing_to_run() {
    let (stage, _) = stage();
    assert_eq!(class(&stage.runs(RunInput::Continue).await), "EmptyInputError");
}

#[tokio::test]
async fn a_run_continues_from_a_breakpoint_with_the_same_breakpoints() {
    let (mut stage, world) = stage();
    stage.breakpoints = before(&[TOOLS]);
    assert_eq!(
        stage.hears(script(&[&[("a", SEND, json!({}))]])).await,
        LoopOutcome::Paused
    );
    assert_eq!(world.happened("a"), 0);
    assert_eq!(stage.runs(RunInput::Continue).await, LoopOutcome::Done);
    assert_eq!(world.happened("a"), 1);
}

#[tokio::test]
async fn a_breakpoint_stops_each_time_before_its_node() {
    let (mut stage, _) = stage();
    stage.breakpoints = before(&["*"]);
    let mut endings = vec![stage.hears(script(&[&[("a", JOT, json!({}))]])).await];
    for _ in 0..3 {
        endings.push(stage.runs(RunInput::Continue).await);
    }
    assert_eq!(
        endings,
        [
            LoopOutcome::Paused,
            LoopOutcome::Paused,
            LoopOutcome::Paused,
            LoopOutcome::Done
        ]
    );
}

#[tokio::test]
async fn a_new_turn_stops_at_the_breakpoint_that_the_last_one_stopped_at() {
    let (mut stage, _) = stage();
    stage.breakpoints = before(&[MODEL]);
    assert_eq!(stage.hears("one").await, LoopOutcome::Paused);
    assert_eq!(stage.hears("two").await, LoopOutcome::Paused);
}

#[tokio::test]
async fn a_breakpoint_after_a_node_stops_after_it() {
    let (mut stage, world) = stage();
    stage.breakpoints = Breakpoints {
        before: vec![],
        after: vec![TOOLS.to_owned()],
    };
    assert_eq!(
        stage.hears(script(&[&[("a", SEND, json!({}))]])).await,
        LoopOutcome::Paused
    );
    assert_eq!(world.happened("a"), 1);
    assert_eq!(nodes(&stage).last().unwrap().as_str(), TOOLS);
    assert_eq!(stage.runs(RunInput::Continue).await, LoopOutcome::Done);
}

#[tokio::test]
async fn an_approval_does_not_skip_the_next_breakpoint() {
    let world = Arc::new(World::default());
    let mut stage = Stage::new(careful_agent(&world, 1));
    stage.breakpoints = before(&[TOOLS]);
    let waits = stage.hears(script(&[&[("a", PAY, json!({}))]])).await;
    let approved = stage
        .is_answered(&questions(&waits)[0], json!({"decisions": [{"type": "approve"}]}))
        .await;
    assert_eq!(approved, LoopOutcome::Paused);
    assert_eq!(world.happened("a"), 0);
    assert_eq!(stage.runs(RunInput::Continue).await, LoopOutcome::Done);
    assert_eq!(world.happened("a"), 1);
}

#[tokio::test]
async fn an_answered_call_does_not_stop_at_the_breakpoint_before_its_step_again() {
    let (mut stage, world) = stage();
    stage.breakpoints = before(&[TOOLS]);
    let calls = [("a", INQUIRE, json!({})), ("b", INQUIRE, json!({}))];
    assert_eq!(stage.hears(script(&[&calls])).await, LoopOutcome::Paused);
    let waits = stage.runs(RunInput::Continue).await;
    let asked = questions(&waits);
    let still = stage.is_answered(&asked[0], json!(1)).await;
    assert_eq!(questions(&still).len(), 1);
    assert_eq!(world.effects().len(), 1);
    assert_eq!(stage.is_answered(&asked[1], json!(1)).await, LoopOutcome::Done);
}

#[tokio::test]
async fn the_step_limit_fails_the_run_and_the_next_run_starts_at_zero() {
    let (mut stage, world) = stage();
    stage.step_limit = Some(2);
    let outcome = stage.hears(script(&[&[("a", SEND, json!({}))]])).await;
    assert_eq!(class(&outcome), "GraphRecursionError");
    assert_eq!(world.happened("a"), 1);
    assert_eq!(stage.machine().position.phase, Phase::Model);
    assert_eq!(stage.runs(RunInput::Continue).await, LoopOutcome::Done);
    assert_eq!(world.happened("a"), 1);
    assert_eq!(stage.machine().position.failure, None);
}

#[tokio::test]
async fn a_run_that_answers_counts_its_own_steps() {
    let (mut stage, _) = stage();
    stage.step_limit = Some(2);
    let waits = stage.hears(script(&[&[("a", INQUIRE, json!({}))]])).await;
    assert_eq!(
        stage.is_answered(&questions(&waits)[0], json!(1)).await,
        LoopOutcome::Done
    );
}

#[tokio::test]
async fn a_crash_does_not_give_a_run_new_steps() {
    let (mut stage, _) = stage();
    stage.step_limit = Some(2);
    let run = RunId::mint();
    let input = says(script(&[&[("a", COUNT, json!({}))]]));
    stage.restarts(Some(Crash::After(2)));
    assert!(stage.attempt(run, &input).await.is_err());
    stage.restarts(None);
    assert_eq!(class(&stage.attempt(run, &input).await.unwrap()), "GraphRecursionError");
}

#[tokio::test]
async fn an_invalid_call_is_answered_and_the_loop_continues() {
    let (stage, world) = stage();
    let outcome = stage.hears(script(&[&[("a", SEND, json!("{"))]])).await;
    assert_eq!(outcome, LoopOutcome::Done);
    assert_eq!(world.effects().len(), 0);
    assert!(stage.results()[0].contains("not a JSON object"));
    assert_eq!(stage.state().last_ai().unwrap().content.text(), "done");
}

#[tokio::test]
async fn unknown_tools_wrong_arguments_and_failing_tools_are_answers() {
    let (stage, _) = stage();
    let calls = [
        ("a", "dig", json!({})),
        ("b", JOT, json!({"path": 1})),
        ("c", FAIL, json!({})),
    ];
    assert_eq!(stage.hears(script(&[&calls])).await, LoopOutcome::Done);
    let results = stage.results();
    assert!(results[0].starts_with("Error: dig is not a valid tool"), "{results:?}");
    assert!(results[1].contains("`path`: must be"), "{results:?}");
    assert_eq!(results[2], "The call to `fail` failed: c failed");
}

/// Returns the indexes of the calls of the main agent whose answers have events of their own.
fn answered_alone(stage: &Stage) -> Vec<usize> {
    let facts = stage.store.facts(Lane::Main).into_iter();
    let calls = facts.filter_map(|fact| match fact {
        Fact::Answered { call, .. } => Some(call),
        _ => None,
    });
    calls.collect()
}

#[tokio::test]
async fn answers_that_come_together_are_published_by_the_checkpoint_of_their_step() {
    let (stage, _) = stage();
    let calls = [
        ("a", "dig", json!({})),
        ("b", "dig", json!({})),
        ("c", "dig", json!({})),
    ];
    assert_eq!(stage.hears(script(&[&calls])).await, LoopOutcome::Done);
    assert_eq!(stage.results().len(), 3);
    assert_eq!(answered_alone(&stage), Vec::<usize>::new());
}

#[tokio::test]
async fn an_answer_is_published_while_a_call_beside_it_waits_for_a_human() {
    let (stage, _) = stage();
    let calls = [("a", "dig", json!({})), ("b", INQUIRE, json!({}))];
    let waits = stage.hears(script(&[&calls])).await;
    assert_eq!(answered_alone(&stage), [0]);
    let facts = stage.store.facts(Lane::Main);
    let answer = facts.iter().position(|fact| matches!(fact, Fact::Answered { .. }));
    let question = facts.iter().position(|fact| matches!(fact, Fact::Asked { .. }));
    assert!(answer < question, "in the order in which they come: {facts:?}");
    assert_eq!(
        stage.is_answered(&questions(&waits)[0], json!(1)).await,
        LoopOutcome::Done
    );
    assert_eq!(answered_alone(&stage), [0], "it is published once");
}

#[tokio::test]
async fn a_tool_that_fails_the_run_after_its_siblings_is_tried_again_by_the_next_run() {
    let (stage, world) = stage();
    let calls = [("a", BREAK, json!({})), ("b", SEND, json!({}))];
    assert_eq!(class(&stage.hears(script(&[&calls])).await), "ToolError");
    assert!(matches!(stage.machine().call_status(1), Some(CallStatus::Answered(_))));
    assert_eq!(
        class(&stage.runs(RunInput::Continue).await),
        "ToolError",
        "its outcome is known: it failed"
    );
    assert_eq!(world.happened("a"), 2);
    assert_eq!(world.happened("b"), 1);
}

#[tokio::test]
async fn a_failing_model_fails_the_run_and_may_be_asked_again() {
    let (stage, _) = stage();
    let outcome = stage
        .hears(r#"{"script": [{"text": "hello", "fail_first": 1, "status": 400}]}"#)
        .await;
    assert_eq!(class(&outcome), "ModelRefusedError");
    assert_eq!(stage.runs(RunInput::Continue).await, LoopOutcome::Done);
    assert_eq!(stage.state().last_ai().unwrap().content.text(), "hello");
}

#[tokio::test]
async fn a_run_without_its_lease_writes_nothing() {
    let (stage, _) = stage();
    stage.restarts(Some(Crash::Before(2)));
    let attempt = stage
        .attempt(RunId::mint(), &says(script(&[&[("a", COUNT, json!({}))]])))
        .await;
    assert_eq!(attempt, Err(ExitReason::LeaseLost));
    assert_eq!(stage.store.commits(), 1);
    assert_eq!(nodes(&stage).len(), 2);
    assert!(
        !stage
            .store
            .facts(Lane::Main)
            .iter()
            .any(|fact| matches!(fact, Fact::Ended { .. }))
    );
}

#[tokio::test]
async fn a_cancelled_run_keeps_its_results_and_marks_started_calls() {
    // `a` is answered at once; `b` is dropped while it runs.
    let (stage, world) = stage();
    let run = RunId::mint();
    let input = says(script(&[&[("a", "dig", json!({})), ("b", SEND, json!({}))]]));
    stage.restarts(Some(Crash::ShutDown(3)));
    assert_eq!(stage.attempt(run, &input).await, Err(ExitReason::Cancelled));
    let machine = stage.machine();
    assert!(matches!(
        (machine.call_status(0), machine.call_status(1)),
        (Some(CallStatus::Answered(_)), Some(CallStatus::Started))
    ));
    stage.restarts(None);
    let waits = stage.attempt(run, &input).await.unwrap();
    assert_eq!(questions(&waits).len(), 1);
    assert!(world.happened("b") <= 1);
}

#[tokio::test]
async fn a_message_instead_of_an_answer_starts_a_new_turn() {
    let (stage, world) = stage();
    stage.hears(script(&[&[("a", INQUIRE, json!({}))]])).await;
    assert_eq!(stage.hears("never mind").await, LoopOutcome::Done);
    assert_eq!(stage.machine().open_questions().count(), 0);
    assert_eq!(world.effects().len(), 0);
}

#[tokio::test]
async fn an_invalid_call_in_a_clients_input_is_answered() {
    let broken = InvalidToolCall {
        name: None,
        args: None,
        id: Some("x".to_owned()),
        error: None,
        kind: String::new(),
    };
    let role = Role::Ai {
        tool_calls: vec![],
        invalid_tool_calls: vec![broken],
        usage_metadata: None,
    };
    let (stage, _) = stage();
    let outcome = stage
        .runs(RunInput::Input(Update::messages([
            Message::human("hi"),
            Message::new(role, ""),
        ])))
        .await;
    assert_eq!(outcome, LoopOutcome::Done);
}
