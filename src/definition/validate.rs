//! Reads and validates the definition of an agent.

use serde_json::Value;

use super::agent::AgentDefinition;
use super::check::{check_agent, check_origin};
use super::compat::deprecated;
use super::diagnostic::{Diagnostic, FieldPath, Severity};
use super::limits::LARGEST_DEFINITION;
use super::read::{is_repeated_finding, read};
use super::validation_context::ValidationContext;
use crate::domain::serde_messages::for_json;

/// The result of validating a definition.
#[derive(Debug, Clone, PartialEq)]
pub struct Validated {
    /// The definition, if it can be used.
    pub definition: Option<AgentDefinition>,
    /// Errors and warnings.
    pub findings: Vec<Diagnostic>,
}

/// Validates a definition that did not come from a file. Definitions in files meet the same checks.
pub fn validate(graph_id: &str, mut body: Value, context: &ValidationContext) -> Validated {
    let size = serde_json::to_vec(&body).map_or(usize::MAX, |json| json.len());
    if size > LARGEST_DEFINITION {
        let message = format!("has {size} bytes of JSON; more than {LARGEST_DEFINITION} are not kept");
        return Validated {
            definition: None,
            findings: vec![Diagnostic::error(FieldPath::default(), message)],
        };
    }
    let mut findings: Vec<Diagnostic> = body
        .as_object_mut()
        .and_then(deprecated::translate)
        .into_iter()
        .collect();
    let reading = read::<AgentDefinition>(body);
    if let Some(agent) = &reading.value {
        for finding in check_agent(graph_id, agent, context)
            .into_iter()
            .chain(check_origin(agent))
            .chain(context.clients.check(agent, context))
        {
            let field = reading.gaps.source_of(&finding.field);
            if !is_repeated_finding(&field, &reading.findings) {
                findings.push(Diagnostic { field, ..finding });
            }
        }
    }
    findings.extend(reading.findings);
    // The definition came as JSON, so the messages use the terms of JSON.
    findings
        .iter_mut()
        .for_each(|finding| finding.message = for_json(&finding.message));
    findings.sort_by(|one, other| one.field.cmp(&other.field));
    let is_usable = findings.iter().all(|finding| finding.severity == Severity::Warning);
    Validated {
        definition: reading.value.filter(|_| is_usable),
        findings,
    }
}

/// Returns what is reported about the definition of an agent, for tests of the checks.
#[cfg(test)]
pub(super) fn findings_of(graph_id: &str, body: Value, context: &ValidationContext) -> Vec<String> {
    let findings = validate(graph_id, body, context).findings;
    findings.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn context() -> ValidationContext {
        ValidationContext {
            tools: ["lookup".to_owned()].into_iter().collect(),
            ..ValidationContext::of_tests()
        }
    }

    #[test]
    fn every_mistake_is_told_with_its_field() {
        let body = json!({"model": "laab:x", "tools": ["nope", 3], "subagents": [{"name": "a"}], "foo": 1});
        let Validated { definition, findings } = validate("a b", body, &context());
        assert_eq!(definition, None);
        let fields: Vec<String> = findings.iter().map(|finding| finding.field.to_string()).collect();
        assert_eq!(
            fields,
            ["", "foo", "model", "subagents[0].description", "tools[0]", "tools[1]"]
        );
    }

    #[test]
    fn a_good_definition_can_have_oddities() {
        let body = json!({"model": "scripted:x", "default_tools": ["lookup"]});
        let Validated { definition, findings } = validate("a", body, &context());
        assert_eq!(
            definition.and_then(|agent| agent.general_purpose_subagent.tools),
            Some(vec!["lookup".to_owned()])
        );
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn a_client_names_neither_folders_on_the_disk_nor_files_that_it_would_bring_along() {
        let body = json!({"model": "scripted:x", "skills": ["/skills", "skills"], "enclosed": {},
            "subagents": [{"name": "a", "description": "Does this and all of that.", "memory": ["AGENTS.md"]}]});
        let Validated { definition, findings } = validate("a", body, &context());
        assert_eq!(definition, None);
        let fields: Vec<String> = findings.iter().map(|finding| finding.field.to_string()).collect();
        assert_eq!(fields, ["enclosed", "skills[1]", "subagents[0].memory[0]"]);
    }

    #[test]
    fn what_is_too_large_or_no_object_is_refused() {
        let large = validate(
            "a",
            json!({"system_prompt": "x".repeat(LARGEST_DEFINITION)}),
            &context(),
        );
        assert!(large.definition.is_none() && large.findings[0].message.contains("bytes of JSON"));
        assert!(validate("a", json!([1]), &context()).definition.is_none());
    }
}
