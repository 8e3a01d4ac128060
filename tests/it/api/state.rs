//! The state of a thread, its history, updates, and runs from older checkpoints.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Engine, Human, TestServer, lookup, mail, on_both_engines, script, task, transcript};

/// Returns the next nodes, oldest checkpoint first.
fn nexts(history: &[Value]) -> Vec<Value> {
    history.iter().rev().map(|state| state["next"].clone()).collect()
}

async fn write(server: &TestServer, human: &Human, body: Value) -> Value {
    server.client().post(&human.path("/state"), body).await.ok()
}

/// Returns the number of bytes in the tables of the database.
async fn stored(server: &TestServer) -> i64 {
    if server.engine == Engine::Sqlite {
        return server
            .number_in_database("select sum(pgsize - unused) from dbstat")
            .await;
    }
    let mut bytes = 0;
    for table in ["threads", "checkpoints", "events", "runs", "interrupts"] {
        let sql = format!("select coalesce(sum(pg_column_size(t.*)), 0)::bigint from {table} t");
        bytes += server.number_in_database(&sql).await;
    }
    bytes
}

on_both_engines! {
    a_thread_without_a_run_has_an_empty_state,
    every_step_is_a_checkpoint_whose_parent_is_the_one_before,
    step_numbers_continue_over_runs,
    history_can_be_read_in_pages_and_from_a_point_back,
    the_history_at_a_checkpoint_is_this_checkpoint,
    the_state_at_any_checkpoint_can_be_read,
    the_tasks_that_a_cancelled_run_leaves_open_have_its_error,
    a_client_can_update_the_state,
    a_write_as_the_input_begins_a_turn,
    a_write_after_a_fork_counts_as_written_by_the_last_node,
    an_update_as_an_unknown_node_or_on_a_busy_thread_is_refused,
    a_write_as_the_end_withdraws_the_question,
    a_write_as_the_end_stops_subagents_that_wait,
    a_write_as_the_end_follows_no_other_step,
    a_run_can_begin_at_an_older_checkpoint,
    a_run_can_begin_at_the_checkpoint_of_its_config,
    the_checkpoint_of_a_config_is_that_of_one_run,
    a_pending_step_of_an_older_checkpoint_can_be_run_again,
    the_turn_of_any_input_checkpoint_can_be_run_again,
    a_turn_with_an_image_can_be_run_again,
    without_a_pending_step_nothing_is_run_again,
    a_subagent_has_a_history_of_its_own,
    a_history_is_searched_by_metadata,
    only_the_selected_fields_of_a_state_are_returned,
    an_update_may_set_every_public_field,
    an_unknown_checkpoint_is_refused,
    a_checkpoint_that_is_no_text_does_not_count_as_the_newest,
    the_history_of_a_thread_is_that_of_its_main_agent,
    the_last_turns_of_a_long_thread_cost_no_more_than_the_first,
}

async fn a_thread_without_a_run_has_an_empty_state(server: TestServer) {
    let state = server.human("agent").await.state().await;
    let expected = json!({
        "values": {}, "next": [], "tasks": [], "metadata": null, "created_at": null, "checkpoint": null,
        "parent_checkpoint": null, "interrupts": [], "checkpoint_id": null, "parent_checkpoint_id": null,
    });
    assert_eq!(state, expected);
}

async fn every_step_is_a_checkpoint_whose_parent_is_the_one_before(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(lookup("c1", "x")).says("done")).await;
    let history = alice.history().await;
    let expected = [
        json!(["__start__"]),
        json!(["model"]),
        json!(["tools"]),
        json!(["model"]),
        json!([]),
    ];
    assert_eq!(nexts(&history), expected);
    let steps: Vec<&Value> = history.iter().rev().map(|state| &state["metadata"]["step"]).collect();
    assert_eq!(steps, [&json!(-1), &json!(0), &json!(1), &json!(2), &json!(3)]);
    for pair in history.windows(2) {
        assert_eq!(
            pair[0]["parent_checkpoint"]["checkpoint_id"],
            pair[1]["checkpoint"]["checkpoint_id"]
        );
    }
    assert_eq!(history[0]["values"], alice.state().await["values"]);
    assert_eq!(transcript(&history[2]["values"]), ["human: …", "ai calls lookup"]);
    assert_eq!(history[4]["metadata"]["source"], "input");
    assert_eq!(history[0]["metadata"]["source"], "loop");
}

async fn step_numbers_continue_over_runs(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("one").await;
    alice.says("two").await;
    let history = alice.history().await;
    let steps: Vec<i64> = history
        .iter()
        .rev()
        .filter_map(|state| state["metadata"]["step"].as_i64())
        .collect();
    assert_eq!(steps, (-1..5).collect::<Vec<_>>());
}

async fn history_can_be_read_in_pages_and_from_a_point_back(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    alice.says("two").await;
    let all = alice.history().await;
    let one = client.get(&alice.path("/history")).await.ok();
    assert_eq!(one, json!([all[0]]));
    let before = json!({"limit": 2, "before": {"configurable": {"checkpoint_id": all[1]["checkpoint_id"]}}});
    assert_eq!(
        client.post(&alice.path("/history"), before).await.ok(),
        json!(all[2..4])
    );
    let inputs = json!({"limit": 10, "metadata": {"source": "input"}});
    assert_eq!(
        client
            .post(&alice.path("/history"), inputs)
            .await
            .ok()
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

async fn the_history_at_a_checkpoint_is_this_checkpoint(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    let after_one = alice.history().await;
    alice.says("two").await;
    let found = async |checkpoint: &Value, more: Value| {
        let mut body = json!({"limit": 50, "checkpoint": checkpoint});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        client.post(&alice.path("/history"), body).await.ok()
    };
    assert!(after_one.len() > 1, "{after_one:#?}");
    for state in &after_one {
        let id = json!({"checkpoint_id": state["checkpoint_id"]});
        for checkpoint in [&state["checkpoint"], &id] {
            assert_eq!(found(checkpoint, json!({})).await[0]["values"], state["values"]);
            assert_eq!(found(checkpoint, json!({})).await.as_array().unwrap().len(), 1);
        }
        let at = alice.path(&format!("/state/{}", state["checkpoint_id"].as_str().unwrap()));
        assert_eq!(found(&id, json!({})).await, json!([client.get(&at).await.ok()]));
    }
    let at = &after_one[1]["checkpoint"];
    let before = |state: &Value| json!({"before": {"configurable": {"checkpoint_id": state["checkpoint_id"]}}});
    assert_eq!(found(at, before(&after_one[0])).await.as_array().unwrap().len(), 1);
    assert_eq!(found(at, before(&after_one[1])).await, json!([]));
    assert_eq!(found(at, json!({"metadata": {"source": "input"}})).await, json!([]));
    let looped = json!({"metadata": {"source": "loop"}});
    assert_eq!(found(at, looped).await.as_array().unwrap().len(), 1);
    let unknown = json!({"checkpoint_id": Uuid::now_v7()});
    assert_eq!(found(&unknown, json!({})).await, json!([]));
    // The checkpoints before one are found by `before`, also in the query.
    let earlier = found(&Value::Null, before(&after_one[0])).await;
    assert_eq!(earlier, json!(after_one[1..]));
    let query = format!(
        "/history?limit=50&before={}",
        after_one[0]["checkpoint_id"].as_str().unwrap()
    );
    assert_eq!(client.get(&alice.path(&query)).await.ok(), earlier);
}

async fn the_state_at_any_checkpoint_can_be_read(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    alice.says("two").await;
    let history = alice.history().await;
    assert!(history.len() > 3, "{history:#?}");
    for state in history {
        let id = state["checkpoint_id"].as_str().unwrap();
        assert_eq!(client.get(&alice.path(&format!("/state/{id}"))).await.ok(), state);
        let body = json!({"checkpoint": {"checkpoint_id": id, "checkpoint_ns": ""}});
        assert_eq!(client.post(&alice.path("/state/checkpoint"), body).await.ok(), state);
    }
}

async fn the_tasks_that_a_cancelled_run_leaves_open_have_its_error(server: TestServer) {
    let alice = server.human("agent").await;
    let errors = |state: &Value| -> Vec<Value> {
        let tasks = state["tasks"].as_array().unwrap().iter();
        tasks.map(|task| task["error"].clone()).collect()
    };
    let cancelled = json!("UserInterrupt(\"The run was cancelled by request.\")");
    server.tools.hold("lookup");
    let text = script().calls_all([lookup("c1", "x"), lookup("c2", "y")]).says("never");
    let run = alice.asks(&text).await;
    server.tools.called("lookup", 2).await;
    assert_eq!(
        errors(&alice.state().await),
        [Value::Null, Value::Null],
        "they are at work"
    );
    run.is_cancelled("interrupt").await.ok();
    let stopped = alice.state().await;
    assert_eq!(errors(&stopped), [cancelled.clone(), cancelled.clone()]);
    assert_eq!(alice.history().await[0]["tasks"], stopped["tasks"]);
    let at = stopped["checkpoint_id"].as_str().unwrap();
    let read = server.client().get(&alice.path(&format!("/state/{at}"))).await.ok();
    assert_eq!(read["tasks"], stopped["tasks"]);
    server.tools.let_go("lookup");

    // The thread goes on: nothing is open there any more.
    alice.says("go on").await;
    assert_eq!(errors(&alice.state().await), Vec::<Value>::new());
    let history = alice.history().await;
    let before = history.iter().find(|state| state["checkpoint_id"] == at).unwrap();
    assert_eq!(errors(before), [Value::Null, Value::Null], "{before}");

    // The same after an approval, where the newest checkpoint may be from the run that asked.
    alice
        .asks(script().calls(mail("m1", "bob")).says("never"))
        .await
        .finishes()
        .await;
    server.tools.hold("send_email");
    let question = alice.question().await;
    let going = alice.approves(&question).await;
    server.tools.called("send_email", 1).await;
    going.is_cancelled("interrupt").await.ok();
    assert_eq!(errors(&alice.state().await), [cancelled]);
    server.tools.let_go("send_email");
}

async fn a_client_can_update_the_state(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("one").await;
    let before = alice.state().await;
    let note = json!({"role": "assistant", "content": "by the way", "id": "note-1"});
    let written = write(
        &server,
        &alice,
        json!({"values": {"messages": [note], "topic": "fish"}}),
    )
    .await;
    let state = alice.state().await;
    assert_eq!(state["checkpoint_id"], written["checkpoint"]["checkpoint_id"]);
    assert_eq!(state["parent_checkpoint_id"], before["checkpoint_id"]);
    assert_eq!(&state["metadata"]["source"], &json!("update"));
    assert_eq!(&state["values"]["topic"], &json!("fish"));
    assert_eq!(transcript(&state["values"]).last().unwrap(), "ai: by the way");
    write(
        &server,
        &alice,
        json!({"values": {"messages": [{"role": "assistant", "content": "or not", "id": "note-1"}]}}),
    )
    .await;
    assert_eq!(alice.transcript().await, ["human: one", "ai: echo: one", "ai: or not"]);
    assert_eq!(&alice.state().await["next"], &json!([]));
    assert_eq!(alice.status().await.as_str(), "idle");
    let as_start = json!({"values": {"messages": []}, "as_node": "__start__"});
    write(&server, &alice, as_start).await;
    assert_eq!(&alice.state().await["next"], &json!(["model"]));
    assert_eq!(alice.status().await.as_str(), "interrupted");
}

async fn a_write_as_the_input_begins_a_turn(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("one").await;
    let input = json!({"messages": [{"role": "user", "content": "two"}]});
    write(&server, &alice, json!({"values": input, "as_node": "__input__"})).await;
    assert_eq!(alice.state().await["next"], json!(["model"]));
    assert_eq!(alice.status().await, "interrupted");
    alice.starts(json!({"input": null})).await.finishes().await;
    let said = ["human: one", "ai: echo: one", "human: two", "ai: echo: two"];
    assert_eq!(alice.transcript().await, said);
    assert_eq!(alice.status().await, "idle");
}

async fn a_write_after_a_fork_counts_as_written_by_the_last_node(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("never said")).await;
    // In a copy, a step that waits goes on after a fork.
    let copy = server.client().post(&alice.path("/copy"), json!({})).await.ok();
    let bob = alice.on(copy["thread_id"].as_str().expect("an id"));
    assert_eq!(bob.state().await["metadata"]["source"], "fork");
    let answer = alice.state().await["values"]["messages"][1]["id"].clone();
    for human in [&alice, &bob] {
        // Without its call, the answer is the end of the turn.
        let values = json!({"messages": [{"role": "assistant", "content": "no mail", "id": answer}]});
        write(&server, human, json!({"values": values})).await;
        assert!(human.questions().await.is_empty());
        human.starts(json!({"input": null})).await.finishes().await;
        assert_eq!(human.transcript().await, ["human: …", "ai: no mail"]);
        assert_eq!(human.status().await, "idle");
    }
}

async fn an_update_as_an_unknown_node_or_on_a_busy_thread_is_refused(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    let body = json!({"values": {"topic": "fish"}, "as_node": "nosuch"});
    assert_eq!(
        client.post(&alice.path("/state"), body).await.refused(400),
        "Node nosuch does not exist"
    );
    server.tools.hold("lookup");
    let run = alice.asks(script().calls(lookup("c1", "x")).says("done")).await;
    server.tools.called("lookup", 1).await;
    let busy = client
        .post(&alice.path("/state"), json!({"values": {"topic": "fish"}}))
        .await
        .refused(409);
    assert!(busy.contains("in-flight"), "{busy}");
    server.tools.let_go("lookup");
    run.finishes().await;
}

async fn a_write_as_the_end_withdraws_the_question(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("never said")).await;
    let question = alice.question().await;
    write(&server, &alice, json!({"values": null, "as_node": "__end__"})).await;
    let state = alice.state().await;
    assert_eq!(state["next"], json!([]));
    assert_eq!(state["tasks"], json!([]));
    assert_eq!(state["interrupts"], json!([]));
    assert_eq!(state["metadata"]["source"], "update");
    assert_eq!(alice.transcript().await, ["human: …", "ai calls send_email"]);
    assert_eq!(alice.status().await, "idle");
    assert!(alice.questions().await.is_empty());
    let path = alice.path(&format!("/interrupts/{}", question.id()));
    assert_eq!(server.client().get(&path).await.ok()["status"], "dropped");
    let values = alice.says("and on").await;
    assert_eq!(transcript(&values).last().unwrap(), "ai: echo: and on");
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}

async fn a_write_as_the_end_stops_subagents_that_wait(server: TestServer) {
    let alice = server.human("agent").await;
    let child = script().calls(mail("m1", "bob")).says("sent by child");
    let run = alice
        .asks(script().calls(task("t1", "mailer", &child)).says("all done"))
        .await;
    run.finishes().await;
    alice.question().await;
    write(&server, &alice, json!({"values": null, "as_node": "__end__"})).await;
    assert!(alice.questions().await.is_empty());
    assert_eq!(alice.state().await["next"], json!([]));
    assert_eq!(alice.status().await, "idle");
    assert_eq!(run.children().await[0]["status"], "interrupted");
}

async fn a_write_as_the_end_follows_no_other_step(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("one").await;
    let as_start = json!({"values": {"messages": []}, "as_node": "__start__"});
    write(&server, &alice, as_start).await;
    assert_eq!(alice.state().await["next"], json!(["model"]));
    let note = json!({"role": "assistant", "content": "enough"});
    let ends = json!({"values": {"messages": [note], "topic": "fish"}, "as_node": "__end__"});
    write(&server, &alice, ends).await;
    let state = alice.state().await;
    assert_eq!(state["next"], json!([]));
    assert_eq!(state["values"]["topic"], "fish");
    assert_eq!(alice.transcript().await, ["human: one", "ai: echo: one", "ai: enough"]);
    assert_eq!(alice.status().await, "idle");
    let copies = json!({"values": null, "as_node": "__copy__"});
    let refused = server.client().post(&alice.path("/state"), copies).await;
    assert_eq!(refused.refused(400), "Node __copy__ does not exist");
}

async fn a_run_can_begin_at_an_older_checkpoint(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("one").await;
    let fork = alice.state().await["checkpoint_id"].clone();
    alice.says("two").await;
    alice
        .starts(alice.run_body("other", json!({"checkpoint_id": fork})))
        .await
        .finishes()
        .await;
    assert_eq!(
        alice.transcript().await,
        ["human: one", "ai: echo: one", "human: other", "ai: echo: other"]
    );
    let history = alice.history().await;
    let input = history
        .iter()
        .find(|state| state["metadata"]["source"] == "input")
        .unwrap();
    assert_eq!(input["parent_checkpoint_id"], fork);
    assert_eq!(transcript(&alice.says("three").await).len(), 6);
}

async fn a_run_can_begin_at_the_checkpoint_of_its_config(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    let fork = alice.state().await["checkpoint"].clone();
    alice.says("two").await;
    let later = alice.state().await["checkpoint_id"].clone();
    let config = json!({"configurable": fork});
    let wanted = ["human: one", "ai: echo: one", "human: other", "ai: echo: other"];
    let begun = alice.run_body("other", json!({"config": config}));
    alice.starts(begun.clone()).await.finishes().await;
    assert_eq!(alice.transcript().await, wanted);
    let waited = client.post(&alice.path("/runs/wait"), begun).await.ok();
    assert_eq!(transcript(&waited), wanted);
    let stream = alice.streams("other", json!({"config": config})).await;
    assert_eq!(transcript(&stream.rest().await.last().unwrap().data), wanted);

    let precedes = alice.run_body("three", json!({"config": config, "checkpoint_id": later}));
    let values = client.post(&alice.path("/runs/wait"), precedes).await.ok();
    assert_eq!(transcript(&values)[2..4], ["human: two", "ai: echo: two"]);

    let unknown = json!({"configurable": {"checkpoint_id": Uuid::now_v7()}});
    let body = alice.run_body("x", json!({"config": unknown}));
    assert_eq!(client.post(&alice.path("/runs"), body.clone()).await.status, 404);
    assert_eq!(client.post("/runs", body).await.status, 404);
    let wrong = json!({"configurable": {"checkpoint_id": "yesterday"}});
    let body = alice.run_body("x", json!({"config": wrong}));
    let detail = client.post(&alice.path("/runs"), body).await.refused(422);
    assert!(detail.starts_with("config.configurable.checkpoint_id: "), "{detail}");
    let inner = json!({"configurable": {"checkpoint_id": Uuid::now_v7(), "checkpoint_ns": "tools:x"}});
    let body = alice.run_body("x", json!({"config": inner}));
    let detail = client.post(&alice.path("/runs"), body).await.refused(422);
    assert!(detail.starts_with("config.configurable.checkpoint_ns: "), "{detail}");
}

async fn the_checkpoint_of_a_config_is_that_of_one_run(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    let fork = json!({"configurable": alice.state().await["checkpoint"]});
    let assistant = json!({"graph_id": "agent", "config": fork});
    let assistant = client.post("/assistants", assistant).await.ok()["assistant_id"].clone();
    alice.says("two").await;
    let of_assistant = json!({"assistant_id": assistant});
    let body = alice.run_body("three", of_assistant.clone());
    let values = client.post(&alice.path("/runs/wait"), body).await.ok();
    assert_eq!(
        transcript(&values).len(),
        6,
        "an assistant starts no run at a checkpoint"
    );
    for more in [json!({"config": fork}), of_assistant] {
        let run = client.post(&alice.path("/runs"), alice.run_body("x", more)).await.ok();
        alice.run(&run).finishes().await;
        let before = alice.transcript().await.len();
        let again = json!({"config": run["kwargs"]["config"]});
        let values = client
            .post(&alice.path("/runs/wait"), alice.run_body("again", again))
            .await
            .ok();
        assert_eq!(
            transcript(&values).len(),
            before + 2,
            "the config of a run does not start the next one there"
        );
    }
}

async fn a_pending_step_of_an_older_checkpoint_can_be_run_again(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(lookup("c1", "x")).says("done")).await;
    let before_tools = alice
        .history()
        .await
        .iter()
        .find(|state| state["next"] == json!(["tools"]))
        .unwrap()
        .clone();
    let body = json!({"input": null, "checkpoint_id": before_tools["checkpoint_id"]});
    alice.starts(body).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls lookup", "lookup: found x", "ai: done"]
    );
    assert_eq!(server.tools.keys_of("lookup").len(), 2);
}

async fn the_turn_of_any_input_checkpoint_can_be_run_again(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    for text in ["one", "two", "three"] {
        alice.says(text).await;
    }
    let before = alice.state().await["values"]["messages"].clone();
    let history = alice.history().await;
    let inputs: Vec<&Value> = history
        .iter()
        .filter(|state| state["next"] == json!(["__start__"]))
        .collect();
    assert_eq!(inputs.len(), 3);
    for (turn, input) in [3, 2, 1].into_iter().zip(inputs) {
        let body = json!({"assistant_id": "agent", "input": null, "checkpoint": input["checkpoint"]});
        let values = client.post(&alice.path("/runs/wait"), body).await.ok();
        let messages = values["messages"].as_array().unwrap();
        assert_eq!(messages.len(), 2 * turn, "{values:#}");
        let asked = 2 * turn - 2;
        assert_eq!(
            messages[..=asked],
            before.as_array().unwrap()[..=asked],
            "with the same ids"
        );
        assert_ne!(
            messages[asked + 1]["id"],
            before[asked + 1]["id"],
            "the answer is a new one"
        );
        assert_eq!(alice.status().await, "idle");
        let newest = alice.history().await;
        let begun = newest
            .iter()
            .find(|state| state["parent_checkpoint_id"] == input["checkpoint_id"])
            .expect("a branch");
        assert_eq!(begun["metadata"]["source"], "loop");
    }
    // The commands of threads do the same.
    let first = history.last().unwrap()["checkpoint_id"].clone();
    let runs = alice.runs().await.len();
    let params = json!({"assistant_id": "agent", "input": null, "config": {"configurable": {"checkpoint_id": first}}});
    let started = client
        .post(
            &alice.path("/commands"),
            json!({"id": 1, "method": "run.start", "params": params}),
        )
        .await
        .ok();
    let run = started["result"]["run_id"].as_str().expect("a run").to_owned();
    alice.run_of_id(&run).finishes().await;
    assert_eq!(alice.runs().await.len(), runs + 1);
    assert_eq!(alice.transcript().await, ["human: one", "ai: echo: one"]);
    assert_eq!(transcript(&alice.says("and on").await).len(), 4);
}

async fn a_turn_with_an_image_can_be_run_again(server: TestServer) {
    let alice = server.human("agent").await;
    let image = json!({"type": "image", "mime_type": "image/png", "base64": "A".repeat(20_000)});
    let content = json!([{"type": "text", "text": "look"}, image]);
    let input = json!({"messages": [{"role": "user", "content": content}]});
    alice.starts(json!({"input": input})).await.finishes().await;
    let before = alice.state().await["values"]["messages"][0].clone();
    let first = alice.history().await.pop().unwrap();
    let body = json!({"input": null, "checkpoint": first["checkpoint"]});
    alice.starts(body).await.finishes().await;
    let after = alice.state().await;
    assert_eq!(after["values"]["messages"][0], before);
    assert_eq!(after["values"]["messages"].as_array().unwrap().len(), 2);
}

async fn without_a_pending_step_nothing_is_run_again(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("one").await;
    let before = alice.state().await;
    let run = alice.starts(json!({"input": null})).await;
    run.finishes().await;
    assert_eq!(run.status().await, "success");
    assert_eq!(alice.state().await["checkpoint_id"], before["checkpoint_id"]);
    let other = server.human("agent").await;
    let run = other.starts(json!({"input": null})).await;
    run.finishes().await;
    assert_eq!(run.status().await, "error", "a thread without a turn has no input");
}

async fn a_subagent_has_a_history_of_its_own(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let child = script().calls(mail("m1", "bob")).says("sent by child");
    alice
        .says(script().calls(task("t1", "mailer", &child)).says("all done"))
        .await;
    let state = client.get(&alice.path("/state?subgraphs=true")).await.ok();
    let below = &state["tasks"][0];
    let namespace = format!("tools:{}", below["id"].as_str().unwrap());
    assert_eq!(below["checkpoint"]["checkpoint_ns"], namespace);
    assert_eq!(below["state"]["next"], json!(["HumanInTheLoopMiddleware.after_model"]));
    assert_eq!(below["state"]["interrupts"], state["interrupts"]);
    assert_eq!(below["state"]["metadata"]["lc_agent_name"], "mailer");
    assert_eq!(alice.state().await["tasks"][0]["state"], Value::Null);
    let question = alice.question().await;
    alice.approves(&question).await.finishes().await;
    let wanted = json!({"limit": 50, "checkpoint": {"checkpoint_ns": namespace}});
    let history = client.post(&alice.path("/history"), wanted).await.ok();
    let history = history.as_array().unwrap();
    assert_eq!(transcript(&history[0]["values"]).last().unwrap(), "ai: sent by child");
    assert!(
        history
            .iter()
            .all(|state| state["checkpoint"]["checkpoint_ns"] == namespace)
    );
    assert_eq!(history.last().unwrap()["metadata"]["source"], "input");
    let at = json!({"checkpoint": history[1]["checkpoint"]});
    assert_eq!(
        &client.post(&alice.path("/state/checkpoint"), at).await.ok()["values"],
        &history[1]["values"]
    );
    let other = json!({"checkpoint": {"checkpoint_ns": format!("tools:{}", Uuid::new_v4())}});
    assert_eq!(client.post(&alice.path("/history"), other).await.ok(), json!([]));
    let wrong = json!({"checkpoint": {"checkpoint_ns": "elsewhere"}});
    assert_eq!(client.post(&alice.path("/history"), wrong).await.status, 422);
}

async fn a_history_is_searched_by_metadata(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    let run = alice
        .starts(alice.run_body("two", json!({"metadata": {"colour": "red"}})))
        .await;
    run.finishes().await;
    let search = async |metadata: Value, more: Value| {
        let mut body = json!({"limit": 50, "metadata": metadata});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client
            .post(&alice.path("/history"), body)
            .await
            .ok()
            .as_array()
            .unwrap()
            .clone()
    };
    let red = search(json!({"colour": "red"}), json!({})).await;
    let all = alice.history().await;
    assert_eq!(red, all[..3]);
    assert_eq!(
        search(json!({"run_id": run.id, "source": "input"}), json!({})).await,
        all[2..3]
    );
    assert_eq!(search(json!({"source": "input"}), json!({"limit": 1})).await, all[2..3]);
    let before = json!({"before": {"configurable": {"checkpoint_id": all[2]["checkpoint_id"]}}});
    assert_eq!(search(json!({"source": "input"}), before).await, all[5..]);
    assert!(search(json!({"colour": "blue"}), json!({})).await.is_empty());
}

async fn only_the_selected_fields_of_a_state_are_returned(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    let state = alice.state().await;
    let shown = client
        .get(&alice.path("/state?select=values.messages&select=next"))
        .await
        .ok();
    assert_eq!(
        shown,
        json!({"values": {"messages": state["values"]["messages"]}, "next": []})
    );
    let body = json!({"limit": 2, "select": ["checkpoint_id"]});
    let history = client.post(&alice.path("/history"), body).await.ok();
    assert_eq!(history[0], json!({"checkpoint_id": state["checkpoint_id"]}));
    assert_eq!(client.get(&alice.path("/state?select=shoe_size")).await.status, 422);
}

async fn an_update_may_set_every_public_field(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    let first = alice.history().await[1]["checkpoint_id"].clone();
    let values = json!({"todos": [{"content": "paint", "status": "pending"}]});
    let body = json!({"values": values, "checkpoint_id": first});
    client.post(&alice.path("/state"), body).await.ok();
    let state = alice.state().await;
    assert_eq!(state["values"]["todos"], values["todos"]);
    assert_eq!(&state["metadata"]["source"], &json!("update"));
    assert_eq!(&state["metadata"]["checkpoint_id"], &first);
    assert_eq!(state["parent_checkpoint_id"], first);
}

async fn an_unknown_checkpoint_is_refused(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    let unknown = alice.run_body("two", json!({"checkpoint_id": Uuid::now_v7()}));
    assert_eq!(client.post(&alice.path("/runs"), unknown).await.status, 404);
    let nonsense = alice.run_body("two", json!({"checkpoint_id": "yesterday"}));
    assert_eq!(client.post(&alice.path("/runs"), nonsense).await.status, 422);
    let cron = json!({"checkpoint_id": Uuid::now_v7(), "schedule": "0 0 1 1 *"});
    let cron = alice.run_body("two", cron);
    assert_eq!(client.post(&alice.path("/runs/crons"), cron).await.status, 404);
    assert_eq!(client.post("/runs/crons/count", json!({})).await.ok(), 0);
    assert_eq!(alice.transcript().await.len(), 2);
}

async fn a_checkpoint_that_is_no_text_does_not_count_as_the_newest(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    let checkpoint = json!({"checkpoint_id": 5});
    for (path, body) in [
        ("/runs", alice.run_body("two", json!({"checkpoint": checkpoint}))),
        ("/state", json!({"values": {}, "checkpoint": checkpoint})),
        ("/state/checkpoint", json!({"checkpoint": checkpoint})),
        ("/history", json!({"checkpoint": checkpoint})),
    ] {
        let refused = client.post(&alice.path(path), body).await.refused(422);
        assert!(refused.starts_with("checkpoint.checkpoint_id: "), "{path}: {refused}");
    }
    assert_eq!(alice.transcript().await.len(), 2);
}

async fn the_history_of_a_thread_is_that_of_its_main_agent(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .says(
            script()
                .calls(task(
                    "t1",
                    "researcher",
                    script().calls(lookup("c1", "x")).says("found"),
                ))
                .says("done"),
        )
        .await;
    assert_eq!(alice.history().await.len(), 5);
}

async fn the_last_turns_of_a_long_thread_cost_no_more_than_the_first(server: TestServer) {
    let alice = server.human("agent").await;
    let mut costs = vec![];
    for turn in 1..=200 {
        let before = if [10, 200].contains(&turn) {
            stored(&server).await
        } else {
            0
        };
        alice
            .says(script().calls(lookup(&format!("call_{turn:03}"), "x")).says("done"))
            .await;
        if before > 0 {
            costs.push(stored(&server).await - before);
        }
    }
    let [early, late] = costs[..] else { panic!("{costs:?}") };
    assert!(
        2 * late <= 3 * early,
        "turn 10 took {early} bytes and turn 200 took {late}"
    );
}
