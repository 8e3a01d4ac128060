//! Compactions on the wire.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::Invalid;
use crate::domain::id::RunId;
use crate::domain::run::CompactionRequest;

/// A request to compact the conversation of a thread.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct CompactionCreate {
    /// The number of newest messages to keep as they are; as the agent's settings say when absent.
    #[schema(minimum = 1)]
    pub keep_messages: Option<u64>,
}

impl CompactionCreate {
    /// Validates the request.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(&self) -> Result<CompactionRequest, Invalid> {
        match self.keep_messages {
            Some(0) => Err(Invalid::new("keep_messages", "must be a whole number of at least 1")),
            keep_messages => Ok(CompactionRequest { keep_messages }),
        }
    }
}

/// A compaction that has ended.
#[derive(Debug, Serialize, ToSchema)]
#[schema(title = "Compaction")]
pub struct CompactionView {
    /// `compacted`, or `nothing_to_do` when there is nothing older to summarise.
    #[schema(example = "compacted")]
    pub status: &'static str,
    /// The run that made the compaction.
    #[schema(value_type = Uuid)]
    pub run_id: RunId,
    /// The number of messages that the summary stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summarized_messages: Option<u64>,
    /// The number of compactions of this conversation so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The file with the messages that the summary replaces; none if the agent has no files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_path: Option<String>,
    /// The time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
}

impl CompactionView {
    /// Shows a compaction by the status in the state.
    pub fn compacted(run_id: RunId, status: &Value) -> Self {
        let text = |key: &str| status[key].as_str().map(str::to_owned);
        Self {
            status: "compacted",
            run_id,
            summarized_messages: status["summarized_messages"].as_u64(),
            count: status["count"].as_u64(),
            file_path: text("file_path"),
            created_at: text("created_at"),
        }
    }

    /// Shows that there was nothing to summarise.
    pub fn nothing_to_do(run_id: RunId) -> Self {
        Self {
            status: "nothing_to_do",
            run_id,
            summarized_messages: None,
            count: None,
            file_path: None,
            created_at: None,
        }
    }
}
