//! Nothing is without end.

use serde_json::{Value, json};

use crate::support::client::reply;
use crate::support::{TestServer, lookup, on_both_engines, script, transcript};

/// A script that never comes to an end.
fn endless() -> String {
    (0..50).fold(script(), |script, n| script.calls(lookup(&format!("c{n}"), "x"))).to_string()
}

on_both_engines! {
    async fn a_run_that_takes_too_many_steps_is_ended_and_can_go_on(server: TestServer) {
        let alice = server.human("agent").await;
        let body = alice.wish(endless(), json!({"config": {"recursion_limit": 5}}));
        let run = alice.starts(body).await;
        let error = run.finishes().await["__error__"].clone();
        assert_eq!(error["error"], "GraphRecursionError");
        assert!(error["message"].as_str().unwrap().starts_with("Recursion limit of 5 reached"), "{error}");
        assert_eq!((run.status().await.as_str(), alice.status().await.as_str()), ("error", "error"));
        let state = alice.state().await;
        assert_eq!(state["next"], json!(["HumanInTheLoopMiddleware.after_model"]));
        assert_eq!(state["tasks"][0]["error"], Value::Null);
        assert!(!transcript(&state["values"]).is_empty());
        assert_eq!(transcript(&alice.says("hello").await).last().unwrap(), "ai: echo: hello");
    }

    async fn the_limit_of_a_run_does_not_reach_its_subagents(server: TestServer) {
        let alice = server.human("agent").await;
        let long = (0..10).fold(script(), |script, n| script.calls(lookup(&format!("c{n}"), "x"))).says("found");
        let text = script().calls(crate::support::task("t1", "researcher", long)).says("done");
        let run = alice.starts(alice.wish(text, json!({"config": {"recursion_limit": 6}}))).await;
        assert_eq!(transcript(&run.finishes().await), ["human: …", "ai calls task", "task: found", "ai: done"]);
    }

    async fn a_body_that_is_too_large_is_refused(server: TestServer) {
        let (client, alice) = (server.client(), server.human("agent").await);
        let large = alice.wish("x".repeat(3 << 20), json!({}));
        assert_eq!(client.post(&alice.path("/runs"), large).await.status, 413);
        let fits = alice.wish("x".repeat(1 << 20), json!({}));
        assert_eq!(client.post(&alice.path("/runs/wait"), fits).await.status, 200);
    }

    async fn json_that_is_too_deep_is_refused(server: TestServer) {
        let (client, alice) = (server.client(), server.human("agent").await);
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        for levels in [200, 100_000] {
            let body = format!(r#"{{"assistant_id": "agent", "input": {{"messages": [], "deep": {}}}}}"#, deep(levels));
            let request = client.request(reqwest::Method::POST, &alice.path("/runs"));
            let reply = reply(request.header("content-type", "application/json").body(body)).await;
            assert_eq!(reply.status, 422, "{levels}: {reply:?}");
        }
        assert_eq!(alice.runs().await, Vec::<Value>::new());
    }

    async fn arguments_that_are_too_deep_harm_nobody(server: TestServer) {
        let alice = server.human("agent").await;
        let deep = format!("{{\"query\": {}{}}}", "[".repeat(5000), "]".repeat(5000));
        let call = json!({"id": "c1", "name": "lookup", "args": deep});
        alice.says(script().calls(call).says("sorry")).await;
        let said = alice.transcript().await;
        assert_eq!(said.last().unwrap(), "ai: sorry");
        assert!(said[2].starts_with("lookup failed:"), "{:.200}", said[2]);
    }

    async fn texts_of_every_script_come_back_as_they_were(server: TestServer) {
        let alice = server.human("agent").await;
        let text = "ä 漢字 🦀 \u{1F469}\u{200D}\u{1F680} \"quoted\" \\ back\r\nline\ttab \u{7f} end";
        assert_eq!(alice.says(text).await["messages"][0]["content"], text);
        assert_eq!(alice.state().await["values"]["messages"][0]["content"], text);
        let frames = alice.listens(text, json!({})).await.rest().await;
        assert_eq!(frames.last().unwrap().data["messages"][2]["content"], text);
    }

    async fn a_text_with_a_nul_is_refused_or_kept_but_never_breaks_the_thread(server: TestServer) {
        let (client, alice) = (server.client(), server.human("agent").await);
        let reply = client.post(&alice.path("/runs/wait"), alice.wish("a\u{0}b", json!({}))).await;
        assert!(reply.status == 422 || (reply.status == 200 && reply.body.get("__error__").is_none()), "{reply:?}");
        assert_eq!(transcript(&alice.says("hello").await).last().unwrap(), "ai: echo: hello");
    }
}
