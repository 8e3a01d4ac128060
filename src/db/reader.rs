//! A connection to Postgres for one read, which may be given up at any moment: whoever reads a stream may leave.

use sqlx::pool::PoolConnection;
use sqlx::{Connection, PgPool, Postgres, Transaction};

use super::error::DbResult;

/// Begins a read that sees one moment of the database in all its statements.
const BEGIN: &str = "begin isolation level repeatable read read only";

/// A connection that goes back to its pool only if nothing is left open on it.
///
/// Dropping a transaction rolls it back, but one whose beginning was not waited for to its end is not known to the driver:
/// the next user of the connection would find themselves in it, and could not write.
pub(super) struct Reader {
    conn: PoolConnection<Postgres>,
    has_begun: bool,
}

impl Reader {
    /// Takes a connection out of the pool.
    pub(super) async fn of(pool: &PgPool) -> DbResult<Self> {
        Ok(Self { conn: pool.acquire().await?, has_begun: false })
    }

    /// Begins the read.
    pub(super) async fn begin(&mut self) -> DbResult<Transaction<'_, Postgres>> {
        let transaction = self.conn.begin_with(BEGIN).await?;
        self.has_begun = true;
        Ok(transaction)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !self.has_begun {
            self.conn.close_on_drop();
        }
    }
}
