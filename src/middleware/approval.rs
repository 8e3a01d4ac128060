//! Middleware: a human approves calls before they run.
//!
//! After each answer of the model, one interrupt asks about all calls that need approval; the other calls of the
//! answer wait as well. The question depends on the state alone, so a repeated question is the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::{HookResult, Middleware, edited, open_calls};
use crate::definition::builtins;
use crate::definition::{ApprovalRule, CallRules, FileRules};
use crate::domain::approvers::Approvers;
use crate::domain::call::{EDITED_CALLS, ToolOutput};
use crate::domain::interrupt::{Decision, DecisionKind, Decisions, Question, QuestionKind, ReviewAction};
use crate::domain::machine::HookPoint;
use crate::domain::message::{Content, Message, ToolCall, ToolStatus};
use crate::domain::schema::Schema;
use crate::domain::state::{State, Update};
use crate::model::ToolSpec;
use crate::tool::literal::{python, spaced_json};
use crate::tool::{Halt, Scope, Toolbox};

/// The approval middleware.
pub struct Approval {
    rules: BTreeMap<String, ApprovalRule>,
    files: FileRules,
    calls: CallRules,
    approvers: Approvers,
    tools: Toolbox,
}

impl Approval {
    /// Creates the middleware with the rules by tool name. A rule whose name ends in `*` applies to all tools with
    /// that prefix that have no rule of their own. An edit may name any of `tools`, which are all tools of the agent.
    pub fn new(rules: BTreeMap<String, ApprovalRule>, tools: Toolbox) -> Self {
        Self {
            rules,
            files: FileRules::default(),
            calls: CallRules::default(),
            approvers: Approvers::default(),
            tools,
        }
    }

    /// Adds those who decide about calls whose rule names nobody.
    #[must_use]
    pub fn with_approvers(self, approvers: Approvers) -> Self {
        Self { approvers, ..self }
    }

    /// Adds the rules for file tools, for calls that have no rule by tool name.
    #[must_use]
    pub fn with_files(self, files: FileRules) -> Self {
        Self { files, ..self }
    }

    /// Adds the rules for calls of all tools, for calls that have no rule by tool name.
    #[must_use]
    pub fn with_calls(self, calls: CallRules) -> Self {
        Self { calls, ..self }
    }

    /// Returns whether a human has to approve a call of the agent of this scope.
    fn asks_in(&self, scope: &Scope, call: &ToolCall) -> bool {
        match self.rule(&call.name) {
            None if !self.files.needs_approval_of(call) => self.calls.asks_about(&scope.path, call),
            Some(_) | None => !self.allowed(call).is_empty(),
        }
    }

    fn rule(&self, tool: &str) -> Option<&ApprovalRule> {
        let begins = |rule: &str| rule.strip_suffix('*').is_some_and(|start| tool.starts_with(start));
        let of_all = || self.rules.iter().find(|(name, _)| begins(name)).map(|(_, rule)| rule);
        self.rules.get(tool).or_else(of_all)
    }

    fn allowed(&self, call: &ToolCall) -> &[DecisionKind] {
        match self.rule(&call.name) {
            Some(rule) => rule.allowed(),
            None if self.files.needs_approval_of(call) || self.calls.may_ask_about(call) => &DecisionKind::ALL,
            None => &[],
        }
    }

    /// Returns those who decide about a call.
    fn approvers(&self, call: &ToolCall) -> &Approvers {
        let named = self.rule(&call.name).and_then(ApprovalRule::approvers);
        named.unwrap_or(&self.approvers)
    }

    /// Groups calls by those who decide about them. The groups are in the order of their first calls.
    fn groups(&self, calls: &[ToolCall]) -> Vec<Vec<ToolCall>> {
        let mut groups: Vec<Vec<ToolCall>> = vec![];
        for call in calls {
            let approvers = self.approvers(call);
            let of_same = |group: &&mut Vec<ToolCall>| group.iter().all(|other| self.approvers(other) == approvers);
            match groups.iter_mut().find(of_same) {
                Some(group) => group.push(call.clone()),
                None => groups.push(vec![call.clone()]),
            }
        }
        groups
    }

    /// Returns the question about `calls`, which have the same approvers.
    fn question(&self, calls: &[ToolCall]) -> Question {
        let requests: Vec<Value> = calls.iter().map(|call| self.request(call)).collect();
        let configs: Vec<Value> = calls
            .iter()
            .map(|call| json!({"action_name": call.name, "allowed_decisions": self.allowed(call)}))
            .collect();
        Question {
            kind: QuestionKind::ToolApproval,
            value: json!({"action_requests": requests, "review_configs": configs}),
            schema: self.answer_schema(calls),
            calls: calls.iter().map(|call| call.id.clone()).collect(),
            key: None,
            approvers: calls
                .first()
                .map(|call| self.approvers(call).clone())
                .unwrap_or_default(),
        }
    }

    fn request(&self, call: &ToolCall) -> Value {
        let own = match self.rule(&call.name) {
            Some(ApprovalRule::Choices(choices)) => choices.description.clone(),
            Some(ApprovalRule::Switch(_)) | None => None,
        };
        let args = Value::Object(call.args.clone());
        let description = own.unwrap_or_else(|| {
            format!(
                "Tool execution requires approval\n\nTool: {}\nArgs: {}",
                call.name,
                python(&args)
            )
        });
        json!({"name": call.name, "args": args, "description": description, "tool_call_id": call.id})
    }

    /// Returns the schema of a valid answer: for each call, in order, one of the decisions allowed for it.
    fn answer_schema(&self, calls: &[ToolCall]) -> Value {
        let positions: Vec<Value> = calls.iter().map(|call| decision_schema(self.allowed(call))).collect();
        let may_edit = calls
            .iter()
            .any(|call| self.allowed(call).contains(&DecisionKind::Edit));
        let mut schema = json!({
            "type": "object",
            "properties": {"decisions": {
                "type": "array", "minItems": calls.len(), "maxItems": calls.len(), "prefixItems": positions,
            }},
            "required": ["decisions"],
        });
        if may_edit {
            schema["$defs"] = json!({"action": action_schema(&self.tools.specs())});
        }
        schema
    }
}

#[async_trait]
impl Middleware for Approval {
    fn name(&self) -> &str {
        builtins::APPROVAL
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::AfterModel]
    }

    async fn hook(&self, _: HookPoint, scope: &Scope, state: &State) -> Result<HookResult, Halt> {
        let open = proposed_calls(state);
        let calls: Vec<ToolCall> = open.iter().filter(|call| self.asks_in(scope, call)).cloned().collect();
        if calls.is_empty() {
            return Ok(without_stale_edits(state, &open).into());
        }
        let groups = self.groups(&calls);
        let questions: Vec<Question> = groups.iter().map(|group| self.question(group)).collect();
        let answers = questions.iter().map(|question| answer_to(scope, question));
        let decided: Option<Vec<Vec<Decision>>> = answers
            .zip(&groups)
            .map(|(answer, group)| decisions(answer?, group.len()))
            .collect();
        let Some(decided) = decided else {
            return Err(Halt::Ask(questions));
        };
        let calls = groups.concat();
        let decisions = decided.concat();
        let reviewed = calls
            .iter()
            .zip(&decisions)
            .filter_map(|(call, decision)| approved(call, decision))
            .collect();
        Ok(HookResult {
            reviewed,
            ..writes_of(state, &calls, decisions).into()
        })
    }

    fn needs_approval(&self, call: &ToolCall) -> bool {
        !self.allowed(call).is_empty()
    }

    fn needs_approval_in(&self, scope: &Scope, call: &ToolCall) -> bool {
        self.asks_in(scope, call)
    }

    fn approval_question(&self, call: &ToolCall) -> Option<Question> {
        Some(self.question(std::slice::from_ref(call)))
    }

    fn receive(&self, _: &Scope, state: &State, call: &ToolCall, answer: ToolOutput) -> ToolOutput {
        with_notice(state, call, answer)
    }
}

/// Returns the open calls of the last answer as the model made them. Edits in the state belong to an earlier answer
/// whose calls had the same ids.
fn proposed_calls(state: &State) -> Vec<ToolCall> {
    let open = open_calls(state);
    let made = state.last_ai().map(|answer| answer.tool_calls()).unwrap_or_default();
    made.iter()
        .filter(|call| open.iter().any(|other| other.id == call.id))
        .cloned()
        .collect()
}

/// Returns the answer to a question, if it was asked and answered just like this. A client may have changed the calls
/// since, or the definition may name other approvers; the answer does not apply then.
fn answer_to<'a>(scope: &'a Scope, question: &Question) -> Option<&'a Value> {
    let is_this = |asked: &Question| asked.value == question.value && asked.approvers == question.approvers;
    match scope.answers.iter().find(|(asked, _)| is_this(asked)) {
        Some((_, answer)) => Some(answer),
        None => scope.answer.as_ref().filter(|_| scope.answers.is_empty()),
    }
}

/// Parses the answer as `count` decisions. It was validated when it was given; if it does not match nevertheless, the
/// question is asked again instead of failing.
fn decisions(answer: &Value, count: usize) -> Option<Vec<Decision>> {
    let given: Decisions = serde_json::from_value(answer.clone()).ok()?;
    (given.decisions.len() == count).then_some(given.decisions)
}

/// Returns the writes of the decisions: the answer with its calls, results for the calls that do not run, and edits.
fn writes_of(state: &State, calls: &[ToolCall], decisions: Vec<Decision>) -> Update {
    let mut update = Update::none();
    update.messages.extend(state.last_ai().cloned());
    let mut edits = Map::new();
    for (call, decision) in calls.iter().zip(decisions) {
        let result = match decision {
            Decision::Approve => None,
            Decision::Edit {
                edited_action: ReviewAction { name, args },
            } => {
                edits.insert(call.id.clone(), json!({"name": name, "args": args}));
                None
            }
            Decision::Reject { message } => Some(Message::tool(call, ToolStatus::Error, rejection(call, message))),
            Decision::Respond { message } => Some(Message::tool(call, ToolStatus::Success, message)),
        };
        update.messages.extend(result.map(Arc::new));
    }
    if edits.is_empty() {
        update.merge(without_stale_edits(state, &proposed_calls(state)));
    } else {
        update.merge(Update::field(EDITED_CALLS, Value::Object(edits)));
    }
    update
}

/// Returns the call that may run after `decision` about `call`. If the edit names another tool, this approval does
/// not cover it: if that tool needs approval, another question is asked.
fn approved(call: &ToolCall, decision: &Decision) -> Option<ToolCall> {
    match decision {
        Decision::Approve => Some(call.clone()),
        Decision::Edit { edited_action } if edited_action.name == call.name => Some(ToolCall::new(
            call.id.clone(),
            call.name.clone(),
            edited_action.args.clone(),
        )),
        Decision::Edit { .. } | Decision::Reject { .. } | Decision::Respond { .. } => None,
    }
}

/// The decision about a single call, made just before it runs.
#[derive(Debug, Clone, PartialEq)]
pub enum ApprovalCheck {
    /// The call runs, possibly edited.
    Run {
        /// The call that runs.
        action: ReviewAction,
        /// True if the call is approved; otherwise it may need approval itself.
        approved: bool,
    },
    /// The call does not run; this is its result.
    Answer(ToolOutput),
}

impl ApprovalCheck {
    /// Returns the decision in the answer to the question about `call`; none if the answer cannot be parsed.
    pub fn of(call: &ToolCall, answer: &Value) -> Option<Self> {
        let decision = decisions(answer, 1)?.pop()?;
        let approved = approved(call, &decision).is_some();
        Some(match decision {
            Decision::Approve => Self::Run {
                action: ReviewAction {
                    name: call.name.clone(),
                    args: call.args.clone(),
                },
                approved,
            },
            Decision::Edit { edited_action } => Self::Run {
                action: edited_action,
                approved,
            },
            Decision::Reject { message } => Self::Answer(ToolOutput::error(call, rejection(call, message))),
            Decision::Respond { message } => {
                Self::Answer(ToolOutput::message(Message::tool(call, ToolStatus::Success, message)))
            }
        })
    }
}

fn rejection(call: &ToolCall, reason: Option<String>) -> String {
    match reason.filter(|reason| !reason.is_empty()) {
        Some(reason) => format!("User rejected the tool call for `{}` with reason: {reason}", call.name),
        None => format!(
            "User rejected the tool call for `{}` with id {}. The tool was not executed. Do not retry this tool call \
             unless the user explicitly requests it.",
            call.name, call.id
        ),
    }
}

/// Removes old edits that would apply to one of `calls`, since providers may reuse an id in a later answer.
fn without_stale_edits(state: &State, calls: &[ToolCall]) -> Update {
    let hits = calls.iter().any(|call| edited(state, call).is_some());
    if hits {
        Update::field(EDITED_CALLS, json!({}))
    } else {
        Update::none()
    }
}

/// Adds a notice for the model to `answer`, if a reviewer had edited `call`.
fn with_notice(state: &State, call: &ToolCall, mut answer: ToolOutput) -> ToolOutput {
    let proposed = state
        .last_ai()
        .and_then(|answer| answer.tool_calls().iter().find(|other| other.id == call.id));
    let replaced = || proposed.is_some_and(|other| other.name != call.name || other.args != call.args);
    let Some(ran) = edited(state, call).or_else(|| replaced().then(|| call.clone())) else {
        return answer;
    };
    let notice = format!(
        "Note: a human reviewer replaced this tool call before it ran. The call recorded in your message is the one you \
         produced, not the one that executed. This was intentional and authorized. Do not re-issue your original call. \
         Executed instead: {} with arguments {}.\n\nTool response:\n",
        ran.name,
        spaced_json(&Value::Object(ran.args))
    );
    for message in answer
        .writes
        .messages
        .iter_mut()
        .filter(|message| message.answers() == Some(&call.id))
    {
        let content = match &message.content {
            Content::Text(text) => Content::Text(format!("{notice}{text}")),
            Content::Blocks(blocks) => {
                let first = json!({"type": "text", "text": notice});
                Content::Blocks(std::iter::once(first).chain(blocks.iter().cloned()).collect())
            }
        };
        *message = Arc::new(Message {
            content,
            ..(**message).clone()
        });
    }
    answer
}

/// Returns the schema of one decision. It uses conditions instead of alternatives, since their errors name the
/// mistake.
fn decision_schema(allowed: &[DecisionKind]) -> Value {
    let rules: Vec<Value> = allowed
        .iter()
        .filter_map(|kind| {
            let (properties, required) = match kind {
                DecisionKind::Approve => return None,
                DecisionKind::Edit => (
                    json!({"edited_action": {"$ref": "#/$defs/action"}}),
                    json!(["edited_action"]),
                ),
                DecisionKind::Reject => (json!({"message": {"type": ["string", "null"]}}), json!([])),
                DecisionKind::Respond => (json!({"message": {"type": "string"}}), json!(["message"])),
            };
            Some(json!({
                "if": {"properties": {"type": {"const": kind}}},
                "then": {"properties": properties, "required": required},
            }))
        })
        .collect();
    let mut schema = json!({"type": "object", "properties": {"type": {"enum": allowed}}, "required": ["type"]});
    if !rules.is_empty() {
        schema["allOf"] = Value::Array(rules);
    }
    schema
}

/// Returns the schema of a call of one of `tools`. Arguments are checked as far as the tool's schema can be embedded.
fn action_schema(tools: &[Arc<ToolSpec>]) -> Value {
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    let rules: Vec<Value> = tools
        .iter()
        .filter(|tool| stands_alone(&tool.parameters))
        .map(|tool| {
            json!({
                "if": {"properties": {"name": {"const": tool.name}}},
                "then": {"properties": {"args": tool.parameters}},
            })
        })
        .collect();
    let mut schema = json!({
        "type": "object",
        "properties": {"name": {"enum": names}, "args": {"type": "object"}},
        "required": ["name", "args"],
    });
    if !rules.is_empty() {
        let plain = schema.clone();
        schema["allOf"] = Value::Array(rules);
        // Each schema is small enough, but all of them together may not be.
        if Schema::compile(&schema).is_err() {
            return plain;
        }
    }
    schema
}

/// Returns whether the schema means the same inside another one: references and ids would point elsewhere. An invalid
/// schema would make the whole one invalid.
fn stands_alone(schema: &Value) -> bool {
    fn has_references(schema: &Value) -> bool {
        match schema {
            Value::Object(fields) => fields
                .iter()
                .any(|(name, field)| name.starts_with('$') || has_references(field)),
            Value::Array(items) => items.iter().any(has_references),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }
    !has_references(schema) && Schema::compile(schema).is_ok()
}

#[cfg(test)]
mod tests;
