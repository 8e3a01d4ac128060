//! Tables: the phases of the loop, jumps, interrupts and call statuses.

use serde_json::{Map, json};

use super::*;
use crate::domain::call::EDITED_CALLS;
use crate::domain::interrupt::QuestionKind;
use crate::domain::message::{InvalidToolCall, Role, ToolStatus};

mod external;

fn names(point: HookPoint, policies: [&str; 2]) -> Vec<String> {
    policies
        .iter()
        .map(|policy| format!("{policy}.{}", point.word()))
        .collect()
}

/// A plan of two middleware with a hook at every hook point.
fn plan() -> Plan {
    Plan {
        before_agent: names(HookPoint::BeforeAgent, ["A", "B"]),
        before_model: names(HookPoint::BeforeModel, ["A", "B"]),
        after_model: names(HookPoint::AfterModel, ["B", "A"]),
        after_agent: names(HookPoint::AfterAgent, ["B", "A"]),
        step_limit: 100,
        ..Plan::default()
    }
}

fn bare_plan() -> Plan {
    Plan {
        step_limit: 100,
        ..Plan::default()
    }
}

fn hooks(point: HookPoint, next: usize) -> Phase {
    Phase::Hooks { point, next }
}

fn id() -> CheckpointId {
    CheckpointId::mint()
}

fn tool_call(id: &str) -> ToolCall {
    ToolCall::new(id, "send", Map::new())
}

fn calling(ids: &[&str]) -> Message {
    let tool_calls = ids.iter().map(|id| tool_call(id)).collect();
    Message::new(
        Role::Ai {
            tool_calls,
            invalid_tool_calls: vec![],
            usage_metadata: None,
        },
        "",
    )
}

fn unreadable(call: Option<&str>) -> Message {
    let broken = InvalidToolCall {
        name: Some("send".to_owned()),
        args: Some("{".to_owned()),
        id: call.map(str::to_owned),
        error: Some("EOF".to_owned()),
        kind: "invalid_tool_call".to_owned(),
    };
    Message::new(
        Role::Ai {
            tool_calls: vec![],
            invalid_tool_calls: vec![broken],
            usage_metadata: None,
        },
        "",
    )
}

fn answered(call: &str) -> CallStatus {
    CallStatus::Answered(Box::new(ToolOutput::message(Message::tool(
        &tool_call(call),
        ToolStatus::Success,
        call,
    ))))
}

/// Returns a machine at `phase`, after these messages.
fn machine_at(phase: Phase, messages: impl IntoIterator<Item = Message>) -> Machine {
    let mut machine = Machine {
        head: Some(id()),
        step: Some(3),
        ..Machine::default()
    };
    machine.state.apply(&Update::messages(messages));
    machine.position.phase = phase;
    machine
}

/// Returns a machine in its tool step with these calls.
fn in_tools(ids: &[&str]) -> Machine {
    let mut machine = machine_at(Phase::Model, [Message::human("do it")]);
    machine.model_done(&bare_plan(), calling(ids), Update::none(), id());
    machine
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

fn reloaded(machine: &Machine) -> Machine {
    let stored = serde_json::to_string(&machine.position).unwrap();
    Machine {
        position: serde_json::from_str(&stored).unwrap(),
        ..machine.clone()
    }
}

#[test]
fn each_hook_is_followed_by_the_next_hook_or_phase() {
    use HookPoint::{AfterAgent, AfterModel, BeforeAgent, BeforeModel};
    let table = [
        (hooks(BeforeAgent, 0), hooks(BeforeAgent, 1)),
        (hooks(BeforeAgent, 1), hooks(BeforeModel, 0)),
        (hooks(BeforeModel, 0), hooks(BeforeModel, 1)),
        (hooks(BeforeModel, 1), Phase::Model),
        (hooks(AfterModel, 0), hooks(AfterModel, 1)),
        (hooks(AfterModel, 1), hooks(AfterAgent, 0)),
        (hooks(AfterAgent, 0), hooks(AfterAgent, 1)),
        (hooks(AfterAgent, 1), Phase::Ended),
    ];
    for (phase, expected) in table {
        let Phase::Hooks { point, next } = phase else {
            panic!("a row without a hook")
        };
        let mut machine = machine_at(phase.clone(), [Message::ai("done")]);
        assert_eq!(machine.next(&plan()), Step::RunHook(point, next));
        assert_eq!(
            machine.hook_done(&plan(), Update::none(), None, id()),
            None,
            "a hook that wrote nothing is no step"
        );
        assert_eq!(machine.position.phase, expected, "after {phase:?}");
        assert_eq!(machine.position.taken, 1);
    }
}

#[test]
fn the_answer_of_the_model_decides_between_tools_and_the_end() {
    let mut asked = machine_at(Phase::Model, [Message::human("hi")]);
    assert_eq!(asked.next(&plan()), Step::AskModel);
    asked.model_done(&plan(), calling(&["a", "b"]), Update::none(), id());
    assert_eq!(asked.position.phase, hooks(HookPoint::AfterModel, 0));
    asked.hook_done(&plan(), Update::none(), None, id());
    asked.hook_done(&plan(), Update::none(), None, id());
    assert_eq!(asked.next(&plan()), Step::RunCalls(vec![0, 1]));
    let mut done = machine_at(Phase::Model, [Message::human("hi")]);
    done.model_done(&bare_plan(), Message::ai("done"), Update::none(), id());
    assert_eq!(done.next(&bare_plan()), Step::End);
    assert_eq!(done.position.phase, Phase::Ended);
}

#[test]
fn results_are_written_in_the_order_of_the_calls_before_the_next_model_call() {
    let mut machine = in_tools(&["a", "b"]);
    machine.set_call_status(1, answered("b"));
    assert_eq!(
        machine.tools_done(&plan(), id()),
        None,
        "not before the last is answered"
    );
    machine.set_call_status(0, answered("a"));
    let Some(entry) = machine.tools_done(&plan(), id()) else {
        panic!("no step")
    };
    let written: Vec<_> = entry
        .writes
        .iter()
        .map(|update| update.messages[0].answers().unwrap().to_owned())
        .collect();
    assert_eq!(written, ["a", "b"]);
    assert_eq!(machine.position.phase, hooks(HookPoint::BeforeModel, 0));
}

#[test]
fn a_result_that_ends_the_agent_does_so_once_all_calls_are_answered() {
    let mut machine = in_tools(&["a", "b"]);
    let last = ToolOutput {
        ends: true,
        ..ToolOutput::message(Message::tool(&tool_call("a"), ToolStatus::Success, ""))
    };
    machine.set_call_status(0, CallStatus::Answered(Box::new(last)));
    machine.set_call_status(1, answered("b"));
    assert!(machine.tools_done(&plan(), id()).is_some());
    assert_eq!(machine.position.phase, hooks(HookPoint::AfterAgent, 0));
}

#[test]
fn a_jump_leads_from_any_hook_to_its_target() {
    use HookPoint::{AfterAgent, AfterModel, BeforeAgent, BeforeModel};
    for point in [BeforeAgent, BeforeModel, AfterModel, AfterAgent] {
        let end = if point == AfterAgent {
            Phase::Ended
        } else {
            hooks(AfterAgent, 0)
        };
        let table = [
            (Jump::Model, Some(hooks(BeforeModel, 0))),
            (Jump::Tools, None),
            (Jump::End, Some(end)),
        ];
        for (jump, expected) in table {
            let mut machine = machine_at(hooks(point, 0), [calling(&["a"])]);
            machine.hook_done(&plan(), Update::none(), Some(jump), id());
            match expected {
                Some(expected) => assert_eq!(machine.position.phase, expected, "{jump:?} from {point:?}"),
                None => assert_eq!(
                    machine.next(&plan()),
                    Step::RunCalls(vec![0]),
                    "{jump:?} from {point:?}"
                ),
            }
        }
    }
}

#[test]
fn a_jump_to_tools_without_open_calls_leads_to_the_model_or_the_end() {
    let result = Message::tool(&tool_call("a"), ToolStatus::Error, "no");
    let table = [
        (vec![calling(&["a"]), result], hooks(HookPoint::BeforeModel, 0)),
        (vec![Message::ai("done")], hooks(HookPoint::AfterAgent, 0)),
        (vec![Message::human("hi")], hooks(HookPoint::AfterAgent, 0)),
    ];
    for (messages, expected) in table {
        let mut machine = machine_at(hooks(HookPoint::AfterModel, 0), messages);
        machine.hook_done(&plan(), Update::none(), Some(Jump::Tools), id());
        assert_eq!(machine.position.phase, expected);
    }
}

#[test]
fn a_hook_that_asks_runs_again_after_the_answer() {
    let mut machine = machine_at(hooks(HookPoint::AfterModel, 1), [calling(&["a"])]);
    let asked = machine.hook_asked(&plan(), vec![question()]).remove(0);
    assert_eq!(asked.asker, InterruptSource::Hook("A.after_model".to_owned()));
    assert_eq!(machine.next(&plan()), Step::Park);
    assert!(machine.resolve(&asked.id, json!("yes")));
    assert!(!machine.resolve(&asked.id, json!("no")), "it is not open any more");
    assert_eq!(machine.next(&plan()), Step::RunHook(HookPoint::AfterModel, 1));
    machine.hook_done(&plan(), Update::none(), None, id());
    assert_eq!(machine.position.asked, []);
    assert_eq!(machine.next(&plan()), Step::RunCalls(vec![0]));
}

#[test]
fn a_second_question_of_a_hook_replaces_the_first_answer() {
    let mut machine = machine_at(hooks(HookPoint::AfterModel, 1), [calling(&["a"])]);
    let first = machine.hook_asked(&plan(), vec![question()]).remove(0).id;
    machine.resolve(&first, json!("first"));
    let second = machine.hook_asked(&plan(), vec![question()]).remove(0).id;
    assert_ne!(first, second);
    assert_eq!(machine.next(&plan()), Step::Park);
    assert!(!machine.resolve(&first, json!("late")));
    assert!(machine.resolve(&second, json!("second")));
    let answers: Vec<_> = machine
        .position
        .asked
        .iter()
        .map(|asked| asked.answer.clone().unwrap())
        .collect();
    assert_eq!(answers, [json!("second")]);
}

#[test]
fn a_call_that_asks_one_question_after_the_other_keeps_the_answers() {
    let mut machine = machine_at(Phase::Model, [Message::human("hi")]);
    machine.model_done(&bare_plan(), calling(&["a"]), Update::none(), id());
    let keyed = |key: &str| Question {
        kind: QuestionKind::Question,
        key: Some(key.to_owned()),
        ..question()
    };
    for (key, known) in [("one", 0), ("two", 1), ("two", 1)] {
        let asked = machine.call_asked(0, vec![keyed(key)]).remove(0);
        let source = asked.asker.clone();
        assert_eq!(machine.answers_to(&source).len(), known, "{key}");
        assert!(machine.resolve(&asked.id, json!(key)));
    }
    let answers = machine.answers_to(&InterruptSource::Call("a".to_owned()));
    let answers: Vec<_> = answers.iter().map(|(_, answer)| answer).collect();
    assert_eq!(answers, [&json!("one"), &json!("two")]);
}

#[test]
fn an_invalid_call_is_answered_at_once() {
    let mut machine = machine_at(Phase::Model, [Message::human("hi")]);
    machine.model_done(&bare_plan(), unreadable(Some("x")), Update::none(), id());
    assert_eq!(
        machine.next(&bare_plan()),
        Step::RunCalls(vec![]),
        "nothing to run, but a step to be finished"
    );
    let Some(entry) = machine.tools_done(&bare_plan(), id()) else {
        panic!("no step")
    };
    assert_eq!(entry.writes[0].messages[0].answers(), Some("x"));
    assert!(entry.writes[0].messages[0].content.text().contains("not a JSON object"));
    assert_eq!(machine.next(&bare_plan()), Step::AskModel);
}

#[test]
fn an_invalid_call_without_an_id_does_not_loop_forever() {
    let mut machine = machine_at(Phase::Model, [Message::human("hi")]);
    machine.model_done(&bare_plan(), unreadable(None), Update::none(), id());
    assert_eq!(machine.next(&bare_plan()), Step::End);
}

#[test]
fn of_two_waiting_calls_the_approved_one_runs_while_the_other_waits() {
    let mut machine = in_tools(&["a", "b"]);
    let first = machine.call_asked(0, vec![question()]).remove(0);
    let second = machine.call_asked(1, vec![question()]).remove(0);
    assert_ne!(first.id, second.id);
    assert_eq!(machine.next(&plan()), Step::Park);
    machine.resolve(&second.id, json!("go"));
    assert_eq!(machine.next(&plan()), Step::RunCalls(vec![1]));
    machine.set_call_status(1, answered("b"));
    assert_eq!(machine.next(&plan()), Step::Park);
    assert_eq!(
        machine.open_questions().map(|asked| &asked.id).collect::<Vec<_>>(),
        [&first.id]
    );
    machine.resolve(&first.id, json!("go"));
    assert_eq!(machine.next(&plan()), Step::RunCalls(vec![0]));
}

#[test]
fn the_status_of_a_call_decides_whether_it_may_run() {
    let child = RunId::mint();
    let table = [
        (CallStatus::Ready, true),
        (CallStatus::Started, true),
        (CallStatus::Asking, false),
        (CallStatus::Delegated { child, parked: false }, true),
        (CallStatus::Delegated { child, parked: true }, false),
    ];
    for (status, runs) in table {
        let mut machine = in_tools(&["a"]);
        machine.set_call_status(0, status.clone());
        let expected = if runs { Step::RunCalls(vec![0]) } else { Step::Park };
        assert_eq!(machine.next(&plan()), expected, "{status:?}");
    }
}

#[test]
fn an_answered_child_resumes_only_its_own_call() {
    let first = RunId::mint();
    let second = RunId::mint();
    let mut machine = in_tools(&["a", "b"]);
    machine.set_call_status(
        0,
        CallStatus::Delegated {
            child: first,
            parked: true,
        },
    );
    machine.set_call_status(
        1,
        CallStatus::Delegated {
            child: second,
            parked: true,
        },
    );
    assert_eq!(machine.parked_children(), [first, second]);
    assert!(!machine.unpark(RunId::mint()));
    assert!(machine.unpark(second));
    assert!(!machine.unpark(second), "it is awake");
    assert_eq!(machine.next(&plan()), Step::RunCalls(vec![1]));
    assert_eq!(machine.parked_children(), [first]);
}

#[test]
fn calls_that_a_hook_answered_do_not_run() {
    let rejected = Message::tool(&tool_call("a"), ToolStatus::Error, "rejected");
    let mut machine = machine_at(hooks(HookPoint::AfterModel, 1), [calling(&["a", "b"])]);
    machine.hook_done(&plan(), Update::messages([rejected]), None, id());
    assert_eq!(machine.next(&plan()), Step::RunCalls(vec![0]));
    assert_eq!(machine.call(0), Some(tool_call("b")));
}

#[test]
fn a_result_of_an_earlier_answer_is_not_taken_for_one_of_the_last() {
    let result = Message::tool(&tool_call("a"), ToolStatus::Success, "old");
    let mut machine = machine_at(Phase::Model, [calling(&["a"]), result]);
    machine.model_done(&bare_plan(), calling(&["a"]), Update::none(), id());
    assert_eq!(machine.next(&bare_plan()), Step::RunCalls(vec![0]));
}

#[test]
fn the_reviewers_edit_runs_instead_of_the_models_call() {
    let mut machine = machine_at(hooks(HookPoint::AfterModel, 1), [calling(&["a"])]);
    let edits = json!({"a": {"name": "other", "args": {"x": 1}}});
    machine.hook_done(&plan(), Update::field(EDITED_CALLS, edits), None, id());
    assert_eq!(
        machine.call(0),
        Some(ToolCall::new(
            "a",
            "other",
            Map::from_iter([("x".to_owned(), json!(1))])
        ))
    );
}

#[test]
fn a_step_beyond_the_limit_fails_but_not_the_end_or_waiting() {
    let limited = Plan {
        step_limit: 2,
        ..plan()
    };
    for (phase, fails) in [
        (Phase::Model, true),
        (hooks(HookPoint::BeforeModel, 0), true),
        (Phase::Ended, false),
    ] {
        for taken in [1, 2, 3] {
            let mut machine = machine_at(phase.clone(), []);
            machine.position.taken = taken;
            let failed =
                matches!(machine.next(&limited), Step::Fail(Failure { class, .. }) if class == "GraphRecursionError");
            assert_eq!(failed, fails && taken >= 2, "{phase:?} after {taken} steps");
        }
    }
    let mut waiting = in_tools(&["a"]);
    waiting.position.taken = 2;
    assert!(matches!(waiting.next(&limited), Step::Fail(_)));
    waiting.call_asked(0, vec![question()]);
    assert_eq!(waiting.next(&limited), Step::Park);
}

#[test]
fn hooks_answers_and_tool_steps_count_one_step_each() {
    let mut machine = machine_at(hooks(HookPoint::BeforeModel, 1), []);
    machine.hook_done(&plan(), Update::none(), None, id());
    machine.model_done(&bare_plan(), calling(&["a", "b"]), Update::none(), id());
    machine.set_call_status(0, answered("a"));
    machine.set_call_status(1, answered("b"));
    machine.tools_done(&bare_plan(), id());
    assert_eq!(machine.position.taken, 3);
    machine.position.failure = Some(Failure::new("X", "y"));
    machine.prepare_for_run();
    assert_eq!(
        machine.position,
        Position {
            phase: Phase::Model,
            ..Position::default()
        }
    );
}

#[test]
fn ids_survive_a_reload() {
    let mut machine = in_tools(&["a", "b", "c"]);
    machine.call_asked(0, vec![question()]);
    machine.set_call_status(
        1,
        CallStatus::Delegated {
            child: RunId::of_child(machine.call_task(1)),
            parked: true,
        },
    );
    machine.set_call_status(2, answered("c"));
    let mut again = reloaded(&machine);
    assert_eq!(again, machine);
    assert_eq!(RunId::of_child(again.call_task(1)), again.parked_children()[0]);
    let asked = machine.position.asked[0].id.clone();
    assert!(again.resolve(&asked, json!("yes")));
    assert_eq!(again.next(&plan()), Step::RunCalls(vec![0]));
}

#[test]
fn a_repeated_question_has_the_same_id_within_its_step() {
    let machine = in_tools(&["a"]);
    let mut lived = machine.clone();
    let mut reborn = reloaded(&machine);
    assert_eq!(
        lived.call_asked(0, vec![question()]),
        reborn.call_asked(0, vec![question()])
    );
    let mut later = in_tools(&["a"]);
    assert_ne!(later.call_asked(0, vec![question()])[0].id, lived.position.asked[0].id);
}
