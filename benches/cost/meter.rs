//! Measurements of this process: wall time, CPU time, bytes written, memory.

use std::fs;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};

/// The result of several repetitions.
pub(crate) struct Cost {
    walls: Vec<Duration>,
    total: Duration,
    cpu: Duration,
}

impl Cost {
    /// Runs `work` `times` times, with `clients` in parallel.
    pub(crate) async fn of<W: Future<Output = ()>>(times: usize, clients: usize, work: impl Fn() -> W) -> Self {
        let began = Instant::now();
        let before = cpu();
        let timed = |_| async {
            let began = Instant::now();
            work().await;
            began.elapsed()
        };
        let mut walls: Vec<Duration> = stream::iter(0..times)
            .map(timed)
            .buffer_unordered(clients)
            .collect()
            .await;
        let total = began.elapsed();
        let cpu = cpu().saturating_sub(before);
        walls.sort_unstable();
        Self { walls, total, cpu }
    }

    /// Returns the median wall time, in milliseconds.
    pub(crate) fn p50(&self) -> f64 {
        self.walls
            .get(self.walls.len() / 2)
            .map_or(0.0, |wall| wall.as_secs_f64() * 1e3)
    }

    /// Returns the CPU time of one repetition, in milliseconds.
    pub(crate) fn cpu(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e3 / count(self.walls.len().max(1))
    }

    /// Returns the repetitions in a second.
    pub(crate) fn rate(&self) -> f64 {
        count(self.walls.len()) / self.total.as_secs_f64()
    }
}

/// Returns the CPU time of all living threads of this process. The scheduler counts it in nanoseconds; the sums of
/// `/proc/self/stat` are in hundredths of a second.
pub(crate) fn cpu() -> Duration {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let spent = |thread: fs::DirEntry| -> Option<u64> {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    Duration::from_nanos(threads.filter_map(spent).sum())
}

/// Returns the bytes that this process has passed to write calls.
pub(crate) fn written() -> f64 {
    field("/proc/self/io", "wchar:")
}

/// Returns the memory of this process, in kilobytes.
pub(crate) fn memory() -> f64 {
    field("/proc/self/status", "VmRSS:")
}

fn field(file: &str, name: &str) -> f64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_default();
    line.split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(f64::NAN)
}

/// Converts a count to a divisor. The counts are small enough for an exact conversion.
pub(crate) fn count(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::NAN, f64::from)
}

/// Prints a row of a table: a name, then numbers with their units.
pub(crate) fn line(name: &str, numbers: &[(f64, &str)]) {
    let numbers: Vec<String> = numbers
        .iter()
        .map(|(number, unit)| format!("{number:>10.3} {unit:<14}"))
        .collect();
    println!("  {name:<44}{}", numbers.concat().trim_end());
}
