//! What a file or a request may say about an agent, and about a tool.
//!
//! | To see | Open |
//! |---|---|
//! | the fields | this file; of parts `prompt`, `initial`, `general`, `policy`, `inherit`, `permission`, `answer`, `store`, `source`, `elsewhere` |
//! | what is refused, and the words of it | `check` and the `check` of each part; `read` and `strict` for wrong shapes |
//! | what is said in several ways and means one thing | `policy` (`resolved`), `inherit`, `profile`, `deprecated` |
//! | what is kept of a definition, and files beside it | `record`, `enclosed` |
//!
//! A new field has a place in the struct here, in a check, in `agent::assemble` (`draft.rs` carries it to the agent), in
//! `making` if a subagent elsewhere cannot have it, and in the tables of `docs/agents.md` or `docs/subagents.md`.
//!
//! Every field has a default, so that a definition with mistakes can be read as far as it goes and all of them be
//! told at once: [`read()`] tells what has the wrong shape, [`check`] what makes no sense.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

pub use crate::domain::background::UpdateStrategy;
use crate::domain::field::FieldDefinition;
pub use crate::domain::headers::Headers;
pub use crate::domain::id::Digest;
use crate::domain::interrupt::DecisionKind;
use crate::domain::limits::Limits;
use crate::domain::visibility::Visibility;

mod answer;
pub mod builtins;
pub mod check;
mod clients;
pub mod deprecated;
mod dialect;
mod elsewhere;
pub mod enclosed;
mod finding;
pub mod front_matter;
mod general;
mod headers;
mod inherit;
mod initial;
mod judge;
pub mod mcp;
mod model_settings;
mod permission;
mod policy;
mod profile;
mod program;
mod prompt;
pub mod provider;
mod read;
mod record;
pub mod skill;
mod source;
mod store;
mod strict;

pub use answer::{AnswerFormat, AnswerStrategy, HandleErrors, form_name, form_problem};
pub use clients::ClientRules;
pub use dialect::{ContextScoping, Mode, TaskDialect, UnknownSubagent, UntilTool};
pub use elsewhere::Location;
pub use enclosed::Enclosed;
pub use finding::{FieldPath, Finding, Segment, Severity, nearest, suggestion};
pub use general::{GENERAL_PURPOSE, GeneralPurpose};
pub use headers::{check_headers, is_reserved_header};
pub use inherit::{Inherit, InheritedPolicies};
pub use judge::{Judgement, judge};
use mcp::McpServerDefinition;
pub use model_settings::is_structural_setting;
pub use permission::{FileOperation, FileRules, Permission, PermissionMode};
pub use policy::Policy;
pub use profile::{GeneralProfile, HarnessProfile, HarnessProfiles};
pub use prompt::{BlockKind, CacheControl, CacheKind, CacheTtl, MOST_MARKERS, PromptBlock, SystemPrompt};
pub use read::{Gaps, Reading, is_echo, read};
pub use record::{DefinitionVersion, LARGEST_DEFINITION, MOST_AGENTS, Provenance, Remark, VERSIONS_KEPT};
pub use source::{LabelledSource, Named, SkillSource, source_problem};
pub use store::{StoreReach, StoreRule};

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
    /// JSON Schema of the final answer, when it shall be structured, or a table with it; see [`AnswerFormat`].
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
    pub enclosed: Arc<Enclosed>,
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
    /// JSON Schema of the result, when it shall be structured, or a table with it; see [`AnswerFormat`].
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
    pub mode: Mode,
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

/// Whether calls of a tool have to be approved, and how.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ApprovalRule {
    /// `true`: every decision is allowed; `false`: no approval.
    Switch(bool),
    /// Approval with these choices.
    Choices(ApprovalChoices),
}

/// How calls of a tool may be decided.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalChoices {
    /// The allowed decisions; at least one.
    pub allowed_decisions: Vec<DecisionKind>,
    /// What the reviewer is told, instead of the standard text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

impl<'de> Deserialize<'de> for ApprovalRule {
    /// By hand, since the derived one would only say that no variant matched.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rule;

        impl<'de> Visitor<'de> for Rule {
            type Value = ApprovalRule;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a table with `allowed_decisions`")
            }

            fn visit_bool<E>(self, on: bool) -> Result<ApprovalRule, E> {
                Ok(ApprovalRule::Switch(on))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ApprovalRule, A::Error> {
                ApprovalChoices::deserialize(MapAccessDeserializer::new(map)).map(ApprovalRule::Choices)
            }
        }

        deserializer.deserialize_any(Rule)
    }
}

impl ApprovalRule {
    /// The allowed decisions; none when no approval is needed.
    pub fn allowed(&self) -> &[DecisionKind] {
        match self {
            Self::Switch(true) => &DecisionKind::ALL,
            Self::Switch(false) => &[],
            Self::Choices(choices) => &choices.allowed_decisions,
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

/// Whether a field says what it would say if it were left out.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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

/// A tool that agents can name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ToolDefinition {
    /// How it is reached: behind HTTP, or in the server itself.
    pub kind: ToolKind,
    /// What it is for, for the model. A built-in tool has a description of its own.
    pub description: String,
    /// The address of a tool behind HTTP.
    pub url: String,
    /// The name of a built-in tool: `lookup` or `publish`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builtin: Option<String>,
    /// JSON Schema of the arguments, an object schema. A built-in tool has its own.
    pub parameters: Value,
    /// Headers sent with every call. They may hold secrets and are never printed.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub headers: Headers,
    /// Seconds to wait for an answer.
    pub timeout_s: f64,
    /// What to do about a call that was begun before a crash.
    pub after_crash: AfterCrash,
    /// What an error means for the run.
    pub on_error: OnError,
}

impl Default for ToolDefinition {
    fn default() -> Self {
        Self {
            kind: ToolKind::default(),
            description: String::new(),
            url: String::new(),
            builtin: None,
            parameters: Value::Null,
            headers: Headers::default(),
            timeout_s: 30.0,
            after_crash: AfterCrash::default(),
            on_error: OnError::default(),
        }
    }
}

/// The tools that come with the server and can be declared with `kind = "builtin"`. They need no network.
pub const BUILT_IN: [&str; 2] = ["lookup", "publish"];

/// Where a declared tool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// Behind HTTP.
    #[default]
    Http,
    /// In the server itself.
    Builtin,
}

/// What to do about a call that was begun before a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AfterCrash {
    /// Call again with the same idempotency key.
    Repeat,
    /// Ask a human. The default: a tool behind HTTP may have effects.
    #[default]
    Ask,
    /// Tell the model that it failed.
    Fail,
}

/// What an error of a tool means for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The model is told.
    #[default]
    Report,
    /// The run ends.
    FailRun,
}
