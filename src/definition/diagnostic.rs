//! What is to be said about a definition: where, what, and how bad it is.

use std::fmt;

pub use crate::domain::field_path::{FieldPath, Segment};
pub use crate::domain::suggestion::{nearest, suggestion};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The definition cannot be used.
    Error,
    /// It can, but is probably not what was meant.
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

/// Something to be said about a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Which field.
    pub field: FieldPath,
    /// What is wrong with it, and what is allowed.
    pub message: String,
    /// How bad it is.
    pub severity: Severity,
}

impl Diagnostic {
    /// A mistake.
    pub fn error(field: FieldPath, message: impl Into<String>) -> Self {
        Self {
            field,
            message: message.into(),
            severity: Severity::Error,
        }
    }

    /// Something that is probably a mistake.
    pub fn warning(field: FieldPath, message: impl Into<String>) -> Self {
        Self {
            field,
            message: message.into(),
            severity: Severity::Warning,
        }
    }

    /// The same finding, seen from further out.
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
