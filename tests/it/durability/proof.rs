//! The short form of `tests/proof/prove.py`: parts of a cluster fail for half a minute.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::compat::sdk::{python, runs_to_its_end};
use crate::support::postgres::installed_programs;
use crate::support::server::{installed, skipped};

/// Lets parts of a cluster fail, and checks that nothing was lost and nothing happened twice. With a `former` program the servers
/// begin as that, and are replaced meanwhile.
async fn proves(minutes: &str, former: Option<OsString>) {
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
        .args(["--minutes", minutes, "--clients", "4", "--seed", "7"])
        .args(["--postgres", &postgres, "--haproxy", &haproxy, "--nats", &nats]);
    if let Some(former) = former {
        command.arg("--former").arg(former);
    }
    let said = runs_to_its_end(command).await;
    assert!(said.contains("\n0 violations, "), "{said}");
}

#[tokio::test]
async fn nothing_is_lost_and_nothing_happens_twice_while_parts_of_a_cluster_fail() {
    proves("0.5", None).await;
}

#[tokio::test]
async fn nothing_is_lost_while_servers_of_the_former_release_are_replaced_and_parts_fail() {
    let former = std::env::var_os("ADJUTANT_TEST_FORMER").filter(|program| !program.is_empty());
    if former.is_none() {
        // A skip is no failure here, even where everything is required: only who prepares a release has that program.
        let text = b"\n*** A TEST IS SKIPPED: ADJUTANT_TEST_FORMER names no program of the former release ***\n";
        std::io::stderr().write_all(text).expect("standard error is open");
        return;
    }
    proves("1", former).await;
}
