//! Property tests of crashes: a run that is cut off at any commit and loaded again continues as if nothing had
//! happened.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::cast::{self, World, careful_agent, number, outcome_of, reply_to};
use super::memory::{Crash, Row};
use super::{RunInput, Stage, says};
use crate::agent::LoopOutcome;
use crate::domain::checkpoint::Lane;
use crate::domain::id::RunId;
use crate::domain::interrupt::{Interrupt, QuestionKind};
use crate::domain::state::State;

/// An action of the model.
#[derive(Debug, Clone)]
enum Action {
    /// Call a tool, which may not exist.
    Act(&'static str),
    /// Call a tool that changes a file.
    File(&'static str, u8),
    /// Call a tool with invalid arguments.
    InvalidArguments,
    /// Delegate these actions to a subagent.
    Delegate(&'static str, ActionScript),
}

/// The actions of an agent: steps of calls that run in parallel.
type ActionScript = Vec<Vec<Action>>;

fn action(below: u32) -> BoxedStrategy<Action> {
    let acts = [
        cast::SEND,
        cast::PAY,
        cast::COUNT,
        cast::INQUIRE,
        cast::CONFESS,
        cast::FAIL,
        "nonsense",
    ];
    let act = proptest::sample::select(acts.to_vec()).prop_map(Action::Act);
    let file = (
        proptest::sample::select(vec![cast::JOT, cast::JOT, cast::ERASE]),
        0..2_u8,
    );
    let file = file.prop_map(|(tool, path)| Action::File(tool, path));
    let simple = prop_oneof![6 => act, 2 => file, 1 => Just(Action::InvalidArguments)];
    if below == 0 {
        return simple.boxed();
    }
    let subagent = proptest::sample::select(vec!["one", "two"]);
    let delegate = (subagent, actions(below - 1)).prop_map(|(name, actions)| Action::Delegate(name, actions));
    prop_oneof![4 => simple, 2 => delegate].boxed()
}

fn actions(below: u32) -> impl Strategy<Value = ActionScript> {
    prop::collection::vec(prop::collection::vec(action(below), 1..=3), 0..=2)
}

fn crash() -> impl Strategy<Value = Crash> {
    (0..3, 1..9_usize).prop_map(|(kind, at)| match kind {
        0 => Crash::Before(at),
        1 => Crash::After(at),
        _ => Crash::ShutDown(at),
    })
}

/// Returns the plot as a script for the scripted model. The ids of calls contain their position in the plot.
fn script_of(actions: &ActionScript, place: &str) -> String {
    let mut steps = vec![];
    for (step, deeds) in actions.iter().enumerate() {
        let calls = deeds.iter().zip("abc".chars()).map(|(action, letter)| {
            let id = format!("{place}{step}{letter}");
            let (name, args) = match action {
                Action::Act(name) => (*name, json!({})),
                Action::File(name, path) => (*name, json!({"path": format!("/{path}")})),
                Action::InvalidArguments => (cast::SEND, json!("{")),
                Action::Delegate(name, actions) => {
                    let description = script_of(actions, &format!("{id}/"));
                    ("task", json!({"description": description, "subagent_type": name}))
                }
            };
            json!({"id": id, "name": name, "args": args})
        });
        steps.push(json!({"tool_calls": calls.collect::<Vec<_>>()}));
    }
    steps.push(json!({"text": format!("{place} done")}));
    json!({ "script": steps }).to_string()
}

/// Returns the answer of a human who knows the effects outside. It depends on the call alone.
fn answer_to(asked: &Interrupt, world: &World) -> Value {
    let decide = |call: &String| match number(call) % 4 {
        0 => json!({"type": "approve"}),
        1 => json!({"type": "edit", "edited_action": {"name": cast::SEND, "args": {}}}),
        2 => json!({"type": "reject", "message": "no"}),
        _ => json!({"type": "respond", "message": "it is done"}),
    };
    let calls = &asked.question.calls;
    let answer = match asked.question.kind {
        QuestionKind::Question => return reply_to(&calls[0]),
        QuestionKind::ToolApproval => json!({"decisions": calls.iter().map(decide).collect::<Vec<_>>()}),
        QuestionKind::UnknownOutcome if world.happened(&calls[0]) == 0 => json!({"decisions": [{"type": "approve"}]}),
        QuestionKind::UnknownOutcome => {
            let tool = asked.question.value["action_requests"][0]["name"].as_str().unwrap();
            json!({"decisions": [{"type": "respond", "message": outcome_of(tool, &calls[0])}]})
        }
    };
    assert_eq!(asked.question.check(&answer), Ok(()));
    answer
}

/// The result of a run with all of its crashes.
#[derive(Debug, PartialEq)]
struct TreeResult {
    /// The steps of each agent, by the call that started it.
    histories: BTreeMap<Option<String>, Vec<(i64, String, Value)>>,
    /// The final state.
    state: Value,
}

/// Plays a script with these crashes. Returns the result, the number of times that each effect happened, and the
/// commits of each run.
async fn play(script: &str, seed: u64, crashes: &[Crash]) -> (TreeResult, BTreeMap<String, usize>, Vec<usize>) {
    let world = Arc::new(World::default());
    let stage = Stage::new(careful_agent(&world, 2));
    let mut crashes = crashes.iter().copied();
    let mut input = says(script);
    let mut commits = vec![];
    for turn in 0..100 {
        let run = RunId::mint();
        let outcome = loop {
            stage.restarts(crashes.next());
            if let Ok(outcome) = stage.attempt(run, &input).await {
                break outcome;
            }
        };
        commits.push(stage.store.commits());
        match outcome {
            LoopOutcome::Parked(questions) => {
                assert!(!questions.is_empty(), "nobody waits for nothing");
                let chosen = |asked: &&Interrupt| {
                    number(&format!("{seed} {turn} {}", asked.question.calls[0])).is_multiple_of(2)
                };
                let some: Vec<&Interrupt> = questions.iter().filter(chosen).collect();
                let chosen = if some.is_empty() { vec![&questions[0]] } else { some };
                let answers = chosen
                    .into_iter()
                    .map(|asked| (asked.id.clone(), answer_to(asked, &world)));
                input = RunInput::Answers(answers.collect());
            }
            LoopOutcome::Done => return (life(&stage), world.effects(), commits),
            LoopOutcome::Paused | LoopOutcome::Failed(_) => panic!("{outcome:?}"),
        }
    }
    panic!("it never ends");
}

fn life(stage: &Stage) -> TreeResult {
    let mut histories = BTreeMap::from([(None, history(stage.store.rows(Lane::Main)))]);
    for (child, lineage) in stage.store.children() {
        let twin = histories.insert(lineage.cause, history(stage.store.rows(Lane::Child(child))));
        assert_eq!(twin, None, "a call has one child");
    }
    TreeResult {
        histories,
        state: without_ids(serde_json::to_value(stage.state() as State).unwrap()),
    }
}

fn history(rows: Vec<Row>) -> Vec<(i64, String, Value)> {
    rows.into_iter()
        .map(|row| {
            (
                row.step,
                row.node,
                without_ids(serde_json::from_str(&row.writes).unwrap()),
            )
        })
        .collect()
}

/// Removes the ids of messages, which are random.
fn without_ids(mut value: Value) -> Value {
    match &mut value {
        Value::Object(fields) => {
            if fields.contains_key("additional_kwargs") {
                fields.remove("id");
            }
            fields.values_mut().for_each(|field| *field = without_ids(field.take()));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_ids(item.take())),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    value
}

fn now<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

/// Fails unless the result with crashes equals the one without, and every effect happened as often as allowed.
fn compare(script: &str, seed: u64, crashes: &[Crash], expected: &TreeResult, once: &BTreeMap<String, usize>) {
    let (actual, effects, _) = now(play(script, seed, crashes));
    for (cause, history) in &expected.histories {
        let again = actual.histories.get(cause).map(Vec::as_slice).unwrap_or_default();
        for (step, twin) in history.iter().zip(again) {
            assert_eq!(twin, step, "in the history of {cause:?}");
        }
    }
    assert_eq!(actual, *expected);
    assert_eq!(effects.keys().collect::<Vec<_>>(), once.keys().collect::<Vec<_>>());
    let messages = actual
        .histories
        .values()
        .flatten()
        .map(|(_, _, writes)| writes.to_string())
        .collect::<String>();
    for (key, times) in effects {
        let may_repeat = [cast::COUNT, cast::INQUIRE]
            .iter()
            .any(|tool| messages.contains(&format!("\"{}\"", outcome_of(tool, &key))));
        assert!(times == 1 || may_repeat, "{key} happened {times} times");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_run_that_crashes_anywhere_has_the_same_result_and_repeats_no_effect(
        actions in actions(2),
        seed in any::<u64>(),
        crashes in prop::collection::vec(crash(), 1..12),
    ) {
        let script = script_of(&actions, "");
        let (expected, once, _) = now(play(&script, seed, &[]));
        compare(&script, seed, &crashes, &expected, &once);
    }
}

#[test]
fn a_run_that_crashes_at_each_commit_has_the_same_result() {
    let nested = vec![
        vec![Action::Act(cast::CONFESS), Action::Act(cast::COUNT)],
        vec![Action::Act(cast::PAY)],
    ];
    let child = vec![
        vec![Action::Act(cast::SEND), Action::Delegate("two", nested)],
        vec![Action::File(cast::ERASE, 0)],
    ];
    let actions = vec![
        vec![
            Action::File(cast::JOT, 0),
            Action::Act(cast::SEND),
            Action::InvalidArguments,
        ],
        vec![
            Action::Delegate("one", child),
            Action::Act(cast::INQUIRE),
            Action::Act(cast::CONFESS),
        ],
    ];
    let script = script_of(&actions, "");
    let (expected, once, commits) = now(play(&script, 7, &[]));
    assert!(commits.len() > 2, "it asks several times");
    for (run, commits) in commits.into_iter().enumerate() {
        for commit in 1..=commits {
            for crash in [Crash::Before(commit), Crash::After(commit), Crash::ShutDown(commit)] {
                // The runs before it have no crash.
                let mut crashes = vec![Crash::Before(usize::MAX); run];
                crashes.push(crash);
                compare(&script, 7, &crashes, &expected, &once);
            }
        }
    }
}
