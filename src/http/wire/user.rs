//! The deletion of a user's data on the wire.

use serde::Serialize;
use utoipa::ToSchema;

use crate::db::erasure::ErasedRows;

/// The number of rows that were deleted, by kind.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "ErasedData")]
pub struct ErasedView {
    /// The number of API keys.
    pub api_keys: u64,
    /// The number of threads.
    pub threads: u64,
    /// The number of assistants.
    pub assistants: u64,
    /// The number of crons.
    pub crons: u64,
    /// The number of items of the Store.
    pub items: u64,
    /// The number of webhook deliveries.
    pub webhook_deliveries: u64,
    /// The number of entries of the audit.
    pub audit_entries: u64,
}

impl From<ErasedRows> for ErasedView {
    fn from(erased: ErasedRows) -> Self {
        Self {
            api_keys: erased.keys,
            threads: erased.threads,
            assistants: erased.assistants,
            crons: erased.crons,
            items: erased.items,
            webhook_deliveries: erased.deliveries,
            audit_entries: erased.audit,
        }
    }
}
