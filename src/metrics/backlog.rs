//! Gauges for running and queued runs.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::domain::job::JobKind;

/// The numbers of running and queued runs and of jobs at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// The runs that this process executes.
    pub at_work: usize,
    /// The maximum number of runs that this process executes at the same time.
    pub slots: usize,
    /// The runs that are due and queued, in the whole database.
    pub queued: u64,
    /// The running runs, in the whole database.
    pub running: u64,
    /// The time for which the oldest queued run has waited for nothing but a server.
    pub oldest: Duration,
    /// The number of jobs of each kind, running or scheduled, in the whole database.
    pub jobs: Vec<(JobKind, u64)>,
}

type Number = Gauge<f64, AtomicU64>;

/// The gauges of the backlog. Unknown values are NaN.
#[derive(Default)]
pub(super) struct BacklogGauges {
    at_work: Number,
    slots: Number,
    queued: Number,
    oldest: Number,
    jobs: Family<[(&'static str, &'static str); 1], Number>,
}

impl BacklogGauges {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let gauges = Self::default();
        let mut add = |name: &str, text: &str, gauge: &Number| registry.register(name, text, gauge.clone());
        add(
            "adjutant_runs_at_work",
            "Runs of main agents that this process executes",
            &gauges.at_work,
        );
        add(
            "adjutant_run_slots",
            "Runs that this process may execute at the same time",
            &gauges.slots,
        );
        add(
            "adjutant_queue_depth",
            "Runs that are due and queued, in the whole database",
            &gauges.queued,
        );
        let text = "Time for which the oldest run has waited for nothing but a server; 0 if none does";
        add("adjutant_queue_oldest_age_seconds", text, &gauges.oldest);
        let text = "Jobs of the queue, at work or later, in the whole database";
        registry.register("adjutant_jobs", text, gauges.jobs.clone());
        gauges
    }

    pub(super) fn set(&self, backlog: Option<&Backlog>) {
        let number = |of: fn(&Backlog) -> f64| backlog.map_or(f64::NAN, of);
        self.at_work.set(number(|b| count(b.at_work)));
        self.slots.set(number(|b| count(b.slots)));
        self.queued
            .set(number(|b| count(usize::try_from(b.queued).unwrap_or(usize::MAX))));
        self.oldest.set(number(|b| b.oldest.as_secs_f64()));
        for kind in JobKind::ALL {
            let found = |backlog: &Backlog| {
                backlog
                    .jobs
                    .iter()
                    .find(|(of, _)| of == kind)
                    .map_or(0, |found| found.1)
            };
            let depth = backlog.map_or(f64::NAN, |backlog| {
                count(usize::try_from(found(backlog)).unwrap_or(usize::MAX))
            });
            self.jobs.get_or_create(&[("kind", kind.word())]).set(depth);
        }
    }
}

fn count(of: usize) -> f64 {
    f64::from(u32::try_from(of).unwrap_or(u32::MAX))
}
