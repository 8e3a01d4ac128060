//! The upgrade of several servers on one Postgres: rows stay readable for those of the former release until it is finished.

use serde_json::json;
use sqlx::raw_sql;

use super::rented_postgres::runs_command;
use crate::agents::stored_questions::ASKED;
use crate::support::actors::Human;
use crate::support::{TestServer, lookup, mail, on_both_engines, on_postgres, script};

on_both_engines! {
    a_new_database_has_rows_in_the_short_form_at_once,
}

on_postgres! {
    rows_are_readable_for_the_former_release_until_the_upgrade_is_finished,
    questions_are_stored_everywhere_for_a_release_that_reads_only_short_texts,
    an_upgrade_is_not_finished_while_a_server_of_the_former_release_is_at_work,
    a_server_of_the_former_release_changes_no_run_after_the_end_of_an_upgrade,
}

/// The statement with which a server of the former release takes a lease.
const FORMER_LEASE: &str =
    "insert into workers (worker_id, alive_until) values (gen_random_uuid(), 9000000000000000000)";

/// Turns the database into one that the former release has made.
async fn is_of_the_former_release(server: &TestServer) {
    // One after the other: the server uses the tables in any order.
    for sql in [
        "alter table workers drop constraint reads_answer_schemas",
        "alter table jobs drop constraint reads_answer_schemas",
        "drop trigger reads_answer_schemas on runs",
    ] {
        server.executes_sql(sql).await;
    }
    server.is_stopped_and_started_again().await;
}

/// Has a run, and returns whether its request is in the short form.
async fn is_short(server: &TestServer, alice: &Human) -> bool {
    const SHORT: &str = "select count(*) from runs where substr(request, 1, 1) in ('\u{1}', '\u{2}')";
    let before = server.number_in_database(SHORT).await;
    alice.says("hello").await;
    server.number_in_database(SHORT).await > before
}

async fn a_new_database_has_rows_in_the_short_form_at_once(server: TestServer) {
    let alice = server.human("agent").await;
    assert!(is_short(&server, &alice).await);
}

async fn rows_are_readable_for_the_former_release_until_the_upgrade_is_finished(server: TestServer) {
    let alice = server.human("agent").await;
    is_of_the_former_release(&server).await;
    assert!(!is_short(&server, &alice).await);
    let url = server.database_url();
    let (_, said) = runs_command("doctor", &url);
    assert!(said.contains("`adjutant migrate --finish`"), "{said}");
    let (is_done, said) = runs_command("migrate", &url);
    assert!(is_done && said.contains("run this with --finish"), "{said}");
    server.is_stopped_and_started_again().await;
    assert!(!is_short(&server, &alice).await);

    let (is_done, said) = runs_command("migrate --finish", &url);
    assert!(is_done && !said.contains("--finish"), "{said}");
    server.is_stopped_and_started_again().await;
    assert!(is_short(&server, &alice).await);
    // Texts in either form are read.
    let runs = alice.runs().await;
    assert!(!runs.is_empty(), "there are runs");
    assert!(runs.iter().all(|run| run["status"] == "success"), "{runs:?}");
    assert_eq!(alice.transcript().await.len(), 2 * runs.len());
    let (_, said) = runs_command("doctor", &url);
    assert!(!said.contains("--finish"), "{said}");
}

async fn questions_are_stored_everywhere_for_a_release_that_reads_only_short_texts(server: TestServer) {
    let asking = || script().calls(mail("m1", "bob")).says("sent");
    let alice = server.human("agent").await;
    is_of_the_former_release(&server).await;
    // A finished upgrade to that release leaves these.
    for (table, condition) in [
        ("workers", "substr(worker_id::text, 15, 1) = '8'"),
        ("jobs", "substr(worker::text, 15, 1) = '8'"),
        ("runs", "status <> 'running' or substr(worker::text, 15, 1) = '8'"),
    ] {
        let sql = format!("alter table {table} add constraint reads_short_texts check ({condition}) not valid");
        server.executes_sql(&sql).await;
    }
    server.is_stopped_and_started_again().await;
    alice.says(asking()).await;
    assert_eq!(
        server.occurrences_in_database(ASKED).await,
        3,
        "in the row of the interrupt, the position and the event"
    );
    let (_, said) = runs_command("doctor", &server.database_url());
    assert!(said.contains("`adjutant migrate --finish`"), "{said}");
    let (is_done, said) = runs_command("migrate --finish", &server.database_url());
    assert!(is_done, "{said}");
    server.is_stopped_and_started_again().await;

    let bob = server.human("agent").await;
    bob.says(asking()).await;
    assert_eq!(server.occurrences_in_database(ASKED).await, 3 + 1);
    for human in [alice, bob] {
        human.approves(&human.question().await).await.finishes().await;
        assert_eq!(human.transcript().await.last().unwrap(), "ai: sent");
    }
}

async fn an_upgrade_is_not_finished_while_a_server_of_the_former_release_is_at_work(server: TestServer) {
    let alice = server.human("agent").await;
    is_of_the_former_release(&server).await;
    server.executes_sql(FORMER_LEASE).await;
    let url = server.database_url();
    let (is_done, said) = runs_command("migrate --finish", &url);
    assert!(
        !is_done && said.contains("a server of the former release is at work"),
        "{said}"
    );
    server.is_stopped_and_started_again().await;
    assert!(!is_short(&server, &alice).await);

    server
        .executes_sql("update workers set alive_until = 1 where alive_until = 9000000000000000000")
        .await;
    let (is_done, said) = runs_command("migrate --finish", &url);
    assert!(is_done, "{said}");
}

async fn a_server_of_the_former_release_changes_no_run_after_the_end_of_an_upgrade(server: TestServer) {
    // Without a lease a server looks for runs and jobs nevertheless, and it would end the runs that it cannot read.
    const CLAIMS: [&str; 4] = [
        FORMER_LEASE,
        "update runs set status = 'running', worker = gen_random_uuid(), fence = fence + 1 where status = 'pending'",
        "update runs set worker = gen_random_uuid(), fence = fence + 1 where status = 'running'",
        "insert into jobs (job_id, kind, key, due_at, attempts, worker, fence) \
         values (gen_random_uuid(), 'cron', gen_random_uuid(), 9000000000000000000, 0, gen_random_uuid(), 0)",
    ];
    let alice = server.human("plain").await;
    is_of_the_former_release(&server).await;
    let (is_done, said) = runs_command("migrate --finish", &server.database_url());
    assert!(is_done, "{said}");
    server.is_stopped_and_started_again().await;
    server.tools.hold("lookup");
    let running = alice.asks(script().calls(lookup("l1", "x")).says("done")).await;
    server.tools.called("lookup", 1).await;
    let bob = server.human("plain").await;
    let later = bob.run_body(script().says("later"), json!({"after_seconds": 3600}));
    let pending = bob.starts(later).await;

    let mut beside = crate::support::postgres::connect(&server.database_url()).await;
    for claim in CLAIMS {
        let refused = raw_sql(claim).execute(&mut beside).await;
        let error = refused.expect_err("it is refused").to_string();
        assert!(
            error.contains("violates check constraint \"reads_answer_schemas\""),
            "{error}"
        );
    }
    assert_eq!(pending.status().await, "pending");
    pending.is_cancelled("interrupt").await;
    server.tools.let_go("lookup");
    running.finishes().await;
    assert_eq!(running.status().await, "success");
}
