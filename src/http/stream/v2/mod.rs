//! The stream of a thread in the second protocol: events of the log become frames.
//!
//! A [`Presenter`] is pure: it waits for nothing and looks at nothing but the events. What it makes of an entry of the log
//! depends only on the entries since the beginning of the run, never on what a reader wants to see or when it came, so
//! that the same frame has the same number and the same name on every connection, in every process, for ever.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::domain::checkpoint::{Entry, Lane, Source};
use crate::domain::event::{Event, EventBody, Fact, Origin};
use crate::domain::id::{CheckpointId, InterruptId, RunId, TaskId};
use crate::domain::interrupt::{Asker, Interrupt};
use crate::domain::limits::Totals;
use crate::domain::machine::{Failure, MODEL, RUNNABLE, START, TOOLS};
use crate::domain::run::RunStatus;
use crate::domain::state::State;
pub use filter::{Channel, Filter, whole_number};
use lane::LaneView;
pub use outlet::{FRAMES, Frame, Wanted};
use outlet::{Name, Outlet, Place};
use values::{Values, Writes};

mod filter;
mod lane;
mod messages;
mod outlet;
mod tools;
mod values;

/// What frames tell about a run besides what happens in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFacts {
    /// The run.
    pub id: RunId,
    /// The definition of its agent.
    pub graph: String,
}

/// How an agent stopped.
struct End<'a> {
    status: RunStatus,
    error: Option<&'a Failure>,
    waits: bool,
    used: Option<&'a Totals>,
}

/// The word for how an agent stopped, why it failed, and what was used.
type Stopped<'a> = (&'static str, Option<&'a Failure>, Option<&'a Totals>);

/// Turns the events of a thread into the frames of one reader.
#[derive(Default)]
pub struct Presenter {
    /// What the reader wants; it may change while the presenter is at work.
    pub wanted: Wanted,
    run: Option<RunFacts>,
    /// Whether clients were told that the run began, and that it ended.
    running: bool,
    lanes: BTreeMap<Lane, LaneView>,
    /// The questions that were shown in this run. Callers repeat those of their subagents.
    asked: HashSet<InterruptId>,
}

impl Presenter {
    /// A presenter for a reader who wants this.
    pub fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// The run about which the presenter has to [`Presenter::learn`] before `event`.
    pub fn wants_run(&self, event: &Event) -> Option<RunId> {
        self.run
            .as_ref()
            .is_none_or(|run| run.id != event.run)
            .then_some(event.run)
    }

    /// Takes note of the run that [`Presenter::wants_run`] named.
    pub fn learn(&mut self, run: RunFacts) {
        // The state of the main agent stays known; it is checked against the run's beginning.
        let main = self.lanes.remove(&Lane::Main);
        self.lanes.clear();
        if let Some(LaneView { place, state, head, .. }) = main {
            self.lanes.insert(
                Lane::Main,
                LaneView {
                    state,
                    head,
                    ..LaneView::new(&place.origin)
                },
            );
        }
        self.asked.clear();
        self.running = false;
        self.run = Some(run);
    }

    /// The checkpoint whose state [`Presenter::present`] needs together with `event`, if it needs one.
    pub fn wants_state(&self, event: &Event) -> Option<CheckpointId> {
        if !self.wanted.has(Channel::Values) && !self.wanted.has(Channel::Tools) && !self.wanted.has(Channel::Tasks) {
            return None;
        }
        let view = self.lanes.get(&event.origin.lane);
        let is_unknown = || view.is_none_or(|view| view.state.is_none());
        let stands_at = |base: CheckpointId| view.is_some_and(|view| view.state.is_some() && view.head == Some(base));
        match &event.body {
            EventBody::Fact(Fact::Started { base, .. }) => base.filter(|base| !stands_at(*base)),
            EventBody::Entry(entry) if is_unknown() => entry.parent,
            EventBody::Fact(Fact::Calling { head, .. }) if is_unknown() => *head,
            EventBody::Entry(_)
            | EventBody::Fact(_)
            | EventBody::Delta(_)
            | EventBody::Begun(_)
            | EventBody::Output { .. } => None,
        }
    }

    /// Forgets what can be read again. For readers who wait while nothing happens.
    pub fn rest(&mut self) {
        if !self.running {
            self.lanes = BTreeMap::new();
            self.asked = HashSet::new();
        }
    }

    /// The frames that `event` becomes. `base` is the state at the checkpoint that [`Presenter::wants_state`] named.
    pub fn present(&mut self, event: &Event, base: Option<Arc<State>>) -> Vec<Frame> {
        let Some(event) = event.origin.visibility.shown(event) else {
            return vec![];
        };
        let event = &*event;
        let lane = event.origin.lane;
        let wanted = std::mem::take(&mut self.wanted);
        let mut out = Outlet::new(&wanted, event.seq, event.at);
        let mut view = self.lanes.remove(&lane).unwrap_or_else(|| LaneView::new(&event.origin));
        if !Arc::ptr_eq(&view.place.origin, &event.origin) {
            view.place = Place::of(&event.origin);
        }
        if let Some(base) = base {
            view.state = Some(Arc::unwrap_or_clone(base));
        }
        match &event.body {
            EventBody::Entry(entry) => self.entry(&mut view, entry, &mut out),
            EventBody::Fact(fact) => self.fact(&mut view, fact, &mut out),
            EventBody::Delta(delta) => view.speech.piece(&view.place, delta, &mut out),
            EventBody::Output { call, text } => tools::piece(&view, call, text, &mut out),
            EventBody::Begun(_) => {}
        }
        self.lanes.insert(lane, view);
        let frames = out.into_frames();
        self.wanted = wanted;
        frames
    }

    fn fact(&mut self, view: &mut LaneView, fact: &Fact, out: &mut Outlet<'_>) {
        match fact {
            Fact::Started { base, resumed, .. } => self.started(view, *base, *resumed, out),
            Fact::Calling { head, calls } => {
                view.head = head.or(view.head);
                tools::begin(view, calls, out);
            }
            Fact::Answered { head, call, writes } => {
                view.head = Some(*head);
                view.answered.push(*call);
                let delegated = self.is_delegated(view, writes.messages.iter().find_map(|message| message.answers()));
                tools::end(view, *call, writes, delegated, out);
            }
            Fact::Asked { head, interrupts } => {
                view.head = head.or(view.head);
                self.ask(view, interrupts, out);
            }
            Fact::BrokenOff { message, failed } => view.speech.broken_off(&view.place, message, *failed, out),
            Fact::Custom { value } => custom(view, value, out),
            Fact::Ended {
                status,
                error,
                waits,
                used,
            } => {
                let end = End {
                    status: *status,
                    error: error.as_ref(),
                    waits: *waits,
                    used: used.as_deref(),
                };
                self.ended(view, end, out);
            }
            Fact::Paused | Fact::Undone => {}
        }
    }

    fn started(&mut self, view: &mut LaneView, base: Option<CheckpointId>, resumed: bool, out: &mut Outlet<'_>) {
        if base.is_none() {
            view.state = Some(State::default());
        }
        view.head = base;
        view.answered.clear();
        // A run that a crash interrupted goes on, and has told already that it is at work.
        if !view.open {
            view.open = true;
            self.tell_begin(view, out);
        }
        if resumed {
            show_values(view, out);
        }
    }

    fn tell_begin(&mut self, view: &LaneView, out: &mut Outlet<'_>) {
        if view.is_main() {
            return self.tell_running(view, out);
        }
        let name = self.lifecycle_name(view, "started");
        out.put(Channel::Lifecycle, &view.place, name, || {
            let Origin {
                namespace,
                agent,
                cause,
                display_text,
                ..
            } = &*view.place.origin;
            let mut data = json!({
                "event": "started",
                "namespace": view.place.segments,
                "graph_name": agent,
                "trigger_call_id": namespace.last(),
                "cause": {"type": "toolCall", "tool_call_id": cause},
            });
            if let Some(text) = display_text {
                data["display_text"] = json!(text);
            }
            data
        });
    }

    fn tell_running(&mut self, view: &LaneView, out: &mut Outlet<'_>) {
        if !std::mem::replace(&mut self.running, true) {
            let name = self.lifecycle_name(view, "running");
            let data = || json!({"event": "running", "graph_name": self.graph()});
            out.put(Channel::Lifecycle, &view.place, name, data);
        }
    }

    fn entry(&mut self, view: &mut LaneView, entry: &Entry, out: &mut Outlet<'_>) {
        if view.state.is_none() && entry.parent.is_none() {
            view.state = Some(State::default());
        }
        view.head = entry.parent;
        if entry.source == Source::Loop && entry.node == TOOLS {
            self.calls_done(view, entry, out);
        } else if entry.source == Source::Loop && entry.node != START {
            node_done(view, entry, out);
        }
        view.advance(entry);
        out.put(Channel::Checkpoints, &view.place, Name::Placed, || {
            let mut checkpoint = json!({"id": entry.id, "step": entry.step, "source": entry.source.word()});
            if let Some(parent) = entry.parent {
                checkpoint["parent_id"] = json!(parent);
            }
            checkpoint
        });
        if entry.writes.iter().any(|update| !Writes(update).is_empty()) {
            show_values(view, out);
        }
    }

    fn calls_done(&self, view: &mut LaneView, entry: &Entry, out: &mut Outlet<'_>) {
        for (call, update) in entry.writes.iter().enumerate() {
            // The others were shown one by one, here or in an earlier run.
            if !view.answered.contains(&call) && !entry.shown.contains(&call) {
                let delegated = self.is_delegated(view, update.messages.iter().find_map(|message| message.answers()));
                tools::end(view, call, update, delegated, out);
            }
        }
        view.made.clear();
    }

    /// Whether a subagent works, or worked, on this call of `view`'s agent.
    fn is_delegated(&self, view: &LaneView, call: Option<&str>) -> bool {
        let depth = view.place.segments.len();
        call.is_some()
            && self.lanes.values().any(|other| {
                let Place { origin, segments } = &other.place;
                origin.cause.as_deref() == call
                    && segments.len() == depth + 1
                    && segments.starts_with(&view.place.segments)
            })
    }

    fn ask(&mut self, view: &mut LaneView, interrupts: &[Interrupt], out: &mut Outlet<'_>) {
        for interrupt in interrupts {
            if self.asked.insert(interrupt.id.clone()) {
                let segments = view.place.segments.join("|");
                let name = Name::Given(format!("synth:{}:input|{segments}|{}", self.run_id(), interrupt.id));
                out.put(Channel::Input, &view.place, name, || {
                    let value = &interrupt.question.value;
                    json!({"interrupt_id": interrupt.id, "payload": value, "value": value})
                });
            }
        }
        let mut by_task: Vec<((TaskId, &str), Vec<&Interrupt>)> = vec![];
        for interrupt in interrupts {
            if !view.asked.insert(interrupt.id.clone()) {
                continue;
            }
            let task = self.task_of(view, interrupt);
            match by_task.iter_mut().find(|(known, _)| *known == task) {
                Some((_, asked)) => asked.push(interrupt),
                None => by_task.push((task, vec![interrupt])),
            }
        }
        by_task
            .into_iter()
            .for_each(|(task, asked)| tools::park(view, task, &asked, out));
    }

    /// The task of `view`'s agent that a question keeps from ending: the asker's own, or the call that leads to the asker.
    fn task_of<'a>(&self, view: &LaneView, interrupt: &'a Interrupt) -> (TaskId, &'a str) {
        let depth = view.place.segments.len();
        let below = self
            .lanes
            .values()
            .find(|other| other.asked.contains(&interrupt.id) && other.place.segments.len() > depth);
        let call = below.and_then(|other| other.place.origin.namespace.get(depth));
        match (call, &interrupt.asker) {
            (Some(call), _) => (*call, TOOLS),
            (None, Asker::Call(_)) => (interrupt.task, TOOLS),
            (None, Asker::Hook(name)) => (interrupt.task, name),
        }
    }

    fn ended(&mut self, view: &mut LaneView, end: End<'_>, out: &mut Outlet<'_>) {
        let End {
            status,
            error,
            waits,
            used,
        } = end;
        let word = if waits { "interrupted" } else { ending(status) };
        if word == "failed" {
            tools::give_up(view, error.map_or("the run failed", |failure| &failure.message), out);
        }
        if !view.is_main() {
            if status == RunStatus::Interrupted {
                show_values(view, out);
            }
            return self.close(view, (word, error, used), out);
        }
        self.tell_running(view, out);
        self.close_children(out);
        self.close(view, (word, error, used), out);
        if waits {
            show_values(view, out);
        }
        self.running = false;
    }

    /// Tells that an agent stopped.
    fn close(&self, view: &mut LaneView, (word, error, used): Stopped<'_>, out: &mut Outlet<'_>) {
        view.open = false;
        view.made.clear();
        out.put(Channel::Lifecycle, &view.place, self.lifecycle_name(view, word), || {
            let graph = if view.is_main() {
                self.graph()
            } else {
                &view.place.origin.agent
            };
            let mut data = json!({"event": word, "graph_name": graph});
            if word == "failed" {
                data["error"] = json!(error.map_or("the run failed", |failure| &failure.message));
            }
            if let Some(Totals { own, tree }) = used {
                data["usage"] = json!(own);
                tree.iter().for_each(|tree| data["tree_usage"] = json!(tree));
            }
            data
        });
    }

    /// Nobody below goes on when the main agent has stopped; the deepest are told of first.
    fn close_children(&mut self, out: &mut Outlet<'_>) {
        let mut lanes = std::mem::take(&mut self.lanes);
        let mut open: Vec<&mut LaneView> = lanes.values_mut().filter(|view| view.open && !view.is_main()).collect();
        open.sort_by_key(|view| std::cmp::Reverse(view.place.segments.len()));
        open.into_iter()
            .for_each(|view| self.close(view, ("interrupted", None, None), out));
        self.lanes = lanes;
    }

    fn run_id(&self) -> String {
        self.run.as_ref().map_or_else(String::new, |run| run.id.to_string())
    }

    fn graph(&self) -> &str {
        self.run.as_ref().map_or("", |run| &run.graph)
    }

    /// Clients read the id of the run out of this.
    fn lifecycle_name(&self, view: &LaneView, word: &str) -> Name {
        Name::Given(format!(
            "synth:{}:lc|{}|{word}",
            self.run_id(),
            view.place.segments.join("|")
        ))
    }
}

fn node_done(view: &mut LaneView, entry: &Entry, out: &mut Outlet<'_>) {
    for update in &entry.writes {
        if [MODEL, RUNNABLE].contains(&entry.node.as_str()) {
            update
                .messages
                .iter()
                .for_each(|message| view.speech.complete(&view.place, message, out));
        }
        tools::node(view, &entry.node, update, out);
    }
}

fn show_values(view: &LaneView, out: &mut Outlet<'_>) {
    out.put(Channel::Values, &view.place, Name::Placed, || {
        view.state.as_ref().map(Values)
    });
}

/// What a tool or policy tells: under the `name` that it has, if it has one. Of an object of `name` and `payload` alone, the
/// payload is what is told; anything else is told as it is.
fn custom(view: &LaneView, value: &Value, out: &mut Outlet<'_>) {
    let Some(name) = value
        .get("name")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
    else {
        return out.put_custom(&view.place, None, || json!({"payload": value}));
    };
    let is_envelope = value.as_object().is_some_and(|fields| fields.len() == 2);
    let payload = value.get("payload").filter(|_| is_envelope).unwrap_or(value);
    out.put_custom(&view.place, Some(name), || json!({"name": name, "payload": payload}));
}

/// How clients call the way in which a run came to its end.
pub fn ending(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Error | RunStatus::Timeout => "failed",
        RunStatus::Interrupted => "interrupted",
        RunStatus::Success | RunStatus::Pending | RunStatus::Running => "completed",
    }
}
