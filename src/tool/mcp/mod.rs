//! Tools of MCP servers: programs that are started and restarted, and servers behind HTTP.
//!
//! Each server has a keeper, which connects to it, asks for its tools, and connects again when the connection is lost. The
//! tools that were told last stay on offer meanwhile; a call waits for the connection for a while. Of the protocol only
//! what tools need is spoken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::header::HeaderMap;
use reqwest::{Client, Url};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::{Tool, ToolSource, remote};
use crate::domain::Invalid;
use crate::domain::definition::mcp::{McpReference, McpServerDefinition};
use crate::domain::definition::{AfterCrash, OnError};
use crate::domain::machine::Failure;

mod http;
mod message;
mod outcome;
mod stdio;
mod tool;
mod wire;

use stdio::{Pipes, Program};
use tool::McpTool;
use wire::{Wire, WireError};

/// The pause before a lost server is looked for again; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A connection that holds for so long was a good one: the next pause is the first.
const STEADY: Duration = Duration::from_secs(10);
/// How many tools a server may have.
const MOST_TOOLS: usize = 1_000;
/// In how many parts it may tell them.
const MOST_PAGES: usize = 100;

/// Starts a task that nobody waits for.
pub type Spawn = Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>;

/// The MCP servers, by name.
#[derive(Clone, Default)]
pub struct McpServers(Arc<BTreeMap<String, Arc<McpServer>>>);

impl McpServers {
    /// The servers of these definitions, to whom nobody talks yet. `inherited` are the environment variables that every
    /// program sees.
    ///
    /// # Errors
    /// Names the field of a definition that cannot be used.
    pub fn new(
        definitions: &BTreeMap<String, McpServerDefinition>,
        inherited: &BTreeMap<String, String>,
        client: &Client,
        spawn: &Spawn,
    ) -> Result<Self, Invalid> {
        let server = |(name, definition): (&String, &McpServerDefinition)| {
            let place = place(definition, inherited, client)
                .map_err(|error| Invalid { field: format!("mcp_servers.{name}.{}", error.field), ..error })?;
            Ok((name.clone(), Arc::new(McpServer::new(name, definition, place, Arc::clone(spawn)))))
        };
        definitions.iter().map(server).collect::<Result<_, _>>().map(|all| Self(Arc::new(all)))
    }

    /// Connects to all of them, and keeps to it until `soft`. Returns when each has told its tools or has had its time.
    pub async fn open(&self, soft: &CancellationToken) {
        for server in self.0.values() {
            (server.spawn)(Box::pin(Arc::clone(server).keep(soft.clone())));
        }
        for server in self.0.values() {
            let mut tried = server.tried.subscribe();
            // The keeper lives as long as the server does.
            let _ = tried.wait_for(|tried| *tried).await;
        }
    }

    /// What stands for these tools: `server/tool` and `server/*`; other names are passed over.
    pub fn sources<'a>(&self, names: impl Iterator<Item = &'a String>) -> Vec<Arc<dyn ToolSource>> {
        let mut wanted: BTreeMap<&str, Option<BTreeSet<String>>> = BTreeMap::new();
        for reference in names.filter_map(|name| McpReference::read(name)) {
            let only = wanted.entry(reference.server).or_insert_with(|| Some(BTreeSet::new()));
            match reference.tool {
                Some(tool) => only.iter_mut().for_each(|only| only.extend([tool.to_owned()])),
                None => *only = None,
            }
        }
        let source = |(name, only): (&str, Option<BTreeSet<String>>)| -> Option<Arc<dyn ToolSource>> {
            Some(Arc::new(Selection { server: Arc::clone(self.0.get(name)?), only }))
        };
        wanted.into_iter().filter_map(source).collect()
    }
}

/// Some tools of a server, or all that it has.
struct Selection {
    server: Arc<McpServer>,
    only: Option<BTreeSet<String>>,
}

impl ToolSource for Selection {
    fn tools(&self) -> Vec<Arc<dyn Tool>> {
        let tools = self.server.tools.read().unwrap_or_else(PoisonError::into_inner);
        let is_wanted = |tool: &&Arc<McpTool>| self.only.as_ref().is_none_or(|only| only.contains(&tool.name));
        tools.iter().filter(is_wanted).map(|tool| Arc::clone(tool) as Arc<dyn Tool>).collect()
    }
}

/// Where a server is.
enum Place {
    Program(Program),
    Address { client: Client, url: Url, headers: HeaderMap },
}

fn place(
    definition: &McpServerDefinition,
    inherited: &BTreeMap<String, String>,
    client: &Client,
) -> Result<Place, Invalid> {
    match (&definition.command, &definition.url) {
        (Some(command), _) => {
            let mut env = inherited.clone();
            env.extend(definition.env.clone());
            Ok(Place::Program(Program { command: command.clone(), args: definition.args.clone(), env }))
        }
        (None, Some(url)) => {
            let url = Url::parse(url).map_err(|error| Invalid::new("url", error.to_string()))?;
            Ok(Place::Address { client: client.clone(), url, headers: remote::headers(&definition.headers.0)? })
        }
        (None, None) => Err(Invalid::new("command", "must be given, or `url`")),
    }
}

/// An MCP server.
pub(super) struct McpServer {
    name: String,
    place: Place,
    timeout: Duration,
    start_timeout: Duration,
    after_crash: AfterCrash,
    on_error: OnError,
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
    fn new(name: &str, definition: &McpServerDefinition, place: Place, spawn: Spawn) -> Self {
        let seconds = |value| Duration::try_from_secs_f64(value).unwrap_or(FIRST_PAUSE);
        Self {
            name: name.to_owned(),
            place,
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

    /// Connects, and connects again whenever the connection is lost.
    async fn keep(self: Arc<Self>, soft: CancellationToken) {
        let mut pause = FIRST_PAUSE;
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
            pause = if begun.elapsed() > STEADY { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            let rest = timeout(pause, self.wanted.notified());
            soft.run_until_cancelled(rest).await;
        }
        // They hold the server, and with it the connection, which ends when the last call does.
        self.tools.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Asks for the tools again whenever they have changed, until the connection or the server ends.
    async fn follow(self: &Arc<Self>, wire: &Arc<dyn Wire>, soft: &CancellationToken) {
        loop {
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
            Place::Program(program) => Arc::new(Pipes::open(&self.name, program)?),
            Place::Address { client, url, headers } => {
                Arc::new(http::Session::new(client.clone(), url.clone(), headers.clone()))
            }
        };
        self.request(&wire, "initialize", &message::introduction()).await?;
        wire.tell(message::notification("notifications/initialized", &json!({}))).await;
        self.list(wire.as_ref()).await?;
        Ok(wire)
    }

    /// Asks for the tools, part by part.
    async fn list(self: &Arc<Self>, wire: &dyn Wire) -> Result<(), WireError> {
        let (mut tools, mut params) = (vec![], json!({}));
        for _ in 0..MOST_PAGES {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let page = wire.ask(id, &message::request(id, "tools/list", &params)).await?;
            let told = page.get("tools").and_then(Value::as_array);
            let told = told.ok_or_else(|| WireError::Garbled("`tools` is not a list".to_owned()))?;
            tools.extend(told.iter().filter_map(|tool| McpTool::described(self, tool)).map(Arc::new));
            match page.get("nextCursor").and_then(Value::as_str) {
                Some(cursor) if tools.len() < MOST_TOOLS => params = json!({"cursor": cursor}),
                Some(_) | None => break,
            }
        }
        tools.truncate(MOST_TOOLS);
        tracing::info!(server = self.name, tools = tools.len(), "an MCP server has told its tools");
        *self.tools.write().unwrap_or_else(PoisonError::into_inner) = tools;
        Ok(())
    }

    /// Makes a request over a connection. One that nobody waits for any more is taken back.
    async fn request(&self, wire: &Arc<dyn Wire>, method: &str, params: &Value) -> Result<Value, WireError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut taken_back = TakenBack { wire, spawn: &self.spawn, id: (method != "initialize").then_some(id) };
        let answer = wire.ask(id, &message::request(id, method, params)).await;
        taken_back.id = None;
        answer
    }

    /// Makes a request, as soon as there is a connection.
    async fn ask(&self, method: &str, params: &Value, most: Duration) -> Result<Value, Failure> {
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
                Ok(Err(error)) => return Err(connection(&error)),
                Err(_) => {
                    let message = format!("there was no answer within {} s", most.as_secs_f64());
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
            (self.spawn)(Box::pin(async move { wire.tell(message::cancelled(id)).await }));
        }
    }
}
