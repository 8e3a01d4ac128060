//! Checks the limits of runs, and of what stays in a conversation.

use super::Check;
use crate::definition::agent::AgentDefinition;
use crate::definition::diagnostic::FieldPath;
use crate::definition::words::SHORTEST_TIMEOUT_S;
use crate::definition::workspace::Workspace;
use crate::domain::limits::Limits;

/// The deepest nesting of delegations that a definition may allow.
pub(super) const DEEPEST: u32 = 32;

impl Check<'_> {
    pub(super) fn steps(&mut self, field: &FieldPath, limit: Option<u32>) {
        if limit == Some(0) {
            self.error(field, "must be a whole number of at least 1");
        }
    }

    pub(super) fn limits(&mut self, field: &FieldPath, limits: Option<&Limits>, has_tree: bool) {
        let Some(limits) = limits else { return };
        if limits.depth.is_some_and(|depth| depth > DEEPEST) {
            self.error(
                &field.then("depth"),
                format!("must be a whole number from 0 to {DEEPEST}"),
            );
        }
        let positive = [
            ("model_calls", limits.model_calls),
            ("tokens", limits.tokens),
            ("children_at_once", limits.children_at_once),
        ];
        for (name, _) in positive.into_iter().filter(|(_, limit)| *limit == Some(0)) {
            self.error(&field.then(name), "must be a whole number of at least 1");
        }
        let is_stored = self.context.is_stored;
        let is_too_short = |seconds: f64| seconds <= 0.0 || (seconds < SHORTEST_TIMEOUT_S && !is_stored);
        if limits
            .wall_s
            .is_some_and(|seconds| !seconds.is_finite() || is_too_short(seconds))
        {
            let message = format!("must be a number of seconds of at least {SHORTEST_TIMEOUT_S}");
            self.error(&field.then("wall_s"), message);
        }
        // Usage counts in millionths, so a smaller limit would be 0.
        if limits.cost.is_some_and(|cost| !cost.is_finite() || cost < 0.000_001) {
            self.error(&field.then("cost"), "must be a number of at least 0.000001");
        }
        match limits.tree.as_deref() {
            Some(_) if !has_tree => self.error(&field.then("tree"), "is for the main agent, at the top of the tree"),
            Some(tree) => {
                if tree.repeated_failures.is_some() {
                    let field = field.then("tree").then("repeated_failures");
                    self.error(&field, "is counted in each run by itself; set it in `limits`");
                }
                self.limits(&field.then("tree"), Some(tree), false);
            }
            None => {}
        }
    }

    /// Warns of limits that belong to the file tools, for an agent without them.
    pub(super) fn limits_of_files(&mut self, agent: &AgentDefinition) {
        if agent.files != Workspace::None {
            return;
        }
        let limits = |result: Option<u32>, message: Option<u32>| {
            [
                ("tool_token_limit_before_evict", result),
                ("human_message_token_limit_before_evict", message),
            ]
        };
        let own = limits(
            agent.tool_token_limit_before_evict,
            agent.human_message_token_limit_before_evict,
        );
        let mut all = vec![(FieldPath::default(), own)];
        all.extend(agent.subagents_with_fields().map(|(field, subagent)| {
            let own = limits(
                subagent.tool_token_limit_before_evict,
                subagent.human_message_token_limit_before_evict,
            );
            (field, own)
        }));
        for (place, limits) in all {
            for (name, _) in limits.into_iter().filter(|(_, limit)| limit.is_some()) {
                let message = "is without effect with `files = \"none\"`: the rest would be in a file";
                self.warn(&place.then(name), message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::definition::{ValidationContext, validate};

    #[test]
    fn a_stored_definition_may_have_a_shorter_time_limit() {
        let wrong = |seconds: f64, is_stored: bool| -> Vec<String> {
            let context = ValidationContext {
                is_stored,
                ..ValidationContext::of_tests()
            };
            let limits = json!({"wall_s": seconds, "tree": {"wall_s": seconds}});
            let findings = validate("a", json!({"model": "scripted:x", "limits": limits}), &context).findings;
            findings.iter().map(|finding| finding.field.to_string()).collect()
        };
        let fields = ["limits.tree.wall_s", "limits.wall_s"];
        let found = |seconds: f64, is_stored: bool| {
            let mut found = wrong(seconds, is_stored);
            found.sort();
            found
        };
        assert_eq!(found(0.001, false), fields);
        assert_eq!(found(0.001, true), [""; 0]);
        assert_eq!(found(0.0, true), fields);
        assert_eq!(found(0.01, false), [""; 0]);
    }

    #[test]
    fn limits_of_file_tools_are_reported_where_there_are_none() {
        let reported = |files: &str| -> Vec<String> {
            let subagent = json!({"name": "reader", "description": "Reads what others have written.",
                "human_message_token_limit_before_evict": 9_000});
            let body = json!({"model": "scripted:x", "files": files, "tool_token_limit_before_evict": 9_000,
                "subagents": [subagent]});
            let findings = validate("a", body, &ValidationContext::of_tests()).findings;
            findings.iter().map(|finding| finding.field.to_string()).collect()
        };
        assert_eq!(reported("state"), [""; 0]);
        let fields = [
            "subagents[0].human_message_token_limit_before_evict",
            "tool_token_limit_before_evict",
        ];
        let mut found = reported("none");
        found.sort();
        assert_eq!(found, fields);
    }
}
