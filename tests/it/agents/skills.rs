//! Skills: the prompt lists them, and agents read them on demand.

use serde_json::{Value, json};

use crate::support::actors::transcript;
use crate::support::{TestServer, call, eventually, mail, on_both_engines, script, task};

fn skill(name: &str, about: &str, body: &str) -> Value {
    json!({"content": format!("---\nname: {name}\ndescription: {about}\n---\n{body}"), "encoding": "utf-8"})
}

/// Returns files with three skills in two folders; one is in both.
fn files() -> Value {
    let mailing =
        "---\nname: mailing\ndescription: Write letters.\nmetadata:\n  include_tools: send_email\n---\nBe polite.";
    json!({
        "/skills/base/digging/SKILL.md": skill("digging", "Dig with a spade.", "Bend your knees."),
        "/skills/base/mailing/SKILL.md": {"content": mailing, "encoding": "utf-8"},
        "/skills/base/broken/SKILL.md": {"content": "---\nname: broken\n---\n", "encoding": "utf-8"},
        "/skills/team/digging/SKILL.md": skill("digging", "Dig with a machine.", "Mind the pipes."),
        "/skills/own/sowing/SKILL.md": skill("sowing", "Sow in rows.", "Not too deep."),
    })
}

/// Returns an input with the message `text` and these files.
fn input(text: impl ToString, files: Value) -> Value {
    json!({"input": {"messages": [{"role": "user", "content": text.to_string()}], "files": files}})
}

/// Returns a script whose only answer is the system prompt of its agent.
fn tells_its_instructions() -> String {
    script().turn(json!({"echo_system": true})).to_string()
}

fn read(id: &str, path: &str) -> Value {
    call(id, "read_file", json!({"file_path": path}))
}

on_both_engines! {
    the_prompt_lists_skills_and_the_agent_reads_them_on_demand,
    skills_are_listed_once_per_thread_until_they_are_removed,
    the_general_purpose_subagent_has_the_skills_of_its_parent,
    a_pinned_skill_is_in_the_first_model_call,
    a_tool_of_a_skill_is_offered_after_the_skill_was_read,
    a_tool_of_a_pinned_skill_is_offered_on_its_thread_only,
    an_agent_without_file_tools_can_only_read_its_skills,
    an_unreadable_skill_folder_is_reported_to_the_model,
    skills_beside_a_definition_cannot_be_changed,
    definitions_of_clients_do_not_read_the_disk_of_the_server,
}

async fn the_prompt_lists_skills_and_the_agent_reads_them_on_demand(server: TestServer) {
    let alice = server.human("skilled").await;
    let asked = script()
        .calls(read("r1", "/skills/team/digging/SKILL.md"))
        .turn(json!({"echo_system": true}));
    alice.starts(input(asked, files())).await.finishes().await;
    let said = alice.transcript().await;
    assert!(said[2].ends_with("Mind the pipes."), "{}", said[2]);
    let told = &said[3];
    assert!(
        told.contains("- digging: Dig with a machine.\n  Read `/skills/team/digging/SKILL.md`"),
        "{told}"
    );
    assert!(told.contains("- Team (`/skills/team`)"), "{told}");
    assert!(told.contains("- mailing: Write letters."), "{told}");
    for unseen in ["spade", "broken", "sowing", "Mind the pipes", "Be polite"] {
        assert!(!told.contains(unseen), "{unseen} in {told}");
    }
    let values = alice.state().await["values"].clone();
    for hidden in ["skills_metadata", "skills_load_errors", "_skills_origin"] {
        assert_eq!(values.get(hidden), None, "{hidden}");
    }
}

async fn skills_are_listed_once_per_thread_until_they_are_removed(server: TestServer) {
    let alice = server.human("skilled").await;
    alice
        .starts(input(tells_its_instructions(), files()))
        .await
        .finishes()
        .await;
    let more = json!({"/skills/team/reaping/SKILL.md": skill("reaping", "Reap in autumn.", "")});
    alice
        .starts(input(tells_its_instructions(), more))
        .await
        .finishes()
        .await;
    server.is_stopped_and_started_again().await;
    alice.says(tells_its_instructions()).await;
    let mut anew = input(tells_its_instructions(), json!({}));
    anew["input"]["skills_metadata"] = Value::Null;
    alice.starts(anew).await.finishes().await;
    let said = alice.transcript().await;
    let knows: Vec<bool> = [1, 3, 5, 7].map(|at| said[at].contains("reaping")).to_vec();
    assert_eq!(knows, [false, false, false, true]);
}

async fn the_general_purpose_subagent_has_the_skills_of_its_parent(server: TestServer) {
    let alice = server.human("skilled").await;
    let calls = ["general-purpose", "apprentice", "layman"].map(|who| task(who, who, tells_its_instructions()));
    let done = alice
        .starts(input(script().calls_all(calls).says("done"), files()))
        .await
        .finishes()
        .await;
    let said = transcript(&done);
    assert!(said[2].contains("Dig with a machine."), "{}", said[2]);
    assert!(!said[2].contains("sowing"), "{}", said[2]);
    assert!(said[3].contains("- sowing: Sow in rows."), "{}", said[3]);
    assert!(!said[3].contains("digging"), "{}", said[3]);
    assert!(!said[4].contains("## Skills"), "{}", said[4]);
    assert!(
        !said[3].contains("come from these folders"),
        "one folder needs no order: {}",
        said[3]
    );
}

async fn a_pinned_skill_is_in_the_first_model_call(server: TestServer) {
    let alice = server.human("skilled").await;
    let mut asked = input("Dig!", files());
    asked["input"]["pinned_skills"] = json!(["digging", "nobody"]);
    let run = alice.starts(asked).await;
    let values = run.finishes().await;
    let messages = values["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 3, "{values:#}");
    let pinned = &messages[1];
    assert_eq!(&pinned["type"], &json!("human"));
    assert_eq!(&pinned["additional_kwargs"]["lc_source"], &json!("pinned_skill"));
    let about =
        json!({"name": "digging", "path": "/skills/team/digging/SKILL.md", "description": "Dig with a machine."});
    assert_eq!(pinned["additional_kwargs"]["skill"], about);
    assert!(
        pinned["content"].as_str().unwrap().ends_with("\n\nMind the pipes."),
        "{pinned:#}"
    );
    assert_eq!(values.get("pinned_skills"), None);
    let again = alice.says("Again!").await;
    assert_eq!(again["messages"].as_array().unwrap().len(), 5, "it is pinned once");

    let mut wrong = input("Dig!", json!({}));
    wrong["input"]["pinned_skills"] = json!("digging");
    wrong["assistant_id"] = json!("skilled");
    let refusal = server.client().post(&alice.path("/runs"), wrong).await.refused(422);
    assert!(refusal.contains("pinned_skills"), "{refusal}");
    assert!(refusal.contains("a list of names"), "{refusal}");
}

async fn a_tool_of_a_skill_is_offered_after_the_skill_was_read(server: TestServer) {
    let alice = server.human("skilled").await;
    let tools = || json!({"echo_tools": true});
    let asked = script()
        .calls(mail("m1", "early@b.c"))
        .calls(read("r1", "/skills/base/mailing/SKILL.md"))
        .calls(mail("m2", "late@b.c"))
        .turn(tools());
    alice.starts(input(asked, files())).await.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[2].starts_with("send_email failed: Error: send_email is not a valid tool."),
        "{}",
        said[2]
    );
    assert!(!said[6].contains("failed"), "{said:#?}");
    assert!(said[7].contains("send_email"), "{said:#?}");
    let sent: Vec<Value> = server
        .tools
        .calls_of("send_email")
        .iter()
        .map(|call| call["args"]["to"].clone())
        .collect();
    assert_eq!(sent, [json!("late@b.c")]);

    // The call that discloses it is a part of this conversation, and of no other.
    let work = script().turn(tools());
    alice
        .says(script().calls(task("t1", "general-purpose", &work)).turn(tools()))
        .await;
    let said = alice.transcript().await;
    assert!(!said[10].contains("send_email"), "{}", said[10]);
    assert!(said[11].contains("send_email"), "{}", said[11]);
}

async fn a_tool_of_a_pinned_skill_is_offered_on_its_thread_only(server: TestServer) {
    let asked = || script().calls(mail("m1", "a@b.c")).turn(json!({"echo_tools": true}));
    let alice = server.human("skilled").await;
    let mut pinned = input("Here is how to do it.", files());
    pinned["input"]["pinned_skills"] = json!(["mailing"]);
    alice.starts(pinned).await.finishes().await;
    alice.says(asked()).await;
    let said = alice.transcript().await;
    assert!(said.last().unwrap().contains("send_email"), "{said:#?}");
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
    let bob = server.human("skilled").await;
    bob.starts(input(asked(), files())).await.finishes().await;
    assert!(!bob.transcript().await.last().unwrap().contains("send_email"));
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn an_agent_without_file_tools_can_only_read_its_skills(server: TestServer) {
    let alice = server.human("bookworm").await;
    let asked = script()
        .calls_all([
            read("r1", "/skills/base/digging/SKILL.md"),
            read("r2", "/skills/team/digging/SKILL.md"),
        ])
        .turn(json!({"echo_tools": true}));
    alice.starts(input(asked, files())).await.finishes().await;
    let said = alice.transcript().await;
    assert!(said[2].ends_with("Bend your knees."), "{}", said[2]);
    assert!(said[3].starts_with("read_file failed"), "{}", said[3]);
    assert!(said[3].contains("not found"), "{}", said[3]);
    assert_eq!(said[4], "ai: TOOLS<<read_file>>");
}

async fn an_unreadable_skill_folder_is_reported_to_the_model(server: TestServer) {
    let alice = server.human("skilled").await;
    let only = json!({"/skills/base/digging/SKILL.md": files()["/skills/base/digging/SKILL.md"]});
    alice
        .starts(input(tells_its_instructions(), only))
        .await
        .finishes()
        .await;
    let said = alice.transcript().await;
    assert!(said[1].contains("- digging: Dig with a spade."), "{}", said[1]);
    assert!(
        said[1].contains("- /skills/team: there is nothing in it"),
        "{}",
        said[1]
    );
}

async fn skills_beside_a_definition_cannot_be_changed(server: TestServer) {
    server.watches_its_files().await;
    let client = server.client();
    let place = "agents/gardener/skills/digging";
    server.file_is_written(&format!("{place}/notes/depth.txt"), "One foot.");
    server.file_is_written(
        &format!("{place}/SKILL.md"),
        "---\nname: digging\ndescription: Dig well.\n---\nBend.",
    );
    let sowing = "---\nname: sowing\ndescription: Sow well.\n---\nIn rows.";
    server.file_is_written("agents/gardener/subagents/sower/skills/sowing/SKILL.md", sowing);
    server.file_is_written(
        "agents/gardener/subagents/sower/AGENTS.md",
        "---\ndescription: Sows seeds in long rows.\n---\nYou sow.",
    );
    let settings = "---\nmodel: scripted:lab\ntools: [send_email]\ninterrupt_on: {send_email: true}\n---\nYou dig.";
    server.file_is_written("agents/gardener/AGENTS.md", settings);
    eventually(async || client.get("/agents/gardener").await.status == 200).await;
    let shown = client.get("/agents/gardener").await.ok();
    assert_eq!(shown["definition"]["skills"], json!(["skills"]));
    assert_eq!(
        shown["definition"]["subagents"][0]["skills"],
        json!(["subagents/sower/skills"])
    );
    assert_eq!(&shown["problems"], &json!([]));
    assert_eq!(shown["definition"].get("enclosed"), None);

    let alice = server.human("gardener").await;
    let own = "/.agent/skills/digging";
    let sower = script()
        .calls(read("r9", &format!("{own}/SKILL.md")))
        .turn(json!({"echo_system": true}));
    let asked = script()
        .calls_all([
            read("r1", &format!("{own}/SKILL.md")),
            read("r2", &format!("{own}/notes/depth.txt")),
            call(
                "w1",
                "write_file",
                json!({"file_path": format!("{own}/SKILL.md"), "content": "Lie."}),
            ),
            call("g1", "grep", json!({"pattern": "Bend"})),
            task("t1", "sower", sower),
        ])
        .calls(mail("m1", "a@b.c"))
        .calls(read("r3", &format!("{own}/SKILL.md")))
        .turn(json!({"echo_system": true}));
    alice.starts(input(asked, json!({}))).await.finishes().await;
    let said = alice.transcript().await;
    assert!(said[2].ends_with("Bend."), "{said:#?}");
    assert!(said[3].ends_with("One foot."), "{said:#?}");
    assert!(said[4].starts_with("write_file failed"), "{}", said[4]);
    assert!(said[4].contains("read-only"), "{}", said[4]);
    assert!(
        said[5].contains("No matches"),
        "a search of the thread's files does not go there: {}",
        said[5]
    );
    assert!(
        said[6].contains("- sowing: Sow well.\n  Read `/.agent/subagents/sower/skills/sowing/SKILL.md`"),
        "{}",
        said[6]
    );
    assert!(!said[6].contains("- digging"), "{}", said[6]);

    // The run keeps to what it began with, whatever becomes of the files.
    server.file_is_written(
        &format!("{place}/SKILL.md"),
        "---\nname: digging\ndescription: Dig fast.\n---\nRun.",
    );
    eventually(async || client.get("/agents/gardener").await.ok()["version"] == 2).await;
    server.is_stopped_and_started_again().await;
    alice.approves(&alice.question().await).await.finishes().await;
    let said = alice.transcript().await;
    assert!(said[10].ends_with("Bend."), "{}", said[10]);
    assert!(said[11].contains("Dig well."), "{}", said[11]);
    alice.says(tells_its_instructions()).await;
    assert!(
        alice.transcript().await[13].contains("Dig fast."),
        "the next run has what holds now"
    );
}

async fn definitions_of_clients_do_not_read_the_disk_of_the_server(server: TestServer) {
    let client = server.client();
    let body = json!({"model": "scripted:lab", "skills": ["skills", "../x", "/s"], "memory": ["adjutant.toml"]});
    let refused = client.put("/agents/post", body).await;
    assert_eq!(refused.status, 422);
    let told = refused.body.to_string();
    for part in [
        "skills[0]",
        "which begin with /",
        "skills[1]",
        "must not contain ..",
        "memory[0]",
    ] {
        assert!(told.contains(part), "{part} is missing in {told}");
    }
    let good = json!({"model": "scripted:lab", "skills": [{"path": "/skills/base", "label": "Base"}]});
    assert_eq!(client.put("/agents/post", good).await.ok()["problems"], json!([]));
    let alice = server.human("post").await;
    alice
        .starts(input(tells_its_instructions(), files()))
        .await
        .finishes()
        .await;
    assert!(alice.transcript().await[1].contains("- digging: Dig with a spade."));
}
