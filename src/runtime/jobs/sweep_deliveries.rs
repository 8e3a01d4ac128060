//! Deletes old deliveries of webhooks.

use std::time::Duration;

use futures::future::BoxFuture;

use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::{DbResult, deliveries};
use crate::domain::job::ClaimedJob;
use crate::runtime::RuntimeHandles;

/// The pause between two sweeps.
const INTERVAL: Duration = Duration::from_secs(600);
/// The most deliveries that one transaction deletes.
const AT_ONCE: i64 = 500;

pub(super) struct SweepDeliveriesHandler;

impl JobHandler for SweepDeliveriesHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 1, batch: 1 }
    }

    fn lease(&self, _: &RuntimeHandles) -> Duration {
        INTERVAL
    }

    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, _: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>> {
        Box::pin(async move {
            let now = runtime.core.clock.now();
            let before = now.minus(runtime.core.webhooks.keep);
            loop {
                let sweep = runtime
                    .core
                    .db
                    .write(move |tx| Box::pin(deliveries::sweep(tx, before, AT_ONCE)));
                if sweep.await? < AT_ONCE.unsigned_abs() || runtime.core.shutdown.soft().is_cancelled() {
                    return Ok(JobOutcome::Again(now.plus(INTERVAL)));
                }
            }
        })
    }
}
