//! Child runs as resources: lists, trees, states and streams.

use axum::Json;
use axum::response::Response;
use serde_json::{Value, json};

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiPath, RunPath};
use super::history::{HistorySlice, HistoryTarget, load};
use super::runs::{self, find};
use super::stream::{self, Cursor, MetadataDetail, ResumePoint, StreamMode, StreamRequest};
use super::wait;
use super::wire::child_run::{BackgroundTaskView, ChildRunView, RunTreeView};
use super::wire::history::HistoryFields;
use super::wire::interrupt::brief;
use super::wire::state::StateView;
use super::wire::{failure, json as to_json};
use super::{Api, JsonResult};
use crate::db::interrupts::InterruptState;
use crate::db::{self, checkpoints, interrupts};
use crate::domain::checkpoint::Lane;
use crate::domain::run::{Run, RunStatus};
use crate::domain::visibility::Visibility;
use crate::runtime::known_status;

/// Lists the child runs that a run delegated to, oldest first. Each of them lists its own children.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/children", tag = "Runs", params(RunPath),
    responses((status = 200, description = "The child runs", body = Vec<ChildRunView>),
        (status = 404, description = "Thread or run not found", body = ErrorBody)))]
pub(super) async fn children(api: Api, ApiPath(path): ApiPath<RunPath>) -> JsonResult<Vec<ChildRunView>> {
    let parent = find(&api, path).await?;
    let id = parent.id;
    let root = parent.lineage.root;
    let read = api.db.read(move |tx| {
        Box::pin(async move { Ok((db::runs::children(tx, id).await?, db::runs::usages(tx, root).await?)) })
    });
    let (mut found, used) = read.await?;
    found.retain(is_visible);
    Ok(Json(
        found.into_iter().map(|run| ChildRunView::of(run, &used)).collect(),
    ))
}

/// Returns true if clients may see the run.
fn is_visible(run: &Run) -> bool {
    run.lineage.visibility > Visibility::Hidden
}

/// Shows a run with all child runs below it as a tree.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/tree", tag = "Runs", params(RunPath),
    responses((status = 200, description = "The run with the runs below it", body = RunTreeView),
        (status = 404, description = "Thread or run not found", body = ErrorBody)))]
pub(super) async fn tree(api: Api, ApiPath(path): ApiPath<RunPath>) -> JsonResult<RunTreeView> {
    let top = find(&api, path).await?;
    let id = top.id;
    let root = top.lineage.root;
    let limit = i64::try_from(RunTreeView::LARGEST + 1).unwrap_or(i64::MAX);
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let mut tasks = vec![];
            for record in db::background::of_run(tx, id, limit).await? {
                if record.ancestry.visibility == Visibility::Hidden {
                    continue;
                }
                let (run, status) = known_status(tx, &record).await?;
                tasks.push(BackgroundTaskView::of(record, run, status));
            }
            let used = match root == id {
                true => db::runs::usages_with_background(tx, root).await?,
                false => db::runs::usages(tx, root).await?,
            };
            Ok((db::runs::tree(tx, id, limit).await?, used, tasks))
        })
    });
    let (mut all, used, background_tasks) = read.await?;
    all.retain(is_visible);
    let tree = RunTreeView::of(all, &used).ok_or_else(|| ApiError::not_found("run_not_found"))?;
    Ok(Json(RunTreeView {
        background_tasks,
        ..tree
    }))
}

/// Shows the newest state of the run's agent: for a child run the subagent's state, else that of the thread.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/state", tag = "Runs", params(RunPath),
    responses((status = 200, description = "The state; empty before the first step", body = StateView),
        (status = 404, description = "Thread or run not found", body = ErrorBody)))]
pub(super) async fn state(api: Api, ApiPath(path): ApiPath<RunPath>) -> Result<Response, ApiError> {
    let run = find(&api, path).await?;
    let permit = api.answer_permit().await?;
    let fields = HistoryFields {
        values: true,
        keys: vec![],
        tasks: true,
    };
    let target = HistoryTarget {
        thread: run.thread,
        namespace: run.lineage.namespace,
    };
    let newest = load(&api, target, HistorySlice::Newest, fields, api.answers.bytes())
        .await?
        .next();
    permit.answer(&newest.unwrap_or_else(|| StateView::empty(None)))
}

/// The run of the main agent that a child run is active in, with the thread's newest sequence number. `None` if the
/// child run is not active.
pub(super) async fn active_main_run(api: &Api, child: &Run) -> Result<Option<(Run, i64)>, ApiError> {
    let thread = child.thread;
    let id = child.id;
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let run = db::runs::find(tx, thread, id).await?;
            if run.is_none_or(|run| run.status.is_final()) {
                return Ok(None);
            }
            let mains = db::runs::in_flight(tx, thread).await?;
            let main = mains.into_iter().find(|run| run.status == RunStatus::Running);
            let newest = checkpoints::max_seq(tx, thread).await?;
            Ok(main.map(|main| (main, newest)))
        })
    });
    Ok(read.await?)
}

/// The request for the stream of a child run.
pub(super) struct ChildReader {
    /// The last event that the reader has seen.
    pub resume_from: Option<ResumePoint>,
    /// The modes of this reader, if not all of the run's.
    pub filter: Option<Vec<StreamMode>>,
    /// The metadata of the pieces of answers.
    pub detail: MetadataDetail,
    /// True if the run is cancelled when the reader disconnects.
    pub cancel_on_disconnect: bool,
}

/// Responds with the events of a child run, in the modes of the main agent's run: after `resume_from`, or from now on.
pub(super) async fn stream_child(api: &Api, child: &Run, reader: ChildReader) -> Result<Response, ApiError> {
    let ChildReader {
        resume_from,
        filter,
        detail,
        cancel_on_disconnect,
    } = reader;
    let root = child.lineage.root;
    let active = active_main_run(api, child).await?;
    let now = active.as_ref().map(|(_, now)| *now);
    let main = match active {
        Some((main, _)) => main,
        None => api
            .events
            .run(root)
            .await?
            .ok_or_else(|| ApiError::not_found("run_not_found"))?,
    };
    let resume_from = resume_from.filter(|_| main.request.stream_resumable);
    let joined_at = now.filter(|_| resume_from.is_none());
    let tail = match joined_at {
        Some(now) => api.events.join_child(&main, child, now),
        None => api.events.tail_of_child(&main, child),
    };
    // Of a run that has ended, who names no event gets none.
    let at_the_end = || ResumePoint {
        cursor: Cursor::after(i64::MAX),
        answers: vec![],
    };
    let resume_from = resume_from.or_else(|| now.is_none().then(at_the_end));
    let mut request = runs::stream_request(api, &main, false);
    if cancel_on_disconnect {
        let runs = api.runs.clone();
        let thread = child.thread;
        let id = child.id;
        request.on_disconnect = Some(Box::new(move || runs.cancel_soon(thread, id)));
    }
    let request = StreamRequest {
        resume_from,
        filter,
        detail,
        subgraphs: true,
        ..request
    };
    Ok(stream::stream_run(api.events.clone(), tail, request))
}

/// The result of a child run that is not active: the subagent's values, its open interrupts, or the error with which it
/// failed.
pub(super) async fn child_result(api: &Api, child: &Run) -> Result<Value, ApiError> {
    let thread = child.thread;
    let id = child.id;
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let Some(run) = db::runs::find(tx, thread, id).await? else {
                return Ok(None);
            };
            let below = db::runs::members(tx, id).await?;
            let mut open = interrupts::of_thread(tx, thread, Some(InterruptState::Pending)).await?;
            open.retain(|record| matches!(record.lane, Lane::Child(lane) if below.contains(&lane)));
            let (machine, _) = checkpoints::machine(tx, thread, Lane::Child(id)).await?;
            Ok(Some((wait::error_of(&run).cloned(), open, machine.state)))
        })
    });
    Ok(match read.await? {
        None => json!({}),
        Some((Some(error), ..)) => json!({"__error__": failure(&error)}),
        Some((None, open, _)) if open.is_empty() && child.lineage.visibility != Visibility::Full => json!({}),
        Some((None, open, state)) if open.is_empty() => to_json(&state),
        Some((None, open, _)) => {
            let open: Vec<Value> = open.iter().map(|record| brief(&record.interrupt)).collect();
            json!({"__interrupt__": open})
        }
    })
}
