//! Checks that agents with the tool `execute` can run commands.

use crate::definition::agent::{AgentDefinition, AgentSpec};
use crate::definition::diagnostic::{Diagnostic, FieldPath};
use crate::definition::permission::Permission;
use crate::definition::workspace::{Workspace, WorkspaceKind};

/// Checks that an agent with this specification can run commands, for the rule in `field`.
fn check_possible(spec: &AgentSpec, field: &FieldPath) -> Vec<Diagnostic> {
    let mut findings = vec![];
    let Some(settings) = spec.execute.settings() else {
        return findings;
    };
    if spec.files == Workspace::None {
        let message = "is not possible with `files = \"none\"`: the tool comes with the file tools";
        findings.push(Diagnostic::error(field.clone(), message));
    }
    match spec.workspace.of_commands() {
        Some(workspace) if workspace.kind == WorkspaceKind::Sandbox => {
            findings.extend(settings.check_for_service(field));
        }
        Some(_) => {}
        None => {
            let message = "needs a workspace of the kind `disk` or `sandbox`, or a composite one whose `default` is of \
                such a kind";
            findings.push(Diagnostic::error(field.clone(), message));
        }
    }
    let restricts = |rule: &&Permission| rule.tools.is_empty() && rule.mode.restricts();
    for rule in spec.permissions.iter().filter(restricts) {
        let mut seen = rule.paths.iter().filter(|path| !spec.workspace.is_in_routes(path));
        if let Some(path) = seen.next() {
            let message = format!(
                "would pass by the rule of `permissions` for `{path}`, which binds the file tools only; put such files \
                 into a route of the workspace, or take the rule away"
            );
            findings.push(Diagnostic::error(field.clone(), message));
        }
    }
    findings
}

impl AgentDefinition {
    /// Checks the rules for commands; `resolved` is the definition in its resolved form.
    pub(super) fn check_execution(&self, resolved: &Self) -> Vec<Diagnostic> {
        let rules = self.execute_rules();
        let mut findings: Vec<Diagnostic> = rules.iter().flat_map(|(field, rule)| rule.check(field)).collect();
        findings.extend(check_possible(&resolved.spec(""), &FieldPath::of(["execute"])));
        for ((field, subagent), own) in self.subagents_with_fields().zip(&resolved.subagents) {
            // A subagent that has the rule from its parent and another workspace has no such tool.
            if subagent.execute.is_some() {
                findings.extend(check_possible(&own.spec(resolved), &field.then("execute")));
            }
        }
        findings
    }

    /// Returns an error for each rule that lets an agent run commands. Only the configuration may have one.
    pub(super) fn check_execution_of_client(&self) -> Vec<Diagnostic> {
        let message = "is for definitions in files; one that comes over HTTP runs no commands";
        let rules = self.execute_rules().into_iter();
        rules
            .filter(|(_, rule)| rule.settings().is_some())
            .map(|(field, _)| Diagnostic::error(field, message))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(agent: Value) -> Vec<String> {
        let agent: AgentDefinition = serde_json::from_value(agent).expect("a definition");
        let found = agent.check_execution(&agent.resolved());
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn commands_need_a_directory_of_the_disk_and_file_tools() {
        let composite = |default: Value| json!({"kind": "composite", "default": default, "routes": {"/m": {}}});
        let disk = json!({"kind": "disk", "root": "/srv/files"});
        for (workspace, is_possible) in [
            (json!({}), false),
            (json!({"kind": "store", "namespace": ["a"]}), false),
            (composite(json!({})), false),
            (composite(disk.clone()), true),
            (disk.clone(), true),
        ] {
            let found = problems(json!({"execute": true, "workspace": workspace}));
            assert_eq!(found.is_empty(), is_possible, "{workspace}: {found:?}");
            assert_eq!(problems(json!({"execute": false, "workspace": workspace})), [""; 0]);
        }
        assert_eq!(
            problems(json!({"execute": true, "files": "none", "workspace": disk})).len(),
            1
        );
    }

    #[test]
    fn rules_for_files_that_commands_would_pass_by_are_refused() {
        let agent = |paths: Value, mode: &str| {
            json!({"execute": true, "permissions": [{"operations": ["read"], "paths": paths, "mode": mode}],
                "workspace": {"kind": "composite", "default": {"kind": "disk", "root": "/srv"}, "routes": {"/skills": {}}}})
        };
        assert_eq!(problems(agent(json!(["/secret/**"]), "allow")), [""; 0]);
        assert_eq!(problems(agent(json!(["/skills/**"]), "deny")), [""; 0]);
        for mode in ["deny", "interrupt"] {
            assert_eq!(problems(agent(json!(["/skills/**", "/secret/**"]), mode)).len(), 1);
            assert_eq!(problems(agent(json!(["/**"]), mode)).len(), 1);
        }
    }

    #[test]
    fn a_subagent_has_the_rule_of_its_parent_where_its_workspace_allows_it() {
        let agent: AgentDefinition = serde_json::from_value(json!({
            "model": "a:b", "execute": {"timeout_s": 7}, "workspace": {"kind": "disk", "root": "/srv"},
            "general_purpose_subagent": {"enabled": false},
            "subagents": [{"name": "same"}, {"name": "never", "execute": false}, {"name": "state", "workspace": {}}]
        }))
        .expect("a definition");
        assert_eq!(agent.check_execution(&agent.resolved()), []);
        let executing = agent.executing();
        let fields: Vec<String> = executing.iter().map(|(field, ..)| field.to_string()).collect();
        assert_eq!(fields, ["execute", "subagents[0].execute"]);
        assert!(executing.iter().all(|(_, settings, _)| settings.timeout_s == 7));
        let over_http: Vec<String> = agent
            .check_execution_of_client()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(over_http.len() == 1 && over_http[0].starts_with("execute: is for definitions in files"));
    }
}
