//! The state that an agent and its subagents share, and the state that they do not.

use serde_json::{Value, json};

use super::delegated_interrupts::both;
use super::files::{files, write};
use crate::support::script::Script;
use crate::support::{Human, TestServer, call, mail, on_both_engines, script, task};

fn read(id: &str, path: &str) -> Value {
    call(id, "read_file", json!({"file_path": path}))
}

fn note(id: &str, update: Value) -> Value {
    call(id, "note", json!({"update": update}))
}

/// Adds an echo of the last result as the subagent's answer.
fn report() -> Value {
    json!({"echo_last_tool": true})
}

on_both_engines! {
    files_go_down_to_subagents_and_their_files_come_up,
    a_file_that_a_subagent_deletes_is_gone_for_its_parent,
    of_two_subagents_that_change_one_file_at_the_same_time_the_second_is_refused,
    a_file_that_was_changed_before_an_interrupt_of_the_same_step_is_not_overwritten,
    a_file_that_a_waiting_subagent_has_changed_is_not_overwritten,
    a_file_that_was_changed_below_a_waiting_subagent_is_not_overwritten,
    a_subagent_changes_only_the_fields_that_it_writes,
    a_subagent_does_not_overwrite_newer_values,
    messages_of_a_subagent_stay_in_the_subagent,
    each_delegation_starts_without_earlier_messages,
    each_agent_has_its_own_todos,
    private_fields_never_appear,
}

async fn files_go_down_to_subagents_and_their_files_come_up(server: TestServer) {
    let alice = server.human("agent").await;
    let work = script()
        .calls_all([read("r1", "/in.txt"), write("w2", "/out.txt", "below")])
        .says("written");
    let text = script()
        .calls(write("w1", "/in.txt", "above"))
        .calls(task("t1", "researcher", work))
        .says("done");
    alice.says(text).await;
    assert_eq!(files(&alice).await, json!({"/in.txt": "above", "/out.txt": "below"}));
}

async fn a_file_that_a_subagent_deletes_is_gone_for_its_parent(server: TestServer) {
    let alice = server.human("agent").await;
    let work = script()
        .calls(call("d1", "delete", json!({"file_path": "/b.txt"})))
        .says("deleted");
    let text = script()
        .calls_all([write("w1", "/a.txt", "a"), write("w2", "/b.txt", "b")])
        .calls(task("t1", "researcher", work))
        .says("done");
    alice.says(text).await;
    assert_eq!(files(&alice).await, json!({"/a.txt": "a"}));
}

async fn of_two_subagents_that_change_one_file_at_the_same_time_the_second_is_refused(server: TestServer) {
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    let late = script()
        .calls(crate::support::lookup("c1", "x"))
        .calls(write("w1", "/f.txt", "late"))
        .turn(report());
    let early = script()
        .calls(write("w2", "/f.txt", "early"))
        .calls(crate::support::lookup("c2", "y"))
        .says("2");
    let run = alice
        .asks(
            script()
                .calls_all([task("t1", "researcher", late), task("t2", "researcher", early)])
                .says("done"),
        )
        .await;
    server.tools.called("lookup", 2).await;
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(files(&alice).await, json!({"/f.txt": "early"}));
    let said = alice.transcript().await;
    assert!(
        said[2].contains("`researcher` changes '/f.txt' at the same time"),
        "{}",
        said[2]
    );
    // A file that the first has handed in can be read and changed by the next.
    let edit = call(
        "e1",
        "edit_file",
        json!({"file_path": "/f.txt", "old_string": "early", "new_string": "both"}),
    );
    let next = script().calls(read("r1", "/f.txt")).calls(edit).says("3");
    alice
        .says(script().calls(task("t3", "researcher", next)).says("done"))
        .await;
    assert_eq!(files(&alice).await, json!({"/f.txt": "both"}));
}

async fn a_file_that_was_changed_before_an_interrupt_of_the_same_step_is_not_overwritten(server: TestServer) {
    let alice = server.human("agent").await;
    let late = script()
        .calls(mail("m1", "bob"))
        .calls(write("w2", "/f.txt", "late"))
        .turn(report());
    let text = script()
        .calls_all([write("w1", "/f.txt", "early"), task("t1", "mailer", late)])
        .says("done");
    alice.says(text).await;
    let question = alice.question().await;
    server.is_stopped_and_started_again().await;
    alice.approves(&question).await.finishes().await;
    assert_eq!(files(&alice).await, json!({"/f.txt": "early"}));
    let said = alice.transcript().await;
    assert!(
        said[3].contains("`main-agent` changes '/f.txt' at the same time"),
        "{}",
        said[3]
    );
}

/// Lets two agents wait, each for a question of its own. Answers the question of the second one first, which then writes
/// `/f.txt`. Expects that this is refused, since an agent with this name has changed the file.
async fn second_is_refused(alice: &Human, calls: [Value; 2], name: &str, expected: Value) {
    let text = script()
        .calls(write("w0", "/f.txt", "old"))
        .calls_all(calls)
        .says("done");
    alice.says(text).await;
    let [first, second] = both(alice).await;
    alice.approves(&second).await.finishes().await;
    alice.approves(&first).await.finishes().await;
    let said = alice.transcript().await;
    assert!(
        said[5].contains(&format!("`{name}` changes '/f.txt' at the same time")),
        "{said:?}"
    );
    assert_eq!(said[6], "ai: done");
    assert_eq!(files(alice).await, expected);
}

/// Asks first, and then writes `/f.txt`.
fn writes_late() -> Script {
    script()
        .calls(mail("m2", "bob"))
        .calls(write("w2", "/f.txt", "late"))
        .turn(report())
}

async fn a_file_that_a_waiting_subagent_has_changed_is_not_overwritten(server: TestServer) {
    let early = write("w1", "/f.txt", "early");
    let gone = call("d1", "delete", json!({"file_path": "/f.txt"}));
    let cases = [
        (
            script().calls(early).calls(mail("m1", "ann")),
            json!({"/f.txt": "early"}),
        ),
        (script().calls(gone).calls(mail("m1", "ann")), json!({})),
    ];
    for (work, expected) in cases {
        let alice = server.human("agent").await;
        let calls = [
            task("t1", "mailer", work.says("1")),
            task("t2", "mailer", writes_late()),
        ];
        second_is_refused(&alice, calls, "mailer", expected).await;
    }
}

async fn a_file_that_was_changed_below_a_waiting_subagent_is_not_overwritten(server: TestServer) {
    let early = || write("w1", "/f.txt", "early");
    let asks = script().calls(mail("m1", "ann")).says("1");
    let writes_and_asks = script().calls(early()).calls(mail("m1", "ann")).says("1");
    for work in [
        script().calls(task("t0", "researcher", writes_and_asks)),
        // The call is answered, and its step is not over.
        script().calls_all([early(), task("t0", "researcher", asks)]),
    ] {
        let alice = server.human("deep").await;
        let calls = [
            task("t1", "researcher", work.says("1")),
            task("t2", "researcher", writes_late()),
        ];
        second_is_refused(&alice, calls, "researcher", json!({"/f.txt": "early"})).await;
    }
}

async fn a_subagent_changes_only_the_fields_that_it_writes(server: TestServer) {
    let alice = server.human("agent").await;
    let work = script().calls(note("n2", json!({"topic": "birds"}))).says("set");
    let text = script()
        .calls(note("n1", json!({"topic": "fish", "place": "lake"})))
        .calls(task("t1", "researcher", work))
        .says("done");
    alice.says(text).await;
    let values = alice.state().await["values"].clone();
    assert_eq!(&values["topic"], &json!("birds"));
    assert_eq!(&values["place"], &json!("lake"));
}

async fn a_subagent_does_not_overwrite_newer_values(server: TestServer) {
    let alice = server.human("agent").await;
    let sets = script().calls(note("n1", json!({"topic": "birds"}))).says("set");
    let looks = script().calls(crate::support::lookup("c1", "x")).says("looked");
    let text = script()
        .calls(note("n0", json!({"topic": "fish"})))
        .calls_all([task("t1", "researcher", sets), task("t2", "researcher", looks)])
        .says("done");
    alice.says(text).await;
    assert_eq!(alice.state().await["values"]["topic"], "birds");
}

async fn messages_of_a_subagent_stay_in_the_subagent(server: TestServer) {
    let alice = server.human("agent").await;
    let work = script()
        .turn(json!({"text": "thinking aloud", "tool_calls": [read("r1", "/no.txt")]}))
        .says("report");
    alice
        .says(script().calls(task("t1", "researcher", work)).says("done"))
        .await;
    assert_eq!(
        alice.transcript().await,
        ["human: …", "ai calls task", "task: report", "ai: done"]
    );
    assert!(
        !alice.state().await["values"]["messages"][2]
            .to_string()
            .contains("thinking aloud")
    );
}

async fn each_delegation_starts_without_earlier_messages(server: TestServer) {
    let alice = server.human("agent").await;
    let work = script().turn(json!({"echo_messages": true}));
    let text = script()
        .calls(task("t1", "researcher", &work))
        .calls(task("t2", "researcher", &work))
        .says("done");
    alice.says(text).await;
    let said = alice.transcript().await;
    assert_eq!(said[2].as_str(), "task: ROLES<<user>>");
    assert_eq!(said[4].as_str(), "task: ROLES<<user>>");
}

async fn each_agent_has_its_own_todos(server: TestServer) {
    let alice = server.human("planner").await;
    let todos = |id: &str, what: &str| {
        call(
            id,
            "write_todos",
            json!({"todos": [{"content": what, "status": "pending"}]}),
        )
    };
    let work = script().calls(todos("d2", "mine")).turn(report());
    let text = script()
        .calls(todos("d1", "ours"))
        .calls(task("t1", "helper", work))
        .says("done");
    alice.says(text).await;
    assert_eq!(
        alice.state().await["values"]["todos"],
        json!([{"content": "ours", "status": "pending"}])
    );
    assert!(alice.transcript().await[4].contains("mine"));
}

async fn private_fields_never_appear(server: TestServer) {
    let alice = server.human("agent").await;
    alice
        .says(script().calls(note("n1", json!({"_secret": 1}))).says("done"))
        .await;
    let said = alice.transcript().await;
    assert!(said[2].starts_with("note failed:"), "{said:?}");
    assert_eq!(alice.state().await["values"].get("_secret"), None);
}
