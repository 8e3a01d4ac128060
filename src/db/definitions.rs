//! The tables of agent definitions: their contents by digest, the versions of each agent, and the agents that clients
//! defined.

use std::collections::{HashMap, HashSet};

use const_format::concatcp;
use sqlx::{QueryBuilder, query, query_as, query_scalar};

use super::codec::json::{ColumnRef, readable, unless_corrupt};
use super::engine::{Conn, on_engine};
use super::list_part::{ListBuilder, ListPart, PageQuery};
use super::row::from_row;
use super::{DbResult, Notification, Tx, notifications};
use crate::definition::{AgentDefinition, DefinitionDigest, DefinitionSource, DefinitionVersion};
use crate::domain::id::AssistantId;
use crate::domain::identity::Tenant;
use crate::domain::time::Timestamp;

const SELECT_VERSION: &str = "\
    select v.graph_id, v.version, v.digest, v.origin, v.created_at, d.body from definition_versions v \
    join definitions d on d.digest = v.digest";

const SELECT_OF_CLIENTS: &str = "\
    select v.graph_id, v.version, v.digest, v.origin, v.created_at, d.body, a.tenant from definition_versions v \
    join definitions d on d.digest = v.digest join agents a on a.graph_id = v.graph_id and a.version = v.version";

/// The condition that a version is there for a reader of the tenant `$2`, or for all if that is null: a file or a client of this
/// tenant has defined it. An agent of a file may have versions of a client who took the name before.
const IS_THERE: &str = " and (v.origin <> '' or cast($2 as text) is null \
    or exists (select 1 from agents a where a.graph_id = v.graph_id and a.tenant = $2))";

/// An agent that a client defined.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientAgent {
    /// The tenant of the client.
    pub tenant: Tenant,
    /// The current version.
    pub version: DefinitionVersion,
}

from_row! {
    struct ClientAgentRow {
        tenant: String,
        ..version: VersionRow,
    }
}

impl TryFrom<ClientAgentRow> for ClientAgent {
    type Error = super::DbError;

    fn try_from(row: ClientAgentRow) -> DbResult<Self> {
        Ok(Self {
            tenant: Tenant::stored(row.tenant),
            version: row.version.try_into()?,
        })
    }
}

from_row! {
    struct VersionRow {
        graph_id: String,
        version: i64,
        digest: String,
        origin: String,
        created_at: i64,
        body: String,
    }
}

impl TryFrom<VersionRow> for DefinitionVersion {
    type Error = super::DbError;

    fn try_from(row: VersionRow) -> DbResult<Self> {
        let definition = decode(&row.digest, &row.body)?;
        let definition_source = if row.origin.is_empty() {
            DefinitionSource::Client
        } else {
            DefinitionSource::File(row.origin)
        };
        Ok(Self {
            graph_id: row.graph_id,
            number: row.version,
            digest: DefinitionDigest(row.digest),
            definition_source,
            definition,
            created_at: Timestamp(row.created_at),
        })
    }
}

/// The condition that nothing needs the content `d`: no version, no pending or running run, and no run on a busy or
/// interrupted thread.
const IS_UNUSED: &str = "not exists (select 1 from definition_versions v where v.digest = d.digest) \
    and not exists (select 1 from runs r where r.depth = 0 and r.status = 'pending' and r.definition = d.digest) \
    and not exists (select 1 from runs r where r.depth = 0 and r.status = 'running' and r.definition = d.digest) \
    and not exists (select 1 from threads t join runs r on r.thread_id = t.thread_id \
    where t.status in ('busy', 'interrupted') and r.definition = d.digest)";

/// Returns the column with the content of a definition.
fn cell(digest: &String) -> ColumnRef<'_, String> {
    ColumnRef {
        table: "definitions",
        column: "body",
        id: digest,
    }
}

/// Decodes a definition, possibly of an earlier release: unknown fields are logged and ignored.
fn decode(digest: &String, body: &str) -> DbResult<AgentDefinition> {
    let cell = cell(digest);
    let reading = AgentDefinition::from_stored(cell.decode(body)?);
    for finding in &reading.findings {
        tracing::warn!(digest, %finding, "ignored a part of a stored definition that this release does not know");
    }
    reading.value.ok_or_else(|| cell.corrupt())
}

/// Stores a new version of an agent, unless its newest version is the same definition. Returns the newest version.
pub async fn keep(
    tx: &mut Tx<'_>,
    graph_id: &str,
    definition: &AgentDefinition,
    definition_source: &DefinitionSource,
    now: Timestamp,
) -> DbResult<DefinitionVersion> {
    let version = DefinitionVersion::first(graph_id, definition.clone(), definition_source.clone(), now);
    store_contents(tx, std::slice::from_ref(&version)).await?;
    add_version(tx, version).await
}

/// Stores a version of each of these agents as [`keep`] does, with few statements. The versions are the first ones of
/// their agents, as if nothing were stored. Returns the newest versions, in the same order.
pub async fn keep_all(tx: &mut Tx<'_>, versions: Vec<DefinitionVersion>) -> DbResult<Vec<DefinitionVersion>> {
    store_contents(tx, &versions).await?;
    let graph_ids: Vec<&str> = versions.iter().map(|version| version.graph_id.as_str()).collect();
    let newest = newest_headers(tx, &graph_ids).await?;
    let is_new = |version: &&DefinitionVersion| !newest.contains_key(&version.graph_id);
    let new: Vec<&DefinitionVersion> = versions.iter().filter(is_new).collect();
    // Otherwise another server has just stored the first version of one of them.
    let are_inserted = usize::try_from(insert_versions(tx, &new).await?) == Ok(new.len());
    let mut kept = vec![];
    for version in versions {
        let stored = match newest.get(&version.graph_id) {
            Some(header) if header.is_of(&version) => header.number(version),
            None if are_inserted => version,
            Some(_) | None => add_version(tx, version).await?,
        };
        kept.push(stored);
    }
    Ok(kept)
}

/// Stores the contents of versions.
async fn store_contents(tx: &mut Tx<'_>, versions: &[DefinitionVersion]) -> DbResult<()> {
    const SQL: &str = "insert into definitions (digest, body, used_at) values ";
    const END: &str = " on conflict (digest) do update set body = excluded.body, used_at = excluded.used_at";
    let sealer = tx.sealer_of_server().await?;
    // Agents can have the same content, and a statement changes a row once.
    let mut digests = HashSet::new();
    let mut rows = vec![];
    for version in versions {
        let digest = &version.digest.0;
        if digests.insert(digest) {
            let body = sealer.seal(&cell(digest), version.definition.text())?;
            rows.push((digest.as_str(), body, version.created_at.0));
        }
    }
    tx.insert_later(SQL, END, 3, rows, |values, (digest, body, used_at)| {
        values.push_bind(digest).push_bind(body).push_bind(used_at);
    })
    .await
}

/// Stores a version of an agent as its newest one, unless the newest one is the same definition already. The content is
/// stored before. Returns the newest version.
async fn add_version(tx: &mut Tx<'_>, mut version: DefinitionVersion) -> DbResult<DefinitionVersion> {
    loop {
        let newest = newest_headers(tx, &[version.graph_id.as_str()])
            .await?
            .remove(&version.graph_id);
        version.number = match newest {
            Some(newest) if newest.is_of(&version) => return Ok(newest.number(version)),
            Some(newest) => {
                touch(tx, &DefinitionDigest(newest.digest), version.created_at).await?;
                newest.version + 1
            }
            None => 1,
        };
        // Otherwise another server stored this number first: try the next one.
        if insert_versions(tx, &[&version]).await? == 1 {
            return Ok(version);
        }
    }
}

/// Stores versions, unless their numbers are taken. Returns how many were stored.
async fn insert_versions(tx: &mut Tx<'_>, versions: &[&DefinitionVersion]) -> DbResult<u64> {
    const SQL: &str = "insert into definition_versions (graph_id, version, digest, origin, created_at) ";
    if versions.is_empty() {
        return Ok(0);
    }
    let inserted = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SQL);
        sql.push_values(versions, |mut row, version| {
            row.push_bind(version.graph_id.as_str())
                .push_bind(version.number)
                .push_bind(version.digest.0.as_str())
                .push_bind(version.definition_source.file().unwrap_or_default())
                .push_bind(version.created_at.0);
        });
        sql.push(" on conflict (graph_id, version) do nothing");
        sql.build().execute(conn).await.map(|done| done.rows_affected())
    })?;
    Ok(inserted)
}

from_row! {
    /// A version of an agent without its content, which may be unreadable.
    struct VersionHeader {
        graph_id: String,
        version: i64,
        digest: String,
        origin: String,
        created_at: i64,
    }
}

impl VersionHeader {
    /// Returns whether the stored version has the definition of `version`, from the same place.
    fn is_of(&self, version: &DefinitionVersion) -> bool {
        self.digest == version.digest.0 && self.origin == version.definition_source.file().unwrap_or_default()
    }

    /// Returns `version` with the number and the time of the stored version.
    fn number(&self, version: DefinitionVersion) -> DefinitionVersion {
        DefinitionVersion {
            number: self.version,
            created_at: Timestamp(self.created_at),
            ..version
        }
    }
}

/// Returns the newest versions of these agents, by `graph_id`.
async fn newest_headers(tx: &mut Tx<'_>, graph_ids: &[&str]) -> DbResult<HashMap<String, VersionHeader>> {
    const SQL: &str = "select v.graph_id, v.version, v.digest, v.origin, v.created_at from definition_versions v \
        where v.version = (select max(w.version) from definition_versions w where w.graph_id = v.graph_id) \
        and v.graph_id in (";
    if graph_ids.is_empty() {
        return Ok(HashMap::new());
    }
    let headers: Vec<VersionHeader> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SQL);
        let mut list = sql.separated(", ");
        for graph_id in graph_ids {
            list.push_bind(*graph_id);
        }
        sql.push(")");
        sql.build_query_as().fetch_all(conn).await
    })?;
    let by_agent = headers.into_iter().map(|header| (header.graph_id.clone(), header));
    Ok(by_agent.collect())
}

/// Sets the time at which a definition went out of use. For a moment, runs may still be admitted with it.
async fn touch(tx: &mut Tx<'_>, digest: &DefinitionDigest, now: Timestamp) -> DbResult<()> {
    const SQL: &str = "update definitions set used_at = $2 where digest = $1";
    Ok(on_engine!(tx, |conn| query(SQL)
        .bind(&digest.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?)
}

/// Returns the definition with this digest.
pub async fn find(tx: &mut Tx<'_>, digest: &DefinitionDigest) -> DbResult<Option<AgentDefinition>> {
    const SQL: &str = "select body from definitions where digest = $1";
    let body: Option<String> = on_engine!(tx, |conn| query_scalar(SQL).bind(&digest.0).fetch_optional(conn).await)?;
    body.map(|body| decode(&digest.0, &body)).transpose()
}

/// Returns the source of a definition of an agent: a file if any version with this digest came from one.
pub async fn origin(tx: &mut Tx<'_>, graph_id: &str, digest: &DefinitionDigest) -> DbResult<DefinitionSource> {
    const SQL: &str = "select max(origin) from definition_versions where digest = $1 and graph_id = $2";
    let origin: Option<String> = on_engine!(tx, |conn| query_scalar(SQL)
        .bind(&digest.0)
        .bind(graph_id)
        .fetch_one(conn)
        .await)?;
    let file = origin.filter(|origin| !origin.is_empty());
    Ok(file.map_or(DefinitionSource::Client, DefinitionSource::File))
}

/// Returns the newest version of an agent.
pub async fn newest(tx: &mut Tx<'_>, graph_id: &str) -> DbResult<Option<DefinitionVersion>> {
    let newest = PageQuery {
        limit: 1,
        offset: 0,
        bytes: usize::MAX,
    };
    Ok(versions(tx, graph_id, None, newest).await?.into_items().pop())
}

/// Returns a version of an agent, if it is there for a reader of this tenant; for all if none is given.
pub async fn version(
    tx: &mut Tx<'_>,
    graph_id: &str,
    reader: Option<&Tenant>,
    number: i64,
) -> DbResult<Option<DefinitionVersion>> {
    const SQL: &str = concatcp!(SELECT_VERSION, " where v.graph_id = $1 and v.version = $3", IS_THERE);
    let reader = reader.map(Tenant::as_str);
    let row: Option<VersionRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(graph_id)
        .bind(reader)
        .bind(number)
        .fetch_optional(conn)
        .await)?;
    row.map(DefinitionVersion::try_from).transpose()
}

/// Returns a page of the versions of an agent that are there for a reader of this tenant, newest first; of all versions if
/// no tenant is given.
pub async fn versions(
    tx: &mut Tx<'_>,
    graph_id: &str,
    reader: Option<&Tenant>,
    page: PageQuery,
) -> DbResult<ListPart<DefinitionVersion>> {
    const SQL: &str = concatcp!(
        SELECT_VERSION,
        " where v.graph_id = $1",
        IS_THERE,
        " order by v.version desc limit $3 offset $4"
    );
    let reader = reader.map(Tenant::as_str);
    let mut filling = ListBuilder::new(page.limit, page.bytes);
    while let Some(next) = filling.next() {
        let offset = page.offset + filling.count();
        let rows: Vec<VersionRow> = on_engine!(tx, |conn| query_as(SQL)
            .bind(graph_id)
            .bind(reader)
            .bind(next)
            .bind(offset)
            .fetch_all(conn)
            .await)?;
        filling.take(
            next,
            rows,
            |row| cell(&row.digest).weigh(&row.body),
            DefinitionVersion::try_from,
        )?;
    }
    Ok(filling.finish())
}

/// Counts the versions of an agent that are there for a reader of this tenant; all versions if no tenant is given.
pub async fn count_versions(tx: &mut Tx<'_>, graph_id: &str, reader: Option<&Tenant>) -> DbResult<i64> {
    const SQL: &str = concatcp!(
        "select count(*) from definition_versions v where v.graph_id = $1",
        IS_THERE
    );
    let reader = reader.map(Tenant::as_str);
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(graph_id)
        .bind(reader)
        .fetch_one(conn)
        .await)?)
}

/// Returns the agents that clients defined, each in its current version, ordered by name.
pub async fn of_clients(tx: &mut Tx<'_>) -> DbResult<Vec<ClientAgent>> {
    const SQL: &str = concatcp!(SELECT_OF_CLIENTS, " order by v.graph_id");
    let rows: Vec<ClientAgentRow> = on_engine!(tx, |conn| query_as(SQL).fetch_all(conn).await)?;
    readable(rows)
}

/// Returns an agent that a client defined; none also if it cannot be read, so that the client can define it again.
pub async fn of_client(tx: &mut Tx<'_>, graph_id: &str) -> DbResult<Option<ClientAgent>> {
    const SQL: &str = concatcp!(SELECT_OF_CLIENTS, " where a.graph_id = $1");
    let row: Option<ClientAgentRow> = on_engine!(tx, |conn| query_as(SQL).bind(graph_id).fetch_optional(conn).await)?;
    Ok(row.map(|row| unless_corrupt(row.try_into())).transpose()?.flatten())
}

/// Returns the tenant whose client defined an agent; none if no client did.
pub async fn owner(tx: &mut Tx<'_>, graph_id: &str) -> DbResult<Option<Tenant>> {
    const SQL: &str = "select tenant from agents where graph_id = $1";
    let found: Option<String> = on_engine!(tx, |conn| query_scalar(SQL).bind(graph_id).fetch_optional(conn).await)?;
    Ok(found.map(Tenant::stored))
}

/// Counts the agents that clients of all tenants defined.
pub async fn count(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "select count(*) from agents";
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

/// Counts the agents that clients of a tenant defined.
pub async fn count_of_tenant(tx: &mut Tx<'_>, tenant: &Tenant) -> DbResult<i64> {
    const SQL: &str = "select count(*) from agents where tenant = $1";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(tenant.as_str())
        .fetch_one(conn)
        .await)?)
}

/// Makes a version the current one of an agent that a client defined. A new agent belongs to `tenant`; one that is there
/// stays that of its tenant.
pub async fn put(tx: &mut Tx<'_>, graph_id: &str, number: i64, tenant: &Tenant) -> DbResult<()> {
    const SQL: &str = "insert into agents (graph_id, version, tenant) values ($1, $2, $3) \
        on conflict (graph_id) do update set version = excluded.version";
    Ok(on_engine!(tx, |conn| query(SQL)
        .bind(graph_id)
        .bind(number)
        .bind(tenant.as_str())
        .execute(conn)
        .await
        .map(drop))?)
}

/// Deletes an agent that a client of this tenant defined, with its versions. Their contents stay for the runs that need
/// them. Returns whether the agent existed.
pub async fn remove(tx: &mut Tx<'_>, graph_id: &str, tenant: &Tenant, now: Timestamp) -> DbResult<bool> {
    const AGENT: &str = "delete from agents where graph_id = $1 and tenant = $2";
    const USED: &str = "update definitions set used_at = $2 where digest in \
        (select digest from definition_versions where graph_id = $1)";
    const VERSIONS: &str = "delete from definition_versions where graph_id = $1";
    let removed = on_engine!(tx, |conn| query(AGENT)
        .bind(graph_id)
        .bind(tenant.as_str())
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    if removed == 1 {
        on_engine!(tx, |conn| query(USED)
            .bind(graph_id)
            .bind(now.0)
            .execute(conn)
            .await
            .map(drop))?;
        on_engine!(tx, |conn| query(VERSIONS).bind(graph_id).execute(conn).await.map(drop))?;
    }
    Ok(removed == 1)
}

/// Erases one of the agents that clients of a tenant defined, with its versions, its default assistant, and the contents that
/// nothing else needs. Versions from a file of the same name stay, and with them the assistant. Returns whether there was one.
pub async fn erase_one_of_tenant(tx: &mut Tx<'_>, tenant: &Tenant) -> DbResult<bool> {
    const DIGESTS: &str = "select distinct digest from definition_versions where graph_id = $1 and origin = ''";
    const DELETE: &str = "delete from agents where graph_id = $1 and tenant = $2";
    const VERSIONS: &str = "delete from definition_versions where graph_id = $1 and origin = ''";
    tx.erase_traces();
    if first_of_tenant(tx, tenant).await?.is_none() {
        return Ok(false);
    }
    note_change(tx).await?;
    // A client may have removed it meanwhile.
    let Some(graph_id) = first_of_tenant(tx, tenant).await? else {
        return Ok(false);
    };
    let digests: Vec<String> = on_engine!(tx, |conn| query_scalar(DIGESTS).bind(&graph_id).fetch_all(conn).await)?;
    on_engine!(tx, |conn| query(DELETE)
        .bind(&graph_id)
        .bind(tenant.as_str())
        .execute(conn)
        .await
        .map(drop))?;
    on_engine!(tx, |conn| query(VERSIONS).bind(&graph_id).execute(conn).await.map(drop))?;
    if count_versions(tx, &graph_id, None).await? == 0 {
        super::assistants::delete(tx, AssistantId::of_graph(&graph_id)).await?;
    }
    for digest in digests {
        delete_unused(tx, &digest).await?;
    }
    Ok(true)
}

/// Returns the first of the agents that clients of a tenant defined, by name.
async fn first_of_tenant(tx: &mut Tx<'_>, tenant: &Tenant) -> DbResult<Option<String>> {
    const SQL: &str = "select graph_id from agents where tenant = $1 order by graph_id limit 1";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(tenant.as_str())
        .fetch_optional(conn)
        .await)?)
}

/// Deletes the versions of an agent up to this number, except the current one.
pub async fn forget_versions(tx: &mut Tx<'_>, graph_id: &str, number: i64) -> DbResult<()> {
    const SQL: &str = "delete from definition_versions where graph_id = $1 and version <= $2 and not exists \
        (select 1 from agents a where a.graph_id = definition_versions.graph_id \
        and a.version = definition_versions.version)";
    Ok(on_engine!(tx, |conn| query(SQL)
        .bind(graph_id)
        .bind(number)
        .execute(conn)
        .await
        .map(drop))?)
}

/// Deletes up to 100 contents without a version that went out of use before `before` and that no run needs: no pending
/// or running one, and none on a busy or interrupted thread. Returns their number.
pub async fn sweep(tx: &mut Tx<'_>, before: Timestamp) -> DbResult<u64> {
    const SQL: &str = concatcp!(
        "select d.digest from definitions d where d.used_at < $1 and ",
        IS_UNUSED,
        " limit 100"
    );
    const DELETE: &str = "delete from definitions where digest = $1";
    let unused: Vec<String> = on_engine!(tx, |conn| query_scalar(SQL).bind(before.0).fetch_all(conn).await)?;
    let mut deleted = 0;
    for digest in unused {
        deleted += on_engine!(tx, |conn| query(DELETE)
            .bind(digest)
            .execute(conn)
            .await
            .map(|done| done.rows_affected()))?;
    }
    Ok(deleted)
}

/// Deletes a content, unless a version or a run needs it.
async fn delete_unused(tx: &mut Tx<'_>, digest: &str) -> DbResult<()> {
    const SQL: &str = concatcp!(
        "delete from definitions where digest in (select d.digest from definitions d where d.digest = $1 and ",
        IS_UNUSED,
        ")"
    );
    Ok(on_engine!(tx, |conn| query(SQL)
        .bind(digest)
        .execute(conn)
        .await
        .map(drop))?)
}

/// Returns the number of the last change of the agents that clients defined; 0 before the first.
pub async fn last_change(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "select coalesce(max(number), 0) from definition_changes";
    let (number,): (i64,) = tx.statement(SQL).fetch_one().await?;
    Ok(number)
}

/// Waits until no other transaction changes definitions, and lets none do so until the end of this transaction. SQLite has one
/// writer anyway.
pub async fn lock_changes(tx: &mut Tx<'_>) -> DbResult<()> {
    const SQL: &str = "insert into definition_changes (one, number) values (1, 0) \
        on conflict (one) do update set number = definition_changes.number";
    match &mut tx.conn {
        Conn::Sqlite(_) => Ok(()),
        Conn::Postgres(conn) => Ok(query(SQL).execute(conn).await.map(drop)?),
    }
}

/// Counts a change of the agents that clients defined, notifies the other servers, and returns the number of the change.
/// It locks like [`lock_changes`].
pub async fn note_change(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "insert into definition_changes (one, number) values (1, 1) \
        on conflict (one) do update set number = definition_changes.number + 1 returning number";
    let number = on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?;
    notifications::notify(tx, Notification::Definitions).await?;
    Ok(number)
}
