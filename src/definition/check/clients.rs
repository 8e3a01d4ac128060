//! Checks that definitions of clients use no other models, tools and agents than they may.

use serde_json::Value;

use crate::definition::agent::{AgentDefinition, SubagentDefinition};
use crate::definition::builtins::{Builtin, SKILLS};
use crate::definition::clients::ClientRules;
use crate::definition::diagnostic::{Diagnostic, FieldPath};
use crate::definition::policy::Policy;
use crate::definition::validation_context::ValidationContext;
use crate::domain::headers::Headers;
use crate::domain::name_patterns::matches;

impl ClientRules {
    /// Returns a diagnostic for each name that `agent`, the definition of a client, must not use. The policies that it lists
    /// are those of `context`.
    pub fn check(&self, agent: &AgentDefinition, context: &ValidationContext) -> Vec<Diagnostic> {
        if !self.enabled {
            return vec![Diagnostic::error(FieldPath::default(), Self::DISABLED)];
        }
        let mut check = ClientCheck {
            rules: self,
            findings: vec![],
        };
        for model in agent.named_models(|policy| context.model_setting(policy)) {
            check.name(model.field, model.name, "models");
        }
        check.agent(agent);
        check.findings
    }
}

struct ClientCheck<'a> {
    rules: &'a ClientRules,
    findings: Vec<Diagnostic>,
}

impl ClientCheck<'_> {
    fn agent(&mut self, agent: &AgentDefinition) {
        let top = FieldPath::default();
        self.external(&top, &agent.runnable, &agent.url, &agent.headers);
        self.tools(&top.then("tools"), &agent.tools);
        self.tools(&top.then("skill_tools"), &agent.skill_tools);
        self.policies(&top.then("middleware"), &agent.middleware);
        let field = top.then("general_purpose_subagent");
        let general = &agent.general_purpose_subagent;
        self.tools(&field.then("tools"), general.tools.as_deref().unwrap_or_default());
        self.policies(&field.then("middleware"), &general.middleware);
        for (field, subagent) in agent.subagents_with_fields() {
            self.subagent(&field, subagent);
        }
    }

    fn subagent(&mut self, field: &FieldPath, subagent: &SubagentDefinition) {
        self.tools(&field.then("tools"), subagent.tools.as_deref().unwrap_or_default());
        self.tools(&field.then("skill_tools"), &subagent.skill_tools);
        self.policies(&field.then("middleware"), &subagent.middleware);
        self.external(field, &subagent.runnable, &subagent.url, &subagent.headers);
        if let (None, Some(graph_id)) = (&subagent.url, &subagent.graph_id) {
            self.name(field.then("graph_id"), graph_id, "agents");
        }
    }

    /// Checks the program or the other server that does the work of an agent.
    fn external(&mut self, field: &FieldPath, runnable: &Option<String>, url: &Option<String>, headers: &Headers) {
        if let Some(program) = runnable {
            self.name(field.then("runnable"), program, "tools");
        }
        if let Some(url) = url {
            self.name(field.then("url"), url, "agents");
        }
        if !headers.is_empty() {
            let message = "are not taken over HTTP, since they would be kept with the definition: the configuration gives \
                them to a server by its address, in the section `[peers.headers.\"https://host\"]`";
            self.findings.push(Diagnostic::error(field.then("headers"), message));
        }
    }

    fn tools(&mut self, field: &FieldPath, tools: &[String]) {
        for (at, tool) in tools.iter().enumerate() {
            self.name(field.then(at), tool, "tools");
        }
    }

    fn policies(&mut self, field: &FieldPath, policies: &[Policy]) {
        for (at, policy) in policies.iter().enumerate() {
            let field = field.then(at);
            if !Builtin::is_listed(&policy.name) {
                self.name(field, &policy.name, "tools");
                continue;
            }
            let tools = policy
                .settings
                .get("tools")
                .and_then(Value::as_array)
                .filter(|_| policy.name == SKILLS);
            for (at, tool) in tools.into_iter().flatten().enumerate() {
                let field = field.then("tools").then(at);
                tool.as_str()
                    .into_iter()
                    .for_each(|tool| self.name(field.clone(), tool, "tools"));
            }
        }
    }

    fn name(&mut self, field: FieldPath, name: &str, list: &str) {
        let allowed = match list {
            "models" => &self.rules.models,
            "agents" => &self.rules.agents,
            _ => &self.rules.tools,
        };
        if !allowed.iter().any(|pattern| matches(pattern, name)) {
            let message = format!(
                "`{name}` may not be used by definitions of clients; `{list}` in the section `[agents_api]` can allow it"
            );
            self.findings.push(Diagnostic::error(field, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::definition::validation_context::RegisteredPolicy;

    fn refused(rules: &ClientRules, agent: Value) -> Vec<String> {
        let agent: AgentDefinition = serde_json::from_value(agent).expect("a definition");
        let own = RegisteredPolicy::default().with_model_setting(Some("model"));
        let context = ValidationContext {
            middleware: [("Own".to_owned(), own)].into(),
            ..ValidationContext::default()
        };
        rules
            .check(&agent, &context)
            .into_iter()
            .map(|finding| finding.field.to_string())
            .collect()
    }

    #[test]
    fn every_field_that_names_a_tool_a_model_or_an_agent_is_looked_at() {
        let agent = json!({
            "model": "a:b", "tools": ["t", "s/*"], "skill_tools": ["t"], "summarization": {"model": "a:b"},
            "middleware": [{"name": "Own", "model": "a:b"},
                {"name": "SkillsMiddleware", "sources": ["/a"], "tools": ["t"]}, "TodoListMiddleware"],
            "general_purpose_subagent": {"model": "a:b", "tools": ["t"], "middleware": ["Own"]},
            "subagents": [
                {"name": "x", "model": "a:b", "tools": ["t"], "skill_tools": ["t"], "middleware": ["Own"],
                    "summarization": {"model": "a:b"}},
                {"name": "p", "runnable": "r"},
                {"name": "l", "graph_id": "g"},
                {"name": "f", "graph_id": "g", "url": "https://a.b", "headers": {"x-key": "k"}},
            ],
        });
        let nothing = ClientRules {
            enabled: true,
            ..ClientRules::default()
        };
        let expected = [
            "model",
            "middleware[0].model",
            "summarization.model",
            "general_purpose_subagent.model",
            "subagents[0].model",
            "subagents[0].summarization.model",
            "tools[0]",
            "tools[1]",
            "skill_tools[0]",
            "middleware[0]",
            "middleware[1].tools[0]",
            "general_purpose_subagent.tools[0]",
            "general_purpose_subagent.middleware[0]",
            "subagents[0].tools[0]",
            "subagents[0].skill_tools[0]",
            "subagents[0].middleware[0]",
            "subagents[1].runnable",
            "subagents[2].graph_id",
            "subagents[3].url",
            "subagents[3].headers",
        ];
        assert_eq!(refused(&nothing, agent.clone()), expected);
        let list = |patterns: &[&str]| patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let much = ClientRules {
            enabled: true,
            tools: list(&["t", "s/*", "Own", "r"]),
            models: list(&["a:*"]),
            agents: list(&["g", "https://*"]),
        };
        assert_eq!(refused(&much, agent.clone()), ["subagents[3].headers"]);
        assert_eq!(refused(&ClientRules { enabled: false, ..much }, agent), [""]);
    }
}
