//! The examples for users of other systems work as their comments promise.

use std::path::Path;

use serde_json::json;

use crate::support::actors::Human;
use crate::support::client::Client;
use crate::support::process::{Process, server_in};
use crate::support::{call, script, task};

/// The server of an example.
struct Example {
    client: Client,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Example {
    async fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/coming-from/{name}.toml"));
        let mut command = server_in(folder.path());
        command.args(["--listen", "127.0.0.1:0", "--config"]).arg(file);
        let process = Process::start(command).await;
        Self {
            client: Client::new(&process.base().await),
            _process: process,
            _folder: folder,
        }
    }

    async fn human(&self, agent: &str) -> Human {
        Human::on_new_thread(self.client.clone(), agent).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_deepagents_example_works() {
    let example = Example::start("deepagents").await;
    let alice = example.human("research").await;
    let verdict = json!({"verdict": "sound", "confidence": 0.5});
    let calls = [
        task("t1", "researcher", script().says("it is x")),
        task(
            "t2",
            "critic",
            script().calls(call("v1", "Verdict", verdict.clone())).says("unseen"),
        ),
        task("t3", "general-purpose", script().says("done too")),
        call("m1", "send_email", json!({"to": "a@b.c", "body": "x"})),
    ];
    alice
        .asks(script().calls_all(calls).says("over"))
        .await
        .finishes()
        .await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "research");
    assert_eq!(&question.requests()[0]["name"], &json!("send_email"));
    alice.rejects(&question, "not today").await.finishes().await;
    let said = alice.transcript().await;
    // The rejected call has the first result: it did not have to run.
    assert!(said[2].contains("not today"), "{}", said[2]);
    assert_eq!(said[3].as_str(), "task: it is x");
    assert_eq!(said[5].as_str(), "task: done too");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(said[4].trim_start_matches("task: ")).ok(),
        Some(verdict)
    );
    assert_eq!(said.last().map(String::as_str), Some("ai: over"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_synaptic_example_works() {
    let example = Example::start("synaptic").await;
    let alice = example.human("coder").await;
    let order = |id: &str, what: String, who: Option<&str>| match who {
        None => call(id, "task", json!({"description": what})),
        Some(who) => call(id, "task", json!({"description": what, "agent_type": who})),
    };
    let third = script().says("three").to_string();
    let second = script()
        .calls(order("t3", third, Some("nobody")))
        .says("two")
        .to_string();
    let first = script()
        .calls(order("t2", second, Some("writer")))
        .says("one")
        .to_string();
    let run = alice.asks(script().calls(order("t1", first, None)).says("done")).await;
    run.finishes().await;
    assert_eq!(
        alice.transcript().await[1..],
        ["ai calls task", "task: one", "ai: done"]
    );
    let tree = example.client.get(&format!("{}/tree", run.path)).await.ok().to_string();
    for agent in ["general-purpose", "writer"] {
        assert!(tree.contains(agent), "{agent} is missing in {tree}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sagents_example_works() {
    let example = Example::start("sagents").await;
    let alice = example.human("desk").await;
    let order = |id: &str, who: &str, what: String| call(id, "task", json!({"instructions": what, "task_name": who}));
    let search = script()
        .calls(call("s1", "internet_search", json!({"query": "x"})))
        .says("found nothing")
        .to_string();
    let report = call(
        "w1",
        "write_file",
        json!({"file_path": "/report.md", "content": "all is well"}),
    );
    let report = script().calls(report).says("unseen").to_string();
    let calls = [order("t1", "researcher", search), order("t2", "reporter", report)];
    alice
        .asks(script().calls_all(calls).says("done"))
        .await
        .finishes()
        .await;
    let question = alice.question().await;
    assert_eq!(question.agent(), "researcher");
    assert_eq!(&question.requests()[0]["name"], &json!("internet_search"));
    alice.rejects(&question, "no need").await.finishes().await;
    let said = alice.transcript().await;
    assert_eq!(said[2].as_str(), "task: found nothing");
    assert_eq!(said.last().map(String::as_str), Some("ai: done"));
    assert!(said[3].contains("/report.md"), "{}", said[3]);
    assert!(!said[3].contains("unseen"), "{}", said[3]);
    assert!(alice.state().await["values"]["files"].get("/report.md").is_some());
}
