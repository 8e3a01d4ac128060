//! Conversations in a terminal: messages, approvals, cancellations.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::terminal::Terminal;
use crate::support::{TestServer, call, lookup, mail, on_both_engines, script, task, without_postgres};

on_both_engines! {
    a_conversation_delegates_and_asks_for_an_approval,
}

without_postgres! {
    an_edited_call_is_made_as_edited,
    a_call_can_be_edited_in_a_line,
    a_rejected_call_is_not_made,
    several_calls_are_asked_about_one_after_the_other,
    a_decision_for_the_rest_of_the_thread_is_listed_and_revoked,
    calls_are_asked_about_one_by_one,
    questions_to_the_user_are_asked_with_their_choices,
    a_question_put_off_is_asked_again,
    ctrl_c_cancels_the_run_and_the_conversation_goes_on,
    an_answer_of_another_client_is_noticed,
    commands_show_the_thread,
    an_agent_cannot_drive_the_terminal_of_a_conversation,
    a_paste_of_several_lines_is_one_message,
    a_free_question_is_asked_by_its_schema,
}

/// An agent with questions to the user, and one that asks about each call.
const AGENTS: &str = r#"
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

/// Opens a conversation with an agent, and waits until it can be typed into.
async fn chat(server: &TestServer, folder: &Path, agent: &str, variables: &[(&str, &str)]) -> Option<Terminal> {
    let base = server.client().base();
    let mut terminal = Terminal::open(folder, &base, &["chat", agent], variables)?;
    terminal.shows("/help lists the commands").await;
    terminal.shows("> ").await;
    Some(terminal)
}

/// Leaves a conversation, which has to succeed.
async fn leaves(mut terminal: Terminal) {
    // The prompt is there before the key: until then it belongs to the terminal.
    terminal.shows("> ").await;
    terminal.types("\u{4}");
    terminal.shows("go on with `adjutant chat --thread ").await;
    let text = terminal.text();
    assert_eq!(terminal.ends().await, 0, "{text}");
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

/// Returns the messages of the only thread.
async fn messages(server: &TestServer) -> Vec<Value> {
    let found = server.client().post("/threads/search", json!({})).await.ok();
    found[0]["values"]["messages"].as_array().expect("messages").clone()
}

async fn a_conversation_delegates_and_asks_for_an_approval(server: TestServer) {
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "agent", &[]).await else {
        return;
    };
    let work = script().calls(mail("m1", "bob")).says("mailed");
    let text = script().calls(task("t1", "mailer", work)).says("all done");
    terminal.types(&format!("{text}\r"));
    terminal.shows("main-agent │ → task mailer:").await;
    terminal
        .shows("main-agent / mailer asks: may it call send_email?")
        .await;
    terminal.shows("\"to\": \"bob\"").await;
    terminal.shows("[a]pprove  [e]dit  [r]eject").await;
    assert!(server.tools.calls_of("send_email").is_empty());
    terminal.types("a\r");
    terminal.shows("mailer │ mailed").await;
    terminal.shows("main-agent │ all done").await;
    terminal.shows("── completed after ").await;
    server.tools.called("send_email", 1).await;
    leaves(terminal).await;
}

async fn an_edited_call_is_made_as_edited(server: TestServer) {
    let folder = folder();
    let editor = [("EDITOR", "sed -i s/bob/eve/")];
    let Some(mut terminal) = chat(&server, folder.path(), "agent", &editor).await else {
        return;
    };
    terminal.types(&format!("{}\r", script().calls(mail("m1", "bob")).says("sent")));
    terminal.shows("[e]dit").await;
    terminal.types("e\r");
    terminal.shows("── completed after ").await;
    assert_eq!(server.tools.calls_of("send_email")[0]["args"]["to"], "eve");
    leaves(terminal).await;
}

async fn a_call_can_be_edited_in_a_line(server: TestServer) {
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "agent", &[]).await else {
        return;
    };
    terminal.types(&format!("{}\r", script().calls(mail("m1", "bob")).says("sent")));
    terminal.shows("[e]dit").await;
    terminal.types("e\r");
    terminal.shows("Call: ").await;
    // The line is emptied first.
    terminal.types("\u{15}no JSON\r");
    terminal.shows("this is not JSON").await;
    terminal.types("\r");
    terminal.shows("Call: ").await;
    terminal.types("\u{15}{\"to\": \"eve\", \"body\": \"bye\"}\r");
    terminal.shows("── completed after ").await;
    assert_eq!(
        server.tools.calls_of("send_email")[0]["args"],
        json!({"to": "eve", "body": "bye"})
    );
    leaves(terminal).await;
}

async fn a_rejected_call_is_not_made(server: TestServer) {
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "agent", &[]).await else {
        return;
    };
    terminal.types(&format!("{}\r", script().calls(mail("m1", "bob")).says("as you like")));
    terminal.shows("[r]eject").await;
    // This agent allows no response in the place of the call.
    terminal.types("s instead\r");
    terminal.shows("this call allows only: approve, edit, reject").await;
    terminal.types("r not today\r");
    terminal.shows("main-agent │ as you like").await;
    terminal.shows("── completed after ").await;
    assert!(server.tools.calls_of("send_email").is_empty());
    let result = messages(&server).await[2]["content"].to_string();
    assert!(result.contains("not today"), "{result}");
    leaves(terminal).await;
}

async fn several_calls_are_asked_about_one_after_the_other(server: TestServer) {
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "agent", &[]).await else {
        return;
    };
    let text = script().calls_all([mail("m1", "bob"), mail("m2", "eve")]).says("done");
    terminal.types(&format!("{text}\r"));
    terminal.shows("may it call send_email (1 of 2)?").await;
    terminal.shows("[a]pprove").await;
    terminal.types("reject\r");
    terminal.shows("Reason").await;
    terminal.types("\r");
    terminal.shows("may it call send_email (2 of 2)?").await;
    terminal.shows("[a]pprove").await;
    terminal.types("approve\r");
    terminal.shows("── completed after ").await;
    let calls = server.tools.calls_of("send_email");
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0]["args"]["to"], "eve");
    leaves(terminal).await;
}

async fn a_decision_for_the_rest_of_the_thread_is_listed_and_revoked(server: TestServer) {
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "agent", &[]).await else {
        return;
    };
    terminal.types("/decisions\r");
    terminal.shows("there is no thread yet").await;
    terminal.types(&format!("{}\r", script().calls(mail("m1", "bob")).says("first")));
    terminal.shows("al[w]ays approve  always [d]eny").await;
    terminal.types("w\r");
    terminal.shows("main-agent │ first").await;
    terminal.shows("── completed after ").await;
    terminal.types(&format!("{}\r", script().calls(mail("m2", "eve")).says("second")));
    terminal.shows("main-agent │ second").await;
    terminal.shows("── completed after ").await;
    assert_eq!(server.tools.calls_of("send_email").len(), 2);
    terminal.types("/decisions\r");
    terminal.shows("Decision   approve").await;
    terminal.shows("Tool       send_email").await;
    terminal.shows("Arguments  any").await;

    let found = server.client().post("/threads/search", json!({})).await.ok();
    let path = format!(
        "/threads/{}/approvals",
        found[0]["thread_id"].as_str().expect("a thread")
    );
    let all = server.client().get(&path).await.ok();
    let id = all["approvals"][0]["id"].as_str().expect("an id");
    terminal.types(&format!("/revoke {id}\r"));
    terminal.shows("is revoked").await;
    terminal.types("/decisions\r");
    terminal.shows("there are none").await;

    terminal.types(&format!("{}\r", script().calls(mail("m3", "kim")).says("third")));
    terminal.shows("always [d]eny").await;
    terminal.types("d no mails\r");
    terminal.shows("main-agent │ third").await;
    terminal.shows("── completed after ").await;
    assert_eq!(server.tools.calls_of("send_email").len(), 2);
    let all = server.client().get(&path).await.ok();
    let denied = &all["approvals"][0];
    assert_eq!(denied["decision"], "reject");
    assert_eq!(denied["message"], "no mails");
    leaves(terminal).await;
}

async fn calls_are_asked_about_one_by_one(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "single", &[]).await else {
        return;
    };
    let text = script()
        .calls_all([mail("m1", "bob"), mail("m2", "bob")])
        .says("both are decided");
    terminal.types(&format!("{text}\r"));
    terminal.shows("single-agent asks: may it call send_email?").await;
    terminal.shows("[a]pprove").await;
    terminal.types("a\r");
    terminal.shows("single-agent asks: may it call send_email?").await;
    terminal.shows("[r]eject").await;
    terminal.types("r once is enough\r");
    terminal.shows("single-agent │ both are decided").await;
    terminal.shows("── completed after ").await;
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
    leaves(terminal).await;
}

async fn questions_to_the_user_are_asked_with_their_choices(server: TestServer) {
    server.is_configured_with(AGENTS).await;
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "curious", &[]).await else {
        return;
    };
    let questions = json!({"questions": [
        {"question": "Which colour?", "type": "multiple_choice", "allow_other": false,
            "choices": [{"value": "red"}, {"value": "blue"}]},
        {"question": "Why?", "type": "text", "required": false},
    ]});
    let text = script().calls(call("q1", "ask_user", questions)).says("thanks");
    terminal.types(&format!("{text}\r"));
    terminal.shows("curious-agent asks:").await;
    terminal.shows("2. blue").await;
    terminal.shows("Answer (a number or a text): ").await;
    terminal.types("green\r");
    terminal.shows("it is none of the list").await;
    terminal.shows("Answer (a number or a text): ").await;
    terminal.types("2\r");
    terminal.shows("Why?").await;
    terminal.shows("Answer: ").await;
    terminal.types("It is calm.\r");
    terminal.shows("curious-agent │ thanks").await;
    terminal.shows("── completed after ").await;
    let told = "Question: Which colour?\nAnswer: blue\nQuestion: Why?\nAnswer: It is calm.";
    assert_eq!(messages(&server).await[2]["content"], told);
    leaves(terminal).await;
}

async fn a_question_put_off_is_asked_again(server: TestServer) {
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "agent", &[]).await else {
        return;
    };
    terminal.types(&format!("{}\r", script().calls(mail("m1", "bob")).says("sent")));
    terminal.shows("[l]ater").await;
    terminal.types("l\r");
    terminal.shows("the question waits").await;
    terminal.types("/approvals\r");
    terminal.shows("[a]pprove").await;
    terminal.types("a\r");
    terminal.shows("main-agent │ sent").await;
    terminal.shows("── completed after ").await;
    leaves(terminal).await;
}

async fn ctrl_c_cancels_the_run_and_the_conversation_goes_on(server: TestServer) {
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "agent", &[]).await else {
        return;
    };
    server.tools.hold("lookup");
    terminal.types(&format!("{}\r", script().calls(lookup("c1", "x")).says("never")));
    server.tools.called("lookup", 1).await;
    terminal.shows("→ lookup").await;
    terminal.types("\u{3}");
    terminal.shows("cancelling the run").await;
    terminal.shows("── interrupted after ").await;
    server.tools.let_go("lookup");
    terminal.types(&format!("{}\r", script().says("still here")));
    terminal.shows("main-agent │ still here").await;
    terminal.shows("── completed after ").await;
    terminal.shows("> ").await;
    terminal.types("\u{3}");
    terminal.shows("Ctrl-C again").await;
    terminal.shows("> ").await;
    terminal.types("\u{3}");
    terminal.shows("go on with").await;
    assert_eq!(terminal.ends().await, 0);
}

async fn an_answer_of_another_client_is_noticed(server: TestServer) {
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "agent", &[]).await else {
        return;
    };
    terminal.types(&format!("{}\r", script().calls(mail("m1", "bob")).says("sent")));
    terminal.shows("[a]pprove").await;
    let found = server.client().post("/threads/search", json!({})).await.ok();
    let thread = found[0]["thread_id"].as_str().expect("a thread");
    let other = server.human("agent").await.on(thread);
    other.approves(&other.question().await).await.finishes().await;
    terminal.shows("another client has answered").await;
    terminal.types("\r");
    terminal.shows("main-agent │ sent").await;
    terminal.shows("\u{1b}[K> ").await;
    // Nobody is asked again.
    terminal.types(&format!("{}\r", script().says("next")));
    terminal.shows("main-agent │ next").await;
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
    leaves(terminal).await;
}

async fn commands_show_the_thread(server: TestServer) {
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "planner", &[]).await else {
        return;
    };
    let todos = json!({"todos": [{"content": "Count otters", "status": "pending"}]});
    let write = call(
        "f1",
        "write_file",
        json!({"file_path": "/otters.md", "content": "seven"}),
    );
    let text = script()
        .calls(call("w1", "write_todos", todos))
        .calls(write)
        .says("planned");
    terminal.types(&format!("{text}\r"));
    terminal.shows("[ ] Count otters").await;
    terminal.shows("── completed after ").await;
    for (command, shown) in [
        ("/todos", "[ ] Count otters"),
        ("/files", "/otters.md"),
        ("/files /otters.md", "seven"),
        ("/state", "\"todos\""),
        ("/threads", "FIRST MESSAGE"),
        ("/agents", "planner"),
        ("/cancel", "0 runs are being cancelled"),
        ("/nonsense", "there is no command `/nonsense`"),
        ("/new", "a new thread"),
        ("/help", "begins a new thread"),
    ] {
        terminal.types(&format!("{command}\r"));
        // The typed line is shown, too.
        terminal.shows(command).await;
        terminal.shows(shown).await;
    }
    terminal.types("/quit\r");
    assert_eq!(terminal.ends().await, 0);
}

async fn an_agent_cannot_drive_the_terminal_of_a_conversation(server: TestServer) {
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "agent", &[]).await else {
        return;
    };
    let attack = "\u{1b}]0;title\u{7}\u{202e}end";
    let mail = call("m1", "send_email", json!({"to": attack, "body": "hi"}));
    // Each key is shown as it is typed.
    let text = script()
        .calls(mail)
        .says(attack)
        .to_string()
        .replace('\u{202e}', "\\u202e");
    terminal.types(&format!("{text}\r"));
    terminal.shows("[v]iew all").await;
    terminal.types("v\r");
    terminal.shows("\\u001b]0;title\\u0007\\u202eend").await;
    terminal.types("a\r");
    terminal.shows("main-agent │ \\u{1b}]0;title\\u{7}\\u{202e}end").await;
    terminal.shows("── completed after ").await;
    let text = terminal.text();
    assert!(!text.contains("\u{1b}]0;") && !text.contains('\u{202e}'), "{text:?}");
    leaves(terminal).await;
}

async fn a_paste_of_several_lines_is_one_message(server: TestServer) {
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "plain", &[]).await else {
        return;
    };
    terminal.types("\u{1b}[200~one\rtwo\u{1b}[201~\r");
    terminal.shows("plain-agent │ echo: one").await;
    terminal.shows("plain-agent │ two").await;
    terminal.shows("── completed after ").await;
    assert_eq!(messages(&server).await[0]["content"], "one\ntwo");
    leaves(terminal).await;
}

async fn a_free_question_is_asked_by_its_schema(server: TestServer) {
    server.is_embedded().await;
    let folder = folder();
    let Some(mut terminal) = chat(&server, folder.path(), "built", &[]).await else {
        return;
    };
    let text = script().calls(task("t1", "curious", "ask")).says("thanks");
    terminal.types(&format!("{text}\r"));
    terminal.shows("curious asks:").await;
    terminal.shows("which?").await;
    terminal.shows("Answer: ").await;
    terminal.types("the left one\r");
    terminal.shows("told: \"the left one\"").await;
    terminal.shows("── completed after ").await;
    leaves(terminal).await;
}
