//! The fold of a thread's log: what a reader knows of an agent once it has read the events up to now.
//!
//! The streams of both protocols and the answers that wait for a run read the same log and need the same things of it:
//! the state of an agent, its newest checkpoint, the number of its step, which calls are answered, what it asks. An event
//! is taken in two halves, because what it becomes depends on how the agent stood before it.

use std::sync::Arc;

use crate::domain::checkpoint::Entry;
use crate::domain::event::{EventBody, Fact, Origin};
use crate::domain::id::CheckpointId;
use crate::domain::interrupt::Interrupt;
use crate::domain::state::State;

/// One agent of a run, as far as its part of the log was read.
#[derive(Debug, Clone)]
pub(in crate::http) struct AgentFold {
    /// Which agent.
    pub origin: Arc<Origin>,
    /// Its state; none when it is not followed, or not known yet.
    pub state: Option<State>,
    /// Its newest checkpoint.
    pub head: Option<CheckpointId>,
    /// The number of that checkpoint's step.
    pub step: Option<i64>,
    /// Whether its beginning was read; false for a reader that joined in the middle.
    pub is_whole: bool,
    /// The calls of the step under way that were answered one by one.
    pub answered: Vec<usize>,
    /// The questions of the step under way.
    pub asked: Vec<Interrupt>,
}

impl AgentFold {
    /// An agent of which nothing was read.
    pub(in crate::http) fn new(origin: &Arc<Origin>) -> Self {
        Self {
            origin: Arc::clone(origin),
            state: None,
            head: None,
            step: None,
            is_whole: false,
            answered: vec![],
            asked: vec![],
        }
    }

    /// The checkpoint whose state [`AgentFold::enter`] needs together with an event, for a reader that follows the state.
    /// `view` is none for an agent that has not been seen yet.
    pub(in crate::http) fn missing_state(view: Option<&Self>, body: &EventBody) -> Option<CheckpointId> {
        let is_unknown = view.is_none_or(|view| view.state.is_none());
        match body {
            EventBody::Fact(Fact::Started { base, .. }) => {
                base.filter(|base| is_unknown || view.is_some_and(|view| view.head != Some(*base)))
            }
            EventBody::Entry(entry) => entry.parent.filter(|_| is_unknown),
            EventBody::Fact(Fact::Asked { head, .. } | Fact::Calling { head, .. }) => head.filter(|_| is_unknown),
            EventBody::Fact(_) | EventBody::Delta(_) | EventBody::Begun(_) | EventBody::Output { .. } => None,
        }
    }

    /// Takes the first half of an event: the agent stands where it stood when the event happened. `base` is the state that
    /// [`AgentFold::missing_state`] asked for; without `follows_state` none is begun.
    pub(in crate::http) fn enter(&mut self, body: &EventBody, base: Option<Arc<State>>, follows_state: bool) {
        let is_given = base.is_some();
        if let Some(base) = base {
            self.state = Some(Arc::unwrap_or_clone(base));
        }
        match body {
            EventBody::Fact(Fact::Started { base, .. }) => {
                if base.is_none() {
                    self.state = follows_state.then(State::default);
                } else if !is_given && self.head != *base {
                    self.state = None;
                }
                self.head = *base;
                self.step = None;
                self.is_whole = true;
                self.answered.clear();
                self.asked.clear();
            }
            EventBody::Entry(entry) => {
                if self.state.is_none() && entry.parent.is_none() && follows_state {
                    self.state = Some(State::default());
                }
                // A reader that joined in the middle learns here onto what the step was made.
                self.head = entry.parent;
                self.step = Some(entry.step - 1);
            }
            EventBody::Fact(Fact::Answered { head, call, .. }) => {
                self.head = Some(*head);
                self.answered.push(*call);
            }
            EventBody::Fact(Fact::Asked { head, .. } | Fact::Calling { head, .. }) => self.head = head.or(self.head),
            EventBody::Fact(_) | EventBody::Delta(_) | EventBody::Begun(_) | EventBody::Output { .. } => {}
        }
    }

    /// Takes note of questions, and gives those that are new: an agent repeats those of its subagents.
    pub(in crate::http) fn ask<'a>(&mut self, interrupts: &'a [Interrupt]) -> Vec<&'a Interrupt> {
        let mut new = vec![];
        for interrupt in interrupts {
            if !self.asked.iter().any(|known| known.id == interrupt.id) {
                self.asked.push(interrupt.clone());
                new.push(interrupt);
            }
        }
        new
    }

    /// Takes the second half of a step: what it wrote is part of the state.
    pub(in crate::http) fn advance(&mut self, entry: &Entry) {
        if let Some(state) = &mut self.state {
            entry.writes.iter().for_each(|update| state.apply(update));
        }
        self.head = Some(entry.id);
        self.step = Some(entry.step);
        self.answered.clear();
        self.asked.clear();
    }

    /// The number of the step under way.
    pub(in crate::http) fn next_step(&self) -> Option<i64> {
        self.step.map(|step| step + 1)
    }

    /// Whether it is the main agent.
    pub(in crate::http) fn is_main(&self) -> bool {
        self.origin.namespace.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::checkpoint::{CheckpointSource, Lane};
    use crate::domain::id::{InterruptId, TaskId};
    use crate::domain::interrupt::{InterruptSource, Question, QuestionKind};
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
            attempt: 1,
            resumed: false,
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
        })
    }

    fn question(number: u32) -> Interrupt {
        let task = TaskId::of_step(None, "tools", 0);
        Interrupt {
            id: InterruptId::of_task(task, number),
            task,
            asker: InterruptSource::Call("c".into()),
            question: Question {
                kind: QuestionKind::Question,
                value: json!(number),
                schema: json!({}),
                calls: vec![],
                key: None,
            },
            answer: None,
        }
    }

    fn texts(view: &AgentFold) -> Option<Vec<String>> {
        let state = view.state.as_ref()?;
        Some(state.messages.iter().map(|message| message.content.text()).collect())
    }

    #[test]
    fn a_step_is_taken_onto_its_parent_and_then_moves_the_head() {
        let mut view = view();
        view.enter(&started(None), None, true);
        assert!(view.is_whole);
        let first = entry(None, 0, "a");
        view.enter(&EventBody::Entry(Arc::clone(&first)), None, true);
        assert_eq!(view.next_step(), Some(0));
        view.advance(&first);
        let second = entry(Some(first.id), 1, "b");
        view.enter(&EventBody::Entry(Arc::clone(&second)), None, true);
        assert_eq!(view.head, Some(first.id));
        view.advance(&second);
        assert_eq!(view.head, Some(second.id));
        assert_eq!(texts(&view), Some(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn a_state_is_asked_for_once_and_given_up_where_it_does_not_fit() {
        let first = entry(Some(CheckpointId::mint()), 3, "a");
        let body = EventBody::Entry(Arc::clone(&first));
        assert_eq!(AgentFold::missing_state(None, &body), first.parent);
        let mut view = view();
        view.enter(&body, Some(Arc::default()), true);
        view.advance(&first);
        let here = started(Some(first.id));
        assert_eq!(AgentFold::missing_state(Some(&view), &here), None);
        view.enter(&here, None, true);
        assert_eq!(texts(&view), Some(vec!["a".to_owned()]));
        let elsewhere = CheckpointId::mint();
        assert_eq!(
            AgentFold::missing_state(Some(&view), &started(Some(elsewhere))),
            Some(elsewhere)
        );
        view.enter(&started(Some(elsewhere)), None, false);
        assert_eq!(texts(&view), None);
    }

    #[test]
    fn a_question_is_new_once_in_a_step() {
        let mut view = view();
        let asked = [question(0), question(1)];
        assert_eq!(view.ask(&asked[..1]).len(), 1);
        let new: Vec<_> = view.ask(&asked).into_iter().map(|new| new.id.clone()).collect();
        assert_eq!(new, [asked[1].id.clone()]);
        view.advance(&entry(None, 0, "a"));
        assert!(view.asked.is_empty());
        assert_eq!(view.ask(&asked).len(), 2);
    }
}
