//! A page of a history under construction: checkpoints come the oldest first, and the newest of them that fit stay.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use serde_json::value::{RawValue, to_raw_value};

use super::values::{Values, ValuesWriter};
use crate::db::checkpoints::{CheckpointSummary, Visit};
use crate::domain::checkpoint::{Checkpoint, CheckpointSource, Entry};
use crate::domain::id::{CheckpointId, RunId};
use crate::domain::machine::{Position, TOOLS};
use crate::domain::state::{State, Update};

/// What a checkpoint costs besides its texts: ids, times, names.
pub const ENVELOPE_BYTES: usize = 1024;

/// A checkpoint that is to be shown.
#[derive(Debug)]
pub struct HistoryEntry {
    /// How it came to be.
    pub origin: CheckpointSummary,
    /// The state at it; nothing when values are not wanted.
    pub values: Values,
    /// What comes next; none when tasks are not wanted, or when a step was taken.
    pub position: Option<Position>,
    /// The step that the loop took from it.
    pub completed: Option<CompletedStep>,
    /// How many bytes showing it takes, roughly.
    pub bytes: usize,
}

/// A step that the loop took.
#[derive(Debug)]
pub struct CompletedStep {
    /// The node.
    pub node: String,
    /// What each of its tasks wrote, as JSON; none for one that wrote nothing.
    pub results: Vec<Option<Box<RawValue>>>,
}

impl CompletedStep {
    fn of(step: &Entry) -> Self {
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
            results,
        }
    }

    fn bytes(&self) -> usize {
        self.results
            .iter()
            .map(|result| 256 + result.as_ref().map_or(0, |text| text.get().len()))
            .sum()
    }
}

/// What of checkpoints is wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryFields {
    /// The values.
    pub values: bool,
    /// The fields of the values; all when empty.
    pub keys: Vec<String>,
    /// The tasks that come next, with their results and questions.
    pub tasks: bool,
}

/// A page of a history under construction.
pub struct HistoryEntries {
    fields: HistoryFields,
    /// How many bytes the page may have. Its newest checkpoint is shown whatever its size.
    budget: usize,
    bytes: usize,
    /// How many bytes the metadata that the runs leave in their checkpoints have.
    metadata_bytes: HashMap<RunId, usize>,
    /// Only these are shown; all when none.
    only: Option<HashSet<CheckpointId>>,
    writer: ValuesWriter,
    /// The checkpoints that are shown, the oldest first.
    kept: VecDeque<HistoryEntry>,
    /// Where a checkpoint is: its number among all that were added.
    positions: HashMap<CheckpointId, usize>,
    /// How many were left out again.
    dropped: usize,
    newest: Option<CheckpointId>,
    next: Option<(CheckpointSummary, Option<Position>)>,
}

impl HistoryEntries {
    /// A page of this many bytes at most, with `metadata_bytes` bytes of metadata for each run.
    pub fn new(
        fields: HistoryFields,
        budget: usize,
        metadata_bytes: HashMap<RunId, usize>,
        only: Option<HashSet<CheckpointId>>,
    ) -> Self {
        Self {
            metadata_bytes,
            writer: ValuesWriter::new(fields.keys.clone()),
            fields,
            budget,
            bytes: 0,
            only,
            kept: VecDeque::new(),
            positions: HashMap::new(),
            dropped: 0,
            newest: None,
            next: None,
        }
    }

    /// Adds a checkpoint of which only the origin is wanted.
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

    /// The step that was taken after the page, if one was.
    pub fn complete_newest(&mut self, step: &Entry) {
        if self.fields.tasks {
            self.complete(step, false);
        }
    }

    /// The page, the newest first, and whether checkpoints had to be left out for their size.
    pub fn finish(self) -> (Vec<HistoryEntry>, bool) {
        let is_cut = self.dropped > 0;
        (self.kept.into_iter().rev().collect(), is_cut)
    }

    fn push(&mut self, entry: HistoryEntry) {
        self.bytes += entry.bytes;
        self.positions.insert(entry.origin.id, self.dropped + self.kept.len());
        self.kept.push_back(entry);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > self.budget && self.kept.len() > 1 {
            if let Some(oldest) = self.kept.pop_front() {
                self.bytes -= oldest.bytes;
                self.positions.remove(&oldest.origin.id);
                self.dropped += 1;
            }
        }
    }

    /// Notes the step at the checkpoint from which it was taken. The newest one counts.
    fn complete(&mut self, step: &Entry, replaces: bool) {
        let parent = step.parent.filter(|_| step.source == CheckpointSource::Loop);
        let Some(place) = parent.and_then(|parent| self.positions.get(&parent)).copied() else {
            return;
        };
        let Some(entry) = self.kept.get_mut(place - self.dropped) else {
            return;
        };
        if entry.completed.is_some() && !replaces {
            return;
        }
        let completed = CompletedStep::of(step);
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
            self.complete(entry, true);
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
