//! The service that knows the sandboxes of threads.

use async_trait::async_trait;

use crate::domain::id::SandboxId;
use crate::domain::machine::Failure;
use crate::domain::sandbox::{SandboxKey, SandboxRecord};

/// The sandboxes of threads, as agents find them.
#[async_trait]
pub trait ThreadSandboxes: Send + Sync {
    /// Returns the sandbox for this purpose; a new one, which the service has not created yet, if there is none.
    ///
    /// # Errors
    /// When it cannot be read or stored.
    async fn find_or_add(&self, key: &SandboxKey) -> Result<SandboxRecord, Failure>;

    /// Returns whether a sandbox that the service knows no longer is created anew. One who reads for a tool leaves that to
    /// the agent, whose model is told that its files are gone.
    fn replaces_lost(&self) -> bool {
        true
    }

    /// Stores that the service has created a sandbox.
    ///
    /// # Errors
    /// When it cannot be stored.
    async fn set_created(&self, key: &SandboxKey, id: SandboxId) -> Result<(), Failure>;
}

/// No sandboxes: for agents without a database.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSandboxes;

#[async_trait]
impl ThreadSandboxes for NoSandboxes {
    async fn find_or_add(&self, _: &SandboxKey) -> Result<SandboxRecord, Failure> {
        Err(Failure::new("StorageError", "there is no database for sandboxes"))
    }

    async fn set_created(&self, _: &SandboxKey, _: SandboxId) -> Result<(), Failure> {
        Ok(())
    }
}
