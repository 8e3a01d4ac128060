//! Admission of runs: decides whether a run starts or waits in the queue. All runs of main agents are admitted here.
//!
//! `start` is the transaction, `target` its thread, `permission` says whether the caller may start the run, `check` checks
//! the request against the agent, and `build_run` makes the run. `admit.rs` calls the transaction and starts the run.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::cancel_action::CancelAction;
use super::shared::Core;
use super::trace;
use crate::db::runs::Claim;
use crate::definition::DefinitionDigest;
use crate::domain::access::Ownership;
use crate::domain::id::{RunId, WorkerId};
use crate::domain::run::Run;
use crate::domain::time::Timestamp;
use crate::domain::trace::SpanContext;

mod build_run;
mod check;
mod permission;
mod start;
mod target;

pub(super) use build_run::{settings, task_lineage, with_choices};
pub(super) use check::{check, check_ahead, choose_ahead};
pub(super) use permission::{check_tenant, check_update, find_assistant, refuse_assistant, refuse_by_policies};
pub(super) use start::{UnstoredRun, check_stateless, decide, start_as, try_start};

/// A run that was admitted.
pub(super) struct Admitted {
    pub(super) run: Run,
    /// To whom its thread belongs.
    pub(super) ownership: Ownership,
    /// True if the thread was created for the run.
    pub(super) is_thread_new: bool,
    /// True if the run is stored as running, under fence 0, and this process has to drive it.
    pub(super) claimed: bool,
    /// The run at work that this run displaces, with the action on its checkpoints. If it is at work in another process,
    /// that one was notified.
    pub(super) displaced: Option<(RunId, CancelAction)>,
}

impl Admitted {
    /// Returns the claim of this process on the run, if the run is claimed.
    pub(super) fn claim(&self) -> Option<Claim> {
        self.claimed.then(|| Claim {
            run: self.run.clone(),
            ownership: self.ownership.clone(),
            fence: 0,
            crashes: 0,
        })
    }
}

/// The inputs of an admission besides the request.
#[derive(Clone)]
pub(super) struct AdmissionContext {
    pub(super) core: Arc<Core>,
    /// The checks that were made before the transaction.
    pub(super) checked: Vec<Checked>,
    /// The process that may claim the run at once, if it has a free slot.
    pub(super) worker: Option<WorkerId>,
    pub(super) now: Timestamp,
    /// The most runs that may wait on one thread.
    pub(super) most_waiting: u64,
    /// The span below which the run is, unless it continues another one.
    pub(super) caller_span: Option<SpanContext>,
}

/// A check that was made before the transaction.
#[derive(Clone)]
pub(super) struct Checked {
    /// The position of the request among those that are admitted together.
    pub(super) number: usize,
    /// The definition that was used.
    pub(super) digest: DefinitionDigest,
    /// The context that was checked.
    pub(super) context: Map<String, Value>,
}

impl AdmissionContext {
    /// The context of a run that has to wait for a slot.
    pub(super) fn queued(core: &Arc<Core>, checked: Vec<Checked>) -> Self {
        Self {
            core: Arc::clone(core),
            checked,
            worker: None,
            now: core.clock.now(),
            most_waiting: core.bounds.waiting_on_thread,
            caller_span: trace::caller(),
        }
    }

    /// Returns whether the input of a request was checked with this definition.
    pub(super) fn has_checked(&self, number: usize, digest: &DefinitionDigest) -> bool {
        self.checked
            .iter()
            .any(|checked| checked.number == number && checked.digest == *digest)
    }

    /// Returns whether this context was checked with this definition.
    pub(super) fn has_checked_context(
        &self,
        number: usize,
        digest: &DefinitionDigest,
        context: &Map<String, Value>,
    ) -> bool {
        self.checked
            .iter()
            .any(|checked| checked.number == number && checked.digest == *digest && checked.context == *context)
    }
}
