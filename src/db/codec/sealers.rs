//! The sealers of values on threads and of runs. A value is sealed with the key of the tenant to whom its thread belongs.

use sqlx::query_scalar;
use uuid::Uuid;

use crate::db::engine::on_engine;
use crate::db::engine::sealing::Sealer;
use crate::db::{DbResult, Tx};
use crate::domain::id::{RunId, ThreadId};

impl Tx<'_> {
    /// Returns the sealer for values on this thread: that of its tenant.
    pub(in crate::db) async fn sealer_of_thread(&mut self, thread: ThreadId) -> DbResult<Sealer> {
        if !self.sealing.is_on() {
            return Ok(Sealer::default());
        }
        if let Some(sealer) = self.keys.of_last_thread(thread) {
            return Ok(sealer);
        }
        let tenant = tenant_of(self, thread).await?;
        // Nothing can be stored on a thread that does not exist.
        let sealer = match tenant {
            Some(tenant) => self.sealer(&tenant).await?,
            None => return self.sealer_of_server().await,
        };
        self.keys.keep_last_thread(thread, sealer.clone());
        Ok(sealer)
    }

    /// Returns the sealer for values of this run: that of its thread.
    pub(in crate::db) async fn sealer_of_run(&mut self, run: RunId) -> DbResult<Sealer> {
        const SQL: &str = "select thread_id from runs where run_id = $1";
        if !self.sealing.is_on() {
            return Ok(Sealer::default());
        }
        let thread: Option<Uuid> = on_engine!(self, |conn| query_scalar(SQL).bind(run.0).fetch_optional(conn).await)?;
        match thread {
            Some(thread) => self.sealer_of_thread(ThreadId(thread)).await,
            None => self.sealer_of_server().await,
        }
    }
}

/// Returns the tenant of a thread, if the thread exists.
///
/// # Errors
/// If the database fails.
pub(in crate::db) async fn tenant_of(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<String>> {
    const SQL: &str = "select tenant from threads where thread_id = $1";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(thread.0)
        .fetch_optional(conn)
        .await)?)
}
