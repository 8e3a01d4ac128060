//! The file tools, over the state of the thread.

use serde_json::{Value, json};

use crate::support::script::Script;
use crate::support::{Human, TestServer, call, on_both_engines, script, task, transcript};

pub(super) fn write(id: &str, path: &str, content: &str) -> Value {
    call(id, "write_file", json!({"file_path": path, "content": content}))
}

/// Returns the files of the thread with their contents.
pub(super) async fn files(human: &Human) -> Value {
    let values = human.state().await["values"].clone();
    let files = values["files"].as_object().cloned().unwrap_or_default();
    files
        .into_iter()
        .map(|(path, file)| (path, file["content"].clone()))
        .collect()
}

/// Executes the calls one after the other and returns their results.
async fn results(human: &Human, calls: impl IntoIterator<Item = Value>) -> Vec<String> {
    let is_new = human.record().await["values"].is_null();
    let before = if is_new { 0 } else { human.transcript().await.len() };
    human
        .says(calls.into_iter().fold(script(), Script::calls).says("done"))
        .await;
    let said = human.transcript().await;
    said[before..]
        .iter()
        .filter(|line| !line.starts_with("ai") && !line.starts_with("human"))
        .cloned()
        .collect()
}

on_both_engines! {
    files_are_written_read_changed_found_and_deleted,
    files_stay_from_turn_to_turn,
    files_can_be_given_with_the_input,
    errors_of_file_tools_name_the_correction,
    paths_outside_of_the_root_are_refused,
    a_second_change_to_a_file_in_one_answer_is_refused,
    a_result_too_long_for_a_conversation_becomes_a_file,
    long_results_of_calls_with_one_id_have_a_file_each,
    long_results_of_subagents_with_the_same_ids_have_a_file_each,
    a_long_line_is_read_to_its_end,
    the_report_of_a_subagent_can_be_too_long_as_well,
    an_agent_and_its_subagents_may_keep_longer_or_shorter_results,
}

async fn files_are_written_read_changed_found_and_deleted(server: TestServer) {
    let alice = server.human("plain").await;
    let said = results(
        &alice,
        [
            write("c1", "/notes/a.txt", "one\ntwo\nthree"),
            write("c2", "/notes/b.md", "two again"),
            call(
                "c3",
                "read_file",
                json!({"file_path": "/notes/a.txt", "offset": 1, "limit": 1}),
            ),
            call(
                "c4",
                "edit_file",
                json!({"file_path": "/notes/a.txt", "old_string": "one", "new_string": "1"}),
            ),
            call("c5", "ls", json!({"path": "/notes"})),
            call("c6", "glob", json!({"pattern": "*.md"})),
            call("c7", "grep", json!({"pattern": "two", "output_mode": "count"})),
            call("c8", "delete", json!({"file_path": "/notes/b.md"})),
        ],
    )
    .await;
    assert_eq!(said.len(), 8);
    assert_eq!(said[0], "write_file: Updated file /notes/a.txt");
    assert_eq!(said[2], "read_file: @@ lines 2-2 of 3 | next offset 2 @@\ntwo");
    assert_eq!(said[4], "ls: ['/notes/a.txt', '/notes/b.md']");
    assert_eq!(said[5], "glob: ['/notes/b.md']");
    assert!(said[6].contains("/notes/a.txt: 1"), "{}", said[6]);
    assert!(said[6].contains("/notes/b.md: 1"), "{}", said[6]);
    assert_eq!(said[7], "delete: Deleted /notes/b.md");
    assert_eq!(files(&alice).await, json!({"/notes/a.txt": "1\ntwo\nthree"}));
}

async fn files_stay_from_turn_to_turn(server: TestServer) {
    let alice = server.human("plain").await;
    results(&alice, [write("c1", "/a.txt", "one")]).await;
    let said = results(&alice, [call("c2", "read_file", json!({"file_path": "/a.txt"}))]).await;
    assert_eq!(said, ["read_file: @@ lines 1-1 of 1 @@\none"]);
}

async fn files_can_be_given_with_the_input(server: TestServer) {
    let alice = server.human("plain").await;
    let text = script()
        .calls(call("c1", "read_file", json!({"file_path": "/given.txt"})))
        .says("done");
    let mut body = alice.run_body(text, json!({}));
    body["input"]["files"] = json!({"/given.txt": {"content": "as given", "encoding": "utf-8"}});
    alice.starts(body).await.finishes().await;
    assert_eq!(alice.transcript().await[2], "read_file: @@ lines 1-1 of 1 @@\nas given");
}

async fn errors_of_file_tools_name_the_correction(server: TestServer) {
    let alice = server.human("plain").await;
    let edit = |id: &str, old: &str, all: bool| {
        call(
            id,
            "edit_file",
            json!({"file_path": "/a.txt", "old_string": old, "new_string": "x", "replace_all": all}),
        )
    };
    let said = results(
        &alice,
        [
            write("c1", "/a.txt", "same same"),
            edit("c2", "same", false),
            edit("c3", "other", false),
            call("c4", "read_file", json!({"file_path": "/nowhere.txt"})),
            call("c5", "read_file", json!({"file_path": "/a.txt", "offset": 7})),
            edit("c6", "same", true),
        ],
    )
    .await;
    assert!(said[1].starts_with("edit_file failed:"), "{}", said[1]);
    assert!(said[1].contains('2'), "{}", said[1]);
    assert!(said[2].starts_with("edit_file failed:"), "{}", said[2]);
    assert!(said[3].starts_with("read_file failed:"), "{}", said[3]);
    assert!(said[3].contains("/nowhere.txt"), "{}", said[3]);
    assert!(said[4].starts_with("read_file failed:"), "{}", said[4]);
    assert!(said[4].contains('1'), "{}", said[4]);
    assert!(said[5].starts_with("edit_file: "), "{}", said[5]);
    assert_eq!(files(&alice).await, json!({"/a.txt": "x x"}));
}

async fn paths_outside_of_the_root_are_refused(server: TestServer) {
    let alice = server.human("plain").await;
    let paths = ["/../etc/passwd", "~/secret", "C:\\secret", "/a/../../b"];
    let calls = paths
        .iter()
        .enumerate()
        .map(|(at, path)| write(&format!("c{at}"), path, "x"));
    let said = results(&alice, calls).await;
    assert!(
        said.iter().all(|line| line.starts_with("write_file failed:")),
        "{said:#?}"
    );
    assert_eq!(files(&alice).await, json!({}));
}

async fn a_second_change_to_a_file_in_one_answer_is_refused(server: TestServer) {
    let alice = server.human("plain").await;
    let calls = [
        write("c1", "/a.txt", "first"),
        write("c2", "a.txt", "second"),
        write("c3", "/b.txt", "other"),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "write_file: Updated file /a.txt");
    assert!(
        said[3].starts_with("write_file failed: Error: another call of the same message"),
        "{}",
        said[3]
    );
    assert_eq!(said[4], "write_file: Updated file /b.txt");
    assert_eq!(files(&alice).await, json!({"/a.txt": "first", "/b.txt": "other"}));
}

async fn a_result_too_long_for_a_conversation_becomes_a_file(server: TestServer) {
    let alice = server.human("plain").await;
    alice
        .says(
            script()
                .calls(call("b/1", "big", json!({"chars": 100_000})))
                .says("done"),
        )
        .await;
    let said = alice.transcript().await;
    assert!(said[2].len() < 10_000, "{} characters", said[2].len());
    assert!(said[2].contains("100000 characters"), "{}", said[2]);
    assert!(said[2].contains("/large_tool_results/b_1"), "{}", said[2]);
    let files = files(&alice).await;
    assert_eq!(files["/large_tool_results/b_1"].as_str().map(str::len), Some(100_000));
}

async fn long_results_of_calls_with_one_id_have_a_file_each(server: TestServer) {
    let alice = server.human("plain").await;
    for chars in [90_000, 100_000] {
        let call = call("c1", "big", json!({"chars": chars}));
        alice.says(script().calls(call).says("done")).await;
    }
    let said = alice.transcript().await;
    assert!(said[6].contains("/large_tool_results/c1-2"), "{:.300}", said[6]);
    let files = files(&alice).await;
    let length = |path: &str| files[path].as_str().map(str::len);
    assert_eq!(length("/large_tool_results/c1"), Some(90_000));
    assert_eq!(length("/large_tool_results/c1-2"), Some(100_000));
}

/// Returns the path that the notice about a long result names.
fn path_in(notice: &str) -> &str {
    let rest = notice.split_once("is in the file ").map(|(_, rest)| rest);
    match rest.and_then(|rest| rest.split_once(". Read it")) {
        Some((path, _)) => path,
        None => panic!("no path: {notice:.300}"),
    }
}

async fn long_results_of_subagents_with_the_same_ids_have_a_file_each(server: TestServer) {
    let agent = "[agents.brief]\nmodel = \"scripted:x\"\ntools = [\"big\"]\n";
    let subagent = "[[agents.brief.subagents]]\nname = \"looker\"\ndescription = \"Looks things up for you.\"\n";
    server.is_configured_with(&format!("{agent}{subagent}")).await;
    let alice = server.human("brief").await;
    let big = |chars: u32| call("call_0", "big", json!({"chars": chars}));
    let work = |chars: u32| script().calls(big(chars)).turn(json!({"echo_last_tool": true}));
    let calls = [
        task("t1", "looker", work(90_000)),
        task("t2", "looker", work(100_000)),
        big(110_000),
    ];
    alice.says(script().calls_all(calls).says("done")).await;
    let said = alice.transcript().await;
    let files = files(&alice).await;
    for (notice, length) in said[2..5].iter().zip([90_000, 100_000, 110_000]) {
        let path = path_in(notice);
        assert_eq!(files[path].as_str().map(str::len), Some(length), "{path}");
    }
    assert_eq!(files.as_object().map(serde_json::Map::len), Some(3));
    assert_eq!(path_in(&said[4]), "/large_tool_results/call_0");
    // Files that the subagents have named are there for their caller.
    let read = json!({"file_path": path_in(&said[3]), "char_offset": 99_990});
    let read = results(&alice, [call("r1", "read_file", read)]).await;
    assert!(
        read[0].ends_with(" of 100000 in line 1 @@\nxxxxxxxxxx"),
        "{:.300}",
        read[0]
    );
}

async fn a_long_line_is_read_to_its_end(server: TestServer) {
    let alice = server.human("plain").await;
    let read = |id: &str, args: Value| {
        let mut args = args;
        args["file_path"] = json!("/large_tool_results/c1");
        call(id, "read_file", args)
    };
    let said = results(
        &alice,
        [
            call("c1", "big", json!({"chars": 170_000})),
            read("c2", json!({})),
            read("c3", json!({"char_offset": 80_000, "limit": 1})),
            read("c4", json!({"char_offset": 160_000})),
            read("c5", json!({"char_offset": 170_000})),
            read("c6", json!({"offset": 1})),
        ],
    )
    .await;
    let headers = [
        "read_file: @@ lines 1-1 of 1 | characters 1-80000 of 170000 in line 1 | next char_offset 80000 with offset 0 @@",
        "read_file: @@ lines 1-1 of 1 | characters 80001-160000 of 170000 in line 1 | next char_offset 160000 with offset 0 @@",
        "read_file: @@ lines 1-1 of 1 | characters 160001-170000 of 170000 in line 1 @@",
    ];
    for (said, header) in said[1..4].iter().zip(headers) {
        assert_eq!(said.lines().next(), Some(header));
    }
    let read = said[1..4].iter().filter_map(|said| said.split_once('\n'));
    assert_eq!(read.map(|(_, text)| text.len()).sum::<usize>(), 170_000);
    assert!(said[4].starts_with("read_file failed:"), "{}", said[4]);
    assert!(said[4].contains("which has 170000 characters"), "{}", said[4]);
    assert!(said[5].starts_with("read_file failed:"), "{}", said[5]);
    assert!(said[5].contains("which has 1 lines"), "{}", said[5]);
}

async fn an_agent_and_its_subagents_may_keep_longer_or_shorter_results(server: TestServer) {
    let subagent = |name: &str, more: &str| {
        format!("[[agents.brief.subagents]]\nname = \"{name}\"\ndescription = \"Looks things up for you.\"\n{more}\n")
    };
    let agent = "[agents.brief]\nmodel = \"scripted:x\"\ntools = [\"big\"]\ntool_token_limit_before_evict = 100\n";
    let patient = subagent("patient", "tool_token_limit_before_evict = 30000");
    server
        .is_configured_with(&format!("{agent}{}{patient}", subagent("short", "")))
        .await;
    let alice = server.human("brief").await;
    let work = |id: &str, chars: u32| {
        script()
            .calls(call(id, "big", json!({"chars": chars})))
            .turn(json!({"echo_last_tool": true}))
    };
    let said = transcript(
        &alice
            .says(
                script()
                    .calls(call("b1", "big", json!({"chars": 400})))
                    .calls(call("b2", "big", json!({"chars": 401})))
                    .calls(task("t1", "short", work("b3", 401)))
                    .calls(task("t2", "patient", work("b4", 100_000)))
                    .says("done"),
            )
            .await,
    );
    assert!(!said[2].contains("/large_tool_results"), "{}", said[2]);
    let files = files(&alice).await;
    let lengths: Vec<(&str, Option<usize>)> = ["b1", "b2", "b3", "b4"]
        .map(|id| {
            let file = &files[format!("/large_tool_results/{id}")];
            (id, file.as_str().map(str::len))
        })
        .to_vec();
    assert_eq!(
        lengths,
        [("b1", None), ("b2", Some(401)), ("b3", Some(401)), ("b4", None)]
    );
}

async fn the_report_of_a_subagent_can_be_too_long_as_well(server: TestServer) {
    let alice = server.human("agent").await;
    let long = "y".repeat(90_000);
    alice
        .says(
            script()
                .calls(task("t1", "researcher", script().says(&long)))
                .says("done"),
        )
        .await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("task: "), "{:.300}", said[2]);
    assert!(said[2].contains("/large_tool_results/t1"), "{:.300}", said[2]);
    assert_eq!(
        files(&alice).await["/large_tool_results/t1"].as_str().map(str::len),
        Some(90_000)
    );
}
