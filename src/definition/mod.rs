//! Definitions of agents and tools, in files and requests.
//!
//! | To see | Open |
//! |---|---|
//! | the fields | `agent`, `tool`, `mcp`; of parts `prompt`, `read_access`, `initial_messages`, `general_purpose`, `policy`, `inherit`, `permission`, `approval`, `answer`, `store`, `summarization`, `workspace`, `sandbox_service`, `execute`, `source`, `remote` |
//! | an agent with all that it has from its parent | `AgentSpec` in `agent` |
//! | the tables of what comes with the server | `builtins` (policies, their tools, settings and fields), `provider` (kinds of providers) |
//! | the checks and their messages | `check` and the `check` of each part; `words` for names, addresses and paths; `read`, `strict` and `switch` for wrong shapes; `validate` for all of it |
//! | several spellings of one meaning | `policy` (`resolved`), `inherit`, `profile` |
//! | the spellings of other systems and of older times | `compat` |
//! | the rules for calls that permissions give, and their patterns | `call_rules`, `patterns` |
//! | the models that a definition names, for rules about models | `named_models` |
//! | stored definitions, and files beside them | `record`, `bundled_files`, `named_sources` |
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
mod clients;
pub mod compat;
mod configurable;
pub mod description;
mod diagnostic;
mod execute;
pub mod front_matter;
mod general_purpose;
mod headers;
mod inherit;
mod initial_messages;
pub mod mcp;
mod mcp_oauth;
mod media_inputs;
mod model_names;
mod model_settings;
mod named_models;
mod named_sources;
mod patterns;
mod permission;
mod policy;
mod profile;
mod prompt;
pub mod provider;
mod read;
mod read_access;
mod record;
mod remote;
mod runnable;
mod sandbox_service;
pub mod skill;
mod source;
mod store;
mod strict;
mod summarization;
mod switch;
mod tool;
mod tool_server;
mod validate;
pub mod words;
mod workspace;

use agent::is_default;
pub use agent::{
    AgentDefinition, AgentSpec, ContextScoping, INHERITED_FIELDS, OnPendingInterrupt, POLICY_FIELDS, STEP_LIMIT,
    SubagentDefinition, SubagentMode, UntilTool, Workspace,
};
pub use answer::{AnswerFormat, AnswerStrategy, HandleErrors, form_name, form_problem};
pub use approval::{ApprovalChoices, ApprovalRule, ExpiryDecision, InterruptMode, MAX_EXPIRY_S};
pub use bundled_files::BundledFiles;
pub use call_rules::CallRules;
pub use check::MOST_RETRIES;
pub use clients::ClientRules;
pub use compat::{TaskDialect, UnknownSubagent};
pub use configurable::Configurable;
pub use diagnostic::{Diagnostic, FieldPath, Segment, Severity, nearest, suggestion};
pub use execute::{CommandEnvironment, CommandNetwork, ExecuteRule, ExecuteSettings, Isolation};
pub use general_purpose::{GENERAL_PURPOSE, GeneralPurpose};
pub use headers::{check_headers, header_name_problem};
pub use inherit::{Inherit, InheritedPolicies};
pub use media_inputs::MediaInputs;
pub use model_names::{MAX_MODEL_NAMES, ModelNames};
pub use model_settings::{is_about_answers, is_structural_setting};
pub use named_models::{ModelUsage, NamedModel};
pub use permission::{FileOperation, FileRules, Permission, PermissionMode};
pub use policy::Policy;
pub use profile::{GeneralProfile, HarnessProfile, HarnessProfiles};
pub use prompt::{BlockKind, CacheControl, CacheKind, CacheTtl, MOST_MARKERS, PromptBlock, SystemPrompt};
pub use read::{FieldMap, Parsed, is_echo, read};
pub use record::{
    DefinitionSource, DefinitionVersion, LARGEST_DEFINITION, MOST_AGENTS, StoredDiagnostic, VERSIONS_KEPT,
};
pub use remote::Location;
pub use sandbox_service::SandboxServiceDefinition;
pub use source::{LabelledSource, NamedSource, SkillSource, source_problem};
pub use store::{NamespaceAccess, StoreRule};
pub use summarization::{ContextLength, ContextTrigger, SummarizationRule, SummarizationSettings};
pub use tool::{AfterCrash, BUILT_IN, OnError, ToolDefinition, ToolKind};
pub use tool_server::ToolServerDefinition;
pub use validate::{Validated, validate};
pub use workspace::{SandboxScope, THREAD_FOLDERS, WorkspaceDefinition, WorkspaceKind};

pub use crate::domain::background::UpdateStrategy;
pub use crate::domain::headers::Headers;
pub use crate::domain::id::DefinitionDigest;
pub use crate::domain::read_access::ReadAccess;
