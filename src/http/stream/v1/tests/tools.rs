//! The mode `tools`.

use super::*;
use crate::domain::visibility::Visibility;

#[test]
fn each_call_starts_and_ends_with_its_result() {
    let mut play = Play::new();
    let mut main = play.main();
    play.start(&main, false);
    play.input(&mut main, "hi");
    let calls = [
        call("c1", "lookup", json!({"q": "x"})),
        call("c2", "search", json!({"q": "y"})),
    ];
    play.say(&mut main, "m1", "", &calls);
    play.answer(&mut main, 1, "found y", true);
    play.answer(&mut main, 0, "found x", false);
    play.tools(&mut main);
    play.say(&mut main, "m2", "done", &[]);
    play.end(&main);
    let frames = play.all(&[StreamMode::Tools], false);
    let told: Vec<Value> = frames
        .iter()
        .filter(|frame| frame.event.word == "tools")
        .map(data)
        .collect();
    let start = |id: &str, name: &str, input: Value| json!({"event": "on_tool_start", "toolCallId": id, "name": name, "input": input});
    let starts = [
        start("c1", "lookup", json!({"q": "x"})),
        start("c2", "search", json!({"q": "y"})),
    ];
    assert_eq!(told[..2], starts);
    let ends: Vec<Value> = told[2..]
        .iter()
        .map(|end| json!([end["event"], end["toolCallId"], end["name"], end["output"]["content"]]))
        .collect();
    let expected = [
        json!(["on_tool_end", "c2", "search", "found y"]),
        json!(["on_tool_end", "c1", "lookup", "found x"]),
    ];
    assert_eq!(ends, expected);
}

/// Has the main agent delegate. Returns the subagent, which has not begun.
fn delegates(play: &mut Play, main: &mut Agent) -> Agent {
    play.start(main, false);
    play.input(main, "hi");
    let order = call("c1", "task", json!({"description": "look"}));
    play.say(main, "m1", "", &[order]);
    play.child(main, 0, "c1")
}

#[test]
fn the_calls_of_subagents_are_sent_with_the_events_of_subagents_only() {
    let mut play = Play::new();
    let mut main = play.main();
    let mut child = delegates(&mut play, &mut main);
    play.start(&child, false);
    play.input(&mut child, "look");
    play.say(&mut child, "s1", "", &[call("c2", "lookup", json!({}))]);
    play.answer(&mut child, 0, "it is x", false);
    play.tools(&mut child);
    play.say(&mut child, "s2", "it is x", &[]);
    play.end(&child);
    play.answer(&mut main, 0, "it is x", false);
    play.tools(&mut main);
    play.end(&main);
    for subgraphs in [false, true] {
        let frames = play.all(&[StreamMode::Tools], subgraphs);
        let events = frames.iter().filter(|frame| frame.event.word == "tools");
        let told: Vec<Value> = events
            .map(|frame| {
                let tool = data(frame);
                json!([tool["event"], tool["toolCallId"], frame.event.namespace.is_some()])
            })
            .collect();
        let own = [
            json!(["on_tool_start", "c1", false]),
            json!(["on_tool_end", "c1", false]),
        ];
        let below = [json!(["on_tool_start", "c2", true]), json!(["on_tool_end", "c2", true])];
        let [begins, ends] = own;
        let expected = match subgraphs {
            true => [vec![begins], below.to_vec(), vec![ends]].concat(),
            false => vec![begins, ends],
        };
        assert_eq!(told, expected);
    }
}

/// Returns the data of the frames about the tools of a subagent with this visibility, which makes one call.
fn frames_of_subagent(visibility: Visibility) -> Vec<Value> {
    let mut play = Play::new();
    let mut main = play.main();
    let mut child = delegates(&mut play, &mut main);
    Arc::make_mut(&mut child.origin).visibility = visibility;
    play.start(&child, false);
    play.input(&mut child, "look");
    play.say(&mut child, "s1", "musing", &[call("c2", "lookup", json!({"q": "x"}))]);
    play.answer(&mut child, 0, "found x", false);
    play.tools(&mut child);
    play.say(&mut child, "s2", "musing", &[]);
    play.end(&child);
    let frames = play.all(&[StreamMode::Tools], true);
    let of_child = frames.iter().filter(|frame| frame.event.namespace.is_some());
    of_child.map(data).collect()
}

/// Returns the names of the events among these data.
fn events_of(told: &[Value]) -> Vec<&str> {
    told.iter().filter_map(|tool| tool["event"].as_str()).collect()
}

#[test]
fn the_calls_of_a_subagent_that_shows_its_tools_are_sent() {
    let told = frames_of_subagent(Visibility::ToolsOnly);
    assert_eq!(events_of(&told), ["on_tool_start", "on_tool_end"]);
    let of_event = |event: &str| told.iter().find(|tool| tool["event"] == event).expect("its frame");
    assert_eq!(of_event("on_tool_start")["input"], json!({"q": "x"}));
    assert_eq!(of_event("on_tool_end")["output"]["content"], "found x");
    assert!(!json!(told).to_string().contains("musing"), "{told:#?}");
}

#[test]
fn no_call_of_a_subagent_that_shows_its_status_is_sent() {
    let told = frames_of_subagent(Visibility::Status);
    assert_eq!(events_of(&told), Vec::<&str>::new());
    assert!(!json!(told).to_string().contains("musing"), "{told:#?}");
}

#[test]
fn no_state_is_read_for_events_that_are_not_sent() {
    let mut play = Play::new();
    let mut main = play.main();
    let mut child = delegates(&mut play, &mut main);
    Arc::make_mut(&mut child.origin).visibility = Visibility::ToolsOnly;
    play.start(&child, false);
    play.input(&mut child, "look");
    let mut presenter = play.presenter(&[StreamMode::Tools], true);
    let mut unsent = 0;
    for event in &play.events {
        if event.origin.visibility.visible_part(event).is_none() {
            assert_eq!(presenter.needs(event).state, None);
            unsent += 1;
        }
        play.present(&mut presenter, event);
    }
    assert_eq!(unsent, 2);
}
