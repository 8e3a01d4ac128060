//! The tables of blobs: large base64 content, stored once for each tenant.
//!
//! The texts of the log and of requests are *packed* before they are sealed: a base64 string of at least
//! [`Tx::blob_min_chars`] is cut out of the JSON text, its bytes become a blob, and a header before the text says which
//! blob belongs where. Reading [restores](restore) the same text. Nothing in the JSON text itself is a reference, so
//! no content of a client can be taken for one.
//!
//! A blob is deleted with the last row that refers to it, in the same transaction. A transaction that refers to a blob
//! locks it until its end, and one that deletes it waits for that lock. So no blob is deleted that is still referred to.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use const_format::concatcp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sqlx::{QueryBuilder, query, query_as};

use super::json::{ColumnRef, encode, unless_corrupt};
use super::sealers::tenant_of;
use super::short_form::{self, Dictionary, is_short, shorten};
use crate::db::engine::sealing::{self, Sealer};
use crate::db::engine::{Engine, OF_MAIN_AGENTS, OF_SUBAGENTS, on_engine};
use crate::db::row::from_row;
use crate::db::{DbError, DbResult, Tx};
use crate::domain::id::{RunId, ThreadId};

/// The beginning of a packed text. No JSON text begins like this.
const PREFIX: &str = "blobs1:";
/// The maximum number of blobs in one statement; databases limit the number of bound values.
const MAX_ROWS: usize = 200;
/// The number of times that a blob is stored again which others have just deleted.
const MAX_TRIES: usize = 5;

/// A reference of a packed text to a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::db) struct BlobRef {
    /// The place in the text without blobs at which the base64 text belongs, in bytes.
    at: usize,
    /// The digest of the content.
    digest: String,
    /// The size of the content in bytes.
    bytes: i64,
}

/// A packed text, taken apart.
struct Packed<'t> {
    refs: Vec<BlobRef>,
    /// The JSON text without the blobs.
    rest: &'t str,
}

/// Takes a packed text apart; none if the text is not packed or its header cannot be read.
fn take_apart(text: &str) -> Option<Packed<'_>> {
    let (header, rest) = text.strip_prefix(PREFIX)?.split_once('\n')?;
    let refs = serde_json::from_str(header).ok()?;
    Some(Packed { refs, rest })
}

/// Decodes some fields of a text of this column, and nothing of its blobs, in whose places are empty strings or beginnings of
/// data URLs.
pub(in crate::db) fn decode_some<T: DeserializeOwned, I: ToString>(cell: &ColumnRef<'_, I>, text: &str) -> DbResult<T> {
    let opened = cell.open(text)?;
    let text = take_apart(&opened).map_or(&*opened, |packed| packed.rest);
    serde_json::from_str(text).map_err(|_| cell.corrupt())
}

/// Returns the references of a text that is not sealed.
pub(in crate::db) fn refs_of(text: &str) -> Vec<BlobRef> {
    take_apart(text).map(|packed| packed.refs).unwrap_or_default()
}

/// Returns the length that a text has with its blobs, if it is not sealed, in bytes.
pub(in crate::db) fn restored_len(text: &str) -> usize {
    let blobs = refs_of(text).into_iter();
    let added: i64 = blobs.map(|found| (found.bytes + 2) / 3 * 4).sum();
    text.len().saturating_add(usize::try_from(added).unwrap_or(0))
}

/// The strings of a JSON text that are long and have no escapes.
struct LongStrings<'t> {
    text: &'t str,
    at: usize,
    min: usize,
}

impl Iterator for LongStrings<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.text.as_bytes();
        loop {
            let start = self.at + bytes.get(self.at..)?.iter().position(|byte| *byte == b'"')? + 1;
            let mut end = start;
            let mut has_escape = false;
            loop {
                match bytes.get(end)? {
                    b'"' => break,
                    b'\\' => {
                        has_escape = true;
                        end += 2;
                    }
                    _ => end += 1,
                }
            }
            self.at = end + 1;
            if !has_escape && end - start >= self.min {
                return Some(start..end);
            }
        }
    }
}

/// Returns the part of a string that may be base64: a data URL without its beginning, or all of it.
fn base64_part(text: &str, string: Range<usize>) -> Range<usize> {
    const MARK: &str = ";base64,";
    let content = &text[string.clone()];
    match content.starts_with("data:").then(|| content.find(MARK)).flatten() {
        Some(at) => string.start + at + MARK.len()..string.end,
        None => string,
    }
}

/// A blob of the texts of a row.
struct NewBlob {
    content: Vec<u8>,
    /// The characters that were cut out of the texts.
    chars: i64,
}

/// Packs a JSON text. Its blobs are added to `blobs`, by digest.
fn pack(text: String, min: usize, blobs: &mut BTreeMap<String, NewBlob>) -> DbResult<String> {
    if text.len() < min {
        return Ok(text);
    }
    let strings = LongStrings {
        text: &text,
        at: 0,
        min,
    };
    let mut refs = vec![];
    let mut rest = String::new();
    let mut done = 0;
    for string in strings {
        let part = base64_part(&text, string);
        if part.len() < min {
            continue;
        }
        // Only one base64 text decodes to these bytes, since others are refused: the same text can be restored.
        let Ok(bytes) = STANDARD.decode(&text[part.clone()]) else {
            continue;
        };
        let digest = hex::encode(Sha256::digest(&bytes));
        rest.push_str(&text[done..part.start]);
        done = part.end;
        refs.push(BlobRef {
            at: rest.len(),
            digest: digest.clone(),
            bytes: number(bytes.len()),
        });
        let blob = blobs.entry(digest).or_insert(NewBlob {
            content: bytes,
            chars: 0,
        });
        blob.chars += number(part.len());
    }
    if refs.is_empty() {
        return Ok(text);
    }
    rest.push_str(&text[done..]);
    Ok(format!("{PREFIX}{}\n{rest}", encode(&refs)?))
}

/// Puts the blobs back into a packed text; none if one of them is missing.
fn unpack(packed: &Packed<'_>, contents: &HashMap<String, Vec<u8>>) -> Option<String> {
    let lengths = packed
        .refs
        .iter()
        .map(|found| contents.get(&found.digest).map(Vec::len));
    let added = lengths.map(|len| len.unwrap_or(0) / 3 * 4 + 4).sum::<usize>();
    let mut text = String::with_capacity(packed.rest.len() + added);
    let mut done = 0;
    for found in &packed.refs {
        text.push_str(packed.rest.get(done..found.at)?);
        STANDARD.encode_string(contents.get(&found.digest)?, &mut text);
        done = found.at;
    }
    text.push_str(packed.rest.get(done..)?);
    Some(text)
}

fn number(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

/// Returns the id to which the content of a blob is bound.
pub(in crate::db) fn bound_id(tenant: &str, digest: &str) -> String {
    format!("{tenant}\n{digest}")
}

/// Returns the column with the content of a blob.
pub(in crate::db) fn cell(id: &String) -> ColumnRef<'_, String> {
    ColumnRef {
        table: "blobs",
        column: "content",
        id,
    }
}

/// The row that refers to blobs.
#[derive(Debug, Clone, Copy)]
pub(in crate::db) enum BlobReferrer {
    /// A checkpoint or an event, by its number in the log of the thread.
    Entry {
        /// The thread.
        thread: ThreadId,
        /// The number.
        seq: i64,
    },
    /// The request of a run.
    Request {
        /// The thread of the run.
        thread: ThreadId,
        /// The run.
        run: RunId,
    },
}

impl BlobReferrer {
    fn thread(self) -> ThreadId {
        match self {
            Self::Entry { thread, .. } | Self::Request { thread, .. } => thread,
        }
    }
}

/// Packs, shortens and seals the texts of one row.
pub(in crate::db) struct Packer {
    sealer: Sealer,
    min: usize,
    dictionary: Option<Dictionary>,
    blobs: BTreeMap<String, NewBlob>,
}

impl Packer {
    /// Creates the packer for a row on this thread.
    pub(in crate::db) async fn of_thread(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Self> {
        Ok(Self {
            sealer: tx.sealer_of_thread(thread).await?,
            min: tx.blob_min_chars,
            dictionary: short_form::dictionary(tx),
            blobs: BTreeMap::new(),
        })
    }

    /// Encodes a value as JSON text, and packs, shortens and seals the text.
    pub(in crate::db) fn encode<T: Serialize + ?Sized, I: ToString>(
        &mut self,
        cell: &ColumnRef<'_, I>,
        value: &T,
    ) -> DbResult<String> {
        let packed = pack(encode(value)?, self.min, &mut self.blobs)?;
        self.seal(cell, packed)
    }

    /// Shortens a packed text, if every server reads that, and seals it.
    pub(in crate::db) fn seal<I: ToString>(&self, cell: &ColumnRef<'_, I>, packed: String) -> DbResult<String> {
        let text = match self.dictionary {
            Some(dictionary) => shorten(packed, dictionary),
            None => packed,
        };
        self.sealer.seal(cell, text)
    }

    /// Returns whether one of the packed texts refers to a blob.
    pub(in crate::db) fn has_blobs(&self) -> bool {
        !self.blobs.is_empty()
    }

    /// Stores the blobs of the packed texts, and the references of `referrer` to them.
    ///
    /// # Errors
    /// [`DbError::Conflict`] when the thread was deleted.
    pub(in crate::db) async fn store(self, tx: &mut Tx<'_>, referrer: BlobReferrer) -> DbResult<()> {
        if self.blobs.is_empty() {
            return Ok(());
        }
        let wanted = self.blobs.iter().map(|(digest, blob)| {
            let reference = Reference {
                bytes: number(blob.content.len()),
                chars: blob.chars,
            };
            (digest.clone(), reference)
        });
        refer(tx, referrer, &wanted.collect(), BlobSource::Given(&self.blobs)).await
    }
}

/// A reference of a row to a blob.
#[derive(Debug, Clone, Copy, Default)]
struct Reference {
    /// The size of the blob in bytes.
    bytes: i64,
    /// The characters that the blob adds to the texts of the row.
    chars: i64,
}

/// The references of a row, by digest.
type References = BTreeMap<String, Reference>;

/// The place from which a blob comes that a tenant does not have yet.
#[derive(Clone, Copy)]
enum BlobSource<'a> {
    /// New blobs, by digest.
    Given(&'a BTreeMap<String, NewBlob>),
    /// The blobs of the tenant of this thread.
    Thread(ThreadId),
}

/// Stores the references of a copied entry to the blobs of packed texts of thread `from`. A copy that belongs to another
/// tenant gets blobs of that tenant.
///
/// # Errors
/// [`DbError::Conflict`] when one of the threads was deleted.
pub(in crate::db) async fn copy(
    tx: &mut Tx<'_>,
    from: ThreadId,
    referrer: BlobReferrer,
    refs: Vec<BlobRef>,
) -> DbResult<()> {
    let mut wanted = References::new();
    for found in refs {
        let reference = wanted.entry(found.digest).or_default();
        reference.bytes = found.bytes;
        reference.chars += (found.bytes + 2) / 3 * 4;
    }
    if wanted.is_empty() {
        return Ok(());
    }
    refer(tx, referrer, &wanted, BlobSource::Thread(from)).await
}

/// Makes `referrer` refer to blobs, and stores those that are not there.
async fn refer(tx: &mut Tx<'_>, referrer: BlobReferrer, wanted: &References, source: BlobSource<'_>) -> DbResult<()> {
    let thread = referrer.thread();
    let deleted = || DbError::Conflict(format!("the thread {thread} does not exist"));
    let tenant = tenant_of(tx, thread).await?.ok_or_else(deleted)?;
    for _ in 0..MAX_TRIES {
        let held = lock(tx, &tenant, wanted).await?;
        let mut is_complete = true;
        for digest in wanted.keys().filter(|digest| !held.contains(*digest)) {
            is_complete = false;
            match source {
                BlobSource::Given(contents) => {
                    let blob = contents.get(digest).ok_or_else(deleted)?;
                    insert(tx, &tenant, digest, &blob.content).await?;
                }
                BlobSource::Thread(from) => {
                    let content = contents(tx, from, &BTreeSet::from([digest.as_str()])).await?;
                    let content = content.get(digest).ok_or_else(deleted)?;
                    insert(tx, &tenant, digest, content).await?;
                }
            }
        }
        if is_complete {
            return insert_references(tx, &tenant, referrer, wanted).await;
        }
    }
    Err(DbError::Busy)
}

/// Returns those of these blobs that a tenant has. Nobody can delete them before the end of the transaction.
async fn lock(tx: &mut Tx<'_>, tenant: &str, wanted: &References) -> DbResult<BTreeSet<String>> {
    let lock = tx.either("", " for key share");
    let digests: Vec<&String> = wanted.keys().collect();
    let mut held = BTreeSet::new();
    for batch in digests.chunks(MAX_ROWS) {
        let found: Vec<String> = on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new("select digest from blobs where tenant = ");
            sql.push_bind(tenant).push(" and digest in (");
            let mut list = sql.separated(", ");
            for digest in batch {
                list.push_bind(digest.as_str());
            }
            // The order is the same everywhere, so that transactions do not wait for each other.
            sql.push(") order by digest").push(lock);
            sql.build_query_scalar().fetch_all(conn).await
        })?;
        held.extend(found);
    }
    Ok(held)
}

/// Stores a blob, unless it is there.
async fn insert(tx: &mut Tx<'_>, tenant: &str, digest: &str, content: &[u8]) -> DbResult<()> {
    const SQL: &str = "insert into blobs (tenant, digest, bytes, sealed, content) values ($1, $2, $3, $4, $5) \
        on conflict (tenant, digest) do nothing";
    let sealer = tx.sealer(tenant).await?;
    let sealed = sealer.seal_bytes(&cell(&bound_id(tenant, digest)), content)?;
    on_engine!(tx, |conn| query(SQL)
        .bind(tenant)
        .bind(digest)
        .bind(number(content.len()))
        .bind(sealed.is_some())
        .bind(sealed.as_deref().unwrap_or(content))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

async fn insert_references(tx: &mut Tx<'_>, tenant: &str, referrer: BlobReferrer, wanted: &References) -> DbResult<()> {
    const ENTRY: &str = "insert into entry_blobs (thread_id, digest, tenant, bytes, seq, chars) ";
    const REQUEST: &str = "insert into request_blobs (thread_id, digest, tenant, bytes, run_id) ";
    // An entry may get more texts later: the position of a checkpoint.
    const AGAIN: &str =
        " on conflict (thread_id, seq, digest) do update set chars = entry_blobs.chars + excluded.chars";
    let rows: Vec<(&String, &Reference)> = wanted.iter().collect();
    for batch in rows.chunks(MAX_ROWS) {
        on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(match referrer {
                BlobReferrer::Entry { .. } => ENTRY,
                BlobReferrer::Request { .. } => REQUEST,
            });
            sql.push_values(batch, |mut values, (digest, reference)| {
                values.push_bind(referrer.thread().0).push_bind(digest.as_str());
                values.push_bind(tenant).push_bind(reference.bytes);
                match referrer {
                    BlobReferrer::Entry { seq, .. } => values.push_bind(seq).push_bind(reference.chars),
                    BlobReferrer::Request { run, .. } => values.push_bind(run.0),
                };
            });
            sql.push(match referrer {
                BlobReferrer::Entry { .. } => AGAIN,
                BlobReferrer::Request { .. } => "",
            });
            sql.build().execute(conn).await.map(drop)
        })?;
    }
    Ok(())
}

/// A text that was read from a column and may be sealed, short and packed.
pub(in crate::db) struct StoredText<'a, I: ToString> {
    /// The column.
    pub(in crate::db) cell: ColumnRef<'a, I>,
    /// The text.
    pub(in crate::db) text: &'a mut String,
}

/// Opens and expands a text. One that cannot be opened stays as it is.
pub(in crate::db) fn open<I: ToString>(cell: &ColumnRef<'_, I>, text: &mut String) {
    if (sealing::is_sealed(text) || is_short(text))
        && let Ok(opened) = cell.open(text).map(Cow::into_owned)
    {
        *text = opened;
    }
}

/// Opens and expands texts of rows on this thread, and puts their blobs back. Blobs are read only if one of the texts has
/// some, and each only once. A text that cannot be restored stays as it is, which is an error when it is decoded.
///
/// # Errors
/// [`DbError::Sealed`] when this server does not have the key of a blob, and errors of the database.
pub(in crate::db) async fn restore<I: ToString>(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    texts: Vec<StoredText<'_, I>>,
) -> DbResult<()> {
    let mut packed = vec![];
    for StoredText { cell, text } in texts {
        open(&cell, text);
        if text.starts_with(PREFIX) {
            packed.push(text);
        }
    }
    if packed.is_empty() {
        return Ok(());
    }
    let refs: Vec<BlobRef> = packed.iter().flat_map(|text| refs_of(text)).collect();
    let digests = refs.iter().map(|found| found.digest.as_str()).collect();
    let contents = contents(tx, thread, &digests).await?;
    for text in packed {
        let restored = take_apart(text).and_then(|packed| unpack(&packed, &contents));
        if let Some(restored) = restored {
            *text = restored;
        }
    }
    Ok(())
}

from_row! {
    struct BlobRow {
        tenant: String,
        digest: String,
        sealed: bool,
        content: Vec<u8>,
    }
}

/// Returns the contents of these blobs of the tenant of a thread, by digest. Those that cannot be read are logged and
/// left out.
async fn contents(tx: &mut Tx<'_>, thread: ThreadId, digests: &BTreeSet<&str>) -> DbResult<HashMap<String, Vec<u8>>> {
    let digests: Vec<&str> = digests.iter().copied().collect();
    let mut contents = HashMap::with_capacity(digests.len());
    for batch in digests.chunks(MAX_ROWS) {
        let rows: Vec<BlobRow> = on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(
                "select tenant, digest, sealed, content from blobs \
                 where tenant = (select owned.tenant from threads owned where owned.thread_id = ",
            );
            sql.push_bind(thread.0).push(") and digest in (");
            let mut list = sql.separated(", ");
            for digest in batch {
                list.push_bind(*digest);
            }
            sql.push(")");
            sql.build_query_as().fetch_all(conn).await
        })?;
        for row in rows {
            let content = match row.sealed {
                false => Some(row.content),
                true => {
                    let id = bound_id(&row.tenant, &row.digest);
                    unless_corrupt(sealing::open_bytes(&cell(&id), row.content))?
                }
            };
            contents.extend(content.map(|content| (row.digest, content)));
        }
    }
    Ok(contents)
}

from_row! {
    /// The key of a blob.
    #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
    pub(in crate::db) struct BlobKey {
        tenant: String,
        digest: String,
    }
}

/// Returns the blobs to which a thread refers, which the caller has locked [to delete it](crate::db::threads::lock_to_delete): nothing can
/// be added to it before the end of the transaction.
pub(in crate::db) async fn of_thread(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<BlobKey>> {
    const SQL: &str = "select tenant, digest from entry_blobs where thread_id = $1 \
        union select tenant, digest from request_blobs where thread_id = $1";
    Ok(on_engine!(tx, |conn| query_as(SQL)
        .bind(thread.0)
        .fetch_all(conn)
        .await)?)
}

/// Returns the blobs to which the requests of a run and of the runs below it refer.
pub(in crate::db) async fn of_runs(tx: &mut Tx<'_>, root: RunId) -> DbResult<Vec<BlobKey>> {
    // Not with an `or`, for which Postgres reads the whole table.
    const SQL: &str = "select tenant, digest from request_blobs where run_id = $1 union all \
        select tenant, digest from request_blobs \
        where run_id in (select run_id from runs where root_id = $1 and depth > 0)";
    Ok(on_engine!(tx, |conn| query_as(SQL).bind(root.0).fetch_all(conn).await)?)
}

/// Returns the blobs to which the requests of those runs refer that run `by` began below runs of earlier ones, see
/// [`crate::db::runs::mark_begun_by`].
pub(in crate::db) async fn of_runs_begun_by(tx: &mut Tx<'_>, by: RunId) -> DbResult<Vec<BlobKey>> {
    const SQL: &str = "select tenant, digest from request_blobs \
        where run_id in (select run_id from runs where touched_by = $1 and before is null)";
    Ok(on_engine!(tx, |conn| query_as(SQL).bind(by.0).fetch_all(conn).await)?)
}

/// Deletes the references of the request of a run. Returns the blobs.
pub(in crate::db) async fn forget_request(tx: &mut Tx<'_>, run: RunId) -> DbResult<Vec<BlobKey>> {
    const SQL: &str = "delete from request_blobs where run_id = $1 returning tenant, digest";
    Ok(on_engine!(tx, |conn| query_as(SQL).bind(run.0).fetch_all(conn).await)?)
}

/// Deletes the references of entries that are no longer in the log of a thread, and the blobs that nothing else refers
/// to.
pub(in crate::db) async fn forget_deleted_entries(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<()> {
    const DELETE: &str = "delete from entry_blobs where thread_id = $1 \
        and not exists (select 1 from events found where found.thread_id = $1 and found.seq = entry_blobs.seq)";
    const STEP: &str = " and not exists (select 1 from checkpoints found where found.thread_id = $1 \
        and found.seq = entry_blobs.seq";
    const FREED: &str = ") returning tenant, digest";
    const SQLITE: &str = concatcp!(DELETE, STEP, OF_MAIN_AGENTS, ")", STEP, OF_SUBAGENTS, FREED);
    const POSTGRES: &str = concatcp!(DELETE, STEP, FREED);
    let sql = tx.either(SQLITE, POSTGRES);
    let freed: Vec<BlobKey> = on_engine!(tx, |conn| query_as(sql).bind(thread.0).fetch_all(conn).await)?;
    delete_unreferenced(tx, freed).await
}

/// Deletes those of these blobs to which nothing refers any more.
pub(in crate::db) async fn delete_unreferenced(tx: &mut Tx<'_>, mut freed: Vec<BlobKey>) -> DbResult<()> {
    const DELETE: &str = "delete from blobs where not exists (select 1 from entry_blobs held \
        where held.tenant = blobs.tenant and held.digest = blobs.digest) and not exists (select 1 from request_blobs held \
        where held.tenant = blobs.tenant and held.digest = blobs.digest) and (";
    freed.sort();
    freed.dedup();
    for batch in freed.chunks(MAX_ROWS) {
        // Transactions that refer to one of them have ended when it is locked, and the next statement sees them.
        if tx.engine() == Engine::Postgres {
            on_engine!(tx, |conn| {
                let mut sql = QueryBuilder::new("select digest from blobs where ");
                push_keys(&mut sql, batch);
                sql.push(" order by tenant, digest for update");
                sql.build().execute(conn).await.map(drop)
            })?;
        }
        on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(DELETE);
            push_keys(&mut sql, batch);
            sql.push(")");
            sql.build().execute(conn).await.map(drop)
        })?;
    }
    Ok(())
}

/// Appends the condition that a row is one of these.
fn push_keys<DB>(sql: &mut QueryBuilder<DB>, keys: &[BlobKey])
where
    DB: sqlx::Database,
    for<'q> String: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
{
    let mut list = sql.separated(" or ");
    for key in keys {
        list.push("(tenant = ")
            .push_bind_unseparated(key.tenant.clone())
            .push_unseparated(" and digest = ")
            .push_bind_unseparated(key.digest.clone())
            .push_unseparated(")");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base64(len: usize) -> String {
        STANDARD.encode(
            (0..len)
                .map(|at| u8::try_from(at % 251).unwrap_or(0))
                .collect::<Vec<u8>>(),
        )
    }

    /// Packs and restores a text. Returns the packed text and the number of blobs.
    fn packed(text: &str) -> (String, usize) {
        let mut blobs = BTreeMap::new();
        let packed = pack(text.to_owned(), 64, &mut blobs).expect("packed");
        let count = blobs.len();
        let contents: HashMap<String, Vec<u8>> =
            blobs.into_iter().map(|(digest, blob)| (digest, blob.content)).collect();
        let restored = take_apart(&packed).map(|packed| unpack(&packed, &contents).expect("restored"));
        assert_eq!(restored.as_deref().unwrap_or(&packed), text);
        (packed, count)
    }

    #[test]
    fn every_spelling_of_base64_content_is_packed_and_restored() {
        let long = base64(300);
        let blocks = [
            format!(r#"{{"type":"image","base64":"{long}","mime_type":"image/png"}}"#),
            format!(r#"{{"type":"image_url","image_url":{{"url":"data:image/png;base64,{long}"}}}}"#),
            format!(r#"{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{long}"}}}}"#),
            format!(r#"{{"type":"input_audio","input_audio":{{"data":"{long}","format":"wav"}}}}"#),
            format!(
                r#"{{"type":"file","file":{{"filename":"a \"b\".pdf","file_data":"data:application/pdf;base64,{long}"}}}}"#
            ),
            format!(r#"{{"a":"{long}","b":["{long}","é\\"]}}"#),
        ];
        for block in blocks {
            let (packed, count) = packed(&block);
            assert_eq!(count, 1, "{block}");
            assert!(!packed.contains(&long) && packed.len() < block.len(), "{packed}");
        }
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        let long = base64(300);
        let texts = [
            r#"{"type":"text","text":"short"}"#.to_owned(),
            format!(r#"{{"text":"{} and words"}}"#, "word ".repeat(100)),
            format!(r#"{{"text":"{long}\n"}}"#),
            format!(
                r#"{{"text":"{}"}}"#,
                long.trim_end_matches('=').replace('+', "-") + "-_"
            ),
            format!(r#"{{"text":"{long}"#),
            format!(r#"{{"text":"{long}\"#),
        ];
        for text in texts {
            assert_eq!(packed(&text).0, text);
        }
    }

    #[test]
    fn a_text_that_looks_like_a_reference_is_content() {
        let forged = encode(&format!("{PREFIX}[{{\"at\":0,\"digest\":\"00\",\"bytes\":1}}]\n")).expect("JSON");
        assert!(take_apart(&forged).is_none());
        let beside = format!(r#"[{forged},"{}"]"#, base64(300));
        assert_eq!(packed(&beside).1, 1);
    }

    #[test]
    fn a_text_whose_blob_is_missing_is_not_restored() {
        let mut blobs = BTreeMap::new();
        let text = format!(r#"["{}"]"#, base64(300));
        let packed = pack(text, 64, &mut blobs).expect("packed");
        let packed = take_apart(&packed).expect("a packed text");
        assert_eq!(unpack(&packed, &HashMap::new()), None);
    }
}
