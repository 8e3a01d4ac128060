//! Cancels the work on other servers of subagents whose runs were stopped, or failed, and that of background tasks whose
//! conversation was deleted.
//!
//! Usually the run cancels that work itself. This job is for cases in which the other server could not be reached, or
//! this server crashed. So nothing schedules the job; it looks for runs that are over.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::timeout;

use super::{JobHandler, JobLimits, JobOutcome, Unscheduled, schedule_at_once};
use crate::db::{self, DbResult, Tx};
use crate::domain::background::TaskSnapshot;
use crate::domain::id::RunId;
use crate::domain::job::ClaimedJob;
use crate::domain::remote_run::RemoteRun;
use crate::domain::time::Timestamp;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::background::remote::{POLL_TIMEOUT, stop};
use crate::runtime::handles::RuntimeHandles;

/// The most jobs that one transaction schedules.
const AT_ONCE: i64 = 16;
/// The lease of a claim: longer than a cancellation can take.
const LEASE: Duration = Duration::from_secs(60);

pub(super) struct CancelRemoteHandler;

impl JobHandler for CancelRemoteHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 64, batch: 1 }
    }

    fn lease(&self, _: &RuntimeHandles) -> Duration {
        LEASE
    }

    fn find_unscheduled<'t>(&self, tx: &'t mut Tx<'_>, _: Timestamp) -> BoxFuture<'t, DbResult<Unscheduled>> {
        Box::pin(async move {
            // Their work is over when the run of their thread ends.
            if !db::remote_runs::any_awaited(tx).await? {
                return Ok(Unscheduled::default());
            }
            Ok(Unscheduled {
                any: db::remote_runs::any_over(tx).await?,
                comes_with_runs: true,
                next: None,
            })
        })
    }

    fn schedule<'a>(&'a self, runtime: &'a RuntimeHandles) -> BoxFuture<'a, DbResult<()>> {
        Box::pin(schedule_at_once(runtime, |tx, now| {
            Box::pin(async move {
                db::remote_runs::delete_done(tx, AT_ONCE * 16).await?;
                db::remote_runs::schedule_cancelling(tx, now, AT_ONCE).await
            })
        }))
    }

    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, job: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>> {
        Box::pin(async move {
            let run = RunId(job.key);
            let read = runtime.core.db.read(move |tx| {
                Box::pin(async move {
                    // The run may have been continued since.
                    match db::remote_runs::is_unwanted(tx, run).await? {
                        true => db::remote_runs::find(tx, run).await,
                        false => Ok(None),
                    }
                })
            });
            let Some(work) = read.await? else {
                return Ok(JobOutcome::Done);
            };
            let soft = runtime.core.shutdown.soft().clone();
            let ended = match soft
                .run_until_cancelled(timeout(LEASE / 2, runtime.tasks.stop_remote_run(&work)))
                .await
            {
                // This server stops. Another server claims the job when the claim expires.
                None => return Ok(JobOutcome::Settled),
                Some(Ok(ended)) => ended,
                Some(Err(_)) => Err("its server took too long".to_owned()),
            };
            let now = runtime.core.clock.now();
            let looks = *runtime.core.registry.factory.peers.poll_policy();
            let since = work.lost_since.unwrap_or(now);
            if let Err(reason) = &ended {
                tracing::warn!(%run, agent = %work.agent, %reason, "could not cancel a run on another server");
            }
            let is_missed = matches!(ended, Ok(None));
            let is_stopped = match &ended {
                Ok(Some(seen)) => seen.status.is_outcome(),
                // For a moment, something before the other server may have answered in its place.
                Ok(None) => work.was_missed,
                Err(_) => false,
            };
            let is_over = is_stopped || now.since(since) >= looks.patience;
            if is_over && !is_stopped {
                tracing::warn!(%run, agent = %work.agent, "gave up cancelling a run on another server");
            }
            let due_at = now.plus(looks.pause(job.attempts, run.0));
            let claimed = job.clone();
            let write = runtime.core.db.write(move |tx| {
                Box::pin(async move {
                    if is_over && db::jobs::finish(tx, &claimed).await? {
                        db::remote_runs::delete(tx, run).await?;
                    } else if !is_over && db::jobs::put_off(tx, &claimed, due_at).await? {
                        db::remote_runs::set_lost(tx, run, since, is_missed).await?;
                    }
                    DbResult::Ok(())
                })
            });
            write.await?;
            Ok(JobOutcome::Settled)
        })
    }
}

impl BackgroundTasks {
    /// Cancels a remote run. Returns its state after that; none if its server does not know it.
    async fn stop_remote_run(&self, work: &RemoteRun) -> Result<Option<TaskSnapshot>, String> {
        let (place, agent) = self.remote_thread_of_run(work).await?;
        let seen = stop(&place, &agent, None, POLL_TIMEOUT).await;
        seen.map_err(|error| error.to_string())
    }
}
