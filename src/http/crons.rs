//! Crons: runs that are started by the clock.

use axum::Json;
use axum::extract::State;
use axum::response::Response;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, CronPath, ThreadPath, no_content};
use super::idempotency::{self, Idempotent, KeyHeader};
use super::wire::Object;
use super::wire::cron::{CronCreate, CronSearch, CronView, check_keys, read_patch, read_wish};
use super::{Api, JsonResult};
use crate::db::crons;
use crate::domain::cron::Cron;
use crate::domain::id::CronId;
use crate::domain::idempotency::StoredResponse;
use crate::runtime::CronError;

/// How often a change is tried again when others change the same cron at the same time.
const ATTEMPTS: usize = 5;

/// Makes a cron whose runs bring their own threads.
#[utoipa::path(post, path = "/runs/crons", tag = "Crons", request_body = CronCreate,
    params(KeyHeader),
    responses((status = 200, description = "The cron", body = CronView),
        (status = 400, description = "Two fields exclude each other", body = ErrorBody),
        (status = 404, description = "There is no such assistant", body = ErrorBody)))]
pub(super) async fn create(
    State(api): State<Api>,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<Object>>,
) -> Result<Response, ApiError> {
    check_keys(&body)?;
    let once = api.crons.create(read_wish(body, None)?, key, made).await?;
    idempotency::answer(once, |cron| idempotency::shown(made(&cron)))
}

/// The answer to who makes a cron.
fn made(cron: &Cron) -> StoredResponse {
    idempotency::kept(&CronView::from(cron.clone()))
}

/// Makes a cron whose runs all work on one thread. It goes away with the thread.
#[utoipa::path(post, path = "/threads/{thread_id}/runs/crons", tag = "Crons", params(ThreadPath, KeyHeader),
    request_body = CronCreate,
    responses((status = 200, description = "The cron", body = CronView),
        (status = 400, description = "Two fields exclude each other", body = ErrorBody),
        (status = 404, description = "There is no such thread or assistant", body = ErrorBody)))]
pub(super) async fn create_for_thread(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<Object>>,
) -> Result<Response, ApiError> {
    check_keys(&body)?;
    let once = api
        .crons
        .create(read_wish(body, Some(path.thread_id))?, key, made)
        .await?;
    idempotency::answer(once, |cron| idempotency::shown(made(&cron)))
}

/// Shows a cron.
#[utoipa::path(get, path = "/runs/crons/{cron_id}", tag = "Crons", params(CronPath),
    responses((status = 200, description = "The cron", body = CronView),
        (status = 404, description = "There is no such cron", body = ErrorBody)))]
pub(super) async fn get(State(api): State<Api>, ApiPath(path): ApiPath<CronPath>) -> JsonResult<CronView> {
    Ok(Json(find(&api, path.cron_id).await?.into()))
}

async fn find(api: &Api, id: CronId) -> Result<Cron, ApiError> {
    let found = api
        .db
        .read(move |tx| Box::pin(async move { crons::find(tx, id).await }))
        .await?;
    found.ok_or_else(|| ApiError::not_found("cron_not_found"))
}

/// Changes a cron. Fields that are given take the place of the old ones, metadata is added to the old; null forgets a
/// field. Whoever enables a cron does not make up for what was due before.
#[utoipa::path(patch, path = "/runs/crons/{cron_id}", tag = "Crons", params(CronPath), request_body = CronCreate,
    responses((status = 200, description = "The cron", body = CronView),
        (status = 400, description = "No field is given, or two fields exclude each other", body = ErrorBody),
        (status = 404, description = "There is no such cron, or its assistant is gone", body = ErrorBody),
        (status = 409, description = "Others change it all the time", body = ErrorBody)))]
pub(super) async fn patch(
    State(api): State<Api>,
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
        let wish = read_patch(&old, &body)?;
        outcome = api.crons.update(old, wish).await;
        if !matches!(outcome, Err(CronError::Stale)) {
            break;
        }
    }
    Ok(Json(outcome?.into()))
}

/// Deletes a cron. The runs that it started stay.
#[utoipa::path(delete, path = "/runs/crons/{cron_id}", tag = "Crons", params(CronPath),
    responses((status = 204, description = "The cron is deleted"),
        (status = 404, description = "There is no such cron", body = ErrorBody)))]
pub(super) async fn delete(State(api): State<Api>, ApiPath(path): ApiPath<CronPath>) -> Result<Response, ApiError> {
    let was_there = api.crons.delete(path.cron_id).await?;
    if was_there {
        Ok(no_content())
    } else {
        Err(ApiError::not_found("cron_not_found"))
    }
}

/// Finds crons. An answer has a bound in bytes, beyond which it has fewer of them than `limit`; then `x-pagination-next` is the
/// `offset` of the first that was left out.
#[utoipa::path(post, path = "/runs/crons/search", tag = "Crons", request_body = CronSearch,
    responses((status = 200, description = "A page of crons", body = Vec<CronView>,
        headers(("x-pagination-total" = u64), ("x-pagination-next" = u64)))))]
pub(super) async fn search(State(api): State<Api>, ApiJson(body): ApiJson<CronSearch>) -> Result<Response, ApiError> {
    let (wanted, page, select) = body.check()?;
    let permit = api.answers.permit().await?;
    let bytes = api.answers.bytes();
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            Ok((
                crons::count(tx, &wanted).await?,
                crons::search(tx, &wanted, bytes).await?,
            ))
        })
    });
    let (total, found) = read.await?;
    let now = api.clock.now();
    permit.page(page, Some(total), found, |cron| {
        Some(CronView::from(cron).pick(&select, now))
    })
}

/// Counts crons.
#[utoipa::path(post, path = "/runs/crons/count", tag = "Crons", request_body = CronSearch,
    responses((status = 200, description = "How many there are", body = u64)))]
pub(super) async fn count(State(api): State<Api>, ApiJson(body): ApiJson<CronSearch>) -> JsonResult<i64> {
    let wanted = body.check()?.0;
    Ok(Json(
        api.db
            .read(move |tx| Box::pin(async move { crons::count(tx, &wanted).await }))
            .await?,
    ))
}
