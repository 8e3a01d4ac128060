//! Deletes deliveries of webhooks that arrived or were given up long ago.

use std::time::Duration;

use async_trait::async_trait;

use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::{DbResult, deliveries};
use crate::domain::job::ClaimedJob;
use crate::runtime::Runs;

/// How often old deliveries are looked for.
const INTERVAL: Duration = Duration::from_secs(600);
/// How many one transaction deletes.
const AT_ONCE: i64 = 500;

pub(super) struct SweepDeliveriesHandler;

#[async_trait]
impl JobHandler for SweepDeliveriesHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 1, batch: 1 }
    }

    fn lease(&self, _: &Runs) -> Duration {
        INTERVAL
    }

    async fn run(&self, runs: &Runs, _: &ClaimedJob) -> DbResult<JobOutcome> {
        let now = runs.0.clock.now();
        let before = now.minus(runs.0.webhooks.keep);
        loop {
            let sweep = runs
                .0
                .db
                .write(move |tx| Box::pin(deliveries::sweep(tx, before, AT_ONCE)));
            if sweep.await? < AT_ONCE.unsigned_abs() || runs.0.shutdown.soft().is_cancelled() {
                return Ok(JobOutcome::Again(now.plus(INTERVAL)));
            }
        }
    }
}
