//! How much is at work and waits.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::domain::job::JobKind;

/// How much is at work and waits, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backlog {
    /// The runs at work in this process.
    pub at_work: usize,
    /// How many this process may have at work.
    pub slots: usize,
    /// The runs that are due and wait, of all processes on the database.
    pub queued: u64,
    /// The runs at work, of all processes on the database.
    pub running: u64,
    /// For how long the oldest of those that wait has been due.
    pub oldest: Duration,
    /// How many jobs of each kind there are, at work or later, of all processes on the database.
    pub jobs: Vec<(JobKind, u64)>,
}

type Number = Gauge<f64, AtomicU64>;

/// The gauges for it. What is not known is no number.
#[derive(Default)]
pub(super) struct Gauges {
    at_work: Number,
    slots: Number,
    queued: Number,
    oldest: Number,
    jobs: Family<[(&'static str, &'static str); 1], Number>,
}

impl Gauges {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let gauges = Self::default();
        let mut add = |name: &str, text: &str, gauge: &Number| registry.register(name, text, gauge.clone());
        add(
            "adjutant_runs_at_work",
            "Runs of main agents at work in this process",
            &gauges.at_work,
        );
        add(
            "adjutant_run_slots",
            "Runs that may be at work in this process",
            &gauges.slots,
        );
        add(
            "adjutant_queue_depth",
            "Runs that are due and wait, in the whole database",
            &gauges.queued,
        );
        let text = "For how long the oldest waiting run has been due; 0 when none waits";
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
