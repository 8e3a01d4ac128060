//! The simulation of loads (`benches/simulate.py`) agrees with the theory of queues where there is one.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::mcp::python;

/// Simulates runs without steps on one core of Postgres, with so many threads a day. Each of them takes the core `seconds`, and has
/// so many commits, for each of which the disk takes `flush_ms`.
fn simulates(python: &str, threads: u32, seconds: f64, commits: u32, flush_ms: u32) -> Value {
    let constants = json!({
        "run": {"server_cpu": 0.0, "database_cpu": seconds, "commits": commits},
        "step": {"server_cpu": 0.0, "database_cpu": 0.0, "commits": 1},
    });
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("constants.json");
    std::fs::write(&file, constants.to_string()).expect("a file");
    let output = Command::new(python)
        .arg("-B")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/simulate.py"))
        .arg("--constants")
        .arg(&file)
        .args(["--threads", &threads.to_string(), "--steps", "0"])
        .args(["--database-cores", "1", "--flush-ms", &flush_ms.to_string()])
        .args(["--seconds", "1000", "--json"])
        .output()
        .expect("Python starts");
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complained}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn number(found: &Value, name: &str) -> f64 {
    found[name].as_f64().unwrap_or_else(|| panic!("{name}: {found}"))
}

#[test]
fn a_simulated_step_takes_as_long_as_the_theory_of_queues_says() {
    let Some(python) = python() else {
        return;
    };
    // In a busy hour 50 a second: the core works half of the time, and who comes waits for half a piece of work on average.
    let half_busy = simulates(python, 864_000, 0.01, 1, 0);
    assert!((number(&half_busy, "database_cores") - 0.5).abs() < 0.02, "{half_busy}");
    assert!((number(&half_busy, "delay_mean_ms") - 15.0).abs() < 1.0, "{half_busy}");
    // More than one core can do: the queue grows as long as the load lasts.
    let too_much = simulates(python, 2_000_000, 0.01, 1, 0);
    assert!(number(&too_much, "delay_p50_ms") > 10_000.0, "{too_much}");
}

#[test]
fn simulated_work_waits_for_each_of_its_commits() {
    let Some(python) = python() else {
        return;
    };
    // One every other second, so that nearly all find the disk idle.
    for commits in [1, 3] {
        let found = simulates(python, 8_640, 0.0, commits, 10);
        let waited = number(&found, "delay_p50_ms");
        assert!((waited - 10.0 * f64::from(commits)).abs() < 0.1, "{found}");
    }
}
