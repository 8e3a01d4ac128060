//! Polls the servers of remote subagents that wait for an answer, since an interrupt may be answered or dropped on
//! those servers, too. Then a run continues with the subagent, see [`interrupts`](crate::runtime::interrupts).

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::timeout;

use super::{JobHandler, JobLimits, JobOutcome, Unscheduled, schedule_at_once};
use crate::db::interrupts::InterruptRecord;
use crate::db::{self, DbResult, Tx};
use crate::domain::backoff::spread;
use crate::domain::id::RunId;
use crate::domain::job::ClaimedJob;
use crate::domain::remote_run::RemoteRun;
use crate::domain::time::Timestamp;
use crate::runtime::answers::Interrupts;
use crate::runtime::handles::RuntimeHandles;
use crate::runtime::interrupts::{is_answered_remotely, pending_of_subagent};
use crate::runtime::resumption::resume_answered_remotely;

/// The most jobs that one transaction schedules.
const AT_ONCE: i64 = 64;
/// The lease of a claim: longer than a poll can take.
const LEASE: Duration = Duration::from_secs(30);

pub(super) struct WatchInterruptHandler;

impl JobHandler for WatchInterruptHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 32, batch: 1 }
    }

    fn lease(&self, _: &RuntimeHandles) -> Duration {
        LEASE
    }

    fn find_unscheduled<'t>(&self, tx: &'t mut Tx<'_>, _: Timestamp) -> BoxFuture<'t, DbResult<Unscheduled>> {
        Box::pin(async move { db::remote_runs::any_unwatched(tx).await.map(Unscheduled::now) })
    }

    fn schedule<'a>(&'a self, runtime: &'a RuntimeHandles) -> BoxFuture<'a, DbResult<()>> {
        Box::pin(schedule_at_once(runtime, |tx, now| {
            Box::pin(db::remote_runs::schedule_watching(tx, now, AT_ONCE))
        }))
    }

    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, job: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>> {
        Box::pin(async move {
            let soft = runtime.core.shutdown.soft().clone();
            // If this process stops, another one polls.
            let polled = soft
                .run_until_cancelled(runtime.interrupts.poll_interrupts(RunId(job.key)))
                .await;
            polled.unwrap_or(Ok(JobOutcome::Settled))
        })
    }
}

impl Interrupts {
    /// Checks once whether the interrupts of a subagent are still open on its server. If not, a run continues with the
    /// subagent.
    async fn poll_interrupts(&self, child: RunId) -> DbResult<JobOutcome> {
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                let work = match db::remote_runs::waits(tx, child).await? {
                    true => db::remote_runs::find(tx, child).await?,
                    false => None,
                };
                Ok((work, pending_of_subagent(tx, child).await?))
            })
        });
        let (work, open) = read.await?;
        let newest = open.iter().map(|record| record.created_at).max();
        // The job is scheduled again when the subagent waits again.
        let (Some(work), Some(newest)) = (work, newest) else {
            return Ok(JobOutcome::Done);
        };
        let is_answered = match self.tasks.remote_thread_of_run(&work).await {
            Ok((place, _)) => match timeout(LEASE / 2, place.snapshot(None)).await {
                Ok(Ok(seen)) => is_answered_remotely(&open, seen.as_ref()),
                Ok(Err(error)) => out_of_reach(&work, &error.to_string()),
                Err(_) => out_of_reach(&work, "it took too long"),
            },
            Err(reason) => out_of_reach(&work, &reason),
        };
        if is_answered {
            self.resume_answered_remotely(open, child).await?;
        }
        // The longer an interrupt has been open, the less often it is polled.
        let now = self.core.clock.now();
        let looks = self.core.registry.factory.peers.poll_policy().backoff;
        let pause = now.since(newest).clamp(looks.first, looks.longest);
        Ok(JobOutcome::Again(now.plus(spread(pause, child.0))))
    }

    /// Starts the run that continues with a subagent, unless a client has answered on this server meanwhile.
    async fn resume_answered_remotely(&self, open: Vec<InterruptRecord>, child: RunId) -> DbResult<()> {
        let started = self.runs.admission.admit(vec![], move |tx, context| {
            Box::pin(async move { resume_answered_remotely(tx, &open, child, &context).await })
        });
        if let Some(run) = started.await? {
            tracing::info!(run = %run.id, %child, "an interrupt was answered on another server");
            self.runs.dispatcher.wakeup.notify_one();
        }
        Ok(())
    }
}

/// Logs that the server of a remote agent did not answer. The state of the interrupts is unknown then.
fn out_of_reach(work: &RemoteRun, reason: &str) -> bool {
    tracing::debug!(run = %work.run, agent = %work.agent, reason, "could not poll the interrupts of another server");
    false
}
