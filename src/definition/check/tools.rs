//! Checks the names of the tools that a definition refers to.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use crate::definition::builtins::{Builtin, Listing, SUBAGENTS, is_policy_tool};
use crate::definition::diagnostic::{FieldPath, suggestion};
use crate::definition::mcp::McpReference;
use crate::definition::validation_context::ValidationContext;

/// Returns whether a tool of this name may exist: a declared tool, a tool of a policy, or a tool of an MCP server.
pub(super) fn is_known_tool(name: &str, context: &ValidationContext) -> bool {
    is_policy_tool(name)
        || context.tools.contains(name)
        || McpReference::read(name).is_some_and(|reference| reference.problem(&context.mcp_servers).is_none())
}

/// Returns whether a rule about `tool` concerns one of `tools`. The lists of MCP servers are not known here.
pub(super) fn is_among(tool: &str, tools: &BTreeSet<&str>) -> bool {
    let Some(reference) = McpReference::read(tool) else {
        return tools.contains(tool);
    };
    let all = format!("{}/", reference.server);
    tools.contains(tool)
        || tools.contains(format!("{all}*").as_str())
        || reference.tool.is_none() && tools.iter().any(|name| name.starts_with(&all))
}

/// Returns the reason why a tool of the server cannot be listed among the declared tools.
fn unlisted(builtin: &Builtin, tool: &str) -> String {
    match builtin.listing {
        Listing::Listed { field: Some(field), .. } => {
            format!("`{tool}` is not declared but switched on: `{field} = true`")
        }
        Listing::Listed { field: None, .. } => {
            let policy = builtin.name;
            format!("`{tool}` is not declared but comes with the policy `{policy}`, which `middleware` can list")
        }
        Listing::Always(_) | Listing::Implied => format!("`{tool}` comes with the server and is not listed"),
    }
}

impl Check<'_> {
    pub(super) fn tools(&mut self, field: &FieldPath, tools: &[String]) {
        let mut seen = BTreeSet::new();
        for (at, tool) in tools.iter().enumerate() {
            let field = field.then(at);
            if !seen.insert(tool) {
                self.warn(&field, format!("`{tool}` is listed twice"));
            } else if let Some(builtin) = Builtin::with_tool(tool) {
                self.error(&field, unlisted(builtin, tool));
            } else if let Some(reference) = McpReference::read(tool) {
                let problem = reference.problem(&self.servers);
                problem.into_iter().for_each(|problem| self.error(&field, problem));
            } else if !self.context.tools.contains(tool) {
                let known = self.context.tools.iter().map(String::as_str);
                let known = suggestion(tool, known, "declared are");
                self.error(&field, format!("there is no tool `{tool}`; {known}"));
            }
        }
    }

    /// Checks excluded tools and descriptions of tools, of an agent that has these tools.
    pub(super) fn changed_tools(
        &mut self,
        field: &FieldPath,
        excluded: &[String],
        described: &BTreeMap<String, String>,
        tools: &BTreeSet<&str>,
    ) {
        let names = described
            .keys()
            .map(|name| (field.then("tool_description_overrides").then(name), name));
        let excluded = excluded.iter().enumerate();
        let all = names.chain(excluded.map(|(at, name)| (field.then("excluded_tools").then(at), name)));
        let is_task = |name: &str| Builtin::tools_of(SUBAGENTS).contains(&name);
        for (place, name) in all.filter(|(_, name)| !is_among(name, tools) && !is_task(name)) {
            let known = suggestion(name, tools.iter().copied(), "it has");
            self.error(&place, format!("the agent has no tool `{name}`; {known}"));
        }
        for (name, text) in described {
            self.required(
                &field.then("tool_description_overrides").then(name),
                text,
                "the model chooses by it",
            );
        }
    }
}
