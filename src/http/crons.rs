//! Crons: schedules that start runs.

use axum::Json;
use axum::response::Response;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, CronPath, ThreadPath, no_content};
use super::idempotency::{self, Idempotent, KeyHeader};
use super::wire::Object;
use super::wire::cron::{CheckedCronSearch, CronCreate, CronSearch, CronView, check_keys, read_new_cron, read_patch};
use super::{Api, JsonResult};
use crate::db::crons;
use crate::domain::access::Action;
use crate::domain::cron::Cron;
use crate::domain::id::CronId;
use crate::domain::idempotency::StoredResponse;
use crate::runtime::CronError;

/// The number of attempts to apply a patch when other clients change the same cron.
const ATTEMPTS: usize = 5;

/// Creates a cron. Each of its runs gets a thread of its own.
#[utoipa::path(post, path = "/runs/crons", tag = "Crons", request_body = CronCreate,
    params(KeyHeader),
    responses((status = 200, description = "The cron", body = CronView),
        (status = 400, description = "Two fields cannot be combined", body = ErrorBody),
        (status = 404, description = "Assistant not found", body = ErrorBody)))]
pub(super) async fn create(
    api: Api,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<Object>>,
) -> Result<Response, ApiError> {
    check_keys(&body)?;
    let once = api
        .crons
        .create(read_new_cron(body, None, &api.caller)?, key, created_response)
        .await?;
    idempotency::respond(once, |cron| idempotency::response(created_response(&cron)))
}

/// The response to a request that creates a cron.
fn created_response(cron: &Cron) -> StoredResponse {
    idempotency::stored_response(&CronView::from(cron.clone()), cron.thread)
}

/// Creates a cron whose runs use one thread. The cron is deleted with the thread.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/crons", tag = "Crons", params(ThreadPath, KeyHeader),
    request_body = CronCreate,
    responses((status = 200, description = "The cron", body = CronView),
        (status = 400, description = "Two fields cannot be combined", body = ErrorBody),
        (status = 404, description = "Thread, assistant or checkpoint not found", body = ErrorBody)))]
pub(super) async fn create_for_thread(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<Object>>,
) -> Result<Response, ApiError> {
    check_keys(&body)?;
    let once = api
        .crons
        .create(
            read_new_cron(body, Some(path.thread_id), &api.caller)?,
            key,
            created_response,
        )
        .await?;
    idempotency::respond(once, |cron| idempotency::response(created_response(&cron)))
}

/// Shows a cron.
#[utoipa::path(get, path = "/runs/crons/{cron_id}", tag = "Crons", params(CronPath),
    responses((status = 200, description = "The cron", body = CronView),
        (status = 404, description = "Cron not found", body = ErrorBody)))]
pub(super) async fn get(api: Api, ApiPath(path): ApiPath<CronPath>) -> JsonResult<CronView> {
    Ok(Json(find(&api, path.cron_id).await?.into()))
}

async fn find(api: &Api, id: CronId) -> Result<Cron, ApiError> {
    let found = api
        .db
        .read(move |tx| Box::pin(async move { crons::find(tx, id).await }))
        .await?;
    found.ok_or_else(|| ApiError::not_found("cron_not_found"))
}

/// Updates a cron. Given fields replace the old ones, and metadata is merged; null clears a field.
///
/// A cron that is enabled again does not make up for missed runs.
#[utoipa::path(patch, path = "/runs/crons/{cron_id}", tag = "Crons", params(CronPath), request_body = CronCreate,
    responses((status = 200, description = "The cron", body = CronView),
        (status = 400, description = "No field is given, or two fields cannot be combined", body = ErrorBody),
        (status = 404, description = "Cron or its assistant not found", body = ErrorBody),
        (status = 409, description = "Other clients keep changing the cron", body = ErrorBody)))]
pub(super) async fn patch(
    api: Api,
    ApiPath(path): ApiPath<CronPath>,
    ApiJson(body): ApiJson<Object>,
) -> JsonResult<CronView> {
    if body.is_empty() {
        return Err(ApiError::empty_patch());
    }
    check_keys(&body)?;
    let mut outcome = Err(CronError::Stale);
    for _ in 0..ATTEMPTS {
        let old = find(&api, path.cron_id).await?;
        let change = read_patch(&old, &body, &api.caller)?;
        outcome = api.crons.update(old, change).await;
        if !matches!(outcome, Err(CronError::Stale)) {
            break;
        }
    }
    Ok(Json(outcome?.into()))
}

/// Deletes a cron. Its runs are kept.
#[utoipa::path(delete, path = "/runs/crons/{cron_id}", tag = "Crons", params(CronPath),
    responses((status = 204, description = "The cron is deleted"),
        (status = 404, description = "Cron not found", body = ErrorBody)))]
pub(super) async fn delete(api: Api, ApiPath(path): ApiPath<CronPath>) -> Result<Response, ApiError> {
    let was_there = api.crons.delete(path.cron_id).await?;
    if was_there {
        Ok(no_content())
    } else {
        Err(ApiError::not_found("cron_not_found"))
    }
}

/// Searches crons.
///
/// If a page would exceed the maximum response size, it has fewer items than `limit`, and `x-pagination-next` holds the
/// `offset` of the first item that was left out.
#[utoipa::path(post, path = "/runs/crons/search", tag = "Crons", request_body = CronSearch,
    responses((status = 200, description = "A page of crons", body = Vec<CronView>,
        headers(("x-pagination-total" = u64), ("x-pagination-next" = u64)))))]
pub(super) async fn search(api: Api, ApiJson(body): ApiJson<CronSearch>) -> Result<Response, ApiError> {
    let CheckedCronSearch { query, page, select } = body.check(api.scope(Action::CronsSearch))?;
    let permit = api.answer_permit().await?;
    let bytes = api.answers.bytes();
    let read = api.search(move |tx| {
        Box::pin(async move { Ok((crons::count(tx, &query).await?, crons::search(tx, &query, bytes).await?)) })
    });
    let (total, found) = read.await?;
    let now = api.clock.now();
    permit.page(page, Some(total), found, |cron| {
        Some(CronView::from(cron).pick(&select, now))
    })
}

/// Counts the crons that match a search.
#[utoipa::path(post, path = "/runs/crons/count", tag = "Crons", request_body = CronSearch,
    responses((status = 200, description = "The number of matches", body = u64)))]
pub(super) async fn count(api: Api, ApiJson(body): ApiJson<CronSearch>) -> JsonResult<i64> {
    let query = body.check(api.scope(Action::CronsSearch))?.query;
    Ok(Json(
        api.search(move |tx| Box::pin(async move { crons::count(tx, &query).await }))
            .await?,
    ))
}
