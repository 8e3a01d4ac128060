//! The workspaces that a definition names.

use std::path::Path;

use super::agent::AgentDefinition;
use super::diagnostic::{Diagnostic, FieldPath};
use super::workspace::WorkspaceDefinition;

impl AgentDefinition {
    /// Returns the workspaces of the agent and its subagents, with their fields.
    pub fn workspaces(&self) -> Vec<(FieldPath, &WorkspaceDefinition)> {
        let below = self.subagents.iter().enumerate().filter_map(|(at, subagent)| {
            let field = FieldPath::of(["subagents"]).then(at).then("workspace");
            Some((field, subagent.workspace.as_ref()?))
        });
        std::iter::once((FieldPath::of(["workspace"]), &self.workspace))
            .chain(below)
            .collect()
    }

    /// Makes the directories of workspaces absolute: they are relative to `folder`. Returns those that are not there,
    /// with their fields.
    pub fn settle_workspaces(&mut self, folder: &Path) -> Vec<Diagnostic> {
        let mut roots = self.workspace.roots_mut(&FieldPath::of(["workspace"]));
        for (at, subagent) in self.subagents.iter_mut().enumerate() {
            let field = FieldPath::of(["subagents"]).then(at).then("workspace");
            roots.extend(
                subagent
                    .workspace
                    .iter_mut()
                    .flat_map(|workspace| workspace.roots_mut(&field)),
            );
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
