//! The log of a SQLite database that a former release has written.

use sqlx::{Connection, query_scalar, raw_sql};

use super::copies::put;
use super::{Db, open, read, saying, stored_thread, write};
use crate::db::checkpoints::{self, Head};
use crate::db::events::{self, LoggedEvent, NewEvent};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::machine::Position;
use crate::domain::time::Timestamp;
use crate::sqlite::SqliteConnection;

/// Makes the tables what they were.
const FORMER: &str = "\
    drop index checkpoints_of_children; \
    create index checkpoints_by_lane on checkpoints (thread_id, lane, seq); \
    update checkpoints set lane = zeroblob(16) where lane = x''; \
    update events set lane = zeroblob(16) where lane = x''; \
    delete from _sqlx_migrations where description in ('lean log', 'former log', 'short rows')";
/// The statement that makes the database look as if a server had ended after the tables changed places.
const NOT_RECORDED: &str = "delete from _sqlx_migrations where description in ('lean log', 'former log', 'short rows')";

/// Stores steps of a main agent and of a subagent on a thread, and another event.
async fn fill(db: &Db, thread: ThreadId, child: RunId) {
    let first = saying("a", None, -1);
    let second = saying("b", Some(first.id), 0);
    let below = saying("c", None, -1);
    put(db, thread, Lane::Main, 1, &first, Position::default()).await;
    put(db, thread, Lane::Child(child), 2, &below, Position::default()).await;
    put(db, thread, Lane::Main, 4, &second, Position::default()).await;
    write!(db, |tx| async {
        let event = NewEvent {
            thread,
            seq: 3,
            run: child,
            lane: Lane::Main,
            fact: &Fact::Paused,
            at: Timestamp(3),
        };
        events::insert(tx, &[event]).await
    });
}

/// Returns the log of a thread, and the newest checkpoints of the main agent and of a subagent.
async fn all(db: &Db, thread: ThreadId, child: RunId) -> (Vec<LoggedEvent>, [Option<Head>; 2]) {
    let log = read!(db, |tx| events::read(tx, thread, 0, 100));
    let main = read!(db, |tx| checkpoints::head(tx, thread, Lane::Main));
    let below = read!(db, |tx| checkpoints::head(tx, thread, Lane::Child(child)));
    (log, [main, below])
}

/// Returns the names of the tables of the log and of their indexes.
async fn names(conn: &mut SqliteConnection) -> Vec<String> {
    const SQL: &str = "select name from sqlite_schema where tbl_name like '%checkpoints' or tbl_name like '%events' \
        order by name";
    query_scalar(SQL).fetch_all(conn).await.expect("the names")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_a_former_release_is_read_after_its_tables_were_copied() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/adjutant.db", folder.path().display());
    super::on_server(async {
        let db = open(&url).await;
        let thread = stored_thread(&db).await;
        let child = RunId::mint();
        fill(&db, thread, child).await;
        let written = all(&db, thread, child).await;
        assert_eq!(written.0.len(), 4);
        db.close().await;
        let mut conn = SqliteConnection::connect(&url).await.expect("a connection");
        let new = names(&mut conn).await;
        assert_eq!(new.len(), 6, "{new:?}");
        conn.close().await.expect("a clean close");
        for before in [FORMER, NOT_RECORDED] {
            let mut conn = SqliteConnection::connect(&url).await.expect("a connection");
            raw_sql(before).execute(&mut conn).await.expect("a change");
            conn.close().await.expect("a clean close");
            let db = open(&url).await;
            assert_eq!(all(&db, thread, child).await, written);
            db.close().await;
            let mut conn = SqliteConnection::connect(&url).await.expect("a connection");
            assert_eq!(names(&mut conn).await, new);
            conn.close().await.expect("a clean close");
        }
    })
    .await;
}
