//! The stream modes of the v1 protocol, as requests name them.

/// A stream mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamMode {
    /// The whole state after each step that changed it.
    Values,
    /// The writes of each step.
    Updates,
    /// Messages while they are generated, each time as a whole.
    Messages,
    /// Messages while they are generated, in chunks.
    MessagesTuple,
    /// Custom events of tools and middleware.
    Custom,
    /// The start and end of tasks.
    Tasks,
    /// Checkpoints.
    Checkpoints,
    /// Tasks and checkpoints in one stream.
    Debug,
    /// Tracing records of starts, chunks and ends, as LangChain tracers define them.
    Events,
    /// The usage at the end.
    Usage,
    /// The start and the end of each tool call.
    Tools,
}

impl StreamMode {
    /// All modes.
    pub const ALL: [Self; 11] = [
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
        Self::Tools,
    ];

    /// The word in requests.
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
            Self::Tools => "tools",
        }
    }

    /// The mode of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.word() == word)
    }
}
