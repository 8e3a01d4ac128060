//! The workspaces that a definition names.

use std::path::Path;

use super::agent::{AgentDefinition, with_fields_mut};
use super::diagnostic::{Diagnostic, FieldPath};
use super::workspace::WorkspaceDefinition;

impl AgentDefinition {
    /// Returns the workspaces of the agent and its subagents, with their fields.
    pub fn workspaces(&self) -> Vec<(FieldPath, &WorkspaceDefinition)> {
        let below = self.subagents_with_fields();
        let below = below.filter_map(|(field, subagent)| Some((field.then("workspace"), subagent.workspace.as_ref()?)));
        std::iter::once((FieldPath::of(["workspace"]), &self.workspace))
            .chain(below)
            .collect()
    }

    /// Makes the directories of workspaces absolute: they are relative to `folder`. Returns those that are not there,
    /// with their fields.
    pub fn settle_workspaces(&mut self, folder: &Path) -> Vec<Diagnostic> {
        let mut roots = self.workspace.roots_mut(&FieldPath::of(["workspace"]));
        for (field, subagent) in with_fields_mut(&mut self.subagents) {
            let own = subagent.workspace.iter_mut();
            roots.extend(own.flat_map(|workspace| workspace.roots_mut(&field.then("workspace"))));
        }
        let mut findings = vec![];
        for (field, root) in roots.into_iter().filter(|(_, root)| !root.as_os_str().is_empty()) {
            *root = folder.join(&*root);
            match root.canonicalize() {
                Ok(real) if real.is_dir() => *root = real,
                Ok(_) => findings.push(Diagnostic::error(
                    field,
                    format!("`{}` must be a directory", root.display()),
                )),
                Err(error) => findings.push(Diagnostic::error(
                    field,
                    format!(
                        "`{}` cannot be opened: {error}; create the directory first",
                        root.display()
                    ),
                )),
            }
        }
        findings
    }
}
