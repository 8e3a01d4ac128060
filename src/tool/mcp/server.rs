//! An MCP server, and the keeper that holds the connection to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, Url};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::stdio::{Pipes, Program};
use super::tool::McpTool;
use super::wire::{Wire, WireError};
use super::{McpLimits, Spawn, http, message, sse};
use crate::definition::mcp::{McpFilter, McpServerDefinition, McpTransport};
use crate::definition::{AfterCrash, OnError};
use crate::domain::Invalid;
use crate::domain::backoff::Backoff;
use crate::domain::machine::Failure;
use crate::tool::remote;

/// The pauses before a lost server is looked for again.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(60));
/// A connection that holds for so long was a good one: the next pause is the first.
const STEADY: Duration = Duration::from_secs(10);
/// The shortest time between two questions for the tools.
const PAUSE_BETWEEN_LISTS: Duration = Duration::from_secs(1);
/// The longest time that a message takes which nobody waits for.
const LONGEST_TELL: Duration = Duration::from_secs(30);
/// How many tools a server may have.
const MOST_TOOLS: usize = 1_000;
/// In how many parts it may tell them.
const MOST_PAGES: usize = 100;

/// Where a server is.
pub(super) enum Place {
    Program(Program),
    Address {
        client: Client,
        url: Url,
        headers: HeaderMap,
        transport: McpTransport,
    },
}

impl Place {
    /// Where a definition says that the server is. Programs see the environment variables in `inherited`, too.
    ///
    /// # Errors
    /// Names the field that cannot be used.
    pub(super) fn of(
        definition: &McpServerDefinition,
        inherited: &BTreeMap<String, String>,
        client: &Client,
    ) -> Result<Self, Invalid> {
        match (&definition.command, &definition.url) {
            (Some(command), _) => {
                let mut env = inherited.clone();
                env.extend(definition.env.clone());
                let command = command.clone();
                let args = definition.args.clone();
                let folder = definition.cwd.as_ref().map(PathBuf::from);
                Ok(Self::Program(Program {
                    command,
                    args,
                    env,
                    folder,
                }))
            }
            (None, Some(url)) => {
                let url = Url::parse(url).map_err(|error| Invalid::new("url", error.to_string()))?;
                let headers = remote::headers(&definition.headers.0)?;
                Ok(Self::Address {
                    client: client.clone(),
                    url,
                    headers,
                    transport: definition.transport,
                })
            }
            (None, None) => Err(Invalid::new("command", "must be given, or `url`")),
        }
    }
}

/// An MCP server.
pub(super) struct McpServer {
    pub(super) name: String,
    place: Place,
    limits: McpLimits,
    filter: McpFilter,
    pub(super) timeout: Duration,
    start_timeout: Duration,
    pub(super) after_crash: AfterCrash,
    pub(super) on_error: OnError,
    spawn: Spawn,
    /// The tools that it told last.
    tools: RwLock<Vec<Arc<McpTool>>>,
    /// The connection, while there is one.
    wire: watch::Sender<Option<Arc<dyn Wire>>>,
    /// Whether it was tried to connect.
    tried: watch::Sender<bool>,
    /// Rung when somebody waits for a connection.
    wanted: Notify,
    next_id: AtomicU64,
}

impl McpServer {
    pub(super) fn new(
        name: &str,
        definition: &McpServerDefinition,
        (place, limits): (Place, McpLimits),
        spawn: Spawn,
    ) -> Self {
        let seconds = |value| Duration::try_from_secs_f64(value).unwrap_or(BACKOFF.first);
        Self {
            name: name.to_owned(),
            place,
            limits,
            filter: McpFilter::of(definition),
            timeout: seconds(definition.timeout_s),
            start_timeout: seconds(definition.start_timeout_s),
            after_crash: definition.after_crash,
            on_error: definition.on_error,
            spawn,
            tools: RwLock::default(),
            wire: watch::Sender::new(None),
            tried: watch::Sender::new(false),
            wanted: Notify::new(),
            next_id: AtomicU64::new(1),
        }
    }

    /// The tools that it told last.
    pub(super) fn tools(&self) -> Vec<Arc<McpTool>> {
        self.tools.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has told its tools, or has had its time to do so.
    pub(super) fn is_tried(&self) -> bool {
        *self.tried.borrow()
    }

    /// Waits until it has told its tools, or has had its time to do so.
    pub(super) async fn tried(&self) {
        // Who waits holds the server, and with it the sender.
        let _ = self.tried.subscribe().wait_for(|tried| *tried).await;
    }

    /// Connects, and connects again whenever the connection is lost.
    pub(super) async fn keep(self: Arc<Self>, soft: CancellationToken) {
        let mut failures = 1;
        while !soft.is_cancelled() {
            let begun = Instant::now();
            let opened = timeout(self.start_timeout, self.connect());
            match soft.run_until_cancelled(opened).await {
                None => break,
                Some(Ok(Ok(wire))) => {
                    self.wire.send_replace(Some(Arc::clone(&wire)));
                    self.tried.send_replace(true);
                    self.follow(&wire, &soft).await;
                    self.wire.send_replace(None);
                    tracing::info!(server = self.name, "the connection to an MCP server is over");
                }
                Some(Ok(Err(error))) => tracing::warn!(server = self.name, %error, "an MCP server is not available"),
                Some(Err(_)) => tracing::warn!(server = self.name, "an MCP server does not answer in time"),
            }
            self.tried.send_replace(true);
            failures = if begun.elapsed() > STEADY { 1 } else { failures + 1 };
            let rest = timeout(BACKOFF.pause(failures), self.wanted.notified());
            soft.run_until_cancelled(rest).await;
        }
        self.tried.send_replace(true);
        // They hold the server, and with it the connection, which ends when the last call does.
        self.tools.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Asks for the tools again whenever they have changed, until the connection or the server ends.
    async fn follow(self: &Arc<Self>, wire: &Arc<dyn Wire>, soft: &CancellationToken) {
        loop {
            // However often a server says that its tools have changed: it is asked so often and not more.
            let pause = timeout(PAUSE_BETWEEN_LISTS, wire.signs().closed.cancelled());
            if soft
                .run_until_cancelled(pause)
                .await
                .is_none_or(|closed| closed.is_ok())
            {
                return;
            }
            tokio::select! {
                () = soft.cancelled() => return,
                () = wire.signs().closed.cancelled() => return,
                () = wire.signs().changed.notified() => {
                    let listed = timeout(self.start_timeout, self.list(wire.as_ref()));
                    if !matches!(soft.run_until_cancelled(listed).await, Some(Ok(Ok(())))) {
                        tracing::warn!(server = self.name, "the tools of an MCP server could not be asked for again");
                    }
                }
            }
        }
    }

    /// A new connection over which the tools were told.
    async fn connect(self: &Arc<Self>) -> Result<Arc<dyn Wire>, WireError> {
        let wire: Arc<dyn Wire> = match &self.place {
            Place::Program(program) => Arc::new(Pipes::open(&self.name, program, self.limits)?),
            Place::Address {
                client,
                url,
                headers,
                transport,
            } => {
                let parts = (client.clone(), url.clone(), headers.clone());
                match transport {
                    McpTransport::Http => Arc::new(http::Session::new(parts.0, parts.1, parts.2, self.limits)),
                    McpTransport::Sse => Arc::new(sse::Channel::open(parts, self.limits, &self.spawn).await?),
                }
            }
        };
        self.request(&wire, "initialize", &message::introduction()).await?;
        wire.tell(message::notification("notifications/initialized", &json!({})))
            .await;
        self.list(wire.as_ref()).await?;
        Ok(wire)
    }

    /// Asks for the tools, part by part.
    async fn list(self: &Arc<Self>, wire: &dyn Wire) -> Result<(), WireError> {
        let mut tools = vec![];
        let mut params = json!({});
        for _ in 0..MOST_PAGES {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let page = wire.ask(id, &message::request(id, "tools/list", &params)).await?;
            let told = page.get("tools").and_then(Value::as_array);
            let told = told.ok_or_else(|| WireError::Garbled("`tools` is not a list".to_owned()))?;
            let described = told.iter().filter_map(|tool| McpTool::described(self, tool));
            let admitted = described.filter(|tool| self.filter.admits(&self.name, &tool.name));
            tools.extend(admitted.map(Arc::new));
            match page.get("nextCursor").and_then(Value::as_str) {
                Some(cursor) if tools.len() < MOST_TOOLS => params = json!({"cursor": cursor}),
                Some(_) | None => break,
            }
        }
        tools.truncate(MOST_TOOLS);
        tracing::info!(
            server = self.name,
            tools = tools.len(),
            "an MCP server has told its tools"
        );
        *self.tools.write().unwrap_or_else(PoisonError::into_inner) = tools;
        Ok(())
    }

    /// Makes a request over a connection. One that nobody waits for any more is taken back.
    async fn request(&self, wire: &Arc<dyn Wire>, method: &str, params: &Value) -> Result<Value, WireError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut taken_back = TakenBack {
            wire,
            spawn: &self.spawn,
            id: (method != "initialize").then_some(id),
        };
        let answer = wire.ask(id, &message::request(id, method, params)).await;
        if !matches!(answer, Err(WireError::Silent(_))) {
            taken_back.id = None;
        }
        answer
    }

    /// Makes a request, as soon as there is a connection.
    pub(super) async fn ask(&self, method: &str, params: &Value, most: Duration) -> Result<Value, Failure> {
        let connection = |error: &WireError| Failure::new("McpConnectionError", format!("the server {error}"));
        let mut wire = self.connected().await?;
        for last in [false, true] {
            match timeout(most, self.request(&wire, method, params)).await {
                // It was not carried out: who forgot the session has not looked at the request.
                Ok(Err(WireError::Forgotten)) if !last => wire = self.connected().await?,
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error @ (WireError::Refused(_) | WireError::Garbled(_)))) => {
                    return Err(Failure::new("McpToolError", format!("the server {error}")));
                }
                Ok(Err(error @ WireError::Silent(_))) => {
                    return Err(Failure::new("ToolTimeoutError", format!("the server {error}")));
                }
                Ok(Err(error)) => return Err(connection(&error)),
                Err(_) => {
                    let message = format!("there was no answer within {} s (its `timeout_s`)", most.as_secs_f64());
                    return Err(Failure::new("ToolTimeoutError", message));
                }
            }
        }
        Err(connection(&WireError::Forgotten))
    }

    /// The connection; waits a while if there is none.
    async fn connected(&self) -> Result<Arc<dyn Wire>, Failure> {
        let is_open =
            |wire: &Option<Arc<dyn Wire>>| wire.as_ref().is_some_and(|wire| !wire.signs().closed.is_cancelled());
        let mut wires = self.wire.subscribe();
        if !is_open(&wires.borrow()) {
            self.wanted.notify_one();
        }
        let found = timeout(self.start_timeout, wires.wait_for(is_open)).await;
        let found = found.ok().and_then(Result::ok).and_then(|wire| wire.clone());
        found.ok_or_else(|| Failure::new("McpConnectionError", "the server is not available"))
    }
}

/// Takes a request back when it is dropped before it was answered.
struct TakenBack<'a> {
    wire: &'a Arc<dyn Wire>,
    spawn: &'a Spawn,
    id: Option<u64>,
}

impl Drop for TakenBack<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.filter(|_| !self.wire.signs().closed.is_cancelled()) {
            let wire = Arc::clone(self.wire);
            (self.spawn)(Box::pin(async move {
                drop(timeout(LONGEST_TELL, wire.tell(message::cancelled(id))).await)
            }));
        }
    }
}
