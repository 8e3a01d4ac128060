//! Which namespaces there are.

use sqlx::query_scalar;

use super::{namespace_of, range, text_of};
use crate::db::engine::on_engine;
use crate::db::{DbResult, Tx};
use crate::domain::item::Namespace;
use crate::domain::time::Timestamp;

/// How many namespaces are looked up at a time.
const BATCH: i64 = 128;

/// Stands for any label.
const ANY: &str = "*";

/// Which namespaces are wanted. They come in the order of their texts.
#[derive(Debug, Clone, PartialEq)]
pub struct NamespaceSearch {
    /// How they begin; `*` is any label.
    pub prefix: Namespace,
    /// How they end; `*` is any label.
    pub suffix: Namespace,
    /// How many labels are shown of each; those that look alike then count as one.
    pub max_depth: Option<usize>,
    /// How many at most.
    pub limit: usize,
    /// How many to pass over before.
    pub offset: usize,
}

impl NamespaceSearch {
    /// The labels of the prefix up to the first that may be any.
    fn fixed_prefix(&self) -> Namespace {
        Namespace::stored(
            self.prefix
                .labels()
                .iter()
                .take_while(|label| *label != ANY)
                .cloned()
                .collect(),
        )
    }

    fn wants(&self, namespace: &Namespace) -> bool {
        let labels = namespace.labels();
        let prefix = self.prefix.labels();
        let suffix = self.suffix.labels();
        let alike = |(label, wanted): (&String, &String)| wanted == ANY || label == wanted;
        labels.len() >= prefix.len().max(suffix.len())
            && labels.iter().zip(prefix).all(alike)
            && labels[labels.len() - suffix.len()..].iter().zip(suffix).all(alike)
    }

    fn shown(&self, namespace: &Namespace) -> Namespace {
        let depth = self.max_depth.unwrap_or(usize::MAX);
        Namespace::stored(namespace.labels().iter().take(depth).cloned().collect())
    }
}

/// The namespaces in which there are items. Each is found by one look into the index, however many items it has; and of
/// those that `max_depth` makes one, at most a batch is looked at.
pub async fn list_namespaces(tx: &mut Tx<'_>, wanted: &NamespaceSearch, now: Timestamp) -> DbResult<Vec<Namespace>> {
    let (mut from, to) = range(&wanted.fixed_prefix());
    let mut found: Vec<Namespace> = vec![];
    let most = wanted.offset.saturating_add(wanted.limit);
    loop {
        let batch = batch(tx, &from, &to, now).await?;
        for text in &batch {
            let namespace = namespace_of(text);
            let shown = wanted.shown(&namespace);
            if wanted.wants(&namespace) && found.last() != Some(&shown) {
                found.push(shown);
            }
        }
        let Some(last) = batch.last().filter(|_| i64::try_from(batch.len()) == Ok(BATCH)) else {
            break;
        };
        if found.len() > most {
            break;
        }
        from = next_after(wanted, last, found.last());
    }
    Ok(found.into_iter().skip(wanted.offset).take(wanted.limit).collect())
}

/// Where to look on after `last`: past all that would be shown like the one shown last, else at `last` again, which the
/// list has already.
fn next_after(wanted: &NamespaceSearch, last: &str, shown: Option<&Namespace>) -> String {
    let namespace = namespace_of(last);
    let cut = wanted.shown(&namespace);
    if cut != namespace && shown == Some(&cut) {
        range(&cut).1
    } else {
        text_of(&namespace)
    }
}

/// The next namespaces with items, from one text on and before another.
async fn batch(tx: &mut Tx<'_>, from: &str, to: &str, now: Timestamp) -> DbResult<Vec<String>> {
    const SQL: &str = "with recursive found (name, number) as ( \
        select (select namespace from items where namespace >= $1 and namespace < $2 \
            and (expires_at is null or expires_at > $3) order by namespace limit 1), 1 \
        union all select (select namespace from items where namespace > found.name and namespace < $2 \
            and (expires_at is null or expires_at > $3) order by namespace limit 1), number + 1 \
        from found where name is not null and number < $4) \
        select name from found where name is not null order by number";
    let names = on_engine!(tx, |conn| query_scalar(SQL)
        .bind(from)
        .bind(to)
        .bind(now.0)
        .bind(BATCH)
        .fetch_all(conn)
        .await)?;
    Ok(names)
}
