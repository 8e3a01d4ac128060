//! The fold of a thread's log: the state of an agent after the events that a reader has read.
//!
//! The streams of both protocols and the waiting endpoints read the same log and need the same data: an agent's state,
//! its newest checkpoint, the number of its step, the answered calls, the interrupts. An event is applied in two
//! halves, because its frames depend on the agent before the event.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::checkpoint::{CheckpointSource, Entry};
use crate::domain::event::{EventBody, Fact, Origin};
use crate::domain::id::{CheckpointId, StepBase, TaskId};
use crate::domain::interrupt::{Interrupt, InterruptSource};
use crate::domain::machine::{START, TOOLS};
use crate::domain::message::ToolCall;
use crate::domain::state::State;

/// The most calls of a step among which the one that asks something is looked for.
const MOST_CALLS: usize = 128;

/// One agent of a run after the events that were read.
#[derive(Debug, Clone)]
pub(in crate::http) struct AgentFold {
    /// The agent.
    pub origin: Arc<Origin>,
    /// The state; `None` when it is not tracked, or not known yet.
    pub state: Option<State>,
    /// The newest checkpoint.
    pub head: Option<CheckpointId>,
    /// The base of the current step.
    pub base: StepBase,
    /// The number of the newest checkpoint's step.
    pub step: Option<i64>,
    /// True if the agent's start was read; false for a reader that joined later.
    pub is_complete: bool,
    /// The calls of the current step that were answered one by one.
    pub answered: Vec<usize>,
    /// The indexes in the current step of the calls that have started, or have asked something, by call id.
    started: BTreeMap<String, usize>,
    /// The calls of the tool step that the run has begun with, each with its index, if a client has sent one of them: the state
    /// does not have it. Empty once that step is over.
    pub sent: Vec<(usize, ToolCall)>,
    /// The interrupts of the current step.
    pub interrupts: Vec<Interrupt>,
}

impl AgentFold {
    /// Creates the fold of an agent without events.
    pub(in crate::http) fn new(origin: &Arc<Origin>) -> Self {
        Self {
            origin: Arc::clone(origin),
            state: None,
            head: None,
            base: StepBase::default(),
            step: None,
            is_complete: false,
            answered: vec![],
            started: BTreeMap::new(),
            sent: vec![],
            interrupts: vec![],
        }
    }

    /// The checkpoint whose state [`AgentFold::begin_event`] needs for an event, if the reader tracks states. `view` is
    /// `None` for an agent without events.
    pub(in crate::http) fn required_state(view: Option<&Self>, body: &EventBody) -> Option<CheckpointId> {
        let is_unknown = view.is_none_or(|view| view.state.is_none());
        let is_elsewhere = |at: &CheckpointId| is_unknown || view.is_some_and(|view| view.head != Some(*at));
        match body {
            EventBody::Fact(Fact::Started { base, .. }) => base.filter(is_elsewhere),
            EventBody::Entry(entry) => entry.parent.filter(is_elsewhere),
            EventBody::Fact(Fact::Asked { head, .. } | Fact::Calling { head, .. }) => head.filter(|_| is_unknown),
            EventBody::Fact(_) | EventBody::Delta(_) | EventBody::Begun(_) | EventBody::Output { .. } => None,
        }
    }

    /// Applies the first half of an event: the fold is then the agent before the event's effects. `base` is the state
    /// that [`AgentFold::required_state`] named. With `follows_state`, an agent without checkpoints starts with an
    /// empty state.
    pub(in crate::http) fn begin_event(&mut self, body: &EventBody, base: Option<Arc<State>>, follows_state: bool) {
        let has_base = base.is_some();
        if let Some(base) = base {
            self.state = Some(Arc::unwrap_or_clone(base));
        }
        match body {
            EventBody::Fact(Fact::Started {
                base,
                carried_from,
                calls,
                ..
            }) => {
                if base.is_none() {
                    self.state = follows_state.then(State::default);
                } else if !has_base && self.head != *base {
                    self.state = None;
                }
                self.set_head(*base, *carried_from);
                self.step = None;
                self.is_complete = true;
                self.answered.clear();
                self.started.clear();
                self.sent.clone_from(calls);
                self.interrupts.clear();
            }
            EventBody::Entry(entry) => {
                // The log of a copied thread has the steps of its branches, and no starts between them.
                if !has_base && self.head != entry.parent {
                    self.state = None;
                }
                if self.state.is_none() && entry.parent.is_none() && follows_state {
                    self.state = Some(State::default());
                }
                // A reader that joined later learns the parent checkpoint here.
                self.head = entry.parent;
                self.base = entry.base();
                self.step = Some(entry.step - 1);
            }
            EventBody::Fact(Fact::Answered {
                head,
                carried_from,
                call,
                ..
            }) => {
                self.set_head(Some(*head), *carried_from);
                self.answered.push(*call);
            }
            EventBody::Fact(Fact::Asked { head, carried_from, .. } | Fact::Calling { head, carried_from, .. }) => {
                if head.is_some() {
                    self.set_head(*head, *carried_from);
                }
                self.note_started(body);
            }
            EventBody::Fact(_) | EventBody::Delta(_) | EventBody::Begun(_) | EventBody::Output { .. } => {}
        }
    }

    /// Takes the indexes of calls from the event that they start, or ask something. To be called before the frames of their
    /// start are made.
    pub(in crate::http) fn note_started(&mut self, body: &EventBody) {
        match body {
            EventBody::Fact(Fact::Calling { calls, .. }) => {
                self.started
                    .extend(calls.iter().map(|(index, id)| (id.clone(), *index)));
            }
            EventBody::Fact(Fact::Asked { interrupts, .. }) => {
                for Interrupt { asker, task, .. } in interrupts {
                    if let InterruptSource::Call(id) = asker
                        && let Some(index) = (0..MOST_CALLS).find(|index| self.task(TOOLS, *index) == *task)
                    {
                        self.started.insert(id.clone(), index);
                    }
                }
            }
            EventBody::Fact(_)
            | EventBody::Entry(_)
            | EventBody::Delta(_)
            | EventBody::Begun(_)
            | EventBody::Output { .. } => {}
        }
    }

    /// Returns the index in the current step of a call that has started, or has asked something. A step that was carried on to
    /// an update may have calls that the last answer does not have any more.
    pub(in crate::http) fn index_of(&self, call: &str) -> Option<usize> {
        self.started.get(call).copied()
    }

    /// Takes the newest checkpoint from a fact, and the checkpoint after which the current step began, if it was carried on.
    fn set_head(&mut self, head: Option<CheckpointId>, carried_from: Option<CheckpointId>) {
        self.head = head;
        self.base = StepBase::after(head, carried_from);
    }

    /// Adds interrupts and returns the new ones: an agent repeats those of its subagents.
    pub(in crate::http) fn add_interrupts<'a>(&mut self, interrupts: &'a [Interrupt]) -> Vec<&'a Interrupt> {
        let mut new = vec![];
        for interrupt in interrupts {
            if !self.interrupts.iter().any(|known| known.id == interrupt.id) {
                self.interrupts.push(interrupt.clone());
                new.push(interrupt);
            }
        }
        new
    }

    /// Applies the second half of a step: its writes become part of the state.
    pub(in crate::http) fn advance(&mut self, entry: &Entry) {
        if let Some(state) = &mut self.state {
            entry.writes.iter().for_each(|update| state.apply(update));
        }
        self.head = Some(entry.id);
        self.base = entry.next_base();
        self.step = Some(entry.step);
        self.answered.clear();
        self.started.clear();
        // Writes of a command come before the step to which it jumps.
        if entry.source == CheckpointSource::Loop && entry.node != START {
            self.sent.clear();
        }
        self.interrupts.clear();
    }

    /// The task of the `index`-th execution of `node` in the current step.
    pub(in crate::http) fn task(&self, node: &str, index: usize) -> TaskId {
        self.base.task(node, index)
    }

    /// The number of the current step.
    pub(in crate::http) fn next_step(&self) -> Option<i64> {
        self.step.map(|step| step + 1)
    }

    /// Returns true if it is the main agent.
    pub(in crate::http) fn is_main(&self) -> bool {
        self.origin.namespace.is_empty()
    }
}

/// Returns the part of a text of an answer that follows the part that was sent; none if it is empty, or if the text does not
/// begin with that part. Then the frame for the end of the text contains all of it.
pub(in crate::http) fn unsent_part<'a>(sent: &str, whole: &'a str) -> Option<&'a str> {
    whole.strip_prefix(sent).filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::checkpoint::Lane;
    use crate::domain::id::InterruptId;
    use crate::domain::interrupt::{Question, QuestionKind};
    use crate::domain::message::Message;
    use crate::domain::state::Update;

    fn view() -> AgentFold {
        AgentFold::new(&Arc::new(Origin {
            lane: Lane::Main,
            namespace: vec![],
            agent: "main-agent".to_owned(),
            path: vec![],
            cause: None,
            visibility: Default::default(),
            display_text: None,
        }))
    }

    fn started(base: Option<CheckpointId>) -> EventBody {
        EventBody::Fact(Fact::Started {
            base,
            carried_from: None,
            attempt: 1,
            resumed: false,
            calls: vec![],
        })
    }

    fn entry(parent: Option<CheckpointId>, step: i64, text: &str) -> Arc<Entry> {
        Arc::new(Entry {
            id: CheckpointId::mint(),
            parent,
            step,
            source: CheckpointSource::Loop,
            node: "model".to_owned(),
            writes: vec![Update::messages([Message::human(text).with_id(text)])],
            logged_writes: vec![],
            carried_from: None,
        })
    }

    fn question(number: u32) -> Interrupt {
        let task = TaskId::of_step(None, "tools", 0);
        Interrupt {
            id: InterruptId::of_task(task, number),
            task,
            asker: InterruptSource::Call("c".into()),
            question: Arc::new(Question {
                kind: QuestionKind::Question,
                value: json!(number),
                schema: json!({}).into(),
                calls: vec![],
                key: None,
                approvers: Default::default(),
                ..Question::default()
            }),
            answer: None,
            is_inline: false,
        }
    }

    fn texts(view: &AgentFold) -> Option<Vec<String>> {
        Some(view.state.as_ref()?.messages.texts())
    }

    #[test]
    fn a_step_is_applied_to_its_parent_and_then_becomes_the_head() {
        let mut view = view();
        view.begin_event(&started(None), None, true);
        assert!(view.is_complete);
        let first = entry(None, 0, "a");
        view.begin_event(&EventBody::Entry(Arc::clone(&first)), None, true);
        assert_eq!(view.next_step(), Some(0));
        view.advance(&first);
        let second = entry(Some(first.id), 1, "b");
        view.begin_event(&EventBody::Entry(Arc::clone(&second)), None, true);
        assert_eq!(view.head, Some(first.id));
        view.advance(&second);
        assert_eq!(view.head, Some(second.id));
        assert_eq!(texts(&view), Some(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn a_state_is_required_once_and_dropped_when_the_base_differs() {
        let first = entry(Some(CheckpointId::mint()), 3, "a");
        let body = EventBody::Entry(Arc::clone(&first));
        assert_eq!(AgentFold::required_state(None, &body), first.parent);
        let mut view = view();
        view.begin_event(&body, Some(Arc::default()), true);
        view.advance(&first);
        let here = started(Some(first.id));
        assert_eq!(AgentFold::required_state(Some(&view), &here), None);
        view.begin_event(&here, None, true);
        assert_eq!(texts(&view), Some(vec!["a".to_owned()]));
        let elsewhere = CheckpointId::mint();
        assert_eq!(
            AgentFold::required_state(Some(&view), &started(Some(elsewhere))),
            Some(elsewhere)
        );
        view.begin_event(&started(Some(elsewhere)), None, false);
        assert_eq!(texts(&view), None);
    }

    #[test]
    fn a_step_on_another_branch_requires_the_state_of_its_parent() {
        let mut view = view();
        let first = entry(None, 0, "a");
        let left = entry(Some(first.id), 1, "b");
        for step in [&first, &left] {
            view.begin_event(&EventBody::Entry(Arc::clone(step)), None, true);
            view.advance(step);
        }
        let branch = entry(Some(first.id), 1, "c");
        let body = EventBody::Entry(Arc::clone(&branch));
        assert_eq!(AgentFold::required_state(Some(&view), &body), Some(first.id));
        let mut unread = view.clone();
        unread.begin_event(&body, None, false);
        assert_eq!(texts(&unread), None);
        let mut base = State::default();
        first.writes.iter().for_each(|update| base.apply(update));
        view.begin_event(&body, Some(Arc::new(base)), true);
        view.advance(&branch);
        assert_eq!(texts(&view), Some(vec!["a".to_owned(), "c".to_owned()]));
    }

    #[test]
    fn the_tasks_of_a_step_that_is_carried_on_keep_their_ids() {
        let mut view = view();
        let first = entry(None, 0, "a");
        view.begin_event(&EventBody::Entry(Arc::clone(&first)), None, true);
        view.advance(&first);
        let task = view.task("tools", 0);
        let carried = Entry {
            source: CheckpointSource::Fork,
            carried_from: Some(first.id),
            ..Entry::clone(&entry(Some(first.id), 1, "b"))
        };
        view.begin_event(&EventBody::Entry(Arc::new(carried.clone())), None, true);
        view.advance(&carried);
        assert_eq!(view.task("tools", 0), task);
        // A reader that joins later learns it from each event.
        let late = || self::view();
        let head = Some(carried.id);
        let carried_from = Some(first.id);
        let calls = vec![(0, "c".to_owned())];
        let interrupts = vec![question(0)];
        let facts = [
            Fact::Started {
                base: head,
                carried_from,
                attempt: 1,
                resumed: true,
                calls: vec![],
            },
            Fact::Calling {
                head,
                carried_from,
                calls,
            },
            Fact::Asked {
                head,
                carried_from,
                interrupts,
            },
            Fact::Answered {
                head: carried.id,
                carried_from,
                call: 0,
                writes: Update::none(),
            },
        ];
        for fact in facts {
            let mut late = late();
            late.begin_event(&EventBody::Fact(fact), None, false);
            assert_eq!(late.task("tools", 0), task);
        }
        let done = Entry {
            carried_from: Some(first.id),
            ..Entry::clone(&entry(head, 2, "c"))
        };
        let mut late = late();
        late.begin_event(&EventBody::Entry(Arc::new(done.clone())), None, false);
        assert_eq!(late.task("tools", 0), task);
        late.advance(&done);
        assert_ne!(late.task("tools", 0), task, "the next step has tasks of its own");
    }

    #[test]
    fn an_interrupt_is_new_once_in_a_step() {
        let mut view = view();
        let interrupts = [question(0), question(1)];
        assert_eq!(view.add_interrupts(&interrupts[..1]).len(), 1);
        let new: Vec<_> = view
            .add_interrupts(&interrupts)
            .into_iter()
            .map(|new| new.id.clone())
            .collect();
        assert_eq!(new, [interrupts[1].id.clone()]);
        view.advance(&entry(None, 0, "a"));
        assert!(view.interrupts.is_empty());
        assert_eq!(view.add_interrupts(&interrupts).len(), 2);
    }
}
