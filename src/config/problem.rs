//! The problems of a configuration, with their positions in its files.

use std::collections::BTreeMap;
use std::fmt;

use crate::definition::{Diagnostic, FieldPath, Segment, Severity, StoredDiagnostic};

/// A line and a column, both counted from 1; columns count characters.
pub type TextPosition = (usize, usize);

/// The positions of fields, by their paths.
pub(super) type Positions = BTreeMap<FieldPath, TextPosition>;

/// An error or warning about the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, or the other source of the setting.
    pub file: String,
    /// The position in the file.
    pub position: Option<TextPosition>,
    /// The field, as in `agents.agent.tools[1]`; empty for the whole file.
    pub field: String,
    /// The error, and what is allowed.
    pub message: String,
    /// The severity.
    pub severity: Severity,
    /// The `graph_id` of the agent that the problem is about, if any.
    pub agent: Option<Box<str>>,
}

impl Problem {
    /// Creates an error about a whole file.
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

    /// Returns the problem with a position in the file.
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

/// The problems of a configuration, displayed one on each line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Returns whether there are only warnings.
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

/// A source of a part of the configuration.
#[derive(Debug, Clone)]
pub(super) struct SettingOrigin {
    /// The file, or the other source.
    pub(super) file: String,
    /// The part of the configuration that the source holds.
    pub(super) prefix: FieldPath,
    /// The positions of the fields, by their paths within the source.
    pub(super) positions: Positions,
    /// True if the source holds only the fields in `positions`, as the command line does.
    pub(super) partial: bool,
}

/// All sources of the configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct SettingOrigins(pub(super) Vec<SettingOrigin>);

impl SettingOrigins {
    /// Adds the file and the position to a diagnostic: those of the most specific source that has the field, or else
    /// of the most specific one that may have it.
    pub(super) fn locate(&self, finding: Diagnostic) -> Problem {
        let mut best: Option<(usize, &SettingOrigin, FieldPath, Option<TextPosition>)> = None;
        for origin in &self.0 {
            let Some(inner) = finding.field.after(&origin.prefix) else {
                continue;
            };
            let (known, position) = origin.nearest(&inner);
            if origin.partial && position.is_none() {
                continue;
            }
            let rank = origin.prefix.0.len() + known;
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

/// Returns the agent that a field belongs to.
fn agent_of(field: &FieldPath) -> Option<Box<str>> {
    match field.0.as_slice() {
        [Segment::Key(section), Segment::Key(graph_id), ..] if section == "agents" => Some(graph_id.as_str().into()),
        _ => None,
    }
}

impl SettingOrigin {
    /// Returns how many segments of the field's path this source has, and the position of the last of them.
    fn nearest(&self, field: &FieldPath) -> (usize, Option<TextPosition>) {
        let mut way = Some(field.clone());
        while let Some(here) = way {
            if let Some(position) = self.positions.get(&here) {
                return (here.0.len(), Some(*position));
            }
            way = here.parent();
        }
        (0, None)
    }
}
