//! The official SDKs drive the whole flow.
//!
//! Python: `ADJUTANT_TEST_PYTHON` names a Python that has `langgraph-sdk`, else `python3` is tried. JavaScript:
//! `ADJUTANT_TEST_NODE_MODULES` names a folder of modules, else `tests/sdk/js/node_modules` (made by `npm ci` there).
//! What is not there is skipped, loudly, unless `ADJUTANT_TEST_REQUIRE_ALL` is 1.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::server::is_everything_required;
use crate::support::{TestServer, on_both_engines};

/// A Python that has the SDK.
pub(crate) fn python() -> Option<String> {
    let named = std::env::var("ADJUTANT_TEST_PYTHON").ok().filter(|name| !name.is_empty());
    let candidate = named.unwrap_or_else(|| "python3".to_owned());
    let mut probe = Command::new(&candidate);
    probe.args(["-c", "import langgraph_sdk"]).stdout(Stdio::null()).stderr(Stdio::null());
    let found = probe.status().is_ok_and(|status| status.success());
    found.then_some(candidate).or_else(|| skipped("Python with langgraph-sdk (ADJUTANT_TEST_PYTHON)"))
}

/// The folder of the JavaScript SDK.
fn node_modules() -> Option<PathBuf> {
    let named = std::env::var_os("ADJUTANT_TEST_NODE_MODULES").filter(|name| !name.is_empty()).map(PathBuf::from);
    let modules = named.unwrap_or_else(|| folder().join("js/node_modules"));
    let found = modules.join("@langchain/langgraph-sdk/package.json").exists();
    found.then_some(modules).or_else(|| skipped("@langchain/langgraph-sdk (npm ci in tests/sdk/js)"))
}

fn skipped<T>(what: &str) -> Option<T> {
    assert!(!is_everything_required(), "there is no {what}, and a skip is a failure");
    // Not `eprintln!`: what that writes is hidden from those who run passing tests.
    let text = format!("\n*** A TEST IS SKIPPED: there is no {what} ***\n");
    std::io::stderr().write_all(text.as_bytes()).expect("somebody reads this");
    None
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk")
}

/// Runs a flow, which says at its end that it came there.
pub(crate) async fn runs_to_its_end(mut command: Command) -> String {
    command.stdin(Stdio::null()).env("NO_PROXY", "*").env("no_proxy", "*");
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().expect("the program starts");
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}\n{complained}");
    said.into_owned()
}

on_both_engines! {
    async fn the_python_sdk_drives_the_whole_flow(server: TestServer) {
        let Some(python) = python() else { return };
        let mut command = Command::new(python);
        command.arg(folder().join("python/flow.py")).arg(server.client().base());
        assert_eq!(runs_to_its_end(command).await, "the flow is complete\n");
        assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
    }

    async fn the_javascript_sdk_drives_the_whole_flow(server: TestServer) {
        let Some(modules) = node_modules() else { return };
        let mut command = Command::new("node");
        command.arg(folder().join("js/flow.mjs")).arg(server.client().base());
        command.env("ADJUTANT_TEST_NODE_MODULES", modules);
        assert_eq!(runs_to_its_end(command).await, "the flow is complete\n");
        assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
    }
}
