use serde_json::json;

use super::*;
use crate::domain::interrupt::{Question, QuestionKind};
use crate::domain::machine::Machine;
use crate::domain::message::{Message, Role, ToolCall};
use crate::domain::state::Update;

fn plan() -> Plan {
    let names = |point: HookPoint| vec![format!("A.{}", point.word())];
    Plan {
        before_agent: names(HookPoint::BeforeAgent),
        before_model: names(HookPoint::BeforeModel),
        after_model: names(HookPoint::AfterModel),
        after_agent: names(HookPoint::AfterAgent),
        step_limit: 100,
        ..Plan::default()
    }
}

fn question() -> Question {
    Question {
        kind: QuestionKind::Question,
        value: json!("well?"),
        schema: json!({}).into(),
        calls: vec![],
        key: None,
        approvers: Default::default(),
        ..Question::default()
    }
}

/// Returns a machine in its tool step.
fn in_tools(ids: &[&str]) -> Machine {
    let tool_calls = ids
        .iter()
        .map(|id| ToolCall::new(*id, "send", serde_json::Map::new()))
        .collect();
    let answer = Message::new(
        Role::Ai {
            tool_calls,
            invalid_tool_calls: vec![],
            usage_metadata: None,
        },
        "",
    );
    let mut machine = Machine::default();
    machine.model_done(
        &Plan {
            after_model: vec![],
            ..plan()
        },
        answer,
        Update::none(),
        CheckpointId::mint(),
    );
    machine
}

fn tasks(machine: &Machine) -> Vec<Task> {
    machine.position.tasks(Some(&plan()), machine.head.unwrap())
}

#[test]
fn next_tasks_are_named_by_node_without_silent_hooks() {
    let hooks = |point| Phase::Hooks { point, next: 0 };
    let table = [
        (Phase::Start, vec![START]),
        (hooks(HookPoint::BeforeAgent), vec![MODEL]),
        (hooks(HookPoint::BeforeModel), vec![MODEL]),
        (Phase::Model, vec![MODEL]),
        (hooks(HookPoint::AfterModel), vec!["A.after_model"]),
        (hooks(HookPoint::AfterAgent), vec!["A.after_agent"]),
        (Phase::Ended, vec![]),
    ];
    for (phase, expected) in table {
        let position = Position {
            phase: phase.clone(),
            ..Position::default()
        };
        let tasks = position.tasks(Some(&plan()), CheckpointId::mint());
        assert_eq!(
            tasks.iter().map(|task| task.node.as_str()).collect::<Vec<_>>(),
            expected,
            "{phase:?}"
        );
    }
}

#[test]
fn each_open_call_is_a_task_with_its_interrupt_or_child() {
    let mut machine = in_tools(&["a", "b", "c"]);
    let child = RunId::mint();
    machine.call_asked(0, vec![question()]);
    machine.set_call_status(1, CallStatus::Delegated { child, parked: true });
    machine.set_call_status(
        2,
        CallStatus::Answered(Box::new(super::super::call::ToolOutput::message(Message::human("")))),
    );
    let tasks = tasks(&machine);
    assert_eq!(
        tasks.iter().map(|task| (task.call, task.child)).collect::<Vec<_>>(),
        [(Some(0), None), (Some(1), Some(child))]
    );
    assert_eq!(&tasks[0].asks, &machine.position.asked);
    assert_eq!(tasks[0].id, machine.call_task(0));
    assert_eq!(tasks[1].asks, []);
}

#[test]
fn each_delegated_call_has_the_task_of_its_child_run() {
    let mut machine = in_tools(&["a", "b", "c"]);
    let own = machine.call_task(0);
    let again = TaskId::of_delegation(machine.call_task(1), 0);
    for (at, child) in [(0, RunId::of_child(own)), (1, RunId::of_child(again))] {
        machine.set_call_status(at, CallStatus::Delegated { child, parked: true });
    }
    let tasks = tasks(&machine);
    assert_eq!(
        tasks.iter().map(|task| task.delegated).collect::<Vec<_>>(),
        [Some(own), Some(again), None]
    );
}

#[test]
fn a_hook_that_asks_stays_the_task_until_it_has_run_with_the_answer() {
    let mut machine = in_tools(&["a"]);
    machine.position.phase = Phase::Hooks {
        point: HookPoint::BeforeModel,
        next: 0,
    };
    let asked = machine.hook_asked(&plan(), vec![question()]).remove(0);
    assert_eq!(tasks(&machine)[0].node.as_str(), "A.before_model");
    assert_eq!(&tasks(&machine)[0].asks, &vec![asked.clone()]);
    machine.resolve(&asked.id, json!("yes"));
    assert_eq!(tasks(&machine)[0].node.as_str(), "A.before_model");
    assert_eq!(tasks(&machine)[0].asks.len(), 0);
}

#[test]
fn an_open_interrupt_survives_a_state_update() {
    let mut machine = in_tools(&["a", "b"]);
    machine.call_asked(1, vec![question()]);
    machine.append_update(&Plan::default(), Update::field("x", json!(1)), CheckpointId::mint());
    let tasks = tasks(&machine);
    assert_eq!(tasks[0].asks.len(), 0);
    assert_eq!(&tasks[1].asks, &machine.position.asked);
}

#[test]
fn a_failed_task_has_its_error_but_not_that_of_a_step_limit() {
    let mut machine = in_tools(&["a"]);
    machine.position.failure = Some(Failure::new("ToolError", "it broke"));
    assert_eq!(tasks(&machine)[0].error.as_deref(), Some("ToolError(\"it broke\")"));
    machine.position.failure = Some(Failure::new("GraphRecursionError", "too many"));
    assert_eq!(tasks(&machine)[0].error, None);
}

#[test]
fn each_call_that_failed_has_its_own_error_and_the_others_have_none() {
    let mut machine = in_tools(&["a", "b", "c"]);
    machine.call_asked(0, vec![question()]);
    machine.call_failed(1, Failure::new("ToolError", "one"));
    machine.call_failed(2, Failure::new("ToolError", "two"));
    let errors = |machine: &Machine| -> Vec<Option<String>> {
        let tasks = tasks(machine).into_iter();
        tasks.map(|task| task.error).collect()
    };
    assert!(errors(&machine).iter().all(Option::is_none), "the step goes on");
    machine.position.failure = Some(Failure::new("ToolError", "one"));
    let of = |message: &str| Some(format!("ToolError(\"{message}\")"));
    assert_eq!(errors(&machine), [None, of("one"), of("two")]);
    machine.prepare_for_run();
    assert!(errors(&machine).iter().all(Option::is_none), "the calls are repeated");
    machine.position.failure = Some(Failure::cancelled());
    let cancelled = Some(Failure::cancelled().to_task_error());
    assert!(
        errors(&machine).iter().all(|error| *error == cancelled),
        "no call failed by itself"
    );
    machine.call_failed(1, Failure::new("ToolError", "one"));
    assert!(
        errors(&machine).iter().all(|error| *error == cancelled),
        "the run was cancelled before the other calls had ended"
    );
}
