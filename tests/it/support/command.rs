//! Commands of the program that run to their end.

use std::process::{Command, Output, Stdio};

use super::TestServer;

/// Runs the program with these arguments and the configuration of a server.
pub(crate) fn command(server: &TestServer, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
    command.args(arguments).arg("--config").arg(server.configuration());
    command.stdin(Stdio::null()).output().expect("the program starts")
}

/// Returns what a command has printed that has succeeded.
pub(crate) fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    text
}

/// Returns the reason that a command has printed that was refused.
pub(crate) fn refused(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}
