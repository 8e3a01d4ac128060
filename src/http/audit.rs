//! The audit: recording requests, and reading what was recorded.

use axum::RequestExt;
use axum::extract::{RawPathParams, Request};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::Api;
use super::access;
use super::client::peer_address;
use super::error::{ApiError, ErrorBody};
use super::extract::Params;
use super::wire::{Object, json, read_id};
use crate::db::audit::{self, AuditSearch};
use crate::db::{DbError, RowAccess};
use crate::domain::access::Action;
use crate::domain::api_key::ApiKey;
use crate::domain::audit::{AuditEntry, AuditOutcome};
use crate::domain::identity::Identity;
use crate::domain::time::Timestamp;
use crate::runtime::Audit;

/// The largest page of entries.
const MAX_ENTRIES: i64 = 1000;

/// Handles a request of this caller. Holds the response back until the entries about the request are durable.
pub(super) async fn wait_for_entries(
    audit: &Audit,
    caller: Option<&Identity>,
    handling: impl Future<Output = Response>,
) -> Response {
    let responded = audit.run_request(caller, handling).await;
    responded.unwrap_or_else(|error| not_stored(error).into_response())
}

/// Returns the error of a request about which an entry cannot be stored.
pub(super) fn not_stored(error: DbError) -> ApiError {
    if matches!(error, DbError::Closed) {
        return ApiError::shutting_down();
    }
    error.into()
}

/// Records that a request was refused because of the page or the host name from which it comes, which are not those of the
/// caller's tenant. The entry is durable when this returns. A request whose route has no action has none.
///
/// # Errors
/// When the entry cannot be stored.
pub(super) async fn record_foreign_site(
    audit: &Audit,
    caller: &Identity,
    request: &mut Request,
    refusal: &ApiError,
) -> Result<(), ApiError> {
    let Some(action) = access::action_of(request) else {
        return Ok(());
    };
    // A path without variables, or one that cannot be decoded, names nothing.
    let variables = request.extract_parts::<RawPathParams>().await.ok();
    let resource = variables.as_ref().map(access::resource_text).unwrap_or_default();
    let mut detail = Map::new();
    detail.insert("reason".to_owned(), Value::from(refusal.code()));
    let entry = AuditEntry {
        address: peer_address(request.extensions()),
        detail,
        ..AuditEntry::new(caller, action, resource, AuditOutcome::Denied, audit.now())
    };
    let recording = audit.run_request(Some(caller), async { audit.record(entry) });
    let recorded = RowAccess::of_caller(caller).scope(recording).await;
    recorded.map_err(not_stored)
}

/// Records which API key a request has created, for whom, and with which rights. The entry of the request was stored with
/// the key, and does not name it.
pub(super) fn record_new_key(api: &Api, key: &ApiKey) {
    let action = Action::KeysWrite;
    let outcome = AuditOutcome::Allowed;
    if !api.audit.contains(&api.caller, action, outcome) {
        return;
    }
    let roles: Vec<&str> = key.roles.iter().map(|role| role.word()).collect();
    let mut detail = Map::new();
    detail.insert("user".to_owned(), Value::from(key.user.as_str()));
    detail.insert("roles".to_owned(), Value::from(roles));
    if let Some(scopes) = &key.scopes {
        detail.insert("scopes".to_owned(), Value::from(scopes.clone()));
    }
    let resource = format!("key:{}", key.id);
    api.audit.record(AuditEntry {
        address: api.address,
        detail,
        ..AuditEntry::new(&api.caller, action, resource, outcome, api.audit.now())
    });
}

/// An entry of the audit.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AuditEntryView {
    /// The id; `before` in the next request for older entries.
    id: Uuid,
    /// The time.
    created_at: String,
    /// The tenant of the caller.
    tenant: String,
    /// The user.
    user: String,
    /// The credential of the caller: `key:<id>`, `jwt:<issuer>` or `hook`.
    credential: String,
    /// The action, such as `threads:delete`.
    action: String,
    /// The resource, such as `thread:<id>`; empty for searches and creations.
    resource: String,
    /// `allowed` or `denied`.
    outcome: &'static str,
    /// The address of the client.
    address: Option<String>,
    /// Further facts, such as the types of an approval's decisions, the rights of a new API key, or the `@id` of the policies
    /// that forbid the request.
    detail: Object,
}

impl From<AuditEntry> for AuditEntryView {
    fn from(entry: AuditEntry) -> Self {
        Self {
            id: entry.id,
            created_at: entry.created_at.to_string(),
            tenant: entry.tenant,
            user: entry.user,
            credential: entry.credential,
            action: entry.action,
            resource: entry.resource,
            outcome: entry.outcome.word(),
            address: entry.address.map(|address| address.to_string()),
            detail: entry.detail,
        }
    }
}

/// The output format of `GET /audit`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AuditFormat {
    Json,
    JsonLines,
}

/// Lists who did what in the caller's tenant, newest first. With `format=jsonl` there is one JSON object on each line.
#[utoipa::path(get, path = "/audit", tag = "Access",
    params(("user" = Option<String>, Query, description = "Only entries of this user"),
        ("action" = Option<String>, Query, description = "Only entries with this action, such as `threads:delete`"),
        ("resource" = Option<String>, Query, description = "Only entries about this resource, such as `thread:<id>`"),
        ("outcome" = Option<String>, Query, description = "`allowed` or `denied`"),
        ("since" = Option<String>, Query, description = "Only entries from this time on, in RFC 3339"),
        ("until" = Option<String>, Query, description = "Only entries before this time, in RFC 3339"),
        ("before" = Option<Uuid>, Query, description = "The id of the last entry of the page before"),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 by default"),
        ("format" = Option<String>, Query, description = "`json` (default) or `jsonl`")),
    responses((status = 200, description = "A page of entries", body = Vec<AuditEntryView>),
        (status = 403, description = "The caller is no admin", body = ErrorBody)))]
pub(super) async fn list(api: Api, params: Params) -> Result<Response, ApiError> {
    let formats = [("json", AuditFormat::Json), ("jsonl", AuditFormat::JsonLines)];
    let format = params.word("format", AuditFormat::Json, formats)?;
    let time = |name: &str| {
        let text = params.text(name);
        let expected = "must be a time in ISO 8601, as in `2027-01-31T00:00:00Z`";
        let time = text.map(|text| Timestamp::read(text).ok_or_else(|| ApiError::bad_parameter(name, text, expected)));
        time.transpose()
    };
    let before = params.text("before").map(|id| read_id(id, "audit entry"));
    let wanted = AuditSearch {
        tenant: api.caller.tenant.clone(),
        user: params.text("user").map(str::to_owned),
        resource: params.text("resource").map(str::to_owned),
        action: params.text("action").map(str::to_owned),
        outcome: params.word(
            "outcome",
            None,
            AuditOutcome::ALL.map(|outcome| (outcome.word(), Some(outcome))),
        )?,
        since: time("since")?,
        until: time("until")?,
        before: before.transpose()?,
        limit: i64::from(params.page(100)?.limit).min(MAX_ENTRIES),
    };
    let permit = api.answer_permit().await?;
    let bytes = api.answers.bytes();
    // A filter that matches few of many entries may take long.
    let read = api.search(move |tx| Box::pin(async move { audit::search(tx, &wanted, bytes).await }));
    let entries: Vec<AuditEntryView> = read.await?.into_items().into_iter().map(AuditEntryView::from).collect();
    match format {
        AuditFormat::Json => permit.answer(&entries),
        AuditFormat::JsonLines => {
            let mut text = String::new();
            for entry in &entries {
                text.push_str(&json(entry).to_string());
                text.push('\n');
            }
            Ok(([(header::CONTENT_TYPE, "application/jsonl")], text).into_response())
        }
    }
}
