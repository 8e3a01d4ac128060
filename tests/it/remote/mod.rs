//! Agents that work on another server.

pub(crate) mod awaited;
pub(crate) mod background_tasks;
mod interrupts;
mod main_agents;
