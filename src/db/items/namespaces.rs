//! Lists the namespaces of the Store.

use sqlx::query_scalar;

use super::{NamespaceRange, namespace_of, text_of};
use crate::db::engine::on_engine;
use crate::db::{DbResult, Tx};
use crate::domain::access::Ownership;
use crate::domain::item::Namespace;
use crate::domain::time::Timestamp;

/// The number of namespaces read at a time.
const BATCH: i64 = 128;

/// The wildcard for a label.
const WILDCARD: &str = "*";

/// A query for namespaces, which are listed in the order of their stored texts.
#[derive(Debug, Clone, PartialEq)]
pub struct NamespaceSearch {
    /// The first labels; `*` matches any label.
    pub prefix: Namespace,
    /// The last labels; `*` matches any label.
    pub suffix: Namespace,
    /// The maximum number of labels to return; namespaces that are cut to the same labels count as one.
    pub max_depth: Option<usize>,
    /// The maximum number of namespaces.
    pub limit: usize,
    /// The number of namespaces to skip.
    pub offset: usize,
}

impl NamespaceSearch {
    /// Returns the labels of the prefix up to the first wildcard.
    fn fixed_prefix(&self) -> Namespace {
        Namespace::stored(
            self.prefix
                .labels()
                .iter()
                .take_while(|label| *label != WILDCARD)
                .cloned()
                .collect(),
        )
    }

    fn matches(&self, namespace: &Namespace) -> bool {
        let labels = namespace.labels();
        let prefix = self.prefix.labels();
        let suffix = self.suffix.labels();
        let equal = |(label, wanted): (&String, &String)| wanted == WILDCARD || label == wanted;
        labels.len() >= prefix.len().max(suffix.len())
            && labels.iter().zip(prefix).all(equal)
            && labels[labels.len() - suffix.len()..].iter().zip(suffix).all(equal)
    }

    fn cut(&self, namespace: &Namespace) -> Namespace {
        let depth = self.max_depth.unwrap_or(usize::MAX);
        Namespace::stored(namespace.labels().iter().take(depth).cloned().collect())
    }
}

/// Returns the namespaces in which an owner has items. Each costs one index lookup, however many items it has. Of
/// namespaces that `max_depth` makes one, at most one batch is read.
pub async fn list_namespaces(
    tx: &mut Tx<'_>,
    space: &Ownership,
    wanted: &NamespaceSearch,
    now: Timestamp,
) -> DbResult<Vec<Namespace>> {
    let mut left = NamespaceRange::below(&wanted.fixed_prefix());
    let mut found: Vec<Namespace> = vec![];
    let most = wanted.offset.saturating_add(wanted.limit);
    loop {
        let batch = read_batch(tx, space, &left, now).await?;
        for text in &batch {
            let namespace = namespace_of(text);
            let cut = wanted.cut(&namespace);
            if wanted.matches(&namespace) && found.last() != Some(&cut) {
                found.push(cut);
            }
        }
        let Some(last) = batch.last().filter(|_| i64::try_from(batch.len()) == Ok(BATCH)) else {
            break;
        };
        if found.len() > most {
            break;
        }
        left.from = next_after(wanted, last, found.last());
    }
    Ok(found.into_iter().skip(wanted.offset).take(wanted.limit).collect())
}

/// Returns the text from which the next batch begins: behind all namespaces that would be cut to the one listed last,
/// else `last` itself, which is in the list already.
fn next_after(wanted: &NamespaceSearch, last: &str, last_listed: Option<&Namespace>) -> String {
    let namespace = namespace_of(last);
    let cut = wanted.cut(&namespace);
    if cut != namespace && last_listed == Some(&cut) {
        NamespaceRange::below(&cut).to
    } else {
        text_of(&namespace)
    }
}

/// Returns the first namespaces with items in a range.
async fn read_batch(
    tx: &mut Tx<'_>,
    space: &Ownership,
    range: &NamespaceRange,
    now: Timestamp,
) -> DbResult<Vec<String>> {
    const SQL: &str = "with recursive found (name, number) as ( \
        select (select namespace from items where tenant = $5 and owner = $6 and namespace >= $1 and namespace < $2 \
            and (expires_at is null or expires_at > $3) order by namespace limit 1), 1 \
        union all select (select namespace from items where tenant = $5 and owner = $6 and namespace > found.name \
            and namespace < $2 and (expires_at is null or expires_at > $3) order by namespace limit 1), number + 1 \
        from found where name is not null and number < $4) \
        select name from found where name is not null order by number";
    let names = on_engine!(tx, |conn| query_scalar(SQL)
        .bind(&range.from)
        .bind(&range.to)
        .bind(now.0)
        .bind(BATCH)
        .bind(space.tenant.as_str())
        .bind(space.owner.as_str())
        .fetch_all(conn)
        .await)?;
    Ok(names)
}
