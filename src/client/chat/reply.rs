//! The answer of a person to the question of an agent.

use serde_json::Value;

/// The answer of a person.
pub(super) enum Reply {
    /// The body of the answer.
    Answer(Value),
    /// The question shall be asked later.
    Later,
    /// Another client has answered.
    AnsweredElsewhere,
}
