//! Removes expired items of the Store. Readers do not see an expired item even before its removal.

use std::time::Duration;

use futures::future::BoxFuture;

use super::sweep::delete_all;
use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::{DbResult, items};
use crate::domain::job::ClaimedJob;
use crate::runtime::handles::RuntimeHandles;

/// The most items that one transaction removes.
const AT_ONCE: i64 = 500;
/// The lease of a claim. Another process may start before this one is done, which does no harm.
const LEASE: Duration = Duration::from_secs(600);

pub(super) struct SweepItemsHandler;

impl JobHandler for SweepItemsHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 1, batch: 1 }
    }

    fn lease(&self, _: &RuntimeHandles) -> Duration {
        LEASE
    }

    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, _: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>> {
        Box::pin(async move {
            let core = &runtime.core;
            let now = core.clock.now();
            let removed = delete_all(core, AT_ONCE, move |tx| Box::pin(items::sweep(tx, now, AT_ONCE))).await?;
            if removed > 0 {
                tracing::debug!(items = removed, "expired items of the store removed");
            }
            Ok(JobOutcome::Again(core.clock.now().plus(core.item_sweep_interval)))
        })
    }
}
