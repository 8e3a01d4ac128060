//! Permissions: the files that an agent may read and change, the calls that it may make, and the calls about which a
//! human is asked.
//!
//! A rule names operations on files or tools. The first rule that concerns an operation on a path decides. An operation
//! that no rule concerns is allowed. Rules that name operations apply to the file tools of every source, and to nothing
//! else; [`super::call_rules`] applies those that name tools.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::diagnostic::{Diagnostic, FieldPath, check_length};
use super::patterns::{glob, tool_glob};
use super::words::path_problem;
use crate::domain::message::ToolCall;
use crate::domain::path::{below, normalise};
use crate::domain::pattern::{Pattern, fixed_folder};

/// The maximum number of rules of an agent, and of paths of a rule.
const MOST: usize = 256;

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Permission {
    /// The operations on files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operations: Vec<FileOperation>,
    /// The tools, instead of operations: patterns, in which `*` stands for any text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<String>,
    /// The values of arguments of the tools: a pattern for each name. Names of arguments inside others have dots.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub arguments: BTreeMap<String, String>,
    /// The paths: absolute patterns, in which `**` spans folders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// The agents that call the tools: patterns for the names from the main agent down, as in `main/researcher`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<String>,
    /// The decision.
    pub mode: PermissionMode,
}

/// An operation on files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileOperation {
    /// Reading, listing and searching.
    Read,
    /// Writing, editing and deleting.
    Write,
}

impl FileOperation {
    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The decision of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PermissionMode {
    /// The operation is allowed.
    #[default]
    Allow,
    /// The operation is refused.
    Deny,
    /// The operation is allowed once a human has approved the call.
    #[serde(alias = "ask")]
    Interrupt,
}

impl PermissionMode {
    /// Returns whether a rule with this decision restricts: it refuses, or a human has to be asked.
    pub(super) fn restricts(self) -> bool {
        self != Self::Allow
    }
}

/// The compiled rules of an agent. Cheap to clone.
#[derive(Clone, Default)]
pub struct FileRules {
    rules: Arc<[Rule]>,
    /// True if no human can be asked, so that what needs approval is refused.
    is_unattended: bool,
}

struct Rule {
    operations: Vec<FileOperation>,
    /// Each pattern, with a folder that holds all paths that the pattern matches.
    paths: Vec<(String, Pattern, String)>,
    mode: PermissionMode,
}

impl FileRules {
    /// Compiles these rules. Invalid patterns were refused when the definition was read.
    pub fn new(permissions: &[Permission]) -> Self {
        let path = |text: &String| Some((text.clone(), Pattern::with_dots(text).ok()?, fixed_folder(text)));
        let rule = |permission: &Permission| Rule {
            operations: permission.operations.clone(),
            paths: permission.paths.iter().filter_map(path).collect(),
            mode: permission.mode,
        };
        let of_files = permissions.iter().filter(|permission| permission.tools.is_empty());
        Self {
            rules: of_files.map(rule).collect(),
            is_unattended: false,
        }
    }

    /// Returns the rules for one who cannot ask a human: what needs approval is refused.
    #[must_use]
    pub fn unattended(&self) -> Self {
        Self {
            is_unattended: true,
            ..self.clone()
        }
    }

    /// Returns whether a rule may require approval.
    pub fn may_interrupt(&self) -> bool {
        self.rules.iter().any(|rule| rule.mode == PermissionMode::Interrupt)
    }

    /// Returns the decision about `operation` on `path`, which is normalised, and the pattern that matches.
    fn decision(&self, operation: FileOperation, path: &str) -> Option<(PermissionMode, &str)> {
        let relative = path.trim_start_matches('/');
        let rules = self.rules.iter().filter(|rule| rule.operations.contains(&operation));
        rules
            .filter_map(|rule| {
                let (text, ..) = rule.paths.iter().find(|(_, pattern, _)| pattern.matches(relative))?;
                Some((rule.mode, text.as_str()))
            })
            .next()
    }

    /// Checks that `operation` on the normalised `path` is allowed.
    ///
    /// # Errors
    /// Returns the text for the model, which names the rule.
    pub fn check(&self, operation: FileOperation, path: &str) -> Result<(), String> {
        match self.decision(operation, path) {
            Some((PermissionMode::Deny, pattern)) => {
                let word = operation.word();
                Err(format!(
                    "Error: permission denied: you may not {word} '{path}' (rule for {pattern})"
                ))
            }
            Some((PermissionMode::Interrupt, pattern)) if self.is_unattended => {
                let word = operation.word();
                Err(format!(
                    "Error: permission denied: a human has to approve that you {word} '{path}' (rule for {pattern}), and \
                     none can be asked here"
                ))
            }
            Some((PermissionMode::Allow | PermissionMode::Interrupt, _)) | None => Ok(()),
        }
    }

    /// Checks that `operation` on the normalised `path` may reach `target`, to which symbolic links lead. A human who
    /// has approved the path knows nothing of the target.
    ///
    /// # Errors
    /// Returns the text for the model, which names the target.
    pub fn check_target(&self, operation: FileOperation, path: &str, target: &str) -> Result<(), String> {
        let asks = |path: &str| {
            self.decision(operation, path)
                .is_some_and(|(mode, _)| mode == PermissionMode::Interrupt)
        };
        if asks(target) && !asks(path) && !self.is_unattended {
            return Err(format!(
                "Error: '{path}' leads to '{target}', for which a human has to be asked. Name that path instead."
            ));
        }
        self.check(operation, target)
    }

    /// Returns whether a human has to approve this call of a file tool. A call on many files needs approval if one of
    /// the files may need it.
    pub fn needs_approval_of(&self, call: &ToolCall) -> bool {
        let argument = |name: &str| call.args.get(name).and_then(|value| value.as_str());
        let exact = |operation, path: Option<&str>| {
            let path = path.and_then(|path| normalise(path).ok());
            path.and_then(|path| self.decision(operation, &path))
                .is_some_and(|(mode, _)| mode == PermissionMode::Interrupt)
        };
        let many = |operation, path: Option<&str>| match path.map(normalise) {
            Some(Ok(path)) => self.may_be_below(operation, &path),
            // A call without a path of its own concerns all files.
            None => self.may_be_below(operation, "/"),
            Some(Err(_)) => false,
        };
        match call.name.as_str() {
            "read_file" => exact(FileOperation::Read, argument("file_path")),
            "write_file" | "edit_file" => exact(FileOperation::Write, argument("file_path")),
            "delete" => many(FileOperation::Write, argument("file_path")),
            "ls" | "glob" | "grep" => many(FileOperation::Read, argument("path")),
            _ => false,
        }
    }

    /// Returns whether a rule that requires approval may concern `operation` at or below `path`.
    fn may_be_below(&self, operation: FileOperation, path: &str) -> bool {
        let asking = self.rules.iter().filter(|rule| rule.mode == PermissionMode::Interrupt);
        let mut fixed_folders = asking
            .filter(|rule| rule.operations.contains(&operation))
            .flat_map(|rule| &rule.paths);
        fixed_folders.any(|(_, _, fixed_folder)| {
            fixed_folder == path || below(fixed_folder, path).is_some() || below(path, fixed_folder).is_some()
        })
    }
}

/// Checks the rules in `field`.
pub(super) fn check(field: &FieldPath, permissions: &[Permission]) -> Vec<Diagnostic> {
    let mut findings = vec![];
    let mut error = |field: FieldPath, message: String| findings.push(Diagnostic::error(field, message));
    if permissions.len() > MOST {
        error(
            field.clone(),
            format!("has {} rules; at most {MOST} are allowed", permissions.len()),
        );
    }
    for (at, permission) in permissions.iter().enumerate() {
        let field = field.then(at);
        check_subject(&field, permission, &mut error);
        for (at, path) in permission.paths.iter().enumerate() {
            let problem = path_problem(path);
            problem
                .into_iter()
                .for_each(|problem| error(field.then("paths").then(at), problem));
        }
    }
    findings
}

/// Checks what a rule is about.
fn check_subject(field: &FieldPath, permission: &Permission, error: &mut impl FnMut(FieldPath, String)) {
    let Permission {
        operations,
        tools,
        arguments,
        paths,
        agents,
        mode: _,
    } = permission;
    if operations.is_empty() && tools.is_empty() {
        error(
            field.then("operations"),
            "must name at least one of read, write; or `tools` names the tools that the rule is about".to_owned(),
        );
    }
    if !operations.is_empty() && !tools.is_empty() {
        error(
            field.then("tools"),
            "goes without `operations`: a rule is about operations on files or about tools".to_owned(),
        );
    }
    if paths.len() > MOST || paths.is_empty() && tools.is_empty() {
        error(field.then("paths"), format!("must name from 1 to {MOST} paths"));
    }
    for (name, length) in [
        ("tools", tools.len()),
        ("arguments", arguments.len()),
        ("agents", agents.len()),
    ] {
        if let Some(found) = check_length(&field.then(name), length, MOST) {
            error(found.field, found.message);
        }
        if length > 0 && tools.is_empty() && name != "tools" {
            error(field.then(name), "goes with `tools`".to_owned());
        }
    }
    let wrong = |pattern: &str, why: String| format!("`{pattern}` is no pattern: {why}");
    for (at, tool) in tools.iter().enumerate() {
        if let Err(why) = tool_glob(tool) {
            error(field.then("tools").then(at), wrong(tool, why));
        }
    }
    for (name, pattern) in arguments {
        if let Err(why) = glob(pattern, false) {
            error(field.then("arguments").then(name), wrong(pattern, why));
        }
    }
    for (at, agent) in agents.iter().enumerate() {
        if let Err(why) = glob(agent, true) {
            error(field.then("agents").then(at), wrong(agent, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rules(value: Value) -> FileRules {
        let permissions: Vec<Permission> = serde_json::from_value(value).expect("rules");
        assert_eq!(check(&FieldPath::default(), &permissions), []);
        FileRules::new(&permissions)
    }

    #[test]
    fn the_first_rule_that_concerns_it_decides() {
        let rules = rules(json!([
            {"operations": ["write"], "paths": ["/secret/open.txt"]},
            {"operations": ["read", "write"], "paths": ["/secret/**"], "mode": "deny"},
            {"operations": ["write"], "paths": ["/**/*.lock", "/etc"], "mode": "deny"},
        ]));
        let may = |operation, path: &str| rules.check(operation, path).is_ok();
        let read = FileOperation::Read;
        let write = FileOperation::Write;
        assert!(may(write, "/secret/open.txt") && !may(read, "/secret/open.txt"));
        assert!(
            !may(read, "/secret/a/b") && !may(read, "/secret/.env"),
            "names with a dot are no way around"
        );
        assert!(!may(write, "/a/.b/c.lock") && may(read, "/a/b/c.lock") && !may(write, "/etc") && may(write, "/x"));
        assert!(
            rules
                .check(read, "/secret/a")
                .is_err_and(|text| text.contains("may not read '/secret/a' (rule for /secret/**)"))
        );
        assert!(may(read, "/secrets") && FileRules::default().check(write, "/x").is_ok());
    }

    #[test]
    fn what_a_human_has_to_approve_is_refused_where_none_can_be_asked() {
        let rules = rules(json!([
            {"operations": ["read"], "paths": ["/ask/free.txt"]},
            {"operations": ["read"], "paths": ["/ask/**"], "mode": "interrupt"},
            {"operations": ["read"], "paths": ["/secret/**"], "mode": "deny"},
        ]));
        let unattended = rules.unattended();
        let read = FileOperation::Read;
        assert!(rules.check(read, "/ask/x").is_ok());
        let refused = unattended.check(read, "/ask/x");
        assert!(
            refused
                .is_err_and(|text| text.contains("a human has to approve that you read '/ask/x' (rule for /ask/**)"))
        );
        let target = unattended.check_target(read, "/link", "/ask/x");
        assert!(target.is_err_and(|text| text.contains("a human has to approve")));
        assert!(unattended.check(read, "/ask/free.txt").is_ok() && unattended.check(read, "/x").is_ok());
        assert!(
            unattended
                .check(read, "/secret/x")
                .is_err_and(|text| text.contains("you may not read"))
        );
    }

    #[test]
    fn a_call_is_asked_about_when_it_may_reach_what_a_rule_asks_about() {
        let rules = rules(json!([
            {"operations": ["write"], "paths": ["/ask/free.txt"]},
            {"operations": ["read", "write"], "paths": ["/ask/**"], "mode": "interrupt"},
        ]));
        let asks = |name: &str, args: Value| {
            rules.needs_approval_of(&ToolCall::new("c", name, args.as_object().cloned().unwrap_or_default()))
        };
        assert!(rules.may_interrupt());
        for (name, args) in [
            ("write_file", json!({"file_path": "/ask/x"})),
            ("edit_file", json!({"file_path": "ask/x"})),
            ("read_file", json!({"file_path": "/ask/deep/x"})),
            ("read_file", json!({"file_path": "/ask/free.txt"})),
            ("delete", json!({"file_path": "/ask"})),
            ("ls", json!({"path": "/"})),
            ("ls", json!({"path": "/ask/deep"})),
            ("glob", json!({"pattern": "*"})),
            ("grep", json!({"pattern": "x", "path": null})),
        ] {
            assert!(asks(name, args.clone()), "{name} {args}");
        }
        for (name, args) in [
            ("write_file", json!({"file_path": "/ask/free.txt"})),
            ("write_file", json!({"file_path": "/other"})),
            ("ls", json!({"path": "/other"})),
            ("delete", json!({"file_path": "/asking"})),
            ("lookup", json!({"path": "/ask/x"})),
        ] {
            assert!(!asks(name, args.clone()), "{name} {args}");
        }
    }

    #[test]
    fn rules_that_mean_nothing_are_refused() {
        let cases = [
            (
                json!([{"paths": ["/a"]}]),
                "p[0].operations: must name at least one of read, write",
            ),
            (
                json!([{"operations": ["read"]}]),
                "p[0].paths: must name from 1 to 256 paths",
            ),
            (
                json!([{"operations": ["read"], "tools": ["a"], "paths": ["/a"]}]),
                "p[0].tools: goes without `operations`",
            ),
            (
                json!([{"operations": ["read"], "paths": ["/a"], "agents": ["a"]}]),
                "p[0].agents: goes with `tools`",
            ),
            (
                json!([{"tools": ["a"], "arguments": {"to": "[a"}}]),
                "p[0].arguments.to: `[a` is no pattern",
            ),
            (json!([{"tools": ["x".repeat(1_001)]}]), "p[0].tools[0]: `xxx"),
            (
                json!([{"operations": ["read"], "paths": ["a"]}]),
                "p[0].paths[0]: `a` must begin with /",
            ),
            (
                json!([{"operations": ["read"], "paths": ["/a/../b"]}]),
                "p[0].paths[0]: `/a/../b` must contain neither",
            ),
            (
                json!([{"operations": ["read"], "paths": ["/{a"]}]),
                "p[0].paths[0]: `/{a` is no pattern: a { has no }",
            ),
        ];
        for (value, expected) in cases {
            let permissions: Vec<Permission> = serde_json::from_value(value).expect("rules");
            let reported = check(&FieldPath::of(["p"]), &permissions);
            assert!(
                reported.len() == 1 && reported[0].to_string().starts_with(expected),
                "{expected}: {reported:?}"
            );
        }
    }
}
