//! The parts of a run that its tools read, on the wire.

use serde::Serialize;
use utoipa::ToSchema;

use super::Object;
use crate::domain::state::{Encoding, FileFacts};

/// Fields of the state of the agent that makes a call.
#[derive(Debug, Serialize, ToSchema)]
pub struct CallStateView {
    /// The checkpoint at which the state is; null before the first.
    pub checkpoint_id: Option<String>,
    /// The fields by name.
    #[schema(value_type = Object)]
    pub values: Object,
    /// The number of entries of a list that is read in parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<usize>,
}

/// A file that a call may read.
#[derive(Debug, Serialize, ToSchema)]
pub struct CallFileView {
    /// The absolute path.
    pub path: String,
    /// The size in bytes; null where only reading the file tells it.
    pub size: Option<u64>,
    /// `utf-8` for text, `base64` for other bytes; null where only reading the file tells it. The content is read as bytes
    /// in all cases.
    #[schema(value_type = Option<String>)]
    pub encoding: Option<Encoding>,
    /// The time of the first write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// The time of the last write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_at: Option<String>,
}

/// A page of files that a call may read.
#[derive(Debug, Serialize, ToSchema)]
pub struct CallFilesView {
    /// The files, in the order of their paths.
    pub files: Vec<CallFileView>,
    /// The number of files on all pages.
    pub total: usize,
    /// True if there are more files than one list can have, or the search took too long: some are on no page.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(value_type = Option<bool>)]
    pub truncated: bool,
}

impl CallFileView {
    /// Shows a file.
    pub fn new(path: String, facts: FileFacts) -> Self {
        Self {
            path,
            size: facts.size,
            encoding: facts.encoding,
            created_at: facts.created_at,
            modified_at: facts.modified_at,
        }
    }
}
