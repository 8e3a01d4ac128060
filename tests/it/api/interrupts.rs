//! The interrupts resource: lists, details and answers.

use serde_json::{Value, json};

use crate::support::{TestServer, mail, on_both_engines, script, task};

on_both_engines! {
    an_interrupt_shows_its_agent_its_calls_and_its_decisions,
    a_repeated_answer_is_accepted_once,
    a_different_second_answer_is_refused,
    a_late_answer_by_command_is_refused_like_any_late_answer,
    concurrent_answers_start_one_run,
    an_invalid_answer_is_refused_and_the_interrupt_stays,
    interrupts_of_all_threads_are_listed_in_order,
    an_unknown_interrupt_is_not_found,
}

async fn an_interrupt_shows_its_agent_its_calls_and_its_decisions(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let text = script()
        .calls(task("t1", "mailer", script().calls(mail("m1", "bob")).says("sent")))
        .says("done");
    alice.says(text).await;
    let mut question = alice.question().await.0;
    let id = question["id"].as_str().unwrap().to_owned();
    assert_eq!(
        client.get(&alice.path(&format!("/interrupts/{id}"))).await.ok(),
        question
    );
    assert_eq!(
        client.get("/interrupts?status=pending").await.ok(),
        json!({"interrupts": [question]})
    );
    assert!(
        question["created_at"].as_str().is_some_and(|at| at.ends_with("+00:00")),
        "{question}"
    );
    let schema = question["response_schema"].take();
    let decisions = &schema["properties"]["decisions"];
    assert_eq!(&decisions["minItems"], &json!(1), "{schema}");
    assert_eq!(&decisions["maxItems"], &json!(1), "{schema}");
    let run = alice.runs().await[0]["run_id"].clone();
    let description = "Tool execution requires approval\n\nTool: send_email\nArgs: {'to': 'bob', 'body': 'hi'}";
    let expected = json!({
        "id": id,
        "thread_id": alice.thread,
        "run_id": run,
        "status": "pending",
        "kind": "tool_approval",
        "agent_name": "mailer",
        "agent_path": ["main-agent", "mailer"],
        "task_call_id": "t1",
        "approvers": null,
        "value": {
            "action_requests": [{
                "name": "send_email", "args": {"to": "bob", "body": "hi"},
                "description": description, "tool_call_id": "m1",
            }],
            "review_configs": [{
                "action_name": "send_email", "allowed_decisions": ["approve", "edit", "reject", "respond"],
            }],
        },
        "response_schema": null,
        "created_at": question["created_at"],
        "expires_at": null,
        "resolution": null,
    });
    assert_eq!(question, expected);
}

async fn a_repeated_answer_is_accepted_once(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let approve = json!({"decisions": [{"type": "approve"}]});
    let reply = alice.resolves(&question, approve.clone()).await;
    assert_eq!(reply.status, 202);
    let first = reply.ok();
    assert_eq!(&first["interrupt"]["id"], &json!(question.id()));
    assert_eq!(&first["interrupt"]["status"], &json!("resolved"));
    let run = alice.run(&first);
    run.finishes().await;
    let again = alice.resolves(&question, approve.clone()).await.ok();
    assert_eq!(again["run_id"], run.id.as_str());
    assert_eq!(server.tools.keys_of("send_email").len(), 1);
    let path = alice.path(&format!("/interrupts/{}", question.id()));
    let resolution = client.get(&path).await.ok()["resolution"].clone();
    assert_eq!(&resolution["answer"], &approve, "{resolution}");
    assert_eq!(&resolution["run_id"], &json!(run.id), "{resolution}");
}

async fn a_different_second_answer_is_refused(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .says(script().calls(mail("m1", "bob")).says("as you run_body"))
        .await;
    let question = alice.question().await;
    let first = alice
        .resolves(&question, json!({"decisions": [{"type": "reject"}]}))
        .await
        .ok();
    alice.run(&first).finishes().await;
    alice
        .resolves(&question, json!({"decisions": [{"type": "approve"}]}))
        .await
        .refused(409);
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
    assert_eq!(alice.runs().await.len(), 2);
}

async fn a_late_answer_by_command_is_refused_like_any_late_answer(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let approve = json!({"decisions": [{"type": "approve"}]});
    alice.approves(&question).await.finishes().await;
    let by_command = alice.tries_to_resume(json!({question.id(): approve})).await;
    let by_resource = alice
        .resolves(&question, json!({"decisions": [{"type": "reject"}]}))
        .await;
    for late in [by_command, by_resource] {
        assert_eq!(&late.body["code"], &json!("interrupt_stale"), "{late:?}");
        let detail = late.refused(409);
        assert!(detail.contains("resolved"), "{detail}");
    }
    let unknown = json!({"0123456789abcdef0123456789abcdef": approve});
    alice.tries_to_resume(unknown).await.refused(422);
    assert_eq!(alice.runs().await.len(), 2);
    assert_eq!(server.tools.keys_of("send_email").len(), 1);
}

async fn concurrent_answers_start_one_run(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let approve = json!({"decisions": [{"type": "approve"}]});
    let all = (0..8).map(|_| alice.resolves(&question, approve.clone()));
    let replies = futures::future::join_all(all).await;
    let runs: std::collections::BTreeSet<String> = replies
        .into_iter()
        .map(|reply| reply.ok()["run_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    alice.run_of_id(runs.first().unwrap()).finishes().await;
    assert_eq!(server.tools.keys_of("send_email").len(), 1);
}

async fn an_invalid_answer_is_refused_and_the_interrupt_stays(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let respond = json!({"type": "respond", "message": "not allowed here"});
    for (answer, field) in [
        (json!({}), "body"),
        (json!({"decisions": []}), "decisions"),
        (json!({"decisions": [respond]}), "decisions[0].type"),
        (json!({"decisions": [{"type": "approve"}], "response": 1}), "body"),
        (json!({"response": "yes"}), "response"),
        (
            json!({"response": {"decisions": [respond]}}),
            "response.decisions[0].type",
        ),
    ] {
        let refusal = alice.resolves(&question, answer.clone()).await.refused(422);
        assert!(refusal.starts_with(&format!("{field}: ")), "{answer}: {refusal}");
    }
    assert_eq!(alice.question().await, question);
    let resolved = alice
        .resolves(&question, json!({"decisions": [{"type": "approve"}]}))
        .await
        .ok();
    alice.run(&resolved).finishes().await;
    assert_eq!(alice.transcript().await.last().unwrap(), "ai: sent");
}

async fn interrupts_of_all_threads_are_listed_in_order(server: TestServer) {
    let client = server.client();
    let mut asked = vec![];
    for name in ["ann", "bob", "cat"] {
        let human = server.human("agent").await;
        human.says(script().calls(mail("m1", name)).says("sent")).await;
        asked.push(human.question().await.0);
    }
    let pending = async || client.get("/interrupts?status=pending").await.ok()["interrupts"].clone();
    assert_eq!(pending().await, json!(asked));
    let path = format!(
        "/threads/{}/interrupts/{}/resolve",
        asked[1]["thread_id"].as_str().unwrap(),
        asked[1]["id"].as_str().unwrap()
    );
    let resolved = client
        .post(&path, json!({"decisions": [{"type": "approve"}]}))
        .await
        .ok();
    let run = format!(
        "/threads/{}/runs/{}",
        asked[1]["thread_id"].as_str().unwrap(),
        resolved["run_id"].as_str().unwrap()
    );
    client.get(&format!("{run}/join")).await.ok();
    assert_eq!(pending().await, json!([asked[0], asked[2]]));
}

async fn an_unknown_interrupt_is_not_found(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let path = alice.path("/interrupts/0123456789abcdef0123456789abcdef");
    client.get(&path).await.refused(404);
    client
        .post(&format!("{path}/resolve"), json!({"decisions": []}))
        .await
        .refused(404);
    let nowhere = format!("/threads/{}/interrupts", uuid::Uuid::new_v4());
    client.get(&nowhere).await.refused(404);
}
