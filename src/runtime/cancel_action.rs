//! The ways to cancel a run.

/// The treatment of the work of a cancelled run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelAction {
    /// Keep the work.
    Interrupt,
    /// Undo the work and delete the run.
    Rollback,
}

impl CancelAction {
    /// Returns the word for the action.
    pub fn word(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Rollback => "rollback",
        }
    }

    /// Returns the action with this word. An unknown word keeps the work.
    pub fn from_word(word: &str) -> Self {
        if word == Self::Rollback.word() {
            Self::Rollback
        } else {
            Self::Interrupt
        }
    }
}
