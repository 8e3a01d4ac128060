//! Starts the runs of crons, see the module [`crons`] of the runtime.

use std::time::Duration;

use futures::future::BoxFuture;

use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::{self, DbResult, Tx};
use crate::domain::id::CronId;
use crate::domain::job::ClaimedJob;
use crate::domain::quota::{QuotaKind, QuotaReached};
use crate::runtime::admission::{self, AdmissionContext, Admitted};
use crate::runtime::crons::{self, PrecheckedRun, new_run_of};
use crate::runtime::error::StartError;
use crate::runtime::handles::RuntimeHandles;

/// The lease of a claim: longer than it takes to start the runs.
const LEASE: Duration = Duration::from_secs(60);

pub(super) struct CronHandler;

/// The outcome of a due time.
enum CronOutcome {
    /// There is nothing to run: another worker has claimed the job, the cron was deleted, or its end has passed.
    Nothing,
    /// The run was admitted or refused.
    Tried(Result<Box<Admitted>, StartError>),
}

impl JobHandler for CronHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 1, batch: 64 }
    }

    fn lease(&self, _: &RuntimeHandles) -> Duration {
        LEASE
    }

    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, job: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>> {
        Box::pin(async move {
            let id = CronId(job.key);
            // A cron that finds the queue full stays due.
            match runtime.core.queue.take_places(&runtime.core.db, 1).await {
                Ok(()) => {}
                Err(StartError::Fault(error)) => return Err(error),
                Err(refusal) => {
                    tracing::warn!(cron = %id, %refusal, "a cron is due and waits for room in the queue");
                    return Ok(JobOutcome::NotNow);
                }
            }
            let ahead = runtime.crons.precheck_run(id).await?;
            let context = runtime.crons.admission.context(vec![]);
            let claimed = job.clone();
            let write = runtime.core.db.write(move |tx| {
                Box::pin(async move {
                    // The locks are taken in the same order as by the deletion of a thread.
                    if let Some(thread) = ahead.thread {
                        db::threads::lock(tx, thread).await?;
                    }
                    Box::pin(fire(tx, &claimed, ahead, context)).await
                })
            });
            match write.await? {
                CronOutcome::Nothing => {}
                CronOutcome::Tried(Ok(admitted)) => {
                    let run = runtime.crons.admission.start_or_queue((*admitted).into(), None);
                    tracing::debug!(cron = %id, run = %run.id, "cron is due");
                }
                CronOutcome::Tried(Err(refusal)) => {
                    tracing::warn!(cron = %id, %refusal, "a cron is due, but its run was refused");
                    if is_full(&refusal) {
                        // The cron stays due, and is met when there is room.
                        return Ok(JobOutcome::NotNow);
                    }
                }
            }
            Ok(JobOutcome::Settled)
        })
    }
}

/// Moves a cron to its next due time and starts the run of the present one, unless another worker has claimed the job.
async fn fire(
    tx: &mut Tx<'_>,
    job: &ClaimedJob,
    mut ahead: PrecheckedRun,
    mut context: AdmissionContext,
) -> DbResult<CronOutcome> {
    let id = CronId(job.key);
    let now = context.now;
    let cron = match db::crons::lock(tx, id).await {
        Ok(Some(cron)) => cron,
        Ok(None) => {
            db::jobs::finish(tx, job).await?;
            return Ok(CronOutcome::Nothing);
        }
        Err(error) if error.is_corrupt() => {
            tracing::error!(cron = %id, %error, "a cron cannot be read and is not scheduled any more");
            db::crons::move_on(tx, id, job, None).await?;
            return Ok(CronOutcome::Nothing);
        }
        Err(error) => return Err(error),
    };
    let is_ours = db::crons::move_on(tx, id, job, cron.next_after(now)).await?;
    if !is_ours || cron.end.is_some_and(|end| end < now) {
        return Ok(CronOutcome::Nothing);
    }
    if ahead.request.as_ref() == Some(&cron.request) {
        context.checked = ahead.checked;
    } else {
        // The cron was changed since the check.
        ahead.refusal = None;
    }
    if let Some(refusal) = ahead.refusal {
        return Ok(CronOutcome::Tried(Err(refusal)));
    }
    // The due time is used up even if the run is refused.
    match crons::check_user(tx, &cron, &context.core).await {
        Ok(()) => {}
        Err(StartError::Fault(error)) => return Err(error),
        Err(refusal) => return Ok(CronOutcome::Tried(Err(refusal))),
    }
    let started = admission::try_start(tx, &new_run_of(&cron), &context).await?;
    if started.as_ref().is_err_and(is_full) {
        db::crons::move_on(tx, id, job, cron.due_at).await?;
    }
    Ok(CronOutcome::Tried(started.map(Box::new)))
}

/// Returns whether the refused run can be met when others have begun.
fn is_full(refusal: &StartError) -> bool {
    matches!(
        refusal,
        StartError::ThreadFull(_)
            | StartError::Quota(QuotaReached {
                kind: QuotaKind::RunsWaiting,
                ..
            })
    )
}
