//! Ends sandboxes at sandbox services whose threads were deleted.
//!
//! Threads are deleted in many ways, and each leaves the row of a sandbox behind without a thread. So nothing schedules
//! the job; it looks for such rows.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::timeout;

use super::{JobHandler, JobLimits, JobOutcome, Unscheduled, schedule_at_once};
use crate::db::{self, DbResult, Tx};
use crate::domain::backoff::Backoff;
use crate::domain::id::SandboxId;
use crate::domain::job::ClaimedJob;
use crate::domain::time::Timestamp;
use crate::runtime::handles::RuntimeHandles;

/// The most jobs that one transaction schedules.
const AT_ONCE: i64 = 64;
/// The lease of a claim: longer than an attempt can take.
const LEASE: Duration = Duration::from_secs(120);
/// The pauses after failures.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(3_600));
/// The number of attempts, which span about three days.
const MAX_ATTEMPTS: u32 = 84;

pub(super) struct EndSandboxHandler;

impl JobHandler for EndSandboxHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 16, batch: 1 }
    }

    fn lease(&self, _: &RuntimeHandles) -> Duration {
        LEASE
    }

    fn find_unscheduled<'t>(&self, tx: &'t mut Tx<'_>, _: Timestamp) -> BoxFuture<'t, DbResult<Unscheduled>> {
        Box::pin(async move { db::sandboxes::any_to_end(tx).await.map(Unscheduled::now) })
    }

    fn schedule<'a>(&'a self, runtime: &'a RuntimeHandles) -> BoxFuture<'a, DbResult<()>> {
        Box::pin(schedule_at_once(runtime, |tx, now| {
            Box::pin(db::sandboxes::schedule_ending(tx, now, AT_ONCE))
        }))
    }

    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, job: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>> {
        Box::pin(async move {
            let sandbox = SandboxId(job.key);
            let read = runtime
                .core
                .db
                .read(move |tx| Box::pin(db::sandboxes::service_to_end(tx, sandbox)));
            let Some(service) = read.await? else {
                return Ok(JobOutcome::Done);
            };
            let soft = runtime.core.shutdown.soft().clone();
            let services = &runtime.core.registry.factory.sandboxes;
            let ending = timeout(LEASE / 2, services.end(&service, sandbox));
            let ended = match soft.run_until_cancelled(ending).await {
                // This server stops. Another server claims the job when the claim expires.
                None => return Ok(JobOutcome::Settled),
                Some(Ok(ended)) => ended,
                Some(Err(_)) => Err("its service took too long".to_owned()),
            };
            if let Err(reason) = &ended {
                tracing::warn!(%sandbox, service, reason, "could not end a sandbox whose thread was deleted");
            }
            if ended.is_err() && job.attempts < MAX_ATTEMPTS {
                let pause = BACKOFF.spread_pause(job.attempts, job.key);
                return Ok(JobOutcome::Again(runtime.core.clock.now().plus(pause)));
            }
            let claimed = job.clone();
            let write = runtime.core.db.write(move |tx| {
                Box::pin(async move {
                    if db::jobs::finish(tx, &claimed).await? {
                        db::sandboxes::delete(tx, sandbox).await?;
                    }
                    DbResult::Ok(())
                })
            });
            write.await?;
            Ok(JobOutcome::Settled)
        })
    }
}
