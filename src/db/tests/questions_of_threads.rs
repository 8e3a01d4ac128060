//! The reads of Postgres for questions about one thread, among many others.

use sqlx::{AssertSqlSafe, raw_sql};
use uuid::Uuid;

use super::background::stored_remote_run;
use super::interrupts::pending_interrupt;
use super::runs::claimed_run;
use super::{Db, read, run_at, stored_thread, with_postgres, write};
use crate::db::engine::Conn;
use crate::db::runs::{EndOfRun, LeaseHolder, RunList, RunRowUpdate};
use crate::db::{DbResult, Tx, background, checkpoints, events, interrupts, remote_runs, runs, threads};
use crate::domain::account::RunQueue;
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::{CheckpointId, InterruptId, RunId, ThreadId, WorkerId};
use crate::domain::run::RunStatus;
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;

/// The number of times after which Postgres plans a statement for all values.
const UNTIL_GENERIC: usize = 8;
/// The number of runs about which a question is not.
const OTHERS: i64 = 500;
/// The most rows that the questions of a test read together: several times what they need, and fewer than the others.
const FEW_ROWS: i64 = 300;

/// Stores threads with a run that has ended, and the statistics of such a time.
const FILL: &str = "insert into threads (thread_id, tenant, owner, status, metadata, config, created_at, updated_at, \
    state_updated_at) select gen_random_uuid(), 'default', '', 'idle', '{}', '{}', n, n, n from generate_series(1, 3000) n; \
    insert into runs (run_id, thread_id, assistant_id, root_id, depth, namespace, path, status, queue, request, metadata, \
    attempt, fence, first_seq, created_at, updated_at, due_at, crashes) \
    select gen_random_uuid(), thread_id, thread_id, gen_random_uuid(), 0, '', '[]', 'success', 'default/-/-/0', '{}', '{}', \
    1, 0, 1, created_at, 0, 0, 0 from threads; analyze runs; analyze threads";
/// The indexes that have the runs of all threads in other orders.
const OF_ALL_THREADS: [&str; 3] = ["runs_at_work", "runs_due", "runs_waiting"];

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

/// Returns how often the connection has read one of these indexes.
async fn scans(tx: &mut Tx<'_>, indexes: &[&str]) -> DbResult<i64> {
    const SQL: &str = "select cast(coalesce(sum(pg_stat_get_xact_numscans(oid)), 0) as bigint) from pg_class \
        where relname in ";
    let statement = tx.statement(SQL).bind_list(indexes.iter().copied());
    let (scans,): (i64,) = statement.fetch_one().await?;
    Ok(scans)
}

/// Returns the number of runs that the connection has read, by whatever index.
async fn runs_read(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "select cast(coalesce(sum(pg_stat_get_xact_tuples_returned(oid)), 0) as bigint) from pg_class \
        where relname = 'runs' or oid in (select indexrelid from pg_index where indrelid = 'runs'::regclass)";
    let (runs,): (i64,) = tx.statement(SQL).fetch_one().await?;
    Ok(runs)
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
    let before = scans(tx, &OF_ALL_THREADS).await?;
    for _ in 0..UNTIL_GENERIC {
        Box::pin(ask(tx, thread, run)).await?;
    }
    let claim = runs::claim(tx, run, WorkerId::mint(), Timestamp(3)).await?;
    assert_eq!(claim.map(|claim| claim.run.id), Some(run));
    assert_eq!(runs::at_work(tx, thread).await?, Some(run));
    Ok(scans(tx, &OF_ALL_THREADS).await? - before)
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

/// Asks about remote runs on a thread where another run waits: one whose run was stopped, and one whose run asks.
async fn scans_of_remote_runs(tx: &mut Tx<'_>, stopped: RunId, asking: RunId) -> DbResult<i64> {
    let before = scans(tx, &OF_ALL_THREADS).await?;
    for _ in 0..UNTIL_GENERIC {
        assert!(!remote_runs::is_unwanted(tx, stopped).await?);
        assert!(!remote_runs::any_over(tx).await?);
        assert!(remote_runs::waits(tx, asking).await?);
        assert!(remote_runs::any_unwatched(tx).await?);
    }
    Ok(scans(tx, &OF_ALL_THREADS).await? - before)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_about_remote_runs_read_no_index_of_all_threads_on_postgres() {
    with_postgres(None, |db| {
        Box::pin(async move {
            let (thread, _) = waiting_run(&db).await;
            let stopped = stored_remote_run(&db, thread, RunStatus::Interrupted).await;
            let asking = stored_remote_run(&db, thread, RunStatus::Success).await;
            let mut asked = pending_interrupt(thread, Lane::Main, 1);
            asked.run = asking;
            write!(db, |tx| interrupts::insert(tx, &asked));
            let scans = read!(db, |tx| scans_of_remote_runs(tx, stopped, asking));
            assert_eq!(scans, 0);
        })
    })
    .await;
}

/// Stores threads as in [`FILL`], and then one with many runs that have ended.
async fn long_thread(db: &Db) -> ThreadId {
    write!(db, |tx| execute(tx, FILL.to_owned()));
    let thread = stored_thread(db).await;
    let others = format!(
        "insert into runs (run_id, thread_id, assistant_id, root_id, depth, namespace, path, status, queue, request, metadata, \
         attempt, fence, first_seq, created_at, updated_at, due_at, crashes) select gen_random_uuid(), '{thread}', '{thread}', \
         gen_random_uuid(), 0, '', '[]', 'success', 'default/-/-/0', '{{}}', '{{}}', 1, 0, n, n, n, n, 0 \
         from generate_series(1, {OTHERS}) n"
    );
    write!(db, |tx| execute(tx, others));
    thread
}

/// Asks for the newest runs of a thread. Returns the number of runs that were read.
async fn runs_of_newest(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<i64> {
    const LIMIT: i64 = 2;
    let before = runs_read(tx).await?;
    for _ in 0..UNTIL_GENERIC {
        let latest = runs::latest(tx, thread).await?;
        assert_eq!(latest.map(|run| run.created_at), Some(Timestamp(OTHERS)));
        assert!(runs::find_before(tx, thread).await?.is_some());
        for status in [None, Some(RunStatus::Success)] {
            let wanted = RunList {
                thread,
                status,
                limit: LIMIT,
                offset: 0,
                bytes: usize::MAX,
            };
            let page = runs::list(tx, &wanted).await?.into_items();
            let created: Vec<i64> = page.iter().map(|run| run.created_at.0).collect();
            assert_eq!(created, [OTHERS, OTHERS - 1]);
        }
    }
    Ok(runs_read(tx).await? - before)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_runs_of_a_thread_are_read_without_the_others_on_postgres() {
    with_postgres(None, |db| {
        Box::pin(async move {
            let thread = long_thread(&db).await;
            let read = read!(db, |tx| Box::pin(runs_of_newest(tx, thread)));
            assert!(read <= FEW_ROWS, "{read} runs");
        })
    })
    .await;
}

/// Stores writes for a run, and its end. Returns how often the index of the runs of a thread was read.
async fn scans_of_steps(tx: &mut Tx<'_>, holder: LeaseHolder) -> DbResult<i64> {
    const BY_THREAD: [&str; 1] = ["runs_by_thread"];
    let before = scans(tx, &BY_THREAD).await?;
    let end = EndOfRun {
        status: RunStatus::Success,
        error: None,
        waits: false,
    };
    for _ in 0..UNTIL_GENERIC {
        assert!(runs::check_fence(tx, holder, Timestamp(4)).await?);
        runs::store_fenced(tx, holder, RunRowUpdate::at(Timestamp(5))).await?;
        runs::end_fenced(tx, holder, end, RunRowUpdate::at(Timestamp(6))).await?;
    }
    Ok(scans(tx, &BY_THREAD).await? - before)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_finds_its_run_without_the_others_of_its_thread_on_postgres() {
    with_postgres(None, |db| {
        Box::pin(async move {
            let thread = long_thread(&db).await;
            let holder = claimed_run(&db, run_at(thread, OTHERS + 1), 3).await;
            let scans = write!(db, |tx| scans_of_steps(tx, holder));
            assert_eq!(scans, 0);
        })
    })
    .await;
}

/// Looks for the next run at a place several times. Returns the number of runs that were read.
async fn runs_of_next(tx: &mut Tx<'_>, queue: &RunQueue, run: RunId) -> DbResult<i64> {
    let before = runs_read(tx).await?;
    for _ in 0..UNTIL_GENERIC {
        assert_eq!(runs::next_in_queue(tx, queue, Timestamp(9)).await?, Some(run));
    }
    Ok(runs_read(tx).await? - before)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_run_at_a_place_is_found_without_those_at_others_on_postgres() {
    // They have waited for longer.
    const OTHER_PLACE: &str =
        "update runs set status = 'pending', first_seq = null, queue = 'other/-/-/0' where created_at <= 500";
    with_postgres(None, |db| {
        Box::pin(async move {
            write!(db, |tx| execute(tx, FILL.to_owned()));
            write!(db, |tx| execute(tx, OTHER_PLACE.to_owned()));
            let run = run_at(stored_thread(&db).await, 5);
            let id = run.id;
            let queue = run.queue.clone();
            write!(db, |tx| runs::insert(tx, &run, None));
            let read = write!(db, |tx| runs_of_next(tx, &queue, id));
            assert!(read <= FEW_ROWS, "{read} runs");
        })
    })
    .await;
}

/// Looks for a checkpoint of a lane several times. Returns how often the index of lanes was read.
async fn scans_of_checkpoint(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<i64> {
    const BY_LANE: [&str; 1] = ["checkpoints_by_lane"];
    let before = scans(tx, &BY_LANE).await?;
    let lane = Lane::Child(RunId(thread.0));
    for _ in 0..UNTIL_GENERIC {
        let found = checkpoints::load_summary(tx, thread, lane, CheckpointId(thread.0)).await?;
        assert!(found.is_some());
    }
    Ok(scans(tx, &BY_LANE).await? - before)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_is_found_without_the_others_of_its_lane_on_postgres() {
    // Threads on which two subagents have taken a step each.
    const STEPS: &str = "insert into checkpoints (checkpoint_id, thread_id, lane, seq, segment, step, source, node, writes, \
        position, created_at) select id, thread_id, id, n, n, 0, 'input', '', '', '', 0 \
        from (select thread_id, n, case n when 1 then thread_id else gen_random_uuid() end as id \
        from threads, generate_series(1, 2) n) steps; analyze checkpoints";
    with_postgres(None, |db| {
        Box::pin(async move {
            let thread = stored_thread(&db).await;
            write!(db, |tx| execute(tx, FILL.to_owned()));
            write!(db, |tx| execute(tx, STEPS.to_owned()));
            let scans = read!(db, |tx| scans_of_checkpoint(tx, thread));
            assert_eq!(scans, 0);
        })
    })
    .await;
}

/// Looks for an interrupt of a thread several times. Returns how often the index of the interrupts of threads was read.
async fn scans_of_interrupt(tx: &mut Tx<'_>, thread: ThreadId, id: &InterruptId) -> DbResult<i64> {
    const BY_THREAD: [&str; 1] = ["interrupts_by_thread"];
    let before = scans(tx, &BY_THREAD).await?;
    for _ in 0..UNTIL_GENERIC {
        assert!(interrupts::find(tx, thread, id).await?.is_some());
        let recipient = interrupts::recipient_later(tx, thread, id).await?;
        assert!(recipient.read(tx).await?.is_some());
    }
    Ok(scans(tx, &BY_THREAD).await? - before)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_is_found_without_the_others_of_its_thread_on_postgres() {
    // Threads on which one question was asked.
    const ASKED: &str = "insert into interrupts (interrupt_id, thread_id, run_id, lane, agent_name, path, task_id, status, \
        interrupt, created_at, seq, ordinal) select 'q' || thread_id, thread_id, thread_id, thread_id, '', '[]', thread_id, \
        'resolved', '', 0, 1, 0 from threads; analyze interrupts";
    with_postgres(None, |db| {
        Box::pin(async move {
            write!(db, |tx| execute(tx, FILL.to_owned()));
            write!(db, |tx| execute(tx, ASKED.to_owned()));
            let thread = stored_thread(&db).await;
            let asked = pending_interrupt(thread, Lane::Main, 1);
            let id = asked.interrupt.id.clone();
            write!(db, |tx| interrupts::insert(tx, &asked));
            let scans = read!(db, |tx| scans_of_interrupt(tx, thread, &id));
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
