//! Counters of HTTP requests and streams.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::SECONDS;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    method: &'static str,
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    method: &'static str,
    route: String,
    status: u16,
}

/// The counters of HTTP requests and streams.
pub struct HttpMetrics {
    requests: Family<Answered, Counter>,
    took: Family<Route, Histogram>,
    streams: Gauge,
    stalled: Counter,
}

/// The count of an open stream, decremented when this is dropped.
pub struct OpenStream(Gauge);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl HttpMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let requests = Family::default();
        let took: Family<Route, Histogram> = Family::new_with_constructor(|| Histogram::new(SECONDS));
        let streams = Gauge::default();
        let stalled = Counter::default();
        let text = "Requests by route and status";
        registry.register("adjutant_http_requests", text, Family::clone(&requests));
        let text = "Time from a request to the end of its response, for streams to their start";
        registry.register("adjutant_http_request_duration_seconds", text, Family::clone(&took));
        registry.register("adjutant_streams_open", "Open streams", streams.clone());
        let text = "Connections and streams that were ended because their clients took nothing";
        registry.register("adjutant_stalled_clients", text, stalled.clone());
        Self {
            requests,
            took,
            streams,
            stalled,
        }
    }

    /// Counts a response to a request for this route (its template).
    pub fn record_response(&self, method: &str, route: &str, status: u16, took: Duration) {
        let method = method_label(method);
        let route = route.to_owned();
        self.requests
            .get_or_create(&Answered {
                method,
                route: route.clone(),
                status,
            })
            .inc();
        self.took
            .get_or_create(&Route { method, route })
            .observe(took.as_secs_f64());
    }

    /// Counts a connection or a stream that is ended because its client takes nothing.
    pub fn record_stalled(&self) {
        self.stalled.inc();
    }

    /// Counts a stream as open.
    pub fn stream(&self) -> OpenStream {
        self.streams.inc();
        OpenStream(self.streams.clone())
    }
}

/// Returns the method if a route can have it, since clients may send any word; otherwise `other`.
fn method_label(method: &str) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("other")
}
