//! The data types of adjutant and their rules. Pure code: nothing here does I/O, waits or prints. Its terms:
//!
//! | Term | Meaning |
//! |---|---|
//! | definition | the description of an agent in a file, in code or in a request; its key is the `graph_id` |
//! | assistant | named, versioned settings of a definition; clients start runs by its id |
//! | thread | a conversation: its state and its history |
//! | run | one execution on a thread; a *child run* executes a delegated call and has a parent |
//! | cron | a schedule that starts runs |
//! | background task | work delegated to an agent on a thread of its own, for which the caller does not wait |
//! | delivery | a webhook request that reports the end of a run |
//! | machine | the state, the phase and the open interrupts of one agent |
//! | checkpoint | an entry of a thread's log: the writes of one step, and its parent |
//! | lane | the history of one agent on a thread: the main agent's, or one child run's |
//! | interrupt | a question to a human; a *decision* answers it |
//! | call | a tool call of the model, with its status in the current step |
//! | event | an entry of a thread's log, or a piece of an answer that is streamed but not stored |
//! | item | a JSON object in the Store, under a key in a *namespace*; it outlives threads |

use std::fmt;

pub mod assistant;
pub mod background;
pub mod backoff;
pub mod busy;
pub mod call;
pub mod checkpoint;
pub mod context;
pub mod cron;
pub mod delivery;
pub mod event;
pub mod field;
pub mod field_path;
pub mod filter;
pub mod foreign;
pub mod goto;
pub mod graph;
pub mod headers;
pub mod id;
pub mod idempotency;
pub mod input;
pub mod interrupt;
pub mod item;
pub mod job;
pub mod json_limits;
pub mod limits;
pub mod machine;
pub mod message;
pub mod metadata;
pub mod path;
pub mod pattern;
pub mod plain_words;
pub mod remote_run;
pub mod run;
pub mod schema;
pub mod size;
pub mod state;
pub mod suggestion;
pub mod thread;
pub mod time;
pub mod visibility;

/// An input error: the field, and the reason why its value is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    /// The path of the field (`messages[2].content`).
    pub field: String,
    /// The reason, continuing "the field …".
    pub reason: String,
}

impl Invalid {
    /// Creates an error for `field` with this `reason`.
    pub fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}
