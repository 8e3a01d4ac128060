//! A main agent may be an agent of another server.

use serde_json::{Value, json};

use crate::remote::awaited::Peer;
use crate::support::proxy::{Proxy, ProxyState};
use crate::support::viewer::{Viewer, until_ends};
use crate::support::{Human, TestServer, eventually, lookup, mail, on_both_engines, script, task};

/// Starts a second server, and configures the agent `gateway` on the first one, which is an agent of the second.
async fn peer_of(server: &TestServer) -> Peer {
    let lines = |base: &str| {
        format!(
            "[peers]\npatience_s = 60.0\nfirst_look_s = 0.05\nlongest_look_s = 0.2\n\
             [agents.gateway]\nname = \"front\"\ngraph_id = \"agent\"\nurl = \"{base}\"\n\
             headers = {{ x-key = \"hush-hush\" }}\n\
             [agents.house]\nmodel = \"scripted:mock\"\n\
             [[agents.house.subagents]]\nname = \"door\"\ndescription = \"Asks the gateway.\"\n\
             graph_id = \"gateway\"\nasync = false\n"
        )
    };
    Peer::named_by(server, lines).await
}

/// Returns the threads on the other server that belong to this thread, oldest first.
async fn threads_there(peer: &Peer, alice: &Human) -> Vec<Value> {
    let wanted = json!({"metadata": {"parent_thread_id": alice.thread}, "limit": 100, "sort_by": "created_at",
        "sort_order": "asc"});
    let threads = peer.server.client().post("/threads/search", wanted).await.ok();
    threads.as_array().expect("a list").clone()
}

/// Returns the user of the newest of these threads.
async fn there(peer: &Peer, alice: &Human) -> Human {
    let threads = threads_there(peer, alice).await;
    let thread = threads.last().expect("a thread")["thread_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    Human::at(peer.server.client(), "agent", &thread)
}

fn research() -> impl std::fmt::Display {
    script().calls(lookup("c1", "x")).says("it is x")
}

fn mailing() -> impl std::fmt::Display {
    script().calls(mail("m1", "bob")).says("it is sent")
}

on_both_engines! {
    a_conversation_goes_on_with_every_turn_on_the_other_server,
    a_remote_main_agent_streams_in_both_protocols,
    an_interrupt_is_answered_here_after_restarts_of_both_servers,
    an_interrupt_may_be_answered_on_the_other_server,
    new_input_cancels_the_interrupt_on_the_other_server,
    cancelling_the_run_cancels_it_on_the_other_server,
    the_next_process_cancels_the_run_on_the_other_server,
    a_killed_server_finds_the_run_on_the_other_server_again,
    a_fork_sends_its_own_conversation,
    a_failure_on_the_other_server_is_the_failure_of_the_run,
    agents_that_are_each_other_end_with_an_error,
    a_remote_main_agent_may_be_a_subagent,
    the_headers_of_a_remote_main_agent_are_not_shown,
}

async fn a_conversation_goes_on_with_every_turn_on_the_other_server(server: TestServer) {
    let peer = peer_of(&server).await;
    let alice = server.human("gateway").await;
    alice.says(research()).await;
    alice.says(script().says("again x")).await;
    let said = alice.transcript().await;
    assert_eq!(
        said[1..],
        [
            "ai calls lookup",
            "lookup: found x",
            "ai: it is x",
            "human: …",
            "ai: again x"
        ]
    );
    assert_eq!(peer.server.tools.calls_of("lookup").len(), 1);
    assert_eq!(server.tools.calls_of("lookup").len(), 0);
    assert_eq!(threads_there(&peer, &alice).await.len(), 2);
    let bob = there(&peer, &alice).await;
    assert_eq!(
        bob.transcript().await[3..],
        said[3..],
        "the second turn knows the first"
    );
    let ids = |values: &Value| -> Vec<Value> {
        let messages = values["messages"].as_array().expect("a list").iter();
        messages.map(|message| message["id"].clone()).collect()
    };
    let here = alice.state().await["values"].clone();
    assert_eq!(ids(&here), ids(&bob.state().await["values"]));
    assert_eq!(here["messages"][3]["name"], "front");
    let graph = server.client().get("/assistants/gateway/graph").await.ok();
    assert_eq!(graph["nodes"][1]["id"], "model");
    peer.finish().await;
}

async fn a_remote_main_agent_streams_in_both_protocols(server: TestServer) {
    let peer = peer_of(&server).await;
    let alice = server.human("gateway").await;
    peer.server.tools.hold("lookup");
    let text = script().calls(lookup("c1", "x")).says("one two three four");
    let mut stream = alice.streams(text, json!({"stream_mode": ["messages-tuple"]})).await;
    // After the first event the stream to the other server is open: later events arrive at once.
    stream.until(|event| event.event == "messages").await;
    peer.server.tools.let_go("lookup");
    let events = stream.rest().await;
    let chunks: Vec<&str> = events
        .iter()
        .filter(|event| event.event == "messages" && event.data[0]["type"] == "AIMessageChunk")
        .filter_map(|event| event.data[0]["content"].as_str())
        .collect();
    assert_eq!(chunks.concat(), "one two three four");
    assert!(
        chunks.iter().filter(|chunk| !chunk.is_empty()).count() > 1,
        "{chunks:?}"
    );

    let viewer = Viewer::of_new(&server);
    viewer.starts("gateway", research()).await;
    let live = until_ends(&mut viewer.opens_all().await, 1).await;
    for frames in [live, viewer.replays(1).await] {
        let finished = frames
            .iter()
            .filter(|frame| frame.event == "messages" && frame.data["params"]["data"]["event"] == "message-finish");
        // The call of the model, and its answer.
        assert_eq!(finished.count(), 2, "{frames:#?}");
    }
    peer.finish().await;
}

async fn an_interrupt_is_answered_here_after_restarts_of_both_servers(server: TestServer) {
    let peer = peer_of(&server).await;
    let alice = server.human("gateway").await;
    alice.says(mailing()).await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "front");
    assert_eq!(question.0["kind"], "tool_approval");
    assert_eq!(question.requests()[0]["name"], "send_email");
    server.is_stopped_and_started_again().await;
    peer.server.is_stopped_and_started_again().await;
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: it is sent");
    assert_eq!(peer.server.tools.keys_of("send_email").len(), 1);
    assert_eq!(there(&peer, &alice).await.runs().await.len(), 2);
    assert_eq!(threads_there(&peer, &alice).await.len(), 1);
    peer.finish().await;
}

async fn an_interrupt_may_be_answered_on_the_other_server(server: TestServer) {
    let peer = peer_of(&server).await;
    let alice = server.human("gateway").await;
    alice.says(mailing()).await;
    let question = alice.question().await;
    let bob = there(&peer, &alice).await;
    bob.approves(&bob.question().await).await.finishes().await;
    eventually(async || alice.status().await == "idle").await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: it is sent");
    assert!(alice.questions().await.is_empty());
    let runs = alice.runs().await;
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[0]["metadata"]["settled_elsewhere"], json!([runs[1]["run_id"]]));
    let path = alice.path(&format!("/interrupts/{}", question.id()));
    let told = server.client().get(&path).await.ok();
    assert_eq!(
        told["resolution"]["answer"],
        json!({"adjutant_settled_elsewhere": true})
    );
    peer.finish().await;
}

async fn new_input_cancels_the_interrupt_on_the_other_server(server: TestServer) {
    let peer = peer_of(&server).await;
    let alice = server.human("gateway").await;
    alice.says(mailing()).await;
    let bob = there(&peer, &alice).await;
    assert_eq!(bob.questions().await.len(), 1);
    alice.says(script().says("never mind")).await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: never mind");
    eventually(async || bob.questions().await.is_empty()).await;
    assert_eq!(peer.server.tools.keys_of("send_email").len(), 0);
    peer.finish().await;
}

async fn cancelling_the_run_cancels_it_on_the_other_server(server: TestServer) {
    let peer = peer_of(&server).await;
    peer.server.tools.hold("lookup");
    let alice = server.human("gateway").await;
    let run = alice.asks(research()).await;
    peer.server.tools.called("lookup", 1).await;
    run.is_cancelled("interrupt").await.ok();
    eventually(async || peer.runs().await[0]["status"] == "interrupted").await;
    assert_eq!(alice.status().await, "interrupted");
    peer.server.tools.let_go("lookup");
    peer.finish().await;
}

async fn the_next_process_cancels_the_run_on_the_other_server(server: TestServer) {
    let peer = peer_of(&server).await;
    server.moves_into_a_process().await;
    peer.server.tools.hold("lookup");
    let alice = server.human("gateway").await;
    let run = alice.asks(research()).await;
    peer.server.tools.called("lookup", 1).await;
    peer.outlives_a_kill_during_the_cancellation(&server, &run).await;
}

async fn a_killed_server_finds_the_run_on_the_other_server_again(server: TestServer) {
    let peer = peer_of(&server).await;
    server.moves_into_a_process().await;
    peer.server.tools.hold("lookup");
    let alice = server.human("gateway").await;
    let run = alice
        .asks(script().calls(lookup("c1", "x")).calls(mail("m1", "bob")).says("done"))
        .await;
    peer.server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    peer.server.tools.let_go("lookup");
    run.finishes().await;
    let question = alice.question().await;
    server.is_killed_and_started_again().await;
    alice.approves(&question).await.finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
    assert_eq!(peer.runs().await.len(), 2);
    assert_eq!(peer.server.tools.keys_of("send_email").len(), 1);
    peer.finish().await;
}

async fn a_fork_sends_its_own_conversation(server: TestServer) {
    let peer = peer_of(&server).await;
    let alice = server.human("gateway").await;
    alice.says(script().says("one")).await;
    let first = alice.state().await["checkpoint"].clone();
    alice.says(script().says("two")).await;
    let fork = alice.run_body(script().says("three"), json!({"checkpoint": first}));
    alice.starts(fork).await.finishes().await;
    let said = ["human: …", "ai: one", "human: …", "ai: three"];
    assert_eq!(alice.transcript().await, said);
    assert_eq!(there(&peer, &alice).await.transcript().await, said);
    peer.finish().await;
}

async fn a_failure_on_the_other_server_is_the_failure_of_the_run(server: TestServer) {
    let peer = peer_of(&server).await;
    let alice = server.human("gateway").await;
    let run = alice.asks(script().fails(400)).await;
    run.finishes().await;
    assert_eq!(run.status().await, "error");
    let error = alice.record().await["error"].to_string();
    assert!(error.contains("RemoteAgentError"), "{error}");
    assert!(error.contains("The agent `agent` at http://"), "{error}");
    assert!(error.contains("ModelRefusedError"), "{error}");
    alice.says(script().says("better")).await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: better");
    peer.finish().await;
}

async fn agents_that_are_each_other_end_with_an_error(server: TestServer) {
    let ring = |base: &str| format!("[agents.ring]\ngraph_id = \"ring\"\nurl = \"{base}\"\n");
    let peer = Peer::named_by(&server, ring).await;
    let back = Proxy::before(server.client()).await;
    peer.server.is_configured_with(&ring(&back.base)).await;
    let alice = server.human("ring").await;
    let run = alice.asks("hello").await;
    run.finishes().await;
    assert_eq!(run.status().await, "error");
    let error = alice.record().await["error"].to_string();
    assert!(error.contains("was passed on by 8 servers"), "{error}");
    peer.finish().await;
}

async fn a_remote_main_agent_may_be_a_subagent(server: TestServer) {
    let peer = peer_of(&server).await;
    server.moves_into_a_process().await;
    let alice = server.human("house").await;
    alice
        .says(script().calls(task("t1", "door", research())).says("done"))
        .await;
    assert_eq!(alice.transcript().await[2..], ["task: it is x", "ai: done"]);
    // A run that was stopped is cancelled there, whatever its caller names the agent.
    peer.server.tools.hold("lookup");
    let run = alice
        .asks(script().calls(task("t2", "door", research())).says("done"))
        .await;
    peer.server.tools.called("lookup", 2).await;
    peer.door.is(ProxyState::Shut);
    run.is_cancelled("interrupt").await.ok();
    eventually(async || run.status().await == "interrupted").await;
    server.is_killed_and_started_again().await;
    peer.door.is(ProxyState::Open);
    let bob = there(&peer, &alice).await;
    eventually(async || bob.runs().await[0]["status"] == "interrupted").await;
    peer.server.tools.let_go("lookup");
    peer.finish().await;
}

async fn the_headers_of_a_remote_main_agent_are_not_shown(server: TestServer) {
    let peer = peer_of(&server).await;
    let client = server.client();
    let shown = client.get("/agents/gateway").await.ok().to_string();
    assert!(shown.contains("x-key") && !shown.contains("hush-hush"), "{shown}");
    let url = json!({"graph_id": "agent", "url": client.base()});
    let refused = client.put("/agents/curious", url).await;
    assert_eq!(refused.status, 422, "{refused:?}");
    assert!(refused.body.to_string().contains("[peers]"), "{refused:?}");
    peer.finish().await;
}
