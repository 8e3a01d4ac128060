//! What is wrong with the configuration, and where it is written.

use std::collections::BTreeMap;
use std::fmt;

use crate::definition::{Diagnostic, FieldPath, Segment, Severity, StoredDiagnostic};

/// A line and a column, both from 1, columns in characters.
pub type TextPosition = (usize, usize);

/// Where fields are, by their path.
pub(super) type Positions = BTreeMap<FieldPath, TextPosition>;

/// Something to be said about the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, or where else the setting comes from.
    pub file: String,
    /// Where in the file.
    pub position: Option<TextPosition>,
    /// The field within the file, as in `agents.agent.tools[1]`; empty for the file as a whole.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub message: String,
    /// How bad it is.
    pub severity: Severity,
    /// The agent that it is about, by its `graph_id`, when it is about one.
    pub agent: Option<Box<str>>,
}

impl Problem {
    /// A mistake that concerns a file as a whole.
    pub fn in_file(file: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            position: None,
            field: String::new(),
            message: message.into(),
            severity: Severity::Error,
            agent: None,
        }
    }

    /// The same at a position in the file.
    #[must_use]
    pub fn at(self, position: Option<TextPosition>) -> Self {
        Self { position, ..self }
    }
}

impl From<Problem> for StoredDiagnostic {
    fn from(problem: Problem) -> Self {
        let Problem {
            file,
            position,
            field,
            message,
            severity,
            agent: _,
        } = problem;
        Self {
            file: Some(file),
            position,
            field,
            message,
            severity,
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}: ", self.severity)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Everything that is to be said about a configuration, one line each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Whether the configuration can be used.
    pub fn are_harmless(&self) -> bool {
        self.0.iter().all(|problem| problem.severity == Severity::Warning)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Where a part of the configuration is written.
#[derive(Debug, Clone)]
pub(super) struct SettingOrigin {
    /// The file, or where else it comes from.
    pub(super) file: String,
    /// The part of the configuration that the file holds.
    pub(super) holds: FieldPath,
    /// Where its fields are, by their path within the file.
    pub(super) places: Positions,
    /// Whether it speaks only of the fields in `places`, as the command line does.
    pub(super) partial: bool,
}

/// All places from which the configuration comes.
#[derive(Debug, Clone, Default)]
pub(super) struct SettingOrigins(pub(super) Vec<SettingOrigin>);

impl SettingOrigins {
    /// Tells where the field of a finding is written: in the most special file that knows it, else in the most
    /// special one that might.
    pub(super) fn locate(&self, finding: Diagnostic) -> Problem {
        let mut best: Option<(usize, &SettingOrigin, FieldPath, Option<TextPosition>)> = None;
        for origin in &self.0 {
            let Some(inner) = finding.field.after(&origin.holds) else {
                continue;
            };
            let (known, position) = origin.nearest(&inner);
            if origin.partial && position.is_none() {
                continue;
            }
            let rank = origin.holds.0.len() + known;
            if best.as_ref().is_none_or(|(other, ..)| rank >= *other) {
                best = Some((rank, origin, inner, position.filter(|_| !origin.partial)));
            }
        }
        let agent = agent_of(&finding.field);
        let (file, field, position) = match best {
            Some((_, origin, inner, position)) => (origin.file.clone(), inner, position),
            None => ("configuration".to_owned(), finding.field, None),
        };
        Problem {
            file,
            position,
            field: field.to_string(),
            message: finding.message,
            severity: finding.severity,
            agent,
        }
    }
}

/// The agent that a field of the configuration belongs to.
fn agent_of(field: &FieldPath) -> Option<Box<str>> {
    match field.0.as_slice() {
        [Segment::Key(section), Segment::Key(graph_id), ..] if section == "agents" => Some(graph_id.as_str().into()),
        _ => None,
    }
}

impl SettingOrigin {
    /// How much of the way to the field is written in this file, and where that is.
    fn nearest(&self, field: &FieldPath) -> (usize, Option<TextPosition>) {
        let mut way = Some(field.clone());
        while let Some(here) = way {
            if let Some(position) = self.places.get(&here) {
                return (here.0.len(), Some(*position));
            }
            way = here.parent();
        }
        (0, None)
    }
}
