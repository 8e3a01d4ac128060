//! Sets of stream modes.

use crate::domain::visibility::Visibility;
use crate::http::wire::stream_mode::StreamMode;

/// A set of modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Modes(u16);

impl Modes {
    /// Returns true if the set holds `mode`.
    pub fn has(self, mode: StreamMode) -> bool {
        self.0 & (1 << mode as u16) != 0
    }

    /// The modes that are in both sets.
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The modes of a run, whose modes these are, that a reader chooses. Either name of messages stands for the form in
    /// which the run has them, unless the run has the named one.
    pub fn chosen_by(self, filter: &[StreamMode]) -> Self {
        let of_messages: Self = [StreamMode::Messages, StreamMode::MessagesTuple].into_iter().collect();
        let named: Self = filter.iter().copied().collect();
        let named_messages = named.and(of_messages);
        if named_messages == Self::default() || self.and(named_messages) != Self::default() {
            return self.and(named);
        }
        self.and(Self(named.0 | of_messages.0))
    }

    /// The modes in which an agent of this visibility is sent. The others reveal its state or its messages.
    pub(super) fn visible(visibility: Visibility) -> Self {
        match visibility {
            Visibility::Full => StreamMode::ALL.into_iter().collect(),
            Visibility::ToolsOnly => [
                StreamMode::Updates,
                StreamMode::Messages,
                StreamMode::MessagesTuple,
                StreamMode::Tools,
            ]
            .into_iter()
            .collect(),
            Visibility::Status => [StreamMode::Updates].into_iter().collect(),
            Visibility::Hidden => Self::default(),
        }
    }

    /// Returns true if messages are requested in any form.
    pub(super) fn include_messages(self) -> bool {
        self.has(StreamMode::Messages) || self.has(StreamMode::MessagesTuple) || self.has(StreamMode::Events)
    }

    /// Returns true if the starts of calls are requested in any form.
    pub(super) fn include_calls(self) -> bool {
        self.has(StreamMode::Events) || self.has(StreamMode::Tools)
    }

    /// Returns true if tasks or checkpoints are requested in any form.
    pub(super) fn include_steps(self) -> bool {
        self.has(StreamMode::Tasks) || self.has(StreamMode::Checkpoints) || self.has(StreamMode::Debug)
    }

    /// Returns true if a mode needs the state.
    pub(super) fn require_state(self) -> bool {
        self.has(StreamMode::Values)
            || self.has(StreamMode::Events)
            || self.has(StreamMode::Tools)
            || self.include_steps()
    }
}

impl FromIterator<StreamMode> for Modes {
    fn from_iter<T: IntoIterator<Item = StreamMode>>(modes: T) -> Self {
        Self(modes.into_iter().fold(0, |set, mode| set | 1 << mode as u16))
    }
}
