//! Polls the background tasks of other servers until they are over, and cancels those that are no longer wanted. Those
//! that were undone with the run that started them are deleted then.
//!
//! The pauses between polls grow while nothing changes. The agent is notified as for tasks on this server, see
//! [`notify_parent`](super::notify_parent).

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::timeout;

use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::background::remote::WorkCondition;
use crate::db::{self, DbResult};
use crate::domain::background::{RemoteWork, TaskRecord, TaskSnapshot, TaskStatus};
use crate::domain::id::ThreadId;
use crate::domain::job::ClaimedJob;
use crate::runtime::background::BackgroundTasks;
use crate::runtime::background::remote::{
    MARGIN, POLL_TIMEOUT, START_TIMEOUT, deleted_snapshot, not_found, stop, store_polled, unavailable,
};
use crate::runtime::handles::RuntimeHandles;
use crate::runtime::log_lines;

/// The lease of a claim: longer than a poll can take.
const LEASE: Duration = Duration::from_secs(30);
/// The time allowed for the call that starts a task.
const BEGINNING: Duration = Duration::from_secs(30);

pub(super) struct PollRemoteHandler;

impl JobHandler for PollRemoteHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 32, batch: 1 }
    }

    fn lease(&self, _: &RuntimeHandles) -> Duration {
        LEASE
    }

    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, job: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>> {
        Box::pin(async move {
            let task = ThreadId(job.key);
            let read = runtime
                .core
                .db
                .read(move |tx| Box::pin(async move { db::background::find(tx, task).await }));
            let record = match db::unless_corrupt(read.await)? {
                Some(Some(record)) => record,
                Some(None) => return Ok(JobOutcome::Done),
                // The claim expires, and the task is polled again.
                None => return Ok(JobOutcome::Settled),
            };
            let soft = runtime.core.shutdown.soft().clone();
            // If this server stops, the server that replaces it polls the task again at once.
            let Some(work) = soft.run_until_cancelled(runtime.tasks.polled(&record)).await else {
                return Ok(JobOutcome::Settled);
            };
            let has_come = work
                .as_ref()
                .and_then(|work| work.seen.as_ref())
                .is_some_and(|seen| seen.status.is_outcome());
            let ended = work
                .as_ref()
                .and_then(|work| work.seen.as_ref())
                .map(|seen| seen.status)
                .filter(|status| status.is_final() && !was_final(&record))
                .map(|status| (record.clone(), status));
            let written = runtime.core.db.write(move |tx| {
                Box::pin(async move {
                    let Some(work) = work else {
                        return db::background::remote::forget(tx, task).await;
                    };
                    let condition = WorkCondition::HasVersion(record.remote.version);
                    store_polled(tx, &record, &work, condition).await.map(drop)
                })
            });
            let written = written.await;
            if has_come {
                // It may be stored although the database did not say so.
                runtime.core.jobs.discover();
            }
            match written {
                Ok(()) => {
                    if let Some((record, status)) = &ended {
                        log_lines::background_task_ended(record, *status);
                    }
                }
                // The task is polled again soon.
                Err(error) if error.is_transient() => return Err(error),
                // The claim expires, and the task is polled again.
                Err(error) => {
                    tracing::warn!(%task, %error, "could not store the status of a background task on another server");
                }
            }
            Ok(JobOutcome::Settled)
        })
    }
}

/// Returns whether a task had ended when it was seen last.
fn was_final(record: &TaskRecord) -> bool {
    let seen = record.remote.seen.as_ref();
    seen.is_some_and(|seen| seen.status.is_final())
}

impl BackgroundTasks {
    /// Polls a task. Returns its new state, or none if the task was never started.
    async fn polled(&self, record: &TaskRecord) -> Option<RemoteWork> {
        let work = &record.remote;
        let polling = self.core.registry.factory.peers.poll_policy();
        if work.seen.is_none() && self.is_at_work(record).await {
            let due_at = Some(self.core.clock.now().plus(BEGINNING));
            return Some(RemoteWork { due_at, ..work.clone() });
        }
        let seen = match timeout(LEASE / 2, self.poll(record)).await {
            Ok(seen) => seen,
            Err(_) => Err(format!("The agent `{}`: its server took too long.", record.graph_id)),
        };
        let seen = match (seen, &work.seen) {
            (Ok(None), None) => return None,
            (Ok(None), Some(_)) if self.may_still_start(record) => {
                let attempts = work.attempts.saturating_add(1);
                return Some(RemoteWork {
                    attempts,
                    lost_since: None,
                    due_at: Some(self.core.clock.now().plus(polling.pause(attempts, record.task.0))),
                    ..work.clone()
                });
            }
            (Ok(None), Some(before)) if !before.missed => {
                tracing::debug!(task = %record.task, "another server does not know a task");
                let reason = not_found(record);
                return Some(work.after_missed(reason, record.task.0, self.core.clock.now(), polling));
            }
            (Ok(None), Some(before)) => Ok(deleted_snapshot(before.run.clone())),
            (Ok(Some(seen)), _) => Ok(seen),
            (Err(reason), _) => Err(reason),
        };
        if let Err(reason) = &seen {
            tracing::debug!(task = %record.task, reason, "could not read the status of a task on another server");
        }
        Some(work.after(seen, record.task.0, self.core.clock.now(), polling))
    }

    async fn poll(&self, record: &TaskRecord) -> Result<Option<TaskSnapshot>, String> {
        let (place, agent) = self.remote_thread_of_task(record).await?;
        let before = record.remote.seen.as_ref();
        let seen = match record.remote.cancel_requested {
            true => stop(&place, &agent, before, POLL_TIMEOUT).await,
            false => place.snapshot(before).await,
        };
        seen.map_err(|error| unavailable(record, &place, &error))
    }

    /// Returns whether a task of which nothing was seen may start yet, although the agent was told that it was not started: the
    /// other server may not have read the last request. Then it is to be cancelled.
    fn may_still_start(&self, record: &TaskRecord) -> bool {
        let work = &record.remote;
        let was_given_up = work.seen.as_ref().is_some_and(|seen| {
            let is_unseen = seen.run.is_empty();
            is_unseen && seen.status == TaskStatus::Error
        });
        let until = record.created_at.plus(START_TIMEOUT + MARGIN);
        work.cancel_requested && was_given_up && self.core.clock.now() < until
    }

    /// Returns whether the call that starts a task may still be in progress.
    async fn is_at_work(&self, record: &TaskRecord) -> bool {
        let parent = record.parent_run;
        let run = self
            .core
            .db
            .read(move |tx| Box::pin(async move { db::runs::get_by_id(tx, parent).await }));
        // A run that cannot be read counts as at work, since it may be.
        run.await
            .map_or(true, |run| run.is_some_and(|run| !run.status.is_final()))
    }
}
