//! The terms of threads: an index of the values in their metadata, for searches. Terms are written in the transaction
//! that writes the metadata.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use sqlx::QueryBuilder;
use uuid::Uuid;

use crate::db::engine::on_engine;
use crate::db::{DbError, DbResult, Tx};
use crate::domain::filter::{Term, terms_of};
use crate::domain::id::ThreadId;

/// The maximum number of values in the metadata of a thread.
const MAX_VALUES: usize = 1000;
/// The number of values up to which all values are written, also those that have not changed.
const FEW: usize = 16;

/// Stores the terms of a new thread, which has none yet.
pub(super) async fn insert(tx: &mut Tx<'_>, thread: ThreadId, metadata: &Map<String, Value>) -> DbResult<()> {
    insert_rows(tx, thread, &checked_terms(metadata)?, "").await
}

/// Stores the terms of the new metadata of a thread, in place of those of the `former` ones, which are known. If no value is gone,
/// nothing is deleted, and what stays is left alone.
pub(super) async fn change(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    former: &Map<String, Value>,
    metadata: &Map<String, Value>,
) -> DbResult<()> {
    let stored = terms_of(former);
    let wanted = checked_terms(metadata)?;
    match stored.is_subset(&wanted) {
        true => insert_terms(tx, thread, &wanted.difference(&stored).copied().collect()).await,
        false => replace(tx, thread, metadata).await,
    }
}

/// Replaces the terms of a thread by those of its new metadata. Unless they are many, nothing is read for that.
pub(super) async fn replace(tx: &mut Tx<'_>, thread: ThreadId, metadata: &Map<String, Value>) -> DbResult<()> {
    const SQL: &str = "select term from thread_terms where thread_id = $1";
    const DELETE_OTHERS: &str = "delete from thread_terms where thread_id = $1 and term not in ";
    let wanted = checked_terms(metadata)?;
    if (1..=FEW).contains(&wanted.len()) {
        let statement = tx.statement(DELETE_OTHERS).bind(thread.0);
        let statement = statement.bind_list(wanted.iter().map(|term| term.0));
        statement.execute_later().await?;
        return insert_terms(tx, thread, &wanted).await;
    }
    let terms: Vec<(Uuid,)> = tx.statement(SQL).bind(thread.0).fetch_all().await?;
    let stored: BTreeSet<Term> = terms.into_iter().map(|(term,)| Term(term)).collect();
    delete_terms(tx, thread, &stored.difference(&wanted).copied().collect()).await?;
    insert_terms(tx, thread, &wanted.difference(&stored).copied().collect()).await
}

fn checked_terms(metadata: &Map<String, Value>) -> DbResult<BTreeSet<Term>> {
    let terms = terms_of(metadata);
    if terms.len() > MAX_VALUES {
        return Err(DbError::Unfit(format!("metadata: holds more than {MAX_VALUES} values")));
    }
    Ok(terms)
}

/// Stores terms, some of which may be there.
async fn insert_terms(tx: &mut Tx<'_>, thread: ThreadId, terms: &BTreeSet<Term>) -> DbResult<()> {
    insert_rows(tx, thread, terms, " on conflict do nothing").await
}

/// Stores terms by statements with this end.
async fn insert_rows(tx: &mut Tx<'_>, thread: ThreadId, terms: &BTreeSet<Term>, end: &'static str) -> DbResult<()> {
    const SQL: &str = "insert into thread_terms (term, thread_id) values ";
    let rows = terms.iter().collect();
    tx.insert_later(SQL, end, 2, rows, |row, term: &Term| {
        row.push_bind(term.0).push_bind(thread.0);
    })
    .await
}

async fn delete_terms(tx: &mut Tx<'_>, thread: ThreadId, terms: &BTreeSet<Term>) -> DbResult<()> {
    if terms.is_empty() {
        return Ok(());
    }
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("delete from thread_terms where thread_id = ");
        sql.push_bind(thread.0).push(" and term in (");
        let mut list = sql.separated(", ");
        for term in terms {
            list.push_bind(term.0);
        }
        sql.push(")");
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}
