//! The context of a run at work, shared by its journals.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use super::children::Children;
use super::commit_order::CommitOrder;
use super::ledger::BudgetLedger;
use super::shared::Core;
use super::subagent_usage::SubagentUsage;
use crate::agent::ExitReason;
use crate::db::{self, DbError, DbResult, Tx};
use crate::domain::access::Ownership;
use crate::domain::id::RunId;
use crate::domain::machine::Failure;
use crate::domain::run::Run;
use crate::domain::time::Timestamp;
use crate::domain::trace::TraceScope;
use crate::events::ThreadLog;

/// The context of a run of the main agent, shared by its journals.
pub(super) struct RunContext {
    pub(super) core: Arc<Core>,
    pub(super) log: Arc<ThreadLog>,
    /// The span of the main agent.
    pub(super) trace: TraceScope,
    /// The run of the main agent.
    pub(super) run: Run,
    /// To whom the thread belongs, and with it all that the run makes.
    pub(super) ownership: Ownership,
    /// The number of the lease: a write under an older number finds no row.
    pub(super) fence: i64,
    /// The number of crashes since the run last made progress.
    pub(super) crashes: u32,
    /// True when other processes use the same database and may have readers of the run.
    pub(super) has_other_workers: bool,
    /// The order of commits.
    pub(super) turns: CommitOrder,
    /// The commits that are under way, each until its end. They do not wait for each other by this.
    pub(super) under_way: CommitOrder,
    /// The subagents at work in this process.
    pub(super) children: Arc<Children>,
    /// The waiting subagents whose callers wait for notifications about them.
    pub(super) parked: Arc<Children>,
    /// The usage of the subagents that have ended in this process.
    pub(super) subagents_used: SubagentUsage,
    /// The budget that the run shares with runs on other threads, if it does.
    pub(super) ledger: OnceLock<Arc<BudgetLedger>>,
    /// True once the row of the run is known to have the number of its first event.
    pub(super) has_first_seq: AtomicBool,
}

impl RunContext {
    pub(super) async fn holds_lease(&self, tx: &mut Tx<'_>, now: Timestamp) -> DbResult<bool> {
        db::runs::check_fence(tx, self.holder(), now).await
    }

    pub(super) fn holder(&self) -> db::runs::LeaseHolder {
        db::runs::LeaseHolder {
            thread: self.run.thread,
            run: self.run.id,
            worker: self.core.id,
            fence: self.fence,
        }
    }
}

/// Returns the exit reason for an error of the database. The text goes to the log; clients get a class.
pub(super) fn exit_reason_of(run: RunId, error: &DbError) -> ExitReason {
    match error.is_out_of_reach() {
        // The listener warns of that once for all runs.
        true => tracing::info!(%run, %error, "the database failed under a run"),
        false => tracing::error!(%run, %error, "the database failed under a run"),
    }
    if error.is_resumable() {
        return ExitReason::Unavailable;
    }
    ExitReason::Fault(Failure::new(
        "StorageError",
        "The server could not store the run's progress. Its log has the cause under the id of the run.",
    ))
}
