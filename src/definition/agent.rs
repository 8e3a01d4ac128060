//! Agents and subagents as their owners describe them, and the [`AgentSpec`] that results from both.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::approval::{ApprovalRule, InterruptMode};
use super::builtins::{
    APPROVAL, ASK_USER, FILES, LIMITS, MEMORY, PERMISSIONS, REPEATED_FAILURES, SKILLS, STORE, STRUCTURED, SUBAGENTS,
    SUMMARIZATION, TODOS, UNTIL,
};
use super::bundled_files::BundledFiles;
use super::compat::{TaskDialect, UnknownSubagent};
use super::configurable::Configurable;
use super::context_scoping::ContextScoping;
use super::diagnostic::FieldPath;
use super::execute::ExecuteRule;
use super::general_purpose::GeneralPurpose;
use super::inherit::Inherit;
use super::mcp::McpServerDefinition;
use super::model_names::ModelNames;
use super::permission::Permission;
use super::policy::Policy;
use super::prompt::SystemPrompt;
use super::source::SkillSource;
use super::store::StoreRule;
use super::summarization::SummarizationRule;
use super::until_tool::UntilTool;
use super::workspace::{Workspace, WorkspaceDefinition};
use crate::domain::approvers::Approvers;
use crate::domain::background::UpdateStrategy;
use crate::domain::field::FieldDefinition;
use crate::domain::headers::Headers;
use crate::domain::limits::Limits;
use crate::domain::stored::is_default;
use crate::domain::visibility::Visibility;

/// The default of the maximum number of steps of a run: the same as in the reference implementation.
pub const STEP_LIMIT: u32 = 9_999;

/// Defines the three forms of an agent: [`AgentDefinition`], [`SubagentDefinition`], and the [`AgentSpec`] that results
/// from both. A field that several forms share is written once. The lists at the end say whether subagents inherit a
/// field:
///
/// - `inherited`: a subagent without the field has its parent's value.
/// - `limited`: the same; a main agent without the field has the default in the list.
/// - `own`: never inherited, but a fork has the value of its caller.
/// - `always_own`: never inherited, not even by a fork.
macro_rules! agents {
    (
        $(#[$agent_meta:meta])*
        agent { $($agent_first:tt)* } shared { $($agent:tt)* }
        $(#[$subagent_meta:meta])*
        subagent { $($subagent_first:tt)* } shared { $($subagent:tt)* }
        $(#[$spec_meta:meta])*
        spec { $($spec:tt)* }
        inherited { $(
            $(#[doc = $inherited_doc:literal])+ $(#[serde($inherited_serde:meta)])?
            $inherited:ident: $inherited_type:ty,
        )* }
        limited { $(
            $(#[doc = $limited_doc:literal])+
            $limited:ident: $limited_type:ty = $default:expr,
        )* }
        own { $(
            $(#[doc = $own_doc:literal])+ $(#[serde($own_serde:meta)])?
            $own:ident: $own_type:ty,
        )* }
        always_own { $(
            $(#[doc = $always_own_doc:literal])+ $(#[serde($always_own_serde:meta)])?
            $always_own:ident: $always_own_type:ty,
        )* }
    ) => {
        $(#[$agent_meta])*
        pub struct AgentDefinition {
            $($agent_first)*
            $( $(#[doc = $inherited_doc])+ $(#[serde($inherited_serde)])? pub $inherited: $inherited_type, )*
            $( $(#[doc = $own_doc])+ $(#[serde($own_serde)])? pub $own: $own_type, )*
            $( $(#[doc = $always_own_doc])+ $(#[serde($always_own_serde)])? pub $always_own: $always_own_type, )*
            $(
                $(#[doc = $limited_doc])+ #[serde(skip_serializing_if = "Option::is_none")]
                pub $limited: Option<$limited_type>,
            )*
            $($agent)*
        }

        $(#[$subagent_meta])*
        pub struct SubagentDefinition {
            $($subagent_first)*
            $(
                $(#[doc = $inherited_doc])+
                ///
                /// The parent's when absent.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $inherited: Option<$inherited_type>,
            )*
            $( $(#[doc = $own_doc])+ $(#[serde($own_serde)])? pub $own: $own_type, )*
            $( $(#[doc = $always_own_doc])+ $(#[serde($always_own_serde)])? pub $always_own: $always_own_type, )*
            $(
                $(#[doc = $limited_doc])+
                ///
                /// The parent's when absent.
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $limited: Option<$limited_type>,
            )*
            $($subagent)*
        }

        $(#[$spec_meta])*
        pub struct AgentSpec {
            $($spec)*
            $( $(#[doc = $inherited_doc])+ pub $inherited: $inherited_type, )*
            $( $(#[doc = $limited_doc])+ pub $limited: $limited_type, )*
            $( $(#[doc = $own_doc])+ pub $own: $own_type, )*
            $( $(#[doc = $always_own_doc])+ pub $always_own: $always_own_type, )*
        }

        /// The fields of an agent that its subagents have as well, unless they give their own.
        pub const INHERITED_FIELDS: &[&str] = &["files", $( stringify!($inherited), )* $( stringify!($limited), )*];

        impl AgentDefinition {
            /// Returns the specification of the agent of this `graph_id`. The definition has to be
            /// [resolved](Self::resolved).
            pub fn spec(&self, graph_id: &str) -> AgentSpec {
                AgentSpec {
                    name: self.name_or(graph_id).to_owned(),
                    context_schema: self.context_schema.clone(),
                    settings_schema: self.settings_schema(),
                    files: self.files,
                    until_tool: None,
                    state: self.state.clone(),
                    display_text: None,
                    enclosed: Arc::clone(&self.enclosed),
                    $( $inherited: self.$inherited.clone(), )*
                    $( $limited: self.$limited.unwrap_or($default), )*
                    $( $own: self.$own.clone(), )*
                    $( $always_own: self.$always_own.clone(), )*
                }
            }
        }

        impl SubagentDefinition {
            /// Returns the specification of a subagent of this parent that is no fork. Both definitions have to be
            /// [resolved](AgentDefinition::resolved).
            pub fn spec(&self, parent: &AgentDefinition) -> AgentSpec {
                AgentSpec {
                    $( $own: self.$own.clone(), )*
                    ..self.over(parent.spec(&self.name))
                }
            }

            /// Returns the specification of a subagent below `above`, with the `own` fields of `above`.
            fn over(&self, mut above: AgentSpec) -> AgentSpec {
                if self.model.is_some() {
                    above.summarization = above.summarization.for_another_model();
                }
                AgentSpec {
                    name: self.name.clone(),
                    // A subagent gets the context of the run as it is, so no schema applies.
                    context_schema: None,
                    settings_schema: None,
                    until_tool: self.until_tool.clone(),
                    display_text: self.display_text.clone(),
                    $( $inherited: self.$inherited.clone().unwrap_or(above.$inherited), )*
                    $( $limited: self.$limited.unwrap_or(above.$limited), )*
                    $( $always_own: self.$always_own.clone(), )*
                    ..above
                }
            }
        }
    };
}

agents! {
    /// An agent, as its owner describes it. Its key is the `graph_id`.
    #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    agent {
        /// The name in events (`lc_agent_name`); the `graph_id` when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub name: Option<String>,
        /// The purpose of the agent, shown with its assistant.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub description: Option<String>,
        /// The registered program that the agent is. The agent then has neither model nor instructions, tools or
        /// policies.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub runnable: Option<String>,
        /// The agent of the server at `url` that does the work.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub graph_id: Option<String>,
        /// The address of the server that has this agent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub url: Option<String>,
        /// Headers sent to that server with every request.
        #[serde(skip_serializing_if = "Headers::is_empty")]
        pub headers: Headers,
    } shared {
        /// MCP servers for the agent and its subagents alone, by name. MCP servers of files are not stored with the
        /// definition.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub mcp_servers: BTreeMap<String, McpServerDefinition>,
        /// The agents to which the agent can delegate.
        pub subagents: Vec<SubagentDefinition>,
        /// JSON Schema of the context of every run; any context is accepted when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub context_schema: Option<Value>,
        /// The parts of the agent that each run may choose.
        #[serde(skip_serializing_if = "is_default")]
        pub configurable: Configurable,
        /// The place where the agent's file tools work.
        pub files: Workspace,
        /// The maximum depth of nested delegations; 1 means that subagents do not delegate.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub max_subagent_depth: Option<u32>,
        /// The subagent that every agent has by default.
        pub general_purpose_subagent: GeneralPurpose,
        /// The description of the `task` tool; `{available_agents}` in it is replaced by the list.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub task_description: Option<String>,
        /// Text about delegation that is added to the instructions, followed by the list of subagents.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub task_system_prompt: Option<String>,
        /// The names of the arguments of the `task` tool.
        pub task_dialect: TaskDialect,
        /// The reaction to a call that names an unknown subagent; that of the dialect when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub unknown_subagent: Option<UnknownSubagent>,
        /// True if the model sees the list of subagents; `true` when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub include_task_list: Option<bool>,
        /// The agents that see the entries of a run's `context`.
        pub context_scoping: ContextScoping,
        /// Fields of the state beside the standard ones, by name.
        pub state: BTreeMap<String, FieldDefinition>,
        /// The effect of an ordinary message on a pending interrupt.
        pub on_pending_interrupt: OnPendingInterrupt,
        /// The files beside the definition that it names. The files are kept with the definition, and never come from
        /// clients.
        #[serde(skip)]
        pub enclosed: Arc<BundledFiles>,
    }

    /// A subagent, as its owner describes it.
    #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    subagent {
        /// The name by which it is called; unique within the agent.
        pub name: String,
        /// The purpose of the subagent. The delegating model knows nothing else of it.
        pub description: String,
        /// The registered program that does the work. The subagent then has neither model nor instructions, tools or
        /// policies.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub runnable: Option<String>,
    } shared {
        /// The messages with which its conversation begins, before the description of the work.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub initial_messages: Vec<Value>,
        /// MCP servers for it alone, by name.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        pub mcp_servers: BTreeMap<String, McpServerDefinition>,
        /// The parts of its parent that it has, beyond those that every subagent has.
        #[serde(skip_serializing_if = "is_default")]
        pub inherit: Inherit,
        /// The policies that it does not get, by their names.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub block_middleware: Vec<String>,
        /// The conversation with which it begins: an empty one, or its parent's.
        #[serde(skip_serializing_if = "is_default")]
        pub mode: SubagentMode,
        /// Instructions for using it, which the delegating model reads on demand.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub use_instructions: Option<String>,
        /// The part of its work that clients see; all of it when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub visibility: Option<Visibility>,
        /// A text for user interfaces to show while it works.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub display_text: Option<String>,
        /// The tools that end its work; the result of the first that succeeds is its own.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub until_tool: Option<UntilTool>,
        /// The agent that does the work, on this server or at `url`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub graph_id: Option<String>,
        /// The address of the server that has this agent; this server when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub url: Option<String>,
        /// Headers sent to that server with every request.
        #[serde(skip_serializing_if = "Headers::is_empty")]
        pub headers: Headers,
        /// True if such an agent works in the background; `true` when absent.
        #[serde(rename = "async", skip_serializing_if = "Option::is_none")]
        pub in_background: Option<bool>,
        /// An address that is notified when a background run ends.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub webhook: Option<String>,
        /// The effect of a further message on a background task under way; `interrupt` when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub update_strategy: Option<UpdateStrategy>,
        /// True if the parent is notified when a background task ends; `true` when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub notify_parent: Option<bool>,
    }

    /// An agent with the values inherited from its parent and the defaults of the server. The agent is a main agent, a
    /// subagent or a fork.
    #[derive(Debug, Clone, PartialEq)]
    spec {
        /// The name.
        pub name: String,
        /// JSON Schema of the context. None for subagents, which get the context as it is.
        pub context_schema: Option<Value>,
        /// The same with the entries by which a run chooses parts of the agent.
        pub settings_schema: Option<Value>,
        /// The place where its file tools work.
        pub files: Workspace,
        /// The tools that end its work.
        pub until_tool: Option<UntilTool>,
        /// Fields of the state beside the standard ones.
        pub state: BTreeMap<String, FieldDefinition>,
        /// A text for user interfaces to show while it works.
        pub display_text: Option<String>,
        /// The files beside the definition.
        pub enclosed: Arc<BundledFiles>,
    }

    inherited {
        /// The model, as `provider:model-name`, or a list: each model after the first is asked when the one before it fails.
        model: ModelNames,
        /// Provider settings (`temperature`, `max_tokens`, …).
        model_settings: Map<String, Value>,
        /// Names of declared tools.
        tools: Vec<String>,
        /// The tools whose calls a human has to approve.
        interrupt_on: BTreeMap<String, ApprovalRule>,
        /// One interrupt for all calls of an answer, or one for each call.
        #[serde(skip_serializing_if = "is_default")]
        interrupt_mode: InterruptMode,
        /// The users and roles who answer its questions and decide about its calls, where `interrupt_on` names nobody else.
        #[serde(skip_serializing_if = "Approvers::is_empty")]
        approvers: Approvers,
        /// The rules for the files that it may read and change. Without rules it may read and change all files.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        permissions: Vec<Permission>,
        /// The place where its files are.
        #[serde(skip_serializing_if = "is_default")]
        workspace: WorkspaceDefinition,
        /// The rule for its commands: off, or on with these settings.
        #[serde(skip_serializing_if = "is_default")]
        execute: ExecuteRule,
        /// Its tools for the Store.
        store: StoreRule,
        /// When the older part of its conversation is replaced by a summary in requests.
        #[serde(skip_serializing_if = "is_default")]
        summarization: SummarizationRule,
    }

    limited {
        /// The maximum number of steps of one run or delegation.
        recursion_limit: u32 = STEP_LIMIT,
        /// The maximum length of a result that stays in the conversation, in tokens of about four characters. Longer
        /// ones become files, if the agent has file tools.
        tool_token_limit_before_evict: u32 = 20_000,
        /// The maximum length of a human message that the model reads whole, in tokens of about four characters. If the
        /// agent has file tools, it reads the beginning and the end of longer ones; the whole text is in a file.
        human_message_token_limit_before_evict: u32 = 50_000,
    }

    own {
        /// The instructions.
        system_prompt: SystemPrompt,
        /// Listed policies, inside those that the server brings.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        middleware: Vec<Policy>,
        /// True if it has `write_todos`.
        todos: bool,
        /// True if it has `ask_user`.
        #[serde(skip_serializing_if = "is_default")]
        ask_user: bool,
        /// The folders with its skills. If two skills have one name, the one in the later folder precedes.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        skills: Vec<SkillSource>,
        /// Names of declared tools that the agent has only after it has read a skill that includes them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        skill_tools: Vec<String>,
        /// Files whose texts are a part of its instructions, and which it may keep up to date.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        memory: Vec<String>,
        /// The tools that it would have and does not get.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        excluded_tools: Vec<String>,
        /// The descriptions of tools that replace the tools' own.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        tool_description_overrides: BTreeMap<String, String>,
    }

    always_own {
        /// JSON Schema of the final answer if it is structured, or a table with it; see [`super::AnswerFormat`].
        #[serde(skip_serializing_if = "Option::is_none")]
        response_format: Option<Value>,
        /// The limits of one run or delegation.
        #[serde(skip_serializing_if = "Option::is_none")]
        limits: Option<Limits>,
    }
}

/// The fields that are settings of policies of the server, by the names of these policies.
pub const POLICY_FIELDS: [(&str, &[&str]); 14] = [
    (
        FILES,
        &[
            "files",
            "workspace",
            "execute",
            "permissions",
            "tool_token_limit_before_evict",
            "human_message_token_limit_before_evict",
        ],
    ),
    (
        SUBAGENTS,
        &[
            "max_subagent_depth",
            "task_description",
            "task_system_prompt",
            "task_dialect",
            "unknown_subagent",
        ],
    ),
    (TODOS, &["todos"]),
    (STORE, &["store"]),
    (SKILLS, &["skills", "skill_tools"]),
    (MEMORY, &["memory"]),
    (ASK_USER, &["ask_user"]),
    (SUMMARIZATION, &["summarization"]),
    (
        APPROVAL,
        &["interrupt_on", "interrupt_mode", "permissions", "approvers"],
    ),
    (UNTIL, &["until_tool"]),
    (STRUCTURED, &["response_format"]),
    (PERMISSIONS, &["permissions"]),
    (LIMITS, &["limits"]),
    (REPEATED_FAILURES, &["limits"]),
];

/// Returns subagents, each with its field.
pub(super) fn with_fields_mut(
    subagents: &mut [SubagentDefinition],
) -> impl Iterator<Item = (FieldPath, &mut SubagentDefinition)> {
    let list = FieldPath::of(["subagents"]);
    let all = subagents.iter_mut().enumerate();
    all.map(move |(at, subagent)| (list.then(at), subagent))
}

impl AgentDefinition {
    /// Returns the subagents, each with its field.
    pub(crate) fn subagents_with_fields(&self) -> impl Iterator<Item = (FieldPath, &SubagentDefinition)> {
        let list = FieldPath::of(["subagents"]);
        let all = self.subagents.iter().enumerate();
        all.map(move |(at, subagent)| (list.then(at), subagent))
    }

    /// Returns the name of the agent: the one that it has been given, or else its `graph_id`.
    pub fn name_or<'a>(&'a self, graph_id: &'a str) -> &'a str {
        self.name.as_deref().unwrap_or(graph_id)
    }
}

impl SubagentDefinition {
    /// Returns the specification of this fork of `caller`.
    pub fn fork_spec(&self, caller: &AgentSpec) -> AgentSpec {
        let is_there = |name: &str| caller.middleware.iter().any(|policy| policy.name == name);
        let own = self.middleware.iter().filter(|policy| !is_there(&policy.name));
        AgentSpec {
            middleware: caller.middleware.iter().chain(own).cloned().collect(),
            todos: caller.todos || self.todos,
            ask_user: caller.ask_user || self.ask_user,
            ..self.over(caller.clone())
        }
    }
}

/// The effect of an ordinary message on a pending interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnPendingInterrupt {
    /// The question is dropped and its calls are answered as not completed.
    #[default]
    Drop,
    /// The message is refused.
    Reject,
}

/// The conversation with which a subagent begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SubagentMode {
    /// An empty conversation. The subagent knows only the description of its work.
    #[default]
    Isolated,
    /// The conversation of its caller up to that message, with the instructions and tools of its caller.
    Fork,
}
