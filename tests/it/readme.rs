//! The sessions of the README do what it says, against a server that was started as it says.

use std::process::{Child, Command};

use crate::sdk::{python, runs_to_its_end};
use crate::support::server::run_the_demonstration;

const README: &str = include_str!("../../README.md");
/// Where the README takes the server to be.
const BASE: &str = "http://127.0.0.1:8123";

/// The program under the mark `<!-- test: name -->`.
fn session(name: &str, base: &str) -> String {
    let program = block(name);
    assert!(program.contains(BASE), "the session names the server:\n{program}");
    program.replace(BASE, base)
}

/// The text under the mark `<!-- test: name -->`.
fn block(name: &str) -> &'static str {
    let mark = format!("<!-- test: {name} -->");
    let (_, rest) = README.split_once(&mark).unwrap_or_else(|| panic!("the README has no {mark}"));
    let block = rest.trim_start().strip_prefix("```").expect("a fenced block follows the mark");
    let (text, _) = block.split_once("\n```").expect("the block ends");
    text.split_once('\n').expect("the block has lines").1
}

/// Stops the server when the test is over, however it ends.
struct Demonstration {
    child: Child,
    base: String,
    folder: tempfile::TempDir,
}

impl Demonstration {
    fn begins() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let (base, child) = run_the_demonstration(folder.path());
        Self { child, base, folder }
    }
}

impl Drop for Demonstration {
    fn drop(&mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("an end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_session_with_curl_comes_to_its_end() {
    let server = Demonstration::begins();
    let mut command = Command::new("sh");
    command.args(["-euc", &session("curl", &server.base)]).current_dir(server.folder.path());
    let said = runs_to_its_end(command).await;
    for promise in [
        "\"lc_agent_name\":\"writer\"",
        "\"action_requests\"",
        "\"response_schema\"",
        "\"resolved\"",
        "\"next\":[]",
        "\"agent_name\":\"researcher\"",
    ] {
        assert!(said.contains(promise), "{promise} is missing in:\n{said}");
    }
    assert!(!said.contains("\"detail\""), "something was refused:\n{said}");
    let answer = serde_json::to_string(block("answer")).expect("JSON");
    assert!(said.contains(&answer), "{answer} is missing in:\n{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_session_with_the_python_sdk_comes_to_its_end() {
    let Some(python) = python() else { return };
    let server = Demonstration::begins();
    let mut command = Command::new(python);
    command.args(["-c", &session("python", &server.base)]).current_dir(server.folder.path());
    let said = runs_to_its_end(command).await;
    for promise in ["editor: ", "researcher: ", "writer: ", "asks: [{"] {
        assert!(said.contains(promise), "{promise} is missing in:\n{said}");
    }
    assert!(said.trim_end().ends_with(block("answer")), "it ends with another answer:\n{said}");
    assert!(!said.contains("none about"), "the demonstration knows nothing of its own question:\n{said}");
}
