//! The handle for assistants: create, change and delete them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::timeout;

use super::error::AssistantError;
use super::shared::Core;
use super::threads::Threads;
use crate::agent::assemble::{Agents, RegisteredAgent};
use crate::db::thread_search::{self, ThreadOrder, ThreadQuery};
use crate::db::{DbError, DbResult, RowAccess, Tx, assistants};
use crate::definition::AgentDefinition;
use crate::domain::Invalid;
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::assistant::{Assistant, AssistantChange, AssistantSettings};
use crate::domain::filter::MetadataFilter;
use crate::domain::graph::{Graph, Schemas};
use crate::domain::id::{AssistantId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome, StoredResponse};
use crate::domain::identity::Tenant;
use crate::domain::time::Timestamp;

/// The most threads that one query returns for deletion.
const THREADS: i64 = 100;
/// The longest wait for the tools that a graph shows.
const TOOLS_WAIT: Duration = Duration::from_secs(10);

/// Returns the default assistant of a definition.
pub(super) fn automatic(graph_id: &str, agent: &AgentDefinition, now: Timestamp) -> Assistant {
    Assistant::automatic(graph_id, agent.name_or(graph_id), agent.description.as_deref(), now)
}

/// Stores the default assistants of definitions of this tenant. A stored assistant stays as it is, unless a user of another
/// tenant has created it, but it belongs to the server from now on. If it was never changed, it takes the name and the
/// description of its definition.
pub(super) async fn register(tx: &mut Tx<'_>, defaults: &[Assistant], tenant: &Tenant) -> DbResult<()> {
    let new = assistants::insert_all(tx, defaults).await?;
    let known: Vec<&Assistant> = defaults.iter().filter(|ours| !new.contains(&ours.id)).collect();
    let ids: Vec<AssistantId> = known.iter().map(|ours| ours.id).collect();
    let mut stored = assistants::lock_all(tx, &ids).await?;
    for ours in known {
        if let Some(stored) = stored.remove(&ours.id) {
            refresh(tx, ours, stored, tenant).await?;
        }
    }
    Ok(())
}

async fn refresh(tx: &mut Tx<'_>, ours: &Assistant, stored: DbResult<Assistant>, tenant: &Tenant) -> DbResult<()> {
    let stored = match stored {
        Ok(stored) => stored,
        Err(error) if error.is_corrupt() => return repair(tx, ours, &error).await,
        Err(error) => return Err(error),
    };
    // This happens once, for an assistant that a client has created under this id.
    if !stored.ownership.is_of_server() {
        // The id is known in advance: the settings of another tenant would decide what runs under the name of the agent.
        if stored.ownership.tenant != *tenant {
            assistants::delete(tx, ours.id).await?;
            return assistants::insert_all(tx, std::slice::from_ref(ours)).await.map(drop);
        }
        assistants::give_to_server(tx, &[ours.id]).await?;
    }
    let old = &stored.settings;
    let new = &ours.settings;
    let is_same = old.name == new.name && old.description == new.description;
    if is_same || !is_untouched(tx, ours.id).await? {
        return Ok(());
    }
    assistants::rename(tx, ours.id, &new.name, new.description.as_deref()).await?;
    Ok(())
}

/// Returns whether no client has changed an assistant. It is asked when the row is locked, since a client may just be
/// changing the assistant.
async fn is_untouched(tx: &mut Tx<'_>, id: AssistantId) -> DbResult<bool> {
    Ok(assistants::newest_version(tx, id).await? == 1)
}

/// Gives a default assistant that cannot be read to the server. The content of an assistant that was never changed is
/// known, so it is written anew. Any other assistant is created again after a client has deleted it.
async fn repair(tx: &mut Tx<'_>, ours: &Assistant, error: &DbError) -> DbResult<()> {
    let is_untouched = is_untouched(tx, ours.id).await?;
    tracing::error!(assistant = %ours.id, %error, repaired = is_untouched, "an assistant cannot be read");
    assistants::give_to_server(tx, &[ours.id]).await?;
    if is_untouched {
        assistants::update(tx, ours).await?;
    }
    Ok(())
}

/// Checks what the runs of an assistant would choose about its agent.
fn check_choices(agents: &Agents, settings: &AssistantSettings) -> Result<(), Invalid> {
    let known = agents.of_graph(&settings.graph_id);
    known.map_or(Ok(()), |known| known.check_choices(&settings.context))
}

/// Returns up to `limit` threads in a scope on which this assistant worked last.
async fn threads_of(tx: &mut Tx<'_>, scope: &AccessScope, id: AssistantId, limit: i64) -> DbResult<Vec<ThreadId>> {
    let notes = Map::from_iter([("assistant_id".to_owned(), Value::from(id.to_string()))]);
    let metadata = MetadataFilter::new("metadata", notes).map_err(|wrong| DbError::Unfit(wrong.to_string()))?;
    let wanted = ThreadQuery {
        metadata,
        sort: ThreadOrder::Id,
        ascending: true,
        limit,
        ..ThreadQuery::within(scope.clone())
    };
    Ok(thread_search::search(tx, &wanted)
        .await?
        .threads
        .into_iter()
        .map(|thread| thread.id)
        .collect())
}

/// An assistant to create.
pub struct NewAssistant {
    /// The id.
    pub id: AssistantId,
    /// The tenant and the owner.
    pub ownership: Ownership,
    /// The agent that the assistant runs, and its settings.
    pub settings: AssistantSettings,
    /// True to return the assistant that has the id already, if there is one.
    pub reuse_existing: bool,
}

/// Creates, changes and deletes assistants, and describes their agents. Cheap to clone.
#[derive(Clone)]
pub struct Assistants {
    core: Arc<Core>,
    threads: Threads,
}

impl Assistants {
    pub(super) fn new(core: Arc<Core>, threads: Threads) -> Self {
        Self { core, threads }
    }

    /// Creates an assistant, once per key. `shown` renders the stored response.
    ///
    /// # Errors
    /// See [`AssistantError`]; nothing is stored then.
    pub async fn create_assistant(
        &self,
        new: NewAssistant,
        key: Option<IdempotencyKey>,
        shown: fn(&Assistant) -> StoredResponse,
    ) -> Result<IdempotentOutcome<Assistant>, AssistantError> {
        let NewAssistant {
            id,
            ownership,
            settings,
            reuse_existing,
        } = new;
        let settings = settings.mirrored().map_err(|_| AssistantError::TwoContexts)?;
        settings.check()?;
        self.check_graph(&ownership.tenant, &settings.graph_id)?;
        check_choices(&self.core.registry.agents(), &settings)?;
        let now = self.core.clock.now();
        let assistant = Assistant::new(id, ownership, settings, now);
        let write = self.core.db.write_once(key, now, shown, move |tx| {
            Box::pin(async move {
                if assistants::insert(tx, &assistant).await? {
                    return Ok(assistant);
                }
                let found = if reuse_existing {
                    assistants::find(tx, id).await?
                } else {
                    None
                };
                found.ok_or(AssistantError::Exists(id))
            })
        });
        write.await
    }

    /// Creates a new version of an assistant and makes it the current one. Its agent must exist for the tenant.
    ///
    /// # Errors
    /// See [`AssistantError`]; nothing is stored then.
    pub async fn change_assistant(
        &self,
        tenant: &Tenant,
        id: AssistantId,
        change: AssistantChange,
    ) -> Result<Assistant, AssistantError> {
        if let Some(graph_id) = &change.graph_id {
            self.check_graph(tenant, graph_id)?;
        }
        let access = self.access_to(id).await?;
        let now = self.core.clock.now();
        let agents = self.core.registry.agents();
        let write = self.core.db.write(move |tx| {
            Box::pin(async move {
                let Some(mut assistant) = assistants::lock(tx, id).await? else {
                    return Err(AssistantError::NoAssistant(id));
                };
                let chooses = change.config.is_some() || change.context.is_some() || change.graph_id.is_some();
                let changed = assistant.settings.changed(change);
                assistant.settings = changed.map_err(|_| AssistantError::TwoContexts)?;
                assistant.settings.check()?;
                // A change of its name is possible even if its definition allows less than before.
                if chooses {
                    check_choices(&agents, &assistant.settings)?;
                }
                assistant.version = assistants::newest_version(tx, id).await? + 1;
                assistant.updated_at = now;
                assistants::update(tx, &assistant).await?;
                Ok(assistant)
            })
        });
        access.scope(write).await
    }

    /// Makes a version of an assistant the current one. Its agent must exist for the tenant. Runs that were started keep the version with which they were
    /// started.
    ///
    /// # Errors
    /// See [`AssistantError`]; nothing is stored then.
    pub async fn use_version(
        &self,
        tenant: &Tenant,
        id: AssistantId,
        number: i64,
    ) -> Result<Assistant, AssistantError> {
        let access = self.access_to(id).await?;
        let now = self.core.clock.now();
        let existing = self.core.registry.agents_of(tenant);
        let write = self.core.db.write(move |tx| {
            Box::pin(async move {
                let Some(mut assistant) = assistants::lock(tx, id).await? else {
                    return Err(AssistantError::NoAssistant(id));
                };
                let Some(version) = assistants::version(tx, id, number).await? else {
                    return Err(AssistantError::NoVersion(id, number));
                };
                if !existing.contains(&version.settings.graph_id) {
                    return Err(AssistantError::NoVersion(id, number));
                }
                assistant.take(version, now);
                assistants::update(tx, &assistant).await?;
                Ok(assistant)
            })
        });
        access.scope(write).await
    }

    /// Returns the access with which a caller who may do so changes an assistant: those of the server are changed as the
    /// server.
    async fn access_to(&self, id: AssistantId) -> Result<RowAccess, AssistantError> {
        let found = self.core.db.read(move |tx| Box::pin(assistants::find(tx, id))).await?;
        let found = found.ok_or(AssistantError::NoAssistant(id))?;
        Ok(RowAccess::of_owner(&found.ownership))
    }

    /// Deletes an assistant with its versions. With a scope, also deletes the threads in that scope on which it worked
    /// last. Runs of the assistant continue, since they hold its settings.
    ///
    /// # Errors
    /// See [`AssistantError`]. A default assistant cannot be deleted as long as its definition exists.
    pub async fn delete_assistant(&self, id: AssistantId, threads: Option<AccessScope>) -> Result<(), AssistantError> {
        if let Some(graph_id) = self
            .core
            .registry
            .records()
            .keys()
            .find(|graph_id| AssistantId::of_graph(graph_id) == id)
        {
            return Err(AssistantError::Automatic(graph_id.clone()));
        }
        let access = self.access_to(id).await?;
        loop {
            if let Some(scope) = &threads {
                self.delete_threads_of(id, scope).await?;
            }
            let scope = threads.clone();
            let write = self.core.db.write(move |tx| {
                Box::pin(async move {
                    // A run may have started on a new thread meanwhile.
                    if let Some(scope) = scope
                        && !threads_of(tx, &scope, id, 1).await?.is_empty()
                    {
                        return Ok(None);
                    }
                    assistants::delete(tx, id).await.map(Some)
                })
            });
            match access.clone().scope(write).await? {
                Some(true) => return Ok(()),
                Some(false) => return Err(AssistantError::NoAssistant(id)),
                None => {}
            }
        }
    }

    async fn delete_threads_of(&self, id: AssistantId, scope: &AccessScope) -> DbResult<()> {
        loop {
            let scope = scope.clone();
            let read = self
                .core
                .db
                .read(move |tx| Box::pin(async move { threads_of(tx, &scope, id, THREADS).await }));
            let threads = read.await?;
            if threads.is_empty() {
                return Ok(());
            }
            for thread in threads {
                self.threads.delete_thread(thread).await?;
            }
        }
    }

    fn check_graph(&self, tenant: &Tenant, graph_id: &str) -> Result<(), AssistantError> {
        if self.has_graph(tenant, graph_id) {
            return Ok(());
        }
        let known = self.core.registry.of_tenant(tenant);
        Err(AssistantError::NoGraph {
            graph_id: graph_id.to_owned(),
            known: known.iter().map(|known| known.graph_id.clone()).collect(),
        })
    }

    /// Returns whether there is a definition of this name that exists for a tenant.
    pub fn has_graph(&self, tenant: &Tenant, graph_id: &str) -> bool {
        self.core.registry.find_of_tenant(graph_id, tenant).is_some()
    }

    /// Returns the default assistants of all definitions that exist for a tenant.
    pub fn default_assistants(&self, tenant: &Tenant) -> Vec<DefaultAssistant> {
        let card = |known: &Arc<RegisteredAgent>| DefaultAssistant {
            id: known.assistant,
            graph_id: known.graph_id.clone(),
            name: known.name.clone(),
        };
        self.core.registry.of_tenant(tenant).iter().map(card).collect()
    }

    /// Returns the loop of this definition's agent, and of its subagents down to `levels` levels. None if the
    /// definition does not exist for the tenant. Waits for a limited time for tools of servers that have listed none yet.
    pub async fn graph(&self, tenant: &Tenant, graph_id: &str, levels: u32) -> Option<Graph> {
        let known = self.core.registry.agent_of_tenant(graph_id, tenant)?;
        // A server that is not there does not keep the rest from being shown.
        let _ = timeout(TOOLS_WAIT, known.agent().tools_ready(levels)).await;
        Some(known.agent().graph(levels))
    }

    /// Returns the schemas of the state and the settings of this definition's agent. None if the definition does not
    /// exist for the tenant.
    pub fn schemas(&self, tenant: &Tenant, graph_id: &str) -> Option<Schemas> {
        let known = self.core.registry.agent_of_tenant(graph_id, tenant)?;
        Some(known.agent().schemas())
    }

    /// Returns the subagents of this definition's agent, by name. `recurse` also returns the subagents of subagents
    /// (`a|b`), and `namespace` selects one subagent. None if the definition does not exist for the tenant.
    pub fn subagents(
        &self,
        tenant: &Tenant,
        graph_id: &str,
        namespace: Option<&str>,
        recurse: bool,
    ) -> Option<Vec<(String, Schemas)>> {
        let known = self.core.registry.agent_of_tenant(graph_id, tenant)?;
        Some(known.agent().subagent_schemas(namespace, recurse))
    }
}

/// The default assistant of a definition.
#[derive(Debug, Clone, PartialEq)]
pub struct DefaultAssistant {
    /// The id, the same after every restart.
    pub id: AssistantId,
    /// The definition.
    pub graph_id: String,
    /// The agent's name.
    pub name: String,
}
