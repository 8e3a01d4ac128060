//! What tools read of the run that calls them, on the wire.

use serde::Serialize;
use utoipa::ToSchema;

use super::Object;
use crate::domain::state::{Encoding, File};

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
    /// The size in bytes.
    pub size: usize,
    /// `utf-8` for text, `base64` for other bytes. The content is read as bytes in both cases.
    #[schema(value_type = String)]
    pub encoding: Encoding,
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
}

impl CallFileView {
    /// Shows a file.
    pub fn of(path: &str, file: &File) -> Self {
        Self {
            path: path.to_owned(),
            size: file.size(),
            encoding: file.encoding,
            created_at: file.created_at.clone(),
            modified_at: file.modified_at.clone(),
        }
    }
}
