//! An MCP server and the task that keeps the connection to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use reqwest::Url;
use rmcp::model::{CallToolRequest, ClientRequest, ElicitRequestParams, ListToolsRequest, PaginatedRequestParams};
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::elicitation::Elicitations;
use super::error::ConnectionError;
use super::http::{Address, HttpTransport};
use super::listed_tool::ListedMcpTool;
use super::oauth::{AccessTokens, ClientTokens, LoginParts, LoginTokens};
use super::signals::Signals;
use super::sse::SseTransport;
use super::stdio::{Program, StdioTransport};
use super::transport::ServerTransport;
use super::{McpLimits, SpawnServer};
use crate::definition::mcp::{McpFilter, McpServerDefinition, McpTransport, OAuthGrant};
use crate::definition::{AfterCrash, OnError, ReadAccess};
use crate::domain::Invalid;
use crate::domain::backoff::Backoff;
use crate::domain::interrupt::Question;
use crate::domain::machine::Failure;
use crate::domain::text_limits::first_chars;
use crate::tool::remote;

/// The pauses before a reconnection.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(60));
/// The pause before it is looked whether an operator has logged in.
const LOGIN_PAUSE: Duration = Duration::from_secs(2);
/// The duration of a connection after which the next pause is the first again.
const PAUSE_RESET_AFTER: Duration = Duration::from_secs(10);
/// The minimum time between two `tools/list` requests.
const MIN_LIST_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum length of the reason why the tools of a server are missing, in characters.
const MAX_REASON_CHARS: usize = 1_000;
/// The maximum number of tools of one server.
const MAX_TOOLS: usize = 1_000;
/// The maximum number of pages of `tools/list`.
const MAX_PAGES: usize = 100;

/// The program or the address of a server.
pub(super) enum Endpoint {
    Program(Program),
    Http(Address),
    Sse(Address),
}

impl Endpoint {
    /// Returns the endpoint of a definition. Programs get the environment variables in `inherited`, too, and servers behind HTTP
    /// the tokens of `login`, if they need one.
    ///
    /// # Errors
    /// The field that is invalid.
    pub(super) fn of(
        definition: &McpServerDefinition,
        inherited: &BTreeMap<String, String>,
        login: LoginParts,
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
                let client = login.client.clone();
                let tokens = match definition.oauth.clone() {
                    None => None,
                    Some(settings) => Some(match settings.grant {
                        OAuthGrant::ClientCredentials => {
                            let tokens = ClientTokens::new(client.clone(), url.clone(), settings, &login.name)?;
                            AccessTokens::Client(Arc::new(tokens))
                        }
                        OAuthGrant::AuthorizationCode => {
                            AccessTokens::Login(Arc::new(LoginTokens::new(login, url.clone(), &settings)))
                        }
                    }),
                };
                let address = Address {
                    client,
                    url,
                    headers,
                    tokens,
                };
                Ok(match definition.transport {
                    McpTransport::Http => Self::Http(address),
                    McpTransport::Sse => Self::Sse(address),
                })
            }
            (None, None) => Err(Invalid::new("command", "must be given, or `url`")),
        }
    }
}

/// The way in which a server begins connections, as far as the last ones have shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownStart {
    /// Nothing is known.
    Unknown,
    /// With a handshake.
    Handshake,
    /// Without one.
    Stateless,
}

/// The end of the last attempt to connect.
#[derive(Debug, Clone, PartialEq)]
enum LastAttempt {
    /// No attempt has ended yet.
    None,
    /// There was a connection, and the tools were listed.
    Connected,
    /// An operator has to log in, as the text says.
    LoginRequired(String),
    /// The server is not available.
    Failed(Failure),
    /// There will be no further attempt: adjutant stops, or the server was replaced or removed.
    Over,
}

/// The end of a call.
pub(super) enum CallEnd {
    /// The result.
    Result(Value),
    /// The server has asked a question that has no answer yet.
    Asked(Box<ElicitRequestParams>),
}

/// An MCP server.
pub(super) struct McpServer {
    pub(super) name: String,
    endpoint: Endpoint,
    limits: McpLimits,
    filter: McpFilter,
    timeout: Duration,
    start_timeout: Duration,
    /// True if it is connected before its tools are needed.
    pub(super) connects_at_start: bool,
    /// True if runs fail while its tools are not known.
    pub(super) is_required: bool,
    pub(super) after_crash: AfterCrash,
    pub(super) on_error: OnError,
    /// The parts of their run that calls of its tools may read.
    pub(super) read_access: ReadAccess,
    spawn: SpawnServer,
    /// The questions of the server, if it may ask any.
    elicitations: Option<Arc<Elicitations>>,
    /// True if all connections begin with a handshake.
    has_handshake: bool,
    /// The way in which connections begin otherwise.
    start: Mutex<KnownStart>,
    /// The tools of the last list.
    tools: RwLock<Vec<Arc<ListedMcpTool>>>,
    /// True once the tools were listed.
    has_listed: AtomicBool,
    /// True once the server was needed.
    is_needed: AtomicBool,
    /// The current connection, if any.
    connection: watch::Sender<Option<Arc<Connection>>>,
    /// Each attempt changes it.
    last_attempt: watch::Sender<LastAttempt>,
    /// Notified when a run or a call waits for a connection, which ends the pause before the next attempt.
    connection_wanted: Notify,
}

impl McpServer {
    pub(super) fn new(
        name: &str,
        definition: &McpServerDefinition,
        endpoint: Endpoint,
        limits: McpLimits,
        spawn: SpawnServer,
    ) -> Self {
        let seconds = |value| Duration::try_from_secs_f64(value).unwrap_or(BACKOFF.first);
        Self {
            name: name.to_owned(),
            endpoint,
            limits,
            filter: McpFilter::of(definition.allowed_tools.as_deref(), &definition.disabled_tools),
            timeout: seconds(definition.timeout_s),
            start_timeout: seconds(definition.start_timeout_s),
            connects_at_start: definition.connect_at_start,
            is_required: definition.required,
            after_crash: definition.after_crash,
            on_error: definition.on_error,
            read_access: definition.read_access.clone(),
            spawn,
            elicitations: definition.elicitation.then(Arc::default),
            has_handshake: definition.handshake,
            start: Mutex::new(KnownStart::Unknown),
            tools: RwLock::default(),
            has_listed: AtomicBool::new(false),
            is_needed: AtomicBool::new(false),
            connection: watch::Sender::new(None),
            last_attempt: watch::Sender::new(LastAttempt::None),
            connection_wanted: Notify::new(),
        }
    }

    /// Returns why an operator has to log in before the server can be used, if that is so.
    pub(super) fn login_required(&self) -> Option<String> {
        match &*self.last_attempt.borrow() {
            LastAttempt::LoginRequired(required) => Some(required.clone()),
            LastAttempt::None | LastAttempt::Connected | LastAttempt::Failed(_) | LastAttempt::Over => None,
        }
    }

    /// Returns why its tools are not known; `None` if they are, or if no attempt to list them has failed.
    pub(super) fn problem(&self) -> Option<Failure> {
        if self.has_listed() {
            return None;
        }
        match &*self.last_attempt.borrow() {
            LastAttempt::Failed(failure) => Some(failure.clone()),
            LastAttempt::None | LastAttempt::Connected | LastAttempt::LoginRequired(_) | LastAttempt::Over => None,
        }
    }

    /// Ends the pause before the next attempt to connect, or has the server connect for the first time.
    pub(super) fn connect_soon(&self) {
        self.is_needed.store(true, Ordering::Release);
        self.connection_wanted.notify_one();
    }

    /// Returns whether the server is connected already, or tries to be.
    pub(super) fn is_in_use(&self) -> bool {
        self.connects_at_start || self.is_needed.load(Ordering::Acquire)
    }

    fn has_listed(&self) -> bool {
        self.has_listed.load(Ordering::Acquire)
    }

    /// The tools of the last list.
    pub(super) fn tools(&self) -> Vec<Arc<ListedMcpTool>> {
        self.tools.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns whether the first connection attempt is over, successful or not.
    pub(super) fn is_attempted(&self) -> bool {
        *self.last_attempt.borrow() != LastAttempt::None
    }

    /// Waits until the first connection attempt is over, successful or not.
    pub(super) async fn attempted(&self) {
        // The sender is a field of `self`, so it cannot be dropped while this waits.
        let mut attempts = self.last_attempt.subscribe();
        let _ = attempts.wait_for(|last| *last != LastAttempt::None).await;
    }

    /// Has a server that has never listed its tools connect, and waits for the end of an attempt, which takes no longer than
    /// its start timeout. For a server that is not required only the first attempt is waited for.
    pub(super) async fn listed(&self) {
        let mut attempts = self.last_attempt.subscribe();
        let is_settled = match &*attempts.borrow_and_update() {
            LastAttempt::LoginRequired(_) | LastAttempt::Over => true,
            LastAttempt::Failed(_) => !self.is_required,
            LastAttempt::None | LastAttempt::Connected => false,
        };
        if self.has_listed() || is_settled {
            return;
        }
        self.connect_soon();
        let _ = attempts.changed().await;
    }

    /// Connects, lists the tools, and closes the connection. Returns the names of the tools.
    ///
    /// # Errors
    /// A text for the operator.
    pub(super) async fn list_once(self: Arc<Self>) -> Result<Vec<String>, String> {
        let connected = timeout(self.start_timeout, self.connect()).await;
        let limit = self.start_timeout.as_secs_f64();
        let connection = connected
            .map_err(|_| format!("did not list its tools within {limit} s (its `start_timeout_s`)"))?
            .map_err(|error| error.to_string())?;
        let names = self.tools().iter().map(|tool| tool.name.clone()).collect();
        connection.signals().closed.cancel();
        Ok(names)
    }

    /// Connects at once or when it is needed, and reconnects whenever the connection is lost, until `soft` is cancelled.
    pub(super) async fn run(self: Arc<Self>, soft: CancellationToken) {
        let mut failures = 1;
        let mut is_guessed = false;
        if !self.connects_at_start {
            soft.run_until_cancelled(self.connection_wanted.notified()).await;
        }
        while !soft.is_cancelled() {
            let begun = Instant::now();
            let opened = timeout(self.start_timeout, self.connect());
            let Some(opened) = soft.run_until_cancelled(opened).await else {
                break;
            };
            // However many runs need a server that is not there, the attempts to connect have pauses.
            let mut least_pause = BACKOFF.first;
            match opened {
                Ok(Ok(connection)) => {
                    least_pause = Duration::ZERO;
                    Box::pin(self.stay_connected(&connection, &soft)).await;
                }
                Ok(Err(error)) => self.note_error(&error),
                Err(_) => {
                    is_guessed = self.guess_start(is_guessed);
                    self.note_timeout();
                }
            }
            failures = if begun.elapsed() > PAUSE_RESET_AFTER {
                1
            } else {
                failures + 1
            };
            let pause = match self.login_required() {
                // No request is sent without a login, so it is noticed soon.
                Some(_) => LOGIN_PAUSE,
                None => BACKOFF.pause(failures),
            };
            soft.run_until_cancelled(sleep(least_pause)).await;
            let pause_or_call = timeout(pause.saturating_sub(least_pause), self.connection_wanted.notified());
            soft.run_until_cancelled(pause_or_call).await;
        }
        self.last_attempt.send_replace(LastAttempt::Over);
        // No tool of a server that has ended is offered. Calls hold the server and with it the connection, which closes when the
        // last of them ends.
        self.tools.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Offers the connection to calls, until it closes or `soft` is cancelled.
    async fn stay_connected(self: &Arc<Self>, connection: &Arc<Connection>, soft: &CancellationToken) {
        self.connection.send_replace(Some(Arc::clone(connection)));
        self.last_attempt.send_replace(LastAttempt::Connected);
        tokio::select! {
            () = self.watch_tools(connection, soft) => {}
            never = connection.subscribe() => match never {},
        }
        self.connection.send_replace(None);
        tracing::info!(server = self.name, "the connection to an MCP server is closed");
    }

    /// Notes that an attempt to connect has failed.
    fn note_error(&self, error: &ConnectionError) {
        let ended = match matches!(error, ConnectionError::LoginRequired(_)) {
            true => LastAttempt::LoginRequired(error.to_string()),
            false => LastAttempt::Failed(self.unavailable(&error.to_string())),
        };
        if self.note_end(ended) {
            tracing::warn!(server = self.name, %error, "an MCP server is not available");
        }
    }

    /// Notes that an attempt to connect took too long.
    fn note_timeout(&self) {
        let limit = self.start_timeout.as_secs_f64();
        let reason = format!("did not list its tools within {limit} s (its `start_timeout_s`)");
        if self.note_end(LastAttempt::Failed(self.unavailable(&reason))) {
            tracing::warn!(server = self.name, "connecting to an MCP server timed out");
        }
    }

    /// Notes the end of an attempt to connect. Returns whether it is worth a warning.
    fn note_end(&self, ended: LastAttempt) -> bool {
        let is_expected_again = match &ended {
            // A login is looked for every few seconds.
            LastAttempt::LoginRequired(_) => true,
            // A server that is not required may be away for days.
            LastAttempt::Failed(_) => !self.is_required,
            LastAttempt::None | LastAttempt::Connected | LastAttempt::Over => false,
        };
        let before = self.last_attempt.send_replace(ended.clone());
        !is_expected_again || before != ended
    }

    /// Returns the failure of what needs its tools. The reason continues the sentence after its name.
    fn unavailable(&self, reason: &str) -> Failure {
        let reason = first_chars(reason, MAX_REASON_CHARS);
        Failure::new("McpConnectionError", format!("the MCP server `{}` {reason}", self.name))
    }

    /// Lists the tools again whenever they have changed, until the connection closes or `soft` is cancelled.
    async fn watch_tools(self: &Arc<Self>, connection: &Arc<Connection>, soft: &CancellationToken) {
        let signals = connection.signals();
        loop {
            // Bounds the rate of `tools/list`, however often the server notifies of changes.
            let pause = timeout(MIN_LIST_INTERVAL, signals.closed.cancelled());
            if soft
                .run_until_cancelled(pause)
                .await
                .is_none_or(|closed| closed.is_ok())
            {
                return;
            }
            tokio::select! {
                () = soft.cancelled() => return,
                () = signals.closed.cancelled() => return,
                () = signals.tools_changed.notified() => {
                    let listed = timeout(self.start_timeout, self.list(connection));
                    if !matches!(soft.run_until_cancelled(listed).await, Some(Ok(Ok(())))) {
                        tracing::warn!(server = self.name, "listing the tools of an MCP server again failed");
                    }
                }
            }
        }
    }

    /// Opens a connection and lists the tools.
    async fn connect(self: &Arc<Self>) -> Result<Arc<Connection>, ConnectionError> {
        let opened = match self.open().await {
            // Some servers end the connection when its first message is none that they know.
            Err(ConnectionError::Closed) if self.start() == KnownStart::Unknown => {
                self.set_start(KnownStart::Handshake);
                self.open().await
            }
            opened => opened,
        };
        self.set_start(match &opened {
            Ok(connection) if connection.is_stateless() => KnownStart::Stateless,
            Ok(_) => KnownStart::Handshake,
            // A server that starts slowly may have got a handshake before it could say that it needs none.
            Err(ConnectionError::Refused(_)) if self.start() == KnownStart::Unknown => KnownStart::Stateless,
            Err(_) => KnownStart::Unknown,
        });
        let connection = Arc::new(opened?);
        self.list(&connection).await?;
        Ok(connection)
    }

    fn start(&self) -> KnownStart {
        if self.has_handshake {
            return KnownStart::Handshake;
        }
        *self.start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_start(&self, start: KnownStart) {
        *self.start.lock().unwrap_or_else(PoisonError::into_inner) = start;
    }

    /// Changes the way in which the next connection begins, after the time for one was over: the question may have taken too
    /// much of it, so the handshake comes first. A guess that did not help is given up. Returns whether it is a guess now.
    fn guess_start(&self, was_guessed: bool) -> bool {
        match self.start() {
            KnownStart::Unknown => {
                self.set_start(KnownStart::Handshake);
                true
            }
            KnownStart::Handshake if was_guessed => {
                self.set_start(KnownStart::Unknown);
                false
            }
            KnownStart::Handshake | KnownStart::Stateless => false,
        }
    }

    /// Opens a connection.
    async fn open(&self) -> Result<Connection, ConnectionError> {
        let signals = Arc::<Signals>::default();
        let elicitations = self.elicitations.clone();
        let pieces = Some(self.limits.pieces);
        let spawn = Arc::clone(&self.spawn);
        let patience = match self.start() {
            // The rest of the time is for the handshake.
            KnownStart::Unknown => Some(self.start_timeout / 2),
            KnownStart::Handshake => None,
            KnownStart::Stateless => {
                // Without an answer in time it is not known any more.
                self.set_start(KnownStart::Unknown);
                Some(self.start_timeout)
            }
        };
        match &self.endpoint {
            Endpoint::Program(program) => {
                let transport = StdioTransport::open(&self.name, program, self.limits, &signals, &self.spawn)?;
                let transport = ServerTransport::Stdio(Box::new(transport));
                Connection::begin(transport, signals, pieces, spawn, elicitations, patience).await
            }
            Endpoint::Http(address) => {
                let transport = HttpTransport::new(address.clone(), self.limits, self.longest_call(), &signals);
                let transport = ServerTransport::Http(transport);
                Connection::begin(transport, signals, None, spawn, elicitations, patience).await
            }
            // The transport is older than the versions without a handshake.
            Endpoint::Sse(address) => {
                let transport = SseTransport::open(address.clone(), self.limits, &signals).await?;
                let transport = ServerTransport::Sse(Box::new(transport));
                Connection::begin(transport, signals, pieces, spawn, elicitations, None).await
            }
        }
    }

    /// Lists the tools, page by page.
    async fn list(&self, connection: &Arc<Connection>) -> Result<(), ConnectionError> {
        let mut tools = vec![];
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let params = PaginatedRequestParams::default().with_cursor(cursor);
            let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params));
            let page = connection.request(request).await?;
            let listed = page.get("tools").and_then(Value::as_array);
            let listed = listed.ok_or_else(|| ConnectionError::InvalidAnswer("`tools` is not a list".to_owned()))?;
            let described = listed
                .iter()
                .filter_map(|tool| ListedMcpTool::from_listing(&self.name, tool));
            let admitted = described.filter(|tool| self.filter.allows(&self.name, &tool.name));
            tools.extend(admitted.map(Arc::new));
            cursor = page.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
            if cursor.is_none() || tools.len() >= MAX_TOOLS {
                break;
            }
        }
        tools.truncate(MAX_TOOLS);
        tracing::info!(
            server = self.name,
            tools = tools.len(),
            "listed the tools of an MCP server"
        );
        *self.tools.write().unwrap_or_else(PoisonError::into_inner) = tools;
        self.has_listed.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the time that a call takes at most, once its turn has come.
    pub(super) fn longest_call(&self) -> Duration {
        self.start_timeout.saturating_add(self.timeout)
    }

    /// Returns whether the server may ask humans.
    pub(super) fn may_ask(&self) -> bool {
        self.elicitations.is_some()
    }

    /// Returns the time that is left for a request of a call that began then.
    pub(super) fn left_since(&self, begun: Instant) -> Duration {
        self.longest_call().saturating_sub(begun.elapsed()).min(self.timeout)
    }

    /// Calls a tool as soon as there is a connection, and waits for the result for at most `limit`. The server may ask
    /// questions, which get these answers. A call with another question ends with it.
    pub(super) async fn call(
        &self,
        request: CallToolRequest,
        answers: &[(Arc<Question>, Value)],
        limit: Duration,
    ) -> Result<CallEnd, Failure> {
        let elicitations = match &self.elicitations {
            Some(elicitations) => {
                // Without a handshake the questions are in results, which belong to their calls.
                let asks_in_results = self.connected().await?.is_stateless();
                (!asks_in_results).then_some(elicitations)
            }
            None => None,
        };
        let Some(elicitations) = elicitations else {
            return self.result_of(request, limit).await.map(CallEnd::Result);
        };
        let mut turn = elicitations.begin(answers).await;
        tokio::select! {
            biased;
            asked = turn.asked() => Ok(CallEnd::Asked(Box::new(asked))),
            result = self.result_of(request, limit) => result.map(CallEnd::Result),
        }
    }

    /// Calls a tool and returns its result.
    async fn result_of(&self, request: CallToolRequest, limit: Duration) -> Result<Value, Failure> {
        let request = ClientRequest::CallToolRequest(request);
        let mut connection = self.connected().await?;
        for last in [false, true] {
            match timeout(limit, connection.request(request.clone())).await {
                // A server that does not know the session has not executed the request, so it is safe to repeat.
                Ok(Err(ConnectionError::SessionExpired)) if !last => connection = self.connected().await?,
                Ok(answer) => return answer.map_err(|error| failure(&error)),
                Err(_) => {
                    let seconds = self.timeout.as_secs_f64();
                    let message = format!("there was no answer within {seconds} s (its `timeout_s`)");
                    return Err(Failure::new("ToolTimeoutError", message));
                }
            }
        }
        Err(failure(&ConnectionError::SessionExpired))
    }

    /// Returns the connection; waits for at most the start timeout if there is none.
    async fn connected(&self) -> Result<Arc<Connection>, Failure> {
        let is_open = |connection: &Option<Arc<Connection>>| {
            connection
                .as_ref()
                .is_some_and(|connection| !connection.signals().closed.is_cancelled())
        };
        let mut connections = self.connection.subscribe();
        let mut attempts = self.last_attempt.subscribe();
        if !is_open(&connections.borrow()) {
            self.connect_soon();
        }
        let opened = async {
            tokio::select! {
                biased;
                found = connections.wait_for(is_open) => Ok(found.ok().and_then(|found| found.clone())),
                required = next_requirement(&mut attempts) => Err(Failure::new("McpLoginError", format!("the server {required}"))),
            }
        };
        let found = timeout(self.start_timeout, opened).await.unwrap_or(Ok(None))?;
        found.ok_or_else(|| Failure::new("McpConnectionError", "the server is not available"))
    }
}

/// Waits until an attempt to connect has found that an operator has to log in.
async fn next_requirement(attempts: &mut watch::Receiver<LastAttempt>) -> String {
    while attempts.changed().await.is_ok() {
        if let LastAttempt::LoginRequired(required) = &*attempts.borrow_and_update() {
            return required.clone();
        }
    }
    std::future::pending().await
}

fn failure(error: &ConnectionError) -> Failure {
    let name = match error {
        ConnectionError::Refused(_) | ConnectionError::InvalidAnswer(_) => "McpToolError",
        ConnectionError::TimedOut(_) => "ToolTimeoutError",
        ConnectionError::LoginRequired(_) => "McpLoginError",
        ConnectionError::ScopesMissing(_) => "McpScopeError",
        ConnectionError::Unreachable(_) | ConnectionError::Closed | ConnectionError::SessionExpired => {
            "McpConnectionError"
        }
    };
    Failure::new(name, format!("the server {error}"))
}
