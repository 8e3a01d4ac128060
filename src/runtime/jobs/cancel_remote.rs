//! Cancels the work on other servers that was begun for subagents whose runs were stopped, or failed.
//!
//! Whoever stops waiting has it stopped at once; this is for what could not be told then, since the other server was out of
//! reach, or this one died. So nobody schedules it: it is looked for which runs are over.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::{self, DbResult};
use crate::domain::id::RunId;
use crate::domain::job::ClaimedJob;
use crate::domain::remote_run::RemoteRun;
use crate::runtime::Runs;
use crate::runtime::background::remote::{LOOKS_FOR, stop};

/// How much work is scheduled in one transaction.
const AT_ONCE: i64 = 16;
/// For how long it is claimed: longer than it can take.
const LEASE: Duration = Duration::from_secs(60);

pub(super) struct CancelRemoteHandler;

#[async_trait]
impl JobHandler for CancelRemoteHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 64, batch: 1 }
    }

    fn lease(&self, _: &Runs) -> Duration {
        LEASE
    }

    async fn discover(&self, runs: &Runs) -> DbResult<()> {
        let read = runs.0.db.read(|tx| Box::pin(db::remote_runs::any_over(tx)));
        if !read.await? {
            return Ok(());
        }
        let now = runs.0.clock.now();
        let write = runs.0.db.write(move |tx| {
            Box::pin(async move {
                db::remote_runs::delete_done(tx, AT_ONCE * 16).await?;
                db::remote_runs::schedule_cancelling(tx, now, AT_ONCE).await
            })
        });
        write.await
    }

    async fn run(&self, runs: &Runs, job: &ClaimedJob) -> DbResult<JobOutcome> {
        let run = RunId(job.key);
        let read = runs.0.db.read(move |tx| {
            Box::pin(async move {
                // It may have been taken up again since.
                match db::remote_runs::is_unwanted(tx, run).await? {
                    true => db::remote_runs::find(tx, run).await,
                    false => Ok(None),
                }
            })
        });
        let Some(work) = read.await? else {
            return Ok(JobOutcome::Done);
        };
        let soft = runs.0.shutdown.soft().clone();
        let ended = match soft
            .run_until_cancelled(timeout(LEASE / 2, runs.stop_remote_run(&work)))
            .await
        {
            // Another server takes it up.
            None => return Ok(JobOutcome::Settled),
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err("its server took too long".to_owned()),
        };
        let now = runs.0.clock.now();
        let looks = *runs.0.registry.workshop.peers.poll_policy();
        let since = work.lost_since.unwrap_or(now);
        let is_over = match &ended {
            Ok(()) => true,
            Err(reason) => {
                tracing::warn!(%run, agent = %work.agent, %reason, "could not cancel a run on another server");
                now.since(since) >= looks.patience
            }
        };
        let due_at = now.plus(looks.pause(job.attempts, run.0));
        let claimed = job.clone();
        let write = runs.0.db.write(move |tx| {
            Box::pin(async move {
                if is_over {
                    if db::jobs::finish(tx, &claimed).await? {
                        db::remote_runs::delete(tx, run).await?;
                    }
                } else if db::jobs::put_off(tx, &claimed, due_at).await? {
                    db::remote_runs::set_lost(tx, run, since).await?;
                }
                Ok(())
            })
        });
        write.await?;
        Ok(JobOutcome::Settled)
    }
}

impl Runs {
    async fn stop_remote_run(&self, work: &RemoteRun) -> Result<(), String> {
        let (place, agent) = self.place_of(work).await?;
        stop(&place, &agent, LOOKS_FOR)
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    }
}
