//! The metrics of the server, in the text format of Prometheus: `GET /metrics`.
//!
//! Nothing is measured here: [`crate::runtime`] and [`crate::http`] call these counters; agents, policies, tools and
//! the database do not know them. No label contains a value that a client or a model chooses: routes are templates, and
//! agents, models and tools are those of the configuration.

use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::domain::time::Timestamp;

mod backlog;
mod live;
mod process;
mod sample;
mod traces;
mod traffic;
mod work;

pub use backlog::Backlog;
pub use live::{LiveMetrics, MessageFault, UnsentReason};
pub use sample::{Sample, samples};
pub use traces::{DropReason, TraceMetrics};
pub use traffic::{HttpMetrics, OpenStream};
pub use work::{AgentMetrics, ConfiguredNames};

/// The bucket bounds of histograms of time, in seconds.
const SECONDS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0,
];

/// The counters of one server. Cloning copies a pointer.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    work: AgentMetrics,
    traffic: HttpMetrics,
    backlog: backlog::BacklogGauges,
    process: process::ProcessGauges,
    traces: TraceMetrics,
    live: LiveMetrics,
}

impl Metrics {
    /// Creates the counters for a server that started at `since` and has these `tools`.
    pub fn new(since: Timestamp, tools: impl IntoIterator<Item = String>) -> Self {
        let mut registry = Registry::default();
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("adjutant_build", "Build information", build);
        let work = AgentMetrics::new(&mut registry, tools);
        let traffic = HttpMetrics::new(&mut registry);
        let backlog = backlog::BacklogGauges::new(&mut registry);
        let process = process::ProcessGauges::new(&mut registry, since);
        let traces = TraceMetrics::new(&mut registry);
        let live = LiveMetrics::new(&mut registry);
        Self(Arc::new(Inner {
            registry,
            work,
            traffic,
            backlog,
            process,
            traces,
            live,
        }))
    }

    /// Returns the counters of runs, model calls and tool calls.
    pub fn work(&self) -> &AgentMetrics {
        &self.0.work
    }

    /// Returns the counters of HTTP requests and streams.
    pub fn traffic(&self) -> &HttpMetrics {
        &self.0.traffic
    }

    /// Returns the counters of the export of traces.
    pub fn traces(&self) -> &TraceMetrics {
        &self.0.traces
    }

    /// Returns the counters of chunks for readers at other servers.
    pub fn live(&self) -> &LiveMetrics {
        &self.0.live
    }

    /// Returns all metrics in the text format of Prometheus. Without a `backlog`, because the database did not return
    /// it, its gauges are NaN.
    pub fn text(&self, backlog: Option<&Backlog>) -> String {
        self.0.backlog.set(backlog);
        self.0.process.refresh();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.0.registry);
        text
    }
}

#[cfg(test)]
mod tests;
