//! Looks at the tasks on other servers until they are over, and stops those that nobody wants any more. Subagents there that
//! wait for a human are looked at, too: they may be answered there, see [`settled`](super::settled).
//!
//! Of several servers on one database one looks at a task at a time; should it die, another one goes on. The pauses grow
//! while nothing changes. What is seen is written down, and told by whoever tells what came of tasks here.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::remote::{LOOKS_FOR, gone, note_down, stop, unavailable};
use crate::db::{self, DbResult};
use crate::domain::background::{RemoteWork, Sight, TaskRecord};
use crate::domain::time::Timestamp;
use crate::runtime::Runs;

/// How many tasks are looked at side by side.
const AT_ONCE: usize = 32;
/// For how long a task is taken up: longer than a look can take.
const CLAIM: Duration = Duration::from_secs(30);
/// The shortest pause: another server is about to write what it has seen.
const BREATH: Duration = Duration::from_millis(25);
/// The longest pause while there are such tasks, and while there are none: another server may have left some.
pub(super) const LOOK: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(5);
/// How long it is waited for the call that begins a task and has not come to an end.
const BEGINNING: Duration = Duration::from_secs(30);

/// Says when tasks on other servers are to be looked at, and how many at once.
#[derive(Debug)]
pub(super) struct Lookout {
    bell: Notify,
    pub(super) slots: Arc<Semaphore>,
}

impl Default for Lookout {
    fn default() -> Self {
        Self {
            bell: Notify::new(),
            slots: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

impl Lookout {
    /// Notes that something about such a task has changed here.
    pub(super) fn ring(&self) {
        self.bell.notify_one();
    }
}

impl Runs {
    /// Looks at tasks on other servers as they become due. Ends with the server.
    pub(in crate::runtime) async fn keep_looking(self) {
        let soft = self.0.shutdown.soft().clone();
        while !soft.is_cancelled() {
            if let Err(error) = self.run_errands().await {
                tracing::warn!(%error, "could not look for work at other servers that nobody wants");
            }
            let due = match (self.look_around().await, self.look_for_answers().await) {
                (Ok(tasks), Ok(questions)) => Ok(tasks.into_iter().chain(questions).min()),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
            let pause = match due {
                Ok(None) => REST,
                Ok(Some(due)) => due.since(self.0.clock.now()).clamp(BREATH, LOOK),
                Err(error) => {
                    tracing::warn!(%error, "could not look for tasks on other servers");
                    LOOK
                }
            };
            soft.run_until_cancelled(timeout(pause, self.0.waker.lookout.bell.notified()))
                .await;
        }
    }

    /// Takes up all that is due, as far as there is room. Returns when the next task is due, if there is any.
    async fn look_around(&self) -> DbResult<Option<Timestamp>> {
        let worker = self.0.id;
        let slots = &self.0.waker.lookout.slots;
        loop {
            let next = self
                .0
                .db
                .read(|tx| Box::pin(db::background::remote::next_due(tx)))
                .await?;
            let free = slots.available_permits();
            let now = self.0.clock.now();
            if next.is_none() || free == 0 {
                // Who has looked rings when there is room.
                return Ok(next.map(|_| now.plus(LOOK)));
            }
            let limit = i64::try_from(free).unwrap_or(i64::MAX);
            let claimed = self.0.db.write(move |tx| {
                Box::pin(async move {
                    db::background::remote::free_orphans(tx, worker, now).await?;
                    db::background::remote::claim(tx, worker, now, now.plus(CLAIM), limit).await
                })
            });
            let claimed = claimed.await?;
            if claimed.is_empty() {
                return Ok(next.map(|due| due.max(now)));
            }
            for record in claimed {
                let permit = Arc::clone(slots).try_acquire_owned().ok();
                drop(
                    self.0
                        .shutdown
                        .spawn("task on another server", self.clone().attend(record, permit)),
                );
            }
        }
    }

    /// Looks at a task once, and writes down what was seen.
    async fn attend(self, record: TaskRecord, permit: Option<OwnedSemaphorePermit>) {
        let soft = self.0.shutdown.soft().clone();
        // Who takes the place of a server that leaves looks again at once.
        let Some(work) = soft.run_until_cancelled(self.seen(&record)).await else {
            return;
        };
        let task = record.task;
        let fence = Some(record.remote.fence);
        let noted = record.clone();
        let has_come = work
            .as_ref()
            .and_then(|work| work.seen.as_ref())
            .is_some_and(|seen| seen.status.is_outcome());
        let written = self.0.db.write(move |tx| {
            Box::pin(async move {
                match work {
                    Some(work) => note_down(tx, &noted, &work, fence).await.map(drop),
                    None => db::background::remote::forget(tx, task).await,
                }
            })
        });
        if let Err(error) = written.await {
            // The claim runs out, and it is looked again.
            tracing::warn!(%task, %error, "could not note how a task on another server stands");
        }
        drop(permit);
        if has_come {
            self.0.waker.ring();
        }
        self.0.waker.lookout.ring();
    }

    /// What is known of a task after a look; nothing if it was never begun.
    async fn seen(&self, record: &TaskRecord) -> Option<RemoteWork> {
        let work = &record.remote;
        if work.seen.is_none() && self.is_at_work(record).await {
            let due_at = Some(self.0.clock.now().plus(BEGINNING));
            return Some(RemoteWork { due_at, ..work.clone() });
        }
        let seen = match timeout(CLAIM / 2, self.see(record)).await {
            Ok(seen) => seen,
            Err(_) => Err(format!("The agent `{}`: its server took too long.", record.graph_id)),
        };
        let seen = match (seen, &work.seen) {
            (Ok(None), None) => return None,
            (Ok(None), Some(before)) => Ok(gone(before.run.clone())),
            (Ok(Some(seen)), _) => Ok(seen),
            (Err(reason), _) => Err(reason),
        };
        if let Err(reason) = &seen {
            tracing::debug!(task = %record.task, reason, "a task on another server was not to be seen");
        }
        Some(work.after(seen, self.moment(record), self.0.registry.workshop.peers.looks()))
    }

    async fn see(&self, record: &TaskRecord) -> Result<Option<Sight>, String> {
        let (place, agent) = self.workplace(record).await?;
        let seen = match record.remote.unwanted {
            true => stop(&place, &agent, LOOKS_FOR).await,
            false => place.look().await,
        };
        seen.map_err(|error| unavailable(record, &place, &error))
    }

    /// Whether the run that begins a task may still come to the end of the call.
    async fn is_at_work(&self, record: &TaskRecord) -> bool {
        let parent = record.parent_run;
        let run = self
            .0
            .db
            .read(move |tx| Box::pin(async move { db::runs::get_by_id(tx, parent).await }));
        // What cannot be read may be.
        run.await
            .map_or(true, |run| run.is_some_and(|run| !run.status.is_final()))
    }
}
