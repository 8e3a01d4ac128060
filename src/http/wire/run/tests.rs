use super::*;
use crate::domain::account::RunQueue;
use crate::domain::goto::Goto;
use crate::domain::id::AssistantId;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::{Command, Lineage};
use crate::domain::time::Timestamp;

fn read(body: Value) -> Result<CheckedRun, String> {
    let body: RunCreate = serde_json::from_value(body).expect("the shape is right");
    body.check(RunScope::Stateless, &Arc::new(Identity::unauthenticated()))
        .map_err(|error| error.message().to_owned())
}

fn good(body: Value) -> NewRun {
    read(body).expect("the body is good").new_run
}

#[test]
fn an_assistant_is_a_uuid_or_a_graph() {
    let id = AssistantId::of_graph("agent");
    assert_eq!(good(json!({"assistant_id": id})).assistant, AssistantRef::Id(id));
    assert_eq!(
        good(json!({"assistant_id": "agent"})).assistant,
        AssistantRef::Graph("agent".into())
    );
    assert_eq!(read(json!({})).err().as_deref(), Some("assistant_id: is missing"));
}

#[test]
fn a_stream_mode_is_a_word_or_a_list() {
    assert_eq!(good(json!({"assistant_id": "a"})).request.stream_mode, ["values"]);
    assert_eq!(
        good(json!({"assistant_id": "a", "stream_mode": "updates"}))
            .request
            .stream_mode,
        ["updates"]
    );
    let error = read(json!({"assistant_id": "a", "stream_mode": ["values", "odd"]}))
        .err()
        .unwrap_or_default();
    assert!(
        error.starts_with("stream_mode[1]: is \"odd\", but allowed are: values, "),
        "{error}"
    );
    assert!(read(json!({"assistant_id": "a", "stream_mode": ["lifecycle"]})).is_err());
    assert!(read(json!({"assistant_id": "a", "stream_mode": ["values", "tools"]})).is_ok());
}

#[test]
fn words_are_checked() {
    for field in [
        "multitask_strategy",
        "if_not_exists",
        "on_disconnect",
        "on_completion",
        "durability",
    ] {
        let error = read(json!({"assistant_id": "a", field: "odd"}))
            .err()
            .unwrap_or_default();
        assert!(
            error.starts_with(&format!("{field}: is \"odd\", but allowed are: ")),
            "{error}"
        );
    }
}

#[test]
fn the_words_of_the_javascript_sdk_for_the_completion_have_no_effect_on_a_thread() {
    let thread = ThreadId::mint();
    for word in ["complete", "continue", "delete", "keep"] {
        let body = json!({"assistant_id": "a", "on_completion": word});
        let on_thread: RunCreate = serde_json::from_value(body.clone()).expect("the shape is right");
        let checked = on_thread.check(RunScope::Thread(thread), &Arc::new(Identity::unauthenticated()));
        let target = checked.map(|checked| checked.new_run.target).ok();
        assert_eq!(target, Some(Target::Thread(thread)), "{word}");
        assert_eq!(read(body).is_ok(), ["delete", "keep"].contains(&word), "{word}");
    }
    let odd: RunCreate = serde_json::from_value(json!({"assistant_id": "a", "on_completion": "odd"})).expect("JSON");
    let checked = odd.check(RunScope::Thread(thread), &Arc::new(Identity::unauthenticated()));
    assert!(checked.is_err_and(|error| error.message().starts_with("on_completion: is \"odd\"")));
}

#[test]
fn configurable_and_context_mirror_each_other() {
    let new_run = good(json!({"assistant_id": "a", "context": {"user": 7}}));
    assert_eq!(new_run.request.config["configurable"], json!({"user": 7}));
    let new_run = good(json!({"assistant_id": "a", "config": {"configurable": {"user": 7}}}));
    assert_eq!(Value::from(new_run.request.context), json!({"user": 7}));
    let both = json!({"assistant_id": "a", "config": {"configurable": {"a": 1}}, "context": {"b": 2}});
    assert!(read(both).is_err_and(|error| error.starts_with("Cannot specify both")));
}

#[test]
fn an_answer_is_kept_separate_until_it_is_checked() {
    let new_run = good(json!({"assistant_id": "a", "input": {}, "command": {"resume": {"decisions": []}}}));
    assert_eq!(new_run.resume, Some(Resolution::Answered(json!({"decisions": []}))));
    assert_eq!(new_run.request.input, None);
    assert_eq!(new_run.request.command, Some(Command::default()));
}

#[test]
fn input_beside_an_update_is_refused_unless_it_is_empty() {
    let beside = |input: Value| {
        let update = json!({"messages": []});
        read(json!({"assistant_id": "a", "input": input, "command": {"update": update}})).err()
    };
    let refused = beside(json!({"messages": ["hi"]})).unwrap_or_default();
    assert!(
        refused.starts_with("input: cannot be given together with `command.update`"),
        "{refused}"
    );
    assert_eq!(beside(json!({})), None);
    assert_eq!(beside(Value::Null), None);
}

#[test]
fn goto_names_one_node_or_several() {
    let goto = |goto: Value| read(json!({"assistant_id": "a", "command": {"goto": goto}}));
    let nodes = |value| goto(value).map(|run| run.new_run.request.command.unwrap_or_default().goto);
    let node = |name: &str| Goto::Node(name.to_owned());
    assert_eq!(nodes(json!("model")), Ok(vec![node("model")]));
    assert_eq!(
        nodes(json!(["model", {"node": "tools"}])),
        Ok(vec![node("model"), node("tools")])
    );
    let send = Goto::Send {
        node: "model".to_owned(),
        input: json!({"messages": []}),
    };
    assert_eq!(
        nodes(json!({"node": "model", "input": {"messages": []}})),
        Ok(vec![send])
    );
    assert!(nodes(json!(vec!["model"; 101])).is_err_and(|error| error.starts_with("command.goto: ")));
    assert!(nodes(json!([7])).is_err_and(|error| error.starts_with("command.goto[0]: ")));
}

#[test]
fn metadata_of_the_run_and_of_its_config_are_merged() {
    let new_run =
        good(json!({"assistant_id": "a", "config": {"metadata": {"cm": 1, "x": 1}}, "metadata": {"rm": 2, "x": 2}}));
    assert_eq!(Value::from(new_run.metadata), json!({"cm": 1, "x": 2, "rm": 2}));
}

#[test]
fn an_empty_object_of_answers_continues_without_any() {
    let new_run = good(json!({"assistant_id": "a", "input": {"messages": []}, "command": {"resume": {}}}));
    assert_eq!(new_run.resume, None);
    assert_eq!(new_run.request.command, None);
    assert_eq!(new_run.request.input, None);
    let update = json!({"files": {}});
    let new_run = good(json!({"assistant_id": "a", "command": {"resume": {}, "update": update}}));
    assert_eq!(new_run.resume, None);
    assert_eq!(new_run.request.command.and_then(|command| command.update), Some(update));
}

#[test]
fn a_command_that_says_nothing_leaves_the_input() {
    let input = json!({"messages": ["hi"]});
    for command in [
        json!({}),
        json!({"resume": null, "update": null, "goto": null}),
        json!({"goto": []}),
    ] {
        let new_run = good(json!({"assistant_id": "a", "input": input, "command": command}));
        assert_eq!(new_run.request.input.as_ref(), Some(&input), "{command}");
        assert_eq!(new_run.request.command, None, "{command}");
        assert_eq!(new_run.resume, None, "{command}");
    }
    let new_run = good(json!({"assistant_id": "a", "command": {"resume": {}, "goto": []}}));
    assert_eq!(
        new_run.request.command, None,
        "no answers and no node: the run only continues"
    );
}

#[test]
fn the_size_of_tags_is_limited() {
    let tagged = |tag: &str| read(json!({"assistant_id": "a", "config": {"tags": ["t", tag]}}));
    assert!(tagged("short").is_ok());
    let error = tagged(&"x".repeat(MAX_TAG_BYTES)).err().unwrap_or_default();
    assert!(error.starts_with("config.tags: are longer than "), "{error}");
}

#[test]
fn numbers_are_checked() {
    assert!(read(json!({"assistant_id": "a", "after_seconds": -1.0})).is_err());
    assert!(read(json!({"assistant_id": "a", "config": {"recursion_limit": 0}})).is_err());
    assert!(read(json!({"assistant_id": "a", "config": {"recursion_limit": 25}})).is_ok());
    assert_eq!(
        read(json!({"assistant_id": "a", "checkpoint_id": "nope"}))
            .err()
            .as_deref(),
        Some("Invalid checkpoint ID")
    );
}

#[test]
fn the_checkpoint_of_the_request_precedes_that_of_its_config() {
    let ids = [1, 2, 3].map(Uuid::from_u128);
    let started_at = |more: Value| {
        let mut body =
            json!({"assistant_id": "a", "config": {"configurable": {"checkpoint_id": ids[2], "tone": "stern"}}});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let request = good(body).request;
        assert_eq!(request.config["configurable"], json!({"tone": "stern"}));
        assert_eq!(Value::from(request.context), json!({"tone": "stern"}));
        request.checkpoint.map(|id| id.0)
    };
    assert_eq!(started_at(json!({})), Some(ids[2]));
    assert_eq!(started_at(json!({"checkpoint_id": ids[1]})), Some(ids[1]));
    let object = json!({"checkpoint_id": ids[1], "checkpoint": {"checkpoint_id": ids[0], "checkpoint_ns": ""}});
    assert_eq!(started_at(object), Some(ids[0]));
    assert_eq!(started_at(json!({"checkpoint": {"checkpoint_ns": ""}})), Some(ids[2]));
}

#[test]
fn a_stateless_run_is_temporary_by_default() {
    assert!(good(json!({"assistant_id": "a"})).request.temporary);
    let kept = good(json!({"assistant_id": "a", "on_completion": "keep"}));
    assert!(!kept.request.temporary);
    assert_eq!(kept.target, Target::Stateless { keep: true });
}

#[test]
fn a_run_shows_what_the_sdks_read() {
    let id = RunId::mint();
    let request = good(json!({"assistant_id": "a", "input": {"messages": []}, "interrupt_before": "*"})).request;
    let run = Run {
        id,
        thread: ThreadId::mint(),
        assistant: AssistantId::of_graph("a"),
        lineage: Lineage::root(id, "a"),
        status: RunStatus::Pending,
        request,
        metadata: Object::from_iter([("graph_id".to_owned(), json!("a"))]),
        error: None,
        attempt: 0,
        created_at: Timestamp(0),
        updated_at: Timestamp(0),
        due_at: Timestamp(0),
        queue: RunQueue::default(),
    };
    let view = super::super::json(&RunView::from(run));
    assert_eq!(
        view.as_object()
            .map(|o| o.keys().map(String::as_str).collect::<Vec<_>>()),
        Some(COLUMNS.to_vec())
    );
    assert_eq!(view["status"], "pending");
    assert_eq!(view["kwargs"]["interrupt_before"], "*");
    assert_eq!(view["kwargs"]["interrupt_after"], Value::Null);
    assert_eq!(view["kwargs"]["config"]["configurable"]["graph_id"], "a");
    assert_eq!(view["kwargs"]["durability"], "async");
    assert_eq!(view["kwargs"]["temporary"], true);
}
