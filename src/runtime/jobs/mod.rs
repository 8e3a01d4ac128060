//! The job queue: everything that is due later, see [`JobKind`]. One loop claims the jobs that are due, up to a limit
//! for each kind, and runs them.
//!
//! A claim holds until its lease expires or its worker dies; then another worker claims the job. So a job may run
//! twice. Writes that must happen once belong into the transaction that settles the job, since settling tells whether
//! the claim still holds. Such a transaction may be stored although the database did not say so, so a job that has failed is
//! given back only if it is still claimed. A claim that was stored without an answer of the database, or whose end was not
//! stored, is given back, too, see [`left_claims`](super::shared::left_claims).
//!
//! The loop sleeps until the next job is due, and at most for [`Core::longest_sleep`]. A process that schedules a job wakes
//! its own loop; one that has no loop notifies the other processes instead. After the longest sleep the loop also finds what
//! nobody reports, such as jobs of processes that are gone and changes of the clock.
//!
//! Some jobs are due because of a fact that no transaction turns into a job, such as the expiry of an interrupt. The loop
//! looks for such facts ([`JobHandler::find_unscheduled`]) when [`discover`](super::shared::job_queue::JobQueue::discover)
//! asks for it, at the time at which the next one is known to come, and after each longest sleep.
//!
//! **A new kind**: its word in [`JobKind`], a file here with its [`JobHandler`], and its line in [`handler`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::handles::RuntimeHandles;
use super::shared::Core;
use super::shared::job_queue::{JobLimits, KindState};
use crate::db::jobs::{self, JobOwner};
use crate::db::{DbResult, Notification, Tx, notifications, warn_of};
use crate::domain::job::{ClaimedJob, JobKind};
use crate::domain::time::Timestamp;

mod cancel_remote;
mod cron;
mod end_sandbox;
mod expire_interrupts;
mod notify_parent;
mod poll_remote;
mod sweep;
mod sweep_deliveries;
mod sweep_items;
mod watch_interrupt;
mod webhook;

/// The pause before a job is retried that could not be done, and before the next look at jobs that are due.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The shortest time between two looks, unless the loop is woken.
const SHORTEST_PAUSE: Duration = Duration::from_millis(25);

/// The outcome of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobOutcome {
    /// The job is done.
    Done,
    /// The job is due again at this time.
    Again(Timestamp),
    /// The job could not be done yet and is retried soon.
    NotNow,
    /// The handler has settled the job, or leaves it to the next claim.
    Settled,
}

/// The handler of one kind of jobs.
pub(super) trait JobHandler: Sync {
    /// Returns the limits of the kind.
    fn limits(&self) -> JobLimits;

    /// Returns the lease of a claim: longer than a job can take.
    fn lease(&self, runtime: &RuntimeHandles) -> Duration;

    /// Looks for facts because of which jobs are due, if no transaction schedules these jobs.
    fn find_unscheduled<'t>(&self, _tx: &'t mut Tx<'_>, _now: Timestamp) -> BoxFuture<'t, DbResult<Unscheduled>> {
        Box::pin(async move { Ok(Unscheduled::default()) })
    }

    /// Schedules the jobs for what [`JobHandler::find_unscheduled`] has found.
    fn schedule<'a>(&'a self, _runtime: &'a RuntimeHandles) -> BoxFuture<'a, DbResult<()>> {
        Box::pin(async move { Ok(()) })
    }

    /// Runs a job.
    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, job: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>>;
}

/// The findings of [`JobHandler::find_unscheduled`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Unscheduled {
    /// True if there are jobs to schedule.
    any: bool,
    /// The time at which the next such fact is known to come.
    next: Option<Timestamp>,
    /// True if the end of any run may be such a fact.
    comes_with_runs: bool,
}

impl Unscheduled {
    /// Returns the findings about facts of which it is not known when the next one comes.
    fn now(any: bool) -> Self {
        Self { any, ..Self::default() }
    }
}

/// Schedules jobs in one transaction.
async fn schedule_at_once<S>(runtime: &RuntimeHandles, schedule: S) -> DbResult<()>
where
    S: for<'t> FnOnce(&'t mut Tx<'_>, Timestamp) -> BoxFuture<'t, DbResult<()>> + Send + 'static,
{
    let now = runtime.core.clock.now();
    runtime.core.db.write(move |tx| schedule(tx, now)).await
}

fn handler(kind: JobKind) -> &'static dyn JobHandler {
    match kind {
        JobKind::Webhook => &webhook::WebhookHandler,
        JobKind::Cron => &cron::CronHandler,
        JobKind::PollRemote => &poll_remote::PollRemoteHandler,
        JobKind::CancelRemote => &cancel_remote::CancelRemoteHandler,
        JobKind::WatchInterrupt => &watch_interrupt::WatchInterruptHandler,
        JobKind::ExpireInterrupts => &expire_interrupts::ExpireInterruptsHandler,
        JobKind::EndSandbox => &end_sandbox::EndSandboxHandler,
        JobKind::NotifyParent => &notify_parent::NotifyParentHandler,
        JobKind::Sweep => &sweep::SweepHandler,
        JobKind::SweepDeliveries => &sweep_deliveries::SweepDeliveriesHandler,
        JobKind::SweepItems => &sweep_items::SweepItemsHandler,
    }
}

/// Returns the limits of a kind.
pub(super) fn limits_of(kind: JobKind) -> JobLimits {
    handler(kind).limits()
}

/// The kinds with a single job for the whole database, which is repeated for ever.
const PERIODIC: [JobKind; 3] = [JobKind::Sweep, JobKind::SweepDeliveries, JobKind::SweepItems];

/// Runs the jobs of the queue in this process.
#[derive(Clone)]
pub(super) struct JobRunner {
    runtime: RuntimeHandles,
    core: Arc<Core>,
}

impl JobRunner {
    pub(super) fn new(runtime: RuntimeHandles) -> Self {
        Self {
            core: Arc::clone(&runtime.core),
            runtime,
        }
    }

    /// Schedules the periodic jobs.
    pub(super) async fn schedule_periodic_jobs(&self) -> DbResult<()> {
        let now = self.core.clock.now();
        let write = self.core.db.write(move |tx| {
            Box::pin(async move {
                for kind in PERIODIC {
                    jobs::ensure(tx, kind, Uuid::nil(), JobOwner::default(), now).await?;
                }
                Ok(())
            })
        });
        write.await
    }

    /// Runs jobs as they become due. Ends with the server.
    pub(super) async fn run_jobs(self) {
        let soft = self.core.shutdown.soft().clone();
        let longest = self.core.longest_sleep();
        let mut discovered: Option<Instant> = None;
        // The time at which the next fact is known to come because of which jobs are due.
        let mut next_fact: Option<Timestamp> = None;
        while !soft.is_cancelled() {
            let is_asked = self.core.jobs.discovers.swap(false, Ordering::AcqRel);
            let has_come = next_fact.is_some_and(|at| at <= self.core.clock.now());
            if is_asked || has_come || discovered.is_none_or(|last| last.elapsed() >= longest) {
                discovered = Some(Instant::now());
                next_fact = self.discover_jobs().await;
            }
            let next_job = match self.start_due_jobs().await {
                Ok(next) => next,
                Err(error) => {
                    warn_of!(error, "could not look for jobs that are due");
                    Some(self.retry_time())
                }
            };
            let pause = pause_until(earliest(next_job, next_fact), self.core.clock.now(), longest);
            soft.run_until_cancelled(timeout(pause, self.core.jobs.wakeup.notified()))
                .await;
        }
    }

    /// Tells the processes that do jobs when this one, which does none, has scheduled some. Ends with the server.
    pub(super) async fn announce_jobs(self) {
        let soft = self.core.shutdown.soft().clone();
        while soft
            .run_until_cancelled(self.core.jobs.wakeup.notified())
            .await
            .is_some()
        {
            let write = self
                .core
                .db
                .write(|tx| Box::pin(notifications::notify(tx, Notification::Jobs)));
            if let Err(error) = write.await {
                warn_of!(
                    error,
                    "could not notify other servers of new jobs; they poll for jobs soon"
                );
            }
        }
    }

    /// Returns the time at which the loop looks again for what could not be done at once.
    fn retry_time(&self) -> Timestamp {
        self.core.clock.now().plus(RETRY_PAUSE)
    }

    /// Schedules the jobs that are due because of facts that schedule none. Returns the time at which the next such fact is
    /// known to come.
    async fn discover_jobs(&self) -> Option<Timestamp> {
        let known = self.core.jobs.begin_look();
        let found = self.look_for_facts().await;
        let any = found.iter().any(|(_, facts)| facts.comes_with_runs);
        self.core.jobs.looked(known, any);
        let mut next = None;
        for (kind, facts) in found {
            next = earliest(next, facts.next);
            if !facts.any {
                continue;
            }
            // There may be more than one transaction schedules.
            next = earliest(next, Some(self.retry_time()));
            if let Err(error) = handler(kind).schedule(&self.runtime).await {
                warn_of!(error, kind = kind.word(), "could not schedule what is to be done");
            }
        }
        next
    }

    /// Calls [`JobHandler::find_unscheduled`] of all kinds.
    async fn look_for_facts(&self) -> Vec<(JobKind, Unscheduled)> {
        if let Ok(found) = self.look_for_facts_of(JobKind::ALL).await {
            return found;
        }
        // One kind must not hold up the others.
        let mut found = vec![];
        for kind in JobKind::ALL {
            match self.look_for_facts_of(std::slice::from_ref(kind)).await {
                Ok(facts) => found.extend(facts),
                Err(error) => {
                    warn_of!(error, kind = kind.word(), "could not look for what is to be done");
                    let unknown = Unscheduled {
                        any: false,
                        next: Some(self.retry_time()),
                        comes_with_runs: true,
                    };
                    found.push((*kind, unknown));
                }
            }
        }
        found
    }

    /// Calls [`JobHandler::find_unscheduled`] of these kinds in one transaction.
    async fn look_for_facts_of(&self, kinds: &'static [JobKind]) -> DbResult<Vec<(JobKind, Unscheduled)>> {
        let now = self.core.clock.now();
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                let mut found = vec![];
                for kind in kinds {
                    found.push((*kind, handler(*kind).find_unscheduled(tx, now).await?));
                }
                Ok(found)
            })
        });
        read.await
    }

    /// Starts the jobs that are due, as far as the limits allow. Returns the time at which the next job is due, or is to be
    /// looked for again.
    async fn start_due_jobs(&self) -> DbResult<Option<Timestamp>> {
        let worker = self.core.id;
        let now = self.core.clock.now();
        self.give_left_claims_back(now).await?;
        let read = self.core.db.read(move |tx| {
            Box::pin(async move { Ok((jobs::next_due(tx).await?, jobs::any_orphans(tx, worker).await?)) })
        });
        let (due, any_orphans) = read.await?;
        let mut next = self.core.jobs.left_claims.may_be_any().then(|| now.plus(RETRY_PAUSE));
        if any_orphans {
            let free = self
                .core
                .db
                .write(move |tx| Box::pin(jobs::free_orphans(tx, worker, now)));
            let count = free.await?;
            tracing::debug!(count, "released the jobs of servers whose leases have expired");
            next = Some(now);
        }
        for state in &self.core.jobs.kinds {
            let Some((_, at)) = due.iter().find(|(kind, _)| *kind == state.kind) else {
                continue;
            };
            if *at > now {
                next = earliest(next, Some(*at));
                continue;
            }
            // More of them may be due than could be claimed.
            next = earliest(next, Some(now.plus(RETRY_PAUSE)));
            if let Err(error) = self.start_jobs(state, now).await {
                self.core.jobs.left_claims.note(&error);
                warn_of!(error, kind = state.kind.word(), "could not claim jobs");
            }
        }
        Ok(next)
    }

    /// Makes the jobs due again whose claims by this process are [left](super::shared::left_claims).
    async fn give_left_claims_back(&self, now: Timestamp) -> DbResult<()> {
        let Some(look) = self.core.jobs.left_claims.begin_look() else {
            return Ok(());
        };
        let worker = self.core.id;
        let at_work = look.at_work.clone();
        let free = self
            .core
            .db
            .write(move |tx| Box::pin(async move { jobs::free_left(tx, worker, &at_work, now).await }));
        let count = free.await?;
        if count > 0 {
            tracing::info!(
                count,
                "gave back jobs whose claims were left when the database did not answer"
            );
        }
        self.core.jobs.left_claims.looked(&look);
        Ok(())
    }

    /// Claims as many jobs of a kind as there are free slots, and starts them. The end of a batch wakes the loop.
    async fn start_jobs(&self, state: &KindState, now: Timestamp) -> DbResult<()> {
        let free = state.slots.available_permits();
        if free == 0 || self.core.shutdown.soft().is_cancelled() {
            return Ok(());
        }
        let worker = self.core.id;
        let kind = state.kind;
        let until = now.plus(handler(kind).lease(&self.runtime));
        let limit = i64::try_from(free.saturating_mul(state.limits.batch)).unwrap_or(i64::MAX);
        let claim = self
            .core
            .db
            .write(move |tx| Box::pin(jobs::claim(tx, worker, kind, now, until, limit)));
        let claimed = claim.await?;
        self.core.jobs.left_claims.begin(&claimed);
        for batch in claimed.chunks(state.limits.batch) {
            let permit = Arc::clone(&state.slots).try_acquire_owned().ok();
            let work = self.clone().run_batch(kind, batch.to_vec(), permit);
            drop(self.core.spawn(kind.word(), work));
        }
        Ok(())
    }

    /// Runs jobs of a kind, one after the other.
    async fn run_batch(self, kind: JobKind, batch: Vec<ClaimedJob>, permit: Option<OwnedSemaphorePermit>) {
        let soft = self.core.shutdown.soft();
        let mut has_failed = false;
        for job in batch {
            // The rest of the batch stays due, and the server that replaces a stopping one continues at once.
            if soft.is_cancelled() {
                break;
            }
            let outcome = handler(kind).run(&self.runtime, &job).await;
            has_failed |= outcome.is_err();
            if let Err(error) = self.settle_job(&job, outcome).await {
                // The claim is given back, or expires, and the job runs again.
                self.core.jobs.left_claims.note(&error);
                warn_of!(error, kind = kind.word(), key = %job.key, "could not settle a job");
            }
            self.core.jobs.left_claims.end(job.id);
        }
        if has_failed {
            // The job stays due. The pause prevents an immediate retry, whatever the clocks of the servers say.
            soft.run_until_cancelled(tokio::time::sleep(RETRY_PAUSE)).await;
        }
        drop(permit);
        self.core.jobs.wake();
    }

    async fn settle_job(&self, job: &ClaimedJob, outcome: DbResult<JobOutcome>) -> DbResult<()> {
        let now = self.core.clock.now();
        let due_at = match outcome {
            Ok(JobOutcome::Done) => None,
            Ok(JobOutcome::Again(due_at)) => Some(due_at),
            Ok(JobOutcome::NotNow) => Some(now.plus(RETRY_PAUSE)),
            Ok(JobOutcome::Settled) => return Ok(()),
            Err(error) => {
                warn_of!(error, kind = job.kind.word(), key = %job.key, "a job could not be done yet");
                let failed = job.clone();
                let write = self
                    .core
                    .db
                    .write(move |tx| Box::pin(async move { jobs::give_back(tx, &failed, now).await }));
                return write.await;
            }
        };
        let job = job.clone();
        let write = self.core.db.write(move |tx| {
            Box::pin(async move {
                match due_at {
                    None => jobs::finish(tx, &job).await,
                    Some(due_at) => jobs::put_off(tx, &job, due_at).await,
                }
            })
        });
        write.await.map(drop)
    }
}

/// Returns the earlier of two times, as far as they are known.
fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// Returns the pause until this time, if it is known, but not longer than `longest`.
fn pause_until(next: Option<Timestamp>, now: Timestamp, longest: Duration) -> Duration {
    next.map_or(longest, |at| at.since(now).clamp(SHORTEST_PAUSE, longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_sleeps_until_something_is_due_and_not_too_long() {
        let now = Timestamp(1_000_000_000);
        let longest = Duration::from_secs(5);
        let after = |millis: u64| Some(now.plus(Duration::from_millis(millis)));
        for (job, fact, millis) in [
            (None, None, 5_000),
            (after(1_200), None, 1_200),
            (after(3_000), after(700), 700),
            (None, after(86_400_000), 5_000),
            (after(0), after(700), 25),
            (Some(Timestamp(0)), None, 25),
        ] {
            let pause = pause_until(earliest(job, fact), now, longest);
            assert_eq!(pause, Duration::from_millis(millis), "{job:?} {fact:?}");
        }
    }
}
