//! The driver against databases in memory and in files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::error::DatabaseError;
use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::types::Json;
use sqlx::{AssertSqlSafe, Connection, Executor, QueryBuilder, Row, query, query_as, query_scalar, raw_sql};
use sqlx::{SqlSafeStr, Statement};
use uuid::Uuid;

use super::{Sqlite, SqliteConnectOptions, SqliteConnection, SqliteRow};

fn opened() -> SqliteConnection {
    SqliteConnectOptions::in_memory().open().expect("a database")
}

async fn run(conn: &mut SqliteConnection, sql: &'static str) -> u64 {
    let done = raw_sql(sql).execute(conn).await.expect("it is executed");
    done.rows_affected()
}

async fn number(conn: &mut SqliteConnection, sql: &'static str) -> i64 {
    query_scalar(sql).fetch_one(conn).await.expect("a number")
}

fn code(error: &sqlx::Error) -> String {
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.expect("a code of SQLite").into_owned()
}

#[tokio::test]
async fn values_come_back_as_they_were_bound() {
    let mut conn = opened();
    let id = Uuid::from_u128(7);
    let row: SqliteRow = query("select $1 as a, $2 as b, $3 as c, $4 as d, $5 as e, $6 as f, $7 as g, $8 as h")
        .bind(-3_i64)
        .bind(0.5_f64)
        .bind("text")
        .bind(vec![0_u8, 255])
        .bind(true)
        .bind(id)
        .bind(Json(vec![1, 2]))
        .bind(None::<i32>)
        .fetch_one(&mut conn)
        .await
        .expect("a row");
    assert_eq!(row.get::<i64, _>("a"), -3);
    assert!((row.get::<f64, _>("b") - 0.5).abs() < f64::EPSILON);
    assert_eq!(row.get::<&str, _>("c"), "text");
    assert_eq!(row.get::<Vec<u8>, _>("d"), [0, 255]);
    assert!(row.get::<bool, _>("e"));
    assert_eq!(row.get::<Uuid, _>("f"), id);
    assert_eq!(row.get::<Json<Vec<i64>>, _>("g").0, [1, 2]);
    assert_eq!(row.get::<Option<i32>, _>("h"), None);
    let of_another_class = row.try_get::<i64, _>("c").expect_err("a text is no number");
    assert!(
        matches!(of_another_class, sqlx::Error::ColumnDecode { .. }),
        "{of_another_class}"
    );
    let unknown = row.try_get::<i64, _>("z").expect_err("there is no such column");
    assert!(matches!(unknown, sqlx::Error::ColumnNotFound(_)), "{unknown}");
}

#[tokio::test]
async fn a_number_that_is_too_large_for_its_type_is_an_error() {
    let mut conn = opened();
    let read = query_scalar::<_, i32>("select 3000000000").fetch_one(&mut conn).await;
    assert!(matches!(read, Err(sqlx::Error::ColumnDecode { .. })), "{read:?}");
}

#[tokio::test]
async fn a_text_that_is_not_utf_8_is_an_error_and_no_panic() {
    let mut conn = opened();
    let read = query_scalar::<_, String>("select cast(x'ff' as text)")
        .fetch_one(&mut conn)
        .await;
    assert!(matches!(read, Err(sqlx::Error::ColumnDecode { .. })), "{read:?}");
}

#[tokio::test]
async fn values_have_their_numbers_in_any_order() {
    let mut conn = opened();
    let row: (String, String, String) = query_as("select $2, $1, $2")
        .bind("one")
        .bind("two")
        .fetch_one(&mut conn)
        .await
        .expect("a row");
    assert_eq!(row, ("two".to_owned(), "one".to_owned(), "two".to_owned()));
    let mut built = QueryBuilder::<Sqlite>::new("select ");
    built.push_bind(7_i64).push(" - ").push_bind(2_i64);
    let difference: i64 = built.build_query_scalar().fetch_one(&mut conn).await.expect("a number");
    assert_eq!(difference, 5);
}

#[tokio::test]
async fn a_value_that_was_not_bound_is_an_error() {
    let mut conn = opened();
    let read = query_scalar::<_, i64>("select $1 + $2")
        .bind(1_i64)
        .fetch_one(&mut conn)
        .await;
    assert!(matches!(read, Err(sqlx::Error::Protocol(_))), "{read:?}");
}

#[tokio::test]
async fn a_text_may_have_several_statements() {
    let mut conn = opened();
    let changed = run(
        &mut conn,
        "create table a (id integer primary key); insert into a values (1), (2); insert into a values (3);",
    )
    .await;
    assert_eq!(changed, 3);
    assert_eq!(number(&mut conn, "select count(*) from a").await, 3);
    assert_eq!(run(&mut conn, "update a set id = id + 10 where id > 1").await, 2);
}

#[tokio::test]
async fn statements_before_a_failed_one_are_done() {
    let mut conn = opened();
    let failed = raw_sql("create table a (id); insert into b values (1); create table c (id)")
        .execute(&mut conn)
        .await;
    assert_eq!(code(&failed.expect_err("there is no table b")), "1");
    assert_eq!(number(&mut conn, "select count(*) from sqlite_master").await, 1);
}

#[tokio::test]
async fn errors_have_the_extended_codes_of_sqlite() {
    let mut conn = opened();
    run(
        &mut conn,
        "create table a (id integer primary key, name text unique not null); insert into a values (1, 'x'); \
         create table b (a integer references a (id), n integer check (n > 0))",
    )
    .await;
    let mut failed = async |sql: &'static str| {
        let done = raw_sql(sql).execute(&mut conn).await;
        let error = done.expect_err("it is refused");
        let kind = error.as_database_error().map(DatabaseError::kind);
        (code(&error), format!("{:?}", kind.expect("a kind")))
    };
    let of = |code: &str, kind: &str| (code.to_owned(), kind.to_owned());
    assert_eq!(
        failed("insert into a values (1, 'y')").await,
        of("1555", "UniqueViolation")
    );
    assert_eq!(
        failed("insert into a values (2, 'x')").await,
        of("2067", "UniqueViolation")
    );
    assert_eq!(
        failed("insert into b values (9, 1)").await,
        of("787", "ForeignKeyViolation")
    );
    assert_eq!(
        failed("insert into a values (3, null)").await,
        of("1299", "NotNullViolation")
    );
    assert_eq!(failed("insert into b values (1, 0)").await, of("275", "CheckViolation"));
    assert_eq!(failed("select").await, of("1", "Other"));
}

#[tokio::test]
async fn a_statement_that_reads_all_columns_has_the_new_ones_after_a_change_of_the_table() {
    let mut conn = opened();
    run(&mut conn, "create table a (x); insert into a values (1)").await;
    let all = "select * from a";
    let before = query(all).fetch_one(&mut conn).await.expect("a row");
    assert_eq!(before.len(), 1);
    run(&mut conn, "alter table a add column y default 'new'").await;
    let after = query(all).fetch_one(&mut conn).await.expect("a row");
    assert_eq!(after.get::<&str, _>("y"), "new");
}

#[tokio::test]
async fn a_transaction_that_is_dropped_is_rolled_back() {
    let mut conn = opened();
    run(&mut conn, "create table a (id)").await;
    let mut kept = conn.begin().await.expect("a transaction");
    run(&mut kept, "insert into a values (1)").await;
    let mut within = kept.begin().await.expect("a savepoint");
    run(&mut within, "insert into a values (2)").await;
    drop(within);
    kept.commit().await.expect("it is committed");
    let mut dropped = conn.begin().await.expect("a transaction");
    run(&mut dropped, "insert into a values (3)").await;
    drop(dropped);
    assert_eq!(number(&mut conn, "select group_concat(id) = '1' from a").await, 1);
}

#[tokio::test]
async fn a_long_statement_can_be_interrupted_and_the_connection_serves_on() {
    let mut conn = opened();
    let is_over = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&is_over);
    conn.interrupt_when(1_000, move || asked.load(Ordering::Relaxed))
        .expect("it is set");
    let endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n";
    let error = query_scalar::<_, i64>(endless)
        .fetch_one(&mut conn)
        .await
        .expect_err("it is interrupted");
    assert_eq!(code(&error), "9");
    is_over.store(false, Ordering::Relaxed);
    let many = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 9999) select count(*) from n";
    assert_eq!(number(&mut conn, many).await, 9_999);
}

#[tokio::test]
async fn a_statement_is_prepared_with_its_columns() {
    let mut conn = opened();
    let statement = (&mut conn)
        .prepare("select $1 as first, 2 as second".into_sql_str())
        .await
        .expect("it is prepared");
    assert_eq!(statement.columns().len(), 2);
    let row = statement.query().bind("x").fetch_one(&mut conn).await.expect("a row");
    assert_eq!(row.get::<&str, _>("first"), "x");
}

#[tokio::test]
async fn migrations_are_applied_once_and_noted_as_sqlx_does() {
    let mut conn = opened();
    let migration = |version: i64, sql: &str| {
        let sql = AssertSqlSafe(sql.to_owned()).into_sql_str();
        Migration::new(version, "a step".into(), MigrationType::Simple, sql, false)
    };
    let first = migration(1, "create table a (id); create index of_a on a (id);");
    let second = migration(2, "drop table b");
    let migrator = Migrator::with_migrations(vec![first.clone()]);
    for _ in 0..2 {
        migrator.run(&mut conn).await.expect("it is applied");
    }
    let both = Migrator::with_migrations(vec![first, second]);
    both.run(&mut conn).await.expect_err("there is no table b");
    let noted = "select count(*) from _sqlx_migrations where version = 1 and success and execution_time >= 0 \
                 and description = 'a step' and length(checksum) = 48";
    assert_eq!(number(&mut conn, noted).await, 1);
    assert_eq!(number(&mut conn, "select count(*) from _sqlx_migrations").await, 1);
}

#[tokio::test]
async fn a_url_names_the_file_and_how_it_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a b?.db");
    let name = file.display().to_string().replace(' ', "%20").replace('?', "%3F");
    let url = |mode: &str| format!("sqlite://{name}?mode={mode}");
    SqliteConnection::connect(&url("rw"))
        .await
        .expect_err("the file is missing");
    let mut conn = SqliteConnection::connect(&url("rwc")).await.expect("it is created");
    run(&mut conn, "create table a (id)").await;
    assert!(file.exists());
    let mut reader = SqliteConnection::connect(&url("ro")).await.expect("it is opened");
    let refused = raw_sql("insert into a values (1)").execute(&mut reader).await;
    assert_eq!(code(&refused.expect_err("it only reads")), "8");
    let options: SqliteConnectOptions = "sqlite::memory:".parse().expect("a URL");
    assert_eq!(options.file(), None);
    let options: SqliteConnectOptions = "sqlite://any?mode=memory".parse().expect("a URL");
    assert_eq!(options.file(), None);
    for wrong in ["sqlite://a?mode=fast", "sqlite://a?journal=off", "mysql://a"] {
        let error = wrong
            .parse::<SqliteConnectOptions>()
            .expect_err("it is no URL of SQLite");
        assert!(matches!(error, sqlx::Error::Configuration(_)), "{error}");
    }
}
