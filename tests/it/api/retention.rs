//! The TTLs of threads, histories and items.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::viewer::Viewer;
use crate::support::{TestServer, eventually, lookup, mail, on_both_engines, script, task, transcript};

/// The shortest TTL, 0.3 seconds.
const SOON: f64 = 0.005;

/// Returns when the thread is gone.
async fn is_gone(server: &TestServer, thread: &str) {
    let client = server.client();
    eventually(async || client.get(&format!("/threads/{thread}")).await.status == 404).await;
}

on_both_engines! {
    a_thread_is_deleted_after_its_ttl,
    the_ttl_of_a_thread_is_shown_and_can_be_changed,
    a_busy_thread_outlives_its_ttl,
    keep_latest_deletes_the_history_only,
    the_configured_ttl_is_the_default,
    the_thread_of_a_stateless_run_has_a_ttl,
    pruning_deletes_threads_or_their_history,
    an_interrupted_thread_continues_without_its_history,
    a_busy_thread_keeps_its_history,
    a_thread_can_be_created_with_a_history,
    a_history_has_only_values_that_an_update_may_have,
    a_history_that_is_copied_step_by_step_writes_its_input_once,
    a_reader_of_a_pruned_log_is_refused,
}

async fn a_thread_is_deleted_after_its_ttl(server: TestServer) {
    server.sweeps_often();
    let client = server.client();
    let kept = client.thread().await;
    let body = json!({"ttl": {"ttl": SOON, "strategy": "delete"}});
    let thread = client.post("/threads", body).await.ok();
    assert!(thread.get("ttl").is_none());
    is_gone(&server, thread["thread_id"].as_str().unwrap()).await;
    let shown = client.get(&format!("/threads/{kept}?include=ttl")).await.ok();
    assert!(shown.get("ttl").is_none());
}

async fn the_ttl_of_a_thread_is_shown_and_can_be_changed(server: TestServer) {
    let client = server.client();
    let thread = client.post("/threads", json!({"ttl": {"ttl": 60}})).await.ok();
    let path = format!("/threads/{}", thread["thread_id"].as_str().unwrap());
    let ttl = client.get(&format!("{path}?include=ttl")).await.ok()["ttl"].clone();
    assert_eq!(&ttl["strategy"], &json!("delete"));
    assert_eq!(&ttl["ttl_minutes"], &json!(60.0));
    assert!(ttl["expires_at"].as_str() > thread["created_at"].as_str());
    client
        .patch(&path, json!({"ttl": {"ttl": 90, "strategy": "keep_latest"}}))
        .await
        .ok();
    let changed = client.get(&format!("{path}?include=ttl")).await.ok()["ttl"].clone();
    assert_eq!(&changed["strategy"], &json!("keep_latest"));
    assert_eq!(&changed["ttl_minutes"], &json!(90.0));
    assert!(changed["expires_at"].as_str() > ttl["expires_at"].as_str());
    assert_eq!(client.get(&format!("{path}?include=shoe_size")).await.status, 422);
    for ttl in [json!(60), json!({"ttl": 0}), json!({"ttl": 1, "strategy": "burn"})] {
        assert_eq!(client.post("/threads", json!({"ttl": ttl})).await.status, 422, "{ttl}");
    }
}

async fn a_busy_thread_outlives_its_ttl(server: TestServer) {
    server.sweeps_often();
    let client = server.client();
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    client.patch(&alice.path(""), json!({"ttl": {"ttl": SOON}})).await.ok();
    let run = alice.asks(script().calls(lookup("c1", "x")).says("done")).await;
    server.tools.called("lookup", 1).await;
    let later = client.post("/threads", json!({"ttl": {"ttl": SOON * 2.0}})).await.ok();
    is_gone(&server, later["thread_id"].as_str().unwrap()).await;
    assert_eq!(run.status().await, "running");
    server.tools.let_go("lookup");
    is_gone(&server, &alice.thread).await;
}

async fn keep_latest_deletes_the_history_only(server: TestServer) {
    server.sweeps_often();
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    alice.says("two").await;
    let before = alice.transcript().await;
    let state = alice.state().await;
    assert!(alice.history().await.len() > 3);
    client
        .patch(
            &alice.path(""),
            json!({"ttl": {"ttl": SOON, "strategy": "keep_latest"}}),
        )
        .await
        .ok();
    eventually(async || alice.history().await.len() == 1).await;
    assert_eq!(alice.state().await["values"], state["values"]);
    assert_eq!(alice.state().await["checkpoint_id"], state["checkpoint_id"]);
    assert_eq!(alice.record().await["status"], "idle");
    let values = alice.says("three").await;
    assert_eq!(
        transcript(&values),
        [before, vec!["human: three".into(), "ai: echo: three".into()]].concat()
    );
}

async fn the_configured_ttl_is_the_default(server: TestServer) {
    server.sweeps_often();
    server
        .is_configured_with(&format!("[threads.ttl]\ndefault_ttl = {SOON}\n"))
        .await;
    let client = server.client();
    let kept = client.post("/threads", json!({"ttl": {"ttl": 60}})).await.ok();
    let thread = client.thread().await;
    is_gone(&server, &thread).await;
    let by_run = Uuid::new_v4();
    let body = json!({"assistant_id": "agent", "input": {"messages": "hi"}, "if_not_exists": "create"});
    client.post(&format!("/threads/{by_run}/runs/wait"), body).await.ok();
    is_gone(&server, &by_run.to_string()).await;
    let kept = format!("/threads/{}", kept["thread_id"].as_str().unwrap());
    assert_eq!(client.get(&kept).await.status, 200);
}

async fn the_thread_of_a_stateless_run_has_a_ttl(server: TestServer) {
    server.sweeps_often();
    let client = server.client();
    server.tools.hold("lookup");
    let input = json!({"messages": script().calls(lookup("c1", "x")).says("done").to_string()});
    let run = client
        .post("/runs", json!({"assistant_id": "agent", "input": input}))
        .await
        .ok();
    server.tools.called("lookup", 1).await;
    let thread = run["thread_id"].as_str().unwrap();
    let shown = client.get(&format!("/threads/{thread}?include=ttl")).await.ok();
    assert_eq!(&shown["ttl"]["strategy"], &json!("delete"));
    assert_eq!(&shown["ttl"]["ttl_minutes"], &json!(10.0));
    server.tools.let_go("lookup");
    is_gone(&server, thread).await;
}

async fn pruning_deletes_threads_or_their_history(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    alice.says("one").await;
    bob.says("one").await;
    let values = alice.state().await["values"].clone();
    let big = client.get(&alice.path("/storage")).await.ok();
    let body = json!({"thread_ids": [alice.thread, alice.thread, Uuid::new_v4()], "strategy": "keep_latest"});
    assert_eq!(
        client.post("/threads/prune", body).await.ok(),
        json!({"pruned_count": 1})
    );
    assert_eq!(alice.history().await.len(), 1);
    assert_eq!(&alice.state().await["values"], &values);
    let small = client.get(&alice.path("/storage")).await.ok();
    assert_eq!(&big["checkpoints"]["rows"], &json!(3));
    assert_eq!(&small["checkpoints"]["rows"], &json!(1));
    assert!(
        small["total_rows"].as_i64() < big["total_rows"].as_i64(),
        "{big} {small}"
    );
    assert!(small["total_bytes"].as_i64() > Some(0));
    let body = json!({"thread_ids": [bob.thread, Uuid::new_v4()]});
    assert_eq!(
        client.post("/threads/prune", body).await.ok(),
        json!({"pruned_count": 1})
    );
    assert_eq!(client.get(&bob.path("")).await.status, 404);
    assert_eq!(client.get(&bob.path("/storage")).await.status, 404);
    for bad in [
        json!({"thread_ids": ["x"]}),
        json!({}),
        json!({"thread_ids": [], "strategy": "burn"}),
    ] {
        assert_eq!(client.post("/threads/prune", bad.clone()).await.status, 422, "{bad}");
    }
}

async fn an_interrupted_thread_continues_without_its_history(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("hello").await;
    let child = script().calls(mail("m1", "bob")).says("sent by child");
    alice
        .says(script().calls(task("t1", "mailer", &child)).says("all done"))
        .await;
    assert_eq!(alice.status().await, "interrupted");
    let body = json!({"thread_ids": [alice.thread], "strategy": "keep_latest"});
    assert_eq!(
        client.post("/threads/prune", body).await.ok(),
        json!({"pruned_count": 1})
    );
    assert_eq!(alice.history().await.len(), 1);
    let question = alice.question().await;
    alice.approves(&question).await.finishes().await;
    assert_eq!(
        alice.transcript().await.last().map(String::as_str),
        Some("ai: all done")
    );
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn a_busy_thread_keeps_its_history(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let run = alice.asks(script().calls(lookup("c1", "x")).says("done")).await;
    server.tools.called("lookup", 1).await;
    let body = json!({"thread_ids": [alice.thread], "strategy": "keep_latest"});
    assert_eq!(
        client.post("/threads/prune", body).await.ok(),
        json!({"pruned_count": 0})
    );
    server.tools.let_go("lookup");
    run.finishes().await;
    assert!(alice.history().await.len() > 1);
}

async fn a_thread_can_be_created_with_a_history(server: TestServer) {
    let client = server.client();
    let write = |node: &str, values: Value| json!({"updates": [{"values": values, "as_node": node}]});
    let said = |role: &str, text: &str| json!({"messages": [{"role": role, "content": text}]});
    let steps = [
        write("__input__", said("user", "one")),
        write("model", said("assistant", "first")),
        write("__input__", said("user", "two")),
    ];
    let body = json!({"metadata": {"graph_id": "plain"}, "supersteps": steps});
    let thread = client.post("/threads", body).await.ok();
    assert_eq!(thread["status"], "interrupted");
    assert_eq!(transcript(&thread["values"]), ["human: one", "ai: first", "human: two"]);
    let path = format!("/threads/{}", thread["thread_id"].as_str().unwrap());
    let state = client.get(&format!("{path}/state")).await.ok();
    assert_eq!(state["next"], json!(["model"]));
    let history = client.post(&format!("{path}/history"), json!({"limit": 50})).await.ok();
    let sources: Vec<&str> = history
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|s| s["metadata"]["source"].as_str())
        .collect();
    assert_eq!(sources, ["loop", "input", "update", "loop", "input"]);
    let values = client
        .post(&format!("{path}/runs/wait"), json!({"assistant_id": "plain"}))
        .await
        .ok();
    assert_eq!(transcript(&values)[3], "ai: echo: two");
    let nowhere = json!({"metadata": {"graph_id": "plain"}, "supersteps": [write("nosuch", json!({}))]});
    assert_eq!(
        client.post("/threads", nowhere).await.refused(400),
        "Node nosuch does not exist"
    );
    let odd = json!({"supersteps": [{"updates": [{"values": {"messages": [{"role": "x"}]}}]}]});
    assert!(
        client
            .post("/threads", odd)
            .await
            .refused(422)
            .starts_with("supersteps[0].updates[0].values.")
    );
}

async fn a_history_has_only_values_that_an_update_may_have(server: TestServer) {
    let noter = "[agents.noter]\nmodel = \"scripted:lab\"\n[agents.noter.state.notes]\nmerge = \"append\"\n";
    server.is_configured_with(noter).await;
    let client = server.client();
    let body = |notes: Value| {
        let update = json!({"values": {"notes": notes}, "as_node": "__input__"});
        json!({"metadata": {"graph_id": "noter"}, "supersteps": [{"updates": [update]}]})
    };
    let refused = client.post("/threads", body(json!("no list"))).await.refused(422);
    assert!(
        refused.starts_with("supersteps[0].updates[0].values.notes: "),
        "{refused}"
    );
    let thread = client.post("/threads", body(json!(["a"]))).await.ok();
    assert_eq!(thread["values"]["notes"], json!(["a"]));
}

async fn a_history_that_is_copied_step_by_step_writes_its_input_once(server: TestServer) {
    let client = server.client();
    let alice = server.human("plain").await;
    alice.says(script().calls(lookup("c1", "x")).says("found")).await;
    let mut history = alice.history().await;
    history.reverse();
    // As a history shows it: the checkpoint before the input, then what each task wrote.
    let input = history[0]["tasks"][0]["result"].clone();
    let mut steps = vec![json!({"updates": [{"values": input, "as_node": "__input__"}]})];
    for state in &history {
        let tasks = state["tasks"].as_array().unwrap().iter();
        let updates: Vec<Value> = tasks
            .map(|task| json!({"values": task["result"], "as_node": task["name"]}))
            .collect();
        if !updates.is_empty() {
            steps.push(json!({"updates": updates}));
        }
    }
    let nodes: Vec<&Value> = steps.iter().map(|step| &step["updates"][0]["as_node"]).collect();
    assert_eq!(nodes, ["__input__", "__start__", "model", "tools", "model"]);
    let body = json!({"metadata": {"graph_id": "plain"}, "supersteps": steps});
    let thread = client.post("/threads", body).await.ok();
    assert_eq!(transcript(&thread["values"]), alice.transcript().await);
    let copied = alice.on(thread["thread_id"].as_str().unwrap()).history().await;
    let shape = |states: &[Value]| -> Vec<Value> {
        states
            .iter()
            .map(|state| json!([state["metadata"]["step"], state["next"]]))
            .collect()
    };
    history.reverse();
    assert_eq!(copied.len(), 5);
    assert_eq!(shape(&copied), shape(&history));

    // The values of the first checkpoint are empty: the input comes with the second step alone, or with the first.
    for (first, second) in [(json!({}), input.clone()), (input.clone(), Value::Null)] {
        let steps = json!([{"updates": [{"values": first, "as_node": "__input__"}]},
                {"updates": [{"values": second, "as_node": "__start__"}]}]);
        let body = json!({"metadata": {"graph_id": "plain"}, "supersteps": steps});
        let thread = client.post("/threads", body).await.ok();
        assert_eq!(thread["values"]["messages"].as_array().map(Vec::len), Some(1));
        assert_eq!(alice.on(thread["thread_id"].as_str().unwrap()).history().await.len(), 2);
    }
}

async fn a_reader_of_a_pruned_log_is_refused(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let more = json!({"stream_mode": ["values"], "stream_resumable": true});
    let frames = alice.streams("hello", more).await.rest().await;
    let run = alice.run(&alice.runs().await[0]);
    let seen = frames[0].id.clone().unwrap();
    let first = Viewer::of(&server, &alice.thread).replays(1).await[0].data["seq"]
        .as_i64()
        .unwrap();
    let comes_back = async |path: &str, id: &str| {
        let request = client.request(reqwest::Method::GET, path).header("last-event-id", id);
        request.send().await.expect("an answer")
    };
    let since = async |since: i64| {
        let body = json!({"channels": ["lifecycle"], "since": since});
        client
            .request(reqwest::Method::POST, &alice.path("/stream/events"))
            .json(&body)
            .send()
            .await
            .expect("an answer")
    };
    let paths = [format!("{}/stream", run.path), alice.path("/stream")];
    for path in &paths {
        assert_eq!(comes_back(path, &seen).await.status(), 200);
    }
    assert_eq!(since(first).await.status(), 200);

    let prune = json!({"thread_ids": [alice.thread], "strategy": "keep_latest"});
    assert_eq!(client.post("/threads/prune", prune).await.ok()["pruned_count"], 1);
    for path in &paths {
        let refused = comes_back(path, &seen).await;
        assert_eq!(refused.status(), 409, "{path}");
        let body: Value = refused.json().await.unwrap();
        assert_eq!(body["code"], "resume_gap");
        assert!(
            body["detail"]
                .as_str()
                .unwrap()
                .starts_with("Last-Event-ID: the log no longer contains the events after"),
            "{body}"
        );
        assert!(body["min_available_seq"].as_i64() > body["since"].as_i64(), "{body}");
        let left = body["min_available_seq"].to_string();
        assert_eq!(comes_back(path, &left).await.status(), 200);
        assert_eq!(comes_back(path, "-1").await.status(), 200);
    }
    let refused = since(first).await;
    assert_eq!(refused.status(), 409);
    let body: Value = refused.json().await.unwrap();
    assert_eq!(&body["code"], &json!("resume_gap"));
    assert_eq!(&body["since"], &json!(first));
    assert_eq!(since(body["min_available_seq"].as_i64().unwrap()).await.status(), 200);
    assert_eq!(since(0).await.status(), 200);
}
