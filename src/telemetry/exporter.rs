//! The task that sends spans.

use std::time::Duration;

use opentelemetry_proto::tonic::resource::v1::Resource;
use reqwest::header::{CONTENT_TYPE, HeaderMap, USER_AGENT};
use reqwest::{Client, StatusCode, Url};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::ExportMessage;
use super::otlp::OtlpEncoding;
use crate::domain::backoff::Backoff;
use crate::domain::trace::SpanData;
use crate::metrics::{DropReason, Metrics};
use crate::net;

/// The time between two lines in the log about spans that were not delivered.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The pauses before a batch is sent again.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(500), Duration::from_secs(5));
/// The number of times that a batch is sent before it is dropped.
const ATTEMPTS: u32 = 4;
/// The longest response that is read, in bytes.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// The statuses after which a batch is sent again, as the protocol says.
const RETRYABLE: [StatusCode; 4] = [
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

/// Sends spans to a collector.
pub(super) struct Exporter {
    pub(super) client: Client,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) encoding: OtlpEncoding,
    pub(super) resource: Resource,
    pub(super) batch: usize,
    pub(super) interval: Duration,
    pub(super) metrics: Metrics,
}

/// A batch that was not delivered.
struct Undelivered {
    /// The reason, without addresses and headers.
    reason: String,
    /// True if the same batch may be delivered later.
    may_retry: bool,
    /// The pause that the collector asks for.
    wait: Option<Duration>,
}

/// The counts that the log has not reported yet.
#[derive(Default)]
struct Failures {
    spans: usize,
    reason: String,
    logged: Option<Instant>,
}

impl Failures {
    /// Counts spans that were not delivered, and logs it unless that was done a moment ago.
    fn count(&mut self, spans: usize, reason: String) {
        self.spans += spans;
        self.reason = reason;
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            tracing::warn!(spans = self.spans, reason = self.reason, "traces were not delivered");
            *self = Self {
                logged: Some(Instant::now()),
                ..Self::default()
            };
        }
    }
}

impl Exporter {
    /// Sends batches until the export is closed.
    pub(super) async fn run(self, mut received: mpsc::Receiver<ExportMessage>) {
        let mut failures = Failures::default();
        let mut closed = None;
        while closed.is_none() {
            let Some((batch, close)) = self.collect(&mut received).await else {
                return;
            };
            closed = close;
            if batch.is_empty() {
                continue;
            }
            let size = batch.len();
            // A server that stops has no time to send a batch twice.
            let attempts = if closed.is_some() { 1 } else { ATTEMPTS };
            match self.deliver(batch, attempts).await {
                Ok(rejected) => {
                    let rejected = usize::try_from(rejected).unwrap_or(usize::MAX).min(size);
                    self.metrics.traces().exported(size - rejected);
                    if rejected > 0 {
                        self.metrics.traces().dropped(DropReason::Rejected, rejected);
                        failures.count(rejected, "the collector rejected them".to_owned());
                    }
                }
                Err(reason) => {
                    self.metrics.traces().dropped(DropReason::NotDelivered, size);
                    failures.count(size, reason);
                }
            }
        }
        if let Some(done) = closed {
            // The server may have given up waiting.
            let _ = done.send(());
        }
    }

    /// Returns the next batch, which may be empty when the export is closed; none if nobody can send spans any more.
    async fn collect(
        &self,
        received: &mut mpsc::Receiver<ExportMessage>,
    ) -> Option<(Vec<SpanData>, Option<oneshot::Sender<()>>)> {
        let mut batch = vec![];
        let mut end = None;
        loop {
            let next = match end {
                None => Ok(received.recv().await),
                Some(end) => timeout_at(end, received.recv()).await,
            };
            match next {
                Ok(Some(ExportMessage::SpanData(span))) => batch.push(*span),
                Ok(Some(ExportMessage::Close(done))) => return Some((batch, Some(done))),
                Ok(None) if batch.is_empty() => return None,
                Ok(None) | Err(_) => return Some((batch, None)),
            }
            if batch.len() >= self.batch {
                return Some((batch, None));
            }
            end.get_or_insert_with(|| Instant::now() + self.interval);
        }
    }

    /// Sends a batch, again if that may help. Returns how many of its spans the collector rejected.
    async fn deliver(&self, batch: Vec<SpanData>, attempts: u32) -> Result<u64, String> {
        let body = bytes::Bytes::from(self.encoding.encode(batch, &self.resource));
        let mut attempt = 1;
        loop {
            let failed = match self.send(body.clone()).await {
                Ok(rejected) => return Ok(rejected),
                Err(failed) => failed,
            };
            if !failed.may_retry || attempt >= attempts {
                return Err(failed.reason);
            }
            let pause = failed
                .wait
                .map_or_else(|| BACKOFF.pause(attempt), |wait| wait.min(BACKOFF.longest));
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    async fn send(&self, body: bytes::Bytes) -> Result<u64, Undelivered> {
        let request = self
            .client
            .post(self.url.clone())
            .headers(self.headers.clone())
            .header(CONTENT_TYPE, self.encoding.content_type())
            .header(USER_AGENT, concat!("adjutant/", env!("CARGO_PKG_VERSION")))
            .body(body);
        let response = request.send().await.map_err(|error| Undelivered {
            reason: format!("the collector cannot be reached: {}", net::describe_error(&error)),
            may_retry: true,
            wait: None,
        })?;
        let status = response.status();
        if status.is_success() {
            let body = net::read_bounded(response, MAX_RESPONSE_BYTES).await;
            return Ok(self.encoding.rejected(&body.unwrap_or_default()));
        }
        Err(Undelivered {
            reason: format!("the collector answered with status {}", status.as_u16()),
            may_retry: RETRYABLE.contains(&status),
            wait: net::retry_after(response.headers()),
        })
    }
}
