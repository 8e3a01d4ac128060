//! Threads: create, read, update, search, copy, prune and delete.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, Page, Params, Select, ThreadPath, no_content};
use super::idempotency::{self, Idempotent, KeyHeader, Raw};
use super::response_budget::append_encoded;
use super::wire::interrupt::brief;
use super::wire::retention::{ThreadPrune, ThreadStorage, ThreadsPruned, TtlRequest, TtlView};
use super::wire::thread::{
    CheckedThreadSearch, IfExists, ThreadCreate, ThreadPatch, ThreadSearch, ThreadView, extract_path,
};
use super::wire::{self, Object};
use super::{Api, JsonResult};
use crate::db::background::LaterVisibility;
use crate::db::checkpoints::LaterSummary;
use crate::db::interrupts::{InterruptRecord, InterruptState, LaterInterrupts};
use crate::db::{self, DbResult, Tx, background, checkpoints, retention, thread_search, threads};
use crate::domain;
use crate::domain::access::Action;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::idempotency::StoredResponse;
use crate::domain::state::State as Fields;
use crate::domain::thread::Thread;
use crate::domain::visibility::Visibility;
use crate::runtime::{AccessError, CreateThreadError, CreatedThread, ResourceRef, open_among};

pub(super) mod stream;

/// Creates a thread.
#[utoipa::path(post, path = "/threads", tag = "Threads", request_body = ThreadCreate, params(KeyHeader),
    responses((status = 200, description = "The thread", body = ThreadView),
        (status = 400, description = "A superstep names an unknown node", body = ErrorBody),
        (status = 409, description = "Another thread has this id", body = ErrorBody)))]
pub(super) async fn create(
    api: Api,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<ThreadCreate>>,
) -> Result<Response, ApiError> {
    let if_exists = body.if_exists.unwrap_or_default();
    let new_thread = body.into_new_thread(api.ownership())?;
    api.check_new(Action::ThreadsCreate, &new_thread.metadata)?;
    api.check_room()?;
    // Boxed, since the layers around a handler copy its future.
    let created = Box::pin(api.threads.create_thread(new_thread, key, created_response)).await;
    match (created, if_exists) {
        (Ok(once), _) => idempotency::respond(once, |new| idempotency::response(created_response(&new))),
        (Err(CreateThreadError::Exists(id)), IfExists::DoNothing)
            if api.may(Action::ThreadsRead, ResourceRef::Thread(id)).await? =>
        {
            Ok(Json(load_view(&api, id).await?).into_response())
        }
        (Err(CreateThreadError::Exists(id)), IfExists::Raise | IfExists::DoNothing) => Err(ApiError::thread_exists(id)),
        (Err(CreateThreadError::Write(error)), _) => Err(error.into()),
    }
}

/// The response to a request that creates a thread.
fn created_response(new: &CreatedThread) -> StoredResponse {
    let values = new.state.clone().map(Arc::new);
    let view = ThreadView::new(new.thread.clone(), values, by_task(&new.interrupts));
    idempotency::stored_response(&view, Some(new.thread.id))
}

/// Shows a thread.
#[utoipa::path(get, path = "/threads/{thread_id}", tag = "Threads",
    params(ThreadPath, ("include" = Option<String>, Query, description = "`ttl` includes the time to live")),
    responses((status = 200, description = "The thread", body = ThreadView),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn get(api: Api, ApiPath(path): ApiPath<ThreadPath>, params: Params) -> JsonResult<ThreadView> {
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
            other => return Err(ApiError::bad_parameter("include", other, "allowed is ttl")),
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

/// Updates the metadata of a thread and its time to live. With the header `Prefer: return=minimal` the response is
/// empty.
#[utoipa::path(patch, path = "/threads/{thread_id}", tag = "Threads", params(ThreadPath),
    request_body = ThreadPatch,
    responses((status = 200, description = "The thread", body = ThreadView),
        (status = 204, description = "The thread was updated"),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn patch(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    headers: HeaderMap,
    ApiJson(body): ApiJson<ThreadPatch>,
) -> Result<Response, ApiError> {
    let id = path.thread_id;
    let now = api.clock.now();
    let metadata = body.metadata.unwrap_or_default();
    let ttl = body.ttl.map(TtlRequest::check).transpose()?;
    if ttl.is_some() {
        // A time to live deletes the thread, or its history.
        api.check(Action::ThreadsDelete, ResourceRef::Thread(id)).await?;
    }
    let patch = api.db.write(move |tx| {
        Box::pin(async move {
            // Locked, or another patch could add to the metadata between the check and the write.
            if !metadata.is_empty()
                && let Some(found) = threads::lock(tx, id).await?
            {
                let mut all = found.metadata;
                all.extend(metadata.clone());
                domain::metadata::check(&all)?;
            }
            Ok::<_, ApiError>(threads::patch(tx, id, &metadata, ttl, now).await?)
        })
    });
    patch.await?.ok_or_else(|| ApiError::not_found("thread_not_found"))?;
    let is_minimal = headers.get_all("prefer").iter().any(|value| value == "return=minimal");
    if is_minimal {
        Ok(no_content())
    } else {
        Ok(Json(load_view(&api, id).await?).into_response())
    }
}

/// Deletes a thread with all its runs. Active runs are cancelled.
#[utoipa::path(delete, path = "/threads/{thread_id}", tag = "Threads", params(ThreadPath),
    responses((status = 204, description = "The thread is deleted"),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn delete(api: Api, ApiPath(path): ApiPath<ThreadPath>) -> Result<Response, ApiError> {
    let was_there = api.threads.delete_thread(path.thread_id).await?;
    if was_there {
        Ok(no_content())
    } else {
        Err(ApiError::no_thread(path.thread_id))
    }
}

/// Copies a thread with the history of its main agent. The interrupts that are open at its newest checkpoint are open in
/// the copy, too, under ids of their own.
#[utoipa::path(post, path = "/threads/{thread_id}/copy", tag = "Threads", params(ThreadPath, KeyHeader),
    responses((status = 200, description = "The copy", body = ThreadView),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn copy(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    Idempotent(key, _): Idempotent<Raw>,
) -> Result<Response, ApiError> {
    let from = path.thread_id;
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let visibility = background::visibility(tx, from).await?;
            let original = threads::find(tx, from).await?;
            Ok(original.filter(|_| visibility == Visibility::Full))
        })
    });
    let original = read.await?;
    let metadata = original.as_ref().map(|thread| thread.metadata.clone());
    api.check_new(Action::ThreadsCreate, &metadata.unwrap_or_default())?;
    if original.is_none() {
        return Err(ApiError::no_thread(from));
    }
    // The entry of the request is that of a read.
    let resource = ResourceRef::Thread(from);
    api.record_decision(Action::ThreadsCreate, || resource.to_string(), &Ok(()));
    api.check_room()?;
    let once = api
        .threads
        .copy_thread(from, Arc::clone(&api.caller), key, created_response)
        .await?
        .ok_or_else(|| ApiError::no_thread(from))?;
    idempotency::respond(once, |copy| idempotency::response(created_response(&copy)))
}

/// Prunes threads: `delete` deletes them and cancels their runs; `keep_latest` removes all but the newest state of idle
/// threads. Threads that do not exist are not counted.
#[utoipa::path(post, path = "/threads/prune", tag = "Threads", request_body = ThreadPrune,
    responses((status = 200, description = "The number of pruned threads", body = ThreadsPruned)))]
pub(super) async fn prune(api: Api, ApiJson(body): ApiJson<ThreadPrune>) -> JsonResult<ThreadsPruned> {
    let (threads, strategy) = body.check()?;
    let action = Action::ThreadsDelete;
    let mut allowed = vec![];
    for thread in threads {
        let resource = ResourceRef::Thread(thread);
        let checked = api.access.check(&api.caller, action, resource).await;
        // The entry of the request names none of them.
        api.record_decision(action, || resource.to_string(), &checked);
        match checked {
            Ok(()) => allowed.push(thread),
            Err(AccessError::Refused { .. }) => {}
            Err(AccessError::Fault(error)) => return Err(error.into()),
        }
    }
    Ok(Json(ThreadsPruned {
        pruned_count: api.threads.prune(allowed, strategy).await?,
    }))
}

/// Shows how much the server stores for a thread.
#[utoipa::path(get, path = "/threads/{thread_id}/storage", tag = "Threads", params(ThreadPath),
    responses((status = 200, description = "Rows and bytes by table", body = ThreadStorage),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn storage(api: Api, ApiPath(path): ApiPath<ThreadPath>) -> JsonResult<ThreadStorage> {
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

/// Searches threads. The total is exact up to 100,000 matches.
///
/// If a page would exceed the maximum response size, it has fewer items than `limit`, and `x-pagination-next` holds the
/// `offset` of the first item that was left out.
#[utoipa::path(post, path = "/threads/search", tag = "Threads", request_body = ThreadSearch,
    responses((status = 200, description = "A page of threads", body = Vec<ThreadView>,
        headers(("x-pagination-total" = u64), ("x-pagination-next" = u64))),
        (status = 422, description = "The search is invalid or too expensive", body = ErrorBody)))]
pub(super) async fn search(api: Api, ApiJson(body): ApiJson<ThreadSearch>) -> Result<Response, ApiError> {
    let CheckedThreadSearch {
        query,
        page,
        select,
        extract,
    } = body.check(api.scope(Action::ThreadsSearch))?;
    let permit = api.answer_permit().await?;
    let most_bytes = api.answers.bytes();
    let query = thread_search::ThreadQuery {
        bytes: most_bytes,
        ..query
    };
    let read = api.search(move |tx| {
        Box::pin(async move {
            let thread_search::ThreadPage { threads, total } = thread_search::search(tx, &query).await?;
            Ok((ThreadSummary::of_all(tx, threads).await?, total))
        })
    });
    let (found, total) = read.await?;
    let mut items = vec![];
    let mut bytes = 0;
    let is_short = found.len() < usize::try_from(page.limit).unwrap_or(usize::MAX);
    let mut is_cut = is_short && u64::from(page.offset) + (found.len() as u64) < u64::try_from(total).unwrap_or(0);
    for summary in found {
        let item = encode_item(&api, summary, &select, &extract).await?;
        bytes += item.len() + 1;
        if bytes > most_bytes && !items.is_empty() {
            is_cut = true;
            break;
        }
        items.push(item);
    }
    let total = u64::try_from(total).unwrap_or(0);
    let headers = match (is_cut, u32::try_from(items.len())) {
        (true, Ok(limit)) => Page { limit, ..page }.headers(total),
        (_, _) => page.headers(total),
    };
    Ok((headers, permit.list(bytes, items.into_iter(), append_encoded)).into_response())
}

/// Counts the threads that match a search.
#[utoipa::path(post, path = "/threads/count", tag = "Threads", request_body = ThreadSearch,
    responses((status = 200, description = "The number of matches", body = u64)))]
pub(super) async fn count(api: Api, ApiJson(body): ApiJson<ThreadSearch>) -> JsonResult<i64> {
    let query = body.check(api.scope(Action::ThreadsSearch))?.query;
    Ok(Json(
        api.search(move |tx| Box::pin(async move { thread_search::count(tx, &query).await }))
            .await?,
    ))
}

/// Encodes a search result: the selected columns and the extracted values.
async fn encode_item(
    api: &Api,
    summary: ThreadSummary,
    select: &Select,
    extract: &BTreeMap<String, String>,
) -> Result<Vec<u8>, ApiError> {
    let needs_values = select.has("values") || !extract.is_empty();
    let view = summary.view(api, needs_values).await?;
    if select.is_all() && extract.is_empty() {
        // A long state would be several times as large as a tree of values.
        return serde_json::to_vec(&view).map_err(|error| ApiError::fault(&error));
    }
    let whole = wire::json(&view);
    let extracted: Object = extract
        .iter()
        .map(|(name, path)| (name.clone(), extract_path(&whole, path)))
        .collect();
    let mut item = select.pick(whole);
    if let (Value::Object(item), false) = (&mut item, extract.is_empty()) {
        item.insert("extracted".to_owned(), extracted.into());
    }
    serde_json::to_vec(&item).map_err(|error| ApiError::fault(&error))
}

async fn load_view(api: &Api, id: ThreadId) -> Result<ThreadView, ApiError> {
    let summary = api.db.read(move |tx| Box::pin(ThreadSummary::find(tx, id))).await?;
    summary.ok_or_else(|| ApiError::no_thread(id))?.view(api, true).await
}

/// A thread, its newest checkpoint, and its open interrupts there.
pub(super) struct ThreadSummary {
    thread: Thread,
    /// The newest checkpoint; also `None` if clients may not see the state.
    head: Option<CheckpointId>,
    pub(super) interrupts: Vec<InterruptRecord>,
}

impl ThreadSummary {
    /// Reads the thread of this id.
    pub(super) async fn find(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<Option<Self>> {
        let thread = threads::find_later(tx, id).await?;
        let rest = LaterThreadSummary::begin(tx, id).await?;
        match thread.find(tx).await? {
            Some(thread) => rest.read(tx, thread).await.map(Some),
            None => Ok(None),
        }
    }

    /// Reads what belongs to threads.
    async fn of_all(tx: &mut Tx<'_>, threads: Vec<Thread>) -> DbResult<Vec<Self>> {
        let together = thread_search::read_together(tx);
        let mut found = Vec::with_capacity(threads.len());
        let mut threads = threads.into_iter().peekable();
        while threads.peek().is_some() {
            let mut begun = Vec::with_capacity(together);
            for thread in threads.by_ref().take(together) {
                begun.push((LaterThreadSummary::begin(tx, thread.id).await?, thread));
            }
            for (rest, thread) in begun {
                found.push(rest.read(tx, thread).await?);
            }
        }
        Ok(found)
    }

    /// The state of the main agent; `None` before the first step.
    pub(super) async fn state(&self, api: &Api) -> Result<Option<Arc<Fields>>, ApiError> {
        let Some(head) = self.head else { return Ok(None) };
        Ok(Some(api.events.state_at(self.thread.id, head).await?))
    }

    async fn view(self, api: &Api, with_values: bool) -> Result<ThreadView, ApiError> {
        // The thread is shown even if its state cannot be read: one corrupt thread must not hide the others of a list.
        let head = self.head.filter(|_| with_values);
        let values = match head {
            Some(head) => db::unless_corrupt(api.events.state_at(self.thread.id, head).await)?,
            None => None,
        };
        Ok(ThreadView::new(self.thread, values, by_task(&self.interrupts)))
    }
}

/// The rows of a thread besides its own that are read later in the transaction.
struct LaterThreadSummary {
    visibility: LaterVisibility,
    newest: LaterSummary,
    pending: LaterInterrupts,
}

impl LaterThreadSummary {
    async fn begin(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Self> {
        Ok(Self {
            visibility: background::visibility_later(tx, thread).await?,
            newest: checkpoints::newest_summary_later(tx, thread, Lane::Main).await?,
            pending: db::interrupts::of_thread_later(tx, thread, Some(InterruptState::Pending)).await?,
        })
    }

    /// Reads the rows of this thread.
    async fn read(self, tx: &mut Tx<'_>, thread: Thread) -> DbResult<ThreadSummary> {
        let is_visible = self.visibility.read(tx).await? == Visibility::Full;
        // A thread whose newest checkpoint cannot be read is shown without its state.
        let newest = db::unless_corrupt(self.newest.read(tx).await)?.flatten();
        let head = newest.filter(|_| is_visible).map(|newest| newest.id);
        let pending = self.pending.read(tx).await?;
        let interrupts = open_among(tx, thread.id, pending, newest).await?;
        Ok(ThreadSummary {
            thread,
            head,
            interrupts,
        })
    }
}

/// Interrupts by the tasks that raised them.
fn by_task(interrupts: &[InterruptRecord]) -> Object {
    let mut all = Object::new();
    for record in interrupts {
        let of_task = all
            .entry(record.interrupt.task.to_string())
            .or_insert_with(|| json!([]));
        if let Value::Array(list) = of_task {
            list.push(brief(&record.interrupt));
        }
    }
    all
}
