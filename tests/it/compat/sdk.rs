//! The official SDKs drive the whole flow.
//!
//! Python: `ADJUTANT_TEST_PYTHON` names a Python that has `langgraph-sdk`, else `python3` is tried. JavaScript:
//! `ADJUTANT_TEST_NODE_MODULES` names a folder of modules, else `tests/sdk/js/node_modules` (made by `npm ci` there).
//! Without them the tests are skipped with a message, or fail if `ADJUTANT_TEST_REQUIRE_ALL` is 1.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::streams::v2_replays::has_small_states;
use crate::support::server::{python_with, skipped};
use crate::support::{TestServer, on_both_engines, without_postgres};

/// Returns a Python that has the SDK.
pub(crate) fn python() -> Option<String> {
    python_with(&["langgraph_sdk"], "langgraph-sdk")
}

/// Returns the folder of these JavaScript packages.
pub(crate) fn node_modules(packages: &[&str]) -> Option<PathBuf> {
    let named = std::env::var_os("ADJUTANT_TEST_NODE_MODULES")
        .filter(|name| !name.is_empty())
        .map(PathBuf::from);
    let modules = named.unwrap_or_else(|| folder().join("js/node_modules"));
    let found = packages
        .iter()
        .all(|package| modules.join(package).join("package.json").exists());
    found
        .then_some(modules)
        .or_else(|| skipped("@langchain/langgraph-sdk (npm ci in tests/sdk/js)"))
}

pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk")
}

/// Runs a flow, which says at its end that it came there.
pub(crate) async fn runs_to_its_end(mut command: Command) -> String {
    command.stdin(Stdio::null()).env("NO_PROXY", "*").env("no_proxy", "*");
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    said.into_owned()
}

/// Returns the command that runs a script in Python.
pub(crate) fn in_python(scene: &str, server: &TestServer) -> Option<Command> {
    let mut command = Command::new(python()?);
    command
        .arg("-B")
        .arg(folder().join("python").join(scene))
        .arg(server.client().base());
    Some(command)
}

/// The packages of the scripts for v1: the newest SDK, and a renderer for its React hook.
pub(crate) const RUNS: [&str; 2] = ["sdk-1-15", "react-test-renderer"];
/// The packages of the scripts for v2: two versions of the SDK, and WebSockets.
pub(crate) const THREADS: [&str; 3] = ["sdk-1-11", "sdk-1-15", "ws"];
/// The packages of the page in a browser.
pub(crate) const PAGE: [&str; 4] = ["@langchain/react", "react-dom", "esbuild", "playwright-core"];

/// Returns the path of a browser.
pub(crate) fn chromium() -> Option<String> {
    let named = std::env::var("ADJUTANT_TEST_CHROMIUM")
        .ok()
        .filter(|name| !name.is_empty());
    let candidate = named.unwrap_or_else(|| "/usr/bin/chromium".to_owned());
    Path::new(&candidate)
        .exists()
        .then_some(candidate)
        .or_else(|| skipped("Chromium (ADJUTANT_TEST_CHROMIUM)"))
}

/// Returns the command that runs a script in JavaScript, which needs these packages.
pub(crate) fn in_javascript(scene: &str, packages: &[&str], server: &TestServer) -> Option<Command> {
    let mut command = Command::new("node");
    command.env("ADJUTANT_TEST_NODE_MODULES", node_modules(packages)?);
    command.arg(folder().join("js").join(scene)).arg(server.client().base());
    Some(command)
}

/// Checks that the table in `docs/api.md` has the methods of an SDK that the script printed at its end.
#[track_caller]
fn the_page_lists(said: &str, column: usize) {
    let last = said.lines().last().expect("the scene says something");
    let mut methods: BTreeMap<String, String> = serde_json::from_str(last).expect("JSON");
    // The clients themselves are built on this one.
    methods.remove("http");
    let page = include_str!("../../../docs/api.md");
    for (resource, methods) in methods {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{resource}` |")));
        let cell = row.and_then(|row| row.split('|').nth(column + 1)).map(str::trim);
        assert_eq!(cell, Some(methods.as_str()), "docs/api.md, {resource}");
    }
}

on_both_engines! {
    the_python_sdk_drives_the_whole_flow,
    the_javascript_sdk_drives_the_whole_flow,
    the_python_sdk_answers_questions_and_single_calls,
    the_javascript_sdk_answers_questions_and_single_calls,
    the_python_sdk_follows_threads,
    the_javascript_sdk_follows_threads,
    the_javascript_sdk_shows_a_long_thread_as_its_state_is,
    every_method_of_the_python_sdk_works,
    every_method_of_the_javascript_sdk_works,
    the_public_chat_pages_work,
    an_agent_is_a_node_of_a_program_of_langgraph,
}

// A page receives on each engine the same as the scripts above.
without_postgres! {
    a_page_in_a_browser_follows_threads,
}

async fn the_python_sdk_drives_the_whole_flow(server: TestServer) {
    let Some(flow) = in_python("flow.py", &server) else {
        return;
    };
    assert_eq!(runs_to_its_end(flow).await, "the flow is complete\n");
    assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
}

async fn the_javascript_sdk_drives_the_whole_flow(server: TestServer) {
    let Some(flow) = in_javascript("flow.mjs", &RUNS, &server) else {
        return;
    };
    assert_eq!(runs_to_its_end(flow).await, "the flow is complete\n");
    assert_eq!(server.tools.keys_of("send_email"), ["m1"]);
}

/// The agents of the scripts about interrupts: one with questions to the user, and one that asks about each call.
const ASKING_AGENTS: &str = r#"
[agents.curious]
name = "curious-agent"
model = "scripted:lab"
system_prompt = "You ask."
ask_user = true

[agents.single]
name = "single-agent"
model = "scripted:lab"
system_prompt = "You send mails."
tools = ["send_email"]
interrupt_mode = "per_call"
interrupt_on = { send_email = true }
"#;

/// Plays a script about interrupts, in which one call is edited and another one rejected.
async fn answers_interrupts(scene: Command, server: &TestServer) {
    assert_eq!(runs_to_its_end(scene).await, "the flow is complete\n");
    let calls = server.tools.calls_of("send_email");
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!(calls[0]["args"], json!({"to": "bob", "body": "hello"}));
}

async fn the_python_sdk_answers_questions_and_single_calls(server: TestServer) {
    server.is_configured_with(ASKING_AGENTS).await;
    if let Some(scene) = in_python("interrupts.py", &server) {
        answers_interrupts(scene, &server).await;
    }
}

async fn the_javascript_sdk_answers_questions_and_single_calls(server: TestServer) {
    server.is_configured_with(ASKING_AGENTS).await;
    if let Some(scene) = in_javascript("interrupts.mjs", &RUNS, &server) {
        answers_interrupts(scene, &server).await;
    }
}

async fn the_python_sdk_follows_threads(server: TestServer) {
    let Some(scene) = in_python("threads.py", &server) else {
        return;
    };
    assert_eq!(runs_to_its_end(scene).await, "the flow is complete\n");
}

async fn the_javascript_sdk_follows_threads(server: TestServer) {
    let Some(scene) = in_javascript("threads.mjs", &THREADS, &server) else {
        return;
    };
    assert_eq!(runs_to_its_end(scene).await, "the flow is complete\n");
}

async fn the_javascript_sdk_shows_a_long_thread_as_its_state_is(server: TestServer) {
    has_small_states(&server).await;
    let Some(mut scene) = in_javascript("long_threads.mjs", &THREADS, &server) else {
        return;
    };
    scene.arg("looker");
    assert_eq!(runs_to_its_end(scene).await, "the flow is complete\n");
}

async fn a_page_in_a_browser_follows_threads(server: TestServer) {
    let (Some(mut scene), Some(chromium)) = (in_javascript("page.mjs", &PAGE, &server), chromium()) else {
        return;
    };
    scene.arg(chromium);
    assert_eq!(runs_to_its_end(scene).await, "the page works\n");
}

async fn every_method_of_the_python_sdk_works(server: TestServer) {
    let Some(scene) = in_python("every_method.py", &server) else {
        return;
    };
    the_page_lists(&runs_to_its_end(scene).await, 1);
}

async fn every_method_of_the_javascript_sdk_works(server: TestServer) {
    let Some(scene) = in_javascript("every_method.mjs", &RUNS, &server) else {
        return;
    };
    the_page_lists(&runs_to_its_end(scene).await, 2);
}

async fn the_public_chat_pages_work(server: TestServer) {
    let Some(scene) = in_javascript("front_ends.mjs", &RUNS, &server) else {
        return;
    };
    assert_eq!(runs_to_its_end(scene).await, "the pages work\n");
}

async fn an_agent_is_a_node_of_a_program_of_langgraph(server: TestServer) {
    if python_with(&["langgraph.pregel.remote"], "langgraph").is_none() {
        return;
    }
    let Some(flow) = in_python("remote_graph.py", &server) else {
        return;
    };
    assert_eq!(runs_to_its_end(flow).await, "the flow is complete\n");
    // Each of the three questions was answered once.
    assert_eq!(server.tools.calls_of("send_email").len(), 3);
}
