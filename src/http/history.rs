//! Loads a part of an agent's history with everything that its checkpoints show.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::Api;
use super::error::ApiError;
use super::wire::Object;
use super::wire::history::{CompletedStep, ENVELOPE_BYTES, HistoryEntries, HistoryEntry, HistoryFields};
use super::wire::state::{HistoryContext, StateView, metadata_of, run_metadata};
use crate::db::checkpoints::{self, CheckpointSummary, HistoryQuery, NewestCheckpoint, Span};
use crate::db::interrupts::{InterruptState, UnreadInterrupt};
use crate::db::{DbResult, Tx, background, interrupts, off_thread, runs, threads};
use crate::domain::checkpoint::{self, Lane};
use crate::domain::filter::MetadataFilter;
use crate::domain::id::{CheckpointId, RunId, TaskId, ThreadId};
use crate::domain::machine::{Failure, Plan};
use crate::domain::recent_texts::RecentTexts;
use crate::domain::run::Run;
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::visibility::Visibility;

/// A part of a history.
#[derive(Debug, Clone)]
pub(super) enum HistorySlice {
    Newest,
    At(CheckpointId),
    /// The checkpoints whose metadata matches the filter; all when the filter is empty.
    History {
        query: HistoryQuery,
        /// The only checkpoint to find, if not all.
        only: Option<CheckpointId>,
        filter: MetadataFilter,
    },
}

impl HistorySlice {
    fn is_filtered(&self) -> bool {
        match self {
            Self::Newest | Self::At(_) => false,
            Self::History { filter, .. } => !filter.is_empty(),
        }
    }
}

/// The agent whose history is loaded: the main agent for an empty namespace, else the subagent of its last task.
#[derive(Debug, Clone)]
pub(super) struct HistoryTarget {
    pub(super) thread: ThreadId,
    pub(super) namespace: Vec<TaskId>,
}

/// A loaded part of a history. It yields one checkpoint after the other.
pub(super) struct HistoryPage {
    context: Option<HistoryContext>,
    plan: Option<Plan>,
    agent: String,
    entries: std::vec::IntoIter<HistoryEntry>,
    /// The approximate size in bytes.
    pub(super) bytes: usize,
    /// The checkpoint after which the history continues, if the page was cut for its size.
    pub(super) cursor: Option<CheckpointId>,
}

impl Iterator for HistoryPage {
    type Item = StateView;

    fn next(&mut self) -> Option<StateView> {
        let context = self.context.as_ref()?;
        Some(context.view(self.entries.next()?, self.plan.as_ref(), &self.agent))
    }
}

/// Loads a part of the history of an agent, of at most `budget` bytes but at least one checkpoint. The page is empty if
/// the agent does not exist.
pub(super) async fn load(
    api: &Api,
    target: HistoryTarget,
    slice: HistorySlice,
    fields: HistoryFields,
    budget: usize,
) -> Result<HistoryPage, ApiError> {
    let HistoryTarget { thread, namespace } = target;
    let assistants = api.assistants.default_assistants(&api.caller.tenant);
    let name_of = move |graph: &str| {
        let assistant = assistants.iter().find(|assistant| assistant.graph_id == graph);
        assistant.map_or_else(|| graph.to_owned(), |assistant| assistant.name.clone())
    };
    let wanted = WantedHistory {
        namespace,
        slice,
        fields,
        budget,
        recent: api.db.states().texts(),
    };
    // A filter that matches few of many checkpoints may take long.
    let found = if wanted.slice.is_filtered() {
        api.search(move |tx| Box::pin(async move { wanted.read(tx, thread, name_of).await }))
            .await?
    } else {
        api.db
            .read(move |tx| Box::pin(async move { wanted.read(tx, thread, name_of).await }))
            .await?
    };
    let Some((thread_found, agent, loaded)) = found else {
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
        run_notes,
        stopped_at,
        interrupts,
        entries,
        is_cut,
        newest_run,
    } = loaded;
    let plan = match child.as_ref().or(newest_run.as_ref()) {
        Some(run) => api.runs.plan_of_run(run, &thread_found.ownership.tenant).await?,
        None => api.runs.plan_on(&thread_found),
    };
    let cursor = entries.last().filter(|_| is_cut).map(|entry| entry.origin.id);
    let context = HistoryContext {
        thread: thread_found,
        child,
        run_notes,
        stopped_at,
        interrupts,
    };
    let context = Some(context.with_calls_of(&entries));
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

/// The number of checkpoints that a search reads at once.
const SEARCH_PAGE: i64 = 500;
/// The number of checkpoints whose runs are read together.
const READ_TOGETHER: usize = 16;
/// The number of checkpoints whose metadata is compared at once.
const COMPARE_CHUNK: usize = 32;

/// The sequence number of `before`. A checkpoint that does not exist has no older ones.
async fn seq_before(tx: &mut Tx<'_>, thread: ThreadId, before: Option<CheckpointId>) -> DbResult<i64> {
    match before {
        None => Ok(i64::MAX),
        Some(before) => Ok(checkpoints::find_head(tx, thread, before)
            .await?
            .map_or(i64::MIN, |head| head.seq)),
    }
}

/// The child run of this namespace; `Some(None)` for the main agent, `None` if no visible agent has the namespace.
/// `visibility` is that of the thread.
async fn child_of(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    namespace: &[TaskId],
    visibility: background::LaterVisibility,
) -> DbResult<Option<Option<Run>>> {
    let Some(task) = namespace.last() else {
        let is_visible = visibility.read(tx).await? == Visibility::Full;
        return Ok(is_visible.then_some(None));
    };
    let found = runs::find(tx, thread, RunId::of_child(*task)).await?;
    // The state of a subagent is visible only if all its work is.
    let is_visible = |run: &Run| run.lineage.namespace == namespace && run.lineage.visibility == Visibility::Full;
    Ok(found.filter(is_visible).map(Some))
}

fn lane_of(child: Option<&Run>) -> Lane {
    child.map_or(Lane::Main, |child| Lane::Child(child.id))
}

/// A part of a history as it is read from the database.
struct LoadedHistory {
    child: Option<Run>,
    run_notes: HashMap<RunId, Object>,
    stopped_at: Option<CheckpointId>,
    interrupts: Vec<(TaskId, interrupts::InterruptRecord)>,
    /// The entries, newest first.
    entries: Vec<HistoryEntry>,
    /// True if entries were left out for their size.
    is_cut: bool,
    newest_run: Option<Run>,
}

/// Loads a part of a history within a budget of bytes.
struct HistoryLoader {
    thread: Thread,
    namespace: Vec<TaskId>,
    /// The name of the thread's agent.
    agent: String,
    fields: HistoryFields,
    budget: usize,
    /// The texts of messages that clients have read before.
    recent: Arc<RecentTexts>,
    /// The metadata of runs that were read. Those of a copied thread belong to the original.
    runs: HashMap<RunId, Option<RunMetadata>>,
    /// The newest checkpoint, if only that is to be read.
    newest: Option<NewestCheckpoint>,
    /// The run of the newest checkpoint, if it was read together with that.
    newest_run: Option<Run>,
}

/// The metadata of a run as checkpoints show it.
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

/// The length of an object as JSON.
fn json_bytes(object: &Object) -> usize {
    serde_json::to_string(object).map_or(0, |text| text.len())
}

/// The rows of a thread that are read together with it. They need only one exchange with the database.
struct ThreadRows {
    visibility: background::LaterVisibility,
    /// The newest step of the main agent, if nothing else is to be read.
    newest: Option<NewestStep>,
    /// The interrupts that can be shown, if tasks are to be read.
    interrupts: Option<interrupts::LaterInterrupts>,
}

/// The newest step of a main agent that is read later.
struct NewestStep {
    checkpoint: checkpoints::LaterNewest,
    /// The run that made it.
    run: runs::LaterRun,
}

/// A part of a history that is to be read.
struct WantedHistory {
    namespace: Vec<TaskId>,
    slice: HistorySlice,
    fields: HistoryFields,
    budget: usize,
    /// The texts of messages that clients have read before.
    recent: Arc<RecentTexts>,
}

impl WantedHistory {
    /// Reads the part, with the thread and the name of its agent. `None` if the thread does not exist.
    async fn read(
        self,
        tx: &mut Tx<'_>,
        thread: ThreadId,
        name_of: impl Fn(&str) -> String + Send,
    ) -> DbResult<Option<(Thread, String, Option<LoadedHistory>)>> {
        let found = threads::find_later(tx, thread).await?;
        let rows = self.begin(tx, thread).await?;
        let Some(found) = found.find(tx).await? else {
            return Ok(None);
        };
        let graph_id = found.metadata.get("graph_id").and_then(Value::as_str);
        let agent = name_of(graph_id.unwrap_or_default());
        let mut loader = HistoryLoader {
            thread: found,
            namespace: self.namespace,
            agent,
            fields: self.fields,
            budget: self.budget,
            recent: self.recent,
            runs: HashMap::new(),
            newest: None,
            newest_run: None,
        };
        let loaded = loader.load(tx, self.slice, rows).await?;
        Ok(Some((loader.thread, loader.agent, loaded)))
    }

    /// Begins to read the rows of the thread.
    async fn begin(&self, tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<ThreadRows> {
        let is_newest = matches!(self.slice, HistorySlice::Newest);
        // No step follows the newest checkpoint whose answered interrupts could be shown.
        let status = is_newest.then_some(InterruptState::Pending);
        Ok(ThreadRows {
            visibility: background::visibility_later(tx, thread).await?,
            newest: match is_newest && self.namespace.is_empty() {
                true => Some(NewestStep {
                    checkpoint: checkpoints::newest_later(tx, thread, Lane::Main).await?,
                    run: runs::of_newest_step_later(tx, thread).await?,
                }),
                false => None,
            },
            interrupts: match self.fields.tasks {
                true => Some(interrupts::of_thread_later(tx, thread, status).await?),
                false => None,
            },
        })
    }
}

impl HistoryLoader {
    /// Reads a part of the history. `None` if there is nothing to show.
    async fn load(
        &mut self,
        tx: &mut Tx<'_>,
        slice: HistorySlice,
        rows: ThreadRows,
    ) -> DbResult<Option<LoadedHistory>> {
        let thread = self.thread.id;
        let ThreadRows {
            visibility,
            newest,
            interrupts,
        } = rows;
        let Some(child) = child_of(tx, thread, &self.namespace, visibility).await? else {
            return Ok(None);
        };
        let lane = lane_of(child.as_ref());
        let is_newest = matches!(slice, HistorySlice::Newest);
        let (summaries, is_search) = match slice {
            HistorySlice::At(checkpoint) => (
                checkpoints::load_summary(tx, thread, lane, checkpoint)
                    .await?
                    .into_iter()
                    .collect(),
                false,
            ),
            HistorySlice::Newest => (self.read_newest(tx, lane, newest).await?.into_iter().collect(), false),
            HistorySlice::History { query, only, filter } => {
                let agent = child
                    .as_ref()
                    .map_or(self.agent.as_str(), |child| child.lineage.agent())
                    .to_owned();
                let search = Search {
                    lane,
                    only,
                    before: seq_before(tx, thread, query.before).await?,
                    limit: query.limit,
                    filter,
                    agent,
                };
                let is_search = only.is_some() || !search.filter.is_empty();
                (self.search(tx, search).await?, is_search)
            }
        };
        let count = summaries.len();
        let summaries = self.within_budget(tx, summaries).await?;
        let Some(newest) = summaries.first().copied() else {
            return Ok(None);
        };
        let is_truncated = summaries.len() < count;
        let next = match self.fields.tasks && !is_newest {
            true => checkpoints::next_after(tx, thread, lane, newest.seq).await?,
            false => None,
        };
        let (entries, is_cut) = self.entries(tx, lane, summaries, is_search, next.as_ref()).await?;
        let newest_run = match (newest.run, child.is_some()) {
            (Some(run), false) if self.fields.tasks => match self.newest_run.take() {
                Some(found) => Some(found),
                None => runs::get_by_id(tx, run).await?,
            },
            (_, _) => None,
        };
        let interrupts = match interrupts {
            Some(rows) => self.interrupts(tx, lane, &entries, rows).await?,
            None => vec![],
        };
        let is_stopped = lane == Lane::Main && self.fields.tasks && next.is_none() && self.was_cancelled();
        let run_notes = self
            .runs
            .drain()
            .filter_map(|(run, run_notes)| Some((run, run_notes?.metadata)))
            .collect();
        Ok(Some(LoadedHistory {
            child,
            run_notes,
            stopped_at: is_stopped.then_some(newest.id),
            interrupts,
            entries,
            is_cut: is_cut || is_truncated,
            newest_run,
        }))
    }

    /// The newest checkpoint of a lane. `rows` are those of the main agent, if they are to be read already.
    async fn read_newest(
        &mut self,
        tx: &mut Tx<'_>,
        lane: Lane,
        rows: Option<NewestStep>,
    ) -> DbResult<Option<CheckpointSummary>> {
        let Some(NewestStep { checkpoint, run }) = rows else {
            return checkpoints::newest_summary(tx, self.thread.id, lane).await;
        };
        self.newest = checkpoint.read(tx).await?;
        let newest = self.newest.as_ref().map(|newest| newest.summary);
        if let Some(id) = newest.and_then(|newest| newest.run) {
            self.newest_run = run.read(tx).await?;
            let run_notes = self.newest_run.as_ref().map(RunMetadata::of);
            self.runs.insert(id, run_notes);
        }
        Ok(newest)
    }

    /// Returns whether the last run of the thread was cancelled.
    fn was_cancelled(&self) -> bool {
        let Thread { status, error, .. } = &self.thread;
        *status == ThreadStatus::Interrupted && *error == Some(Failure::cancelled())
    }

    /// The newest checkpoints whose metadata alone fits the budget.
    async fn within_budget(
        &mut self,
        tx: &mut Tx<'_>,
        mut summaries: Vec<CheckpointSummary>,
    ) -> DbResult<Vec<CheckpointSummary>> {
        let mut bytes = 0;
        let own = ENVELOPE_BYTES + json_bytes(&self.thread.metadata);
        for at in 0..summaries.len() {
            if at.is_multiple_of(READ_TOGETHER) {
                let next = summaries[at..].iter().take(READ_TOGETHER);
                let wanted = next.filter_map(|summary| summary.run).collect();
                self.read_runs(tx, wanted).await?;
            }
            bytes += own;
            if let Some(run) = summaries[at].run {
                bytes += self.run(tx, run).await?.map_or(0, |run_notes| run_notes.bytes);
            }
            if bytes > self.budget && at > 0 {
                summaries.truncate(at);
                break;
            }
        }
        Ok(summaries)
    }

    /// Reads the metadata of those of the runs that are not known. They are read together.
    async fn read_runs(&mut self, tx: &mut Tx<'_>, mut wanted: HashSet<RunId>) -> DbResult<()> {
        wanted.retain(|run| !self.runs.contains_key(run));
        let mut later = Vec::with_capacity(wanted.len());
        for id in wanted {
            later.push((id, runs::get_later(tx, id).await?));
        }
        for (id, run) in later {
            let run_notes = run.read(tx).await?.as_ref().map(RunMetadata::of);
            self.runs.insert(id, run_notes);
        }
        Ok(())
    }

    /// Reads the requested fields of the checkpoints, newest first. `next` is the step after the newest one, if it is
    /// requested and exists.
    async fn entries(
        &mut self,
        tx: &mut Tx<'_>,
        lane: Lane,
        summaries: Vec<CheckpointSummary>,
        is_search: bool,
        next: Option<&checkpoint::Entry>,
    ) -> DbResult<(Vec<HistoryEntry>, bool)> {
        let own = json_bytes(&self.thread.metadata);
        let run_notes = self
            .runs
            .iter()
            .filter_map(|(run, run_notes)| Some((*run, own + run_notes.as_ref()?.bytes)))
            .collect();
        let only = is_search.then(|| summaries.iter().map(|summary| summary.id).collect::<HashSet<_>>());
        let mut entries = HistoryEntries::new(
            self.fields.clone(),
            self.budget,
            run_notes,
            only,
            Arc::clone(&self.recent),
        );
        let (Some(newest), Some(oldest)) = (summaries.first(), summaries.last()) else {
            return Ok((vec![], false));
        };
        if self.fields.values || self.fields.tasks {
            let span = Span {
                thread: self.thread.id,
                lane,
                first: oldest.seq,
                last: newest.seq,
            };
            match self.newest.take() {
                Some(newest) => newest.visit(tx, self.fields.values, &mut entries).await?,
                None => checkpoints::walk(tx, span, self.fields.values, &mut entries).await?,
            }
        } else {
            summaries.iter().rev().for_each(|summary| entries.add(*summary));
        }
        if let Some(next) = next {
            entries.complete_newest(next);
        }
        Ok(entries.finish())
    }

    async fn run(&mut self, tx: &mut Tx<'_>, id: RunId) -> DbResult<Option<&RunMetadata>> {
        let run_notes = match self.runs.entry(id) {
            Entry::Occupied(runs) => runs.into_mut(),
            Entry::Vacant(free) => free.insert(runs::get_by_id(tx, id).await?.as_ref().map(RunMetadata::of)),
        };
        Ok(run_notes.as_ref())
    }

    /// The interrupts of an agent and of its subagents, each with the agent's task that raised it. Those of the agent that no entry
    /// shows are left out.
    async fn interrupts(
        &mut self,
        tx: &mut Tx<'_>,
        lane: Lane,
        entries: &[HistoryEntry],
        rows: interrupts::LaterInterrupts,
    ) -> DbResult<Vec<(TaskId, interrupts::InterruptRecord)>> {
        let completed = entries.iter().filter_map(|entry| entry.completed.as_ref());
        let shown: HashSet<TaskId> = completed.flat_map(CompletedStep::tasks).collect();
        let is_shown =
            move |asked: UnreadInterrupt| asked.is_pending || asked.lane != lane || shown.contains(&asked.task);
        let mut all = vec![];
        for record in rows.read_where(tx, is_shown).await? {
            let task = match record.lane {
                own if own == lane => Some(record.interrupt.task),
                Lane::Main => None,
                Lane::Child(child) => {
                    let namespace = self.namespace.clone();
                    self.run(tx, child).await?.and_then(|run_notes| {
                        let below = run_notes.namespace.strip_prefix(namespace.as_slice())?;
                        below.first().copied()
                    })
                }
            };
            all.extend(task.map(|task| (task, record)));
        }
        Ok(all)
    }
}

/// The conditions of a search among the checkpoints of a lane.
struct Search {
    lane: Lane,
    /// The only checkpoint to find, if not all.
    only: Option<CheckpointId>,
    before: i64,
    limit: i64,
    filter: MetadataFilter,
    /// The name of the lane's agent.
    agent: String,
}

impl Search {
    /// Up to `limit` checkpoints with numbers below `before`, whatever their metadata, newest first.
    async fn page(
        &self,
        tx: &mut Tx<'_>,
        thread: ThreadId,
        before: i64,
        limit: i64,
    ) -> DbResult<Vec<CheckpointSummary>> {
        match self.only {
            Some(only) => {
                let found = checkpoints::load_summary(tx, thread, self.lane, only).await?;
                Ok(found.into_iter().filter(|summary| summary.seq < before).collect())
            }
            None => checkpoints::load_summaries(tx, thread, self.lane, before, limit).await,
        }
    }
}

impl HistoryLoader {
    /// The checkpoints whose metadata matches the filter, newest first.
    async fn search(&mut self, tx: &mut Tx<'_>, search: Search) -> DbResult<Vec<CheckpointSummary>> {
        let thread = self.thread.id;
        let mut before = search.before;
        if search.filter.is_empty() {
            return search.page(tx, thread, before, search.limit).await;
        }
        let mut found_all = vec![];
        loop {
            let page = search.page(tx, thread, before, SEARCH_PAGE).await?;
            let Some(last) = page.last() else { return Ok(found_all) };
            before = last.seq;
            for chunk in page.chunks(COMPARE_CHUNK) {
                for found in self.matching(tx, chunk, &search.filter, &search.agent).await? {
                    found_all.push(found);
                    if i64::try_from(found_all.len()).is_ok_and(|count| count >= search.limit) {
                        return Ok(found_all);
                    }
                }
            }
        }
    }

    /// The checkpoints of one chunk that match the filter.
    async fn matching(
        &mut self,
        tx: &mut Tx<'_>,
        chunk: &[CheckpointSummary],
        filter: &MetadataFilter,
        agent: &str,
    ) -> DbResult<Vec<CheckpointSummary>> {
        let mut candidates = Vec::with_capacity(chunk.len());
        for summary in chunk {
            if self
                .runs
                .values()
                .flatten()
                .map(|run_notes| run_notes.bytes)
                .sum::<usize>()
                > self.budget
            {
                self.runs.clear();
            }
            if let Some(run) = summary.run {
                self.run(tx, run).await?;
            }
            let run_notes = summary.run.and_then(|run| self.runs.get(&run)).and_then(Option::as_ref);
            candidates.push((
                *summary,
                metadata_of(
                    &self.thread,
                    summary,
                    run_notes.map(|run_notes| &run_notes.metadata),
                    agent,
                ),
            ));
        }
        let filter = filter.clone();
        off_thread(move |stop| {
            let fits = |metadata: &Object| filter.matches_unless(metadata, &|| stop.is_set());
            candidates
                .into_iter()
                .filter(|(_, metadata)| fits(metadata))
                .map(|(summary, _)| summary)
                .collect()
        })
        .await
    }
}
