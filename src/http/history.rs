//! Loads a part of the history of an agent, with all that is needed to show its checkpoints.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::Api;
use super::error::ApiError;
use super::wire::Object;
use super::wire::history::{ENVELOPE_BYTES, HistoryEntries, HistoryEntry, HistoryFields};
use super::wire::state::{HistoryContext, StateView, metadata_of, run_metadata};
use crate::db::checkpoints::{self, CheckpointSummary, HistoryQuery, Span};
use crate::db::{DbResult, Tx, background, interrupts, off_thread, runs, threads};
use crate::domain::checkpoint::Lane;
use crate::domain::filter::MetadataFilter;
use crate::domain::id::{CheckpointId, RunId, TaskId, ThreadId};
use crate::domain::machine::Plan;
use crate::domain::run::Run;
use crate::domain::thread::Thread;
use crate::domain::visibility::Visibility;

/// Which part of a history is to be shown.
#[derive(Debug, Clone)]
pub(super) enum HistorySlice {
    Newest,
    At(CheckpointId),
    /// Those checkpoints whose metadata contains what is wanted; all when the filter is empty.
    History(HistoryQuery, MetadataFilter),
}

/// The agent whose history it is: the main agent when the namespace is empty, else the subagent that worked on its last task.
#[derive(Debug, Clone)]
pub(super) struct HistoryOf {
    pub(super) thread: ThreadId,
    pub(super) namespace: Vec<TaskId>,
}

/// A part of a history, ready to be shown one checkpoint after the other.
pub(super) struct HistoryPage {
    context: Option<HistoryContext>,
    plan: Option<Plan>,
    agent: String,
    entries: std::vec::IntoIter<HistoryEntry>,
    /// How many bytes it has, roughly.
    pub(super) bytes: usize,
    /// Behind which checkpoint the history goes on, when the page had to end for its size.
    pub(super) cursor: Option<CheckpointId>,
}

impl Iterator for HistoryPage {
    type Item = StateView;

    fn next(&mut self) -> Option<StateView> {
        let context = self.context.as_ref()?;
        Some(context.view(self.entries.next()?, self.plan.as_ref(), &self.agent))
    }
}

/// Reads a part of the history of an agent on a thread, of at most `budget` bytes, though at least one checkpoint. There is
/// nothing to show of an agent that is not there.
pub(super) async fn load(
    api: &Api,
    whose: HistoryOf,
    part: HistorySlice,
    parts: HistoryFields,
    budget: usize,
) -> Result<HistoryPage, ApiError> {
    let HistoryOf { thread, namespace } = whose;
    let cards = api.assistants.default_assistants();
    let name_of = move |graph: &str| {
        let card = cards.iter().find(|card| card.graph_id == graph);
        card.map_or_else(|| graph.to_owned(), |card| card.name.clone())
    };
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let Some(found) = threads::find(tx, thread).await? else {
                return Ok(None);
            };
            let agent = name_of(
                found
                    .metadata
                    .get("graph_id")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
            );
            let mut loader = HistoryLoader {
                thread: found,
                namespace,
                agent,
                parts,
                budget,
                known: HashMap::new(),
            };
            let loaded = loader.load(tx, part).await?;
            Ok(Some((loader.thread, loader.agent, loaded)))
        })
    });
    let Some((thread_found, agent, loaded)) = read.await? else {
        return Err(ApiError::no_thread(thread));
    };
    let Some(loaded) = loaded else {
        return Ok(HistoryPage {
            context: None,
            plan: None,
            agent,
            entries: vec![].into_iter(),
            bytes: 0,
            cursor: None,
        });
    };
    let LoadedHistory {
        child,
        notes,
        asked,
        entries,
        is_cut,
        newest_run,
    } = loaded;
    let graph = thread_found
        .metadata
        .get("graph_id")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let plan = match child.as_ref().or(newest_run.as_ref()) {
        Some(run) => api.runs.plan_of_run(run).await?,
        None => api.runs.plan_of(graph),
    };
    let cursor = entries.last().filter(|_| is_cut).map(|entry| entry.origin.id);
    let context = Some(HistoryContext {
        thread: thread_found,
        child,
        notes,
        asked,
    });
    let bytes = entries.iter().map(|entry| entry.bytes).sum();
    Ok(HistoryPage {
        context,
        plan,
        agent,
        entries: entries.into_iter(),
        bytes,
        cursor,
    })
}

/// How many checkpoints are looked at in one go when some are searched for.
const AT_ONCE: i64 = 500;
/// Of how many of them the metadata is in memory at once.
const COMPARED_AT_ONCE: usize = 32;

/// The number behind which nothing is wanted. None are older than a checkpoint that is not there.
async fn edge(tx: &mut Tx<'_>, thread: ThreadId, before: Option<CheckpointId>) -> DbResult<i64> {
    match before {
        None => Ok(i64::MAX),
        Some(before) => Ok(checkpoints::find_head(tx, thread, before)
            .await?
            .map_or(i64::MIN, |head| head.seq)),
    }
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

/// A part of a history with all that is needed to show it.
struct LoadedHistory {
    child: Option<Run>,
    notes: HashMap<RunId, Object>,
    asked: Vec<(TaskId, interrupts::InterruptRecord)>,
    /// The newest first.
    entries: Vec<HistoryEntry>,
    /// Whether some were left out for their size.
    is_cut: bool,
    newest_run: Option<Run>,
}

/// Loads a part of a history, within a budget of bytes.
struct HistoryLoader {
    thread: Thread,
    namespace: Vec<TaskId>,
    /// The name of the thread's agent.
    agent: String,
    parts: HistoryFields,
    budget: usize,
    /// What of runs has been read. Those of a copied thread's history belong to the original.
    known: HashMap<RunId, Option<RunMetadata>>,
}

/// The metadata of a run, as checkpoints show it.
struct RunMetadata {
    metadata: Object,
    bytes: usize,
    namespace: Vec<TaskId>,
}

impl RunMetadata {
    fn of(run: &Run) -> Self {
        let metadata = run_metadata(run);
        let bytes = json_bytes(&metadata);
        Self {
            metadata,
            bytes,
            namespace: run.lineage.namespace.clone(),
        }
    }
}

/// How many bytes the JSON of an object has.
fn json_bytes(object: &Object) -> usize {
    serde_json::to_string(object).map_or(0, |text| text.len())
}

impl HistoryLoader {
    /// Reads all that is needed to show a part of the history. None if there is nothing to be seen.
    async fn load(&mut self, tx: &mut Tx<'_>, part: HistorySlice) -> DbResult<Option<LoadedHistory>> {
        let thread = self.thread.id;
        let Some(child) = child_of(tx, thread, &self.namespace).await? else {
            return Ok(None);
        };
        let lane = lane_of(child.as_ref());
        let (wanted, is_search) = match part {
            HistorySlice::At(checkpoint) => (
                checkpoints::sketch(tx, thread, lane, checkpoint)
                    .await?
                    .into_iter()
                    .collect(),
                false,
            ),
            HistorySlice::Newest => (checkpoints::sketches(tx, thread, lane, i64::MAX, 1).await?, false),
            HistorySlice::History(query, filter) => {
                let before = edge(tx, thread, query.before).await?;
                if filter.is_empty() {
                    (
                        checkpoints::sketches(tx, thread, lane, before, query.limit).await?,
                        false,
                    )
                } else {
                    let agent = child
                        .as_ref()
                        .map_or(self.agent.as_str(), |child| child.lineage.agent())
                        .to_owned();
                    (
                        self.search(
                            tx,
                            Search {
                                lane,
                                before,
                                limit: query.limit,
                                filter,
                                agent,
                            },
                        )
                        .await?,
                        true,
                    )
                }
            }
        };
        let count = wanted.len();
        let wanted = self.fitting(tx, wanted).await?;
        let Some(newest) = wanted.first().copied() else {
            return Ok(None);
        };
        let is_short = wanted.len() < count;
        let (entries, is_cut) = self.entries(tx, lane, wanted, is_search).await?;
        let newest_run = match (newest.run, child.is_some()) {
            (Some(run), false) if self.parts.tasks => runs::get_by_id(tx, run).await?,
            (_, _) => None,
        };
        let asked = if self.parts.tasks {
            self.asked(tx, lane).await?
        } else {
            vec![]
        };
        let notes = self
            .known
            .drain()
            .filter_map(|(run, notes)| Some((run, notes?.metadata)))
            .collect();
        Ok(Some(LoadedHistory {
            child,
            notes,
            asked,
            entries,
            is_cut: is_cut || is_short,
            newest_run,
        }))
    }

    /// Those of the checkpoints whose metadata alone fits, the newest first.
    async fn fitting(
        &mut self,
        tx: &mut Tx<'_>,
        mut wanted: Vec<CheckpointSummary>,
    ) -> DbResult<Vec<CheckpointSummary>> {
        let mut bytes = 0;
        let own = ENVELOPE_BYTES + json_bytes(&self.thread.metadata);
        for at in 0..wanted.len() {
            bytes += own;
            if let Some(run) = wanted[at].run {
                bytes += self.run(tx, run).await?.map_or(0, |notes| notes.bytes);
            }
            if bytes > self.budget && at > 0 {
                wanted.truncate(at);
                break;
            }
        }
        Ok(wanted)
    }

    /// Reads what is wanted of the checkpoints. The newest comes first, before and after.
    async fn entries(
        &self,
        tx: &mut Tx<'_>,
        lane: Lane,
        wanted: Vec<CheckpointSummary>,
        is_search: bool,
    ) -> DbResult<(Vec<HistoryEntry>, bool)> {
        let own = json_bytes(&self.thread.metadata);
        let notes = self
            .known
            .iter()
            .filter_map(|(run, notes)| Some((*run, own + notes.as_ref()?.bytes)))
            .collect();
        let only = is_search.then(|| wanted.iter().map(|sketch| sketch.id).collect::<HashSet<_>>());
        let mut entries = HistoryEntries::new(self.parts.clone(), self.budget, notes, only);
        let (Some(newest), Some(oldest)) = (wanted.first(), wanted.last()) else {
            return Ok((vec![], false));
        };
        if self.parts.values || self.parts.tasks {
            let span = Span {
                thread: self.thread.id,
                lane,
                first: oldest.seq,
                last: newest.seq,
            };
            checkpoints::walk(tx, span, self.parts.values, &mut entries).await?;
        } else {
            wanted.iter().rev().for_each(|sketch| entries.add(*sketch));
        }
        if self.parts.tasks
            && let Some(after) = checkpoints::next_after(tx, self.thread.id, lane, newest.seq).await?
        {
            entries.follow(&after);
        }
        Ok(entries.finish())
    }

    async fn run(&mut self, tx: &mut Tx<'_>, id: RunId) -> DbResult<Option<&RunMetadata>> {
        let notes = match self.known.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(runs::get_by_id(tx, id).await?.as_ref().map(RunMetadata::of)),
        };
        Ok(notes.as_ref())
    }

    /// The questions of an agent and of the subagents below it, each with the agent's task through which it is asked.
    async fn asked(&mut self, tx: &mut Tx<'_>, lane: Lane) -> DbResult<Vec<(TaskId, interrupts::InterruptRecord)>> {
        let mut all = vec![];
        for asked in interrupts::of_thread(tx, self.thread.id, None).await? {
            let task = match asked.lane {
                own if own == lane => Some(asked.interrupt.task),
                Lane::Main => None,
                Lane::Child(child) => {
                    let namespace = self.namespace.clone();
                    self.run(tx, child).await?.and_then(|notes| {
                        let below = notes.namespace.strip_prefix(namespace.as_slice())?;
                        below.first().copied()
                    })
                }
            };
            all.extend(task.map(|task| (task, asked)));
        }
        Ok(all)
    }
}

/// Which checkpoints of a lane are searched for.
struct Search {
    lane: Lane,
    before: i64,
    limit: i64,
    filter: MetadataFilter,
    /// The name of the agent whose lane it is.
    agent: String,
}

impl HistoryLoader {
    /// The checkpoints whose metadata contains what is wanted, the newest first.
    async fn search(&mut self, tx: &mut Tx<'_>, search: Search) -> DbResult<Vec<CheckpointSummary>> {
        let Search {
            lane,
            mut before,
            limit,
            filter,
            agent,
        } = search;
        let mut matching = vec![];
        loop {
            let page = checkpoints::sketches(tx, self.thread.id, lane, before, AT_ONCE).await?;
            let Some(last) = page.last() else { return Ok(matching) };
            before = last.seq;
            for some in page.chunks(COMPARED_AT_ONCE) {
                for found in self.fitting_ones(tx, some, &filter, &agent).await? {
                    matching.push(found);
                    if i64::try_from(matching.len()).is_ok_and(|count| count >= limit) {
                        return Ok(matching);
                    }
                }
            }
        }
    }

    /// Those of some checkpoints whose metadata contains what is wanted.
    async fn fitting_ones(
        &mut self,
        tx: &mut Tx<'_>,
        some: &[CheckpointSummary],
        filter: &MetadataFilter,
        agent: &str,
    ) -> DbResult<Vec<CheckpointSummary>> {
        let mut candidates = Vec::with_capacity(some.len());
        for sketch in some {
            if self.known.values().flatten().map(|notes| notes.bytes).sum::<usize>() > self.budget {
                self.known.clear();
            }
            if let Some(run) = sketch.run {
                self.run(tx, run).await?;
            }
            let notes = sketch.run.and_then(|run| self.known.get(&run)).and_then(Option::as_ref);
            candidates.push((
                *sketch,
                metadata_of(&self.thread, sketch, notes.map(|notes| &notes.metadata), agent),
            ));
        }
        let filter = filter.clone();
        off_thread(move |stop| {
            let fits = |metadata: &Object| filter.matches_unless(metadata, &|| stop.is_set());
            candidates
                .into_iter()
                .filter(|(_, metadata)| fits(metadata))
                .map(|(sketch, _)| sketch)
                .collect()
        })
        .await
    }
}
