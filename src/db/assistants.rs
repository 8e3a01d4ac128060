//! The tables of assistants (named settings of agent definitions) and of their versions.

use std::collections::{HashMap, HashSet};

use const_format::concatcp;
use sqlx::types::Json;
use sqlx::{QueryBuilder, query, query_as, query_scalar};
use uuid::Uuid;

use super::access::{self, ScopedRows, push_scope};
use super::codec::json::ColumnRef;
use super::engine::{Contains, LaterRows, on_engine};
use super::list_part::{ListBuilder, ListPart, PageQuery};
use super::row::from_row;
use super::{DbResult, Tx};
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::assistant::{Assistant, AssistantSettings, AssistantVersion};
use crate::domain::filter::MetadataFilter;
use crate::domain::id::AssistantId;
use crate::domain::json_limits::parsed_bytes;
use crate::domain::time::Timestamp;

const TABLE: &str = "assistants";

const COLUMNS: &str = "\
    assistant_id, version, graph_id, cast(config as text) as config, cast(context as text) as context, \
    cast(metadata as text) as metadata, name, description, created_at";
const SELECT: &str = concatcp!("select ", COLUMNS, ", updated_at, tenant, owner from assistants");
/// Versions never change, so they have no column `updated_at`. They belong to whom their assistant belongs.
const SELECT_VERSION: &str = concatcp!(
    "select ",
    COLUMNS,
    ", created_at as updated_at, '' as tenant, '' as owner from assistant_versions"
);
/// The rows of the table, for scopes.
const SCOPED: ScopedRows = ScopedRows {
    alias: "",
    can_be_shared: true,
    are_threads: false,
    some_are_of_server: true,
    by_other_index: false,
};

from_row! {
    /// A row of either table.
    struct AssistantRow {
        assistant_id: Uuid,
        version: i64,
        graph_id: String,
        config: String,
        context: String,
        metadata: String,
        name: String,
        description: Option<String>,
        created_at: i64,
        updated_at: i64,
        tenant: String,
        owner: String,
    }
}

/// Returns a column of an assistant, or of one of its versions.
fn cell<'a>(column: &'static str, assistant: &'a AssistantId) -> ColumnRef<'a, AssistantId> {
    ColumnRef {
        table: TABLE,
        column,
        id: assistant,
    }
}

impl AssistantRow {
    /// Returns about how many bytes of memory the row takes.
    fn weigh(&self) -> usize {
        let id = AssistantId(self.assistant_id);
        let config = cell("config", &id).weigh(&self.config);
        config + cell("context", &id).weigh(&self.context) + parsed_bytes(&self.metadata)
    }
}

impl TryFrom<AssistantRow> for Assistant {
    type Error = super::DbError;

    fn try_from(row: AssistantRow) -> DbResult<Self> {
        let at = |column| ColumnRef {
            table: TABLE,
            column,
            id: &row.assistant_id,
        };
        Ok(Self {
            id: AssistantId(row.assistant_id),
            ownership: access::ownership(row.tenant, row.owner),
            version: row.version,
            settings: AssistantSettings {
                config: at("config").decode(&row.config)?,
                context: at("context").decode(&row.context)?,
                metadata: at("metadata").decode(&row.metadata)?,
                graph_id: row.graph_id,
                name: row.name,
                description: row.description,
            },
            created_at: Timestamp(row.created_at),
            updated_at: Timestamp(row.updated_at),
        })
    }
}

impl TryFrom<AssistantRow> for AssistantVersion {
    type Error = super::DbError;

    fn try_from(row: AssistantRow) -> DbResult<Self> {
        let Assistant {
            id,
            version,
            settings,
            created_at,
            ..
        } = row.try_into()?;
        Ok(Self {
            assistant: id,
            number: version,
            settings,
            created_at,
        })
    }
}

/// Returns the form of a name for searching and sorting.
fn fold_case(name: &str) -> String {
    name.to_lowercase()
}

/// Stores a new assistant with its first version. Returns false, and changes nothing, when the id is taken.
pub async fn insert(tx: &mut Tx<'_>, assistant: &Assistant) -> DbResult<bool> {
    let inserted = insert_all(tx, std::slice::from_ref(assistant)).await?;
    Ok(inserted.contains(&assistant.id))
}

/// Stores new assistants with their first versions, except those whose ids are taken. Returns the ids of those that were
/// stored.
pub async fn insert_all(tx: &mut Tx<'_>, assistants: &[Assistant]) -> DbResult<HashSet<AssistantId>> {
    const SQL: &str = "insert into assistants (assistant_id, version, graph_id, config, context, metadata, name, folded, \
        description, created_at, updated_at, tenant, owner) ";
    let mut rows = vec![];
    for assistant in assistants {
        let settings = &assistant.settings;
        let sealer = tx.sealer(assistant.ownership.tenant.as_str()).await?;
        let config = sealer.json(&cell("config", &assistant.id), &settings.config)?;
        let context = sealer.json(&cell("context", &assistant.id), &settings.context)?;
        rows.push((assistant, config, context));
    }
    if rows.is_empty() {
        return Ok(HashSet::new());
    }
    let inserted: Vec<Uuid> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SQL);
        sql.push_values(rows, |mut row, (assistant, config, context)| {
            let settings = &assistant.settings;
            row.push_bind(assistant.id.0)
                .push_bind(assistant.version)
                .push_bind(settings.graph_id.as_str())
                .push_bind(Json(config))
                .push_bind(Json(context))
                .push_bind(Json(&settings.metadata))
                .push_bind(settings.name.as_str())
                .push_bind(fold_case(&settings.name))
                .push_bind(settings.description.as_deref())
                .push_bind(assistant.created_at.0)
                .push_bind(assistant.updated_at.0)
                .push_bind(assistant.ownership.tenant.as_str())
                .push_bind(assistant.ownership.owner.as_str());
        });
        sql.push(" on conflict (assistant_id) do nothing returning assistant_id");
        sql.build_query_scalar().fetch_all(conn).await
    })?;
    insert_versions(tx, &inserted).await?;
    Ok(inserted.into_iter().map(AssistantId).collect())
}

/// Returns the assistant with this id.
pub async fn find(tx: &mut Tx<'_>, id: AssistantId) -> DbResult<Option<Assistant>> {
    find_later(tx, id).await?.find(tx).await
}

/// An assistant that is read later in its transaction.
pub struct LaterAssistant(LaterRows<AssistantRow>);

/// Returns the assistant with this id, to be read later in the transaction, which must not change it meanwhile. It is
/// read together with other rows.
pub async fn find_later(tx: &mut Tx<'_>, id: AssistantId) -> DbResult<LaterAssistant> {
    const SQL: &str = concatcp!(SELECT, " where assistant_id = $1");
    let found = tx.statement(SQL).bind(id.0).fetch_later().await?;
    Ok(LaterAssistant(found))
}

impl LaterAssistant {
    /// Reads the assistant like [`find`], and returns it.
    pub async fn find(self, tx: &mut Tx<'_>) -> DbResult<Option<Assistant>> {
        let found = self.0.fetch_optional(tx).await?;
        found.map(Assistant::try_from).transpose()
    }
}

/// Returns the assistant with this id, locked until the end of the transaction.
pub async fn lock(tx: &mut Tx<'_>, id: AssistantId) -> DbResult<Option<Assistant>> {
    const SQLITE: &str = concatcp!(SELECT, " where assistant_id = $1");
    const POSTGRES: &str = concatcp!(SELECT, " where assistant_id = $1 for update");
    let sql = tx.either(SQLITE, POSTGRES);
    select_one(tx, sql, id).await
}

/// Returns the assistants with these ids, locked like those of [`lock`]. One that cannot be read does not hide the others.
pub async fn lock_all(tx: &mut Tx<'_>, ids: &[AssistantId]) -> DbResult<HashMap<AssistantId, DbResult<Assistant>>> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let end = tx.either(")", ") order by assistant_id for update");
    let rows: Vec<AssistantRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SELECT);
        sql.push(" where assistant_id in (");
        let mut list = sql.separated(", ");
        for id in ids {
            list.push_bind(id.0);
        }
        sql.push(end);
        sql.build_query_as().fetch_all(conn).await
    })?;
    let by_id = rows
        .into_iter()
        .map(|row| (AssistantId(row.assistant_id), Assistant::try_from(row)));
    Ok(by_id.collect())
}

async fn select_one(tx: &mut Tx<'_>, sql: &'static str, id: AssistantId) -> DbResult<Option<Assistant>> {
    let row: Option<AssistantRow> = on_engine!(tx, |conn| query_as(sql).bind(id.0).fetch_optional(conn).await)?;
    row.map(Assistant::try_from).transpose()
}

/// Gives these assistants to the server. For the default assistants of definitions, which a client may have created
/// first.
pub async fn give_to_server(tx: &mut Tx<'_>, ids: &[AssistantId]) -> DbResult<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let server = Ownership::of_server();
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("update assistants set tenant = ");
        sql.push_bind(server.tenant.as_str())
            .push(", owner = ")
            .push_bind(server.owner.as_str());
        sql.push(" where tenant <> ").push_bind(server.tenant.as_str());
        sql.push(" and assistant_id in (");
        let mut list = sql.separated(", ");
        for id in ids {
            list.push_bind(id.0);
        }
        sql.push(")");
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// Updates an assistant that the caller has locked. Its version is stored, too, if it is new.
pub async fn update(tx: &mut Tx<'_>, assistant: &Assistant) -> DbResult<()> {
    const SQL: &str = "update assistants set version = $2, graph_id = $3, config = $4, context = $5, metadata = $6, \
        name = $7, folded = $8, description = $9, updated_at = $10 where assistant_id = $1";
    let settings = &assistant.settings;
    let sealer = tx.sealer(assistant.ownership.tenant.as_str()).await?;
    let config = sealer.json(&cell("config", &assistant.id), &settings.config)?;
    let context = sealer.json(&cell("context", &assistant.id), &settings.context)?;
    on_engine!(tx, |conn| query(SQL)
        .bind(assistant.id.0)
        .bind(assistant.version)
        .bind(&settings.graph_id)
        .bind(Json(config))
        .bind(Json(context))
        .bind(Json(&settings.metadata))
        .bind(&settings.name)
        .bind(fold_case(&settings.name))
        .bind(&settings.description)
        .bind(assistant.updated_at.0)
        .execute(conn)
        .await
        .map(drop))?;
    insert_versions(tx, &[assistant.id.0]).await
}

/// Stores the current settings of assistants as versions, unless these versions are stored.
async fn insert_versions(tx: &mut Tx<'_>, ids: &[Uuid]) -> DbResult<()> {
    const SQL: &str = "insert into assistant_versions (assistant_id, version, graph_id, config, context, metadata, name, \
        description, created_at) select assistant_id, version, graph_id, config, context, metadata, name, description, \
        updated_at from assistants where assistant_id in (";
    if ids.is_empty() {
        return Ok(());
    }
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(SQL);
        let mut list = sql.separated(", ");
        for id in ids {
            list.push_bind(*id);
        }
        sql.push(") on conflict (assistant_id, version) do nothing");
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// Renames an assistant in all its versions. For the default assistant of a definition, which has only one.
pub async fn rename(tx: &mut Tx<'_>, id: AssistantId, name: &str, description: Option<&str>) -> DbResult<()> {
    const ASSISTANT: &str = "update assistants set name = $2, folded = $3, description = $4 where assistant_id = $1";
    const VERSION: &str = "update assistant_versions set name = $2, description = $3 where assistant_id = $1";
    let folded = fold_case(name);
    on_engine!(tx, |conn| {
        query(ASSISTANT)
            .bind(id.0)
            .bind(name)
            .bind(folded)
            .bind(description)
            .execute(&mut *conn)
            .await?;
        query(VERSION)
            .bind(id.0)
            .bind(name)
            .bind(description)
            .execute(conn)
            .await?;
        Ok(())
    })
}

/// Returns the number of the newest version of an assistant; 0 when it has none.
pub async fn newest_version(tx: &mut Tx<'_>, id: AssistantId) -> DbResult<i64> {
    const SQL: &str = "select coalesce(max(version), 0) from assistant_versions where assistant_id = $1";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(id.0)
        .fetch_one(conn)
        .await)?)
}

/// Returns a version of an assistant.
pub async fn version(tx: &mut Tx<'_>, id: AssistantId, number: i64) -> DbResult<Option<AssistantVersion>> {
    const SQL: &str = concatcp!(SELECT_VERSION, " where assistant_id = $1 and version = $2");
    let row: Option<AssistantRow> = on_engine!(tx, |conn| query_as(SQL)
        .bind(id.0)
        .bind(number)
        .fetch_optional(conn)
        .await)?;
    row.map(AssistantVersion::try_from).transpose()
}

/// Returns a page of the versions of an assistant whose metadata contains `metadata`, newest first.
pub async fn versions(
    tx: &mut Tx<'_>,
    id: AssistantId,
    metadata: &MetadataFilter,
    page: PageQuery,
) -> DbResult<ListPart<AssistantVersion>> {
    const SQL: &str = concatcp!(SELECT_VERSION, " where assistant_id = ");
    let weigh = AssistantRow::weigh;
    let mut filling = ListBuilder::new(page.limit, page.bytes);
    while let Some(next) = filling.next() {
        let offset = page.offset + filling.count();
        let rows: Vec<AssistantRow> = on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(SQL);
            sql.push_bind(id.0);
            if !metadata.is_empty() {
                sql.push(" and ").push_contains("metadata", metadata.wanted())?;
            }
            sql.push(" order by version desc limit ")
                .push_bind(next)
                .push(" offset ")
                .push_bind(offset);
            sql.build_query_as().fetch_all(conn).await
        })?;
        filling.take(next, rows, weigh, AssistantVersion::try_from)?;
    }
    Ok(filling.finish())
}

/// Deletes an assistant with its versions. Its runs and threads stay. Returns whether it existed.
pub async fn delete(tx: &mut Tx<'_>, id: AssistantId) -> DbResult<bool> {
    const SQL: &str = "delete from assistants where assistant_id = $1";
    tx.erase_traces();
    let deleted = on_engine!(tx, |conn| query(SQL)
        .bind(id.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(deleted == 1)
}

/// A sort key of assistants. Ties are sorted by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AssistantOrder {
    /// By id.
    Id,
    /// By creation time.
    #[default]
    CreatedAt,
    /// By the time of the last change.
    UpdatedAt,
    /// By name, case-insensitively.
    Name,
    /// By definition, then by creation time.
    Graph,
}

/// A search for assistants.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantQuery {
    /// Only assistants in this scope. The default assistants of definitions are in every scope but
    /// [`AccessScope::Nothing`].
    pub scope: AccessScope,
    /// Only assistants of this definition.
    pub graph_id: Option<String>,
    /// Only assistants whose name contains this, case-insensitively.
    pub name: Option<String>,
    /// Only assistants whose metadata contains this.
    pub metadata: MetadataFilter,
    /// The sort key.
    pub sort: AssistantOrder,
    /// True for ascending order.
    pub ascending: bool,
    /// The maximum number of assistants.
    pub limit: i64,
    /// The number of assistants to skip.
    pub offset: i64,
}

impl AssistantQuery {
    /// Returns the search for the ten newest assistants of a scope.
    pub fn within(scope: AccessScope) -> Self {
        Self {
            scope,
            graph_id: None,
            name: None,
            metadata: MetadataFilter::default(),
            sort: AssistantOrder::default(),
            ascending: false,
            limit: 10,
            offset: 0,
        }
    }

    fn order(&self) -> &'static str {
        match (self.sort, self.ascending) {
            (AssistantOrder::Id, true) => " order by assistant_id",
            (AssistantOrder::Id, false) => " order by assistant_id desc",
            (AssistantOrder::CreatedAt, true) => " order by created_at, assistant_id",
            (AssistantOrder::CreatedAt, false) => " order by created_at desc, assistant_id desc",
            (AssistantOrder::UpdatedAt, true) => " order by updated_at, assistant_id",
            (AssistantOrder::UpdatedAt, false) => " order by updated_at desc, assistant_id desc",
            (AssistantOrder::Name, true) => " order by folded, assistant_id",
            (AssistantOrder::Name, false) => " order by folded desc, assistant_id desc",
            (AssistantOrder::Graph, true) => " order by graph_id, created_at, assistant_id",
            (AssistantOrder::Graph, false) => " order by graph_id desc, created_at desc, assistant_id desc",
        }
    }

    fn push_conditions<DB>(&self, sql: &mut QueryBuilder<DB>) -> DbResult<()>
    where
        DB: sqlx::Database,
        QueryBuilder<DB>: Contains,
        for<'q> String: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        sql.push(" where true");
        if let Some(graph_id) = &self.graph_id {
            sql.push(" and graph_id = ").push_bind(graph_id.clone());
        }
        if let Some(name) = self.name.as_deref().filter(|name| !name.is_empty()) {
            sql.push(" and folded like ")
                .push_bind(like_pattern(&fold_case(name)))
                .push(" escape '\\'");
        }
        if !self.metadata.is_empty() {
            sql.push(" and ").push_contains("metadata", self.metadata.wanted())?;
        }
        push_scope(sql, &self.scope, SCOPED)
    }
}

/// Returns the `like` pattern of the texts that contain `part`.
fn like_pattern(part: &str) -> String {
    let mut pattern = String::from("%");
    for letter in part.chars() {
        if matches!(letter, '%' | '_' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('%');
    pattern
}

/// Returns the assistants that match a search, up to about `bytes` of memory.
pub async fn search(tx: &mut Tx<'_>, wanted: &AssistantQuery, bytes: usize) -> DbResult<ListPart<Assistant>> {
    let weigh = AssistantRow::weigh;
    let mut filling = ListBuilder::new(wanted.limit, bytes);
    while let Some(next) = filling.next() {
        let offset = wanted.offset + filling.count();
        let rows: Vec<AssistantRow> = on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(SELECT);
            wanted.push_conditions(&mut sql)?;
            sql.push(wanted.order())
                .push(" limit ")
                .push_bind(next)
                .push(" offset ")
                .push_bind(offset);
            sql.build_query_as().fetch_all(conn).await
        })?;
        filling.take(next, rows, weigh, Assistant::try_from)?;
    }
    Ok(filling.finish())
}

/// Counts the assistants that match a search; order, limit and offset are ignored.
pub async fn count(tx: &mut Tx<'_>, wanted: &AssistantQuery) -> DbResult<i64> {
    let count = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select count(*) from assistants");
        wanted.push_conditions(&mut sql)?;
        sql.build_query_scalar().fetch_one(conn).await
    })?;
    Ok(count)
}
