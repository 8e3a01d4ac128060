//! The settings of the runtime that all its handles share.

use std::time::Duration;

use crate::domain::access::{Action, SharingRule};
use crate::domain::thread::Ttl;

/// The bounds of runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunBounds {
    /// The most waiting runs of all processes on the database. They are counted from time to time and not for each run,
    /// so that the number may be exceeded by a few.
    pub waiting: u64,
    /// The most waiting runs on one thread.
    pub waiting_on_thread: u64,
    /// The longest time for which a run and all below it may be at work, without the time spent waiting for answers.
    pub at_work: Duration,
}

/// The default lifetimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The TTL of threads without a TTL of their own; unlimited when none.
    pub threads: Option<Ttl>,
    /// The time after the last change of a thread's state for which its checkpoints are kept; unlimited when none.
    pub checkpoints: Option<Ttl>,
    /// The pause between two sweeps.
    pub interval: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            threads: None,
            checkpoints: None,
            interval: Duration::from_secs(60),
        }
    }
}

/// The settings of the audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditSettings {
    /// True to record reads as well. Changes and refusals are always recorded.
    pub reads: bool,
    /// The time for which entries are kept; `None` for ever.
    pub keep: Option<Duration>,
}

impl Default for AuditSettings {
    /// Changes and refusals, for a year.
    fn default() -> Self {
        Self {
            reads: false,
            keep: Some(Duration::from_secs(365 * 86_400)),
        }
    }
}

/// The rules by which owners share resources with their tenant.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SharingRules {
    /// Threads, with everything on them.
    pub threads: SharingRule,
    /// Assistants.
    pub assistants: SharingRule,
}

impl SharingRules {
    /// Returns the rule for the resources of an action.
    pub fn of(&self, action: Action) -> &SharingRule {
        const NONE: &SharingRule = &SharingRule {
            read: None,
            write: None,
        };
        match action.resource() {
            "threads" | "interrupts" => &self.threads,
            "assistants" => &self.assistants,
            _ => NONE,
        }
    }
}
