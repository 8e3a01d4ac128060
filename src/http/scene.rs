//! Gathers what is known around checkpoints, so that they can be shown.

use std::collections::HashMap;

use serde_json::Value;

use super::Api;
use super::error::ApiError;
use super::wire::state::{Scene, StateView, metadata_of};
use crate::db::checkpoints::{self, HistoryQuery};
use crate::db::{DbResult, Tx, background, interrupts, runs, threads};
use crate::domain::checkpoint::{Checkpoint, Lane};
use crate::domain::filter::Filter;
use crate::domain::id::{CheckpointId, RunId, TaskId, ThreadId};
use crate::domain::run::Run;
use crate::domain::visibility::Visibility;

/// Which part of a history is to be shown.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Newest,
    At(CheckpointId),
    History(HistoryQuery),
}

/// Shows a part of the history of an agent on a thread: the main agent when `namespace` is empty, else the subagent that
/// worked on its last task. There is nothing to show of one that is not there.
pub(super) async fn look(
    api: &Api,
    thread: ThreadId,
    namespace: &[TaskId],
    part: Part,
) -> Result<Vec<StateView>, ApiError> {
    let tasks = namespace.to_vec();
    let scene = api.db.read(move |tx| Box::pin(async move { gather(tx, thread, &tasks, part).await })).await?;
    let scene = scene.ok_or_else(|| ApiError::no_thread(thread))?;
    let graph = scene.thread.metadata.get("graph_id").and_then(Value::as_str).unwrap_or_default();
    let newest = scene.checkpoints.first().and_then(|checkpoint| checkpoint.run);
    let run = scene.child.as_ref().or_else(|| scene.runs.get(&newest?));
    let plan = match run {
        Some(run) => api.runs.plan_of_run(run).await?,
        None => api.runs.plan_of(graph),
    };
    let agent = name_of(api, graph);
    Ok((0..scene.checkpoints.len()).map(|at| scene.view(at, plan.as_ref(), &agent)).collect())
}

/// Shows those checkpoints of a history whose metadata contains what is wanted.
pub(super) async fn look_for(
    api: &Api,
    thread: ThreadId,
    namespace: &[TaskId],
    wanted: HistoryQuery,
    metadata: Filter,
) -> Result<Vec<StateView>, ApiError> {
    let tasks = namespace.to_vec();
    let found = api.db.read(move |tx| Box::pin(async move { threads::find(tx, thread).await })).await?;
    let found = found.ok_or_else(|| ApiError::no_thread(thread))?;
    let agent = name_of(api, found.metadata.get("graph_id").and_then(Value::as_str).unwrap_or_default());
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let Some(child) = child_of(tx, thread, &tasks).await? else { return Ok(vec![]) };
            let agent = child.as_ref().map_or(agent, |child| child.lineage.agent().to_owned());
            let mut known = Known { thread, runs: HashMap::new() };
            let (mut before, lane) = (edge(tx, thread, wanted.before).await?, lane_of(child.as_ref()));
            let mut matching = vec![];
            loop {
                let page = checkpoints::sketches(tx, thread, lane, before, AT_ONCE).await?;
                let Some(last) = page.last() else { return Ok(matching) };
                before = last.seq;
                for sketch in page {
                    let run = match sketch.run {
                        Some(run) => known.run(tx, run).await?,
                        None => None,
                    };
                    if metadata.matches(&metadata_of(&found, &sketch, run, &agent)) {
                        matching.push(sketch.id);
                    }
                    if i64::try_from(matching.len()).is_ok_and(|count| count >= wanted.limit) {
                        return Ok(matching);
                    }
                }
            }
        })
    });
    let mut views = vec![];
    for checkpoint in read.await? {
        views.extend(look(api, thread, namespace, Part::At(checkpoint)).await?);
    }
    Ok(views)
}

/// How many checkpoints are looked at in one go when some are searched for.
const AT_ONCE: i64 = 500;

/// The number behind which nothing is wanted. None are older than a checkpoint that is not there.
async fn edge(tx: &mut Tx<'_>, thread: ThreadId, before: Option<CheckpointId>) -> DbResult<i64> {
    match before {
        None => Ok(i64::MAX),
        Some(before) => Ok(checkpoints::find_head(tx, thread, before).await?.map_or(i64::MIN, |head| head.seq)),
    }
}

fn name_of(api: &Api, graph: &str) -> String {
    let card = api.runs.assistants().into_iter().find(|card| card.graph_id == graph);
    card.map_or_else(|| graph.to_owned(), |card| card.name)
}

/// The child run with this namespace on a thread; `Some(None)` stands for the main agent, none for nobody whose state is
/// seen.
async fn child_of(tx: &mut Tx<'_>, thread: ThreadId, namespace: &[TaskId]) -> DbResult<Option<Option<Run>>> {
    let Some(task) = namespace.last() else {
        let is_seen = background::visibility(tx, thread).await? == Visibility::Full;
        return Ok(is_seen.then_some(None));
    };
    let found = runs::find(tx, thread, RunId::of_child(*task)).await?;
    // What a subagent has in its state is part of what it does.
    let is_seen = |run: &Run| run.lineage.namespace == namespace && run.lineage.visibility == Visibility::Full;
    Ok(found.filter(is_seen).map(Some))
}

fn lane_of(child: Option<&Run>) -> Lane {
    child.map_or(Lane::Main, |child| Lane::Child(child.id))
}

/// Reads all that is needed to show a part of a history. None if there is no such thread.
async fn gather(tx: &mut Tx<'_>, id: ThreadId, namespace: &[TaskId], part: Part) -> DbResult<Option<Scene>> {
    let Some(thread) = threads::find(tx, id).await? else { return Ok(None) };
    let nothing =
        |thread| Scene { thread, child: None, checkpoints: vec![], after: None, runs: HashMap::new(), asked: vec![] };
    let Some(child) = child_of(tx, id, namespace).await? else { return Ok(Some(nothing(thread))) };
    let lane = lane_of(child.as_ref());
    let checkpoints = match part {
        Part::At(checkpoint) => checkpoints::get(tx, id, checkpoint).await?.into_iter().collect(),
        Part::Newest => checkpoints::history(tx, id, lane, HistoryQuery { limit: 1, before: None }).await?,
        Part::History(query) => checkpoints::history(tx, id, lane, query).await?,
    };
    let checkpoints: Vec<Checkpoint> = checkpoints.into_iter().filter(|found| found.lane == lane).collect();
    let Some(first) = checkpoints.first() else { return Ok(Some(nothing(thread))) };
    let after = checkpoints::next_after(tx, id, lane, first.seq).await?;
    let mut known = Known { thread: id, runs: HashMap::new() };
    for run in checkpoints.iter().filter_map(|checkpoint| checkpoint.run) {
        known.run(tx, run).await?;
    }
    if let Some(child) = &child {
        known.run(tx, child.lineage.root).await?;
    }
    let asked = known.asked(tx, lane, namespace).await?;
    Ok(Some(Scene { thread, child, checkpoints, after, runs: known.runs, asked }))
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

    /// The questions of an agent and of the subagents below it, each with the agent's task through which it is asked.
    async fn asked(
        &mut self,
        tx: &mut Tx<'_>,
        lane: Lane,
        namespace: &[TaskId],
    ) -> DbResult<Vec<(TaskId, interrupts::Asked)>> {
        let mut all = vec![];
        for asked in interrupts::of_thread(tx, self.thread, None).await? {
            let task = match asked.lane {
                own if own == lane => Some(asked.interrupt.task),
                Lane::Main => None,
                Lane::Child(child) => self.run(tx, child).await?.and_then(|run| {
                    let below = run.lineage.namespace.strip_prefix(namespace)?;
                    below.first().copied()
                }),
            };
            all.extend(task.map(|task| (task, asked)));
        }
        Ok(all)
    }
}
