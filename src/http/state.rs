//! The state of a thread, at its newest checkpoint and at older ones, and that of its subagents.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::Response;
use serde_json::Value;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, CheckpointPath, Page, Params, ThreadPath};
use super::history::{HistoryOf, HistorySlice, load};
use super::idempotency::{self, Idempotent, KeyHeader};
use super::wire::history::HistoryFields;
use super::wire::state::{CheckpointView, HistorySearch, StateAt, StateSelect, StateUpdate, StateUpdated, StateView};
use super::{Api, JsonResult, wire};
use crate::db::checkpoints::HistoryQuery;
use crate::domain::filter::MetadataFilter;
use crate::domain::id::{CheckpointId, TaskId, ThreadId};
use crate::domain::idempotency::StoredResponse;
use crate::domain::machine::TOOLS;
use crate::runtime::StateWrite;

/// Shows the newest state of a thread.
#[utoipa::path(get, path = "/threads/{thread_id}/state", tag = "State",
    params(ThreadPath,
        ("subgraphs" = Option<bool>, Query, description = "Show the states of subagents under their tasks"),
        ("select" = Option<String>, Query, description = "Only this field, or `values.<key>`; several")),
    responses((status = 200, description = "The state; empty if nothing happened yet", body = StateView),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn get(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    params: Params,
) -> Result<Response, ApiError> {
    let select = StateSelect::checked(params.texts("select"))?;
    let place = Place::default();
    selected(&api, path.thread_id, &place, &select, params.flag("subgraphs")?).await
}

/// Shows the state of a thread at a checkpoint. One that is not there has the empty state.
#[utoipa::path(get, path = "/threads/{thread_id}/state/{checkpoint_id}", tag = "State",
    params(CheckpointPath,
        ("subgraphs" = Option<bool>, Query, description = "Show the states of subagents under their tasks"),
        ("select" = Option<String>, Query, description = "Only this field, or `values.<key>`; several")),
    responses((status = 200, description = "The state", body = StateView),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn at(
    State(api): State<Api>,
    ApiPath(path): ApiPath<CheckpointPath>,
    params: Params,
) -> Result<Response, ApiError> {
    let select = StateSelect::checked(params.texts("select"))?;
    let place = Place {
        checkpoint: Some(path.checkpoint_id),
        ..Place::default()
    };
    selected(&api, path.thread_id, &place, &select, params.flag("subgraphs")?).await
}

/// Shows the state of a thread at a checkpoint, the newest when none is named; with `checkpoint_ns` that of a subagent.
#[utoipa::path(post, path = "/threads/{thread_id}/state/checkpoint", tag = "State", params(ThreadPath),
    request_body = StateAt,
    responses((status = 200, description = "The state", body = StateView),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn at_posted(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    ApiJson(body): ApiJson<StateAt>,
) -> Result<Response, ApiError> {
    let select = StateSelect::checked(body.select.unwrap_or_default())?;
    let (namespace, checkpoint) = wire::place(Some(&body.checkpoint))?;
    let place = Place { namespace, checkpoint };
    selected(&api, path.thread_id, &place, &select, body.subgraphs.unwrap_or(false)).await
}

/// The state at a checkpoint of the main agent.
pub(super) async fn show_at(api: &Api, thread: ThreadId, checkpoint: CheckpointId) -> JsonResult<StateView> {
    let place = Place {
        checkpoint: Some(checkpoint),
        ..Place::default()
    };
    let parts = HistoryFields {
        values: true,
        keys: vec![],
        tasks: true,
    };
    state_of(api, thread, &place, parts, false).await.map(Json)
}

/// A place in the history of a thread.
#[derive(Debug, Clone, Default)]
struct Place {
    /// The tasks down to the agent whose history it is; none for the main agent.
    namespace: Vec<TaskId>,
    /// The checkpoint; the newest when none.
    checkpoint: Option<CheckpointId>,
}

/// Answers with a state, of which only what is wanted has been read.
async fn selected(
    api: &Api,
    thread: ThreadId,
    place: &Place,
    select: &StateSelect,
    subgraphs: bool,
) -> Result<Response, ApiError> {
    let permit = api.answers.permit().await?;
    let view = state_of(api, thread, place, select.parts(), subgraphs).await?;
    permit.answer(&select.pick(view))
}

async fn state_of(
    api: &Api,
    thread: ThreadId,
    place: &Place,
    parts: HistoryFields,
    subgraphs: bool,
) -> Result<StateView, ApiError> {
    let budget = api.answers.bytes();
    let mut reading = Reading {
        api,
        thread,
        parts,
        rest: budget,
    };
    match reading.newest(place).await? {
        Some(mut view) => {
            if subgraphs {
                reading.show_subagents(&place.namespace, &mut view).await?;
            }
            Ok(view)
        }
        None => {
            let named = |checkpoint| CheckpointView::within(thread, checkpoint, &place.namespace);
            Ok(StateView::empty(place.checkpoint.map(named)))
        }
    }
}

/// A state that is being read, and those of the subagents below it.
struct Reading<'a> {
    api: &'a Api,
    thread: ThreadId,
    parts: HistoryFields,
    /// How many bytes the answer may still have.
    rest: usize,
}

impl Reading<'_> {
    async fn newest(&mut self, place: &Place) -> Result<Option<StateView>, ApiError> {
        let part = place.checkpoint.map_or(HistorySlice::Newest, HistorySlice::At);
        let whose = HistoryOf {
            thread: self.thread,
            namespace: place.namespace.clone(),
        };
        let mut page = load(self.api, whose, part, self.parts.clone(), self.rest).await?;
        self.rest = self.rest.saturating_sub(page.bytes);
        Ok(page.next())
    }

    /// Shows the states of the subagents that work, or worked, on the tasks of a state, and so on below them. Once the answer
    /// is as large as it may be, the tasks that are left name only the checkpoint.
    async fn show_subagents(&mut self, namespace: &[TaskId], view: &mut StateView) -> Result<(), ApiError> {
        for task in view.tasks.iter_mut().filter(|task| task.name == TOOLS) {
            let below = Place {
                namespace: [namespace, &[TaskId(task.id)]].concat(),
                checkpoint: None,
            };
            let is_full = self.rest == 0;
            let parts = self.parts.clone();
            if is_full {
                self.parts = HistoryFields::default();
            }
            let found = self.newest(&below).await?;
            self.parts = parts;
            let Some(mut state) = found else { continue };
            task.checkpoint.clone_from(&state.checkpoint);
            if !is_full {
                Box::pin(self.show_subagents(&below.namespace, &mut state)).await?;
                task.state = Some(Box::new(state));
            }
        }
        Ok(())
    }
}

/// Writes into the state of a thread. Messages are appended, or replaced when they have the id of an older one.
#[utoipa::path(post, path = "/threads/{thread_id}/state", tag = "State", params(ThreadPath, KeyHeader),
    request_body = StateUpdate,
    responses((status = 200, description = "The checkpoint that the write left", body = StateUpdated),
        (status = 400, description = "There is no such node", body = ErrorBody),
        (status = 404, description = "There is no such thread or checkpoint", body = ErrorBody),
        (status = 409, description = "Runs are at work on the thread", body = ErrorBody)))]
pub(super) async fn update(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<StateUpdate>>,
) -> Result<Response, ApiError> {
    let checkpoint = wire::checkpoint(body.checkpoint_id.as_deref(), body.checkpoint.as_ref())?;
    let write = StateWrite {
        values: body.values.unwrap_or_default(),
        as_node: body.as_node,
        checkpoint,
    };
    let thread = path.thread_id;
    let once = api.threads.write_state(thread, write, key, written).await?;
    idempotency::answer(once, |left| idempotency::shown(written(thread, left)))
}

/// The answer to who wrote into the state.
fn written(thread: ThreadId, left: CheckpointId) -> StoredResponse {
    idempotency::kept(&StateUpdated::new(thread, left))
}

/// Shows the history of a thread, the newest checkpoint first.
///
/// An answer has a bound in bytes, beyond which it has fewer checkpoints than `limit`; then the header `x-pagination-next`
/// names the checkpoint to go on `before`.
#[utoipa::path(get, path = "/threads/{thread_id}/history", tag = "State",
    params(ThreadPath,
        ("limit" = Option<u32>, Query, description = "How many at most, 1 unless told otherwise"),
        ("before" = Option<Uuid>, Query, description = "Only those before this checkpoint"),
        ("checkpoint_ns" = Option<String>, Query, description = "That of the subagent with this namespace"),
        ("select" = Option<String>, Query, description = "Only this field, or `values.<key>`; several")),
    responses((status = 200, description = "The checkpoints", body = Vec<StateView>,
            headers(("x-pagination-next" = Uuid, description = "The checkpoint to go on `before`, if the answer ended early"))),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn history(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    params: Params,
) -> Result<Response, ApiError> {
    let page = params.page(1)?;
    let select = StateSelect::checked(params.texts("select"))?;
    let before = wire::checkpoint(params.text("before"), None)?;
    let namespace = wire::namespace(params.text("checkpoint_ns"))?;
    let part = HistorySlice::History(query(page, before), MetadataFilter::default());
    shown(
        &api,
        HistoryOf {
            thread: path.thread_id,
            namespace,
        },
        part,
        select,
    )
    .await
}

/// Searches the history of a thread, the newest checkpoint first; with `checkpoint.checkpoint_ns` that of a subagent.
///
/// An answer has a bound in bytes, beyond which it has fewer checkpoints than `limit`; then the header `x-pagination-next`
/// names the checkpoint to go on `before`.
#[utoipa::path(post, path = "/threads/{thread_id}/history", tag = "State", params(ThreadPath),
    request_body = HistorySearch,
    responses((status = 200, description = "The checkpoints", body = Vec<StateView>,
            headers(("x-pagination-next" = Uuid, description = "The checkpoint to go on `before`, if the answer ended early"))),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn history_posted(
    State(api): State<Api>,
    ApiPath(path): ApiPath<ThreadPath>,
    ApiJson(body): ApiJson<HistorySearch>,
) -> Result<Response, ApiError> {
    let page = Page::checked(body.limit, None, 1)?;
    let select = StateSelect::checked(body.select.unwrap_or_default())?;
    let metadata = MetadataFilter::new("metadata", body.metadata.unwrap_or_default())?;
    // The checkpoint is named by `configurable` within `before`, or by `before` itself.
    let before = body.before.as_ref();
    let inner = before
        .and_then(|before| before.get("configurable"))
        .and_then(Value::as_object);
    let (_, before) = wire::place(inner.or(before))?;
    let (namespace, _) = wire::place(body.checkpoint.as_ref())?;
    let part = HistorySlice::History(query(page, before), metadata);
    shown(
        &api,
        HistoryOf {
            thread: path.thread_id,
            namespace,
        },
        part,
        select,
    )
    .await
}

/// Answers with a part of a history, written one checkpoint after the other.
async fn shown(api: &Api, whose: HistoryOf, part: HistorySlice, select: StateSelect) -> Result<Response, ApiError> {
    let permit = api.answers.permit().await?;
    let page = load(api, whose, part, select.parts(), api.answers.bytes()).await?;
    let cursor = page.cursor;
    let mut response = permit.list(page.bytes, page.map(move |view| serde_json::to_vec(&select.pick(view))));
    if let Some(next) = cursor.and_then(|next| HeaderValue::try_from(next.to_string()).ok()) {
        response.headers_mut().insert("x-pagination-next", next);
    }
    Ok(response)
}

fn query(page: Page, before: Option<CheckpointId>) -> HistoryQuery {
    HistoryQuery {
        limit: page.limit.into(),
        before,
    }
}
