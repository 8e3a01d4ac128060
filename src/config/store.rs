//! `[store]`: what is remembered beyond a thread.

use std::time::Duration;

use serde::Deserialize;

use crate::domain::definition::{FieldPath, Finding};
use crate::domain::item;

/// The longest time between two sweeps, in minutes: a day.
const LONGEST_SWEEP_INTERVAL: f64 = 1440.0;

/// `[store]`: what is remembered beyond a thread.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSection {
    /// For how long.
    pub ttl: ItemTtl,
}

/// `[store.ttl]`: how long items stay.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ItemTtl {
    /// How many minutes an item stays of which nothing is said; for ever, if absent.
    pub default_ttl: Option<f64>,
    /// Whether reading an item makes it stay as long again.
    pub refresh_on_read: bool,
    /// How often expired items are removed, in minutes. They cannot be read before that either.
    pub sweep_interval_minutes: f64,
}

impl Default for ItemTtl {
    fn default() -> Self {
        Self { default_ttl: None, refresh_on_read: true, sweep_interval_minutes: 5.0 }
    }
}

impl ItemTtl {
    /// [`ItemTtl::default_ttl`] as a duration.
    pub fn default_ttl(&self) -> Option<Duration> {
        self.default_ttl.and_then(|minutes| item::ttl("default_ttl", minutes).ok())
    }

    /// [`ItemTtl::sweep_interval_minutes`] as a duration.
    pub fn sweep_interval(&self) -> Duration {
        Duration::try_from_secs_f64(self.sweep_interval_minutes * 60.0).unwrap_or(Duration::from_secs(300))
    }
}

/// What makes no sense in the section.
pub(super) fn check(store: &StoreSection) -> Vec<Finding> {
    let field = FieldPath::of(["store", "ttl"]);
    let mut findings = vec![];
    if let Some(Err(invalid)) = store.ttl.default_ttl.map(|minutes| item::ttl("default_ttl", minutes)) {
        findings.push(Finding::error(field.then("default_ttl"), invalid.reason));
    }
    let interval = store.ttl.sweep_interval_minutes;
    if !(interval > 0.0 && interval <= LONGEST_SWEEP_INTERVAL) {
        let message = format!("must be more than 0 and at most {LONGEST_SWEEP_INTERVAL} minutes");
        findings.push(Finding::error(field.then("sweep_interval_minutes"), message));
    }
    findings
}
