//! The data of users: its export and its deletion.

use axum::Json;
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::TryStreamExt;

use super::client::ClientId;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiPath, Params, UserPath};
use super::wire::user::ErasedView;
use super::{Api, JsonResult, export};
use crate::db::erasure::{DataSubject, ErasureRequest};
use crate::domain::access::Ownership;
use crate::domain::account::{Account, QuotaLevel};
use crate::domain::idempotency::IdempotencyKey;
use crate::domain::identity::UserId;

/// Exports everything that belongs to a user of the caller's tenant, as JSON lines.
///
/// Each line is an object with a `type` and the `data`: API keys without secrets, assistants with their versions, crons, items
/// of the Store, threads with their state, runs, interrupts and log, webhook deliveries, and entries of the audit.
#[utoipa::path(get, path = "/users/{user_id}/export", tag = "Access", params(UserPath),
    responses((status = 200, description = "The data, one object a line", body = String, content_type = "application/jsonl"),
        (status = 409, description = "The server runs without authentication", body = ErrorBody)))]
pub(super) async fn export(api: Api, ApiPath(path): ApiPath<UserPath>, client: ClientId) -> Result<Response, ApiError> {
    let owner = owner(&api, &path)?;
    let permit = api.open_stream(None, client)?;
    let lines = export::user_lines(api.db.clone(), owner, api.search_turns()).inspect_err(move |error| {
        // The permit is held for as long as the lines are read.
        let _permit = &permit;
        tracing::error!(%error, "the export of a user's data ended early");
    });
    let headers = [
        (header::CONTENT_TYPE, "application/jsonl"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(lines)).into_response())
}

/// Stops the work of a user of the caller's tenant, and deletes everything that belongs to the user.
///
/// The API keys are deleted first. A request that was interrupted is finished by the same request again.
#[utoipa::path(delete, path = "/users/{user_id}", tag = "Access",
    params(UserPath, ("audit" = Option<bool>, Query,
        description = "True to delete the user's entries of the audit, too, except those about deleted users and about API keys")),
    responses((status = 200, description = "The numbers of deleted rows", body = ErasedView),
        (status = 409, description = "The server runs without authentication", body = ErrorBody)))]
pub(super) async fn delete(api: Api, ApiPath(path): ApiPath<UserPath>, params: Params) -> JsonResult<ErasedView> {
    let owner = owner(&api, &path)?;
    let with_audit = params.flag("audit")?;
    let erased = api.threads.erase_user(erasure_of_user(owner, with_audit)).await;
    // Keys may be gone even if the rest failed.
    api.auth.keys()?.forget_all();
    Ok(Json(ErasedView::from(erased?)))
}

/// Returns the user that the path names, in the tenant of the caller.
fn owner(api: &Api, path: &UserPath) -> Result<Ownership, ApiError> {
    // Without authentication there are no users.
    api.auth.keys()?;
    Ok(Ownership {
        tenant: api.caller.tenant.clone(),
        owner: UserId::new("user_id", &path.user_id)?,
    })
}

/// Returns the request to erase everything that belongs to a user.
pub fn erasure_of_user(owner: Ownership, with_audit: bool) -> ErasureRequest {
    let account = Account::of_owner(&owner);
    ErasureRequest {
        clients: vec![idempotency_prefix(&owner)],
        account: account.subject(QuotaLevel::User).unwrap_or_default().to_owned(),
        with_audit,
        subject: DataSubject::user(owner),
    }
}

/// Returns the beginning of the names of the idempotency keys of a user.
pub fn idempotency_prefix(owner: &Ownership) -> String {
    IdempotencyKey::prefix_of(&ClientId::of_owner(owner).key())
}
