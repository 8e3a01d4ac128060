//! The todo list of an agent.

use serde_json::{Value, json};

use crate::support::{TestServer, call, on_both_engines, script};

fn todos(id: &str, what: &str, status: &str) -> Value {
    call(
        id,
        "write_todos",
        json!({"todos": [{"content": what, "status": status}]}),
    )
}

on_both_engines! {
    the_list_is_replaced_as_a_whole_and_shown_with_the_thread,
    two_lists_in_one_message_are_both_refused,
    a_status_that_does_not_exist_is_refused,
    only_agents_with_todos_have_the_tool,
}

async fn the_list_is_replaced_as_a_whole_and_shown_with_the_thread(server: TestServer) {
    let alice = server.human("planner").await;
    alice
        .says(
            script()
                .calls(todos("d1", "plan", "in_progress"))
                .calls(todos("d2", "plan", "completed"))
                .says("done"),
        )
        .await;
    let said = [
        "human: …",
        "ai calls write_todos",
        "write_todos: The todo list is now [{'content': 'plan', 'status': 'in_progress'}]",
        "ai calls write_todos",
        "write_todos: The todo list is now [{'content': 'plan', 'status': 'completed'}]",
        "ai: done",
    ];
    assert_eq!(alice.transcript().await, said);
    assert_eq!(
        alice.state().await["values"]["todos"],
        json!([{"content": "plan", "status": "completed"}])
    );
}

async fn two_lists_in_one_message_are_both_refused(server: TestServer) {
    let alice = server.human("planner").await;
    alice
        .says(
            script()
                .calls_all([todos("d1", "a", "pending"), todos("d2", "b", "pending")])
                .says("sorry"),
        )
        .await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("write_todos failed:"), "{said:?}");
    assert!(said[3].starts_with("write_todos failed:"), "{said:?}");
    assert!(alice.state().await["values"].get("todos").is_none_or(Value::is_null));
}

async fn a_status_that_does_not_exist_is_refused(server: TestServer) {
    let alice = server.human("planner").await;
    alice
        .says(script().calls(todos("d1", "a", "someday")).says("sorry"))
        .await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("write_todos failed:"), "{}", said[2]);
    assert!(said[2].contains("in_progress"), "{}", said[2]);
}

async fn only_agents_with_todos_have_the_tool(server: TestServer) {
    let alice = server.human("agent").await;
    let bob = server.human("planner").await;
    let echo = script().turn(json!({"echo_tools": true}));
    assert!(!crate::support::transcript(&alice.says(&echo).await)[1].contains("write_todos"));
    assert!(crate::support::transcript(&bob.says(&echo).await)[1].contains("write_todos"));
}
