//! The simulation of loads (`benches/simulate.py`) agrees with the theory of queues where there is one.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::mcp::python;

/// Simulates runs without steps on one core of Postgres, for which each of them takes 10 ms, with so many threads a day.
fn simulates(python: &str, threads: u32) -> Value {
    let constants = json!({
        "run": {"server_cpu": 0.0, "database_cpu": 0.01},
        "step": {"server_cpu": 0.0, "database_cpu": 0.0},
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
        .args([
            "--database-cores",
            "1",
            "--flush-ms",
            "0",
            "--seconds",
            "1000",
            "--json",
        ])
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
    let half_busy = simulates(python, 864_000);
    assert!((number(&half_busy, "database_cores") - 0.5).abs() < 0.02, "{half_busy}");
    assert!((number(&half_busy, "delay_mean_ms") - 15.0).abs() < 1.0, "{half_busy}");
    // More than one core can do: the queue grows as long as the load lasts.
    let too_much = simulates(python, 2_000_000);
    assert!(number(&too_much, "delay_p50_ms") > 10_000.0, "{too_much}");
}
