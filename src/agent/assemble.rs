//! Builds agents from definitions. The list that fixes the order of the policies is here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::subagent_registry::{Build, BuildFork, ReferencedAgent, SubagentRegistry};
use super::{Agent, AgentKind, FallbackModel, Forks, ModelLoop, SharedState};
use crate::definition::builtins::Builtin;
use crate::definition::mcp::{self, ToolNames, by_model_name};
use crate::definition::servers::McpOwner;
use crate::definition::{
    self, AgentDefinition, AgentSpec, AnswerFormat, AnswerStrategy, CallRules, DefinitionSource, FileRules,
    HarnessProfiles, Location, ModelNames, ModelUsage, STEP_LIMIT, SubagentDefinition, SubagentMode,
};
use crate::domain::background;
use crate::domain::context::ContextSchema;
use crate::domain::declared_fields::DeclaredFields;
use crate::domain::field::Rules;
use crate::domain::identity::Tenant;
use crate::domain::item::template::NamespaceTemplate;
use crate::domain::limits::REPEATED_FAILURES;
use crate::domain::machine::{HookPoint, Plan};
use crate::domain::name_patterns::NamePatterns;
use crate::middleware::approval::Approval;
use crate::middleware::ask_user::AskUser;
use crate::middleware::background::BackgroundWork;
use crate::middleware::dangling_calls::DanglingCalls;
use crate::middleware::delegation::{SubagentList, SubagentSummary, Subagents};
use crate::middleware::files::FileTools;
use crate::middleware::limits::UsageLimits;
use crate::middleware::permissions::CallPermissions;
use crate::middleware::prompt_override::PromptOverride;
use crate::middleware::prompt_suffix::PromptSuffix;
use crate::middleware::repeated_failures::RepeatedFailures;
use crate::middleware::store::StoreAccess;
use crate::middleware::structured::StructuredOutput;
use crate::middleware::structured::native::NativeAnswer;
use crate::middleware::summarization::Summarization;
use crate::middleware::todos::Todos;
use crate::middleware::unsupported_content::{ModelWithInputs, UnsupportedContent};
use crate::middleware::until_tool;
use crate::middleware::{AgentParts, Contribution, Middleware, MiddlewareModel, ModelWithSettings};
use crate::model::ModelError;
use crate::model::providers::Providers;
use crate::peer::Peers;
use crate::tool::execute::CommandLauncher;
use crate::tool::mcp::McpServers;
use crate::tool::sandboxes::SandboxServices;
use crate::tool::{Runnable, Tool, Toolbox};

mod choices;
mod draft;
mod program;
mod registered;

use choices::Choices;
use draft::Draft;
pub use registered::{Agents, RegisteredAgent};
use registered::{BuildChosen, Variant};

/// The default depth of delegations: subagents do not delegate.
const SUBAGENT_DEPTH: u32 = 1;

/// The setting of a profile that requests of policies go without: Anthropic does not allow a model to think where it has
/// to answer with a call.
const THINKING: &str = "thinking";

/// The factory of agents. Cheap to clone.
#[derive(Clone)]
pub struct AgentFactory {
    /// The providers of models.
    pub providers: Arc<Providers>,
    /// The declared tools, by name.
    pub tools: Arc<BTreeMap<String, Arc<dyn Tool>>>,
    /// The programs that agents can be, by name.
    pub runnables: Arc<BTreeMap<String, Arc<dyn Runnable>>>,
    /// The registered policies, by name.
    pub policies: Arc<BTreeMap<String, Arc<dyn Middleware>>>,
    /// The MCP servers.
    pub servers: McpServers,
    /// Other servers, where agents of this one may work.
    pub peers: Peers,
    /// Starts the commands of agents.
    pub commands: CommandLauncher,
    /// The services with the sandboxes of agents.
    pub sandboxes: SandboxServices,
    /// The settings for all agents with a certain model.
    pub profiles: Arc<HarnessProfiles>,
    /// The agents of this server that subagents may be, by `graph_id`.
    pub agents: NamePatterns,
    /// The parts that the agents of single tenants have instead of these.
    pub tenants: Arc<BTreeMap<Tenant, TenantParts>>,
}

/// The parts of the agents of one tenant. Other parts are those of all tenants.
#[derive(Clone)]
pub struct TenantParts {
    /// The providers of models, with the keys of the tenant, and only the models that it may use.
    pub providers: Arc<Providers>,
    /// The declared tools that it may use, with its headers.
    pub tools: Arc<BTreeMap<String, Arc<dyn Tool>>>,
    /// The agents that it may run.
    pub agents: NamePatterns,
}

/// A definition and its source.
#[derive(Clone)]
struct Source {
    graph_id: String,
    definition: Arc<AgentDefinition>,
    /// True if the owner of the server wrote the definition. An owner may name any address.
    is_owners: bool,
}

/// The delegations of an agent.
#[derive(Clone)]
struct Delegations {
    registry: Arc<SubagentRegistry>,
    policy: Arc<Subagents>,
    /// The subagents that are forks of their caller.
    forks: Arc<[SubagentDefinition]>,
}

impl Delegations {
    /// Returns the delegations of a fork: it sees the same subagents as its caller, and every call is refused.
    fn refusing(&self) -> Self {
        Self {
            policy: Arc::new(self.policy.refusing()),
            ..self.clone()
        }
    }
}

impl AgentFactory {
    /// Creates a factory with these providers and remote servers, and nothing else.
    pub fn new(providers: Providers, peers: Peers) -> Self {
        Self {
            providers: Arc::new(providers),
            tools: Arc::default(),
            runnables: Arc::default(),
            policies: Arc::default(),
            servers: McpServers::default(),
            peers,
            commands: CommandLauncher::default(),
            sandboxes: SandboxServices::default(),
            profiles: Arc::default(),
            agents: NamePatterns::default(),
            tenants: Arc::default(),
        }
    }

    /// Returns the factory for the agents of a tenant; none if they are those of all tenants.
    fn for_tenant(&self, tenant: &Tenant) -> Option<Self> {
        let parts = self.tenants.get(tenant)?.clone();
        Some(Self {
            providers: parts.providers,
            tools: parts.tools,
            servers: self.servers.for_tenant(tenant),
            agents: parts.agents,
            tenants: Arc::default(),
            ..self.clone()
        })
    }

    /// Registers the agent of a definition. The agent itself is built when it is first needed: a server may have
    /// thousands, and most of them rest.
    ///
    /// # Errors
    /// When a model string names a provider that does not exist.
    pub fn register(
        &self,
        graph_id: &str,
        definition: &AgentDefinition,
        definition_source: &DefinitionSource,
    ) -> Result<Arc<RegisteredAgent>, ModelError> {
        self.register_configured(graph_id, definition, definition_source, &Map::new())
    }

    /// Checks that a definition can be registered.
    ///
    /// # Errors
    /// As [`AgentFactory::register`].
    pub fn check(&self, definition: &AgentDefinition) -> Result<(), ModelError> {
        self.check_models(&self.applied(definition, &Map::new()))
    }

    /// Returns a definition with these choices, the settings for its model, and the subagents that the tenant may run.
    fn applied(&self, definition: &AgentDefinition, choices: &Map<String, Value>) -> AgentDefinition {
        let mut applied = self.profiles.applied(definition.configured(choices).resolved());
        applied.subagents.retain(|subagent| self.may_be_subagent(subagent));
        applied
    }

    /// Registers the agent of a definition for runs that have chosen these parts of it.
    fn register_configured(
        &self,
        graph_id: &str,
        definition: &AgentDefinition,
        definition_source: &DefinitionSource,
        choices: &Map<String, Value>,
    ) -> Result<Arc<RegisteredAgent>, ModelError> {
        let applied = self.applied(definition, choices);
        self.check_models(&applied)?;
        let source = Source {
            graph_id: graph_id.to_owned(),
            definition: Arc::new(applied),
            is_owners: definition_source.file().is_some(),
        };
        let factory = self.clone();
        let is_owners = source.is_owners;
        let forbidden_model = self.forbidden_model(&source.definition);
        let build =
            move |delegates: bool, format: Option<&Value>| Arc::new(factory.main_agent(&source, delegates, format));
        let registered = RegisteredAgent::new(graph_id, definition, is_owners, build);
        let variant = self.variant(graph_id, definition, definition_source, choices);
        let registered = registered.with_variants(variant).with_forbidden_model(forbidden_model);
        Ok(Arc::new(match definition.choices_schema() {
            Some(schema) => {
                let definition = Arc::new(definition.clone());
                let own = Arc::clone(&definition);
                let choices = Choices::new(schema, move |context| own.choices_of(context));
                registered.with_choices(choices, self.build_chosen(graph_id, definition, definition_source))
            }
            None => registered,
        }))
    }

    /// Returns the function that builds the agent of a choice.
    fn build_chosen(
        &self,
        graph_id: &str,
        definition: Arc<AgentDefinition>,
        definition_source: &DefinitionSource,
    ) -> BuildChosen {
        let factory = self.clone();
        let graph_id = graph_id.to_owned();
        let definition_source = definition_source.clone();
        Box::new(move |choices| factory.register_configured(&graph_id, &definition, &definition_source, choices))
    }

    /// Returns the function that builds the agent of a definition for one tenant.
    fn variant(
        &self,
        graph_id: &str,
        definition: &AgentDefinition,
        definition_source: &DefinitionSource,
        choices: &Map<String, Value>,
    ) -> Variant {
        if self.tenants.is_empty() {
            return Box::new(|_| Ok(None));
        }
        let factory = self.clone();
        let graph_id = graph_id.to_owned();
        let definition = definition.clone();
        let definition_source = definition_source.clone();
        let choices = choices.clone();
        Box::new(move |tenant| {
            let own = factory.for_tenant(tenant);
            own.map(|own| own.register_configured(&graph_id, &definition, &definition_source, &choices))
                .transpose()
        })
    }

    /// Returns whether the tenant may run a subagent that is an agent of this server.
    fn may_be_subagent(&self, subagent: &SubagentDefinition) -> bool {
        let here = subagent.graph_id.as_ref().filter(|_| subagent.url.is_none());
        here.is_none_or(|graph_id| self.agents.allows(graph_id))
    }

    /// Returns the error of the first model that the tenant may not use, of a definition with the choices of a run.
    fn forbidden_model(&self, definition: &AgentDefinition) -> Option<ModelError> {
        let models = definition.named_models(|policy| self.policies.get(policy)?.model_setting());
        let asked = models.iter().filter(|model| model.usage == ModelUsage::Always);
        asked
            .map(|model| self.providers.check_allowed(model.name))
            .find_map(Result::err)
    }

    fn main_agent(&self, source: &Source, delegates: bool, format: Option<&Value>) -> Agent {
        let graph_id = &source.graph_id;
        let definition = &*source.definition;
        if let Some(program) = self.main_program(source, format) {
            return program;
        }
        let subagents = definition.delegates();
        let depth = definition.max_subagent_depth.unwrap_or(SUBAGENT_DEPTH);
        let has_roster = delegates && depth > 0 && !subagents.is_empty();
        let delegations = has_roster.then(|| self.delegating(source, subagents, depth));
        let draft = Draft {
            spec: definition.spec(graph_id),
            servers: McpOwner::Agent(graph_id.clone()),
            shares: SharedState::default(),
            prompt_is_replaceable: false,
            delegations,
            fork_prompt: None,
            background: definition
                .subagents
                .iter()
                .filter(|_| delegates)
                .filter_map(SubagentDefinition::as_background_agent)
                .collect(),
        };
        self.build(draft.in_form(format))
    }

    fn delegating(&self, source: &Source, subagents: Vec<SubagentDefinition>, depth: u32) -> Delegations {
        let policy = Arc::new(Subagents::new(&subagent_list(&source.definition, &subagents)));
        let referenced = |subagent: &SubagentDefinition| match subagent.location() {
            Location::Local(graph_id) => Some(ReferencedAgent {
                graph_id: graph_id.to_owned(),
                limits: subagent.limits.clone(),
                step_limit: subagent.recursion_limit,
                display_text: subagent.display_text.clone(),
            }),
            Location::Inside | Location::Remote { .. } => None,
        };
        let agents = subagents
            .iter()
            .filter_map(|subagent| Some((subagent.name.clone(), referenced(subagent)?)));
        let agents: BTreeMap<String, ReferencedAgent> = agents.collect();
        let visibility = subagents
            .iter()
            .filter_map(|one| Some((one.name.clone(), one.visibility?)))
            .collect();
        let is_fork = |subagent: &&SubagentDefinition| subagent.mode == SubagentMode::Fork && subagent.is_made_here();
        let forks: Arc<[SubagentDefinition]> = subagents.iter().filter(is_fork).cloned().collect();
        let below = Arc::clone(&forks);
        let described = subagents
            .into_iter()
            .filter(|subagent| !agents.contains_key(&subagent.name));
        let builders = described.map(|subagent| {
            let factory = self.clone();
            let source = source.clone();
            let policy = Arc::clone(&policy);
            let forks = Arc::clone(&below);
            let name = subagent.name.clone();
            let build: Build = Box::new(move |registry, format| {
                if let Location::Remote { graph_id, url } = subagent.location() {
                    return factory.remote_agent(&subagent, graph_id, url, source.is_owners);
                }
                let policy = Arc::clone(&policy);
                let forks = Arc::clone(&forks);
                let delegations = registry.map(|registry| Delegations {
                    registry,
                    policy,
                    forks,
                });
                let formed = || SubagentDefinition {
                    response_format: format.cloned(),
                    ..subagent.clone()
                };
                let subagent = if format.is_some() { &formed() } else { &subagent };
                factory.subagent(&source, subagent, delegations)
            });
            (name, build)
        });
        let builders: Vec<(String, Build)> = builders.collect();
        Delegations {
            registry: SubagentRegistry::new(depth, builders, agents, visibility),
            policy,
            forks,
        }
    }

    fn subagent(&self, source: &Source, subagent: &SubagentDefinition, delegations: Option<Delegations>) -> Agent {
        let parent = &*source.definition;
        if let Some(name) = &subagent.runnable {
            return self.program(parent, subagent, name);
        }
        let draft = Draft {
            spec: subagent.spec(parent),
            servers: McpOwner::Subagent(source.graph_id.clone(), subagent.name.clone()),
            shares: SharedState {
                files: subagent.inherit.files,
                fields: subagent.inherit.state,
            },
            prompt_is_replaceable: true,
            delegations,
            fork_prompt: None,
            // Its work ends with its result, so it could not be notified of the end of a task.
            background: vec![],
        };
        Agent {
            initial: subagent.beginning(),
            ..self.build(draft)
        }
    }

    /// Refuses a definition with a model whose provider does not exist. A model that lacks only its key fails when it is
    /// called, so that the other agents can work.
    fn check_models(&self, definition: &AgentDefinition) -> Result<(), ModelError> {
        if definition.is_program() {
            return Ok(());
        }
        let subagents = definition.delegates();
        let of_subagents = subagents
            .iter()
            .filter(|subagent| subagent.is_made_here())
            .filter_map(|subagent| subagent.model.as_ref());
        let mut names = of_subagents.chain([&definition.model]).flat_map(ModelNames::all);
        let unknown = names.find(|name| !self.providers.knows(name));
        unknown.map_or(Ok(()), |name| self.providers.model(name).map(drop))
    }

    /// Returns the models of an agent that are asked when the first one fails.
    fn fallbacks(&self, spec: &AgentSpec) -> Vec<FallbackModel> {
        let fallback = |name: &String| FallbackModel {
            name: name.clone(),
            model: self.providers.model(name),
            settings: self.profiles.model_settings(name, &spec.model_settings),
        };
        spec.model.fallbacks().iter().map(fallback).collect()
    }

    /// Returns a model with the settings of its profile and these, which come first.
    fn with_settings(&self, name: &str, own: &Map<String, Value>) -> ModelWithSettings {
        ModelWithSettings {
            model: self.providers.model(name),
            settings: self.profiles.model_settings(name, own),
        }
    }

    /// Returns a model that listed policies ask, without the settings that concern the answers of agents.
    fn model_of_policy(&self, name: &str) -> ModelWithSettings {
        let mut model = self.with_settings(name, &Map::new());
        model
            .settings
            .retain(|setting, _| setting != THINKING && !definition::is_about_answers(setting));
        model
    }

    /// Returns the policy that summarises the conversation of an agent, unless it is switched off.
    fn summarization(&self, spec: &AgentSpec) -> Option<Summarization> {
        let settings = spec.summarization.settings()?;
        let summarizer = settings.model.as_ref();
        let summarizer = summarizer.map(|name| MiddlewareModel::new([self.with_settings(name, &Map::new())]));
        let has_files = spec.files == definition::Workspace::State;
        let models = spec.model.all().iter();
        let models = MiddlewareModel::new(models.map(|name| self.with_settings(name, &spec.model_settings)));
        Some(Summarization::new(&settings, &models, summarizer, has_files))
    }

    /// Returns whether the provider keeps the answer of an agent to its form, rather than a tool.
    fn is_answer_of_provider(&self, spec: &AgentSpec, format: &AnswerFormat) -> bool {
        match format.strategy {
            AnswerStrategy::Provider => true,
            AnswerStrategy::Tool => false,
            AnswerStrategy::Auto => {
                let has_it = |name: &String| self.providers.has_structured_output(name);
                format.is_plain() && spec.model.all().iter().all(has_it)
            }
        }
    }

    /// Returns the policies of an agent but for those that depend on its tools. The first is outermost.
    fn stack(&self, draft: &Draft, summarization: Option<&Summarization>) -> Vec<Arc<dyn Middleware>> {
        let mut stack: Vec<Arc<dyn Middleware>> = vec![];
        if draft.spec.files == definition::Workspace::State {
            let files = FileTools::new(draft.workspace(&self.sandboxes), &draft.spec);
            stack.push(Arc::new(
                files.with_execute(draft.execute(&self.commands, &self.sandboxes)),
            ));
        }
        if let Some(delegations) = &draft.delegations {
            stack.push(Arc::clone(&delegations.policy) as Arc<dyn Middleware>);
        }
        // Outside of the summaries: content is left out of a request only if that is not too long in the first place.
        let models = draft.spec.model.all().iter().filter_map(|name| {
            let model = self.providers.model(name).ok()?;
            let inputs = self.profiles.media_inputs(name);
            Some(ModelWithInputs { model, inputs })
        });
        stack.push(Arc::new(UnsupportedContent::new(models)));
        stack.extend(summarization.map(|own| Arc::new(own.clone()) as Arc<dyn Middleware>));
        stack.push(Arc::new(DanglingCalls));
        if !draft.background.is_empty() {
            stack.push(Arc::new(BackgroundWork::new(draft.background.clone())));
        }
        if draft.spec.ask_user {
            stack.push(Arc::new(AskUser::new()));
        }
        if draft.spec.todos {
            stack.push(Arc::new(Todos::new()));
        }
        // Invalid templates were refused when the configuration was read.
        if let Some(access) = draft.spec.store.access()
            && let Ok(template) = NamespaceTemplate::read(&access.namespace)
        {
            stack.push(Arc::new(StoreAccess::new(template, access.read_only)));
        }
        if draft.prompt_is_replaceable {
            stack.push(Arc::new(PromptOverride::new(&draft.spec.system_prompt)));
        }
        if let Some(until) = &draft.spec.until_tool {
            stack.push(Arc::new(until_tool::UntilToolMiddleware::new(
                until.names().iter().map(|name| mcp::model_tool_name(name)).collect(),
            )));
        }
        if let Some(format) = draft.spec.response_format.as_ref().map(AnswerFormat::of) {
            stack.push(match self.is_answer_of_provider(&draft.spec, &format) {
                true => Arc::new(NativeAnswer::new(&format)),
                false => Arc::new(StructuredOutput::new(&format)),
            });
        }
        stack.extend(draft.skill_and_memory_policies(&self.sandboxes));
        self.add_listed(&mut stack, draft);
        stack
    }

    /// Adds the listed policies. They are innermost, in the order of the list, but for those in the place of a policy that
    /// is not listed otherwise.
    fn add_listed(&self, stack: &mut Vec<Arc<dyn Middleware>>, draft: &Draft) {
        let format = draft.spec.response_format.as_ref().map(AnswerFormat::of);
        let alternatives = format.iter().flat_map(AnswerFormat::alternatives);
        let answer_tools: Vec<String> = alternatives.filter_map(|form| definition::form_name(&form)).collect();
        let models = |name: &str| MiddlewareModel::new([self.model_of_policy(name)]);
        // The settings of the agent concern its own answers.
        let own = draft.spec.model.all().iter().map(|name| self.model_of_policy(name));
        let parts = AgentParts {
            model: &MiddlewareModel::new(own),
            models: &models,
            answer_tools: &answer_tools,
        };
        let mut order = HashMap::new();
        for (at, listed) in draft.spec.middleware.iter().enumerate() {
            let Some(own) = self.policies.get(&listed.name) else {
                order.insert(listed.name.clone(), at + 1);
                continue;
            };
            // Invalid settings were refused when the definition was read.
            let configured = own.configured(&listed.settings).ok().flatten();
            let policy = configured.unwrap_or_else(|| Arc::clone(own));
            let policy = policy.for_agent(&parts).unwrap_or(policy);
            let has_place = put(stack, &policy) && !Builtin::is_listed(policy.name());
            if !has_place {
                order.insert(policy.name().to_owned(), at + 1);
            }
        }
        stack.sort_by_key(|policy| order.get(policy.name()).copied().unwrap_or(0));
    }

    /// Returns the forks of an agent, which are built from it.
    fn forks(&self, caller: &Draft) -> Forks {
        let own = caller.delegations.as_ref().filter(|_| caller.fork_prompt.is_none());
        let forks = own
            .into_iter()
            .flat_map(|delegations| delegations.forks.iter().cloned());
        Forks::new(forks.map(|fork| {
            let factory = self.clone();
            let name = fork.name.clone();
            let caller = caller.clone();
            let build = move |format: Option<&Value>| factory.build(caller.forked(&fork).in_form(format));
            (name, Box::new(build) as BuildFork)
        }))
    }

    /// Builds an agent.
    fn build(&self, draft: Draft) -> Agent {
        let declared: Vec<&String> = draft.spec.tools.iter().chain(&draft.spec.skill_tools).collect();
        let own: Vec<Arc<dyn Tool>> = declared
            .iter()
            .filter_map(|name| self.tools.get(*name))
            .cloned()
            .collect();
        let summarization = self.summarization(&draft.spec);
        let mut stack = self.stack(&draft, summarization.as_ref());
        let contributions: Vec<Contribution> = stack.iter().map(|policy| policy.contribution()).collect();
        let mut system_prompt = draft.spec.system_prompt.clone();
        contributions
            .iter()
            .filter_map(|c| c.prompt.as_deref())
            .for_each(|prompt| system_prompt.add(prompt));
        let fields = contributions.iter().flat_map(|c| c.fields.iter().cloned()).collect();
        let toolbox = Toolbox::new(contributions.into_iter().flat_map(|c| c.tools).chain(own))
            .with_hidden(ToolNames::of(&draft.spec.skill_tools))
            .with_sources(self.servers.sources(declared.into_iter(), &draft.servers))
            .without(draft.spec.excluded_tools.iter().map(|name| mcp::model_tool_name(name)))
            .with_descriptions(
                draft
                    .spec
                    .tool_description_overrides
                    .iter()
                    .map(|(name, text)| (mcp::model_tool_name(name), text.clone())),
            );
        let files = FileRules::new(&draft.spec.permissions);
        let calls = CallRules::new(&draft.spec.permissions);
        if calls.may_ask()
            || files.may_interrupt()
            || draft.spec.interrupt_on.values().any(|rule| !rule.allowed().is_empty())
        {
            let approval = Approval::new(by_model_name(&draft.spec.interrupt_on), toolbox.clone());
            let approval = approval.with_files(files).with_approvers(draft.spec.approvers.clone());
            let approval = approval.with_mode(draft.spec.interrupt_mode).with_calls(calls.clone());
            stack.push(Arc::new(approval));
        }
        if let Some(text) = draft.fork_prompt.as_ref().filter(|own| !own.is_blank()) {
            stack.push(Arc::new(PromptSuffix(text.clone())));
        }
        let limits = draft.spec.limits.clone().unwrap_or_default();
        let repeated = RepeatedFailures::new(limits.repeated_failures.unwrap_or(REPEATED_FAILURES));
        stack.extend(repeated.map(|policy| Arc::new(policy) as Arc<dyn Middleware>));
        stack.extend(CallPermissions::new(calls).map(|policy| Arc::new(policy) as Arc<dyn Middleware>));
        stack.push(Arc::new(UsageLimits));
        let forks = self.forks(&draft);
        let own_files = draft.files(&self.sandboxes);
        let fallbacks = self.fallbacks(&draft.spec);
        let is_fork = draft.fork_prompt.is_some();
        let checks = toolbox.argument_checks();
        let declared = DeclaredFields::new(&draft.spec.state);
        let rules = if draft.background.is_empty() {
            declared.rules()
        } else {
            with_tasks(&declared.rules())
        };
        Agent {
            name: draft.spec.name,
            plan: plan(&stack, draft.spec.recursion_limit, rules),
            limits,
            declared,
            is_fork,
            shares: draft.shares,
            approvers: draft.spec.approvers,
            display_text: draft.spec.display_text,
            initial: vec![],
            kind: AgentKind::ModelLoop(Box::new(ModelLoop {
                model_name: draft.spec.model.first().to_owned(),
                model: self.providers.model(draft.spec.model.first()),
                settings: self
                    .profiles
                    .model_settings(draft.spec.model.first(), &draft.spec.model_settings),
                fallbacks,
                system_prompt,
                stack,
                toolbox,
                checks,
                fields,
                context: draft.spec.context_schema.map(ContextSchema::new),
                settings_schema: draft.spec.settings_schema,
                subagents: draft
                    .delegations
                    .filter(|_| !is_fork)
                    .map(|delegations| delegations.registry),
                forks,
                summarization,
                files: own_files,
            })),
        }
    }
}

/// Returns the rules of an agent that has background tasks.
fn with_tasks(declared: &Rules) -> Rules {
    let mut rules = BTreeMap::clone(declared);
    rules.insert(background::FIELD.to_owned(), background::RULE);
    Arc::new(rules)
}

/// Adds a registered policy: in the place of the one with its name, else innermost. Returns whether there was one.
fn put(stack: &mut Vec<Arc<dyn Middleware>>, own: &Arc<dyn Middleware>) -> bool {
    match stack.iter_mut().find(|policy| policy.name() == own.name()) {
        Some(place) => {
            *place = Arc::clone(own);
            true
        }
        None => {
            stack.push(Arc::clone(own));
            false
        }
    }
}

/// Returns the names of the hooks in running order: before in the order of the stack, after in reverse.
pub(super) fn plan(stack: &[Arc<dyn Middleware>], step_limit: u32, rules: Rules) -> Plan {
    let names = |point: HookPoint| {
        let here = stack.iter().filter(move |policy| policy.hook_points().contains(&point));
        here.map(move |policy| format!("{}.{}", policy.name(), point.word()))
            .collect::<Vec<_>>()
    };
    let backwards = |point| names(point).into_iter().rev().collect();
    Plan {
        before_agent: names(HookPoint::BeforeAgent),
        before_model: names(HookPoint::BeforeModel),
        after_model: backwards(HookPoint::AfterModel),
        after_agent: backwards(HookPoint::AfterAgent),
        step_limit,
        rules,
        program: None,
    }
}

/// Returns the list of subagents for the agent that has them.
fn subagent_list(parent: &AgentDefinition, subagents: &[SubagentDefinition]) -> SubagentList {
    let card = |subagent: &SubagentDefinition| SubagentSummary {
        name: subagent.name.clone(),
        description: subagent.description.clone(),
        instructions: subagent.use_instructions.clone(),
        is_fork: subagent.mode == SubagentMode::Fork,
    };
    SubagentList {
        subagents: subagents.iter().map(card).collect(),
        general: parent.general_subagent().map(str::to_owned),
        dialect: parent.task_dialect,
        unknown: parent.unknown_subagent,
        unlisted: parent.include_task_list == Some(false),
        task_description: parent.task_description.clone(),
        task_system_prompt: parent.task_system_prompt.clone(),
    }
}
