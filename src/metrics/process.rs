//! Metrics of the process, under the names that Prometheus client libraries use.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::domain::time::Timestamp;

/// The gauges and counters of the process.
#[derive(Default)]
pub(super) struct ProcessGauges {
    resident: Gauge,
    files: Gauge,
    log_lines_lost: Counter,
}

impl ProcessGauges {
    pub(super) fn new(registry: &mut Registry, since: Timestamp) -> Self {
        let start = Gauge::<f64, AtomicU64>::default();
        start.set(std::time::Duration::from_micros(u64::try_from(since.0).unwrap_or(0)).as_secs_f64());
        registry.register(
            "process_start_time_seconds",
            "Start time of the server, in seconds since 1970",
            start,
        );
        let gauges = Self::default();
        let text = "Resident memory; 0 where it is unknown";
        registry.register("process_resident_memory_bytes", text, gauges.resident.clone());
        let text = "Open files and connections; 0 where the number is unknown";
        registry.register("process_open_fds", text, gauges.files.clone());
        let text = "Lines of the log that could not be written";
        registry.register("adjutant_log_lines_lost", text, gauges.log_lines_lost.clone());
        gauges
    }

    pub(super) fn refresh(&self) {
        self.resident.set(resident_bytes().unwrap_or(0));
        let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        self.files.set(i64::try_from(files).unwrap_or(i64::MAX));
        self.log_lines_lost
            .inner()
            .fetch_max(crate::logging::lines_lost(), Ordering::Relaxed);
    }
}

/// Returns the resident memory of this process, in bytes; only on Linux.
fn resident_bytes() -> Option<i64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}
