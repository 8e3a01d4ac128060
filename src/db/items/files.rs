//! Facts about the files that items hold. The database measures plain contents, so that they are not transferred;
//! sealed values are opened in this process. There is a limit for both.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use sqlx::QueryBuilder;

use super::{bound_id, cell, push_addresses, push_not_expired, text_of};
use crate::db::access::push_owner;
use crate::db::codec::json::unless_corrupt;
use crate::db::engine::on_engine;
use crate::db::row::from_row;
use crate::db::{DbResult, Tx};
use crate::domain::access::Ownership;
use crate::domain::item::Namespace;
use crate::domain::state::{Encoding, File, FileFacts};
use crate::domain::time::Timestamp;

/// The number of items read at a time.
const BATCH: usize = 32;
/// The limits for one list.
const LIMITS: FileFactLimits = FileFactLimits {
    opened: 32 * 1024 * 1024,
    measured: 128 * 1024 * 1024,
};

/// The approximate numbers of bytes that are read for one list.
#[derive(Debug, Clone, Copy)]
pub(in crate::db) struct FileFactLimits {
    /// In values that this process opens, because the database cannot measure them.
    pub(in crate::db) opened: usize,
    /// In values that the database reads to measure them.
    pub(in crate::db) measured: usize,
}

from_row! {
    /// The columns of an item that holds a file.
    struct FileRow {
        key: String,
        is_base64: bool,
        /// The bytes of the value as it is stored, which Postgres may have compressed.
        stored: i64,
        /// The length of a content that is a text, in bytes and without the padding of base64.
        length: Option<i64>,
        /// The value, if its content is not a text that the database can measure.
        value: Option<String>,
        created_at: i64,
        updated_at: i64,
    }
}

impl FileRow {
    /// Returns the bytes that the database reads to measure the content.
    fn measured(&self) -> usize {
        let bytes = self.length.map_or(0, |length| length.max(self.stored));
        usize::try_from(bytes).unwrap_or(0)
    }

    /// Returns what is known of the file; none if the item is no file. `owner` and `namespace` are as they are stored.
    fn facts(&self, owner: &str, namespace: &str) -> DbResult<Option<FileFacts>> {
        let measured = match (&self.value, self.length) {
            (Some(value), _) => {
                let value: Map<String, Value> = cell(&bound_id(owner, namespace, &self.key)).decode(value)?;
                File::from_item(&value).map(|file| file.facts())
            }
            (None, length) => length.and_then(|length| usize::try_from(length).ok()).map(|length| {
                let encoding = if self.is_base64 {
                    Encoding::Base64
                } else {
                    Encoding::Utf8
                };
                FileFacts {
                    size: u64::try_from(encoding.decoded_size(length)).ok(),
                    encoding: Some(encoding),
                    ..FileFacts::default()
                }
            }),
        };
        Ok(measured.map(|facts| FileFacts {
            created_at: Some(Timestamp(self.created_at).to_string()),
            modified_at: Some(Timestamp(self.updated_at).to_string()),
            ..facts
        }))
    }
}

/// Returns what is known of the files in the items with these keys, in exactly this namespace, by key. Items that are no
/// files, have expired or cannot be read are left out, and so are those behind the limits of what is read.
pub async fn file_facts(
    tx: &mut Tx<'_>,
    space: &Ownership,
    namespace: &Namespace,
    keys: &[String],
    now: Timestamp,
) -> DbResult<BTreeMap<String, FileFacts>> {
    file_facts_within(tx, space, namespace, keys, now, LIMITS).await
}

/// Returns the same as [`file_facts`] within other limits. A batch of items that is begun is read to its end.
pub(in crate::db) async fn file_facts_within(
    tx: &mut Tx<'_>,
    space: &Ownership,
    namespace: &Namespace,
    keys: &[String],
    now: Timestamp,
    mut left: FileFactLimits,
) -> DbResult<BTreeMap<String, FileFacts>> {
    let namespace = text_of(namespace);
    let mut known = BTreeMap::new();
    for batch in keys.chunks(BATCH) {
        for row in rows(tx, space, &namespace, batch, now).await? {
            let facts = unless_corrupt(row.facts(space.owner.as_str(), &namespace))?;
            left.opened = left.opened.saturating_sub(row.value.as_ref().map_or(0, String::len));
            left.measured = left.measured.saturating_sub(row.measured());
            known.extend(facts.flatten().map(|facts| (row.key, facts)));
        }
        if left.opened == 0 || left.measured == 0 {
            break;
        }
    }
    Ok(known)
}

/// Returns the rows of the items with these keys. A value without a text as its content is a sealed one, or the content
/// is a list of lines.
async fn rows(
    tx: &mut Tx<'_>,
    space: &Ownership,
    namespace: &str,
    keys: &[String],
    now: Timestamp,
) -> DbResult<Vec<FileRow>> {
    const SQLITE: &str = "select key, created_at, updated_at, octet_length(value) as stored, \
        coalesce(json_extract(json, '$.encoding') = 'base64', false) as is_base64, \
        case when json_type(json, '$.content') = 'text' then length(cast(\
        case when json_extract(json, '$.encoding') = 'base64' then rtrim(json_extract(json, '$.content'), '=') \
        else json_extract(json, '$.content') end as blob)) end as length, \
        case when json_type(json, '$.content') is not 'text' then value end as value \
        from (select *, case when json_valid(value) then value end as json from items) items where ";
    const POSTGRES: &str = "select key, created_at, updated_at, pg_column_size(value)::bigint as stored, \
        coalesce(value ->> 'encoding' = 'base64', false) as is_base64, \
        case when jsonb_typeof(value -> 'content') = 'string' then octet_length(\
        case when value ->> 'encoding' = 'base64' then rtrim(value ->> 'content', '=') \
        else value ->> 'content' end)::bigint end as length, \
        case when jsonb_typeof(value -> 'content') is distinct from 'string' then value::text end as value \
        from items where ";
    let select = tx.either(SQLITE, POSTGRES);
    let rows = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(select);
        push_owner(&mut sql, "", &space.tenant, Some(&space.owner));
        push_not_expired(&mut sql, "", now);
        push_addresses(&mut sql, keys.iter().map(|key| (namespace.to_owned(), key.clone())));
        sql.build_query_as().fetch_all(conn).await
    })?;
    Ok(rows)
}
