//! The schema: the same tables on both engines, and indexes for all queries.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{AssertSqlSafe, query_as};

use super::{Db, postgres, read};
use crate::db::engine::Conn;
use crate::db::engine::migration::table_names;
use crate::db::{DbResult, Tx};

/// The columns of each table in order, each with whether it is nullable.
type Tables = BTreeMap<String, Vec<(String, bool)>>;

async fn tables(tx: &mut Tx<'_>) -> DbResult<Tables> {
    const SQLITE: &str = "select t.name, c.name, c.\"notnull\" = 0 from sqlite_master t, pragma_table_info(t.name) c \
        where t.type = 'table' and t.name not like '\\_%' escape '\\' and t.name not like 'sqlite%' order by t.name, c.cid";
    const POSTGRES: &str = "select table_name::text, column_name::text, is_nullable = 'YES' \
        from information_schema.columns where table_schema = 'public' and table_name not like '\\_%' \
        order by table_name, ordinal_position";
    let rows: Vec<(String, String, bool)> = match &mut tx.conn {
        Conn::Sqlite(conn) => query_as(SQLITE).fetch_all(conn).await?,
        Conn::Postgres(conn) => query_as(POSTGRES).fetch_all(conn).await?,
    };
    let mut tables = Tables::new();
    for (table, column, nullable) in rows {
        tables.entry(table).or_default().push((column, nullable));
    }
    Ok(tables)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_the_same_on_both_engines() {
    super::on_server(async {
        let db = super::open("sqlite::memory:").await;
        let ours = read!(db, |tx| tables(tx));
        assert_eq!(
            ours.keys().collect::<Vec<_>>(),
            [
                "agents",
                "answer_schemas",
                "api_keys",
                "assistant_versions",
                "assistants",
                "audit",
                "auth_tickets",
                "background_tasks",
                "blobs",
                "call_tokens",
                "checkpoints",
                "crons",
                "daily_usage",
                "data_key_changes",
                "data_keys",
                "definition_changes",
                "definition_versions",
                "definitions",
                "deliveries",
                "entry_blobs",
                "events",
                "idempotency_keys",
                "interrupt_approvers",
                "interrupts",
                "item_vectors",
                "items",
                "jobs",
                "mcp_logins",
                "probes",
                "remembered_decisions",
                "remote_runs",
                "request_blobs",
                "runs",
                "sandboxes",
                "thread_bytes",
                "thread_terms",
                "threads",
                "tree_shares",
                "trees",
                "unfinished_copies",
                "workers"
            ]
        );
        db.close().await;
        if let Some(database) = postgres::fresh_database().await {
            let db = super::open(&database.url).await;
            assert_eq!(read!(db, |tx| tables(tx)), ours);
            db.close().await;
            database.discard().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_names_of_all_tables_are_those_in_the_migrations() {
    super::on_server(async {
        let db = super::open("sqlite::memory:").await;
        let there: BTreeSet<String> = read!(db, |tx| tables(tx)).into_keys().collect();
        assert_eq!(table_names(), there);
        db.close().await;
    })
    .await;
}

/// Returns the engine's plan for a statement.
pub(super) async fn plan(tx: &mut Tx<'_>, sql: &str) -> DbResult<String> {
    match &mut tx.conn {
        Conn::Sqlite(conn) => {
            let sql = AssertSqlSafe(format!("explain query plan {sql}"));
            let rows: Vec<(i64, i64, i64, String)> = query_as(sql).fetch_all(conn).await?;
            Ok(rows.into_iter().map(|row| row.3).collect::<Vec<_>>().join("\n"))
        }
        Conn::Postgres(conn) => {
            let rows: Vec<(String,)> = query_as(AssertSqlSafe(format!("explain {sql}")))
                .fetch_all(conn)
                .await?;
            Ok(rows.into_iter().map(|row| row.0).collect::<Vec<_>>().join("\n"))
        }
    }
}

/// Queries and the indexes they must use. `{id}` is replaced by an id.
const SEARCHES: [(&str, &str); 78] = [
    (
        "select digest from call_tokens where expires_at <= 5 order by expires_at limit 5",
        "call_tokens_by_expiry",
    ),
    (
        "select digest from call_tokens where task_id = {id}",
        "call_tokens_by_task",
    ),
    (
        "select digest from call_tokens where thread_id = {id}",
        "call_tokens_by_thread",
    ),
    (
        "select queue from runs where depth = 0 and status = 'pending' and queue > 'a' order by queue limit 1",
        "runs_waiting",
    ),
    (
        "select run_id from runs where queue = 'a' and depth = 0 and status = 'pending' and due_at <= 5 \
         order by due_at, run_id limit 1",
        "runs_waiting",
    ),
    (
        "select queue, 1 from runs where depth = 0 and status = 'running'",
        "runs_running",
    ),
    (
        "select count(*) from (select 1 from runs where depth = 0 and status = 'running' and queue >= 'a' \
         and queue < 'b' limit 5) found",
        "runs_running",
    ),
    (
        "select job_id from jobs where kind = 'cron' and due_at <= 5 and (worker is null or worker = {id}) \
         order by due_at, job_id limit 9",
        "jobs_due",
    ),
    (
        "select d.delivery_id, j.due_at from deliveries d left join jobs j on j.kind = 'webhook' and j.key = d.delivery_id \
         order by d.created_at desc, d.delivery_id desc limit 9",
        "deliveries_by_created",
    ),
    (
        "select * from deliveries where run_id = {id} order by created_at desc, delivery_id desc limit 9",
        "deliveries_by_run",
    ),
    (
        "select * from deliveries where status = 'dead' order by created_at desc, delivery_id desc limit 9",
        "deliveries_by_status",
    ),
    (
        "select delivery_id from deliveries where finished_at is not null and finished_at < 5 \
         order by finished_at, delivery_id limit 9",
        "deliveries_finished",
    ),
    ("select min(due_at) from jobs where kind = 'cron'", "jobs_due"),
    (
        "select * from crons order by thread_id nulls first, created_at, cron_id limit 9",
        "crons_by_thread",
    ),
    (
        "select * from crons order by due_at desc nulls last, cron_id desc limit 9",
        "crons_by_due",
    ),
    (
        "select * from crons order by end_time nulls first, cron_id limit 9",
        "crons_by_end",
    ),
    (
        "select * from crons where thread_id = {id} order by created_at desc, cron_id desc limit 9",
        "crons_by_thread",
    ),
    (
        "select * from crons where assistant_id = {id} order by created_at desc, cron_id desc limit 9",
        "crons_by_assistant",
    ),
    (
        "select * from threads order by created_at desc, thread_id desc limit 10",
        "threads_by_created",
    ),
    (
        "select * from threads order by updated_at desc, thread_id desc limit 10",
        "threads_by_updated",
    ),
    (
        "select * from threads where status = 'busy' order by updated_at desc, thread_id desc limit 10",
        "threads_by_status",
    ),
    (
        "select * from threads where status <> 'idle' and status <> 'busy' and status = 'error' \
         order by created_at desc, thread_id desc limit 10",
        "threads_stopped_by_created",
    ),
    (
        "select * from threads where status <> 'idle' and status <> 'busy' and status = 'error' \
         order by state_updated_at desc, thread_id desc limit 10",
        "threads_stopped_by_state_updated",
    ),
    (
        "select * from threads where status <> 'idle' and status <> 'busy' and status = 'error' order by thread_id limit 10",
        "threads_stopped_by_id",
    ),
    (
        "select * from runs where thread_id = {id} and depth < 1 order by created_at desc, run_id desc limit 10",
        "runs_by_thread",
    ),
    (
        "select run_id from runs where thread_id = {id} and depth < 1 and status <> 'pending' \
         order by created_at desc, run_id desc limit 1",
        "runs_by_thread",
    ),
    (
        "select ended.run_id from runs ended where ended.thread_id = {id} and ended.depth = 0 \
         and ended.first_seq is not null and ended.status not in ('pending', 'running') \
         and (coalesce(ended.turn, '') <> 'answer' or ended.status <> 'error' or exists (select 1 from interrupts answered \
         where answered.thread_id = ended.thread_id and answered.resumed_by = ended.run_id limit 1 offset 0)) \
         order by ended.first_seq desc limit 1",
        "runs_by_first_seq",
    ),
    (
        "select * from runs where parent_id = {id} order by created_at, run_id",
        "runs_by_parent",
    ),
    (
        "select * from runs where root_id = {id} and depth > 0 order by created_at, run_id",
        "runs_by_root",
    ),
    (
        "delete from runs where run_id in (select run_id from runs where run_id = {id} and depth = 0 and thread_id = {id} \
         union all select run_id from runs where root_id = {id} and depth > 0 and thread_id = {id}) \
         and run_id not in ({id}, {id})",
        "INDEX sqlite_autoindex_runs_1 (run_id=?)\nLIST SUBQUERY",
    ),
    (
        "select run_id, usage from runs where run_id = {id} and depth = 0 and usage is not null \
         union all select run_id, usage from runs where root_id = {id} and depth > 0 and usage is not null",
        "runs_by_root",
    ),
    (
        "select digest from request_blobs where run_id = {id} union all select digest from request_blobs \
         where run_id in (select run_id from runs where root_id = {id} and depth > 0)",
        "runs_by_root",
    ),
    (
        "select run_id from runs where depth = 0 and status = 'pending' and due_at <= 5 order by due_at, run_id limit 1",
        "runs_due",
    ),
    (
        "select * from runs where depth = 0 and status = 'pending' and created_at <= 5 order by due_at, run_id limit 9",
        "runs_due",
    ),
    (
        "select run_id from runs where depth = 0 and status = 'running' and thread_id > {id} order by thread_id limit 9",
        "runs_running",
    ),
    (
        "select 1 from runs where thread_id = {id} and depth = 0 and status = 'running'",
        "runs_running",
    ),
    (
        "select * from runs where thread_id = {id} and depth = 0 and status = 'pending' union all \
         select * from runs where thread_id = {id} and depth = 0 and status = 'running' order by created_at, run_id",
        "runs_queued",
    ),
    (
        "select (select count(*) from runs where thread_id = {id} and depth = 0 and status = 'pending'), \
         (select count(*) from runs where thread_id = {id} and depth = 0 and status = 'running')",
        "runs_queued",
    ),
    (
        "update runs set turn = 'unheld' where thread_id = {id} and depth = 0 and status = 'pending' \
         and turn = 'after_answers'",
        "runs_queued",
    ),
    (
        "select 1 from runs where depth = 0 and status = 'pending' and definition = 'd'",
        "runs_queued",
    ),
    (
        "select run_id, fence from runs where depth = 0 and status = 'running' and worker = {id}",
        "runs_running",
    ),
    (
        "update runs set status = 'interrupted' where thread_id = {id} and depth > 0 and status = 'running'",
        "runs_children_running",
    ),
    (
        "select child.run_id, child.cancel from runs main join runs child on child.thread_id = main.thread_id \
         where main.depth = 0 and main.status = 'running' and main.worker = {id} \
         and child.depth > 0 and child.status = 'running' and child.cancel is not null",
        "runs_children_running",
    ),
    (
        "select run_id, cancel from runs where depth = 0 and status = 'running' and worker = {id} and cancel is not null",
        "runs_running",
    ),
    (
        "update runs set worker = null where depth = 0 and status = 'running' and worker = {id}",
        "runs_running",
    ),
    (
        "select run_id, first_seq from runs where thread_id = {id} and depth = 0 and first_seq > 5 order by first_seq limit 1",
        "runs_by_first_seq",
    ),
    (
        "select run_id, first_seq from runs where thread_id = {id} and depth = 0 and first_seq <= 5 \
         order by first_seq desc limit 1",
        "runs_by_first_seq",
    ),
    (
        "select former.updated_at from runs former where former.thread_id = {id} and former.depth = 0 \
         and former.first_seq is not null order by former.first_seq desc limit 1",
        "runs_by_first_seq",
    ),
    (
        "select * from checkpoints where thread_id = {id} and lane = {id} order by seq desc limit 1",
        "sqlite_autoindex_checkpoints_2",
    ),
    (
        "select step.writes from checkpoints step where step.thread_id = {id} and step.lane = {id} \
         and step.seq >= (select upto.segment from checkpoints upto where upto.thread_id = {id} \
         and upto.checkpoint_id = {id} and upto.lane = {id}) order by step.seq",
        "sqlite_autoindex_checkpoints_2",
    ),
    (
        "select thread_id from threads where expires_at <= 5 and status <> 'busy' order by expires_at, thread_id limit 9",
        "threads_by_expiry",
    ),
    (
        "select thread_id from threads where (pruned_at is null or pruned_at < state_updated_at) \
         and state_updated_at <= 5 and status <> 'busy' order by state_updated_at, thread_id limit 9",
        "threads_unpruned",
    ),
    (
        "select checkpoint_id from checkpoints where thread_id = {id} and lane = {id} and seq < 9 order by seq desc limit 9",
        "sqlite_autoindex_checkpoints_2",
    ),
    (
        "select checkpoint_id from checkpoints where thread_id = {id} and lane = {id} and seq > 9 and source = 'update' \
         and run_id is null order by seq limit 1",
        "sqlite_autoindex_checkpoints_2",
    ),
    (
        "select * from runs where thread_id = {id} and depth < 1 and status = 'error' \
      order by created_at desc, run_id desc limit 10",
        "runs_by_thread",
    ),
    (
        "select * from interrupts where status = 'pending' order by created_at, seq, ordinal limit 10",
        "interrupts_by_status",
    ),
    ("select * from interrupts where interrupt_id = 'x'", "interrupts_by_id"),
    (
        "select 1 from interrupts where schema_digest = 'x'",
        "interrupts_by_schema",
    ),
    (
        "select 1 from interrupts where thread_id = {id} and status = 'pending'",
        "interrupts_by_thread",
    ),
    (
        "select 1 from runs where thread_id = {id} and depth = 0 and status = 'pending' and turn = 'answer'",
        "runs_with_answers",
    ),
    (
        "select thread_id from interrupts where status = 'pending' and expires_at is not null and expires_at <= 5 \
         order by expires_at limit 9",
        "interrupts_by_expiry",
    ),
    (
        "select * from remembered_decisions where thread_id = {id} order by decision_id",
        "remembered_decisions_by_thread",
    ),
    (
        "select sandbox_id from sandboxes where thread_id = {id} and service = 'lab' and agent_path = ''",
        "sandboxes_by_thread",
    ),
    (
        "select s.sandbox_id from sandboxes s where s.thread_id is null and not exists (select 1 from jobs j where \
         j.kind = 'end_sandbox' and j.key = s.sandbox_id) limit 9",
        "sandboxes_by_thread",
    ),
    (
        "select * from items where tenant = 'default' and owner = '' and namespace >= 'u.7.' and namespace < 'u.7/' \
         and (expires_at is null or expires_at > 5) order by namespace, key limit 10",
        "sqlite_autoindex_items_1",
    ),
    (
        "select * from items where tenant = 'default' and owner = '' and namespace = 'u.7.' and key = 'k'",
        "sqlite_autoindex_items_1",
    ),
    (
        "select namespace from items where tenant = 'default' and owner = '' and namespace > 'u.7.' and namespace < 'u/' \
         and (expires_at is null or expires_at > 5) order by namespace limit 1",
        "sqlite_autoindex_items_1",
    ),
    (
        "select namespace, key from items where expires_at <= 5 order by expires_at limit 500",
        "items_by_expiry",
    ),
    (
        "select * from items where tenant = 'default' and owner = '' and (namespace, key) in \
         (select wanted.column1, wanted.column2 from (values ('u.7.', 'k350'), ('u.7.', 'k351')) wanted)",
        "sqlite_autoindex_items_1 (tenant=? AND owner=? AND namespace=? AND key=?)",
    ),
    (
        "select count(*) from (select 1 as one from threads where tenant = 'acme' and owner = 'ann' limit 9) few",
        "threads_by_owner",
    ),
    (
        "select * from crons where tenant = 'acme' and owner = 'ann' order by created_at desc, cron_id desc limit 9",
        "crons_by_tenant",
    ),
    (
        "select * from deliveries where tenant = 'acme' and owner = 'ann' \
         order by created_at desc, delivery_id desc limit 9",
        "deliveries_by_tenant",
    ),
    (
        "select count(*) from crons where true and tenant = 'acme' and (owner = 'ann')",
        "crons_by_tenant",
    ),
    (
        "select count(*) from deliveries d where true and d.status = 'pending' and d.tenant = 'acme' and (d.owner = 'ann')",
        "deliveries_by_tenant",
    ),
    (
        "select * from items where tenant = 'default' and owner = '' and namespace >= 'u.7.' and namespace < 'u.7/' \
         and (expires_at is null or expires_at > 5) order by namespace, key limit 10 offset 0",
        "sqlite_autoindex_items_1",
    ),
    (
        "select count(*) from assistants where tenant in ('*', 'acme') and (owner = 'ann' or tenant = '*')",
        "assistants_by_tenant",
    ),
    (
        "select * from interrupts where status = 'pending' and exists (select 1 from threads scoped \
         where scoped.thread_id = interrupts.thread_id and scoped.tenant = 'acme') order by created_at, seq, ordinal limit 9",
        "interrupts_by_status",
    ),
    (
        "select resumed_by, run_id, seq from interrupts where thread_id = {id} and resumed_by is not null \
         order by interrupt_id limit 33",
        "PRIMARY KEY",
    ),
];

async fn check_plans(db: &Db, id: &'static str) {
    for (sql, index) in SEARCHES {
        let sql = sql.replace("{id}", id);
        let explained = sql.clone();
        let plan = read!(db, |tx| plan(tx, &explained));
        assert!(plan.contains(index), "{sql}\n{plan}");
        assert!(
            !plan.contains("TEMP B-TREE") && !plan.contains("Seq Scan"),
            "{sql}\n{plan}"
        );
    }
}

/// Checks that SQLite reads a part of the log from its indexes, in order, and the history of an agent without the steps of
/// other agents.
async fn check_plans_of_log(db: &Db) {
    const OF_MAIN: &str = "sqlite_autoindex_checkpoints_2 (thread_id=? AND lane=?";
    const OF_SUBAGENTS: &str = "checkpoints_of_children (thread_id=?";
    let page = "select seq from checkpoints where thread_id = x'00' and seq > 1 and lane = x'' union all \
        select seq from checkpoints where thread_id = x'00' and seq > 1 and lane <> x'' union all \
        select seq from events where thread_id = x'00' and seq > 1 order by seq limit 9";
    let merged = read!(db, |tx| plan(tx, page));
    assert!(merged.contains("MERGE") && !merged.contains("TEMP B-TREE"), "{merged}");
    for index in [OF_MAIN, OF_SUBAGENTS] {
        assert!(merged.contains(&format!("{index} AND seq>?)")), "{merged}");
    }
    let head = "select * from checkpoints where thread_id = x'00' and lane = x'' order by seq desc limit 1";
    let newest = read!(db, |tx| plan(tx, head));
    assert!(newest.contains(OF_MAIN) && !newest.contains("TEMP B-TREE"), "{newest}");
    let blobs = "delete from entry_blobs where thread_id = x'00' and not exists (select 1 from checkpoints found \
        where found.thread_id = x'00' and found.seq = entry_blobs.seq and lane = x'') and not exists (select 1 \
        from checkpoints found where found.thread_id = x'00' and found.seq = entry_blobs.seq and lane <> x'')";
    let unused = read!(db, |tx| plan(tx, blobs));
    for index in [OF_MAIN, OF_SUBAGENTS] {
        assert!(unused.contains(&format!("{index} AND seq=?)")), "{unused}");
    }
}

/// Checks that SQLite reads the open interrupts of a thread without those that were answered.
async fn check_plan_of_interrupts(db: &Db) {
    let open = "select * from interrupts indexed by interrupts_by_thread where thread_id = x'00' and status = 'pending' \
        order by seq, ordinal";
    let plan = read!(db, |tx| plan(tx, open));
    assert!(
        plan.contains("interrupts_by_thread (thread_id=? AND status=?)"),
        "{plan}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_use_indexes_on_sqlite() {
    super::on_server(async {
        let db = super::open("sqlite::memory:").await;
        check_plans(&db, "x'00'").await;
        check_plans_of_log(&db).await;
        check_plan_of_interrupts(&db).await;
        db.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_use_indexes_on_postgres() {
    super::on_server(async {
    const FILL: &str = "insert into threads (thread_id, tenant, owner, status, metadata, config, error, created_at, updated_at, \
        state_updated_at) select gen_random_uuid(), 'default', '', case n % 4 when 0 then 'busy' else 'idle' end, \
        jsonb_build_object('n', n), '{}', null, n, n, n from generate_series(1, 5000) n; \
        insert into runs (run_id, thread_id, assistant_id, root_id, parent_id, depth, cause, namespace, path, status, \
        queue, request, metadata, error, attempt, worker, fence, cancel, created_at, updated_at, due_at, crashes) \
        select gen_random_uuid(), thread_id, thread_id, gen_random_uuid(), gen_random_uuid(), 0, null, \
        '', '[]', case created_at % 10 when 0 then 'pending' when 1 then 'running' else 'success' end, 'default/-/-/0', '{}', '{}', null, \
        1, null, 0, null, created_at, 0, 0, 0 from threads; \
        insert into blobs values ('default', 'b', 1, false, ''); \
        insert into request_blobs (run_id, digest, thread_id, tenant, bytes) select run_id, 'b', thread_id, 'default', 1 from runs; \
        insert into checkpoints (checkpoint_id, thread_id, lane, seq, segment, parent_id, step, source, node, run_id, \
        writes, shown, position, created_at) select gen_random_uuid(), thread_id, thread_id, n, 1, null, 0, '', '', null, '', null, '', \
        0 from (select thread_id from threads limit 50) t, generate_series(1, 200) n; \
        insert into interrupts (interrupt_id, thread_id, run_id, lane, agent_name, path, task_id, task_call_id, status, \
        interrupt, resolution, resumed_by, created_at, resolved_at, seq, ordinal) select 'q' || created_at, thread_id, thread_id, thread_id, '', '[]', thread_id, null, \
        case created_at % 100 when 0 then 'pending' else 'resolved' end, '', null, null, created_at, null, 0, 0 from threads; \
        insert into assistants values ('00000000-0000-7000-8000-000000000001', 'default', '', 1, '', '{}', '{}', '{}', '', '', null, 0, 0); \
        insert into crons select gen_random_uuid(), 'default', '', '00000000-0000-7000-8000-000000000001', thread_id, '', null, created_at, true, true, created_at, \
        '', '', metadata, created_at, created_at from threads; \
        insert into deliveries select gen_random_uuid(), 'default', '', thread_id, thread_id, '', '', \
        case created_at % 100 when 0 then 'pending' else 'delivered' end, 1, null, null, created_at, \
        case created_at % 100 when 0 then null else created_at end from threads; \
        insert into jobs select gen_random_uuid(), 'cron', cron_id, thread_id, assistant_id, created_at, 0, null, 0 from crons; \
        insert into items select 'default', '', 'u.' || n / 50 || '.', 'k' || n, '{}', null, case n % 10 when 0 then n end, 0, 0 \
        from generate_series(1, 5000) n; analyze";
    let Some(database) = postgres::fresh_database().await else {
        return;
    };
    let db = super::open(&database.url).await;
    db.write(|tx| {
        Box::pin(async move {
            if let Conn::Postgres(conn) = &mut tx.conn {
                sqlx::raw_sql(FILL).execute(conn).await?;
            }
            DbResult::Ok(())
        })
    })
    .await
    .expect("a write");
    check_plans_of_postgres(&db).await;
    db.close().await;
    database.discard().await;
    })
    .await;
}

/// Checks that Postgres uses an index for each query. Which one, and sorting a few rows, is left to its planner.
async fn check_plans_of_postgres(db: &Db) {
    for (sql, _) in SEARCHES {
        let sql = sql.replace("{id}", "'00000000-0000-7000-8000-000000000000'");
        let explained = sql.clone();
        let plan = read!(db, |tx| plan(tx, &explained));
        assert!(plan.contains("Index") && !plan.contains("Seq Scan"), "{sql}\n{plan}");
    }
}
