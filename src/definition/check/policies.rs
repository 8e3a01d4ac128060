//! Checks the policies that the agents of a definition list, inherit and block, and the tools that they name.

use std::collections::BTreeSet;

use super::inheritance::check_inheritance;
use super::listed_policies::check_list;
use super::tools::{is_among, is_known_tool};
use super::{Check, toolset};
use crate::definition::agent::AgentDefinition;
use crate::definition::builtins::APPROVAL;
use crate::definition::diagnostic::{FieldPath, suggestion};
use crate::definition::mcp::McpReference;
use crate::definition::patterns::is_pattern;
use crate::definition::permission::{self, Permission};
use crate::definition::policy::Policy;

impl Check<'_> {
    pub(super) fn policies(&mut self, agent: &AgentDefinition, resolved: &AgentDefinition) {
        self.findings.extend(agent.check_policies(self.context));
        let tools = toolset::with_delegation(toolset::of_agent(resolved), resolved);
        self.tools_of_policies(&FieldPath::of(["middleware"]), &agent.middleware, &tools);
        let permissions = FieldPath::of(["permissions"]);
        self.findings
            .extend(permission::check(&permissions, &agent.permissions));
        self.permitted_tools(&permissions, &agent.permissions);
        self.limits_of_files(agent);
        let general = &agent.general_purpose_subagent;
        let field = FieldPath::of(["general_purpose_subagent"]);
        let fields = [(APPROVAL, general.interrupt_on.is_some())];
        self.findings.extend(check_list(
            &field.then("middleware"),
            &general.middleware,
            &fields,
            self.context,
        ));
        let tools = toolset::with_delegation(toolset::of_general(resolved), resolved);
        self.tools_of_policies(&field.then("middleware"), &general.middleware, &tools);
        self.findings.extend(check_inheritance(
            &field,
            &general.inherit,
            &general.block_middleware,
            resolved,
            self.context,
        ));
        for ((field, subagent), own) in agent.subagents_with_fields().zip(&resolved.subagents) {
            self.findings.extend(subagent.check_policies(&field, self.context));
            let tools = toolset::of_subagent(own, resolved);
            let tools = toolset::with_delegation(tools, resolved);
            self.tools_of_policies(&field.then("middleware"), &subagent.middleware, &tools);
            self.findings.extend(check_inheritance(
                &field,
                &subagent.inherit,
                &subagent.block_middleware,
                resolved,
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
                if is_pattern(tool) || is_server || is_known_tool(tool, self.context) {
                    continue;
                }
                let known = suggestion(tool, self.context.tools.iter().map(String::as_str), "declared are");
                let message = format!("there is no tool `{tool}`, so that the rule is about nothing; {known}");
                self.warn(&field.then(at).then("tools").then(number), message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use crate::definition::builtins::{Builtin, ELSEWHERE};
    use crate::definition::validate::findings_of;
    use crate::definition::{RegisteredPolicy, ValidationContext};

    fn context() -> ValidationContext {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        ValidationContext {
            tools: set(&["lookup", "publish"]),
            middleware: [
                ("audit".to_owned(), RegisteredPolicy::default()),
                ("limit".to_owned(), limit()),
            ]
            .into(),
            ..ValidationContext::of_tests()
        }
    }

    /// Returns a policy with settings, of which several with different tools can be listed.
    fn limit() -> RegisteredPolicy {
        RegisteredPolicy::new(|_| Some(vec![])).distinguished_by(Some("tool"))
    }

    fn findings(mut body: Value) -> Vec<String> {
        body["model"] = json!("scripted:x");
        findings_of("a", body, &context())
    }

    #[test]
    fn a_policy_whose_work_has_another_place_is_refused_with_the_place() {
        let found = findings(json!({"middleware": ["ModelFallbackMiddleware"]}));
        let expected = "middleware[0]: there is no policy `ModelFallbackMiddleware`: give several models";
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:#?}");
        assert!(ELSEWHERE.iter().all(|(name, _)| Builtin::find(name).is_none()));
    }

    #[test]
    fn what_cannot_be_listed_is_refused_with_what_can() {
        let body = json!({"todos": true, "middleware": [
            "TodosListMiddleware", "TodoListMiddleware", "audit", "audit", "SubAgentMiddleware",
            {"name": "audit2"}, {"read_only": true}]});
        let reported = findings(body);
        assert!(
            reported[0]
                .contains("there is no policy `TodosListMiddleware`; did you mean `TodoListMiddleware`? there are:")
        );
        assert_eq!(
            reported[1],
            "middleware[1]: `TodoListMiddleware` is also given as the field `todos`"
        );
        assert_eq!(reported[2], "middleware[3]: `audit` is listed twice");
        assert!(
            reported[3].contains("it is there while there are subagents; `general_purpose_subagent.enabled = false`")
        );
        assert!(
            reported[4].contains("there is no policy `audit2`; did you mean `audit`?"),
            "{reported:#?}"
        );
        assert!(
            reported[5].starts_with("middleware[6]: must have a `name`"),
            "{reported:#?}"
        );
    }

    #[test]
    fn a_policy_is_listed_several_times_where_a_setting_tells_them_apart() {
        let listed = |tools: [&str; 2]| {
            let limits = tools.map(|tool| json!({"name": "limit", "tool": tool}));
            findings(json!({"middleware": limits}))
        };
        assert_eq!(listed(["lookup", "publish"]), [""; 0]);
        assert_eq!(
            listed(["lookup", "lookup"]),
            ["middleware[1]: `limit` is listed twice with the same `tool`"]
        );
    }

    #[test]
    fn settings_that_a_policy_does_not_have_or_lacks_are_told_with_their_place() {
        let reported = findings(json!({"middleware": [
            {"name": "StoreMiddleware", "readonly": true}, {"name": "SkillsMiddleware", "sources": ["skills"]},
            {"name": "MemoryMiddleware"}, {"name": "audit", "level": 3},
            {"name": "UntilToolMiddleware", "tools": ["lookup"]}]}));
        for part in [
            "middleware[0].readonly: unknown key; did you mean `read_only`? allowed are: namespace, read_only",
            "middleware[1].sources[0]: `skills` is relative",
            "middleware[2].sources: must be given",
            "middleware[3]: `audit` is the program's and takes no settings",
            "middleware[4]: `UntilToolMiddleware` is for subagents",
        ] {
            assert!(
                reported.iter().any(|reported| reported.starts_with(part)),
                "{part} is missing in {reported:#?}"
            );
        }
    }

    #[test]
    fn what_nobody_can_hand_down_or_block_is_refused() {
        let reported = findings(json!({"middleware": ["audit"],
            "general_purpose_subagent": {"inherit": {"middleware": ["audit", "TodoListMiddleware"]}},
            "subagents": [{"name": "b", "description": "Does this and all of that.",
                "block_middleware": ["FilesystemMiddleware", "nope"], "inherit": {"middleware": 3}}]}));
        for part in [
            "general_purpose_subagent.inherit.middleware[1]: the agent has no policy `TodoListMiddleware` to hand down",
            "subagents[0].block_middleware[0]: `FilesystemMiddleware` cannot be blocked: it is there unless",
            "subagents[0].block_middleware[1]: there is no policy `nope`",
            "subagents[0].inherit.middleware: must be true, false or a list",
        ] {
            assert!(
                reported.iter().any(|reported| reported.starts_with(part)),
                "{part} is missing in {reported:#?}"
            );
        }
    }

    #[test]
    fn a_policy_that_names_a_tool_which_the_agent_lacks_is_reported() {
        let with_setting = |setting| RegisteredPolicy::new(|_| Some(vec![])).with_tools_setting(Some(setting));
        let settings = [
            ("LLMToolSelectorMiddleware", "always_include"),
            ("LLMToolEmulator", "tools"),
            ("RubricMiddleware", "tools"),
            ("ToolCallLimitMiddleware", "tool"),
            ("ToolRetryMiddleware", "tools"),
            ("ContextEditingMiddleware", "exclude_tools"),
        ];
        let own = RegisteredPolicy::default().with_tools(["own_tool".to_owned()]);
        let mut middleware: BTreeMap<String, RegisteredPolicy> = settings
            .map(|(name, setting)| (name.to_owned(), with_setting(setting)))
            .into();
        middleware.insert("Own".to_owned(), own);
        let context = ValidationContext {
            middleware,
            mcp_servers: ["docs".to_owned()].into(),
            ..context()
        };
        let reported = |middleware: Value, subagents: Value| {
            let body = json!({"model": "scripted:x", "tools": ["lookup", "docs/*"], "middleware": middleware,
                "subagents": subagents});
            findings_of("a", body, &context)
        };
        let fine = json!([{"name": "RubricMiddleware", "tools": ["read_file", "lookup", "docs/search", "docs/*"]},
            {"name": "LLMToolSelectorMiddleware", "always_include": ["task", "write_todos"]}, "TodoListMiddleware",
            {"name": "ToolCallLimitMiddleware", "tool": "docs/search"}, {"name": "ToolRetryMiddleware"},
            {"name": "ContextEditingMiddleware", "exclude_tools": ["lookup", "own_tool"]}, "Own"]);
        assert_eq!(reported(fine, json!([])), [""; 0]);
        let of_delegation = json!([{"name": "ToolCallLimitMiddleware", "tool": "get_task_instructions"}]);
        let mut guided = json!([{"name": "reader", "description": "Reads what others have written."}]);
        assert_eq!(reported(of_delegation.clone(), guided.clone()).len(), 1);
        guided[0]["use_instructions"] = json!("Name the file.");
        assert_eq!(reported(of_delegation, guided), [""; 0]);
        let wrong = json!([{"name": "LLMToolEmulator", "tools": ["lookup", "publish"]},
            {"name": "RubricMiddleware", "tools": ["store_get"]}, {"name": "ToolCallLimitMiddleware", "tool": "lokup"},
            {"name": "ToolRetryMiddleware", "tools": ["publish"]},
            {"name": "ContextEditingMiddleware", "exclude_tools": ["lookup", "publish"]}]);
        let reader = json!([{"name": "reader", "description": "Reads what others have written.", "tools": ["publish"],
            "middleware": [{"name": "RubricMiddleware", "tools": ["lookup"]}]}]);
        let found = reported(wrong, reader);
        let places = [
            "middleware[0].tools[1]: the agent has no tool `publish`",
            "middleware[1].tools[0]: the agent has no tool `store_get`",
            "middleware[2].tool: the agent has no tool `lokup`, so that the name is without effect; did you mean `lookup`?",
            "middleware[3].tools[0]: the agent has no tool `publish`",
            "middleware[4].exclude_tools[1]: the agent has no tool `publish`",
            "subagents[0].middleware[0].tools[0]: the agent has no tool `lookup`",
        ];
        assert_eq!(found.len(), places.len(), "{found:#?}");
        for (reported, place) in found.iter().zip(places) {
            assert!(reported.starts_with(place), "{found:#?}");
        }
    }
}
