//! The tests of the whole, in one binary: one module for each promise.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test stops at the first surprise, reads the environment, and starts what it needs"
)]

mod about;
mod answered_there;
mod answers;
mod approvals;
mod asked_forms;
mod assistants;
mod background;
mod background_crashes;
mod batches;
mod broken_answers;
mod browsers;
mod coming_from;
mod commands;
mod contract;
mod crash;
mod crons;
mod custom;
mod definitions;
mod delegated_interrupts;
mod delegated_tasks;
mod delegates;
mod dialects;
mod documents;
mod embedding;
mod fields;
mod files;
mod first_hour;
mod folder_servers;
mod forks;
mod giving_up;
mod hostile;
mod idempotency;
mod inheritance;
mod initial_messages;
mod interrupts;
mod layers;
mod leavers;
mod limits;
mod mcp;
mod memory;
mod metrics;
mod models;
mod notes;
mod peer_crashes;
mod peers;
mod permissions;
mod profiles;
mod prompts;
mod records;
mod remote_task_crashes;
mod remote_tasks;
mod retention;
mod runs;
mod sdk;
mod shared_state;
mod skills;
mod state;
mod stateless;
mod stopping;
mod store;
mod streams;
mod subagent_runs;
mod subagents;
mod support;
mod thread_stream;
mod threads;
mod todos;
mod together;
mod tools;
mod totals;
mod unknown_keys;
mod v2;
mod v2_questions;
mod v2_sockets;
mod visibility;
mod webhooks;
mod wild_trees;
