//! The responses of another server. Fields that are not needed are ignored.

use serde::Deserialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::domain::background::TaskSnapshot;
use crate::domain::run::RunStatus;
use crate::domain::time::Timestamp;

/// The metadata key by which a run is found again.
pub(super) const RUN_KEY: &str = "adjutant_errand";

/// A thread on another server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerThread {
    /// The id.
    pub thread_id: Uuid,
    /// The status: `idle`, `busy`, `interrupted` or `error`.
    #[serde(default)]
    pub status: String,
    /// The error of the last run, if it failed: `{error, message}`, or a text.
    #[serde(default)]
    pub error: Option<Value>,
}

/// A run on another server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerRun {
    /// The id.
    pub run_id: Uuid,
    /// The status.
    pub status: RunStatus,
    /// The metadata.
    #[serde(default)]
    pub metadata: Option<Map<String, Value>>,
    /// The time of the last change: of a run that is over, its end.
    #[serde(default)]
    pub updated_at: Option<Value>,
    /// The parameters of the request.
    #[serde(default)]
    pub kwargs: Option<Value>,
}

impl PeerRun {
    /// Returns the status of the run as a snapshot of its task.
    pub fn snapshot(&self) -> TaskSnapshot {
        TaskSnapshot::of(self.run_id.to_string(), self.status.into())
    }

    /// Returns the time of the last change, if the server states it.
    pub fn changed_at(&self) -> Option<Timestamp> {
        Timestamp::read(self.updated_at.as_ref()?.as_str()?)
    }

    /// Returns whether the run brings answers to interrupts.
    pub fn brings_answers(&self) -> bool {
        let resume = self
            .kwargs
            .as_ref()
            .and_then(|kwargs| kwargs.pointer("/command/resume"));
        resume.is_some_and(|resume| !resume.is_null())
    }

    /// Returns the key with which this server started the run, if it did.
    pub fn key(&self) -> Option<&str> {
        self.metadata.as_ref()?.get(RUN_KEY)?.as_str()
    }

    /// Returns whether this server started the run with this key.
    pub fn has_key(&self, key: &str) -> bool {
        self.key() == Some(key)
    }

    /// Returns whether the metadata has this entry.
    pub fn has_metadata(&self, key: &str, value: &str) -> bool {
        self.metadata.as_ref().and_then(|metadata| metadata.get(key)?.as_str()) == Some(value)
    }
}

/// The state of a thread on another server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerState {
    /// The state's fields: an object, except for a thread without runs.
    #[serde(default)]
    pub values: Value,
    /// The open interrupts.
    #[serde(default)]
    pub interrupts: Vec<PeerInterrupt>,
    /// The next nodes; none when the run has finished.
    #[serde(default)]
    pub next: Vec<String>,
    /// The next tasks.
    #[serde(default)]
    pub tasks: Vec<PeerTask>,
}

impl PeerState {
    /// Returns the open interrupts, which older servers list under their tasks only.
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

/// A next task of a thread.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerTask {
    /// The error, if the task failed.
    #[serde(default)]
    pub error: Option<Value>,
    /// The open interrupts of the task.
    #[serde(default)]
    pub interrupts: Vec<PeerInterrupt>,
}

/// An interrupt of a thread on another server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct PeerInterrupt {
    /// The id; very old servers send none.
    #[serde(default, alias = "interrupt_id")]
    pub id: Option<String>,
    /// The value of the interrupt.
    #[serde(default)]
    pub value: Value,
    /// The JSON Schema of a valid answer, if the server sends one.
    #[serde(default)]
    pub response_schema: Option<Value>,
}
