//! Other people's programs: the official SDKs, browsers, API checkers, examples of other systems.

mod browsers;
mod console;
mod contract;
mod deepagents;
mod mcp_client;
mod mcp_servers;
mod other_systems;
pub(crate) mod sdk;
mod tool_servers;
mod web;
