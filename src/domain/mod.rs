//! The data types of adjutant and their rules. Pure code: nothing here does I/O, waits or prints. The glossary is in
//! the documentation of the crate.

use std::fmt;

pub mod access;
pub mod account;
mod action;
pub mod api_key;
pub mod approvers;
pub mod assistant;
pub mod audit;
pub mod background;
pub mod backoff;
pub mod busy_time;
pub mod call;
pub mod call_ids;
pub mod call_token;
pub mod checkpoint;
pub mod condition;
pub mod context;
pub mod cron;
pub mod declared_fields;
mod deflated;
pub mod delivery;
mod entry;
pub mod event;
mod failure;
pub mod field;
pub mod field_path;
pub mod file_content;
pub mod filter;
pub mod foreign;
pub mod goto;
pub mod graph;
pub mod headers;
pub mod id;
pub mod idempotency;
pub mod identity;
pub mod input;
pub mod interrupt;
pub mod item;
pub mod job;
pub mod json_equality;
pub mod json_limits;
pub mod json_size;
pub mod json_texts;
pub mod jwt;
pub mod limits;
pub mod long_message;
pub mod loopback;
pub mod machine;
pub mod mcp_login;
pub mod media;
pub mod message;
pub mod message_index;
pub mod message_list;
pub mod metadata;
pub mod name_patterns;
pub mod nats;
pub mod oauth_scopes;
pub mod panic;
pub mod path;
pub mod pattern;
pub mod postgres_url;
pub mod quota;
pub mod read_access;
pub mod recent_texts;
pub mod remembered;
pub mod remote_run;
pub mod ruling;
pub mod run;
pub mod run_config;
pub mod sandbox;
pub mod schema;
pub mod schema_text;
pub mod secret;
pub mod serde_messages;
pub mod size;
pub mod state;
pub mod state_size;
pub mod stored;
pub mod stored_update;
pub mod suggestion;
pub mod summarization;
pub mod tenant;
pub mod tenant_agents;
pub mod text_edit;
pub mod text_limits;
pub mod thread;
pub mod time;
pub mod trace;
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
