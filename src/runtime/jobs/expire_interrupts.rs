//! Continues threads whose interrupts have expired, see [`interrupts`](crate::runtime::interrupts).

use std::time::Duration;

use futures::future::BoxFuture;

use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::jobs::{self, JobOwner};
use crate::db::{self, DbResult};
use crate::domain::id::ThreadId;
use crate::domain::job::{ClaimedJob, JobKind};
use crate::runtime::RuntimeHandles;
use crate::runtime::interrupts::{ExpiredInterrupts, resume_expired};

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

    fn discover<'a>(&'a self, runtime: &'a RuntimeHandles) -> BoxFuture<'a, DbResult<()>> {
        Box::pin(async move {
            let now = runtime.core.clock.now();
            let read = runtime
                .core
                .db
                .read(move |tx| Box::pin(db::interrupts::expired_threads(tx, now, AT_ONCE)));
            let threads = read.await?;
            if threads.is_empty() {
                return Ok(());
            }
            let write = runtime.core.db.write(move |tx| {
                let threads = threads.clone();
                Box::pin(async move {
                    for thread in threads {
                        let owner = JobOwner {
                            thread: Some(thread),
                            assistant: None,
                        };
                        jobs::ensure(tx, JobKind::ExpireInterrupts, thread.0, owner, now).await?;
                    }
                    Ok(())
                })
            });
            write.await
        })
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
                runtime.runs.dispatcher.wakeup.notify_one();
            }
            Ok(match outcome {
                ExpiredInterrupts::Nothing | ExpiredInterrupts::Resumed => JobOutcome::Done,
                ExpiredInterrupts::NotNow => JobOutcome::NotNow,
            })
        })
    }
}
