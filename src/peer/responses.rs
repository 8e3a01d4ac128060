//! What another server answers, as far as it is of use here. Whatever else it says is passed over.

use serde::Deserialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::remote_thread::RUN_KEY;
use crate::domain::background::TaskSnapshot;
use crate::domain::run::RunStatus;

/// A thread there.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerThread {
    /// Identifies it.
    pub thread_id: Uuid,
    /// `idle`, `busy`, `interrupted` or `error`.
    #[serde(default)]
    pub status: String,
    /// Why its last run failed, when it did: `{error, message}`, or a text.
    #[serde(default)]
    pub error: Option<Value>,
}

/// A run there.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerRun {
    /// Identifies it.
    pub run_id: Uuid,
    /// What it is doing.
    pub status: RunStatus,
    /// Notes on it.
    #[serde(default)]
    pub metadata: Option<Map<String, Value>>,
}

impl PeerRun {
    /// How the work stands by this.
    pub fn snapshot(&self) -> TaskSnapshot {
        TaskSnapshot::of(self.run_id.to_string(), self.status.into())
    }

    /// Whether it was begun from here under this key.
    pub fn has_key(&self, key: &str) -> bool {
        self.has_metadata(RUN_KEY, key)
    }

    /// Whether it bears this note.
    pub fn has_metadata(&self, key: &str, value: &str) -> bool {
        self.metadata.as_ref().and_then(|notes| notes.get(key)?.as_str()) == Some(value)
    }
}

/// Where a thread there stands.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerState {
    /// The fields of its state: an object, but for a thread on which nothing happened.
    #[serde(default)]
    pub values: Value,
    /// What it asks humans.
    #[serde(default)]
    pub interrupts: Vec<PeerInterrupt>,
    /// What comes next.
    #[serde(default)]
    pub tasks: Vec<PeerTask>,
}

impl PeerState {
    /// What it asks humans. Older servers tell it with their tasks only.
    pub fn questions(&self) -> Vec<PeerInterrupt> {
        if self.interrupts.is_empty() {
            return self
                .tasks
                .iter()
                .flat_map(|task| task.interrupts.iter().cloned())
                .collect();
        }
        self.interrupts.clone()
    }
}

/// A task there.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerTask {
    /// Why it failed, when it did.
    #[serde(default)]
    pub error: Option<Value>,
    /// What it asks humans.
    #[serde(default)]
    pub interrupts: Vec<PeerInterrupt>,
}

/// A question there.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerInterrupt {
    /// Identifies it there; very old servers give none.
    #[serde(default, alias = "interrupt_id")]
    pub id: Option<String>,
    /// What is asked.
    #[serde(default)]
    pub value: Value,
    /// JSON Schema of a valid answer, where the server tells it.
    #[serde(default)]
    pub response_schema: Option<Value>,
}
