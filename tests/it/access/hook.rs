//! The HTTP hook.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use adjutant::shutdown::Shutdown;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::authentication::with_header;
use crate::support::client::Client;
use crate::support::{TestServer, starts_service, without_postgres};

without_postgres! {
    the_hook_gets_the_request_and_names_the_caller,
    an_answer_is_cached_for_as_long_as_it_says,
    what_the_hook_refuses_is_refused,
    a_hook_that_fails_lets_nobody_in,
    requests_without_credentials_do_not_reach_the_hook,
    api_keys_work_while_the_hook_is_down,
    a_client_with_many_failures_does_not_reach_the_hook,
}

/// A service that answers who sends a request.
struct Service {
    base: String,
    state: Arc<ServiceState>,
    around: Shutdown,
}

struct ServiceState {
    answer: Mutex<(u16, String)>,
    questions: Mutex<Vec<Value>>,
}

impl Service {
    async fn start() -> Self {
        let state = Arc::new(ServiceState {
            answer: Mutex::new((401, String::new())),
            questions: Mutex::default(),
        });
        let around = Shutdown::new(Duration::from_secs(1));
        let router = Router::new().route("/who", post(answer)).with_state(Arc::clone(&state));
        let base = starts_service("hook", router, &around).await;
        Self { base, state, around }
    }

    fn answers(&self, status: u16, body: impl ToString) {
        *self.state.answer.lock().unwrap() = (status, body.to_string());
    }

    fn questions(&self) -> Vec<Value> {
        self.state.questions.lock().unwrap().clone()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.around.force();
    }
}

async fn answer(State(state): State<Arc<ServiceState>>, Json(question): Json<Value>) -> Response {
    state.questions.lock().unwrap().push(question);
    let (status, body) = state.answer.lock().unwrap().clone();
    (StatusCode::from_u16(status).unwrap(), body).into_response()
}

/// The parts of a test.
struct Scene {
    service: Service,
    nobody: Client,
    clock: ManualClock,
}

impl Scene {
    async fn begins(server: &TestServer) -> Self {
        let service = Service::start().await;
        let clock = ManualClock::starting_at(SystemClock.now());
        server.uses_clock(&clock).await;
        let nobody = server.is_protected().await.nobody();
        let lines = format!("[auth.hook]\nurl = \"{}/who\"\ntimeout_s = 2", service.base);
        server.is_configured_with(&lines).await;
        Self { service, nobody, clock }
    }

    async fn asks(&self) -> crate::support::client::Reply {
        with_header(&self.nobody, "/auth/me", "cookie", "session=7").await
    }
}

async fn the_hook_gets_the_request_and_names_the_caller(server: TestServer) {
    let scene = Scene::begins(&server).await;
    scene.service.answers(
        200,
        json!({"identity": "ann", "tenant": "acme", "roles": ["developer"], "display_name": "Ann",
            "permissions": ["threads:*", "server:read"], "email": "ann@example.org", "is_authenticated": true}),
    );
    let caller = scene.asks().await.ok();
    let expected = json!({
        "identity": "ann",
        "display_name": "Ann",
        "tenant": "acme",
        "roles": ["developer"],
        "scopes": ["threads:*", "server:read"],
        "credential": "hook",
        "claims": {"email": "ann@example.org"},
        "expires_at": null,
    });
    assert_eq!(caller, expected);
    let question = json!({"method": "GET", "path": "/auth/me", "headers": {"cookie": "session=7"}});
    assert_eq!(scene.service.questions(), [question]);
    scene.service.answers(200, json!({"identity": "bob"}));
    let caller = scene.asks().await.ok();
    assert_eq!(caller["identity"], "bob", "an answer without a time is not cached");
    assert_eq!(caller["roles"], json!(["user"]));
    assert_eq!(caller["tenant"], "default");
}

async fn an_answer_is_cached_for_as_long_as_it_says(server: TestServer) {
    let scene = Scene::begins(&server).await;
    scene
        .service
        .answers(200, json!({"identity": "ann", "expires_in_s": 60}));
    for _ in 0..3 {
        assert_eq!(scene.asks().await.status, 200);
    }
    assert_eq!(scene.service.questions().len(), 1);
    scene.service.answers(401, "");
    let other = with_header(&scene.nobody, "/auth/me", "cookie", "session=8").await;
    assert_eq!(other.status, 401, "other headers are another question");
    scene.clock.advance(Duration::from_secs(60));
    assert_eq!(scene.asks().await.status, 401);
}

async fn what_the_hook_refuses_is_refused(server: TestServer) {
    let scene = Scene::begins(&server).await;
    for status in [401, 403] {
        scene.service.answers(status, json!({"identity": "ann"}));
        assert_eq!(scene.asks().await.status, 401);
    }
    scene
        .service
        .answers(200, json!({"identity": "ann", "is_authenticated": false}));
    assert_eq!(scene.asks().await.status, 401);
}

async fn a_hook_that_fails_lets_nobody_in(server: TestServer) {
    let scene = Scene::begins(&server).await;
    let long = "a".repeat(100_000);
    for (status, body) in [
        (500, json!({"identity": "ann"}).to_string()),
        (302, json!({"identity": "ann"}).to_string()),
        (204, String::new()),
        (200, "ann".to_owned()),
        (200, json!({"user": "ann"}).to_string()),
        (200, json!({"identity": ""}).to_string()),
        (200, json!({"identity": "ann", "roles": ["root"]}).to_string()),
        (200, json!({"identity": "ann", "tenant": "*"}).to_string()),
        (200, json!({"identity": "ann", "more": long}).to_string()),
    ] {
        scene.service.answers(status, &body);
        let refused = scene.asks().await;
        assert_eq!(refused.status, 503, "{status} {}", &body[..body.len().min(60)]);
        assert_eq!(refused.body["code"], "authentication_unavailable");
    }
    scene.service.around.force();
    let gone = Scene::asks(&scene).await;
    assert!(gone.status == 503, "{}", gone.status);
}

async fn requests_without_credentials_do_not_reach_the_hook(server: TestServer) {
    let scene = Scene::begins(&server).await;
    scene.service.answers(200, json!({"identity": "ann"}));
    assert_eq!(scene.nobody.get("/auth/me").await.status, 401);
    assert_eq!(scene.service.questions(), Vec::<Value>::new());
}

async fn api_keys_work_while_the_hook_is_down(server: TestServer) {
    let scene = Scene::begins(&server).await;
    scene.service.answers(500, "");
    let ann = scene.nobody.with_key("the-secret-key-of-ann-0123456789abcdef");
    assert_eq!(ann.get("/auth/me").await.status, 200);
    assert_eq!(scene.service.questions(), Vec::<Value>::new());
}

async fn a_client_with_many_failures_does_not_reach_the_hook(server: TestServer) {
    server
        .is_configured_with("[quotas]\nfailed_authentications_per_minute = 2")
        .await;
    let scene = Scene::begins(&server).await;
    let with_session = async |session: &str| with_header(&scene.nobody, "/auth/me", "cookie", session).await;
    scene
        .service
        .answers(200, json!({"identity": "ann", "expires_in_s": 600}));
    assert_eq!(scene.asks().await.status, 200);
    scene.service.answers(401, "");
    assert_eq!(with_session("session=a").await.status, 401);
    assert_eq!(with_session("session=b").await.status, 401);
    assert_eq!(with_session("session=c").await.status, 429);
    let questions = scene.service.questions();
    scene.service.answers(200, json!({"identity": "bob"}));
    let refused = with_session("session=of-bob").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.body["limit"], "failed_authentications_per_minute");
    assert_eq!(
        scene.asks().await.status,
        200,
        "the answer about this session is cached"
    );
    let with_key = scene.nobody.with_key("the-secret-key-of-ann-0123456789abcdef");
    assert_eq!(with_key.get("/auth/me").await.status, 200);
    assert_eq!(scene.service.questions(), questions, "the hook was not asked");
    scene.clock.advance(Duration::from_secs(30));
    assert_eq!(with_session("session=of-bob").await.status, 200);
}
