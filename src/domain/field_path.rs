//! Paths to fields of documents, as messages name them.

use std::fmt;

/// One step on the way to a field.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Segment {
    /// Into a table, by key.
    Key(String),
    /// Into a list, by position from 0.
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

/// The way to a field, written `agents.agent.subagents[0].name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FieldPath(pub Vec<Segment>);

impl FieldPath {
    /// The way through these keys.
    pub fn of<S: Into<Segment>>(segments: impl IntoIterator<Item = S>) -> Self {
        Self(segments.into_iter().map(Into::into).collect())
    }

    /// The way one step further.
    #[must_use]
    pub fn then(&self, segment: impl Into<Segment>) -> Self {
        let mut segments = self.0.clone();
        segments.push(segment.into());
        Self(segments)
    }

    /// The way on along another one.
    #[must_use]
    pub fn join(&self, rest: &Self) -> Self {
        Self(self.0.iter().chain(&rest.0).cloned().collect())
    }

    /// What remains of the way after `start`; `None` when it does not begin so.
    pub fn after(&self, start: &Self) -> Option<Self> {
        self.0.strip_prefix(start.0.as_slice()).map(|rest| Self(rest.to_vec()))
    }

    /// The way to what contains the field.
    pub fn parent(&self) -> Option<Self> {
        self.0.split_last().map(|(_, rest)| Self(rest.to_vec()))
    }

    /// Whether the field may hold a secret, so that its value is not to be shown.
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
