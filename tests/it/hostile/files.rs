//! Bounds of files and states.

use serde_json::{Value, json};

use crate::support::{TestServer, call, on_both_engines, script, transcript};

on_both_engines! {
    a_file_does_not_grow_beyond_its_bound_by_edits,
    an_oversized_file_is_refused_and_an_oversized_result_has_several,
    results_beyond_the_bound_of_a_state_are_error_results,
    the_bounds_of_files_and_states_are_settings,
    endless_paths_and_patterns_are_refused_in_few_words,
}

async fn a_file_does_not_grow_beyond_its_bound_by_edits(server: TestServer) {
    server.moves_into_a_process().await;
    let before = server.peak_memory().await;
    let alice = server.human("plain").await;
    let grow = |id: &str| {
        call(
            id,
            "edit_file",
            json!({"file_path": "/a", "old_string": "a", "new_string": "a".repeat(30),
                "replace_all": true}),
        )
    };
    let write = call(
        "c0",
        "write_file",
        json!({"file_path": "/a", "content": "a".repeat(1000)}),
    );
    let plan = script()
        .calls(write)
        .calls(grow("c1"))
        .calls(grow("c2"))
        .calls(grow("c3"))
        .calls(grow("c4"));
    let said = transcript(&alice.says(plan.says("done")).await);
    assert!(
        said[6].starts_with("edit_file: Replaced 30000 occurrences"),
        "{}",
        said[6]
    );
    for at in [8, 10] {
        assert!(said[at].contains("would become 27000000 bytes long"), "{}", said[at]);
    }
    assert_eq!(said[11], "ai: done");
    let file = alice.state().await["values"]["files"]["/a"]["content"]
        .as_str()
        .map(str::len);
    assert_eq!(file, Some(900_000));
    let grown = server.peak_memory().await - before;
    assert!(grown < 256, "it grew by {grown} MiB");
}

async fn an_oversized_file_is_refused_and_an_oversized_result_has_several(server: TestServer) {
    server.configuration_changes("max_body_bytes = 2097152", "max_body_bytes = 16777216");
    server.is_stopped_and_started_again().await;
    let large = "x".repeat(4 * 1024 * 1024 + 1);
    let files = json!({"/large.txt": {"content": large}});
    let client = server.client();
    let run = json!({"assistant_id": "plain", "input": {"messages": [], "files": files}});
    let refusal = client.post("/runs/wait", run).await.refused(422);
    assert!(refusal.contains("/large.txt"), "{refusal}");
    assert!(refusal.contains("4194304"), "{refusal}");
    let thread = client.thread().await;
    let written = client
        .post(&format!("/threads/{thread}/state"), json!({"values": {"files": files}}))
        .await;
    assert!(written.refused(422).contains("/large.txt"));
    // A result so long becomes files, of which each has to be within the bound.
    let alice = server.human("plain").await;
    let plan = script()
        .calls(call("c1", "big", json!({"chars": 5_000_000})))
        .says("done");
    let said = transcript(&alice.says(plan).await);
    let paths = ["/large_tool_results/c1", "/large_tool_results/c1.part2"];
    assert!(said[2].contains(&paths.join(", ")), "{:.300}", said[2]);
    assert_eq!(said[3], "ai: done");
    let files = alice.state().await["values"]["files"].clone();
    let lengths = paths.map(|path| files[path]["content"].as_str().map(str::len));
    assert_eq!(lengths, [Some(4_194_304), Some(5_000_000 - 4_194_304)]);
}

async fn results_beyond_the_bound_of_a_state_are_error_results(server: TestServer) {
    // A debug build on a slow machine takes minutes for as much as the bound is by default.
    let bound = "[runtime]\nmax_state_bytes = 3355443\n";
    server.is_reconfigured("[runtime]\n", bound).await;
    let alice = server.human("plain").await;
    let big = (0..10).map(|at| call(&format!("c{at}"), "big", json!({"chars": 390_000})));
    let said = transcript(&alice.says(script().calls_all(big).says("done")).await);
    let refused = said.iter().filter(|line| line.contains("was not taken")).count();
    assert_eq!(
        refused,
        2,
        "{:#?}",
        said.iter()
            .map(|line| line.chars().take(200).collect::<String>())
            .collect::<Vec<_>>()
    );
    assert_eq!(said.last().map(String::as_str), Some("ai: done"));
    let more = script()
        .calls(call("d1", "big", json!({"chars": 390_000})))
        .says("full");
    let said = transcript(&alice.says(more).await);
    assert!(said.iter().any(|line| line.contains("3355443")), "it has room");
    assert_eq!(said.last().map(String::as_str), Some("ai: full"));
    let files = alice.state().await["values"]["files"]
        .as_object()
        .map(serde_json::Map::len);
    assert_eq!(files, Some(8));
    let _: Value = alice.record().await;
}

async fn the_bounds_of_files_and_states_are_settings(server: TestServer) {
    server.configuration_changes(
        "[runtime]\n",
        "[runtime]\nmax_file_bytes = 1000\nmax_state_bytes = 20000\n",
    );
    server.is_stopped_and_started_again().await;
    let client = server.client();
    let alice = server.human("plain").await;
    let write = |id: &str, length: usize| {
        call(
            id,
            "write_file",
            json!({"file_path": format!("/{id}"), "content": "a".repeat(length)}),
        )
    };
    let plan = script().calls(write("c1", 1001)).calls(write("c2", 1000));
    let said = transcript(
        &alice
            .says(plan.calls(call("c3", "big", json!({"chars": 30_000}))).says("done"))
            .await,
    );
    assert!(
        said[2].contains("would become 1001 bytes long; at most 1000 are allowed"),
        "{}",
        said[2]
    );
    assert!(said[4].contains("Updated file"), "{}", said[4]);
    assert!(said[6].contains("was not taken"), "{}", said[6]);
    assert!(said[6].contains("20000 bytes"), "{}", said[6]);
    assert_eq!(said[7], "ai: done");
    let files = json!({"/f": {"content": "x".repeat(1001)}});
    let run = json!({"assistant_id": "plain", "input": {"messages": [], "files": files}});
    let refusal = client.post("/runs/wait", run).await.refused(422);
    assert!(refusal.contains("/f"), "{refusal}");
    assert!(refusal.contains("at most 1000"), "{refusal}");
    let write = json!({"values": {"files": files}});
    assert!(
        client
            .post(&alice.path("/state"), write)
            .await
            .refused(422)
            .contains("at most 1000")
    );
    let write = json!({"values": {"messages": [{"role": "user", "content": "x".repeat(20_000)}]}});
    assert!(
        client
            .post(&alice.path("/state"), write)
            .await
            .refused(422)
            .contains("larger than 20000 bytes")
    );
}

async fn endless_paths_and_patterns_are_refused_in_few_words(server: TestServer) {
    let alice = server.human("plain").await;
    let endless = "a/".repeat(5_000);
    let calls = [
        call("c1", "write_file", json!({"file_path": endless, "content": "x"})),
        call("c2", "glob", json!({"pattern": endless})),
        call(
            "c3",
            "glob",
            json!({"pattern": format!("{}{}", "{a,b}".repeat(8), "/a".repeat(400))}),
        ),
        call("c4", "grep", json!({"pattern": endless})),
    ];
    let said = transcript(&alice.says(script().calls_all(calls).says("done")).await);
    for (line, reason) in said[2..6].iter().zip([
        "is not allowed: it is longer than 4096 bytes",
        "cannot be used: it is longer than 1000 bytes",
        "cannot be used: its alternatives have too many parts",
        "No matches found",
    ]) {
        assert!(line.contains(reason) && line.len() < 2_000, "{reason}: {line}");
    }
    let files = json!({endless: {"content": "x", "encoding": "utf-8"}});
    let input = json!({"messages": [], "files": files});
    let refused = alice
        .client()
        .post(&alice.path("/runs"), json!({"assistant_id": "plain", "input": input}))
        .await
        .refused(422);
    assert!(
        refused.contains("is longer than 4096 bytes") && refused.len() < 2_000,
        "{refused}"
    );
}
