//! Checks agents and subagents that are programs which the embedding program has registered, and agents of other servers.

use super::references::{check_url, given_fields_but};
use crate::definition::agent::{AgentDefinition, SubagentDefinition};
use crate::definition::diagnostic::{Diagnostic, FieldPath, errors_of_given, suggestion};
use crate::definition::headers::check_headers;
use crate::definition::validation_context::ValidationContext;

/// The fields that an agent may have that is a program.
const FIELDS_OF_PROGRAMS: [&str; 10] = [
    "name",
    "description",
    "runnable",
    "state",
    "context_schema",
    "context_scoping",
    "on_pending_interrupt",
    "approvers",
    "response_format",
    "limits",
];

/// The fields that an agent may have that works on another server.
const FIELDS_OF_REMOTE_AGENTS: [&str; 8] = [
    "name",
    "description",
    "graph_id",
    "url",
    "headers",
    "on_pending_interrupt",
    "recursion_limit",
    "limits",
];

impl AgentDefinition {
    /// Checks the names of programs.
    pub(super) fn check_registered(&self, context: &ValidationContext) -> Vec<Diagnostic> {
        self.subagents_with_fields()
            .flat_map(|(field, subagent)| subagent.check_runnable(&field, context))
            .collect()
    }

    /// Checks what is particular to an agent that is a program, or an agent of another server.
    pub(super) fn check_program(&self, context: &ValidationContext) -> Vec<Diagnostic> {
        let top = FieldPath::default();
        if let Some(name) = &self.runnable {
            let senseless = given_fields_but(self, &FIELDS_OF_PROGRAMS);
            let senseless = senseless.iter().map(|name| (name.as_str(), true));
            let why = "goes without `runnable` only: the program does everything itself";
            let mut findings = errors_of_given(&top, senseless, why);
            findings.extend(unknown_program(&top, name, context));
            return findings;
        }
        let senseless = given_fields_but(self, &FIELDS_OF_REMOTE_AGENTS);
        let senseless = senseless.iter().map(|name| (name.as_str(), true));
        let why = "goes without `graph_id` and `url` only: that agent is defined on its server";
        let mut findings = errors_of_given(&top, senseless, why);
        match self.graph_id.as_deref().map(str::trim) {
            Some("") | None => {
                let message = "must be given: the agent of the server at `url`";
                findings.push(Diagnostic::error(top.then("graph_id"), message));
            }
            Some(_) => {}
        }
        match &self.url {
            Some(url) => findings.extend(check_url(&top, url)),
            None => {
                let message = "must be given: the server that has the agent `graph_id`. An assistant is another name for \
                               an agent of this server";
                findings.push(Diagnostic::error(top.then("url"), message));
            }
        }
        findings.extend(check_headers(&top.then("headers"), &self.headers));
        findings
    }
}

/// Reports a program that is not registered.
fn unknown_program(field: &FieldPath, name: &str, context: &ValidationContext) -> Option<Diagnostic> {
    if context.runnables.contains(name) {
        return None;
    }
    let known = suggestion(name, context.runnables.iter().map(String::as_str), "registered are");
    let message = format!("there is no program `{name}`; {known}");
    Some(Diagnostic::error(field.then("runnable"), message))
}

impl SubagentDefinition {
    fn check_runnable(&self, field: &FieldPath, context: &ValidationContext) -> Vec<Diagnostic> {
        let Some(name) = &self.runnable else { return vec![] };
        let mut findings: Vec<Diagnostic> = unknown_program(field, name, context).into_iter().collect();
        let own_fields = self.own_fields();
        let own_fields = own_fields.iter().map(|name| (name.as_str(), true));
        let senseless = own_fields.chain([("recursion_limit", self.recursion_limit.is_some())]);
        findings.extend(errors_of_given(
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

    use crate::definition::validate::findings_of;
    use crate::definition::{RegisteredPolicy, ValidationContext, validate};

    fn context() -> ValidationContext {
        let set = |name: &str| [name.to_owned()].into_iter().collect();
        ValidationContext {
            runnables: set("count"),
            middleware: [("audit".to_owned(), RegisteredPolicy::default())].into(),
            ..ValidationContext::of_tests()
        }
    }

    fn findings(subagent: serde_json::Value) -> Vec<String> {
        let body = json!({"model": "scripted:x", "middleware": ["audit"], "subagents": [subagent]});
        findings_of("a", body, &context())
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

    fn findings_of_agent(body: serde_json::Value) -> Vec<String> {
        findings_of("a", body, &context())
    }

    #[test]
    fn an_agent_may_be_a_program_and_has_no_fields_of_a_model() {
        let good = json!({"runnable": "count", "name": "counter", "limits": {"wall_s": 5.0}, "state": {"notes": {}},
            "approvers": {"roles": ["admin"]}, "on_pending_interrupt": "reject"});
        assert_eq!(findings_of_agent(good), [""; 0]);
        let bad = json!({"runnable": "cout", "model": "scripted:x", "subagents": [
            {"name": "b", "description": "Does this and all of that."}], "files": "none", "recursion_limit": 3});
        let why = "goes without `runnable` only: the program does everything itself";
        assert_eq!(
            findings_of_agent(bad),
            [
                format!("files: {why}"),
                format!("model: {why}"),
                format!("recursion_limit: {why}"),
                "runnable: there is no program `cout`; did you mean `count`? registered are: count".to_owned(),
                format!("subagents: {why}"),
            ]
        );
    }

    #[test]
    fn an_agent_may_be_an_agent_of_another_server_and_is_defined_there() {
        let good = json!({"graph_id": "far", "url": "https://a.b", "recursion_limit": 9, "limits": {"wall_s": 5.0}});
        assert_eq!(findings_of_agent(good), [""; 0]);
        let fields = |body: serde_json::Value| -> Vec<String> {
            let findings = validate("a", body, &context()).findings;
            findings.iter().map(|finding| finding.field.to_string()).collect()
        };
        let bad = json!({"graph_id": "far", "url": "ftp://a.b", "tools": ["x"], "state": {"notes": {}}, "todos": true});
        assert_eq!(fields(bad), ["state", "todos", "tools", "url"]);
        assert_eq!(fields(json!({"graph_id": "far"})), ["url"]);
        assert_eq!(fields(json!({"url": "https://a.b"})), ["graph_id"]);
        assert_eq!(
            fields(json!({"graph_id": "far", "url": "https://me:hush@a.b"})),
            ["url"]
        );
        // Headers of clients are refused as well.
        let headers = json!({"model": "scripted:x", "headers": {"x": "y"}});
        assert_eq!(fields(headers), ["headers", "headers"]);
    }
}
