//! The workspace of an agent: where the files are on which its file tools work.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::diagnostic::{Diagnostic, FieldPath, suggestion};
use super::namespace::check_namespace;
use crate::domain::path::{below, is_bundled, normalise};
use crate::domain::pattern::fixed_folder;
use crate::domain::stored::is_default;

/// The maximum number of routes.
const MAX_ROUTES: usize = 64;
/// The directories in which the server keeps files of the thread. They are always in its state.
pub const THREAD_FOLDERS: [&str; 3] = ["/large_tool_results", "/large_messages", "/conversation_history"];
/// The placeholders that the namespace of a directory on the disk may have: a client can choose none of them.
const SERVER_VALUES: [&str; 5] = ["tenant", "user_id", "thread_id", "assistant_id", "agent_name"];

/// The place where file tools work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workspace {
    /// In the state of the thread, shared with subagents.
    #[default]
    State,
    /// Nowhere: the agent has no file tools.
    None,
}

/// The place where an agent's files are.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkspaceDefinition {
    /// The kind of place.
    pub kind: WorkspaceKind,
    /// The directory on the disk, for `disk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<PathBuf>,
    /// The sandbox service with the sandbox, for `sandbox`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The owner of the sandbox, for `sandbox`: the thread or each agent; the thread when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<SandboxScope>,
    /// The namespace in the Store, for `store`; the directories below `root`, for `disk`. `{name}` in a label is
    /// replaced by a value of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Vec<String>>,
    /// True if nothing can be changed.
    #[serde(skip_serializing_if = "is_default")]
    pub read_only: bool,
    /// True if searches leave out what `.gitignore` and `.ignore` name, for `disk`; `true` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_files: Option<bool>,
    /// The workspace of all paths without a route, for `composite`; the state of the thread when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<Box<WorkspaceDefinition>>,
    /// The workspaces at single paths, for `composite`. The longest path decides.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub routes: BTreeMap<String, WorkspaceDefinition>,
}

/// The kinds of places of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceKind {
    /// The state of the thread, shared with subagents.
    #[default]
    State,
    /// A directory on the disk of the server.
    Disk,
    /// A namespace of the Store, which outlives threads.
    Store,
    /// A sandbox of a sandbox service.
    Sandbox,
    /// Several workspaces, each at a path of its own.
    Composite,
}

/// The owner of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxScope {
    /// The thread's: all of its agents share the sandbox.
    #[default]
    Thread,
    /// The agent's: each agent of the thread has its own.
    Agent,
}

impl WorkspaceKind {
    fn word(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Disk => "disk",
            Self::Store => "store",
            Self::Sandbox => "sandbox",
            Self::Composite => "composite",
        }
    }
}

impl WorkspaceDefinition {
    /// Returns this workspace and those inside it, each with its field.
    fn all(&self, field: &FieldPath) -> Vec<(FieldPath, &Self)> {
        let mut all = vec![(field.clone(), self)];
        if let Some(default) = &self.default {
            all.extend(default.all(&field.then("default")));
        }
        for (path, route) in &self.routes {
            all.extend(route.all(&field.then("routes").then(path)));
        }
        all
    }

    /// Returns the directories on the disk that the workspace names, with their fields, to be changed.
    pub(super) fn roots_mut(&mut self, field: &FieldPath) -> Vec<(FieldPath, &mut PathBuf)> {
        let mut all = vec![];
        if let Some(root) = &mut self.root {
            all.push((field.then("root"), root));
        }
        if let Some(default) = &mut self.default {
            all.extend(default.roots_mut(&field.then("default")));
        }
        for (path, route) in &mut self.routes {
            all.extend(route.roots_mut(&field.then("routes").then(path)));
        }
        all
    }

    /// Returns an error for each part that is on the disk of the server or in a sandbox. Only the configuration may name
    /// one.
    pub(super) fn of_owner(&self, field: &FieldPath) -> Vec<Diagnostic> {
        let message = "is for definitions in files; one that comes over HTTP has its files in the state of the thread or \
            in the Store";
        let parts = self.all(field).into_iter();
        parts
            .filter(|(_, part)| {
                matches!(part.kind, WorkspaceKind::Disk | WorkspaceKind::Sandbox) || part.root.is_some()
            })
            .map(|(field, _)| Diagnostic::error(field.then("kind"), message))
            .collect()
    }

    /// Returns what the workspace is in a few words, for people.
    pub fn summary(&self) -> String {
        let kind = self.kind.word();
        let read_only = if self.read_only { ", read-only" } else { "" };
        let labels = self.namespace.as_ref().map(|labels| labels.join("/"));
        let detail = match self.kind {
            WorkspaceKind::State => String::new(),
            WorkspaceKind::Disk => {
                let root = self.root.as_ref().map(|root| root.display().to_string());
                let parts: Vec<String> = root.into_iter().chain(labels).collect();
                format!(" {}", parts.join("/"))
            }
            WorkspaceKind::Store => format!(" {}", labels.unwrap_or_default()),
            WorkspaceKind::Sandbox => {
                let whose = match self.scope.unwrap_or_default() {
                    SandboxScope::Thread => "",
                    SandboxScope::Agent => ", one for each agent",
                };
                format!(" {}{whose}", self.sandbox.as_deref().unwrap_or_default())
            }
            WorkspaceKind::Composite => {
                let default = self.default.as_deref().cloned().unwrap_or_default().summary();
                let routes = self.routes.iter();
                let routes: Vec<String> = routes
                    .map(|(path, route)| format!("{path}: {}", route.summary()))
                    .collect();
                format!(
                    " ({})",
                    [default].into_iter().chain(routes).collect::<Vec<_>>().join("; ")
                )
            }
        };
        format!("{kind}{detail}{read_only}")
    }

    /// Returns the workspace in which commands run, on the disk or in a sandbox: this one, or the default of a composite
    /// one.
    pub fn of_commands(&self) -> Option<&Self> {
        let own = match self.kind {
            WorkspaceKind::Composite => self.default.as_deref()?,
            WorkspaceKind::Disk | WorkspaceKind::Sandbox | WorkspaceKind::State | WorkspaceKind::Store => self,
        };
        let is_place = match own.kind {
            WorkspaceKind::Disk => own.root.is_some(),
            WorkspaceKind::Sandbox => own.sandbox.is_some(),
            WorkspaceKind::State | WorkspaceKind::Store | WorkspaceKind::Composite => false,
        };
        is_place.then_some(own)
    }

    /// Returns whether all paths that match a pattern are in routes, where no command runs.
    pub(super) fn is_in_routes(&self, pattern: &str) -> bool {
        let fixed_folder = fixed_folder(pattern);
        let is_route = |route: &String| {
            normalise(route).is_ok_and(|route| fixed_folder == route || below(&fixed_folder, &route).is_some())
        };
        self.kind == WorkspaceKind::Composite && self.routes.keys().any(is_route)
    }

    /// Checks the workspace in `field`; `services` are the sandbox services that there are.
    pub(super) fn check(&self, field: &FieldPath, services: &BTreeSet<String>) -> Vec<Diagnostic> {
        let mut findings = vec![];
        for (at, (place, workspace)) in self.all(field).into_iter().enumerate() {
            workspace.check_one(&place, at == 0, services, &mut findings);
        }
        findings
    }

    /// Returns the reason why the name of the sandbox service is wrong.
    fn service_problem(&self, services: &BTreeSet<String>) -> Option<String> {
        let Some(name) = &self.sandbox else {
            return Some("must be given: the name of a section `[sandboxes.NAME]`".to_owned());
        };
        (!services.contains(name)).then(|| {
            let known = suggestion(name, services.iter().map(String::as_str), "there are");
            format!("there is no section `[sandboxes.{name}]`; {known}")
        })
    }

    fn check_one(
        &self,
        field: &FieldPath,
        is_outermost: bool,
        services: &BTreeSet<String>,
        findings: &mut Vec<Diagnostic>,
    ) {
        let mut error = |field: FieldPath, message: String| findings.push(Diagnostic::error(field, message));
        let kind = self.kind;
        let given = [
            ("root", self.root.is_some(), kind == WorkspaceKind::Disk),
            ("sandbox", self.sandbox.is_some(), kind == WorkspaceKind::Sandbox),
            ("scope", self.scope.is_some(), kind == WorkspaceKind::Sandbox),
            ("ignore_files", self.ignore_files.is_some(), kind == WorkspaceKind::Disk),
            (
                "namespace",
                self.namespace.is_some(),
                matches!(kind, WorkspaceKind::Disk | WorkspaceKind::Store),
            ),
            (
                "read_only",
                self.read_only,
                matches!(kind, WorkspaceKind::Disk | WorkspaceKind::Store),
            ),
            ("default", self.default.is_some(), kind == WorkspaceKind::Composite),
            ("routes", !self.routes.is_empty(), kind == WorkspaceKind::Composite),
        ];
        for (name, is_given, fits) in given {
            if is_given && !fits {
                error(
                    field.then(name),
                    format!("does not go with `kind = \"{}\"`", kind.word()),
                );
            }
        }
        match kind {
            WorkspaceKind::Disk if self.root.as_ref().is_none_or(|root| root.as_os_str().is_empty()) => {
                error(
                    field.then("root"),
                    "must be given: the directory with the files".to_owned(),
                );
            }
            WorkspaceKind::Store if self.namespace.is_none() => {
                let message = "must be given: the labels under which the files are in the Store, such as \
                    [\"memories\", \"{user_id}\"]";
                error(field.then("namespace"), message.to_owned());
            }
            WorkspaceKind::Sandbox => {
                if let Some(problem) = self.service_problem(services) {
                    error(field.then("sandbox"), problem);
                }
            }
            WorkspaceKind::Composite if !is_outermost => {
                error(
                    field.then("kind"),
                    "must not be `composite` inside a composite one".to_owned(),
                );
            }
            WorkspaceKind::Composite if self.routes.is_empty() || self.routes.len() > MAX_ROUTES => {
                error(field.then("routes"), format!("must have from 1 to {MAX_ROUTES} paths"));
            }
            WorkspaceKind::State | WorkspaceKind::Disk | WorkspaceKind::Store | WorkspaceKind::Composite => {}
        }
        for path in self.routes.keys() {
            let is_twice = path.ends_with('/') && self.routes.contains_key(path.trim_end_matches('/'));
            let twice = is_twice.then(|| format!("`{path}` is there twice, with and without the slash"));
            if let Some(problem) = route_problem(path).or(twice) {
                error(field.then("routes").then(path), problem);
            }
        }
        findings.extend(self.check_namespace(&field.then("namespace")));
    }

    fn check_namespace(&self, field: &FieldPath) -> Vec<Diagnostic> {
        let Some(labels) = &self.namespace else { return vec![] };
        let mut findings = check_namespace(field, labels);
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_@+:~{}".contains(letter);
        for (at, label) in labels.iter().enumerate() {
            if !label.is_empty() && !label.contains('.') && !label.chars().all(is_plain) {
                let message = format!("`{label}` must consist of letters, digits and - _ @ + : ~");
                findings.push(Diagnostic::error(field.then(at), message));
            }
            let names = label.split('{').skip(1).filter_map(|rest| rest.split('}').next());
            for name in names.filter(|_| self.kind == WorkspaceKind::Disk) {
                if !SERVER_VALUES.contains(&name) {
                    let known = SERVER_VALUES.join(", ");
                    let message = format!(
                        "`{{{name}}}` would be chosen by clients, who could reach each other's files; on a disk only \
                         these are filled in: {known}"
                    );
                    findings.push(Diagnostic::error(field.then(at), message));
                }
            }
        }
        findings
    }
}

/// Returns the reason why a path cannot be the path of a route.
fn route_problem(path: &str) -> Option<String> {
    let clean = match normalise(path) {
        Ok(clean) => clean,
        Err(why) => return Some(format!("`{path}` is not allowed: {why}")),
    };
    let is_reserved = |folder: &&str| clean == **folder || below(&clean, folder).is_some();
    if !path.starts_with('/') || clean == "/" {
        Some(format!("`{path}` must begin with / and name a directory"))
    } else if is_bundled(&clean) || THREAD_FOLDERS.iter().any(is_reserved) {
        Some(format!("`{path}` belongs to the server; choose another path"))
    } else if path.trim_end_matches('/') != clean {
        Some(format!("`{path}` must be written as `{clean}`"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn problems(workspace: Value) -> Vec<String> {
        let workspace: WorkspaceDefinition = serde_json::from_value(workspace).expect("a workspace");
        let services = BTreeSet::from(["lab".to_owned()]);
        let found = workspace.check(&FieldPath::of(["workspace"]), &services);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_workspace_has_the_settings_of_its_kind_and_no_others() {
        let good = [
            json!({}),
            json!({"kind": "disk", "root": "/srv/files", "namespace": ["{tenant}", "{user_id}"], "ignore_files": false}),
            json!({"kind": "store", "namespace": ["memories", "{user_id}"], "read_only": true}),
            json!({"kind": "composite", "default": {"kind": "disk", "root": "work"},
                "routes": {"/memories/": {"kind": "store", "namespace": ["m"]}, "/scratch": {}}}),
            json!({"kind": "sandbox", "sandbox": "lab", "scope": "agent"}),
        ];
        for workspace in good {
            assert_eq!(problems(workspace.clone()), [""; 0], "{workspace}");
        }
        let bad = [
            (
                json!({"root": "/x"}),
                "workspace.root: does not go with `kind = \"state\"`",
            ),
            (json!({"kind": "disk"}), "workspace.root: must be given"),
            (json!({"kind": "store"}), "workspace.namespace: must be given"),
            (json!({"kind": "sandbox"}), "workspace.sandbox: must be given"),
            (
                json!({"kind": "sandbox", "sandbox": "labs"}),
                "workspace.sandbox: there is no section `[sandboxes.labs]`",
            ),
            (
                json!({"scope": "agent"}),
                "workspace.scope: does not go with `kind = \"state\"`",
            ),
            (
                json!({"kind": "sandbox", "sandbox": "lab", "read_only": true}),
                "workspace.read_only: does not go with",
            ),
            (
                json!({"kind": "store", "namespace": ["a b"]}),
                "workspace.namespace[0]: `a b` must consist of",
            ),
            (
                json!({"kind": "disk", "root": "/x", "namespace": ["{team}"]}),
                "workspace.namespace[0]: `{team}` would be chosen by clients",
            ),
            (
                json!({"kind": "composite"}),
                "workspace.routes: must have from 1 to 64 paths",
            ),
            (
                json!({"kind": "composite", "routes": {"/": {}}}),
                "workspace.routes./: `/` must begin with /",
            ),
            (
                json!({"kind": "composite", "routes": {"/.agent/x": {}}}),
                "workspace.routes./.agent/x: `/.agent/x` belongs to the server",
            ),
            (
                json!({"kind": "composite", "routes": {"/../x": {}}}),
                "workspace.routes./../x: `/../x` is not allowed",
            ),
            (
                json!({"kind": "composite", "routes": {"/a": {"kind": "composite", "routes": {"/b": {}}}}}),
                "workspace.routes./a.kind: must not be `composite`",
            ),
        ];
        for (workspace, expected) in bad {
            let found = problems(workspace.clone());
            let is_there = found
                .iter()
                .any(|text| text.replace('"', "").starts_with(&expected.replace('"', "")));
            assert!(is_there, "{workspace}: {found:?}");
        }
    }

    #[test]
    fn a_workspace_is_told_in_a_few_words() {
        let workspace: WorkspaceDefinition = serde_json::from_value(json!({
            "kind": "composite", "default": {"kind": "disk", "root": "/srv/files", "read_only": true},
            "routes": {"/memories/": {"kind": "store", "namespace": ["memories", "{user_id}"]}}
        }))
        .expect("a workspace");
        assert_eq!(
            workspace.summary(),
            "composite (disk /srv/files, read-only; /memories/: store memories/{user_id})"
        );
    }
}
