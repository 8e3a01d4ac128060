//! Interrupts of remote agents, which may be answered on the other server, too.

use serde_json::{Value, json};

use crate::remote::awaited::{Peer, far};
use crate::support::proxy::ProxyState;
use crate::support::script::Script;
use crate::support::{Engine, Human, TestServer, eventually, mail, on_both_engines, play, script, task};

/// Starts a second server, and configures the agent `onlooker` on the first one, whose subagent is an agent of the
/// second.
async fn peer_of(server: &TestServer) -> Peer {
    let lines = |base: &str| {
        format!(
            "[peers]\npatience_s = 60.0\nfirst_look_s = 0.05\nlongest_look_s = 0.2\n\
             [agents.onlooker]\nmodel = \"scripted:mock\"\n\
             [[agents.onlooker.subagents]]\nname = \"far\"\ndescription = \"Works on another server.\"\n\
             graph_id = \"agent\"\nurl = \"{base}\"\nasync = false\n"
        )
    };
    Peer::named_by(server, lines).await
}

/// Returns a user whose remote subagent is interrupted, and a user of its thread on the other server.
async fn both_are_asked(server: &TestServer, peer: &Peer, work: impl std::fmt::Display) -> (Human, Human) {
    let alice = server.human("onlooker").await;
    alice
        .asks(script().calls(far("t1", work)).says("done"))
        .await
        .finishes()
        .await;
    let path = json!({"metadata": {"parent_thread_id": alice.thread}});
    let threads = peer.server.client().post("/threads/search", path).await.ok();
    let thread = threads[0]["thread_id"].as_str().expect("an id");
    (alice, Human::at(peer.server.client(), "agent", thread))
}

/// Returns a script that sends these mails, each of which needs an approval.
fn mails(to: &[&str]) -> impl std::fmt::Display {
    let ask = |script: Script, (at, to): (usize, &&str)| script.calls(mail(&format!("m{at}"), to));
    to.iter().enumerate().fold(script(), ask).says("it is x")
}

fn sent(peer: &Peer) -> usize {
    peer.server.tools.keys_of("send_email").len()
}

/// Returns the recipient in the only pending interrupt.
async fn asked_about(human: &Human) -> Option<Value> {
    let [question] = &human.questions().await[..] else {
        return None;
    };
    Some(question.requests()[0]["args"]["to"].clone())
}

const DONE: [&str; 4] = ["human: …", "ai calls task", "task: it is x", "ai: done"];

on_both_engines! {
    an_answer_on_the_remote_server_resolves_the_interrupt,
    the_next_process_finds_a_remote_answer,
    the_next_remote_interrupt_is_shown,
    an_answer_does_not_apply_to_the_next_interrupt,
    answers_on_both_servers_execute_the_call_once,
    an_interrupted_sibling_stays_interrupted,
    a_deleted_remote_thread_is_an_error_result,
    the_end_of_the_turn_cancels_the_run_on_the_remote_server,
    an_approval_of_one_call_takes_a_list_of_one_decision,
}

/// Agents of the other server that ask about each call.
const SINGLE: &str = r#"
[agents.single]
model = "scripted:lab"
system_prompt = "x"
tools = ["send_email"]
interrupt_mode = "per_call"
interrupt_on = { send_email = true }

[[agents.single.subagents]]
name = "mailer"
description = "Sends mails to whoever should get one."
system_prompt = "x"
"#;

async fn an_approval_of_one_call_takes_a_list_of_one_decision(server: TestServer) {
    let lines = |base: &str| {
        format!(
            "[peers]\npatience_s = 60.0\nfirst_look_s = 0.05\nlongest_look_s = 0.2\n\
             [agents.asker]\nmodel = \"scripted:mock\"\nmax_subagent_depth = 2\n\
             [[agents.asker.subagents]]\nname = \"single\"\ndescription = \"Asks about each call.\"\n\
             graph_id = \"single\"\nurl = \"{base}\"\nasync = false\n"
        )
    };
    let peer = Peer::named_by(&server, lines).await;
    peer.server.is_configured_with(SINGLE).await;
    let sends = script().calls(mail("m1", "ann")).says("it is x");
    let delegates = script().calls(task("n1", "mailer", &sends)).says("it is x");
    for (number, work) in [(1, sends), (2, delegates)] {
        let alice = server.human("asker").await;
        alice
            .asks(script().calls(task("t1", "single", work)).says("done"))
            .await
            .finishes()
            .await;
        let question = alice.question().await;
        assert_eq!(question.agent(), "single");
        assert_eq!(question.0["kind"], "tool_approval");
        assert_eq!(question.0["value"]["type"], "tool_approval");
        let unknown = json!({"decisions": [{"type": "later"}]});
        let refusal = alice.resolves(&question, unknown).await.refused(422);
        assert!(refusal.starts_with("decisions[0].type: "), "{refusal}");
        assert_eq!(sent(&peer), number - 1);
        let listed = json!({"decisions": [{"type": "approve"}]});
        let answered = alice.resolves(&question, listed).await.ok();
        alice.run(&answered).finishes().await;
        assert_eq!(alice.transcript().await.last().unwrap(), "ai: done");
        assert_eq!(sent(&peer), number);
    }
    peer.finish().await;
}

async fn an_answer_on_the_remote_server_resolves_the_interrupt(server: TestServer) {
    let peer = peer_of(&server).await;
    let (alice, bob) = both_are_asked(&server, &peer, mails(&["ann"])).await;
    let question = alice.question().await;
    bob.approves(&bob.question().await).await.finishes().await;
    eventually(async || alice.status().await == "idle").await;
    assert_eq!(alice.transcript().await, DONE);
    assert!(alice.questions().await.is_empty());
    let runs = alice.runs().await;
    assert_eq!(runs.len(), 2);
    assert_eq!(bob.runs().await.len(), 2);
    assert_eq!(sent(&peer), 1);
    let child = &alice.run(&runs[1]).children().await[0];
    assert_eq!(&runs[0]["metadata"]["settled_elsewhere"], &json!([child["run_id"]]));
    assert_eq!(&child["status"], &json!("success"));
    let told = server
        .client()
        .get(&alice.path(&format!("/interrupts/{}", question.id())))
        .await
        .ok();
    assert_eq!(&told["status"], &json!("resolved"));
    assert_eq!(
        &told["resolution"]["answer"],
        &json!({"adjutant_settled_elsewhere": true})
    );
    let late = alice
        .resolves(&question, json!({"decisions": [{"type": "reject"}]}))
        .await;
    assert_eq!(late.status, 409, "{late:?}");
    peer.finish().await;
}

async fn the_next_process_finds_a_remote_answer(server: TestServer) {
    let peer = peer_of(&server).await;
    server.moves_into_a_process().await;
    let (alice, bob) = both_are_asked(&server, &peer, mails(&["ann"])).await;
    peer.door.is(ProxyState::Shut);
    bob.approves(&bob.question().await).await.finishes().await;
    server.is_killed_and_started_again().await;
    assert_eq!(alice.questions().await.len(), 1, "nobody here can know");
    peer.door.is(ProxyState::Open);
    eventually(async || alice.status().await == "idle").await;
    assert_eq!(alice.transcript().await, DONE.map(str::to_owned).to_vec());
    assert_eq!(alice.runs().await.len(), 2);
    assert_eq!(sent(&peer), 1);
    peer.finish().await;
}

async fn the_next_remote_interrupt_is_shown(server: TestServer) {
    let peer = peer_of(&server).await;
    let (alice, bob) = both_are_asked(&server, &peer, mails(&["ann", "eve"])).await;
    bob.approves(&bob.question().await).await.finishes().await;
    eventually(async || asked_about(&alice).await == Some(json!("eve"))).await;
    eventually(async || alice.status().await == "interrupted").await;
    alice.approves(&alice.question().await).await.finishes().await;
    assert_eq!(alice.transcript().await, DONE.map(str::to_owned).to_vec());
    assert_eq!(alice.runs().await.len(), 3);
    assert_eq!(sent(&peer), 2);
    assert_eq!(bob.runs().await.len(), 3);
    peer.finish().await;
}

async fn an_answer_does_not_apply_to_the_next_interrupt(server: TestServer) {
    let peer = peer_of(&server).await;
    let (alice, bob) = both_are_asked(&server, &peer, mails(&["ann", "eve"])).await;
    // The other server is not to be seen from here when the same question is answered here.
    peer.door.is(ProxyState::Shut);
    bob.approves(&bob.question().await).await.finishes().await;
    let run = alice.approves(&alice.question().await).await;
    peer.door.is(ProxyState::Open);
    run.finishes().await;
    assert_eq!(asked_about(&alice).await, Some(json!("eve")));
    assert_eq!(sent(&peer), 1);
    alice.rejects(&alice.question().await, "no").await.finishes().await;
    assert_eq!(alice.transcript().await, DONE.map(str::to_owned).to_vec());
    assert_eq!(sent(&peer), 1);
    peer.finish().await;
}

async fn answers_on_both_servers_execute_the_call_once(server: TestServer) {
    let peer = peer_of(&server).await;
    for number in 1..=3 {
        let (alice, bob) = both_are_asked(&server, &peer, mails(&["ann"])).await;
        let yes = || json!({"decisions": [{"type": "approve"}]});
        let here = alice.question().await;
        let there = bob.question().await;
        let (first, second) = tokio::join!(alice.resolves(&here, yes()), bob.resolves(&there, yes()));
        assert!([202, 409].contains(&first.status), "{first:?} {second:?}");
        assert!([202, 409].contains(&second.status), "{first:?} {second:?}");
        eventually(async || alice.status().await == "idle").await;
        assert_eq!(alice.transcript().await, DONE.map(str::to_owned).to_vec());
        assert_eq!(bob.runs().await.len(), 2);
        assert_eq!(sent(&peer), number);
    }
    peer.finish().await;
}

async fn an_interrupted_sibling_stays_interrupted(server: TestServer) {
    let peer = peer_of(&server).await;
    let alice = server.human("onlooker").await;
    let calls = [far("t1", mails(&["ann"])), far("t2", mails(&["eve"]))];
    alice
        .asks(script().calls_all(calls).says("done"))
        .await
        .finishes()
        .await;
    let threads = peer
        .server
        .client()
        .post("/threads/search", json!({"status": "interrupted"}))
        .await
        .ok();
    assert_ne!(threads, json!([]));
    for thread in threads.as_array().expect("a list") {
        let bob = Human::at(
            peer.server.client(),
            "agent",
            thread["thread_id"].as_str().expect("an id"),
        );
        let question = bob.question().await;
        if question.requests()[0]["args"]["to"] == "ann" {
            bob.approves(&question).await.finishes().await;
        }
    }
    eventually(async || asked_about(&alice).await == Some(json!("eve"))).await;
    eventually(async || alice.status().await == "interrupted").await;
    alice.approves(&alice.question().await).await.finishes().await;
    assert_eq!(
        alice.transcript().await,
        [
            "human: …",
            "ai calls task, task",
            "task: it is x",
            "task: it is x",
            "ai: done"
        ]
    );
    assert_eq!(alice.runs().await.len(), 3);
    assert_eq!(sent(&peer), 2);
    peer.finish().await;
}

async fn a_deleted_remote_thread_is_an_error_result(server: TestServer) {
    let peer = peer_of(&server).await;
    let (alice, bob) = both_are_asked(&server, &peer, mails(&["ann"])).await;
    peer.server.client().delete(&bob.path("")).await;
    eventually(async || alice.status().await == "idle").await;
    let told = alice.transcript().await[2].clone();
    assert!(told.starts_with("task failed:"), "{told}");
    assert!(told.contains("RemoteAgentError"), "{told}");
    assert!(alice.questions().await.is_empty());
    peer.finish().await;
}

async fn the_end_of_the_turn_cancels_the_run_on_the_remote_server(server: TestServer) {
    let peer = peer_of(&server).await;
    let (alice, bob) = both_are_asked(&server, &peer, mails(&["ann"])).await;
    let ends = json!({"values": null, "as_node": "__end__"});
    server.client().post(&alice.path("/state"), ends).await.ok();
    assert_eq!(alice.status().await, "idle");
    assert!(alice.questions().await.is_empty());
    eventually(async || bob.questions().await.is_empty()).await;
    assert_eq!(sent(&peer), 0);
    peer.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_servers_on_a_database_continues() {
    play(Engine::Postgres, async |server: TestServer| {
        let peer = peer_of(&server).await;
        let twin = server.starts_twin().await;
        let (alice, bob) = both_are_asked(&server, &peer, mails(&["ann", "eve"])).await;
        bob.approves(&bob.question().await).await.finishes().await;
        eventually(async || asked_about(&alice).await == Some(json!("eve"))).await;
        bob.approves(&bob.question().await).await.finishes().await;
        eventually(async || alice.status().await == "idle").await;
        assert_eq!(alice.transcript().await, DONE.map(str::to_owned).to_vec());
        assert_eq!(alice.runs().await.len(), 3);
        assert_eq!(sent(&peer), 2);
        twin.stops().await;
        peer.finish().await;
    })
    .await;
}
