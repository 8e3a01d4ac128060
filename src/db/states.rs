//! An LRU cache of states. The state at a checkpoint never changes, and copies of a thread share their checkpoint ids
//! and states, so entries are never invalidated.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::message::{Content, Message};
use crate::domain::recent_texts::RecentTexts;
use crate::domain::state::State;

/// The maximum number of states.
const MAX_STATES: usize = 512;
/// The approximate maximum size of all states together, in bytes. Neighbours share most of theirs, so the real size is
/// much smaller.
const MAX_BYTES: usize = 128 << 20;
/// The number of states of one thread after its runs. A client that edits a message goes on from one of the last; each has
/// lists of its own, which are long if the thread is.
const MAX_ENDS: usize = 8;

/// The cache of states that were recently folded or written. The least recently used are evicted first.
#[derive(Default)]
pub struct StateCache {
    states: Mutex<CacheInner>,
    texts: Arc<RecentTexts>,
}

#[derive(Default)]
struct CacheInner {
    entries: HashMap<CheckpointId, CacheEntry>,
    /// The ids of `entries` by their last use.
    by_use: BTreeMap<u64, CheckpointId>,
    /// The ids of the `entries` after the runs of a thread, oldest first.
    ends: HashMap<ThreadId, VecDeque<CheckpointId>>,
    uses: u64,
    bytes: usize,
}

struct CacheEntry {
    state: Arc<State>,
    used: u64,
    bytes: usize,
    /// The thread, if the state is that after a run.
    ended: Option<ThreadId>,
}

impl StateCache {
    /// Returns the state at `checkpoint`, if it is cached.
    pub fn get(&self, checkpoint: CheckpointId) -> Option<Arc<State>> {
        let mut cache = self.lock();
        let now = cache.next_use();
        let entry = cache.entries.get_mut(&checkpoint)?;
        let before = std::mem::replace(&mut entry.used, now);
        let state = Arc::clone(&entry.state);
        cache.by_use.remove(&before);
        cache.by_use.insert(now, checkpoint);
        Some(state)
    }

    /// Returns the texts of messages in states that clients have read.
    pub fn texts(&self) -> Arc<RecentTexts> {
        Arc::clone(&self.texts)
    }

    /// Removes all states.
    pub fn clear(&self) {
        *self.lock() = CacheInner::default();
    }

    /// Caches the state at `checkpoint`.
    pub fn put(&self, checkpoint: CheckpointId, state: Arc<State>) {
        self.put_entry(checkpoint, state, None);
    }

    /// Caches the state after a run of `thread`. Only those after its last runs stay.
    pub fn put_end(&self, thread: ThreadId, checkpoint: CheckpointId, state: Arc<State>) {
        self.put_entry(checkpoint, state, Some(thread));
    }

    fn put_entry(&self, checkpoint: CheckpointId, state: Arc<State>, ended: Option<ThreadId>) {
        let bytes = weight(&state);
        let mut cache = self.lock();
        cache.remove(checkpoint);
        let used = cache.next_use();
        cache.bytes += bytes;
        cache.by_use.insert(used, checkpoint);
        let entry = CacheEntry {
            state,
            used,
            bytes,
            ended,
        };
        cache.entries.insert(checkpoint, entry);
        if let Some(thread) = ended {
            let ends = cache.ends.entry(thread).or_default();
            ends.push_back(checkpoint);
            let oldest = ends.front().copied().filter(|_| ends.len() > MAX_ENDS);
            if let Some(oldest) = oldest {
                cache.remove(oldest);
            }
        }
        while cache.entries.len() > MAX_STATES || cache.bytes > MAX_BYTES {
            let Some((_, oldest)) = cache.by_use.first_key_value().map(|(used, id)| (*used, *id)) else {
                break;
            };
            cache.remove(oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, CacheInner> {
        // A panic while the lock was held can at worst leave an entry that is evicted too early.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CacheInner {
    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    fn remove(&mut self, checkpoint: CheckpointId) {
        let Some(removed) = self.entries.remove(&checkpoint) else {
            return;
        };
        self.by_use.remove(&removed.used);
        self.bytes -= removed.bytes;
        if let Some(thread) = removed.ended
            && let Some(ends) = self.ends.get_mut(&thread)
        {
            ends.retain(|end| *end != checkpoint);
            if ends.is_empty() {
                self.ends.remove(&thread);
            }
        }
    }
}

impl fmt::Debug for StateCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = self.lock();
        f.debug_struct("States")
            .field("entries", &cache.entries.len())
            .field("bytes", &cache.bytes)
            .finish()
    }
}

/// Returns the approximate size of a state in bytes: of its messages, files and fields.
pub(super) fn weight(state: &State) -> usize {
    let recent = state.messages.recent().iter();
    let recent: usize = recent.map(|message| message_weight(message)).sum();
    let earlier: usize = state.messages.earlier().iter().map(|part| part.weight()).sum();
    let files: usize = state
        .files
        .iter()
        .map(|(path, file)| 128 + path.len() + file.content.weight())
        .sum();
    let fields: usize = state
        .fields
        .iter()
        .map(|(name, value)| name.len() + value_weight(value))
        .sum();
    let left = state.messages.left_len() * size_of::<u64>();
    256 + left + earlier + recent + files + fields
}

fn message_weight(message: &Message) -> usize {
    let content = match &message.content {
        Content::Text(text) => text.len(),
        Content::Blocks(blocks) => blocks.iter().map(value_weight).sum(),
    };
    let calls: usize = message
        .tool_calls()
        .iter()
        .flat_map(|call| call.args.values())
        .map(value_weight)
        .sum();
    512 + content + calls
}

/// Returns the approximate size of a JSON object in bytes.
pub(super) fn object_weight(object: &Map<String, Value>) -> usize {
    object
        .iter()
        .map(|(name, value)| 32 + name.len() + value_weight(value))
        .sum()
}

fn value_weight(value: &Value) -> usize {
    let inside = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(value_weight).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| 32 + name.len() + value_weight(value))
            .sum(),
    };
    32 + inside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_states_after_the_last_runs_of_a_thread_stay() {
        let cache = StateCache::default();
        let thread = ThreadId::mint();
        let checkpoints: Vec<CheckpointId> = (0..20).map(|_| CheckpointId::mint()).collect();
        let folded = CheckpointId::mint();
        cache.put(folded, Arc::default());
        for checkpoint in &checkpoints {
            cache.put_end(thread, *checkpoint, Arc::default());
        }
        let other = CheckpointId::mint();
        cache.put_end(ThreadId::mint(), other, Arc::default());
        let kept: Vec<bool> = checkpoints.iter().map(|end| cache.get(*end).is_some()).collect();
        assert_eq!(kept.iter().filter(|kept| **kept).count(), MAX_ENDS);
        assert!(kept.ends_with(&[true; MAX_ENDS]));
        assert!(cache.get(folded).is_some() && cache.get(other).is_some());
    }

    #[test]
    fn no_thread_is_remembered_without_a_state() {
        let cache = StateCache::default();
        for _ in 0..MAX_STATES + 5 {
            cache.put_end(ThreadId::mint(), CheckpointId::mint(), Arc::default());
        }
        assert_eq!(cache.lock().entries.len(), MAX_STATES);
        assert_eq!(cache.lock().ends.len(), MAX_STATES);
    }
}
