use std::collections::BTreeMap;
use std::sync::Mutex;

use axum::Router;
use axum::http::HeaderMap as RequestHeaders;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Map, json};
use tokio::net::TcpListener;

use super::*;
use crate::domain::time::Timestamp;
use crate::tool::remote::client;

/// The service of a test: its answer (a status, an `ETag` and a body), and the requests that it got.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<(u16, String, Vec<String>)>>);

impl Fake {
    fn says(&self, status: u16, body: &Value) {
        let mut fake = self.0.lock().unwrap();
        fake.0 = status;
        fake.1 = body.to_string();
    }

    fn answer(&self, headers: &RequestHeaders) -> Response {
        let mut fake = self.0.lock().unwrap();
        let known = headers.get("if-none-match").and_then(|value| value.to_str().ok());
        fake.2.push(known.unwrap_or("new").to_owned());
        let status = StatusCode::from_u16(fake.0).unwrap();
        (status, [("etag", "\"v1\"")], fake.1.clone()).into_response()
    }

    fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap().2.clone()
    }
}

/// Returns a service at a server that answers what the test says.
async fn service(more: ToolServerDefinition) -> (ToolService, Fake) {
    let fake = Fake::default();
    let answering = fake.clone();
    let list = get(|headers: RequestHeaders| async move { answering.answer(&headers) });
    let gone = axum::routing::post(|| async { (StatusCode::NOT_FOUND, "{}") });
    let app = Router::new()
        .route("/base/tools", list)
        .route("/base/tools/{name}", gone);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let definition = ToolServerDefinition {
        url: format!("http://{address}/base/"),
        ..more
    };
    let limits = ServiceLimits {
        max_bytes: 10_000,
        pieces: PieceLimits::default(),
    };
    let service = ToolService::new("crm", &definition, client().unwrap(), limits).unwrap();
    (service, fake)
}

fn entry(name: &str, more: &Value) -> Value {
    let mut entry = json!({"name": name, "parameters": {"type": "object"}});
    let own = entry.as_object_mut().unwrap();
    own.extend(more.as_object().cloned().unwrap_or_default());
    entry
}

fn names(service: &ToolService) -> Vec<String> {
    service.tools().iter().map(|tool| tool.name.clone()).collect()
}

#[tokio::test]
async fn tools_that_cannot_be_offered_are_left_out() {
    let (service, fake) = service(ToolServerDefinition {
        disabled_tools: vec!["hidden".to_owned()],
        ..ToolServerDefinition::default()
    })
    .await;
    let listed = [
        entry("search", &json!({"description": "Searches.", "future": 1})),
        entry("search", &json!({"description": "Again."})),
        entry("hidden", &json!({})),
        entry("", &json!({})),
        entry("list", &json!({"parameters": {"type": "array"}})),
        entry("odd", &json!({"parameters": {"type": "object", "required": 7}})),
        entry("slow", &json!({"timeout_s": 0})),
        entry("wrong", &json!({"after_crash": "hope"})),
        json!("text"),
        entry("a/b", &json!({})),
    ];
    fake.says(200, &json!({"version": 1, "tools": listed}));
    service.list().await.unwrap();
    assert_eq!(names(&service), ["search", "a/b"]);
    let specs = service.tools();
    assert_eq!(specs[0].spec().name, "crm__search");
    assert_eq!(specs[0].spec().description, "Searches.");
    assert!(specs[1].remote.url.as_str().ends_with("/base/tools/a%2Fb"));
}

#[tokio::test]
async fn settings_of_the_configuration_precede_those_of_the_service() {
    let listed = json!({"version": 1, "tools": [
        entry("plain", &json!({})),
        entry("twice", &json!({"idempotent": true, "timeout_s": 5})),
        entry("strict", &json!({"idempotent": true, "after_crash": "fail", "on_error": "fail_run"})),
    ]});
    let (own, fake) = service(ToolServerDefinition::default()).await;
    fake.says(200, &listed);
    own.list().await.unwrap();
    let read: Vec<_> = own
        .tools()
        .iter()
        .map(|tool| (tool.after_crash(), tool.on_error(), tool.remote.timeout.as_secs()))
        .collect();
    let expected = [
        (AfterCrash::Ask, OnError::Report, 30),
        (AfterCrash::Repeat, OnError::Report, 5),
        (AfterCrash::Fail, OnError::FailRun, 30),
    ];
    assert_eq!(read, expected);
    let (configured, fake) = service(ToolServerDefinition {
        after_crash: Some(AfterCrash::Ask),
        on_error: Some(OnError::Report),
        timeout_s: Some(7.0),
        ..ToolServerDefinition::default()
    })
    .await;
    fake.says(200, &listed);
    configured.list().await.unwrap();
    let tools = configured.tools();
    let is_ask = |tool: &Arc<ServiceTool>| tool.after_crash() == AfterCrash::Ask && tool.remote.timeout.as_secs() == 7;
    assert!(tools.iter().all(is_ask));
}

#[tokio::test]
async fn a_list_that_is_not_usable_leaves_the_tools_of_the_last_one() {
    let (service, fake) = service(ToolServerDefinition::default()).await;
    fake.says(200, &json!({"version": 1, "tools": [entry("search", &json!({}))]}));
    service.list().await.unwrap();
    for (status, body, reason) in [
        (200, json!({"version": 2, "tools": []}), "its version is 2, and not 1"),
        (200, json!({"tools": []}), "missing field `version`"),
        (
            200,
            json!({"version": 1, "tools": ["x".repeat(10_000)]}),
            "longer than 10000 bytes",
        ),
        (503, json!({}), "answered with status 503"),
    ] {
        fake.says(status, &body);
        let error = service.list().await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(names(&service), ["search"]);
    }
    fake.says(304, &json!(null));
    service.list().await.unwrap();
    assert_eq!(names(&service), ["search"]);
    assert_eq!(fake.asked()[..2], ["new", "\"v1\""]);
}

#[tokio::test]
async fn a_service_has_at_most_a_thousand_tools() {
    let (service, _) = service(ToolServerDefinition::default()).await;
    let many = (0..=MAX_TOOLS).map(|number| entry(&format!("t{number}"), &json!({})));
    assert_eq!(service.read_tools(many.collect()).len(), MAX_TOOLS);
}

#[tokio::test]
async fn a_call_that_finds_its_tool_gone_has_the_list_read_again() {
    let (service, fake) = service(ToolServerDefinition::default()).await;
    fake.says(200, &json!({"version": 1, "tools": [entry("search", &json!({}))]}));
    service.list().await.unwrap();
    let tool = service.tools().remove(0);
    let call = ToolCall::new("c1", "crm__search", Map::new());
    let called = tool.call(&Scope::sample(Timestamp(0)), &State::default(), &call).await;
    assert!(matches!(called, Err(Halt::Fail(_))));
    timeout(Duration::from_secs(10), service.stale.notified())
        .await
        .unwrap();
}

#[test]
fn an_address_that_is_no_base_is_refused() {
    let limits = ServiceLimits {
        max_bytes: 1,
        pieces: PieceLimits::default(),
    };
    let definition = |url: &str, header: &str| ToolServerDefinition {
        url: url.to_owned(),
        headers: Headers(BTreeMap::from([(header.to_owned(), "x".to_owned())])),
        ..ToolServerDefinition::default()
    };
    for (url, header, field) in [
        ("mailto:eve@example.org", "x-key", "url"),
        ("here", "x-key", "url"),
        ("http://127.0.0.1", "idempotency-key", "headers.idempotency-key"),
    ] {
        let made = ToolService::new("crm", &definition(url, header), client().unwrap(), limits);
        assert_eq!(made.err().map(|invalid| invalid.field).as_deref(), Some(field), "{url}");
    }
}
