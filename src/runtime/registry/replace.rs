//! The replacement of the current set of agents by that of changed definitions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

use super::{AgentRecord, Current, FileAgent, FileAgents, Records, Registry};
use crate::agent::assemble::{Agents, RegisteredAgent};
use crate::db::definitions::ClientAgent;
use crate::definition::check::check_agent;
use crate::definition::{DefinitionVersion, Diagnostic, FieldPath, Severity, StoredDiagnostic, ValidationContext};
use crate::domain::tenant_agents::AgentOwners;

/// The sources of the current set.
#[derive(Default)]
pub(in crate::runtime) struct Sources {
    /// The definitions of files.
    pub(in crate::runtime) files: BTreeMap<String, DefinitionVersion>,
    /// The diagnostics of files.
    pub(in crate::runtime) oddities: Vec<(Option<String>, StoredDiagnostic)>,
    /// The errors for which the last change of the files is not in use.
    pub(in crate::runtime) refusals: Vec<(Option<String>, StoredDiagnostic)>,
    /// The definitions of clients, with their tenants.
    pub(in crate::runtime) clients: BTreeMap<String, ClientAgent>,
    /// The number of the last change by clients that this process has read.
    pub(in crate::runtime) seen: i64,
}

impl Sources {
    /// Returns whether these files are in use already.
    pub(in crate::runtime) fn is_same(&self, files: &FileAgents) -> bool {
        let is_known = |agent: &FileAgent| {
            self.files.get(&agent.graph_id).is_some_and(|version| {
                version.definition == agent.definition.without_servers()
                    && version.definition_source.file() == Some(&agent.place)
            })
        };
        self.refusals.is_empty()
            && self.oddities == files.remarks
            && self.files.len() == files.agents.len()
            && files.agents.iter().all(is_known)
    }
}

impl Registry {
    /// Replaces the current set. Agents that stay the same are not assembled again.
    ///
    /// A file takes precedence over a client that has defined an agent of the same name.
    pub(in crate::runtime) fn replace(&self, sources: &Sources) {
        let old = self.agents();
        let mut records = Records::new();
        let mut agents = vec![];
        let clients = sources
            .clients
            .values()
            .filter(|agent| !sources.files.contains_key(&agent.version.graph_id));
        let owned = clients.clone().filter(|_| self.tenants.are_known());
        let owners: AgentOwners = owned
            .map(|agent| (agent.version.graph_id.clone(), agent.tenant.clone()))
            .collect();
        for version in sources.files.values().chain(clients.map(|agent| &agent.version)) {
            let mut remarks = self.diagnostics_of(version, sources);
            match self.usable(version, &old, &remarks) {
                Ok(known) => agents.extend(known),
                Err(remark) => remarks.push(remark),
            }
            let is_usable = agents.last().is_some_and(|known| known.graph_id == version.graph_id);
            if !is_usable {
                tracing::warn!(graph_id = version.graph_id, problem = %remarks[0], "an agent cannot run as it is defined");
            }
            let record = AgentRecord {
                version: version.clone(),
                remarks,
                is_usable,
                owner: owners.get(&version.graph_id).cloned(),
            };
            records.insert(version.graph_id.clone(), record);
        }
        let new = Current {
            agents: Arc::new(agents.into_iter().collect()),
            records: Arc::new(records),
            owners: Arc::new(owners),
        };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    /// Returns the diagnostics of a definition.
    fn diagnostics_of(&self, version: &DefinitionVersion, sources: &Sources) -> Vec<StoredDiagnostic> {
        let graph_id = &version.graph_id;
        if version.definition_source.file().is_none() {
            return self.client_diagnostics(version, sources);
        }
        let said = sources.refusals.iter().chain(&sources.oddities);
        let concerns = |about: &Option<String>| about.as_ref().is_none_or(|about| about == graph_id);
        let mut remarks: Vec<StoredDiagnostic> = said
            .filter(|(about, _)| concerns(about))
            .map(|(_, remark)| remark.clone())
            .collect();
        if sources.clients.contains_key(graph_id) {
            let message = "a client has defined an agent of this name, too; the file precedes";
            remarks.push(Diagnostic::warning(FieldPath::default(), message).into());
        }
        remarks
    }

    /// Returns the diagnostics of a definition from a client. A missing agent that it refers to does not disable the
    /// rest.
    fn client_diagnostics(&self, version: &DefinitionVersion, sources: &Sources) -> Vec<StoredDiagnostic> {
        let DefinitionVersion {
            graph_id, definition, ..
        } = version;
        let referenced = definition
            .subagents
            .iter()
            .filter_map(|subagent| subagent.graph_id.clone());
        let validation_context = ValidationContext {
            agents: referenced.collect(),
            is_stored: true,
            ..self.validation_context()
        };
        let tenant = sources.clients.get(graph_id).map(|own| &own.tenant);
        // Agents that clients of other tenants defined do not exist for this one.
        let is_there = |other: &&ClientAgent| !self.tenants.are_known() || Some(&other.tenant) == tenant;
        let clients = sources.clients.values().filter(is_there);
        let clients = clients.map(|other| &other.version.graph_id);
        let mut agents: BTreeSet<String> = sources.files.keys().chain(clients).cloned().collect();
        agents.insert(graph_id.clone());
        let gone = definition.unknown_agents(&agents);
        let gone = gone.into_iter().map(|finding| Diagnostic {
            severity: Severity::Warning,
            ..finding
        });
        let misused = validation_context.clients.check(definition, &validation_context);
        check_agent(graph_id, definition, &validation_context)
            .into_iter()
            .chain(misused)
            .chain(gone)
            .map(StoredDiagnostic::from)
            .collect()
    }

    /// Returns the agent of a definition, unless its diagnostics forbid it.
    fn usable(
        &self,
        version: &DefinitionVersion,
        old: &Agents,
        remarks: &[StoredDiagnostic],
    ) -> Result<Option<Arc<RegisteredAgent>>, StoredDiagnostic> {
        let is_wrong = remarks.iter().any(|remark| remark.severity == Severity::Error);
        if is_wrong && version.definition_source.file().is_none() {
            return Ok(None);
        }
        let same = old
            .of_graph(&version.graph_id)
            .filter(|known| known.digest == version.digest);
        if let Some(known) = same {
            return Ok(Some(Arc::clone(known)));
        }
        let known = self
            .factory
            .register(&version.graph_id, &version.definition, &version.definition_source);
        known
            .map(Some)
            .map_err(|error| Diagnostic::error(FieldPath::default(), error.to_string()).into())
    }
}
