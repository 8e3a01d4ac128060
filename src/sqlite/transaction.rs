//! Transactions that sqlx begins and ends.

use sqlx::SqlStr;
use sqlx_core::transaction::{
    TransactionManager, begin_ansi_transaction_sql, commit_ansi_transaction_sql, rollback_ansi_transaction_sql,
};

use super::{Sqlite, SqliteConnection};

/// Begins and ends transactions. One within another is a savepoint.
#[derive(Debug)]
pub struct SqliteTransactionManager;

impl TransactionManager for SqliteTransactionManager {
    type Database = Sqlite;

    async fn begin(conn: &mut SqliteConnection, statement: Option<SqlStr>) -> sqlx::Result<()> {
        let depth = conn.depth;
        conn.run_plain(statement.unwrap_or_else(|| begin_ansi_transaction_sql(depth)))?;
        conn.depth = depth + 1;
        Ok(())
    }

    async fn commit(conn: &mut SqliteConnection) -> sqlx::Result<()> {
        let depth = conn.depth;
        if depth > 0 {
            conn.run_plain(commit_ansi_transaction_sql(depth))?;
            conn.depth = depth - 1;
        }
        Ok(())
    }

    async fn rollback(conn: &mut SqliteConnection) -> sqlx::Result<()> {
        let depth = conn.depth;
        if depth > 0 {
            conn.run_plain(rollback_ansi_transaction_sql(depth))?;
            conn.depth = depth - 1;
        }
        Ok(())
    }

    fn start_rollback(conn: &mut SqliteConnection) {
        let depth = conn.depth;
        if depth == 0 {
            return;
        }
        if let Err(error) = conn.run_plain(rollback_ansi_transaction_sql(depth)) {
            tracing::warn!(%error, "a transaction was not rolled back");
        }
        conn.depth = depth - 1;
    }

    fn get_transaction_depth(conn: &SqliteConnection) -> usize {
        conn.depth
    }
}
