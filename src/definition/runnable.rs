//! References to programs that the embedding program has registered.

use super::check::ValidationContext;
use super::diagnostic::{Diagnostic, FieldPath, suggestion};
use super::remote::wrong;
use super::{AgentDefinition, SubagentDefinition};

impl AgentDefinition {
    /// Checks the names of programs.
    pub(super) fn check_registered(&self, context: &ValidationContext) -> Vec<Diagnostic> {
        let mut findings = vec![];
        for (at, subagent) in self.subagents.iter().enumerate() {
            let field = FieldPath::of(["subagents"]).then(at);
            findings.extend(subagent.check_runnable(&field, context));
        }
        findings
    }
}

impl SubagentDefinition {
    fn check_runnable(&self, field: &FieldPath, context: &ValidationContext) -> Vec<Diagnostic> {
        let Some(name) = &self.runnable else { return vec![] };
        let mut findings = vec![];
        if !context.runnables.contains(name) {
            let known = suggestion(name, context.runnables.iter().map(String::as_str), "registered are");
            let message = format!("there is no program `{name}`; {known}");
            findings.push(Diagnostic::error(field.then("runnable"), message));
        }
        let own_fields = self.own_fields();
        let own_fields = own_fields.iter().map(|name| (name.as_str(), true));
        let senseless = own_fields.chain([("recursion_limit", self.recursion_limit.is_some())]);
        findings.extend(wrong(
            field,
            senseless,
            "goes without `runnable` only: the program does everything itself",
        ));
        findings
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::definition::ClientRules;
    use crate::definition::check::{RegisteredPolicy, ValidationContext};
    use crate::definition::validate;

    fn context() -> ValidationContext {
        let set = |name: &str| [name.to_owned()].into_iter().collect();
        ValidationContext {
            providers: set("scripted"),
            runnables: set("count"),
            middleware: [("audit".to_owned(), RegisteredPolicy::default())].into(),
            clients: ClientRules::everything(),
            ..ValidationContext::default()
        }
    }

    fn findings(subagent: serde_json::Value) -> Vec<String> {
        let body = json!({"model": "scripted:x", "middleware": ["audit"], "subagents": [subagent]});
        validate("a", body, &context())
            .findings
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_program_is_named_as_it_is_registered_and_nothing_else_is_said_about_its_work() {
        let good = json!({"name": "counter", "description": "Counts the words of a text.", "runnable": "count",
            "limits": {"wall_s": 5.0}});
        assert_eq!(findings(good), [""; 0]);
        let bad = json!({"name": "counter", "description": "Counts the words of a text.", "runnable": "cout",
            "model": "scripted:x", "todos": true});
        assert_eq!(
            findings(bad),
            [
                "subagents[0].model: goes without `runnable` only: the program does everything itself",
                "subagents[0].runnable: there is no program `cout`; did you mean `count`? registered are: count",
                "subagents[0].todos: goes without `runnable` only: the program does everything itself",
            ]
        );
    }
}
