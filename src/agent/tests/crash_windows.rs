//! Tests of the order of commits, and of calls with an unknown outcome.

use std::sync::Arc;

use serde_json::{Value, json};

use super::cast::{CONFESS, COUNT, JOT, SEND, SHOUT, World, plain_agent};
use super::memory::Crash;
use super::{RunInput, Stage, questions, says, script};
use crate::agent::{ExitReason, LoopOutcome};
use crate::domain::call::CallStatus;
use crate::domain::id::{InterruptId, RunId};

/// The first commit of a run is made before the model call, the second before a call takes effect, and the third
/// after its answer.
const BEFORE_THE_EFFECT: Crash = Crash::Before(2);
const AFTER_THE_EFFECT: Crash = Crash::Before(3);

fn stage() -> (Stage, Arc<World>) {
    let world = Arc::new(World::default());
    (Stage::new(plain_agent(&world, 1)), world)
}

/// Plays a run of `calls` that crashes, and its second attempt.
async fn dies(stage: &Stage, crash: Crash, calls: &[(&str, &str, Value)]) -> LoopOutcome {
    let run = RunId::mint();
    let input = says(script(&[calls]));
    stage.restarts(Some(crash));
    assert_eq!(stage.attempt(run, &input).await, Err(ExitReason::LeaseLost));
    stage.restarts(None);
    stage.attempt(run, &input).await.unwrap()
}

fn decision(decision: Value) -> Value {
    json!({ "decisions": [decision] })
}

#[tokio::test]
async fn no_effect_happens_before_the_steps_that_led_to_it_are_committed() {
    for tool in [SEND, COUNT] {
        let (stage, world) = stage();
        stage.restarts(Some(BEFORE_THE_EFFECT));
        let attempt = stage
            .attempt(RunId::mint(), &says(script(&[&[("a", tool, json!({}))]])))
            .await;
        assert_eq!(attempt, Err(ExitReason::LeaseLost), "{tool}");
        assert_eq!(world.happened("a"), 0, "{tool}");
    }
}

#[tokio::test]
async fn a_call_that_may_not_be_repeated_is_marked_before_it_begins() {
    let (stage, world) = stage();
    stage.restarts(Some(AFTER_THE_EFFECT));
    let calls = [("a", SEND, json!({})), ("b", JOT, json!({}))];
    assert!(stage.attempt(RunId::mint(), &says(script(&[&calls]))).await.is_err());
    let machine = stage.machine();
    assert_eq!(machine.call_status(0), Some(&CallStatus::Started));
    assert_eq!(machine.call_status(1), Some(&CallStatus::Ready));
    assert!(world.happened("a") <= 1);
}

#[tokio::test]
async fn a_call_that_may_be_repeated_is_repeated_under_the_same_key() {
    let (stage, world) = stage();
    let outcome = dies(&stage, AFTER_THE_EFFECT, &[("a", COUNT, json!({}))]).await;
    assert_eq!(outcome, LoopOutcome::Done);
    assert_eq!(world.happened("a"), 2);
    assert_eq!(stage.results(), vec!["count a".to_owned()]);
}

#[tokio::test]
async fn a_call_that_counts_as_failed_is_not_repeated() {
    let (stage, world) = stage();
    let outcome = dies(&stage, AFTER_THE_EFFECT, &[("a", SHOUT, json!({}))]).await;
    assert_eq!(outcome, LoopOutcome::Done);
    assert_eq!(world.happened("a"), 1);
    assert!(stage.results()[0].contains("its outcome is unknown"));
}

#[tokio::test]
async fn a_human_decides_about_a_call_of_unknown_outcome() {
    let table = [
        (json!({"type": "approve"}), 2, "send a"),
        (json!({"type": "respond", "message": "it went out"}), 1, "it went out"),
        (json!({"type": "reject", "message": "it did not"}), 1, "it did not"),
    ];
    for (word, times, result) in table {
        let (stage, world) = stage();
        let waits = dies(&stage, AFTER_THE_EFFECT, &[("a", SEND, json!({}))]).await;
        assert_eq!(world.happened("a"), 1);
        assert_eq!(
            stage.is_answered(&questions(&waits)[0], decision(word.clone())).await,
            LoopOutcome::Done
        );
        assert_eq!(world.happened("a"), times, "{word}");
        assert_eq!(stage.results(), vec![result.to_owned()], "{word}");
    }
}

#[tokio::test]
async fn a_sibling_that_was_answered_is_not_asked_about() {
    // `b` takes longer than `a`, so that the third commit stores the answer of one of them.
    let (stage, world) = stage();
    let waits = dies(
        &stage,
        Crash::Before(4),
        &[("a", SEND, json!({})), ("b", SEND, json!({}))],
    )
    .await;
    assert_eq!(questions(&waits).len(), 1);
    assert_eq!(world.effects().values().sum::<usize>(), 2);
}

#[tokio::test]
async fn a_crash_asks_about_each_outcome_anew() {
    let (stage, world) = stage();
    let waits = dies(&stage, AFTER_THE_EFFECT, &[("a", SEND, json!({}))]).await;
    let first = questions(&waits)[0].clone();
    let input = RunInput::Answers([(first.clone(), decision(json!({"type": "approve"})))].into());
    let run = RunId::mint();
    // The answer is delivered, the call is started, and the process crashes.
    stage.restarts(Some(Crash::Before(3)));
    assert!(stage.attempt(run, &input).await.is_err());
    assert_eq!(world.happened("a"), 2);
    stage.restarts(None);
    let waits = stage.attempt(run, &input).await.unwrap();
    let second = questions(&waits)[0].clone();
    assert_ne!(first, second, "the approval was for the first outcome");
    let word = decision(json!({"type": "respond", "message": "ok"}));
    assert_eq!(stage.is_answered(&second, word).await, LoopOutcome::Done);
    assert_eq!(world.happened("a"), 2);
}

/// Answers a tool's own question and crashes while the call runs. Returns the question about its outcome.
async fn confesses_and_dies(stage: &Stage) -> InterruptId {
    let waits = stage.hears(script(&[&[("a", CONFESS, json!({}))]])).await;
    let run = RunId::mint();
    let input = RunInput::Answers([(questions(&waits)[0].clone(), json!("the answer"))].into());
    stage.restarts(Some(Crash::Before(3)));
    assert!(stage.attempt(run, &input).await.is_err());
    stage.restarts(None);
    let waits = stage.attempt(run, &input).await.unwrap();
    questions(&waits)[0].clone()
}

#[tokio::test]
async fn a_repeated_call_has_the_answer_to_its_question() {
    let (stage, world) = stage();
    let asked = confesses_and_dies(&stage).await;
    assert_eq!(
        stage.is_answered(&asked, decision(json!({"type": "approve"}))).await,
        LoopOutcome::Done
    );
    assert_eq!(stage.results(), vec!["confess a: \"the answer\"".to_owned()]);
    assert_eq!(world.happened("a"), 2);
}

#[tokio::test]
async fn answers_are_not_lost_when_the_run_dies_before_its_first_commit() {
    for crash in [Crash::After(1), Crash::Before(2)] {
        let (stage, world) = stage();
        let waits = stage.hears(script(&[&[("a", CONFESS, json!({}))]])).await;
        let run = RunId::mint();
        let input = RunInput::Answers([(questions(&waits)[0].clone(), json!(1))].into());
        stage.restarts(Some(crash));
        assert!(stage.attempt(run, &input).await.is_err());
        assert_eq!(world.happened("a"), 0);
        stage.restarts(None);
        assert_eq!(stage.attempt(run, &input).await, Ok(LoopOutcome::Done));
        assert_eq!(stage.results(), vec!["confess a: 1".to_owned()]);
        assert_eq!(world.happened("a"), 1);
    }
}
