//! The commands that the agents of a definition run.

use std::path::Path;

use super::agent::{AgentDefinition, with_fields_mut};
use super::diagnostic::{Diagnostic, FieldPath};
use super::execute::{ExecuteRule, ExecuteSettings};
use super::workspace::{WorkspaceDefinition, WorkspaceKind};

impl AgentDefinition {
    /// Returns the rules for commands that the agent and its subagents give, with their fields.
    pub(super) fn execute_rules(&self) -> Vec<(FieldPath, &ExecuteRule)> {
        let below = self.subagents_with_fields();
        let below = below.filter_map(|(field, subagent)| Some((field.then("execute"), subagent.execute.as_ref()?)));
        std::iter::once((FieldPath::of(["execute"]), &self.execute))
            .chain(below)
            .collect()
    }

    /// Reads the environment variables that commands get, and makes paths absolute: they are relative to `folder`.
    pub fn settle_execution(&mut self, folder: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Vec<Diagnostic> {
        let mut findings = vec![];
        if let ExecuteRule::Settings(settings) = &mut self.execute {
            findings.extend(settings.settle(&FieldPath::of(["execute"]), folder, variable));
        }
        for (field, subagent) in with_fields_mut(&mut self.subagents) {
            if let Some(ExecuteRule::Settings(settings)) = &mut subagent.execute {
                findings.extend(settings.settle(&field.then("execute"), folder, variable));
            }
        }
        findings
    }

    /// Returns the agents of the definition that run commands on this machine, each with the field of its rule, its settings and its
    /// workspace on the disk.
    pub fn executing(&self) -> Vec<(FieldPath, ExecuteSettings, WorkspaceDefinition)> {
        let resolved = self.resolved();
        let below = resolved.subagents_with_fields();
        let below = below.map(|(field, subagent)| (field.then("execute"), subagent.spec(&resolved)));
        let all = std::iter::once((FieldPath::of(["execute"]), resolved.spec(""))).chain(below);
        all.filter_map(|(field, spec)| {
            let workspace = spec.workspace.of_commands()?.clone();
            let workspace = Some(workspace).filter(|own| own.kind == WorkspaceKind::Disk)?;
            Some((field, spec.execute.settings()?, workspace))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with(execute: Value) -> Value {
        json!({"model": "a:b", "workspace": {"kind": "disk", "root": "/srv/files"}, "execute": execute})
    }

    #[test]
    fn values_of_variables_are_read_with_the_configuration_and_never_shown() {
        let mut agent: AgentDefinition =
            serde_json::from_value(with(json!({"env": ["TOKEN", "NONE"]}))).expect("a definition");
        let variable = |name: &str| (name == "TOKEN").then(|| "hush".to_owned());
        let found = agent.settle_execution(Path::new("/"), &variable);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].field.to_string(), "execute.env[1]");
        let settings = agent.execute.settings().expect("settings");
        assert_eq!(settings.values.expose()["TOKEN"], "hush");
        assert!(!format!("{agent:?}").contains("hush"));
        assert!(!serde_json::to_string(&agent).expect("JSON").contains("hush"));
    }
}
