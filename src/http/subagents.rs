//! Child runs as resources: lists, trees and states.

use axum::Json;
use axum::response::Response;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiPath, RunPath};
use super::history::{HistorySlice, HistoryTarget, load};
use super::runs::find;
use super::wire::child_run::{BackgroundTaskView, ChildRunView, RunTreeView};
use super::wire::history::HistoryFields;
use super::wire::state::StateView;
use super::{Api, JsonResult};
use crate::db;
use crate::domain::run::Run;
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
