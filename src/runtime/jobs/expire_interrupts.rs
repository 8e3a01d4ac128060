//! Continues threads whose interrupts have expired, see [`interrupts`](crate::runtime::interrupts).

use std::time::Duration;

use futures::future::BoxFuture;

use super::{JobHandler, JobLimits, JobOutcome, Unscheduled, schedule_at_once};
use crate::db::jobs::{self, JobOwner};
use crate::db::{self, DbResult, Tx};
use crate::domain::id::ThreadId;
use crate::domain::job::{ClaimedJob, JobKind};
use crate::domain::time::Timestamp;
use crate::runtime::handles::RuntimeHandles;
use crate::runtime::resumption::{ExpiredInterrupts, resume_expired};

/// The most interrupts that one transaction looks at.
const AT_ONCE: i64 = 64;
/// The lease of a claim: longer than the start of a run can take.
const LEASE: Duration = Duration::from_secs(30);

pub(super) struct ExpireInterruptsHandler;

impl JobHandler for ExpireInterruptsHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 8, batch: 1 }
    }

    fn lease(&self, _: &RuntimeHandles) -> Duration {
        LEASE
    }

    fn find_unscheduled<'t>(&self, tx: &'t mut Tx<'_>, now: Timestamp) -> BoxFuture<'t, DbResult<Unscheduled>> {
        Box::pin(async move {
            let any = !db::interrupts::expired_threads(tx, now, 1).await?.is_empty();
            Ok(Unscheduled {
                any,
                next: db::interrupts::next_expiry(tx, now).await?,
                // Expired interrupts may have to wait for the end of the run at work on their thread.
                comes_with_runs: any,
            })
        })
    }

    fn schedule<'a>(&'a self, runtime: &'a RuntimeHandles) -> BoxFuture<'a, DbResult<()>> {
        Box::pin(schedule_at_once(runtime, |tx, now| {
            Box::pin(async move {
                for thread in db::interrupts::expired_threads(tx, now, AT_ONCE).await? {
                    let owner = JobOwner {
                        thread: Some(thread),
                        assistant: None,
                    };
                    jobs::ensure(tx, JobKind::ExpireInterrupts, thread.0, owner, now).await?;
                }
                Ok(())
            })
        }))
    }

    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, job: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>> {
        Box::pin(async move {
            let thread = ThreadId(job.key);
            let started = runtime.runs.admission.admit(vec![], move |tx, context| {
                Box::pin(async move { resume_expired(tx, thread, &context).await })
            });
            let (outcome, run) = started.await?;
            if let Some(run) = run {
                tracing::info!(run = %run.id, %thread, "interrupts have expired");
            }
            // Messages that waited for an answer may begin, too.
            runtime.runs.dispatcher.wakeup.notify_one();
            Ok(match outcome {
                ExpiredInterrupts::Nothing | ExpiredInterrupts::Resumed => JobOutcome::Done,
                ExpiredInterrupts::NotNow => JobOutcome::NotNow,
            })
        })
    }
}
