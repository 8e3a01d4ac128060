//! The tools with effects, which live in the test and survive every crash; and what has happened so far.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// The tools of one house.
#[derive(Debug)]
pub(super) struct EffectLog {
    /// Where they are.
    pub(super) base: String,
    effects: Mutex<Vec<Effect>>,
    seen: watch::Sender<Progress>,
    /// From which call on answers are held back.
    held_from: watch::Sender<Option<u64>>,
}

/// Something that was done and cannot be undone.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Effect {
    /// By which tool.
    pub(super) tool: String,
    /// For which call.
    pub(super) key: String,
}

/// How often things happened since the last [`EffectLog::forgets`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Progress {
    /// A tool was called.
    pub(super) called: u64,
    /// A tool gave its answer.
    pub(super) answered: u64,
    /// A client saw an event.
    pub(super) events: u64,
    /// A client's answer to a question was accepted.
    pub(super) resumed: u64,
}

impl EffectLog {
    /// Opens one.
    pub(super) async fn open() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().unwrap());
        let desk = Arc::new(Self {
            base,
            effects: Mutex::default(),
            seen: watch::Sender::default(),
            held_from: watch::Sender::default(),
        });
        let router = Router::new()
            .route("/{tool}", post(serve))
            .with_state(Arc::clone(&desk));
        tokio::spawn(async move { axum::serve(listener, router).await });
        desk
    }

    /// Begins anew.
    pub(super) fn forgets(&self) {
        self.effects.lock().unwrap().clear();
        self.seen.send_replace(Progress::default());
    }

    /// Answers neither this call nor a later one, counted from the last [`EffectLog::forgets`], until [`EffectLog::lets_go`].
    pub(super) fn holds_back_from(&self, call: u64) {
        self.held_from.send_replace(Some(call));
    }

    /// Answers again, those first that wait.
    pub(super) fn lets_go(&self) {
        self.held_from.send_replace(None);
    }

    /// Notes that something happened.
    pub(super) fn note(&self, what: impl FnOnce(&mut Progress)) {
        self.seen.send_modify(what);
    }

    /// What happened so far.
    pub(super) fn seen(&self) -> Progress {
        *self.seen.borrow()
    }

    /// Waits until enough has happened.
    pub(super) async fn waits_for(&self, enough: impl FnMut(&Progress) -> bool) {
        self.seen.subscribe().wait_for(enough).await.expect("the desk is there");
    }

    /// What was done so far.
    pub(super) fn effects(&self) -> Vec<Effect> {
        self.effects.lock().unwrap().clone()
    }

    /// How often something was done for this call.
    pub(super) fn effects_of(&self, key: &str) -> usize {
        self.effects
            .lock()
            .unwrap()
            .iter()
            .filter(|effect| effect.key == key)
            .count()
    }
}

/// What a tool answers.
pub(super) fn answer_of(tool: &str, args: &Value) -> String {
    format!("{tool}: {}", args["note"].as_str().unwrap_or_default())
}

async fn serve(
    State(desk): State<Arc<EffectLog>>,
    Path(tool): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Json<Value> {
    let key = headers
        .get("idempotency-key")
        .and_then(|key| key.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    desk.effects.lock().unwrap().push(Effect {
        tool: tool.clone(),
        key,
    });
    desk.note(|seen| seen.called += 1);
    let number = desk.seen().called;
    let free = |from: &Option<u64>| from.is_none_or(|from| number < from);
    desk.held_from
        .subscribe()
        .wait_for(free)
        .await
        .expect("the desk is there");
    // A tool that takes its time, so that kills land inside the call.
    tokio::time::sleep(Duration::from_millis(body["args"]["ms"].as_u64().unwrap_or(0))).await;
    desk.note(|seen| seen.answered += 1);
    Json(json!(answer_of(&tool, &body["args"])))
}
