//! Permissions for tool calls: the rules of `permissions` that name tools.
//!
//! The first rule that concerns a call decides. A call that no rule concerns is allowed. Where a rule cannot be sure, it
//! restricts: a rule that denies or asks concerns a call if one of its values matches, a rule that allows only if all
//! do.

use std::sync::Arc;

use globset::GlobMatcher;
use serde_json::{Map, Value};

use super::mcp::{LONGEST_NAME, before_digest};
use super::patterns::{glob, is_pattern, tool_glob};
use super::permission::{Permission, PermissionMode};
use crate::domain::filter::canonical_number;
use crate::domain::message::ToolCall;
use crate::domain::path::{below, normalise};
use crate::domain::pattern::{Pattern, fixed_folder};

/// The arguments of tools that are paths.
pub(super) const PATH_ARGUMENTS: [&str; 9] = [
    "path",
    "paths",
    "file_path",
    "filename",
    "file",
    "directory",
    "source",
    "destination",
    "target",
];

/// The file tools that work on everything below their path.
const TREE_TOOLS: [&str; 4] = ["ls", "glob", "grep", "delete"];

/// The compiled rules of an agent for calls of tools. Cheap to clone.
#[derive(Clone, Default)]
pub struct CallRules(Arc<[CallRule]>);

struct CallRule {
    /// The place in the list of `permissions`.
    at: usize,
    tools: Vec<ToolPattern>,
    arguments: Vec<(String, GlobMatcher)>,
    /// Each pattern with a folder that holds all paths that the pattern matches. None if the rule is about any path.
    paths: Option<Vec<(Pattern, String)>>,
    /// None if the rule is about every agent.
    agents: Option<Vec<GlobMatcher>>,
    mode: PermissionMode,
}

/// A pattern for the names of tools.
struct ToolPattern {
    glob: GlobMatcher,
    /// The pattern for names in which characters were replaced. None if it is a name, whose digest is known.
    replaced: Option<ReplacedPattern>,
}

/// A pattern for the beginnings of names in which characters were replaced, see [`before_digest`].
struct ReplacedPattern {
    /// None if the pattern has a range of characters that ends with a replaced one.
    glob: Option<GlobMatcher>,
    /// The beginning of the pattern, up to its first wildcard.
    start: String,
}

impl ToolPattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// As [`glob`].
    fn new(pattern: &str) -> Result<Self, String> {
        let exact = tool_glob(pattern)?;
        let replaced = is_pattern(pattern).then(|| ReplacedPattern::new(exact.glob().glob()));
        Ok(Self { glob: exact, replaced })
    }

    /// Returns whether the name of a tool matches, as its server gave it. Of a name that is too long for models the end is
    /// not known, so that a rule that restricts is about it if the beginning may match, and one that allows is not.
    fn matches(&self, tool: &str, restricts: bool) -> bool {
        if self.glob.is_match(tool) {
            return true;
        }
        let (Some(replaced), Some(kept)) = (&self.replaced, before_digest(tool)) else {
            return false;
        };
        let is_cut = tool.len() >= LONGEST_NAME;
        match &replaced.glob {
            Some(glob) if !is_cut => glob.is_match(kept),
            Some(glob) => restricts && (glob.is_match(kept) || replaced.may_begin(kept)),
            None => restricts && replaced.may_begin(kept),
        }
    }
}

impl ReplacedPattern {
    /// Compiles a valid pattern. Characters that names for models do not have are `_`, as in these names; those that
    /// belong to the pattern stay.
    fn new(pattern: &str) -> Self {
        let text = pattern.chars().fold(String::new(), |mut text, letter| {
            let is_kept = match letter {
                '!' | '^' => text.ends_with('['),
                ',' => text.matches('{').count() > text.matches('}').count(),
                _ => letter.is_ascii_alphanumeric() || "_-*?[]{}\\".contains(letter),
            };
            text.push(if is_kept { letter } else { '_' });
            text
        });
        let start = text.split(['*', '?', '[', '{', '\\']).next().unwrap_or_default();
        Self {
            glob: glob(&text, false).ok(),
            start: start.to_owned(),
        }
    }

    /// Returns whether a name that begins with `kept` may begin as the pattern does.
    fn may_begin(&self, kept: &str) -> bool {
        self.start.starts_with(kept) || kept.starts_with(&self.start)
    }
}

impl CallRules {
    /// Compiles the rules that name tools. Invalid patterns were refused when the definition was read.
    pub fn new(permissions: &[Permission]) -> Self {
        let all = permissions.iter().enumerate();
        let rules = all.filter(|(_, permission)| !permission.tools.is_empty());
        Self(rules.map(|(at, permission)| CallRule::new(at, permission)).collect())
    }

    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a rule may require approval.
    pub fn may_ask(&self) -> bool {
        self.0.iter().any(|rule| rule.mode == PermissionMode::Interrupt)
    }

    /// Returns whether a rule may require approval of this call, whichever agent makes it.
    pub fn may_ask_about(&self, call: &ToolCall) -> bool {
        let asking = self.0.iter().filter(|rule| rule.mode == PermissionMode::Interrupt);
        let mut asking = asking.filter(|rule| rule.names(&call.name));
        asking.any(|rule| rule.fits(call))
    }

    /// Returns whether a human has to approve this call of the agent at this path.
    pub fn asks_about(&self, agent: &[String], call: &ToolCall) -> bool {
        self.deciding(agent, call)
            .is_some_and(|rule| rule.mode == PermissionMode::Interrupt)
    }

    /// Checks that the agent at this path may make a call.
    ///
    /// # Errors
    /// Returns the text for the model, which names the rule.
    pub fn check(&self, agent: &[String], call: &ToolCall) -> Result<(), String> {
        match self.deciding(agent, call) {
            Some(rule) if rule.mode == PermissionMode::Deny => Err(format!(
                "Error: permission denied: you may not make this call of `{}` (permissions[{}]). It was not made.",
                call.name, rule.at
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns whether every call of a tool by the agent at this path is denied.
    pub fn always_denies(&self, agent: &[String], tool: &str) -> bool {
        let concerned = self.0.iter().filter(|rule| rule.names(tool) && rule.is_about(agent));
        for rule in concerned {
            match (rule.mode, rule.is_conditional()) {
                (PermissionMode::Deny, true) => {}
                (mode, _) => return mode == PermissionMode::Deny,
            }
        }
        false
    }

    fn deciding(&self, agent: &[String], call: &ToolCall) -> Option<&CallRule> {
        let mut rules = self.0.iter();
        rules.find(|rule| rule.names(&call.name) && rule.is_about(agent) && rule.fits(call))
    }
}

impl CallRule {
    fn new(at: usize, permission: &Permission) -> Self {
        let tools = permission.tools.iter().filter_map(|tool| ToolPattern::new(tool).ok());
        let argument = |(name, pattern): (&String, &String)| Some((name.clone(), glob(pattern, false).ok()?));
        let path = |text: &String| Some((Pattern::with_dots(text).ok()?, fixed_folder(text)));
        let agents = permission.agents.iter().filter_map(|agent| glob(agent, true).ok());
        Self {
            at,
            tools: tools.collect(),
            arguments: permission.arguments.iter().filter_map(argument).collect(),
            paths: (!permission.paths.is_empty()).then(|| permission.paths.iter().filter_map(path).collect()),
            agents: (!permission.agents.is_empty()).then(|| agents.collect()),
            mode: permission.mode,
        }
    }

    fn names(&self, tool: &str) -> bool {
        let mut patterns = self.tools.iter();
        patterns.any(|pattern| pattern.matches(tool, self.mode.restricts()))
    }

    fn is_about(&self, agent: &[String]) -> bool {
        let path = agent.join("/");
        self.agents
            .as_ref()
            .is_none_or(|patterns| patterns.iter().any(|pattern| pattern.is_match(&path)))
    }

    fn is_conditional(&self) -> bool {
        self.paths.is_some() || !self.arguments.is_empty()
    }

    /// Returns whether the arguments of a call are such as the rule is about.
    fn fits(&self, call: &ToolCall) -> bool {
        let restricts = self.mode.restricts();
        let arguments = self.arguments.iter().all(|(name, pattern)| {
            let mut values = vec![];
            collect_values(&call.args, name, restricts, &mut values);
            self.holds(&values, |value| pattern.is_match(value))
        });
        arguments
            && self
                .paths
                .as_ref()
                .is_none_or(|patterns| self.fits_paths(patterns, call))
    }

    fn fits_paths(&self, patterns: &[(Pattern, String)], call: &ToolCall) -> bool {
        let is_tree = TREE_TOOLS.contains(&call.name.as_str());
        let restricts = self.mode.restricts();
        let mut paths = vec![];
        for name in PATH_ARGUMENTS {
            collect_texts(call.args.get(name).unwrap_or(&Value::Null), restricts, &mut paths);
        }
        if paths.is_empty() && is_tree {
            paths.push("/".to_owned());
        }
        self.holds(&paths, |path| match normalise(path) {
            Ok(path) => patterns.iter().any(|(pattern, fixed_folder)| {
                let reaches =
                    || restricts && is_tree && (below(fixed_folder, &path).is_some() || *fixed_folder == path);
                pattern.matches(path.trim_start_matches('/')) || reaches()
            }),
            // A path that leads out of the workspace may be any.
            Err(_) => restricts,
        })
    }

    /// Returns whether values match: one is enough for a rule that restricts, and all have to for one that allows.
    fn holds(&self, values: &[String], matches: impl Fn(&str) -> bool) -> bool {
        let mut values = values.iter();
        match self.mode {
            PermissionMode::Allow => values.len() > 0 && values.all(|value| matches(value)),
            PermissionMode::Deny | PermissionMode::Interrupt => values.any(|value| matches(value)),
        }
    }
}

/// Adds the values of an argument: those at a path of keys with dots between them, in lists too. `restricts` is as in
/// [`collect_texts`].
fn collect_values(fields: &Map<String, Value>, path: &str, restricts: bool, into: &mut Vec<String>) {
    if let Some(own) = fields.get(path) {
        collect_texts(own, restricts, into);
    }
    // A name with dots, which a model could add, must not hide the argument inside another one.
    for (at, _) in path.match_indices('.') {
        if let Some(inner) = fields.get(&path[..at]) {
            collect_inner_values(inner, &path[at + 1..], restricts, into);
        }
    }
}

/// Does the same for an object, or for each of a list.
fn collect_inner_values(value: &Value, path: &str, restricts: bool, into: &mut Vec<String>) {
    match value {
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect_inner_values(item, path, restricts, into)),
        Value::Object(fields) => collect_values(fields, path, restricts, into),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Adds the texts of a value: each of a list, and other values as JSON, 7.0 as 7. For a rule that restricts those inside
/// objects, too: `{"mail": "eve@example.org"}` may mean the same as the text alone.
fn collect_texts(value: &Value, restricts: bool, into: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, restricts, into)),
        Value::Object(_) => {
            into.push(value.to_string());
            if restricts {
                collect_inner_texts(value, into);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => collect_inner_texts(value, into),
    }
}

/// Adds the texts inside a value, without the JSON of lists and objects: that of each level would be a copy of the rest.
fn collect_inner_texts(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Null => {}
        Value::String(text) => into.push(text.clone()),
        Value::Number(number) => into.push(canonical_number(number)),
        Value::Bool(_) => into.push(value.to_string()),
        Value::Array(items) => items.iter().for_each(|item| collect_inner_texts(item, into)),
        Value::Object(fields) => fields.values().for_each(|inner| collect_inner_texts(inner, into)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::mcp::model_name;
    use super::super::permission::check;
    use super::super::{FieldPath, FileRules};
    use super::*;

    fn rules(value: Value) -> CallRules {
        let permissions: Vec<Permission> = serde_json::from_value(value).expect("rules");
        assert_eq!(check(&FieldPath::default(), &permissions), []);
        assert!(
            !FileRules::new(&permissions).may_interrupt(),
            "rules about calls are no rules about files"
        );
        CallRules::new(&permissions)
    }

    fn decision(rules: &CallRules, agent: &str, tool: &str, args: Value) -> &'static str {
        let path: Vec<String> = agent.split('/').map(str::to_owned).collect();
        let call = ToolCall::new("c", tool, args.as_object().cloned().unwrap_or_default());
        match (rules.check(&path, &call), rules.asks_about(&path, &call)) {
            (Err(_), _) => "deny",
            (Ok(()), true) => "ask",
            (Ok(()), false) => "allow",
        }
    }

    #[test]
    fn the_first_rule_that_concerns_a_call_decides() {
        let rules = rules(json!([
            {"tools": ["send_email"], "arguments": {"to": "*@example.com"}},
            {"tools": ["send_*"], "agents": ["main/intern"], "mode": "deny"},
            {"tools": ["send_*", "docs/*"], "mode": "ask"},
        ]));
        for (agent, tool, args, expected) in [
            ("main", "send_email", json!({"to": "ann@example.com"}), "allow"),
            (
                "main",
                "send_email",
                json!({"to": ["ann@example.com", "eve@evil.com"]}),
                "ask",
            ),
            ("main", "send_email", json!({}), "ask"),
            ("main/intern", "send_email", json!({"to": "eve@evil.com"}), "deny"),
            ("main/intern", "send_email", json!({"to": "ann@example.com"}), "allow"),
            ("main/chief/intern", "send_fax", json!({}), "ask"),
            ("main", "docs__search", json!({}), "ask"),
            ("main", "lookup", json!({"to": "eve@evil.com"}), "allow"),
        ] {
            assert_eq!(
                decision(&rules, agent, tool, args.clone()),
                expected,
                "{agent} {tool} {args}"
            );
        }
        assert!(rules.may_ask() && !rules.is_empty() && CallRules::default().is_empty());
    }

    #[test]
    fn arguments_inside_others_and_of_other_types_are_compared() {
        let rules = rules(json!([
            {"tools": ["*"], "arguments": {"options.mode": "wipe*"}, "mode": "deny"},
            {"tools": ["*"], "arguments": {"rows.id": "7", "force": "true"}, "mode": "deny"},
        ]));
        assert_eq!(
            decision(&rules, "a", "x", json!({"options": {"mode": "wipe\nall"}})),
            "deny"
        );
        assert_eq!(decision(&rules, "a", "x", json!({"options.mode": "wipe"})), "deny");
        let hidden = json!({"options.mode": "keep", "options": {"mode": "wipe"}});
        assert_eq!(decision(&rules, "a", "x", hidden), "deny");
        assert_eq!(
            decision(&rules, "a", "x", json!({"rows": [{"id": 1}, {"id": 7}], "force": true})),
            "deny"
        );
        assert_eq!(
            decision(&rules, "a", "x", json!({"rows": [{"id": 7.0}], "force": true})),
            "deny"
        );
        assert_eq!(
            decision(&rules, "a", "x", json!({"rows": [{"id": 1}], "force": true})),
            "allow"
        );
    }

    #[test]
    fn paths_are_compared_in_their_normal_form_and_those_that_lead_outside_are_restricted() {
        let rules = rules(json!([
            {"tools": ["fs/*", "grep"], "paths": ["/project/**"]},
            {"tools": ["fs/*", "grep"], "paths": ["/**"], "mode": "deny"},
        ]));
        for (tool, args, expected) in [
            ("fs__read", json!({"path": "project/./a"}), "allow"),
            ("fs__read", json!({"path": "/project/../etc/passwd"}), "deny"),
            (
                "fs__move",
                json!({"source": "/project/a", "destination": "/etc/a"}),
                "deny",
            ),
            ("fs__read", json!({"paths": ["/project/a", "/project/b"]}), "allow"),
            ("grep", json!({"pattern": "x"}), "deny"),
            ("fs__status", json!({}), "allow"),
        ] {
            assert_eq!(decision(&rules, "a", tool, args.clone()), expected, "{tool} {args}");
        }
    }

    #[test]
    fn a_rule_that_restricts_looks_into_objects() {
        let rules = rules(json!([
            {"tools": ["send"], "arguments": {"to": "*@evil.com"}, "mode": "deny"},
            {"tools": ["move"], "paths": ["/etc/**"], "mode": "deny"},
            {"tools": ["send"], "mode": "ask"},
        ]));
        for (tool, args, expected) in [
            ("send", json!({"to": {"mail": "eve@evil.com"}}), "deny"),
            ("send", json!({"to": [{"mail": ["bob@a.org", "eve@evil.com"]}]}), "deny"),
            ("move", json!({"source": {"path": "/etc/passwd"}}), "deny"),
            ("send", json!({"to": {"mail": "bob@a.org"}}), "ask"),
        ] {
            assert_eq!(decision(&rules, "a", tool, args.clone()), expected, "{tool} {args}");
        }
    }

    #[test]
    fn patterns_are_compared_with_the_names_that_servers_give_their_tools() {
        let rules = rules(json!([
            {"tools": ["fs/*.delete", "*drop"], "mode": "deny"},
            {"tools": ["fs/files.*", "fs/a!*"]},
            {"tools": ["fs/*"], "mode": "ask"},
        ]));
        let long = "x".repeat(90);
        for (server, tool, expected) in [
            ("fs", "files.delete", "deny"),
            ("fs", "files.read", "allow"),
            ("fs", "a!b", "allow"),
            ("fs", "read", "ask"),
            ("db", "table/drop", "deny"),
            ("db", "table.list", "allow"),
            ("db", long.as_str(), "deny"),
        ] {
            let name = model_name(server, tool);
            assert_eq!(decision(&rules, "main", &name, json!({})), expected, "{name}");
        }
    }

    #[test]
    fn a_rule_that_allows_needs_the_whole_name_and_one_that_denies_is_never_lost() {
        let rules = rules(json!([{"tools": ["fs/*.read"]}, {"tools": ["fs/[a-~]*"], "mode": "deny"}]));
        // The beginning of this name that is left ends with `_read`.
        let long = format!("{}.read.and.write", "x".repeat(46));
        for (tool, expected) in [
            ("page.read", "allow"),
            (long.as_str(), "deny"),
            ("write", "deny"),
            ("write.all", "deny"),
        ] {
            let name = model_name("fs", tool);
            assert_eq!(decision(&rules, "main", &name, json!({})), expected, "{name}");
        }
    }

    #[test]
    fn a_tool_whose_every_call_is_denied_is_known() {
        let rules = rules(json!([
            {"tools": ["a"], "arguments": {"x": "1"}, "mode": "deny"},
            {"tools": ["b"], "arguments": {"x": "1"}},
            {"tools": ["*"], "agents": ["main/**"], "mode": "deny"},
        ]));
        let path = |text: &str| -> Vec<String> { text.split('/').map(str::to_owned).collect() };
        assert!(rules.always_denies(&path("main/x"), "a") && rules.always_denies(&path("main/x/y"), "c"));
        assert!(!rules.always_denies(&path("main/x"), "b") && !rules.always_denies(&path("other"), "a"));
    }
}
