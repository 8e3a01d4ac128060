//! The lease of this process: while it is renewed, no other process takes over the runs that this one has claimed. The
//! notifications of other processes are received here, too.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::cancel_action::CancelAction;
use super::dispatcher::Dispatcher;
use crate::db::{self, DbError, DbResult, Engine, Notification, SessionLock, warn_of};
use crate::domain::id::RunId;

/// The pause after a renewal that failed: the others must not miss this process when the database is back.
const RENEWAL_RETRY_PAUSE: Duration = Duration::from_millis(200);

impl Dispatcher {
    /// Takes the lease of this process, so that its claims hold. Runs that an earlier process left are due again.
    pub(super) async fn take_lease(&self) -> DbResult<()> {
        let id = self.core.id;
        let lease = self.lease;
        let alone = self.is_alone();
        let session_lock = *self.core.db.session_lock().borrow();
        let write = self.core.db.write(move |tx| {
            Box::pin(async move {
                // An embedded database has one server, so no other server is alive.
                if alone {
                    db::workers::retire_all(tx).await?;
                }
                db::workers::renew_lease(tx, id, lease, session_lock).await?;
                db::workers::has_other_workers(tx, id).await
            })
        });
        self.has_other_workers.store(write.await?, Ordering::Release);
        Ok(())
    }

    /// Returns whether no other process can use the same database.
    fn is_alone(&self) -> bool {
        self.core.db.engine() == Engine::Sqlite
    }

    /// Releases the lease of this process and its runs, which may be taken over at once.
    pub(super) async fn release_lease(&self) -> DbResult<()> {
        let mut released = self.lease_released.lock().await;
        *released = true;
        let id = self.core.id;
        let write = self.core.db.write(move |tx| {
            Box::pin(async move {
                db::runs::release_all(tx, id).await?;
                db::workers::retire(tx, id).await?;
                db::notifications::notify(tx, Notification::Released).await
            })
        });
        write.await
    }

    /// Renews the lease and reads cancellations that other processes received. Ends when the server stops and its last
    /// run has left: a call of a tool that is waited for must not be repeated by another process meanwhile.
    pub(super) async fn run_lease_loop(self: Arc<Self>) {
        let left = async {
            self.core.shutdown.soft().cancelled().await;
            self.active.wait_until_ended(|_| true).await;
            self.core.jobs.wait_until_idle().await;
        };
        tokio::select! {
            () = self.renew_repeatedly() => {}
            () = left => {}
        }
    }

    async fn renew_repeatedly(&self) {
        // The local time is that of a monotonic clock. Other processes compare the clock of the database.
        let mut good_until = Instant::now() + self.lease;
        let mut session_lock = self.core.db.session_lock();
        let mut pause = self.heartbeat;
        let mut is_failing = false;
        loop {
            // Not past the end of the lease, when the runs have to stop.
            let left = good_until.saturating_duration_since(Instant::now());
            let next = if left.is_zero() { pause } else { pause.min(left) };
            Self::time_to_renew(next, &mut session_lock).await;
            self.stop_without_lease(good_until);
            let now = Instant::now();
            let until = now + self.lease;
            // In time to stop the runs; once they are stopped, the database may take longer.
            let deadline = if good_until > now { good_until } else { until };
            let held = *session_lock.borrow_and_update();
            match self.renew_lease(held, deadline).await {
                Ok(cancels) => {
                    good_until = until;
                    pause = self.heartbeat;
                    is_failing = false;
                    cancels.into_iter().for_each(|(run, action)| {
                        self.stop(run, action);
                    });
                }
                Err(error) => {
                    let is_known = std::mem::replace(&mut is_failing, true);
                    match is_known {
                        true => tracing::debug!(%error, "could not renew the lease"),
                        false => warn_of!(error, "could not renew the lease"),
                    }
                    pause = self.heartbeat.min(RENEWAL_RETRY_PAUSE);
                    self.stop_without_lease(good_until);
                }
            }
        }
    }

    /// Stops the runs of this process if its lease is over: another process may have taken them over.
    fn stop_without_lease(&self, good_until: Instant) {
        // On an embedded database there is no other process.
        if self.is_alone() || Instant::now() < good_until {
            return;
        }
        let stopped = self.active.stop_all_as_lost();
        if stopped > 0 {
            tracing::info!(
                runs = stopped,
                "the lease of this process is over: its runs stop here, and other processes may have taken them over"
            );
        }
    }

    /// Waits for the time until the next heartbeat, or until the lock of this process is taken or lost.
    async fn time_to_renew(pause: Duration, session_lock: &mut watch::Receiver<Option<SessionLock>>) {
        let changed = async {
            if session_lock.changed().await.is_err() {
                // The database is closing.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = changed => {}
        }
    }

    /// Renews the lease, unless the database takes longer than until the deadline.
    async fn renew_lease(
        &self,
        session_lock: Option<SessionLock>,
        deadline: Instant,
    ) -> DbResult<Vec<(RunId, CancelAction)>> {
        let released = self.lease_released.lock().await;
        if *released {
            return Ok(vec![]);
        }
        let id = self.core.id;
        let lease = self.lease;
        let write = self.core.db.write_for_lease(move |tx| {
            Box::pin(async move {
                db::workers::renew_lease(tx, id, lease, session_lock).await?;
                DbResult::Ok((
                    db::workers::has_other_workers(tx, id).await?,
                    db::runs::cancels_of(tx, id).await?,
                ))
            })
        });
        let written = timeout_at(deadline, write).await;
        let (has_other_workers, cancels) = written.unwrap_or_else(|_| Err(DbError::late()))?;
        if self.has_other_workers.swap(has_other_workers, Ordering::AcqRel) != has_other_workers {
            // A process that has ended may have left runs, and one that has started may leave some.
            self.look_for_orphans();
        }
        Ok(cancels
            .into_iter()
            .map(|(run, word)| (run, CancelAction::from_word(&word)))
            .collect())
    }

    /// Receives the notifications of other processes on the same database. Ends with the server.
    pub(super) async fn run_notification_loop(self: Arc<Self>) {
        let mut notifications = self.core.db.notifications();
        while let Some(heard) = self
            .core
            .shutdown
            .soft()
            .run_until_cancelled(notifications.recv())
            .await
        {
            match heard {
                Ok(Notification::Queue) => self.wakeup.notify_one(),
                Ok(Notification::Cancel(run)) if self.works_on(run) => self.read_cancels(Some(run)).await,
                Ok(Notification::Cancel(run)) => drop(self.parked.stop(run)),
                Ok(Notification::Ended(thread)) => self.core.events.wake(thread),
                Ok(Notification::Released) => self.look_for_orphans(),
                Ok(Notification::Jobs) => self.core.jobs.discover(),
                Ok(Notification::Definitions) => self.core.registry.changed.notify_one(),
                Err(RecvError::Lagged(_)) => {
                    self.wake_loops();
                    self.core.registry.changed.notify_one();
                    self.read_cancels(None).await;
                }
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Wakes the loops, so that they look for runs and jobs that other processes have left.
    fn look_for_orphans(&self) {
        self.has_orphans.store(true, Ordering::Release);
        self.wakeup.notify_one();
        self.core.jobs.wake();
    }

    /// Returns whether a run of the main agent or of a subagent is at work in this process.
    fn works_on(&self, run: RunId) -> bool {
        self.active.has(run) || self.children.has(run)
    }

    /// Cancels the runs of this process whose cancellation was requested, and `named`, if another process has deleted it
    /// meanwhile.
    async fn read_cancels(&self, named: Option<RunId>) {
        let id = self.core.id;
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                let mut cancels = db::runs::cancels_of(tx, id).await?;
                if let Some(run) = named
                    && !db::runs::exists(tx, run).await?
                {
                    cancels.push((run, CancelAction::Interrupt.word().to_owned()));
                }
                Ok(cancels)
            })
        });
        match read.await {
            Ok(cancels) => {
                for (run, word) in cancels {
                    self.stop(run, CancelAction::from_word(&word));
                }
            }
            Err(error) => warn_of!(error, "could not read which runs are to be cancelled"),
        }
    }
}
