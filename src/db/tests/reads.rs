//! Reads on Postgres: their messages and their connections.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use sqlx::{Connection, PgConnection, query, query_scalar, raw_sql};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::{on_server, postgres, read, stored_thread, thread_at, write};
use crate::db::engine::Readers;
use crate::db::{Db, DbAddress, DbLimits, DbResult, RowAccess, Tx, checkpoints, threads};
use crate::domain::checkpoint::Lane;

/// Plays a test on Postgres, where there is one, on a database with so many connections, and with a connection of its own.
async fn with_connections(connections: u32, test: impl AsyncFnOnce(Db, PgConnection)) {
    with_sessions(connections, true, test).await;
}

/// Plays a test like [`with_connections`]. Unless the sessions are kept, the database is used as behind a pooler.
async fn with_sessions(connections: u32, are_kept: bool, test: impl AsyncFnOnce(Db, PgConnection)) {
    let Some(database) = postgres::fresh_database().await else {
        return;
    };
    let limits = DbLimits {
        statement: Duration::from_secs(120),
        connections,
        ..DbLimits::default()
    };
    on_server(async {
        let tasks = TaskTracker::new();
        let spawn = move |_, task| drop(tasks.spawn(task));
        let address = DbAddress {
            url: database.url.clone(),
            direct_url: (!are_kept).then(|| database.url.clone()),
            prepared_statements: are_kept,
        };
        let db = Db::open_with_keys(&address, limits, None, &spawn).await;
        let db = db.expect("a database");
        let conn = PgConnection::connect(&database.url).await.expect("a connection");
        test(db.clone(), conn).await;
        db.close().await;
    })
    .await;
    database.discard().await;
}

/// Returns the message with this statement, and the process of its session.
async fn own_message(tx: &mut Tx<'_>) -> DbResult<(String, i32)> {
    const SQL: &str = "select query, pid from pg_stat_activity where pid = pg_backend_pid() and $1 = 0";
    tx.statement(SQL).bind(0_i64).fetch_one().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_on_postgres_begins_with_its_first_statement_in_one_message() {
    with_connections(1, async |db, _conn| {
        read!(db, |tx| own_message(tx));
        for _ in 0..2 {
            let (text, _) = read!(db, |tx| own_message(tx));
            assert_eq!(
                text,
                "begin isolation level repeatable read read only; set local adjutant.tenant = e'*'; \
                 execute adjutant_1(e'0')"
            );
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_a_read_on_postgres_needs_later_are_read_in_one_message() {
    with_connections(1, async |db, _conn| {
        let thread = stored_thread(&db).await;
        let read = async || {
            read!(db, |tx| async {
                let found = threads::find_later(tx, thread).await?;
                let newest = checkpoints::newest_summary_later(tx, thread, Lane::Main).await?;
                let (text, _) = own_message(tx).await?;
                assert!(found.find(tx).await?.is_some());
                assert!(newest.read(tx).await?.is_none());
                DbResult::Ok(text)
            })
        };
        // The first time, the statements are prepared.
        read().await;
        let text = read().await;
        assert!(text.starts_with("begin isolation level repeatable read"), "{text}");
        assert_eq!(text.matches("execute adjutant_").count(), 3, "{text}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_behind_a_pooler_makes_its_settings_in_the_same_message() {
    with_sessions(1, false, async |db, _conn| {
        for _ in 0..2 {
            let (text, _) = read!(db, |tx| own_message(tx));
            let begin =
                "begin isolation level repeatable read read only; set local idle_in_transaction_session_timeout";
            assert!(text.starts_with(begin), "{text}");
            assert!(
                text.contains("; set local adjutant.tenant = e'*'; select query"),
                "{text}"
            );
            assert!(text.ends_with("and cast(e'0' as INT8) = 0"), "{text}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_on_postgres_sees_one_snapshot() {
    with_connections(2, async |db, _conn| {
        let thread = thread_at(1);
        let id = thread.id;
        let writing = db.clone();
        let seen = read!(db, |tx| async {
            let before = threads::find(tx, id).await?;
            assert!(write!(writing, |tx| threads::insert(tx, &thread)));
            let after = threads::find(tx, id).await?;
            DbResult::Ok([before.is_some(), after.is_some()])
        });
        assert_eq!(seen, [false, false]);
        assert!(read!(db, |tx| threads::find(tx, id)).is_some());
    })
    .await;
}

/// Takes an advisory lock until the end of the transaction.
async fn lock_in_transaction(tx: &mut Tx<'_>) -> DbResult<(i32,)> {
    let statement = tx.statement("select 1 from pg_advisory_xact_lock($1)");
    statement.bind(7_i64).fetch_one().await
}

/// Waits until a transaction waits for an advisory lock.
async fn wait_for_blocked_transaction(conn: &mut PgConnection) {
    const SQL: &str = "select count(*) from pg_locks where locktype = 'advisory' and not granted \
        and database = (select oid from pg_database where datname = current_database())";
    let looking = async {
        loop {
            let count: i64 = query_scalar(SQL).fetch_one(&mut *conn).await.expect("a number");
            if count > 0 {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looking)
        .await
        .expect("no transaction waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_on_postgres_that_is_cancelled_leaves_its_connection_usable() {
    with_connections(1, async |db, mut conn| {
        let (_, session) = read!(db, |tx| own_message(tx));
        let locked = raw_sql("select pg_advisory_lock(7)").execute(&mut conn).await;
        locked.expect("the lock");
        let reading = db.clone();
        let read = tokio::spawn(
            RowAccess::Server.scope(async move { reading.read(|tx| Box::pin(lock_in_transaction(tx))).await }),
        );
        wait_for_blocked_transaction(&mut conn).await;
        read.abort();
        assert!(read.await.is_err_and(|error| error.is_cancelled()));
        let unlocked = raw_sql("select pg_advisory_unlock(7)").execute(&mut conn).await;
        unlocked.expect("the lock is released");
        // In the transaction of the read it would be refused.
        assert!(write!(db, |tx| threads::insert(tx, &thread_at(1))));
        let (_, next) = read!(db, |tx| own_message(tx));
        assert_eq!(next, session);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_on_postgres_after_the_end_of_its_session_is_out_of_reach_or_has_another() {
    with_connections(1, async |db, mut conn| {
        let (_, session) = read!(db, |tx| own_message(tx));
        // Behind a write, nothing is sent on the connection any more.
        assert!(write!(db, |tx| threads::insert(tx, &thread_at(1))));
        // Postgres answers when the session has ended.
        let ended = query("select pg_terminate_backend($1, 60000)").bind(session);
        ended.execute(&mut conn).await.expect("the session ends");
        // A connection that was idle for long is tried first, and replaced.
        match db.read(|tx| Box::pin(own_message(tx))).await {
            Ok((_, other)) => assert_ne!(other, session),
            Err(error) => assert!(error.is_out_of_reach(), "{error}"),
        }
        let (_, next) = read!(db, |tx| own_message(tx));
        assert_ne!(next, session);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_to_postgres_that_is_not_kept_is_closed_with_what_is_prepared_on_it() {
    with_connections(1, async |db, _conn| {
        let (_, session) = read!(db, |tx| own_message(tx));
        // Behind a write, the connection is idle.
        assert!(write!(db, |tx| threads::insert(tx, &thread_at(1))));
        let Readers::Postgres(pool) = &db.0.readers else {
            panic!("the database is a Postgres");
        };
        assert!(pool.connections.take().is_some());
        let (text, next) = read!(db, |tx| own_message(tx));
        assert_ne!(next, session);
        assert!(text.contains("; prepare adjutant_1 ("), "{text}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_and_writes_on_postgres_share_their_connections() {
    with_connections(2, async |db, _conn| {
        let work = |n: i64| {
            let db = db.clone();
            async move {
                if n % 3 == 0 {
                    assert!(write!(db, |tx| threads::insert(tx, &thread_at(n))));
                    return None;
                }
                let (_, session) = read!(db, |tx| own_message(tx));
                Some(session)
            }
        };
        let sessions: HashSet<i32> = join_all((0..60).map(work)).await.into_iter().flatten().collect();
        assert!((1..=2).contains(&sessions.len()), "{sessions:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reads_on_postgres_leave_a_connection_for_writes() {
    with_connections(2, async |db, _conn| {
        let gate = Arc::new(Semaphore::new(0));
        let reads = (0..4).map(|_| {
            let gate = Arc::clone(&gate);
            db.read(move |_| {
                Box::pin(async move {
                    drop(gate.acquire().await);
                    Ok(())
                })
            })
        });
        let writing = async {
            assert!(write!(db, |tx| threads::insert(tx, &thread_at(1))));
            gate.close();
        };
        let (read, ()) = tokio::join!(join_all(reads), writing);
        assert!(read.iter().all(Result::is_ok), "{read:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_on_postgres_that_is_cancelled_has_its_turn_until_its_statement_ends() {
    with_connections(4, async |db, mut conn| {
        let locked = raw_sql("select pg_advisory_lock(7)").execute(&mut conn).await;
        locked.expect("the lock");
        let searching = db.clone();
        let search = tokio::spawn(
            RowAccess::Server.scope(async move { searching.search(|tx| Box::pin(lock_in_transaction(tx))).await }),
        );
        wait_for_blocked_transaction(&mut conn).await;
        search.abort();
        assert!(search.await.is_err_and(|error| error.is_cancelled()));
        assert_eq!(db.0.searches.available_permits(), 0);
        let unlocked = raw_sql("select pg_advisory_unlock(7)").execute(&mut conn).await;
        unlocked.expect("the lock is released");
        let next = db.search(|tx| Box::pin(own_message(tx))).await;
        next.expect("the next search has a turn");
    })
    .await;
}
