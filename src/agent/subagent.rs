//! A subagent at its place in a tree: what its run begins with, and what its caller gets of it.

use std::sync::Arc;

use super::Agent;
use super::journal::Child;
use super::step::with_ids;
use crate::domain::background::{self, BackgroundTask};
use crate::domain::call::{DelegationResult, ToolOutput};
use crate::domain::id::RunId;
use crate::domain::interrupt::Interrupt;
use crate::domain::limits::Limits;
use crate::domain::machine::Plan;
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::run::DelegatedTask;
use crate::domain::state::{DELEGATED_PROMPT, File, FileWrites, State, Update};
use crate::domain::summarization;

const FORK_PREAMBLE: &str = "The conversation above led to the order below; it does not go on here, and its user does not \
    hear you. Carry out the order yourself, without delegating: your caller sees your last message and nothing else.";

const EMPTY_RESULT: &str = "The subagent finished without saying anything.";

/// The result of a child run.
pub(super) enum ChildResult {
    /// The child run ended, with this result for the model.
    Answer(ToolOutput),
    /// The child run ended, with this result for the tool, which is called again.
    ForTool(DelegationResult),
    /// The child run waits for the answers to these questions.
    Parked { child: RunId, questions: Vec<Interrupt> },
}

/// A subagent with its limits at this place in the tree.
pub(super) struct Subagent {
    pub(super) agent: Arc<Agent>,
    pub(super) limits: Limits,
    /// The depth from which the subagent's levels of delegation are counted.
    pub(super) base: u32,
    pub(super) step_limit: Option<u32>,
    /// True if the definition is not the parent's, so that the two may have different fields.
    pub(super) is_external: bool,
}

impl Subagent {
    /// Returns the hooks and the step limit: never more than the limit of the run.
    pub(super) fn plan(&self, run_step_limit: Option<u32>) -> Plan {
        let plan = self.agent.plan.clone();
        let own = self.step_limit.unwrap_or(plan.step_limit);
        Plan {
            step_limit: run_step_limit.map_or(own, |limit| limit.min(own)),
            ..plan
        }
    }

    /// Gives the child its input, unless it has one.
    pub(super) fn with_input(&self, child: Child, parent: &State) -> Child {
        if child.input.is_some() {
            return child;
        }
        Child {
            input: Some(self.input(&child.order, parent)),
            ..child
        }
    }

    /// Returns the input for a task: the shared fields and one human message. An agent on another server receives only the
    /// message.
    pub(super) fn input(&self, task: &DelegatedTask, parent: &State) -> Update {
        let mut input = if self.agent.remote().is_some() {
            Update::none()
        } else {
            self.agent.shares.of(parent.for_subagent())
        };
        if self.is_external {
            input.fields.retain(|name, _| self.agent.declared.has(name));
        }
        let mut order = task.description.clone();
        if self.agent.is_fork {
            order = format!(
                "You are the subagent `{}` now. {FORK_PREAMBLE}\n\n{order}",
                self.agent.name
            );
            // The fork goes on from what its caller's model reads.
            let read = summarization::view(&parent.fields, parent.before_last_answer());
            input.messages.extend(read);
            // A program reads every shared field, and a fork continues as its caller.
            if self.agent.program().is_none() {
                input = Update {
                    fields: parent.fields_for_fork(),
                    ..input
                }
                .ruled(&parent.rules);
            }
        }
        input.messages.extend_from_slice(&self.agent.initial);
        input
            .messages
            .extend(task.initial_messages.iter().cloned().map(Arc::new));
        input.messages.push(Arc::new(Message::human(order)));
        if let Some(prompt) = &task.system_prompt {
            input.fields.insert(DELEGATED_PROMPT.to_owned(), prompt.clone().into());
        }
        with_ids(input)
    }

    /// Returns the result of a completed child run: the message for the parent, and the writes to shared fields.
    pub(super) fn result(&self, call: &ToolCall, caller: &Agent, state: &State, input: &Update) -> ToolOutput {
        let mut writes = self.agent.shares.of(child_writes(state, input));
        if self.is_external {
            writes.fields.retain(|name, _| caller.declared.has(name));
            writes.rules.retain(|name, _| caller.declared.has(name));
        }
        if self.is_external && caller.plan.rules.contains_key(background::FIELD) {
            // Background tasks of the child run belong to the conversation, so the caller tracks them from now on.
            BackgroundTask::all(state)
                .iter()
                .for_each(|task| writes.merge(task.write()));
        }
        writes.messages.push(Arc::new(final_message(call, state, input)));
        ToolOutput {
            writes,
            ends: false,
            is_logged: false,
            changes: vec![],
            failure: None,
        }
    }
}

/// Returns the final message of a completed child run: the structured answer, or the last text.
fn final_message(call: &ToolCall, state: &State, input: &Update) -> Message {
    // Messages before the task belong to another agent.
    let order = input.messages.last().and_then(|message| message.id.as_deref());
    let text = state.conclusion_after(order).unwrap_or_else(|| EMPTY_RESULT.to_owned());
    Message::tool(call, ToolStatus::Success, text)
}

/// Returns the writes of a child run: the difference between its last state and its input.
fn child_writes(state: &State, input: &Update) -> Update {
    let fields = state
        .fields
        .iter()
        .filter(|(name, _)| state.shares(name))
        .filter_map(|(name, value)| {
            let rule = state.rules.get(name).copied().unwrap_or_default();
            Some((name.clone(), rule.difference(input.fields.get(name), value)?))
        });
    Update {
        messages: vec![],
        files: changed_files(state, &input.files),
        fields: fields.collect(),
        ..Update::none()
    }
    .ruled(&state.rules)
}

/// Returns the files that a child run with this state has written and deleted since it had these files.
pub(super) fn changed_files(state: &State, input: &FileWrites) -> FileWrites {
    let is_written = |(path, file): &(&String, &Arc<File>)| input.get(*path).and_then(Option::as_ref) != Some(*file);
    let written = state.files.iter().filter(is_written);
    let gone = input.keys().filter(|path| !state.files.contains_key(*path));
    written
        .map(|(path, file)| (path.clone(), Some(Arc::clone(file))))
        .chain(gone.map(|path| (path.clone(), None)))
        .collect()
}
