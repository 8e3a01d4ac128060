//! Builds a page of a history. Checkpoints are added oldest first, and the newest that fit are kept.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use serde_json::value::{RawValue, to_raw_value};

use super::values::{Values, ValuesWriter};
use crate::db::checkpoints::{CheckpointSummary, Visit};
use crate::domain::checkpoint::{Checkpoint, CheckpointSource, Entry};
use crate::domain::id::{CheckpointId, RunId, StepBase, TaskId};
use crate::domain::machine::{Position, TOOLS};
use crate::domain::recent_texts::RecentTexts;
use crate::domain::state::{State, Update};

/// The approximate size of a checkpoint besides its content: ids, times, names.
pub const ENVELOPE_BYTES: usize = 1024;

/// A checkpoint of a history.
#[derive(Debug)]
pub struct HistoryEntry {
    /// The origin of the checkpoint.
    pub origin: CheckpointSummary,
    /// The state at the checkpoint; empty when values are not selected.
    pub values: Values,
    /// The next tasks; `None` when tasks are not selected or the next step is completed.
    pub position: Option<Position>,
    /// The completed step that follows the checkpoint.
    pub completed: Option<CompletedStep>,
    /// The approximate size in bytes.
    pub bytes: usize,
}

/// A completed step of the loop.
#[derive(Debug)]
pub struct CompletedStep {
    /// The node.
    pub node: String,
    /// The base of the step, from which its tasks have their ids.
    pub base: StepBase,
    /// The writes of each task as JSON; `None` for a task without writes.
    pub results: Vec<Option<Box<RawValue>>>,
    /// The number in the log of the checkpoint that ends the step, or a higher one if it is not known.
    pub until: i64,
}

impl CompletedStep {
    fn of(step: &Entry, until: i64) -> Self {
        let result = |writes: &Update| match writes.is_empty() {
            true => None,
            false => to_raw_value(&writes.public()).ok(),
        };
        let mut results: Vec<_> = step.writes.iter().map(result).collect();
        if step.node != TOOLS {
            results.truncate(1);
            results.resize_with(1, || None);
        }
        Self {
            node: step.node.clone(),
            base: step.base(),
            results,
            until,
        }
    }

    /// Returns the ids of its tasks.
    pub fn tasks(&self) -> impl Iterator<Item = TaskId> {
        (0..self.results.len()).map(move |at| self.base.task(&self.node, at))
    }

    fn bytes(&self) -> usize {
        self.results
            .iter()
            .map(|result| 256 + result.as_ref().map_or(0, |text| text.get().len()))
            .sum()
    }
}

/// The fields of checkpoints to load.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryFields {
    /// The values.
    pub values: bool,
    /// The keys of the values; all when empty.
    pub keys: Vec<String>,
    /// The next tasks with their results and interrupts.
    pub tasks: bool,
}

/// A page of a history under construction.
pub struct HistoryEntries {
    fields: HistoryFields,
    /// The size limit of the page in bytes. Its newest checkpoint is always kept.
    budget: usize,
    bytes: usize,
    /// The size of each run's metadata in bytes.
    metadata_bytes: HashMap<RunId, usize>,
    /// The only checkpoints to keep; all if `None`.
    only: Option<HashSet<CheckpointId>>,
    writer: ValuesWriter,
    /// The kept checkpoints, oldest first.
    entries: VecDeque<HistoryEntry>,
    /// The index of each checkpoint among all that were added.
    positions: HashMap<CheckpointId, usize>,
    /// The number of checkpoints that were dropped again.
    dropped: usize,
    newest: Option<CheckpointId>,
    next: Option<(CheckpointSummary, Option<Position>)>,
}

impl HistoryEntries {
    /// Creates an empty page of at most `budget` bytes. The texts of messages in `recent` are known.
    pub fn new(
        fields: HistoryFields,
        budget: usize,
        metadata_bytes: HashMap<RunId, usize>,
        only: Option<HashSet<CheckpointId>>,
        recent: Arc<RecentTexts>,
    ) -> Self {
        Self {
            metadata_bytes,
            writer: ValuesWriter::new(fields.keys.clone(), recent),
            fields,
            budget,
            bytes: 0,
            only,
            entries: VecDeque::new(),
            positions: HashMap::new(),
            dropped: 0,
            newest: None,
            next: None,
        }
    }

    /// Adds a checkpoint without values and tasks.
    pub fn add(&mut self, origin: CheckpointSummary) {
        let bytes = self.envelope(&origin);
        self.push(HistoryEntry {
            origin,
            values: Values::default(),
            position: None,
            completed: None,
            bytes,
        });
    }

    fn envelope(&self, origin: &CheckpointSummary) -> usize {
        let metadata_bytes = origin.run.and_then(|run| self.metadata_bytes.get(&run));
        ENVELOPE_BYTES + metadata_bytes.copied().unwrap_or(0)
    }

    /// Adds the step that follows the newest checkpoint of the page.
    pub fn complete_newest(&mut self, step: &Entry) {
        if self.fields.tasks {
            self.complete(step, i64::MAX, false);
        }
    }

    /// Returns the page, newest checkpoint first, and whether checkpoints were dropped for their size.
    pub fn finish(self) -> (Vec<HistoryEntry>, bool) {
        let is_cut = self.dropped > 0;
        (self.entries.into_iter().rev().collect(), is_cut)
    }

    fn push(&mut self, entry: HistoryEntry) {
        self.bytes += entry.bytes;
        self.positions
            .insert(entry.origin.id, self.dropped + self.entries.len());
        self.entries.push_back(entry);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > self.budget && self.entries.len() > 1 {
            if let Some(oldest) = self.entries.pop_front() {
                self.bytes -= oldest.bytes;
                self.positions.remove(&oldest.origin.id);
                self.dropped += 1;
            }
        }
    }

    /// Adds a completed step, which ends at the number `until` of the log, to its parent checkpoint. The newest step wins.
    fn complete(&mut self, step: &Entry, until: i64, replaces: bool) {
        let parent = step.parent.filter(|_| step.source == CheckpointSource::Loop);
        let Some(position) = parent.and_then(|parent| self.positions.get(&parent)).copied() else {
            return;
        };
        let Some(entry) = self.entries.get_mut(position - self.dropped) else {
            return;
        };
        if entry.completed.is_some() && !replaces {
            return;
        }
        let completed = CompletedStep::of(step, until);
        let before = entry.completed.as_ref().map_or(0, CompletedStep::bytes);
        let after = completed.bytes();
        entry.bytes = entry.bytes + after - before;
        entry.position = None;
        entry.completed = Some(completed);
        self.bytes = self.bytes + after - before;
        self.shrink();
    }
}

impl Visit for HistoryEntries {
    fn step(&mut self, checkpoint: &Checkpoint) {
        let entry = &checkpoint.entry;
        if self.fields.tasks {
            self.complete(entry, checkpoint.seq, true);
        }
        if self.fields.values {
            let names: BTreeSet<&str> = entry
                .writes
                .iter()
                .flat_map(|update| update.fields.keys())
                .map(String::as_str)
                .collect();
            let follows = entry.parent.is_some() && entry.parent == self.newest;
            self.writer.fields_changed(follows.then_some(&names));
        }
        self.newest = Some(entry.id);
        let origin = CheckpointSummary {
            id: entry.id,
            seq: checkpoint.seq,
            step: entry.step,
            source: entry.source,
            run: checkpoint.run,
            parent: entry.parent,
            fork_of: entry.parent.filter(|_| checkpoint.forks),
            created_at: checkpoint.created_at,
        };
        self.next = Some((origin, self.fields.tasks.then(|| checkpoint.position.clone())));
    }

    fn state(&mut self, state: Option<&State>) {
        let Some((origin, position)) = self.next.take() else {
            return;
        };
        if self.only.as_ref().is_some_and(|only| !only.contains(&origin.id)) {
            return;
        }
        let values = state
            .filter(|_| self.fields.values)
            .map(|state| self.writer.write(state))
            .unwrap_or_default();
        let bytes = self.envelope(&origin) + values.bytes();
        self.push(HistoryEntry {
            origin,
            values,
            position,
            completed: None,
            bytes,
        });
    }
}
