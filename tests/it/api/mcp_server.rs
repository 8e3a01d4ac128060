//! Agents as tools of MCP clients, by raw messages. Clients of others are in `compat::mcp_client`.

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use crate::support::client::{Client, reply};
use crate::support::mcp::{McpTransport, docs};
use crate::support::script::Script;
use crate::support::{TestServer, call, eventually, lookup, mail, on_both_engines, script, without_postgres};

on_both_engines! {
    a_call_runs_an_agent_and_returns_its_answer,
    the_progress_of_a_tool_of_an_agent_reaches_the_client,
    a_call_continues_a_thread,
    a_question_is_in_the_result_and_is_answered_after_a_restart,
    a_client_with_a_session_is_asked_in_the_middle_of_a_call,
    a_client_that_cannot_ask_learns_where_the_question_is_answered,
    a_client_that_disconnects_cancels_its_run,
    a_cancelled_call_cancels_its_run,
    a_server_that_stops_ends_calls_and_no_runs,
    the_run_of_a_call_whose_server_is_killed_is_cancelled,
    callers_have_the_agents_and_threads_that_are_theirs,
    an_approver_does_not_learn_the_answer_of_the_thread_of_another,
}

without_postgres! {
    a_session_is_of_one_client,
    a_long_call_answers_at_once_and_has_its_result_at_the_end,
    what_is_no_message_of_the_protocol_is_refused,
    foreign_pages_are_refused,
}

/// The version of the protocol without sessions.
const STATELESS: &str = "2026-07-28";

/// The version of the protocol with sessions.
const WITH_SESSIONS: &str = "2025-11-25";

/// Returns a request to the MCP server.
fn request(client: &Client, method: Method) -> RequestBuilder {
    client
        .request(method, "/mcp")
        .header("accept", "application/json, text/event-stream")
}

/// Sends a request of the protocol without sessions. The client has these capabilities.
fn stateless(client: &Client, method: &str, mut params: Value, capabilities: &Value) -> RequestBuilder {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(STATELESS);
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities.clone();
    let mut request = request(client, Method::POST)
        .header("mcp-protocol-version", STATELESS)
        .header("mcp-method", method);
    if let Some(name) = params["name"].as_str() {
        request = request.header("mcp-name", name);
    }
    request.json(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
}

/// The messages of a response, as they come.
struct Messages {
    response: Response,
    buffer: String,
}

impl Messages {
    async fn of(request: RequestBuilder) -> Self {
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), StatusCode::OK, "{:?}", response.text().await);
        Self {
            response,
            buffer: String::new(),
        }
    }

    /// Returns the next message; `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some((line, rest)) = self.buffer.split_once('\n') {
                let data = line.strip_prefix("data:").map(|data| data.trim().to_owned());
                self.buffer = rest.to_owned();
                if let Some(data) = data.filter(|data| !data.is_empty()) {
                    return Some(serde_json::from_str(&data).expect("JSON"));
                }
            }
            let chunk = self.response.chunk().await.expect("the stream goes on")?;
            self.buffer.push_str(std::str::from_utf8(&chunk).expect("a text"));
        }
    }

    /// Returns the result of the request, and the messages before it.
    async fn result(mut self) -> (Value, Vec<Value>) {
        let mut before = vec![];
        loop {
            let message = self.next().await.unwrap_or_else(|| panic!("no result: {before:#?}"));
            if message.get("result").is_some() || message.get("error").is_some() {
                return (message, before);
            }
            before.push(message);
        }
    }
}

/// Calls an agent and returns the result.
async fn called(client: &Client, agent: &str, arguments: Value) -> Value {
    let params = json!({"name": agent, "arguments": arguments});
    let (message, _) = Messages::of(stateless(client, "tools/call", params, &json!({})))
        .await
        .result()
        .await;
    message["result"].clone()
}

fn says(script: Script) -> Value {
    json!({"message": script.to_string()})
}

/// Returns the names of the tools of a caller.
async fn tools(client: &Client) -> Vec<String> {
    let (message, _) = Messages::of(stateless(client, "tools/list", json!({}), &json!({})))
        .await
        .result()
        .await;
    let tools = message["result"]["tools"].as_array().expect("a list");
    tools
        .iter()
        .map(|tool| tool["name"].as_str().expect("a name").to_owned())
        .collect()
}

/// A client with a session.
struct Session {
    client: Client,
    id: String,
}

impl Session {
    async fn open(client: &Client, capabilities: Value) -> Self {
        let params = json!({"protocolVersion": WITH_SESSIONS, "capabilities": capabilities,
            "clientInfo": {"name": "test", "version": "1"}});
        let initialize = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params});
        let messages = Messages::of(request(client, Method::POST).json(&initialize)).await;
        let id = messages.response.headers().get("mcp-session-id").expect("a session");
        let id = id.to_str().expect("a text").to_owned();
        let (message, _) = messages.result().await;
        assert_eq!(message["result"]["protocolVersion"], WITH_SESSIONS, "{message}");
        let session = Self {
            client: client.clone(),
            id,
        };
        session.sends(json!({"method": "notifications/initialized"})).await;
        session
    }

    fn request(&self, method: Method) -> RequestBuilder {
        request(&self.client, method)
            .header("mcp-protocol-version", WITH_SESSIONS)
            .header("mcp-session-id", &self.id)
    }

    /// Sends a notification or an answer.
    async fn sends(&self, mut message: Value) {
        message["jsonrpc"] = json!("2.0");
        let sent = reply(self.request(Method::POST).json(&message)).await;
        assert_eq!(sent.status, 202, "{sent:?}");
    }

    async fn calls(&self, id: u32, agent: &str, arguments: Value) -> Messages {
        let params = json!({"name": agent, "arguments": arguments});
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        Messages::of(self.request(Method::POST).json(&message)).await
    }
}

async fn a_call_runs_an_agent_and_returns_its_answer(server: TestServer) {
    let client = server.client();
    let (listed, _) = Messages::of(stateless(&client, "tools/list", json!({}), &json!({})))
        .await
        .result()
        .await;
    let listed = listed["result"]["tools"].as_array().expect("a list").clone();
    let finder = listed.iter().find(|tool| tool["name"] == "finder").expect("the finder");
    let answer = &finder["outputSchema"]["properties"]["answer"];
    assert_eq!(answer["title"], "Finding", "{finder}");

    let params = json!({"name": "agent", "arguments": says(script().calls(lookup("l1", "otters")).says("found")),
        "_meta": {"progressToken": "p1"}});
    let (message, progress) = Messages::of(stateless(&client, "tools/call", params, &json!({})))
        .await
        .result()
        .await;
    let result = &message["result"];
    assert_eq!(result["content"][0]["text"], "found", "{message}");
    assert_eq!(result["isError"], false);
    let structured = &result["structuredContent"];
    assert_eq!(structured["status"], "success");
    let texts: Vec<&str> = progress
        .iter()
        .filter_map(|message| message["params"]["message"].as_str())
        .collect();
    let agent = "main-agent";
    let expected = ["starts", "calls lookup", "lookup has answered", "answers"];
    assert_eq!(texts, expected.map(|text| format!("{agent}: {text}")));
    assert!(
        progress
            .iter()
            .all(|message| message["params"]["progressToken"] == "p1")
    );

    let silent = json!({"name": "agent", "arguments": says(script().calls(lookup("l2", "otters")).says("found"))});
    let (_, unasked) = Messages::of(stateless(&client, "tools/call", silent, &json!({})))
        .await
        .result()
        .await;
    assert!(unasked.is_empty(), "without a token: {unasked:?}");

    let path = format!("/threads/{}/runs", structured["thread_id"].as_str().expect("an id"));
    let runs = client.get(&path).await.ok();
    assert_eq!(runs[0]["run_id"], structured["run_id"]);
    let finding = script().calls(call("f1", "Finding", json!({"summary": "it is so"})));
    let found = called(&client, "finder", says(finding)).await;
    assert_eq!(found["structuredContent"]["answer"], json!({"summary": "it is so"}));
    let failed = called(&client, "agent", says(script().fails(400))).await;
    assert_eq!(failed["isError"], true, "{failed}");
    assert_eq!(failed["structuredContent"]["status"], "error", "{failed}");
}

async fn the_progress_of_a_tool_of_an_agent_reaches_the_client(server: TestServer) {
    let Some(_docs) = docs(&server, McpTransport::Stdio, "").await else {
        return;
    };
    let told = json!({"progressToken": "own", "progress": 1, "total": 2, "message": "digging"});
    let notifications = json!([{"method": "notifications/progress", "params": told}]);
    let tell = call("c1", "docs__tell", json!({"notifications": notifications}));
    let params = json!({"name": "librarian", "arguments": says(script().calls(tell).says("done")),
        "_meta": {"progressToken": "p1"}});
    let (_, progress) = Messages::of(stateless(&server.client(), "tools/call", params, &json!({})))
        .await
        .result()
        .await;
    let wanted = "librarian: docs__tell is at 1 of 2 (digging)";
    let has_it = progress.iter().any(|message| message["params"]["message"] == wanted);
    assert!(has_it, "{progress:#?}");
}

async fn a_call_continues_a_thread(server: TestServer) {
    let client = server.client();
    let first = called(&client, "agent", says(script().says("one"))).await;
    let thread = &first["structuredContent"]["thread_id"];
    let mut more = says(script().says("two"));
    more["thread_id"] = thread.clone();
    let second = called(&client, "agent", more).await;
    assert_eq!(&second["structuredContent"]["thread_id"], thread);
    let path = format!("/threads/{}/state", thread.as_str().expect("an id"));
    let state = client.get(&path).await.ok();
    assert_eq!(state["values"]["messages"].as_array().map(Vec::len), Some(4));
    let elsewhere = json!({"message": "x", "thread_id": "01a1fd43-90ce-76f5-ad04-88b7c3403157"});
    let refused = called(&client, "agent", elsewhere).await;
    let text = refused["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("not found"), "{refused}");
    assert_eq!(refused["isError"], true);
}

async fn a_question_is_in_the_result_and_is_answered_after_a_restart(server: TestServer) {
    let client = server.client();
    let capabilities = json!({"elicitation": {"form": {}}});
    let params = json!({"name": "agent", "arguments": says(script().calls(mail("m1", "bob")).says("sent"))});
    let (message, _) = Messages::of(stateless(&client, "tools/call", params.clone(), &capabilities))
        .await
        .result()
        .await;
    let result = &message["result"];
    assert_eq!(result["resultType"], "input_required", "{message}");
    let requests = result["inputRequests"].as_object().expect("questions").clone();
    let (id, asked) = requests.iter().next().expect("a question");
    let choices = &asked["params"]["requestedSchema"]["properties"]["decision"]["enum"];
    assert_eq!(choices, &json!(["approve", "reject"]), "{asked}");

    server.is_stopped_and_started_again().await;
    let mut again = params;
    again["requestState"] = result["requestState"].clone();
    again["inputResponses"] = json!({id: {"action": "accept", "content": {"decision": "approve"}}});
    for _ in 0..2 {
        // The same answer again has the same result.
        let (message, _) = Messages::of(stateless(&client, "tools/call", again.clone(), &capabilities))
            .await
            .result()
            .await;
        assert_eq!(message["result"]["content"][0]["text"], "sent", "{message}");
    }
    assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
    again["requestState"] = json!("something else");
    let (message, _) = Messages::of(stateless(&client, "tools/call", again, &capabilities))
        .await
        .result()
        .await;
    assert_eq!(message["result"]["isError"], true, "{message}");
}

async fn a_client_with_a_session_is_asked_in_the_middle_of_a_call(server: TestServer) {
    let session = Session::open(&server.client(), json!({"elicitation": {}})).await;
    let talk = script().calls(mail("m1", "bob")).calls(mail("m2", "eve")).says("done");
    let mut messages = session.calls(7, "agent", says(talk)).await;
    for decision in ["approve", "reject"] {
        let asked = messages.next().await.expect("a question");
        assert_eq!(asked["method"], "elicitation/create", "{asked}");
        let content = json!({"decision": decision, "message": "Not to her."});
        let answer = json!({"id": asked["id"], "result": {"action": "accept", "content": content}});
        session.sends(answer).await;
    }
    let (message, _) = messages.result().await;
    assert_eq!(message["result"]["content"][0]["text"], "done", "{message}");
    assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
}

async fn a_client_that_cannot_ask_learns_where_the_question_is_answered(server: TestServer) {
    let client = server.client();
    let result = called(&client, "agent", says(script().calls(mail("m1", "bob")).says("sent"))).await;
    let structured = &result["structuredContent"];
    assert_eq!(structured["status"], "interrupted", "{result}");
    let path = structured["interrupts"][0]["resolve_url"].as_str().expect("a path");
    let text = result["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains(path), "{text}");
    client
        .post(path, json!({"decisions": [{"type": "approve"}]}))
        .await
        .ok();
    eventually(async || server.tools.keys_of("send_email") == ["m1"]).await;
}

/// Returns the status of the newest run of all.
async fn newest_status(client: &Client) -> Value {
    let threads = client.post("/threads/search", json!({"limit": 1})).await.ok();
    let path = format!("/threads/{}/runs", threads[0]["thread_id"].as_str().expect("a thread"));
    client.get(&path).await.ok()[0]["status"].clone()
}

async fn a_client_that_disconnects_cancels_its_run(server: TestServer) {
    let client = server.client();
    server.tools.hold("lookup");
    let params = json!({"name": "agent", "arguments": says(script().calls(lookup("l1", "x")).says("late")),
        "_meta": {"progressToken": 1}});
    let mut messages = Messages::of(stateless(&client, "tools/call", params, &json!({}))).await;
    messages.next().await.expect("a notification");
    server.tools.called("lookup", 1).await;
    drop(messages);
    eventually(async || newest_status(&client).await == "interrupted").await;
    server.tools.let_go("lookup");
}

async fn a_cancelled_call_cancels_its_run(server: TestServer) {
    let client = server.client();
    server.tools.hold("lookup");
    let session = Session::open(&client, json!({})).await;
    let _messages = session
        .calls(5, "agent", says(script().calls(lookup("l1", "x")).says("late")))
        .await;
    server.tools.called("lookup", 1).await;
    session
        .sends(json!({"method": "notifications/cancelled", "params": {"requestId": 5}}))
        .await;
    eventually(async || newest_status(&client).await == "interrupted").await;
    server.tools.let_go("lookup");
}

async fn a_server_that_stops_ends_calls_and_no_runs(server: TestServer) {
    let client = server.client();
    for is_stateless in [true, false] {
        server.tools.hold("lookup");
        let arguments = says(script().calls(lookup("l1", "x")).says("late"));
        let messages = match is_stateless {
            true => {
                let params = json!({"name": "agent", "arguments": arguments, "_meta": {"progressToken": 1}});
                Messages::of(stateless(&client, "tools/call", params, &json!({}))).await
            }
            false => {
                Session::open(&client, json!({}))
                    .await
                    .calls(5, "agent", arguments)
                    .await
            }
        };
        server.tools.called("lookup", 1).await;
        let restarting = server.is_stopped_and_started_again();
        let ((message, _), ()) = tokio::join!(messages.result(), restarting);
        let text = message["result"]["content"][0]["text"].as_str().expect("a text");
        assert!(text.contains("The run continues"), "{message}");
        server.tools.let_go("lookup");
        eventually(async || newest_status(&client).await == "success").await;
        server.tools.forget();
    }
}

async fn the_run_of_a_call_whose_server_is_killed_is_cancelled(server: TestServer) {
    server.moves_into_a_process().await;
    let client = server.client();
    server.tools.hold("lookup");
    let params = json!({"name": "agent", "arguments": says(script().calls(lookup("l1", "x")).says("late")),
        "_meta": {"progressToken": 1}});
    let messages = Messages::of(stateless(&client, "tools/call", params, &json!({}))).await;
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    eventually(async || newest_status(&client).await == "interrupted").await;
    server.tools.let_go("lookup");
    drop(messages);
}

async fn callers_have_the_agents_and_threads_that_are_theirs(server: TestServer) {
    let keys = server
        .is_protected_with("", "[tenants.acme]\nagents = [\"agent\", \"plain\"]\n")
        .await;
    let ann = keys.client("ann");
    assert_eq!(tools(&ann).await, ["agent", "plain"]);
    assert_eq!(
        tools(&keys.client("eve")).await,
        Vec::<String>::new(),
        "approvers start no runs"
    );
    let other = keys.client("root-of-other");
    assert!(tools(&other).await.contains(&"finder".to_owned()));
    let nobody = stateless(&keys.nobody(), "tools/list", json!({}), &json!({}));
    assert_eq!(reply(nobody).await.status, 401);

    // An agent that a client defined is a tool for its own tenant.
    other.put("/agents/abacus", json!({"model": "scripted:lab"})).await.ok();
    let harness = keys.client("harness");
    for (client, is_there) in [(&other, true), (&harness, false)] {
        assert_eq!(tools(client).await.contains(&"abacus".to_owned()), is_there);
    }
    assert_eq!(tools(&ann).await, ["agent", "plain"]);

    for (client, name) in [(&ann, "finder"), (&harness, "abacus")] {
        let params = json!({"name": name, "arguments": {"message": "x"}});
        let (message, _) = Messages::of(stateless(client, "tools/call", params, &json!({})))
            .await
            .result()
            .await;
        assert!(
            message["error"]["message"]
                .as_str()
                .is_some_and(|text| text.contains(name)),
            "{message}"
        );
    }
    let first = called(&ann, "agent", says(script().calls(mail("m1", "x")).says("mine"))).await;
    let mut more = says(script().says("theirs"));
    more["thread_id"] = first["structuredContent"]["thread_id"].clone();
    for name in ["bob", "root-of-other"] {
        let refused = called(&keys.client(name), "agent", more.clone()).await;
        assert_eq!(refused["isError"], true, "{name}: {refused}");
    }

    let state = json!({"thread_id": more["thread_id"], "run_id": first["structuredContent"]["run_id"]});
    let interrupt = first["structuredContent"]["interrupts"][0]["id"]
        .as_str()
        .expect("an id");
    let answered = json!({"name": "agent", "requestState": state.to_string(),
        "inputResponses": {interrupt: {"action": "accept", "content": {"decision": "approve"}}}});
    let bob = keys.client("bob");
    let (message, _) = Messages::of(stateless(&bob, "tools/call", answered, &json!({"elicitation": {}})))
        .await
        .result()
        .await;
    assert_eq!(message["result"]["isError"], true, "{message}");
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
}

async fn an_approver_does_not_learn_the_answer_of_the_thread_of_another(server: TestServer) {
    const AGENT: &str = "
[agents.guarded]
model = \"scripted:lab\"
system_prompt = \"x\"
tools = [\"send_email\"]
interrupt_on = { send_email = { allowed_decisions = [\"approve\"], approvers = { users = [\"bob\"] } } }
";
    let keys = server.is_protected_with("", AGENT).await;
    let talk = script().calls(mail("m1", "x")).says("for ann alone");
    let ann = keys.client("ann");
    let asked = called(&ann, "guarded", says(talk)).await;
    let structured = &asked["structuredContent"];
    let thread = structured["thread_id"].as_str().expect("an id");
    let found = ann.get(&format!("/threads/{thread}/interrupts")).await.ok();
    let interrupt = found["interrupts"][0]["id"].as_str().expect("an id");
    let state = json!({"thread_id": thread, "run_id": structured["run_id"]});
    let answered = json!({"name": "guarded", "requestState": state.to_string(),
        "inputResponses": {interrupt: {"action": "accept", "content": {"decision": "approve"}}}});
    let bob = keys.client("bob");
    let (message, _) = Messages::of(stateless(&bob, "tools/call", answered, &json!({"elicitation": {}})))
        .await
        .result()
        .await;
    assert_eq!(message["result"]["isError"], true, "{message}");
    assert!(!message.to_string().contains("for ann alone"), "{message}");
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());

    // The endpoint for approvers takes the answer, and shows nothing else.
    let path = format!("/threads/{thread}/interrupts/{interrupt}/resolve");
    let body = json!({"decisions": [{"type": "approve"}]});
    let resolved = bob.post(&path, body).await.ok();
    assert!(!resolved.to_string().contains("for ann alone"), "{resolved}");
    eventually(async || server.tools.keys_of("send_email") == ["m1"]).await;
    let run = resolved["run_id"].as_str().expect("an id");
    ann.get(&format!("/threads/{thread}/runs/{run}/join")).await.ok();
}

async fn a_session_is_of_one_client(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = Session::open(&keys.client("ann"), json!({})).await;
    let stolen = Session {
        client: keys.client("bob"),
        id: ann.id.clone(),
    };
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let refused = reply(stolen.request(Method::POST).json(&list)).await;
    assert_eq!(refused.status, 404);
    assert_eq!(refused.body["code"], "mcp_session_not_found");
    assert_eq!(reply(stolen.request(Method::GET)).await.status, 404);
    assert_eq!(reply(stolen.request(Method::DELETE)).await.status, 404);
    let (message, _) = Messages::of(ann.request(Method::POST).json(&list)).await.result().await;
    assert!(message["result"]["tools"].is_array(), "{message}");
    assert!(reply(ann.request(Method::DELETE)).await.status < 300);
    assert_eq!(reply(ann.request(Method::POST).json(&list)).await.status, 404);
}

async fn a_long_call_answers_at_once_and_has_its_result_at_the_end(server: TestServer) {
    let client = server.client();
    server.tools.hold("lookup");
    let params = json!({"name": "agent", "arguments": says(script().calls(lookup("l1", "x")).says("late"))});
    // The heartbeat of the test's server comes after a second, and the head of the response with it.
    let messages = Messages::of(stateless(&client, "tools/call", params, &json!({}))).await;
    server.tools.let_go("lookup");
    let (message, _) = messages.result().await;
    assert_eq!(message["result"]["content"][0]["text"], "late", "{message}");
}

async fn what_is_no_message_of_the_protocol_is_refused(server: TestServer) {
    let client = server.client();
    let post = |body: Value| request(&client, Method::POST).json(&body);
    for body in [json!([]), json!({}), json!({"jsonrpc": "2.0", "method": 7})] {
        let refused = reply(post(body.clone())).await;
        assert!((400..500).contains(&refused.status), "{body}: {refused:?}");
        assert!(
            refused.body.get("code").is_some() || refused.body.get("error").is_some(),
            "{refused:?}"
        );
    }
    let mut deep = json!(1);
    for _ in 0..200 {
        deep = json!([deep]);
    }
    let deep = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"x": deep}});
    assert_eq!(reply(post(deep)).await.status, 422);
    let nul = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"cursor": "a\0b"}});
    assert_eq!(reply(post(nul)).await.status, 422);
    let plain = client
        .request(Method::POST, "/mcp")
        .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
    assert_eq!(reply(plain.header("accept", "text/html")).await.status, 406);
}

async fn foreign_pages_are_refused(server: TestServer) {
    let list = stateless(&server.client(), "tools/list", json!({}), &json!({}));
    let refused = reply(list.header("origin", "https://evil.example")).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    let list = stateless(&server.client(), "tools/list", json!({}), &json!({}));
    let refused = reply(list.header("host", "evil.example")).await;
    assert!((400..500).contains(&refused.status), "{refused:?}");
}
