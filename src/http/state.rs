//! States and histories of threads and subagents.

use std::sync::Arc;

use axum::Json;
use axum::http::HeaderValue;
use axum::response::Response;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, CheckpointPath, Page, Params, ThreadPath};
use super::history::{HistorySlice, HistoryTarget, load};
use super::idempotency::{self, Idempotent, KeyHeader};
use super::wire::history::HistoryFields;
use super::wire::state::{CheckpointView, HistorySearch, StateAt, StateSelect, StateUpdate, StateUpdated, StateView};
use super::{Api, JsonResult, wire};
use crate::db::checkpoints::HistoryQuery;
use crate::domain::filter::MetadataFilter;
use crate::domain::id::{CheckpointId, TaskId, ThreadId};
use crate::domain::idempotency::StoredResponse;
use crate::domain::machine::TOOLS;
use crate::domain::run_config::configurable;
use crate::runtime::StateWrite;

/// Shows the newest state of a thread.
#[utoipa::path(get, path = "/threads/{thread_id}/state", tag = "State",
    params(ThreadPath,
        ("subgraphs" = Option<bool>, Query, description = "Whether tasks include the states of their subagents"),
        ("select" = Option<String>, Query, description = "A field to return, or `values.<key>`; may be repeated")),
    responses((status = 200, description = "The state; empty before the first step", body = StateView),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn get(api: Api, ApiPath(path): ApiPath<ThreadPath>, params: Params) -> Result<Response, ApiError> {
    let select = StateSelect::checked(params.texts("select"))?;
    let address = StateAddress::default();
    respond_with_state(&api, path.thread_id, &address, &select, params.flag("subgraphs")?).await
}

/// Shows the state of a thread at a checkpoint. The state is empty if the checkpoint does not exist.
#[utoipa::path(get, path = "/threads/{thread_id}/state/{checkpoint_id}", tag = "State",
    params(CheckpointPath,
        ("subgraphs" = Option<bool>, Query, description = "Whether tasks include the states of their subagents"),
        ("select" = Option<String>, Query, description = "A field to return, or `values.<key>`; may be repeated")),
    responses((status = 200, description = "The state", body = StateView),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn at(api: Api, ApiPath(path): ApiPath<CheckpointPath>, params: Params) -> Result<Response, ApiError> {
    let select = StateSelect::checked(params.texts("select"))?;
    let address = StateAddress {
        checkpoint: Some(path.checkpoint_id),
        ..StateAddress::default()
    };
    respond_with_state(&api, path.thread_id, &address, &select, params.flag("subgraphs")?).await
}

/// Shows the state of a thread at a checkpoint, by default the newest; with `checkpoint_ns`, that of a subagent.
#[utoipa::path(post, path = "/threads/{thread_id}/state/checkpoint", tag = "State", params(ThreadPath),
    request_body = StateAt,
    responses((status = 200, description = "The state", body = StateView),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn at_posted(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    ApiJson(body): ApiJson<StateAt>,
) -> Result<Response, ApiError> {
    let select = StateSelect::checked(body.select.unwrap_or_default())?;
    let (namespace, checkpoint) = wire::namespace_and_checkpoint(Some(&body.checkpoint))?;
    let address = StateAddress { namespace, checkpoint };
    respond_with_state(&api, path.thread_id, &address, &select, body.subgraphs.unwrap_or(false)).await
}

/// Loads the state of the main agent at a checkpoint.
pub(super) async fn load_state_at(api: &Api, thread: ThreadId, checkpoint: CheckpointId) -> JsonResult<StateView> {
    let address = StateAddress {
        checkpoint: Some(checkpoint),
        ..StateAddress::default()
    };
    let fields = HistoryFields {
        values: true,
        keys: vec![],
        tasks: true,
    };
    load_state(api, thread, &address, fields, false).await.map(Json)
}

/// A checkpoint of an agent on a thread.
#[derive(Debug, Clone, Default)]
struct StateAddress {
    /// The tasks down to the agent; empty for the main agent.
    namespace: Vec<TaskId>,
    /// The checkpoint; the newest if `None`.
    checkpoint: Option<CheckpointId>,
}

/// Responds with the selected fields of a state. Only these are read.
async fn respond_with_state(
    api: &Api,
    thread: ThreadId,
    address: &StateAddress,
    select: &StateSelect,
    subgraphs: bool,
) -> Result<Response, ApiError> {
    let permit = api.answer_permit().await?;
    let view = load_state(api, thread, address, select.fields(), subgraphs).await?;
    permit.answer(&select.pick(view))
}

async fn load_state(
    api: &Api,
    thread: ThreadId,
    address: &StateAddress,
    fields: HistoryFields,
    subgraphs: bool,
) -> Result<StateView, ApiError> {
    let budget = api.answers.bytes();
    let mut reader = StateReader {
        api,
        thread,
        fields,
        bytes_left: budget,
    };
    match reader.newest(address).await? {
        Some(mut view) => {
            if subgraphs {
                reader.add_subagent_states(&address.namespace, &mut view).await?;
            }
            Ok(view)
        }
        None => {
            let named = |checkpoint| CheckpointView::within(thread, checkpoint, &address.namespace);
            Ok(StateView::empty(address.checkpoint.map(named)))
        }
    }
}

/// Reads a state and the states of the subagents below it.
struct StateReader<'a> {
    api: &'a Api,
    thread: ThreadId,
    fields: HistoryFields,
    /// The number of bytes that the response may still have.
    bytes_left: usize,
}

impl StateReader<'_> {
    async fn newest(&mut self, address: &StateAddress) -> Result<Option<StateView>, ApiError> {
        let slice = address.checkpoint.map_or(HistorySlice::Newest, HistorySlice::At);
        let target = HistoryTarget {
            thread: self.thread,
            namespace: address.namespace.clone(),
        };
        let mut page = load(self.api, target, slice, self.fields.clone(), self.bytes_left).await?;
        self.bytes_left = self.bytes_left.saturating_sub(page.bytes);
        Ok(page.next())
    }

    /// Adds the states of the subagents to the tasks of a state, at all levels. Once the response has reached its size
    /// limit, the remaining tasks name only the checkpoint.
    async fn add_subagent_states(&mut self, namespace: &[TaskId], view: &mut StateView) -> Result<(), ApiError> {
        for task in view.tasks.iter_mut().filter(|task| task.name == TOOLS) {
            let below = StateAddress {
                namespace: [namespace, &[task.delegated.unwrap_or(TaskId(task.id))]].concat(),
                checkpoint: None,
            };
            let is_full = self.bytes_left == 0;
            let fields = self.fields.clone();
            if is_full {
                self.fields = HistoryFields::default();
            }
            let found = self.newest(&below).await?;
            self.fields = fields;
            let Some(mut state) = found else { continue };
            task.checkpoint.clone_from(&state.checkpoint);
            if !is_full {
                Box::pin(self.add_subagent_states(&below.namespace, &mut state)).await?;
                task.state = Some(Box::new(state));
            }
        }
        Ok(())
    }
}

/// Updates the state of a thread. Messages are appended; a message with the id of an older one replaces it. An update
/// as the node `__end__` ends the turn: no node follows, and open interrupts are dropped.
#[utoipa::path(post, path = "/threads/{thread_id}/state", tag = "State", params(ThreadPath, KeyHeader),
    request_body = StateUpdate,
    responses((status = 200, description = "The new checkpoint", body = StateUpdated),
        (status = 400, description = "Node not found", body = ErrorBody),
        (status = 403, description = "The thread has an open interrupt that is assigned to others", body = ErrorBody),
        (status = 404, description = "Thread or checkpoint not found", body = ErrorBody),
        (status = 409, description = "The thread has active runs", body = ErrorBody)))]
pub(super) async fn update(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<StateUpdate>>,
) -> Result<Response, ApiError> {
    let checkpoint = wire::checkpoint(body.checkpoint_id.as_deref(), body.checkpoint.as_ref())?;
    let write = StateWrite {
        values: body.values.unwrap_or_default(),
        as_node: body.as_node,
        checkpoint,
        caller: Arc::clone(&api.caller),
    };
    let thread = path.thread_id;
    api.check_room()?;
    let once = api.threads.write_state(thread, write, key, updated_response).await?;
    idempotency::respond(once, |checkpoint| {
        idempotency::response(updated_response(thread, checkpoint))
    })
}

/// The response to a state update.
fn updated_response(thread: ThreadId, checkpoint: CheckpointId) -> StoredResponse {
    idempotency::stored_response(&StateUpdated::new(thread, checkpoint), Some(thread))
}

/// Lists the history of a thread, newest checkpoint first.
///
/// If the response would exceed its maximum size, it has fewer checkpoints than `limit`, and `x-pagination-next` holds
/// the checkpoint for the next `before`.
#[utoipa::path(get, path = "/threads/{thread_id}/history", tag = "State",
    params(ThreadPath,
        ("limit" = Option<u32>, Query, description = "The maximum number of items; 1 by default"),
        ("before" = Option<Uuid>, Query, description = "The checkpoint before which the page starts"),
        ("checkpoint_ns" = Option<String>, Query, description = "The namespace of a subagent"),
        ("select" = Option<String>, Query, description = "A field to return, or `values.<key>`; may be repeated")),
    responses((status = 200, description = "The checkpoints", body = Vec<StateView>,
            headers(("x-pagination-next" = Uuid, description = "The checkpoint for the next `before`, if the response was cut short"))),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn history(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    params: Params,
) -> Result<Response, ApiError> {
    let page = params.page(1)?;
    let select = StateSelect::checked(params.texts("select"))?;
    let before = wire::checkpoint(params.text("before"), None)?;
    let namespace = wire::namespace(params.text("checkpoint_ns"))?;
    let slice = HistorySlice::History {
        query: query(page, before),
        only: None,
        filter: MetadataFilter::default(),
    };
    respond_with_history(
        &api,
        HistoryTarget {
            thread: path.thread_id,
            namespace,
        },
        slice,
        select,
    )
    .await
}

/// Searches the history of a thread, newest checkpoint first; with `checkpoint.checkpoint_ns`, that of a subagent.
///
/// With `checkpoint.checkpoint_id`, it has this checkpoint alone. It is empty if the checkpoint does not exist. For the
/// checkpoints before one, name it in `before`.
///
/// If the response would exceed its maximum size, it has fewer checkpoints than `limit`, and `x-pagination-next` holds
/// the checkpoint for the next `before`.
#[utoipa::path(post, path = "/threads/{thread_id}/history", tag = "State", params(ThreadPath),
    request_body = HistorySearch,
    responses((status = 200, description = "The checkpoints", body = Vec<StateView>,
            headers(("x-pagination-next" = Uuid, description = "The checkpoint for the next `before`, if the response was cut short"))),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn history_posted(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    ApiJson(body): ApiJson<HistorySearch>,
) -> Result<Response, ApiError> {
    let page = Page::checked(body.limit, None, 1)?;
    let select = StateSelect::checked(body.select.unwrap_or_default())?;
    let metadata = MetadataFilter::new("metadata", body.metadata.unwrap_or_default())?;
    // The checkpoint is in `before.configurable`, or in `before` itself.
    let before = body.before.as_ref();
    let inner = before.and_then(configurable);
    let (_, before) = wire::namespace_and_checkpoint(inner.or(before))?;
    let (namespace, only) = wire::namespace_and_checkpoint(body.checkpoint.as_ref())?;
    let slice = HistorySlice::History {
        query: query(page, before),
        only,
        filter: metadata,
    };
    respond_with_history(
        &api,
        HistoryTarget {
            thread: path.thread_id,
            namespace,
        },
        slice,
        select,
    )
    .await
}

/// Responds with a part of a history, encoded one checkpoint after the other.
async fn respond_with_history(
    api: &Api,
    target: HistoryTarget,
    slice: HistorySlice,
    select: StateSelect,
) -> Result<Response, ApiError> {
    let permit = api.answer_permit().await?;
    let page = load(api, target, slice, select.fields(), api.answers.bytes()).await?;
    let cursor = page.cursor;
    let mut response = permit.list(page.bytes, page, move |view, text| {
        serde_json::to_writer(text, &select.pick(view))
    });
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
