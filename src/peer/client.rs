//! The HTTP client for other servers: threads, runs and states.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue, USER_AGENT};
use reqwest::{Client, Method, RequestBuilder, StatusCode, redirect};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use url::Url;
use uuid::Uuid;

use super::responses::{PeerRun, PeerState, PeerThread};
use crate::definition::Headers;
use crate::domain::Invalid;
use crate::domain::background::PollPolicy;
use crate::domain::json_limits::read_foreign;
use crate::domain::text_limits::first_chars;
use crate::domain::trace::SpanContext;
use crate::model::pieces::{PieceError, PieceLimits, PieceReader};
use crate::net;
use crate::net::ssrf::{AddressRules, SsrfGuard};

/// The maximum duration of one request, unless the configured patience is shorter.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum length of an error response that is passed on, in characters.
const MAX_ERROR_CHARS: usize = 500;
/// The maximum number of runs whose streams are read at once. Other runs are polled.
const MAX_LISTENED_RUNS: usize = 512;
/// The header with the idempotency key, which servers of this kind support.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The header with the kind of API key.
const AUTH_SCHEME: &str = "x-auth-scheme";

/// A function that spawns a task that ends by itself.
pub type SpawnRequest = Arc<dyn Fn(&'static str, BoxFuture<'static, ()>) + Send + Sync>;

/// The configured policy for other servers.
#[derive(Debug, Clone)]
pub struct PeerPolicy {
    /// The address rules for servers named by clients. Servers named in the configuration may have any address.
    pub rules: AddressRules,
    /// The headers of requests to a server, by the origin of its address.
    pub headers: BTreeMap<String, Headers>,
    /// The time for which a server may be unreachable before a task that a run waits for fails.
    pub patience: Duration,
    /// The polling intervals for background tasks.
    pub polling: PollPolicy,
    /// The limits of responses.
    pub answers: PeerAnswerLimits,
}

/// The limits of responses from another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAnswerLimits {
    /// The maximum size of a response, in bytes.
    pub max_bytes: usize,
    /// The maximum size of the streams of one turn's runs, in bytes.
    pub max_stream_bytes: usize,
    /// The maximum size of an event in such a stream, in bytes; larger ones are ignored.
    pub max_event_bytes: usize,
    /// The maximum time without data.
    pub pieces: PieceLimits,
}

/// The clients for other servers. Cheap to clone.
#[derive(Clone)]
pub struct Peers {
    anywhere: Client,
    guarded: Client,
    rules: Arc<AddressRules>,
    headers: Arc<BTreeMap<String, Headers>>,
    pub(super) patience: Duration,
    polling: PollPolicy,
    answers: PeerAnswerLimits,
    pub(super) listeners: Arc<Semaphore>,
    pub(super) spawn: SpawnRequest,
}

impl Peers {
    /// Creates the clients.
    ///
    /// # Errors
    /// If TLS is not available on this system.
    pub fn new(policy: PeerPolicy, spawn: SpawnRequest) -> Result<Self, reqwest::Error> {
        let rules = Arc::new(policy.rules);
        // A redirect could send secrets to another host.
        let client = || {
            net::client_builder()
                .redirect(redirect::Policy::none())
                .connect_timeout(CONNECT_TIMEOUT)
        };
        // A proxy would bypass the address rules.
        let guarded = client()
            .no_proxy()
            .dns_resolver(Arc::new(SsrfGuard(Arc::clone(&rules))))
            .build()?;
        let listeners = Arc::new(Semaphore::new(MAX_LISTENED_RUNS));
        Ok(Self {
            anywhere: client().build()?,
            guarded,
            rules,
            headers: Arc::new(policy.headers),
            patience: policy.patience,
            polling: policy.polling,
            answers: policy.answers,
            listeners,
            spawn,
        })
    }

    /// Returns the polling intervals for background tasks.
    pub fn poll_policy(&self) -> &PollPolicy {
        &self.polling
    }

    /// Returns how long a server may be unreachable before a task that a run waits for fails.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Checks the address of a server that a client named.
    ///
    /// # Errors
    /// Names `field` and the reason why requests may not go there.
    pub fn check(&self, field: &str, url: &str) -> Result<(), Invalid> {
        self.rules.check(field, url).map(drop)
    }

    /// Returns the client for the server at `url`, with these headers; `is_owners` if the configuration named it.
    ///
    /// # Errors
    /// Names the invalid part without its value, which may be a secret.
    pub fn peer(&self, url: &str, given: &BTreeMap<String, String>, is_owners: bool) -> Result<Peer, Invalid> {
        let url = match is_owners {
            true => Url::parse(url).map_err(|error| Invalid::new("url", error.to_string()))?,
            false => self.rules.check("url", url)?,
        };
        if url.cannot_be_a_base() || url.host().is_none() {
            return Err(Invalid::new("url", "must be an absolute http or https URL"));
        }
        let client = if is_owners { &self.anywhere } else { &self.guarded };
        let timeout = self.patience.min(TIMEOUT);
        // The headers from the configuration; those of the definition override them.
        let mut all = self
            .headers
            .get(&url.origin().ascii_serialization())
            .map(|all| all.0.clone())
            .unwrap_or_default();
        all.extend(given.iter().map(|(name, value)| (name.clone(), value.clone())));
        Ok(Peer {
            client: client.clone(),
            url: Arc::new(url),
            headers: headers(&all)?,
            timeout,
            answers: self.answers,
        })
    }
}

/// The client for one server. Cheap to clone.
#[derive(Clone)]
pub struct Peer {
    client: Client,
    url: Arc<Url>,
    headers: HeaderMap,
    /// The timeout of one request.
    timeout: Duration,
    pub(super) answers: PeerAnswerLimits,
}

/// The request for a run on another server.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct RemoteRunRequest {
    /// The `graph_id` of the agent, or the id of an assistant.
    pub assistant_id: String,
    /// The input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// The command, instead of input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Value>,
    /// The metadata, by which the run is found again.
    pub metadata: Map<String, Value>,
    /// The stream modes.
    pub stream_mode: Vec<&'static str>,
    /// True if the stream can be resumed.
    pub stream_resumable: bool,
    /// The multitask strategy.
    pub multitask_strategy: &'static str,
    /// The webhook URL for the end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// The configuration of the run.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub config: Map<String, Value>,
}

/// The error of a request to another server. Its texts contain no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// There was no response, or no complete one.
    #[error("it could not be reached: {0}")]
    Unreachable(String),
    /// The server returned an error.
    #[error("it answered with status {status}: {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The error response.
        message: String,
    },
    /// The response has an unexpected form.
    #[error("its response cannot be parsed: {0}")]
    Misunderstood(String),
}

impl PeerError {
    /// Returns whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            Self::Misunderstood(_) => false,
        }
    }

    /// Returns whether the request certainly had no effect: the server itself refused it.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { status: 400..=407 | 409..=499, .. })
    }
}

/// The result of a request to another server.
pub type PeerResult<T> = Result<T, PeerError>;

impl Peer {
    /// Returns the server's address for messages, without parts that may be secret.
    pub fn display_url(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// Returns what the server says about itself: its version, for example. It needs no credentials.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn info(&self) -> PeerResult<Value> {
        self.ask(self.request(Method::GET, "info")).await
    }

    /// Returns whether the server has an assistant of this `graph_id`.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn has_agent(&self, graph_id: &str) -> PeerResult<bool> {
        let search = json!({"graph_id": graph_id, "limit": 1});
        let request = self.request(Method::POST, "assistants/search").body(search.to_string());
        let found: Vec<Value> = self.ask(request).await?;
        Ok(!found.is_empty())
    }

    /// Returns this client with the context of a trace in the headers of its requests, unless the configuration has given
    /// a `traceparent` of its own.
    #[must_use]
    pub fn with_trace(mut self, trace: Option<&SpanContext>) -> Self {
        let is_own = self.headers.contains_key("traceparent");
        for (name, value) in trace.filter(|_| !is_own).into_iter().flat_map(SpanContext::headers) {
            if let Ok(value) = HeaderValue::from_str(&value) {
                self.headers.insert(name, value);
            }
        }
        self
    }

    /// Returns this client with a timeout of each request of at most `limit`.
    #[must_use]
    pub fn with_timeout(mut self, limit: Duration) -> Self {
        self.timeout = self.timeout.min(limit);
        self
    }

    /// Creates a thread, unless it exists.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn create_thread(&self, id: Uuid, metadata: &Map<String, Value>) -> PeerResult<PeerThread> {
        let body = json!({"thread_id": id, "if_exists": "do_nothing", "metadata": metadata});
        self.ask(self.request(Method::POST, "threads").body(body.to_string()))
            .await
    }

    /// Returns a thread; none if it does not exist.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn thread(&self, id: Uuid) -> PeerResult<Option<PeerThread>> {
        self.find(self.request(Method::GET, &format!("threads/{id}"))).await
    }

    /// Starts a run. A repeated request with the same `key` may return the existing run.
    ///
    /// # Errors
    /// See [`PeerError`]. Without a response it is unknown whether the run was started.
    pub async fn create_run(&self, thread: Uuid, order: &RemoteRunRequest, key: &str) -> PeerResult<PeerRun> {
        let body = serde_json::to_string(order).map_err(|error| PeerError::Misunderstood(error.to_string()))?;
        let request = self.request(Method::POST, &format!("threads/{thread}/runs"));
        self.ask(request.header(IDEMPOTENCY_KEY, key).body(body)).await
    }

    /// Returns a run; none if it does not exist.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn run(&self, thread: Uuid, run: Uuid) -> PeerResult<Option<PeerRun>> {
        self.find(self.request(Method::GET, &format!("threads/{thread}/runs/{run}")))
            .await
    }

    /// Returns the latest runs of a thread, newest first; none if the thread does not exist.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn runs(&self, thread: Uuid, limit: u32) -> PeerResult<Vec<PeerRun>> {
        let path = format!("threads/{thread}/runs?limit={limit}");
        Ok(self.find(self.request(Method::GET, &path)).await?.unwrap_or_default())
    }

    /// Cancels a run. Returns false if there was nothing to cancel.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn cancel(&self, thread: Uuid, run: Uuid) -> PeerResult<bool> {
        let path = format!("threads/{thread}/runs/{run}/cancel?wait=false&action=interrupt");
        let response = self.send(self.request(Method::POST, &path).body("{}")).await?;
        match response.head().status() {
            // The run has ended, or does not exist.
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(false),
            status if status.is_success() => Ok(true),
            _ => Err(self.refused(response).await),
        }
    }

    /// Returns the state of a thread; none if the thread does not exist.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn state(&self, thread: Uuid) -> PeerResult<Option<PeerState>> {
        self.find(self.request(Method::GET, &format!("threads/{thread}/state")))
            .await
    }

    /// Returns the state at the last checkpoint that a run has created; none if it has created none.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn state_after(&self, thread: Uuid, run: Uuid) -> PeerResult<Option<PeerState>> {
        let body = json!({"limit": 1, "metadata": {"run_id": run}});
        let request = self.request(Method::POST, &format!("threads/{thread}/history"));
        let found: Option<Vec<PeerState>> = self.find(request.body(body.to_string())).await?;
        Ok(found.unwrap_or_default().into_iter().next())
    }

    /// Opens the stream of a run, from its start or after the event `after`.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub(super) async fn listen(&self, thread: Uuid, run: Uuid, after: Option<&str>) -> PeerResult<PieceReader> {
        let after = after
            .and_then(|id| HeaderValue::from_str(id).ok())
            .unwrap_or(HeaderValue::from_static("-1"));
        let url = self.address(&format!("threads/{thread}/runs/{run}/stream"));
        let request = self
            .client
            .get(url)
            .headers(self.headers.clone())
            .header(ACCEPT, "text/event-stream");
        let sent = tokio::time::timeout(self.timeout, self.send(request.header("last-event-id", after))).await;
        let response = sent.map_err(|_| PeerError::Unreachable("it took too long".to_owned()))??;
        if response.head().status() == StatusCode::OK {
            Ok(response)
        } else {
            Err(self.refused(response).await)
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self
            .client
            .request(method, self.address(path))
            .headers(self.headers.clone())
            .timeout(self.timeout);
        request.header(CONTENT_TYPE, "application/json")
    }

    /// Returns the URL of a path below the server's address, which may have a path of its own.
    fn address(&self, path: &str) -> Url {
        let mut url = Url::clone(&self.url);
        let (path, query) = path
            .split_once('?')
            .map_or((path, None), |(path, query)| (path, Some(query)));
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{base}/{path}"));
        url.set_query(query);
        url.set_fragment(None);
        url
    }

    async fn send(&self, request: RequestBuilder) -> PeerResult<PieceReader> {
        let request = request.header(USER_AGENT, concat!("adjutant/", env!("CARGO_PKG_VERSION")));
        PieceReader::open(request, self.answers.pieces)
            .await
            .map_err(PeerError::from)
    }

    async fn ask<T: DeserializeOwned>(&self, request: RequestBuilder) -> PeerResult<T> {
        let found = self.find(request).await?;
        found.ok_or_else(|| PeerError::Refused {
            status: 404,
            message: "it returned not found".to_owned(),
        })
    }

    /// Sends a request and parses the response; returns none for a 404.
    async fn find<T: DeserializeOwned>(&self, request: RequestBuilder) -> PeerResult<Option<T>> {
        let response = self.send(request).await?;
        match response.head().status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => {
                let body = read(response, self.answers.max_bytes).await?;
                let read = read_foreign(&body);
                read.map(Some)
                    .map_err(|error| PeerError::Misunderstood(error.to_string()))
            }
            _ => Err(self.refused(response).await),
        }
    }

    /// Converts an error response.
    async fn refused(&self, response: PieceReader) -> PeerError {
        let status = response.head().status().as_u16();
        let body = read(response, MAX_ERROR_CHARS * 8).await.unwrap_or_default();
        let detail = |body: &Value| body.get("detail")?.as_str().map(str::to_owned);
        let message = serde_json::from_slice::<Value>(&body)
            .ok()
            .and_then(|body| detail(&body));
        let mut message = message.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned());
        // A server that echoes the request must not leak the secrets in its headers.
        let secrets = self.headers.values().filter(|value| value.is_sensitive());
        for secret in secrets
            .filter_map(|value| value.to_str().ok())
            .filter(|value| value.len() >= 4)
        {
            message = message.replace(secret, "***");
        }
        PeerError::Refused {
            status,
            message: first_chars(&message, MAX_ERROR_CHARS).to_owned(),
        }
    }
}

/// Reads a response of at most `longest` bytes.
async fn read(mut response: PieceReader, longest: usize) -> PeerResult<Vec<u8>> {
    let is_ok = response.head().status().is_success();
    let mut body = Vec::new();
    while let Some(chunk) = response.next().await? {
        body.extend_from_slice(&chunk);
        if body.len() > longest {
            if is_ok {
                return Err(PeerError::Misunderstood(format!("it is longer than {longest} bytes")));
            }
            break;
        }
    }
    Ok(body)
}

impl From<PieceError> for PeerError {
    fn from(error: PieceError) -> Self {
        Self::Unreachable(match error {
            PieceError::Silent(limit) => limit.to_string(),
            PieceError::Broken(error) => net::describe_error(&error),
        })
    }
}

fn headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, Invalid> {
    let given = given.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let mut headers = net::secret_headers(given, &[CONTENT_TYPE.as_str(), IDEMPOTENCY_KEY])?;
    // LangGraph Platform expects this header for requests with a key of their own; other servers ignore it.
    headers
        .entry(AUTH_SCHEME)
        .or_insert(HeaderValue::from_static("langsmith"));
    Ok(headers)
}
