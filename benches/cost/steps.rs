//! The cost of a run, and of one of its steps.

use adjutant::domain::id::ThreadId;
use serde_json::Value;

use crate::lab::{Lab, delegations, one_step, tool_steps};
use crate::meter::{Cost, line};

/// Runs the benchmark. Each run creates a thread of its own.
pub(crate) async fn measure(lab: &Lab) {
    for clients in [1, 16] {
        let one = measure_script(lab, "one model step", clients, 300, &one_step()).await;
        let ten = measure_script(
            lab,
            "ten model and tool steps, one answer",
            clients,
            100,
            &tool_steps(10),
        )
        .await;
        line(
            "  so one more step",
            &[
                ((ten.p50() - one.p50()) / 10.0, "ms"),
                ((ten.cpu() - one.cpu()) / 10.0, "ms CPU"),
            ],
        );
        let child = measure_script(lab, "one delegation with one call", clients, 100, &delegations(1)).await;
        let four = measure_script(lab, "four of them side by side", clients, 50, &delegations(4)).await;
        let more = |of: fn(&Cost) -> f64| (of(&four) - of(&child)) / 3.0;
        line(
            "  so one more delegation",
            &[(more(Cost::p50), "ms"), (more(Cost::cpu), "ms CPU")],
        );
    }
}

async fn measure_script(lab: &Lab, name: &str, clients: usize, times: usize, script: &Value) -> Cost {
    let run = || lab.run(ThreadId::mint(), script);
    Cost::of(times / 5, clients, run).await;
    let cost = Cost::of(times, clients, run).await;
    let numbers = [
        (cost.p50(), "ms p50"),
        (cost.cpu(), "ms CPU/run"),
        (cost.rate(), "runs/s"),
    ];
    line(&format!("{name}, {clients} at once"), &numbers);
    cost
}
