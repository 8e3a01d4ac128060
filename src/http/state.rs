//! The state of a thread, at its newest checkpoint and at older ones, and that of its subagents.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde_json::Value;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, CheckpointPath, Page, Params, ThreadPath};
use super::idempotency::{self, KeyHeader, Keyed};
use super::scene::{Part, look, look_for};
use super::wire::state::{CheckpointView, HistorySearch, StateAt, StateSelect, StateUpdate, StateUpdated, StateView};
use super::{Answer, Api, wire};
use crate::db::checkpoints::HistoryQuery;
use crate::domain::filter::Filter;
use crate::domain::id::{CheckpointId, TaskId, ThreadId};
use crate::domain::idempotency::Kept;
use crate::domain::machine::TOOLS;
use crate::runtime::StateWrite;

/// Shows the newest state of a thread.
#[utoipa::path(get, path = "/threads/{thread_id}/state", tag = "State",
    params(ThreadPath,
        ("subgraphs" = Option<bool>, Query, description = "Show the states of subagents under their tasks"),
        ("select" = Option<String>, Query, description = "Only this field, or `values.<key>`; several")),
    responses((status = 200, description = "The state; empty if nothing happened yet", body = StateView),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn get(State(api): State<Api>, path: ThreadPath, params: Params) -> Answer<Value> {
    let select = StateSelect::checked(params.texts("select"))?;
    let view = state_of(&api, path.thread_id, &Place::default(), params.flag("subgraphs")?).await?;
    Ok(Json(select.pick(&view)))
}

/// Shows the state of a thread at a checkpoint. One that is not there has the empty state.
#[utoipa::path(get, path = "/threads/{thread_id}/state/{checkpoint_id}", tag = "State",
    params(CheckpointPath,
        ("subgraphs" = Option<bool>, Query, description = "Show the states of subagents under their tasks"),
        ("select" = Option<String>, Query, description = "Only this field, or `values.<key>`; several")),
    responses((status = 200, description = "The state", body = StateView),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn at(State(api): State<Api>, path: CheckpointPath, params: Params) -> Answer<Value> {
    let select = StateSelect::checked(params.texts("select"))?;
    let place = Place { checkpoint: Some(path.checkpoint_id), ..Place::default() };
    let view = state_of(&api, path.thread_id, &place, params.flag("subgraphs")?).await?;
    Ok(Json(select.pick(&view)))
}

/// Shows the state of a thread at a checkpoint, the newest when none is named; with `checkpoint_ns` that of a subagent.
#[utoipa::path(post, path = "/threads/{thread_id}/state/checkpoint", tag = "State", params(ThreadPath),
    request_body = StateAt,
    responses((status = 200, description = "The state", body = StateView),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn at_posted(
    State(api): State<Api>,
    path: ThreadPath,
    ApiJson(body): ApiJson<StateAt>,
) -> Answer<Value> {
    let select = StateSelect::checked(body.select.unwrap_or_default())?;
    let (namespace, checkpoint) = wire::place(Some(&body.checkpoint))?;
    let place = Place { namespace, checkpoint };
    let view = state_of(&api, path.thread_id, &place, body.subgraphs.unwrap_or(false)).await?;
    Ok(Json(select.pick(&view)))
}

/// The state at a checkpoint of the main agent.
pub(super) async fn show_at(api: &Api, thread: ThreadId, checkpoint: CheckpointId) -> Answer<StateView> {
    let place = Place { checkpoint: Some(checkpoint), ..Place::default() };
    state_of(api, thread, &place, false).await.map(Json)
}

/// A place in the history of a thread.
#[derive(Debug, Clone, Default)]
struct Place {
    /// The tasks down to the agent whose history it is; none for the main agent.
    namespace: Vec<TaskId>,
    /// The checkpoint; the newest when none.
    checkpoint: Option<CheckpointId>,
}

async fn state_of(api: &Api, thread: ThreadId, place: &Place, subgraphs: bool) -> Result<StateView, ApiError> {
    let part = place.checkpoint.map_or(Part::Newest, Part::At);
    let Some(mut view) = look(api, thread, &place.namespace, part).await?.pop() else {
        let named = |checkpoint| CheckpointView::within(thread, checkpoint, &place.namespace);
        return Ok(StateView::empty(place.checkpoint.map(named)));
    };
    if subgraphs {
        show_subagents(api, thread, &place.namespace, &mut view).await?;
    }
    Ok(view)
}

/// Shows the states of the subagents that work, or worked, on the tasks of a state, and so on below them.
async fn show_subagents(
    api: &Api,
    thread: ThreadId,
    namespace: &[TaskId],
    view: &mut StateView,
) -> Result<(), ApiError> {
    for task in view.tasks.iter_mut().filter(|task| task.name == TOOLS) {
        let below = Place { namespace: [namespace, &[TaskId(task.id)]].concat(), checkpoint: None };
        let state = Box::pin(state_of(api, thread, &below, true)).await?;
        if state.checkpoint.is_some() {
            task.checkpoint.clone_from(&state.checkpoint);
            task.state = Some(Box::new(state));
        }
    }
    Ok(())
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
    path: ThreadPath,
    Keyed(key, ApiJson(body)): Keyed<ApiJson<StateUpdate>>,
) -> Result<Response, ApiError> {
    let checkpoint = wire::checkpoint(body.checkpoint_id.as_deref(), body.checkpoint.as_ref())?;
    let write = StateWrite { values: body.values.unwrap_or_default(), as_node: body.as_node, checkpoint };
    let thread = path.thread_id;
    let once = api.runs.write_state(thread, write, key, written).await?;
    idempotency::answer(once, |left| idempotency::shown(written(thread, left)))
}

/// The answer to who wrote into the state.
fn written(thread: ThreadId, left: CheckpointId) -> Kept {
    idempotency::kept(&StateUpdated::new(thread, left))
}

/// Shows the history of a thread, the newest checkpoint first.
#[utoipa::path(get, path = "/threads/{thread_id}/history", tag = "State",
    params(ThreadPath,
        ("limit" = Option<u32>, Query, description = "How many at most, 1 unless told otherwise"),
        ("before" = Option<Uuid>, Query, description = "Only those before this checkpoint"),
        ("checkpoint_ns" = Option<String>, Query, description = "That of the subagent with this namespace"),
        ("select" = Option<String>, Query, description = "Only this field, or `values.<key>`; several")),
    responses((status = 200, description = "The checkpoints", body = Vec<StateView>),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn history(State(api): State<Api>, path: ThreadPath, params: Params) -> Answer<Vec<Value>> {
    let page = params.page(1)?;
    let select = StateSelect::checked(params.texts("select"))?;
    let before = wire::checkpoint(params.text("before"), None)?;
    let namespace = wire::namespace(params.text("checkpoint_ns"))?;
    let views = look(&api, path.thread_id, &namespace, Part::History(query(page, before))).await?;
    Ok(Json(views.iter().map(|view| select.pick(view)).collect()))
}

/// Searches the history of a thread, the newest checkpoint first; with `checkpoint.checkpoint_ns` that of a subagent.
#[utoipa::path(post, path = "/threads/{thread_id}/history", tag = "State", params(ThreadPath),
    request_body = HistorySearch,
    responses((status = 200, description = "The checkpoints", body = Vec<StateView>),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn history_posted(
    State(api): State<Api>,
    path: ThreadPath,
    ApiJson(body): ApiJson<HistorySearch>,
) -> Answer<Vec<Value>> {
    let page = Page::checked(body.limit, None, 1)?;
    let select = StateSelect::checked(body.select.unwrap_or_default())?;
    let metadata = Filter::new("metadata", body.metadata.unwrap_or_default())?;
    // The checkpoint is named by `configurable` within `before`, or by `before` itself.
    let before = body.before.as_ref();
    let inner = before.and_then(|before| before.get("configurable")).and_then(Value::as_object);
    let (_, before) = wire::place(inner.or(before))?;
    let (namespace, _) = wire::place(body.checkpoint.as_ref())?;
    let wanted = query(page, before);
    let views = if metadata.is_empty() {
        look(&api, path.thread_id, &namespace, Part::History(wanted)).await?
    } else {
        look_for(&api, path.thread_id, &namespace, wanted, metadata).await?
    };
    Ok(Json(views.iter().map(|view| select.pick(view)).collect()))
}

fn query(page: Page, before: Option<CheckpointId>) -> HistoryQuery {
    HistoryQuery { limit: page.limit.into(), before }
}
