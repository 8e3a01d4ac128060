//! MCP servers without sessions, which ask a human in the results of calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, InputRequest, InputRequiredResult,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::misbehaving_server::MisbehavingServer;
use crate::support::proxy::Proxy;
use crate::support::{
    Human, TestServer, call, eventually, mail, mcp, on_both_engines, script, transcript, without_postgres,
};

on_both_engines! {
    a_question_in_a_result_is_an_interrupt_that_outlives_a_restart,
    a_result_may_ask_several_questions,
    a_human_may_decline_or_cancel,
    a_call_with_answers_is_repeated_as_it_was_after_a_crash,
    agents_of_adjutant_ask_through_its_own_mcp_server,
    a_call_that_requires_input_without_end_is_an_error_result,
    a_requirement_that_cannot_be_met_is_an_error_result,
    an_answer_to_a_question_of_a_session_is_taken_when_a_result_asks_the_same,
    an_answer_to_a_question_in_a_result_is_taken_when_a_session_asks_the_same,
}

without_postgres! {
    a_server_without_the_setting_cannot_ask_in_a_result,
    a_program_without_a_handshake_asks_and_brings_tools,
    a_program_that_ends_on_an_unknown_message_is_started_again,
    an_older_server_is_asked_for_its_versions_once,
    a_server_may_go_back_to_an_older_version,
    a_call_without_a_handshake_may_be_silent_for_all_of_its_time,
    a_call_that_is_repeated_takes_no_longer_than_one,
}

/// A server whose tools ask in results. It keeps nothing between two calls.
#[derive(Clone, Default)]
struct Office {
    /// The calls so far, each with what it has brought.
    calls: Arc<Mutex<Vec<Value>>>,
    /// True while calls with answers are held back.
    holds: Arc<watch::Sender<bool>>,
}

/// Returns the request for a text.
fn form(message: &str, field: &str) -> Value {
    let properties = json!({field: {"type": "string"}});
    let schema = json!({"type": "object", "properties": properties, "required": [field]});
    json!({"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}})
}

/// Returns a result that has these requests and this state.
fn requires(requests: &[(&str, Value)], state: &str) -> CallToolResponse {
    let read = |request: &Value| serde_json::from_value::<InputRequest>(request.clone()).expect("a request");
    let requests = requests.iter().map(|(key, request)| ((*key).to_owned(), read(request)));
    let result = match requests.len() {
        0 => InputRequiredResult::from_request_state(state),
        _ => InputRequiredResult::new(Some(requests.collect()), Some(state.to_owned())),
    };
    result.into()
}

/// Returns a result with this text.
fn complete(text: &str) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

impl Office {
    fn calls(&self) -> Vec<Value> {
        self.calls.lock().expect("the calls").clone()
    }

    fn answer(tool: &str, state: Option<&str>) -> CallToolResponse {
        let message = json!({"role": "user", "content": {"type": "text", "text": "Hello"}});
        let sampling = json!({"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 9}});
        let page = json!({"mode": "url", "message": "Pay.", "url": "https://pay.example.org", "elicitationId": "e1"});
        match (tool, state) {
            ("book", None) => requires(&[("seat", form("Which seat?", "seat"))], "seat asked"),
            ("book", Some("seat asked")) => requires(&[("sure", form("Are you sure?", "sure"))], "sure asked"),
            ("check_in", None) => {
                let requests = [
                    ("bag", form("How many bags?", "count")),
                    ("seat", form("Which seat?", "seat")),
                ];
                requires(&requests, "all asked")
            }
            ("pester", _) => requires(&[("again", form("And now?", "now"))], "pestered"),
            ("wait", _) => requires(&[], "waited"),
            ("hoard", _) => requires(&[("seat", form("Which seat?", "seat"))], &"x".repeat(65_537)),
            ("sample", _) => requires(&[("think", sampling)], "sampled"),
            ("look_around", _) => requires(&[("roots", json!({"method": "roots/list"}))], "looked"),
            ("pay", _) => {
                let request = json!({"method": "elicitation/create", "params": page});
                requires(&[("page", request)], "visited")
            }
            _ => complete(&format!("{tool} is done")),
        }
    }
}

impl ServerHandler for Office {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    /// Returns a tool with an argument that has to be repeated in a header.
    fn get_tool(&self, name: &str) -> Option<Tool> {
        let city = json!({"type": "string", "x-mcp-header": "City"});
        let schema = json!({"type": "object", "properties": {"city": city}});
        let schema = schema.as_object().cloned().unwrap_or_default();
        Some(Tool::new(name.to_owned(), "Does it.", Arc::new(schema)))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let names = [
            "book",
            "check_in",
            "pester",
            "wait",
            "hoard",
            "sample",
            "look_around",
            "pay",
        ];
        Ok(ListToolsResult {
            tools: names.iter().filter_map(|name| self.get_tool(name)).collect(),
            ..ListToolsResult::default()
        })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if context
            .protocol_version()
            .is_some_and(|version| version.has_initialize())
        {
            // A session asks for the seat and nothing else.
            let params = form("Which seat?", "seat")["params"].take();
            let params = serde_json::from_value(params).expect("parameters");
            let asked = context.peer.create_elicitation(params).await;
            let answer = asked.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
            let answer = serde_json::to_value(&answer).expect("JSON");
            return Ok(complete(&format!("the session got {}", answer["content"]["seat"])));
        }
        let has_answers = request.input_responses.is_some();
        let brought = json!({"tool": request.name, "city": request.arguments.unwrap_or_default().get("city"),
            "state": request.request_state, "responses": request.input_responses});
        self.calls.lock().expect("the calls").push(brought);
        if has_answers {
            let mut holds = self.holds.subscribe();
            holds.wait_for(|holds| !holds).await.expect("the server lives");
        }
        Ok(Self::answer(&request.name, request.request_state.as_deref()))
    }
}

/// Returns the address of a server that answers like this at `/mcp`.
async fn serves(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move { axum::serve(listener, router).await });
    base
}

/// Returns the address of an MCP server with this handler at `/mcp`.
pub(super) async fn serves_mcp(handler: impl ServerHandler + Clone) -> String {
    let manager = Arc::new(LocalSessionManager::default());
    let config = StreamableHttpServerConfig::default();
    let service = StreamableHttpService::new(move || Ok(handler.clone()), manager, config);
    serves(Router::new().route_service("/mcp", service)).await
}

/// Configures the MCP server `office` with these lines, and an agent that uses it.
async fn uses_office(server: &TestServer, lines: &str) {
    server
        .is_configured_with(&format!(
            "[mcp_servers.office]\n{lines}\n\
             [agents.clerk]\nmodel = \"scripted:lab\"\ntools = [\"office/*\"]\n"
        ))
        .await;
}

/// Starts the server, and an agent that uses it.
async fn clerk(server: &TestServer, settings: &str) -> (Human, Office) {
    let office = Office::default();
    let base = serves_mcp(office.clone()).await;
    uses_office(server, &format!("url = \"{base}/mcp\"\n{settings}")).await;
    (server.human("clerk").await, office)
}

/// Has the agent call a tool of the server.
async fn calls(human: &Human, tool: &str) {
    let call = call("c1", &format!("office__{tool}"), json!({"city": "Zürich"}));
    human.says(script().calls(call).says("done")).await;
}

fn accepts(content: Value) -> Value {
    json!({"action": "accept", "content": content})
}

/// Answers the open question with this message.
async fn answers(human: &Human, message: &str, answer: Value) {
    let open = human.questions().await;
    let open = open.iter().find(|open| open.0["value"]["message"] == message);
    let open = open.unwrap_or_else(|| panic!("{message} is not asked"));
    let reply = human.resolves(open, json!({"response": answer})).await.ok();
    human.run(&reply).finishes().await;
}

/// Returns the call of a tool as the server has recorded it.
fn recorded(tool: &str, state: Option<&str>, responses: &Value) -> Value {
    json!({"tool": tool, "city": "Zürich", "state": state, "responses": responses})
}

/// Checks that the call of `book` is done, and was made without answers, with the first one, and with the second one.
async fn has_booked(human: &Human, office: &Office) {
    assert_eq!(human.transcript().await[2], "office__book: book is done");
    let seat = json!({"seat": accepts(json!({"seat": "4a"}))});
    let sure = json!({"sure": accepts(json!({"sure": "yes"}))});
    let expected = [
        recorded("book", None, &Value::Null),
        recorded("book", Some("seat asked"), &seat),
        recorded("book", Some("sure asked"), &sure),
    ];
    assert_eq!(office.calls(), expected);
}

async fn a_question_in_a_result_is_an_interrupt_that_outlives_a_restart(server: TestServer) {
    let (alice, office) = clerk(&server, "elicitation = true").await;
    calls(&alice, "book").await;
    let asked = alice.question().await.0;
    assert_eq!(asked["kind"], "question", "{asked}");
    assert_eq!(asked["value"]["type"], "mcp_elicitation", "{asked}");
    let fields = &asked["value"]["requested_schema"]["properties"];
    assert_eq!(fields["seat"]["type"], "string", "{asked}");
    assert_eq!(asked["response_schema"]["required"], json!(["action"]), "{asked}");
    for path in ["", "/state", "/interrupts"] {
        let shown = alice.client().get(&alice.path(path)).await.ok().to_string();
        assert!(
            !shown.contains("seat asked"),
            "the state of the server is in `{path}`: {shown}"
        );
    }
    let wrong = json!({"response": accepts(json!({"seat": 4}))});
    assert_eq!(alice.resolves(&alice.question().await, wrong).await.status, 422);

    server.is_stopped_and_started_again().await;
    answers(&alice, "Which seat?", accepts(json!({"seat": "4a"}))).await;
    server.is_stopped_and_started_again().await;
    answers(&alice, "Are you sure?", accepts(json!({"sure": "yes"}))).await;
    has_booked(&alice, &office).await;
}

async fn a_result_may_ask_several_questions(server: TestServer) {
    let (alice, office) = clerk(&server, "elicitation = true").await;
    calls(&alice, "check_in").await;
    assert_eq!(alice.questions().await.len(), 2);
    answers(&alice, "Which seat?", accepts(json!({"seat": "4a"}))).await;
    assert_eq!(alice.questions().await.len(), 1);
    assert_eq!(
        office.calls().len(),
        1,
        "the call is made when all questions are answered"
    );
    server.is_stopped_and_started_again().await;
    answers(&alice, "How many bags?", accepts(json!({"count": "two"}))).await;
    assert_eq!(alice.transcript().await[2], "office__check_in: check_in is done");
    let responses = json!({"bag": accepts(json!({"count": "two"})), "seat": accepts(json!({"seat": "4a"}))});
    let expected = [
        recorded("check_in", None, &Value::Null),
        recorded("check_in", Some("all asked"), &responses),
    ];
    assert_eq!(office.calls(), expected);
}

async fn a_human_may_decline_or_cancel(server: TestServer) {
    let (alice, office) = clerk(&server, "elicitation = true").await;
    calls(&alice, "book").await;
    answers(&alice, "Which seat?", json!({"action": "decline"})).await;
    answers(&alice, "Are you sure?", json!({"action": "cancel"})).await;
    assert_eq!(alice.transcript().await[2], "office__book: book is done");
    let given: Vec<Value> = office.calls().iter().map(|call| call["responses"].clone()).collect();
    let expected = [
        Value::Null,
        json!({"seat": {"action": "decline"}}),
        json!({"sure": {"action": "cancel"}}),
    ];
    assert_eq!(given, expected);
}

async fn a_call_with_answers_is_repeated_as_it_was_after_a_crash(server: TestServer) {
    let (alice, office) = clerk(&server, "elicitation = true\nafter_crash = \"repeat\"").await;
    server.moves_into_a_process().await;
    calls(&alice, "check_in").await;
    answers(&alice, "How many bags?", accepts(json!({"count": "two"}))).await;
    office.holds.send_replace(true);
    let open = alice.question().await;
    let answer = json!({"response": accepts(json!({"seat": "4a"}))});
    let run = alice.run(&alice.resolves(&open, answer).await.ok());
    eventually(async || office.calls().len() == 2).await;
    server.is_killed_and_started_again().await;
    office.holds.send_replace(false);
    run.finishes().await;
    assert_eq!(alice.transcript().await[2], "office__check_in: check_in is done");
    let made = office.calls();
    assert_eq!(made.len(), 3, "{made:#?}");
    assert_eq!(made[1]["state"], "all asked");
    assert_eq!(made[1], made[2]);
}

async fn an_answer_to_a_question_of_a_session_is_taken_when_a_result_asks_the_same(server: TestServer) {
    let (alice, office) = clerk(&server, "elicitation = true\nhandshake = true").await;
    calls(&alice, "book").await;
    server.is_reconfigured("handshake = true\n", "").await;
    answers(&alice, "Which seat?", accepts(json!({"seat": "4a"}))).await;
    let open = alice.questions().await;
    assert_eq!(open.len(), 1, "{open:?}");
    answers(&alice, "Are you sure?", accepts(json!({"sure": "yes"}))).await;
    has_booked(&alice, &office).await;
}

async fn an_answer_to_a_question_in_a_result_is_taken_when_a_session_asks_the_same(server: TestServer) {
    let (alice, office) = clerk(&server, "elicitation = true").await;
    calls(&alice, "book").await;
    server
        .is_reconfigured("elicitation = true\n", "elicitation = true\nhandshake = true\n")
        .await;
    answers(&alice, "Which seat?", accepts(json!({"seat": "4a"}))).await;
    assert!(alice.questions().await.is_empty());
    assert_eq!(alice.transcript().await[2], "office__book: the session got \"4a\"");
    assert_eq!(office.calls(), [recorded("book", None, &Value::Null)]);
}

/// Waits until an agent has a tool.
async fn has_tool(server: &TestServer, agent: &str, tool: &str) {
    eventually(async || {
        let human = server.human(agent).await;
        let said = transcript(&human.says(script().turn(json!({"echo_tools": true}))).await);
        said.last().is_some_and(|said| said.contains(tool))
    })
    .await;
}

async fn agents_of_adjutant_ask_through_its_own_mcp_server(server: TestServer) {
    let door = Proxy::before(server.client()).await;
    server
        .is_configured_with(&format!(
            "[mcp_servers.own]\nurl = \"{}/mcp\"\nelicitation = true\n\
             [agents.delegator]\nmodel = \"scripted:lab\"\ntools = [\"own/*\"]\n",
            door.base
        ))
        .await;
    has_tool(&server, "delegator", "own__agent").await;
    let alice = server.human("delegator").await;
    let work = script().calls(mail("m1", "bob")).says("sent").to_string();
    let call = call("c1", "own__agent", json!({"message": work}));
    alice.says(script().calls(call).says("done")).await;
    let asked = alice.question().await;
    let fields = &asked.0["value"]["requested_schema"]["properties"];
    assert_eq!(fields["decision"]["enum"], json!(["approve", "reject"]), "{asked:?}");
    assert!(server.tools.calls_of("send_email").is_empty());

    server.is_stopped_and_started_again().await;
    has_tool(&server, "delegator", "own__agent").await;
    let answer = json!({"response": accepts(json!({"decision": "approve"}))});
    let reply = alice.resolves(&asked, answer).await.ok();
    alice.run(&reply).finishes().await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("own__agent: sent\n{\"thread_id\":"), "{}", said[2]);
    assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
}

async fn a_call_that_requires_input_without_end_is_an_error_result(server: TestServer) {
    let (alice, office) = clerk(&server, "elicitation = true").await;
    calls(&alice, "pester").await;
    for _ in 0..16 {
        answers(&alice, "And now?", accepts(json!({"now": "what"}))).await;
    }
    assert!(alice.questions().await.is_empty());
    let said = alice.transcript().await;
    assert!(said[2].starts_with("office__pester failed:"), "{said:#?}");
    assert!(said[2].ends_with("it has required input 16 times"), "{said:#?}");
    assert_eq!(office.calls().len(), 17);

    let bob = server.human("clerk").await;
    calls(&bob, "wait").await;
    let said = bob.transcript().await;
    assert!(said[2].ends_with("it has required input 16 times"), "{said:#?}");
    let waited = office.calls().split_off(17);
    assert_eq!(waited.len(), 17);
    assert_eq!(waited[16], recorded("wait", Some("waited"), &Value::Null));
}

async fn a_requirement_that_cannot_be_met_is_an_error_result(server: TestServer) {
    let (alice, _office) = clerk(&server, "elicitation = true").await;
    let reasons = [
        ("hoard", "its `requestState` is longer than 65536 bytes"),
        ("sample", "it requires `sampling/createMessage`, which is not supported"),
        ("look_around", "it requires `roots/list`, which is not supported"),
        ("pay", "pages to visit are not supported"),
    ];
    let calls = reasons.map(|(tool, _)| call(tool, &format!("office__{tool}"), json!({})));
    alice.says(script().calls_all(calls).says("done")).await;
    assert!(alice.questions().await.is_empty());
    let said = alice.transcript().await;
    for ((tool, reason), said) in reasons.iter().zip(&said[2..]) {
        assert!(said.starts_with(&format!("office__{tool} failed:")), "{said}");
        assert!(said.ends_with(reason), "{said}");
    }
}

async fn a_server_without_the_setting_cannot_ask_in_a_result(server: TestServer) {
    let (alice, _office) = clerk(&server, "").await;
    calls(&alice, "book").await;
    assert!(alice.questions().await.is_empty());
    let said = alice.transcript().await;
    assert!(said[2].starts_with("office__book failed:"), "{said:#?}");
    assert!(said[2].contains("`elicitation`"), "{said:#?}");
}

/// A program that speaks the protocol without a handshake, and nothing else.
const NO_HANDSHAKE: &str = r#"
import json, sys

VERSION = "2026-07-28"
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ["book", "grow"]]
subscription = None

def put(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()

def text(said):
    return {"resultType": "complete", "content": [{"type": "text", "text": said}]}

def call(params):
    if params["name"] == "late":
        return text("better")
    if params["name"] == "grow":
        TOOLS.append({"name": "late", "inputSchema": {"type": "object"}})
        meta = {"io.modelcontextprotocol/subscriptionId": subscription}
        if subscription is not None:
            put({"method": "notifications/tools/list_changed", "params": {"_meta": meta}})
        return text("grown")
    if params.get("requestState") == "asked":
        return text("booked " + params["inputResponses"]["seat"]["content"]["seat"])
    schema = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}
    asked = {"method": "elicitation/create", "params": {"mode": "form", "message": "Which seat?", "requestedSchema": schema}}
    return {"resultType": "input_required", "inputRequests": {"seat": asked}, "requestState": "asked"}

for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method, params = request["method"], request.get("params") or {}
    if params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion") != VERSION:
        put({"id": request["id"], "error": {"code": -32022, "message": "another version"}})
    elif method == "server/discover":
        capabilities = {"tools": {"listChanged": True}}
        result = {"resultType": "complete", "supportedVersions": [VERSION], "capabilities": capabilities}
        put({"id": request["id"], "result": {**result, "ttlMs": 0, "cacheScope": "private"}})
    elif method == "subscriptions/listen":
        if params["notifications"].get("toolsListChanged"):
            subscription = request["id"]
    elif method == "tools/list":
        put({"id": request["id"], "result": {"resultType": "complete", "tools": TOOLS}})
    elif method == "tools/call":
        put({"id": request["id"], "result": call(params)})
"#;

/// A program of an older version, which ends when its first message is another than the handshake.
const ONLY_HANDSHAKE: &str = r#"
import json, sys

def put(id, result):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}) + "\n")
    sys.stdout.flush()

is_open = False
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "initialize":
        is_open = True
        own = {"name": "strict", "version": "1"}
        put(request["id"], {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": own})
    elif not is_open:
        sys.exit(1)
    elif request["method"] == "tools/list":
        put(request["id"], {"tools": [{"name": "book", "inputSchema": {"type": "object"}}]})
    elif request["method"] == "tools/call":
        put(request["id"], {"content": [{"type": "text", "text": "booked"}]})
"#;

/// Configures this program of Python as the server; false without Python.
async fn is_program(server: &TestServer, program: &str) -> bool {
    let Some(python) = mcp::python() else { return false };
    let path = std::env::var("PATH").unwrap_or_default();
    let lines =
        format!("command = {python:?}\nargs = [\"-c\", {program:?}]\nenv = {{ PATH = {path:?} }}\nelicitation = true");
    uses_office(server, &lines).await;
    true
}

async fn a_program_without_a_handshake_asks_and_brings_tools(server: TestServer) {
    if !is_program(&server, NO_HANDSHAKE).await {
        return;
    }
    has_tool(&server, "clerk", "office__book").await;
    let alice = server.human("clerk").await;
    calls(&alice, "book").await;
    server.is_stopped_and_started_again().await;
    has_tool(&server, "clerk", "office__book").await;
    answers(&alice, "Which seat?", accepts(json!({"seat": "4a"}))).await;
    assert_eq!(alice.transcript().await[2], "office__book: booked 4a");

    let bob = server.human("clerk").await;
    calls(&bob, "grow").await;
    assert_eq!(bob.transcript().await[2], "office__grow: grown");
    has_tool(&server, "clerk", "office__late").await;
}

async fn a_program_that_ends_on_an_unknown_message_is_started_again(server: TestServer) {
    if !is_program(&server, ONLY_HANDSHAKE).await {
        return;
    }
    has_tool(&server, "clerk", "office__book").await;
    let alice = server.human("clerk").await;
    calls(&alice, "book").await;
    assert_eq!(alice.transcript().await[2], "office__book: booked");
}

/// A server behind HTTP with the tool `look`, whose version changes.
#[derive(Clone, Default)]
struct VersionedServer {
    /// True while it needs no handshake. Otherwise it knows no other requests than those of its session.
    is_stateless: Arc<AtomicBool>,
    /// The methods of all messages so far.
    methods: Arc<Mutex<Vec<String>>>,
    /// The number of the session.
    session: Arc<Mutex<usize>>,
}

impl VersionedServer {
    /// Starts the server, and an agent that uses it.
    async fn start(server: &TestServer, is_stateless: bool) -> Self {
        let versioned = Self::default();
        versioned.is_stateless.store(is_stateless, Ordering::Relaxed);
        let router = Router::new().route("/mcp", post(reply)).with_state(versioned.clone());
        let base = serves(router).await;
        uses_office(server, &format!("url = \"{base}/mcp\"")).await;
        versioned
    }

    /// Returns the number of messages with this method.
    fn got(&self, method: &str) -> usize {
        let methods = self.methods.lock().expect("the methods");
        methods.iter().filter(|got| *got == method).count()
    }

    /// Ends the session.
    fn forgets(&self) {
        *self.session.lock().expect("the session") += 1;
    }
}

async fn reply(State(versioned): State<VersionedServer>, headers: HeaderMap, Json(message): Json<Value>) -> Response {
    let method = message["method"].as_str().unwrap_or_default().to_owned();
    versioned.methods.lock().expect("the methods").push(method.clone());
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let session = format!("session-{}", versioned.session.lock().expect("the session"));
    let is_stateless = versioned.is_stateless.load(Ordering::Relaxed);
    let is_known = match is_stateless {
        true => header("mcp-protocol-version") == Some("2026-07-28") && header("mcp-method") == Some(method.as_str()),
        false => method == "initialize" || header("mcp-session-id") == Some(session.as_str()),
    };
    if !is_known {
        return (StatusCode::NOT_FOUND, "no such session").into_response();
    }
    let result = match method.as_str() {
        "server/discover" => json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}),
        "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "versioned", "version": "1"}}),
        "tools/list" => json!({"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": "seen"}]}),
        "subscriptions/listen" => return StatusCode::NOT_FOUND.into_response(),
        _ => return StatusCode::ACCEPTED.into_response(),
    };
    let body = Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result}));
    match method.as_str() {
        "initialize" => ([("mcp-session-id", session)], body).into_response(),
        _ => body.into_response(),
    }
}

async fn an_older_server_is_asked_for_its_versions_once(server: TestServer) {
    let versioned = VersionedServer::start(&server, false).await;
    for sessions in 1..=3 {
        let alice = server.human("clerk").await;
        calls(&alice, "look").await;
        assert_eq!(alice.transcript().await[2], "office__look: seen");
        assert_eq!(versioned.got("initialize"), sessions);
        versioned.forgets();
    }
    assert_eq!(versioned.got("server/discover"), 1);
}

async fn a_server_may_go_back_to_an_older_version(server: TestServer) {
    let versioned = VersionedServer::start(&server, true).await;
    let alice = server.human("clerk").await;
    calls(&alice, "look").await;
    assert_eq!(alice.transcript().await[2], "office__look: seen");
    assert_eq!(versioned.got("initialize"), 0);
    versioned.is_stateless.store(false, Ordering::Relaxed);
    let bob = server.human("clerk").await;
    calls(&bob, "look").await;
    let said = bob.transcript().await;
    assert!(said[2].contains("it answered with status 404"), "{said:#?}");
    let eve = server.human("clerk").await;
    calls(&eve, "look").await;
    assert_eq!(eve.transcript().await[2], "office__look: seen");
    assert_eq!(versioned.got("initialize"), 1);
}

async fn a_call_without_a_handshake_may_be_silent_for_all_of_its_time(server: TestServer) {
    let (alice, office) = clerk(&server, "elicitation = true").await;
    let wild = MisbehavingServer::start().await;
    server.configuration_changes("[runtime]\n", "[answers]\nfirst_byte_s = 1.5\n[runtime]\n");
    server
        .is_configured_with(&format!(
            "[mcp_servers.silent]\nurl = \"{}/mcp-silent\"\n\
             [agents.listener]\nmodel = \"scripted:lab\"\ntools = [\"silent/*\"]\n",
            wild.base
        ))
        .await;
    calls(&alice, "book").await;
    office.holds.send_replace(true);
    let open = alice.question().await;
    let answer = json!({"response": accepts(json!({"seat": "4a"}))});
    let run = alice.run(&alice.resolves(&open, answer).await.ok());
    eventually(async || office.calls().len() == 2).await;
    // A call that begins later, at a server with a handshake, is given up first.
    let bob = server.human("listener").await;
    bob.says(script().calls(call("c1", "silent__good", json!({}))).says("done"))
        .await;
    let said = bob.transcript().await;
    assert!(
        said[2].contains("nothing arrived for 1.5 s (the setting `[answers] first_byte_s`)"),
        "{said:#?}"
    );
    office.holds.send_replace(false);
    run.finishes().await;
    assert_eq!(alice.question().await.0["value"]["message"], "Are you sure?");
    assert_eq!(office.calls().len(), 2);
}

async fn a_call_that_is_repeated_takes_no_longer_than_one(server: TestServer) {
    let (alice, office) = clerk(&server, "timeout_s = 0.3\nstart_timeout_s = 2").await;
    calls(&alice, "wait").await;
    let said = alice.transcript().await;
    assert!(
        said[2].contains("there was no answer within 0.3 s (its `timeout_s`)"),
        "{said:#?}"
    );
    assert!(office.calls().len() < 17);
}
