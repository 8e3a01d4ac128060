//! The registered agents.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::{Map, Value};

use super::choices::Choices;
use crate::agent::Agent;
use crate::definition::{AgentDefinition, ContextScoping, DefinitionDigest, OnPendingInterrupt, SubagentDefinition};
use crate::domain::Invalid;
use crate::domain::id::AssistantId;
use crate::domain::identity::Tenant;
use crate::domain::run::Run;
use crate::domain::thread::Thread;
use crate::model::ModelError;

/// The maximum number of agents of choices that are kept.
const KEPT: usize = 64;

/// The agents of this server at one moment.
#[derive(Default)]
pub struct Agents(BTreeMap<String, Arc<RegisteredAgent>>);

impl FromIterator<Arc<RegisteredAgent>> for Agents {
    fn from_iter<I: IntoIterator<Item = Arc<RegisteredAgent>>>(all: I) -> Self {
        Self(all.into_iter().map(|known| (known.graph_id.clone(), known)).collect())
    }
}

/// Builds an agent, which may delegate or not, with another form of its result if one is given.
type Build = dyn Fn(bool, Option<&Value>) -> Arc<Agent> + Send + Sync;

/// Builds an agent for a tenant; none if it is the same for all tenants.
pub(super) type Variant = Box<dyn Fn(&Tenant) -> Result<Option<Arc<RegisteredAgent>>, ModelError> + Send + Sync>;

/// The variants of an agent for single tenants, each built when first needed.
struct Variants {
    build: Variant,
    built: Mutex<BTreeMap<Tenant, Arc<RegisteredAgent>>>,
}

/// Builds the agent of a choice.
pub(super) type BuildChosen =
    Box<dyn Fn(&Map<String, Value>) -> Result<Arc<RegisteredAgent>, ModelError> + Send + Sync>;

/// A choice, and the agent that was built for it.
type BuiltAgent = (Map<String, Value>, Arc<RegisteredAgent>);

/// The choices of an agent's runs, and the agents of these choices, each built when first needed.
struct ChosenAgents {
    choices: Choices,
    build: BuildChosen,
    /// The agents that were built last, the newest at the end.
    built: Mutex<VecDeque<BuiltAgent>>,
}

impl ChosenAgents {
    /// Returns the agent that a context chooses; none if it chooses the default.
    ///
    /// # Errors
    /// As [`Choices::check`].
    fn agent(&self, context: &Map<String, Value>) -> Result<Option<Arc<RegisteredAgent>>, Invalid> {
        let chosen = self.choices.chosen(context)?;
        if chosen.is_empty() {
            return Ok(None);
        }
        if let Some(agent) = self.find(&chosen) {
            return Ok(Some(agent));
        }
        let agent = (self.build)(&chosen).map_err(|error| Invalid::new("context.model", error.to_string()))?;
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        built.push_back((chosen, Arc::clone(&agent)));
        if built.len() > KEPT {
            built.pop_front();
        }
        Ok(Some(agent))
    }

    fn find(&self, chosen: &Map<String, Value>) -> Option<Arc<RegisteredAgent>> {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let at = built.iter().position(|(choices, _)| choices == chosen)?;
        let found = built.remove(at)?;
        let agent = Arc::clone(&found.1);
        built.push_back(found);
        Some(agent)
    }
}

/// An agent with the settings of its definition that concern the server.
#[derive(Clone)]
pub struct RegisteredAgent {
    /// The key of its definition.
    pub graph_id: String,
    /// Its name in streams.
    pub name: String,
    /// The digest of its definition.
    pub digest: DefinitionDigest,
    /// Its default assistant.
    pub assistant: AssistantId,
    /// The effect of an ordinary message on a pending interrupt.
    pub on_pending_interrupt: OnPendingInterrupt,
    /// The agents that see the entries of a run's context.
    pub context_scoping: ContextScoping,
    /// The subagents that are agents of other servers; or the agent itself, if it is one.
    remote: Arc<[SubagentDefinition]>,
    /// True if the owner of this server defined the agent, false if a client did.
    is_owners: bool,
    build: Arc<Build>,
    /// The agent; built when first needed.
    agent: Arc<OnceLock<Arc<Agent>>>,
    /// The variant of the agent that may not delegate; built when first needed.
    without_delegations: Arc<OnceLock<Arc<Agent>>>,
    variants: Arc<Variants>,
    /// The error of a model that the tenant may not use.
    forbidden_model: Option<ModelError>,
    /// The choices of its runs; none if they have none.
    chosen: Option<Arc<ChosenAgents>>,
}

impl RegisteredAgent {
    /// Creates the agent of a definition. `is_owners` is true for a definition of the owner of this server. `build` gets
    /// whether the agent may delegate, and the form of its result.
    pub(super) fn new(
        graph_id: &str,
        definition: &AgentDefinition,
        is_owners: bool,
        build: impl Fn(bool, Option<&Value>) -> Arc<Agent> + Send + Sync + 'static,
    ) -> Self {
        Self {
            graph_id: graph_id.to_owned(),
            name: definition.name_or(graph_id).to_owned(),
            digest: definition.digest(),
            assistant: AssistantId::of_graph(graph_id),
            on_pending_interrupt: definition.on_pending_interrupt,
            context_scoping: definition.context_scoping,
            remote: definition
                .subagents
                .iter()
                .filter(|subagent| subagent.url.is_some())
                .cloned()
                .chain(definition.as_remote_subagent())
                .collect(),
            is_owners,
            build: Arc::new(build),
            agent: Arc::default(),
            without_delegations: Arc::default(),
            variants: Arc::new(Variants {
                build: Box::new(|_| Ok(None)),
                built: Mutex::default(),
            }),
            forbidden_model: None,
            chosen: None,
        }
    }

    /// Returns the agent with what its runs may choose, and the function that builds the agent of a choice.
    pub(super) fn with_choices(self, choices: Choices, build: BuildChosen) -> Self {
        let chosen = ChosenAgents {
            choices,
            build,
            built: Mutex::default(),
        };
        Self {
            chosen: Some(Arc::new(chosen)),
            ..self
        }
    }

    /// Returns the agent with the function that builds it for single tenants.
    pub(super) fn with_variants(self, build: Variant) -> Self {
        let variants = Variants {
            build,
            built: Mutex::default(),
        };
        Self {
            variants: Arc::new(variants),
            ..self
        }
    }

    /// Returns the agent with the error of a model that the tenant may not use.
    pub(super) fn with_forbidden_model(self, forbidden_model: Option<ModelError>) -> Self {
        Self {
            forbidden_model,
            ..self
        }
    }

    /// Returns the agent as a tenant runs it: with the tenant's keys, and only with what it may use.
    ///
    /// # Errors
    /// When a model string names a provider that does not exist.
    pub fn for_tenant(self: &Arc<Self>, tenant: &Tenant) -> Result<Arc<Self>, ModelError> {
        let mut built = self.variants.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(variant) = built.get(tenant).filter(|variant| variant.digest == self.digest) {
            return Ok(Arc::clone(variant));
        }
        let Some(variant) = (self.variants.build)(tenant)? else {
            return Ok(Arc::clone(self));
        };
        let variant = Arc::new(variant.stored_as(&self.digest));
        built.insert(tenant.clone(), Arc::clone(&variant));
        Ok(variant)
    }

    /// Returns whether runs may choose parts of the agent.
    pub fn is_configurable(&self) -> bool {
        self.chosen.is_some()
    }

    /// Returns the names of the entries of a context by which runs choose.
    pub fn choice_names(&self) -> impl Iterator<Item = &String> {
        self.chosen.iter().flat_map(|chosen| chosen.choices.names())
    }

    /// Checks what a context chooses.
    ///
    /// # Errors
    /// Names the first entry that chooses something that is not allowed.
    pub fn check_choices(&self, context: &Map<String, Value>) -> Result<(), Invalid> {
        let chosen = self.chosen.as_ref();
        chosen.map_or(Ok(()), |chosen| chosen.choices.check(context))
    }

    /// Returns the agent with what a context chooses.
    ///
    /// # Errors
    /// As [`RegisteredAgent::check_choices`].
    pub fn configured(self: &Arc<Self>, context: &Map<String, Value>) -> Result<Arc<Self>, Invalid> {
        match &self.chosen {
            None => Ok(Arc::clone(self)),
            Some(chosen) => {
                let agent = chosen.agent(context)?;
                Ok(agent.map_or_else(|| Arc::clone(self), |agent| Arc::new(agent.stored_as(&self.digest))))
            }
        }
    }

    /// Returns the agent with what a run has chosen. The work of subagents and background tasks is described by the
    /// agent that gives it, so their runs choose nothing.
    #[must_use]
    pub fn for_run(self: &Arc<Self>, run: &Run) -> Arc<Self> {
        if run.lineage.depth > 0 || run.request.background.is_some() {
            return Arc::clone(self);
        }
        self.configured(&run.request.context).unwrap_or_else(|invalid| {
            // Its definition was deleted after the run was admitted, and another one has its name.
            tracing::warn!(run = %run.id, %invalid, "a choice of a run is no longer allowed by its agent");
            Arc::clone(self)
        })
    }

    /// Checks whether the tenant may use all models of the agent and of the subagents that its definition describes.
    ///
    /// # Errors
    /// [`ModelError::NotAllowed`].
    pub fn check_models(&self) -> Result<(), ModelError> {
        self.forbidden_model.clone().map_or(Ok(()), Err)
    }

    /// Returns the agent with the digest under which its definition is stored.
    #[must_use]
    pub fn stored_as(&self, digest: &DefinitionDigest) -> Self {
        Self {
            digest: digest.clone(),
            ..self.clone()
        }
    }

    /// Returns the subagent of this name that is an agent of the server at `url`, and whether the owner of this server
    /// named it. If this agent itself is an agent of that server, it is returned under every name.
    pub fn remote_subagent(&self, name: &str, url: &str) -> Option<(&SubagentDefinition, bool)> {
        let is_named = |subagent: &SubagentDefinition| self.agent().remote().is_some() || subagent.name == name;
        let is_it = |subagent: &&SubagentDefinition| is_named(subagent) && subagent.url.as_deref() == Some(url);
        self.remote
            .iter()
            .find(is_it)
            .map(|subagent| (subagent, self.is_owners))
    }

    /// Returns the agent.
    pub fn agent(&self) -> &Arc<Agent> {
        self.agent.get_or_init(|| (self.build)(true, None))
    }

    /// Returns the variant of the agent that may not delegate.
    pub fn without_delegations(&self) -> Arc<Agent> {
        Arc::clone(self.without_delegations.get_or_init(|| (self.build)(false, None)))
    }

    /// Returns the variant for one delegation whose result has this form.
    pub fn in_form(&self, delegates: bool, format: &Value) -> Arc<Agent> {
        (self.build)(delegates, Some(format))
    }
}

impl Agents {
    /// Returns the agent of this definition.
    pub fn of_graph(&self, graph_id: &str) -> Option<&Arc<RegisteredAgent>> {
        self.0.get(graph_id)
    }

    /// Returns the agent that worked on a thread last, as it is defined now.
    pub fn last_on(&self, thread: &Thread) -> Option<&Arc<RegisteredAgent>> {
        self.of_graph(thread.metadata.get("graph_id")?.as_str()?)
    }

    /// Returns the agent for which a run was admitted, as it is defined now.
    pub fn of_run(&self, run: &Run) -> Option<&Arc<RegisteredAgent>> {
        match &run.request.agent {
            Some(agent) => self.0.get(&agent.graph_id),
            None => self.0.values().find(|known| known.assistant == run.assistant),
        }
    }

    /// Returns all agents, by `graph_id`.
    pub fn all(&self) -> impl Iterator<Item = &Arc<RegisteredAgent>> {
        self.0.values()
    }
}
