//! The console in a browser: a flow of `tests/console/` for each of its promises, and that the files in the program are what
//! the sources give.
//!
//! The flows need the packages of `tests/sdk/js` (`ADJUTANT_TEST_NODE_MODULES`) and Chromium (`ADJUTANT_TEST_CHROMIUM`).
//! `ADJUTANT_TEST_SCREENSHOTS` names a folder for the pictures that flows take for the documents.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::sdk::{chromium, node_modules, runs_to_its_end};
use crate::agents::long_threads::{has_states_of, left};
use crate::support::server::skipped;
use crate::support::webhook_receiver::WebhookReceiver;
use crate::support::{TestServer, without_postgres};

/// The packages of the flows.
const PACKAGES: [&str; 2] = ["axe-core", "playwright-core"];

/// The first version of Node.js that can build the console.
const NODE: [u32; 2] = [20, 19];

without_postgres! {
    the_demonstration_is_followed_to_its_end,
    threads_are_found_opened_and_deleted,
    a_conversation_shows_every_agent_while_it_works,
    a_conversation_says_that_messages_have_left_the_state,
    approvals_are_answered_in_their_thread_and_in_the_inbox,
    decisions_for_the_rest_of_a_thread_are_given_listed_and_revoked,
    a_thread_is_continued_from_any_checkpoint_of_its_timeline,
    twenty_subagents_that_speak_at_once_are_followed_smoothly,
    agents_and_assistants_are_shown_with_graphs_and_versions,
    crons_are_created_paused_and_deleted,
    webhook_deliveries_are_shown_and_repeated,
    items_of_the_store_are_created_found_changed_and_deleted,
    metrics_follow_what_the_server_does,
    a_key_opens_the_console_and_shows_what_its_user_may_see,
    everything_can_be_done_with_the_keyboard,
    the_first_half_of_the_pages_is_accessible_and_fits_narrow_screens,
    the_second_half_of_the_pages_is_accessible_and_fits_narrow_screens,
}

/// Returns the command that plays a flow.
fn flow(name: &str, server: &TestServer) -> Option<Command> {
    let mut command = Command::new("node");
    command.env("ADJUTANT_TEST_NODE_MODULES", node_modules(&PACKAGES)?);
    let browser = chromium()?;
    command.arg(repository().join("tests/console").join(name));
    command.arg(server.client().base()).arg(browser);
    Some(command)
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Plays a flow to its end.
async fn play(command: Command) {
    let said = runs_to_its_end(command).await;
    assert!(said.ends_with("the flow is complete\n"), "{said}");
}

/// Plays a flow that needs nothing but the server.
async fn play_alone(name: &str, server: TestServer) {
    if let Some(command) = flow(name, &server) {
        play(command).await;
    }
}

async fn the_demonstration_is_followed_to_its_end(server: TestServer) {
    play_alone("demonstration.mjs", server).await;
}

async fn threads_are_found_opened_and_deleted(server: TestServer) {
    play_alone("threads.mjs", server).await;
}

async fn a_conversation_shows_every_agent_while_it_works(server: TestServer) {
    play_alone("conversation.mjs", server).await;
}

async fn a_conversation_says_that_messages_have_left_the_state(server: TestServer) {
    let alice = has_states_of(&server, 60_000).await;
    let mut turns = 0;
    while left(&alice.state().await["values"]) == 0 {
        turns += 1;
        assert!(turns < 100, "no message leaves the state");
        alice.says(format!("turn {turns}: {}", "so it goes ".repeat(200))).await;
    }
    let Some(mut command) = flow("left.mjs", &server) else {
        return;
    };
    command.env("THREAD", &alice.thread);
    play(command).await;
}

async fn approvals_are_answered_in_their_thread_and_in_the_inbox(server: TestServer) {
    play_alone("approvals.mjs", server).await;
}

async fn decisions_for_the_rest_of_a_thread_are_given_listed_and_revoked(server: TestServer) {
    play_alone("decisions.mjs", server).await;
}

async fn a_thread_is_continued_from_any_checkpoint_of_its_timeline(server: TestServer) {
    play_alone("timeline.mjs", server).await;
}

async fn twenty_subagents_that_speak_at_once_are_followed_smoothly(server: TestServer) {
    play_alone("smooth.mjs", server).await;
}

async fn agents_and_assistants_are_shown_with_graphs_and_versions(server: TestServer) {
    play_alone("agents.mjs", server).await;
}

async fn crons_are_created_paused_and_deleted(server: TestServer) {
    play_alone("crons.mjs", server).await;
}

async fn webhook_deliveries_are_shown_and_repeated(server: TestServer) {
    let Some(mut command) = flow("webhooks.mjs", &server) else {
        return;
    };
    let receiver = WebhookReceiver::start().await;
    receiver.answers(&[500]);
    command.env("RECEIVER", &receiver.base);
    play(command).await;
    assert_eq!(receiver.received().len(), 2);
}

async fn items_of_the_store_are_created_found_changed_and_deleted(server: TestServer) {
    play_alone("store.mjs", server).await;
}

async fn metrics_follow_what_the_server_does(server: TestServer) {
    play_alone("metrics.mjs", server).await;
}

async fn a_key_opens_the_console_and_shows_what_its_user_may_see(server: TestServer) {
    let keys = server.is_protected().await;
    let Some(mut command) = flow("access.mjs", &server) else {
        return;
    };
    command.arg(keys.text("root")).env("USER_KEY", keys.text("ann"));
    play(command).await;
}

async fn everything_can_be_done_with_the_keyboard(server: TestServer) {
    play_alone("keyboard.mjs", server).await;
}

async fn the_first_half_of_the_pages_is_accessible_and_fits_narrow_screens(server: TestServer) {
    check_pages(server, "0/2").await;
}

async fn the_second_half_of_the_pages_is_accessible_and_fits_narrow_screens(server: TestServer) {
    check_pages(server, "1/2").await;
}

/// Looks at every page of a part.
async fn check_pages(server: TestServer, part: &str) {
    let Some(mut command) = flow("pages.mjs", &server) else {
        return;
    };
    let receiver = WebhookReceiver::start().await;
    command.env("RECEIVER", &receiver.base).env("PART", part);
    play(command).await;
}

#[test]
fn the_built_console_is_what_its_sources_give() {
    if !has_node() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let copy = folder.path().join("console");
    copy_sources(&repository().join("console"), &copy);
    let installed = npm(&copy, &["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
    if let Err(failure) = installed {
        let _: Option<()> = skipped(&format!("registry with the packages of the console: {failure}"));
        return;
    }
    npm(&copy, &["run", "build"]).expect("the console can be built");
    let built = files(&copy.join("dist"));
    let committed = files(&repository().join("console/dist"));
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    let advice = "run `npm ci && npm run build` in console/ and commit dist/";
    assert_eq!(names(&built), names(&committed), "{advice}");
    for (name, content) in &built {
        assert!(content == &committed[name], "{} differs: {advice}", name.display());
    }
}

/// Returns whether there is a Node.js that can build the console.
fn has_node() -> bool {
    let version = Command::new("node").arg("--version").output();
    let version = version
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default();
    let mut parts = version.trim_start_matches('v').split('.').map(str::parse::<u32>);
    let found = [(); 2].map(|()| parts.next().and_then(Result::ok).unwrap_or_default());
    let what = format!("Node.js {}.{} or newer, but {version:?}", NODE[0], NODE[1]);
    (found >= NODE).then_some(()).or_else(|| skipped(&what)).is_some()
}

/// Runs npm in a folder. Returns what it complained about if it fails.
fn npm(folder: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("npm");
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{}\n{}", text(&output.stdout), text(&output.stderr))),
    }
}

/// Copies a folder without what is installed and built in it.
fn copy_sources(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name();
        if name == "node_modules" || name == "dist" {
            continue;
        }
        let target = to.join(&name);
        if entry.file_type().expect("a type").is_dir() {
            copy_sources(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("it can be copied");
        }
    }
}

/// Returns the files of a folder with their contents.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("it is inside").to_owned();
                found.insert(name, fs::read(&path).expect("a file"));
            }
        }
    }
    found
}
