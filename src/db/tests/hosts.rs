use std::net::{TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};
use tokio_util::task::TaskTracker;

use super::{on_server, postgres};
use crate::db::engine::{Conn, PostgresHosts, PostgresPool, Reachability, acquire};
use crate::db::{Db, DbError, DbLimits, DbResult};
use crate::domain::postgres_url::TargetSessionAttrs;

/// Returns limits with so many seconds for a connection.
fn limits(seconds: u64) -> DbLimits {
    DbLimits {
        connect: Duration::from_secs(seconds),
        ..DbLimits::default()
    }
}

/// Returns a listener that answers nobody: connections to it wait in the queue of the system.
fn silent_host() -> (TcpListener, PgConnectOptions) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("it can be set");
    let port = listener.local_addr().expect("an address").port();
    let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port);
    (listener, options)
}

/// Takes the connections that wait.
fn waiting_connections(listener: &TcpListener) -> Vec<TcpStream> {
    std::iter::from_fn(|| listener.accept().ok())
        .map(|(stream, _)| stream)
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_host_is_passed_over_and_the_last_good_one_is_tried_first() {
    let Some(database) = postgres::fresh_database().await else {
        return;
    };
    let (listener, silent) = silent_host();
    let good = PgConnectOptions::from_str(&database.url).expect("a URL");
    let hosts = PostgresHosts::new(vec![silent, good], TargetSessionAttrs::ReadWrite);
    assert_eq!(hosts.latest_index(), 0);
    for _ in 0..2 {
        let conn = hosts.connect(limits(4)).await.expect("the second host answers");
        conn.close().await.expect("a clean close");
        assert_eq!(hosts.latest_index(), 1);
    }
    assert_eq!(
        waiting_connections(&listener).len(),
        1,
        "the second time it was not tried"
    );
    database.discard().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_to_an_earlier_host_are_known_by_their_age() {
    let Some(database) = postgres::fresh_database().await else {
        return;
    };
    let (listener, closed) = silent_host();
    drop(listener);
    let good = PgConnectOptions::from_str(&database.url).expect("a URL");
    let hosts = PostgresHosts::new(vec![closed, good], TargetSessionAttrs::ReadWrite);
    assert!(!hosts.have_moved_within(Duration::MAX), "no other host was found yet");
    let conn = hosts.connect(limits(10)).await.expect("the second host answers");
    conn.close().await.expect("a clean close");
    assert!(hosts.have_moved_within(Duration::MAX));
    assert!(
        !hosts.have_moved_within(Duration::ZERO),
        "a new connection leads to the new host"
    );
    database.discard().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_host_that_cannot_be_used_is_named_with_the_reason_and_without_the_password() {
    let (silent, _) = silent_host();
    let (closed, _) = silent_host();
    let silent_address = silent.local_addr().expect("an address");
    let closed_address = closed.local_addr().expect("an address");
    drop(closed);
    let url = format!("postgres://me:s3cret@{silent_address},{closed_address}/db?password=s3cret");
    let hosts = PostgresHosts::of(&url).expect("hosts");
    let Err(error) = hosts.connect(limits(1)).await else {
        panic!("it connects");
    };
    let text = error.to_string();
    for part in [
        format!("{silent_address}: it did not answer in time"),
        format!("{closed_address}: Connection refused"),
    ] {
        assert!(text.contains(&part), "{part}: {text}");
    }
    assert!(!text.contains("s3cret"), "{text}");
    assert!(error.is_transient() && error.is_out_of_reach(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_are_read_only_by_default_are_of_use_only_where_a_primary_is_wanted() {
    let Some(database) = postgres::fresh_database().await else {
        return;
    };
    let mut admin = PgConnection::connect(&database.admin).await.expect("a connection");
    let name: String = sqlx::query_scalar("select current_database()")
        .fetch_one(&mut admin)
        .await
        .expect("a name");
    let read_only = format!("alter database {name} set default_transaction_read_only = on");
    raw_sql(AssertSqlSafe(read_only))
        .execute(&mut admin)
        .await
        .expect("it can be set");
    admin.close().await.expect("a clean close");
    let options = PgConnectOptions::from_str(&database.url).expect("a URL");
    let connect = async |target| {
        let hosts = PostgresHosts::new(vec![options.clone(), options.clone()], target);
        hosts.connect(limits(10)).await
    };
    let Err(error) = connect(TargetSessionAttrs::ReadWrite).await else {
        panic!("it takes no writes");
    };
    assert_eq!(error.to_string().matches("read-only by default").count(), 2, "{error}");
    let conn = connect(TargetSessionAttrs::Primary).await.expect("it is no standby");
    conn.close().await.expect("a clean close");
    database.discard().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_connection_of_a_pool_is_made_to_another_host_when_the_first_one_is_silent() {
    let Some(database) = postgres::fresh_database().await else {
        return;
    };
    let (_listener, silent) = silent_host();
    let good = PgConnectOptions::from_str(&database.url).expect("a URL");
    let hosts = PostgresHosts::new(vec![silent, good], TargetSessionAttrs::ReadWrite);
    let hosts = Arc::new(hosts);
    let reach = Arc::new(Reachability::default());
    let one = || {
        PgPoolOptions::new()
            .max_connections(1)
            .connect_lazy_with(hosts.latest_options())
    };
    let pool = PostgresPool::new(one(), one(), Arc::clone(&hosts), Arc::clone(&reach), None);
    let look = async {
        reach.look_is_wanted().await;
        let conn = hosts.connect(limits(1)).await.expect("the second host answers");
        pool.follow_host();
        reach.record_host_lookup();
        conn.close().await.expect("a clean close");
    };
    let (acquired, ()) = tokio::join!(acquire(&pool), look);
    drop(acquired.expect("a connection to the second host"));
    pool.close().await;
    database.discard().await;
}

/// Executes a statement in a transaction.
async fn execute(db: &Db, sql: &'static str) -> DbResult<()> {
    db.write(move |tx| {
        Box::pin(async move {
            match &mut tx.conn {
                Conn::Postgres(conn) => raw_sql(sql).execute(conn).await?,
                Conn::Sqlite(_) => panic!("the database is a Postgres"),
            };
            Ok::<_, DbError>(())
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_to_a_server_that_takes_no_writes_any_more_is_not_given_out_again() {
    const WRITE: &str = "delete from workers where false";
    let Some(database) = postgres::fresh_database().await else {
        return;
    };
    let one = DbLimits {
        connections: 1,
        ..limits(10)
    };
    let tasks = TaskTracker::new();
    let spawn = move |_, task| drop(tasks.spawn(task));
    let db = Db::open_within(&database.url, one, &spawn).await.expect("a database");
    on_server(async {
        // The only connection of the pool gets a session like those of a server that was demoted.
        execute(&db, "set session default_transaction_read_only = on")
            .await
            .expect("it can be set");
        let error = execute(&db, WRITE).await.expect_err("the session is read-only");
        assert!(error.is_out_of_reach() && error.is_transient(), "{error}");
        execute(&db, WRITE).await.expect("another connection takes writes");
    })
    .await;
    db.close().await;
    database.discard().await;
}
