//! The short form of `tests/proof/prove.py`: parts of a cluster fail for half a minute.

use std::path::Path;
use std::process::Command;

use crate::compat::sdk::{python, runs_to_its_end};
use crate::support::postgres::installed_programs;
use crate::support::server::{installed, skipped};

#[tokio::test]
async fn nothing_is_lost_and_nothing_happens_twice_while_parts_of_a_cluster_fail() {
    let Some(python) = python() else {
        return;
    };
    let Some(postgres) = installed_programs() else {
        skipped::<()>("Postgres");
        return;
    };
    let Some(haproxy) = installed("haproxy") else {
        return;
    };
    let Some(nats) = installed("nats-server") else {
        return;
    };
    let mut command = Command::new(python);
    command
        .arg("-B")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proof/prove.py"))
        .args(["--server", env!("CARGO_BIN_EXE_adjutant")])
        .args(["--minutes", "0.5", "--clients", "4", "--seed", "7"])
        .args(["--postgres", &postgres, "--haproxy", &haproxy, "--nats", &nats]);
    let said = runs_to_its_end(command).await;
    assert!(said.contains("\n0 violations, "), "{said}");
}
