//! Tests of subagents: their input, their results, and how they wait.

use std::sync::Arc;

use serde_json::{Value, json};

use super::cast::{COUNT, ERASE, INQUIRE, JOT, World, agent_of, careful_agent, plain_agent};
use super::memory::Crash;
use super::{Stage, questions, says, script};
use crate::agent::{ExitReason, LoopOutcome};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::RunId;
use crate::domain::machine::Failure;
use crate::domain::message::{Role, ToolStatus};
use crate::domain::run::RunStatus;

fn stage(depth: u32) -> (Stage, Arc<World>) {
    let world = Arc::new(World::default());
    (Stage::new(plain_agent(&world, depth)), world)
}

/// Returns the arguments of a delegation to `one`.
fn work(description: &str) -> Value {
    json!({"description": description, "subagent_type": "one"})
}

fn file(path: &str) -> Value {
    json!({ "path": path })
}

#[tokio::test]
async fn of_two_children_one_may_fail_and_the_other_reports() {
    let (stage, _) = stage(1);
    let bad = r#"{"script": [{"error": 400}]}"#;
    let good = r#"{"script": [{"text": "found it "}]}"#;
    let outcome = stage
        .hears(script(&[&[("a", "task", work(bad)), ("b", "task", work(good))]]))
        .await;
    assert_eq!(outcome, LoopOutcome::Done);
    let results = stage.results();
    assert!(
        results[0].starts_with("The subagent `one` failed (ModelRefusedError)"),
        "{results:?}"
    );
    assert_eq!(results[1], "found it");
    let failed = matches!(
        stage.state().messages.recent()[2].role,
        Role::Tool {
            status: ToolStatus::Error,
            ..
        }
    );
    assert!(failed, "the model sees that it failed");
}

#[tokio::test]
async fn a_child_at_the_deepest_level_has_no_way_to_delegate() {
    let (stage, _) = stage(2);
    let third = script(&[&[("c", "task", work("deeper"))]]);
    let second = script(&[&[("b", "task", work(&third))]]);
    assert_eq!(
        stage.hears(script(&[&[("a", "task", work(&second))]])).await,
        LoopOutcome::Done
    );
    let children = stage.store.children();
    assert_eq!(children.len(), 2);
    let (deepest, lineage) = children.iter().max_by_key(|(_, lineage)| lineage.depth).unwrap();
    assert_eq!(lineage.depth, 2);
    assert_eq!(
        &lineage.path,
        &vec!["main".to_owned(), "one".to_owned(), "one".to_owned()]
    );
    let said = stage.store.machine(Lane::Child(*deepest)).state;
    assert!(
        said.messages.recent()[2]
            .content
            .text()
            .starts_with("Error: task is not a valid tool"),
        "{said:?}"
    );
}

#[tokio::test]
async fn writes_and_deletions_of_a_child_reach_its_parent() {
    let (stage, _) = stage(1);
    let child = script(&[&[("x", ERASE, file("/old")), ("y", JOT, file("/new"))]]);
    let steps: [&[_]; 2] = [
        &[("a", JOT, file("/old")), ("b", JOT, file("/kept"))],
        &[("c", "task", work(&child))],
    ];
    assert_eq!(stage.hears(script(&steps)).await, LoopOutcome::Done);
    let files = stage.state().files;
    let contents: Vec<_> = files
        .iter()
        .map(|(path, file)| (path.as_str(), file.content.text().into_owned()))
        .collect();
    assert_eq!(contents, [("/kept", "b".to_owned()), ("/new", "y".to_owned())]);
}

#[tokio::test]
async fn writes_of_children_are_applied_in_the_order_of_their_calls() {
    for [first, second] in [["p", "q"], ["q", "p"]] {
        let (stage, _) = stage(1);
        let long = script(&[
            &[(first, JOT, file("/f"))],
            &[("w", COUNT, json!({}))],
            &[("v", COUNT, json!({}))],
        ]);
        let short = script(&[&[(second, JOT, file("/f"))]]);
        assert_eq!(
            stage
                .hears(script(&[&[("a", "task", work(&short)), ("b", "task", work(&long))]]))
                .await,
            LoopOutcome::Done
        );
        assert_eq!(stage.state().files["/f"].content, first, "of the last call");
        let (stage, _) = self::stage(1);
        assert_eq!(
            stage
                .hears(script(&[&[("a", "task", work(&long)), ("b", "task", work(&short))]]))
                .await,
            LoopOutcome::Done
        );
        assert_eq!(
            stage.state().files["/f"].content,
            second,
            "of the last call, though it came first"
        );
    }
}

#[tokio::test]
async fn a_child_gets_its_task_and_nothing_of_the_conversation() {
    let (stage, _) = stage(1);
    assert_eq!(
        stage.hears(script(&[&[("a", "task", work("what I want"))]])).await,
        LoopOutcome::Done
    );
    let (child, lineage) = stage.store.children().remove(0);
    assert_eq!(lineage.cause.as_deref(), Some("a"));
    let state = stage.store.machine(Lane::Child(child)).state;
    assert_eq!(state.messages.texts(), ["what I want", "echo: what I want"]);
    assert_eq!(stage.state().messages.len(), 4, "the child's messages stay with it");
}

#[tokio::test]
async fn an_answered_child_continues_while_its_sibling_waits() {
    let (stage, world) = stage(1);
    let asking = |id: &str| work(&script(&[&[(id, INQUIRE, json!({}))]]));
    let waits = stage
        .hears(script(&[&[("a", "task", asking("x")), ("b", "task", asking("y"))]]))
        .await;
    let asked = questions(&waits);
    assert_eq!(asked.len(), 2);
    let still = stage.is_answered(&asked[1], json!(5)).await;
    assert_eq!(questions(&still), vec![asked[0].clone()]);
    assert_eq!(world.happened("x"), 0);
    assert_eq!(world.happened("y"), 1);
    assert_eq!(stage.is_answered(&asked[0], json!(6)).await, LoopOutcome::Done);
    assert_eq!(stage.results(), vec!["done".to_owned(), "done".to_owned()]);
    assert_eq!(stage.store.children().len(), 2);
}

#[tokio::test]
async fn a_question_two_levels_down_reaches_the_client_and_its_answer_returns() {
    let world = Arc::new(World::default());
    let stage = Stage::new(careful_agent(&world, 2));
    let third = script(&[&[("pay", "pay", json!({}))]]);
    let second = script(&[&[("b", "task", work(&third))]]);
    let waits = stage.hears(script(&[&[("a", "task", work(&second))]])).await;
    let asked = questions(&waits);
    assert_eq!(asked.len(), 1);
    assert_eq!(world.happened("pay"), 0);
    assert_eq!(
        stage
            .is_answered(&asked[0], json!({"decisions": [{"type": "approve"}]}))
            .await,
        LoopOutcome::Done
    );
    assert_eq!(world.happened("pay"), 1);
    assert_eq!(stage.store.children().len(), 2);
}

#[tokio::test]
async fn a_child_has_succeeded_when_it_is_done_and_not_while_it_waits() {
    let (stage, _) = stage(1);
    let child = script(&[&[("x", INQUIRE, json!({}))]]);
    let waits = stage.hears(script(&[&[("a", "task", work(&child))]])).await;
    let lane = Lane::Child(stage.store.children()[0].0);
    let last = |lane| match stage.store.facts(lane).pop() {
        Some(Fact::Ended { status, .. }) => status,
        other => panic!("{other:?}"),
    };
    assert_eq!(last(lane), RunStatus::Interrupted);
    assert_eq!(last(Lane::Main), RunStatus::Success);
    stage.is_answered(&questions(&waits)[0], json!(1)).await;
    assert_eq!(last(lane), RunStatus::Success);
}

#[tokio::test]
async fn a_cancelled_run_stops_its_children_and_continues_with_them_later() {
    let child = |id: &str| work(&script(&[&[(id, COUNT, json!({}))], &[("y", COUNT, json!({}))]]));
    let input = says(script(&[&[("a", "task", child("x")), ("b", "task", child("z"))]]));
    for commit in 3..9 {
        let (stage, _) = stage(1);
        let run = RunId::mint();
        stage.restarts(Some(Crash::ShutDown(commit)));
        assert_eq!(
            stage.attempt(run, &input).await,
            Err(ExitReason::Cancelled),
            "in commit {commit}"
        );
        stage.restarts(None);
        assert_eq!(stage.attempt(run, &input).await, Ok(LoopOutcome::Done));
        assert_eq!(stage.results(), vec!["done".to_owned(); 2]);
        assert_eq!(stage.store.children().len(), 2);
    }
}

#[tokio::test]
async fn children_are_stored_in_one_commit_with_the_answer_that_delegates_to_them() {
    let input = says(script(&[&[("a", "task", work("x")), ("b", "task", work("y"))]]));
    // The first commit has the input.
    for (crash, stored) in [(Crash::Before(2), 0), (Crash::After(2), 2)] {
        let (stage, _) = stage(1);
        let run = RunId::mint();
        stage.restarts(Some(crash));
        assert!(stage.attempt(run, &input).await.is_err());
        assert_eq!(stage.store.children().len(), stored, "{crash:?}");
        let machine = stage.store.machine(Lane::Main);
        assert_eq!(machine.child_runs().len(), stored, "{crash:?}");
        for (_, child) in machine.child_runs() {
            let lane = Lane::Child(child);
            assert_eq!(stage.store.rows(lane).len(), 2, "its input is stored with it");
            assert!(matches!(
                stage.store.facts(lane)[..],
                [Fact::Started { resumed: false, .. }]
            ));
        }
        stage.restarts(None);
        assert_eq!(stage.attempt(run, &input).await, Ok(LoopOutcome::Done));
        assert_eq!(stage.store.children().len(), 2, "{crash:?}");
    }
}

#[tokio::test]
async fn very_many_children_are_stored_in_several_commits() {
    let ids: Vec<String> = (0..40).map(|number| format!("c{number}")).collect();
    let calls: Vec<_> = ids.iter().map(|id| (id.as_str(), "task", work("x"))).collect();
    let input = says(script(&[&calls]));
    let (stage, _) = stage(1);
    let run = RunId::mint();
    stage.restarts(Some(Crash::After(2)));
    assert!(stage.attempt(run, &input).await.is_err());
    let first = stage.store.children().len();
    assert!((1..=32).contains(&first), "{first}");
    assert_eq!(stage.store.machine(Lane::Main).child_runs().len(), first);
    stage.restarts(None);
    assert_eq!(stage.attempt(run, &input).await, Ok(LoopOutcome::Done));
    assert_eq!(stage.store.children().len(), 40);
    assert_eq!(stage.results().len(), 40);
}

#[tokio::test]
async fn children_go_on_while_the_answer_of_a_sibling_is_stored() {
    let (stage, _) = stage(1);
    stage.store.hold_answers(3);
    let long = script(&[&[("x", COUNT, json!({}))], &[("y", COUNT, json!({}))]]);
    let middle = script(&[&[("z", COUNT, json!({}))]]);
    let calls = [
        ("a", "task", work("short")),
        ("b", "task", work(&middle)),
        ("c", "task", work(&long)),
    ];
    assert_eq!(stage.hears(script(&[&calls])).await, LoopOutcome::Done);
    let course = stage.store.course();
    let answer = course
        .iter()
        .position(|(_, fact)| matches!(fact, Fact::Answered { .. }));
    let is_end = |(lane, fact): &(Lane, Fact)| *lane != Lane::Main && matches!(fact, Fact::Ended { .. });
    assert_eq!(course.iter().filter(|event| is_end(event)).count(), 3);
    assert!(course.iter().rposition(is_end) < answer, "{course:?}");
}

#[tokio::test]
async fn a_cancelled_child_is_an_error_result_and_its_sibling_continues_even_after_a_crash() {
    let mut met = 0;
    for last in 1..30 {
        let (stage, _) = stage(1);
        let count = |id: &str| work(&script(&[&[(id, COUNT, json!({}))], &[("again", COUNT, json!({}))]]));
        let run = RunId::mint();
        let input = says(script(&[&[("a", "task", count("x")), ("b", "task", count("y"))]]));
        stage.restarts(Some(Crash::Before(last)));
        let _ = stage.attempt(run, &input).await;
        let children = stage.store.children();
        let Some((first, _)) = children
            .iter()
            .find(|(_, lineage)| lineage.cause.as_deref() == Some("a"))
        else {
            continue;
        };
        let over = |fact: &Fact| matches!(fact, Fact::Ended { .. });
        if stage.store.facts(Lane::Child(*first)).iter().any(over) {
            break;
        }
        met += 1;
        stage.restarts(None);
        stage.store.cancel(*first);
        assert_eq!(stage.attempt(run, &input).await, Ok(LoopOutcome::Done), "after {last}");
        let results = stage.results();
        let cancelled = "The subagent `one` was cancelled by request before it was done: it has no result.";
        assert_eq!(results, [cancelled, "done"], "after {last}");
        let status = RunStatus::Interrupted;
        let error = Some(Failure::cancelled());
        let ended = Fact::Ended {
            status,
            error,
            waits: false,
            used: None,
        };
        assert_eq!(
            stage.store.facts(Lane::Child(*first)).last(),
            Some(&ended),
            "after {last}"
        );
    }
    assert!(met > 3, "{met}");
}

#[tokio::test]
async fn a_child_whose_definition_is_gone_is_an_error_result_and_its_caller_continues() {
    let (stage, world) = stage(1);
    let child = script(&[&[("x", INQUIRE, json!({}))]]);
    let waits = stage.hears(script(&[&[("a", "task", work(&child))]])).await;
    let later = Stage {
        store: Arc::clone(&stage.store),
        ..Stage::new(agent_of("main", &world, None, vec![]))
    };
    let outcome = later.is_answered(&questions(&waits)[0], json!(1)).await;
    assert_eq!(outcome, LoopOutcome::Done);
    let gone = "There is no subagent `one` here.";
    let failed = format!(
        "The subagent `one` failed (AgentNotFoundError): {gone} Its other work is kept; delegate again if the task is \
         still needed."
    );
    assert_eq!(later.results(), [failed]);
    let lane = Lane::Child(later.store.children()[0].0);
    let failure = Failure::new("AgentNotFoundError", gone);
    assert_eq!(
        later.store.facts(lane).last(),
        Some(&Fact::over(RunStatus::Interrupted, Some(failure.clone())))
    );
    assert_eq!(later.store.machine(lane).position.failure, Some(failure));
}
