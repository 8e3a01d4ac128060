//! The registry of agents: the current set and earlier definitions. The set is replaced as a whole while the server
//! runs.
//!
//! A reader takes the current set and keeps it; there are no locks to wait for. A run keeps the definition with which
//! it was admitted. The run holds the hash of the definition's content, by which a definition that is no longer in use
//! is found in the database.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::Notify;

use super::error::StartError;
use super::new_run::{AssistantRef, NewRun};
use crate::agent::assemble::{AgentFactory, Agents, RegisteredAgent};
use crate::db::assistants::LaterAssistant;
use crate::db::checkpoints::LaterWork;
use crate::db::definitions::ClientAgent;
use crate::db::runs::LaterRun;
use crate::db::{self, Db, DbResult, Tx};
use crate::definition::check::{ValidationContext, check_agent};
use crate::definition::mcp::{McpOwner, OwnedServers, ServerDefinition};
use crate::definition::{
    AgentDefinition, DefinitionDigest, DefinitionVersion, Diagnostic, FieldPath, GENERAL_PURPOSE, Severity,
    StoredDiagnostic,
};
use crate::domain::assistant::Assistant;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{AssistantId, CheckpointId, ThreadId};
use crate::domain::identity::Tenant;
use crate::domain::machine::Phase;
use crate::domain::run::{AssignedAgent, Run};
use crate::domain::tenant::Tenants;
use crate::domain::tenant_agents::{AgentOwners, TenantAgents};
use crate::domain::thread::Thread;
use crate::domain::time::Clock;
use crate::metrics::ConfiguredNames;

/// The most agents of earlier definitions that are kept in memory.
const PAST: usize = 64;

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

/// The sources of the current set.
#[derive(Default)]
pub(super) struct Sources {
    /// The definitions of files.
    pub(super) files: BTreeMap<String, DefinitionVersion>,
    /// The diagnostics of files.
    pub(super) oddities: Vec<(Option<String>, StoredDiagnostic)>,
    /// The errors for which the last change of the files is not in use.
    pub(super) refusals: Vec<(Option<String>, StoredDiagnostic)>,
    /// The definitions of clients, with their tenants.
    pub(super) clients: BTreeMap<String, ClientAgent>,
    /// The number of the last change by clients that this process has read.
    pub(super) seen: i64,
}

impl Sources {
    /// Returns whether these files are in use already.
    pub(super) fn is_same(&self, files: &FileAgents) -> bool {
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

impl FileAgents {
    /// Returns the names that metrics may use as labels: names in files, and never names that clients choose.
    pub(super) fn labels(&self) -> ConfiguredNames {
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

/// An assistant with its agent.
pub(super) struct ResolvedAssistant {
    pub(super) assistant: Assistant,
    pub(super) known: Arc<RegisteredAgent>,
    /// The tenant whose client defined the agent when it was found. The agent may be deleted before the admission checks
    /// its tenant.
    pub(super) owner: Option<Tenant>,
}

impl ResolvedAssistant {
    /// Returns whether a client of another tenant defined the agent.
    pub(super) fn is_of_another(&self, tenant: &Tenant) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner != tenant)
    }
}

/// An assistant that a request names, and that is read later in the transaction.
pub(super) struct AssistantLookup {
    id: AssistantId,
    /// The agents when the request was looked at.
    current: Current,
    found: LaterAssistant,
}

impl AssistantLookup {
    /// Returns the assistant with its agent.
    ///
    /// # Errors
    /// As [`Registry::resolve`].
    pub(super) async fn resolve(self, tx: &mut Tx<'_>) -> Result<ResolvedAssistant, StartError> {
        let Self { id, current, found } = self;
        let Some(assistant) = found.find(tx).await? else {
            return Err(StartError::NoAssistant(id.to_string()));
        };
        match current.agents.of_graph(&assistant.settings.graph_id) {
            Some(known) => Ok(ResolvedAssistant {
                owner: current.owners.get(&known.graph_id).cloned(),
                known: Arc::clone(known),
                assistant,
            }),
            None => Err(StartError::NoAgent {
                assistant: id,
                graph_id: assistant.settings.graph_id,
            }),
        }
    }
}

/// The definition with which the work began that a request continues. It is read later in the transaction.
pub(super) enum PinnedLookup {
    /// The request continues none.
    Current,
    /// The work in progress at a checkpoint of a thread.
    At(ThreadId, CheckpointId),
    /// The work in progress at the newest checkpoint.
    Newest(Box<NewestWork>),
}

/// The work in progress at the newest checkpoint of a thread, and the run that made the checkpoint.
pub(super) struct NewestWork {
    work: LaterWork,
    run: LaterRun,
}

impl PinnedLookup {
    /// Begins to look for the work that a request continues. On SQLite it is read together with other rows.
    pub(super) async fn begin(tx: &mut Tx<'_>, new_run: &NewRun) -> DbResult<Self> {
        let goes_on = new_run.resume.is_some() || new_run.request.input.is_none();
        let thread = new_run.target.thread().filter(|_| goes_on);
        Ok(match (thread, new_run.request.checkpoint) {
            (None, _) => Self::Current,
            (Some(thread), Some(checkpoint)) => Self::At(thread, checkpoint),
            (Some(thread), None) => Self::Newest(Box::new(NewestWork {
                work: db::checkpoints::work_later(tx, thread).await?,
                run: db::runs::of_newest_step_later(tx, thread).await?,
            })),
        })
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

    /// Replaces the current set. Agents that stay the same are not assembled again.
    ///
    /// A file takes precedence over a client that has defined an agent of the same name.
    pub(super) fn replace(&self, sources: &Sources) {
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

    /// Returns the agent for a request: the current one, or, if the request continues work in progress on its thread,
    /// the agent with the definition with which that work began.
    pub(super) async fn pinned_definition(
        &self,
        tx: &mut Tx<'_>,
        new_run: &NewRun,
        known: Arc<RegisteredAgent>,
    ) -> DbResult<Arc<RegisteredAgent>> {
        let pinned = PinnedLookup::begin(tx, new_run).await?;
        self.pinned(tx, pinned, known).await
    }

    /// Returns the agent for a request like [`Registry::pinned_definition`], after it was begun to look for it.
    pub(super) async fn pinned(
        &self,
        tx: &mut Tx<'_>,
        pinned: PinnedLookup,
        known: Arc<RegisteredAgent>,
    ) -> DbResult<Arc<RegisteredAgent>> {
        match pinned {
            PinnedLookup::Current => Ok(known),
            PinnedLookup::At(thread, checkpoint) => self.as_admitted(tx, thread, Some(checkpoint), known).await,
            PinnedLookup::Newest(newest) => {
                let NewestWork { work, run } = *newest;
                let Some(id) = work.run(tx).await? else {
                    return Ok(known);
                };
                let run = match run.read(tx).await? {
                    Some(run) if run.id == id => Some(run),
                    // On Postgres another step may have been stored in between.
                    Some(_) | None => db::runs::get_by_id(tx, id).await?,
                };
                self.as_begun(tx, run, known).await
            }
        }
    }

    /// Returns the assistant that a request names, with its agent.
    ///
    /// # Errors
    /// Returns an error when the assistant or its agent does not exist, or the database fails.
    pub(super) async fn resolve(
        &self,
        tx: &mut Tx<'_>,
        wanted: &AssistantRef,
    ) -> Result<ResolvedAssistant, StartError> {
        self.look_up(tx, wanted).await?.resolve(tx).await
    }

    /// Begins to look for the assistant that a request names. On SQLite it is read together with other rows.
    ///
    /// # Errors
    /// As [`Registry::resolve`].
    pub(super) async fn look_up(&self, tx: &mut Tx<'_>, wanted: &AssistantRef) -> Result<AssistantLookup, StartError> {
        let current = self.current();
        let id = match wanted {
            AssistantRef::Id(id) => *id,
            AssistantRef::Graph(graph_id) => match current.agents.of_graph(graph_id) {
                Some(known) => known.assistant,
                None => return Err(StartError::NoAssistant(graph_id.clone())),
            },
        };
        let found = db::assistants::find_later(tx, id).await?;
        Ok(AssistantLookup { id, current, found })
    }

    /// Returns the last agent of a thread, as it is defined now; none if it does not exist for the tenant of the thread,
    /// whose metadata name the agent and come from clients.
    pub(super) fn last_on(&self, thread: &Thread) -> Option<Arc<RegisteredAgent>> {
        let current = self.current();
        let known = current.agents.last_on(thread)?;
        let existing = self.existing_in(&current, &thread.ownership.tenant);
        existing.contains(&known.graph_id).then(|| Arc::clone(known))
    }

    /// Returns the last agent of a thread, with the definition with which the work in progress began.
    pub(super) async fn of_thread(&self, tx: &mut Tx<'_>, thread: &Thread) -> DbResult<Option<Arc<RegisteredAgent>>> {
        match self.last_on(thread) {
            Some(known) => self.as_admitted(tx, thread.id, None, known).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the agent with the definition with which the work in progress at a checkpoint, or at the newest one,
    /// began. If no work is in progress, the definition is the current one.
    async fn as_admitted(
        &self,
        tx: &mut Tx<'_>,
        thread: ThreadId,
        checkpoint: Option<CheckpointId>,
        known: Arc<RegisteredAgent>,
    ) -> DbResult<Arc<RegisteredAgent>> {
        let head = match checkpoint {
            Some(checkpoint) => db::checkpoints::find_head(tx, thread, checkpoint).await?,
            None => db::checkpoints::head(tx, thread, Lane::Main).await?,
        };
        let head = head.filter(|head| !matches!(head.position.phase, Phase::Start | Phase::Ended));
        let Some(run) = head.and_then(|head| head.run) else {
            return Ok(known);
        };
        let run = db::runs::get_by_id(tx, run).await?;
        self.as_begun(tx, run, known).await
    }

    /// Returns the agent with the definition with which a run began.
    async fn as_begun(
        &self,
        tx: &mut Tx<'_>,
        run: Option<Run>,
        known: Arc<RegisteredAgent>,
    ) -> DbResult<Arc<RegisteredAgent>> {
        let bound = match run.and_then(|run| run.request.agent) {
            Some(AssignedAgent {
                graph_id,
                definition: Some(digest),
                ..
            }) if graph_id == known.graph_id && digest != known.digest => {
                self.of_digest(tx, &graph_id, &digest).await?
            }
            Some(_) | None => None,
        };
        Ok(bound.unwrap_or(known))
    }
}
