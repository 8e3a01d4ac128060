//! Paths of fields in documents, for messages.

use std::fmt;

/// A segment of a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Segment {
    /// A key of an object.
    Key(String),
    /// An index of a list, from 0.
    Index(usize),
}

impl From<&str> for Segment {
    fn from(key: &str) -> Self {
        Self::Key(key.to_owned())
    }
}

impl From<&String> for Segment {
    fn from(key: &String) -> Self {
        Self::Key(key.clone())
    }
}

impl From<usize> for Segment {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// The path of a field, displayed as `agents.agent.subagents[0].name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FieldPath(pub Vec<Segment>);

impl FieldPath {
    /// Creates a path from its segments.
    pub fn of<S: Into<Segment>>(segments: impl IntoIterator<Item = S>) -> Self {
        Self(segments.into_iter().map(Into::into).collect())
    }

    /// Returns the path with another segment appended.
    #[must_use]
    pub fn then(&self, segment: impl Into<Segment>) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment.into());
        Self(segments)
    }

    /// Returns the path with another path appended.
    #[must_use]
    pub fn join(&self, rest: &Self) -> Self {
        Self(self.0.iter().chain(&rest.0).cloned().collect())
    }

    /// Returns the rest of the path after `start`; `None` if it does not begin with that.
    pub fn after(&self, start: &Self) -> Option<Self> {
        self.0.strip_prefix(start.0.as_slice()).map(|rest| Self(rest.to_vec()))
    }

    /// Returns the path of the containing object or list.
    pub fn parent(&self) -> Option<Self> {
        self.0.split_last().map(|(_, rest)| Self(rest.to_vec()))
    }

    /// Returns whether the field may hold a secret, so that its value must not be shown.
    pub fn is_secret(&self) -> bool {
        self.0.iter().any(|segment| match segment {
            Segment::Key(key) => matches!(key.as_str(), "api_key" | "headers" | "secret" | "url" | "env" | "args"),
            Segment::Index(_) => false,
        })
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_bare = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'));
        for (at, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(index) => write!(f, "[{index}]")?,
                Segment::Key(key) => {
                    if at > 0 {
                        f.write_str(".")?;
                    }
                    if is_bare(key) {
                        f.write_str(key)?;
                    } else {
                        write!(f, "{key:?}")?;
                    }
                }
            }
        }
        Ok(())
    }
}
