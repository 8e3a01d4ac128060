//! The ownership of resources: the facts that decide about access to a resource, and the conditions that limit a search
//! to the resources of its scope.
//!
//! Threads, assistants, crons, deliveries and items have the columns `tenant` and `owner`. Whatever belongs to a thread
//! (runs, interrupts, events) has the ownership of the thread.

use serde_json::{Map, Value};
use sqlx::{QueryBuilder, query_scalar};
use uuid::Uuid;

use super::codec::json::ColumnRef;
use super::engine::{Contains, on_engine};
use super::row::from_row;
use super::{DbResult, Tx};
use crate::domain::access::{AccessScope, Ownership, ResourceFacts};
use crate::domain::id::{AssistantId, CronId, DeliveryId, RunId, ThreadId};
use crate::domain::identity::{Tenant, UserId};
use crate::domain::ruling::{RowCondition, Ruling};
use crate::domain::tenant_agents::TenantAgents;

/// Returns the ownership in the columns of a row.
pub(super) fn ownership(tenant: String, owner: String) -> Ownership {
    Ownership {
        tenant: Tenant::stored(tenant),
        owner: UserId::stored(owner),
    }
}

/// Returns the word in the column `tenant` of rows that belong to the server.
fn tenant_of_server() -> String {
    Ownership::of_server().tenant.into()
}

from_row! {
    /// The columns of a resource that decide about access.
    struct FactsRow {
        tenant: String,
        owner: String,
        metadata: Option<String>,
    }
}

from_row! {
    /// The columns of an assistant that decide about access.
    struct AssistantFactsRow {
        graph_id: String,
        ..facts: FactsRow,
    }
}

/// Returns the facts in the columns of a resource, which is a row of `table`.
fn facts_of(row: FactsRow, table: &'static str, id: Uuid) -> ResourceFacts {
    let cell = ColumnRef {
        table,
        column: "metadata",
        id: &id,
    };
    // Metadata that cannot be read share nothing.
    let metadata = row.metadata.map(|text| cell.decode_or_log::<Map<String, Value>>(&text));
    ResourceFacts {
        ownership: ownership(row.tenant, row.owner),
        is_unreadable: metadata == Some(None),
        metadata: metadata.flatten().unwrap_or_default(),
        ..ResourceFacts::default()
    }
}

/// Reads the facts of a resource by one statement.
async fn find_facts(
    tx: &mut Tx<'_>,
    sql: &'static str,
    table: &'static str,
    id: Uuid,
) -> DbResult<Option<ResourceFacts>> {
    let row: Option<FactsRow> = tx.statement(sql).bind(id).fetch_optional().await?;
    Ok(row.map(|row| facts_of(row, table, id)))
}

/// Returns the facts about a thread, with its metadata if a rule for sharing needs them. A background task on another
/// server, which has no thread here, has the facts of the thread that gave it away.
pub async fn thread_facts(tx: &mut Tx<'_>, id: ThreadId, with_metadata: bool) -> DbResult<Option<ResourceFacts>> {
    const PLAIN: &str = "select tenant, owner, null as metadata from threads where thread_id = $1 \
        union all select p.tenant, p.owner, null from background_tasks b join threads p on p.thread_id = b.parent_thread \
        where b.task_id = $1 and not exists (select 1 from threads where thread_id = $1)";
    const WITH_METADATA: &str = "select tenant, owner, cast(metadata as text) as metadata from threads \
        where thread_id = $1 union all select p.tenant, p.owner, cast(p.metadata as text) from background_tasks b \
        join threads p on p.thread_id = b.parent_thread \
        where b.task_id = $1 and not exists (select 1 from threads where thread_id = $1)";
    let sql = if with_metadata { WITH_METADATA } else { PLAIN };
    find_facts(tx, sql, "threads", id.0).await
}

/// Adds the metadata of the threads above that of a background task to its facts.
pub async fn add_metadata_above(tx: &mut Tx<'_>, id: ThreadId, facts: &mut ResourceFacts) -> DbResult<()> {
    const SQL: &str = "with recursive above(thread_id) as (\
        select parent_thread from background_tasks where task_id = $1 \
        union select b.parent_thread from above join background_tasks b on b.task_id = above.thread_id) \
        select cast(t.metadata as text) from above join threads t on t.thread_id = above.thread_id";
    let texts: Vec<String> = on_engine!(tx, |conn| query_scalar(SQL).bind(id.0).fetch_all(conn).await)?;
    for text in texts {
        let cell = ColumnRef {
            table: "threads",
            column: "metadata",
            id: &id.0,
        };
        let metadata = cell.decode_or_log(&text);
        facts.is_unreadable |= metadata.is_none();
        facts.above.extend(metadata);
    }
    Ok(())
}

/// Returns the facts about an assistant, with its metadata if a rule for sharing needs them.
pub async fn assistant_facts(tx: &mut Tx<'_>, id: AssistantId, with_metadata: bool) -> DbResult<Option<ResourceFacts>> {
    const PLAIN: &str = "select tenant, owner, null as metadata, graph_id from assistants where assistant_id = $1";
    const WITH_METADATA: &str =
        "select tenant, owner, cast(metadata as text) as metadata, graph_id from assistants where assistant_id = $1";
    let sql = if with_metadata { WITH_METADATA } else { PLAIN };
    let row: Option<AssistantFactsRow> = tx.statement(sql).bind(id.0).fetch_optional().await?;
    Ok(row.map(|row| ResourceFacts {
        graph_id: Some(row.graph_id),
        ..facts_of(row.facts, "assistants", id.0)
    }))
}

/// Returns the facts about a cron. Crons cannot be shared, so their metadata are not read.
pub async fn cron_facts(tx: &mut Tx<'_>, id: CronId) -> DbResult<Option<ResourceFacts>> {
    const SQL: &str = "select tenant, owner, null as metadata from crons where cron_id = $1";
    find_facts(tx, SQL, "crons", id.0).await
}

/// Returns the facts about a delivery. Deliveries cannot be shared.
pub async fn delivery_facts(tx: &mut Tx<'_>, id: DeliveryId) -> DbResult<Option<ResourceFacts>> {
    const SQL: &str = "select tenant, owner, null as metadata from deliveries where delivery_id = $1";
    find_facts(tx, SQL, "deliveries", id.0).await
}

/// Returns the thread of a run.
pub async fn run_thread(tx: &mut Tx<'_>, run: RunId) -> DbResult<Option<ThreadId>> {
    const SQL: &str = "select thread_id from runs where run_id = $1";
    let found: Option<(Uuid,)> = tx.statement(SQL).bind(run.0).fetch_optional().await?;
    Ok(found.map(|(thread,)| ThreadId(thread)))
}

/// Appends the condition that a row of the tenant belongs to this owner, or to any. `alias` is that of its table with a
/// period, or nothing.
pub(super) fn push_owner<DB>(sql: &mut QueryBuilder<DB>, alias: &'static str, tenant: &Tenant, owner: Option<&UserId>)
where
    DB: sqlx::Database,
    for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
{
    sql.push(alias).push("tenant = ").push_bind(tenant.as_str());
    if let Some(owner) = owner {
        sql.push(" and ").push(alias).push("owner = ").push_bind(owner.as_str());
    }
}

/// The rows to which a scope is applied.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScopedRows {
    /// The alias of their table with a period, or nothing.
    pub(super) alias: &'static str,
    /// True if their metadata can share them with the tenant.
    pub(super) can_be_shared: bool,
    /// True if they are threads.
    pub(super) are_threads: bool,
    /// True if the server itself owns some of them, which all scopes but [`AccessScope::Nothing`] contain.
    pub(super) some_are_of_server: bool,
    /// True if they are found by the index of another condition, so that the index of owners must not be used.
    pub(super) by_other_index: bool,
}

/// Appends the condition that a row is in the scope, after `and`.
pub(super) fn push_scope<DB>(sql: &mut QueryBuilder<DB>, scope: &AccessScope, rows: ScopedRows) -> DbResult<()>
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    let (tenant, own) = match scope {
        AccessScope::Server => return Ok(()),
        AccessScope::Nothing => {
            sql.push(" and false");
            return Ok(());
        }
        AccessScope::Tenant(tenant) => (tenant, None),
        AccessScope::Own { ownership, shared } => (&ownership.tenant, Some((&ownership.owner, shared))),
        AccessScope::Ruled { tenant, base, ruling } => return push_ruled(sql, tenant, base, ruling, rows),
    };
    let alias = rows.alias;
    push_tenant(sql, tenant, rows);
    let Some((owner, shared)) = own else { return Ok(()) };
    sql.push(" and (").push(alias).push("owner = ");
    sql.push_text(owner.as_str());
    if rows.some_are_of_server {
        sql.push(" or ").push(alias).push("tenant = ");
        sql.push_text(&tenant_of_server());
    }
    if rows.can_be_shared {
        for filter in shared {
            sql.push(" or ")
                .push_contains(&format!("{alias}metadata"), filter.wanted())?;
        }
    }
    sql.push(")");
    Ok(())
}

/// Appends the condition that a row belongs to the tenant, or to the server if such rows are there, after `and`.
fn push_tenant<DB>(sql: &mut QueryBuilder<DB>, tenant: &Tenant, rows: ScopedRows)
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    sql.push(" and ");
    if rows.by_other_index {
        sql.push(<QueryBuilder<DB> as Contains>::WITHOUT_INDEX);
    }
    sql.push(rows.alias).push("tenant");
    if rows.some_are_of_server {
        sql.push(" in (");
        sql.push_text(&tenant_of_server());
        sql.push(", ");
        sql.push_text(tenant.as_str());
        sql.push(")");
    } else {
        sql.push(" = ");
        sql.push_text(tenant.as_str());
    }
}

/// Appends the condition for rows that access policies leave: no policy forbids the row, and the roles allow it or a
/// policy permits it.
fn push_ruled<DB>(
    sql: &mut QueryBuilder<DB>,
    tenant: &Tenant,
    base: &AccessScope,
    ruling: &Ruling,
    rows: ScopedRows,
) -> DbResult<()>
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    push_tenant(sql, tenant, rows);
    push_unforbidden(sql, &ruling.forbids, rows)?;
    sql.push(" and ((true");
    push_scope(sql, base, rows)?;
    // Rows of the server do not belong to the tenant.
    sql.push(") or (").push(rows.alias).push("tenant = ");
    sql.push_text(tenant.as_str());
    push_permitted(sql, &ruling.permits, rows)?;
    sql.push("))");
    Ok(())
}

/// Appends the condition that policies permit a row, after `and`. Metadata that are no object cannot be read, and permit
/// nothing.
pub(super) fn push_permitted<DB>(sql: &mut QueryBuilder<DB>, permits: &RowCondition, rows: ScopedRows) -> DbResult<()>
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    sql.push(" and ");
    push_condition(sql, permits, rows)?;
    if rows.can_be_shared && permits.asks_metadata() {
        sql.push(" and ").push_is_object(&format!("{}metadata", rows.alias));
    }
    Ok(())
}

/// Appends the condition that policies do not forbid a row, after `and`. What they forbid on a thread, they forbid on the
/// threads of its background tasks, too. Metadata that are no object cannot be read, and may be any.
pub(super) fn push_unforbidden<DB>(sql: &mut QueryBuilder<DB>, forbids: &RowCondition, rows: ScopedRows) -> DbResult<()>
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    let alias = rows.alias;
    sql.push(" and not ");
    push_condition(sql, forbids, rows)?;
    if !rows.can_be_shared || !forbids.asks_metadata() {
        return Ok(());
    }
    sql.push(" and ").push_is_object(&format!("{alias}metadata"));
    if !rows.are_threads {
        return Ok(());
    }
    let above = ScopedRows {
        alias: "higher.",
        ..rows
    };
    sql.push(" and (not exists (select 1 from background_tasks task where task.task_id = ")
        .push(alias)
        .push("thread_id) or not exists (with recursive above(thread_id) as (")
        .push("select task.parent_thread from background_tasks task where task.task_id = ")
        .push(alias)
        .push("thread_id union select task.parent_thread from above ")
        .push("join background_tasks task on task.task_id = above.thread_id) ")
        .push("select 1 from above cross join threads higher where higher.thread_id = above.thread_id and (not ")
        .push_is_object("higher.metadata");
    sql.push(" or ");
    push_condition(sql, forbids, above)?;
    sql.push(")))");
    Ok(())
}

/// Appends the condition of a ruling, in parentheses.
fn push_condition<DB>(sql: &mut QueryBuilder<DB>, condition: &RowCondition, rows: ScopedRows) -> DbResult<()>
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    let alias = rows.alias;
    sql.push("(");
    match condition {
        RowCondition::Is(truth) => {
            sql.push(if *truth { "true" } else { "false" });
        }
        RowCondition::OwnedBy(user) => {
            sql.push(alias).push("owner = ");
            sql.push_text(user.as_str());
        }
        RowCondition::Metadata(filter) if rows.can_be_shared => {
            sql.push_contains(&format!("{alias}metadata"), filter.wanted())?;
        }
        RowCondition::Metadata(_) => {
            sql.push("false");
        }
        RowCondition::OtherAgent(agents) => push_other_agent(sql, agents, alias),
        RowCondition::Not(inner) => {
            sql.push("not ");
            push_condition(sql, inner, rows)?;
        }
        RowCondition::All(all) => push_list(sql, all, " and ", rows)?,
        RowCondition::Any(any) => push_list(sql, any, " or ", rows)?,
    }
    sql.push(")");
    Ok(())
}

/// Appends the condition that the agent of an assistant is not among these.
fn push_other_agent<DB>(sql: &mut QueryBuilder<DB>, agents: &TenantAgents, alias: &'static str)
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    sql.push("false");
    if let Some(patterns) = agents.allowed_names() {
        sql.push(" or ");
        push_not_matched(sql, patterns, alias);
    }
    let mut others = agents.of_others();
    if let Some(first) = others.next() {
        sql.push(" or ").push(alias).push("graph_id in (");
        sql.push_text(first);
        for graph_id in others {
            sql.push(", ");
            sql.push_text(graph_id);
        }
        sql.push(")");
    }
}

/// Appends the condition that the agent of an assistant matches none of these patterns.
fn push_not_matched<DB>(sql: &mut QueryBuilder<DB>, patterns: &[String], alias: &'static str)
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    sql.push("not (false");
    for pattern in patterns {
        sql.push(" or ");
        match pattern.strip_suffix('*') {
            // Unlike `like`, this compares upper and lower case, and has no further wildcards.
            Some(start) => {
                let length = start.chars().count();
                sql.push("substr(")
                    .push(alias)
                    .push("graph_id, 1, ")
                    .push(length)
                    .push(") = ");
                sql.push_text(start);
            }
            None => {
                sql.push(alias).push("graph_id = ");
                sql.push_text(pattern);
            }
        }
    }
    sql.push(")");
}

fn push_list<DB>(
    sql: &mut QueryBuilder<DB>,
    conditions: &[RowCondition],
    between: &str,
    rows: ScopedRows,
) -> DbResult<()>
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    for (at, condition) in conditions.iter().enumerate() {
        if at > 0 {
            sql.push(between);
        }
        push_condition(sql, condition, rows)?;
    }
    Ok(())
}

/// Returns whether a thread is in the scope.
pub async fn contains_thread(tx: &mut Tx<'_>, scope: &AccessScope, thread: ThreadId) -> DbResult<bool> {
    let found: Option<i64> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select cast(1 as bigint) from threads wanted where wanted.thread_id = ");
        sql.push_bind(thread.0);
        push_scope_of_thread(&mut sql, scope, "wanted.thread_id")?;
        sql.build_query_scalar().fetch_optional(conn).await
    })?;
    Ok(found.is_some())
}

/// Appends the condition that the thread named by `column` is in the scope, after `and`.
pub(super) fn push_scope_of_thread<DB>(
    sql: &mut QueryBuilder<DB>,
    scope: &AccessScope,
    column: &'static str,
) -> DbResult<()>
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
{
    let rows = ScopedRows {
        alias: "scoped.",
        can_be_shared: true,
        are_threads: true,
        some_are_of_server: false,
        by_other_index: true,
    };
    match scope {
        AccessScope::Server | AccessScope::Nothing => push_scope(sql, scope, rows),
        AccessScope::Tenant(_) | AccessScope::Own { .. } | AccessScope::Ruled { .. } => {
            sql.push(" and exists (select 1 from threads scoped where scoped.thread_id = ")
                .push(column);
            push_scope(sql, scope, rows)?;
            sql.push(")");
            Ok(())
        }
    }
}
