//! Rekeying: wraps data keys under the newest master key, and rewrites the values that are not sealed as new ones are.
//!
//! Rows are rewritten in batches, each a transaction. Rows that are as they should be are left alone, so rekeying that was
//! interrupted continues where it stopped, and it can run beside servers with the same keys: a value that a server has
//! changed meanwhile is not overwritten.

use const_format::str_replace;
use serde_json::Value;
use sqlx::types::Json;
use sqlx::{ColumnIndex, Database, Decode, Encode, QueryBuilder, Row, Type};
use uuid::Uuid;

use crate::db::codec::blobs;
use crate::db::codec::json::{ColumnRef, unless_corrupt};
use crate::db::engine::sealing::{self, Sealer, open, open_bytes};
use crate::db::engine::{Vector, on_engine};
use crate::db::{Db, DbError, DbResult, Tx, definitions, items, mcp_logins};

/// The most rows of a batch.
const MAX_ROWS: i64 = 200;
/// The most bytes of a batch, unless its only row has more.
const MAX_BYTES: i64 = 4 << 20;
/// The tenant of rows that belong to no tenant.
const OF_SERVER: &str = "'*'";
/// The tenant of the thread of a row of the table `{table}`.
const TENANT_OF_THREAD: &str = "(select owned.tenant from threads owned where owned.thread_id = {table}.thread_id)";

/// The target of rekeying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RekeyTarget {
    /// Values under the data keys that tenants have, and those under the first master key.
    FirstMasterKey,
    /// Values under new data keys.
    NewDataKeys,
    /// Plain values, so that the database can be used without encryption.
    Plain,
}

/// The progress of rekeying.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RekeyProgress {
    /// The data keys that were wrapped under another master key.
    pub rewrapped: u64,
    /// The rows that were read.
    pub rows: u64,
    /// The values that were rewritten.
    pub values: u64,
    /// The values that could not be read, and were left as they are.
    pub unreadable: u64,
}

/// The type of a column of a primary key.
#[derive(Clone, Copy)]
enum KeyKind {
    Id,
    Number,
    Text,
}

/// The value of a column of a primary key.
#[derive(Debug, Clone)]
enum KeyPart {
    Id(Uuid),
    Number(i64),
    Text(String),
}

impl KeyPart {
    fn text(&self) -> String {
        match self {
            Self::Id(id) => id.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

/// A column whose values are sealed.
struct SealedColumn {
    name: &'static str,
    /// The column to which its values are bound: values that move between two columns are bound to one of them.
    bound_to: &'static str,
    /// True if the column holds JSON and not a text.
    is_json: bool,
}

const fn text(name: &'static str) -> SealedColumn {
    SealedColumn {
        name,
        bound_to: name,
        is_json: false,
    }
}

const fn json(name: &'static str) -> SealedColumn {
    SealedColumn {
        is_json: true,
        ..text(name)
    }
}

/// A table with sealed columns.
struct SealedTable {
    name: &'static str,
    /// The table to which its values are bound.
    bound_to: &'static str,
    key: &'static [(&'static str, KeyKind)],
    columns: &'static [SealedColumn],
    /// The SQL expression for the tenant of a row.
    tenant: &'static str,
    /// Returns the id to which the values of a row are bound.
    id: fn(&[KeyPart]) -> String,
}

fn first(key: &[KeyPart]) -> String {
    key.first().map(KeyPart::text).unwrap_or_default()
}

fn last(key: &[KeyPart]) -> String {
    key.last().map(KeyPart::text).unwrap_or_default()
}

fn of_event(key: &[KeyPart]) -> String {
    key.iter().map(KeyPart::text).collect::<Vec<_>>().join(":")
}

/// Returns the id of an item from its tenant, owner, namespace and key.
fn of_item(key: &[KeyPart]) -> String {
    match key {
        [_, owner, namespace, key] => items::bound_id(&owner.text(), &namespace.text(), &key.text()),
        [..] => String::new(),
    }
}

/// Returns the id of a vector from the tenant, owner, namespace and key of its item, and its path.
fn of_vector(key: &[KeyPart]) -> String {
    match key {
        [_, owner, namespace, key, path] => {
            let item = items::bound_id(&owner.text(), &namespace.text(), &key.text());
            items::bound_id_of_vector(&item, &path.text())
        }
        [..] => String::new(),
    }
}

/// Returns the id of a login from its tenant and server.
fn of_login(key: &[KeyPart]) -> String {
    match key {
        [tenant, server] => mcp_logins::bound_id(&tenant.text(), &server.text()),
        [..] => String::new(),
    }
}

/// Returns the id of a blob from its tenant and digest.
fn of_blob(key: &[KeyPart]) -> String {
    match key {
        [tenant, digest] => blobs::bound_id(&tenant.text(), &digest.text()),
        [..] => String::new(),
    }
}

/// The tables with sealed columns. A column that is missing here keeps its values when keys change.
static TABLES: [SealedTable; 16] = [
    SealedTable {
        name: "threads",
        bound_to: "threads",
        key: &[("thread_id", KeyKind::Id)],
        columns: &[json("config"), text("error")],
        tenant: "tenant",
        id: first,
    },
    SealedTable {
        name: "runs",
        bound_to: "runs",
        key: &[("run_id", KeyKind::Id)],
        columns: &[text("request"), json("metadata"), text("error")],
        tenant: str_replace!(TENANT_OF_THREAD, "{table}", "runs"),
        id: first,
    },
    SealedTable {
        name: "checkpoints",
        bound_to: "checkpoints",
        key: &[("thread_id", KeyKind::Id), ("checkpoint_id", KeyKind::Id)],
        columns: &[
            text("writes"),
            text("shown"),
            text("position"),
            SealedColumn {
                bound_to: "position",
                ..text("before")
            },
            text("next_event"),
        ],
        tenant: str_replace!(TENANT_OF_THREAD, "{table}", "checkpoints"),
        id: last,
    },
    SealedTable {
        name: "events",
        bound_to: "events",
        key: &[("thread_id", KeyKind::Id), ("seq", KeyKind::Number)],
        columns: &[text("body")],
        tenant: str_replace!(TENANT_OF_THREAD, "{table}", "events"),
        id: of_event,
    },
    SealedTable {
        name: "interrupts",
        bound_to: "interrupts",
        key: &[("thread_id", KeyKind::Id), ("interrupt_id", KeyKind::Text)],
        columns: &[text("interrupt"), text("resolution"), text("before")],
        tenant: str_replace!(TENANT_OF_THREAD, "{table}", "interrupts"),
        id: last,
    },
    SealedTable {
        name: "answer_schemas",
        bound_to: "answer_schemas",
        key: &[("tenant", KeyKind::Text), ("digest", KeyKind::Text)],
        columns: &[text("schema")],
        tenant: "tenant",
        id: last,
    },
    SealedTable {
        name: "remembered_decisions",
        bound_to: "remembered_decisions",
        key: &[("decision_id", KeyKind::Id)],
        columns: &[text("body")],
        tenant: str_replace!(TENANT_OF_THREAD, "{table}", "remembered_decisions"),
        id: first,
    },
    SealedTable {
        name: "remote_runs",
        bound_to: "background_tasks",
        key: &[("remote_run_id", KeyKind::Id)],
        columns: &[text("seen")],
        tenant: "(select owned.tenant from background_tasks given join threads owned \
            on owned.thread_id = given.parent_thread where given.task_id = remote_runs.task_id)",
        id: first,
    },
    SealedTable {
        name: "assistants",
        bound_to: "assistants",
        key: &[("assistant_id", KeyKind::Id)],
        columns: &[json("config"), json("context")],
        tenant: "tenant",
        id: first,
    },
    SealedTable {
        name: "assistant_versions",
        bound_to: "assistants",
        key: &[("assistant_id", KeyKind::Id), ("version", KeyKind::Number)],
        columns: &[json("config"), json("context")],
        tenant: "(select owned.tenant from assistants owned where owned.assistant_id = assistant_versions.assistant_id)",
        id: first,
    },
    SealedTable {
        name: "definitions",
        bound_to: "definitions",
        key: &[("digest", KeyKind::Text)],
        columns: &[text("body")],
        tenant: OF_SERVER,
        id: first,
    },
    SealedTable {
        name: "crons",
        bound_to: "crons",
        key: &[("cron_id", KeyKind::Id)],
        columns: &[text("request"), text("payload")],
        tenant: "tenant",
        id: first,
    },
    SealedTable {
        name: "items",
        bound_to: "items",
        key: &[
            ("tenant", KeyKind::Text),
            ("owner", KeyKind::Text),
            ("namespace", KeyKind::Text),
            ("key", KeyKind::Text),
        ],
        columns: &[json("value")],
        tenant: "tenant",
        id: of_item,
    },
    SealedTable {
        name: "deliveries",
        bound_to: "deliveries",
        key: &[("delivery_id", KeyKind::Id)],
        columns: &[text("url"), text("body")],
        tenant: "tenant",
        id: first,
    },
    SealedTable {
        name: "idempotency_keys",
        bound_to: "idempotency_keys",
        key: &[("idempotency_key", KeyKind::Text)],
        columns: &[text("body"), text("location")],
        tenant: OF_SERVER,
        id: first,
    },
    SealedTable {
        name: "mcp_logins",
        bound_to: "mcp_logins",
        key: &[("tenant", KeyKind::Text), ("server", KeyKind::Text)],
        columns: &[text("secrets")],
        tenant: "tenant",
        id: of_login,
    },
];

/// The table of vectors, whose column is one of bytes.
static VECTORS: SealedTable = SealedTable {
    name: "item_vectors",
    bound_to: "item_vectors",
    key: &[
        ("tenant", KeyKind::Text),
        ("owner", KeyKind::Text),
        ("namespace", KeyKind::Text),
        ("key", KeyKind::Text),
        ("path", KeyKind::Text),
    ],
    columns: &[],
    tenant: "tenant",
    id: of_vector,
};

/// The table of blobs, whose column is one of bytes.
static BLOBS: SealedTable = SealedTable {
    name: "blobs",
    bound_to: "blobs",
    key: &[("tenant", KeyKind::Text), ("digest", KeyKind::Text)],
    columns: &[],
    tenant: "tenant",
    id: of_blob,
};

impl SealedTable {
    fn key_names(&self) -> String {
        self.key.iter().map(|column| column.0).collect::<Vec<_>>().join(", ")
    }
}

/// Reads the columns of the key, which are the first ones of the row.
fn read_key<'r, R>(row: &'r R, table: &SealedTable) -> Result<Vec<KeyPart>, sqlx::Error>
where
    R: Row,
    usize: ColumnIndex<R>,
    Uuid: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
    String: Decode<'r, R::Database> + Type<R::Database>,
{
    let part = |(at, column): (usize, &(&str, KeyKind))| match column.1 {
        KeyKind::Id => row.try_get(at).map(KeyPart::Id),
        KeyKind::Number => row.try_get(at).map(KeyPart::Number),
        KeyKind::Text => row.try_get(at).map(KeyPart::Text),
    };
    table.key.iter().enumerate().map(part).collect()
}

/// Appends the values of a key, with commas.
fn push_key<DB>(sql: &mut QueryBuilder<DB>, key: &[KeyPart])
where
    DB: Database,
    for<'q> Uuid: Encode<'q, DB> + Type<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
    for<'q> String: Encode<'q, DB> + Type<DB>,
{
    let mut list = sql.separated(", ");
    for part in key {
        match part {
            KeyPart::Id(id) => list.push_bind(*id),
            KeyPart::Number(number) => list.push_bind(*number),
            KeyPart::Text(text) => list.push_bind(text.clone()),
        };
    }
}

/// Appends the condition that a row follows a key in the order of the primary key.
fn push_after<DB>(sql: &mut QueryBuilder<DB>, table: &SealedTable, after: Option<&[KeyPart]>)
where
    DB: Database,
    for<'q> Uuid: Encode<'q, DB> + Type<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
    for<'q> String: Encode<'q, DB> + Type<DB>,
{
    if let Some(after) = after {
        sql.push(format!(" where ({}) > (", table.key_names()));
        push_key(sql, after);
        sql.push(")");
    }
}

/// A row with its sealed columns.
struct SealedRow {
    key: Vec<KeyPart>,
    tenant: String,
    texts: Vec<Option<String>>,
}

/// The outcome of a batch.
#[derive(Default)]
struct Batch {
    /// The key of the last row; none when there are no more rows.
    last: Option<Vec<KeyPart>>,
    rows: u64,
    values: u64,
    unreadable: u64,
}

impl Batch {
    /// Counts a value that was to be rewritten. One that cannot be read is logged and left as it is.
    fn count(&mut self, rewritten: DbResult<()>) -> DbResult<()> {
        match unless_corrupt(rewritten)? {
            Some(()) => self.values += 1,
            None => self.unreadable += 1,
        }
        Ok(())
    }
}

/// Returns how many of the next rows fit into a batch.
async fn batch_len(tx: &mut Tx<'_>, table: &SealedTable, after: Option<&[KeyPart]>) -> DbResult<i64> {
    let sizes: Vec<i64> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select cast(0");
        for column in table.columns {
            sql.push(format!(" + coalesce(octet_length(cast({} as text)), 0)", column.name));
        }
        sql.push(format!(" as bigint) from {}", table.name));
        push_after(&mut sql, table, after);
        sql.push(format!(" order by {} limit {MAX_ROWS}", table.key_names()));
        sql.build_query_scalar().fetch_all(conn).await
    })?;
    let mut bytes = 0;
    let fitting = sizes.iter().enumerate().take_while(|(at, size)| {
        bytes += **size;
        *at == 0 || bytes <= MAX_BYTES
    });
    Ok(i64::try_from(fitting.count()).unwrap_or(MAX_ROWS))
}

async fn read_rows(
    tx: &mut Tx<'_>,
    table: &SealedTable,
    after: Option<&[KeyPart]>,
    limit: i64,
) -> DbResult<Vec<SealedRow>> {
    let rows = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(format!(
            "select {}, coalesce({}, {OF_SERVER})",
            table.key_names(),
            table.tenant
        ));
        for column in table.columns {
            sql.push(format!(", cast({} as text)", column.name));
        }
        sql.push(format!(" from {}", table.name));
        push_after(&mut sql, table, after);
        sql.push(format!(" order by {} limit {limit}", table.key_names()));
        let rows = sql.build().fetch_all(conn).await?;
        let tenant_at = table.key.len();
        let read = rows.iter().map(|row| {
            let texts = (1..=table.columns.len()).map(|at| row.try_get(tenant_at + at));
            Ok(SealedRow {
                key: read_key(row, table)?,
                tenant: row.try_get(tenant_at)?,
                texts: texts.collect::<Result<_, sqlx::Error>>()?,
            })
        });
        read.collect::<Result<Vec<_>, sqlx::Error>>()
    })?;
    Ok(rows)
}

/// Rewrites the values of the next rows that are not as they should be.
async fn rewrite_batch(
    tx: &mut Tx<'_>,
    table: &SealedTable,
    after: Option<Vec<KeyPart>>,
    target: RekeyTarget,
) -> DbResult<Batch> {
    let after = after.as_deref();
    let limit = batch_len(tx, table, after).await?;
    if limit == 0 {
        return Ok(Batch::default());
    }
    if table.name == "definitions" {
        definitions::lock_changes(tx).await?;
    }
    let rows = read_rows(tx, table, after, limit).await?;
    let mut batch = Batch::default();
    for row in rows {
        let sealer = sealer_for(tx, &row.tenant, target).await?;
        for (column, text) in table.columns.iter().zip(&row.texts) {
            let Some(text) = text else { continue };
            if !sealer.has_sealed(text) {
                let rewritten = rewrite(tx, table, &row.key, column, text, &sealer).await;
                batch.count(rewritten)?;
            }
        }
        batch.rows += 1;
        batch.last = Some(row.key);
    }
    Ok(batch)
}

async fn sealer_for(tx: &mut Tx<'_>, tenant: &str, target: RekeyTarget) -> DbResult<Sealer> {
    match target {
        RekeyTarget::Plain => Ok(Sealer::default()),
        RekeyTarget::FirstMasterKey | RekeyTarget::NewDataKeys => tx.sealer(tenant).await,
    }
}

/// Rewrites one value, unless it was changed meanwhile.
async fn rewrite(
    tx: &mut Tx<'_>,
    table: &SealedTable,
    key: &[KeyPart],
    column: &SealedColumn,
    old: &str,
    sealer: &Sealer,
) -> DbResult<()> {
    let id = (table.id)(key);
    let cell = ColumnRef {
        table: table.bound_to,
        column: column.bound_to,
        id: &id,
    };
    // In the form, short or long, in which it is.
    let plain = open(&cell, old)?.into_owned();
    let new = sealer.seal(&cell, plain)?;
    let value = match (column.is_json, sealer.is_on()) {
        (false, _) => None,
        (true, true) => Some(Value::String(new.clone())),
        (true, false) => Some(serde_json::from_str(&new).map_err(|_| cell.corrupt())?),
    };
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(format!("update {} set {} = ", table.name, column.name));
        match value {
            Some(value) => sql.push_bind(Json(value)),
            None => sql.push_bind(new),
        };
        sql.push(format!(" where ({}) = (", table.key_names()));
        push_key(&mut sql, key);
        sql.push(format!(") and cast({} as text) = ", column.name))
            .push_bind(old.to_owned());
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// A row of the table of vectors.
struct VectorCell {
    key: Vec<KeyPart>,
    tenant: String,
    vector: Vector,
    sealed: Option<Vec<u8>>,
}

/// Rewrites the next vectors that are not as they should be.
async fn rewrite_vectors(tx: &mut Tx<'_>, after: Option<Vec<KeyPart>>, target: RekeyTarget) -> DbResult<Batch> {
    let table = &VECTORS;
    let after = after.as_deref();
    let rows: Vec<VectorCell> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(format!("select {}, tenant, vector, sealed", table.key_names()));
        sql.push(format!(" from {}", table.name));
        push_after(&mut sql, table, after);
        sql.push(format!(" order by {} limit {MAX_ROWS}", table.key_names()));
        let rows = sql.build().fetch_all(conn).await?;
        let end = table.key.len();
        let read = rows.iter().map(|row| {
            Ok(VectorCell {
                key: read_key(row, table)?,
                tenant: row.try_get(end)?,
                vector: row.try_get(end + 1)?,
                sealed: row.try_get(end + 2)?,
            })
        });
        read.collect::<Result<Vec<_>, sqlx::Error>>()
    })?;
    let mut batch = Batch::default();
    for row in rows {
        let sealer = sealer_for(tx, &row.tenant, target).await?;
        if !sealer.has_sealed_bytes(row.sealed.as_deref()) {
            let rewritten = rewrite_vector(tx, &row, &sealer).await;
            batch.count(rewritten)?;
        }
        batch.rows += 1;
        batch.last = Some(row.key);
    }
    Ok(batch)
}

async fn rewrite_vector(tx: &mut Tx<'_>, row: &VectorCell, sealer: &Sealer) -> DbResult<()> {
    let id = of_vector(&row.key);
    let cell = ColumnRef {
        table: VECTORS.bound_to,
        column: "sealed",
        id: &id,
    };
    let plain = match &row.sealed {
        Some(sealed) => Vector::from_bytes(&open_bytes(&cell, sealed.clone())?).ok_or_else(|| cell.corrupt())?,
        None => row.vector.clone(),
    };
    let sealed = sealer.seal_bytes(&cell, &plain.to_bytes())?;
    let vector = if sealed.is_some() { Vector(vec![]) } else { plain };
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("update item_vectors set vector = ");
        sql.push_bind(vector).push(", sealed = ").push_bind(sealed);
        sql.push(format!(" where ({}) = (", VECTORS.key_names()));
        push_key(&mut sql, &row.key);
        sql.push(")");
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// A row of the table of blobs.
struct BlobCell {
    key: Vec<KeyPart>,
    tenant: String,
    sealed: bool,
    content: Vec<u8>,
}

/// Rewrites the next blob if it is not as it should be. A blob may be large, so each has a transaction of its own.
async fn rewrite_blob(tx: &mut Tx<'_>, after: Option<Vec<KeyPart>>, target: RekeyTarget) -> DbResult<Batch> {
    let table = &BLOBS;
    let found: Option<BlobCell> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(format!("select {}, sealed, content", table.key_names()));
        sql.push(format!(" from {}", table.name));
        push_after(&mut sql, table, after.as_deref());
        sql.push(format!(" order by {} limit 1", table.key_names()));
        let row = sql.build().fetch_optional(conn).await?;
        let read = row.map(|row| {
            Ok::<_, sqlx::Error>(BlobCell {
                key: read_key(&row, table)?,
                tenant: row.try_get(0)?,
                sealed: row.try_get(2)?,
                content: row.try_get(3)?,
            })
        });
        read.transpose()
    })?;
    let mut batch = Batch::default();
    let Some(row) = found else { return Ok(batch) };
    let sealer = sealer_for(tx, &row.tenant, target).await?;
    if !sealer.has_sealed_bytes(row.sealed.then_some(row.content.as_slice())) {
        let rewritten = store_blob(tx, &row, &sealer).await;
        batch.count(rewritten)?;
    }
    batch.rows = 1;
    batch.last = Some(row.key);
    Ok(batch)
}

async fn store_blob(tx: &mut Tx<'_>, row: &BlobCell, sealer: &Sealer) -> DbResult<()> {
    let id = of_blob(&row.key);
    let cell = blobs::cell(&id);
    let plain = match row.sealed {
        true => open_bytes(&cell, row.content.clone())?,
        false => row.content.clone(),
    };
    let sealed = sealer.seal_bytes(&cell, &plain)?;
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("update blobs set sealed = ");
        sql.push_bind(sealed.is_some()).push(", content = ");
        sql.push_bind(sealed.unwrap_or(plain));
        sql.push(format!(" where ({}) = (", BLOBS.key_names()));
        push_key(&mut sql, &row.key);
        sql.push(")");
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}

impl Db {
    /// Wraps all data keys under the first master key, and rewrites all values that are not sealed like new ones. Calls
    /// `report` with the name of each table and the progress so far.
    ///
    /// # Errors
    /// [`DbError::Unfit`] without master keys, [`DbError::Corrupt`] for a value that was changed, and errors of the
    /// database. What was rewritten before stays so.
    pub async fn rekey(
        &self,
        target: RekeyTarget,
        mut report: impl FnMut(&str, RekeyProgress) + Send,
    ) -> DbResult<RekeyProgress> {
        if !self.is_sealing() {
            let message = "the database has no [encryption]: configure the keys first";
            return Err(DbError::Unfit(message.to_owned()));
        }
        let mut progress = RekeyProgress {
            rewrapped: self.write(|tx| Box::pin(sealing::rewrap(tx))).await?,
            ..RekeyProgress::default()
        };
        if target == RekeyTarget::NewDataKeys {
            self.write(|tx| Box::pin(sealing::renew(tx))).await?;
        }
        for table in TABLES.iter().chain([&VECTORS, &BLOBS]) {
            let mut last: Option<Vec<KeyPart>> = None;
            loop {
                let after = last.take();
                let write = self.write(move |tx| {
                    Box::pin(async move {
                        match table.name {
                            "item_vectors" => rewrite_vectors(tx, after, target).await,
                            "blobs" => rewrite_blob(tx, after, target).await,
                            _ => rewrite_batch(tx, table, after, target).await,
                        }
                    })
                });
                let batch: Batch = write.await?;
                progress.rows += batch.rows;
                progress.values += batch.values;
                progress.unreadable += batch.unreadable;
                last = batch.last;
                if last.is_none() {
                    break;
                }
            }
            report(table.name, progress);
        }
        // Values that cannot be read today may be readable with another release: their keys are kept.
        if target == RekeyTarget::Plain && progress.unreadable == 0 {
            self.write(|tx| Box::pin(sealing::forget_all(tx))).await?;
        }
        Ok(progress)
    }
}
