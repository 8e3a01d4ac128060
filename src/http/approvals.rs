//! Questions to a human as resources of their own: what waits for an answer, and giving it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, InterruptPath, Params, ThreadPath};
use super::wire::interrupt::{InterruptList, InterruptResolve, InterruptResolved, InterruptView};
use super::{Api, JsonResult};
use crate::db::interrupts::{self, InterruptRecord, InterruptState};
use crate::db::threads;

/// Lists the open questions of all threads, the oldest first.
#[utoipa::path(get, path = "/interrupts", tag = "Approvals",
    params(("status" = Option<String>, Query, description = "Always `pending`"),
        ("limit" = Option<u32>, Query, description = "How many at most, 10 unless told otherwise"),
        ("offset" = Option<u32>, Query, description = "How many to pass over")),
    responses((status = 200, description = "The questions", body = InterruptList)))]
pub(super) async fn pending(State(api): State<Api>, params: Params) -> JsonResult<InterruptList> {
    params.word("status", (), |word| (word == "pending").then_some(()))?;
    let page = params.page(10)?;
    let limit = i64::from(page.limit);
    let offset = i64::from(page.offset);
    let elsewhere = api.interrupts.pending_of_remote_tasks(limit + offset).await?;
    // Both lists are laid together before a page is cut.
    let (most, skipped) = if elsewhere.is_empty() {
        (limit, offset)
    } else {
        (limit + offset, 0)
    };
    let mut all = api
        .db
        .read(move |tx| Box::pin(interrupts::pending(tx, most, skipped)))
        .await?;
    if !elsewhere.is_empty() {
        all.extend(elsewhere);
        all.sort_by_key(|asked| asked.created_at);
        let skipped = page.offset as usize;
        let most = page.limit as usize;
        all = all.into_iter().skip(skipped).take(most).collect();
    }
    Ok(Json(all.into()))
}

/// Lists the questions of a thread in the order in which they were asked.
#[utoipa::path(get, path = "/threads/{thread_id}/interrupts", tag = "Approvals",
    params(ThreadPath,
        ("status" = Option<String>, Query, description = "Only these: pending, resolved, expired or dropped")),
    responses((status = 200, description = "The questions", body = InterruptList),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn list(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    params: Params,
) -> JsonResult<InterruptList> {
    let thread = path.thread_id;
    let status = params.word("status", None, |word| InterruptState::from_word(word).map(Some))?;
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            if threads::find(tx, thread).await?.is_none() {
                return Ok(None);
            }
            interrupts::of_thread(tx, thread, status).await.map(Some)
        })
    });
    let found = match read.await? {
        Some(found) => found,
        None => {
            let asked = api
                .interrupts
                .of_remote_task(thread)
                .await?
                .ok_or_else(|| ApiError::no_thread(thread))?;
            asked
                .into_iter()
                .filter(|asked| status.is_none_or(|status| asked.status == status))
                .collect()
        }
    };
    Ok(Json(found.into()))
}

/// Shows a question: who asks, what, and the JSON Schema of a valid answer.
#[utoipa::path(get, path = "/threads/{thread_id}/interrupts/{interrupt_id}", tag = "Approvals", params(InterruptPath),
    responses((status = 200, description = "The question", body = InterruptView),
        (status = 404, description = "There is no such interrupt", body = ErrorBody)))]
pub(super) async fn get(State(api): State<Api>, ApiPath(path): ApiPath<InterruptPath>) -> JsonResult<InterruptView> {
    Ok(Json(find(&api, path).await?.into()))
}

async fn find(api: &Api, path: InterruptPath) -> Result<InterruptRecord, ApiError> {
    let InterruptPath {
        thread_id,
        interrupt_id,
    } = path;
    let id = interrupt_id.clone();
    let read = api
        .db
        .read(move |tx| Box::pin(async move { interrupts::find(tx, thread_id, &id).await }));
    if let Some(found) = read.await? {
        return Ok(found);
    }
    let elsewhere = api.interrupts.of_remote_task(thread_id).await?.unwrap_or_default();
    elsewhere
        .into_iter()
        .rfind(|asked| asked.interrupt.id == interrupt_id)
        .ok_or_else(ApiError::no_interrupt)
}

/// Answers a question; the run goes on with the answer. The same answer once more gives the same run.
#[utoipa::path(post, path = "/threads/{thread_id}/interrupts/{interrupt_id}/resolve", tag = "Approvals",
    params(InterruptPath), request_body = InterruptResolve,
    responses((status = 202, description = "The question and the run that goes on", body = InterruptResolved),
        (status = 404, description = "There is no such question", body = ErrorBody),
        (status = 409, description = "The interrupt was answered differently, or is not open any more", body = ErrorBody),
        (status = 422, description = "The answer is not one of those that were asked for", body = ErrorBody),
        (status = 502, description = "Another server asks, and is out of reach", body = ErrorBody)))]
pub(super) async fn resolve(
    State(api): State<Api>,
    ApiPath(path): ApiPath<InterruptPath>,
    ApiJson(body): ApiJson<InterruptResolve>,
) -> Result<Response, ApiError> {
    let answer = body.answer()?;
    let run = api
        .interrupts
        .resolve(path.thread_id, path.interrupt_id.clone(), answer)
        .await?;
    let interrupt = find(&api, path).await?.into();
    Ok((
        StatusCode::ACCEPTED,
        Json(InterruptResolved {
            interrupt,
            run_id: run.0,
        }),
    )
        .into_response())
}
