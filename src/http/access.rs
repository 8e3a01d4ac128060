//! The gate of the endpoints: a handler gets its [`Api`] only after the caller was found and the route's rule allows
//! the request.
//!
//! The rules are in `rules.rs`, one for each route. A route without a rule is refused, and so is a request without a
//! caller. The decision itself is made in the runtime, by [`AccessControl`](crate::runtime::AccessControl).

mod rules;

use std::net::IpAddr;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use axum::http::request::Parts;
use axum::http::{Extensions, Method, Request};
use futures::future::BoxFuture;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use uuid::Uuid;

use super::ApiParts;
use super::client::{ClientId, peer_address};
use super::error::ApiError;
use super::response_budget::Permit;
use super::search_turns::SearchTurns;
use super::shared_check::SharedCheck;
use super::socket_messages::{MessageLimit, SocketMessages};
use super::stream_limits::StreamPermit;
use crate::db::{DbResult, Tx};
use crate::domain::access::{AccessScope, Action, InterruptScope, Ownership};
use crate::domain::audit::{AuditEntry, AuditOutcome};
use crate::domain::call_token::CallBinding;
use crate::domain::id::ThreadId;
use crate::domain::identity::Identity;
use crate::domain::text_limits::first_chars;
use crate::runtime::{AccessError, AccessRefusal, DefinitionError, ResourceRef};
use rules::{Rule, Subject, rule_of};

/// The longest part of a path that the audit repeats, in characters.
const MAX_RESOURCE_CHARS: usize = 128;

/// The length of the text of most resources, in bytes: a thread.
const RESOURCE_BYTES: usize = "thread:".len() + 36;

/// The variables of paths that are UUIDs. Clients may spell these in several ways, and the audit has one.
const UUIDS: [&str; 7] = [
    "thread_id",
    "run_id",
    "checkpoint_id",
    "approval_id",
    "assistant_id",
    "cron_id",
    "delivery_id",
];

/// The state of the router. Handlers cannot read it; they extract an [`Api`].
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

/// The parts of the server that all requests share.
struct Shared {
    parts: ApiParts,
    searches: SearchTurns,
    messages: SocketMessages,
    read_check: SharedCheck,
    write_check: SharedCheck,
}

impl AppState {
    /// Creates the state from the parts of the server.
    pub fn new(parts: ApiParts) -> Self {
        Self(Arc::new(Shared {
            searches: SearchTurns::new(parts.db.searches()),
            messages: SocketMessages::new(parts.settings.bodies.max),
            read_check: SharedCheck::default(),
            write_check: SharedCheck::default(),
            parts,
        }))
    }
}

/// The parts of the server, for a request of this caller that the route's rule allows. Cloning copies pointers.
#[derive(Clone)]
pub struct Api {
    shared: Arc<Shared>,
    /// The caller, who sends the request.
    pub caller: Arc<Identity>,
    /// The address of the client; none for a request of this process.
    pub(super) address: Option<IpAddr>,
}

impl Deref for Api {
    type Target = ApiParts;

    fn deref(&self) -> &ApiParts {
        &self.shared.parts
    }
}

impl Api {
    /// Decides about a resource that the body of the request names. A refusal is recorded in the audit, which contains the
    /// request itself already.
    ///
    /// # Errors
    /// 403 if no role of the caller allows the action; 404 if the resource does not exist for the caller.
    pub async fn check(&self, action: Action, resource: ResourceRef) -> Result<(), ApiError> {
        let checked = self.access.check(&self.caller, action, resource).await;
        if checked.is_err() {
            self.record_decision(action, || resource.to_string(), &checked);
        }
        Ok(checked?)
    }

    /// Decides about a resource with metadata that the request creates. A refusal is recorded in the audit.
    ///
    /// # Errors
    /// 403 if no role of the caller allows it, or a policy forbids it.
    pub(super) fn check_new(&self, action: Action, metadata: &Map<String, Value>) -> Result<(), ApiError> {
        let checked = self.access.check_new(&self.caller, action, metadata);
        if checked.is_err() {
            self.record_decision(action, String::new, &checked);
        }
        Ok(checked?)
    }

    /// Decides by the policies alone about a resource that the request reaches by another name than its id. A refusal is
    /// recorded in the audit.
    ///
    /// # Errors
    /// As [`Api::check`].
    pub(super) async fn check_policies(&self, action: Action, resource: ResourceRef) -> Result<(), ApiError> {
        let checked = self.access.check_policies(&self.caller, action, resource).await;
        if checked.is_err() {
            self.record_decision(action, || resource.to_string(), &checked);
        }
        Ok(checked?)
    }

    /// Decides whether an agent of this name exists for the tenant of the caller, or may exist. A refusal is recorded in the
    /// audit.
    ///
    /// # Errors
    /// 403 if the settings of the tenant do not allow the name; 409 if a client of another tenant has taken it. Handlers of
    /// reads answer as if the agent did not exist.
    pub(super) fn check_agent(&self, action: Action, graph_id: &str) -> Result<(), ApiError> {
        let checked = self.access.check_agent(&self.caller, action, graph_id);
        if checked.is_err() {
            self.record_decision(
                action,
                || format!("graph:{}", first_chars(graph_id, MAX_RESOURCE_CHARS)),
                &checked,
            );
        }
        checked.map_err(|_| match self.access.agents_of(&self.caller).is_allowed(graph_id) {
            true => DefinitionError::Taken(graph_id.to_owned()).into(),
            false => ApiError::agent_not_allowed(graph_id),
        })
    }

    /// Decides about something that is done to a thread and that the rule of the route is not about, such as a command.
    /// The decision is recorded in the audit, as that about a request is.
    ///
    /// # Errors
    /// As [`Api::check`].
    pub(super) async fn check_and_record(
        &self,
        action: Action,
        resource: ResourceRef,
        thread: ThreadId,
    ) -> Result<(), ApiError> {
        let checked = self.access.check(&self.caller, action, resource).await;
        self.record_decision(action, || ResourceRef::Thread(thread).to_string(), &checked);
        Ok(checked?)
    }

    /// Records the decision about the request or a command, if the audit contains such requests. Only then the text of the
    /// resource is asked for. Without a decision, since the database failed, there is nothing to record.
    pub(super) fn record_decision(
        &self,
        action: Action,
        resource: impl FnOnce() -> String,
        checked: &Result<(), AccessError>,
    ) {
        let policies: &[String] = match checked {
            Ok(()) => &[],
            Err(AccessError::Refused { policies, .. }) => policies,
            Err(AccessError::Fault(_)) => return,
        };
        let outcome = match checked.is_ok() {
            true => AuditOutcome::Allowed,
            false => AuditOutcome::Denied,
        };
        if !self.audit.contains(&self.caller, action, outcome) {
            return;
        }
        let entry = AuditEntry {
            address: self.address,
            ..AuditEntry::new(&self.caller, action, resource(), outcome, self.audit.now())
        };
        self.audit.record(entry.because_of(policies));
    }

    /// Returns whether the caller may do this to a resource that the body of the request names.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn may(&self, action: Action, resource: ResourceRef) -> Result<bool, ApiError> {
        Ok(self.access.allows(&self.caller, action, resource).await?)
    }

    /// Returns the filter of a search for interrupts.
    pub fn interrupt_scope(&self, action: Action) -> InterruptScope {
        self.access.interrupt_scope(&self.caller, action)
    }

    /// Returns the filter of a search.
    pub fn scope(&self, action: Action) -> AccessScope {
        self.access.scope(&self.caller, action)
    }

    /// Counts one more open stream of the caller, for as long as the permit is held.
    ///
    /// # Errors
    /// 429 if the thread or the caller has too many.
    pub(super) fn open_stream(&self, thread: Option<ThreadId>, client: ClientId) -> Result<StreamPermit, ApiError> {
        self.streams.acquire(thread, client, &self.caller)
    }

    /// Reserves the memory for a response whose size depends on stored data, before the data is read.
    ///
    /// # Errors
    /// 503 if responses to the caller, or to all, hold as much as they may.
    pub(super) async fn answer_permit(&self) -> Result<Permit, ApiError> {
        self.answers.permit(&self.caller).await
    }

    /// Returns the limit of the messages of a new WebSocket of the caller.
    pub(super) fn message_limit(&self) -> MessageLimit {
        self.shared.messages.limit(&self.caller)
    }

    /// Returns the check that the database can be read.
    pub(super) fn read_check(&self) -> &SharedCheck {
        &self.shared.read_check
    }

    /// Returns the check that the database can be written to.
    pub(super) fn write_check(&self) -> &SharedCheck {
        &self.shared.write_check
    }

    /// Returns the connections for searches that the caller may hold, if they are limited.
    pub(super) fn search_turns(&self) -> Option<Arc<Semaphore>> {
        self.shared.searches.of(&self.caller)
    }

    /// Waits until the caller may hold one more connection for a search, for as long as the turn is held.
    ///
    /// # Errors
    /// 503 if the other searches of the caller take too long.
    pub(super) async fn search_turn(&self) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        self.shared.searches.take(&self.caller).await
    }

    /// Runs `job` like [`Db::search`](crate::db::Db::search), in a [turn](Api::search_turn) of the caller.
    ///
    /// # Errors
    /// Those of the job and of the turn.
    pub(super) async fn search<T, J>(&self, job: J) -> Result<T, ApiError>
    where
        T: Send + 'static,
        J: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, DbResult<T>> + Send + 'static,
    {
        let _turn = self.search_turn().await?;
        Ok(self.db.search(job).await?)
    }

    /// Checks whether the caller may store more.
    ///
    /// # Errors
    /// 507 if the caller or the tenant has stored as much as allowed.
    pub(super) fn check_room(&self) -> Result<(), ApiError> {
        let checked = self.stored.check(&self.ownership());
        checked.map_err(|reached| ApiError::quota_reached(&reached))
    }

    /// Returns the ownership of what the request creates.
    pub fn ownership(&self) -> Ownership {
        Ownership::of(&self.caller)
    }
}

impl FromRequestParts<AppState> for Api {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let rule = rule_of_route(&parts.method, &parts.extensions).ok_or_else(ApiError::no_access_rule)?;
        let caller = parts.extensions.get::<Arc<Identity>>().cloned();
        let caller = match (caller, rule) {
            (Some(caller), _) => caller,
            (None, Rule::Public) => Arc::new(Identity::anonymous()),
            (None, Rule::Allow(..) | Rule::OfCall) => return Err(ApiError::unauthenticated()),
        };
        let api = Self {
            shared: Arc::clone(&state.0),
            caller,
            address: peer_address(&parts.extensions),
        };
        if rule == Rule::OfCall && parts.extensions.get::<Arc<CallBinding>>().is_none() {
            return Err(ApiError::no_call());
        }
        if let Rule::Allow(action, subject) = rule {
            // A path without variables, or one that cannot be decoded, names nothing.
            let variables = RawPathParams::from_request_parts(parts, state).await.ok();
            let variables = variables.as_ref();
            let resource = variables.map_or(ResourceRef::Collection, |variables| resource_of(variables, subject));
            let checked = api.access.check(&api.caller, action, resource).await;
            let named = || variables.map(resource_text).unwrap_or_default();
            api.record_decision(action, named, &checked);
            checked?;
        }
        Ok(api)
    }
}

/// Returns the rule of the route of a request; none if the route has none.
fn rule_of_route(method: &Method, extensions: &Extensions) -> Option<Rule> {
    let path = extensions.get::<MatchedPath>()?;
    rule_of(method.as_str(), path.as_str())
}

/// Returns the action of a request by the rule of its route; none if the route has none.
pub(super) fn action_of<B>(request: &Request<B>) -> Option<Action> {
    match rule_of_route(request.method(), request.extensions())? {
        Rule::Allow(action, _) => Some(action),
        Rule::Public | Rule::OfCall => None,
    }
}

/// Returns the resources that the path names as the audit shows them, such as `thread:<id>/run:<id>`.
pub(super) fn resource_text(variables: &RawPathParams) -> String {
    let mut text = String::with_capacity(RESOURCE_BYTES);
    for (name, value) in variables {
        if !text.is_empty() {
            text.push('/');
        }
        text.push_str(name.strip_suffix("_id").unwrap_or(name));
        text.push(':');
        let id = Some(value).filter(|_| UUIDS.contains(&name));
        match id.and_then(|id| id.parse::<Uuid>().ok()) {
            Some(id) => text.push_str(id.hyphenated().encode_lower(&mut Uuid::encode_buffer())),
            None => text.push_str(first_chars(value, MAX_RESOURCE_CHARS)),
        }
    }
    text
}

/// Returns the resource that the path names. A malformed id names nothing: the handler refuses it by its name.
fn resource_of(variables: &RawPathParams, subject: Subject) -> ResourceRef {
    fn read<T: FromStr>(variables: &RawPathParams, name: &str, resource: fn(T) -> ResourceRef) -> ResourceRef {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        let id = found.and_then(|(_, text)| text.parse().ok());
        id.map_or(ResourceRef::Collection, resource)
    }
    match subject {
        Subject::Collection => ResourceRef::Collection,
        Subject::Thread => read(variables, "thread_id", ResourceRef::Thread),
        Subject::Assistant => read(variables, "assistant_id", ResourceRef::Assistant),
        Subject::Cron => read(variables, "cron_id", ResourceRef::Cron),
        Subject::Delivery => read(variables, "delivery_id", ResourceRef::Delivery),
    }
}

impl From<AccessError> for ApiError {
    fn from(error: AccessError) -> Self {
        let refusal = match error {
            AccessError::Refused { reason, .. } => reason,
            AccessError::Fault(error) => return error.into(),
        };
        match refusal {
            AccessRefusal::Forbidden(action) => Self::forbidden(action),
            AccessRefusal::ForbiddenByPolicy(action) => Self::forbidden_by_policy(action),
            AccessRefusal::NotFound(ResourceRef::Thread(thread)) => Self::no_thread(thread),
            AccessRefusal::NotFound(ResourceRef::Assistant(_)) => Self::not_found("assistant_not_found"),
            AccessRefusal::NotFound(ResourceRef::Cron(_)) => Self::not_found("cron_not_found"),
            AccessRefusal::NotFound(ResourceRef::Delivery(_)) => Self::not_found("delivery_not_found"),
            AccessRefusal::NotFound(ResourceRef::Collection) => Self::no_route(),
        }
    }
}
