//! Memory files, whose text is part of the system prompt.

use serde_json::{Value, json};

use crate::support::actors::transcript;
use crate::support::{TestServer, call, eventually, on_both_engines, script, task};

fn input(text: impl ToString, files: Value) -> Value {
    json!({"input": {"messages": [{"role": "user", "content": text.to_string()}], "files": files}})
}

fn tells_its_instructions() -> String {
    script().turn(json!({"echo_system": true})).to_string()
}

on_both_engines! {
    memory_files_are_part_of_the_prompt_without_their_comments,
    an_edited_memory_file_is_read_by_the_next_thread,
    a_subagent_has_a_memory_only_if_it_names_one,
    files_of_memory_beside_a_definition_are_kept_with_it,
}

async fn memory_files_are_part_of_the_prompt_without_their_comments(server: TestServer) {
    let alice = server.human("skilled").await;
    let files = json!({"/AGENTS.md": {"content": "Likes tea.<!-- asked in May -->", "encoding": "utf-8"}});
    alice
        .starts(input(tells_its_instructions(), files))
        .await
        .finishes()
        .await;
    let said = alice.transcript().await;
    assert!(
        said[1].contains("<memory file=\"/AGENTS.md\">\nLikes tea.\n</memory>"),
        "{}",
        said[1]
    );
    assert!(said[1].contains("You keep up `/AGENTS.md`."), "{}", said[1]);
    assert_eq!(alice.state().await["values"].get("memory_contents"), None);

    let bob = server.human("skilled").await;
    bob.says(tells_its_instructions()).await;
    assert!(
        !bob.transcript().await[1].contains("<memory"),
        "a file that is missing is passed over"
    );
}

async fn an_edited_memory_file_is_read_by_the_next_thread(server: TestServer) {
    let alice = server.human("skilled").await;
    let files = json!({"/AGENTS.md": {"content": "Likes tea.", "encoding": "utf-8"}});
    let edit = call(
        "e1",
        "edit_file",
        json!({"file_path": "/AGENTS.md", "old_string": "tea", "new_string": "milk"}),
    );
    let asked = script().calls(edit).turn(json!({"echo_system": true}));
    let done = alice.starts(input(asked, files)).await.finishes().await;
    alice.says(tells_its_instructions()).await;
    let said = alice.transcript().await;
    assert!(said[3].contains("Likes tea."), "it is read once: {said:#?}");
    assert!(said[5].contains("Likes tea."), "it is read once: {said:#?}");
    let written = done["files"].clone();
    assert_eq!(written["/AGENTS.md"]["content"], "Likes milk.");
    let later = server.human("skilled").await;
    later
        .starts(input(tells_its_instructions(), written))
        .await
        .finishes()
        .await;
    assert!(later.transcript().await[1].contains("Likes milk."));
}

async fn a_subagent_has_a_memory_only_if_it_names_one(server: TestServer) {
    let alice = server.human("skilled").await;
    let files = json!({
        "/AGENTS.md": {"content": "Likes tea.", "encoding": "utf-8"},
        "/apprentice.md": {"content": "Spills milk.", "encoding": "utf-8"},
    });
    let calls = ["general-purpose", "apprentice", "layman"].map(|who| task(who, who, tells_its_instructions()));
    let done = alice
        .starts(input(
            script().calls_all(calls).turn(json!({"echo_system": true})),
            files,
        ))
        .await;
    let said = transcript(&done.finishes().await);
    for (at, knows_tea, knows_milk) in [(2, false, false), (3, false, true), (4, false, false), (5, true, false)] {
        assert_eq!(said[at].contains("Likes tea."), knows_tea, "{}", said[at]);
        assert_eq!(said[at].contains("Spills milk."), knows_milk, "{}", said[at]);
    }
}

async fn files_of_memory_beside_a_definition_are_kept_with_it(server: TestServer) {
    server.watches_its_files().await;
    let client = server.client();
    server.file_is_written("agents/diarist/NOTES.md", "It rained in May.");
    server.file_is_written(
        "agents/diarist/AGENTS.md",
        "---\nmodel: scripted:lab\nmemory: [NOTES.md]\n---\nYou write.",
    );
    eventually(async || client.get("/agents/diarist").await.status == 200).await;
    assert_eq!(client.get("/agents/diarist").await.ok()["problems"], json!([]));
    let alice = server.human("diarist").await;
    alice.says(tells_its_instructions()).await;
    let told = &alice.transcript().await[1];
    assert!(
        told.contains("<memory file=\"/.agent/NOTES.md\">\nIt rained in May."),
        "{told}"
    );
    assert!(!told.contains("edit_file"), "nobody writes there: {told}");
}
