//! The modes `values` and `updates`.

use super::*;

const BOTH: [StreamMode; 2] = [StreamMode::Values, StreamMode::Updates];

fn plain() -> Play {
    let mut play = Play::new();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    play.say(&mut main, "m1", "hello you", &[]);
    play.end(&main);
    play
}

fn parallel() -> Play {
    let mut play = Play::new();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    let calls = [
        call("c1", "lookup", json!({"query": "a"})),
        call("c2", "lookup", json!({"query": "b"})),
    ];
    play.say(&mut main, "m1", "", &calls);
    play.answer(&mut main, 1, "second", true);
    play.answer(&mut main, 0, "first", false);
    play.tools(&mut main);
    play.say(&mut main, "m2", "done", &[]);
    play.end(&main);
    play
}

fn delegation() -> Play {
    let mut play = Play::new();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    play.say(
        &mut main,
        "m1",
        "",
        &[call("c1", "task", json!({"description": "look"}))],
    );
    let mut child = play.child(&main, 0, "c1");
    play.start(&child, false);
    play.input(&mut child, "look");
    play.say(&mut child, "s1", "found it", &[]);
    play.end(&child);
    play.answer(&mut main, 0, "found it", false);
    play.tools(&mut main);
    play.say(&mut main, "m2", "done", &[]);
    play.end(&main);
    play
}

#[test]
fn an_answer_shows_the_input_then_the_writes_then_the_state() {
    let frames = plain().all(&BOTH, false);
    assert_eq!(lines(&frames), ["metadata", "values 1", "updates model", "values 2"]);
    let update = data(&frames[2]);
    assert_eq!(update["model"]["messages"][0]["name"], "main-agent");
    assert_eq!(data(&frames[1])["files"], json!({}));
}

#[test]
fn each_of_two_parallel_calls_has_its_own_update_and_both_have_one_state() {
    let frames = parallel().all(&BOTH, false);
    let expected = [
        "metadata",
        "values 1",
        "updates model",
        "values 2",
        "updates tools",
        "updates tools",
        "values 4",
        "updates model",
        "values 5",
    ];
    assert_eq!(lines(&frames), expected);
    let answered = |at: usize| data(&frames[at])["tools"]["messages"][0]["tool_call_id"].clone();
    assert_eq!([answered(4), answered(5)], ["c2", "c1"]);
    assert_eq!(
        data(&frames[6])["messages"][2]["tool_call_id"],
        "c1",
        "the state is in the order of the calls"
    );
}

#[test]
fn a_subagent_is_shown_under_its_namespace_when_asked_for() {
    let play = delegation();
    let expected = [
        "metadata",
        "values 1",
        "updates model",
        "values 2",
        "values@1 1",
        "updates@1 model",
        "values@1 2",
        "updates tools",
        "values 3",
        "updates model",
        "values 4",
    ];
    assert_eq!(lines(&play.all(&BOTH, true)), expected);
    let without: Vec<_> = expected.into_iter().filter(|line| !line.contains('@')).collect();
    assert_eq!(lines(&play.all(&BOTH, false)), without);
}

/// A run in which a subagent raises an interrupt, and the run that resumes it.
fn asking_child() -> (Play, Play) {
    let mut play = Play::asking();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    play.say(
        &mut main,
        "m1",
        "",
        &[call("c1", "task", json!({"description": "mail"}))],
    );
    play.hook(&mut main, Update::none());
    let mut child = play.child(&main, 0, "c1");
    play.start(&child, false);
    play.input(&mut child, "mail");
    play.say(
        &mut child,
        "s1",
        "",
        &[call("c2", "send_email", json!({"to": "a@b.c"}))],
    );
    let asked = play.ask(&mut child);
    play.end(&child);
    play.repeat(&main, &asked);
    play.end(&main);

    let mut later = Play {
        states: play.states.clone(),
        ..Play::asking()
    };
    later.start(&main, true);
    later.start(&child, true);
    let Some(again) = child.machine.state.last_ai().cloned() else {
        panic!("the child has answered")
    };
    later.hook(
        &mut child,
        Update {
            messages: vec![again],
            ..Update::none()
        },
    );
    later.answer(&mut child, 0, "sent", false);
    later.tools(&mut child);
    later.say(&mut child, "s2", "mailed", &[]);
    later.hook(&mut child, Update::none());
    later.end(&child);
    later.answer(&mut main, 0, "mailed", false);
    later.tools(&mut main);
    later.end(&main);
    (play, later)
}

#[test]
fn an_interrupt_of_a_subagent_is_repeated_by_its_caller() {
    let (play, _) = asking_child();
    let frames = play.all(&BOTH, true);
    let expected = [
        "values@1 2",
        "updates@1 __interrupt__",
        "values@1 2 asks",
        "updates __interrupt__",
        "values 2 asks",
    ];
    assert_eq!(lines(&frames)[6..], expected);
    let inner = data(&frames[7])["__interrupt__"][0].clone();
    let outer = data(&frames[9])["__interrupt__"][0].clone();
    assert_eq!(inner, outer, "the same question");
    assert_eq!(outer["response_schema"], Value::Null);
    assert_eq!(outer["agent_path"], json!(["main-agent", "researcher"]));
    let outside = play.all(&BOTH, false);
    assert_eq!(
        data(&outside[4])["__interrupt__"][0],
        outer,
        "who asks is told even if subagents are not shown"
    );
}

#[test]
fn a_resumed_run_first_shows_the_states_of_all_resumed_agents() {
    let (_, later) = asking_child();
    let expected = [
        "metadata",
        "values 2",
        "values@1 2",
        "updates@1 HumanInTheLoopMiddleware.after_model",
        "values@1 2",
        "updates@1 tools",
        "values@1 3",
        "updates@1 model",
        "values@1 4",
        "updates tools",
        "values 3",
    ];
    assert_eq!(lines(&later.all(&BOTH, true)), expected);
}

#[test]
fn a_reader_that_joins_in_the_middle_sees_the_same_states_from_there_on() {
    let play = delegation();
    for from in 1..play.events.len() {
        let all = play.all(&[StreamMode::Values], true);
        let late = play.read(&play.events[from..], &[StreamMode::Values], true);
        assert!(!late.is_empty() || from + 1 >= play.events.len(), "from {from}");
        assert_eq!(late, all[all.len() - late.len()..], "from {from}");
    }
}

#[test]
fn a_result_of_an_earlier_run_is_marked_as_cached() {
    let mut play = parallel();
    let at = play
        .events
        .iter()
        .position(|event| matches!(event.body, EventBody::Fact(Fact::Answered { .. })));
    let Some(at) = at else {
        panic!("a call was answered alone")
    };
    let EventBody::Fact(Fact::Answered { head, .. }) = play.events[at].body.clone() else {
        return;
    };
    let mut later = play.events.split_off(at + 1);
    let started = Fact::Started {
        base: Some(head),
        carried_from: None,
        attempt: 1,
        resumed: true,
        calls: vec![],
    };
    later.insert(
        0,
        Event {
            body: EventBody::Fact(started),
            ..play.events[0].clone()
        },
    );
    let frames = play.read(&later, &[StreamMode::Updates, StreamMode::MessagesTuple], false);
    assert_eq!(
        lines(&frames)[..4],
        [
            "metadata",
            "messages tool: first",
            "updates tools",
            "updates tools __metadata__"
        ]
    );
}

#[test]
fn private_fields_are_shown_nowhere() {
    let mut play = Play::asking();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    play.say(&mut main, "m1", "hello", &[]);
    play.hook(&mut main, Update::field("_secret", json!("x")));
    play.end(&main);
    let frames = play.all(&BOTH, false);
    assert_eq!(
        lines(&frames)[3..],
        ["values 2".to_owned(), format!("updates {HITL}")],
        "no state: nothing changed"
    );
    assert_eq!(data(&frames[4])[HITL], Value::Null);
}

#[test]
fn a_breakpoint_is_an_empty_interrupt_and_a_failure_comes_last() {
    let mut play = Play::new();
    let main = play.main();
    play.start(&main, false);
    play.fact(&main, Fact::Paused);
    let error = Some(Failure::new("ValueError", "because"));
    play.fact(
        &main,
        Fact::Ended {
            status: RunStatus::Error,
            error,
            waits: false,
            used: None,
        },
    );
    let frames = play.all(&BOTH, false);
    assert_eq!(
        lines(&frames),
        ["metadata", "updates __interrupt__", "error ValueError"]
    );
    assert_eq!(data(&frames[2]), json!({"error": "ValueError", "message": "because"}));
}

#[test]
fn the_stream_of_a_cancelled_run_ends_without_an_error() {
    let mut play = Play::new();
    let main = play.main();
    play.start(&main, false);
    let cancelled = Fact::over(RunStatus::Interrupted, Some(Failure::cancelled()));
    play.fact(&main, cancelled);
    assert_eq!(lines(&play.all(&BOTH, false)), ["metadata"]);
}
