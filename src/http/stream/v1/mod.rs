//! The stream modes of the first protocol: events of the log become frames.
//!
//! A [`Presenter`] is pure: it waits for nothing and looks at nothing but the events. There is one for each reader, for it
//! remembers what this reader has seen.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::frame::{Frame, Said};
use crate::domain::checkpoint::{Entry, Lane, Source};
use crate::domain::event::{Event, EventBody, Fact, Origin};
use crate::domain::id::{AssistantId, CheckpointId, InterruptId, RunId, TaskId, ThreadId};
use crate::domain::interrupt::{Asker, Interrupt};
use crate::domain::machine::{MODEL, START, TOOLS};
use crate::domain::run::{Run, RunStatus};
use crate::domain::state::{State, Update};
use crate::domain::time::Timestamp;
use crate::events::Standing;
use beginnings::Beginnings;
use lane::{Ahead, LaneView};
use messages::Messages;
pub use mode::{Mode, Modes};
use records::Running;
use steps::Steps;
use values::{Public, Written};

mod answer;
mod beginnings;
mod ends;
mod lane;
mod messages;
mod metadata;
mod mode;
mod partial;
mod records;
mod steps;
#[cfg(test)]
mod tests;
mod values;

/// What frames tell about the run besides what happens in it.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The run.
    pub run: RunId,
    /// Its thread.
    pub thread: ThreadId,
    /// The definition of its agent.
    pub graph_id: String,
    /// The assistant it was asked of.
    pub assistant: AssistantId,
    /// Which attempt it is.
    pub attempt: u32,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// What it was given.
    pub input: Option<Value>,
    /// What else goes into the metadata of messages and tasks: the `metadata` of the request's `config`.
    pub metadata: Map<String, Value>,
}

impl Facts {
    /// The facts of a stored run.
    pub fn of(run: &Run, graph_id: impl Into<String>) -> Self {
        let metadata = run.request.config.get("metadata").and_then(Value::as_object).cloned();
        Self {
            run: run.id,
            thread: run.thread,
            graph_id: graph_id.into(),
            assistant: run.assistant,
            attempt: run.attempt.max(1),
            created_at: run.created_at,
            input: run.request.input.clone(),
            metadata: metadata.unwrap_or_default(),
        }
    }
}

/// Turns the events of one run into the frames of one reader.
pub struct Presenter {
    facts: Facts,
    modes: Modes,
    subgraphs: bool,
    /// Whether the reader wants the frame that names the run.
    opens: bool,
    lanes: HashMap<Lane, LaneView>,
    /// The newest checkpoints by namespace.
    heads: BTreeMap<String, CheckpointId>,
    messages: Messages,
    beginnings: Beginnings,
    /// Who first asked a question; callers repeat it.
    askers: HashMap<InterruptId, Arc<Origin>>,
    /// How an agent stood that goes on, once it is known.
    learned: Option<Standing>,
}

impl Presenter {
    /// A presenter for a reader who has seen nothing yet. With `subgraphs`, subagents are shown under their namespace.
    pub fn new(facts: Facts, modes: Modes, subgraphs: bool) -> Self {
        Self {
            facts: Facts {
                metadata: metadata::without_own(facts.metadata),
                ..facts
            },
            modes,
            subgraphs,
            opens: true,
            lanes: HashMap::new(),
            heads: BTreeMap::new(),
            messages: Messages::new(modes),
            beginnings: Beginnings::default(),
            askers: HashMap::new(),
            learned: None,
        }
    }

    /// The reader was here before and heard this much of answers that were not finished then.
    pub fn recall(&mut self, said: Vec<Said>) {
        self.beginnings.recall(&said);
        self.messages.recall(said);
    }

    /// How much was said of what is not finished, for the reader of a frame with which `this` was said.
    pub fn unfinished(&self, this: Option<Said>) -> Vec<Said> {
        let is_other = |other: &Said| this.is_none_or(|this| this.answer != other.answer);
        let others = self
            .messages
            .unfinished()
            .chain(self.beginnings.open())
            .filter(is_other);
        let mut said: Vec<Said> = others.chain(this).collect();
        said.sort_unstable_by_key(|said| said.answer);
        said
    }

    /// Leaves out the frame that names the run, for readers who asked for certain modes only.
    pub fn without_opening(mut self) -> Self {
        self.opens = false;
        self
    }

    /// The checkpoint whose state [`Presenter::present`] needs together with `event`, if it needs one.
    pub fn wants_state(&self, event: &Event) -> Option<CheckpointId> {
        if !self.modes_for(&event.origin).need_state() {
            return None;
        }
        let is_unknown = || {
            self.lanes
                .get(&event.origin.lane)
                .is_none_or(|view| view.state.is_none())
        };
        match &event.body {
            EventBody::Fact(Fact::Started { base, .. }) => *base,
            EventBody::Entry(entry) if is_unknown() => entry.parent,
            EventBody::Fact(Fact::Asked { head, .. }) if is_unknown() => *head,
            EventBody::Entry(_)
            | EventBody::Fact(_)
            | EventBody::Delta(_)
            | EventBody::Begun(_)
            | EventBody::Output { .. } => None,
        }
    }

    /// The checkpoint about which the presenter wants to [`Presenter::learn`] before `event`: that from which an agent goes
    /// on whom this reader has not seen before.
    pub fn wants_standing(&self, event: &Event) -> Option<CheckpointId> {
        let is_known = self.lanes.contains_key(&event.origin.lane);
        match &event.body {
            EventBody::Fact(Fact::Started {
                base, resumed: true, ..
            }) if self.modes.tell_steps() && self.shows(&event.origin) && !is_known => *base,
            EventBody::Fact(_)
            | EventBody::Entry(_)
            | EventBody::Delta(_)
            | EventBody::Begun(_)
            | EventBody::Output { .. } => None,
        }
    }

    /// Takes note of what [`Presenter::wants_standing`] wanted.
    pub fn learn(&mut self, standing: Standing) {
        self.learned = Some(standing);
    }

    /// The frames that `event` becomes. `base` is the state at the checkpoint that [`Presenter::wants_state`] named.
    pub fn present(&mut self, event: &Event, base: Option<Arc<State>>) -> Vec<Frame> {
        let mut out = Vec::new();
        let Some(event) = event.origin.visibility.shown(event) else {
            self.note_askers(event);
            return out;
        };
        let event = &*event;
        if self.modes.tell_steps() {
            self.begin_tasks(event, &mut out);
        }
        let asked = self.modes;
        let modes = self.modes_for(&event.origin);
        if modes == Modes::default() {
            self.note_askers(event);
            return out;
        }
        if modes.has(Mode::Events) {
            self.begin_calls(event, &mut out);
        }
        self.see(modes);
        self.take(event, base, &mut out);
        self.see(asked);
        out
    }

    fn see(&mut self, modes: Modes) {
        self.modes = modes;
        self.messages.see(modes);
    }

    fn take(&mut self, event: &Event, base: Option<Arc<State>>, out: &mut Vec<Frame>) {
        let lane = event.origin.lane;
        if let EventBody::Delta(delta) = &event.body {
            if self.modes.tell_messages() {
                let view = self.lanes.entry(lane).or_insert_with(|| LaneView::new(&event.origin));
                self.messages.piece(&self.facts, view, delta, out);
            }
            return;
        }
        let mut view = self.lanes.remove(&lane).unwrap_or_else(|| LaneView::new(&event.origin));
        if let Some(base) = base {
            view.state = Some(Arc::unwrap_or_clone(base));
        }
        match &event.body {
            EventBody::Entry(entry) => self.entry(&mut view, entry, event.at, out),
            EventBody::Fact(fact) => self.fact(&mut view, fact, event.at, out),
            EventBody::Delta(_) | EventBody::Begun(_) | EventBody::Output { .. } => {}
        }
        self.lanes.insert(lane, view);
    }

    /// Remembers who asks, when nothing else is shown of him: his callers will repeat the questions.
    fn note_askers(&mut self, event: &Event) {
        if let EventBody::Fact(Fact::Asked { interrupts, .. }) = &event.body {
            for interrupt in interrupts {
                self.askers
                    .entry(interrupt.id.clone())
                    .or_insert_with(|| Arc::clone(&event.origin));
            }
        }
    }

    /// Whether the reader sees this agent.
    fn shows(&self, origin: &Origin) -> bool {
        self.subgraphs || origin.namespace.is_empty()
    }

    /// In which modes the reader sees this agent: records are shown of everybody.
    fn modes_for(&self, origin: &Origin) -> Modes {
        let seen = self.modes.and(Modes::seen(origin.visibility));
        if self.shows(origin) {
            seen
        } else {
            seen.and([Mode::Events].into_iter().collect())
        }
    }

    fn fact(&mut self, view: &mut LaneView, fact: &Fact, at: Timestamp, out: &mut Vec<Frame>) {
        match fact {
            Fact::Started { base, attempt, resumed } => self.started(view, (*base, *attempt, *resumed), at, out),
            Fact::Answered { head, call, writes } => {
                view.head = Some(*head);
                view.answered.push(*call);
                self.call_written(view, *call, writes, at, out);
            }
            Fact::Asked { head, interrupts } => {
                view.head = head.or(view.head);
                self.asked(view, interrupts, at, out);
            }
            Fact::BrokenOff { message, .. } if self.modes.tell_messages() => {
                self.messages.broken_off(&self.facts, view, message, out);
            }
            Fact::Paused if self.modes.has(Mode::Updates) => out.push(values::updates_asking(view, &[])),
            Fact::Custom { value } if self.modes.has(Mode::Custom) => out.push(values::custom(view, value)),
            Fact::Ended {
                status, error, used, ..
            } => {
                if let (RunStatus::Success, Some(state)) = (status, self.recorded(view)) {
                    let agent = Running::agent(&self.facts, &view.origin);
                    out.push(agent.ended("on_chain_end", state, &Value::Null));
                }
                if view.is_main() {
                    let used = used.as_deref();
                    out.extend(
                        used.filter(|_| self.modes.has(Mode::Usage))
                            .map(|used| ends::usage(self.facts.run, used)),
                    );
                    out.extend(ends::error(*status, error.as_ref(), used));
                }
            }
            Fact::Calling { .. } | Fact::BrokenOff { .. } | Fact::Paused | Fact::Undone | Fact::Custom { .. } => {}
        }
    }

    fn started(
        &mut self,
        view: &mut LaneView,
        (base, attempt, resumed): (Option<CheckpointId>, u32, bool),
        at: Timestamp,
        out: &mut Vec<Frame>,
    ) {
        let fresh = (base.is_none() && self.modes.need_state()).then(State::default);
        let state = fresh.or_else(|| view.state.take());
        *view = LaneView {
            state,
            head: base,
            whole: true,
            ..LaneView::new(&view.origin)
        };
        self.note_head(view);
        self.beginnings.finish(view.origin.lane);
        if view.is_main() {
            self.facts.attempt = attempt;
            if self.opens {
                out.push(Frame::of(
                    "metadata",
                    &json!({"run_id": self.facts.run, "attempt": attempt}),
                ));
            }
        }
        if self.modes.has(Mode::Events) && (view.is_main() || resumed) {
            let input = self.facts.input.as_ref().filter(|_| view.is_main());
            out.push(Running::agent(&self.facts, &view.origin).began("on_chain_start", &input));
        }
        if resumed {
            if self.modes.has(Mode::Values) {
                out.extend(values::values(view));
            }
            let before = self.learned.take();
            let entry = before.as_ref().map(|before| Arc::clone(&before.entry));
            view.step = entry.as_ref().map(|entry| entry.step);
            view.ahead = self.modes.tell_steps().then_some(Ahead { entry, before, at });
        }
    }

    fn entry(&mut self, view: &mut LaneView, entry: &Arc<Entry>, at: Timestamp, out: &mut Vec<Frame>) {
        if view.state.is_none() && entry.parent.is_none() && self.modes.need_state() {
            view.state = Some(State::default());
        }
        // A reader who joined in the middle learns here onto what the step was made.
        view.head = entry.parent;
        view.step = Some(entry.step - 1);
        self.beginnings.finish(view.origin.lane);
        if entry.source == Source::Loop && entry.node == TOOLS {
            self.calls_written(view, entry, at, out);
        } else if entry.source == Source::Loop && entry.node != START {
            self.node_written(view, entry, at, out);
        } else if entry.source == Source::Loop && self.modes.has(Mode::Events) && !view.is_main() {
            let input = entry.writes.first().map(Written);
            out.push(Running::agent(&self.facts, &view.origin).began("on_chain_start", &input));
        }
        view.advance(entry);
        self.note_head(view);
        let changed = entry.writes.iter().any(|update| !Public(update).is_empty());
        if changed && self.modes.has(Mode::Values) {
            out.extend(values::values(view));
        }
        if self.modes.tell_steps() {
            view.ahead = Some(Ahead {
                entry: Some(Arc::clone(entry)),
                before: None,
                at,
            });
        }
    }

    fn node_written(&mut self, view: &LaneView, entry: &Entry, at: Timestamp, out: &mut Vec<Frame>) {
        let nothing = Update::none();
        let update = entry.writes.first().unwrap_or(&nothing);
        if self.modes.tell_messages() {
            self.messages
                .written(&self.facts, (view, &view.source(&entry.node, 0)), update, out);
        }
        if self.modes.has(Mode::Events) && entry.node != MODEL {
            records::hook(&self.facts, view, &entry.node, update, out);
        }
        if self.modes.has(Mode::Updates) {
            out.push(values::updates(view, &entry.node, update, false));
        }
        self.steps(at).end(view, &entry.node, 0, update, out);
    }

    fn calls_written(&mut self, view: &LaneView, entry: &Entry, at: Timestamp, out: &mut Vec<Frame>) {
        for (call, update) in entry.writes.iter().enumerate() {
            if view.answered.contains(&call) {
                continue;
            }
            // Announced before this reader came, or by an earlier run.
            let cached = view.whole && entry.shown.contains(&call);
            if !cached {
                self.call_written(view, call, update, at, out);
            } else if self.modes.has(Mode::Updates) {
                out.push(values::updates(view, TOOLS, update, true));
            }
        }
    }

    fn call_written(&mut self, view: &LaneView, call: usize, update: &Update, at: Timestamp, out: &mut Vec<Frame>) {
        if self.modes.tell_messages() {
            self.messages
                .written(&self.facts, (view, &view.source(TOOLS, call)), update, out);
        }
        if self.modes.has(Mode::Events) {
            records::end_call(&self.facts, view, call, update, out);
        }
        if self.modes.has(Mode::Updates) {
            out.push(values::updates(view, TOOLS, update, false));
        }
        self.steps(at).end(view, TOOLS, call, update, out);
    }

    fn asked(&mut self, view: &mut LaneView, interrupts: &[Interrupt], at: Timestamp, out: &mut Vec<Frame>) {
        let mut by_task: Vec<(TaskId, String, Vec<Value>)> = vec![];
        for interrupt in interrupts {
            if !view.asked.insert(interrupt.id.clone()) {
                continue;
            }
            let asker = self
                .askers
                .entry(interrupt.id.clone())
                .or_insert_with(|| Arc::clone(&view.origin));
            let question = values::interrupt(interrupt, asker);
            let (task, node) = task_of(view, asker, interrupt);
            if self.modes.has(Mode::Updates) {
                out.push(values::updates_asking(view, std::slice::from_ref(&question)));
            }
            if self.modes.has(Mode::Values) {
                out.extend(values::values_asking(view, std::slice::from_ref(&question)));
            }
            match by_task.iter_mut().find(|(known, ..)| *known == task) {
                Some((.., questions)) => questions.push(question),
                None => by_task.push((task, node, vec![question])),
            }
        }
        for (task, node, questions) in by_task {
            self.steps(at).end_asking(view, &node, task, &questions, out);
        }
    }

    fn steps(&self, at: Timestamp) -> Steps<'_> {
        Steps {
            facts: &self.facts,
            modes: self.modes,
            heads: &self.heads,
            at,
        }
    }

    fn note_head(&mut self, view: &LaneView) {
        if let (true, Some(head)) = (self.modes.tell_steps(), view.head) {
            self.heads
                .insert(view.namespace.as_deref().unwrap_or_default().to_owned(), head);
        }
    }

    /// The state of an agent, if it is to be recorded.
    fn recorded<'a>(&self, view: &'a LaneView) -> Option<&'a State> {
        view.state.as_ref().filter(|_| self.modes.has(Mode::Events))
    }
}

/// The task of `view`'s agent under which a question is filed, and its node. For a question that a subagent asked this is
/// the call that the subagent works on.
fn task_of(view: &LaneView, asker: &Origin, interrupt: &Interrupt) -> (TaskId, String) {
    match (asker.namespace.get(view.origin.namespace.len()), &interrupt.asker) {
        (Some(call), _) => (*call, TOOLS.to_owned()),
        (None, Asker::Call(_)) => (interrupt.task, TOOLS.to_owned()),
        (None, Asker::Hook(name)) => (interrupt.task, name.clone()),
    }
}
