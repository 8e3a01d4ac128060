//! A stored definition: its version, its source and its diagnostics.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::agent::AgentDefinition;
use super::bundled_files::BundledFiles;
use super::diagnostic::{Diagnostic, FieldPath, Severity};
use super::read::{Parsed, read};
use crate::domain::id::DefinitionDigest;
use crate::domain::time::Timestamp;

impl AgentDefinition {
    /// Returns the stored text of the definition, with the files that belong to it. Equal definitions have equal texts.
    pub fn text(&self) -> String {
        #[derive(Serialize)]
        struct Stored<'a> {
            #[serde(flatten)]
            definition: &'a AgentDefinition,
            #[serde(skip_serializing_if = "BundledFiles::is_empty")]
            enclosed: &'a BundledFiles,
        }
        let stored = Stored {
            definition: self,
            enclosed: &self.enclosed,
        };
        serde_json::to_string(&stored).expect("a definition is made of plain records")
    }

    /// Reads a stored definition, possibly of an earlier release. Parts that this release does not know are reported
    /// and left out.
    pub fn from_stored(mut stored: Value) -> Parsed<Self> {
        let enclosed = stored
            .as_object_mut()
            .and_then(|fields| fields.shift_remove("enclosed"));
        let mut reading = read::<Self>(stored);
        if let Some(definition) = &mut reading.value
            && let Some(enclosed) = enclosed
        {
            let files = read::<BundledFiles>(enclosed);
            reading.findings.extend(
                files
                    .findings
                    .into_iter()
                    .map(|finding| finding.under(&FieldPath::of(["enclosed"]))),
            );
            definition.enclosed = Arc::new(files.value.unwrap_or_default());
        }
        reading
    }

    /// Returns the name of the content: the SHA-256 of its text in hexadecimal digits.
    pub fn digest(&self) -> DefinitionDigest {
        DefinitionDigest(hex::encode(Sha256::digest(self.text())))
    }
}

/// The place where an agent is defined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DefinitionSource {
    /// This file or folder.
    File(String),
    /// The database: a client defined the agent.
    Client,
}

impl DefinitionSource {
    /// Returns the file or folder; none for a definition of a client.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::File(place) => Some(place),
            Self::Client => None,
        }
    }
}

/// One version of a definition. Versions never change.
#[derive(Debug, Clone, PartialEq)]
pub struct DefinitionVersion {
    /// The agent.
    pub graph_id: String,
    /// The number of the version, counted from 1 within the agent.
    pub number: i64,
    /// The digest of the content.
    pub digest: DefinitionDigest,
    /// The place where it was defined.
    pub definition_source: DefinitionSource,
    /// The definition.
    pub definition: AgentDefinition,
    /// The time at which the version was created.
    pub created_at: Timestamp,
}

impl DefinitionVersion {
    /// Returns the first version of an agent.
    pub fn first(
        graph_id: &str,
        definition: AgentDefinition,
        definition_source: DefinitionSource,
        now: Timestamp,
    ) -> Self {
        Self {
            graph_id: graph_id.to_owned(),
            number: 1,
            digest: definition.digest(),
            definition_source,
            definition,
            created_at: now,
        }
    }
}

/// A diagnostic about a definition, with the place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDiagnostic {
    /// The file, if the definition comes from one.
    pub file: Option<String>,
    /// Line and column in the file, from 1.
    pub position: Option<(usize, usize)>,
    /// The field, as in `subagents[0].name`; empty for the whole definition.
    pub field: String,
    /// The problem, and the allowed values.
    pub message: String,
    /// The severity.
    pub severity: Severity,
}

impl From<Diagnostic> for StoredDiagnostic {
    fn from(finding: Diagnostic) -> Self {
        let Diagnostic {
            field,
            message,
            severity,
        } = finding;
        Self {
            file: None,
            position: None,
            field: field.to_string(),
            message,
            severity,
        }
    }
}

impl fmt::Display for StoredDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            f.write_str(file)?;
            if let Some((line, column)) = self.position {
                write!(f, ":{line}:{column}")?;
            }
            f.write_str(": ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::state::File;

    #[test]
    fn equal_definitions_have_equal_digests_and_others_do_not() {
        let one = AgentDefinition {
            model: "scripted:x".into(),
            ..AgentDefinition::default()
        };
        let read = AgentDefinition::from_stored(serde_json::from_str(&one.text()).expect("JSON"));
        assert_eq!(read.value.as_ref(), Some(&one));
        assert_eq!(read.findings.len(), 0);
        let read = read.value.expect("a definition");
        assert_eq!(read.digest(), one.digest());
        assert_eq!(one.digest().0.len(), 64);
        assert_ne!(
            AgentDefinition {
                todos: true,
                ..one.clone()
            }
            .digest(),
            one.digest()
        );
    }

    #[test]
    fn the_files_of_a_definition_are_a_part_of_its_content_and_stored_with_it() {
        let plain = AgentDefinition {
            model: "scripted:x".into(),
            ..AgentDefinition::default()
        };
        assert!(!plain.text().contains("enclosed"));
        let mut files = BundledFiles::default();
        files.add(
            "skills/a/SKILL.md",
            File {
                content: "A".into(),
                ..File::default()
            },
        );
        let with = AgentDefinition {
            enclosed: Arc::new(files),
            ..plain.clone()
        };
        assert_ne!(with.digest(), plain.digest());
        let read = AgentDefinition::from_stored(serde_json::from_str(&with.text()).expect("JSON"));
        assert_eq!(read.value, Some(with));
        assert_eq!(read.findings.len(), 0);
    }

    #[test]
    fn a_remark_names_its_place() {
        let remark = StoredDiagnostic::from(Diagnostic::error(
            FieldPath::of(["tools"]).then(0),
            "there is no tool `x`",
        ));
        assert_eq!(remark.to_string(), "tools[0]: there is no tool `x`");
        let placed = StoredDiagnostic {
            file: Some("a/AGENTS.md".to_owned()),
            position: Some((2, 1)),
            ..remark
        };
        assert_eq!(placed.to_string(), "a/AGENTS.md:2:1: tools[0]: there is no tool `x`");
    }
}
