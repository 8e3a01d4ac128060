//! The tables of agent definitions: their contents by digest, the versions of each agent, and the agents that clients
//! defined.

use const_format::concatcp;
use sqlx::{query, query_as, query_scalar};

use super::engine::on_engine;
use super::json::{ColumnRef, readable, unless_corrupt};
use super::part::{ListBuilder, ListPart, PageQuery};
use super::{DbResult, Notification, Tx, notifications};
use crate::definition::{AgentDefinition, DefinitionVersion, Digest, Provenance};
use crate::domain::time::Timestamp;

const SELECT_VERSION: &str = "\
    select v.graph_id, v.version, v.digest, v.origin, v.created_at, d.body from definition_versions v \
    join definitions d on d.digest = v.digest";

#[derive(sqlx::FromRow)]
struct VersionRow {
    graph_id: String,
    version: i64,
    digest: String,
    origin: String,
    created_at: i64,
    body: String,
}

impl TryFrom<VersionRow> for DefinitionVersion {
    type Error = super::DbError;

    fn try_from(row: VersionRow) -> DbResult<Self> {
        let definition = decode(&row.digest, &row.body)?;
        let provenance = if row.origin.is_empty() {
            Provenance::Client
        } else {
            Provenance::File(row.origin)
        };
        Ok(Self {
            graph_id: row.graph_id,
            number: row.version,
            digest: Digest(row.digest),
            provenance,
            definition,
            created_at: Timestamp(row.created_at),
        })
    }
}

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
    provenance: &Provenance,
    now: Timestamp,
) -> DbResult<DefinitionVersion> {
    const BODY: &str = "insert into definitions (digest, body, used_at) values ($1, $2, $3) \
        on conflict (digest) do update set body = excluded.body, used_at = excluded.used_at";
    const VERSION: &str = "insert into definition_versions (graph_id, version, digest, origin, created_at) \
        values ($1, $2, $3, $4, $5) on conflict (graph_id, version) do nothing";
    let digest = definition.digest();
    let sealer = tx.sealer_of_server().await?;
    let body = sealer.seal(&cell(&digest.0), definition.text())?;
    let origin = provenance.file().unwrap_or_default();
    on_engine!(tx, |conn| query(BODY)
        .bind(&digest.0)
        .bind(body)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?;
    loop {
        let numbered = |number, created_at| {
            let graph_id = graph_id.to_owned();
            let digest = digest.clone();
            let definition = definition.clone();
            let provenance = provenance.clone();
            DefinitionVersion {
                graph_id,
                number,
                digest,
                provenance,
                definition,
                created_at,
            }
        };
        let number = match newest_header(tx, graph_id).await? {
            Some(newest) if newest.digest == digest.0 && newest.origin == origin => {
                return Ok(numbered(newest.version, Timestamp(newest.created_at)));
            }
            Some(newest) => {
                touch(tx, &Digest(newest.digest), now).await?;
                newest.version + 1
            }
            None => 1,
        };
        let inserted = on_engine!(tx, |conn| query(VERSION)
            .bind(graph_id)
            .bind(number)
            .bind(&digest.0)
            .bind(origin)
            .bind(now.0)
            .execute(conn)
            .await
            .map(|done| done.rows_affected()))?;
        // Otherwise another server stored this number first: try the next one.
        if inserted == 1 {
            return Ok(numbered(number, now));
        }
    }
}

/// A version of an agent without its content, which may be unreadable.
#[derive(sqlx::FromRow)]
struct VersionHeader {
    version: i64,
    digest: String,
    origin: String,
    created_at: i64,
}

async fn newest_header(tx: &mut Tx<'_>, graph_id: &str) -> DbResult<Option<VersionHeader>> {
    const SQL: &str = "select version, digest, origin, created_at from definition_versions where graph_id = $1 \
        order by version desc limit 1";
    Ok(on_engine!(tx, |conn| query_as(SQL)
        .bind(graph_id)
        .fetch_optional(conn)
        .await)?)
}

/// Sets the time at which a definition went out of use. For a moment, runs may still be admitted with it.
async fn touch(tx: &mut Tx<'_>, digest: &Digest, now: Timestamp) -> DbResult<()> {
    const SQL: &str = "update definitions set used_at = $2 where digest = $1";
    Ok(on_engine!(tx, |conn| query(SQL)
        .bind(&digest.0)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop))?)
}

/// Returns the definition with this digest.
pub async fn find(tx: &mut Tx<'_>, digest: &Digest) -> DbResult<Option<AgentDefinition>> {
    const SQL: &str = "select body from definitions where digest = $1";
    let body: Option<String> = on_engine!(tx, |conn| query_scalar(SQL).bind(&digest.0).fetch_optional(conn).await)?;
    body.map(|body| decode(&digest.0, &body)).transpose()
}

/// Returns the provenance of a definition of an agent: a file if any version with this digest came from one.
pub async fn origin(tx: &mut Tx<'_>, graph_id: &str, digest: &Digest) -> DbResult<Provenance> {
    const SQL: &str = "select max(origin) from definition_versions where digest = $1 and graph_id = $2";
    let origin: Option<String> = on_engine!(tx, |conn| query_scalar(SQL)
        .bind(&digest.0)
        .bind(graph_id)
        .fetch_one(conn)
        .await)?;
    let file = origin.filter(|origin| !origin.is_empty());
    Ok(file.map_or(Provenance::Client, Provenance::File))
}

/// Returns the newest version of an agent.
pub async fn newest(tx: &mut Tx<'_>, graph_id: &str) -> DbResult<Option<DefinitionVersion>> {
    let newest = PageQuery {
        limit: 1,
        offset: 0,
        bytes: usize::MAX,
    };
    Ok(versions(tx, graph_id, newest).await?.into_items().pop())
}

/// Returns a version of an agent.
pub async fn version(tx: &mut Tx<'_>, graph_id: &str, number: i64) -> DbResult<Option<DefinitionVersion>> {
    const SQL: &str = concatcp!(SELECT_VERSION, " where v.graph_id = $1 and v.version = $2");
    let row: Option<VersionRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(graph_id)
        .bind(number)
        .fetch_optional(conn)
        .await)?;
    row.map(DefinitionVersion::try_from).transpose()
}

/// Returns a page of the versions of an agent, newest first.
pub async fn versions(tx: &mut Tx<'_>, graph_id: &str, page: PageQuery) -> DbResult<ListPart<DefinitionVersion>> {
    const SQL: &str = concatcp!(
        SELECT_VERSION,
        " where v.graph_id = $1 order by v.version desc limit $2 offset $3"
    );
    let mut filling = ListBuilder::new(page.limit, page.bytes);
    while let Some(next) = filling.next() {
        let offset = page.offset + filling.count();
        let rows: Vec<VersionRow> = on_engine!(tx, |conn| query_as(SQL)
            .bind(graph_id)
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

/// Counts the versions of an agent.
pub async fn count_versions(tx: &mut Tx<'_>, graph_id: &str) -> DbResult<i64> {
    const SQL: &str = "select count(*) from definition_versions where graph_id = $1";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(graph_id)
        .fetch_one(conn)
        .await)?)
}

/// Returns the agents that clients defined, each in its current version, ordered by name.
pub async fn of_clients(tx: &mut Tx<'_>) -> DbResult<Vec<DefinitionVersion>> {
    const SQL: &str = concatcp!(
        SELECT_VERSION,
        " join agents a on a.graph_id = v.graph_id and a.version = v.version order by v.graph_id"
    );
    let rows: Vec<VersionRow> = on_engine!(tx, |conn| query_as(SQL).fetch_all(conn).await)?;
    readable(rows)
}

/// Returns the current version of an agent that a client defined; none also if it cannot be read, so that the client
/// can define it again.
pub async fn of_client(tx: &mut Tx<'_>, graph_id: &str) -> DbResult<Option<DefinitionVersion>> {
    const SQL: &str = concatcp!(
        SELECT_VERSION,
        " join agents a on a.graph_id = v.graph_id and a.version = v.version where a.graph_id = $1"
    );
    let row: Option<VersionRow> = on_engine!(tx, |conn| query_as(SQL).bind(graph_id).fetch_optional(conn).await)?;
    Ok(row.map(|row| unless_corrupt(row.try_into())).transpose()?.flatten())
}

/// Counts the agents that clients defined.
pub async fn count(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "select count(*) from agents";
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

/// Makes a version the current one of an agent that a client defined.
pub async fn put(tx: &mut Tx<'_>, graph_id: &str, number: i64) -> DbResult<()> {
    const SQL: &str = "insert into agents (graph_id, version) values ($1, $2) \
        on conflict (graph_id) do update set version = excluded.version";
    Ok(on_engine!(tx, |conn| query(SQL)
        .bind(graph_id)
        .bind(number)
        .execute(conn)
        .await
        .map(drop))?)
}

/// Deletes an agent that a client defined, with its versions. Their contents stay for the runs that need them. Returns
/// whether the agent existed.
pub async fn remove(tx: &mut Tx<'_>, graph_id: &str, now: Timestamp) -> DbResult<bool> {
    const AGENT: &str = "delete from agents where graph_id = $1";
    const USED: &str = "update definitions set used_at = $2 where digest in \
        (select digest from definition_versions where graph_id = $1)";
    const VERSIONS: &str = "delete from definition_versions where graph_id = $1";
    let removed = on_engine!(tx, |conn| query(AGENT)
        .bind(graph_id)
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
    const UNUSED: &str = "select d.digest from definitions d where d.used_at < $1 \
        and not exists (select 1 from definition_versions v where v.digest = d.digest) \
        and not exists (select 1 from runs r where r.depth = 0 and r.status in ('pending', 'running') \
        and r.definition = d.digest) \
        and not exists (select 1 from threads t join runs r on r.thread_id = t.thread_id \
        where t.status in ('busy', 'interrupted') and r.definition = d.digest) limit 100";
    const DELETE: &str = "delete from definitions where digest = $1";
    let unused: Vec<String> = on_engine!(tx, |conn| query_scalar(UNUSED).bind(before.0).fetch_all(conn).await)?;
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

/// Returns the number of the last change of the agents that clients defined; 0 before the first.
pub async fn last_change(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "select coalesce(max(number), 0) from definition_changes";
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

/// Counts a change of the agents that clients defined, notifies the other servers, and returns the number of the change.
/// Other transactions that change them wait for the end of this one.
pub async fn note_change(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "insert into definition_changes (one, number) values (1, 1) \
        on conflict (one) do update set number = definition_changes.number + 1 returning number";
    let number = on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?;
    notifications::notify(tx, Notification::Definitions).await?;
    Ok(number)
}
