//! What is counted while the server works, for whoever watches it: `GET /metrics`.
//!
//! This is not where anything is measured: [`crate::runtime`] and [`crate::http`] stand at the edges, see what goes by
//! and tell it here. Agents, policies, tools and the database know nothing of it. No label holds what a client or a
//! model may choose: routes are templates, and agents, models and tools are those that are configured.

use std::sync::Arc;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::domain::time::Timestamp;

mod backlog;
mod process;
mod sample;
mod traffic;
mod work;

pub use backlog::Backlog;
pub use sample::{Sample, samples};
pub use traffic::{OpenStream, Traffic};
pub use work::{FileNames, Work};

/// The bounds of histograms of time, in seconds.
const SECONDS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0,
];

/// All counters of one server. Cloning copies a pointer.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    work: Work,
    traffic: Traffic,
    backlog: backlog::Gauges,
    process: process::Gauges,
}

impl Metrics {
    /// Counters at zero, for a server that began at `since` and has these `tools`.
    pub fn new(since: Timestamp, tools: impl IntoIterator<Item = String>) -> Self {
        let mut registry = Registry::default();
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("adjutant_build", "The program", build);
        let work = Work::new(&mut registry, tools);
        let traffic = Traffic::new(&mut registry);
        let backlog = backlog::Gauges::new(&mut registry);
        let process = process::Gauges::new(&mut registry, since);
        Self(Arc::new(Inner {
            registry,
            work,
            traffic,
            backlog,
            process,
        }))
    }

    /// What agents do.
    pub fn work(&self) -> &Work {
        &self.0.work
    }

    /// What clients ask.
    pub fn traffic(&self) -> &Traffic {
        &self.0.traffic
    }

    /// Everything, in the text format of Prometheus. What is at work and waits is told by `backlog`; unknown when that
    /// could not be found out.
    pub fn text(&self, backlog: Option<&Backlog>) -> String {
        self.0.backlog.set(backlog);
        self.0.process.look();
        let mut text = String::new();
        // Writing into a string cannot fail.
        let _ = encode(&mut text, &self.0.registry);
        text
    }
}

#[cfg(test)]
mod tests;
