use std::future::Future;

use axum::Router;
use axum::body::Bytes;
use axum::http::HeaderMap as Headers;
use axum::response::{IntoResponse, Redirect};
use axum::routing::post;
use serde_json::Map;
use tokio::net::TcpListener;

use super::answer::MAX_ERROR_CHARS;
use super::*;
use crate::definition::ToolKind;
use crate::domain::call::ToolOutput;
use crate::domain::message::{Message, Role, ToolStatus};
use crate::domain::time::Timestamp;
use crate::tool::outcome::Delegation;
use crate::tool::progress::ProgressEvent;

fn definition(url: String) -> ToolDefinition {
    // The other addresses answer, however busy the machine is.
    let timeout_s = if url.ends_with("/slow") { 0.3 } else { 30.0 };
    ToolDefinition {
        kind: ToolKind::Http,
        builtin: None,
        description: "Looks a fact up.".to_owned(),
        url,
        parameters: json!({"type": "object"}),
        headers: crate::definition::Headers(BTreeMap::from([(
            "authorization".to_owned(),
            "Bearer hush-hush".to_owned(),
        )])),
        timeout_s,
        max_retries: 0,
        after_crash: AfterCrash::Ask,
        on_error: OnError::Report,
        read_access: ReadAccess::default(),
    }
}

fn lookup() -> ToolCall {
    ToolCall::new("call 1", "lookup", Map::from_iter([("query".to_owned(), json!("x"))]))
}

/// Serves the responses of a tool server for as long as `scene` runs.
async fn with_server<T>(scene: impl AsyncFnOnce(String) -> T) -> T {
    let app = Router::new()
        .route(
            "/echo",
            post(|headers: Headers, body: Bytes| async move { echo(&headers, &body) }),
        )
        .route("/text", post(|| async { "\"42\"" }))
        .route("/empty", post(|| async { "{}" }))
        .route("/list", post(|| async { "[1]" }))
        .route("/broken", post(|| async { "4 2" }))
        .route(
            "/private",
            post(|| async { r#"{"content": "", "update": {"_secret": 1}}"# }),
        )
        .route(
            "/file",
            post(|| async { r#"{"content": "", "update": {"files": {"/a": {"content": "A"}}, "notes": 1}}"# }),
        )
        .route(
            "/spawn",
            post(|| async { r#"{"delegate": {"description": "d", "subagent_type": "s"}}"# }),
        )
        .route(
            "/fail",
            post(|headers: Headers| async move { (StatusCode::BAD_GATEWAY, refusal(&headers)) }),
        )
        .route("/moved", post(|| async { Redirect::temporary("/text") }))
        .route("/huge", post(|| async { "x".repeat(MAX_ANSWER_BYTES + 1) }))
        .route(
            "/custom",
            post(|| async { r#"{"content": "done", "custom": [1, "two"]}"# }),
        )
        .route(
            "/lines",
            post(|| async { ndjson("{\"custom\": [1]}\n\n{\"custom\": [2, 3]}\r\n\"done\"") }),
        )
        .route(
            "/pieces",
            post(|| async { ndjson("{\"output\": \"do\"}\n{\"output\": \"ne\", \"custom\": [1]}\n\"done\"") }),
        )
        .route("/spilt", post(|| async { ndjson("{\"output\": 1}\n\"done\"\n") }))
        .route("/unended", post(|| async { ndjson("{\"custom\": [1]}\n") }))
        .route("/torn", post(|| async { ndjson("{\"custom\": 1}\n\"done\"\n") }))
        .route(
            "/ask",
            post(|body: Bytes| async move {
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                if body["answers"].is_null() {
                    r#"{"interrupts": [{"value": "Sure?", "response_schema": {"type": "boolean"}},
                        {"key": "who", "value": {"ask": 1}, "approvers": {"users": ["eve"]}}]}"#
                        .to_owned()
                } else {
                    json!({"content": body["answers"].to_string()}).to_string()
                }
            }),
        )
        .route("/none-asked", post(|| async { r#"{"interrupts": []}"# }))
        .route(
            "/asked-twice",
            post(|| async { r#"{"interrupts": [{"key": "a", "value": 1}, {"key": "a", "value": 2}]}"# }),
        )
        .route(
            "/no-schema",
            post(|| async { r#"{"interrupts": [{"value": 1, "response_schema": {"type": 7}}]}"# }),
        )
        .route(
            "/many",
            post(|| async { json!({"interrupts": vec![json!({"value": 1}); MAX_QUESTIONS + 1]}).to_string() }),
        )
        .route(
            "/long",
            post(|| async { json!({"interrupts": [{"value": "x".repeat(MAX_QUESTION_BYTES)}]}).to_string() }),
        )
        .route(
            "/error",
            post(|| async { r#"{"error": {"type": "KeyError", "message": "no Bearer hush-hush"}}"# }),
        )
        .route("/slow", post(std::future::pending::<()>));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::select! {
        served = axum::serve(listener, app) => panic!("the server ended: {served:?}"),
        outcome = scene(format!("http://{address}")) => outcome,
    }
}

fn ndjson(body: &'static str) -> impl IntoResponse {
    ([("content-type", "application/x-ndjson; charset=utf-8")], body)
}

fn echo(headers: &Headers, body: &Bytes) -> impl IntoResponse + use<> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let auth = headers.get("authorization").and_then(|value| value.to_str().ok());
    let task = headers.get("adjutant-task-id").and_then(|value| value.to_str().ok());
    json!({"content": "ok", "artifact": {"key": key, "task": task, "auth": auth, "body": body}}).to_string()
}

fn refusal(headers: &Headers) -> String {
    let auth = headers
        .get("authorization")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    format!("you sent {auth} {}", "y".repeat(5_000))
}

async fn call(path: &str) -> Result<CallOutcome, Halt> {
    with_server(async |base| call_at(&base, path, &Scope::sample(Timestamp(0))).await).await
}

fn call_at(base: &str, path: &str, scope: &Scope) -> impl Future<Output = Result<CallOutcome, Halt>> {
    let client = client().expect("a client");
    let tool = RemoteTool::new("lookup", &definition(format!("{base}{path}")), client).expect("a definition");
    async move { tool.call(scope, &State::default(), &lookup()).await }
}

async fn failure_of(path: &str) -> Failure {
    match call(path).await {
        Err(Halt::Fail(failure)) => failure,
        other => panic!("{other:?}"),
    }
}

fn answer(content: &str, artifact: Option<Value>) -> Message {
    let role = Role::Tool {
        tool_call_id: "call 1".to_owned(),
        artifact,
        status: ToolStatus::Success,
    };
    Message {
        name: Some("lookup".to_owned()),
        ..Message::new(role, content)
    }
}

#[tokio::test]
async fn a_json_string_is_the_result() {
    assert_eq!(
        call("/text").await,
        Ok(CallOutcome::Answer(ToolOutput::message(answer("42", None))))
    );
}

#[tokio::test]
async fn the_request_says_which_call_it_is_and_who_makes_it() {
    let expected = json!({
        "key": "call%201",
        "task": "00000000-0000-0000-0000-000000000004",
        "auth": "Bearer hush-hush",
        "body": {
            "name": "lookup", "args": {"query": "x"}, "tool_call_id": "call 1", "agent_name": "researcher",
            "agent_path": ["main", "researcher"], "thread_id": "00000000-0000-0000-0000-000000000001",
            "run_id": "00000000-0000-0000-0000-000000000002", "context": {"user": "u1"},
        },
    });
    assert_eq!(
        call("/echo").await,
        Ok(CallOutcome::Answer(ToolOutput::message(answer("ok", Some(expected)))))
    );
}

#[tokio::test]
async fn an_answer_may_write_into_the_state() {
    let Ok(CallOutcome::Answer(answer)) = call("/file").await else {
        panic!("no answer")
    };
    assert!(answer.writes.files.contains_key("/a"));
    assert_eq!(answer.writes.fields.get("notes"), Some(&json!(1)));
}

#[tokio::test]
async fn an_answer_may_ask_for_a_delegation() {
    let delegation = Delegation::to("s", "d");
    assert_eq!(call("/spawn").await, Ok(CallOutcome::Delegate(delegation)));
}

#[tokio::test]
async fn another_status_is_a_failure_with_the_beginning_of_the_body_but_no_secrets() {
    let failure = failure_of("/fail").await;
    assert_eq!(failure.class, "ToolHttpError");
    assert!(
        failure
            .message
            .starts_with("the tool `lookup` answered with status 502: you sent *** yyy"),
        "{failure:?}"
    );
    assert!(failure.message.chars().count() < MAX_ERROR_CHARS + 60);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let failure = failure_of("/moved").await;
    assert!(failure.message.contains("status 307"), "{failure:?}");
}

#[tokio::test]
async fn answers_of_another_form_are_failures() {
    for path in ["/empty", "/list", "/broken", "/private", "/huge"] {
        assert_eq!(failure_of(path).await.class, "ToolAnswerError", "{path}");
    }
}

#[tokio::test]
async fn a_slow_tool_is_a_failure() {
    let failure = failure_of("/slow").await;
    assert_eq!(
        failure,
        Failure::new(
            "ToolTimeoutError",
            "the tool `lookup` did not answer within 0.3 s (its `timeout_s`)"
        )
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_connection_that_the_system_gives_up_is_no_timeout_of_the_call() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let builder = net::client_builder().tcp_user_timeout(Duration::from_millis(200));
    let client = builder.build().expect("a client");
    let tool = RemoteTool::new("lookup", &definition(format!("http://{address}/")), client).expect("a definition");
    // More than the buffers of a connection hold, so that the server's side, which reads nothing, confirms nothing any more.
    let query = json!("x".repeat(64 * 1024 * 1024));
    let big = ToolCall::new("call 1", "lookup", Map::from_iter([("query".to_owned(), query)]));
    let scope = Scope::sample(Timestamp(0));
    let state = State::default();
    let called = tool.call(&scope, &state, &big);
    let connected = async {
        let unread = listener.accept().await.expect("a connection");
        std::future::pending::<()>().await;
        drop(unread);
    };
    let outcome = tokio::select! {
        outcome = called => outcome,
        () = connected => panic!("the call waits for ever"),
    };
    let expected = "the tool `lookup` closed the connection before its answer was complete";
    assert_eq!(outcome, Err(Halt::Fail(Failure::new("ToolConnectionError", expected))));
}

#[tokio::test]
async fn an_absent_server_is_a_failure_that_does_not_show_the_address() {
    let outcome = call_at("http://127.0.0.1:1", "/?token=hush", &Scope::sample(Timestamp(0))).await;
    let expected = Failure::new("ToolConnectionError", "the tool `lookup` could not be reached");
    assert_eq!(outcome, Err(Halt::Fail(expected)));
}

#[tokio::test]
async fn a_cancelled_run_does_not_wait() {
    let scope = Scope::sample(Timestamp(0));
    scope.stop.cancel();
    let outcome = with_server(async |base| call_at(&base, "/slow", &scope).await).await;
    assert_eq!(outcome, Err(Halt::Stopped));
}

#[test]
fn an_invalid_definition_is_refused_by_field() {
    let good = definition("http://example.org/x".to_owned());
    let header = |name: &str| crate::definition::Headers(BTreeMap::from([(name.to_owned(), String::new())]));
    let cases = [
        (
            "url",
            ToolDefinition {
                url: "ftp://example.org".to_owned(),
                ..good.clone()
            },
        ),
        (
            "url",
            ToolDefinition {
                url: "here".to_owned(),
                ..good.clone()
            },
        ),
        (
            "parameters",
            ToolDefinition {
                parameters: json!({"type": "string"}),
                ..good.clone()
            },
        ),
        (
            "parameters",
            ToolDefinition {
                parameters: json!({"type": "object", "required": 7}),
                ..good.clone()
            },
        ),
        (
            "timeout_s",
            ToolDefinition {
                timeout_s: 0.0,
                ..good.clone()
            },
        ),
        (
            "timeout_s",
            ToolDefinition {
                timeout_s: f64::NAN,
                ..good.clone()
            },
        ),
        (
            "headers.a b",
            ToolDefinition {
                headers: header("a b"),
                ..good.clone()
            },
        ),
        (
            "headers.Idempotency-Key",
            ToolDefinition {
                headers: header("Idempotency-Key"),
                ..good
            },
        ),
    ];
    for (field, definition) in cases {
        let refused = RemoteTool::new("t", &definition, Client::builder().build().expect("a client")).err();
        assert_eq!(refused.map(|invalid| invalid.field).as_deref(), Some(field));
    }
}

#[tokio::test]
async fn clients_receive_the_progress_of_a_tool() {
    let custom = |value| ProgressEvent::Custom(value);
    let output = |text: &str| ProgressEvent::Output {
        call: "call 1".to_owned(),
        text: text.to_owned(),
    };
    for (path, progress) in [
        ("/custom", vec![custom(json!(1)), custom(json!("two"))]),
        ("/lines", vec![custom(json!(1)), custom(json!(2)), custom(json!(3))]),
        ("/pieces", vec![output("do"), output("ne"), custom(json!(1))]),
    ] {
        let scope = Scope::sample(Timestamp(0));
        let outcome = with_server(async |base| call_at(&base, path, &scope).await).await;
        let Ok(CallOutcome::Answer(answer)) = outcome else {
            panic!("{path}: {outcome:?}")
        };
        assert_eq!(answer.writes.messages[0].content.text(), "done");
        assert_eq!(scope.progress.drain(), progress, "{path}");
    }
}

#[tokio::test]
async fn an_answer_in_lines_has_to_end_with_its_result() {
    for (path, reason) in [
        ("/unended", "ended before the line"),
        (
            "/torn",
            "`custom` in a line of the answer is neither a list nor an object",
        ),
        ("/spilt", "`output` in a line of the answer is not a text"),
    ] {
        let Err(Halt::Fail(failure)) = call(path).await else {
            panic!("{path} is an answer")
        };
        assert!(failure.message.contains(reason), "{failure:?}");
    }
}

#[tokio::test]
async fn an_answer_may_ask_a_human_and_the_call_is_made_again_with_the_answers() {
    with_server(async |base| {
        let scope = Scope::sample(Timestamp(0));
        let Err(Halt::Ask(questions)) = call_at(&base, "/ask", &scope).await else {
            panic!("no questions")
        };
        let keys: Vec<_> = questions.iter().map(|question| question.key.as_deref()).collect();
        assert_eq!(keys, [Some("1"), Some("who")]);
        assert_eq!(questions[0].schema.parse(), json!({"type": "boolean"}));
        assert!(questions.iter().all(|question| question.kind == QuestionKind::Question));
        assert!(questions[0].approvers.is_empty() && !questions[1].approvers.is_empty());
        let given = [json!(true), json!("Eve")];
        let answers = questions.into_iter().map(Arc::new).zip(given).collect();
        let Ok(CallOutcome::Answer(answer)) = call_at(&base, "/ask", &scope.answered(answers)).await else {
            panic!("no answer")
        };
        let told: Value = serde_json::from_str(&answer.writes.messages[0].content.text()).expect("JSON");
        let expected = json!([
            {"key": "1", "value": "Sure?", "response": true},
            {"key": "who", "value": {"ask": 1}, "response": "Eve"},
        ]);
        assert_eq!(told, expected);
    })
    .await;
}

#[tokio::test]
async fn questions_have_limits() {
    for (path, reason) in [
        ("/none-asked", "`interrupts` of the answer is empty"),
        ("/asked-twice", "`interrupts[1]` has the key of another question"),
        (
            "/no-schema",
            "`interrupts[0]` has a `response_schema` that is no JSON Schema",
        ),
        ("/many", "the call asks 65 questions; at most 64 are allowed"),
        ("/long", "`interrupts[0]` is longer than"),
    ] {
        let failure = failure_of(path).await;
        assert!(failure.message.contains(reason), "{failure:?}");
    }
}

#[tokio::test]
async fn an_error_that_a_tool_reports_is_a_failure_without_secrets() {
    let failure = failure_of("/error").await;
    let expected = Failure::new("ToolError", "the tool `lookup` failed: KeyError: no ***");
    assert_eq!(failure, expected);
}
