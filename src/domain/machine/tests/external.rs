//! Tests of changes from outside the loop: input, state updates and jumps.

use serde_json::Map;

use super::*;
use crate::domain::interrupt::ReviewAction;
use crate::domain::machine::Destination;
use crate::domain::summarization;

const TO_TOOLS: Destination = Destination::Tools {
    own: true,
    sent: vec![],
};

#[test]
fn a_turn_starts_with_checkpoints_before_and_after_the_input() {
    let mut machine = Machine::default();
    let input = Update::messages([Message::human("hi")]);
    let [before, after] = machine.begin(&plan(), input.clone(), [id(), id()]);
    assert_eq!(before.step, -1);
    assert_eq!(before.source, CheckpointSource::Input);
    assert_eq!(before.writes, vec![]);
    assert_eq!(before.parent, None);
    assert_eq!(after.step, 0);
    assert_eq!(after.source, CheckpointSource::Loop);
    assert_eq!(after.parent, Some(before.id));
    assert_eq!(after.writes, [input]);
    assert_eq!(machine.head, Some(after.id));
    assert_eq!(machine.step, Some(0));
    assert_eq!(machine.next(&plan()), Step::RunHook(HookPoint::BeforeAgent, 0));
}

#[test]
fn a_new_turn_drops_the_current_step() {
    let mut machine = in_tools(&["a"]);
    machine.call_asked(0, vec![question()]);
    machine.position.failure = Some(Failure::new("X", "y"));
    machine.begin(&plan(), Update::messages([Message::human("never mind")]), [id(), id()]);
    assert_eq!(
        machine.position,
        Position {
            phase: hooks(HookPoint::BeforeAgent, 0),
            ..Position::default()
        }
    );
}

#[test]
fn the_turn_of_an_input_checkpoint_begins_again_with_the_same_input() {
    let mut machine = Machine::default();
    let input = Update::messages([Message::human("hi").with_id("h1")]);
    let [before, after] = machine.begin(&plan(), input.clone(), [id(), id()]);
    let first = machine;
    let mut machine = Machine {
        head: Some(before.id),
        step: Some(before.step),
        ..Machine::default()
    };
    let again = machine.begin_again(&plan(), input, id());
    assert_eq!(again.parent, after.parent);
    assert_eq!(again.step, after.step);
    assert_eq!(again.writes, after.writes);
    assert_eq!(machine.state, first.state);
    assert_eq!(machine.position, first.position);
}

#[test]
fn a_step_that_is_carried_on_keeps_its_interrupts_answers_and_tasks() {
    let mut machine = in_tools(&["a", "b"]);
    let before = machine.head;
    let tasks = [machine.call_task(0), machine.call_task(1)];
    let first = machine.call_asked(0, vec![question()]).remove(0);
    let second = machine.call_asked(1, vec![question()]).remove(0);
    assert!(machine.resolve(&first.id, json!("yes")));
    let entry = machine.carry_step(id());
    assert_eq!(entry.source, CheckpointSource::Fork);
    assert_eq!(entry.parent, before);
    assert_eq!([machine.call_task(0), machine.call_task(1)], tasks);
    assert_eq!(entry.next_base().task(TOOLS, 1), tasks[1]);
    let shown = machine.position.tasks(None, entry.id);
    assert_eq!(shown.iter().map(|task| task.id).collect::<Vec<_>>(), tasks);
    machine.carry_step(id());
    assert_eq!(machine.call_task(1), tasks[1], "also if it is carried on again");
    let mut machine = reloaded(&machine);
    assert_eq!(machine.next(&bare_plan()), Step::RunCalls(vec![0]));
    assert!(machine.resolve(&second.id, json!("no")));
    machine.set_call_status(0, answered("a"));
    machine.set_call_status(1, answered("b"));
    machine.tools_done(&bare_plan(), id());
    assert_eq!(
        machine.position.carried_from, None,
        "the next step has tasks of its own"
    );
}

#[test]
fn a_write_keeps_a_step_that_waits_unless_it_changes_the_calls() {
    let mut machine = in_tools(&["a", "b"]);
    let note = Update::field("x", json!(1));
    assert!(!machine.is_kept_by(&bare_plan(), None, &note), "it does not wait");
    machine.call_asked(0, vec![question()]);
    let by_hand = Message::tool(&tool_call("b"), ToolStatus::Success, "by hand");
    let table = [
        (note.clone(), true),
        (Update::messages([Message::human("also this")]), true),
        (Update::messages([calling(&["a", "c"])]), false),
        (Update::messages([by_hand]), false),
    ];
    for (update, is_kept) in table {
        assert_eq!(machine.is_kept_by(&bare_plan(), None, &update), is_kept, "{update:?}");
    }
    let nodes = [(MODEL, true), (TOOLS, false), (START, false)];
    for (node, is_kept) in nodes {
        assert_eq!(machine.is_kept_by(&bare_plan(), Some(node), &note), is_kept, "{node}");
    }
}

/// Returns an update after which call `a` has other arguments.
fn changes_a() -> Update {
    let mut message = calling(&["b"]);
    if let Role::Ai { tool_calls, .. } = &mut message.role {
        let args = Map::from_iter([("to".to_owned(), json!("eve"))]);
        tool_calls.push(ToolCall::new("a", "send", args));
    }
    Update::messages([message])
}

#[test]
fn a_call_that_an_update_changes_does_not_get_the_answers_that_were_for_others() {
    let asker = |call: &str| InterruptSource::Call(call.to_owned());
    let mut machine = in_tools(&["a", "b"]);
    for at in [0, 1] {
        let asked = machine.call_asked(at, vec![question()]).remove(0);
        assert!(machine.resolve(&asked.id, json!("yes")));
    }
    let task = machine.call_task(0);
    machine.carry_update(&bare_plan(), START, changes_a(), id());
    assert!(machine.answers_to(&asker("a")).is_empty());
    assert_eq!(machine.answers_to(&asker("b")).len(), 1, "this call is the same");
    assert_eq!(machine.call_task(0), task, "it is the same step");
    assert_eq!(machine.next(&bare_plan()), Step::RunCalls(vec![0, 1]));
}

#[test]
fn an_open_question_of_a_call_that_an_update_changes_is_asked_again_after_its_answer() {
    let asker = InterruptSource::Call("a".to_owned());
    let mut machine = in_tools(&["a", "b"]);
    let open = machine.call_asked(0, vec![question()]).remove(0);
    machine.carry_update(&bare_plan(), START, changes_a(), id());
    let mut machine = reloaded(&machine);
    assert_eq!(machine.open_questions().count(), 1, "it can be answered");
    assert!(machine.resolve(&open.id, json!("yes")));
    assert!(machine.answers_to(&asker).is_empty());
    assert_eq!(machine.next(&bare_plan()), Step::RunCalls(vec![0, 1]));
    let again = machine.call_asked(0, vec![question()]).remove(0);
    assert_ne!(again.id, open.id);
    assert!(machine.resolve(&again.id, json!("no")));
    assert_eq!(machine.answers_to(&asker)[0].1, json!("no"));
}

#[test]
fn a_step_has_the_results_of_the_calls_that_an_update_leaves_it() {
    let mut machine = in_tools(&["a", "b"]);
    machine.set_call_status(0, answered("a"));
    let asked = machine.call_asked(1, vec![question()]).remove(0);
    machine.carry_update(&bare_plan(), START, Update::messages([calling(&["b", "c"])]), id());
    let mut machine = reloaded(&machine);
    assert_eq!(machine.call_status(2), Some(&CallStatus::Ready));
    assert!(machine.resolve(&asked.id, json!("yes")));
    assert_eq!(machine.next(&bare_plan()), Step::RunCalls(vec![1, 2]));
    machine.set_call_status(1, answered("b"));
    machine.set_call_status(2, answered("c"));
    let done = machine.tools_done(&bare_plan(), id()).expect("a step");
    let results = |update: &Update| -> Vec<String> {
        let messages = update.messages.iter();
        messages
            .filter_map(|message| message.answers().map(str::to_owned))
            .collect()
    };
    let written: Vec<Vec<String>> = done.writes.iter().map(results).collect();
    assert_eq!(written, [vec![], vec!["b".to_owned()], vec!["c".to_owned()]]);
}

#[test]
fn a_call_that_a_reviewer_has_edited_is_not_made_once_an_update_takes_it_away() {
    let edited = || ReviewAction {
        name: "send".to_owned(),
        args: Map::new(),
    };
    let mut machine = in_tools(&["a", "b"]);
    machine.jump_to(
        &bare_plan(),
        &Destination::Tools {
            own: true,
            sent: vec![tool_call("sent")],
        },
    );
    machine.edit_call(0, edited());
    machine.edit_call(1, edited());
    machine.carry_update(&bare_plan(), START, Update::messages([calling(&["b"])]), id());
    let machine = reloaded(&machine);
    let made: Vec<bool> = (0..3).map(|at| machine.call(at).is_some()).collect();
    assert_eq!(made, [false, true, true]);
}

#[test]
fn a_hook_does_not_get_answers_about_messages_that_an_update_changes() {
    let note = Update::messages([Message::human("also this")]);
    let elsewhere = Update::field("x", json!(1));
    let table = [
        (QuestionKind::Question, &note, true),
        (QuestionKind::Question, &elsewhere, false),
        (QuestionKind::ToolApproval, &note, false),
    ];
    for (kind, update, is_withdrawn) in table {
        for is_answered_first in [true, false] {
            let mut machine = machine_at(hooks(HookPoint::AfterModel, 0), [calling(&["a"])]);
            let asked = Question { kind, ..question() };
            let open = machine.hook_asked(&plan(), vec![asked.clone()]).remove(0);
            if is_answered_first {
                assert!(machine.resolve(&open.id, json!("yes")));
            }
            machine.carry_update(&plan(), START, update.clone(), id());
            let mut machine = reloaded(&machine);
            if !is_answered_first {
                assert_eq!(machine.open_questions().count(), 1, "it can be answered");
                assert!(machine.resolve(&open.id, json!("yes")));
            }
            let answers = machine.answers_to(&open.asker);
            assert_eq!(answers.is_empty(), is_withdrawn, "{kind:?} {update:?}");
            assert_eq!(machine.next(&plan()), Step::RunHook(HookPoint::AfterModel, 0));
            let again = machine.hook_asked(&plan(), vec![asked]).remove(0);
            assert_ne!(again.id, open.id);
            assert!(machine.resolve(&again.id, json!("no")));
            assert_eq!(machine.answers_to(&open.asker).len(), 1);
        }
    }
}

#[test]
fn a_hook_keeps_its_answers_when_older_messages_leave_the_state() {
    let older = ["m0", "m1", "m2"].map(|id| Message::human("old").with_id(id));
    let messages = older.into_iter().chain([calling(&["a"])]);
    let mut machine = machine_at(hooks(HookPoint::AfterModel, 0), messages);
    let asked = Question {
        kind: QuestionKind::Question,
        ..question()
    };
    let open = machine.hook_asked(&plan(), vec![asked]).remove(0);
    assert!(machine.resolve(&open.id, json!("yes")));
    let summary = json!({"type": "human", "content": "S"});
    let event = json!({"last_message_id": "m2", "summary_message": summary, "left_until": "m1"});
    let update = Update::field(summarization::EVENT, event);
    machine.carry_update(&plan(), summarization::NODE, update, id());
    assert_eq!(machine.state.messages.left_len(), 2);
    assert_eq!(machine.answers_to(&open.asker).len(), 1);
}

#[test]
fn a_decision_about_an_unknown_outcome_is_not_for_the_changed_call() {
    for is_answered_first in [true, false] {
        let mut machine = in_tools(&["a", "b"]);
        let unknown = Question {
            kind: QuestionKind::UnknownOutcome,
            ..question()
        };
        let open = machine.call_asked(0, vec![unknown]).remove(0);
        if is_answered_first {
            assert!(machine.resolve(&open.id, json!("again")));
        }
        machine.carry_update(&bare_plan(), START, changes_a(), id());
        if !is_answered_first {
            assert!(machine.resolve(&open.id, json!("again")));
        }
        assert_eq!(machine.take_decision("a"), None);
        assert_eq!(machine.call_status(0), Some(&CallStatus::Started));
    }
}

#[test]
fn a_write_as_a_node_keeps_the_hook_that_follows_it() {
    for (next, before) in [(0, MODEL), (1, "B.after_model")] {
        let mut machine = machine_at(hooks(HookPoint::AfterModel, next), [calling(&["a"])]);
        machine.hook_asked(&plan(), vec![question()]);
        for node in [MODEL, "B.after_model", "A.after_model"] {
            let is_kept = machine.is_kept_by(&plan(), Some(node), &Update::none());
            assert_eq!(is_kept, node == before, "hook {next} after {node}");
        }
        assert!(machine.is_kept_by(&plan(), None, &Update::none()));
    }
}

#[test]
fn a_write_of_messages_keeps_no_question_of_a_hook_but_those_about_calls() {
    let note = Update::messages([Message::human("also this")]);
    for (kind, is_kept) in [(QuestionKind::ToolApproval, true), (QuestionKind::Question, false)] {
        let mut machine = machine_at(hooks(HookPoint::AfterModel, 0), [calling(&["a"])]);
        let asked = Question { kind, ..question() };
        machine.hook_asked(&plan(), vec![asked]);
        assert_eq!(machine.is_kept_by(&plan(), None, &note), is_kept, "{kind:?}");
        assert!(machine.is_kept_by(&plan(), None, &Update::field("x", json!(1))));
    }
}

#[test]
fn a_step_that_waits_keeps_its_tasks_when_an_update_carries_it_on() {
    let mut machine = in_tools(&["a"]);
    let before = machine.head;
    let task = machine.call_task(0);
    let asked = machine.call_asked(0, vec![question()]);
    let entry = machine.carry_update(&bare_plan(), MODEL, Update::field("x", json!(1)), id());
    assert_eq!(entry.source, CheckpointSource::Update);
    assert_eq!(entry.parent, before);
    assert_eq!(machine.call_task(0), task);
    assert_eq!(entry.next_base().task(TOOLS, 0), task);
    assert_eq!(machine.open_questions().cloned().collect::<Vec<_>>(), asked);
    assert!(machine.resolve(&asked[0].id, json!("yes")));
    machine.set_call_status(0, answered("a"));
    let done = machine.tools_done(&bare_plan(), id()).expect("a step");
    assert_eq!(done.base().task(TOOLS, 0), task, "history shows the task under its id");
    assert_eq!(done.next_base().task(MODEL, 0), machine.task(MODEL));
    let aside = machine.carry_update(&bare_plan(), START, Update::none(), id());
    assert_eq!(aside.carried_from, None, "what does not wait begins anew");
    assert_eq!(aside.next_base().task(MODEL, 0), machine.task(MODEL));
}

#[test]
fn nothing_waits_where_a_step_was_carried_on_from() {
    let mut machine = in_tools(&["a", "b", "c"]);
    let child = RunId::mint();
    machine.call_asked(0, vec![question()]);
    machine.set_call_status(1, CallStatus::Delegated { child, parked: true });
    machine.set_call_status(2, answered("c"));
    assert!(machine.position.has_waited());
    assert_eq!(machine.position.delegated(), [child]);
    let mut left = Machine {
        position: machine.position.clone().released(),
        ..machine
    };
    assert!(!left.position.has_waited());
    assert_eq!(left.open_questions().count(), 0);
    assert_eq!(left.next(&bare_plan()), Step::RunCalls(vec![0, 1]));
    assert!(!left.unpark(child));
}

#[test]
fn without_input_there_is_nothing_to_run() {
    let step = Machine::default().next(&plan());
    assert!(matches!(step, Step::Fail(Failure { class, .. }) if class == "EmptyInputError"));
}

#[test]
fn a_hook_point_without_hooks_is_skipped() {
    let mut machine = Machine::default();
    machine.begin(&bare_plan(), Update::none(), [id(), id()]);
    assert_eq!(machine.next(&bare_plan()), Step::AskModel);
    machine.model_done(&bare_plan(), Message::ai("hello"), Update::none(), id());
    assert_eq!(machine.next(&bare_plan()), Step::End);
}

#[test]
fn writes_of_middleware_beside_an_answer_are_part_of_its_step() {
    let mut machine = machine_at(Phase::Model, []);
    let entry = machine.model_done(&bare_plan(), Message::ai("x"), Update::field("count", json!(1)), id());
    assert_eq!(entry.node.as_str(), MODEL);
    assert_eq!(entry.writes.len(), 1);
    assert_eq!(machine.state.fields["count"], json!(1));
}

#[test]
fn an_update_as_a_node_advances_beyond_that_node() {
    let table = [
        (START, hooks(HookPoint::BeforeAgent, 0)),
        (MODEL, hooks(HookPoint::AfterModel, 0)),
        (TOOLS, hooks(HookPoint::BeforeModel, 0)),
        ("A.before_agent", hooks(HookPoint::BeforeAgent, 1)),
        ("B.before_agent", hooks(HookPoint::BeforeModel, 0)),
        ("B.before_model", Phase::Model),
        ("A.after_model", hooks(HookPoint::AfterAgent, 0)),
        ("A.after_agent", Phase::Ended),
        ("nobody", Phase::Ended),
    ];
    for (node, expected) in table {
        let mut machine = machine_at(Phase::Model, [Message::ai("done")]);
        let head = machine.head;
        let entry = machine.apply_external(
            &plan(),
            CheckpointSource::Update,
            node,
            Update::field("x", json!(1)),
            id(),
        );
        assert_eq!(entry.parent, head);
        assert_eq!(entry.node.as_str(), node);
        assert_eq!(entry.source, CheckpointSource::Update);
        assert_eq!(
            machine.position,
            Position {
                phase: expected,
                ..Position::default()
            },
            "as {node}"
        );
        assert_eq!(machine.state.fields["x"], json!(1));
    }
}

#[test]
fn an_appended_update_keeps_the_position() {
    let mut machine = in_tools(&["a"]);
    let asked = machine.call_asked(0, vec![question()]).remove(0);
    let position = machine.position.clone();
    machine.append_update(&plan(), Update::field("x", json!(1)), id());
    assert_eq!(machine.state.fields["x"].clone(), json!(1));
    assert_eq!(&machine.position, &position);
    assert!(machine.resolve(&asked.id, json!("yes")));
}

#[test]
fn a_client_may_jump_to_the_model_or_the_tools() {
    let mut machine = machine_at(Phase::Ended, [calling(&["a"])]);
    machine.jump_to(&plan(), &TO_TOOLS);
    assert_eq!(machine.next(&plan()), Step::RunCalls(vec![0]));
    machine.jump_to(&plan(), &Destination::Model(None));
    assert_eq!(machine.next(&plan()), Step::AskModel);
    machine.jump_to(&plan(), &Destination::Hook(HookPoint::AfterModel, 0));
    assert_eq!(machine.next(&plan()), Step::RunHook(HookPoint::AfterModel, 0));
}

#[test]
fn a_jump_to_the_end_leaves_nothing_to_do() {
    let mut machine = in_tools(&["a"]);
    machine.call_asked(0, vec![question()]);
    machine.jump_to(&plan(), &Destination::End);
    assert_eq!(machine.next(&plan()), Step::End);
    assert_eq!(machine.open_questions().count(), 0);
}

#[test]
fn messages_given_for_the_model_apply_to_one_call() {
    let mut machine = machine_at(Phase::Ended, [Message::ai("done")]);
    machine.jump_to(&plan(), &Destination::Model(Some(vec![Message::human("aside")])));
    assert_eq!(machine.position.model_input.as_ref().map(Vec::len), Some(1));
    machine.model_done(&plan(), Message::ai("done again"), Update::none(), id());
    assert_eq!(machine.position.model_input, None);
}

#[test]
fn a_client_may_send_calls() {
    let mut machine = machine_at(Phase::Ended, [calling(&["a"])]);
    let sent = vec![ToolCall::new("s", "lookup", Map::new())];
    machine.jump_to(
        &plan(),
        &Destination::Tools {
            own: false,
            sent: sent.clone(),
        },
    );
    assert_eq!(machine.call(0), Some(sent[0].clone()));
    assert_eq!(machine.next(&plan()), Step::RunCalls(vec![0]));
    machine.jump_to(&plan(), &Destination::Tools { own: true, sent });
    assert_eq!(machine.next(&plan()), Step::RunCalls(vec![0, 1]));
}

#[test]
fn a_jump_drops_the_interrupts() {
    let mut machine = machine_at(hooks(HookPoint::AfterModel, 0), [calling(&["a"])]);
    machine.hook_asked(&plan(), vec![question()]);
    machine.jump_to(&plan(), &Destination::Model(None));
    machine.model_done(&plan(), Message::ai("done"), Update::none(), id());
    assert_eq!(machine.next(&plan()), Step::RunHook(HookPoint::AfterModel, 0));
}

#[test]
fn a_jump_to_running_tools_continues_them() {
    let mut machine = in_tools(&["a", "b"]);
    machine.set_call_status(0, CallStatus::Started);
    machine.set_call_status(1, answered("b"));
    machine.jump_to(&plan(), &TO_TOOLS);
    assert_eq!(machine.call_status(0), Some(&CallStatus::Started));
    assert_eq!(machine.next(&plan()), Step::RunCalls(vec![0]));
}

#[test]
fn no_two_questions_of_a_step_have_the_same_id() {
    let mut machine = machine_at(hooks(HookPoint::AfterModel, 0), [calling(&["a"])]);
    let again = Destination::Hook(HookPoint::AfterModel, 0);
    let first = machine.hook_asked(&plan(), vec![question()]).remove(0);
    assert!(machine.resolve(&first.id, json!("yes")));
    // Without a write there is no checkpoint, so the tasks are the same.
    assert_eq!(machine.hook_done(&plan(), Update::none(), None, id()), None);
    machine.jump_to(&plan(), &again);
    let second = machine.hook_asked(&plan(), vec![question()]).remove(0);
    machine.jump_to(&plan(), &again);
    let third = machine.hook_asked(&plan(), vec![question()]).remove(0);
    assert_eq!([first.task, second.task], [third.task, third.task]);
    assert_ne!(first.id, second.id);
    assert_ne!(second.id, third.id);
    assert_ne!(first.id, third.id);

    machine.model_done(&plan(), Message::ai("done"), Update::none(), id());
    assert_eq!(machine.position.questions, 0, "the next step has other tasks");
}

#[test]
fn a_step_that_is_carried_on_uses_no_id_again() {
    let mut machine = in_tools(&["a", "b"]);
    let child = RunId::mint();
    machine.set_call_status(1, CallStatus::Delegated { child, parked: true });
    let first = machine.call_asked(0, vec![question()]).remove(0);
    machine.resolve(&first.id, json!("yes"));
    machine.position.asked.clear();
    machine.carry_step(id());
    let second = machine.call_asked(0, vec![question()]).remove(0);
    assert_eq!(first.task, second.task);
    assert_ne!(first.id, second.id);
}

#[test]
fn branches_that_carry_the_same_step_on_ask_under_different_ids() {
    let mut machine = in_tools(&["a", "b"]);
    for at in [0, 1] {
        machine.call_asked(at, vec![question()]);
    }
    let mut other = machine.clone();
    let [first, second] = [(&mut machine, 0), (&mut other, 1)].map(|(branch, at)| {
        branch.carry_step(id());
        let open = branch.position.asked[at].id.clone();
        assert!(branch.resolve(&open, json!("yes")));
        branch.call_asked(0, vec![question()]).remove(0)
    });
    assert_eq!(first.task, second.task);
    assert_ne!(first.id, second.id);
}

#[test]
fn an_answer_whose_question_is_lost_has_no_effect() {
    let mut machine = in_tools(&["a", "b", "c"]);
    let asked: Vec<Interrupt> = (0..3)
        .map(|at| machine.call_asked(at, vec![question()]).remove(0))
        .collect();
    for answered in &asked[..2] {
        assert!(machine.resolve(&answered.id, json!("yes")));
    }
    for at in [0, 2] {
        machine.position.asked[at] = machine.position.asked[at].without_question();
    }
    assert_eq!(machine.position.remove_lost_answers(), [asked[0].id.clone()]);
    let left: Vec<&InterruptId> = machine.position.asked.iter().map(|asked| &asked.id).collect();
    assert_eq!(left, [&asked[1].id, &asked[2].id]);
    // The answer may have been that the call must not be repeated.
    assert_eq!(machine.call_status(0), Some(&CallStatus::Started));
    assert_eq!(machine.call_status(1), Some(&CallStatus::Ready));
    assert_eq!(
        machine.call_status(2),
        Some(&CallStatus::Asking),
        "nobody can answer it"
    );
}
