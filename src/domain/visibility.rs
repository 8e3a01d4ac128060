//! The visibility of subagents to clients.

use serde::{Deserialize, Serialize};

/// The visibility of a subagent to clients, in streams and in reads. The log contains everything; hidden parts are
/// removed when it is read. A subagent is never more visible than the agent that delegated to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Neither the run nor its events. Its interrupts appear under the name of its caller.
    Hidden,
    /// The start, the end and the interrupts.
    Status,
    /// In addition, the tool calls and their results.
    ToolsOnly,
    /// Everything.
    #[default]
    Full,
}

impl Visibility {
    /// All values.
    pub const ALL: [Self; 4] = [Self::Hidden, Self::Status, Self::ToolsOnly, Self::Full];

    /// Returns the word used in definitions and in the database.
    pub fn word(self) -> &'static str {
        match self {
            Self::Hidden => "hidden",
            Self::Status => "status",
            Self::ToolsOnly => "tools_only",
            Self::Full => "full",
        }
    }

    /// Parses the word used in definitions and in the database.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|visibility| visibility.word() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_order() {
        for visibility in Visibility::ALL {
            assert_eq!(Visibility::from_word(visibility.word()), Some(visibility));
        }
        assert_eq!(Visibility::Full.min(Visibility::Status), Visibility::Status);
        assert_eq!(Visibility::Hidden.min(Visibility::ToolsOnly), Visibility::Hidden);
    }
}
