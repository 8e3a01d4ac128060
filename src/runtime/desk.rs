//! What the journals of one run of the main agent share: who writes, for which run, and by what right.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Webhooks;
use super::children::Children;
use super::ledger::BudgetLedger;
use super::registry::Registry;
use super::turns::CommitOrder;
use crate::agent::ExitReason;
use crate::db::{self, Db, DbError, DbResult, Tx};
use crate::domain::id::{RunId, WorkerId};
use crate::domain::machine::Failure;
use crate::domain::run::Run;
use crate::domain::time::{Clock, Timestamp};
use crate::events::ThreadLog;
use crate::metrics::Metrics;

/// What all journals of one run of the main agent share.
pub(super) struct RunContext {
    pub(super) db: Db,
    pub(super) log: Arc<ThreadLog>,
    pub(super) metrics: Metrics,
    pub(super) webhooks: Arc<Webhooks>,
    pub(super) clock: Arc<dyn Clock>,
    /// The run of the main agent.
    pub(super) run: Run,
    /// The holder of the lease, and its number: a write under an older number finds no row.
    pub(super) worker: WorkerId,
    pub(super) fence: i64,
    /// How often servers died at work on the run since it last got on.
    pub(super) crashes: u32,
    /// Whether other processes work on the same database, which may have readers of the run.
    pub(super) has_company: bool,
    /// Which agents there are.
    pub(super) registry: Arc<Registry>,
    /// In which order commits are stored.
    pub(super) turns: CommitOrder,
    /// Where the subagents at work are noted.
    pub(super) children: Arc<Children>,
    /// Where it is noted who waits to hear of subagents that wait.
    pub(super) parked: Arc<Children>,
    /// Where it is written down what the run uses together with runs on other threads, if it does.
    pub(super) ledger: OnceLock<Arc<BudgetLedger>>,
    /// How long the run and all below it may be at work.
    pub(super) longest: Duration,
}

impl RunContext {
    pub(super) async fn holds_lease(&self, tx: &mut Tx<'_>, now: Timestamp) -> DbResult<bool> {
        db::runs::check_fence(tx, self.holder(), db::runs::RunRowUpdate::at(now)).await
    }

    pub(super) fn holder(&self) -> db::runs::LeaseHolder {
        (self.run.id, self.worker, self.fence)
    }
}

/// What a failing database means for a loop. The words go to the log; clients get a class.
pub(super) fn fault(run: RunId, error: &DbError) -> ExitReason {
    tracing::error!(%run, %error, "the database failed under a run");
    if error.is_transient() || matches!(error, DbError::Closed) {
        return ExitReason::Unavailable;
    }
    ExitReason::Fault(Failure::new(
        "StorageError",
        "The server could not store the run's progress. Its log has the cause under the id of the run.",
    ))
}
