//! Middleware: a human approves calls before they run.
//!
//! After each answer of the model, one interrupt asks about all calls that need approval; the other calls of the
//! answer wait as well. With [`InterruptMode::PerCall`] each call is asked about when it would start, and the others
//! run. The question depends on the state alone, so a repeated question is the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use self::actions::{ActionSchemas, decision_schema, with_action};
use self::answers::{CallChoices, LastAnswer};
use super::{HookResult, Middleware, edited, open_calls};
use crate::definition::builtins;
use crate::definition::description::describe;
use crate::definition::{ApprovalRule, CallRules, FileRules, InterruptMode};
use crate::domain::approvers::Approvers;
use crate::domain::call::{EDITED_CALLS, ToolOutput};
use crate::domain::condition::{ArgumentCondition, CompiledCondition};
use crate::domain::interrupt::{
    Decision, DecisionKind, Decisions, Expiry, Question, QuestionKind, ReviewAction, TOOL_APPROVAL,
};
use crate::domain::machine::HookPoint;
use crate::domain::message::{Content, Message, ToolCall, ToolStatus};
use crate::domain::remembered::{DecisionScope, RememberedDecision};
use crate::domain::schema_text::SchemaText;
use crate::domain::state::{State, Update};
use crate::model::ToolSpec;
use crate::tool::literal::{python, spaced_json};
use crate::tool::{Halt, Scope, Toolbox};

mod actions;
mod answers;

/// The reason of a rejection for which nobody has decided.
const EXPIRED: &str = "Nobody decided in time.";

/// The approval middleware.
pub struct Approval {
    rules: BTreeMap<String, Rule>,
    files: FileRules,
    calls: CallRules,
    approvers: Approvers,
    mode: InterruptMode,
    tools: Toolbox,
    actions: ActionSchemas,
    answers: LastAnswer,
}

/// A rule with its condition ready for use.
struct Rule {
    rule: ApprovalRule,
    when: Option<CompiledCondition>,
}

impl Rule {
    /// Invalid conditions were refused when the definition was read. Without its condition, a rule concerns all calls.
    fn new(rule: ApprovalRule) -> Self {
        let when = rule.choices().and_then(|choices| choices.when.as_ref());
        Self {
            when: when.map(ArgumentCondition::compile).and_then(Result::ok),
            rule,
        }
    }

    /// Returns whether the rule concerns a call. If its condition cannot be applied to the arguments, it does.
    fn concerns(&self, call: &ToolCall) -> bool {
        self.when.as_ref().is_none_or(|when| when.may_hold(&call.args))
    }
}

impl Approval {
    /// Creates the middleware with the rules by tool name. A rule whose name ends in `*` applies to all tools with
    /// that prefix that have no rule of their own. An edit may name any of `tools`, which are all tools of the agent.
    pub fn new(rules: BTreeMap<String, ApprovalRule>, tools: Toolbox) -> Self {
        Self {
            rules: rules.into_iter().map(|(name, rule)| (name, Rule::new(rule))).collect(),
            files: FileRules::default(),
            calls: CallRules::default(),
            approvers: Approvers::default(),
            mode: InterruptMode::default(),
            tools,
            actions: ActionSchemas::default(),
            answers: LastAnswer::default(),
        }
    }

    /// Sets the way of asking.
    #[must_use]
    pub fn with_mode(self, mode: InterruptMode) -> Self {
        Self { mode, ..self }
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

    /// Returns the rule that concerns a call: the one of its tool, else one of several tools.
    fn rule(&self, call: &ToolCall) -> Option<&ApprovalRule> {
        let begins = |rule: &str| rule.strip_suffix('*').is_some_and(|start| call.name.starts_with(start));
        let of_all = || self.rules.iter().find(|(name, _)| begins(name)).map(|(_, rule)| rule);
        let rule = self.rules.get(&call.name).or_else(of_all)?;
        rule.concerns(call).then_some(&rule.rule)
    }

    fn allowed(&self, call: &ToolCall) -> &[DecisionKind] {
        match self.rule(call) {
            Some(rule) => rule.allowed(),
            None if self.files.needs_approval_of(call) || self.calls.may_ask_about(call) => &DecisionKind::ALL,
            None => &[],
        }
    }

    /// Returns those who decide about a call.
    fn approvers(&self, call: &ToolCall) -> &Approvers {
        let named = self.rule(call).and_then(ApprovalRule::approvers);
        named.unwrap_or(&self.approvers)
    }

    /// Returns the time after which the question about a call expires, in seconds.
    fn expires_after(&self, call: &ToolCall) -> Option<u64> {
        self.rule(call).and_then(ApprovalRule::choices)?.expires_after_s
    }

    /// Returns the decision about a call whose question has expired.
    fn decision_on_expiry(&self, call: &ToolCall) -> Decision {
        let own = self.rule(call).and_then(ApprovalRule::choices);
        let own = own.and_then(|choices| choices.on_expiry.clone());
        own.map_or_else(
            || Decision::Reject {
                message: Some(EXPIRED.to_owned()),
            },
            |own| own.0,
        )
    }

    /// Groups calls by those who decide about them, and by the time that they have for it. The groups are in the order
    /// of their first calls.
    fn groups(&self, calls: &[ToolCall]) -> Vec<Vec<ToolCall>> {
        let mut groups: Vec<Vec<ToolCall>> = vec![];
        for call in calls {
            let is_same = |other: &ToolCall| {
                self.approvers(other) == self.approvers(call) && self.expires_after(other) == self.expires_after(call)
            };
            let of_same = |group: &&mut Vec<ToolCall>| group.iter().all(is_same);
            match groups.iter_mut().find(of_same) {
                Some(group) => group.push(call.clone()),
                None => groups.push(vec![call.clone()]),
            }
        }
        groups
    }

    /// Returns the question about `calls`, which have the same approvers and the same time.
    fn question(&self, calls: &[ToolCall]) -> Question {
        let requests: Value = calls.iter().map(|call| self.request(call)).collect();
        let configs: Value = calls.iter().map(|call| self.config(call)).collect();
        // Arguments may be large, and a macro would copy them.
        let value = [
            ("action_requests".to_owned(), requests),
            ("review_configs".to_owned(), configs),
        ];
        Question {
            kind: QuestionKind::ToolApproval,
            value: Value::Object(Map::from_iter(value)),
            schema: self.answer_schema(calls),
            calls: calls.iter().map(|call| call.id.clone()).collect(),
            approvers: calls
                .first()
                .map(|call| self.approvers(call).clone())
                .unwrap_or_default(),
            expiry: calls.first().and_then(|call| self.expires_after(call)).map(|after_s| Expiry {
                after_s,
                answer: json!({"decisions": calls.iter().map(|call| self.decision_on_expiry(call)).collect::<Vec<_>>()}),
            }),
            ..Question::default()
        }
    }

    /// Returns the decision about the call at `at` in the answers to the questions that were asked before, if one of
    /// them was about just this call. A client may have changed the calls since, or the definition may name other
    /// approvers; the answer does not apply then.
    fn answered(&self, scope: &Scope, calls: &[ToolCall], at: usize) -> Option<Decision> {
        let call = calls.get(at)?;
        if scope.answers.is_empty() {
            return decisions(scope.answer.as_ref()?, calls.len())?.into_iter().nth(at);
        }
        let approvers = self.approvers(call);
        let request = self.request(call);
        let config = self.config(call);
        scope.answers.iter().find_map(|(asked, answer)| {
            let requests = asked.value.get("action_requests")?.as_array()?;
            let place = requests.iter().position(|other| *other == request)?;
            let is_same = asked.approvers == *approvers && asked.value["review_configs"].get(place) == Some(&config);
            let given = decisions(answer, requests.len()).filter(|_| is_same)?;
            given.into_iter().nth(place)
        })
    }

    /// Returns the decisions that reviewers have given for the rest of the thread, which are in the database; none if all calls
    /// have answers, or none of them can have such a decision.
    async fn remembered_for(
        &self,
        scope: &Scope,
        calls: &[ToolCall],
        answered: &[Option<Decision>],
    ) -> Result<Arc<[RememberedDecision]>, Halt> {
        let may_have = |call: &ToolCall| self.scopes(call).contains(&DecisionScope::Thread);
        if answered.iter().all(Option::is_some) || !calls.iter().any(may_have) {
            return Ok(Arc::default());
        }
        Ok(scope.remembered.of_thread(scope.thread).await?)
    }

    /// Returns the decision about a call that reviewers have given for the rest of the thread. A rejection precedes.
    fn remembered(&self, scope: &Scope, call: &ToolCall, remembered: &[RememberedDecision]) -> Option<Decision> {
        let approvers = self.approvers(call);
        let covers = |decision: &&RememberedDecision| {
            let is_allowed = self.allowed(call).contains(&decision.decision);
            is_allowed && decision.covers(&scope.path, call, approvers)
        };
        if !self.scopes(call).contains(&DecisionScope::Thread) {
            return None;
        }
        let mut found: Vec<&RememberedDecision> = remembered.iter().filter(covers).collect();
        found.sort_by_key(|decision| decision.decision == DecisionKind::Approve);
        found.first().map(|decision| decision.decision())
    }

    fn scopes(&self, call: &ToolCall) -> &[DecisionScope] {
        self.rule(call).map_or(&DecisionScope::ALL, ApprovalRule::scopes)
    }

    fn config(&self, call: &ToolCall) -> Value {
        json!({"action_name": call.name, "allowed_decisions": self.allowed(call)})
    }

    /// Returns the question about one call, which is answered by one decision.
    fn question_about(&self, call: &ToolCall) -> Question {
        let mut value = json!({"type": TOOL_APPROVAL});
        if let (Value::Object(value), Value::Object(request)) = (&mut value, self.request(call)) {
            value.extend(request);
        }
        let schema = decision_schema(self.allowed(call), self.scopes(call));
        // An edit changes the arguments; it does not replace the tool.
        let same = |spec: &&Arc<ToolSpec>| spec.name == call.name;
        let own: Vec<Arc<ToolSpec>> = self.tools.specs().iter().filter(same).cloned().collect();
        Question {
            kind: QuestionKind::ToolApproval,
            value,
            schema: with_action(&schema, &self.actions.of(own)),
            calls: vec![call.id.clone()],
            approvers: self.approvers(call).clone(),
            expiry: self.expires_after(call).map(|after_s| Expiry {
                after_s,
                answer: json!(self.decision_on_expiry(call)),
            }),
            ..Question::default()
        }
    }

    fn request(&self, call: &ToolCall) -> Value {
        let own = self.rule(call).and_then(ApprovalRule::choices);
        let own = own.and_then(|choices| choices.description.as_deref());
        let args = Value::Object(call.args.clone());
        let description: String = own.map_or_else(
            || {
                format!(
                    "Tool execution requires approval\n\nTool: {}\nArgs: {}",
                    call.name,
                    python(&args)
                )
            },
            |own| describe(own, call),
        );
        Value::Object(Map::from_iter([
            ("name".to_owned(), call.name.as_str().into()),
            ("args".to_owned(), args),
            ("description".to_owned(), description.into()),
            ("tool_call_id".to_owned(), call.id.as_str().into()),
        ]))
    }

    /// Returns the schema of a valid answer: for each call, in order, one of the decisions allowed for it.
    fn answer_schema(&self, calls: &[ToolCall]) -> SchemaText {
        let choices: Vec<CallChoices> = calls
            .iter()
            .map(|call| CallChoices {
                allowed: self.allowed(call).to_vec(),
                scopes: self.scopes(call).to_vec(),
            })
            .collect();
        let may_edit = choices
            .iter()
            .any(|choices| choices.allowed.contains(&DecisionKind::Edit));
        let tools = may_edit.then(|| self.tools.specs());
        self.answers.of(choices, tools, &self.actions)
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
        // Each call is asked about when it starts.
        if self.mode == InterruptMode::PerCall {
            return Ok(without_stale_edits(state, &open).into());
        }
        let calls: Vec<ToolCall> = open
            .iter()
            .filter(|call| self.needs_approval(scope, call))
            .cloned()
            .collect();
        if calls.is_empty() {
            return Ok(without_stale_edits(state, &open).into());
        }
        let answered: Vec<Option<Decision>> = (0..calls.len()).map(|at| self.answered(scope, &calls, at)).collect();
        let remembered = self.remembered_for(scope, &calls, &answered).await?;
        let known = |call: &ToolCall| self.remembered(scope, call, &remembered);
        let decided: Option<Vec<Decision>> = answered
            .into_iter()
            .zip(&calls)
            .map(|(answer, call)| answer.or_else(|| known(call)))
            .collect();
        let Some(decisions) = decided else {
            let asked: Vec<ToolCall> = calls.iter().filter(|call| known(call).is_none()).cloned().collect();
            let groups = self.groups(&asked);
            return Err(Halt::Ask(groups.iter().map(|group| self.question(group)).collect()));
        };
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

    fn needs_approval(&self, scope: &Scope, call: &ToolCall) -> bool {
        match self.rule(call) {
            None if !self.files.needs_approval_of(call) => self.calls.asks_about(&scope.path, call),
            Some(_) | None => !self.allowed(call).is_empty(),
        }
    }

    fn approval_question(&self, call: &ToolCall) -> Option<Question> {
        Some(match self.mode {
            InterruptMode::Batched => self.question(std::slice::from_ref(call)),
            InterruptMode::PerCall => self.question_about(call),
        })
    }

    fn remembered_answer(&self, scope: &Scope, call: &ToolCall, remembered: &[RememberedDecision]) -> Option<Value> {
        let decision = self.remembered(scope, call, remembered)?;
        serde_json::to_value(decision).ok()
    }

    fn receive(&self, _: &Scope, state: &State, call: &ToolCall, answer: ToolOutput) -> ToolOutput {
        with_notice(state, call, answer)
    }
}

/// Returns the open calls of the last answer as the model made them. Edits in the state belong to an earlier answer
/// whose calls had the same ids.
fn proposed_calls(state: &State) -> Vec<ToolCall> {
    let open = open_calls(state);
    let open: BTreeSet<&str> = open.iter().map(|call| call.id.as_str()).collect();
    let made = state.last_ai().map(|answer| answer.tool_calls()).unwrap_or_default();
    made.iter()
        .filter(|call| open.contains(call.id.as_str()))
        .cloned()
        .collect()
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
            Decision::Reject { message } => Some(rejected(call, message)),
            Decision::Respond { message } => Some(responded(call, message)),
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
        let decision = match decisions(answer, 1) {
            Some(mut list) => list.pop()?,
            None => serde_json::from_value(answer.clone()).ok()?,
        };
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
            Decision::Reject { message } => Self::Answer(ToolOutput::message(rejected(call, message))),
            Decision::Respond { message } => Self::Answer(ToolOutput::message(responded(call, message))),
        })
    }
}

/// Returns the result of a call that a reviewer has rejected.
fn rejected(call: &ToolCall, reason: Option<String>) -> Message {
    let result = Message::tool(call, ToolStatus::Error, rejection(call, reason));
    marked(result, DecisionKind::Reject)
}

/// Returns the result of a call that a reviewer has made up in place of the tool.
fn responded(call: &ToolCall, text: String) -> Message {
    marked(Message::tool(call, ToolStatus::Success, text), DecisionKind::Respond)
}

/// Marks a result as that of a decision, under the keys by which LangChain's clients know it from that of a tool.
fn marked(mut result: Message, decision: DecisionKind) -> Message {
    result.set_source("hitl_interrupt_decision");
    result
        .additional_kwargs
        .insert("lc_data".to_owned(), json!({"decision": decision}));
    result
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

#[cfg(test)]
mod tests;
