//! The registry of agents: the current set and earlier definitions. The set is replaced as a whole while the server
//! runs.
//!
//! A reader takes the current set and keeps it; there are no locks to wait for. A run keeps the definition with which
//! it was admitted. The run holds the hash of the definition's content, by which a definition that is no longer in use
//! is found in the database.
//!
//! `files` has the agents of files, `replace` makes the current set of all definitions, and `request` finds the agent of a
//! request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::Notify;

use crate::agent::assemble::{AgentFactory, Agents, RegisteredAgent};
use crate::db::{self, Db, DbResult, Tx};
use crate::definition::{DefinitionDigest, DefinitionVersion, StoredDiagnostic, ValidationContext};
use crate::domain::identity::Tenant;
use crate::domain::run::{AssignedAgent, Run};
use crate::domain::tenant::Tenants;
use crate::domain::tenant_agents::{AgentOwners, TenantAgents};
use crate::domain::time::Clock;

mod files;
mod replace;
mod request;

pub use files::{AgentSources, FileAgent, FileAgents};
pub(super) use replace::Sources;
pub(super) use request::{PinnedLookup, ResolvedAssistant};

/// The most agents of earlier definitions that are kept in memory.
const PAST: usize = 64;

/// The current definition of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentRecord {
    /// The version in use.
    pub version: DefinitionVersion,
    /// The diagnostics. For a file they also contain the reasons why its last change is not in use.
    pub remarks: Vec<StoredDiagnostic>,
    /// True if the agent can run.
    pub is_usable: bool,
    /// The tenant whose client defined the agent; none if it is there for all tenants.
    pub owner: Option<Tenant>,
}

impl AgentRecord {
    /// Returns whether a client of another tenant defined the agent.
    pub fn is_of_another(&self, tenant: &Tenant) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner != tenant)
    }
}

/// The current agents, by `graph_id`.
pub(super) type Records = BTreeMap<String, AgentRecord>;

/// The registry of agents.
pub(super) struct Registry {
    pub(super) db: Db,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) factory: AgentFactory,
    validation_context: ValidationContext,
    tenants: Arc<Tenants>,
    current: RwLock<Current>,
    /// A cache of agents of earlier definitions, most recently used last.
    past: Mutex<VecDeque<Arc<RegisteredAgent>>>,
    /// Locked while the set is changed.
    pub(super) sources: tokio::sync::Mutex<Sources>,
    /// Notified when another server has changed the definition of an agent.
    pub(super) changed: Notify,
}

#[derive(Clone, Default)]
struct Current {
    agents: Arc<Agents>,
    records: Arc<Records>,
    /// The tenants of the agents that clients defined; empty if the server does not know the tenants of its callers.
    owners: Arc<AgentOwners>,
}

impl Current {
    /// Returns whether the agent of this name is of a file, or of a client of this tenant.
    fn is_owned_as(&self, graph_id: &str, tenant: Option<&Tenant>) -> bool {
        let owner = self.owners.get(graph_id);
        owner.is_none_or(|owner| Some(owner) == tenant)
    }
}

impl Registry {
    /// Returns a registry without agents.
    pub(super) fn new(
        db: Db,
        clock: Arc<dyn Clock>,
        factory: AgentFactory,
        validation_context: ValidationContext,
        tenants: Arc<Tenants>,
    ) -> Self {
        Self {
            db,
            clock,
            factory,
            validation_context,
            tenants,
            current: RwLock::default(),
            past: Mutex::default(),
            sources: tokio::sync::Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the agents that can run.
    pub(super) fn agents(&self) -> Arc<Agents> {
        self.current().agents
    }

    /// Returns all defined agents.
    pub(super) fn records(&self) -> Arc<Records> {
        self.current().records
    }

    /// Returns the names that a definition may refer to.
    pub(super) fn validation_context(&self) -> ValidationContext {
        let agents = self.records().keys().cloned().collect();
        let mcp_servers = self.factory.servers.common();
        ValidationContext {
            agents,
            mcp_servers,
            ..self.validation_context.clone()
        }
    }

    /// Returns the names that a definition of a client of this tenant may refer to.
    pub(super) fn validation_context_of(&self, tenant: &Tenant) -> ValidationContext {
        let existing = self.agents_of(tenant);
        let mut context = self.validation_context();
        context.agents.retain(|graph_id| existing.contains(graph_id));
        context
    }

    /// Returns which agents exist for a tenant. This is the one place that knows.
    pub(super) fn agents_of(&self, tenant: &Tenant) -> TenantAgents {
        self.existing_in(&self.current(), tenant)
    }

    fn existing_in(&self, current: &Current, tenant: &Tenant) -> TenantAgents {
        let allowed = self.tenants.of(tenant).agents.clone();
        TenantAgents::new(tenant.clone(), allowed, Arc::clone(&current.owners))
    }

    /// Returns the agent of this name that can run, if it exists for the tenant.
    pub(super) fn find_of_tenant(&self, graph_id: &str, tenant: &Tenant) -> Option<Arc<RegisteredAgent>> {
        let current = self.current();
        let known = current.agents.of_graph(graph_id)?;
        let exists = self.existing_in(&current, tenant).contains(graph_id);
        exists.then(|| Arc::clone(known))
    }

    /// Returns the agent of a run as it is defined now, unless a client of another tenant than this one has taken its name
    /// since; unless any client has it, if no tenant is given.
    pub(super) fn present_of_run(&self, run: &Run, tenant: Option<&Tenant>) -> Option<Arc<RegisteredAgent>> {
        let current = self.current();
        let known = current.agents.of_run(run)?;
        current.is_owned_as(&known.graph_id, tenant).then(|| Arc::clone(known))
    }

    /// Returns the agent of this name as it is defined now, as [`Registry::present_of_run`] does.
    pub(super) fn present(&self, graph_id: &str, tenant: Option<&Tenant>) -> Option<Arc<RegisteredAgent>> {
        let current = self.current();
        let known = current.agents.of_graph(graph_id)?;
        current.is_owned_as(graph_id, tenant).then(|| Arc::clone(known))
    }

    /// Returns the agent of a run, as it was defined when the run was admitted, with what the run has chosen. If that
    /// definition is gone, it is the present one, as [`Registry::present_of_run`] returns it.
    pub(super) async fn of_run(
        self: &Arc<Self>,
        run: &Run,
        tenant: Option<&Tenant>,
    ) -> DbResult<Option<Arc<RegisteredAgent>>> {
        let Some(AssignedAgent {
            graph_id,
            definition: Some(digest),
            ..
        }) = run.request.agent.clone()
        else {
            return Ok(self.present_of_run(run, tenant).map(|known| known.for_run(run)));
        };
        if let Some(known) = self.cached(&graph_id, &digest) {
            return Ok(Some(known.for_run(run)));
        }
        let this = Arc::clone(self);
        let found = self
            .db
            .read(move |tx| Box::pin(async move { this.of_digest(tx, &graph_id, &digest).await }));
        let found = found.await?.or_else(|| self.present_of_run(run, tenant));
        Ok(found.map(|known| known.for_run(run)))
    }

    /// Returns the same as [`Registry::of_run_of_tenant`], if the definition of the agent is in memory; none otherwise.
    pub(super) fn in_memory(&self, run: &Run, tenant: &Tenant) -> Option<Arc<RegisteredAgent>> {
        let agent = run.request.agent.as_ref()?;
        let known = self.cached(&agent.graph_id, agent.definition.as_ref()?)?;
        self.for_tenant(&known.for_run(run), tenant)
    }

    /// Returns the agent of a run as the tenant of its thread may run it; none if it may not.
    pub(super) async fn of_run_of_tenant(
        self: &Arc<Self>,
        run: &Run,
        tenant: &Tenant,
    ) -> DbResult<Option<Arc<RegisteredAgent>>> {
        let known = self.of_run(run, Some(tenant)).await?;
        Ok(known.and_then(|known| self.for_tenant(&known, tenant)))
    }

    /// Returns an agent as a tenant may run it: with its own keys, and only with what it may use. None if the agent does
    /// not exist for the tenant.
    pub(super) fn for_tenant(&self, known: &Arc<RegisteredAgent>, tenant: &Tenant) -> Option<Arc<RegisteredAgent>> {
        if !self.agents_of(tenant).contains(&known.graph_id) {
            return None;
        }
        let variant = known.for_tenant(tenant);
        let graph_id = &known.graph_id;
        variant
            .inspect_err(|error| tracing::error!(graph_id, %tenant, %error, "an agent cannot be built for a tenant"))
            .ok()
    }

    /// Returns the agent of this name as a tenant may run it, if it exists for the tenant.
    pub(super) fn agent_of_tenant(&self, graph_id: &str, tenant: &Tenant) -> Option<Arc<RegisteredAgent>> {
        self.for_tenant(&self.find_of_tenant(graph_id, tenant)?, tenant)
    }

    /// Returns the agents that can run and that exist for a tenant.
    pub(super) fn of_tenant(&self, tenant: &Tenant) -> Vec<Arc<RegisteredAgent>> {
        let current = self.current();
        let existing = self.existing_in(&current, tenant);
        let agents = current.agents.all();
        agents
            .filter(|known| existing.contains(&known.graph_id))
            .cloned()
            .collect()
    }

    /// Returns the agent with this definition, in use or not, or none if the definition was deleted.
    pub(super) async fn of_digest(
        &self,
        tx: &mut Tx<'_>,
        graph_id: &str,
        digest: &DefinitionDigest,
    ) -> DbResult<Option<Arc<RegisteredAgent>>> {
        if let Some(known) = self.cached(graph_id, digest) {
            return Ok(Some(known));
        }
        let Some(definition) = db::definitions::find(tx, digest).await? else {
            return Ok(None);
        };
        let definition_source = db::definitions::origin(tx, graph_id, digest).await?;
        match self.factory.register(graph_id, &definition, &definition_source) {
            Ok(known) => {
                // It may be stored in the form of an earlier release; its key is the stored digest.
                let known = Arc::new(known.stored_as(digest));
                self.cache(Arc::clone(&known));
                Ok(Some(known))
            }
            Err(error) => {
                tracing::warn!(graph_id, %digest, %error, "an earlier definition cannot be used any more");
                Ok(None)
            }
        }
    }

    fn cached(&self, graph_id: &str, digest: &DefinitionDigest) -> Option<Arc<RegisteredAgent>> {
        let is_it = |known: &&Arc<RegisteredAgent>| known.graph_id == graph_id && known.digest == *digest;
        if let Some(known) = self.agents().of_graph(graph_id).filter(is_it) {
            return Some(Arc::clone(known));
        }
        self.past
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .find(is_it)
            .cloned()
    }

    fn cache(&self, known: Arc<RegisteredAgent>) {
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.push_back(known);
        if past.len() > PAST {
            past.pop_front();
        }
    }
}
