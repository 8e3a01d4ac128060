//! Every response has the id of its request, and the access log has a line for each.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::client::reply;
use crate::support::{Human, TestServer, mail, script, without_postgres};

const ID: &str = "order-66:a/b";

without_postgres! {
    a_request_id_is_echoed_on_every_response,
    a_request_without_a_usable_id_gets_one,
    web_pages_may_read_the_request_id,
    the_access_log_has_a_line_for_each_request,
    the_access_log_names_the_caller_of_a_refused_request,
    the_lines_of_a_request_have_its_id,
    there_is_no_access_log_by_default,
    the_line_about_the_end_of_a_run_names_its_user,
}

async fn a_request_id_is_echoed_on_every_response(server: TestServer) {
    let keys = server.is_protected().await;
    let thread = server.client().thread().await;
    let stream = format!("/threads/{thread}/runs/stream");
    let run = json!({"assistant_id": "plain", "input": {"messages": [{"role": "user", "content": "hi"}]}});
    for (client, method, path, body, status) in [
        (server.client(), Method::GET, "/ok", None, 200),
        (server.client(), Method::GET, "/no/such/path", None, 404),
        (keys.nobody(), Method::POST, "/threads/search", Some(json!({})), 401),
        (server.client(), Method::POST, stream.as_str(), Some(run), 200),
    ] {
        let request = client.request(method, path).header("x-request-id", ID);
        let answer = reply(match body {
            Some(body) => request.json(&body),
            None => request,
        })
        .await;
        assert_eq!(answer.header("x-request-id"), Some(ID), "{path}: {answer:?}");
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
}

async fn a_request_without_a_usable_id_gets_one(server: TestServer) {
    let first = server.client().get("/ok").await;
    let second = server.client().get("/ok").await;
    let id = first.header("x-request-id").expect("an id");
    assert_eq!(id.len(), 36);
    assert_ne!(Some(id), second.header("x-request-id"));
    for bad in ["two words", "quo\"te", &"x".repeat(129)] {
        let request = server.client().request(Method::GET, "/ok").header("x-request-id", bad);
        let answer = reply(request).await;
        let id = answer.header("x-request-id").expect("an id");
        assert_eq!(id.len(), 36, "{bad}");
    }
}

async fn web_pages_may_read_the_request_id(server: TestServer) {
    let request = server.client().request(Method::GET, "/ok");
    let answer = reply(request.header("origin", "http://localhost:3000")).await;
    let exposed = answer.header("access-control-expose-headers").expect("CORS headers");
    assert!(
        exposed.split(',').any(|name| name.trim() == "x-request-id"),
        "{exposed}"
    );
}

/// Returns the lines of the access log with this id.
fn lines(server: &TestServer, id: &str) -> Vec<Value> {
    let text = server.log().text();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let access = lines.filter(|line| line["target"] == "adjutant::access");
    access.filter(|line| line["fields"]["request_id"] == id).collect()
}

async fn the_access_log_has_a_line_for_each_request(server: TestServer) {
    server.is_reconfigured("[log]\n", "[log]\naccess = true\n").await;
    let keys = server.is_protected().await;
    server.moves_into_a_process().await;
    let ann = keys.client("ann");
    let thread = ann.thread().await;
    let path = format!("/threads/{thread}/stream?ticket=the-secret-ticket&x=1");
    let request = |id: &str, path: &str| ann.request(Method::GET, path).header("x-request-id", id);
    reply(request("one", &format!("/threads/{thread}"))).await.ok();
    reply(keys.nobody().request(Method::GET, &path).header("x-request-id", "two")).await;
    let body = json!({"assistant_id": "plain", "input": {"messages":
        [{"role": "user", "content": script().says("a platypus").to_string()}]}});
    let stream = ann.request(Method::POST, &format!("/threads/{thread}/runs/stream"));
    let streamed = reply(stream.header("x-request-id", "three").json(&body)).await;
    assert_eq!(streamed.status, 200);
    server.log().gets_one_of(&["\"request_id\":\"three\""]).await;

    let one = &lines(&server, "one")[0]["fields"];
    assert_eq!(one["method"], "GET");
    assert_eq!(one["route"], "/threads/{thread_id}");
    assert_eq!(one["status"], 200);
    assert_eq!(&one["user"], &json!("ann"));
    assert_eq!(&one["tenant"], &json!("acme"));
    assert_eq!(one["peer"], "127.0.0.1");
    assert!(one["bytes"].as_u64() > Some(10));
    let two = &lines(&server, "two")[0]["fields"];
    assert_eq!(two["status"], 401);
    assert_eq!(two["user"], Value::Null);
    let three = lines(&server, "three");
    assert_eq!(three.len(), 1);
    assert!(
        three[0]["fields"]["bytes"].as_u64() > Some(100),
        "the whole stream was counted"
    );
    let text = server.log().text();
    assert!(!text.contains("the-secret-ticket") && !text.contains("platypus"));
}

async fn the_access_log_names_the_caller_of_a_refused_request(server: TestServer) {
    server.is_reconfigured("[log]\n", "[log]\naccess = true\n").await;
    let pages = "[tenants.acme]\ncors_origins = [\"https://acme.example\"]\n";
    let keys = server.is_protected_with("", pages).await;
    server.moves_into_a_process().await;
    let request = keys.client("ann").request(Method::GET, "/auth/me");
    let request = request.header("origin", "http://localhost:3000");
    reply(request.header("x-request-id", "one")).await.refused(403);
    server.log().gets_one_of(&["\"request_id\":\"one\""]).await;
    let line = &lines(&server, "one")[0]["fields"];
    assert_eq!(line["status"], 403);
    assert_eq!(&line["user"], &json!("ann"));
    assert_eq!(&line["tenant"], &json!("acme"));
}

async fn the_lines_of_a_request_have_its_id(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "a@b.c")).says("sent")).await;
    let question = alice.question().await;
    let path = alice.path(&format!("/interrupts/{}/resolve", question.id()));
    let request = server.client().request(Method::POST, &path).header("x-request-id", ID);
    reply(request.json(&json!({"decisions": [{"type": "approve"}]})))
        .await
        .ok();
    server.log().gets_one_of(&["interrupt answered"]).await;
    let text = server.log().text();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let answered: Vec<Value> = lines
        .filter(|line| line["fields"]["message"] == "interrupt answered")
        .collect();
    assert_eq!(answered[0]["span"]["request_id"], ID, "{answered:#?}");
}

async fn there_is_no_access_log_by_default(server: TestServer) {
    server.moves_into_a_process().await;
    let request = server
        .client()
        .request(Method::GET, "/ok")
        .header("x-request-id", "one");
    assert_eq!(reply(request).await.header("x-request-id"), Some("one"));
    server.is_stopped().await;
    assert!(!server.log().text().contains("adjutant::access"));
}

async fn the_line_about_the_end_of_a_run_names_its_user(server: TestServer) {
    let keys = server.is_protected().await;
    server.moves_into_a_process().await;
    let ann = Human::on_new_thread(keys.client("ann"), "agent").await;
    ann.says(script().says("hello")).await;
    server.log().gets_one_of(&["run ended"]).await;
    let text = server.log().text();
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ended: Vec<Value> = lines.filter(|line| line["fields"]["message"] == "run ended").collect();
    assert_eq!(ended.len(), 1, "{ended:#?}");
    assert_eq!(&ended[0]["fields"]["thread"], &json!(ann.thread));
    assert_eq!(&ended[0]["fields"]["user"], &json!("ann"));
    assert_eq!(&ended[0]["fields"]["tenant"], &json!("acme"));
}
