//! Checks the subagents of an agent.

use std::collections::BTreeMap;

use super::skills::SkillsAndMemory;
use super::tools::is_among;
use super::{Check, toolset};
use crate::definition::agent::{AgentDefinition, SubagentDefinition, SubagentMode};
use crate::definition::diagnostic::{FieldPath, errors_of_given, suggestion};
use crate::definition::inherit::Inherit;
use crate::definition::mcp::check_servers;
use crate::definition::model_settings::check_settings;

/// The minimum length of a subagent's description. A shorter one says too little for a model to choose by.
const SHORT_DESCRIPTION: usize = 20;

impl Check<'_> {
    pub(super) fn general_purpose(&mut self, agent: &AgentDefinition, resolved: &AgentDefinition) {
        let field = FieldPath::of(["general_purpose_subagent"]);
        let general = &agent.general_purpose_subagent;
        self.not_blank(&field.then("name"), general.name.as_deref());
        self.not_blank(&field.then("description"), general.description.as_deref());
        if let Some(model) = &general.model {
            self.models(&field.then("model"), model);
        }
        if let Some(tools) = &general.tools {
            self.tools(&field.then("tools"), tools);
        }
        if let Some(rules) = &general.interrupt_on {
            self.approvals(&field.then("interrupt_on"), rules, &toolset::of_general(resolved));
        }
    }

    pub(super) fn subagents(&mut self, agent: &AgentDefinition, resolved: &AgentDefinition) {
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        let mut descriptions: BTreeMap<&str, usize> = BTreeMap::new();
        for (at, (field, subagent)) in agent.subagents_with_fields().enumerate() {
            self.required(&field.then("name"), &subagent.name, "the name it is called by");
            self.required(
                &field.then("description"),
                &subagent.description,
                "the delegating model chooses by it",
            );
            if let Some(first) = names.get(subagent.name.as_str()).filter(|_| !subagent.name.is_empty()) {
                let message = format!("`{}` is already the name of subagents[{first}]", subagent.name);
                self.error(&field.then("name"), message);
            }
            names.entry(&subagent.name).or_insert(at);
            let description = subagent.description.trim();
            if let Some(first) = descriptions.get(description).filter(|_| !description.is_empty()) {
                let message = format!("is the same as that of subagents[{first}], so that no model can choose");
                self.warn(&field.then("description"), message);
            } else if (1..SHORT_DESCRIPTION).contains(&description.chars().count()) {
                let message = format!("has less than {SHORT_DESCRIPTION} characters: a model can hardly choose by it");
                self.warn(&field.then("description"), message);
            }
            descriptions.entry(description).or_insert(at);
            self.subagent(&field, subagent, agent);
            self.tools_of(&field, subagent, &resolved.subagents[at], resolved);
        }
    }

    /// Checks subagents that are defined elsewhere.
    pub(super) fn locations(&mut self, graph_id: &str, agent: &AgentDefinition) {
        let mut agents = self.context.agents.clone();
        agents.insert(graph_id.to_owned());
        for (field, subagent) in agent.subagents_with_fields() {
            self.findings.extend(subagent.check_location(&field, &agents));
        }
        self.findings.extend(agent.check_background_names());
    }

    fn subagent(&mut self, field: &FieldPath, subagent: &SubagentDefinition, parent: &AgentDefinition) {
        let settings = subagent.model_settings.iter();
        let settings = settings.flat_map(|settings| check_settings(&field.then("model_settings"), settings));
        self.findings.extend(settings);
        if let Some(model) = &subagent.model {
            self.models(&field.then("model"), model);
        }
        self.findings
            .extend(check_servers(&field.then("mcp_servers"), &subagent.mcp_servers));
        let outer = self.servers.clone();
        self.servers.extend(subagent.mcp_servers.keys().cloned());
        if let Some(tools) = &subagent.tools {
            self.tools(&field.then("tools"), tools);
        }
        self.skills_and_memory(field, &SkillsAndMemory::of_subagent(subagent, parent));
        self.servers = outer;
        if let Some(approvers) = &subagent.approvers {
            self.approvers(&field.then("approvers"), approvers);
        }
        if let Some(store) = &subagent.store {
            self.findings.extend(store.check(&field.then("store")));
        }
        if let Some(rule) = &subagent.summarization {
            self.summarization(&field.then("summarization"), rule);
        }
        self.steps(&field.then("recursion_limit"), subagent.recursion_limit);
        self.limits(&field.then("limits"), subagent.limits.as_ref(), false);
        self.not_blank(&field.then("use_instructions"), subagent.use_instructions.as_deref());
        self.not_blank(&field.then("display_text"), subagent.display_text.as_deref());
    }

    /// Checks the rules of a subagent about its tools; `subagent` and `parent` are resolved.
    fn tools_of(
        &mut self,
        field: &FieldPath,
        own: &SubagentDefinition,
        subagent: &SubagentDefinition,
        parent: &AgentDefinition,
    ) {
        if let Some(rules) = &subagent.interrupt_on {
            // The rules of its parent may concern tools that the subagent does not have.
            let is_parents = |name: &&String| own.inherit.interrupt_on && parent.interrupt_on.contains_key(*name);
            let rules = rules.iter().filter(|(name, _)| !is_parents(name));
            let rules = rules.map(|(name, rule)| (name.clone(), rule.clone())).collect();
            let mut tools = toolset::of_subagent(subagent, parent);
            tools.insert("task");
            self.approvals(&field.then("interrupt_on"), &rules, &tools);
        }
        let tools = toolset::of_subagent(subagent, parent);
        self.changed_tools(
            field,
            &subagent.excluded_tools,
            &subagent.tool_description_overrides,
            &tools,
        );
        self.answer(field, subagent.response_format.as_ref(), &tools);
        self.until_tool(&field.then("until_tool"), subagent, parent);
    }

    fn until_tool(&mut self, field: &FieldPath, subagent: &SubagentDefinition, parent: &AgentDefinition) {
        let Some(until) = &subagent.until_tool else { return };
        if subagent.response_format.is_some() {
            self.error(
                field,
                "goes without `response_format` only: both say what the result is",
            );
        }
        if until.names().is_empty() {
            self.error(field, "must name a tool; leave it out for none");
        }
        let tools = toolset::of_subagent(subagent, parent);
        for name in until.names().iter().filter(|name| !is_among(name, &tools)) {
            let known = suggestion(name, tools.iter().copied(), "it has");
            self.error(field, format!("the subagent has no tool `{name}`; {known}"));
        }
    }

    /// Checks a fork, which has everything from its caller but its name, its task and some text.
    pub(super) fn mode(&mut self, field: &FieldPath, subagent: &SubagentDefinition) {
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
            ("inherit", subagent.inherit != Inherit::default()),
            ("block_middleware", !subagent.block_middleware.is_empty()),
        ];
        let message = "goes without `mode = \"fork\"` only: a fork has what its caller has";
        self.findings.extend(errors_of_given(field, given, message));
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

    use crate::definition::ValidationContext;
    use crate::definition::validate::findings_of;

    fn findings(mut subagent: Value) -> Vec<String> {
        subagent["name"] = json!("twin");
        subagent["description"] = json!("Goes on as its caller.");
        let body = json!({"model": "scripted:x", "subagents": [subagent]});
        findings_of("a", body, &ValidationContext::of_tests())
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
    fn there_are_two_modes() {
        let reported = findings(json!({"mode": "other"}));
        assert_eq!(
            reported,
            ["subagents[0].mode: `other` is not allowed; allowed are: isolated, fork"]
        );
    }
}
