//! The reads of Postgres for questions about one thread, among many others.

use sqlx::{AssertSqlSafe, raw_sql};
use uuid::Uuid;

use super::{Db, read, run_at, stored_thread, with_postgres, write};
use crate::db::engine::Conn;
use crate::db::{DbResult, Tx, background, events, interrupts, runs, threads};
use crate::domain::event::Fact;
use crate::domain::id::{RunId, ThreadId, WorkerId};
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;

/// The number of times after which Postgres plans a statement for all values.
const UNTIL_GENERIC: usize = 8;

/// Executes statements without values.
async fn execute(tx: &mut Tx<'_>, sql: String) -> DbResult<()> {
    if let Conn::Postgres(conn) = &mut tx.conn {
        raw_sql(AssertSqlSafe(sql)).execute(conn).await?;
    }
    Ok(())
}

/// Stores threads whose runs have ended, with the statistics of such a time, and then a run that waits on a thread with a background
/// task.
async fn waiting_run(db: &Db) -> (ThreadId, RunId) {
    const FILL: &str = "insert into threads (thread_id, tenant, owner, status, metadata, config, created_at, updated_at, \
        state_updated_at) select gen_random_uuid(), 'default', '', 'idle', '{}', '{}', n, n, n from generate_series(1, 3000) n; \
        insert into runs (run_id, thread_id, assistant_id, root_id, depth, namespace, path, status, queue, request, metadata, \
        attempt, fence, first_seq, created_at, updated_at, due_at, crashes) \
        select gen_random_uuid(), thread_id, thread_id, gen_random_uuid(), 0, '', '[]', 'success', 'default/-/-/0', '{}', '{}', \
        1, 0, 1, created_at, 0, 0, 0 from threads; analyze runs; analyze threads";
    let thread = stored_thread(db).await;
    let run = run_at(thread, 1);
    let id = run.id;
    let task = format!(
        "insert into background_tasks (task_id, parent_thread, parent_run, parent_assistant, call_id, agent_name, graph_id, \
         top_run, ancestry, notify, watched, created_at) values (gen_random_uuid(), '{thread}', '{id}', '{id}', '', '', '', \
         '{id}', '', true, false, 1)"
    );
    write!(db, |tx| execute(tx, FILL.to_owned()));
    write!(db, |tx| runs::insert(tx, &run, None));
    write!(db, |tx| execute(tx, task));
    (thread, id)
}

/// Returns how often the connection has read one of the indexes that have the runs of all threads in other orders.
async fn scans_of_all_threads(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "select cast(coalesce(sum(pg_stat_get_xact_numscans(oid)), 0) as bigint) from pg_class \
        where relname in ('runs_at_work', 'runs_due', 'runs_waiting')";
    let (scans,): (i64,) = tx.statement(SQL).fetch_one().await?;
    Ok(scans)
}

/// Asks about the runs of a thread that wait or are at work.
async fn ask(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<()> {
    assert_eq!(runs::at_work(tx, thread).await?, None);
    assert!(!runs::has_queued_answer(tx, thread).await?);
    assert_eq!(runs::count_in_flight(tx, thread).await?.waiting, 1);
    assert_eq!(runs::in_flight(tx, thread).await?.len(), 1);
    assert_eq!(runs::ids_in_flight(tx, thread).await?, [run]);
    assert_eq!(runs::latest(tx, thread).await?.map(|run| run.id), Some(run));
    assert_eq!(runs::successor(tx, thread, run).await?, None);
    assert!(!runs::hold_messages(tx, thread, true).await?);
    assert!(!runs::hold_messages(tx, thread, false).await?);
    assert!(interrupts::queued_answers(tx, thread).await?.is_empty());
    assert_eq!(background::not_over(tx, thread).await?, 0);
    let left = threads::ThreadAfterRun {
        run: RunId::mint(),
        status: ThreadStatus::Idle,
        error: None,
    };
    let found = threads::leave(tx, thread, &left, Timestamp(2)).await?;
    assert!(found.is_some_and(|left| !left.may_hold_messages));
    Ok(())
}

/// Asks, and claims the run at last. Returns the number of reads of indexes of all threads.
async fn scans_of_questions(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<i64> {
    let before = scans_of_all_threads(tx).await?;
    for _ in 0..UNTIL_GENERIC {
        Box::pin(ask(tx, thread, run)).await?;
    }
    let claim = runs::claim(tx, run, WorkerId::mint(), Timestamp(3)).await?;
    assert_eq!(claim.map(|claim| claim.run.id), Some(run));
    assert_eq!(runs::at_work(tx, thread).await?, Some(run));
    Ok(scans_of_all_threads(tx).await? - before)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_about_a_thread_read_no_index_of_all_threads_on_postgres() {
    with_postgres(None, |db| {
        Box::pin(async move {
            let (thread, run) = waiting_run(&db).await;
            let scans = write!(db, |tx| scans_of_questions(tx, thread, run));
            assert_eq!(scans, 0);
        })
    })
    .await;
}

/// Returns the number of entries of the log that the connection has read in its index.
async fn entries_read(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "select cast(coalesce(sum(pg_stat_get_xact_tuples_returned(oid)), 0) as bigint) from pg_class \
        where relname in ('events', 'events_pkey')";
    let (entries,): (i64,) = tx.statement(SQL).fetch_one().await?;
    Ok(entries)
}

/// Reads the same page of a log several times. Returns the number of entries that were read for each.
async fn entries_of_page(tx: &mut Tx<'_>, thread: ThreadId, limit: i64) -> DbResult<Vec<i64>> {
    let mut counts = vec![];
    for _ in 0..UNTIL_GENERIC {
        let before = entries_read(tx).await?;
        let page = events::read(tx, thread, 100, limit).await?;
        assert_eq!(page.first().map(|entry| entry.seq), Some(101));
        counts.push(entries_read(tx).await? - before);
    }
    Ok(counts)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_of_a_log_is_read_without_what_follows_it_on_postgres() {
    const LIMIT: i64 = 10;
    with_postgres(None, |db| {
        Box::pin(async move {
            let thread = stored_thread(&db).await;
            let body = serde_json::to_string(&Fact::started_anew(None)).expect("a text");
            let fill = format!(
                "insert into events (thread_id, seq, run_id, lane, body, created_at) \
                 select '{thread}', n, '{thread}', '{}', '{body}', 1 from generate_series(1, 5000) n; analyze events",
                Uuid::nil()
            );
            write!(db, |tx| execute(tx, fill));
            let counts = read!(db, |tx| entries_of_page(tx, thread, LIMIT));
            assert!(counts.iter().all(|count| *count <= 2 * LIMIT), "{counts:?}");
        })
    })
    .await;
}
