//! A subagent may be an agent on another server.

use std::fmt;
use std::future::{Ready, ready};

use adjutant::shutdown::Shutdown;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::support::actors::Run;
use crate::support::proxy::{Proxy, ProxyState};
use crate::support::viewer::{Viewer, data, depth, until_ends};
use crate::support::{
    Human, TestServer, call, eventually, lookup, mail, on_both_engines, on_postgres, script, starts_service, task,
    two_mailers,
};

/// A second server, whose agents are subagents of the server under test.
pub(crate) struct Peer {
    pub(crate) server: TestServer,
    pub(crate) door: Proxy,
}

impl Peer {
    /// Starts a second server, and configures the agent `caller` on the first one, whose subagents are agents of the
    /// second.
    pub(crate) async fn of(server: &TestServer) -> Self {
        Self::waited_for(server, 60.0).await
    }

    /// Starts a second server, for which the first one waits for this many seconds.
    async fn waited_for(server: &TestServer, seconds: f64) -> Self {
        Self::named_by(server, |base| agents(base, seconds)).await
    }

    /// Starts a second server, and adds the lines that `lines` returns for its address to the configuration of the
    /// first one.
    pub(crate) async fn named_by(server: &TestServer, lines: impl Fn(&str) -> String) -> Self {
        let peer = TestServer::start(server.engine)
            .await
            .expect("there was one of this kind");
        let door = Proxy::before(peer.client()).await;
        server.is_configured_with(&lines(&door.base)).await;
        Self { server: peer, door }
    }

    /// Returns the only thread of the second server.
    async fn thread(&self) -> Value {
        let threads = self
            .server
            .client()
            .post("/threads/search", json!({"limit": 10}))
            .await
            .ok();
        let [thread] = &threads.as_array().expect("a list")[..] else {
            panic!("not one thread: {threads:#}")
        };
        thread.clone()
    }

    /// Returns the runs on that thread, newest first.
    pub(crate) async fn runs(&self) -> Vec<Value> {
        let path = format!(
            "/threads/{}/runs",
            self.thread().await["thread_id"].as_str().expect("an id")
        );
        self.server
            .client()
            .get(&path)
            .await
            .ok()
            .as_array()
            .expect("a list")
            .clone()
    }

    /// Has `run`, whose work is a held `lookup` here, cancelled while this server cannot be reached and the process that
    /// would repeat the cancellation is killed. The next process has to repeat it.
    pub(crate) async fn outlives_a_kill_during_the_cancellation(self, server: &TestServer, run: &Run) {
        self.door.is(ProxyState::Shut);
        run.is_cancelled("interrupt").await.ok();
        eventually(async || run.status().await == "interrupted").await;
        server.is_killed_and_started_again().await;
        self.door.is(ProxyState::Open);
        eventually(async || self.runs().await[0]["status"] == "interrupted").await;
        self.server.tools.let_go("lookup");
        self.finish().await;
    }

    /// Checks that no run is left on the second server, and removes it.
    pub(crate) async fn finish(self) {
        self.server.finish().await;
    }
}

/// Returns agents whose subagents are agents of the server at `base`.
fn agents(base: &str, patience: f64) -> String {
    let subagent = |agent: &str, (name, graph_id): (&str, &str), more: &str| {
        format!(
            "[[agents.{agent}.subagents]]\nname = \"{name}\"\ndescription = \"Works on another server as {name}.\"\n\
             graph_id = \"{graph_id}\"\nurl = \"{base}\"\nasync = false\nheaders = {{ x-key = \"hush-hush\" }}\n{more}\n"
        )
    };
    let agent = |name: &str, depth: u32| {
        let model = "model = \"scripted:mock\"\ntools = [\"lookup\"]";
        format!("[agents.{name}]\nname = \"{name}-agent\"\n{model}\nmax_subagent_depth = {depth}\n")
    };
    let parts = [
        format!("[peers]\npatience_s = {patience:?}\n"),
        agent("caller", 2),
        subagent("caller", ("far", "agent"), ""),
        subagent("caller", ("hurried", "plain"), "limits = { wall_s = 1.5 }"),
        agent("shallow", 1),
        subagent("shallow", ("far", "agent"), ""),
    ];
    parts.join("\n")
}

/// Returns a delegation to the agent on the other server.
pub(crate) fn far(id: &str, work: impl fmt::Display) -> Value {
    task(id, "far", work)
}

/// Returns a user whose agent has delegated this script to the other server, and the run.
async fn asks(server: &TestServer, work: impl fmt::Display) -> (Human, Run) {
    let alice = server.human("caller").await;
    let run = alice.asks(script().calls(far("t1", work)).says("done")).await;
    (alice, run)
}

/// The answer of a server that creates each thread that it is asked for.
pub(super) fn create_thread(Json(body): Json<Value>) -> Ready<Json<Value>> {
    ready(Json(json!({"thread_id": body["thread_id"]})))
}

/// Starts a server with invalid responses: a finished run without messages, or a refusal that contains the caller's
/// secret.
async fn odd_server(around: &Shutdown) -> String {
    let id = "01a20234-fe65-74ae-ae65-82a968c820e5";
    let begin = async move |headers: HeaderMap, body: String| {
        let key = headers["x-key"].to_str().expect("a text");
        match body.contains("echoes") {
            true => (
                StatusCode::BAD_REQUEST,
                Json(json!({"detail": format!("your key is {key}")})),
            ),
            false => (StatusCode::OK, Json(json!({"run_id": id, "status": "success"}))),
        }
    };
    let router = Router::new()
        .route("/threads", post(create_thread))
        .route("/threads/{thread}/runs", get(async || Json(json!([]))).post(begin))
        .route(
            "/threads/{thread}/state",
            get(async || Json(json!({"values": {"result": 42}, "next": []}))),
        );
    starts_service("odd server", router, around).await
}

const DONE: [&str; 4] = ["human: …", "ai calls task", "task: it is x", "ai: done"];

fn research() -> impl fmt::Display {
    script().calls(lookup("c1", "x")).says("it is x")
}

on_both_engines! {
    a_remote_agent_executes_a_task,
    the_answer_of_a_remote_agent_is_streamed_in_pieces,
    each_message_of_a_remote_agent_is_streamed_once,
    an_interrupt_of_a_remote_agent_is_answered_locally,
    several_remote_interrupts_are_answered_one_after_the_other,
    a_failed_remote_run_is_an_error_result,
    cancelling_a_run_cancels_its_remote_run,
    cancelling_a_remote_subagent_cancels_its_remote_run_only,
    an_unreachable_server_is_an_error_result_after_a_timeout,
    a_remote_run_continues_after_a_restart_of_its_server,
    a_remote_run_whose_start_was_not_acknowledged_is_found,
    a_remote_run_past_its_time_limit_is_cancelled,
    the_maximum_depth_applies_across_servers,
    headers_for_another_server_are_not_shown,
    an_invalid_remote_response_is_an_error_result,
    a_definition_of_a_client_cannot_use_private_addresses,
}

on_postgres! {
    a_remote_run_goes_on_when_the_waiting_server_has_lost_its_lease,
}

async fn a_remote_agent_executes_a_task(server: TestServer) {
    let peer = Peer::of(&server).await;
    let (alice, run) = asks(&server, research()).await;
    run.finishes().await;
    assert_eq!(alice.transcript().await, DONE);
    assert_eq!(peer.server.tools.calls_of("lookup").len(), 1);
    assert_eq!(server.tools.calls_of("lookup").len(), 0);
    let [child] = &run.children().await[..] else {
        panic!("one child")
    };
    assert_eq!(&child["agent_name"], &json!("far"));
    assert_eq!(&child["status"], &json!("success"));
    let there = peer.thread().await;
    assert_eq!(there["metadata"]["subagent_name"], "far");
    assert_eq!(there["metadata"]["parent_thread_id"], alice.record().await["thread_id"]);
    let state = server
        .client()
        .get(&format!("{}/state", alice.run(child).path))
        .await
        .ok();
    let theirs = peer
        .server
        .client()
        .get(&format!("/threads/{}/state", there["thread_id"].as_str().unwrap()))
        .await
        .ok();
    let ids = |state: &Value| -> Vec<Value> {
        state["values"]["messages"]
            .as_array()
            .unwrap()
            .iter()
            .skip(1)
            .map(|message| message["id"].clone())
            .collect()
    };
    assert_eq!(ids(&state), ids(&theirs), "what was said there can be read here");
    peer.finish().await;
}

async fn the_answer_of_a_remote_agent_is_streamed_in_pieces(server: TestServer) {
    let peer = Peer::of(&server).await;
    let alice = server.human("caller").await;
    peer.server.tools.hold("lookup");
    let work = script().calls(lookup("c1", "x")).says("one two three four").to_string();
    let input =
        json!({"messages": [{"role": "user", "content": script().calls(far("t1", work)).says("done").to_string()}]});
    let run_body =
        json!({"assistant_id": "caller", "input": input, "stream_mode": ["messages-tuple"], "stream_subgraphs": true});
    let mut stream = server.client().post_stream(&alice.path("/runs/stream"), run_body).await;
    // After the first event the stream to the other server is open: later events arrive at once.
    stream.until(|event| event.event.starts_with("messages|tools:")).await;
    peer.server.tools.let_go("lookup");
    let events = stream.rest().await;
    let below = events.iter().filter(|event| event.event.starts_with("messages|tools:"));
    let pieces: Vec<&Value> = below
        .map(|event| &event.data)
        .filter(|data| data[1]["lc_agent_name"] == "far")
        .collect();
    let chunks: Vec<&str> = pieces
        .iter()
        .filter(|data| data[0]["type"] == "AIMessageChunk")
        .filter_map(|data| data[0]["content"].as_str())
        .collect();
    assert_eq!(chunks.concat(), "one two three four");
    assert!(
        chunks.iter().filter(|chunk| !chunk.is_empty()).count() > 1,
        "{chunks:?}"
    );
    peer.finish().await;
}

async fn each_message_of_a_remote_agent_is_streamed_once(server: TestServer) {
    let peer = Peer::of(&server).await;
    let viewer = Viewer::of_new(&server);
    viewer
        .starts("caller", script().calls(far("t1", research())).says("done"))
        .await;
    let mut stream = viewer.opens_all().await;
    let live = until_ends(&mut stream, 1).await;
    for frames in [live, viewer.replays(1).await] {
        let below = frames
            .iter()
            .filter(|frame| frame.event == "messages" && depth(frame) == 1);
        let below: Vec<&Value> = below
            .filter(|frame| frame.data["params"]["agent_name"] == "far")
            .map(data)
            .collect();
        let ids = |event: &str| -> Vec<&str> {
            let of = below.iter().filter(|data| data["event"] == event);
            let mut ids: Vec<&str> = of.filter_map(|data| data["id"].as_str()).collect();
            ids.sort_unstable();
            ids
        };
        let begun = ids("message-start");
        let unique: std::collections::BTreeSet<&str> = begun.iter().copied().collect();
        // The call of the model, and its answer.
        assert!(begun.len() == 2, "{below:#?}");
        assert!(unique.len() == 2, "{below:#?}");
        let of = |event: &str| below.iter().filter(|data| data["event"] == event).count();
        assert_eq!(of("message-finish"), 2, "{below:#?}");
        assert_eq!(of("error"), 0, "{below:#?}");
    }
    peer.finish().await;
}

async fn an_interrupt_of_a_remote_agent_is_answered_locally(server: TestServer) {
    let peer = Peer::of(&server).await;
    let (alice, run) = asks(&server, script().calls(mail("m1", "bob")).says("it is x")).await;
    run.finishes().await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "far");
    assert_eq!(&question.0["task_call_id"], &json!("t1"));
    assert_eq!(question.0["agent_path"], json!(["caller-agent", "far"]));
    assert_eq!(&question.0["kind"], &json!("tool_approval"));
    assert_eq!(&question.requests()[0]["name"], &json!("send_email"));
    let wrong = alice
        .resolves(&question, json!({"decisions": [{"type": "respond", "message": "x"}]}))
        .await;
    wrong.refused(422);
    server.is_stopped_and_started_again().await;
    peer.server.is_stopped_and_started_again().await;
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await, DONE);
    assert_eq!(peer.server.tools.keys_of("send_email").len(), 1);
    assert_eq!(peer.runs().await.len(), 2);
    peer.finish().await;
}

async fn several_remote_interrupts_are_answered_one_after_the_other(server: TestServer) {
    let peer = Peer::of(&server).await;
    let (alice, run) = asks(&server, script().calls_all(two_mailers()).says("it is x")).await;
    run.finishes().await;
    let [first, second] = &alice.questions().await[..] else {
        panic!("two questions")
    };
    assert_ne!(first.id(), second.id());
    alice.approves(second).await.finishes().await;
    assert_eq!(alice.status().await.as_str(), "interrupted");
    assert_eq!(peer.server.tools.keys_of("send_email").len(), 0);
    alice.rejects(first, "no").await.finishes().await;
    assert_eq!(alice.transcript().await, DONE);
    assert_eq!(
        peer.server.tools.calls_of("send_email")[0]["args"]["to"],
        second.requests()[0]["args"]["to"]
    );
    peer.finish().await;
}

async fn a_failed_remote_run_is_an_error_result(server: TestServer) {
    let peer = Peer::of(&server).await;
    let (alice, run) = asks(&server, script().fails(400)).await;
    run.finishes().await;
    let told = alice.transcript().await[2].clone();
    assert!(
        told.starts_with("task failed: The subagent `far` failed (RemoteAgentError): The agent `agent` at http://"),
        "{told}"
    );
    assert!(told.contains("ModelRefusedError"), "{told}");
    assert!(alice.status().await == "idle", "{told}");
    peer.finish().await;
}

async fn cancelling_a_run_cancels_its_remote_run(server: TestServer) {
    let peer = Peer::of(&server).await;
    peer.server.tools.hold("lookup");
    let (alice, run) = asks(&server, research()).await;
    peer.server.tools.called("lookup", 1).await;
    run.is_cancelled("interrupt").await.ok();
    eventually(async || peer.runs().await[0]["status"] == "interrupted").await;
    assert_eq!(alice.status().await, "interrupted");
    peer.finish().await;
}

async fn cancelling_a_remote_subagent_cancels_its_remote_run_only(server: TestServer) {
    let peer = Peer::of(&server).await;
    peer.server.tools.hold("lookup");
    let (alice, run) = asks(&server, research()).await;
    peer.server.tools.called("lookup", 1).await;
    let [child] = &run.children().await[..] else {
        panic!("one child")
    };
    alice.run(child).is_cancelled("interrupt").await.ok();
    run.finishes().await;
    eventually(async || peer.runs().await[0]["status"] == "interrupted").await;
    let told = alice.transcript().await[2].clone();
    assert_eq!(
        told,
        "task failed: The subagent `far` was cancelled by request before it was done: it has no result."
    );
    peer.finish().await;
}

async fn an_unreachable_server_is_an_error_result_after_a_timeout(server: TestServer) {
    let peer = Peer::waited_for(&server, 1.0).await;
    for way in [ProxyState::Shut, ProxyState::Mute] {
        peer.door.is(way);
        let alice = server.human("caller").await;
        let calls = [far("t1", "hello"), lookup("c1", "x")];
        alice.says(script().calls_all(calls).says("done")).await;
        let said = alice.transcript().await;
        let expected =
            "task failed: The subagent `far` failed (RemoteAgentError): The agent `agent` at http://127.0.0.1:";
        assert!(said[2].starts_with(expected), "{said:#?}");
        assert!(said[2].contains("could not be reached"), "{said:#?}");
        assert_eq!(said[3].as_str(), "lookup: found x");
        assert_eq!(said[4].as_str(), "ai: done");
    }
    peer.door.is(ProxyState::Open);
    peer.finish().await;
}

async fn a_remote_run_continues_after_a_restart_of_its_server(server: TestServer) {
    let peer = Peer::of(&server).await;
    peer.server.moves_into_a_process().await;
    peer.server.tools.hold("lookup");
    let (alice, run) = asks(&server, research()).await;
    peer.server.tools.called("lookup", 1).await;
    peer.door.is(ProxyState::Shut);
    peer.server.is_killed_and_started_again().await;
    peer.server.tools.let_go("lookup");
    peer.door.is(ProxyState::Open);
    run.finishes().await;
    assert_eq!(alice.transcript().await, DONE);
    assert_eq!(peer.runs().await.len(), 1);
    peer.finish().await;
}

async fn a_remote_run_whose_start_was_not_acknowledged_is_found(server: TestServer) {
    let peer = Peer::of(&server).await;
    peer.door.is(ProxyState::Forgetful);
    let (alice, run) = asks(&server, research()).await;
    run.finishes().await;
    assert_eq!(alice.transcript().await, DONE);
    assert_eq!(peer.runs().await.len(), 1);
    assert_eq!(peer.server.tools.calls_of("lookup").len(), 1);
    peer.finish().await;
}

async fn a_remote_run_past_its_time_limit_is_cancelled(server: TestServer) {
    let peer = Peer::of(&server).await;
    peer.server.tools.hold("slow");
    let alice = server.human("caller").await;
    alice
        .says(
            script()
                .calls(task(
                    "t1",
                    "hurried",
                    script().calls(call("s1", "slow", json!({}))).says("x"),
                ))
                .says("done"),
        )
        .await;
    let told = alice.transcript().await[2].clone();
    assert!(told.contains("LimitExceededError"), "{told}");
    assert!(told.contains("wall_s"), "{told}");
    peer.server.tools.let_go("slow");
    eventually(async || peer.runs().await.iter().all(|run| run["status"] != "running")).await;
    assert_eq!(peer.runs().await.len(), 1);
    peer.finish().await;
}

async fn the_maximum_depth_applies_across_servers(server: TestServer) {
    let peer = Peer::of(&server).await;
    let alice = server.human("shallow").await;
    let deeper = script().calls(task("t2", "researcher", "go on")).says("it is x");
    alice.says(script().calls(far("t1", deeper)).says("done")).await;
    assert_eq!(alice.transcript().await, DONE);
    let there = peer.thread().await["values"]["messages"][2]["content"].clone();
    assert!(
        there
            .as_str()
            .is_some_and(|text| text.starts_with("Error: task is not a valid tool")),
        "{there}"
    );
    peer.finish().await;
}

async fn headers_for_another_server_are_not_shown(server: TestServer) {
    let peer = Peer::of(&server).await;
    let (alice, run) = asks(&server, research()).await;
    run.finishes().await;
    let client = server.client();
    for path in [
        "/agents/caller".to_owned(),
        "/agents/caller/versions".to_owned(),
        alice.path("/state"),
        run.path.clone(),
    ] {
        let shown = client.get(&path).await;
        assert!(
            shown.status != 200 || !shown.body.to_string().contains("hush-hush"),
            "{path}"
        );
    }
    peer.finish().await;
}

async fn an_invalid_remote_response_is_an_error_result(server: TestServer) {
    let around = Shutdown::default();
    let odd = odd_server(&around).await;
    server.is_configured_with(&agents(&odd, 60.0)).await;
    let alice = server.human("caller").await;
    let calls = [
        far("t1", "answers without messages"),
        far("t2", "echoes what it is sent"),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    assert!(
        said[2].ends_with(
            "its final state has no `messages`. Its other work is kept; delegate again if the task is still needed."
        ),
        "{said:#?}"
    );
    assert!(
        said[3].contains("it answered with status 400: your key is ***"),
        "{said:#?}"
    );
    assert_eq!(said[4], "ai: done");
    around.force();
}

async fn a_definition_of_a_client_cannot_use_private_addresses(server: TestServer) {
    let client = server.client();
    let subagent = json!({"name": "far", "description": "Far away.", "graph_id": "agent", "async": false,
            "url": client.base()});
    let definition = json!({"model": "scripted:mock", "subagents": [subagent]});
    let refused = client.put("/agents/curious", definition.clone()).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.body.to_string().contains("subagents[0].url"), "{refused:?}");
    server
        .is_configured_with("[peers]\nprivate_hosts = [\"127.0.0.1\"]\n")
        .await;
    client.put("/agents/curious", definition).await.ok();
}

async fn a_remote_run_goes_on_when_the_waiting_server_has_lost_its_lease(server: TestServer) {
    let peer = Peer::of(&server).await;
    server.moves_into_a_process().await;
    peer.server.tools.hold("lookup");
    let (alice, run) = asks(&server, research()).await;
    peer.server.tools.called("lookup", 1).await;
    server.is_suspended().await;
    let with_lease = "select count(*) from workers \
        where alive_until > cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)";
    eventually(async || server.number_in_database(with_lease).await == 0).await;
    server.is_continued().await;
    server.log().gets_one_of(&["the lease of this process is over"]).await;
    eventually(async || {
        server
            .number_in_database("select count(*) from runs where attempt > 1")
            .await
            == 1
    })
    .await;
    peer.server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(alice.transcript().await, DONE);
    assert_eq!(peer.server.tools.calls_of("lookup").len(), 1);
    let there: Vec<Value> = peer.runs().await.iter().map(|run| run["status"].clone()).collect();
    assert_eq!(there, ["success"]);
    peer.finish().await;
}
