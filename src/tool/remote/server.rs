//! A service of several tools behind HTTP, and the task that keeps the list of its tools.
//!
//! `GET URL/tools` answers with the list, and a call is the usual request, to `URL/tools/NAME`. The list is asked for
//! again after a while, with the `ETag` of the last one, and at once when a call finds that its tool is gone. The tools
//! of the last list stay on offer while the service cannot be reached.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{ACCEPT, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use reqwest::{Client, StatusCode, Url};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{RemoteTool, base_url, headers};
use crate::definition::mcp::{McpFilter, model_name};
use crate::definition::words::{LONGEST_TIMEOUT_S, timeout_problem};
use crate::definition::{AfterCrash, Headers, OnError, ToolDefinition, ToolServerDefinition};
use crate::domain::Invalid;
use crate::domain::backoff::Backoff;
use crate::domain::call::ToolOutput;
use crate::domain::json_limits::read_foreign;
use crate::domain::message::ToolCall;
use crate::domain::state::State;
use crate::domain::text_limits::first_chars;
use crate::model::ToolSpec;
use crate::model::pieces::{PieceLimits, PieceReader};
use crate::tool::arguments::ArgumentCheck;
use crate::tool::halt::Halt;
use crate::tool::outcome::CallOutcome;
use crate::tool::scope::Scope;
use crate::tool::toolbox::Tool;

/// The version of the document that is understood.
const VERSION: u64 = 1;
/// The maximum number of tools of one service.
const MAX_TOOLS: usize = 1_000;
/// The maximum length of the name of a tool, in bytes.
const MAX_NAME_BYTES: usize = 256;
/// The maximum length of a description that is passed to models, in characters.
const MAX_DESCRIPTION_CHARS: usize = 16_384;
/// The time-out of a call when neither the configuration nor the service has one, in seconds.
const DEFAULT_TIMEOUT_S: f64 = 30.0;
/// The maximum number of fields of the state that are sent with a call.
const MAX_STATE_FIELDS: usize = 64;
/// The pauses after failures to read the list.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(60));
/// The minimum time between two requests for the list.
const MIN_LIST_INTERVAL: Duration = Duration::from_secs(1);

/// The limits on the answers of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceLimits {
    /// The maximum size of an answer, in bytes.
    pub max_bytes: usize,
    /// The time limits for the pieces of an answer.
    pub pieces: PieceLimits,
}

/// A service of tools.
pub(in crate::tool) struct ToolService {
    name: String,
    definition: ToolServerDefinition,
    client: Client,
    url: Url,
    headers: HeaderMap,
    limits: ServiceLimits,
    filter: McpFilter,
    /// The tools of the last list, with its `ETag`.
    listed: RwLock<Listed>,
    /// True once the first request for the list is over.
    attempted: watch::Sender<bool>,
    /// Notified when a call finds that its tool is gone.
    stale: Arc<Notify>,
}

/// The last list.
#[derive(Default)]
struct Listed {
    tools: Vec<Arc<ServiceTool>>,
    etag: Option<HeaderValue>,
}

/// The reason why the list could not be read.
#[derive(Debug)]
enum ListError {
    Unreachable,
    Refused(StatusCode),
    Invalid(String),
}

impl fmt::Display for ListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable => f.write_str("cannot be reached"),
            Self::Refused(status) => write!(f, "answered with status {}", status.as_u16()),
            Self::Invalid(why) => write!(f, "answered with an invalid list: {why}"),
        }
    }
}

/// The document that lists the tools. Members that are not known are ignored, so that services may be newer.
#[derive(Deserialize)]
struct Listing {
    version: u64,
    tools: Vec<Value>,
}

/// A tool in the list.
#[derive(Deserialize)]
struct ListedTool {
    name: String,
    #[serde(default)]
    description: String,
    parameters: Value,
    #[serde(default)]
    idempotent: bool,
    after_crash: Option<AfterCrash>,
    on_error: Option<OnError>,
    timeout_s: Option<f64>,
    /// The fields of the state that are sent with a call.
    #[serde(default)]
    state: Vec<String>,
}

impl ToolService {
    /// Creates a service from its definition; its list is empty until [`ToolService::run`] has read it.
    ///
    /// # Errors
    /// The field of the definition that is invalid.
    pub(in crate::tool) fn new(
        name: &str,
        definition: &ToolServerDefinition,
        client: Client,
        limits: ServiceLimits,
    ) -> Result<Self, Invalid> {
        let url = base_url(&definition.url)?;
        Ok(Self {
            name: name.to_owned(),
            client,
            url,
            headers: headers(&definition.headers.0)?,
            limits,
            filter: McpFilter::of(definition.allowed_tools.as_deref(), &definition.disabled_tools),
            listed: RwLock::default(),
            attempted: watch::Sender::new(false),
            stale: Arc::default(),
            definition: definition.clone(),
        })
    }

    /// Returns the tools of the last list.
    pub(in crate::tool) fn tools(&self) -> Vec<Arc<ServiceTool>> {
        let listed = self.listed.read().unwrap_or_else(PoisonError::into_inner);
        listed.tools.clone()
    }

    /// Returns whether the first request for the list is over, successful or not.
    pub(in crate::tool) fn is_attempted(&self) -> bool {
        *self.attempted.borrow()
    }

    /// Waits until the first request for the list is over, successful or not.
    pub(in crate::tool) async fn attempted(&self) {
        // The sender is a field of `self`, so it cannot be dropped while this waits.
        let _ = self.attempted.subscribe().wait_for(|attempted| *attempted).await;
    }

    /// Reads the list, again and again, until `soft` is cancelled.
    pub(in crate::tool) async fn run(self: Arc<Self>, soft: CancellationToken) {
        let seconds = |value| Duration::try_from_secs_f64(value).unwrap_or(MIN_LIST_INTERVAL);
        let start_timeout = seconds(self.definition.start_timeout_s);
        let refresh = seconds(self.definition.refresh_s);
        let mut failures = 0_u32;
        while !soft.is_cancelled() {
            let Some(read) = soft.run_until_cancelled(timeout(start_timeout, self.list())).await else {
                break;
            };
            match read {
                Ok(Ok(())) => failures = 0,
                Ok(Err(error)) => {
                    failures = failures.saturating_add(1);
                    tracing::warn!(server = self.name, %error, "a tool server is not available");
                }
                Err(_) => {
                    failures = failures.saturating_add(1);
                    tracing::warn!(server = self.name, "listing the tools of a tool server timed out");
                }
            }
            self.attempted.send_replace(true);
            let pause = match failures {
                0 => refresh,
                failures => BACKOFF.pause(failures),
            };
            // Bounds the rate of requests, however many calls find their tool gone.
            let least = pause.min(MIN_LIST_INTERVAL);
            soft.run_until_cancelled(tokio::time::sleep(least)).await;
            let pause_or_call = timeout(pause.saturating_sub(least), self.stale.notified());
            soft.run_until_cancelled(pause_or_call).await;
        }
        self.attempted.send_replace(true);
    }

    /// Reads the list once. Returns the names of the tools that the definition allows.
    ///
    /// # Errors
    /// A text for the operator: the service cannot be reached, is slow, or has an invalid list.
    pub(in crate::tool) async fn list_once(&self) -> Result<Vec<String>, String> {
        let limit = self.definition.start_timeout_s;
        let start_timeout = Duration::try_from_secs_f64(limit).unwrap_or(MIN_LIST_INTERVAL);
        timeout(start_timeout, self.list())
            .await
            .map_err(|_| format!("did not list its tools within {limit} s (its `start_timeout_s`)"))?
            .map_err(|error| error.to_string())?;
        Ok(self.tools().iter().map(|tool| tool.name.clone()).collect())
    }

    /// Returns the address of the list, or of a tool.
    fn address(&self, tool: Option<&str>) -> Result<Url, Invalid> {
        let mut url = self.url.clone();
        url.path_segments_mut()
            .map_err(|()| Invalid::new("url", "cannot have a path"))?
            .pop_if_empty()
            .push("tools")
            .extend(tool);
        Ok(url)
    }

    /// Reads the list, unless it is the same as the last time.
    async fn list(&self) -> Result<(), ListError> {
        let known = {
            let listed = self.listed.read().unwrap_or_else(PoisonError::into_inner);
            listed.etag.clone()
        };
        let invalid = |why: &dyn fmt::Display| ListError::Invalid(why.to_string());
        let address = self.address(None).map_err(|error| invalid(&error))?;
        let mut request = self.client.get(address).headers(self.headers.clone());
        request = request.header(ACCEPT, "application/json");
        if let Some(etag) = known {
            request = request.header(IF_NONE_MATCH, etag);
        }
        let opened = PieceReader::open(request, self.limits.pieces).await;
        let mut response = opened.map_err(|_| ListError::Unreachable)?;
        match response.head().status() {
            StatusCode::OK => {}
            StatusCode::NOT_MODIFIED => return Ok(()),
            status => return Err(ListError::Refused(status)),
        }
        let etag = response.head().headers().get(ETAG).cloned();
        let mut body = Vec::new();
        while let Some(chunk) = response.next().await.map_err(|_| ListError::Unreachable)? {
            body.extend_from_slice(&chunk);
            if body.len() > self.limits.max_bytes {
                return Err(ListError::Invalid(format!(
                    "it is longer than {} bytes",
                    self.limits.max_bytes
                )));
            }
        }
        let listing: Listing = read_foreign(&body).map_err(|error| ListError::Invalid(format!("it {error}")))?;
        if listing.version != VERSION {
            let version = listing.version;
            return Err(ListError::Invalid(format!(
                "its version is {version}, and not {VERSION}"
            )));
        }
        let tools = self.read_tools(listing.tools);
        tracing::info!(
            server = self.name,
            tools = tools.len(),
            "listed the tools of a tool server"
        );
        *self.listed.write().unwrap_or_else(PoisonError::into_inner) = Listed { tools, etag };
        Ok(())
    }

    /// Returns the tools of a list that can be offered.
    fn read_tools(&self, listed: Vec<Value>) -> Vec<Arc<ServiceTool>> {
        let count = listed.len();
        if count > MAX_TOOLS {
            tracing::warn!(
                server = self.name,
                count,
                "skipped the tools of a tool server after the first {MAX_TOOLS}"
            );
        }
        let mut names = BTreeSet::new();
        let mut tools = vec![];
        for entry in listed.into_iter().take(MAX_TOOLS) {
            let name = entry.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            let read = serde_json::from_value(entry).map_err(|error| error.to_string());
            match read.and_then(|listed| self.read_tool(listed)) {
                Ok(tool) if !self.filter.allows(&self.name, &tool.name) => {}
                Ok(tool) if names.insert(tool.name.clone()) => tools.push(Arc::new(tool)),
                Ok(_) => tracing::warn!(server = self.name, tool = name, "skipped a tool that is listed twice"),
                Err(reason) => {
                    tracing::warn!(
                        server = self.name,
                        tool = name,
                        reason,
                        "skipped a tool that cannot be offered"
                    );
                }
            }
        }
        tools
    }

    /// Creates a tool from its entry in the list. Settings of the configuration precede those of the service.
    fn read_tool(&self, listed: ListedTool) -> Result<ServiceTool, String> {
        if listed.name.trim().is_empty() || listed.name.len() > MAX_NAME_BYTES {
            return Err(format!("its name must have 1 to {MAX_NAME_BYTES} bytes"));
        }
        if listed.state.len() > MAX_STATE_FIELDS {
            return Err(format!("its `state` must name at most {MAX_STATE_FIELDS} fields"));
        }
        let own = &self.definition;
        let default_after_crash = if listed.idempotent {
            AfterCrash::Repeat
        } else {
            AfterCrash::default()
        };
        let timeout_s = own.timeout_s.or(listed.timeout_s).unwrap_or(DEFAULT_TIMEOUT_S);
        if let Some(problem) = timeout_problem(timeout_s, LONGEST_TIMEOUT_S) {
            return Err(format!("its `timeout_s` {problem}"));
        }
        let description = if listed.description.trim().is_empty() {
            &listed.name
        } else {
            &listed.description
        };
        let address = self.address(Some(&listed.name)).map_err(|error| error.reason)?;
        let definition = ToolDefinition {
            description: first_chars(description, MAX_DESCRIPTION_CHARS).to_owned(),
            url: address.into(),
            parameters: listed.parameters,
            headers: Headers(own.headers.0.clone()),
            timeout_s,
            max_retries: own.max_retries,
            after_crash: own.after_crash.or(listed.after_crash).unwrap_or(default_after_crash),
            on_error: own.on_error.or(listed.on_error).unwrap_or_default(),
            read_access: own.read_access.clone(),
            ..ToolDefinition::default()
        };
        let model_name = model_name(&self.name, &listed.name);
        let remote = RemoteTool::new(&model_name, &definition, self.client.clone());
        let remote = remote.map_err(|invalid| format!("its `{}` {}", invalid.field, invalid.reason))?;
        let remote = remote
            .with_longest_answer(self.limits.max_bytes)
            .with_pieces(self.limits.pieces)
            .with_own_name(&listed.name)
            .with_state_fields(listed.state)
            .with_stale_signal(Arc::clone(&self.stale));
        Ok(ServiceTool {
            check: ArgumentCheck::new(remote.spec()),
            name: listed.name,
            remote,
        })
    }
}

/// A tool of a service.
pub(in crate::tool) struct ServiceTool {
    /// The tool's name at the service.
    pub(in crate::tool) name: String,
    remote: RemoteTool,
    check: ArgumentCheck,
}

#[async_trait]
impl Tool for ServiceTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        self.remote.spec()
    }

    fn has_effects(&self) -> bool {
        self.remote.has_effects()
    }

    fn after_crash(&self) -> AfterCrash {
        self.remote.after_crash()
    }

    fn on_error(&self) -> OnError {
        self.remote.on_error()
    }

    async fn call(&self, scope: &Scope, state: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        if let Err(text) = self.check.check(&call.args) {
            return Ok(CallOutcome::Answer(ToolOutput::error(call, text)));
        }
        self.remote.call(scope, state, call).await
    }
}

#[cfg(test)]
mod tests;
