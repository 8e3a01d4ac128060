//! Checks harness profiles.

use super::listed_policies::{check_list, name_problem};
use super::tools::is_known_tool;
use crate::definition::builtins::UNTIL;
use crate::definition::diagnostic::{Diagnostic, FieldPath, suggestion};
use crate::definition::model_settings::check_settings;
use crate::definition::profile::HarnessProfile;
use crate::definition::validation_context::ValidationContext;

impl HarnessProfile {
    /// Checks the profile of this key. The fields of the diagnostics are relative to it.
    pub fn check(&self, key: &str, context: &ValidationContext) -> Vec<Diagnostic> {
        let top = FieldPath::default();
        let mut findings = vec![];
        let provider = key.split(':').next().unwrap_or_default();
        if !context.providers.contains(provider) || key.ends_with(':') {
            let known = suggestion(provider, context.providers.iter().map(String::as_str), "known are");
            let message = format!("`{key}` must be a provider or `provider:model-name`; {known}");
            findings.push(Diagnostic::error(top.clone(), message));
        }
        findings.extend(check_settings(&top.then("model_settings"), &self.model_settings));
        let general = &self.general_purpose_subagent;
        let texts = [
            (top.then("base_system_prompt"), &self.base_system_prompt),
            (top.then("system_prompt_suffix"), &self.system_prompt_suffix),
            (
                top.then("general_purpose_subagent").then("description"),
                &general.description,
            ),
            (
                top.then("general_purpose_subagent").then("system_prompt"),
                &general.system_prompt,
            ),
        ];
        let blank = texts
            .into_iter()
            .filter(|(_, text)| text.as_ref().is_some_and(|text| text.trim().is_empty()));
        findings.extend(blank.map(|(field, _)| Diagnostic::error(field, "must not be blank; leave it out for none")));
        let described = self.tool_description_overrides.keys();
        let described = described.map(|tool| (top.then("tool_description_overrides").then(tool), tool));
        let excluded = self.excluded_tools.iter().enumerate();
        let excluded = excluded.map(|(at, tool)| (top.then("excluded_tools").then(at), tool));
        for (field, tool) in described
            .chain(excluded)
            .filter(|(_, tool)| !is_known_tool(tool, context))
        {
            let known = suggestion(tool, context.tools.iter().map(String::as_str), "declared are");
            findings.push(Diagnostic::error(field, format!("there is no tool `{tool}`; {known}")));
        }
        for (at, name) in self.excluded_middleware.iter().enumerate() {
            let problem = name_problem(name, "cannot be excluded", context);
            let field = top.then("excluded_middleware").then(at);
            findings.extend(problem.map(|problem| Diagnostic::error(field, problem)));
        }
        let list = top.then("extra_middleware");
        findings.extend(check_list(&list, &self.extra_middleware, &[], context));
        let until = self.extra_middleware.iter().position(|policy| policy.name == UNTIL);
        let message = "is about one subagent, and not about a model";
        findings.extend(until.map(|at| Diagnostic::error(list.then(at), message)));
        findings
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn context() -> ValidationContext {
        let set = |name: &str| [name.to_owned()].into_iter().collect();
        ValidationContext {
            tools: set("lookup"),
            providers: set("lab"),
            ..ValidationContext::default()
        }
    }

    #[test]
    fn what_makes_no_sense_in_a_profile_is_told_where_it_stands() {
        let reported = |key: &str, value: Value| -> Vec<String> {
            let profile: HarnessProfile = serde_json::from_value(value).expect("a profile");
            profile.check(key, &context()).iter().map(ToString::to_string).collect()
        };
        let good = json!({"excluded_tools": ["lookup", "ls", "execute"], "tool_description_overrides": {"task": "Hand over."},
            "excluded_middleware": ["TodoListMiddleware"], "system_prompt_suffix": "x"});
        assert_eq!(reported("lab", good.clone()), [""; 0]);
        assert_eq!(reported("lab:any/model:7b", good), [""; 0]);
        for (key, value, expected) in [
            (
                "lob",
                json!({}),
                ": `lob` must be a provider or `provider:model-name`; did you mean `lab`?",
            ),
            (
                "lab",
                json!({"excluded_tools": ["lokup"]}),
                "excluded_tools[0]: there is no tool `lokup`; did you mean",
            ),
            (
                "lab",
                json!({"tool_description_overrides": {"x": "y"}}),
                "tool_description_overrides.x: there is no tool",
            ),
            (
                "lab",
                json!({"excluded_middleware": ["SubAgentMiddleware"]}),
                "excluded_middleware[0]: `SubAgentMiddleware` cannot be excluded: it is there while there are subagents; \
                 `general_purpose_subagent.enabled = false` takes one away",
            ),
            (
                "lab",
                json!({"excluded_middleware": ["Nope"]}),
                "excluded_middleware[0]: there is no policy `Nope`",
            ),
            (
                "lab",
                json!({"extra_middleware": ["Nope"]}),
                "extra_middleware[0]: there is no policy `Nope`",
            ),
            (
                "lab",
                json!({"base_system_prompt": " "}),
                "base_system_prompt: must not be blank",
            ),
        ] {
            let reported = reported(key, value);
            assert!(
                reported.len() == 1 && reported[0].starts_with(expected),
                "{expected}: {reported:#?}"
            );
        }
    }
}
