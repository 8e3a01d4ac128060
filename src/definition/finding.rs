//! What is to be said about a definition: where, what, and how bad it is.

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
                        f.write_str(key)?
                    } else {
                        write!(f, "{key:?}")?
                    }
                }
            }
        }
        Ok(())
    }
}

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
pub struct Finding {
    /// Which field.
    pub field: FieldPath,
    /// What is wrong with it, and what is allowed.
    pub message: String,
    /// How bad it is.
    pub severity: Severity,
}

impl Finding {
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

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// What is longer than this, in bytes, was not meant as a word that is known.
const LONGEST_WORD: usize = 128;

/// The word among `known` that was probably meant by `word`.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > LONGEST_WORD {
        return None;
    }
    let close = |other: &str| strsim::damerau_levenshtein(&word.to_lowercase(), &other.to_lowercase());
    known
        .into_iter()
        .map(|other| (close(other), other))
        .filter(|(distance, other)| *distance <= 1 + other.chars().count().max(word.chars().count()) / 4)
        .min()
        .map(|(_, other)| other)
}

/// Says which words are allowed, and first the one that was probably meant.
pub fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>, label: &str) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    let list = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    match nearest(word, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`? {label}: {list}"),
        None => format!("{label}: {list}"),
    }
}
