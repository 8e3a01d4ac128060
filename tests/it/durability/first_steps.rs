//! Runs whose input is stored, or whose answers are delivered, in the transaction that admits them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::client::reply;
use crate::support::sse::{Frame, put_together};
use crate::support::{
    Engine, TestServer, call, eventually, lookup, mail, on_both_engines, on_postgres, play, script, task,
};

on_both_engines! {
    the_state_of_a_thread_has_the_input_of_a_run_that_was_accepted,
    the_input_of_a_run_whose_server_is_killed_after_its_admission_is_stored_once,
    a_run_whose_server_is_killed_after_its_admission_stops_at_its_first_breakpoint,
    who_joins_a_run_at_once_gets_the_events_that_are_replayed_later,
    a_run_that_is_rolled_back_at_once_leaves_nothing,
    an_input_that_abandons_a_question_is_the_next_step,
    an_admission_that_is_not_stored_leaves_no_event_and_no_gap_in_the_log,
    an_answer_whose_server_is_killed_after_its_admission_is_used_once,
    an_answer_whose_admission_is_not_stored_leaves_the_question,
    subagents_that_begin_together_are_listed_in_the_order_of_their_calls,
    the_results_of_subagents_that_end_at_once_are_stored_with_the_step,
}

on_postgres! {
    a_run_and_its_input_are_one_transaction_on_postgres,
    the_subagents_of_one_answer_begin_in_one_transaction_on_postgres,
    the_end_of_a_run_is_followed_by_no_look_at_an_empty_queue,
    a_thread_and_what_belongs_to_it_are_read_by_one_message_on_postgres,
}

async fn the_state_of_a_thread_has_the_input_of_a_run_that_was_accepted(server: TestServer) {
    // The first run begins on an empty thread, the second one at a state that is in memory.
    let alice = server.human("plain").await;
    for text in ["one", "two"] {
        let run = alice.asks(text).await;
        let transcript = alice.transcript().await;
        assert!(transcript.contains(&format!("human: {text}")), "{transcript:?}");
        run.finishes().await;
    }
    assert_eq!(
        alice.transcript().await,
        ["human: one", "ai: echo: one", "human: two", "ai: echo: two"]
    );
    // This one creates its thread.
    let thread = uuid::Uuid::new_v4().to_string();
    let bob = alice.on(&thread);
    let run = bob
        .starts(bob.run_body("three", json!({"if_not_exists": "create"})))
        .await;
    let transcript = bob.transcript().await;
    assert!(transcript.contains(&"human: three".to_owned()), "{transcript:?}");
    run.finishes().await;
}

async fn the_input_of_a_run_whose_server_is_killed_after_its_admission_is_stored_once(server: TestServer) {
    server.moves_into_a_process().await;
    let alice = server.human("plain").await;
    let quiet = server.human("plain").await;
    let mut expected = vec![];
    for text in ["one", "two", "three"] {
        quiet.says(text).await;
        let run = alice.asks(text).await;
        server.is_killed_and_started_again().await;
        run.finishes().await;
        assert_eq!(run.status().await, "success");
        expected.extend([format!("human: {text}"), format!("ai: echo: {text}")]);
    }
    assert_eq!(alice.transcript().await, expected);
    assert_eq!(alice.history().await.len(), quiet.history().await.len());
}

async fn a_run_whose_server_is_killed_after_its_admission_stops_at_its_first_breakpoint(server: TestServer) {
    server.moves_into_a_process().await;
    for _ in 0..3 {
        let alice = server.human("plain").await;
        let body = alice.run_body("hello", json!({"interrupt_before": ["model"]}));
        let run = alice.starts(body).await;
        server.is_killed_and_started_again().await;
        run.finishes().await;
        assert_eq!(alice.transcript().await, ["human: hello"]);
    }
}

async fn who_joins_a_run_at_once_gets_the_events_that_are_replayed_later(server: TestServer) {
    let alice = server.human("plain").await;
    for text in ["one", "two"] {
        let more = json!({"stream_mode": ["values", "messages-tuple"], "stream_resumable": true});
        let run = alice.starts(alice.run_body(text, more)).await;
        let joined = run.is_joined(Some("-1")).await.rest().await;
        let replayed = run.is_joined(Some("-1")).await.rest().await;
        assert_eq!(put_together(&joined), put_together(&replayed));
        let is_input = |frame: &Frame| {
            frame.mode() == "values" && frame.data.to_string().contains(&format!("\"content\":\"{text}\""))
        };
        assert!(joined.iter().any(is_input), "{joined:#?}");
    }
}

async fn a_run_that_is_rolled_back_at_once_leaves_nothing(server: TestServer) {
    server.tools.hold("lookup");
    let alice = server.human("plain").await;
    let run = alice.asks(script().calls(lookup("l1", "x")).says("done")).await;
    run.is_cancelled("rollback").await.ok();
    assert_eq!(alice.history().await.len(), 0);
    server.tools.let_go("lookup");
    alice.says("hello").await;
    assert_eq!(alice.transcript().await, ["human: hello", "ai: echo: hello"]);
}

async fn an_input_that_abandons_a_question_is_the_next_step(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "a@b.c")).says("sent")).await;
    assert_eq!(alice.questions().await.len(), 1);
    alice.says("never mind").await;
    assert_eq!(alice.questions().await.len(), 0);
    let transcript = alice.transcript().await;
    assert_eq!(transcript.last().map(String::as_str), Some("ai: echo: never mind"));
}

/// Has the database refuse to store responses under their keys, which is done after everything else of an admission.
async fn stores_no_response(server: &TestServer) {
    let refuse = match server.engine {
        Engine::Sqlite => {
            "create trigger no_answer before update on idempotency_keys \
             begin select raise(abort, 'there is no room'); end"
        }
        Engine::Postgres => {
            "create function refuse() returns trigger as $$ begin raise exception 'there is no room'; end $$ \
             language plpgsql; \
             create trigger no_answer before update on idempotency_keys for each row execute function refuse()"
        }
    };
    server.executes_sql(refuse).await;
}

async fn stores_responses(server: &TestServer) {
    let accept = match server.engine {
        Engine::Sqlite => "drop trigger no_answer",
        Engine::Postgres => "drop trigger no_answer on idempotency_keys",
    };
    server.executes_sql(accept).await;
}

async fn an_admission_that_is_not_stored_leaves_no_event_and_no_gap_in_the_log(server: TestServer) {
    let alice = server.human("plain").await;
    let post = async || {
        let request = server.client().request(Method::POST, &alice.path("/runs"));
        let body = alice.run_body("hello", json!({}));
        reply(request.header("Idempotency-Key", "k1").json(&body)).await
    };
    stores_no_response(&server).await;
    let refused = post().await;
    assert!(refused.status >= 500, "{refused:?}");
    stores_responses(&server).await;
    assert_eq!(alice.history().await.len(), 0);
    assert_eq!(alice.runs().await.len(), 0);
    let run = alice.run(&post().await.ok());
    run.finishes().await;
    assert_eq!(alice.transcript().await, ["human: hello", "ai: echo: hello"]);
    // The row of the input is that of the start before it, too.
    let first = "select min(seq) from (select seq from events union all \
        select seq - case source when 'begin' then 1 else 0 end from checkpoints) entries";
    assert_eq!(server.number_in_database(first).await, 1);
}

async fn an_answer_whose_server_is_killed_after_its_admission_is_used_once(server: TestServer) {
    let curious = "[agents.curious]\nmodel = \"scripted:lab\"\nsystem_prompt = \"x\"\nask_user = true";
    server.is_configured_with(curious).await;
    server.moves_into_a_process().await;
    let alice = server.human("curious").await;
    let quiet = server.human("curious").await;
    for id in ["q1", "q2", "q3"] {
        let asked = json!({"questions": [{"question": "Why?", "type": "text"}]});
        let text = script().calls(call(id, "ask_user", asked)).says("thanks");
        let answer = json!({"type": "answered", "answers": [format!("because of {id}")]});
        quiet.says(&text).await;
        quiet.resumes(answer.clone()).await.finishes().await;
        alice.says(&text).await;
        let run = alice.resumes(answer).await;
        server.is_killed_and_started_again().await;
        run.finishes().await;
        assert_eq!(run.status().await, "success");
        assert_eq!(alice.questions().await, vec![]);
    }
    assert_eq!(alice.transcript().await, quiet.transcript().await);
}

async fn an_answer_whose_admission_is_not_stored_leaves_the_question(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let question = alice.question().await;
    let before = alice.state().await;
    let decisions = json!({question.id(): {"decisions": [{"type": "approve"}]}});
    stores_no_response(&server).await;
    let request = server.client().request(Method::POST, &alice.path("/runs"));
    let body = json!({"assistant_id": "agent", "command": {"resume": decisions}});
    let refused = reply(request.header("Idempotency-Key", "k1").json(&body)).await;
    assert!(refused.status >= 500, "{refused:?}");
    stores_responses(&server).await;
    assert_eq!(alice.question().await, question);
    assert_eq!(alice.state().await, before);
    alice.rejects(&question, "no").await.finishes().await;
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
    assert_eq!(alice.transcript().await.last().map(String::as_str), Some("ai: sent"));
}

async fn a_run_and_its_input_are_one_transaction_on_postgres(server: TestServer) {
    let alice = server.human("plain").await;
    for number in 0..3 {
        let request = server.client().request(Method::POST, &alice.path("/runs"));
        let body = alice.run_body(format!("number {number}"), json!({}));
        let run = reply(request.header("Idempotency-Key", format!("k{number}")).json(&body)).await;
        alice.run(&run.ok()).finishes().await;
    }
    // Postgres marks each row with the transaction that has written it. That of a key is not changed later.
    let together = "select count(distinct input.xmin::text) from checkpoints input join idempotency_keys k \
        on k.xmin = input.xmin where input.source in ('input', 'begin')";
    assert_eq!(server.number_in_database(together).await, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_and_its_input_are_one_transaction_on_sqlite() {
    play(Engine::Sqlite, async |server: TestServer| {
        server.moves_into_a_process_that_logs("info,sqlx::query=debug").await;
        let alice = server.human("plain").await;
        for text in ["one", "two"] {
            server.log().clear();
            alice.says(text).await;
            // The lines from the one that stores the run to the one that commits it.
            let admission = || {
                let text = server.log().text();
                let (_, after) = text.split_once("insert into runs")?;
                let (lines, _) = after.split_once("commit")?;
                Some(lines.to_owned())
            };
            eventually(async || admission().is_some()).await;
            let lines = admission().expect("it is in the log");
            assert!(lines.contains("insert into checkpoints"), "{lines}");
            assert!(!lines.contains("update runs"), "the row is stored once: {lines}");
        }
    })
    .await;
}

/// The beginning of the statement with which a run leaves its thread.
const END: &str = "update threads set status = case";

/// Returns the transactions of SQLite that have been committed: of each the lines of the log, each with a statement. Statements of
/// reads may be among them.
fn transactions_of(log: &str) -> Vec<Vec<String>> {
    let mut transactions = vec![];
    let mut lines: Vec<String> = vec![];
    for line in log.lines().filter(|line| line.contains("sqlx::query")) {
        let begins = line.contains("begin immediate");
        if begins {
            lines.clear();
        }
        if begins || !lines.is_empty() {
            lines.push(line.to_owned());
        }
        if line.contains("\"commit\"") && !lines.is_empty() {
            transactions.push(std::mem::take(&mut lines));
        }
    }
    transactions
}

fn has_statement(transaction: &[String], statement: &str) -> bool {
    transaction.iter().any(|line| line.contains(statement))
}

/// Waits until the transaction that has this statement is in the log, and returns its statements.
async fn logged_transaction(server: &TestServer, statement: &str) -> Vec<String> {
    let found = || {
        let mut transactions = transactions_of(&server.log().text()).into_iter();
        transactions.find(|transaction| has_statement(transaction, statement))
    };
    eventually(async || found().is_some()).await;
    found().expect("it is in the log")
}

/// Returns the number of statements of the transaction that has this one, with those that begin and end it.
async fn logged_statements(server: &TestServer, statement: &str) -> usize {
    logged_transaction(server, statement).await.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_thread_and_its_entry_in_the_audit_are_stored_by_two_statements_on_sqlite() {
    play(Engine::Sqlite, async |server: TestServer| {
        let keys = server.is_protected().await;
        server.moves_into_a_process_that_logs("info,sqlx::query=debug").await;
        let ann = keys.client("ann");
        let mut of_thread = usize::MAX;
        let mut of_entry = usize::MAX;
        // Reads of other work may be in the log in the middle of a transaction, but not each time.
        for _ in 0..5 {
            server.log().clear();
            ann.thread().await;
            of_thread = of_thread.min(logged_statements(&server, "insert into threads").await);
            of_entry = of_entry.min(logged_statements(&server, "insert into audit").await);
        }
        assert_eq!(
            of_thread, 4,
            "the thread and the entry, between what begins and ends the transaction"
        );
        assert_eq!(of_entry, of_thread);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_thread_of_a_stateless_run_is_stored_as_the_run_leaves_it() {
    play(Engine::Sqlite, async |server: TestServer| {
        server.moves_into_a_process_that_logs("info,sqlx::query=debug").await;
        let alice = server.human("plain").await;
        server.log().clear();
        let body = alice.run_body("hello", json!({}));
        server.client().post("/runs/wait", body).await.ok();
        logged_statements(&server, END).await;
        let text = server.log().text();
        assert!(text.contains("insert into threads"), "{text}");
        assert!(!text.contains("update threads set status = coalesce("), "{text}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_one_step_takes_few_statements_on_sqlite() {
    play(Engine::Sqlite, async |server: TestServer| {
        server.moves_into_a_process_that_logs("info,sqlx::query=debug").await;
        let alice = server.human("plain").await;
        // The first run writes its agent into the metadata of the thread.
        alice.says("one").await;
        let mut admission = usize::MAX;
        let mut end = usize::MAX;
        // Reads of other work may be in the log in the middle of a transaction, but not each time.
        for text in ["two", "three", "four", "five"] {
            server.log().clear();
            alice.says(text).await;
            admission = admission.min(logged_statements(&server, "insert into runs").await);
            end = end.min(logged_statements(&server, END).await);
        }
        assert_eq!(
            admission, 8,
            "three that read, three that store, and those that begin and end the transaction"
        );
        assert_eq!(end, 5, "three that store; no message waits for answers");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_subagents_of_one_answer_begin_in_its_transaction_on_sqlite() {
    play(Engine::Sqlite, async |server: TestServer| {
        server.moves_into_a_process_that_logs("info,sqlx::query=debug").await;
        let alice = server.human("agent").await;
        let calls = [task("t1", "researcher", "one"), task("t2", "researcher", "two")];
        alice.says(script().calls_all(calls).says("done")).await;
        logged_transaction(&server, END).await;
        // The last transaction that stores runs is that of the subagents.
        let mut transactions = transactions_of(&server.log().text()).into_iter();
        let begin = transactions.rfind(|transaction| has_statement(transaction, "insert into runs"));
        let begin = begin.expect("it is in the log");
        assert!(has_statement(&begin, "update runs"), "the answer: {begin:?}");
        assert!(
            has_statement(&begin, "insert into checkpoints"),
            "what they begin with: {begin:?}"
        );
        let stored = begin.iter().filter(|line| line.contains("insert into runs"));
        assert_eq!(stored.count(), 1, "both by one statement: {begin:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_subagents_have_ended_does_not_read_their_usage() {
    play(Engine::Sqlite, async |server: TestServer| {
        server.moves_into_a_process_that_logs("info,sqlx::query=debug").await;
        let reads = || server.log().text().matches("recursive below(member)").count();
        let alice = server.human("agent").await;
        let calls = [task("t1", "researcher", "one"), task("t2", "researcher", "two")];
        let run = alice.asks(script().calls_all(calls).says("done")).await;
        run.finishes().await;
        logged_statements(&server, END).await;
        assert_eq!(reads(), 0);
        let used = run.record().await["tree_usage"]["model_calls"].clone();
        assert_eq!(used, 4);
        eventually(async || reads() > 0).await;
    })
    .await;
}

async fn subagents_that_begin_together_are_listed_in_the_order_of_their_calls(server: TestServer) {
    let alice = server.human("agent").await;
    let ids = ["t1", "t2", "t3", "t4", "t5", "t6"];
    let calls = ids.map(|id| task(id, "researcher", id));
    let run = alice.asks(script().calls_all(calls).says("done")).await;
    run.finishes().await;
    let children = run.children().await;
    let listed: Vec<_> = children.iter().map(|child| &child["task_call_id"]).collect();
    assert_eq!(listed, ids);
}

async fn the_results_of_subagents_that_end_at_once_are_stored_with_the_step(server: TestServer) {
    // A result that is stored before the others are there is an event of its own.
    const ALONE: &str = "select count(*) from events";
    let alice = server.human("agent").await;
    // A subagent may be late for once, but not each time.
    for round in 0..10 {
        let before = server.number_in_database(ALONE).await;
        let calls = (0..4).map(|number| task(&format!("t{round}{number}"), "researcher", "x"));
        alice.says(script().calls_all(calls).says("done")).await;
        if server.number_in_database(ALONE).await == before {
            return;
        }
    }
    panic!("each time a result was stored alone");
}

async fn the_subagents_of_one_answer_begin_in_one_transaction_on_postgres(server: TestServer) {
    let alice = server.human("agent").await;
    let calls = ["t1", "t2", "t3"].map(|id| task(id, "researcher", id));
    alice.says(script().calls_all(calls).says("done")).await;
    let inputs =
        "from checkpoints where source in ('input', 'begin') and lane <> '00000000-0000-0000-0000-000000000000'";
    assert_eq!(server.number_in_database(&format!("select count(*) {inputs}")).await, 3);
    // Postgres marks each row with the transaction that has written it.
    let together = format!("select count(distinct xmin::text) {inputs}");
    assert_eq!(server.number_in_database(&together).await, 1);
}

async fn the_end_of_a_run_is_followed_by_no_look_at_an_empty_queue(server: TestServer) {
    const RUNS: usize = 20;
    server.moves_into_a_process_that_logs("info,sqlx::query=debug").await;
    let alice = server.human("plain").await;
    alice.says("hello").await;
    server.log().clear();
    for _ in 0..RUNS {
        alice.says("hello again").await;
    }
    let log = server.log().text();
    assert!(log.contains("insert into runs"), "the statements are in the log");
    // Some looks come with the time that passes.
    let looks = log.matches("with recursive waiting(queue)").count();
    assert!(looks < RUNS / 2, "{looks} looks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_and_its_answer_take_few_statements_on_sqlite() {
    play(Engine::Sqlite, async |server: TestServer| {
        server.moves_into_a_process_that_logs("info,sqlx::query=debug").await;
        let alice = server.human("agent").await;
        alice.says("one").await;
        let mut end = usize::MAX;
        let mut admission = usize::MAX;
        // Reads of other work may be in the log, as above.
        for id in ["m1", "m2", "m3", "m4"] {
            // The end of the run before may come into the log after its client has heard of it.
            logged_statements(&server, END).await;
            server.log().clear();
            alice.says(script().calls(mail(id, "bob")).says("sent")).await;
            end = end.min(logged_statements(&server, END).await);
            let question = alice.question().await;
            server.log().clear();
            alice.approves(&question).await.finishes().await;
            admission = admission.min(logged_statements(&server, "insert into runs").await);
            assert_eq!(alice.transcript().await.last().map(String::as_str), Some("ai: sent"));
        }
        assert_eq!(end, 10, "the end of the run with its question");
        assert_eq!(admission, 14, "the admission of the answer");
    })
    .await;
}

async fn a_thread_and_what_belongs_to_it_are_read_by_one_message_on_postgres(server: TestServer) {
    server.moves_into_a_process_that_logs("info,sqlx::query=debug").await;
    let alice = server.human("plain").await;
    alice.says("hello").await;
    server.log().clear();
    alice.record().await;
    let message = || {
        let text = server.log().text();
        let is_read = |line: &&str| line.contains("repeatable read") && line.contains("from threads where thread_id");
        text.lines().find(is_read).map(str::to_owned)
    };
    eventually(async || message().is_some()).await;
    let message = message().expect("it is in the log");
    for table in ["background_tasks", "checkpoints", "interrupts"] {
        assert!(message.contains(&format!("from {table}")), "{table}: {message}");
    }
}
