//! A small memory of states. The state at a checkpoint never changes, and is the same in the copies of a thread, which have
//! its checkpoints under the same ids: so there is nothing to keep in step.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

use crate::domain::id::CheckpointId;
use crate::domain::message::{Content, Message};
use crate::domain::state::State;

/// How many states are kept at most.
const MOST: usize = 512;
/// How many bytes they may hold together, roughly. Neighbours share most of theirs, so this is far on the safe side.
const MOST_BYTES: usize = 128 << 20;

/// The states that were lately folded or written; the ones not asked for longest are forgotten first.
#[derive(Default)]
pub struct States(Mutex<Shelf>);

#[derive(Default)]
struct Shelf {
    kept: HashMap<CheckpointId, Kept>,
    /// The same by the time of their last use.
    by_use: BTreeMap<u64, CheckpointId>,
    uses: u64,
    bytes: usize,
}

struct Kept {
    state: Arc<State>,
    used: u64,
    bytes: usize,
}

impl States {
    /// The state at `checkpoint`, when it is still remembered.
    pub fn get(&self, checkpoint: CheckpointId) -> Option<Arc<State>> {
        let mut shelf = self.shelf();
        let now = shelf.tick();
        let kept = shelf.kept.get_mut(&checkpoint)?;
        let before = std::mem::replace(&mut kept.used, now);
        let state = Arc::clone(&kept.state);
        shelf.by_use.remove(&before);
        shelf.by_use.insert(now, checkpoint);
        Some(state)
    }

    /// Forgets all of them.
    pub fn clear(&self) {
        *self.shelf() = Shelf::default();
    }

    /// Remembers the state at `checkpoint`.
    pub fn put(&self, checkpoint: CheckpointId, state: Arc<State>) {
        let bytes = weight(&state);
        let mut shelf = self.shelf();
        shelf.forget(checkpoint);
        let used = shelf.tick();
        shelf.bytes += bytes;
        shelf.by_use.insert(used, checkpoint);
        shelf.kept.insert(checkpoint, Kept { state, used, bytes });
        while shelf.kept.len() > MOST || shelf.bytes > MOST_BYTES {
            let Some((_, oldest)) = shelf.by_use.first_key_value().map(|(used, id)| (*used, *id)) else {
                break;
            };
            shelf.forget(oldest);
        }
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        // A panic inside leaves at worst a state that is forgotten too early.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    fn tick(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    fn forget(&mut self, checkpoint: CheckpointId) {
        if let Some(gone) = self.kept.remove(&checkpoint) {
            self.by_use.remove(&gone.used);
            self.bytes -= gone.bytes;
        }
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shelf = self.shelf();
        f.debug_struct("States")
            .field("kept", &shelf.kept.len())
            .field("bytes", &shelf.bytes)
            .finish()
    }
}

/// Roughly how many bytes a state holds. Looks at texts only where they are long: messages, files, fields.
fn weight(state: &State) -> usize {
    let messages: usize = state.messages.iter().map(|message| message_weight(message)).sum();
    let files: usize = state
        .files
        .iter()
        .map(|(path, file)| 128 + path.len() + file.content.len())
        .sum();
    let fields: usize = state
        .fields
        .iter()
        .map(|(name, value)| name.len() + value_weight(value))
        .sum();
    256 + messages + files + fields
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

/// Roughly how many bytes a JSON object holds.
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
