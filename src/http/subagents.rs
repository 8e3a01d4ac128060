//! Runs of subagents as resources: lists, trees, states, and how they are followed.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiPath, RunPath};
use super::history::{HistoryOf, HistorySlice, load};
use super::runs::{self, find};
use super::stream::{self, Cursor, ResumePoint, StreamMode, StreamRequest};
use super::wire::child::{BackgroundTaskView, ChildRunView, RunTreeView};
use super::wire::history::HistoryFields;
use super::wire::interrupt::brief;
use super::wire::state::StateView;
use super::wire::{failure, json as shown};
use super::{Api, JsonResult};
use crate::db::interrupts::InterruptState;
use crate::db::{self, checkpoints, interrupts};
use crate::domain::checkpoint::Lane;
use crate::domain::run::{Run, RunStatus};
use crate::domain::visibility::Visibility;
use crate::runtime::known_status;

/// Lists the runs of subagents that a run delegated to, the oldest first. Their own children are listed under them.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/children", tag = "Runs", params(RunPath),
    responses((status = 200, description = "The child runs", body = Vec<ChildRunView>),
        (status = 404, description = "There is no such thread or run", body = ErrorBody)))]
pub(super) async fn children(State(api): State<Api>, ApiPath(path): ApiPath<RunPath>) -> JsonResult<Vec<ChildRunView>> {
    let parent = find(&api, path).await?;
    let id = parent.id;
    let root = parent.lineage.root;
    let read = api.db.read(move |tx| {
        Box::pin(async move { Ok((db::runs::children(tx, id).await?, db::runs::usages(tx, root).await?)) })
    });
    let (mut found, used) = read.await?;
    found.retain(is_seen);
    Ok(Json(
        found.into_iter().map(|run| ChildRunView::of(run, &used)).collect(),
    ))
}

/// Whether clients see that there is this run.
fn is_seen(run: &Run) -> bool {
    run.lineage.visibility > Visibility::Hidden
}

/// Shows a run with all the runs of subagents below it, each under the run that delegated to it.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/tree", tag = "Runs", params(RunPath),
    responses((status = 200, description = "The tree", body = RunTreeView),
        (status = 404, description = "There is no such thread or run", body = ErrorBody)))]
pub(super) async fn tree(State(api): State<Api>, ApiPath(path): ApiPath<RunPath>) -> JsonResult<RunTreeView> {
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
    all.retain(is_seen);
    let tree = RunTreeView::of(all, &used).ok_or_else(|| ApiError::not_found("run_not_found"))?;
    Ok(Json(RunTreeView {
        background_tasks,
        ..tree
    }))
}

/// Shows the newest state of the agent whose run this is: for the run of a subagent its own state, for a run of the main
/// agent that of the thread.
#[utoipa::path(get, path = "/threads/{thread_id}/runs/{run_id}/state", tag = "Runs", params(RunPath),
    responses((status = 200, description = "The state; empty if nothing happened yet", body = StateView),
        (status = 404, description = "There is no such thread or run", body = ErrorBody)))]
pub(super) async fn state(State(api): State<Api>, ApiPath(path): ApiPath<RunPath>) -> Result<Response, ApiError> {
    let run = find(&api, path).await?;
    let permit = api.answers.permit().await?;
    let parts = HistoryFields {
        values: true,
        keys: vec![],
        tasks: true,
    };
    let whose = HistoryOf {
        thread: run.thread,
        namespace: run.lineage.namespace,
    };
    let newest = load(&api, whose, HistorySlice::Newest, parts, api.answers.bytes())
        .await?
        .next();
    permit.answer(&newest.unwrap_or_else(|| StateView::empty(None)))
}

/// The run of the main agent in whose course a subagent's run is at work, with the number of the newest event on the
/// thread; none if it is not at work.
pub(super) async fn at_work_for(api: &Api, child: &Run) -> Result<Option<(Run, i64)>, ApiError> {
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

/// Answers with the events of a subagent's run, as those who asked for the main agent's run wanted them: behind the place
/// that the client has `seen`, or from now on.
pub(super) async fn follow(
    api: &Api,
    child: &Run,
    (seen, filter): (Option<ResumePoint>, Option<Vec<StreamMode>>),
    cancel_on_disconnect: bool,
) -> Result<Response, ApiError> {
    let root = child.lineage.root;
    let (main, now) = match at_work_for(api, child).await? {
        Some(found) => found,
        None => {
            let root = api
                .events
                .run(root)
                .await?
                .ok_or_else(|| ApiError::not_found("run_not_found"))?;
            (root, i64::MAX)
        }
    };
    let seen = seen.filter(|_| main.request.stream_resumable);
    let seen = seen.unwrap_or_else(|| ResumePoint {
        cursor: Cursor::after(now),
        said: vec![],
    });
    let mut request = runs::follow(api, &main, false);
    if cancel_on_disconnect {
        let runs = api.runs.clone();
        let thread = child.thread;
        let id = child.id;
        request.on_leave = Some(Box::new(move || runs.cancel_soon(thread, id)));
    }
    let request = StreamRequest {
        seen: Some(seen),
        filter,
        subgraphs: true,
        ..request
    };
    Ok(stream::stream_run(
        api.events.clone(),
        api.events.tail_of_child(&main, child),
        request,
    ))
}

/// What a subagent's run that is not at work came to: the values of the subagent, the questions that it waits for, or why
/// it failed.
pub(super) async fn outcome(api: &Api, child: &Run) -> Result<Value, ApiError> {
    let thread = child.thread;
    let id = child.id;
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let Some(run) = db::runs::find(tx, thread, id).await? else {
                return Ok(None);
            };
            let below = db::runs::members(tx, id).await?;
            let mut asked = interrupts::of_thread(tx, thread, Some(InterruptState::Pending)).await?;
            asked.retain(|asked| matches!(asked.lane, Lane::Child(lane) if below.contains(&lane)));
            let (machine, _) = checkpoints::machine(tx, thread, Lane::Child(id)).await?;
            Ok(Some((run.error, asked, machine.state)))
        })
    });
    Ok(match read.await? {
        None => json!({}),
        Some((Some(error), ..)) => json!({"__error__": failure(&error)}),
        Some((None, asked, _)) if asked.is_empty() && child.lineage.visibility != Visibility::Full => json!({}),
        Some((None, asked, state)) if asked.is_empty() => shown(&state),
        Some((None, asked, _)) => {
            let asked: Vec<Value> = asked.iter().map(|asked| brief(&asked.interrupt)).collect();
            json!({"__interrupt__": asked})
        }
    })
}
