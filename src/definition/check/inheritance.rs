//! Checks what subagents inherit and block.

use super::listed_policies::name_problem;
use crate::definition::agent::AgentDefinition;
use crate::definition::diagnostic::{Diagnostic, FieldPath, suggestion};
use crate::definition::inherit::{Inherit, InheritedPolicies};
use crate::definition::validation_context::ValidationContext;

/// Checks what the agent in `field` inherits and blocks.
pub(super) fn check_inheritance(
    field: &FieldPath,
    inherit: &Inherit,
    blocked: &[String],
    parent: &AgentDefinition,
    context: &ValidationContext,
) -> Vec<Diagnostic> {
    let mut findings = vec![];
    if let InheritedPolicies::Named(names) = &inherit.middleware {
        let known: Vec<String> = parent.inheritable().into_iter().map(|policy| policy.name).collect();
        for (at, name) in names.iter().enumerate().filter(|(_, name)| !known.contains(name)) {
            let known = suggestion(name, known.iter().map(String::as_str), "it has");
            let place = field.then("inherit").then("middleware").then(at);
            findings.push(Diagnostic::error(
                place,
                format!("the agent has no policy `{name}` to hand down; {known}"),
            ));
        }
    }
    for (at, name) in blocked.iter().enumerate() {
        let problem = name_problem(name, "cannot be blocked", context);
        findings.extend(problem.map(|problem| Diagnostic::error(field.then("block_middleware").then(at), problem)));
    }
    findings
}
