//! The end of an upgrade on Postgres.

use sqlx::{AssertSqlSafe, Connection, PgConnection, query_as, query_scalar, raw_sql};

use super::postgres::{Database, connect, fresh_database};
use crate::db::engine::{migration, upgrade};
use crate::domain::id::WorkerId;

/// Takes the constraints away that an upgraded database does not have.
const NOT_FINISHED: &str = "alter table workers drop constraint reads_answer_schemas; \
    drop trigger reads_answer_schemas on runs; alter table jobs drop constraint reads_answer_schemas";

/// Adds the constraints of an upgrade that was finished to the former release, which reads texts in the short form.
const FINISHED_BEFORE: &str = "\
    alter table workers add constraint reads_short_texts check (substr(worker_id::text, 15, 1) = '8'); \
    alter table runs add constraint reads_short_texts \
    check (status <> 'running' or substr(worker::text, 15, 1) = '8') not valid; \
    alter table jobs add constraint reads_short_texts check (substr(worker::text, 15, 1) = '8') not valid";

/// Adds the constraints of an upgrade that was finished to a build which reads questions that are stored once.
const FINISHED_TO_BUILD: &str = "\
    alter table workers add constraint reads_questions_once \
    check (substr(worker_id::text, 29) collate \"C\" between '00000002' and '000000ff'); \
    alter table runs add constraint reads_questions_once \
    check (status <> 'running' or substr(worker::text, 29) collate \"C\" between '00000002' and '000000ff') not valid; \
    alter table jobs add constraint reads_questions_once \
    check (substr(worker::text, 29) collate \"C\" between '00000002' and '000000ff') not valid";

/// Adds the constraints of an upgrade that was finished to a build which finds events in the rows of steps.
const FINISHED_TO_LATER_BUILD: &str = "\
    alter table workers add constraint reads_events_in_steps \
    check (substr(worker_id::text, 29) collate \"C\" between '00000003' and '000000ff'); \
    alter table runs add constraint reads_events_in_steps \
    check (status <> 'running' or substr(worker::text, 29) collate \"C\" between '00000003' and '000000ff') not valid; \
    alter table jobs add constraint reads_events_in_steps \
    check (substr(worker::text, 29) collate \"C\" between '00000003' and '000000ff') not valid";

/// Rows that servers of the former release have left: a run at work, one that has ended, and a job.
const LEFT: &str = "\
    insert into threads (thread_id, tenant, owner, status, metadata, config, created_at, updated_at, state_updated_at) \
    select gen_random_uuid(), 't', '', 'busy', '{}', '{}', n, n, n from generate_series(1, 2) n; \
    insert into runs (run_id, thread_id, assistant_id, root_id, depth, namespace, path, status, queue, request, metadata, \
    attempt, crashes, fence, worker, created_at, updated_at, due_at) \
    select thread_id, thread_id, thread_id, thread_id, 0, '', '[]', case created_at when 1 then 'running' else 'success' end, \
    't/-/-/0', '{}', '{}', 1, 0, 1, gen_random_uuid(), created_at, 1, 1 from threads; \
    insert into jobs (job_id, kind, key, due_at, attempts, worker, fence) \
    values (gen_random_uuid(), 'cron', gen_random_uuid(), 1, 1, gen_random_uuid(), 1); \
    insert into workers (worker_id, alive_until) values (gen_random_uuid(), 1)";

/// Returns a database that servers of the former release have used, with its constraints before; none without Postgres.
async fn upgraded() -> Option<(Database, PgConnection, Vec<String>)> {
    let database = fresh_database().await?;
    let mut conn = connect(&database.url).await;
    migration::migrate_postgres(&mut conn).await.expect("the tables");
    let new = constraints(&mut conn).await;
    raw_sql(NOT_FINISHED).execute(&mut conn).await.expect("a change");
    Some((database, conn, new))
}

/// Returns the definitions of the constraints, with that of runs, which is a trigger.
async fn constraints(conn: &mut PgConnection) -> Vec<String> {
    const SQL: &str = "select conrelid::regclass || ' ' || replace(pg_get_constraintdef(oid), ' NOT VALID', '') \
        from pg_constraint where conname like 'reads\\_%' \
        union all select pg_get_triggerdef(oid) from pg_trigger where tgname like 'reads\\_%' order by 1";
    query_scalar(SQL).fetch_all(conn).await.expect("the constraints")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_database_gets_the_constraints_of_a_new_one() {
    let Some((database, mut conn, new)) = upgraded().await else {
        return;
    };
    assert_eq!(new.len(), 3, "{new:?}");
    assert!(!upgrade::is_finished(&mut conn).await.expect("an answer"));
    for _ in 0..2 {
        assert!(upgrade::finish(&mut conn).await.expect("it can be finished"));
        assert!(upgrade::is_finished(&mut conn).await.expect("an answer"));
        assert_eq!(constraints(&mut conn).await, new);
    }
    conn.close().await.expect("a clean close");
    database.discard().await;
}

/// Finishes an upgrade that was finished to a former release: to one with these constraints, which reads `forms`. That waits for
/// `worker`, a worker of that release, and then refuses it. Returns the database; none without Postgres.
async fn finished_once_more(before: &'static str, forms: u32, worker: &str) -> Option<(Database, PgConnection)> {
    let (database, mut conn, new) = upgraded().await?;
    raw_sql(before).execute(&mut conn).await.expect("a change");
    assert_eq!(upgrade::forms_read(&mut conn).await.expect("an answer"), forms);
    let insert = format!("insert into workers (worker_id, alive_until) values ('{worker}', 9000000000000000000)");
    let at_work = || raw_sql(AssertSqlSafe(insert.clone()));
    at_work().execute(&mut conn).await.expect("it is allowed");
    assert!(!upgrade::finish(&mut conn).await.expect("an answer"));
    raw_sql("update workers set alive_until = 1")
        .execute(&mut conn)
        .await
        .expect("a change");
    assert!(upgrade::finish(&mut conn).await.expect("it can be finished"));
    let after = upgrade::forms_read(&mut conn).await.expect("an answer");
    assert_eq!(after, WorkerId::FORMS_READ);
    at_work().execute(&mut conn).await.expect_err("it is refused");
    assert_eq!(constraints(&mut conn).await, new);
    Some((database, conn))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_from_a_release_that_reads_short_texts_is_finished_once_more() {
    // A worker of that release ends with any digits.
    let worker = "01a22810-2e92-818b-a207-ed69ac44c624";
    let finished = finished_once_more(FINISHED_BEFORE, upgrade::SHORT_TEXTS, worker).await;
    let Some((database, mut conn)) = finished else {
        return;
    };
    let own = WorkerId::mint().0;
    raw_sql(AssertSqlSafe(format!(
        "insert into workers (worker_id, alive_until) values ('{own}', 1)"
    )))
    .execute(&mut conn)
    .await
    .expect("it is allowed");
    conn.close().await.expect("a clean close");
    database.discard().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_from_a_build_that_reads_questions_once_is_finished_once_more() {
    let worker = "01a22810-2e92-818b-a207-ed6900000002";
    let finished = finished_once_more(FINISHED_TO_BUILD, upgrade::QUESTIONS_ONCE, worker).await;
    let Some((database, conn)) = finished else {
        return;
    };
    conn.close().await.expect("a clean close");
    database.discard().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_from_a_build_that_finds_events_in_steps_is_finished_once_more() {
    let worker = "01a22810-2e92-718b-a207-ed6900000003";
    let finished = finished_once_more(FINISHED_TO_LATER_BUILD, upgrade::EVENTS_IN_STEPS, worker).await;
    let Some((database, conn)) = finished else {
        return;
    };
    conn.close().await.expect("a clean close");
    database.discard().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_servers_of_the_former_release_have_left_can_be_taken_over_after_the_upgrade() {
    const RUNS: &str = "select status, worker is null from runs order by created_at";
    // The changes of such rows before another worker takes them.
    const CHANGES: &str = "update runs set cancel = 'interrupt'; update jobs set worker = null, due_at = 2";
    let Some((database, mut conn, _)) = upgraded().await else {
        return;
    };
    raw_sql(LEFT).execute(&mut conn).await.expect("the rows");
    assert!(upgrade::finish(&mut conn).await.expect("it can be finished"));
    let runs: Vec<(String, bool)> = query_as(RUNS).fetch_all(&mut conn).await.expect("the runs");
    assert_eq!(runs, [("running".to_owned(), true), ("success".to_owned(), false)]);
    raw_sql(CHANGES).execute(&mut conn).await.expect("they are allowed");
    let left: i64 = query_scalar("select count(*) from workers")
        .fetch_one(&mut conn)
        .await
        .expect("a number");
    assert_eq!(left, 0);
    conn.close().await.expect("a clean close");
    database.discard().await;
}
