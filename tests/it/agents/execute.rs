//! The tool `execute`: shell commands in a sandbox over a workspace on the disk.
//!
//! The abilities of a machine are asserted as `adjutant check` reports them: commands run with each kind of isolation
//! that works here, and calls are refused with the reason where one does not.

use std::fs;

use serde_json::{Value, json};

use crate::support::provider::Turn;
use crate::support::script::Script;
use crate::support::server::skipped;
use crate::support::viewer::Viewer;
use crate::support::{TestServer, call, eventually, on_both_engines, script, transcript};

/// The kinds of isolation.
pub(crate) const LAYERS: [&str; 2] = ["bwrap", "landlock"];

/// Returns an agent `worker` whose commands have this isolation, with further settings for commands, and an agent
/// `careful` that asks before each.
pub(crate) fn agents(isolation: &str, settings: &str) -> String {
    let execute = format!("execute = {{ isolation = \"{isolation}\"{settings} }}");
    format!(
        r#"
[agents.worker]
model = "scripted:lab"
tools = ["lookup"]
workspace = {{ kind = "disk", root = "work" }}
{execute}

[agents.careful]
model = "scripted:lab"
workspace = {{ kind = "disk", root = "work" }}
interrupt_on = {{ execute = true }}
{execute}

[agents.own]
model = "scripted:lab"
{execute}

[agents.own.workspace]
kind = "composite"
default = {{ kind = "disk", root = "own", namespace = ["{{thread_id}}"] }}
routes."/notes" = {{ kind = "state" }}
"#
    )
}

/// Returns the kinds of isolation that work on this machine, according to `adjutant check`.
pub(crate) fn working(server: &TestServer) -> Vec<&'static str> {
    let place = server.path_of("look");
    fs::create_dir_all(place.join("work")).expect("a directory");
    let text = "[providers.scripted]\nkind = \"scripted\"\n\n[agents.looker]\nmodel = \"scripted:lab\"\nexecute = true\nworkspace = { kind = \"disk\", root = \"work\" }\n";
    fs::write(place.join("adjutant.toml"), text).expect("a file");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_adjutant"));
    let output = command
        .args(["check", "--json"])
        .current_dir(&place)
        .output()
        .expect("it runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let layers = report["sandbox_layers"].as_array().expect("a list");
    assert_eq!(layers.len(), LAYERS.len(), "{report:#}");
    for layer in layers {
        assert_eq!(layer["works"] == json!(true), layer["problem"].is_null(), "{layer}");
    }
    let has_none = layers.iter().all(|layer| layer["works"] == json!(false));
    assert_eq!(
        report["refused_commands"][0]["agent"] == json!("looker"),
        has_none,
        "{report:#}"
    );
    let works = |name: &&str| {
        layers
            .iter()
            .any(|layer| layer["layer"] == *name && layer["works"] == json!(true))
    };
    LAYERS.into_iter().filter(works).collect()
}

/// Returns the kinds of isolation that work here. If there is none, the test is reported as skipped.
fn working_or_skipped(server: &TestServer) -> Vec<&'static str> {
    let layers = working(server);
    if layers.is_empty() {
        return skipped("isolation that works").unwrap_or_default();
    }
    layers
}

/// Makes the directories of the agents, and starts the server with them.
pub(crate) async fn set_up(server: &TestServer, isolation: &str, settings: &str) {
    for path in ["work/notes.txt", "own/readme"] {
        server.file_is_written(path, "one\n");
    }
    server.is_configured_with(&agents(isolation, settings)).await;
}

/// Configures the agent for the first layer, or has it use the second one.
async fn uses_layer(server: &TestServer, at: usize, layer: &str) {
    if at == 0 {
        return set_up(server, layer, "").await;
    }
    server
        .is_reconfigured("isolation = \"bwrap\"", "isolation = \"landlock\"")
        .await;
}

/// Returns a call that runs a command.
pub(crate) fn sh(id: &str, command: &str) -> Value {
    call(id, "execute", json!({"command": command}))
}

/// Lets an agent make these calls on a new thread, and returns their results.
pub(crate) async fn results(server: &TestServer, agent: &str, calls: Vec<Value>) -> Vec<String> {
    let asked = calls.into_iter().fold(script(), Script::calls);
    let state = server.human(agent).await.says(asked.says("done")).await;
    let said = transcript(&state);
    assert!(said.len() > 2, "no call has a result: {state}");
    said.into_iter().skip(2).step_by(2).collect()
}

/// Checks that no command is run with an isolation that this machine does not have.
pub(crate) async fn is_refused(server: &TestServer, layer: &str) {
    let said = results(server, "worker", vec![sh("c1", "touch ran-without")])
        .await
        .remove(0);
    let expected = format!("the command was not run: this machine cannot confine commands: {layer}: ");
    assert!(
        said.starts_with("execute failed: ") && said.contains(&expected),
        "{said}"
    );
    assert!(!server.path_of("work/ran-without").exists());
}

/// Plays a test with each isolation; where one does not work, every call is refused with the reason.
macro_rules! with_each_layer {
    ($($name:ident($settings:expr) => $test:ident),+ $(,)?) => {$(
        async fn $name(server: TestServer) {
            let working = working(&server);
            // Commands that use up the machine do not let the lease of the server end.
            server.configuration_changes("lease_s = 2.0", "lease_s = 60.0");
            for (at, layer) in LAYERS.into_iter().enumerate() {
                if at == 0 {
                    set_up(&server, layer, $settings).await;
                } else {
                    let isolation = |layer: &str| format!("isolation = \"{layer}\"");
                    server.is_reconfigured(&isolation(LAYERS[at - 1]), &isolation(layer)).await;
                }
                if working.contains(&layer) {
                    $test(&server, layer).await;
                } else {
                    is_refused(&server, layer).await;
                }
            }
        }
    )+};
}
pub(crate) use with_each_layer;

on_both_engines! {
    a_command_shows_its_output_and_its_exit_code,
    a_command_and_the_file_tools_see_the_same_files,
    arguments_that_cannot_be_used_run_nothing,
    output_is_streamed_while_the_command_runs,
    a_long_result_becomes_a_file_of_the_thread,
    a_command_waits_for_approval,
    each_run_has_the_directory_of_its_namespace_alone,
    a_command_that_was_running_at_a_kill_is_asked_about_and_is_dead,
    a_cancelled_run_ends_its_command_with_all_processes,
    a_configuration_that_commands_could_misuse_is_refused,
    a_definition_over_http_runs_no_commands,
    an_agent_without_commands_is_not_offered_the_tool,
    the_model_reads_which_files_commands_do_not_see,
}

with_each_layer! {
    a_command_shows_its_output_and_its_exit_code("") => shows_output_and_exit_code,
    a_command_and_the_file_tools_see_the_same_files("") => sees_the_same_files,
    arguments_that_cannot_be_used_run_nothing(", max_timeout_s = 300") => refuses_arguments,
    output_is_streamed_while_the_command_runs("") => streams_output,
    a_long_result_becomes_a_file_of_the_thread("") => moves_a_long_result,
    a_command_waits_for_approval("") => waits_for_approval,
    each_run_has_the_directory_of_its_namespace_alone("") => keeps_namespaces_apart,
}

async fn shows_output_and_exit_code(server: &TestServer, _: &str) {
    let calls = vec![
        sh("c1", "echo out; echo err >&2; cat notes.txt"),
        sh("c2", "exit 3"),
        sh("c3", "true"),
        sh("c4", "kill -TERM $$"),
        sh(
            "c5",
            "test \"$HOME\" = \"$PWD\" && test \"$WORKSPACE\" = \"$PWD\" && echo same; touch \"$TMPDIR/x\" && echo tmp",
        ),
        sh("c6", "no-such-program-at-all"),
    ];
    let said = results(server, "worker", calls).await;
    assert_eq!(said[0], "execute: out\nerr\none\n[Command succeeded with exit code 0]");
    assert_eq!(said[1], "execute: [Command failed with exit code 3]");
    assert_eq!(said[2], "execute: [Command succeeded with exit code 0]");
    assert!(said[3].contains("[Command failed with exit code 143"), "{}", said[3]);
    assert_eq!(said[4], "execute: same\ntmp\n[Command succeeded with exit code 0]");
    assert!(said[5].ends_with("[Command failed with exit code 127]"), "{}", said[5]);
}

async fn sees_the_same_files(server: &TestServer, layer: &str) {
    let file = format!("/made-{layer}.txt");
    let calls = vec![
        sh("c1", &format!("echo by command > .{file}; mkdir -p sub-{layer}")),
        call("c2", "read_file", json!({"file_path": file})),
        call(
            "c3",
            "write_file",
            json!({"file_path": format!("/sub-{layer}/b.txt"), "content": "by tool"}),
        ),
        sh("c4", &format!("cat sub-{layer}/b.txt")),
    ];
    let said = results(server, "worker", calls).await;
    assert!(said[1].contains("by command"), "{}", said[1]);
    assert!(said[3].contains("by tool"), "{}", said[3]);
}

async fn refuses_arguments(server: &TestServer, layer: &str) {
    let with = |id: &str, args: Value| call(id, "execute", args);
    let touch = format!("touch ran-{layer}");
    let calls = vec![
        with("c1", json!({"command": touch, "timeout": -1})),
        with("c2", json!({"command": touch, "timeout": 0})),
        with("c3", json!({"command": touch, "timeout": 301})),
        with("c4", json!({"command": " "})),
        with("c5", json!({"command": format!("{touch} #{}", "x".repeat(100_000))})),
        with("c6", json!({"timeout": 3})),
        with("c7", json!({"command": "echo fine", "timeout": 300})),
    ];
    let said = results(server, "worker", calls).await;
    for refused in &said[..3] {
        assert!(
            refused.contains("`timeout` must be a whole number of seconds from 1 to 300"),
            "{refused}"
        );
    }
    assert!(
        said[..6].iter().all(|refused| refused.starts_with("execute failed: ")),
        "{said:#?}"
    );
    assert!(said[6].starts_with("execute: fine\n"), "{}", said[6]);
    assert!(!server.path_of(&format!("work/ran-{layer}")).exists());
}

async fn streams_output(server: &TestServer, layer: &str) {
    let alice = server.human("worker").await;
    let go_on = format!("go-{layer}");
    let command = format!("echo first; while [ ! -e {go_on} ]; do sleep 0.05; done; echo second");
    let viewer = Viewer::of(server, &alice.thread);
    let mut events = viewer.opens(json!({"channels": ["tools", "lifecycle"]})).await;
    let run = alice.asks(script().calls(sh("c1", &command)).says("done")).await;
    let delta = |data: &Value| data["params"]["data"]["event"] == json!("tool-output-delta");
    let seen = events.until(|frame| delta(&frame.data)).await;
    assert_eq!(
        seen.last().expect("a frame").data["params"]["data"]["delta"],
        json!("first\n")
    );
    server.file_is_written(&format!("work/{go_on}"), "");
    run.finishes().await;
    assert_eq!(
        alice.transcript().await[2],
        "execute: first\nsecond\n[Command succeeded with exit code 0]"
    );
}

async fn moves_a_long_result(server: &TestServer, _: &str) {
    let calls = vec![
        sh(
            "c1",
            "i=0; while [ $i -lt 9000 ]; do echo \"line number $i\"; i=$((i+1)); done",
        ),
        call(
            "c2",
            "grep",
            json!({"pattern": "line number 8999", "path": "/large_tool_results"}),
        ),
    ];
    let said = results(server, "worker", calls).await;
    assert!(said[0].contains("is too long to be shown"), "{}", said[0]);
    assert!(
        said[0].contains("[Output was truncated: the command wrote"),
        "{}",
        said[0]
    );
    assert_eq!(said[1], "grep: /large_tool_results/c1");
}

async fn waits_for_approval(server: &TestServer, layer: &str) {
    let alice = server.human("careful").await;
    let file = format!("approved-{layer}");
    let asked = script().calls(sh("c1", &format!("touch {file}; echo done"))).says("ok");
    alice.asks(&asked).await.finishes().await;
    let question = alice.question().await;
    assert!(!server.path_of("work").join(&file).exists());
    alice.approves(&question).await.finishes().await;
    assert!(server.path_of("work").join(&file).exists());
    let bob = server.human("careful").await;
    let other = format!("rejected-{layer}");
    let asked = script().calls(sh("c1", &format!("touch {other}"))).says("ok");
    bob.asks(&asked).await.finishes().await;
    let question = bob.question().await;
    bob.rejects(&question, "no").await.finishes().await;
    assert!(!server.path_of("work").join(&other).exists());
}

async fn keeps_namespaces_apart(server: &TestServer, _: &str) {
    let alice = server.human("own").await;
    let command = "echo secret > mine; ls; ls .. 2>&1; cat ../readme 2>&1; echo end";
    let said = transcript(&alice.says(script().calls(sh("c1", command)).says("done")).await);
    assert!(said[2].contains("mine") && !said[2].contains("one"), "{}", said[2]);
    let file = server.path_of("own").join(&alice.thread).join("mine");
    assert_eq!(fs::read_to_string(file).expect("a file"), "secret\n");
    let bob = server.human("own").await;
    let spies = format!("cat ../{0}/mine ../../own/{0}/mine; ls -a", alice.thread);
    let said = transcript(&bob.says(script().calls(sh("c1", &spies)).says("done")).await);
    assert!(!said[2].contains("secret"), "{}", said[2]);
}

/// Returns whether a process of this machine has this text in its command line.
pub(crate) fn is_running(marker: &str) -> bool {
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let own = std::process::id().to_string();
    let mut lines = processes
        .filter(|process| process.file_name().to_str() != Some(own.as_str()))
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| String::from_utf8_lossy(&line).contains(marker))
}

/// A command that says in a file that it runs, and goes on with several processes until it is killed.
pub(crate) fn endless(file: &str, marker: &str) -> String {
    format!(
        "echo x >> {file}; trap '' TERM HUP INT; sleep 1{marker} & (sleep 2{marker} &) ; sleep 3{marker}; echo never >> {file}"
    )
}

/// Returns whether an endless command has written its file and waits. Its text is in the command line of the shell from
/// the beginning, so the program of the last step is looked for with the byte that ends the name of a program.
pub(crate) fn is_at_its_last_step(marker: &str) -> bool {
    is_running(&["sleep\0", "3", marker].concat())
}

async fn a_command_that_was_running_at_a_kill_is_asked_about_and_is_dead(server: TestServer) {
    for (at, layer) in working_or_skipped(&server).into_iter().enumerate() {
        uses_layer(&server, at, layer).await;
        server.moves_into_a_process().await;
        let alice = server.human("worker").await;
        let marker = marker_of("0", &alice.thread);
        let file = format!("started-{layer}");
        let path = server.path_of(&format!("work/{file}"));
        let run = alice
            .asks(script().calls(sh("c1", &endless(&file, &marker))).says("done"))
            .await;
        eventually(async || is_at_its_last_step(&marker)).await;
        server.is_killed_and_started_again().await;
        run.finishes().await;
        eventually(async || !is_running(&marker)).await;
        let question = alice.question().await;
        let decision = json!([{"type": "respond", "message": "it was killed"}]);
        alice.decides(&question, decision).await.finishes().await;
        assert_eq!(
            fs::read_to_string(&path).expect("a file"),
            "x\n",
            "{layer}: it ran once"
        );
        assert_eq!(alice.transcript().await[2], "execute: it was killed");
    }
}

/// Returns digits that no other test has, for the arguments of processes.
pub(crate) fn marker_of(prefix: &str, thread: &str) -> String {
    let digits: String = thread.bytes().map(|byte| (b'0' + byte % 10) as char).collect();
    let end = digits.len().saturating_sub(12);
    format!("{prefix}{}{}", std::process::id(), &digits[end..])
}

async fn a_cancelled_run_ends_its_command_with_all_processes(server: TestServer) {
    for (at, layer) in working_or_skipped(&server).into_iter().enumerate() {
        uses_layer(&server, at, layer).await;
        let alice = server.human("worker").await;
        let marker = marker_of("1", &alice.thread);
        let file = format!("cancelled-{layer}");
        let run = alice
            .asks(script().calls(sh("c1", &endless(&file, &marker))).says("done"))
            .await;
        eventually(async || is_at_its_last_step(&marker)).await;
        run.is_cancelled("interrupt").await.ok();
        run.finishes().await;
        eventually(async || !is_running(&marker)).await;
        let path = server.path_of(&format!("work/{file}"));
        assert_eq!(fs::read_to_string(path).expect("a file"), "x\n");
    }
}

/// Returns what `adjutant check` says about a configuration.
fn check(server: &TestServer, place: &str, text: &str) -> String {
    server.file_is_written(&format!("{place}/work/a.txt"), "");
    let provider = "[providers.scripted]\nkind = \"scripted\"\n";
    server.file_is_written(&format!("{place}/adjutant.toml"), &format!("{provider}{text}"));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_adjutant"));
    let output = command
        .arg("check")
        .current_dir(server.path_of(place))
        .output()
        .expect("it runs");
    String::from_utf8(output.stdout).expect("text")
}

async fn a_configuration_that_commands_could_misuse_is_refused(server: TestServer) {
    let agent = |rest: &str| format!("[agents.looker]\nmodel = \"scripted:lab\"\nexecute = true\n{rest}\n");
    let disk = |root: &str| agent(&format!("workspace = {{ kind = \"disk\", root = \"{root}\" }}"));
    let storage = "[storage]\nurl = \"sqlite://work/adjutant.db\"\n";
    let rule = "[[agents.looker.permissions]]\noperations = [\"read\"]\npaths = [\"/x/**\"]\nmode = \"deny\"\n";
    for (at, (text, expected)) in [
        (disk("."), "adjutant.toml`, which belongs to the server"),
        (
            format!("{storage}{}", disk("work")),
            "work/adjutant.db`, which belongs to the server",
        ),
        (
            format!("{}{rule}", disk("work")),
            "would pass by the rule of `permissions` for `/x/**`",
        ),
        (agent(""), "needs a workspace of the kind `disk`"),
    ]
    .into_iter()
    .enumerate()
    {
        let said = check(&server, &format!("p{at}"), &text);
        let is_told = said.contains("agents.looker.execute: ") && said.contains(expected) && said.contains("1 error");
        assert!(is_told, "{text}: {said}");
    }
    let said = check(&server, "p9", &disk("work"));
    assert!(
        said.contains("0 errors") && said.contains("runs commands: isolation auto, no network"),
        "{said}"
    );
    for layer in LAYERS {
        let words = if working(&server).contains(&layer) {
            "works"
        } else {
            "does not work here: "
        };
        assert!(
            said.contains(&format!("isolation {layer} of commands: {words}")),
            "{said}"
        );
    }
}

async fn an_agent_without_commands_is_not_offered_the_tool(server: TestServer) {
    let alice = server.human("plain").await;
    let calls = script().calls(sh("c1", "echo hello"));
    alice.says(calls.turn(json!({"echo_tools": true}))).await;
    let said = alice.transcript().await;
    assert!(said[2].contains("execute is not a valid tool"), "{}", said[2]);
    let offered = said.last().expect("an answer");
    assert!(
        offered.contains("read_file") && !offered.contains("execute"),
        "{offered}"
    );
}

async fn the_model_reads_which_files_commands_do_not_see(server: TestServer) {
    server.file_is_written("own/readme", "one\n");
    let agent = r#"
[agents.told]
model = "fake_openai:m-1"
execute = true

[agents.told.workspace]
kind = "composite"
default = { kind = "disk", root = "own" }
routes."/notes" = { kind = "state" }
"#;
    server.is_configured_with(agent).await;
    server.models.will([Turn::Says("hello")]);
    server.human("told").await.says("hello").await;
    let asked = server.models.asked().pop().expect("a request").body;
    let places = "below /large_tool_results, /large_messages, /conversation_history, /.agent, /notes.";
    assert!(asked.contains(places), "{asked}");
}

async fn a_definition_over_http_runs_no_commands(server: TestServer) {
    let definition = json!({"model": "scripted:lab", "execute": true});
    let refused = server.client().put("/agents/spy", definition).await;
    assert!(refused.refused(422).contains("runs no commands"));
}
