//! Threads: conversations.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, Page, Params, Select, ThreadPath, no_content};
use super::idempotency::{self, Idempotent, KeyHeader, Raw};
use super::wire::interrupt::brief;
use super::wire::retention::{ThreadPrune, ThreadStorage, ThreadsPruned, TtlRequest, TtlView};
use super::wire::thread::{
    CheckedThreadSearch, IfExists, ThreadCreate, ThreadPatch, ThreadSearch, ThreadView, look_up,
};
use super::wire::{self, Object};
use super::{Api, JsonResult};
use crate::db::interrupts::{self, InterruptRecord, InterruptState};
use crate::db::{self, DbResult, Tx, background, checkpoints, retention, threads};
use crate::domain;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::idempotency::StoredResponse;
use crate::domain::state::State as Fields;
use crate::domain::thread::Thread;
use crate::domain::visibility::Visibility;
use crate::runtime::{CreateThreadError, CreatedThread};

pub(super) mod stream;

/// Makes a thread.
#[utoipa::path(post, path = "/threads", tag = "Threads", request_body = ThreadCreate, params(KeyHeader),
    responses((status = 200, description = "The thread", body = ThreadView),
        (status = 400, description = "A superstep names a node that the agent does not have", body = ErrorBody),
        (status = 409, description = "This id is taken by another thread", body = ErrorBody)))]
pub(super) async fn create(
    State(api): State<Api>,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<ThreadCreate>>,
) -> Result<Response, ApiError> {
    let if_exists = body.if_exists.unwrap_or_default();
    let wish = body.into_wish()?;
    match (api.threads.create_thread(wish, key, made).await, if_exists) {
        (Ok(once), _) => idempotency::answer(once, |new| idempotency::shown(made(&new))),
        (Err(CreateThreadError::Exists(id)), IfExists::DoNothing) => Ok(Json(show(&api, id).await?).into_response()),
        (Err(CreateThreadError::Exists(id)), IfExists::Raise) => Err(ApiError::thread_exists(id)),
        (Err(CreateThreadError::Write(error)), _) => Err(error.into()),
    }
}

/// The answer to who makes a thread.
fn made(new: &CreatedThread) -> StoredResponse {
    let values = new.state.as_ref().map(Fields::values);
    idempotency::kept(&ThreadView::new(new.thread.clone(), values, Object::new()))
}

/// Shows a thread.
#[utoipa::path(get, path = "/threads/{thread_id}", tag = "Threads",
    params(ThreadPath, ("include" = Option<String>, Query, description = "`ttl` shows how long the thread is kept")),
    responses((status = 200, description = "The thread", body = ThreadView),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn get(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    params: Params,
) -> JsonResult<ThreadView> {
    let mut shows_ttl = false;
    for name in params
        .texts("include")
        .iter()
        .flat_map(|names| names.split(','))
        .map(str::trim)
    {
        match name {
            "ttl" => shows_ttl = true,
            "" => {}
            other => return Err(ApiError::bad_parameter("include", other)),
        }
    }
    let id = path.thread_id;
    let summary = api.db.read(move |tx| Box::pin(ThreadSummary::find(tx, id))).await?;
    let summary = summary.ok_or_else(|| ApiError::no_thread(id))?;
    let ttl = TtlView::of(&summary.thread).filter(|_| shows_ttl);
    Ok(Json(ThreadView {
        ttl,
        ..summary.view(&api, true).await?
    }))
}

/// Changes the metadata of a thread, and how long it is kept. With the header `Prefer: return=minimal` the answer is empty.
#[utoipa::path(patch, path = "/threads/{thread_id}", tag = "Threads", params(ThreadPath),
    request_body = ThreadPatch,
    responses((status = 200, description = "The thread", body = ThreadView),
        (status = 204, description = "Done, and nothing is shown"),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn patch(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    headers: HeaderMap,
    ApiJson(body): ApiJson<ThreadPatch>,
) -> Result<Response, ApiError> {
    let id = path.thread_id;
    let now = api.clock.now();
    let metadata = body.metadata.unwrap_or_default();
    let ttl = body.ttl.map(TtlRequest::check).transpose()?;
    let patch = api.db.write(move |tx| {
        Box::pin(async move {
            if !metadata.is_empty()
                && let Some(found) = threads::find(tx, id).await?
            {
                let mut all = found.metadata;
                all.extend(metadata.clone());
                domain::metadata::check(&all)?;
            }
            Ok::<_, ApiError>(threads::patch(tx, id, &metadata, ttl, now).await?)
        })
    });
    patch.await?.ok_or_else(|| ApiError::not_found("thread_not_found"))?;
    let wants_little = headers.get_all("prefer").iter().any(|value| value == "return=minimal");
    if wants_little {
        Ok(no_content())
    } else {
        Ok(Json(show(&api, id).await?).into_response())
    }
}

/// Deletes a thread with all its runs; those at work are stopped.
#[utoipa::path(delete, path = "/threads/{thread_id}", tag = "Threads", params(ThreadPath),
    responses((status = 204, description = "The thread is deleted"),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn delete(State(api): State<Api>, ApiPath(path): ApiPath<ThreadPath>) -> Result<Response, ApiError> {
    let was_there = api.threads.delete_thread(path.thread_id).await?;
    if was_there {
        Ok(no_content())
    } else {
        Err(ApiError::no_thread(path.thread_id))
    }
}

/// Copies a thread with the history of its main agent. Open questions are not copied: a run without input on the copy asks
/// them again.
#[utoipa::path(post, path = "/threads/{thread_id}/copy", tag = "Threads", params(ThreadPath, KeyHeader),
    responses((status = 200, description = "The copy", body = ThreadView),
        (status = 404, description = "There is nothing to copy", body = ErrorBody)))]
pub(super) async fn copy(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    Idempotent(key, _): Idempotent<Raw>,
) -> Result<Response, ApiError> {
    let from = path.thread_id;
    let seen = api.db.read(move |tx| Box::pin(background::visibility(tx, from)));
    if seen.await? != Visibility::Full {
        return Err(ApiError::no_thread(from));
    }
    let once = api
        .threads
        .copy_thread(from, key, made)
        .await?
        .ok_or_else(|| ApiError::no_thread(from))?;
    idempotency::answer(once, |copy| idempotency::shown(made(&copy)))
}

/// Thins threads out: deletes them (`delete`; runs at work on them are stopped), or takes all but their newest state away
/// (`keep_latest`; threads at work are left alone). Threads that are not there do not count.
#[utoipa::path(post, path = "/threads/prune", tag = "Threads", request_body = ThreadPrune,
    responses((status = 200, description = "How many it was done to", body = ThreadsPruned)))]
pub(super) async fn prune(State(api): State<Api>, ApiJson(body): ApiJson<ThreadPrune>) -> JsonResult<ThreadsPruned> {
    let (threads, strategy) = body.check()?;
    Ok(Json(ThreadsPruned {
        pruned_count: api.threads.prune(threads, strategy).await?,
    }))
}

/// Tells how much the server stores for a thread.
#[utoipa::path(get, path = "/threads/{thread_id}/storage", tag = "Threads", params(ThreadPath),
    responses((status = 200, description = "Rows and bytes, by table", body = ThreadStorage),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn storage(State(api): State<Api>, ApiPath(path): ApiPath<ThreadPath>) -> JsonResult<ThreadStorage> {
    let id = path.thread_id;
    let shares = api
        .db
        .read(move |tx| Box::pin(async move { retention::storage(tx, id).await }))
        .await?;
    Ok(Json(ThreadStorage::new(
        id,
        &shares.ok_or_else(|| ApiError::no_thread(id))?,
    )))
}

/// Finds threads. The total tells how many match on all pages; above 100,000 it may be less.
///
/// An answer has a bound in bytes, beyond which it has fewer threads than `limit`; then `x-pagination-next` is the `offset` of
/// the first that was left out.
#[utoipa::path(post, path = "/threads/search", tag = "Threads", request_body = ThreadSearch,
    responses((status = 200, description = "A page of threads", body = Vec<ThreadView>,
        headers(("x-pagination-total" = u64), ("x-pagination-next" = u64))),
        (status = 422, description = "The search makes no sense, or looks into too much", body = ErrorBody)))]
pub(super) async fn search(State(api): State<Api>, ApiJson(body): ApiJson<ThreadSearch>) -> Result<Response, ApiError> {
    let CheckedThreadSearch {
        wanted,
        page,
        select,
        extract,
    } = body.check()?;
    let permit = api.answers.permit().await?;
    let most_bytes = api.answers.bytes();
    let wanted = threads::ThreadQuery {
        bytes: most_bytes,
        ..wanted
    };
    let read = api.db.search(move |tx| {
        Box::pin(async move {
            let threads::ThreadPage { threads, total } = threads::search(tx, &wanted).await?;
            let mut found = vec![];
            for thread in threads {
                found.push(ThreadSummary::of(tx, thread).await?);
            }
            Ok((found, total))
        })
    });
    let (found, total) = read.await?;
    let mut shown = vec![];
    let mut bytes = 0;
    let is_short = found.len() < usize::try_from(page.limit).unwrap_or(usize::MAX);
    let mut is_cut = is_short && u64::from(page.offset) + (found.len() as u64) < u64::try_from(total).unwrap_or(0);
    for summary in found {
        let item = show_item(&api, summary, &select, &extract).await?;
        bytes += item.len() + 1;
        if bytes > most_bytes && !shown.is_empty() {
            is_cut = true;
            break;
        }
        shown.push(item);
    }
    let total = u64::try_from(total).unwrap_or(0);
    let headers = match (is_cut, u32::try_from(shown.len())) {
        (true, Ok(limit)) => Page { limit, ..page }.headers(total),
        (_, _) => page.headers(total),
    };
    Ok((headers, permit.list(bytes, shown.into_iter().map(Ok))).into_response())
}

/// Counts threads.
#[utoipa::path(post, path = "/threads/count", tag = "Threads", request_body = ThreadSearch,
    responses((status = 200, description = "How many there are", body = u64)))]
pub(super) async fn count(State(api): State<Api>, ApiJson(body): ApiJson<ThreadSearch>) -> JsonResult<i64> {
    let wanted = body.check()?.wanted;
    Ok(Json(
        api.db
            .search(move |tx| Box::pin(async move { threads::count(tx, &wanted).await }))
            .await?,
    ))
}

/// The JSON of one line of a search: the wanted columns, and what was to be extracted.
async fn show_item(
    api: &Api,
    summary: ThreadSummary,
    select: &Select,
    extract: &BTreeMap<String, String>,
) -> Result<Vec<u8>, ApiError> {
    let needs_values = select.has("values") || !extract.is_empty();
    let whole = wire::json(&summary.view(api, needs_values).await?);
    let extracted: Object = extract
        .iter()
        .map(|(name, path)| (name.clone(), look_up(&whole, path)))
        .collect();
    let mut item = select.pick(whole);
    if let (Value::Object(item), false) = (&mut item, extract.is_empty()) {
        item.insert("extracted".to_owned(), extracted.into());
    }
    serde_json::to_vec(&item).map_err(|error| ApiError::fault(&error))
}

async fn show(api: &Api, id: ThreadId) -> Result<ThreadView, ApiError> {
    let summary = api.db.read(move |tx| Box::pin(ThreadSummary::find(tx, id))).await?;
    summary.ok_or_else(|| ApiError::no_thread(id))?.view(api, true).await
}

/// A thread, its newest checkpoint, and its open questions.
pub(super) struct ThreadSummary {
    thread: Thread,
    /// None also when clients do not see what is in it.
    head: Option<CheckpointId>,
    pub(super) asked: Vec<InterruptRecord>,
}

impl ThreadSummary {
    /// Looks at the thread of this id.
    pub(super) async fn find(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<Option<Self>> {
        match threads::find(tx, id).await? {
            Some(thread) => Self::of(tx, thread).await.map(Some),
            None => Ok(None),
        }
    }

    async fn of(tx: &mut Tx<'_>, thread: Thread) -> DbResult<Self> {
        let is_seen = background::visibility(tx, thread.id).await? == Visibility::Full;
        let head = checkpoints::newest_id(tx, thread.id, Lane::Main)
            .await?
            .filter(|_| is_seen);
        let asked = interrupts::of_thread(tx, thread.id, Some(InterruptState::Pending)).await?;
        Ok(Self { thread, head, asked })
    }

    /// The main agent's state; none before the first step.
    pub(super) async fn state(&self, api: &Api) -> Result<Option<Arc<Fields>>, ApiError> {
        let Some(head) = self.head else { return Ok(None) };
        Ok(Some(api.events.state_at(self.thread.id, head).await?))
    }

    async fn view(self, api: &Api, with_values: bool) -> Result<ThreadView, ApiError> {
        // The thread is shown also when its state cannot be read: it is one of many, or somebody looks what it is.
        let head = self.head.filter(|_| with_values);
        let state = match head {
            Some(head) => db::unless_corrupt(api.events.state_at(self.thread.id, head).await)?,
            None => None,
        };
        let values = state.map(|state| state.values());
        let mut interrupts = Object::new();
        for asked in &self.asked {
            let of_task = interrupts
                .entry(asked.interrupt.task.to_string())
                .or_insert_with(|| json!([]));
            if let Value::Array(list) = of_task {
                list.push(brief(&asked.interrupt));
            }
        }
        Ok(ThreadView::new(self.thread, values, interrupts))
    }
}
