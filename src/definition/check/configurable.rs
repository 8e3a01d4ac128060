//! Checks what runs may choose.

use std::collections::BTreeSet;

use serde_json::Map;

use super::models::check_model;
use crate::definition::agent::{AgentDefinition, SubagentDefinition};
use crate::definition::choices::{MAX_SLOT_CHARS, MODEL, TOOLS};
use crate::definition::configurable::Configurable;
use crate::definition::diagnostic::{Diagnostic, FieldPath, check_length, suggestion};
use crate::definition::validation_context::ValidationContext;

/// The maximum number of models, of tools and of slots.
const MOST: usize = 64;

impl AgentDefinition {
    /// Checks what runs may choose.
    pub(super) fn check_configurable(&self, context: &ValidationContext) -> Vec<Diagnostic> {
        let top = FieldPath::of(["configurable"]);
        let Configurable { models, tools, .. } = &self.configurable;
        let mut findings = vec![];
        for (name, list) in [("models", models), ("tools", tools)] {
            let mut seen = BTreeSet::new();
            for (at, item) in list.iter().enumerate().filter(|(_, item)| !seen.insert(*item)) {
                let field = top.then(name).then(at);
                findings.push(Diagnostic::error(field, format!("`{item}` is listed twice")));
            }
            findings.extend(check_length(&top.then(name), list.len(), MOST));
        }
        for (at, model) in models.iter().enumerate() {
            findings.extend(check_model(&top.then("models").then(at), model, context));
        }
        for (at, tool) in tools.iter().enumerate() {
            let problem = self.tool_problem(tool);
            findings.extend(problem.map(|problem| Diagnostic::error(top.then("tools").then(at), problem)));
        }
        findings.extend(self.check_slots(&top.then("prompt_slots")));
        findings.extend(self.check_conflicts());
        findings
    }

    /// Returns the reason why runs cannot leave out a tool.
    fn tool_problem(&self, tool: &str) -> Option<String> {
        if !self.tools.iter().any(|own| own == tool) {
            let known = suggestion(tool, self.tools.iter().map(String::as_str), "it has");
            return Some(format!("the agent has no tool `{tool}` in its `tools`; {known}"));
        }
        let ends = |subagent: &&SubagentDefinition| {
            let until = subagent.until_tool.as_ref().filter(|_| subagent.tools.is_none());
            until.is_some_and(|until| until.names().iter().any(|name| name == tool))
        };
        let subagent = self.subagents.iter().find(ends)?;
        Some(format!(
            "`{tool}` ends the work of the subagent `{}`, so it cannot be left out",
            subagent.name
        ))
    }

    fn check_slots(&self, top: &FieldPath) -> Vec<Diagnostic> {
        let slots = &self.configurable.prompt_slots;
        let mut findings: Vec<Diagnostic> = check_length(top, slots.len(), MOST).into_iter().collect();
        let texts: Vec<&str> = self.prompts().flat_map(|(_, prompt)| prompt.parts()).collect();
        for (name, default) in slots {
            let field = top.then(name);
            if name == MODEL || name == TOOLS {
                let message = format!("`{name}` is the entry of the context by which a run chooses its {name}");
                findings.push(Diagnostic::error(field, message));
            } else if !is_slot_name(name) {
                let message = "must be a name of letters, digits and underscores, of at most 64";
                findings.push(Diagnostic::error(field, message));
            } else if default.chars().count() > MAX_SLOT_CHARS {
                let message = format!("has more than {MAX_SLOT_CHARS} characters");
                findings.push(Diagnostic::error(field, message));
            } else if !texts.iter().any(|text| text.contains(&format!("{{{name}}}"))) {
                let message = format!("no `system_prompt` of the agent or its subagents has `{{{name}}}`");
                findings.push(Diagnostic::warning(field, message));
            }
        }
        findings
    }

    /// Reports the entries of the context that the definition describes twice.
    fn check_conflicts(&self) -> Vec<Diagnostic> {
        let Some(described) = self.context_schema.as_ref().and_then(|schema| schema.get("properties")) else {
            return vec![];
        };
        let schema = self.choices_schema().unwrap_or_default();
        let choices = schema["properties"].as_object().into_iter().flat_map(Map::keys);
        let conflict = |name: &String| {
            let field = FieldPath::of(["context_schema", "properties"]).then(name);
            Diagnostic::error(field, "is described by `configurable` already; leave it out here")
        };
        choices
            .filter(|name| described.get(name).is_some())
            .map(conflict)
            .collect()
    }
}

fn is_slot_name(name: &str) -> bool {
    let is_in_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    (1..=64).contains(&name.len()) && name.chars().all(is_in_name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::definition::choices::agent_with_choices;

    #[test]
    fn mistakes_are_reported_with_their_fields() {
        let agent = agent_with_choices(
            &json!({"context_schema": {"properties": {"model": {}}}, "configurable": {"models": ["lab:b", "lab:b"],
            "tools": ["sent"], "prompt_slots": {"tools": "", "not a name": "", "unused": ""}}}),
        );
        let context = ValidationContext {
            providers: BTreeSet::from(["lab".to_owned()]),
            ..ValidationContext::default()
        };
        let findings = agent.check_configurable(&context);
        let fields: Vec<String> = findings.iter().map(|finding| finding.field.to_string()).collect();
        assert_eq!(
            fields,
            [
                "configurable.models[1]",
                "configurable.tools[0]",
                "configurable.prompt_slots.\"not a name\"",
                "configurable.prompt_slots.tools",
                "configurable.prompt_slots.unused",
                "context_schema.properties.model",
            ]
        );
    }
}
