//! Row-level security on Postgres: statements without any filter, for one tenant, for the server, and for nobody.

use std::collections::BTreeSet;

use sqlx::{AssertSqlSafe, Connection, PgConnection, query_scalar, raw_sql};

use super::postgres::{Database, fresh_database};
use super::{Db, DbError, DbResult, RowAccess, on_both, on_server, open, read};
use crate::db::Tx;
use crate::db::engine::exempt_role;
use crate::db::engine::{PlainStatements, on_engine};
use crate::domain::identity::Tenant;

on_both!(work_for_nobody_is_refused);

/// The tables without a policy, each with the reason.
const EXEMPT: [(&str, &str); 11] = [
    ("_sqlx_migrations", "the versions of the tables"),
    (
        "agents",
        "names and tenants; servers of this and the former release read them for all tenants",
    ),
    ("data_key_changes", "a number"),
    ("data_keys", "keys that are wrapped under a key outside the database"),
    ("definition_changes", "a number"),
    (
        "definition_versions",
        "definitions are read by the server, for all tenants",
    ),
    (
        "definitions",
        "contents by digest, which agents of several tenants may have; read by the server",
    ),
    ("daily_usage", "sums of tokens and money"),
    ("jobs", "ids and times"),
    ("probes", "a time"),
    ("workers", "ids and times of servers"),
];

/// Inserts one row into each table with content, for the tenant `{tenant}`.
const FILL: &str = "\
    insert into threads (thread_id, tenant, owner, status, metadata, config, created_at, updated_at, state_updated_at) \
        values ({id}, '{tenant}', '', 'idle', '{}', '{}', 1, 1, 1); \
    insert into thread_terms values ({id}, {id}); \
    insert into thread_bytes values ({id}, '{tenant}', '', 1, 1, 1); \
    insert into unfinished_copies values ({id}, 1); \
    insert into runs (run_id, thread_id, assistant_id, root_id, depth, namespace, path, status, queue, request, metadata, \
        attempt, crashes, fence, created_at, updated_at, due_at) \
        values ({id}, {id}, {id}, {id}, 0, '', '[]', 'success', '{tenant}/-/-/0', '{}', '{}', 1, 0, 0, 1, 1, 1); \
    insert into trees values ({id}, {id}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0); \
    insert into tree_shares values ({id}, {id}, {id}, 0, 0, 0, 0, 0, 0, 0); \
    insert into checkpoints (checkpoint_id, thread_id, lane, seq, segment, step, source, node, writes, position, created_at) \
        values ({id}, {id}, {id}, 1, 1, 0, '', '', '', '', 1); \
    insert into events values ({id}, 2, {id}, {id}, '', 1); \
    insert into blobs values ('{tenant}', 'd', 1, false, ''); \
    insert into entry_blobs values ({id}, 1, 'd', '{tenant}', 1, 1); \
    insert into request_blobs values ({id}, 'd', {id}, '{tenant}', 1); \
    insert into interrupts (interrupt_id, thread_id, run_id, lane, agent_name, path, task_id, status, interrupt, \
        created_at, seq, ordinal) values ('q', {id}, {id}, {id}, '', '[]', {id}, 'pending', '', 1, 1, 0); \
    insert into answer_schemas values ('{tenant}', 'd', 1, ''); \
    insert into interrupt_approvers values ({id}, 'q', 'user', 'ann'); \
    insert into remembered_decisions values ({id}, {id}, {id}, ''); \
    insert into background_tasks values ({id}, {id}, {id}, {id}, '', '', '', {id}, '', true, true, null, 1); \
    insert into sandboxes values ({id}, {id}, 'lab', '', true); \
    insert into call_tokens values ('{tenant}'::bytea, {id}, {id}, {id}, null, '', '{}', 1); \
    insert into remote_runs (remote_run_id, task_id, url, agent_name, unwanted, attempts, version) \
        values ({id}, {id}, '', '', false, 0, 0); \
    insert into assistants (assistant_id, tenant, owner, version, graph_id, config, context, metadata, name, folded, \
        created_at, updated_at) values ({id}, '{tenant}', '', 1, '', '{}', '{}', '{}', '', '', 1, 1); \
    insert into assistant_versions values ({id}, 1, '', '{}', '{}', '{}', '', null, 1); \
    insert into crons (cron_id, tenant, owner, assistant_id, schedule, enabled, keep_threads, request, payload, metadata, \
        created_at, updated_at) values ({id}, '{tenant}', '', {id}, '', true, true, '', '', '{}', 1, 1); \
    insert into items (tenant, owner, namespace, key, value, created_at, updated_at) \
        values ('{tenant}', '', 'n.', 'k', '{}', 1, 1); \
    insert into item_vectors (tenant, owner, namespace, key, path, vector) \
        values ('{tenant}', '', 'n.', 'k', '', '{1}'); \
    insert into deliveries (delivery_id, tenant, owner, run_id, thread_id, url, body, status, attempts, created_at) \
        values ({id}, '{tenant}', '', {id}, {id}, '', '', 'dead', 1, 1); \
    insert into idempotency_keys (idempotency_key, fingerprint, created_at, tenant) \
        values ('{tenant}', {id}, 1, '{tenant}'); \
    insert into api_keys (key_id, name, tenant, user_id, roles, digest, created_at) \
        values ('{tenant}', '', '{tenant}', '', '[]', '', 1); \
    insert into mcp_logins (tenant, server, url, issuer, secrets, version, renewable, logged_in_at) \
        values ('{tenant}', 'vault', '', '', '', {id}, false, 1); \
    insert into auth_tickets values ('{tenant}'::bytea, '{tenant}', '', '', 1); \
    insert into audit (entry_id, tenant, user_id, credential, action, resource, outcome, detail, created_at) \
        values ({id}, '{tenant}', '', '', '', '', 'allowed', '{}', 1);";

/// The two tenants that have a row in each table.
const TENANTS: [&str; 2] = ["acme", "other"];

fn tenant(name: &str) -> RowAccess {
    RowAccess::Tenant(Tenant::stored(name.to_owned()))
}

/// The table whose rows nobody changes.
const APPEND_ONLY: &str = "audit";

/// Executes statements in one transaction, and returns the number of changed rows.
async fn execute(db: &Db, sql: String) -> DbResult<u64> {
    let write = db.write(move |tx| {
        Box::pin(async move {
            let done = on_engine!(tx, |conn| raw_sql(AssertSqlSafe(sql))
                .execute(conn)
                .await
                .map(|done| done.rows_affected()))?;
            DbResult::Ok(done)
        })
    });
    write.await
}

async fn number(tx: &mut Tx<'_>, sql: String) -> DbResult<i64> {
    Ok(on_engine!(tx, |conn| query_scalar(AssertSqlSafe(sql))
        .fetch_one(conn)
        .await)?)
}

/// Returns the number of all rows of a table that can be found.
async fn count(db: &Db, table: &str) -> i64 {
    let sql = format!("select count(*) from {table}");
    read!(db, |tx| number(tx, sql))
}

/// Returns the tables with a policy.
async fn guarded(db: &Db) -> Vec<String> {
    const SQL: &str = "select distinct tablename::text from pg_policies where schemaname = 'public' order by 1";
    let read =
        db.read(|tx| Box::pin(async move { Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_all(conn).await)?) }));
    read.await.expect("tables")
}

/// Runs a test on a database in which both tenants have a row in each table. Skipped without Postgres.
async fn on_filled(test: impl AsyncFnOnce(&Db, &Database)) {
    let Some(database) = fresh_database().await else {
        return;
    };
    let db = open(&database.url).await;
    on_server(async {
        for tenant in TENANTS {
            let sql = FILL
                .replace("{id}", "md5('{tenant}')::uuid")
                .replace("{tenant}", tenant);
            execute(&db, sql).await.expect("rows");
        }
        test(&db, &database).await;
    })
    .await;
    db.close().await;
    database.discard().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_table_of_tenants_has_a_policy() {
    const SQL: &str = "select relname::text from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace \
        and not (relrowsecurity and relforcerowsecurity and exists (select from pg_policies where tablename = relname))";
    on_filled(async |db, _| {
        let read =
            db.read(|tx| Box::pin(async move { Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_all(conn).await)?) }));
        let without: Vec<String> = read.await.expect("tables");
        let without: BTreeSet<&str> = without.iter().map(String::as_str).collect();
        let exempt: BTreeSet<&str> = EXEMPT.iter().map(|(table, _)| *table).collect();
        assert_eq!(
            without, exempt,
            "a new table needs a policy in its migration, or a reason in this test"
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_without_a_filter_finds_the_rows_of_one_tenant() {
    on_filled(async |db, _| {
        for table in guarded(db).await {
            assert_eq!(count(db, &table).await, 2, "the server finds all rows of {table}");
            for name in TENANTS {
                assert_eq!(tenant(name).scope(count(db, &table)).await, 1, "{name} and {table}");
            }
            assert_eq!(tenant("nobody").scope(count(db, &table)).await, 0, "{table}");
        }
        for name in TENANTS {
            let sql = format!("select count(*) from threads where tenant = '{name}'");
            assert_eq!(tenant(name).scope(async { read!(db, |tx| number(tx, sql)) }).await, 1);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_without_the_setting_finds_nothing() {
    on_filled(async |db, database| {
        let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
        let mut counted = async |table: &str| -> i64 {
            let sql = AssertSqlSafe(format!("select count(*) from {table}"));
            query_scalar(sql).fetch_one(&mut conn).await.expect("a number")
        };
        for table in guarded(db).await {
            assert_eq!(counted(&table).await, 0, "{table}");
        }
    })
    .await;
}

fn begin(access: &RowAccess) -> AssertSqlSafe<String> {
    let begin = access.begin(&PlainStatements::new("begin", 1));
    AssertSqlSafe(begin.text().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_carries_no_tenant_over() {
    on_filled(async |db, database| {
        let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
        for name in TENANTS {
            let mut transaction = conn.begin_with(begin(&tenant(name))).await.expect("a transaction");
            let found: i64 = query_scalar("select count(*) from threads")
                .fetch_one(&mut *transaction)
                .await
                .expect("a number");
            assert_eq!(found, 1);
            transaction.commit().await.expect("the end");
            let left: i64 = query_scalar("select count(*) from threads")
                .fetch_one(&mut conn)
                .await
                .expect("a number");
            assert_eq!(left, 0, "after the transaction of {name}");
        }
        assert_eq!(count(db, "threads").await, 2);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_changes_no_row_of_another_tenant() {
    on_filled(async |db, _| {
        let tables = guarded(db).await;
        for table in &tables {
            let column =
                format!("select attname::text from pg_attribute where attrelid = '{table}'::regclass and attnum = 1");
            let column: String = read!(db, |tx| async {
                Ok(on_engine!(tx, |conn| query_scalar(AssertSqlSafe(column))
                    .fetch_one(conn)
                    .await)?)
            });
            let update = format!("update {table} set {column} = {column}");
            if table == APPEND_ONLY {
                let refused = tenant("acme").scope(execute(db, update)).await.expect_err("an update");
                assert!(refused.to_string().contains("never changed"), "{refused}");
                continue;
            }
            let changed = tenant("acme").scope(execute(db, update)).await;
            assert_eq!(changed.expect("an update"), 1, "{table}");
        }
        // The names of tables with references to blobs come after that of the blobs. Sandboxes outlive their threads.
        let sandboxes = tables.iter().filter(|table| *table == "sandboxes");
        for table in sandboxes.chain(tables.iter().rev()) {
            let delete = execute(db, format!("delete from {table}"));
            tenant("acme").scope(delete).await.expect("a deletion");
        }
        for table in &tables {
            assert_eq!(count(db, table).await, 1, "{table}");
            assert_eq!(tenant("other").scope(count(db, table)).await, 1, "{table}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_cannot_insert_rows_of_another_tenant() {
    on_filled(async |db, _| {
        for table in guarded(db).await {
            let sql = format!("select row_to_json(t)::text from {table} t");
            let row: String = tenant("other")
                .scope(async {
                    read!(db, |tx| async {
                        Ok(on_engine!(tx, |conn| query_scalar(AssertSqlSafe(sql))
                            .fetch_one(conn)
                            .await)?)
                    })
                })
                .await;
            let insert = format!("insert into {table} select * from json_populate_record(null::{table}, '{row}')");
            let refused = tenant("acme").scope(execute(db, insert)).await.expect_err(&table);
            assert!(
                refused.to_string().contains("row-level security policy"),
                "{table}: {refused}"
            );
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_leaves_the_work_of_a_deleted_task_to_the_server() {
    on_filled(async |db, _| {
        let left = "insert into remote_runs (remote_run_id, url, agent_name, unwanted, attempts, version) \
            values (md5('left')::uuid, '', '', true, 0, 0)";
        let insert = execute(db, left.to_owned());
        assert_eq!(tenant("acme").scope(insert).await.expect("a row"), 1);
        for name in TENANTS {
            assert_eq!(tenant(name).scope(count(db, "remote_runs")).await, 1, "{name}");
        }
        assert_eq!(count(db, "remote_runs").await, 3);
        let awaited = left.replace("'left'", "'awaited'").replace("true", "false");
        let refused = tenant("acme").scope(execute(db, awaited)).await;
        let refused = refused.expect_err("no run of its own");
        assert!(refused.to_string().contains("row-level security policy"), "{refused}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_reads_the_assistants_of_the_server_and_cannot_change_them() {
    on_filled(async |db, _| {
        let give = "update assistants set tenant = '*' where tenant = 'other'";
        assert_eq!(execute(db, give.to_owned()).await.expect("an update"), 1);
        for table in ["assistant_versions", "assistants"] {
            assert_eq!(tenant("acme").scope(count(db, table)).await, 2, "{table}");
            let update = execute(db, format!("update {table} set name = 'mine'"));
            assert_eq!(tenant("acme").scope(update).await.expect("an update"), 1, "{table}");
            let delete = execute(db, format!("delete from {table}"));
            assert_eq!(tenant("acme").scope(delete).await.expect("a deletion"), 1, "{table}");
            assert_eq!(count(db, table).await, 1, "{table}");
        }
        let take = execute(db, "update assistants set tenant = 'acme'".to_owned());
        assert_eq!(tenant("acme").scope(take).await.expect("an update"), 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_superuser_is_exempt_and_an_ordinary_role_is_not() {
    let Some(database) = fresh_database().await else {
        return;
    };
    let mut conn = PgConnection::connect(&database.url).await.expect("a connection");
    assert_eq!(exempt_role(&mut conn).await.expect("a role"), None);
    if database.admin != database.url {
        let mut conn = PgConnection::connect(&database.admin).await.expect("a connection");
        assert!(exempt_role(&mut conn).await.expect("a role").is_some());
    }
    database.discard().await;
}

async fn work_for_nobody_is_refused(db: Db) {
    let work = async move {
        let read = db.read(|_| Box::pin(async { Ok(()) })).await;
        let search = db.search(|_| Box::pin(async { Ok(()) })).await;
        let write: DbResult<()> = db.write(|_| Box::pin(async { Ok(()) })).await;
        [read, search, write]
    };
    // A task of its own works for nobody, unless it is told for whom.
    for outcome in tokio::spawn(work).await.expect("a task") {
        assert!(matches!(outcome, Err(DbError::Unbound)), "{outcome:?}");
    }
}
