//! The diagnostics of agent definitions.

use serde::Serialize;
use utoipa::ToSchema;

use crate::definition::StoredDiagnostic;

/// A diagnostic of an agent definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(title = "Diagnostic")]
pub struct DiagnosticView {
    /// `error`: the definition cannot be used; `warning`: the definition is probably not what was meant.
    #[schema(example = "error")]
    pub severity: String,
    /// The field, as in `subagents[0].name`; empty for the whole definition.
    pub field: String,
    /// The problem, and the allowed values.
    pub message: String,
    /// The file that contains the definition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The line in the file, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The column in the line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
}

impl From<StoredDiagnostic> for DiagnosticView {
    fn from(diagnostic: StoredDiagnostic) -> Self {
        let StoredDiagnostic {
            file,
            position,
            field,
            message,
            severity,
        } = diagnostic;
        let (line, column) = position.unzip();
        Self {
            severity: severity.to_string(),
            field,
            message,
            file,
            line,
            column,
        }
    }
}
