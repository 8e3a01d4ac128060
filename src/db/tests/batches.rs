//! Statements that are sent together.

use std::time::Duration;

use serde_json::{Map, Value};
use sqlx::{Connection, PgConnection, query, query_as};

use super::{Db, on_both, read, thread_at, write};
use crate::db::engine::on_engine;
use crate::db::{DbError, DbResult, Tx, threads, workers};
use crate::domain::id::WorkerId;
use crate::domain::thread::Thread;

on_both!(
    values_are_read_back_as_they_were_given,
    a_job_has_more_statements_than_are_sent_together,
    more_statements_are_used_than_are_kept_prepared,
);

async fn values_are_read_back_as_they_were_given(db: Db) {
    let long = "it's \\ long. ".repeat(4_000);
    let texts = [
        "",
        "it's",
        "\\",
        "\\'",
        "e'\\\\'",
        "'); drop table threads; --",
        "$1 $2 cast($3 as text)",
        "a; commit; b",
        "\u{1F600} \u{202E} \n\t\r\u{7f}",
        &long,
    ];
    for (n, text) in (0..).zip(texts) {
        let metadata: Map<String, Value> = [(text.to_owned(), text.into()), ("deep".to_owned(), vec![text].into())]
            .into_iter()
            .collect();
        let thread = Thread {
            metadata,
            ..thread_at(n)
        };
        let id = thread.id;
        let expected = thread.metadata.clone();
        assert!(write!(db, |tx| threads::insert(tx, &thread)));
        let found = read!(db, |tx| threads::find(tx, id)).expect("the thread");
        assert_eq!(found.metadata, expected, "{text}");
    }
}

/// Executes statements later, each with a text of its own.
async fn execute_many(tx: &mut Tx<'_>, texts: &[&'static str]) -> DbResult<()> {
    for (n, text) in (0_i64..).zip(texts) {
        tx.statement(text).bind(n).execute_later().await?;
    }
    Ok(())
}

fn texts(count: usize) -> Vec<&'static str> {
    let text = |n| &*Box::leak(format!("select {n} where $1 < 0").into_boxed_str());
    (0..count).map(text).collect()
}

async fn a_job_has_more_statements_than_are_sent_together(db: Db) {
    let thread = thread_at(1);
    let id = thread.id;
    let texts = texts(150);
    let written = db.write(move |tx| {
        Box::pin(async move {
            threads::insert_later(tx, &thread).await?;
            execute_many(tx, &texts).await
        })
    });
    let written: DbResult<()> = written.await;
    written.expect("a write");
    assert!(read!(db, |tx| threads::find(tx, id)).is_some());
}

async fn more_statements_are_used_than_are_kept_prepared(db: Db) {
    let texts = texts(700);
    for _ in 0..3 {
        for part in texts.chunks(50) {
            let part = part.to_vec();
            let written = db.write(move |tx| Box::pin(async move { execute_many(tx, &part).await }));
            let written: DbResult<()> = written.await;
            written.expect("a write");
        }
    }
}

/// Plays a test on Postgres, where there is one, with a connection of its own.
async fn on_postgres(test: impl AsyncFnOnce(Db, PgConnection)) {
    let Some(database) = super::postgres::fresh_database().await else {
        return;
    };
    super::on_server(async {
        let db = super::open(&database.url).await;
        let conn = PgConnection::connect(&database.url).await.expect("a connection");
        test(db.clone(), conn).await;
        db.close().await;
    })
    .await;
    database.discard().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_on_postgres_is_one_message_and_writes_one_after_the_other_have_one_connection() {
    const WRITES: &str = "select pid, query from pg_stat_activity \
        where datname = current_database() and pid <> pg_backend_pid() and query like '%adjutant_1(%'";
    on_postgres(async |db, mut conn| {
        let worker = WorkerId::mint();
        let lease = Duration::from_secs(60);
        for _ in 0..20 {
            write!(db, |tx| workers::renew_lease(tx, worker, lease, None));
        }
        let found: Vec<(i32, String)> = query_as(WRITES).fetch_all(&mut conn).await.expect("sessions");
        let [(_, text)] = &found[..] else {
            panic!("one connection: {found:?}");
        };
        assert!(
            text.starts_with("begin; set local adjutant.tenant = e'*'; execute adjutant_1("),
            "{text}"
        );
        assert!(text.ends_with("); commit"), "{text}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_on_postgres_that_ignores_a_failed_statement_stores_nothing() {
    on_postgres(async |db, _conn| {
        let thread = thread_at(1);
        let id = thread.id;
        let written = db.write(move |tx| {
            Box::pin(async move {
                threads::insert(tx, &thread).await?;
                let failed = on_engine!(tx, |conn| query("insert into nowhere values (1)")
                    .execute(conn)
                    .await
                    .map(drop));
                assert!(failed.is_err());
                Ok::<_, DbError>(())
            })
        });
        assert!(matches!(written.await, Err(DbError::Unavailable(_))));
        assert!(read!(db, |tx| threads::find(tx, id)).is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_on_postgres_that_fails_later_leaves_its_connection_usable() {
    on_postgres(async |db, _conn| {
        for n in 0..5 {
            let written = db.write(|tx| {
                Box::pin(async move {
                    let statement = tx.statement("insert into threads (thread_id) values ($1)");
                    statement.bind("no id").execute_later().await
                })
            });
            let written: DbResult<()> = written.await;
            assert!(written.is_err(), "{n}");
            assert!(write!(db, |tx| threads::insert(tx, &thread_at(n))));
        }
    })
    .await;
}
