//! The sandboxes of threads at sandbox services, in the database.

use async_trait::async_trait;

use super::resource_ref::ResourceRef;
use crate::db::{self, Db, DbError};
use crate::domain::id::{SandboxId, ThreadId};
use crate::domain::machine::Failure;
use crate::domain::sandbox::{SandboxKey, SandboxRecord};
use crate::tool::thread_sandboxes::ThreadSandboxes;

/// The sandboxes in the database.
pub(super) struct StoredSandboxes {
    pub(super) db: Db,
    /// True if a sandbox that its service knows no longer is created anew.
    pub(super) replaces_lost: bool,
}

#[async_trait]
impl ThreadSandboxes for StoredSandboxes {
    async fn find_or_add(&self, key: &SandboxKey) -> Result<SandboxRecord, Failure> {
        let wanted = key.clone();
        let read = self
            .db
            .read(move |tx| Box::pin(async move { db::sandboxes::find(tx, &wanted).await }));
        if let Some(found) = read.await.map_err(|error| unreadable(key.thread, &error))? {
            return Ok(found);
        }
        let wanted = key.clone();
        let id = SandboxId::mint();
        let write = self.db.write(move |tx| {
            let wanted = wanted.clone();
            Box::pin(async move {
                db::sandboxes::insert(tx, id, &wanted).await?;
                db::sandboxes::find(tx, &wanted).await
            })
        });
        let found = write.await.map_err(|error| unreadable(key.thread, &error))?;
        found.ok_or_else(|| Failure::new("StorageError", "the sandbox of the thread cannot be stored"))
    }

    fn replaces_lost(&self) -> bool {
        self.replaces_lost
    }

    async fn set_created(&self, key: &SandboxKey, id: SandboxId) -> Result<(), Failure> {
        let write = self
            .db
            .write(move |tx| Box::pin(async move { db::sandboxes::set_created(tx, id).await }));
        write.await.map_err(|error| unreadable(key.thread, &error))
    }
}

fn unreadable(thread: ThreadId, error: &DbError) -> Failure {
    tracing::error!(resource = %ResourceRef::Thread(thread), %error, "the sandbox of a thread cannot be read or stored");
    Failure::new("StorageError", "the sandbox of the thread cannot be read or stored")
}
