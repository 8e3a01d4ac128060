//! The schemas of valid answers, which are long and the same in many questions. Such a schema is stored once for each tenant, and the
//! rows of interrupts have its digest.
//!
//! A schema stays as long as interrupts have its digest, and for some days after its last use. So a transaction that finds it used
//! lately need not store or lock it: nothing deletes it before the transaction ends.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use const_format::concatcp;

use crate::db::codec::json::{ColumnRef, unless_corrupt};
use crate::db::engine::LaterRows;
use crate::db::{DbResult, Tx};
use crate::domain::id::ThreadId;
use crate::domain::identity::Tenant;
use crate::domain::interrupt::{Interrupt, Question, QuestionKind};
use crate::domain::schema_text::SchemaText;
use crate::domain::time::Timestamp;

/// The size from which a schema is stored apart, in bytes.
const MIN_BYTES: usize = 1024;
/// The time after which the use of a schema is stored again.
const USED_LATELY: Duration = Duration::from_secs(24 * 3600);
/// The time since its last use in which a schema stays in any case. It is longer than that by far more than any transaction takes,
/// and than the clocks of servers differ.
const KEPT: Duration = Duration::from_secs(8 * 24 * 3600);

/// The number of schemas that are kept in memory.
const MAX_KEPT: usize = 64;
/// The maximum size of a schema that is kept in memory, in bytes.
const MAX_KEPT_BYTES: usize = 64 * 1024;

/// The schemas that were read last, the newest one last. They are found by their digests, whoever has stored them.
static KEPT_IN_MEMORY: Mutex<VecDeque<SchemaText>> = Mutex::new(VecDeque::new());

fn kept_in_memory() -> MutexGuard<'static, VecDeque<SchemaText>> {
    // A panic while the lock was held leaves whole schemas.
    KEPT_IN_MEMORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the column with a schema.
fn cell(digest: &String) -> ColumnRef<'_, String> {
    ColumnRef {
        table: "answer_schemas",
        column: "schema",
        id: digest,
    }
}

/// The schema of an interrupt that is stored without it.
pub(super) struct SchemaOfThread<'r> {
    pub(super) thread: ThreadId,
    pub(super) digest: &'r str,
}

/// The schemas of some interrupts, by their digests.
#[derive(Default)]
pub(super) struct KnownSchemas(HashMap<String, SchemaText>);

impl KnownSchemas {
    /// Returns the schemas of interrupts. Those that are not in memory are read; those that cannot be read are logged and left out.
    ///
    /// # Errors
    /// [`DbError::Sealed`](crate::db::DbError::Sealed) when this server does not have the key of a schema, and errors of the database.
    pub(super) async fn of(tx: &mut Tx<'_>, wanted: Vec<SchemaOfThread<'_>>) -> DbResult<Self> {
        let mut known = Self::default();
        let mut missing = vec![];
        for schema in wanted {
            if known.0.contains_key(schema.digest) {
                continue;
            }
            match find_in_memory(schema.digest) {
                Some(kept) => drop(known.0.insert(schema.digest.to_owned(), kept)),
                None => missing.push(schema),
            }
        }
        for SchemaOfThread { thread, digest } in missing {
            if known.0.contains_key(digest) {
                continue;
            }
            // In a box, since mostly none is read, and every future that reads interrupts would be larger.
            if let Some(schema) = unless_corrupt(Box::pin(read(tx, thread, digest)).await)? {
                keep_in_memory(&schema);
                known.0.insert(digest.to_owned(), schema);
            }
        }
        Ok(known)
    }

    /// Puts the schema back into the question of an interrupt that was stored without it.
    ///
    /// # Errors
    /// [`DbError::Corrupt`](crate::db::DbError::Corrupt) when the schema is not there.
    pub(super) fn put_back(&self, interrupt: &mut Interrupt, digest: Option<&str>) -> DbResult<()> {
        if !interrupt.question.lacks_schema() {
            return Ok(());
        }
        let digest = digest.unwrap_or_default();
        let schema = self.0.get(digest).ok_or_else(|| cell(&digest.to_owned()).corrupt())?;
        Arc::make_mut(&mut interrupt.question).schema = schema.clone();
        Ok(())
    }
}

/// Reads a schema of the tenant of a thread.
///
/// # Errors
/// [`DbError::Corrupt`](crate::db::DbError::Corrupt) when there is none, or another one than its digest says, and
/// [`DbError::Sealed`](crate::db::DbError::Sealed) when this server does not have its key.
async fn read(tx: &mut Tx<'_>, thread: ThreadId, digest: &str) -> DbResult<SchemaText> {
    const SQL: &str = "select schema from answer_schemas where digest = $2 \
        and tenant = (select owned.tenant from threads owned where owned.thread_id = $1)";
    let statement = tx.statement(SQL).bind(thread.0).bind(digest);
    let row: Option<(String,)> = statement.fetch_optional().await?;
    let digest = digest.to_owned();
    let stored = row.map(|(schema,)| schema).ok_or_else(|| cell(&digest).corrupt())?;
    let schema = SchemaText::stored(cell(&digest).open_owned(stored)?);
    match schema.digest() == digest {
        true => Ok(schema),
        false => Err(cell(&digest).corrupt()),
    }
}

/// Returns a schema, if it is in memory.
fn find_in_memory(digest: &str) -> Option<SchemaText> {
    kept_in_memory().iter().find(|kept| kept.digest() == digest).cloned()
}

fn keep_in_memory(schema: &SchemaText) {
    if schema.as_str().len() > MAX_KEPT_BYTES {
        return;
    }
    let mut kept = kept_in_memory();
    kept.push_back(schema.clone());
    if kept.len() > MAX_KEPT {
        kept.pop_front();
    }
}

/// Returns the schema of a question that is to be stored apart; none if it stays with the question. The schemas of other questions
/// than approvals are mostly short, and each is another one.
pub(super) fn apart<'q>(tx: &Tx<'_>, question: &'q Question) -> Option<&'q SchemaText> {
    let is_apart = question.kind == QuestionKind::ToolApproval && question.schema.as_str().len() >= MIN_BYTES;
    (is_apart && tx.stores_answer_schemas()).then_some(&question.schema)
}

/// A schema that a new interrupt has. Its row is read later in the transaction.
pub(super) struct LaterSchema<'a> {
    schema: &'a SchemaText,
    rows: LaterRows<(i64,)>,
}

/// Begins to look whether a schema is stored for the tenant of a thread. It is read together with other rows.
pub(super) async fn find_later<'a>(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    schema: &'a SchemaText,
) -> DbResult<LaterSchema<'a>> {
    const SQL: &str = "select used_at from answer_schemas where digest = $2 \
        and tenant = (select owned.tenant from threads owned where owned.thread_id = $1)";
    let statement = tx.statement(SQL).bind(thread.0).bind(schema.digest());
    let rows = statement.fetch_later().await?;
    Ok(LaterSchema { schema, rows })
}

impl LaterSchema<'_> {
    /// Stores the schema for the tenant of the thread, or that it is used at this time, unless it was used lately.
    pub(super) async fn store(self, tx: &mut Tx<'_>, thread: ThreadId, now: Timestamp) -> DbResult<()> {
        const SQL: &str = "insert into answer_schemas (tenant, digest, used_at, schema) \
            select tenant, $2, $3, $4 from threads where thread_id = $1 \
            on conflict (tenant, digest) do update set used_at = excluded.used_at";
        let Self { schema, rows } = self;
        let used = rows.fetch_optional(tx).await?;
        if used.is_some_and(|(used_at,)| Timestamp(used_at) > now.minus(USED_LATELY)) {
            return Ok(());
        }
        let digest = schema.digest().to_owned();
        let sealer = tx.sealer_of_thread(thread).await?;
        let text = sealer.seal(&cell(&digest), schema.as_str().to_owned())?;
        tx.statement(SQL)
            .bind(thread.0)
            .bind(digest)
            .bind(now.0)
            .bind(text)
            .execute_later()
            .await
    }
}

/// Deletes up to `limit` schemas that no interrupt has, and that were not used for some days. Returns their number.
pub async fn sweep_schemas(tx: &mut Tx<'_>, now: Timestamp, limit: i64) -> DbResult<u64> {
    const UNUSED: &str = "select old.tenant, old.digest from answer_schemas old where old.used_at < $1 \
        and not exists (select 1 from interrupts asked where asked.schema_digest = old.digest) limit $2";
    // A schema that was used since has another time.
    const SQL: &str = concatcp!(
        "delete from answer_schemas where used_at < $1 and (tenant, digest) in (",
        UNUSED,
        ")"
    );
    tx.statement(SQL).bind(now.minus(KEPT).0).bind(limit).execute().await
}

/// Deletes the schemas of a tenant whose threads are deleted.
pub async fn delete_schemas_of_tenant(tx: &mut Tx<'_>, tenant: &Tenant) -> DbResult<()> {
    const SQL: &str = "delete from answer_schemas where tenant = $1";
    tx.statement(SQL).bind(tenant.as_str()).execute_later().await
}
