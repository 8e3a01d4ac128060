//! Steps that wait, in a copy of their thread: they go on there under ids of their own, so that nothing of the copy is taken
//! for a part of the original.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    CheckpointId, Entry, Interrupt, InterruptId, InterruptSource, Machine, Phase, Plan, Position, QuestionKind, RunId,
    START, StepBase, TOOLS, TaskId, Update,
};
use crate::domain::background::{BackgroundTask, FIELD, RULE};
use crate::domain::call::CallStatus;
use crate::domain::run::AfterDelegation;

/// A step that waits, as it goes on in a copy of the thread.
#[derive(Debug, Clone, PartialEq)]
pub struct CopiedStep {
    /// The position after the checkpoint at which the step goes on.
    pub position: Position,
    /// The open interrupts, each with its id in the original.
    pub interrupts: Vec<(InterruptId, Interrupt)>,
}

/// A subagent for which a step waits, as it goes on in a copy of the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopiedChild {
    /// Its run in the copy.
    pub run: RunId,
    /// True if it, or a subagent below it, has open interrupts there.
    pub waits: bool,
}

impl Machine {
    /// Removes the background tasks that are not over from the state and from the results of the current step, in a copy of
    /// the thread: they belong to the original. Returns the checkpoint of the removal; none if there are no such tasks.
    pub fn remove_open_tasks(&mut self, id: CheckpointId) -> Option<Entry> {
        let is_in_step = self.position.remove_open_tasks();
        let update = match BackgroundTask::removal_of_open(self.state.fields.get(FIELD)) {
            Some(removal) => Update {
                rules: BTreeMap::from([(FIELD.to_owned(), RULE)]),
                ..Update::field(FIELD, removal)
            },
            None if is_in_step => Update::none(),
            None => return None,
        };
        Some(self.carry_update(&Plan::default(), START, update, id))
    }
}

impl Position {
    /// Removes the background tasks that are not over from the results of the step. Returns whether there were any.
    fn remove_open_tasks(&mut self) -> bool {
        let Phase::Tools { calls } = &mut self.phase else {
            return false;
        };
        let mut is_changed = false;
        for call in calls {
            let answered = match &mut call.status {
                CallStatus::Answered(output) => Some(&mut output.writes),
                CallStatus::Ready | CallStatus::Started | CallStatus::Asking | CallStatus::Delegated { .. } => None,
            };
            let delegated = call.delegations.iter_mut().map(|result| &mut result.writes);
            for writes in delegated.chain(answered) {
                is_changed |= remove_open_tasks(writes);
            }
        }
        is_changed
    }

    /// Returns the task that is delegated to `child`, in a copy in which the step goes on after checkpoint `head`.
    pub fn delegation_in_copy(&self, head: CheckpointId, child: RunId, then: AfterDelegation) -> Option<TaskId> {
        let Phase::Tools { calls } = &self.phase else {
            return None;
        };
        let at = calls.iter().position(|call| call.status.child() == Some(child))?;
        let task = StepBase::after(Some(head), None).task(TOOLS, at);
        Some(then.task(task, calls[at].delegations.len()))
    }

    /// Returns the step as it goes on in a copy of the thread, after checkpoint `head`. `children` are the subagents for
    /// which it waits, by their runs in the original; calls that are delegated to others begin anew. An approval holds on
    /// the thread on which it was given, so it is asked for again.
    #[must_use]
    pub fn continued_in_copy(mut self, head: CheckpointId, children: &BTreeMap<RunId, CopiedChild>) -> CopiedStep {
        let base = StepBase::after(Some(head), None);
        let all = std::mem::take(&mut self.asked);
        let outdated = std::mem::take(&mut self.outdated);
        self.questions = u32::try_from(all.len()).unwrap_or(u32::MAX);
        self.reviewed.clear();
        self.carried_from = None;
        self.copied = false;
        self.failure = None;
        self.failed_calls.clear();
        let mut interrupts = vec![];
        for (number, asked) in (0..).zip(all) {
            let Some(task) = self.task_of(&asked.asker, base) else {
                continue;
            };
            let holds = asked.question.kind == QuestionKind::Question;
            let answer = asked.answer.filter(|_| holds);
            let copied = Interrupt {
                id: InterruptId::of_task(task, number),
                task,
                asker: asked.asker,
                question: asked.question,
                // Only the open ones get rows in the copy.
                is_inline: answer.is_some(),
                answer,
            };
            if outdated.contains(&asked.id) {
                self.outdated.insert(copied.id.clone());
            }
            if copied.answer.is_none() {
                interrupts.push((asked.id, copied.clone()));
            }
            self.asked.push(copied);
        }
        if let Phase::Tools { calls } = &mut self.phase {
            for call in calls {
                let asker = InterruptSource::Call(call.id.clone());
                let asks = interrupts.iter().any(|(_, asked)| asked.asker == asker);
                call.status = match std::mem::replace(&mut call.status, CallStatus::Ready) {
                    CallStatus::Delegated { child, .. } => match children.get(&child) {
                        Some(copied) => CallStatus::Delegated {
                            child: copied.run,
                            parked: copied.waits,
                        },
                        None => CallStatus::Ready,
                    },
                    CallStatus::Ready | CallStatus::Asking if asks => CallStatus::Asking,
                    CallStatus::Ready | CallStatus::Asking => CallStatus::Ready,
                    kept @ (CallStatus::Started | CallStatus::Answered(_)) => kept,
                };
            }
        }
        CopiedStep {
            position: self,
            interrupts,
        }
    }

    /// Returns the task of the asker of an interrupt, in a step with this base.
    fn task_of(&self, asker: &InterruptSource, base: StepBase) -> Option<TaskId> {
        match (asker, &self.phase) {
            (InterruptSource::Hook(name), _) => Some(base.task(name, 0)),
            (InterruptSource::Call(id), Phase::Tools { calls }) => {
                let at = calls.iter().position(|call| call.id == *id)?;
                Some(base.task(TOOLS, at))
            }
            (InterruptSource::Call(_), _) => None,
        }
    }
}

/// Removes the background tasks that are not over from writes. Returns whether there were any.
fn remove_open_tasks(writes: &mut Update) -> bool {
    let Some(Value::Object(removed)) = BackgroundTask::removal_of_open(writes.fields.get(FIELD)) else {
        return false;
    };
    if let Some(Value::Object(tasks)) = writes.fields.get_mut(FIELD) {
        tasks.extend(removed);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::domain::background::{TaskRun, TaskStatus};
    use crate::domain::call::{Call, ToolOutput};
    use crate::domain::interrupt::Question;
    use crate::domain::time::Timestamp;

    fn asked(call: &str, kind: QuestionKind, answer: Option<Value>) -> Interrupt {
        let task = StepBase::default().task(TOOLS, 0);
        Interrupt {
            id: InterruptId(call.to_owned()),
            task,
            asker: InterruptSource::Call(call.to_owned()),
            question: Arc::new(Question {
                kind,
                value: json!(call),
                ..Question::default()
            }),
            answer,
            is_inline: false,
        }
    }

    fn call(id: &str, status: CallStatus) -> Call {
        Call {
            id: id.to_owned(),
            edited: None,
            status,
            delegations: vec![],
        }
    }

    fn background_task(id: &str, status: TaskStatus) -> BackgroundTask {
        let run = TaskRun {
            thread: id.to_owned(),
            run: format!("run of {id}"),
            status: TaskStatus::Running,
        };
        BackgroundTask {
            status,
            ..BackgroundTask::started("writer", run, Timestamp(0))
        }
    }

    #[test]
    fn background_tasks_that_are_not_over_stay_with_the_original() {
        let mut machine = Machine {
            head: Some(CheckpointId::mint()),
            step: Some(3),
            ..Machine::default()
        };
        machine
            .state
            .apply(&background_task("over", TaskStatus::Success).write());
        assert_eq!(machine.remove_open_tasks(CheckpointId::mint()), None);

        machine
            .state
            .apply(&background_task("open", TaskStatus::Waiting).write());
        let answered = ToolOutput {
            writes: background_task("new", TaskStatus::Running).write(),
            ..ToolOutput::default()
        };
        machine.position = Position {
            phase: Phase::Tools {
                calls: vec![
                    call("a", CallStatus::Answered(Box::new(answered))),
                    call("b", CallStatus::Ready),
                ],
            },
            ..Position::default()
        };
        let id = CheckpointId::mint();
        let entry = machine.remove_open_tasks(id).expect("a checkpoint");
        assert_eq!(entry.id, id);
        assert_eq!(entry.step, 4);
        let left: Vec<String> = BackgroundTask::all(&machine.state)
            .into_iter()
            .map(|task| task.task_id)
            .collect();
        assert_eq!(left, ["over"]);
        let written = machine.answered_writes().next().expect("the result of the call");
        assert_eq!(written.fields[FIELD], json!({"new": null}));
        assert_eq!(machine.remove_open_tasks(CheckpointId::mint()), None);
    }

    #[test]
    fn a_step_that_waits_goes_on_in_a_copy_under_ids_of_its_own() {
        let [known, unknown] = [RunId::mint(), RunId::mint()];
        let delegated = |child| CallStatus::Delegated { child, parked: true };
        let position = Position {
            phase: Phase::Tools {
                calls: vec![
                    call("a", CallStatus::Asking),
                    call("b", delegated(known)),
                    call("c", delegated(unknown)),
                    call("d", CallStatus::Ready),
                    call("e", CallStatus::Asking),
                ],
            },
            asked: vec![
                asked("a", QuestionKind::ToolApproval, None),
                asked("d", QuestionKind::ToolApproval, Some(json!({"type": "approve"}))),
                asked("e", QuestionKind::Question, Some(json!("yes"))),
                asked("e", QuestionKind::Question, None),
            ],
            questions: 9,
            reviewed: BTreeMap::from([("d".to_owned(), "digest".to_owned())]),
            ..Position::default()
        };
        let head = CheckpointId::mint();
        let base = StepBase::after(Some(head), None);
        let task = position.delegation_in_copy(head, known, AfterDelegation::Answer);
        assert_eq!(task, Some(base.task(TOOLS, 1)));
        let again = position.delegation_in_copy(head, unknown, AfterDelegation::CallAgain);
        assert_eq!(again, Some(TaskId::of_delegation(base.task(TOOLS, 2), 0)));
        let copied = CopiedChild {
            run: RunId::mint(),
            waits: true,
        };
        let children = BTreeMap::from([(known, copied)]);
        let CopiedStep { position, interrupts } = position.continued_in_copy(head, &children);
        let Phase::Tools { calls } = &position.phase else {
            panic!("it is a tool step")
        };
        let statuses: Vec<&CallStatus> = calls.iter().map(|call| &call.status).collect();
        let own = delegated(copied.run);
        let expected = [
            &CallStatus::Asking,
            &own,
            &CallStatus::Ready,
            &CallStatus::Asking,
            &CallStatus::Asking,
        ];
        assert_eq!(statuses, expected);
        // The approval is asked for again; the answer to a question of a tool is kept.
        let open: Vec<&str> = interrupts.iter().map(|(before, _)| before.0.as_str()).collect();
        assert_eq!(open, ["a", "d", "e"]);
        assert!(position.reviewed.is_empty());
        assert_eq!(position.asked.len(), 4);
        // No row of the copy has the question that was answered in the original.
        let inline: Vec<bool> = position.asked.iter().map(|asked| asked.is_inline).collect();
        assert_eq!(inline, [false, false, true, false]);
        assert_eq!(position.questions, 4);
        let tasks = position.tasks(None, head);
        for (_, asked) in &interrupts {
            let task = tasks.iter().find(|task| task.asks.contains(asked)).expect("its task");
            assert_eq!(task.id, asked.task);
        }
        let ids: BTreeSet<&InterruptId> = position.asked.iter().map(|asked| &asked.id).collect();
        assert_eq!(ids.len(), 4);
    }
}
