//! The modes `tasks`, `checkpoints` and `debug`.

use super::*;
use crate::domain::machine::{Destination, START};

fn delegation() -> Play {
    let mut play = Play::asking();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    play.say(
        &mut main,
        "m1",
        "",
        &[call("c1", "task", json!({"description": "look"}))],
    );
    play.hook(&mut main, Update::none());
    let mut child = play.child(&main, 0, "c1");
    play.start(&child, false);
    play.input(&mut child, "look");
    play.say(&mut child, "s1", "", &[call("c2", "lookup", json!({}))]);
    let asked = play.ask(&mut child);
    play.end(&child);
    play.repeat(&main, &asked);
    play.end(&main);
    play
}

#[test]
fn a_task_starts_before_its_events_and_ends_before_the_state() {
    let (play, _) = Play::answered("hello", &[]);
    let frames = play.all(
        &[
            StreamMode::Values,
            StreamMode::Updates,
            StreamMode::Tasks,
            StreamMode::Checkpoints,
        ],
        false,
    );
    let expected = [
        "metadata",
        "checkpoints -1 next [__start__]",
        "values 1",
        "checkpoints 0 next [model]",
        "tasks model begins",
        "updates model",
        "tasks model ends",
        "values 2",
        "checkpoints 1 next []",
    ];
    assert_eq!(lines(&frames), expected);
    assert_eq!(data(&frames[4])["id"], data(&frames[6])["id"]);
    assert_eq!(data(&frames[4])["id"], data(&frames[3])["tasks"][0]["id"]);
}

#[test]
fn the_task_of_a_call_starts_before_its_subagent_and_contains_the_call() {
    let frames = delegation().all(&[StreamMode::Tasks], true);
    let expected = [
        "metadata",
        "tasks model begins",
        "tasks model ends",
        "tasks tools begins",
        "tasks@1 model begins",
        "tasks@1 model ends",
        "tasks@1 HumanInTheLoopMiddleware.after_model begins",
        "tasks@1 HumanInTheLoopMiddleware.after_model ends asking",
        "tasks tools ends asking",
    ];
    assert_eq!(lines(&frames), expected);
    let begun = data(&frames[3]);
    assert_eq!(begun["input"][0]["id"], "c1");
    let namespace = format!("tools:{}", begun["id"].as_str().unwrap_or_default());
    assert_eq!(frames[4].event.namespace.as_deref(), Some(namespace.as_str()));
    assert_eq!(data(&frames[8])["id"], begun["id"]);
}

#[test]
fn a_checkpoint_of_a_subagent_names_those_of_its_callers() {
    let frames = delegation().all(&[StreamMode::Checkpoints, StreamMode::Debug], true);
    let of = |word: &str, depth: bool| {
        let found = frames
            .iter()
            .filter(|frame| frame.event.word == word && frame.event.namespace.is_some() == depth);
        found.map(data).collect::<Vec<_>>()
    };
    let outer = of("checkpoints", false);
    let inner = of("checkpoints", true);
    let caller = &outer[2]["config"]["configurable"]["checkpoint_id"];
    assert_eq!(&inner[1]["metadata"]["parents"][""], caller);
    assert_eq!(&inner[1]["config"]["configurable"]["checkpoint_map"][""], caller);
    assert_eq!(
        inner[1]["parent_config"]["configurable"]["checkpoint_id"],
        inner[0]["config"]["configurable"]["checkpoint_id"]
    );
    let debug = of("debug", true);
    assert_eq!(debug[1]["payload"]["checkpoint"]["checkpoint_map"][""], *caller);
    assert_eq!(debug[1]["type"], "checkpoint");
}

#[test]
fn a_resumed_agent_shows_its_checkpoint_and_interrupts() {
    let mut play = Play::asking();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    play.say(&mut main, "m1", "", &[call("c1", "send_email", json!({}))]);
    let asked = play.ask(&mut main);
    play.end(&main);
    let before = play.events.len();
    play.start(&main, true);
    play.hook(&mut main, Update::field("seen", json!(1)));
    play.end(&main);
    let frames = play.read(
        &play.events[before..],
        &[StreamMode::Tasks, StreamMode::Checkpoints],
        false,
    );
    let expected = [
        "metadata".to_owned(),
        format!("checkpoints 1 next [{HITL}]"),
        format!("tasks {HITL} begins"),
        format!("tasks {HITL} ends"),
        "checkpoints 2 next [tools]".to_owned(),
    ];
    assert_eq!(lines(&frames), expected);
    let checkpoint = data(&frames[1]);
    assert_eq!(checkpoint["tasks"][0]["interrupts"][0]["id"], json!(asked.id));
    assert_eq!(checkpoint["metadata"]["source"], "loop");
    assert!(checkpoint["metadata"]["run_id"].is_string() && data(&frames[4])["metadata"]["run_id"].is_null());
}

/// A run that goes on with a step after an update has put the call `c2` in the place of `c1`. Returns also the number of the
/// events of the run before.
fn changed_step() -> (Play, Agent, usize) {
    let (mut play, mut main) = Play::answered("", &[call("c1", "lookup", json!({}))]);
    let before = play.events.len();
    play.start(&main, true);
    let changed = message("main-agent", "m1", "", &[call("c2", "lookup", json!({}))]);
    let update = Update::messages([changed]);
    let entry = main
        .machine
        .carry_update(&main.plan, START, update, CheckpointId::mint());
    play.entry(&main, entry);
    (play, main, before)
}

/// The records of tool calls in a mode.
fn tasks_of_calls(play: &Play, before: usize, mode: StreamMode) -> Vec<Value> {
    let frames = play.read(&play.events[before..], &[mode], false);
    let records = frames.iter().map(|frame| match mode == StreamMode::Debug {
        true => data(frame)["payload"].clone(),
        false => data(frame),
    });
    records.filter(|record| record["name"] == "tools").collect()
}

#[test]
fn a_call_that_an_update_brings_into_a_step_begins_and_ends_as_one_task() {
    let (mut play, mut main, before) = changed_step();
    let calling = Fact::Calling {
        head: main.machine.head,
        carried_from: main.machine.position.carried_from,
        calls: vec![(1, "c2".to_owned())],
    };
    play.fact(&main, calling);
    main.machine.set_call_status(0, CallStatus::Answered(Box::default()));
    play.answer(&mut main, 1, "found", false);
    play.tools(&mut main);
    for mode in [StreamMode::Tasks, StreamMode::Debug] {
        let tasks = tasks_of_calls(&play, before, mode);
        let begun = tasks.iter().find(|task| task["input"][0]["id"] == "c2");
        let ended = tasks
            .iter()
            .find(|task| task["result"]["messages"][0]["tool_call_id"] == "c2");
        assert_eq!(begun.expect("a start")["id"], ended.expect("an end")["id"]);
    }
}

#[test]
fn a_call_that_an_update_brings_into_a_step_begins_as_the_task_that_asks() {
    let (mut play, mut main, before) = changed_step();
    let asked = main.machine.call_asked(1, vec![Question::default()]).remove(0);
    play.repeat(&main, &asked);
    let tasks = tasks_of_calls(&play, before, StreamMode::Tasks);
    let begun = tasks.iter().find(|task| task["input"][0]["id"] == "c2");
    assert_eq!(begun.expect("a start")["id"], json!(asked.task));
    let asking = tasks.iter().find(|task| task["interrupts"][0]["id"] == json!(asked.id));
    assert_eq!(asking.expect("a question")["id"], json!(asked.task));
}

#[test]
fn calls_that_a_client_sends_begin_and_end_as_one_task_each() {
    let (mut play, mut main) = Play::answered("", &[call("c1", "lookup", json!({}))]);
    let before = play.events.len();
    let sent = vec![call("s1", "lookup", json!({})), call("s2", "lookup", json!({}))];
    main.machine
        .jump_to(&main.plan, &Destination::Tools { own: false, sent });
    play.jumps = true;
    play.start(&main, false);
    let calling = Fact::Calling {
        head: main.machine.head,
        carried_from: None,
        calls: vec![(0, "s1".to_owned()), (1, "s2".to_owned())],
    };
    play.fact(&main, calling);
    play.answer(&mut main, 0, "found", true);
    play.answer(&mut main, 1, "found", false);
    play.tools(&mut main);
    play.say(&mut main, "m2", "", &[call("c2", "lookup", json!({}))]);
    play.answer(&mut main, 0, "found", false);
    play.tools(&mut main);
    for mode in [StreamMode::Tasks, StreamMode::Debug] {
        let tasks = tasks_of_calls(&play, before, mode);
        let begun: Vec<_> = tasks.iter().filter(|task| task["input"].is_array()).collect();
        let ended: Vec<_> = tasks.iter().filter(|task| task["result"].is_object()).collect();
        assert_eq!(begun.len(), 3, "{mode:?}: {tasks:#?}");
        assert_eq!(ended.len(), 3, "{mode:?}: {tasks:#?}");
        for (begin, end) in begun.iter().zip(&ended) {
            assert_eq!(begin["id"], end["id"]);
            assert_eq!(begin["input"][0]["id"], end["result"]["messages"][0]["tool_call_id"]);
        }
    }
}

#[test]
fn a_jump_to_a_node_shows_the_start_of_its_task_and_no_task_of_a_run_that_fails_before() {
    let (mut play, mut main) = Play::answered("hello", &[]);
    let before = play.events.len();
    play.jumps = true;
    main.machine.jump_to(&main.plan, &Destination::Model(None));
    play.start(&main, false);
    play.say(&mut main, "m2", "again", &[]);
    let frames = play.read(&play.events[before..], &[StreamMode::Tasks], false);
    assert_eq!(lines(&frames), ["metadata", "tasks model begins", "tasks model ends"]);
    let before = play.events.len();
    play.start(&main, false);
    let ended = Fact::Ended {
        status: RunStatus::Error,
        error: Some(Failure::new("AgentNotFoundError", "gone")),
        waits: false,
        used: None,
    };
    play.fact(&main, ended);
    let frames = play.read(&play.events[before..], &[StreamMode::Tasks], false);
    assert_eq!(lines(&frames), ["metadata", "error AgentNotFoundError"]);
}
