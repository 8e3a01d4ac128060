//! Checks definitions that have the right shape.
//!
//! All mistakes are reported at once, each with its field. The checks look nothing up: the caller provides the declared
//! tools and the providers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::agent::AgentDefinition;
use super::answer;
use super::builtins::is_standard_field;
use super::compat::UnknownSubagent;
use super::diagnostic::{Diagnostic, FieldPath};
use super::mcp::check_servers;
use super::model_settings::check_settings;
use super::schema::check_object_schema;
use super::validation_context::ValidationContext;
use super::words::is_word;
use crate::domain::field::FieldDefinition;
use crate::domain::schema::Schema;
use crate::domain::state::is_private;

mod approvals;
mod clients;
mod configurable;
mod execution;
mod inheritance;
mod limits;
mod listed_policies;
mod models;
mod names;
mod origin;
mod policies;
mod profile;
mod programs;
mod prompts;
mod references;
mod skills;
mod subagents;
mod tools;
mod toolset;

use limits::DEEPEST;
pub use models::check_model;
pub(super) use origin::check_origin;
use skills::SkillsAndMemory;

/// Checks the definition of an agent. The fields of the diagnostics are relative to the definition.
pub fn check_agent(graph_id: &str, agent: &AgentDefinition, context: &ValidationContext) -> Vec<Diagnostic> {
    let mut check = Check::new(context);
    check.servers.extend(agent.mcp_servers.keys().cloned());
    let top = FieldPath::default();
    if let Some(problem) = names::graph_id_problem(graph_id) {
        check.error(&top, problem);
    }
    check.names(agent);
    check.not_blank(&top.then("name"), agent.name.as_deref());
    check.not_blank(&top.then("description"), agent.description.as_deref());
    if agent.is_program() {
        check.program(agent);
        return check.findings;
    }
    check.models(&top.then("model"), &agent.model);
    check
        .findings
        .extend(check_settings(&top.then("model_settings"), &agent.model_settings));
    check
        .findings
        .extend(check_servers(&top.then("mcp_servers"), &agent.mcp_servers));
    check.tools(&top.then("tools"), &agent.tools);
    check.approvers(&top.then("approvers"), &agent.approvers);
    if let Some(schema) = &agent.context_schema {
        check
            .findings
            .extend(check_object_schema(&top.then("context_schema"), schema));
    }
    check.not_blank(&top.then("task_description"), agent.task_description.as_deref());
    check.not_blank(&top.then("task_system_prompt"), agent.task_system_prompt.as_deref());
    check.steps(&top.then("recursion_limit"), agent.recursion_limit);
    check.limits(&top.then("limits"), agent.limits.as_ref(), true);
    if agent.max_subagent_depth.is_some_and(|depth| depth > DEEPEST) {
        check.error(
            &top.then("max_subagent_depth"),
            format!("must be a whole number from 0 to {DEEPEST}"),
        );
    }
    if agent.max_subagent_depth == Some(0) && !agent.subagents.is_empty() {
        check.warn(
            &top.then("max_subagent_depth"),
            "is 0, so that the subagents are never called",
        );
    }
    check.findings.extend(agent.store.check(&top.then("store")));
    check.summarization(&top.then("summarization"), &agent.summarization);
    for (field, workspace) in agent.workspaces() {
        check.findings.extend(workspace.check(&field, &context.sandboxes));
    }
    // The resolved form is checked, too, so that all spellings of one meaning are treated alike.
    let resolved = agent.resolved();
    check.findings.extend(agent.check_execution(&resolved));
    check.skills_and_memory(&top, &SkillsAndMemory::of_agent(agent));
    check.policies(agent, &resolved);
    check.state_fields(&top.then("state"), &agent.state);
    check.general_purpose(agent, &resolved);
    if agent.unknown_subagent == Some(UnknownSubagent::Fallback) && agent.general_subagent().is_none() {
        let message = "is `fallback`, but there is no general-purpose subagent to fall back to";
        check.error(&top.then("unknown_subagent"), message);
    }
    check.approvals(
        &top.then("interrupt_on"),
        &resolved.interrupt_on,
        &toolset::approvable(&resolved),
    );
    check.changed_tools(
        &top,
        &agent.excluded_tools,
        &agent.tool_description_overrides,
        &toolset::approvable(&resolved),
    );
    check.answer(&top, agent.response_format.as_ref(), &toolset::of_agent(&resolved));
    check.subagents(agent, &resolved);
    check.locations(graph_id, agent);
    if !agent.headers.is_empty() {
        let message = "goes with `graph_id` and `url` only: it is sent to the server of that agent";
        check.error(&top.then("headers"), message);
    }
    check
        .findings
        .extend(agent.check_registered(context).into_iter().chain(agent.check_prompts()));
    check.findings.extend(agent.check_configurable(context));
    check.findings
}

struct Check<'a> {
    context: &'a ValidationContext,
    /// The MCP servers whose tools can be named here.
    servers: BTreeSet<String>,
    findings: Vec<Diagnostic>,
}

impl<'a> Check<'a> {
    fn new(context: &'a ValidationContext) -> Self {
        Self {
            context,
            servers: context.mcp_servers.clone(),
            findings: Vec::new(),
        }
    }
}

impl Check<'_> {
    fn error(&mut self, field: &FieldPath, message: impl Into<String>) {
        self.findings.push(Diagnostic::error(field.clone(), message));
    }

    fn warn(&mut self, field: &FieldPath, message: impl Into<String>) {
        self.findings.push(Diagnostic::warning(field.clone(), message));
    }

    fn not_blank(&mut self, field: &FieldPath, text: Option<&str>) {
        if text.is_some_and(|text| text.trim().is_empty()) {
            self.error(field, "must not be blank; leave it out for the default");
        }
    }

    fn required(&mut self, field: &FieldPath, text: &str, purpose: &str) {
        if text.trim().is_empty() {
            self.error(field, format!("must be given: {purpose}"));
        }
    }

    fn state_fields(&mut self, section: &FieldPath, fields: &BTreeMap<String, FieldDefinition>) {
        for (name, definition) in fields {
            let field = section.then(name);
            if !is_word(name, 64, "") {
                self.error(&field, "must be 1 to 64 letters, digits, `_` or `-`");
            } else if is_private(name) || is_standard_field(name) {
                self.error(
                    &field,
                    format!("the name `{name}` belongs to the server; choose another"),
                );
            }
            if let Some(Err(error)) = definition.schema.as_ref().map(Schema::compile) {
                self.error(&field.then("schema"), format!("is not a JSON Schema: {error}"));
            }
        }
    }

    /// Checks an agent that is a program, or an agent of another server.
    fn program(&mut self, agent: &AgentDefinition) {
        let top = FieldPath::default();
        self.findings.extend(agent.check_program(self.context));
        self.approvers(&top.then("approvers"), &agent.approvers);
        if let Some(schema) = &agent.context_schema {
            self.findings
                .extend(check_object_schema(&top.then("context_schema"), schema));
        }
        self.steps(&top.then("recursion_limit"), agent.recursion_limit);
        self.limits(&top.then("limits"), agent.limits.as_ref(), true);
        self.state_fields(&top.then("state"), &agent.state);
        self.answer(&top, agent.response_format.as_ref(), &BTreeSet::new());
    }

    /// Checks the form of the answer of the agent in `field`, which has these tools.
    fn answer(&mut self, field: &FieldPath, format: Option<&Value>, tools: &BTreeSet<&str>) {
        let field = field.then("response_format");
        let found = format.map(|format| answer::check(&field, format, |name| tools.contains(name)));
        self.findings.extend(found.unwrap_or_default());
    }
}
