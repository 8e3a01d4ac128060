//! Sends webhooks: tries what is due once, and writes the result.

use std::time::Duration;

use async_trait::async_trait;
use reqwest::StatusCode;

use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::deliveries::{self, Attempt};
use crate::db::{self, DbResult};
use crate::domain::delivery::{Delivery, DeliveryStatus};
use crate::domain::id::{DeliveryId, ThreadId};
use crate::domain::job::ClaimedJob;
use crate::domain::time::Timestamp;
use crate::runtime::Runs;

/// How much longer than an attempt a claim holds.
const MARGIN: Duration = Duration::from_secs(30);

pub(super) struct WebhookHandler;

#[async_trait]
impl JobHandler for WebhookHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 32, batch: 1 }
    }

    fn lease(&self, runs: &Runs) -> Duration {
        runs.0.webhooks.timeout + MARGIN
    }

    async fn run(&self, runs: &Runs, job: &ClaimedJob) -> DbResult<JobOutcome> {
        let id = DeliveryId(job.key);
        let read = runs
            .0
            .db
            .read(move |tx| Box::pin(async move { deliveries::find(tx, id).await }));
        let delivery = match db::unless_corrupt(read.await)? {
            Some(Some(delivery)) => delivery,
            Some(None) => return Ok(JobOutcome::Done),
            // It is tried again when the claim runs out.
            None => return Ok(JobOutcome::Settled),
        };
        let attempt = attempt(runs, job, &delivery).await;
        if attempt.status == DeliveryStatus::Dead {
            let run = delivery.run;
            tracing::warn!(delivery = %id, %run, reason = attempt.error.as_deref(), "a webhook was given up");
        }
        let now = runs.0.clock.now();
        let settled = job.clone();
        let write = runs
            .0
            .db
            .write(move |tx| Box::pin(async move { deliveries::settle(tx, &settled, &attempt, now).await }));
        if let Err(error) = write.await {
            // The claim runs out, and it is tried again.
            tracing::warn!(delivery = %id, %error, "could not write the result of a webhook");
        }
        Ok(JobOutcome::Settled)
    }
}

/// Tries a delivery once.
async fn attempt(runs: &Runs, job: &ClaimedJob, delivery: &Delivery) -> Attempt {
    let sending = runs.0.webhooks.post(delivery, runs.0.clock.now());
    // A server that leaves does not wait for others: the next one tries again.
    let sent = runs.0.shutdown.soft().run_until_cancelled(sending).await;
    let now = runs.0.clock.now();
    match sent {
        Some(Ok(status)) if status.is_success() => Attempt {
            status: DeliveryStatus::Delivered,
            answer: Some(status.as_u16()),
            error: None,
            due_at: now,
        },
        Some(Ok(status)) => failed(runs, job, Some(status), format!("it was answered with {status}"), now),
        Some(Err(reason)) => failed(runs, job, None, reason, now),
        None => Attempt {
            status: DeliveryStatus::Pending,
            answer: None,
            error: delivery.error.clone(),
            due_at: now,
        },
    }
}

/// What to do after a failure.
fn failed(runs: &Runs, job: &ClaimedJob, answer: Option<StatusCode>, reason: String, now: Timestamp) -> Attempt {
    let webhooks = &runs.0.webhooks;
    let is_over = job.attempts >= webhooks.attempts || answer == Some(StatusCode::GONE);
    Attempt {
        status: if is_over {
            DeliveryStatus::Dead
        } else {
            DeliveryStatus::Pending
        },
        answer: answer.map(|status| status.as_u16()),
        error: Some(reason),
        due_at: now.plus(webhooks.pause(job.attempts)),
    }
}

impl Runs {
    /// Sends a delivery again, whatever its status. None if there is none.
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
        self.0.jobs.wake();
        Ok(renewed)
    }

    /// Deletes the finished deliveries of a thread that a client has deleted.
    pub(in crate::runtime) async fn forget_deliveries(&self, thread: ThreadId) -> DbResult<()> {
        self.0
            .db
            .write(move |tx| Box::pin(async move { deliveries::forget_thread(tx, thread).await }))
            .await
    }
}
