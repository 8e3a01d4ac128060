//! The state of a thread, at its newest checkpoint and at older ones.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde_json::Value;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, CheckpointPath, Page, Params, ThreadPath};
use super::wire::state::{CheckpointView, HistorySearch, Scene, StateAt, StateUpdate, StateUpdated, StateView};
use super::wire::{self, contains};
use super::{Answer, Api};
use crate::db::checkpoints::{self, HistoryQuery};
use crate::db::{DbResult, Tx, interrupts, runs, threads};
use crate::domain::checkpoint::{Checkpoint, Lane};
use crate::domain::id::{CheckpointId, RunId, TaskId, ThreadId};
use crate::domain::run::Run;
use crate::runtime::StateWrite;

/// Shows the newest state of a thread.
#[utoipa::path(get, path = "/threads/{thread_id}/state", tag = "State",
    params(ThreadPath, ("subgraphs" = Option<bool>, Query, description = "Accepted; the answer is the same")),
    responses((status = 200, description = "The state; empty if nothing happened yet", body = StateView),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn get(State(api): State<Api>, path: ThreadPath) -> Answer<StateView> {
    let views = look(&api, path.thread_id, Part::Newest).await?;
    Ok(Json(views.into_iter().next().unwrap_or_else(|| StateView::empty(None))))
}

/// Shows the state of a thread at a checkpoint. One that is not there has the empty state.
#[utoipa::path(get, path = "/threads/{thread_id}/state/{checkpoint_id}", tag = "State", params(CheckpointPath),
    responses((status = 200, description = "The state", body = StateView),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn at(State(api): State<Api>, path: CheckpointPath) -> Answer<StateView> {
    show_at(&api, path.thread_id, path.checkpoint_id).await
}

/// Shows the state of a thread at a checkpoint; the newest when none is named.
#[utoipa::path(post, path = "/threads/{thread_id}/state/checkpoint", tag = "State", params(ThreadPath),
    request_body = StateAt,
    responses((status = 200, description = "The state", body = StateView),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn at_posted(
    State(api): State<Api>,
    path: ThreadPath,
    ApiJson(body): ApiJson<StateAt>,
) -> Answer<StateView> {
    match wire::checkpoint(None, Some(&body.checkpoint))? {
        Some(checkpoint) => show_at(&api, path.thread_id, checkpoint).await,
        None => get(State(api), path).await,
    }
}

pub(super) async fn show_at(api: &Api, thread: ThreadId, checkpoint: CheckpointId) -> Answer<StateView> {
    let views = look(api, thread, Part::At(checkpoint)).await?;
    let empty = || StateView::empty(Some(CheckpointView::new(thread, checkpoint)));
    Ok(Json(views.into_iter().next().unwrap_or_else(empty)))
}

/// Writes into the state of a thread. Messages are appended, or replaced when they have the id of an older one.
#[utoipa::path(post, path = "/threads/{thread_id}/state", tag = "State", params(ThreadPath),
    request_body = StateUpdate,
    responses((status = 200, description = "The checkpoint that the write left", body = StateUpdated),
        (status = 400, description = "There is no such node", body = ErrorBody),
        (status = 404, description = "There is no such thread or checkpoint", body = ErrorBody),
        (status = 409, description = "Runs are at work on the thread", body = ErrorBody)))]
pub(super) async fn update(
    State(api): State<Api>,
    path: ThreadPath,
    ApiJson(body): ApiJson<StateUpdate>,
) -> Answer<StateUpdated> {
    let checkpoint = wire::checkpoint(body.checkpoint_id.as_deref(), body.checkpoint.as_ref())?;
    let write = StateWrite { values: body.values.unwrap_or_default(), as_node: body.as_node, checkpoint };
    let left = api.runs.write_state(path.thread_id, write).await?;
    Ok(Json(StateUpdated::new(path.thread_id, left)))
}

/// Shows the history of a thread, the newest checkpoint first.
#[utoipa::path(get, path = "/threads/{thread_id}/history", tag = "State",
    params(ThreadPath,
        ("limit" = Option<u32>, Query, description = "How many at most, 1 unless told otherwise"),
        ("before" = Option<Uuid>, Query, description = "Only those before this checkpoint")),
    responses((status = 200, description = "The checkpoints", body = Vec<StateView>),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn history(State(api): State<Api>, path: ThreadPath, params: Params) -> Answer<Vec<StateView>> {
    let page = params.page(1)?;
    let before = wire::checkpoint(params.text("before"), None)?;
    look(&api, path.thread_id, Part::History(query(page, before))).await.map(Json)
}

/// Searches the history of a thread, the newest checkpoint first.
#[utoipa::path(post, path = "/threads/{thread_id}/history", tag = "State", params(ThreadPath),
    request_body = HistorySearch,
    responses((status = 200, description = "The checkpoints", body = Vec<StateView>),
        (status = 404, description = "There is no such thread", body = ErrorBody)))]
pub(super) async fn history_posted(
    State(api): State<Api>,
    path: ThreadPath,
    ApiJson(body): ApiJson<HistorySearch>,
) -> Answer<Vec<StateView>> {
    let page = Page::checked(body.limit, None, 1)?;
    // The checkpoint is named by `configurable` within `before`, or by `before` itself.
    let before = body.before.as_ref();
    let inner = before.and_then(|before| before.get("configurable")).and_then(Value::as_object);
    let before = wire::checkpoint(None, inner.or(before))?;
    match body.metadata.filter(|metadata| !metadata.is_empty()) {
        None => look(&api, path.thread_id, Part::History(query(page, before))).await.map(Json),
        Some(metadata) => filtered(&api, path.thread_id, query(page, before), metadata.into()).await.map(Json),
    }
}

fn query(page: Page, before: Option<CheckpointId>) -> HistoryQuery {
    HistoryQuery { limit: page.limit.into(), before }
}

/// Those checkpoints of a history whose metadata contains `metadata`.
async fn filtered(
    api: &Api,
    thread: ThreadId,
    wanted: HistoryQuery,
    metadata: Value,
) -> Result<Vec<StateView>, ApiError> {
    const AT_ONCE: i64 = 200;
    let limit = usize::try_from(wanted.limit).unwrap_or(0);
    let (mut found, mut before) = (vec![], wanted.before);
    loop {
        let views = look(api, thread, Part::History(HistoryQuery { limit: AT_ONCE, before })).await?;
        before = views.last().and_then(|view| view.checkpoint_id).map(CheckpointId);
        let fits = |view: &StateView| {
            let shown: Value = view.metadata.clone().unwrap_or_default().into();
            contains(&shown, &metadata)
        };
        found.extend(views.into_iter().filter(fits));
        if found.len() >= limit || before.is_none() {
            found.truncate(limit);
            return Ok(found);
        }
    }
}

/// Which part of a history is to be shown.
#[derive(Debug, Clone, Copy)]
enum Part {
    Newest,
    At(CheckpointId),
    History(HistoryQuery),
}

/// Shows a part of the history of a thread.
async fn look(api: &Api, thread: ThreadId, part: Part) -> Result<Vec<StateView>, ApiError> {
    let scene = api.db.read(move |tx| Box::pin(gather(tx, thread, part))).await?;
    let scene = scene.ok_or_else(|| ApiError::no_thread(thread))?;
    let graph = scene.thread.metadata.get("graph_id").and_then(Value::as_str).unwrap_or_default();
    let plan = api.runs.plan_of(graph);
    let card = api.runs.assistants().into_iter().find(|card| card.graph_id == graph);
    let agent = card.map_or_else(|| graph.to_owned(), |card| card.name);
    Ok((0..scene.checkpoints.len()).map(|at| scene.view(at, plan, &agent)).collect())
}

/// Reads all that is needed to show a part of the history of a thread. None if there is no such thread.
async fn gather(tx: &mut Tx<'_>, id: ThreadId, part: Part) -> DbResult<Option<Scene>> {
    let Some(thread) = threads::find(tx, id).await? else { return Ok(None) };
    let checkpoints = match part {
        Part::At(checkpoint) => checkpoints::get(tx, id, checkpoint).await?.into_iter().collect(),
        Part::Newest => checkpoints::history(tx, id, Lane::Main, HistoryQuery { limit: 1, before: None }).await?,
        Part::History(query) => checkpoints::history(tx, id, Lane::Main, query).await?,
    };
    let checkpoints: Vec<Checkpoint> = checkpoints.into_iter().filter(|found| found.lane == Lane::Main).collect();
    let Some(first) = checkpoints.first() else {
        return Ok(Some(Scene { thread, checkpoints, after: None, runs: HashMap::new(), asked: vec![] }));
    };
    let after = checkpoints::next_after(tx, id, Lane::Main, first.seq).await?;
    let mut known = Known { thread: id, runs: HashMap::new() };
    for run in checkpoints.iter().filter_map(|checkpoint| checkpoint.run) {
        known.run(tx, run).await?;
    }
    let asked = known.asked(tx).await?;
    Ok(Some(Scene { thread, checkpoints, after, runs: known.runs, asked }))
}

/// Runs that were read already. Those of a copied thread's history belong to the original.
struct Known {
    thread: ThreadId,
    runs: HashMap<RunId, Run>,
}

impl Known {
    async fn run(&mut self, tx: &mut Tx<'_>, id: RunId) -> DbResult<Option<&Run>> {
        if !self.runs.contains_key(&id)
            && let Some(run) = runs::get_by_id(tx, id).await?
        {
            self.runs.insert(id, run);
        }
        Ok(self.runs.get(&id))
    }

    /// The questions of the thread, each with the main agent's task through which it is asked.
    async fn asked(&mut self, tx: &mut Tx<'_>) -> DbResult<Vec<(TaskId, interrupts::Asked)>> {
        let mut all = vec![];
        for asked in interrupts::of_thread(tx, self.thread, None).await? {
            let task = match asked.lane {
                Lane::Main => Some(asked.interrupt.task),
                Lane::Child(child) => self.run(tx, child).await?.and_then(|run| run.lineage.namespace.first().copied()),
            };
            all.extend(task.map(|task| (task, asked)));
        }
        Ok(all)
    }
}
