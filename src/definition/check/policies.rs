//! Checks the policies that are listed, inherited and blocked, and the mode of subagents.

use std::collections::BTreeSet;

use super::super::builtins::APPROVAL;
use super::super::mcp::McpReference;
use super::super::{
    AgentDefinition, FieldPath, Permission, Policy, SubagentDefinition, SubagentMode, Workspace, inherit, patterns,
    permission, policy, suggestion,
};
use super::{Check, is_among, is_known_tool, toolset};

impl Check<'_> {
    pub(super) fn policies(&mut self, agent: &AgentDefinition) {
        let resolved = agent.resolved();
        self.findings.extend(agent.check_policies(self.context));
        let tools = toolset::with_delegation(toolset::of_agent(&resolved), &resolved);
        self.tools_of_policies(&FieldPath::of(["middleware"]), &agent.middleware, &tools);
        let permissions = FieldPath::of(["permissions"]);
        self.findings
            .extend(permission::check(&permissions, &agent.permissions));
        self.permitted_tools(&permissions, &agent.permissions);
        self.limits_of_files(agent);
        let general = &agent.general_purpose_subagent;
        let field = FieldPath::of(["general_purpose_subagent"]);
        let fields = [(APPROVAL, general.interrupt_on.is_some())];
        self.findings.extend(policy::check(
            &field.then("middleware"),
            &general.middleware,
            &fields,
            self.context,
        ));
        let tools = toolset::with_delegation(toolset::of_general(&resolved), &resolved);
        self.tools_of_policies(&field.then("middleware"), &general.middleware, &tools);
        self.findings.extend(inherit::check(
            &field,
            &general.inherit,
            &general.block_middleware,
            &resolved,
            self.context,
        ));
        for (at, subagent) in agent.subagents.iter().enumerate() {
            let field = FieldPath::of(["subagents"]).then(at);
            self.findings.extend(subagent.check_policies(&field, self.context));
            let tools = toolset::of_subagent(&resolved.subagents[at], &resolved);
            let tools = toolset::with_delegation(tools, &resolved);
            self.tools_of_policies(&field.then("middleware"), &subagent.middleware, &tools);
            self.findings.extend(inherit::check(
                &field,
                &subagent.inherit,
                &subagent.block_middleware,
                &resolved,
                self.context,
            ));
            let permissions = subagent.permissions.as_deref().unwrap_or_default();
            self.findings
                .extend(permission::check(&field.then("permissions"), permissions));
            self.permitted_tools(&field.then("permissions"), permissions);
            self.mode(&field, subagent);
            self.findings.extend(subagent.check_initial(&field));
        }
    }

    /// Warns of limits that belong to the file tools, for an agent without them.
    fn limits_of_files(&mut self, agent: &AgentDefinition) {
        if agent.files != Workspace::None {
            return;
        }
        let limits = |result: Option<u32>, message: Option<u32>| {
            [
                ("tool_token_limit_before_evict", result),
                ("human_message_token_limit_before_evict", message),
            ]
        };
        let own = limits(
            agent.tool_token_limit_before_evict,
            agent.human_message_token_limit_before_evict,
        );
        let mut all = vec![(FieldPath::default(), own)];
        all.extend(agent.subagents.iter().enumerate().map(|(at, subagent)| {
            let own = limits(
                subagent.tool_token_limit_before_evict,
                subagent.human_message_token_limit_before_evict,
            );
            (FieldPath::of(["subagents"]).then(at), own)
        }));
        for (place, limits) in all {
            for (name, _) in limits.into_iter().filter(|(_, limit)| limit.is_some()) {
                let message = "is without effect with `files = \"none\"`: the rest would be in a file";
                self.warn(&place.then(name), message);
            }
        }
    }

    /// Warns of policies in `list` that name tools that their agent, which has `tools`, lacks. Tools of the program's own
    /// policies are never reported: an agent may also inherit these.
    fn tools_of_policies(&mut self, list: &FieldPath, policies: &[Policy], tools: &BTreeSet<&str>) {
        for (at, policy) in policies.iter().enumerate() {
            for (field, tool) in self.context.tools_of(policy, &list.then(at)) {
                let mut registered = self.context.middleware.values();
                if is_among(tool, tools) || registered.any(|other| other.tools.contains(tool)) {
                    continue;
                }
                let known = suggestion(tool, tools.iter().copied(), "it has");
                let message = format!("the agent has no tool `{tool}`, so that the name is without effect; {known}");
                self.warn(&field, message);
            }
        }
    }

    /// Warns of rules about tools that do not exist.
    fn permitted_tools(&mut self, field: &FieldPath, permissions: &[Permission]) {
        for (at, permission) in permissions.iter().enumerate() {
            for (number, tool) in permission.tools.iter().enumerate() {
                let is_server = McpReference::read(tool).is_some_and(|one| one.problem(&self.servers).is_none());
                if patterns::is_pattern(tool) || is_server || is_known_tool(tool, self.context) {
                    continue;
                }
                let known = suggestion(tool, self.context.tools.iter().map(String::as_str), "declared are");
                let message = format!("there is no tool `{tool}`, so that the rule is about nothing; {known}");
                self.warn(&field.then(at).then("tools").then(number), message);
            }
        }
    }

    /// Checks a fork, which has everything from its caller but its name, its task and some text.
    fn mode(&mut self, field: &FieldPath, subagent: &SubagentDefinition) {
        if subagent.mode != SubagentMode::Fork {
            return;
        }
        let given = [
            ("initial_messages", !subagent.initial_messages.is_empty()),
            ("skills", !subagent.skills.is_empty()),
            ("skill_tools", !subagent.skill_tools.is_empty()),
            ("mcp_servers", !subagent.mcp_servers.is_empty()),
            ("memory", !subagent.memory.is_empty()),
            ("excluded_tools", !subagent.excluded_tools.is_empty()),
            (
                "tool_description_overrides",
                !subagent.tool_description_overrides.is_empty(),
            ),
            ("inherit", subagent.inherit != inherit::Inherit::default()),
            ("block_middleware", !subagent.block_middleware.is_empty()),
        ];
        for (name, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
            self.error(
                &field.then(name),
                "goes without `mode = \"fork\"` only: a fork has what its caller has",
            );
        }
        let costly = [("tools", subagent.tools.is_some()), ("model", subagent.model.is_some())];
        for (name, _) in costly.into_iter().filter(|(_, is_given)| *is_given) {
            let message = "differs from the caller's, so that no provider can reuse what it has read for the caller";
            self.warn(&field.then(name), message);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::definition::ClientRules;
    use crate::definition::check::ValidationContext;
    use crate::definition::validate;

    fn findings(mut subagent: Value) -> Vec<String> {
        subagent["name"] = json!("twin");
        subagent["description"] = json!("Goes on as its caller.");
        let providers = ["scripted".to_owned()].into_iter().collect();
        let context = ValidationContext {
            providers,
            clients: ClientRules::everything(),
            ..ValidationContext::default()
        };
        let body = json!({"model": "scripted:x", "subagents": [subagent]});
        validate("a", body, &context)
            .findings
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_fork_has_what_its_caller_has() {
        assert_eq!(findings(json!({"mode": "fork", "system_prompt": "Be brief."})), [""; 0]);
        let reported = findings(json!({"mode": "fork", "skills": ["/s"], "memory": ["/m.md"], "tools": []}));
        assert!(
            reported[0].starts_with("subagents[0].memory: goes without `mode = \"fork\"` only"),
            "{reported:#?}"
        );
        assert!(
            reported[1].starts_with("subagents[0].skills: goes without"),
            "{reported:#?}"
        );
        assert!(
            reported[2].starts_with("subagents[0].tools: differs from the caller's"),
            "{reported:#?}"
        );
    }

    #[test]
    fn limits_of_file_tools_are_reported_where_there_are_none() {
        let context = ValidationContext {
            providers: ["scripted".to_owned()].into_iter().collect(),
            clients: ClientRules::everything(),
            ..ValidationContext::default()
        };
        let reported = |files: &str| -> Vec<String> {
            let subagent = json!({"name": "reader", "description": "Reads what others have written.",
                "human_message_token_limit_before_evict": 9_000});
            let body = json!({"model": "scripted:x", "files": files, "tool_token_limit_before_evict": 9_000,
                "subagents": [subagent]});
            let findings = validate("a", body, &context).findings;
            findings.iter().map(|finding| finding.field.to_string()).collect()
        };
        assert_eq!(reported("state"), [""; 0]);
        let fields = [
            "subagents[0].human_message_token_limit_before_evict",
            "tool_token_limit_before_evict",
        ];
        let mut found = reported("none");
        found.sort();
        assert_eq!(found, fields);
    }

    #[test]
    fn there_are_two_modes() {
        let reported = findings(json!({"mode": "other"}));
        assert_eq!(
            reported,
            ["subagents[0].mode: `other` is not allowed; allowed are: isolated, fork"]
        );
    }
}
