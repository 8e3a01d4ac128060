//! The endpoints: each resource, its requests and its refusals.

mod agents;
mod assistants;
mod batches;
mod calling_programs;
mod commands;
mod console;
pub(crate) mod crons;
mod deleted_runs;
mod disconnects;
mod idempotency;
mod info;
mod inputs;
mod interrupts;
mod mcp_server;
mod metrics;
mod retention;
mod runs;
mod state;
mod stateless_runs;
mod store;
mod subagent_runs;
mod threads;
mod unknown_keys;
mod webhooks;
