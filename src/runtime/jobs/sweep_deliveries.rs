//! Deletes old deliveries of webhooks.

use std::time::Duration;

use futures::future::BoxFuture;

use super::sweep::delete_all;
use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::{DbResult, deliveries};
use crate::domain::job::ClaimedJob;
use crate::runtime::handles::RuntimeHandles;

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
            let core = &runtime.core;
            let now = core.clock.now();
            let before = now.minus(core.webhooks.keep);
            delete_all(core, AT_ONCE, move |tx| {
                Box::pin(deliveries::sweep(tx, before, AT_ONCE))
            })
            .await?;
            Ok(JobOutcome::Again(now.plus(INTERVAL)))
        })
    }
}
