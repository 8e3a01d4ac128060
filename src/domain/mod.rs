//! The nouns of adjutant. Pure: nothing here waits, opens or prints.
//!
//! | Word | Means |
//! |---|---|
//! | definition | what a file or a request says about an agent; its key is the `graph_id` |
//! | assistant | named, versioned settings of a definition: what clients address |
//! | thread | a conversation: its state and its history |
//! | run | one execution on a thread; a *child run* has a parent |
//! | cron | a wish for runs that are started by the clock, again and again |
//! | background task | work that an agent handed to another one and does not wait for: a thread of that one |
//! | delivery | the report of a run that ended, on its way to whoever asked for it |
//! | machine | where a run stands |
//! | checkpoint | a stored machine, with its parent in the history |
//! | lane | the history of one agent on a thread: the main agent's, or one child run's |
//! | interrupt | a question to a human; a *decision* answers it |
//! | call, fate | a tool call of the model, and what became of it |
//! | event | a fact in the log of a thread |
//! | item | something remembered beyond a thread, under a key in a *namespace* of the Store |

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
pub mod filter;
pub mod foreign;
pub mod front_matter;
pub mod goto;
pub mod graph;
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
pub mod skill;
pub mod sse;
pub mod state;
pub mod thread;
pub mod time;
pub mod visibility;

/// Input that cannot be accepted: which part, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    /// The part of the input, as a path (`messages[2].content`).
    pub field: String,
    /// What is wrong with it, continuing "the field …".
    pub reason: String,
}

impl Invalid {
    /// Says that `field` is wrong because of `reason`.
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
