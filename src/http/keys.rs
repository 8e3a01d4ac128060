//! Endpoints for the identity of the caller, stream tickets, and API keys.

use std::time::Duration;

use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use secrecy::ExposeSecret;

use super::audit;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, KeyPath, Params};
use super::wire::key::{ApiKeyView, CallerView, IssuedKeyView, KeyCreate, KeyRotate, TicketView};
use super::{Api, JsonResult};
use crate::auth::keys::{DEFAULT_GRACE, MAX_GRACE};
use crate::auth::{IssuedKey, KeyError, KeySearch};
use crate::domain::Invalid;
use crate::domain::api_key::{ApiKeyId, KeyRef, NewApiKey};
use crate::domain::identity::{UserId, UserRole};
use crate::domain::time::Timestamp;

/// Shows the caller: identity, tenant, roles and scopes.
#[utoipa::path(get, path = "/auth/me", tag = "Access",
    responses((status = 200, description = "The caller", body = CallerView)))]
pub(super) async fn me(api: Api) -> Json<CallerView> {
    Json(CallerView::of(&api.caller))
}

/// Creates a ticket with which a browser opens one stream or WebSocket of the caller within a minute.
///
/// `EventSource` and `WebSocket` of browsers send no headers. They send the ticket as the query parameter `ticket`.
#[utoipa::path(post, path = "/auth/tickets", tag = "Access",
    responses((status = 200, description = "The ticket", body = TicketView),
        (status = 409, description = "The server runs without authentication", body = ErrorBody),
        (status = 429, description = "The caller has too many unused tickets", body = ErrorBody)))]
pub(super) async fn ticket(api: Api) -> Result<Response, ApiError> {
    let ticket = api.auth.issue_ticket(&api.caller).await?;
    let view = TicketView {
        ticket: ticket.text.expose_secret().to_owned(),
        expires_at: ticket.expires_at.to_string(),
    };
    Ok(unstored(Json(view)))
}

/// Creates an API key of the caller's tenant. The response contains the key, which is not stored and cannot be shown
/// again. A key cannot have more rights than the caller.
#[utoipa::path(post, path = "/auth/keys", tag = "Access", request_body = KeyCreate,
    responses((status = 200, description = "The key with its secret", body = IssuedKeyView),
        (status = 409, description = "The server runs without authentication, or the tenant has too many keys", body = ErrorBody)))]
pub(super) async fn create(api: Api, ApiJson(body): ApiJson<KeyCreate>) -> Result<Response, ApiError> {
    let keys = api.auth.keys()?;
    let user = match &body.user {
        Some(user) => UserId::new("user", user)?,
        None => api.caller.user.clone(),
    };
    let roles = match &body.roles {
        Some(words) => UserRole::read_all("roles", words)?,
        None => vec![UserRole::User],
    };
    let new = NewApiKey {
        name: body.name,
        tenant: api.caller.tenant.clone(),
        user,
        roles,
        scopes: body.scopes,
        expires_at: body.expires_at.as_deref().map(read_time).transpose()?,
    };
    let new = keys.create(Some(&api.caller), new).await?;
    audit::record_new_key(&api, &new.key);
    Ok(issued(&new))
}

fn read_time(text: &str) -> Result<Timestamp, Invalid> {
    let reason = "must be a time in ISO 8601, as in `2027-01-31T00:00:00Z`";
    Timestamp::read(text).ok_or_else(|| Invalid::new("expires_at", reason))
}

/// Lists the API keys of the caller's tenant, newest first, without their secrets.
#[utoipa::path(get, path = "/auth/keys", tag = "Access",
    params(("limit" = Option<i64>, Query, description = "The maximum number of items, 1 to 1000; 10 by default"),
        ("offset" = Option<i64>, Query, description = "The number of items to skip")),
    responses((status = 200, description = "A page of keys", body = Vec<ApiKeyView>,
            headers(("x-pagination-total" = u64), ("x-pagination-next" = u64))),
        (status = 409, description = "The server runs without authentication", body = ErrorBody)))]
pub(super) async fn list(api: Api, params: Params) -> Result<Response, ApiError> {
    let page = params.page(10)?;
    let search = KeySearch {
        tenant: Some(api.caller.tenant.clone()),
        limit: page.limit.into(),
        offset: page.offset.into(),
    };
    let found = api.auth.keys()?.list(search).await?;
    let views: Vec<ApiKeyView> = found.keys.iter().map(ApiKeyView::of).collect();
    let total = u64::try_from(found.total).unwrap_or(0);
    Ok((page.headers(total), Json(views)).into_response())
}

/// Shows an API key of the caller's tenant, without its secret.
#[utoipa::path(get, path = "/auth/keys/{key_id}", tag = "Access", params(KeyPath),
    responses((status = 200, description = "The key", body = ApiKeyView),
        (status = 404, description = "Key not found", body = ErrorBody),
        (status = 409, description = "The server runs without authentication", body = ErrorBody)))]
pub(super) async fn get(api: Api, ApiPath(path): ApiPath<KeyPath>) -> JsonResult<ApiKeyView> {
    let found = api.auth.keys()?.get(&reference(&api, &path)?).await?;
    Ok(Json(ApiKeyView::of(&found)))
}

/// Gives an API key a new secret. The old secret is accepted for a while, so that clients can change to the new one.
#[utoipa::path(post, path = "/auth/keys/{key_id}/rotate", tag = "Access", params(KeyPath), request_body = KeyRotate,
    responses((status = 200, description = "The key with its new secret", body = IssuedKeyView),
        (status = 404, description = "Key not found", body = ErrorBody),
        (status = 409, description = "The key was revoked, or the server runs without authentication", body = ErrorBody)))]
pub(super) async fn rotate(
    api: Api,
    ApiPath(path): ApiPath<KeyPath>,
    ApiJson(body): ApiJson<KeyRotate>,
) -> Result<Response, ApiError> {
    let keys = api.auth.keys()?;
    let grace = body.grace_s.map_or(Ok(DEFAULT_GRACE), read_grace)?;
    let rotated = keys.rotate(Some(&api.caller), reference(&api, &path)?, grace).await?;
    Ok(issued(&rotated))
}

fn read_grace(seconds: f64) -> Result<Duration, Invalid> {
    let grace = Duration::try_from_secs_f64(seconds).ok();
    let grace = grace.filter(|grace| *grace <= MAX_GRACE);
    grace.ok_or_else(|| Invalid::new("grace_s", format!("must be from 0 to {} seconds", MAX_GRACE.as_secs())))
}

/// Revokes an API key: it is refused from now on, with all its secrets. The key stays in the list for 90 days.
#[utoipa::path(delete, path = "/auth/keys/{key_id}", tag = "Access", params(KeyPath),
    responses((status = 200, description = "The revoked key", body = ApiKeyView),
        (status = 404, description = "Key not found", body = ErrorBody),
        (status = 409, description = "The server runs without authentication", body = ErrorBody)))]
pub(super) async fn revoke(api: Api, ApiPath(path): ApiPath<KeyPath>) -> JsonResult<ApiKeyView> {
    let revoked = api.auth.keys()?.revoke(reference(&api, &path)?).await?;
    Ok(Json(ApiKeyView::of(&revoked)))
}

/// Returns the key that a path names, among those of the caller's tenant.
fn reference(api: &Api, path: &KeyPath) -> Result<KeyRef, ApiError> {
    let id = ApiKeyId::read(&path.key_id).ok_or(KeyError::NoKey)?;
    let tenant = Some(api.caller.tenant.clone());
    Ok(KeyRef { id, tenant })
}

/// The response with a new secret.
fn issued(issued: &IssuedKey) -> Response {
    let view = IssuedKeyView {
        api_key: issued.text.expose_secret().to_owned(),
        key: ApiKeyView::of(&issued.key),
    };
    unstored(Json(view))
}

/// Forbids caches to store a response with a secret.
fn unstored(response: impl IntoResponse) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], response).into_response()
}
