//! Sends webhooks: makes one attempt for each delivery that is due and stores the result.

use std::time::Duration;

use futures::future::BoxFuture;
use reqwest::StatusCode;

use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::deliveries::{self, Attempt};
use crate::db::{self, DbResult};
use crate::domain::delivery::{Delivery, DeliveryStatus};
use crate::domain::id::DeliveryId;
use crate::domain::job::ClaimedJob;
use crate::domain::time::Timestamp;
use crate::domain::trace::{SpanData, SpanKind, TraceScope};
use crate::runtime::handles::RuntimeHandles;
use crate::runtime::shared::Core;
use crate::runtime::trace;

/// The time by which a claim outlasts an attempt.
const MARGIN: Duration = Duration::from_secs(30);

pub(super) struct WebhookHandler;

impl JobHandler for WebhookHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 32, batch: 1 }
    }

    fn lease(&self, runtime: &RuntimeHandles) -> Duration {
        runtime.core.webhooks.timeout + MARGIN
    }

    fn run<'a>(&'a self, runtime: &'a RuntimeHandles, job: &'a ClaimedJob) -> BoxFuture<'a, DbResult<JobOutcome>> {
        Box::pin(async move {
            let id = DeliveryId(job.key);
            let read = runtime
                .core
                .db
                .read(move |tx| Box::pin(async move { deliveries::find(tx, id).await }));
            let delivery = match db::unless_corrupt(read.await)? {
                Some(Some(delivery)) => delivery,
                Some(None) => return Ok(JobOutcome::Done),
                // The claim expires, and the delivery is tried again.
                None => return Ok(JobOutcome::Settled),
            };
            let attempt = attempt(runtime, job, &delivery).await;
            if attempt.status == DeliveryStatus::Dead {
                let run = delivery.run;
                tracing::warn!(delivery = %id, %run, reason = attempt.error.as_deref(), "a webhook delivery failed and is not retried");
            }
            let now = runtime.core.clock.now();
            let settled = job.clone();
            let write = runtime
                .core
                .db
                .write(move |tx| Box::pin(async move { deliveries::settle(tx, &settled, &attempt, now).await }));
            if let Err(error) = write.await {
                // The claim expires, and the delivery is tried again.
                tracing::warn!(delivery = %id, %error, "could not write the result of a webhook");
            }
            Ok(JobOutcome::Settled)
        })
    }
}

/// Attempts a delivery once.
async fn attempt(runtime: &RuntimeHandles, job: &ClaimedJob, delivery: &Delivery) -> Attempt {
    let trace = trace_of(&runtime.core, delivery).await;
    let mut span = begin_span(&trace, job, delivery);
    let context = span.as_ref().map(|span| &span.context).or(trace.context());
    let sending = runtime.core.webhooks.post(delivery, runtime.core.clock.now(), context);
    // A server that stops does not wait for the receiver; the next server tries again.
    let sent = runtime.core.shutdown.soft().run_until_cancelled(sending).await;
    if let (Some(span), Some(sent)) = (&mut span, &sent) {
        match sent {
            Ok(status) => {
                span.set("http.response.status_code", u64::from(status.as_u16()));
                if !status.is_success() {
                    span.fail(status.as_str());
                }
            }
            Err(_) => span.fail("unreachable"),
        }
    }
    trace.end(span.filter(|_| sent.is_some()));
    let now = runtime.core.clock.now();
    match sent {
        Some(Ok(status)) if status.is_success() => Attempt {
            status: DeliveryStatus::Delivered,
            answer: Some(status.as_u16()),
            error: None,
            due_at: now,
        },
        Some(Ok(status)) => failed(
            runtime,
            job,
            Some(status),
            format!("it was answered with {status}"),
            now,
        ),
        Some(Err(reason)) => failed(runtime, job, None, reason, now),
        None => Attempt {
            status: DeliveryStatus::Pending,
            answer: None,
            error: delivery.error.clone(),
            due_at: now,
        },
    }
}

/// Returns the trace of the run that a delivery reports. A run that is deleted with its thread has none any more.
async fn trace_of(core: &Core, delivery: &Delivery) -> TraceScope {
    if !core.tracer.is_on() {
        return TraceScope::default();
    }
    let run = delivery.run;
    let read = core.db.read(move |tx| Box::pin(db::runs::get_by_id(tx, run))).await;
    match read {
        Ok(Some(run)) => trace::scope_of(&core.tracer, &run),
        Ok(None) | Err(_) => TraceScope::default(),
    }
}

/// Begins the span of an attempt. The address may be secret below its host, so only the host is in the span.
fn begin_span(trace: &TraceScope, job: &ClaimedJob, delivery: &Delivery) -> Option<SpanData> {
    let mut span = trace.begin(SpanKind::Client)?;
    "POST".clone_into(&mut span.name);
    span.set("http.request.method", "POST");
    let url = reqwest::Url::parse(&delivery.url).ok();
    span.set_some("server.address", url.as_ref().and_then(|url| url.host_str()));
    let port = url.as_ref().and_then(reqwest::Url::port_or_known_default);
    span.set_some("server.port", port.map(u64::from));
    span.set("adjutant.webhook.delivery", delivery.id.to_string());
    let repeated = u64::from(job.attempts.saturating_sub(1));
    span.set_some("http.request.resend_count", (repeated > 0).then_some(repeated));
    Some(span)
}

/// Returns the attempt after a failure.
fn failed(
    runtime: &RuntimeHandles,
    job: &ClaimedJob,
    answer: Option<StatusCode>,
    reason: String,
    now: Timestamp,
) -> Attempt {
    let webhooks = &runtime.core.webhooks;
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
