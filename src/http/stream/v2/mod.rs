//! The v2 protocol: events of a thread's log become numbered frames.
//!
//! A [`V2Presenter`] is pure. The frames of a log entry depend only on the entries since the beginning of the run,
//! never on the filter of a reader or the time when it joined. So the same frame has the same number and id on every
//! connection and in every process. A [`Replay`] leaves frames out; the others keep their numbers.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::fell_back;
use super::fold::AgentFold;
use crate::domain::checkpoint::{CheckpointSource, Entry, Lane};
use crate::domain::event::{Event, EventBody, Fact, Origin};
use crate::domain::id::{CheckpointId, InterruptId, RunId, TaskId};
use crate::domain::interrupt::{Interrupt, InterruptSource};
use crate::domain::limits::Totals;
use crate::domain::machine::{Failure, MODEL, RUNNABLE, START, TOOLS};
use crate::domain::run::RunStatus;
use crate::domain::state::State;
use crate::http::wire::child_run::UsageView;
use crate::http::wire::interrupt::with_agent;
use agent::TrackedAgent;
pub use filter::{Channel, Filter, whole_number};
pub use frame_writer::{FRAMES, StreamFilter, V2Frame};
use frame_writer::{FrameId, FrameSource, FrameWriter};
pub use replay::Replay;
use values::StreamedValues;

mod agent;
mod filter;

mod frame_writer;
mod messages;
mod replay;
mod tools;
mod values;

/// The data of a run that frames contain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentRun {
    /// The run.
    pub id: RunId,
    /// The `graph_id` of the agent.
    pub graph: String,
}

/// The end of an agent's work as the log contains it.
struct End<'a> {
    status: RunStatus,
    error: Option<&'a Failure>,
    waits: bool,
    used: Option<&'a Totals>,
}

/// The end of an agent's work as the channel `lifecycle` shows it.
struct EndSummary<'a> {
    word: &'static str,
    error: Option<&'a Failure>,
    used: Option<&'a Totals>,
}

/// Creates the frames of a thread's events for one reader.
#[derive(Default)]
pub struct V2Presenter {
    /// The filter of the reader; it may change at any time.
    pub filter: StreamFilter,
    /// The events from before the reader came; none once it has them.
    replay: Option<Replay>,
    run: Option<CurrentRun>,
    /// True if clients were told that the run is running.
    running: bool,
    agents: BTreeMap<Lane, TrackedAgent>,
    /// The interrupts that were sent in this run. Callers repeat those of their subagents.
    announced_interrupts: HashSet<InterruptId>,
}

impl V2Presenter {
    /// Creates a presenter with this filter, which begins with a replay.
    pub fn new(filter: StreamFilter, replay: Replay) -> Self {
        Self {
            filter,
            replay: Some(replay),
            ..Self::default()
        }
    }

    /// The run that must be given to [`V2Presenter::start_run`] before `event`, if it is a new one.
    pub fn required_run(&self, event: &Event) -> Option<RunId> {
        self.run
            .as_ref()
            .is_none_or(|run| run.id != event.run)
            .then_some(event.run)
    }

    /// Starts a run that [`V2Presenter::required_run`] named.
    pub fn start_run(&mut self, run: CurrentRun) {
        // The state of the main agent is kept; the start of the run is checked against it.
        let main = self.agents.remove(&Lane::Main);
        self.agents.clear();
        if let Some(TrackedAgent { fold, .. }) = main {
            let mut fresh = TrackedAgent::new(&fold.origin);
            fresh.fold.state = fold.state;
            fresh.fold.head = fold.head;
            fresh.fold.base = fold.base;
            self.agents.insert(Lane::Main, fresh);
        }
        self.announced_interrupts.clear();
        self.running = false;
        self.run = Some(run);
    }

    /// The checkpoint whose state [`V2Presenter::present`] needs for `event`.
    pub fn required_state(&self, event: &Event) -> Option<CheckpointId> {
        let visibility = event.origin.visibility;
        let mut with_state = [Channel::Values, Channel::Tools, Channel::Tasks].into_iter();
        if !with_state.any(|channel| channel.shows(visibility) && self.filter.has(channel)) {
            return None;
        }
        let known = self.agents.get(&event.origin.lane);
        // Events of which clients see nothing are not folded.
        AgentFold::required_state(known.map(|known| &known.fold), &event.body)
            .filter(|_| visibility.visible_part(event).is_some())
    }

    /// The agent whose last step up to this number of which clients see something ([`shows_change`]) must be given to
    /// [`V2Presenter::set_last_step`] before `event`.
    pub fn required_last_step(&self, event: &Event) -> Option<(Lane, i64)> {
        let lane = event.origin.lane;
        let replay = self.replay_of(event.seq)?;
        replay.lacks_last_step(lane).then(|| (lane, replay.last_seq()))
    }

    /// Sets the number of the last step that [`V2Presenter::required_last_step`] named, if there is one.
    pub fn set_last_step(&mut self, lane: Lane, seq: Option<i64>) {
        if let Some(replay) = &mut self.replay {
            replay.set_last_step(lane, seq);
        }
    }

    /// The replay, if an event is part of it.
    fn replay_of(&self, seq: i64) -> Option<&Replay> {
        self.replay.as_ref().filter(|replay| seq <= replay.last_seq())
    }

    /// Frees data that can be read again, while nothing happens on the thread.
    pub fn clear_caches(&mut self) {
        self.replay = None;
        if !self.running {
            self.agents = BTreeMap::new();
            self.announced_interrupts = HashSet::new();
        }
    }

    /// The frames of `event`. `base` is the state of the checkpoint that [`V2Presenter::required_state`] named.
    pub fn present(&mut self, event: &Event, base: Option<Arc<State>>) -> Vec<V2Frame> {
        let Some(event) = event.origin.visibility.visible_part(event) else {
            return vec![];
        };
        let event = &*event;
        let lane = event.origin.lane;
        if self.replay_of(event.seq).is_none() {
            self.replay = None;
        }
        let filter = std::mem::take(&mut self.filter);
        let mut out = FrameWriter::new(&filter, event.seq, event.at);
        let mut agent = self
            .agents
            .remove(&lane)
            .unwrap_or_else(|| TrackedAgent::new(&event.origin));
        if !Arc::ptr_eq(&agent.source.origin, &event.origin) {
            agent.source = FrameSource::of(&event.origin);
        }
        agent.fold.begin_event(&event.body, base, true);
        match &event.body {
            EventBody::Entry(entry) => self.entry(&mut agent, entry, &mut out),
            EventBody::Fact(fact) => self.fact(&mut agent, fact, &mut out),
            EventBody::Delta(delta) if self.has_left(lane, Some(delta.answer.message.as_str())) => {}
            EventBody::Delta(delta) => agent.messages.delta(&agent.source, delta, &mut out),
            EventBody::Output { call, text } => tools::delta(&agent, call, text, &mut out),
            EventBody::Begun(_) => {}
        }
        self.agents.insert(lane, agent);
        let frames = out.into_frames();
        self.filter = filter;
        frames
    }

    fn fact(&mut self, agent: &mut TrackedAgent, fact: &Fact, out: &mut FrameWriter<'_>) {
        match fact {
            Fact::Started { resumed, .. } => self.started(agent, *resumed, out),
            Fact::Calling { calls, .. } => tools::begin(agent, calls, out),
            Fact::Answered { call, writes, .. } => {
                let delegated = self.is_delegated(agent, writes.messages.iter().find_map(|message| message.answers()));
                tools::end(agent, *call, writes, delegated, out);
            }
            Fact::Asked { interrupts, .. } => self.interrupted(agent, interrupts, out),
            Fact::BrokenOff { message, failed } => agent.messages.broken_off(&agent.source, message, *failed, out),
            Fact::Custom { value } => custom(agent, value, out),
            Fact::FellBack { from, to, error } => custom(agent, &fell_back(from, to, error), out),
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
                self.ended(agent, end, out);
            }
            Fact::Paused | Fact::Undone => {}
        }
    }

    fn started(&mut self, agent: &mut TrackedAgent, resumed: bool, out: &mut FrameWriter<'_>) {
        // After a crash the run continues, and its start was already sent.
        if !agent.is_running {
            agent.is_running = true;
            self.announce_start(agent, out);
        }
        if resumed {
            self.show_values(agent, out);
        }
    }

    fn announce_start(&mut self, agent: &TrackedAgent, out: &mut FrameWriter<'_>) {
        if agent.fold.is_main() {
            return self.announce_running(agent, out);
        }
        let name = self.lifecycle_id(agent, "started");
        out.put(Channel::Lifecycle, &agent.source, name, || {
            let Origin {
                namespace,
                agent: name,
                cause,
                display_text,
                ..
            } = &*agent.source.origin;
            let mut data = json!({
                "event": "started",
                "namespace": agent.source.segments,
                "graph_name": name,
                "trigger_call_id": namespace.last(),
                "cause": {"type": "toolCall", "tool_call_id": cause},
            });
            if let Some(text) = display_text {
                data["display_text"] = json!(text);
            }
            data
        });
    }

    fn announce_running(&mut self, agent: &TrackedAgent, out: &mut FrameWriter<'_>) {
        if !std::mem::replace(&mut self.running, true) {
            let name = self.lifecycle_id(agent, "running");
            let data = || json!({"event": "running", "graph_name": self.graph()});
            out.put(Channel::Lifecycle, &agent.source, name, data);
        }
    }

    fn entry(&mut self, agent: &mut TrackedAgent, entry: &Entry, out: &mut FrameWriter<'_>) {
        if entry.source == CheckpointSource::Loop && entry.node == TOOLS {
            self.calls_done(agent, entry, out);
        } else if entry.source == CheckpointSource::Loop && entry.node != START {
            self.node_done(agent, entry, out);
        }
        agent.fold.advance(entry);
        out.put(Channel::Checkpoints, &agent.source, FrameId::Numbered, || {
            let mut checkpoint = json!({"id": entry.id, "step": entry.step, "source": entry.source.word()});
            if let Some(parent) = entry.parent {
                checkpoint["parent_id"] = json!(parent);
            }
            checkpoint
        });
        if shows_change(entry) {
            self.show_values(agent, out);
        }
    }

    fn node_done(&self, agent: &mut TrackedAgent, entry: &Entry, out: &mut FrameWriter<'_>) {
        let lane = agent.source.origin.lane;
        for update in &entry.writes {
            if [MODEL, RUNNABLE].contains(&entry.node.as_str()) {
                let messages = update.messages.iter();
                messages
                    .filter(|message| !self.has_left(lane, message.id.as_deref()))
                    .for_each(|message| agent.messages.complete(&agent.source, message, out));
            }
            tools::node(agent, &entry.node, update, out);
        }
    }

    /// Sends the state of an agent, unless the replay leaves it out.
    fn show_values(&mut self, agent: &TrackedAgent, out: &mut FrameWriter<'_>) {
        let lane = agent.source.origin.lane;
        let state = agent.fold.state.as_ref();
        let replay = self.replay.as_ref();
        if replay.is_some_and(|replay| replay.leaves_out(lane, out.event(), state)) {
            return out.skip();
        }
        let before = out.size();
        out.put(Channel::Values, &agent.source, FrameId::Numbered, || {
            state.map(StreamedValues)
        });
        if let Some(replay) = &mut self.replay {
            replay.count(lane, out.size() - before);
        }
    }

    /// Returns whether a message has left the newest state, and is left out of the replay.
    fn has_left(&self, lane: Lane, message: Option<&str>) -> bool {
        let replay = self.replay.as_ref();
        message.is_some_and(|message| replay.is_some_and(|replay| replay.has_left(lane, message)))
    }

    fn calls_done(&self, agent: &mut TrackedAgent, entry: &Entry, out: &mut FrameWriter<'_>) {
        for (call, update) in entry.writes.iter().enumerate() {
            // The others were sent one by one, here or in an earlier run.
            if !agent.fold.answered.contains(&call) && !entry.logged_writes.contains(&call) {
                let delegated = self.is_delegated(agent, update.messages.iter().find_map(|message| message.answers()));
                tools::end(agent, call, update, delegated, out);
            }
        }
        agent.open_calls.clear();
    }

    /// Returns true if a subagent works, or has worked, on this call of the agent.
    fn is_delegated(&self, agent: &TrackedAgent, call: Option<&str>) -> bool {
        let depth = agent.source.segments.len();
        call.is_some()
            && self.agents.values().any(|other| {
                let FrameSource { origin, segments } = &other.source;
                origin.cause.as_deref() == call
                    && segments.len() == depth + 1
                    && segments.starts_with(&agent.source.segments)
            })
    }

    fn interrupted(&mut self, agent: &mut TrackedAgent, interrupts: &[Interrupt], out: &mut FrameWriter<'_>) {
        for interrupt in interrupts {
            if self.announced_interrupts.insert(interrupt.id.clone()) {
                let segments = agent.source.segments.join("|");
                let name = FrameId::Fixed(format!("synth:{}:input|{segments}|{}", self.run_id(), interrupt.id));
                out.put(Channel::Input, &agent.source, name, || {
                    let value = &interrupt.question.value;
                    with_agent(
                        json!({"interrupt_id": interrupt.id, "payload": value, "value": value}),
                        interrupt,
                    )
                });
            }
        }
        let mut by_task: Vec<((TaskId, &str), Vec<&Interrupt>)> = vec![];
        for interrupt in interrupts {
            if !agent.parked_on.insert(interrupt.id.clone()) {
                continue;
            }
            let task = self.task_of(agent, interrupt);
            match by_task.iter_mut().find(|(known, _)| *known == task) {
                Some((_, known)) => known.push(interrupt),
                None => by_task.push((task, vec![interrupt])),
            }
        }
        for ((task, node), interrupts) in by_task {
            tools::park(agent, task, node, &interrupts, out);
        }
    }

    /// The task of the agent that an interrupt keeps open: the task that raised it, or the call that leads to the
    /// subagent.
    fn task_of<'a>(&self, agent: &TrackedAgent, interrupt: &'a Interrupt) -> (TaskId, &'a str) {
        let depth = agent.source.segments.len();
        let below = self
            .agents
            .values()
            .find(|other| other.parked_on.contains(&interrupt.id) && other.source.segments.len() > depth);
        let call = below.and_then(|other| other.source.origin.namespace.get(depth));
        match (call, &interrupt.asker) {
            (Some(call), _) => (*call, TOOLS),
            (None, InterruptSource::Call(_)) => (interrupt.task, TOOLS),
            (None, InterruptSource::Hook(name)) => (interrupt.task, name),
        }
    }

    fn ended(&mut self, agent: &mut TrackedAgent, end: End<'_>, out: &mut FrameWriter<'_>) {
        let End {
            status,
            error,
            waits,
            used,
        } = end;
        let word = if waits { "interrupted" } else { lifecycle_word(status) };
        if word == "failed" {
            tools::fail_open_calls(agent, error.map_or("the run failed", |failure| &failure.message), out);
        }
        if !agent.fold.is_main() {
            if status == RunStatus::Interrupted {
                self.show_values(agent, out);
            }
            return self.close(agent, EndSummary { word, error, used }, out);
        }
        self.announce_running(agent, out);
        self.close_children(out);
        self.close(agent, EndSummary { word, error, used }, out);
        if waits {
            self.show_values(agent, out);
        }
        self.running = false;
    }

    /// Sends the end of an agent.
    fn close(&self, agent: &mut TrackedAgent, summary: EndSummary<'_>, out: &mut FrameWriter<'_>) {
        let EndSummary { word, error, used } = summary;
        agent.is_running = false;
        agent.open_calls.clear();
        out.put(
            Channel::Lifecycle,
            &agent.source,
            self.lifecycle_id(agent, word),
            || {
                let graph = if agent.fold.is_main() {
                    self.graph()
                } else {
                    &agent.source.origin.agent
                };
                let mut data = json!({"event": word, "graph_name": graph});
                if word == "failed" {
                    data["error"] = json!(error.map_or("the run failed", |failure| &failure.message));
                }
                if let Some(Totals { own, tree }) = used {
                    data["usage"] = json!(UsageView::from(*own));
                    tree.iter()
                        .for_each(|tree| data["tree_usage"] = json!(UsageView::from(*tree)));
                }
                data
            },
        );
    }

    /// Ends all subagents with the main agent, deepest first.
    fn close_children(&mut self, out: &mut FrameWriter<'_>) {
        let mut lanes = std::mem::take(&mut self.agents);
        let mut open: Vec<&mut TrackedAgent> = lanes
            .values_mut()
            .filter(|agent| agent.is_running && !agent.fold.is_main())
            .collect();
        open.sort_by_key(|agent| std::cmp::Reverse(agent.source.segments.len()));
        for agent in open {
            let summary = EndSummary {
                word: "interrupted",
                error: None,
                used: None,
            };
            self.close(agent, summary, out);
        }
        self.agents = lanes;
    }

    fn run_id(&self) -> String {
        self.run.as_ref().map_or_else(String::new, |run| run.id.to_string())
    }

    fn graph(&self) -> &str {
        self.run.as_ref().map_or("", |run| &run.graph)
    }

    /// The id of a lifecycle frame. Clients parse the run's id out of it.
    fn lifecycle_id(&self, agent: &TrackedAgent, word: &str) -> FrameId {
        FrameId::Fixed(format!(
            "synth:{}:lc|{}|{word}",
            self.run_id(),
            agent.source.segments.join("|")
        ))
    }
}

/// Returns whether clients see something of what a step has written. The state after it is sent then.
pub fn shows_change(entry: &Entry) -> bool {
    entry.writes.iter().any(|update| !update.shows_nothing())
}

/// A custom event of a tool or middleware, with its `name` if it has one. For an object of only `name` and `payload`,
/// the payload is sent; anything else is sent unchanged.
fn custom(agent: &TrackedAgent, value: &Value, out: &mut FrameWriter<'_>) {
    let Some(name) = value
        .get("name")
        .and_then(Value::as_str)
        .filter(|name| !name.is_empty())
    else {
        return out.put_custom(&agent.source, None, || json!({"payload": value}));
    };
    let is_envelope = value.as_object().is_some_and(|fields| fields.len() == 2);
    let payload = value.get("payload").filter(|_| is_envelope).unwrap_or(value);
    out.put_custom(&agent.source, Some(name), || json!({"name": name, "payload": payload}));
}

/// The word for the end of a run in the channel `lifecycle`.
pub fn lifecycle_word(status: RunStatus) -> &'static str {
    match status {
        RunStatus::Error | RunStatus::Timeout => "failed",
        RunStatus::Interrupted => "interrupted",
        RunStatus::Success | RunStatus::Pending | RunStatus::Running => "completed",
    }
}
