//! Carries reports to their addresses: claims what is due, tries it, and writes down what came of it.

use std::sync::Arc;
use std::time::Duration;

use reqwest::StatusCode;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::AT_ONCE;
use crate::db::DbResult;
use crate::db::deliveries::{self, Attempt};
use crate::domain::delivery::{Delivery, DeliveryStatus};
use crate::domain::id::{DeliveryId, ThreadId};
use crate::domain::time::Timestamp;
use crate::runtime::Runs;
use crate::runtime::worker::Worker;

/// How often it is looked whether there is something to send, even if nobody rang.
const LOOK: Duration = Duration::from_secs(1);
/// How much longer than an attempt a claim holds.
const MARGIN: Duration = Duration::from_secs(30);
/// How often old deliveries are forgotten.
const SWEEP: Duration = Duration::from_secs(600);
/// How many old deliveries one transaction forgets.
const SWEPT_AT_ONCE: i64 = 500;

impl Worker {
    /// Sends reports as they become due. Ends with the server.
    pub(in crate::runtime) async fn carry(self: Arc<Self>) {
        let soft = self.shutdown.soft().clone();
        let mut swept: Option<Timestamp> = None;
        while !soft.is_cancelled() {
            if let Err(error) = self.carry_due().await {
                tracing::warn!(%error, "could not look for webhooks that are due");
            }
            let now = self.clock.now();
            if swept.is_none_or(|last| now.since(last) >= SWEEP) {
                swept = Some(now);
                if let Err(error) = self.forget_told(now).await {
                    tracing::warn!(%error, "could not forget old webhook deliveries");
                }
            }
            soft.run_until_cancelled(timeout(LOOK, self.webhooks.bell.notified()))
                .await;
        }
    }

    /// Waits until no report is on its way.
    pub(in crate::runtime) async fn carried(&self) {
        let all = u32::try_from(AT_ONCE).unwrap_or(u32::MAX);
        drop(self.webhooks.slots.acquire_many(all).await);
    }

    /// Begins all that is due, as far as there is room.
    async fn carry_due(self: &Arc<Self>) -> DbResult<()> {
        let worker = self.id;
        loop {
            let free = self.webhooks.slots.available_permits();
            if free == 0 || self.shutdown.soft().is_cancelled() {
                return Ok(());
            }
            let now = self.clock.now();
            let limit = i64::try_from(free).unwrap_or(i64::MAX);
            let until = now.plus(self.webhooks.timeout + MARGIN);
            let claimed = self
                .db
                .write(move |tx| {
                    Box::pin(async move {
                        deliveries::free_orphans(tx, worker, now).await?;
                        deliveries::claim(tx, worker, now, until, limit).await
                    })
                })
                .await?;
            if claimed.is_empty() {
                return Ok(());
            }
            for delivery in claimed {
                let permit = Arc::clone(&self.webhooks.slots).try_acquire_owned().ok();
                drop(
                    self.shutdown
                        .spawn("webhook", Arc::clone(self).deliver(delivery, permit)),
                );
            }
        }
    }

    /// Tries a delivery once.
    async fn deliver(self: Arc<Self>, delivery: Delivery, permit: Option<OwnedSemaphorePermit>) {
        let sending = self.webhooks.post(&delivery, self.clock.now());
        // A server that leaves does not wait for others: the next one tries again.
        let sent = self.shutdown.soft().run_until_cancelled(sending).await;
        let now = self.clock.now();
        let attempt = match sent {
            Some(Ok(status)) if status.is_success() => arrived(status, now),
            Some(Ok(status)) => self.failed(&delivery, Some(status), format!("it was answered with {status}"), now),
            Some(Err(reason)) => self.failed(&delivery, None, reason, now),
            None => Attempt {
                status: DeliveryStatus::Pending,
                answer: None,
                error: delivery.error.clone(),
                due_at: now,
            },
        };
        let id = delivery.id;
        let run = delivery.run;
        if attempt.status == DeliveryStatus::Dead {
            tracing::warn!(delivery = %id, %run, reason = attempt.error.as_deref(), "a webhook was given up");
        }
        let key = (id, delivery.fence);
        let settled = self
            .db
            .write(move |tx| Box::pin(async move { deliveries::settle(tx, key, &attempt, now).await }));
        if let Err(error) = settled.await {
            // The claim runs out, and it is tried again.
            tracing::warn!(delivery = %id, %error, "could not note what became of a webhook");
        }
        drop(permit);
        self.webhooks.ring();
    }

    /// What to do after a failure.
    fn failed(&self, delivery: &Delivery, answer: Option<StatusCode>, reason: String, now: Timestamp) -> Attempt {
        let is_over = delivery.attempts >= self.webhooks.attempts || answer == Some(StatusCode::GONE);
        Attempt {
            status: if is_over {
                DeliveryStatus::Dead
            } else {
                DeliveryStatus::Pending
            },
            answer: answer.map(|status| status.as_u16()),
            error: Some(reason),
            due_at: now.plus(self.webhooks.pause(delivery.attempts)),
        }
    }

    /// Forgets what arrived or was given up long ago.
    async fn forget_told(&self, now: Timestamp) -> DbResult<()> {
        let before = Timestamp(
            now.0
                .saturating_sub(i64::try_from(self.webhooks.keep.as_micros()).unwrap_or(i64::MAX)),
        );
        loop {
            let swept = self
                .db
                .write(move |tx| Box::pin(async move { deliveries::sweep(tx, before, SWEPT_AT_ONCE).await }));
            if swept.await? < SWEPT_AT_ONCE.unsigned_abs() || self.shutdown.soft().is_cancelled() {
                return Ok(());
            }
        }
    }
}

fn arrived(status: StatusCode, now: Timestamp) -> Attempt {
    Attempt {
        status: DeliveryStatus::Delivered,
        answer: Some(status.as_u16()),
        error: None,
        due_at: now,
    }
}

impl Runs {
    /// Sends a delivery again, whatever became of it. None if there is none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn redeliver(&self, id: DeliveryId) -> DbResult<Option<Delivery>> {
        let now = self.0.clock.now();
        let renewed = self
            .0
            .db
            .write(move |tx| Box::pin(async move { deliveries::renew(tx, id, now).await }))
            .await?;
        self.0.webhooks.ring();
        Ok(renewed)
    }

    /// Forgets what was told about the runs of a thread that a client has deleted.
    pub(in crate::runtime) async fn forget_deliveries(&self, thread: ThreadId) -> DbResult<()> {
        self.0
            .db
            .write(move |tx| Box::pin(async move { deliveries::forget_thread(tx, thread).await }))
            .await
    }
}
