//! Workspaces: files in the state of the thread, in the Store, on the disk, and in several of these.

use std::fs;

use serde_json::{Value, json};

use crate::support::{TestServer, call, lookup, on_both_engines, script, task, transcript};

/// The agents of these tests, each with a kind of workspace.
const AGENTS: &str = r#"
[agents.archivist]
model = "scripted:lab"
tools = ["lookup"]
memory = ["/memories/notes.md"]
skills = ["/skills"]

[agents.archivist.workspace]
kind = "composite"
routes."/memories/" = { kind = "store", namespace = ["memories", "{user_id}"] }
routes."/skills" = { kind = "disk", root = "skills", read_only = true }

[agents.digger]
model = "scripted:lab"
tools = ["lookup"]
tool_token_limit_before_evict = 50
workspace = { kind = "disk", root = "work" }

[[agents.digger.permissions]]
operations = ["read", "write"]
paths = ["/secret/**"]
mode = "deny"

[[agents.digger.subagents]]
name = "helper"
description = "Works where its parent works."
system_prompt = "You help."

[[agents.digger.subagents]]
name = "drafter"
description = "Works in the state of the thread."
system_prompt = "You draft."
workspace = { kind = "state" }

[agents.private]
model = "scripted:lab"
workspace = { kind = "disk", root = "private", namespace = ["{tenant}", "{user_id}"] }
"#;

fn write(id: &str, path: &str, content: &str) -> Value {
    call(id, "write_file", json!({"file_path": path, "content": content}))
}

fn read(id: &str, path: &str) -> Value {
    call(id, "read_file", json!({"file_path": path}))
}

fn edit(id: &str, path: &str, old: &str, new: &str) -> Value {
    call(
        id,
        "edit_file",
        json!({"file_path": path, "old_string": old, "new_string": new}),
    )
}

fn find(id: &str, tool: &str, args: Value) -> Value {
    call(id, tool, args)
}

fn report() -> Value {
    json!({"echo_last_tool": true})
}

/// Gives the server the directories and agents of these tests.
async fn set_up(server: &TestServer) {
    for (path, text) in [
        ("work/.gitignore", "build/\n*.log\n!keep.log\n"),
        ("work/src/main.rs", "fn main() {}\n// needle\n"),
        ("work/build/out.rs", "// needle\n"),
        ("work/a.log", "needle\n"),
        ("work/keep.log", "needle\n"),
        ("work/secret/key.txt", "needle\n"),
        ("private/readme", ""),
        (
            "skills/sow/SKILL.md",
            "---\nname: sow\ndescription: sow seeds\n---\nSow in spring.",
        ),
    ] {
        server.file_is_written(path, text);
    }
    server.is_configured_with(AGENTS).await;
}

/// Lets an agent make these calls on a new thread, and returns the transcript.
async fn says(server: &TestServer, agent: &str, calls: Vec<Value>) -> Vec<String> {
    let script = calls.into_iter().fold(script(), script::Script::calls);
    transcript(&server.human(agent).await.says(script.says("done")).await)
}

on_both_engines! {
    what_is_written_below_a_route_to_the_store_is_there_on_the_next_thread,
    a_run_without_the_context_of_its_namespace_is_told_so,
    files_of_one_user_in_the_store_are_not_seen_by_another,
    the_file_tools_work_on_a_directory_of_the_disk,
    a_long_line_is_found_and_read_to_its_end_in_every_workspace,
    a_search_on_the_disk_names_the_files_with_lines_too_long_to_be_searched,
    a_byte_order_mark_counts_as_a_character_of_its_line,
    long_results_of_an_agent_on_the_disk_stay_with_the_thread,
    subagents_work_in_the_workspace_of_their_parent_unless_they_have_their_own,
    of_two_threads_that_change_one_file_the_second_is_refused_and_can_read_again,
    each_user_has_a_directory_where_the_namespace_says_so,
    an_edit_on_the_disk_is_not_repeated_after_a_kill,
    a_definition_of_a_client_has_no_workspace_on_the_disk,
}

async fn what_is_written_below_a_route_to_the_store_is_there_on_the_next_thread(server: TestServer) {
    set_up(&server).await;
    let context = json!({"context": {"user_id": "al@example.org"}});
    let alice = server.human("archivist").await;
    let asked = script()
        .calls(write("w1", "/memories/notes.md", "Likes tea."))
        .calls(write("w2", "/draft.md", "mine"))
        .calls(find("l1", "ls", json!({"path": "/"})))
        .says("noted");
    alice
        .starts(alice.run_body(asked, context.clone()))
        .await
        .finishes()
        .await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "write_file: Updated file /memories/notes.md");
    assert_eq!(said[6], "ls: ['/draft.md', '/memories/', '/skills/']");
    let files = alice.state().await["values"]["files"].clone();
    assert_eq!(
        files.as_object().map(|files| files.keys().cloned().collect::<Vec<_>>()),
        Some(vec!["/draft.md".into()])
    );

    let item = server
        .client()
        .get("/store/items?namespace=memories.al@example%252Eorg&key=/notes.md")
        .await
        .ok();
    assert_eq!(item["value"]["content"], "Likes tea.");

    let again = server.human("archivist").await;
    let asked = script()
        .calls(find("g1", "glob", json!({"pattern": "*.md"})))
        .calls(find("g2", "grep", json!({"pattern": "tea", "output_mode": "content"})))
        .calls(edit("e1", "/memories/notes.md", "tea", "milk"))
        .calls(read("r1", "/skills/sow/SKILL.md"))
        .calls(write("w3", "/skills/sow/SKILL.md", "x"))
        .turn(json!({"echo_system": true}));
    again
        .starts(again.run_body(asked, context.clone()))
        .await
        .finishes()
        .await;
    let said = again.transcript().await;
    assert_eq!(said[2], "glob: ['/memories/notes.md', '/skills/sow/SKILL.md']");
    assert_eq!(said[4], "grep: /memories/notes.md:\n  1: Likes tea.");
    assert_eq!(said[6], "edit_file: Replaced 1 occurrence in '/memories/notes.md'");
    assert!(said[8].contains("Sow in spring."), "{}", said[8]);
    assert!(said[10].contains("read-only"), "{}", said[10]);
    let system = &said[11];
    assert!(
        system.contains("<memory file=\"/memories/notes.md\">\nLikes tea."),
        "{system}"
    );
    assert!(system.contains("sow: sow seeds"), "{system}");

    let other = server.human("archivist").await;
    let asked = script().calls(read("r1", "/memories/notes.md")).says("done");
    let context = json!({"context": {"user_id": "bo"}});
    other.starts(other.run_body(asked, context)).await.finishes().await;
    assert!(other.transcript().await[2].contains("not found"));
}

async fn a_run_without_the_context_of_its_namespace_is_told_so(server: TestServer) {
    set_up(&server).await;
    let alice = server.human("archivist").await;
    let values = alice.says(script().says("done")).await;
    let error = values["__error__"].to_string();
    assert!(error.contains("MemoryFileError"), "{values:#}");
    assert!(error.contains("the context of the run has no `user_id`"), "{values:#}");
    let body = alice.run_body(script().says("done"), json!({"context": {"user_id": "../x"}}));
    let values = alice.starts(body).await.finishes().await;
    let error = values["__error__"].to_string();
    assert!(error.contains("the value of `user_id` must consist of"), "{values:#}");
}

async fn files_of_one_user_in_the_store_are_not_seen_by_another(server: TestServer) {
    set_up(&server).await;
    let keys = server.is_protected().await;
    let context = json!({"context": {"user_id": "shared"}});
    let mut seen = vec![];
    for (name, asked) in [
        ("ann", script().calls(write("w1", "/memories/a.md", "of ann"))),
        ("ann", script().calls(read("r1", "/memories/a.md"))),
        ("bob", script().calls(read("r1", "/memories/a.md"))),
        ("root-of-other", script().calls(read("r1", "/memories/a.md"))),
    ] {
        let human = crate::support::Human::on_new_thread(keys.client(name), "archivist").await;
        human
            .starts(human.run_body(asked.says("done"), context.clone()))
            .await
            .finishes()
            .await;
        seen.push(human.transcript().await[2].clone());
    }
    assert!(seen[0].contains("Updated") && seen[1].contains("of ann"), "{seen:?}");
    assert!(
        seen[2].contains("not found") && seen[3].contains("not found"),
        "{seen:?}"
    );
}

async fn the_file_tools_work_on_a_directory_of_the_disk(server: TestServer) {
    set_up(&server).await;
    fs::create_dir(server.path_of("work/empty")).expect("a directory");
    let said = says(
        &server,
        "digger",
        vec![
            find("c1", "ls", json!({"path": "/"})),
            find("c2", "glob", json!({"pattern": "**/*.rs"})),
            find("c3", "grep", json!({"pattern": "needle"})),
            write("c4", "/new/dir/a.txt", "one\ntwo\n"),
            edit("c5", "/new/dir/a.txt", "two", "2"),
            read("c6", "/new/dir/a.txt"),
            find("c7", "grep", json!({"pattern": "o.e"})),
            find("c8", "delete", json!({"file_path": "/new"})),
            read("c9", "/secret/key.txt"),
            read("c10", "/none"),
            find("c11", "grep", json!({"pattern": "fn.*"})),
            find("c12", "grep", json!({"pattern": "main() {"})),
            find("c13", "grep", json!({"pattern": "fn main("})),
            find("c14", "ls", json!({"path": "/none"})),
            find("c15", "ls", json!({"path": "/empty"})),
        ],
    )
    .await;
    assert_eq!(
        said[2],
        "ls: ['/.gitignore', '/a.log', '/build/', '/empty/', '/keep.log', '/src/']"
    );
    assert_eq!(said[4], "glob: ['/src/main.rs']");
    assert_eq!(said[6], "grep: /keep.log\n/src/main.rs");
    assert_eq!(said[8], "write_file: Updated file /new/dir/a.txt");
    assert_eq!(said[10], "edit_file: Replaced 1 occurrence in '/new/dir/a.txt'");
    assert_eq!(said[12], "read_file: @@ lines 1-2 of 2 @@\none\n2");
    assert_eq!(said[14], "grep: No matches found for 'o.e'.");
    assert_eq!(said[16], "delete: Deleted /new");
    assert!(said[18].contains("you may not read '/secret/key.txt'"), "{}", said[18]);
    assert!(said[20].contains("not found"), "{}", said[20]);
    assert!(said[22].contains("taken literally"), "{}", said[22]);
    assert_eq!(said[24], "grep: /src/main.rs");
    assert_eq!(said[26], "grep: /src/main.rs");
    assert_eq!(said[28], "ls failed: Error: Directory '/none' not found");
    assert_eq!(said[30], "ls: No files found in /empty");
    assert!(!server.path_of("work/new").exists());
}

async fn a_long_line_is_found_and_read_to_its_end_in_every_workspace(server: TestServer) {
    set_up(&server).await;
    let context = json!({"context": {"user_id": "al"}});
    let line = format!("{}needle{}", "é".repeat(5_000), "z".repeat(2_000));
    for (agent, path) in [
        ("digger", "/long.json"),
        ("archivist", "/long.json"),
        ("archivist", "/memories/long.json"),
    ] {
        let alice = server.human(agent).await;
        let search = json!({"pattern": "needle", "path": path, "output_mode": "content"});
        let rest = json!({"file_path": path, "char_offset": 4_750, "limit": 1});
        let beyond = json!({"file_path": path, "char_offset": 7_006});
        let asked = script()
            .calls(write("c1", path, &line))
            .calls(find("c2", "grep", search))
            .calls(find("c3", "read_file", rest))
            .calls(find("c4", "read_file", beyond))
            .says("done");
        let body = alice.run_body(asked, context.clone());
        alice.starts(body).await.finishes().await;
        let said = alice.transcript().await;
        let part = format!("{}needle{}", "é".repeat(250), "z".repeat(744));
        let found = format!("grep: {path}:\n  1: [from char_offset 4750] {part} [cut]");
        assert_eq!(said[4], found, "{agent}");
        let header = "@@ lines 1-1 of 1 | characters 4751-7006 of 7006 in line 1 @@";
        let read = format!("read_file: {header}\n{part}{}", "z".repeat(2_000 - 744));
        assert_eq!(said[6], read, "{agent}");
        let beyond = format!("char_offset 7006 is beyond the end of line 1 of '{path}', which has 7006 characters");
        assert!(said[8].contains(&beyond), "{agent}: {}", said[8]);
    }
}

async fn a_search_on_the_disk_names_the_files_with_lines_too_long_to_be_searched(server: TestServer) {
    set_up(&server).await;
    let long = "x".repeat(9 * 1024 * 1024);
    fs::write(
        server.path_of("work/huge.json"),
        format!("needle\n{long} needle\nneedle\n"),
    )
    .expect("a file");
    fs::write(server.path_of("work/small.txt"), "a needle").expect("a file");
    let search = |text: &str| {
        let args = json!({"pattern": text, "glob": "*.{json,txt}", "output_mode": "content"});
        find("g1", "grep", args)
    };
    let note = "[Searched only up to a line that is too long to be searched: /huge.json]";
    let said = says(&server, "digger", vec![search("needle")]).await;
    let found = "grep: /huge.json:\n  1: needle\n/small.txt:\n  1: a needle";
    assert_eq!(said[2], format!("{found}\n{note}"));
    let said = says(&server, "digger", vec![search("thread")]).await;
    assert_eq!(said[2], format!("grep: No matches found for 'thread'.\n{note}"));
}

async fn a_byte_order_mark_counts_as_a_character_of_its_line(server: TestServer) {
    set_up(&server).await;
    let line = format!("\u{feff}{}needle{}", "é".repeat(5_000), "z".repeat(2_000));
    fs::write(server.path_of("work/marked.txt"), line).expect("a file");
    let search = json!({"pattern": "needle", "glob": "marked.txt", "output_mode": "content"});
    let rest = json!({"file_path": "/marked.txt", "char_offset": 4_751});
    let calls = vec![find("g1", "grep", search), find("r1", "read_file", rest)];
    let said = says(&server, "digger", calls).await;
    let part = format!("{}needle", "é".repeat(250));
    let found = format!("grep: /marked.txt:\n  1: [from char_offset 4751] {part}z");
    assert!(said[2].starts_with(&found), "{}", said[2]);
    assert!(said[4].contains(&format!(" @@\n{part}z")), "{}", said[4]);
}

async fn long_results_of_an_agent_on_the_disk_stay_with_the_thread(server: TestServer) {
    set_up(&server).await;
    let alice = server.human("digger").await;
    let long = "long ".repeat(100);
    let asked = script()
        .calls(lookup("c1", &long))
        .calls(read("c2", "/large_tool_results/c1"))
        .calls(find("c3", "ls", json!({"path": "/"})))
        .says("done");
    let said = transcript(&alice.says(asked).await);
    assert!(said[2].contains("/large_tool_results/c1"), "{}", said[2]);
    assert!(said[4].contains("long long"), "{}", said[4]);
    assert!(said[6].contains("'/large_tool_results/'"), "{}", said[6]);
    assert!(!server.path_of("work/large_tool_results").exists());
    let files = alice.state().await["values"]["files"].clone();
    assert!(files.get("/large_tool_results/c1").is_some(), "{files:#}");
}

async fn subagents_work_in_the_workspace_of_their_parent_unless_they_have_their_own(server: TestServer) {
    set_up(&server).await;
    let alice = server.human("digger").await;
    let work = |path: &str| {
        script()
            .calls(write("w1", path, "below"))
            .calls(read("r1", "/secret/key.txt"))
            .turn(report())
    };
    let asked = script()
        .calls(task("t1", "helper", work("/helper.txt")))
        .calls(task("t2", "drafter", work("/drafter.txt")))
        .says("done");
    let said = transcript(&alice.says(asked).await);
    assert!(said[2].contains("you may not read '/secret/key.txt'"), "{}", said[2]);
    assert_eq!(
        fs::read_to_string(server.path_of("work/helper.txt")).expect("a file"),
        "below"
    );
    assert!(!server.path_of("work/drafter.txt").exists());
    let files = alice.state().await["values"]["files"].clone();
    assert_eq!(files["/drafter.txt"]["content"], "below");
    assert!(files.get("/helper.txt").is_none(), "{files:#}");
}

async fn of_two_threads_that_change_one_file_the_second_is_refused_and_can_read_again(server: TestServer) {
    set_up(&server).await;
    server.file_is_written("work/plan.md", "step one\n");
    let context = json!({"context": {"user_id": "al"}});
    let setup = server.human("archivist").await;
    let asked = script()
        .calls(write("w1", "/memories/plan.md", "step one\n"))
        .says("done");
    setup
        .starts(setup.run_body(asked, context.clone()))
        .await
        .finishes()
        .await;
    for (agent, path) in [("digger", "/plan.md"), ("archivist", "/memories/plan.md")] {
        server.tools.forget();
        server.tools.hold("lookup");
        let slow = server.human(agent).await;
        let asked = script()
            .calls(read("r1", path))
            .calls(lookup("h1", "x"))
            .calls(edit("e1", path, "one", "1"))
            .calls(write("w1", path, "all mine"))
            .calls(write("w2", &path.replace("plan", "fresh"), "blind"))
            .calls(call("d1", "delete", json!({"file_path": path})))
            .calls(read("r2", path))
            .calls(edit("e2", path, "two", "2"))
            .says("done");
        let run = slow.starts(slow.run_body(asked, context.clone())).await;
        server.tools.called("lookup", 1).await;
        let quick = server.human(agent).await;
        let asked = script()
            .calls(edit("e1", path, "one", "one, two"))
            .calls(write("w1", &path.replace("plan", "fresh"), "first"))
            .says("done");
        quick
            .starts(quick.run_body(asked, context.clone()))
            .await
            .finishes()
            .await;
        server.tools.let_go("lookup");
        run.finishes().await;
        let said = slow.transcript().await;
        for refused in [&said[6], &said[8], &said[10], &said[12]] {
            assert!(
                refused.contains("has been changed by someone else in the meantime"),
                "{said:#?}"
            );
        }
        assert!(said[14].contains("step one, two"), "{said:#?}");
        assert!(said[16].contains("Replaced 1 occurrence"), "{said:#?}");
    }
    assert_eq!(
        fs::read_to_string(server.path_of("work/plan.md")).expect("a file"),
        "step one, 2\n"
    );
    assert_eq!(
        fs::read_to_string(server.path_of("work/fresh.md")).expect("a file"),
        "first"
    );
}

async fn each_user_has_a_directory_where_the_namespace_says_so(server: TestServer) {
    set_up(&server).await;
    let keys = server.is_protected().await;
    let mut seen = vec![];
    for (name, asked) in [
        ("ann", script().calls(write("w1", "/a.md", "of ann"))),
        ("bob", script().calls(read("r1", "/a.md"))),
        ("bob", script().calls(read("r1", "/../ann/a.md"))),
    ] {
        let human = crate::support::Human::on_new_thread(keys.client(name), "private").await;
        // A context is the client's own word, so it chooses no directory.
        let context = json!({"context": {"user_id": "ann", "tenant": "acme"}});
        human
            .starts(human.run_body(asked.says("done"), context))
            .await
            .finishes()
            .await;
        seen.push(human.transcript().await[2].clone());
    }
    assert!(
        seen[1].contains("not found") && seen[2].contains("must not contain .."),
        "{seen:?}"
    );
    assert_eq!(
        fs::read_to_string(server.path_of("private/acme/ann/a.md")).expect("a file"),
        "of ann"
    );
    assert!(server.path_of("private/acme/bob").is_dir());
}

async fn an_edit_on_the_disk_is_not_repeated_after_a_kill(server: TestServer) {
    set_up(&server).await;
    server.moves_into_a_process().await;
    server.file_is_written("work/grow.txt", "a");
    server.tools.hold("lookup");
    let alice = server.human("digger").await;
    let calls = [
        edit("e1", "/grow.txt", "a", "aa"),
        write("w1", "/whole.txt", "whole"),
        lookup("h1", "x"),
    ];
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    server.tools.called("lookup", 1).await;
    crate::support::eventually(async || server.path_of("work/whole.txt").exists()).await;
    crate::support::eventually(async || {
        fs::read_to_string(server.path_of("work/grow.txt")).is_ok_and(|text| text == "aa")
    })
    .await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(
        fs::read_to_string(server.path_of("work/grow.txt")).expect("a file"),
        "aa"
    );
    assert_eq!(
        fs::read_to_string(server.path_of("work/whole.txt")).expect("a file"),
        "whole"
    );
    let left: Vec<_> = fs::read_dir(server.path_of("work"))
        .expect("a directory")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with(".adjutant-"))
        .collect();
    assert_eq!(left, [""; 0]);
}

async fn a_definition_of_a_client_has_no_workspace_on_the_disk(server: TestServer) {
    let client = server.client();
    for workspace in [
        json!({"kind": "disk", "root": "/"}),
        json!({"kind": "composite", "routes": {"/etc": {"kind": "disk", "root": "/etc"}}}),
        json!({"kind": "composite", "default": {"kind": "disk", "root": "/etc"}, "routes": {"/a": {}}}),
    ] {
        let refused = client
            .put("/agents/spy", json!({"model": "scripted:lab", "workspace": workspace}))
            .await;
        assert!(refused.refused(422).contains("one that comes over HTTP"));
        let below = json!({"model": "scripted:lab", "subagents": [{"name": "spy", "workspace": workspace,
            "description": "Reads the files of the server.", "system_prompt": "You spy."}]});
        let refused = client.put("/agents/spy", below).await;
        assert!(refused.refused(422).contains("one that comes over HTTP"));
    }
    let own = json!({"model": "scripted:lab", "workspace": {"kind": "store", "namespace": ["notes", "{user_id}"]}});
    client.put("/agents/scribe", own).await.ok();
}

/// Runs `adjutant check` with this configuration in a folder, and returns its output.
fn checked(folder: &std::path::Path, text: &str) -> String {
    fs::write(folder.join("adjutant.toml"), text).expect("it can be written");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_adjutant"))
        .arg("check")
        .current_dir(folder)
        .output()
        .expect("it can be called");
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8(said).expect("text")
}

#[test]
fn a_check_shows_the_workspaces_and_refuses_those_that_cannot_be() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("work")).expect("a folder");
    fs::write(folder.path().join("file"), "").expect("a file");
    let agent = "[providers.scripted]\nkind = \"scripted\"\n[agents.a]\nmodel = \"scripted:x\"\n";
    let with = |workspace: &str| checked(folder.path(), &format!("{agent}workspace = {workspace}\n"));
    let said = with(
        r#"{ kind = "composite", default = { kind = "disk", root = "work" }, routes = { "/m" = { kind = "store", namespace = ["m"] } } }"#,
    );
    let root = folder.path().join("work").canonicalize().expect("a path");
    let expected = format!("  workspace: composite (disk {}; /m: store m)", root.display());
    assert!(said.contains(&expected) && said.contains("0 errors"), "{said}");
    for (workspace, expected) in [
        (r#"{ kind = "disk", root = "none" }"#, "create the directory first"),
        (r#"{ kind = "disk", root = "file" }"#, "must be a directory"),
        (r#"{ kind = "disk" }"#, "agents.a.workspace.root: must be given"),
        (r#"{ kind = "dis" }"#, "agents.a.workspace.kind"),
        (
            r#"{ kind = "store", namespace = ["m"], root = "x" }"#,
            "agents.a.workspace.root: does not go with",
        ),
    ] {
        let said = with(workspace);
        assert!(said.contains(expected), "{workspace}: {said}");
    }
}
