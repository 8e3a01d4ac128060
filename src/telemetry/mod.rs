//! The export of traces to an OpenTelemetry collector, over OTLP/HTTP.
//!
//! Spans wait in a bounded queue for one task, which sends them in batches. A collector that is slow or down costs
//! memory up to the size of the queue and nothing else: spans that find no room, or that the collector does not take,
//! are dropped, counted in the metrics, and reported in the log once per minute.
//!
//! Everything else of traces is in [`crate::domain::trace`], which knows neither OTLP nor HTTP.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use reqwest::{Url, redirect};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::domain::trace::{SpanData, SpanSink};
use crate::metrics::{DropReason, Metrics};
use crate::net;

mod exporter;
mod otlp;

use exporter::Exporter;
pub use otlp::OtlpEncoding;

/// The path of traces below the address of a collector.
const TRACES: &str = "v1/traces";
/// The time for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings of the export.
#[derive(Debug, Clone)]
pub struct ExportSettings {
    /// The address of the collector.
    pub endpoint: String,
    /// True if the address is that of traces, to which no path is added.
    pub is_whole: bool,
    /// The encoding of requests.
    pub encoding: OtlpEncoding,
    /// The headers of requests.
    pub headers: BTreeMap<String, SecretString>,
    /// The attributes of this process, with `service.name`.
    pub resource: BTreeMap<String, String>,
    /// The time limit of one request.
    pub timeout: Duration,
    /// The longest time for which a span waits for others before it is sent.
    pub interval: Duration,
    /// The most spans that wait.
    pub queue: usize,
    /// The most spans of one request.
    pub batch: usize,
    /// The time limit for what waits when the server stops.
    pub shutdown: Duration,
}

/// A message to the exporting task.
enum ExportMessage {
    SpanData(Box<SpanData>),
    /// Send everything, then end.
    Close(oneshot::Sender<()>),
}

/// The export of spans. Cheap to clone.
#[derive(Clone)]
pub struct Telemetry {
    spans: mpsc::Sender<ExportMessage>,
    metrics: Metrics,
    shutdown: Duration,
    /// Ends the task when the time for closing is over.
    stop: CancellationToken,
}

impl Telemetry {
    /// Creates the export, and the work of its task, which ends after [`Telemetry::close`].
    ///
    /// # Errors
    /// Names the setting that cannot be used.
    pub fn open(
        settings: ExportSettings,
        metrics: &Metrics,
    ) -> anyhow::Result<(Arc<Self>, impl Future<Output = ()> + Send + 'static + use<>)> {
        let client = net::client_builder()
            // The headers may have secrets, which a redirect would take to another server.
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT.min(settings.timeout))
            .timeout(settings.timeout)
            .build()
            .context("could not create the HTTP client for traces")?;
        let (spans, received) = mpsc::channel(settings.queue);
        let headers = settings.headers.iter();
        let headers = headers.map(|(name, value)| (name.as_str(), value.expose_secret()));
        let exporter = Exporter {
            client,
            url: address(&settings.endpoint, settings.is_whole)?,
            headers: net::secret_headers(headers, &[])?,
            encoding: settings.encoding,
            resource: otlp::resource(&settings.resource),
            batch: settings.batch,
            interval: settings.interval,
            metrics: metrics.clone(),
        };
        let telemetry = Self {
            spans,
            metrics: metrics.clone(),
            shutdown: settings.shutdown,
            stop: CancellationToken::new(),
        };
        let stop = telemetry.stop.clone();
        let exporting = async move {
            stop.run_until_cancelled(exporter.run(received)).await;
        };
        Ok((Arc::new(telemetry), exporting))
    }

    /// Sends what waits, and ends the task. Takes no longer than the configured time.
    pub async fn close(&self) {
        let (done, ended) = oneshot::channel();
        let closing = async {
            if self.spans.send(ExportMessage::Close(done)).await.is_ok() {
                // The task drops the sender if it is dropped itself.
                let _ = ended.await;
            }
        };
        if timeout(self.shutdown, closing).await.is_err() {
            self.stop.cancel();
            tracing::warn!("the traces were not sent completely before the server stopped");
        }
    }
}

impl SpanSink for Telemetry {
    fn record(&self, span: SpanData) {
        match self.spans.try_send(ExportMessage::SpanData(Box::new(span))) {
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => self.metrics.traces().dropped(DropReason::QueueFull, 1),
        }
    }
}

/// Returns the address to which spans are sent.
fn address(endpoint: &str, is_whole: bool) -> anyhow::Result<Url> {
    // The address may contain a secret, so errors do not repeat it.
    let mut url = Url::parse(endpoint).map_err(|error| anyhow!("the address of the collector {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(anyhow!(
            "the address of the collector must begin with `http:` or `https:`"
        ));
    }
    if !is_whole && !url.path().ends_with(TRACES) {
        let path = format!("{}/{TRACES}", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_traces_is_added_to_the_address_of_a_collector() {
        let of = |text, is_whole| address(text, is_whole).map(|url| url.to_string()).ok();
        let expected = |text: &str| Some(text.to_owned());
        assert_eq!(
            of("http://localhost:4318", false),
            expected("http://localhost:4318/v1/traces")
        );
        assert_eq!(of("http://a/api/otel/", false), expected("http://a/api/otel/v1/traces"));
        assert_eq!(
            of("http://a/otel/v1/traces", false),
            expected("http://a/otel/v1/traces")
        );
        assert_eq!(of("http://a/ingest", true), expected("http://a/ingest"));
        assert_eq!(of("localhost:4318", false), None);
    }
}
