//! The stream of a thread in the second protocol: events of the log become frames.
//!
//! A [`V2Presenter`] is pure: it waits for nothing and looks at nothing but the events. What it makes of an entry of the log
//! depends only on the entries since the beginning of the run, never on what a reader wants to see or when it came, so
//! that the same frame has the same number and the same name on every connection, in every process, for ever.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::fold::AgentFold;
use crate::domain::checkpoint::{CheckpointSource, Entry, Lane};
use crate::domain::event::{Event, EventBody, Fact, Origin};
use crate::domain::id::{CheckpointId, InterruptId, RunId, TaskId};
use crate::domain::interrupt::{Interrupt, InterruptSource};
use crate::domain::limits::Totals;
use crate::domain::machine::{Failure, MODEL, RUNNABLE, START, TOOLS};
use crate::domain::run::RunStatus;
use crate::domain::state::State;
use agent::TrackedAgent;
pub use filter::{Channel, Filter, whole_number};
pub use frame_writer::{FRAMES, StreamFilter, V2Frame};
use frame_writer::{FrameId, FrameSource, FrameWriter};
use values::{StreamedValues, Writes};

mod agent;
mod filter;

mod frame_writer;
mod messages;
mod tools;
mod values;

/// What frames tell about a run besides what happens in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentRun {
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
pub struct V2Presenter {
    /// What the reader wants; it may change while the presenter is at work.
    pub wanted: StreamFilter,
    run: Option<CurrentRun>,
    /// Whether clients were told that the run began, and that it ended.
    running: bool,
    agents: BTreeMap<Lane, TrackedAgent>,
    /// The questions that were shown in this run. Callers repeat those of their subagents.
    asked: HashSet<InterruptId>,
}

impl V2Presenter {
    /// A presenter for a reader who wants this.
    pub fn new(wanted: StreamFilter) -> Self {
        Self {
            wanted,
            ..Self::default()
        }
    }

    /// The run about which the presenter has to [`V2Presenter::learn`] before `event`.
    pub fn wants_run(&self, event: &Event) -> Option<RunId> {
        self.run
            .as_ref()
            .is_none_or(|run| run.id != event.run)
            .then_some(event.run)
    }

    /// Takes note of the run that [`V2Presenter::wants_run`] named.
    pub fn learn(&mut self, run: CurrentRun) {
        // The state of the main agent stays known; it is checked against the run's beginning.
        let main = self.agents.remove(&Lane::Main);
        self.agents.clear();
        if let Some(TrackedAgent { agent, .. }) = main {
            let mut fresh = TrackedAgent::new(&agent.origin);
            fresh.agent.state = agent.state;
            fresh.agent.head = agent.head;
            self.agents.insert(Lane::Main, fresh);
        }
        self.asked.clear();
        self.running = false;
        self.run = Some(run);
    }

    /// The checkpoint whose state [`V2Presenter::present`] needs together with `event`, if it needs one.
    pub fn wants_state(&self, event: &Event) -> Option<CheckpointId> {
        let known = self.agents.get(&event.origin.lane);
        let with_state = [Channel::Values, Channel::Tools, Channel::Tasks];
        let is_wanted = with_state.into_iter().any(|channel| self.wanted.has(channel));
        AgentFold::missing_state(known.map(|known| &known.agent), &event.body).filter(|_| is_wanted)
    }

    /// Forgets what can be read again. For readers who wait while nothing happens.
    pub fn rest(&mut self) {
        if !self.running {
            self.agents = BTreeMap::new();
            self.asked = HashSet::new();
        }
    }

    /// The frames that `event` becomes. `base` is the state at the checkpoint that [`V2Presenter::wants_state`] named.
    pub fn present(&mut self, event: &Event, base: Option<Arc<State>>) -> Vec<V2Frame> {
        let Some(event) = event.origin.visibility.visible_part(event) else {
            return vec![];
        };
        let event = &*event;
        let lane = event.origin.lane;
        let wanted = std::mem::take(&mut self.wanted);
        let mut out = FrameWriter::new(&wanted, event.seq, event.at);
        let mut shown = self
            .agents
            .remove(&lane)
            .unwrap_or_else(|| TrackedAgent::new(&event.origin));
        if !Arc::ptr_eq(&shown.place.origin, &event.origin) {
            shown.place = FrameSource::of(&event.origin);
        }
        shown.agent.enter(&event.body, base, true);
        match &event.body {
            EventBody::Entry(entry) => self.entry(&mut shown, entry, &mut out),
            EventBody::Fact(fact) => self.fact(&mut shown, fact, &mut out),
            EventBody::Delta(delta) => shown.speech.piece(&shown.place, delta, &mut out),
            EventBody::Output { call, text } => tools::piece(&shown, call, text, &mut out),
            EventBody::Begun(_) => {}
        }
        self.agents.insert(lane, shown);
        let frames = out.into_frames();
        self.wanted = wanted;
        frames
    }

    fn fact(&mut self, shown: &mut TrackedAgent, fact: &Fact, out: &mut FrameWriter<'_>) {
        match fact {
            Fact::Started { resumed, .. } => self.started(shown, *resumed, out),
            Fact::Calling { calls, .. } => tools::begin(shown, calls, out),
            Fact::Answered { call, writes, .. } => {
                let delegated = self.is_delegated(shown, writes.messages.iter().find_map(|message| message.answers()));
                tools::end(shown, *call, writes, delegated, out);
            }
            Fact::Asked { interrupts, .. } => self.ask(shown, interrupts, out),
            Fact::BrokenOff { message, failed } => shown.speech.broken_off(&shown.place, message, *failed, out),
            Fact::Custom { value } => custom(shown, value, out),
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
                self.ended(shown, end, out);
            }
            Fact::Paused | Fact::Undone => {}
        }
    }

    fn started(&mut self, shown: &mut TrackedAgent, resumed: bool, out: &mut FrameWriter<'_>) {
        // A run that a crash interrupted goes on, and has told already that it is at work.
        if !shown.open {
            shown.open = true;
            self.tell_begin(shown, out);
        }
        if resumed {
            show_values(shown, out);
        }
    }

    fn tell_begin(&mut self, shown: &TrackedAgent, out: &mut FrameWriter<'_>) {
        if shown.agent.is_main() {
            return self.tell_running(shown, out);
        }
        let name = self.lifecycle_name(shown, "started");
        out.put(Channel::Lifecycle, &shown.place, name, || {
            let Origin {
                namespace,
                agent,
                cause,
                display_text,
                ..
            } = &*shown.place.origin;
            let mut data = json!({
                "event": "started",
                "namespace": shown.place.segments,
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

    fn tell_running(&mut self, shown: &TrackedAgent, out: &mut FrameWriter<'_>) {
        if !std::mem::replace(&mut self.running, true) {
            let name = self.lifecycle_name(shown, "running");
            let data = || json!({"event": "running", "graph_name": self.graph()});
            out.put(Channel::Lifecycle, &shown.place, name, data);
        }
    }

    fn entry(&mut self, shown: &mut TrackedAgent, entry: &Entry, out: &mut FrameWriter<'_>) {
        if entry.source == CheckpointSource::Loop && entry.node == TOOLS {
            self.calls_done(shown, entry, out);
        } else if entry.source == CheckpointSource::Loop && entry.node != START {
            node_done(shown, entry, out);
        }
        shown.agent.advance(entry);
        out.put(Channel::Checkpoints, &shown.place, FrameId::Numbered, || {
            let mut checkpoint = json!({"id": entry.id, "step": entry.step, "source": entry.source.word()});
            if let Some(parent) = entry.parent {
                checkpoint["parent_id"] = json!(parent);
            }
            checkpoint
        });
        if entry.writes.iter().any(|update| !Writes(update).is_empty()) {
            show_values(shown, out);
        }
    }

    fn calls_done(&self, shown: &mut TrackedAgent, entry: &Entry, out: &mut FrameWriter<'_>) {
        for (call, update) in entry.writes.iter().enumerate() {
            // The others were shown one by one, here or in an earlier run.
            if !shown.agent.answered.contains(&call) && !entry.logged_writes.contains(&call) {
                let delegated = self.is_delegated(shown, update.messages.iter().find_map(|message| message.answers()));
                tools::end(shown, call, update, delegated, out);
            }
        }
        shown.made.clear();
    }

    /// Whether a subagent works, or worked, on this call of `shown`'s agent.
    fn is_delegated(&self, shown: &TrackedAgent, call: Option<&str>) -> bool {
        let depth = shown.place.segments.len();
        call.is_some()
            && self.agents.values().any(|other| {
                let FrameSource { origin, segments } = &other.place;
                origin.cause.as_deref() == call
                    && segments.len() == depth + 1
                    && segments.starts_with(&shown.place.segments)
            })
    }

    fn ask(&mut self, shown: &mut TrackedAgent, interrupts: &[Interrupt], out: &mut FrameWriter<'_>) {
        for interrupt in interrupts {
            if self.asked.insert(interrupt.id.clone()) {
                let segments = shown.place.segments.join("|");
                let name = FrameId::Fixed(format!("synth:{}:input|{segments}|{}", self.run_id(), interrupt.id));
                out.put(Channel::Input, &shown.place, name, || {
                    let value = &interrupt.question.value;
                    json!({"interrupt_id": interrupt.id, "payload": value, "value": value})
                });
            }
        }
        let mut by_task: Vec<((TaskId, &str), Vec<&Interrupt>)> = vec![];
        for interrupt in interrupts {
            if !shown.parked.insert(interrupt.id.clone()) {
                continue;
            }
            let task = self.task_of(shown, interrupt);
            match by_task.iter_mut().find(|(known, _)| *known == task) {
                Some((_, asked)) => asked.push(interrupt),
                None => by_task.push((task, vec![interrupt])),
            }
        }
        by_task
            .into_iter()
            .for_each(|(task, asked)| tools::park(shown, task, &asked, out));
    }

    /// The task of `shown`'s agent that a question keeps from ending: the asker's own, or the call that leads to the asker.
    fn task_of<'a>(&self, shown: &TrackedAgent, interrupt: &'a Interrupt) -> (TaskId, &'a str) {
        let depth = shown.place.segments.len();
        let below = self
            .agents
            .values()
            .find(|other| other.parked.contains(&interrupt.id) && other.place.segments.len() > depth);
        let call = below.and_then(|other| other.place.origin.namespace.get(depth));
        match (call, &interrupt.asker) {
            (Some(call), _) => (*call, TOOLS),
            (None, InterruptSource::Call(_)) => (interrupt.task, TOOLS),
            (None, InterruptSource::Hook(name)) => (interrupt.task, name),
        }
    }

    fn ended(&mut self, shown: &mut TrackedAgent, end: End<'_>, out: &mut FrameWriter<'_>) {
        let End {
            status,
            error,
            waits,
            used,
        } = end;
        let word = if waits { "interrupted" } else { ending(status) };
        if word == "failed" {
            tools::give_up(shown, error.map_or("the run failed", |failure| &failure.message), out);
        }
        if !shown.agent.is_main() {
            if status == RunStatus::Interrupted {
                show_values(shown, out);
            }
            return self.close(shown, (word, error, used), out);
        }
        self.tell_running(shown, out);
        self.close_children(out);
        self.close(shown, (word, error, used), out);
        if waits {
            show_values(shown, out);
        }
        self.running = false;
    }

    /// Tells that an agent stopped.
    fn close(&self, shown: &mut TrackedAgent, (word, error, used): Stopped<'_>, out: &mut FrameWriter<'_>) {
        shown.open = false;
        shown.made.clear();
        out.put(
            Channel::Lifecycle,
            &shown.place,
            self.lifecycle_name(shown, word),
            || {
                let graph = if shown.agent.is_main() {
                    self.graph()
                } else {
                    &shown.place.origin.agent
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
            },
        );
    }

    /// Nobody below goes on when the main agent has stopped; the deepest are told of first.
    fn close_children(&mut self, out: &mut FrameWriter<'_>) {
        let mut lanes = std::mem::take(&mut self.agents);
        let mut open: Vec<&mut TrackedAgent> = lanes
            .values_mut()
            .filter(|shown| shown.open && !shown.agent.is_main())
            .collect();
        open.sort_by_key(|shown| std::cmp::Reverse(shown.place.segments.len()));
        open.into_iter()
            .for_each(|shown| self.close(shown, ("interrupted", None, None), out));
        self.agents = lanes;
    }

    fn run_id(&self) -> String {
        self.run.as_ref().map_or_else(String::new, |run| run.id.to_string())
    }

    fn graph(&self) -> &str {
        self.run.as_ref().map_or("", |run| &run.graph)
    }

    /// Clients read the id of the run out of this.
    fn lifecycle_name(&self, shown: &TrackedAgent, word: &str) -> FrameId {
        FrameId::Fixed(format!(
            "synth:{}:lc|{}|{word}",
            self.run_id(),
            shown.place.segments.join("|")
        ))
    }
}

fn node_done(shown: &mut TrackedAgent, entry: &Entry, out: &mut FrameWriter<'_>) {
    for update in &entry.writes {
        if [MODEL, RUNNABLE].contains(&entry.node.as_str()) {
            update
                .messages
                .iter()
                .for_each(|message| shown.speech.complete(&shown.place, message, out));
        }
        tools::node(shown, &entry.node, update, out);
    }
}

fn show_values(shown: &TrackedAgent, out: &mut FrameWriter<'_>) {
    out.put(Channel::Values, &shown.place, FrameId::Numbered, || {
        shown.agent.state.as_ref().map(StreamedValues)
    });
}

/// What a tool or policy tells: under the `name` that it has, if it has one. Of an object of `name` and `payload` alone, the
/// payload is what is told; anything else is told as it is.
fn custom(shown: &TrackedAgent, value: &Value, out: &mut FrameWriter<'_>) {
    let Some(name) = value
        .get("name")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
    else {
        return out.put_custom(&shown.place, None, || json!({"payload": value}));
    };
    let is_envelope = value.as_object().is_some_and(|fields| fields.len() == 2);
    let payload = value.get("payload").filter(|_| is_envelope).unwrap_or(value);
    out.put_custom(&shown.place, Some(name), || json!({"name": name, "payload": payload}));
}

/// How clients call the way in which a run came to its end.
pub fn ending(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Error | RunStatus::Timeout => "failed",
        RunStatus::Interrupted => "interrupted",
        RunStatus::Success | RunStatus::Pending | RunStatus::Running => "completed",
    }
}
