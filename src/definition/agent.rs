//! Agents and subagents as their owners describe them, and what both come to: an [`AgentSpec`].
//!
//! A field that agents and subagents have stands here three times, in three forms: with the default of an agent, as what a
//! subagent may leave out, and as what holds in the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::mcp::McpServerDefinition;
use super::{
    ApprovalRule, BundledFiles, GeneralPurpose, Headers, Inherit, Permission, Policy, SkillSource, StoreRule,
    SystemPrompt, TaskDialect, UnknownSubagent, UpdateStrategy,
};
use crate::domain::field::FieldDefinition;
use crate::domain::limits::Limits;
use crate::domain::visibility::Visibility;

/// How many steps a run may take when nobody says otherwise: what the field's harness binds to its agents.
pub const STEP_LIMIT: u32 = 9_999;

/// An agent, as its owner describes it. Its key is the `graph_id`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentDefinition {
    /// `lc_agent_name`; the `graph_id` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What the agent is for, shown with its assistant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `provider:model-name`.
    pub model: String,
    /// The instructions.
    pub system_prompt: SystemPrompt,
    /// Names of declared tools.
    pub tools: Vec<String>,
    /// MCP servers for it and its subagents alone, by name. Those of files are not stored with the definition.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp_servers: BTreeMap<String, McpServerDefinition>,
    /// The agents it can delegate to.
    pub subagents: Vec<SubagentDefinition>,
    /// The tools whose calls a human has to approve.
    pub interrupt_on: BTreeMap<String, ApprovalRule>,
    /// Which files it may read and change; all, when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<Permission>,
    /// JSON Schema of the final answer, when it shall be structured, or a table with it; see [`super::AnswerFormat`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Value>,
    /// JSON Schema of the context of every run; anything goes when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_schema: Option<Value>,
    /// Whether the agent has `write_todos`.
    pub todos: bool,
    /// Where its file tools work.
    pub files: Workspace,
    /// The folders with its skills. Of two skills with one name the one in the later folder precedes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SkillSource>,
    /// Names of declared tools that it has only once it has read a skill that includes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skill_tools: Vec<String>,
    /// Files that are a part of its instructions and that it may keep up to date.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<String>,
    /// The tools that it does not have although it would.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded_tools: Vec<String>,
    /// The descriptions of tools, in the place of their own.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tool_description_overrides: BTreeMap<String, String>,
    /// What it can remember beyond the thread.
    pub store: StoreRule,
    /// How many steps one run may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursion_limit: Option<u32>,
    /// Registered policies, by name, inside those that the server brings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub middleware: Vec<Policy>,
    /// How deep delegations may nest; 1 means that subagents do not delegate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_subagent_depth: Option<u32>,
    /// What one run may use, and one run with all below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The subagent that every agent has unless told otherwise.
    pub general_purpose_subagent: GeneralPurpose,
    /// The description of the `task` tool; `{available_agents}` in it is replaced by the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_description: Option<String>,
    /// Text about delegation that is added to the instructions, followed by the list of subagents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_system_prompt: Option<String>,
    /// The names of the arguments of the `task` tool.
    pub task_dialect: TaskDialect,
    /// What happens when the model names a subagent that does not exist; what the dialect does when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown_subagent: Option<UnknownSubagent>,
    /// Whether the model sees the list of subagents. They are when absent; without it something else has to name them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_task_list: Option<bool>,
    /// Whom the entries of a run's `context` reach.
    pub context_scoping: ContextScoping,
    /// Fields of the state beside the standard ones, by name.
    pub state: BTreeMap<String, FieldDefinition>,
    /// What an ordinary message does to a question that waits for its answer.
    pub on_pending_interrupt: OnPendingInterrupt,
    /// Provider settings (`temperature`, `max_tokens`, …).
    pub model_settings: Map<String, Value>,
    /// The files beside the definition that it names. They are kept with it, and never come from clients.
    #[serde(skip)]
    pub enclosed: Arc<BundledFiles>,
}

/// A subagent, as its owner describes it. What it leaves out it has from its parent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SubagentDefinition {
    /// The name it is called by; unique within the agent.
    pub name: String,
    /// What it is for: all that the delegating model knows of it.
    pub description: String,
    /// The program that it is, by the name under which the embedding program has registered it. It then has neither model
    /// nor instructions, tools or policies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runnable: Option<String>,
    /// Its instructions; never inherited.
    pub system_prompt: SystemPrompt,
    /// The conversation with which it begins, before it is told what to do; nothing when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub initial_messages: Vec<Value>,
    /// `provider:model-name`; the parent's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Names of declared tools; the parent's when absent, none when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// MCP servers for it alone, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub mcp_servers: BTreeMap<String, McpServerDefinition>,
    /// The tools whose calls a human has to approve; the parent's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupt_on: Option<BTreeMap<String, ApprovalRule>>,
    /// Which files it may read and change; what its parent may, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Vec<Permission>>,
    /// JSON Schema of the result, when it shall be structured, or a table with it; see [`super::AnswerFormat`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Value>,
    /// Whether it has `write_todos`.
    pub todos: bool,
    /// The folders with its skills; never inherited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SkillSource>,
    /// Names of declared tools that it has only once it has read a skill that includes them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skill_tools: Vec<String>,
    /// Files that are a part of its instructions; never inherited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<String>,
    /// The tools that it does not have although it would; never inherited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded_tools: Vec<String>,
    /// The descriptions of tools, in the place of their own; never inherited.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tool_description_overrides: BTreeMap<String, String>,
    /// What it can remember beyond the thread; what its parent can, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreRule>,
    /// How many steps one delegation may take; the parent's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recursion_limit: Option<u32>,
    /// Registered policies, by name; never inherited.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub middleware: Vec<Policy>,
    /// What it has from its parent, beyond what every subagent has.
    #[serde(skip_serializing_if = "is_default")]
    pub inherit: Inherit,
    /// The policies that it does not have from its parent, by their names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub block_middleware: Vec<String>,
    /// Whether it begins with an empty conversation or with its parent's.
    #[serde(skip_serializing_if = "is_default")]
    pub mode: SubagentMode,
    /// What one delegation may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// How to use it, at length; the delegating model reads it on demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_instructions: Option<String>,
    /// How much clients see of its work; all of it when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    /// What a user interface shows while it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_text: Option<String>,
    /// It works until one of these tools has succeeded, whose result is its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until_tool: Option<UntilTool>,
    /// Provider settings; the parent's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_settings: Option<Map<String, Value>>,
    /// The agent that it is, instead of one described here: on this server, or at `url`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub graph_id: Option<String>,
    /// The address of the server that has this agent; this server when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Headers sent to that server with every request.
    #[serde(skip_serializing_if = "Headers::is_empty")]
    pub headers: Headers,
    /// Whether such an agent works in the background: it does unless this is `false`.
    #[serde(rename = "async", skip_serializing_if = "Option::is_none")]
    pub in_background: Option<bool>,
    /// An address that is told when a background run ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// What becomes of the work under way when a background task is given a further message; it is broken off when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
    /// Whether the parent is told when a background task comes to an end. It is when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify_parent: Option<bool>,
}

/// What an agent is to be, whether main agent, subagent or fork: its definition with all that it has from its parent and
/// with the defaults of the server.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentSpec {
    /// What it is called.
    pub name: String,
    /// `provider:model-name`.
    pub model: String,
    /// Provider settings.
    pub model_settings: Map<String, Value>,
    /// The instructions.
    pub system_prompt: SystemPrompt,
    /// Names of declared tools.
    pub tools: Vec<String>,
    /// Listed policies, in their order.
    pub middleware: Vec<Policy>,
    /// The tools whose calls a human has to approve.
    pub interrupt_on: BTreeMap<String, ApprovalRule>,
    /// Which files it may read and change; all, when there are none.
    pub permissions: Vec<Permission>,
    /// The form of its result.
    pub response_format: Option<Value>,
    /// JSON Schema of the context; a subagent's passes through as it is.
    pub context_schema: Option<Value>,
    /// Whether it has `write_todos`.
    pub todos: bool,
    /// Where its file tools work.
    pub files: Workspace,
    /// The folders with its skills.
    pub skills: Vec<SkillSource>,
    /// The tools that skills disclose.
    pub skill_tools: Vec<String>,
    /// Files that are a part of its instructions.
    pub memory: Vec<String>,
    /// The tools that it does not have although it would.
    pub excluded_tools: Vec<String>,
    /// Descriptions of tools in the place of their own.
    pub tool_description_overrides: BTreeMap<String, String>,
    /// What it can remember beyond the thread.
    pub store: StoreRule,
    /// How many steps one run may take.
    pub recursion_limit: u32,
    /// What one run may use.
    pub limits: Limits,
    /// The tools that end its work.
    pub until_tool: Option<UntilTool>,
    /// Fields of the state beside the standard ones.
    pub state: BTreeMap<String, FieldDefinition>,
    /// What a user interface shows while it works.
    pub display_text: Option<String>,
    /// The files beside the definition.
    pub enclosed: Arc<BundledFiles>,
}

impl AgentDefinition {
    /// What the agent of this `graph_id` is to be. The definition has to be [resolved](Self::resolved).
    pub fn spec(&self, graph_id: &str) -> AgentSpec {
        AgentSpec {
            name: self.name.clone().unwrap_or_else(|| graph_id.to_owned()),
            model: self.model.clone(),
            model_settings: self.model_settings.clone(),
            system_prompt: self.system_prompt.clone(),
            tools: self.tools.clone(),
            middleware: self.middleware.clone(),
            interrupt_on: self.interrupt_on.clone(),
            permissions: self.permissions.clone(),
            response_format: self.response_format.clone(),
            context_schema: self.context_schema.clone(),
            todos: self.todos,
            files: self.files,
            skills: self.skills.clone(),
            skill_tools: self.skill_tools.clone(),
            memory: self.memory.clone(),
            excluded_tools: self.excluded_tools.clone(),
            tool_description_overrides: self.tool_description_overrides.clone(),
            store: self.store.clone(),
            recursion_limit: self.recursion_limit.unwrap_or(STEP_LIMIT),
            limits: self.limits.clone().unwrap_or_default(),
            until_tool: None,
            state: self.state.clone(),
            display_text: None,
            enclosed: Arc::clone(&self.enclosed),
        }
    }
}

impl SubagentDefinition {
    /// What a subagent of this parent is to be, unless it is a fork. Both definitions have to be
    /// [resolved](AgentDefinition::resolved).
    pub fn spec(&self, parent: &AgentDefinition) -> AgentSpec {
        let parent = parent.spec(&self.name);
        AgentSpec {
            system_prompt: self.system_prompt.clone(),
            middleware: self.middleware.clone(),
            todos: self.todos,
            skills: self.skills.clone(),
            skill_tools: self.skill_tools.clone(),
            memory: self.memory.clone(),
            excluded_tools: self.excluded_tools.clone(),
            tool_description_overrides: self.tool_description_overrides.clone(),
            ..self.over(parent)
        }
    }

    /// What this fork of its caller is to be: the same but for what its description says of it.
    pub fn fork_spec(&self, caller: &AgentSpec) -> AgentSpec {
        let is_there = |name: &str| caller.middleware.iter().any(|policy| policy.name == name);
        let own = self.middleware.iter().filter(|policy| !is_there(&policy.name));
        AgentSpec {
            middleware: caller.middleware.iter().chain(own).cloned().collect(),
            todos: caller.todos || self.todos,
            ..self.over(caller.clone())
        }
    }

    /// What every subagent says itself or has from the agent above it.
    fn over(&self, above: AgentSpec) -> AgentSpec {
        AgentSpec {
            name: self.name.clone(),
            model: self.model.clone().unwrap_or(above.model),
            model_settings: self.model_settings.clone().unwrap_or(above.model_settings),
            tools: self.tools.clone().unwrap_or(above.tools),
            interrupt_on: self.interrupt_on.clone().unwrap_or(above.interrupt_on),
            permissions: self.permissions.clone().unwrap_or(above.permissions),
            store: self.store.clone().unwrap_or(above.store),
            recursion_limit: self.recursion_limit.unwrap_or(above.recursion_limit),
            // What it may use, what its result is and when it ends nobody has from above; the context passes through.
            response_format: self.response_format.clone(),
            context_schema: None,
            limits: self.limits.clone().unwrap_or_default(),
            until_tool: self.until_tool.clone(),
            display_text: self.display_text.clone(),
            ..above
        }
    }
}

/// Where file tools work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workspace {
    /// In the state of the thread, shared with subagents.
    #[default]
    State,
    /// Nowhere: the agent has no file tools.
    None,
}

/// What an ordinary message does to a question that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnPendingInterrupt {
    /// The question is dropped and its calls are answered as not completed.
    #[default]
    Drop,
    /// The message is refused.
    Reject,
}

/// Whether a field says what it would say if it were left out.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Whom an entry of the `context` reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContextScoping {
    /// Every agent of the run.
    #[default]
    Shared,
    /// Keys of the form `name:key` reach the agent called `name` alone; all others reach everybody.
    Prefix,
}

impl ContextScoping {
    /// Whether the entry `key` reaches `agent`.
    pub fn reaches(self, key: &str, agent: &str) -> bool {
        match (self, key.split_once(':')) {
            (Self::Prefix, Some((name, _))) => name == agent,
            (Self::Prefix, None) | (Self::Shared, _) => true,
        }
    }
}

/// The tools that end a subagent's work: one name, or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "must be the name of a tool or a list of names")]
pub enum UntilTool {
    /// One tool.
    One(String),
    /// Whichever of these succeeds first.
    Any(Vec<String>),
}

impl UntilTool {
    /// Their names.
    pub fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Any(names) => names,
        }
    }
}

/// With which conversation a subagent begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubagentMode {
    /// With an empty one: it knows nothing but its order.
    #[default]
    Isolated,
    /// With its caller's, as far as that has come, and with its caller's instructions and tools.
    Fork,
}
