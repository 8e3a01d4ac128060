//! Definitions of agents and tools, in files and requests.
//!
//! The modules import each other one way, from the bottom of this table to its top, and none imports this one.
//!
//! | To see | Open |
//! |---|---|
//! | the mistakes, and the checks of single words, addresses and paths | `diagnostic`, `words` |
//! | the limits on the definitions of clients | `limits` |
//! | the reader, which reports all wrong shapes at once | `read`, with `strict` and `untagged` |
//! | the tables of what comes with the server | `builtins` (policies, their tools, settings and fields), `provider` (kinds of providers) |
//! | the files that are stored with a definition | `bundled_files` |
//! | the values of fields, each with the checks that need nothing else | `answer`, `approval`, `configurable`, `context_scoping`, `general_purpose`, `headers`, `inherit`, `model_names`, `model_settings`, `namespace`, `policy`, `prompt`, `read_access`, `schema`, `source`, `store`, `summarization`, `until_tool`, `workspace` |
//! | the settings of listed policies that are also fields | `listed_settings` |
//! | the spellings of other systems and of older times | `compat` |
//! | tools, and the servers that have some | `tool`, `mcp`, `tool_server`; `execute` for commands, `sandbox_service` for sandboxes |
//! | permissions, their patterns, and the rules for calls that they give | `permission`, `patterns`, `call_rules` |
//! | the fields of agents and subagents, and an agent with all that it has from its parent | `agent`, there `AgentSpec` |
//! | the parts of a definition, over all of its agents | `commands`, `delegates`, `initial_messages`, `location`, `named_models`, `named_sources`, `servers`, `workspaces` |
//! | several spellings of one meaning, as one | `resolved` |
//! | the definition as one run or one model has it | `choices`, `profile` |
//! | stored definitions | `record` |
//! | the checks that need the names of other agents, tools and models | `check`, with `validation_context`; `validate` for all of it |
//!
//! A new field of agents and subagents is one entry in the lists of `agent`, is used where agents are built
//! (`agent::assemble`, or the policy that it concerns) and is in the tables of `docs/agents.md` and
//! `docs/subagents.md`. If it names a model, `named_models` lists it, so that clients and tenants use only models that they
//! may use, and a missing key is reported.
//!
//! Every field has a default, so that a definition with mistakes can be read as far as possible and all mistakes be
//! reported at once: [`read()`] reports wrong shapes, [`check`] wrong values.

mod agent;
mod answer;
mod approval;
pub mod builtins;
pub mod bundled_files;
mod call_rules;
pub mod check;
mod choices;
mod clients;
mod commands;
pub mod compat;
mod configurable;
mod context_scoping;
mod delegates;
pub mod description;
mod diagnostic;
mod execute;
pub mod front_matter;
mod general_purpose;
mod headers;
mod inherit;
mod initial_messages;
mod limits;
mod listed_settings;
mod location;
pub mod mcp;
mod media_inputs;
mod model_names;
mod model_settings;
mod named_models;
mod named_sources;
mod namespace;
mod patterns;
mod permission;
mod policy;
mod profile;
mod prompt;
pub mod provider;
mod read;
mod read_access;
mod record;
mod resolved;
mod sandbox_service;
mod schema;
pub mod servers;
pub mod skill;
mod source;
mod store;
mod strict;
mod summarization;
mod tool;
mod tool_server;
mod untagged;
mod until_tool;
mod validate;
mod validation_context;
pub mod words;
mod workspace;
mod workspaces;

pub use agent::{
    AgentDefinition, AgentSpec, INHERITED_FIELDS, OnPendingInterrupt, POLICY_FIELDS, STEP_LIMIT, SubagentDefinition,
    SubagentMode,
};
pub use answer::{AnswerFormat, AnswerStrategy, HandleErrors, form_name, form_problem};
pub use approval::{ApprovalChoices, ApprovalRule, ExpiryDecision, InterruptMode, MAX_EXPIRY_S};
pub use bundled_files::BundledFiles;
pub use call_rules::CallRules;
pub use clients::ClientRules;
pub use compat::{TaskDialect, UnknownSubagent};
pub use configurable::Configurable;
pub use context_scoping::ContextScoping;
pub use diagnostic::{Diagnostic, FieldPath, Segment, Severity, nearest, suggestion};
pub use execute::{CommandEnvironment, CommandNetwork, ExecuteRule, ExecuteSettings, Isolation};
pub use general_purpose::{GENERAL_PURPOSE, GeneralPurpose};
pub use headers::{check_headers, header_name_problem};
pub use inherit::{Inherit, InheritedPolicies};
pub use limits::{LARGEST_DEFINITION, MOST_AGENTS, VERSIONS_KEPT};
pub use location::Location;
pub use media_inputs::MediaInputs;
pub use model_names::{MAX_MODEL_NAMES, ModelNames};
pub use model_settings::{is_about_answers, is_structural_setting};
pub use named_models::{ModelUsage, NamedModel};
pub use named_sources::NamedSource;
pub use permission::{FileOperation, FileRules, Permission, PermissionMode};
pub use policy::Policy;
pub use profile::{GeneralProfile, HarnessProfile, HarnessProfiles};
pub use prompt::{BlockKind, CacheControl, CacheKind, CacheTtl, MOST_MARKERS, PromptBlock, SystemPrompt};
pub use read::{FieldMap, Parsed, is_repeated_finding, read};
pub use record::{DefinitionSource, DefinitionVersion, StoredDiagnostic};
pub use sandbox_service::SandboxServiceDefinition;
pub use source::{LabelledSource, SkillSource, source_problem};
pub use store::{NamespaceAccess, StoreRule};
pub use summarization::{ContextLength, ContextTrigger, SummarizationRule, SummarizationSettings};
pub use tool::{AfterCrash, BUILT_IN, MOST_RETRIES, OnError, ToolDefinition, ToolKind, tool_name_problem};
pub use tool_server::ToolServerDefinition;
pub use until_tool::UntilTool;
pub use validate::{Validated, validate};
pub use validation_context::{RegisteredPolicy, ValidationContext};
pub use workspace::{SandboxScope, THREAD_FOLDERS, Workspace, WorkspaceDefinition, WorkspaceKind};

pub use crate::domain::background::UpdateStrategy;
pub use crate::domain::headers::Headers;
pub use crate::domain::id::DefinitionDigest;
pub use crate::domain::read_access::ReadAccess;
