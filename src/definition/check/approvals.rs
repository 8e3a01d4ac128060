//! Checks the rules for approvals.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use super::tools::is_among;
use crate::definition::approval::{ApprovalChoices, ApprovalRule, ExpiryDecision, MAX_EXPIRY_S};
use crate::definition::builtins::is_policy_tool;
use crate::definition::description::{MAX_DESCRIPTION, unknown_slots};
use crate::definition::diagnostic::{FieldPath, suggestion};
use crate::domain::approvers::Approvers;
use crate::domain::condition::ArgumentCondition;
use crate::domain::interrupt::Decision;

impl Check<'_> {
    pub(super) fn approvals(
        &mut self,
        field: &FieldPath,
        rules: &BTreeMap<String, ApprovalRule>,
        tools: &BTreeSet<&str>,
    ) {
        for (tool, rule) in rules {
            let field = field.then(tool);
            if !is_among(tool, tools) {
                let known = tools.iter().filter(|name| !is_policy_tool(name)).copied();
                let known = suggestion(tool, known, "it has");
                self.error(&field, format!("the agent has no tool `{tool}`; {known}"));
            }
            let ApprovalRule::Choices(choices) = rule else { continue };
            if choices.allowed_decisions.is_empty() {
                let allowed = "must name at least one of approve, edit, reject, respond";
                self.error(&field.then("allowed_decisions"), allowed);
            }
            self.approvers(&field.then("approvers"), &choices.approvers);
            self.expiry(&field, choices);
            if choices.allowed_scopes.as_ref().is_some_and(Vec::is_empty) {
                self.error(&field.then("allowed_scopes"), "must name at least one of once, thread");
            }
            if let Some(Err(invalid)) = choices.when.as_ref().map(ArgumentCondition::compile) {
                let place = invalid
                    .place
                    .iter()
                    .fold(field.then("when"), |field, part| field.then(part));
                self.error(&place, invalid.reason);
            }
            self.description(
                &field.then("description"),
                choices.description.as_deref().unwrap_or_default(),
            );
        }
    }

    fn expiry(&mut self, field: &FieldPath, choices: &ApprovalChoices) {
        if choices
            .expires_after_s
            .is_some_and(|after| !(1..=MAX_EXPIRY_S).contains(&after))
        {
            let message = format!("must be a whole number from 1 to {MAX_EXPIRY_S}");
            self.error(&field.then("expires_after_s"), message);
        }
        let Some(ExpiryDecision(decision)) = &choices.on_expiry else {
            return;
        };
        let field = field.then("on_expiry");
        if choices.expires_after_s.is_none() {
            self.error(&field, "needs `expires_after_s`: without it, no question expires");
        }
        if matches!(decision, Decision::Edit { .. }) {
            self.error(&field, "must be approve, reject or respond: an edit is about one call");
        }
    }

    fn description(&mut self, field: &FieldPath, template: &str) {
        let length = template.chars().count();
        if length > MAX_DESCRIPTION {
            let message = format!("has {length} characters; at most {MAX_DESCRIPTION} are allowed");
            self.error(field, message);
        }
        for name in unknown_slots(template) {
            let message =
                format!("`{{{name}}}` is not replaced; slots are {{name}}, {{args}}, {{args.NAME}}, {{tool_call_id}}");
            self.warn(field, message);
        }
    }

    pub(super) fn approvers(&mut self, field: &FieldPath, approvers: &Approvers) {
        if let Some(problem) = approvers.problem() {
            self.error(field, problem);
        }
    }
}
