//! A client of another server: threads, runs, states.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use reqwest::{Client, Method, RequestBuilder, StatusCode, redirect};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use url::Url;
use uuid::Uuid;

use super::address::{AddressRules, SsrfGuard};
use super::responses::{PeerRun, PeerState, PeerThread};
use crate::definition::Headers;
use crate::domain::Invalid;
use crate::domain::background::PollPolicy;
use crate::domain::json_limits::read_foreign;
use crate::model::pieces::{PieceError, PieceLimits, PieceReader};

/// How long one request may take, if there is patience for so long.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to be connected.
const CONNECT: Duration = Duration::from_secs(10);
/// How much of a refusal is passed on.
const SHOWN_CHARS: usize = 500;
/// How many runs elsewhere are listened to at once; more are asked now and then whether they are over.
const MAX_LISTENED_RUNS: usize = 512;
/// The header by which a server of our kind recognises a request that it has seen before.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The header that says what kind of key is sent along.
const SCHEME: &str = "x-auth-scheme";

/// Starts a task that ends by itself.
pub type SpawnRequest = Arc<dyn Fn(&'static str, BoxFuture<'static, ()>) + Send + Sync>;

/// What the owner of the server decided about other servers.
#[derive(Debug, Clone)]
pub struct PeerPolicy {
    /// Where servers may be that a client named. Those that the owner named may be anywhere.
    pub rules: AddressRules,
    /// Headers of requests to a server, by the origin of its address.
    pub headers: BTreeMap<String, Headers>,
    /// For how long a server may be out of reach before work there is given up that somebody waits for.
    pub patience: Duration,
    /// When work is looked at that nobody waits for.
    pub polling: PollPolicy,
    /// How much is read of what servers answer, and how long they may take.
    pub answers: PeerAnswerLimits,
}

/// The bounds of what another server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAnswerLimits {
    /// The longest answer that is read, in bytes.
    pub max_bytes: usize,
    /// How much is read of what the runs of one turn stream, in bytes.
    pub max_stream_bytes: usize,
    /// The longest event of such a stream that is passed on, in bytes; longer ones are passed over.
    pub max_event_bytes: usize,
    /// How long nothing may arrive.
    pub pieces: PieceLimits,
}

/// Other servers, and how they are reached. Cheap to clone.
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
    /// Prepares for talking to others.
    ///
    /// # Errors
    /// When the system offers no TLS.
    pub fn new(reach: PeerPolicy, spawn: SpawnRequest) -> Result<Self, reqwest::Error> {
        let rules = Arc::new(reach.rules);
        // A redirect could carry secrets to where they were not meant to go.
        let client = || {
            crate::net::client_builder()
                .redirect(redirect::Policy::none())
                .connect_timeout(CONNECT)
        };
        // A proxy would lead past the rules.
        let guarded = client()
            .no_proxy()
            .dns_resolver(Arc::new(SsrfGuard(Arc::clone(&rules))))
            .build()?;
        let listeners = Arc::new(Semaphore::new(MAX_LISTENED_RUNS));
        Ok(Self {
            anywhere: client().build()?,
            guarded,
            rules,
            headers: Arc::new(reach.headers),
            patience: reach.patience,
            polling: reach.polling,
            answers: reach.answers,
            listeners,
            spawn,
        })
    }

    /// When work is looked at that nobody waits for.
    pub fn poll_policy(&self) -> &PollPolicy {
        &self.polling
    }

    /// For how long a server may be out of reach before work there is given up that somebody waits for.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// Checks the address of a server that a client named.
    ///
    /// # Errors
    /// Names `field` and says why requests may not go there.
    pub fn check(&self, field: &str, url: &str) -> Result<(), Invalid> {
        self.rules.check(field, url).map(drop)
    }

    /// The server at `url`, with the headers that it wants; `is_owners` if the owner of this server named it.
    ///
    /// # Errors
    /// Names what cannot be used, and does not repeat it: it may hold a secret.
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
        // Those that the configuration gives to this server, and over them those of the definition.
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

/// Another server. Cheap to clone.
#[derive(Clone)]
pub struct Peer {
    client: Client,
    url: Arc<Url>,
    headers: HeaderMap,
    /// How long one request may take.
    timeout: Duration,
    pub(super) answers: PeerAnswerLimits,
}

/// What a run there shall do.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct RemoteRunRequest {
    /// The agent: its `graph_id`, or the id of an assistant.
    pub assistant_id: String,
    /// What it is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// What it shall do instead of taking input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Value>,
    /// Notes on the run, by which it is found again.
    pub metadata: Map<String, Value>,
    /// What is to be streamed.
    pub stream_mode: Vec<&'static str>,
    /// Whether the stream can be taken up again.
    pub stream_resumable: bool,
    /// What becomes of it when the thread is busy.
    pub multitask_strategy: &'static str,
    /// An address that is told when it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// The settings of the run.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub config: Map<String, Value>,
}

/// Why another server was of no use. The words are free of secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// It did not answer, or not to the end.
    #[error("it could not be reached: {0}")]
    Unreachable(String),
    /// It answered, but not with what was asked for.
    #[error("it answered with status {status}: {said}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What it said.
        said: String,
    },
    /// What it answered is something else than expected.
    #[error("its answer cannot be understood: {0}")]
    Misunderstood(String),
}

impl PeerError {
    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused { status, .. } => matches!(status, 408 | 425 | 429 | 500..=599),
            Self::Misunderstood(_) => false,
        }
    }

    /// Whether it is certain that the request had no effect: the server itself said that it did not want it.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { status: 400..=407 | 409..=499, .. })
    }
}

/// What another server answers, or why it is of no use.
pub type PeerResult<T> = Result<T, PeerError>;

impl Peer {
    /// Its name, for those who read about it: where it is, without what may be secret in the address.
    pub fn place(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    /// Makes a thread, unless it is there already.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn create_thread(&self, id: Uuid, metadata: &Map<String, Value>) -> PeerResult<PeerThread> {
        let body = json!({"thread_id": id, "if_exists": "do_nothing", "metadata": metadata});
        self.ask(self.request(Method::POST, "threads").body(body.to_string()))
            .await
    }

    /// A thread; none if there is none of this id.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn thread(&self, id: Uuid) -> PeerResult<Option<PeerThread>> {
        self.find(self.request(Method::GET, &format!("threads/{id}"))).await
    }

    /// Starts a run. One that was asked for under the same `key` may be given back instead.
    ///
    /// # Errors
    /// See [`PeerError`]. Whether the run began is unknown when no answer came.
    pub async fn create_run(&self, thread: Uuid, order: &RemoteRunRequest, key: &str) -> PeerResult<PeerRun> {
        let body = serde_json::to_string(order).map_err(|error| PeerError::Misunderstood(error.to_string()))?;
        let request = self.request(Method::POST, &format!("threads/{thread}/runs"));
        self.ask(request.header(IDEMPOTENCY_KEY, key).body(body)).await
    }

    /// A run; none if there is none of this id.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn run(&self, thread: Uuid, run: Uuid) -> PeerResult<Option<PeerRun>> {
        self.find(self.request(Method::GET, &format!("threads/{thread}/runs/{run}")))
            .await
    }

    /// The newest runs of a thread, the newest first; none if there is no such thread.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn runs(&self, thread: Uuid, limit: u32) -> PeerResult<Vec<PeerRun>> {
        let path = format!("threads/{thread}/runs?limit={limit}");
        Ok(self.find(self.request(Method::GET, &path)).await?.unwrap_or_default())
    }

    /// Stops a run. False if there was nothing to stop.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn cancel(&self, thread: Uuid, run: Uuid) -> PeerResult<bool> {
        let path = format!("threads/{thread}/runs/{run}/cancel?wait=false&action=interrupt");
        let response = self.send(self.request(Method::POST, &path).body("{}")).await?;
        match response.head().status() {
            // It is over, or unknown.
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(false),
            status if status.is_success() => Ok(true),
            _ => Err(self.refused(response).await),
        }
    }

    /// Where a thread stands; none if there is no such thread.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn state(&self, thread: Uuid) -> PeerResult<Option<PeerState>> {
        self.find(self.request(Method::GET, &format!("threads/{thread}/state")))
            .await
    }

    /// Listens to a run, from behind the event `after` on, or from its beginning.
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

    /// A path below the address of the server, which may have a path of its own.
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
            said: "it knows nothing of that kind".to_owned(),
        })
    }

    /// What the answer says; nothing when there is nothing of that kind.
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

    /// What a refusal says.
    async fn refused(&self, response: PieceReader) -> PeerError {
        let status = response.head().status().as_u16();
        let body = read(response, SHOWN_CHARS * 8).await.unwrap_or_default();
        let detail = |body: &Value| body.get("detail")?.as_str().map(str::to_owned);
        let said = serde_json::from_slice::<Value>(&body)
            .ok()
            .and_then(|body| detail(&body));
        let mut said = said.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned());
        // A server that echoes what it was sent must not hand our secrets on.
        let secrets = self.headers.values().filter(|value| value.is_sensitive());
        for secret in secrets
            .filter_map(|value| value.to_str().ok())
            .filter(|value| value.len() >= 4)
        {
            said = said.replace(secret, "***");
        }
        PeerError::Refused {
            status,
            said: said.chars().take(SHOWN_CHARS).collect(),
        }
    }
}

/// Reads an answer of at most so many bytes.
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
            PieceError::Broken(error) => why(&error),
        })
    }
}

/// Why there was no answer, without the address, which may hold a secret.
pub(super) fn why(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it took too long".to_owned();
    }
    let mut cause: Option<&dyn Error> = error.source();
    let mut deepest = None;
    while let Some(inner) = cause {
        deepest = Some(inner.to_string());
        cause = inner.source();
    }
    deepest.unwrap_or_else(|| "no reason is known".to_owned())
}

fn headers(given: &BTreeMap<String, String>) -> Result<HeaderMap, Invalid> {
    // So the field's platform tells those who come with a key of its own; another server does not mind.
    let mut headers = HeaderMap::from_iter([(HeaderName::from_static(SCHEME), HeaderValue::from_static("langsmith"))]);
    for (name, value) in given {
        let wrong = |reason: &str| Invalid::new(format!("headers.{name}"), reason);
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("is not a header name"))?;
        if key == CONTENT_TYPE || key == IDEMPOTENCY_KEY {
            return Err(wrong("is set by the server itself"));
        }
        let mut value = HeaderValue::from_str(value).map_err(|_| wrong("has a value that no header can have"))?;
        value.set_sensitive(true);
        headers.insert(key, value);
    }
    Ok(headers)
}
