//! The handle for definitions of agents, which change while the server runs: clients store them, and changed files are
//! read again.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::assistants;
use super::error::OpenError;
use super::registry::{AgentRecord, FileAgent, FileAgents, Registry, Sources};
use super::shared::Core;
use crate::db::definitions::ClientAgent;
use crate::db::{self, DbResult, RowAccess, Tx, warn_of};
use crate::definition::check::check_agent;
use crate::definition::{
    AgentDefinition, ClientRules, DefinitionSource, DefinitionVersion, Diagnostic, FieldPath, MOST_AGENTS, Severity,
    StoredDiagnostic, VERSIONS_KEPT, Validated, ValidationContext, validate,
};
use crate::domain::Invalid;
use crate::domain::account::Account;
use crate::domain::assistant::Assistant;
use crate::domain::id::AssistantId;
use crate::domain::identity::{Identity, Tenant};
use crate::domain::quota::{QuotaKind, QuotaReached, Quotas};
use crate::domain::time::Timestamp;

/// The time for which an unused definition is kept, since another server may be admitting a run with it.
const GRACE: Duration = Duration::from_secs(600);
/// The most agents whose definitions are stored by one statement.
const AT_ONCE: usize = 100;

/// The refusal to define, read or remove an agent.
#[derive(Debug, thiserror::Error)]
pub enum DefinitionError {
    /// The agent does not exist.
    #[error("there is no agent {0}")]
    NoAgent(String),
    /// The agent has no version with this number.
    #[error("agent {0} has no version {1}")]
    NoVersion(String, i64),
    /// A file defines the agent, so the file has to be changed instead.
    #[error("agent {graph_id} is defined in {place}")]
    InFile {
        /// The agent.
        graph_id: String,
        /// The file or folder.
        place: String,
    },
    /// A client of another tenant has defined an agent of this name.
    #[error("the name {0} is taken")]
    Taken(String),
    /// Clients may not define agents here.
    #[error("{}", ClientRules::DISABLED)]
    Disabled,
    /// The number of agents that clients of all tenants have defined is at its limit.
    #[error("there are {MOST_AGENTS} agents that clients of all tenants have defined, and more are not allowed")]
    TooMany,
    /// The number of agents that clients of the tenant have defined is at its limit.
    #[error(transparent)]
    Quota(#[from] QuotaReached),
    /// The definition is invalid, for these reasons.
    #[error("the definition cannot be used")]
    Unusable(Vec<StoredDiagnostic>),
    /// The server failed.
    #[error(transparent)]
    Fault(#[from] db::DbError),
}

/// A definition from a client.
struct ClientDefinition {
    definition: AgentDefinition,
    client: Arc<Identity>,
    quotas: Arc<Quotas>,
    now: Timestamp,
}

/// Returns whether a client may see and change an agent that a client of `owner` defined.
fn may_change(client: &Identity, owner: &Tenant) -> bool {
    client.is_unrestricted() || client.tenant == *owner
}

impl Registry {
    /// Reads the definitions of files and clients.
    pub(super) async fn open(&self, files: FileAgents) -> Result<(), OpenError> {
        for agent in &files.agents {
            let checked = self.factory.check(&agent.definition);
            checked.map_err(|error| OpenError::Agent(agent.graph_id.clone(), error))?;
        }
        let mut sources = self.sources.lock().await;
        self.store_files(&mut sources, files).await?;
        self.read_clients(&mut sources).await?;
        self.replace(&sources);
        let before = self.clock.now().minus(GRACE);
        let defaults: Vec<AssistantId> = sources
            .clients
            .keys()
            .map(|graph_id| AssistantId::of_graph(graph_id))
            .collect();
        let write = self.db.write(move |tx| {
            Box::pin(async move {
                db::definitions::lock_changes(tx).await?;
                // The assistants of files were stored anew above.
                db::assistants::give_to_server(tx, &defaults).await?;
                db::definitions::sweep(tx, before).await
            })
        });
        write.await?;
        Ok(())
    }

    /// Stores the definitions of files: a version of each agent that changed, and its default assistant.
    async fn store_files(&self, sources: &mut Sources, files: FileAgents) -> DbResult<()> {
        let now = self.clock.now();
        let agents = files.agents;
        let write = self.db.write(move |tx| {
            Box::pin(async move {
                db::definitions::lock_changes(tx).await?;
                let mut versions = vec![];
                for part in agents.chunks(AT_ONCE) {
                    let first = part.iter().map(|agent| first_version(agent, now)).collect();
                    let kept = db::definitions::keep_all(tx, first).await?;
                    for version in &kept {
                        forget_old(tx, version, now).await?;
                    }
                    versions.extend(kept);
                    let automatic = |agent: &FileAgent| assistants::automatic(&agent.graph_id, &agent.definition, now);
                    let defaults: Vec<Assistant> = part.iter().map(automatic).collect();
                    assistants::register(tx, &defaults, &Tenant::default()).await?;
                }
                Ok::<_, db::DbError>(versions)
            })
        });
        let versions = write.await?;
        sources.files = versions
            .into_iter()
            .map(|version| (version.graph_id.clone(), version))
            .collect();
        (sources.oddities, sources.refusals) = (files.remarks, vec![]);
        Ok(())
    }

    async fn read_clients(&self, sources: &mut Sources) -> DbResult<()> {
        let read = self.db.read(move |tx| {
            Box::pin(async move {
                Ok((
                    db::definitions::of_clients(tx).await?,
                    db::definitions::last_change(tx).await?,
                ))
            })
        });
        let (agents, seen) = read.await?;
        sources.clients = agents
            .into_iter()
            .map(|agent| (agent.version.graph_id.clone(), agent))
            .collect();
        sources.seen = seen;
        Ok(())
    }

    /// Returns whether clients may define agents.
    fn check_clients_allowed(&self) -> Result<(), DefinitionError> {
        if self.validation_context().clients.enabled {
            Ok(())
        } else {
            Err(DefinitionError::Disabled)
        }
    }

    /// Reads the definitions that clients have changed on other servers.
    async fn reload_changes(&self) -> DbResult<()> {
        let read = self.db.read(move |tx| Box::pin(db::definitions::last_change(tx)));
        let last = read.await?;
        let mut sources = self.sources.lock().await;
        if sources.seen != last {
            self.read_clients(&mut sources).await?;
            self.replace(&sources);
            tracing::info!(
                agents = sources.clients.len(),
                "definitions taken over from another server"
            );
        }
        Ok(())
    }

    /// Keeps reading the definitions that clients change on other servers: when it is woken, and else after each `pause`.
    /// Ends with the server.
    pub(super) async fn run_reload_loop(self: Arc<Self>, soft: tokio_util::sync::CancellationToken, pause: Duration) {
        while soft
            .run_until_cancelled(tokio::time::timeout(pause, self.changed.notified()))
            .await
            .is_some()
        {
            if let Err(error) = self.reload_changes().await {
                warn_of!(error, "could not look for agents that clients have defined");
            }
        }
    }

    /// Applies a change that was made on this server, after reading the changes that were made on other servers in
    /// between.
    async fn follow(&self, sources: &mut Sources, change: i64, apply: impl FnOnce(&mut Sources)) -> DbResult<()> {
        if change == sources.seen + 1 {
            apply(sources);
            sources.seen = change;
        } else {
            self.read_clients(sources).await?;
        }
        self.replace(sources);
        Ok(())
    }
}

/// Returns the first version of an agent in a file. Its MCP servers may hold secrets, so they are not stored; runs use the
/// current ones.
fn first_version(agent: &FileAgent, now: Timestamp) -> DefinitionVersion {
    let place = DefinitionSource::File(agent.place.clone());
    DefinitionVersion::first(&agent.graph_id, agent.definition.without_servers(), place, now)
}

/// Stores a version if it is new, and deletes versions that are too old.
async fn keep(
    tx: &mut Tx<'_>,
    graph_id: &str,
    definition: &AgentDefinition,
    definition_source: &DefinitionSource,
    now: Timestamp,
) -> DbResult<DefinitionVersion> {
    let version = db::definitions::keep(tx, graph_id, definition, definition_source, now).await?;
    forget_old(tx, &version, now).await?;
    Ok(version)
}

/// Deletes the versions of an agent that are too old, if this one is new.
async fn forget_old(tx: &mut Tx<'_>, newest: &DefinitionVersion, now: Timestamp) -> DbResult<()> {
    if newest.created_at == now && newest.number > VERSIONS_KEPT {
        db::definitions::forget_versions(tx, &newest.graph_id, newest.number - VERSIONS_KEPT).await?;
        db::definitions::sweep(tx, now.minus(GRACE)).await?;
    }
    Ok(())
}

/// Checks whether clients of the tenant of `client` may define one more agent.
async fn check_room(tx: &mut Tx<'_>, quotas: &Quotas, client: &Identity) -> Result<(), DefinitionError> {
    let account = Account::of(client);
    let mut rules = quotas.rules_for(&account);
    if let Some(applied) = rules.find(|applied| applied.rule.defined_agents.is_some()) {
        let defined = db::definitions::count_of_tenant(tx, &client.tenant).await?;
        applied.check_count(QuotaKind::DefinedAgents, u64::try_from(defined).unwrap_or(0))?;
    }
    if db::definitions::count(tx).await? >= MOST_AGENTS {
        return Err(DefinitionError::TooMany);
    }
    Ok(())
}

/// Removes an agent that a client of the same tenant defined, with its default assistant. Returns the number of the change.
async fn remove(tx: &mut Tx<'_>, graph_id: &str, client: &Identity, now: Timestamp) -> Result<i64, DefinitionError> {
    let missing = || DefinitionError::NoAgent(graph_id.to_owned());
    // First, like all transactions that change agents, so that no two of them wait for each other.
    let change = db::definitions::note_change(tx).await?;
    let owner = db::definitions::owner(tx, graph_id).await?;
    let owner = owner.filter(|owner| may_change(client, owner)).ok_or_else(missing)?;
    if !db::definitions::remove(tx, graph_id, &owner, now).await? {
        return Err(missing());
    }
    db::assistants::delete(tx, AssistantId::of_graph(graph_id)).await?;
    Ok(change)
}

/// Stores a definition from a client as the current version, with its default assistant. Returns the agent with the number
/// of the change, or none when the definition is current already.
async fn store(
    tx: &mut Tx<'_>,
    graph_id: &str,
    from_client: &ClientDefinition,
) -> Result<Option<(ClientAgent, i64)>, DefinitionError> {
    let client = &from_client.client;
    let is_same =
        |agent: ClientAgent| may_change(client, &agent.tenant) && agent.version.definition == from_client.definition;
    if db::definitions::of_client(tx, graph_id).await?.is_some_and(is_same) {
        return Ok(None);
    }
    // A concurrent change waits at this statement and then sees this change.
    let change = db::definitions::note_change(tx).await?;
    let tenant = match db::definitions::owner(tx, graph_id).await? {
        Some(owner) if may_change(client, &owner) => owner,
        Some(_) => return Err(DefinitionError::Taken(graph_id.to_owned())),
        None => {
            check_room(tx, &from_client.quotas, client).await?;
            client.tenant.clone()
        }
    };
    let version = keep(
        tx,
        graph_id,
        &from_client.definition,
        &DefinitionSource::Client,
        from_client.now,
    )
    .await?;
    db::definitions::put(tx, graph_id, version.number, &tenant).await?;
    let assistant = assistants::automatic(graph_id, &from_client.definition, from_client.now);
    assistants::register(tx, std::slice::from_ref(&assistant), &tenant).await?;
    Ok(Some((ClientAgent { tenant, version }, change)))
}

/// The handle for definitions of agents: reads, creates, changes and removes them. Cheap to clone.
#[derive(Clone)]
pub struct Definitions {
    core: Arc<Core>,
}

impl Definitions {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Creates or changes the definition of an agent. A new agent belongs to the tenant of the client. Runs in progress keep
    /// the old definition.
    ///
    /// # Errors
    /// Returns the refusal; nothing is stored then.
    pub async fn put_agent(
        &self,
        client: &Arc<Identity>,
        graph_id: &str,
        body: Value,
    ) -> Result<AgentRecord, DefinitionError> {
        let registry = &self.core.registry;
        registry.check_clients_allowed()?;
        let Validated { definition, findings } = self.validate_agent(client, graph_id, body);
        let Some(definition) = definition else {
            return Err(DefinitionError::Unusable(
                findings.into_iter().map(StoredDiagnostic::from).collect(),
            ));
        };
        let mut sources = registry.sources.lock().await;
        check_changeable(&sources, graph_id)?;
        let known = registry
            .factory
            .register(graph_id, &definition, &DefinitionSource::Client)
            .map_err(|error| {
                let finding = Diagnostic::error(FieldPath::default(), error.to_string());
                DefinitionError::Unusable(vec![finding.into()])
            })?;
        let from_client = ClientDefinition {
            definition,
            client: Arc::clone(client),
            quotas: Arc::clone(&self.core.quotas),
            now: registry.clock.now(),
        };
        let key = graph_id.to_owned();
        let write = registry
            .db
            .write(move |tx| Box::pin(async move { store(tx, &key, &from_client).await }));
        // The default assistant belongs to the server, whoever changes the definition.
        match RowAccess::Server.scope(write).await? {
            Some((agent, change)) => {
                let apply = |sources: &mut Sources| drop(sources.clients.insert(graph_id.to_owned(), agent));
                registry.follow(&mut sources, change, apply).await?;
            }
            // Another server may have stored the definition already.
            None if sources
                .clients
                .get(graph_id)
                .is_none_or(|agent| agent.version.digest != known.digest) =>
            {
                registry.read_clients(&mut sources).await?;
                registry.replace(&sources);
            }
            None => {}
        }
        drop(sources);
        self.agent(graph_id)
            .ok_or_else(|| DefinitionError::NoAgent(graph_id.to_owned()))
    }

    /// Removes an agent that a client of the same tenant defined, with its default assistant. Runs in progress continue.
    ///
    /// # Errors
    /// Returns the refusal.
    pub async fn remove_agent(&self, client: &Arc<Identity>, graph_id: &str) -> Result<(), DefinitionError> {
        let registry = &self.core.registry;
        registry.check_clients_allowed()?;
        let mut sources = registry.sources.lock().await;
        check_changeable(&sources, graph_id)?;
        let key = graph_id.to_owned();
        let now = registry.clock.now();
        let client = Arc::clone(client);
        let write = registry
            .db
            .write(move |tx| Box::pin(async move { remove(tx, &key, &client, now).await }));
        // The default assistant belongs to the server, whoever changes the definition.
        let change = RowAccess::Server.scope(write).await?;
        registry
            .follow(&mut sources, change, |sources| drop(sources.clients.remove(graph_id)))
            .await?;
        Ok(())
    }

    /// Validates a definition of a client without storing it.
    pub fn validate_agent(&self, client: &Identity, graph_id: &str, body: Value) -> Validated {
        let validation_context = self.core.registry.validation_context_of(&client.tenant);
        let mut validated = validate(graph_id, body, &validation_context);
        let peers = &self.core.registry.factory.peers;
        let webhooks = &self.core.webhooks;
        let message = |why: Invalid, section: &str| format!("{}; the section `[{section}]` can allow it", why.reason);
        let mut forbidden: Vec<Diagnostic> = vec![];
        let own = validated
            .definition
            .as_ref()
            .and_then(|definition| definition.url.as_deref());
        let own = own.and_then(|url| peers.check("url", url).err());
        forbidden.extend(own.map(|why| Diagnostic::error(FieldPath::of(["url"]), message(why, "peers"))));
        let subagents = validated.definition.iter();
        for (place, subagent) in subagents.flat_map(AgentDefinition::subagents_with_fields) {
            let url = subagent.url.as_deref().and_then(|url| peers.check("url", url).err());
            let webhook = subagent
                .webhook
                .as_deref()
                .and_then(|url| webhooks.check_address(url).err());
            for (field, invalid, section) in [("url", url, "peers"), ("webhook", webhook, "webhooks")] {
                forbidden.extend(invalid.map(|why| Diagnostic::error(place.then(field), message(why, section))));
            }
        }
        if !forbidden.is_empty() {
            validated.definition = None;
            validated.findings.extend(forbidden);
        }
        validated
    }

    /// Returns the agent with this key.
    pub fn agent(&self, graph_id: &str) -> Option<AgentRecord> {
        self.core.registry.records().get(graph_id).cloned()
    }

    /// Returns the agents that match `wanted`, by name: up to `limit` of them after the first `offset`, and the number of
    /// all matches.
    pub fn agents(
        &self,
        wanted: impl Fn(&AgentRecord) -> bool,
        limit: usize,
        offset: usize,
    ) -> (Vec<AgentRecord>, usize) {
        let records = self.core.registry.records();
        let found: Vec<&AgentRecord> = records.values().filter(|record| wanted(record)).collect();
        (
            found
                .iter()
                .skip(offset)
                .take(limit)
                .map(|record| (*record).clone())
                .collect(),
            found.len(),
        )
    }

    /// Replaces the definitions of files. Runs in progress keep the old ones.
    ///
    /// MCP servers are started, replaced and stopped. If a part does not fit the tools and providers of this process,
    /// nothing is replaced, and the diagnostics of the former definitions say why.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn replace_files(&self, files: FileAgents) -> DbResult<()> {
        let registry = &self.core.registry;
        let mut validation_context = registry.validation_context();
        validation_context
            .agents
            .extend(files.agents.iter().map(|agent| agent.graph_id.clone()));
        validation_context.mcp_servers = files.servers.keys().cloned().collect();
        let mut incompatible: Vec<_> = files
            .agents
            .iter()
            .flat_map(|agent| self.incompatible_parts(agent, &validation_context))
            .collect();
        let tools = &registry.factory.servers;
        let servers = files.all_servers();
        incompatible.extend(
            tools
                .verify(&servers)
                .err()
                .map(|invalid| (None, server_diagnostic(invalid))),
        );
        if !incompatible.is_empty() {
            self.refuse_files(incompatible).await;
            return Ok(());
        }
        let mut sources = registry.sources.lock().await;
        let is_known = sources.is_same(&files);
        if !is_known {
            self.core.metrics.work().set_known_names(files.labels());
            registry.store_files(&mut sources, files).await?;
        }
        // The servers have just been validated.
        if !tools.replace(&servers).unwrap_or(false) && is_known {
            return Ok(());
        }
        registry.replace(&sources);
        tracing::info!(agents = sources.files.len(), "definitions read again from their files");
        Ok(())
    }

    /// Keeps the former definitions of files and adds the reasons to their diagnostics.
    pub async fn refuse_files(&self, reasons: Vec<(Option<String>, StoredDiagnostic)>) {
        let registry = &self.core.registry;
        for (_, reason) in reasons.iter().filter(|(_, reason)| reason.severity == Severity::Error) {
            tracing::error!(%reason, "a change of the definitions is not taken over; the former ones stay in use");
        }
        let mut sources = registry.sources.lock().await;
        sources.refusals = reasons;
        registry.replace(&sources);
    }

    /// Returns the reasons for which an agent of a file does not fit the tools and providers of this process.
    fn incompatible_parts(
        &self,
        agent: &FileAgent,
        validation_context: &ValidationContext,
    ) -> Vec<(Option<String>, StoredDiagnostic)> {
        let registry = &self.core.registry;
        let found = check_agent(&agent.graph_id, &agent.definition, validation_context);
        let unmade = registry.factory.check(&agent.definition).err();
        let unmade = unmade.map(|error| Diagnostic::error(FieldPath::default(), error.to_string()));
        let mistakes = found
            .into_iter()
            .filter(|finding| finding.severity == Severity::Error)
            .chain(unmade);
        let told = mistakes.map(|finding| {
            let message = format!(
                "{} (tools and providers are those with which the server began)",
                finding.message
            );
            let remark = StoredDiagnostic {
                file: Some(agent.place.clone()),
                message,
                ..StoredDiagnostic::from(finding)
            };
            (Some(agent.graph_id.clone()), remark)
        });
        told.collect()
    }
}

/// Returns the diagnostic of an MCP server that cannot be used.
fn server_diagnostic(invalid: Invalid) -> StoredDiagnostic {
    StoredDiagnostic {
        field: invalid.field,
        ..Diagnostic::error(FieldPath::default(), invalid.reason).into()
    }
}

fn check_changeable(sources: &Sources, graph_id: &str) -> Result<(), DefinitionError> {
    match sources
        .files
        .get(graph_id)
        .and_then(|version| version.definition_source.file())
    {
        Some(place) => Err(DefinitionError::InFile {
            graph_id: graph_id.to_owned(),
            place: place.to_owned(),
        }),
        None => Ok(()),
    }
}
