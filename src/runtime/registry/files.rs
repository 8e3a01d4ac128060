//! The agents that files define, as the configuration has them.

use std::collections::BTreeMap;

use crate::agent::assemble::AgentFactory;
use crate::definition::servers::{McpOwner, OwnedServers, ServerDefinition};
use crate::definition::{AgentDefinition, GENERAL_PURPOSE, StoredDiagnostic, ValidationContext};
use crate::metrics::ConfiguredNames;

/// The sources of agents.
pub struct AgentSources {
    /// The factory that assembles agents.
    pub factory: AgentFactory,
    /// The names that definitions may refer to.
    pub validation_context: ValidationContext,
    /// The agents that files define.
    pub files: FileAgents,
}

/// The agents that files define.
#[derive(Debug, Clone, Default)]
pub struct FileAgents {
    /// The agents.
    pub agents: Vec<FileAgent>,
    /// The diagnostics, each with its `graph_id`. A diagnostic without a `graph_id` concerns all agents.
    pub remarks: Vec<(Option<String>, StoredDiagnostic)>,
    /// The servers of tools that the configuration has for all agents.
    pub servers: BTreeMap<String, ServerDefinition>,
}

impl FileAgents {
    /// Returns all servers of tools of files: the shared ones, and those of single agents.
    pub fn all_servers(&self) -> OwnedServers {
        let common = self
            .servers
            .iter()
            .map(|(name, server)| ((McpOwner::Everyone, name.clone()), server.clone()));
        let own = self
            .agents
            .iter()
            .flat_map(|agent| agent.definition.own_servers(&agent.graph_id));
        common.chain(own).collect()
    }

    /// Returns the names that metrics may use as labels: names in files, and never names that clients choose.
    pub(in crate::runtime) fn labels(&self) -> ConfiguredNames {
        let mut known = ConfiguredNames::default();
        for FileAgent {
            graph_id, definition, ..
        } in &self.agents
        {
            let general = &definition.general_purpose_subagent;
            known.agents.insert(definition.name_or(graph_id).to_owned());
            known
                .agents
                .insert(general.name.as_deref().unwrap_or(GENERAL_PURPOSE).to_owned());
            known
                .agents
                .extend(definition.subagents.iter().map(|subagent| subagent.name.clone()));
            // Calls of policies are not counted by their models.
            let models = definition.named_models(|_| None);
            known.models.extend(models.iter().map(|model| model.name.to_owned()));
        }
        known
    }
}

/// An agent that a file defines.
#[derive(Debug, Clone)]
pub struct FileAgent {
    /// The key.
    pub graph_id: String,
    /// The file or folder.
    pub place: String,
    /// The definition.
    pub definition: AgentDefinition,
}
