//! The stream modes of the first protocol, and sets of them.

use crate::domain::visibility::Visibility;

/// What a client wants to see of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamMode {
    /// The whole state after each step that changed it.
    Values,
    /// What each step wrote.
    Updates,
    /// Messages as they grow, each time as a whole.
    Messages,
    /// Messages as they grow, piece by piece.
    MessagesTuple,
    /// What tools and policies tell.
    Custom,
    /// Tasks as they begin and end.
    Tasks,
    /// Checkpoints as they are made.
    Checkpoints,
    /// Tasks and checkpoints in one stream.
    Debug,
    /// Records of what begins, is said and ends, as tracers of the field know them.
    Events,
    /// What was used, at the end.
    Usage,
}

impl StreamMode {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Values,
        Self::Updates,
        Self::Messages,
        Self::MessagesTuple,
        Self::Custom,
        Self::Tasks,
        Self::Checkpoints,
        Self::Debug,
        Self::Events,
        Self::Usage,
    ];

    /// The word for it in requests.
    pub fn word(self) -> &'static str {
        match self {
            Self::Values => "values",
            Self::Updates => "updates",
            Self::Messages => "messages",
            Self::MessagesTuple => "messages-tuple",
            Self::Custom => "custom",
            Self::Tasks => "tasks",
            Self::Checkpoints => "checkpoints",
            Self::Debug => "debug",
            Self::Events => "events",
            Self::Usage => "usage",
        }
    }

    /// The mode of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.word() == word)
    }
}

/// A set of modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Modes(u16);

impl Modes {
    /// Whether the set holds `mode`.
    pub fn has(self, mode: StreamMode) -> bool {
        self.0 & (1 << mode as u16) != 0
    }

    /// The modes that are in both sets.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those in which an agent is shown that clients see like this. The others tell its state, or what it says.
    pub(super) fn visible(visibility: Visibility) -> Self {
        match visibility {
            Visibility::Full => StreamMode::ALL.into_iter().collect(),
            Visibility::ToolsOnly => [StreamMode::Updates, StreamMode::Messages, StreamMode::MessagesTuple]
                .into_iter()
                .collect(),
            Visibility::Status => [StreamMode::Updates].into_iter().collect(),
            Visibility::Hidden => Self::default(),
        }
    }

    /// Whether messages are wanted, in any form.
    pub(super) fn include_messages(self) -> bool {
        self.has(StreamMode::Messages) || self.has(StreamMode::MessagesTuple) || self.has(StreamMode::Events)
    }

    /// Whether tasks or checkpoints are wanted, in any form.
    pub(super) fn include_steps(self) -> bool {
        self.has(StreamMode::Tasks) || self.has(StreamMode::Checkpoints) || self.has(StreamMode::Debug)
    }

    /// Whether the state has to be followed.
    pub(super) fn require_state(self) -> bool {
        self.has(StreamMode::Values) || self.has(StreamMode::Events) || self.include_steps()
    }
}

impl FromIterator<StreamMode> for Modes {
    fn from_iter<T: IntoIterator<Item = StreamMode>>(modes: T) -> Self {
        Self(modes.into_iter().fold(0, |set, mode| set | 1 << mode as u16))
    }
}
