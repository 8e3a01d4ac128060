//! The table of remembered decisions: what reviewers have decided for the rest of a thread.

use sqlx::{query, query_as};
use uuid::Uuid;

use super::access::contains_thread;
use super::codec::json::{ColumnRef, readable};
use super::engine::on_engine;
use super::row::from_row;
use super::{DbError, DbResult, Tx};
use crate::domain::access::InterruptScope;
use crate::domain::id::{DecisionId, RunId, ThreadId};
use crate::domain::remembered::RememberedDecision;

const TABLE: &str = "remembered_decisions";

from_row! {
    struct DecisionRow {
        decision_id: Uuid,
        body: String,
    }
}

impl TryFrom<DecisionRow> for RememberedDecision {
    type Error = DbError;

    fn try_from(row: DecisionRow) -> DbResult<Self> {
        cell(&row.decision_id).decode(&row.body)
    }
}

/// Returns the column of a decision.
fn cell(id: &Uuid) -> ColumnRef<'_, Uuid> {
    ColumnRef {
        table: TABLE,
        column: "body",
        id,
    }
}

/// Stores a decision.
///
/// # Errors
/// [`DbError::Conflict`] when the thread was deleted.
pub async fn insert(tx: &mut Tx<'_>, decision: &RememberedDecision) -> DbResult<()> {
    const SQL: &str = "insert into remembered_decisions (decision_id, thread_id, run_id, body) values ($1, $2, $3, $4)";
    let sealer = tx.sealer_of_thread(decision.thread).await?;
    let body = sealer.encode(&cell(&decision.id.0), decision)?;
    on_engine!(tx, |conn| query(SQL)
        .bind(decision.id.0)
        .bind(decision.thread.0)
        .bind(decision.run.0)
        .bind(body)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Returns the decisions of a thread, oldest first.
pub async fn of_thread(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<RememberedDecision>> {
    const SQL: &str = "select decision_id, body from remembered_decisions where thread_id = $1 order by decision_id";
    let rows: Vec<DecisionRow> = on_engine!(tx, |conn| query_as(SQL).bind(thread.0).fetch_all(conn).await)?;
    readable(rows)
}

/// Returns the decisions of a thread that a caller reaches, oldest first: all of them if the thread is in the scope, and
/// otherwise those whose approvers the caller is among.
pub async fn visible(tx: &mut Tx<'_>, thread: ThreadId, scope: &InterruptScope) -> DbResult<Vec<RememberedDecision>> {
    let mut found = of_thread(tx, thread).await?;
    if !contains_thread(tx, &scope.threads, thread).await? {
        let is_assigned = |decision: &RememberedDecision| {
            let assignee = scope.assigned.as_ref();
            assignee.is_some_and(|assignee| decision.approvers.contains(&assignee.user, &assignee.roles))
        };
        found.retain(is_assigned);
    }
    Ok(found)
}

/// Deletes a decision of a thread. Returns false if there is none with this id.
pub async fn delete(tx: &mut Tx<'_>, thread: ThreadId, id: DecisionId) -> DbResult<bool> {
    const SQL: &str = "delete from remembered_decisions where thread_id = $1 and decision_id = $2";
    let deleted = on_engine!(tx, |conn| query(SQL)
        .bind(thread.0)
        .bind(id.0)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(deleted == 1)
}

/// Deletes the decisions that run `by` brought, since it is undone.
pub async fn delete_of_run(tx: &mut Tx<'_>, thread: ThreadId, by: RunId) -> DbResult<()> {
    const SQL: &str = "delete from remembered_decisions where thread_id = $1 and run_id = $2";
    on_engine!(tx, |conn| query(SQL)
        .bind(thread.0)
        .bind(by.0)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}
