//! The folder layouts of other systems, one file each. They are translated to the fields of a definition when they are read.
//! The spellings of other systems within a definition are in [`crate::definition::compat`].

pub(super) mod agent_json;
pub(in crate::config) mod coding_agents;
pub(super) mod deepagents_toml;
pub(super) mod tools_json;
