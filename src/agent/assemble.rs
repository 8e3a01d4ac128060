//! From definitions to agents. *The* list that fixes the order of the policies stands here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::roster::{Build, Referred, Roster};
use super::{Agent, Runnable};
use crate::domain::background::{self, BackgroundAgent};
use crate::domain::context::ContextSchema;
use crate::domain::definition::mcp::{self, by_model_name};
use crate::domain::definition::{
    self, AgentDefinition, GENERAL_PURPOSE, Location, Provenance, SubagentDefinition, TaskDialect,
};
use crate::domain::field::{DeclaredFields, Rules};
use crate::domain::item::template::NamespaceTemplate;
use crate::domain::machine::{Moment, Plan};
use crate::middleware::approval::Approval;
use crate::middleware::background::BackgroundWork;
use crate::middleware::delegation::{Menu, SubagentCard, Subagents};
use crate::middleware::files::Files;
use crate::middleware::limits::Counted;
use crate::middleware::ordered::OrderedPrompt;
use crate::middleware::repair::Repair;
use crate::middleware::store::StoreAccess;
use crate::middleware::structured::StructuredOutput;
use crate::middleware::todos::Todos;
use crate::middleware::until;
use crate::middleware::{Contribution, Middleware};
use crate::model::providers::Providers;
use crate::model::{Model, ModelError};
use crate::peer::Peers;
use crate::tool::mcp::McpServers;
use crate::tool::{ArgumentCheck, Tool, Toolbox};

mod draft;
mod elsewhere;
mod known;
mod program;

use draft::Draft;
pub use known::{Agents, Known};

/// How many steps a run may take when nobody says otherwise: what the field's harness binds to its agents.
const STEP_LIMIT: u32 = 9_999;

/// How deep delegations nest when nobody says otherwise: subagents do not delegate.
const SUBAGENT_DEPTH: u32 = 1;

/// What agents are made of. Cheap to clone.
#[derive(Clone)]
pub struct Workshop {
    /// Where models come from.
    pub providers: Arc<Providers>,
    /// The declared tools, by name.
    pub tools: Arc<BTreeMap<String, Arc<dyn Tool>>>,
    /// The programs that subagents can be, by name.
    pub runnables: Arc<BTreeMap<String, Arc<dyn Runnable>>>,
    /// The registered policies, by name.
    pub policies: Arc<BTreeMap<String, Arc<dyn Middleware>>>,
    /// The MCP servers.
    pub servers: McpServers,
    /// Other servers, where agents may work that are subagents here.
    pub peers: Peers,
}

/// A definition, and who is behind it.
#[derive(Clone)]
struct Source {
    definition: Arc<AgentDefinition>,
    /// Whether it is the owner of the server, who may name any address.
    is_owners: bool,
}

/// How an agent may delegate.
struct Delegating {
    roster: Arc<Roster>,
    policy: Arc<Subagents>,
}

impl Workshop {
    /// Models from these providers, agents of those servers, and nothing else yet.
    pub fn new(providers: Providers, peers: Peers) -> Self {
        Self {
            providers: Arc::new(providers),
            tools: Arc::default(),
            runnables: Arc::default(),
            policies: Arc::default(),
            servers: McpServers::default(),
            peers,
        }
    }

    /// Assembles the agent of a definition.
    ///
    /// # Errors
    /// When a model string names a provider that does not exist.
    pub fn known(
        &self,
        graph_id: &str,
        definition: &AgentDefinition,
        provenance: &Provenance,
    ) -> Result<Arc<Known>, ModelError> {
        let source = Source { definition: Arc::new(definition.clone()), is_owners: provenance.file().is_some() };
        let agent = Arc::new(self.main_agent(graph_id, &source, true)?);
        let (workshop, name, full) = (self.clone(), graph_id.to_owned(), Arc::clone(&agent));
        let alone = move || workshop.main_agent(&name, &source, false).map_or(full, Arc::new);
        Ok(Arc::new(Known::new(graph_id, definition, agent, alone)))
    }

    fn main_agent(&self, graph_id: &str, source: &Source, delegates: bool) -> Result<Agent, ModelError> {
        let definition = &*source.definition;
        let subagents = subagents(definition);
        let has_model =
            |subagent: &&SubagentDefinition| subagent.runnable.is_none() && subagent.location() == Location::Inside;
        for subagent in subagents.iter().filter(has_model) {
            self.model(subagent.model.as_deref().unwrap_or(&definition.model))?;
        }
        let depth = definition.max_subagent_depth.unwrap_or(SUBAGENT_DEPTH);
        let has_roster = delegates && depth > 0 && !subagents.is_empty();
        let delegations = has_roster.then(|| self.delegating(source, subagents, depth));
        let draft = Draft {
            name: definition.name.clone().unwrap_or_else(|| graph_id.to_owned()),
            model: definition.model.clone(),
            settings: definition.model_settings.clone(),
            system_prompt: definition.system_prompt.clone(),
            tools: definition.tools.clone(),
            policies: definition.middleware.clone(),
            interrupt_on: definition.interrupt_on.clone(),
            response_format: definition.response_format.clone(),
            context_schema: definition.context_schema.clone(),
            state: definition.state.clone(),
            todos: definition.todos,
            files: definition.files,
            store: definition.store.clone(),
            skills: definition.skills.clone(),
            skill_tools: definition.skill_tools.clone(),
            memory: definition.memory.clone(),
            enclosed: Arc::clone(&definition.enclosed),
            step_limit: definition.recursion_limit.unwrap_or(STEP_LIMIT),
            limits: definition.limits.clone().unwrap_or_default(),
            until: None,
            ordered_prompt: false,
            delegations,
            background: definition.subagents.iter().filter(|_| delegates).filter_map(BackgroundAgent::of).collect(),
        };
        let model = self.model(&draft.model)?;
        Ok(self.build(draft, model))
    }

    fn delegating(&self, source: &Source, subagents: Vec<SubagentDefinition>, depth: u32) -> Delegating {
        let policy = Arc::new(Subagents::new(&menu(&source.definition, &subagents)));
        let referred = |subagent: &SubagentDefinition| match subagent.location() {
            Location::Local(graph_id) => Some(Referred {
                graph_id: graph_id.to_owned(),
                limits: subagent.limits.clone(),
                step_limit: subagent.recursion_limit,
            }),
            Location::Inside | Location::Remote { .. } => None,
        };
        let agents = subagents.iter().filter_map(|subagent| Some((subagent.name.clone(), referred(subagent)?)));
        let agents: BTreeMap<String, Referred> = agents.collect();
        let described = subagents.into_iter().filter(|subagent| !agents.contains_key(&subagent.name));
        let builders = described.map(|subagent| {
            let (workshop, source, policy) = (self.clone(), source.clone(), Arc::clone(&policy));
            let name = subagent.name.clone();
            let build: Build = Box::new(move |roster| {
                if let Location::Remote { graph_id, url } = subagent.location() {
                    return workshop.elsewhere(&subagent, (graph_id, url), source.is_owners);
                }
                let delegations = roster.map(|roster| Delegating { roster, policy: Arc::clone(&policy) });
                workshop.subagent(&source.definition, &subagent, delegations)
            });
            (name, build)
        });
        let builders: Vec<(String, Build)> = builders.collect();
        Delegating { roster: Roster::new(depth, builders, agents), policy }
    }

    fn subagent(
        &self,
        parent: &AgentDefinition,
        subagent: &SubagentDefinition,
        delegations: Option<Delegating>,
    ) -> Agent {
        if let Some(name) = &subagent.runnable {
            return self.program(parent, subagent, name);
        }
        let draft = Draft {
            name: subagent.name.clone(),
            model: subagent.model.clone().unwrap_or_else(|| parent.model.clone()),
            settings: subagent.model_settings.clone().unwrap_or_else(|| parent.model_settings.clone()),
            system_prompt: subagent.system_prompt.clone(),
            tools: subagent.tools.clone().unwrap_or_else(|| parent.tools.clone()),
            policies: subagent.middleware.clone(),
            interrupt_on: subagent.interrupt_on.clone().unwrap_or_else(|| parent.interrupt_on.clone()),
            response_format: subagent.response_format.clone(),
            // The context of the run passes through as it is.
            context_schema: None,
            state: parent.state.clone(),
            todos: subagent.todos,
            files: parent.files,
            store: subagent.store.clone().unwrap_or_else(|| parent.store.clone()),
            skills: subagent.skills.clone(),
            skill_tools: subagent.skill_tools.clone(),
            memory: subagent.memory.clone(),
            enclosed: Arc::clone(&parent.enclosed),
            step_limit: subagent.recursion_limit.or(parent.recursion_limit).unwrap_or(STEP_LIMIT),
            limits: subagent.limits.clone().unwrap_or_default(),
            until: subagent.until_tool.clone(),
            ordered_prompt: parent.task_dialect == TaskDialect::Sagents
                && parent.general_subagent() == Some(subagent.name.as_str()),
            delegations,
            // Its work ends with its result: nobody would be left to be told what comes of a task.
            background: vec![],
        };
        let model = self.providers.model(&draft.model).unwrap_or_else(Unusable::because);
        self.build(draft, model)
    }

    /// The model of this name. One that lacks only its key fails when it is asked, so that the other agents can work.
    fn model(&self, name: &str) -> Result<Arc<dyn Model>, ModelError> {
        match self.providers.model(name) {
            Err(error) if self.providers.knows(name) => Ok(Unusable::because(error)),
            found => found,
        }
    }

    /// The policies of an agent but for those that have to know its tools. First in the list is outermost.
    fn stack(&self, draft: &Draft) -> Vec<Arc<dyn Middleware>> {
        let mut stack: Vec<Arc<dyn Middleware>> = vec![];
        if draft.files == definition::Workspace::State {
            stack.push(Arc::new(Files::new(draft.workspace())));
        }
        if let Some(delegations) = &draft.delegations {
            stack.push(Arc::clone(&delegations.policy) as Arc<dyn Middleware>);
        }
        stack.push(Arc::new(Repair));
        if !draft.background.is_empty() {
            stack.push(Arc::new(BackgroundWork::new(draft.background.clone())));
        }
        if draft.todos {
            stack.push(Arc::new(Todos::new()));
        }
        // A template that is none was refused when the configuration was read.
        if let Some(reach) = draft.store.reach()
            && let Ok(template) = NamespaceTemplate::read(&reach.namespace)
        {
            stack.push(Arc::new(StoreAccess::new(template, reach.read_only)));
        }
        if draft.ordered_prompt {
            stack.push(Arc::new(OrderedPrompt::new(&draft.system_prompt)));
        }
        if let Some(until) = &draft.until {
            stack.push(Arc::new(until::UntilTool::new(until.names().iter().map(|name| mcp::named(name)).collect())));
        }
        // A schema that is none was refused when the configuration was read.
        if let Some(Ok(structured)) = draft.response_format.as_ref().map(StructuredOutput::new) {
            stack.push(Arc::new(structured));
        }
        stack.extend(draft.knowledge());
        draft.policies.iter().filter_map(|name| self.policies.get(name)).for_each(|own| put(&mut stack, own));
        stack
    }

    /// Puts an agent together.
    fn build(&self, draft: Draft, model: Arc<dyn Model>) -> Agent {
        let declared = draft.tools.iter().chain(&draft.skill_tools);
        let own: Vec<Arc<dyn Tool>> = declared.filter_map(|name| self.tools.get(name)).cloned().collect();
        let mut stack = self.stack(&draft);
        let contributions: Vec<Contribution> = stack.iter().map(|policy| policy.contribution()).collect();
        let prompts = contributions.iter().filter_map(|c| c.prompt.as_deref());
        let system_prompt = std::iter::once(draft.system_prompt.as_str())
            .chain(prompts)
            .filter(|text| !text.trim().is_empty())
            .collect::<Vec<_>>()
            .join("\n\n");
        let fields = contributions.iter().flat_map(|c| c.fields.iter().cloned()).collect();
        let toolbox = Toolbox::new(contributions.into_iter().flat_map(|c| c.tools).chain(own))
            .hiding(&draft.skill_tools)
            .with_sources(self.servers.sources(draft.tools.iter()));
        if draft.interrupt_on.values().any(|rule| !rule.allowed().is_empty()) {
            stack.push(Arc::new(Approval::new(by_model_name(&draft.interrupt_on), toolbox.clone())));
        }
        stack.push(Arc::new(Counted));
        let checks: HashMap<_, _> =
            toolbox.specs().iter().map(|spec| (spec.name.clone(), ArgumentCheck::new(spec))).collect();
        let declared = DeclaredFields::new(&draft.state);
        let rules = if draft.background.is_empty() { declared.rules() } else { with_tasks(&declared.rules()) };
        Agent {
            name: draft.name,
            model,
            settings: draft.settings,
            system_prompt,
            plan: plan(&stack, draft.step_limit, rules),
            stack,
            toolbox,
            checks,
            fields,
            declared,
            context: draft.context_schema.map(ContextSchema::new),
            limits: draft.limits,
            subagents: draft.delegations.map(|delegations| delegations.roster),
            runnable: None,
        }
    }
}

/// The rules of an agent that has background tasks.
fn with_tasks(declared: &Rules) -> Rules {
    let mut rules = BTreeMap::clone(declared);
    rules.insert(background::FIELD.to_owned(), background::RULE);
    Arc::new(rules)
}

/// Adds a registered policy: in the place of the one that has its name, else innermost.
fn put(stack: &mut Vec<Arc<dyn Middleware>>, own: &Arc<dyn Middleware>) {
    match stack.iter_mut().find(|policy| policy.name() == own.name()) {
        Some(place) => *place = Arc::clone(own),
        None => stack.push(Arc::clone(own)),
    }
}

/// The names of the hooks in running order: before in the order of the stack, after in reverse.
pub(super) fn plan(stack: &[Arc<dyn Middleware>], step_limit: u32, rules: Rules) -> Plan {
    let names = |moment: Moment| {
        let here = stack.iter().filter(move |policy| policy.moments().contains(&moment));
        here.map(move |policy| format!("{}.{}", policy.name(), moment.word())).collect::<Vec<_>>()
    };
    let backwards = |moment| names(moment).into_iter().rev().collect();
    Plan {
        before_agent: names(Moment::BeforeAgent),
        before_model: names(Moment::BeforeModel),
        after_model: backwards(Moment::AfterModel),
        after_agent: backwards(Moment::AfterAgent),
        step_limit,
        rules,
        is_work: false,
    }
}

/// How the subagents are offered to the agent that has them.
fn menu(parent: &AgentDefinition, subagents: &[SubagentDefinition]) -> Menu {
    let card = |subagent: &SubagentDefinition| SubagentCard {
        name: subagent.name.clone(),
        description: subagent.description.clone(),
        instructions: subagent.use_instructions.clone(),
    };
    Menu {
        cards: subagents.iter().map(card).collect(),
        general: parent.general_subagent().map(str::to_owned),
        dialect: parent.task_dialect,
        unknown: parent.unknown_subagent,
        unlisted: parent.include_task_list == Some(false),
        task_description: parent.task_description.clone(),
        task_system_prompt: parent.task_system_prompt.clone(),
    }
}

/// The subagents of a definition: the general-purpose one first, unless it is switched off or replaced by name.
fn subagents(definition: &AgentDefinition) -> Vec<SubagentDefinition> {
    let general = &definition.general_purpose_subagent;
    let name = general.name.clone().unwrap_or_else(|| GENERAL_PURPOSE.to_owned());
    let replaced = definition.synchronous().any(|subagent| subagent.name == name);
    let general = (general.enabled && !replaced).then(|| SubagentDefinition {
        name,
        description: general.description.clone().unwrap_or_else(|| GENERAL_DESCRIPTION.to_owned()),
        system_prompt: general.system_prompt.clone().unwrap_or_else(|| GENERAL_PROMPT.to_owned()),
        model: general.model.clone(),
        tools: general.tools.clone(),
        interrupt_on: general.interrupt_on.clone(),
        skills: definition.skills.clone(),
        skill_tools: definition.skill_tools.clone(),
        ..SubagentDefinition::default()
    });
    general.into_iter().chain(definition.synchronous().cloned()).collect()
}

const GENERAL_DESCRIPTION: &str = "An all-rounder for research, searches and work in several steps. \
     It has the same tools as the delegating agent and nothing of its conversation.";

const GENERAL_PROMPT: &str = "You work on one task that another agent has handed to you. \
     It sees nothing but your last message, so let that message hold the complete result.";

/// Stands in for a model that cannot be had; says why when it is asked.
struct Unusable(ModelError);

impl Unusable {
    fn because(error: ModelError) -> Arc<dyn Model> {
        Arc::new(Self(error))
    }
}

#[async_trait::async_trait]
impl Model for Unusable {
    fn identity(&self) -> (&str, &str) {
        ("none", "none")
    }

    async fn ask(
        &self,
        _: crate::model::ModelRequest,
    ) -> Result<futures::stream::BoxStream<'static, Result<crate::model::ModelEvent, ModelError>>, ModelError> {
        Err(self.0.clone())
    }
}
