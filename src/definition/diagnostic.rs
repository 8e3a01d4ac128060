//! Diagnostics about definitions: field, message and severity.

use std::fmt;

pub use crate::domain::field_path::{FieldPath, Segment};
pub use crate::domain::suggestion::{nearest, suggestion};

/// The severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The definition cannot be used.
    Error,
    /// The definition can be used, but is probably not what was meant.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// A message about a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The field.
    pub field: FieldPath,
    /// The problem, and the allowed values.
    pub message: String,
    /// The severity of a diagnostic.
    pub severity: Severity,
}

impl Diagnostic {
    /// Creates an error.
    pub fn error(field: FieldPath, message: impl Into<String>) -> Self {
        Self {
            field,
            message: message.into(),
            severity: Severity::Error,
        }
    }

    /// Creates a warning.
    pub fn warning(field: FieldPath, message: impl Into<String>) -> Self {
        Self {
            field,
            message: message.into(),
            severity: Severity::Warning,
        }
    }

    /// Returns the diagnostic with its field below `outer`.
    #[must_use]
    pub fn under(self, outer: &FieldPath) -> Self {
        Self {
            field: outer.join(&self.field),
            ..self
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Returns an error with this message for each field below `field` that is given. Each entry is the name of a field, and
/// whether it is given.
pub(super) fn errors_of_given<'n>(
    field: &FieldPath,
    fields: impl IntoIterator<Item = (&'n str, bool)>,
    message: &str,
) -> Vec<Diagnostic> {
    let given = fields.into_iter().filter(|(_, is_given)| *is_given);
    given
        .map(|(name, _)| Diagnostic::error(field.then(name), message))
        .collect()
}

/// Returns an error if the list in `field`, which has this length, has more than `most` entries.
pub(super) fn check_length(field: &FieldPath, length: usize, most: usize) -> Option<Diagnostic> {
    let message = || format!("has {length} entries; at most {most} are allowed");
    (length > most).then(|| Diagnostic::error(field.clone(), message()))
}
