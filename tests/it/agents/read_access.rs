//! Tools that read the state, files and Store of the run that calls them, with the token of the call.

use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, Reply, reply};
use crate::support::mcp::{McpTransport, docs};
use crate::support::{Human, TestServer, call, lookup, on_both_engines, script, task};

on_both_engines! {
    a_tool_reads_the_state_files_and_items_that_it_declares,
    a_subagent_reads_its_own_state,
    what_is_not_declared_is_refused,
    a_tool_that_declares_nothing_gets_no_token,
    a_token_ends_with_its_call,
    a_token_ends_when_its_run_is_cancelled,
    a_token_expires,
    a_call_that_is_repeated_after_a_kill_has_a_token_of_its_own,
    a_token_reads_the_thread_and_the_store_of_its_owner_only,
    a_token_opens_nothing_else_and_nothing_else_opens_its_endpoints,
    a_token_is_nowhere_but_in_the_request_to_the_tool,
    large_lists_and_files_are_read_in_parts,
    requests_that_make_no_sense_are_refused,
    a_namespace_is_filled_from_the_context_or_the_call_is_an_error,
    a_tool_of_an_mcp_server_reads_of_its_run,
    a_tool_server_reads_of_its_run,
}

/// The parts of a run that the tool `peek` may read.
const ALL: &str = r#"{ state = ["messages", "todos", "plan"], files = ["/reports/**"], store = [["memories"]] }"#;

/// Configures the agent `desk`, which has a subagent and the tool `peek` that may read this.
async fn desk(server: &TestServer, read_access: &str) {
    server.is_configured_with(&section(server, read_access)).await;
}

fn section(server: &TestServer, read_access: &str) -> String {
    let base = &server.tools.base;
    format!(
        r#"
[tools.peek]
kind = "http"
description = "Looks into the run."
url = "{base}/lookup"
parameters = {{ type = "object" }}
after_crash = "repeat"
read_access = {read_access}

[agents.desk]
model = "scripted:lab"
system_prompt = "You work."
tools = ["peek", "lookup"]
todos = true

[[agents.desk.subagents]]
name = "helper"
description = "Helps with one thing alone."
system_prompt = "You help."
tools = ["peek"]
"#
    )
}

pub(super) fn peek(id: &str) -> Value {
    call(id, "peek", json!({}))
}

pub(super) fn write(id: &str, path: &str, content: &str) -> Value {
    call(id, "write_file", json!({"file_path": path, "content": content}))
}

/// The client with which a tool reads.
pub(super) struct Reader {
    pub(super) client: Client,
    pub(super) access: Value,
}

impl Reader {
    /// Waits for the `number`th call of `peek`, which is held back, and returns what it reads with.
    pub(super) async fn of_call(server: &TestServer, number: usize) -> Self {
        server.tools.called("peek", number).await;
        let calls = server.tools.calls_of("peek");
        Self {
            client: server.client().with_key(""),
            access: calls[number - 1]["read_access"].clone(),
        }
    }

    fn token(&self) -> &str {
        self.access["token"].as_str().expect("a token")
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let base = self.access["path"].as_str().expect("a path");
        let request = self.client.request(method, &format!("{base}{path}"));
        request.bearer_auth(self.token())
    }

    pub(super) async fn get(&self, path: &str) -> Reply {
        reply(self.request(Method::GET, path)).await
    }

    async fn search(&self, body: Value) -> Reply {
        reply(self.request(Method::POST, "/store/items/search").json(&body)).await
    }

    /// Reads the bytes of a file, and its whole size.
    pub(super) async fn bytes(&self, query: &str) -> (Vec<u8>, usize) {
        let response = self
            .request(Method::GET, &format!("/files/content?{query}"))
            .send()
            .await;
        let response = response.expect("an answer");
        assert_eq!(response.status(), 200, "{query}");
        assert_eq!(response.headers()["content-type"], "application/octet-stream");
        let size = response.headers()["x-file-size"].to_str().expect("a text");
        let size = size.parse().expect("a number");
        (response.bytes().await.expect("bytes").to_vec(), size)
    }

    /// Checks that the token opens no endpoint.
    async fn is_over(&self) {
        for path in [
            "/state",
            "/files",
            "/files/content?path=/reports/a.md",
            "/store/items?namespace=memories&key=k",
        ] {
            let refused = self.get(path).await;
            assert_eq!(refused.status, 401, "{path}: {refused:?}");
            assert_eq!(refused.body["code"], "call_over", "{path}");
        }
        let refused = self.search(json!({"namespace_prefix": ["memories"]})).await;
        assert_eq!(refused.status, 401);
        assert_eq!(refused.body["code"], "call_over");
    }
}

/// The texts of messages.
fn contents(messages: &Value) -> Vec<String> {
    let messages = messages.as_array().expect("a list").iter();
    messages
        .map(|message| message["content"].as_str().unwrap_or_default().to_owned())
        .collect()
}

async fn a_tool_reads_the_state_files_and_items_that_it_declares(server: TestServer) {
    desk(&server, ALL).await;
    let client = server.client();
    let item = json!({"namespace": ["memories", "deep"], "key": "k", "value": {"likes": "otters"}});
    client.put("/store/items", item).await.ok();
    let alice = server.human("desk").await;
    server.tools.hold("peek");
    let todos = json!({"todos": [{"content": "look", "status": "pending"}]});
    let first = [
        write("w1", "/reports/a.md", "Größe"),
        write("w2", "/secret.md", "secret"),
        call("t1", "write_todos", todos),
    ];
    let run = alice
        .asks(script().calls_all(first).calls(peek("p1")).says("done"))
        .await;
    let reader = Reader::of_call(&server, 1).await;
    assert_eq!(reader.access["path"], "/call");
    assert!(
        reader.access["expires_at"].as_str().is_some_and(|at| at.contains('T')),
        "{}",
        reader.access
    );
    let state = reader.get("/state").await.ok();
    assert_eq!(state["values"]["messages"].as_array().map(Vec::len), Some(6), "{state}");
    assert_eq!(state["values"]["todos"][0]["content"], "look");
    let fields: Vec<&String> = state["values"].as_object().expect("fields").keys().collect();
    assert_eq!(
        fields,
        ["messages", "todos"],
        "`plan` is not set, and nothing else is declared"
    );
    assert_eq!(
        state["checkpoint_id"],
        alice.state().await["checkpoint"]["checkpoint_id"]
    );
    let one = reader.get("/state?fields=todos").await.ok();
    assert_eq!(one["values"].as_object().map(serde_json::Map::len), Some(1), "{one}");
    let files = reader.get("/files").await.ok();
    assert_eq!(files["total"], 1, "{files}");
    assert_eq!(files["files"][0]["path"], "/reports/a.md");
    assert_eq!(files["files"][0]["size"], "Größe".len());
    assert_eq!(files["files"][0]["encoding"], "utf-8");
    let content = reader.bytes("path=/reports/a.md").await;
    assert_eq!(content.0, "Größe".as_bytes());
    let item = reader.get("/store/items?namespace=memories.deep&key=k").await.ok();
    assert_eq!(item["value"], json!({"likes": "otters"}));
    assert_eq!(
        reader.get("/store/items?namespace=memories&key=k").await.ok(),
        Value::Null
    );
    let found = reader
        .search(json!({"namespace_prefix": ["memories"], "filter": {"likes": "otters"}}))
        .await
        .ok();
    assert_eq!(found["items"].as_array().map(Vec::len), Some(1), "{found}");
    server.tools.let_go("peek");
    run.finishes().await;
}

async fn a_subagent_reads_its_own_state(server: TestServer) {
    desk(&server, ALL).await;
    let alice = server.human("desk").await;
    server.tools.hold("peek");
    let below = script().calls(peek("p1")).says("helped");
    let run = alice
        .asks(script().calls(task("t1", "helper", below.to_string())).says("done"))
        .await;
    let reader = Reader::of_call(&server, 1).await;
    let state = reader.get("/state?fields=messages").await.ok();
    let read = contents(&state["values"]["messages"]);
    assert_eq!(read[0], below.to_string(), "it begins with the work that was delegated");
    assert_eq!(read.len(), 2);
    assert_ne!(
        state["checkpoint_id"],
        alice.state().await["checkpoint"]["checkpoint_id"]
    );
    server.tools.let_go("peek");
    run.finishes().await;
    reader.is_over().await;
}

async fn what_is_not_declared_is_refused(server: TestServer) {
    desk(
        &server,
        r#"{ state = ["messages"], files = ["/reports/*.md"], store = [["memories", "a"]] }"#,
    )
    .await;
    let alice = server.human("desk").await;
    server.tools.hold("peek");
    let work = script()
        .calls(write("w1", "/secret.md", "secret"))
        .calls(peek("p1"))
        .says("done");
    let run = alice.asks(work).await;
    let reader = Reader::of_call(&server, 1).await;
    for path in [
        "/state?fields=todos",
        "/state?fields=messages&fields=files",
        "/state?fields=_system_prompt",
        "/files/content?path=/secret.md",
        "/files/content?path=/reports/../secret.md",
        "/files/content?path=/reports/deep/a.md",
        "/store/items?namespace=memories&key=k",
        "/store/items?namespace=memories.ab&key=k",
        "/store/items?namespace=other&key=k",
    ] {
        let refused = reader.get(path).await;
        assert!(matches!(refused.status, 403 | 422), "{path}: {refused:?}");
        assert!(!refused.body.to_string().contains("secret\""), "{path}: {refused:?}");
    }
    let refused = reader.get("/state?fields=todos").await;
    assert_eq!(refused.status, 403);
    assert_eq!(refused.body["code"], "not_declared");
    assert_eq!(
        refused.body["detail"],
        "Not allowed: the field `todos` is not in the `read_access` of this tool"
    );
    for prefix in [json!([]), json!(["memories"]), json!(["other"])] {
        let refused = reader.search(json!({"namespace_prefix": prefix})).await;
        assert_eq!(refused.status, 403, "{prefix}: {refused:?}");
    }
    assert_eq!(reader.search(json!({})).await.status, 403);
    assert_eq!(reader.get("/files/content?path=/reports/none.md").await.status, 404);
    server.tools.let_go("peek");
    run.finishes().await;
}

async fn a_tool_that_declares_nothing_gets_no_token(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(lookup("l1", "otters")).says("done")).await;
    let calls = server.tools.calls_of("lookup");
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].get("read_access"), None);
}

async fn a_token_ends_with_its_call(server: TestServer) {
    desk(&server, ALL).await;
    let alice = server.human("desk").await;
    for tool in ["peek", "lookup"] {
        server.tools.hold(tool);
    }
    let run = alice
        .asks(script().calls(peek("p1")).calls(lookup("l1", "x")).says("done"))
        .await;
    let reader = Reader::of_call(&server, 1).await;
    reader.get("/state").await.ok();
    server.tools.let_go("peek");
    server.tools.called("lookup", 1).await;
    assert_eq!(run.status().await, "running");
    reader.is_over().await;
    server.tools.let_go("lookup");
    run.finishes().await;
    reader.is_over().await;
}

async fn a_token_ends_when_its_run_is_cancelled(server: TestServer) {
    desk(&server, ALL).await;
    let alice = server.human("desk").await;
    server.tools.hold("peek");
    let run = alice.asks(script().calls(peek("p1")).says("done")).await;
    let reader = Reader::of_call(&server, 1).await;
    reader.get("/state").await.ok();
    run.is_cancelled("interrupt").await;
    reader.is_over().await;
    server.tools.let_go("peek");
}

async fn a_token_expires(server: TestServer) {
    let clock = ManualClock::starting_at(SystemClock.now());
    server.uses_clock(&clock).await;
    desk(&server, ALL).await;
    let alice = server.human("desk").await;
    server.tools.hold("peek");
    let run = alice.asks(script().calls(peek("p1")).says("done")).await;
    let reader = Reader::of_call(&server, 1).await;
    // The time-out of the tool is 30 seconds, and a token lives 30 seconds longer.
    assert_eq!(
        reader.access["expires_at"],
        clock.now().plus(Duration::from_secs(60)).to_string()
    );
    clock.advance(Duration::from_secs(59));
    reader.get("/state").await.ok();
    clock.advance(Duration::from_secs(1));
    reader.is_over().await;
    server.tools.let_go("peek");
    run.finishes().await;
}

async fn a_call_that_is_repeated_after_a_kill_has_a_token_of_its_own(server: TestServer) {
    desk(&server, ALL).await;
    server.moves_into_a_process().await;
    let alice = server.human("desk").await;
    server.tools.hold("peek");
    let run = alice.asks(script().calls(peek("p1")).says("done")).await;
    let before = Reader::of_call(&server, 1).await;
    before.get("/state").await.ok();
    server.is_killed_and_started_again().await;
    let after = Reader::of_call(&server, 2).await;
    assert_ne!(before.token(), after.token());
    after.get("/state").await.ok();
    before.is_over().await;
    server.tools.let_go("peek");
    run.finishes().await;
    after.is_over().await;
}

async fn a_token_reads_the_thread_and_the_store_of_its_owner_only(server: TestServer) {
    let keys = server.is_protected_with("", &section(&server, ALL)).await;
    server.tools.hold("peek");
    let mut runs = vec![];
    let callers = ["ann", "bob", "root-of-other"];
    for (at, name) in callers.into_iter().enumerate() {
        let client = keys.client(name);
        let item = json!({"namespace": ["memories"], "key": "own", "value": {"of": name}});
        client.put("/store/items", item).await.ok();
        let human = Human::on_new_thread(client, "desk").await;
        let work = script()
            .calls(write("w1", "/reports/own.md", name))
            .calls(peek("p1"))
            .says(name);
        runs.push(human.asks(work).await);
        server.tools.called("peek", at + 1).await;
    }
    for (at, name) in callers.into_iter().enumerate() {
        let reader = Reader::of_call(&server, at + 1).await;
        let item = reader.get("/store/items?namespace=memories&key=own").await.ok();
        assert_eq!(item["value"], json!({"of": name}));
        let found = reader.search(json!({"namespace_prefix": ["memories"]})).await.ok();
        assert_eq!(found["items"].as_array().map(Vec::len), Some(1), "{name}");
        let content = reader.bytes("path=/reports/own.md").await;
        assert_eq!(content.0, name.as_bytes());
        let state = reader.get("/state?fields=messages").await.ok().to_string();
        for other in callers.into_iter().filter(|other| *other != name) {
            assert!(!state.contains(other), "{name} reads of {other}");
        }
    }
    server.tools.let_go("peek");
    for run in runs {
        run.finishes().await;
    }
}

async fn a_token_opens_nothing_else_and_nothing_else_opens_its_endpoints(server: TestServer) {
    let keys = server.is_protected_with("", &section(&server, ALL)).await;
    let ann = Human::on_new_thread(keys.client("ann"), "desk").await;
    server.tools.hold("peek");
    let run = ann.asks(script().calls(peek("p1")).says("done")).await;
    let reader = Reader::of_call(&server, 1).await;
    reader.get("/state").await.ok();
    let thread = format!("/threads/{}", ann.thread);
    for path in [
        &thread,
        &format!("{thread}/state"),
        "/auth/me",
        "/info",
        "/store/items?namespace=memories&key=k",
    ] {
        let request = keys.nobody().request(Method::GET, path).bearer_auth(reader.token());
        assert_eq!(reply(request).await.status, 401, "{path}");
        let with_key = keys.with(reader.token());
        assert_eq!(with_key.get(path).await.status, 401, "{path}");
    }
    for client in [
        keys.client("ann"),
        keys.client("root"),
        keys.nobody(),
        keys.with(reader.token()),
    ] {
        assert_eq!(client.get("/call/state").await.status, 401);
    }
    let wrong = [
        String::new(),
        "adjc_".to_owned(),
        format!("adjc_{}", "0".repeat(64)),
        reader.token().to_uppercase(),
        "x".repeat(8_000),
        keys.text("ann"),
    ];
    for token in wrong {
        let request = keys.nobody().request(Method::GET, "/call/state").bearer_auth(&token);
        let refused = reply(request).await;
        assert_eq!(refused.status, 401, "{token}: {refused:?}");
        assert_eq!(refused.body["code"], "call_over");
    }
    let methods = [Method::PUT, Method::DELETE, Method::PATCH];
    for method in methods {
        let refused = reply(reader.request(method.clone(), "/store/items").json(&json!({}))).await;
        assert!(matches!(refused.status, 401 | 404 | 405), "{method}: {refused:?}");
    }
    reader.get("/state").await.ok();
    server.tools.let_go("peek");
    run.finishes().await;
}

async fn a_token_is_nowhere_but_in_the_request_to_the_tool(server: TestServer) {
    let base = &server.tools.base;
    let more = format!(
        "[tools.echo]\nkind = \"http\"\ndescription = \"Says what it was sent.\"\nurl = \"{base}/echo\"\n\
         parameters = {{ type = \"object\" }}\nread_access = {{ state = [\"messages\"] }}\n\n\
         [agents.parrot]\nmodel = \"scripted:lab\"\nsystem_prompt = \"You repeat.\"\ntools = [\"echo\"]\n"
    );
    server.is_configured_with(&more).await;
    server.moves_into_a_process_that_logs("debug").await;
    let alice = server.human("parrot").await;
    let calls = ["answer", "lines", "error"].map(|how| call(how, "echo", json!({"how": how})));
    let modes = json!({"stream_mode": ["values", "updates", "messages", "custom", "events"], "stream_subgraphs": true});
    let stream = alice.streams(script().calls_all(calls).says("done"), modes).await;
    let streamed = format!("{:?}", stream.rest().await);
    let tokens: Vec<String> = server
        .tools
        .calls_of("echo")
        .iter()
        .map(|call| call["read_access"]["token"].as_str().expect("a token").to_owned())
        .collect();
    assert_eq!(tokens.len(), 3);
    let run = alice.runs().await[0].clone();
    let seen = [
        streamed,
        alice.state().await.to_string(),
        json!(alice.history().await).to_string(),
        run.to_string(),
    ];
    assert!(seen[1].contains("***"), "the tool has sent its token back: {}", seen[1]);
    for token in tokens {
        for text in &seen {
            assert!(!text.contains(&token), "{text}");
        }
        let logged = server.log().text();
        assert!(
            logged.contains("echo") && !logged.contains(&token),
            "the log has the token"
        );
    }
}

async fn large_lists_and_files_are_read_in_parts(server: TestServer) {
    desk(&server, r#"{ state = ["messages", "todos"], files = ["/reports/**"] }"#).await;
    server.is_configured("max_answer_bytes = 200000").await;
    let alice = server.human("desk").await;
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8 | 0x80).collect();
    let content = base64(&bytes);
    let messages: Vec<Value> = (0..30)
        .map(|at| json!({"role": "user", "content": format!("{at} {}", "x".repeat(20_000))}))
        .collect();
    let files = json!({"/reports/big.bin": {"content": content, "encoding": "base64"}});
    let values = json!({"values": {"messages": messages, "files": files}});
    server.client().post(&alice.path("/state"), values).await.ok();
    server.tools.hold("peek");
    let run = alice.asks(script().calls(peek("p1")).says("done")).await;
    let reader = Reader::of_call(&server, 1).await;
    let refused = reader.get("/state?fields=messages").await;
    assert_eq!(refused.status, 422, "{refused:?}");
    let detail = refused.body["detail"].to_string();
    assert!(
        detail.contains("200000 bytes") && detail.contains("`offset` and `limit`"),
        "{detail}"
    );
    let mut read = vec![];
    loop {
        let path = format!("/state?fields=messages&offset={}&limit=1000", read.len());
        let part = reader.get(&path).await.ok();
        let messages = part["values"]["messages"].as_array().expect("a list").clone();
        assert!(
            part.to_string().len() < 220_000 && !messages.is_empty(),
            "{}",
            messages.len()
        );
        read.extend(messages);
        if part["total"] == read.len() {
            break;
        }
    }
    assert_eq!(read.len(), 32);
    assert!(read[29]["content"].as_str().is_some_and(|text| text.starts_with("29 ")));
    let listed = reader.get("/files").await.ok();
    assert_eq!(listed["files"][0]["size"], bytes.len());
    let first = reader.bytes("path=/reports/big.bin").await;
    assert_eq!(
        first,
        (bytes[..200_000].to_vec(), bytes.len()),
        "no answer is longer than any other"
    );
    let last = reader.bytes("path=/reports/big.bin&offset=299999&limit=200000").await;
    assert_eq!(last.0, bytes[299_999..]);
    assert_eq!(
        reader.bytes("path=/reports/big.bin&offset=4000000000").await.0,
        [0_u8; 0]
    );
    server.tools.let_go("peek");
    run.finishes().await;
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

async fn requests_that_make_no_sense_are_refused(server: TestServer) {
    desk(&server, ALL).await;
    let alice = server.human("desk").await;
    server.tools.hold("peek");
    let run = alice.asks(script().calls(peek("p1")).says("done")).await;
    let reader = Reader::of_call(&server, 1).await;
    for path in [
        "/state?offset=0",
        "/state?fields=messages&limit=0",
        "/state?fields=messages&limit=1001",
        "/state?fields=messages&offset=-1",
        "/state?fields=messages&offset=x",
        "/state?fields=%00",
        "/files?limit=100000000000000000000",
        "/files/content",
        "/files/content?path=../a",
        "/files/content?path=/reports/a%00",
        "/files/content?path=/reports/a&limit=0",
        "/files/content?path=/reports/a&offset=-1",
        "/store/items?namespace=memories",
        "/store/items?namespace=memories..a&key=k",
    ] {
        let refused = reader.get(path).await;
        assert!(matches!(refused.status, 403 | 422), "{path}: {refused:?}");
    }
    let long = format!("/state?fields={}", "x".repeat(5_000));
    let refused = reader.get(&long).await;
    assert!(
        refused.status == 403 && refused.body.to_string().len() < 1_000,
        "{refused:?}"
    );
    let refused = reader
        .search(json!({"namespace_prefix": ["memories"], "limit": 100_000}))
        .await;
    assert_eq!(refused.status, 422, "{refused:?}");
    server.tools.let_go("peek");
    run.finishes().await;
}

async fn a_namespace_is_filled_from_the_context_or_the_call_is_an_error(server: TestServer) {
    desk(&server, r#"{ store = [["memories", "{user_id}"]] }"#).await;
    let alice = server.human("desk").await;
    alice.says(script().calls(peek("p0")).says("done")).await;
    let said = alice.transcript().await;
    assert!(
        said[2].contains(
            "the `read_access` of the tool `peek` cannot be granted: the context of the run has no `user_id`"
        ),
        "{said:?}"
    );
    assert_eq!(server.tools.calls_of("peek").len(), 0);
    server.tools.hold("peek");
    let body = alice.run_body(
        script().calls(peek("p1")).says("done"),
        json!({"context": {"user_id": "a.b"}}),
    );
    let run = alice.starts(body).await;
    let reader = Reader::of_call(&server, 1).await;
    assert_eq!(
        reader
            .search(json!({"namespace_prefix": ["memories", "a%2Eb"]}))
            .await
            .ok()["items"],
        json!([])
    );
    assert_eq!(
        reader
            .search(json!({"namespace_prefix": ["memories", "{user_id}"]}))
            .await
            .status,
        403
    );
    assert_eq!(
        reader
            .search(json!({"namespace_prefix": ["memories", "c"]}))
            .await
            .status,
        403
    );
    server.tools.let_go("peek");
    run.finishes().await;
}

async fn a_tool_of_an_mcp_server_reads_of_its_run(server: TestServer) {
    let access = "read_access = { state = [\"messages\"] }";
    let Some(_docs) = docs(&server, McpTransport::Stdio, access).await else {
        return;
    };
    let alice = server.human("librarian").await;
    server.tools.hold("dig");
    let dig = call("d1", "docs__dig", json!({}));
    let whoami = call("w1", "docs__whoami", json!({}));
    let run = alice.asks(script().calls(dig).calls(whoami).says("done")).await;
    server.tools.called("dig", 1).await;
    let reader = Reader {
        client: server.client().with_key(""),
        access: server.tools.calls_of("dig")[0]["args"]["read_access"].clone(),
    };
    let state = reader.get("/state").await.ok();
    assert_eq!(state["values"]["messages"].as_array().map(Vec::len), Some(2), "{state}");
    assert_eq!(reader.get("/files").await.status, 403);
    server.tools.let_go("dig");
    run.finishes().await;
    reader.is_over().await;
    let said = alice.transcript().await;
    assert!(
        said[4].contains("\"token\": \"***\"") && !said[4].contains("adjc_"),
        "{said:?}"
    );
}

async fn a_tool_server_reads_of_its_run(server: TestServer) {
    let base = &server.tools.base;
    let more = format!(
        "[tool_servers.crm]\nurl = \"{base}\"\nread_access = {{ state = [\"messages\"] }}\n\n\
         [agents.seller]\nmodel = \"scripted:lab\"\nsystem_prompt = \"You sell.\"\ntools = [\"crm/peek\"]\n"
    );
    server.is_configured_with(&more).await;
    let alice = server.human("seller").await;
    server.tools.hold("peek");
    let run = alice
        .asks(script().calls(call("p1", "crm__peek", json!({}))).says("done"))
        .await;
    let reader = Reader::of_call(&server, 1).await;
    reader.get("/state").await.ok();
    server.tools.let_go("peek");
    run.finishes().await;
    reader.is_over().await;
}
