//! The official SDKs, the public chat pages and a page in a browser, with an API key of a user.

use crate::compat::sdk::{PAGE, RUNS, THREADS, chromium, in_javascript, in_python, runs_to_its_end};
use crate::support::{TestServer, without_postgres};

without_postgres! {
    the_python_sdk_works_with_a_key,
    the_javascript_sdk_works_with_a_key,
    the_public_chat_pages_work_with_a_key,
    a_page_in_a_browser_works_with_a_key,
    the_pages_of_the_examples_work_with_a_key,
}

/// The variable from which both SDKs read their key.
const KEY: &str = "LANGGRAPH_API_KEY";

async fn the_python_sdk_works_with_a_key(server: TestServer) {
    let keys = server.is_protected().await;
    for scene in ["flow.py", "threads.py"] {
        let Some(mut command) = in_python(scene, &server) else {
            return;
        };
        command.env(KEY, keys.text("ann"));
        assert_eq!(runs_to_its_end(command).await, "the flow is complete\n", "{scene}");
    }
}

async fn the_javascript_sdk_works_with_a_key(server: TestServer) {
    let keys = server.is_protected().await;
    for scene in ["flow.mjs", "threads.mjs"] {
        let Some(mut command) = in_javascript(scene, &[RUNS.as_slice(), &THREADS].concat(), &server) else {
            return;
        };
        command.env(KEY, keys.text("ann"));
        assert_eq!(runs_to_its_end(command).await, "the flow is complete\n", "{scene}");
    }
}

async fn the_public_chat_pages_work_with_a_key(server: TestServer) {
    let keys = server.is_protected().await;
    let Some(mut command) = in_javascript("front_ends.mjs", &RUNS, &server) else {
        return;
    };
    command.env(KEY, keys.text("ann"));
    assert_eq!(runs_to_its_end(command).await, "the pages work\n");
}

async fn a_page_in_a_browser_works_with_a_key(server: TestServer) {
    let keys = server.is_protected().await;
    let Some(mut command) = in_javascript("page.mjs", &PAGE, &server) else {
        return;
    };
    let Some(chromium) = chromium() else {
        return;
    };
    command.arg(chromium).env(KEY, keys.text("ann"));
    assert_eq!(runs_to_its_end(command).await, "the page works\n");
}

async fn the_pages_of_the_examples_work_with_a_key(server: TestServer) {
    let keys = server.is_protected().await;
    let Some(mut command) = in_javascript("web.mjs", &["esbuild", "playwright-core"], &server) else {
        return;
    };
    let Some(chromium) = chromium() else {
        return;
    };
    command.args([chromium.as_str(), "plain", "guide"]);
    command.env(KEY, keys.text("ann"));
    assert_eq!(runs_to_its_end(command).await, "the pages work\n");
}
