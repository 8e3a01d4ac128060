//! The v1 protocol: events of the log become frames of the stream modes.
//!
//! A [`V1Presenter`] is pure: it depends only on the events. Each reader has its own, because it records what was sent
//! to the reader.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::fold::AgentFold;
use super::frame::{AnswerOffset, Cursor, Frame, ResumePoint};
use super::{MetadataDetail, fell_back};
use crate::domain::checkpoint::{CheckpointSource, Entry, Lane};
use crate::domain::event::{Event, EventBody, Fact, Origin};
use crate::domain::id::{AssistantId, CheckpointId, InterruptId, RunId, TaskId, ThreadId};
use crate::domain::interrupt::{Interrupt, InterruptSource};
use crate::domain::machine::{MODEL, START, TOOLS};
use crate::domain::run::{Run, RunStatus};
use crate::domain::state::{State, Update};
use crate::domain::time::Timestamp;
use crate::events::AgentSnapshot;
pub use crate::http::wire::stream_mode::StreamMode;
use agent::{PendingCheckpoint, PresentedAgent};
use messages::Messages;
pub use modes::Modes;
use step_starts::SeenStarts;
use steps::Steps;
use trace_records::TracedRun;
use values::UpdateOrEmpty;

mod agent;
mod answer;
mod messages;
mod metadata;
mod modes;
mod next_tasks;
mod partial_json;
mod run_end;
mod step_starts;
mod steps;
#[cfg(test)]
mod tests;
mod tool_events;
mod trace_records;
mod values;

/// The data of a run that frames contain.
#[derive(Debug, Clone)]
pub struct RunInfo {
    /// The run.
    pub run: RunId,
    /// The thread.
    pub thread: ThreadId,
    /// The `graph_id` of the agent.
    pub graph_id: String,
    /// The assistant.
    pub assistant: AssistantId,
    /// The number of the attempt.
    pub attempt: u32,
    /// The time of creation.
    pub created_at: Timestamp,
    /// The input.
    pub input: Option<Value>,
    /// The tags of the run.
    pub tags: Vec<String>,
    /// Further metadata of messages and tasks: those of the run.
    pub metadata: Map<String, Value>,
    /// True if a command makes the run begin at a node of its choice.
    pub jumps: bool,
}

impl RunInfo {
    /// Reads the data from a stored run.
    pub fn of(run: &Run, graph_id: impl Into<String>) -> Self {
        Self {
            run: run.id,
            thread: run.thread,
            graph_id: graph_id.into(),
            assistant: run.assistant,
            attempt: run.attempt.max(1),
            created_at: run.created_at,
            input: run.request.input.clone(),
            tags: tags_of(&run.request.config),
            metadata: run.metadata.clone(),
            jumps: run
                .request
                .command
                .as_ref()
                .is_some_and(|command| !command.goto.is_empty()),
        }
    }
}

/// The tags in the settings of a run: a list, or one text.
fn tags_of(config: &Map<String, Value>) -> Vec<String> {
    match config.get("tags") {
        Some(Value::String(tag)) => vec![tag.clone()],
        Some(Value::Array(tags)) => tags.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => vec![],
    }
}

/// The data that an event needs before it can be presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// The checkpoint whose state is needed.
    pub state: Option<CheckpointId>,
    /// The checkpoint from which an agent resumes that this reader has not seen before.
    pub resumed: Option<CheckpointId>,
}

/// The data for an event, as [`Needs`] named it.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The state at the checkpoint.
    pub state: Option<Arc<State>>,
    /// The resumed agent at its checkpoint.
    pub resumed: Option<AgentSnapshot>,
}

/// Creates the frames of a run's events for one reader.
pub struct V1Presenter {
    info: RunInfo,
    modes: Modes,
    subgraphs: bool,
    /// True if the reader gets the frame that names the run.
    has_metadata_frame: bool,
    agents: HashMap<Lane, PresentedAgent>,
    /// The newest checkpoints by namespace.
    heads: BTreeMap<String, CheckpointId>,
    messages: Messages,
    starts: SeenStarts,
    /// The parts of unfinished answers and starts of steps that the reader has, by their keys.
    received: BTreeMap<u32, AnswerOffset>,
    /// The position from which the reader resumes, if it had an earlier connection.
    seen: Option<Cursor>,
    /// The agent that raised each interrupt; its callers repeat it.
    interrupt_origins: HashMap<InterruptId, Arc<Origin>>,
}

impl V1Presenter {
    /// Creates a presenter for a new reader. With `subgraphs`, events of subagents are included under their namespace.
    pub fn new(info: RunInfo, modes: Modes, subgraphs: bool) -> Self {
        Self {
            info: RunInfo {
                metadata: metadata::client_metadata(info.metadata, &info.tags),
                ..info
            },
            modes,
            subgraphs,
            has_metadata_frame: true,
            agents: HashMap::new(),
            heads: BTreeMap::new(),
            messages: Messages::new(modes),
            starts: SeenStarts::default(),
            received: BTreeMap::new(),
            seen: None,
            interrupt_origins: HashMap::new(),
        }
    }

    /// Restores the position of the reader, and the progress of answers that it received on an earlier connection.
    pub fn resume(&mut self, point: ResumePoint) {
        let ResumePoint { cursor, answers } = point;
        self.seen = Some(cursor);
        self.starts.resume(&answers);
        self.received = answers.iter().map(|answer| (answer.answer, *answer)).collect();
        self.messages.resume(cursor, answers);
    }

    /// Returns the position from which a reader resumes after this frame of the last event.
    pub fn position(&mut self, frame: &Frame, cursor: Cursor) -> ResumePoint {
        // Behind the late frames of an event the cursor alone says that they were sent.
        if !frame.is_late {
            self.forget_ended();
        }
        if let Some(progress) = frame.progress {
            self.received.insert(progress.answer, progress);
        }
        ResumePoint {
            cursor,
            answers: self.received.values().copied().collect(),
        }
    }

    fn forget_ended(&mut self) {
        let ended = self.messages.take_ended();
        for key in ended.into_iter().chain(self.starts.take_finished()) {
            self.received.remove(&key);
        }
    }

    /// Leaves out the frame that names the run, for readers of certain modes only.
    pub fn without_metadata_frame(mut self) -> Self {
        self.has_metadata_frame = false;
        self
    }

    /// Chooses the metadata of the pieces of answers.
    pub fn with_detail(mut self, detail: MetadataDetail) -> Self {
        self.messages.set_detail(detail);
        self
    }

    /// The data that [`V1Presenter::present`] needs for `event`.
    pub fn needs(&self, event: &Event) -> Needs {
        let known = self.agents.get(&event.origin.lane);
        let needs_state = self.modes_for(&event.origin).require_state();
        let shows_steps = self.modes.include_steps() && self.shows(&event.origin);
        Needs {
            // Events of which clients see nothing are not folded.
            state: AgentFold::required_state(known.map(|known| &known.fold), &event.body)
                .filter(|_| needs_state && event.origin.visibility.visible_part(event).is_some()),
            // A known agent resumes from a checkpoint that was already sent.
            resumed: match &event.body {
                EventBody::Fact(Fact::Started { base, resumed, .. })
                    if (*resumed || self.jumps(&event.origin)) && shows_steps && known.is_none() =>
                {
                    *base
                }
                EventBody::Fact(_)
                | EventBody::Entry(_)
                | EventBody::Delta(_)
                | EventBody::Begun(_)
                | EventBody::Output { .. } => None,
            },
        }
    }

    /// The frames of `event`. `loaded` is the data that [`V1Presenter::needs`] named.
    pub fn present(&mut self, event: &Event, loaded: Loaded) -> Vec<Frame> {
        self.forget_ended();
        let mut out = Vec::new();
        let Some(event) = event.origin.visibility.visible_part(event) else {
            self.note_interrupt_origins(event);
            return out;
        };
        let event = &*event;
        if let Some(agent) = self.agents.get_mut(&event.origin.lane) {
            agent.fold.note_started(&event.body);
        }
        if self.modes.include_steps() {
            self.start_tasks(event, &mut out);
        }
        let requested = self.modes;
        let modes = self.modes_for(&event.origin);
        if modes == Modes::default() {
            self.note_interrupt_origins(event);
            return out;
        }
        if modes.include_calls() {
            self.start_calls(event, &mut out);
        }
        self.restrict_modes(modes);
        self.take(event, loaded, &mut out);
        self.restrict_modes(requested);
        out
    }

    fn restrict_modes(&mut self, modes: Modes) {
        self.modes = modes;
        self.messages.restrict_modes(modes);
    }

    fn take(&mut self, event: &Event, loaded: Loaded, out: &mut Vec<Frame>) {
        let lane = event.origin.lane;
        if let EventBody::Delta(delta) = &event.body {
            if self.modes.include_messages() {
                let agent = self
                    .agents
                    .entry(lane)
                    .or_insert_with(|| PresentedAgent::new(&event.origin));
                self.messages.delta(&self.info, agent, event.seq, delta, out);
            }
            return;
        }
        let mut agent = self
            .agents
            .remove(&lane)
            .unwrap_or_else(|| PresentedAgent::new(&event.origin));
        agent
            .fold
            .begin_event(&event.body, loaded.state, self.modes.require_state());
        match &event.body {
            EventBody::Entry(entry) => self.entry(&mut agent, entry, event.at, out),
            EventBody::Fact(fact) => self.fact(&mut agent, fact, loaded.resumed, event.at, out),
            EventBody::Delta(_) | EventBody::Begun(_) | EventBody::Output { .. } => {}
        }
        self.agents.insert(lane, agent);
    }

    /// Records the agents that raise interrupts, even if nothing else about them is sent: their callers repeat the
    /// interrupts.
    fn note_interrupt_origins(&mut self, event: &Event) {
        if let EventBody::Fact(Fact::Asked { interrupts, .. }) = &event.body {
            for interrupt in interrupts {
                self.interrupt_origins
                    .entry(interrupt.id.clone())
                    .or_insert_with(|| Arc::clone(&event.origin));
            }
        }
    }

    /// Returns true if events of this agent are sent to the reader.
    fn shows(&self, origin: &Origin) -> bool {
        self.subgraphs || origin.namespace.is_empty()
    }

    /// Returns true if a command makes the run of this agent begin at a node of its choice.
    fn jumps(&self, origin: &Origin) -> bool {
        self.info.jumps && origin.namespace.is_empty()
    }

    /// The modes in which this agent is sent to the reader. Records (`events`) include every agent.
    fn modes_for(&self, origin: &Origin) -> Modes {
        let visible = self.modes.and(Modes::visible(origin.visibility));
        if self.shows(origin) {
            visible
        } else {
            visible.and([StreamMode::Events].into_iter().collect())
        }
    }

    fn fact(
        &mut self,
        agent: &mut PresentedAgent,
        fact: &Fact,
        resumed_at: Option<AgentSnapshot>,
        at: Timestamp,
        out: &mut Vec<Frame>,
    ) {
        match fact {
            Fact::Started { attempt, resumed, .. } => {
                self.started(agent, *attempt, *resumed, out);
                let jumps = !*resumed && self.jumps(&agent.fold.origin);
                if let Some(snapshot) = &resumed_at {
                    agent.fold.step = Some(snapshot.entry.step);
                }
                agent.pending = ((*resumed || jumps) && self.modes.include_steps()).then(|| {
                    let resumed = resumed_at.filter(|_| !jumps);
                    PendingCheckpoint {
                        entry: resumed.as_ref().map(|snapshot| Arc::clone(&snapshot.entry)),
                        resumed,
                        jumps,
                        at,
                    }
                });
            }
            Fact::Answered { call, writes, .. } => self.call_done(agent, *call, writes, at, out),
            Fact::Asked { interrupts, .. } => self.interrupted(agent, interrupts, at, out),
            Fact::BrokenOff { message, .. } if self.modes.include_messages() => {
                self.messages.broken_off(&self.info, agent, message, out);
            }
            Fact::Paused if self.modes.has(StreamMode::Updates) => {
                out.push(values::updates_with_interrupts(agent, &[]));
            }
            Fact::Custom { value } => {
                if self.modes.has(StreamMode::Tools) {
                    out.extend(tool_events::progress(agent, value));
                }
                if self.modes.has(StreamMode::Custom) {
                    out.push(values::custom(agent, value));
                }
            }
            Fact::FellBack { from, to, error } if self.modes.has(StreamMode::Custom) => {
                out.push(values::custom(agent, &fell_back(from, to, error)));
            }
            Fact::Ended {
                status, error, used, ..
            } => {
                if let (RunStatus::Success, Some(state)) = (status, self.recorded(agent)) {
                    let agent = TracedRun::agent(&self.info, &agent.fold.origin);
                    out.push(agent.end_record("on_chain_end", state, &Value::Null));
                }
                if agent.fold.is_main() {
                    let used = used.as_deref();
                    out.extend(
                        used.filter(|_| self.modes.has(StreamMode::Usage))
                            .map(|used| run_end::usage(self.info.run, used)),
                    );
                    out.extend(run_end::error(*status, error.as_ref(), used));
                }
            }
            Fact::Calling { .. } | Fact::BrokenOff { .. } | Fact::FellBack { .. } | Fact::Paused | Fact::Undone => {}
        }
    }

    fn started(&mut self, agent: &mut PresentedAgent, attempt: u32, resumed: bool, out: &mut Vec<Frame>) {
        agent.calls_started = false;
        agent.attempts = agent.attempts.saturating_add(1);
        self.note_head(agent);
        self.starts.finish(agent.fold.origin.lane);
        if agent.fold.is_main() {
            self.info.attempt = attempt;
            if self.has_metadata_frame {
                out.push(Frame::of(
                    "metadata",
                    &json!({"run_id": self.info.run, "attempt": attempt}),
                ));
            }
        }
        if self.modes.has(StreamMode::Events) && (agent.fold.is_main() || resumed) {
            let input = self.info.input.as_ref().filter(|_| agent.fold.is_main());
            out.push(TracedRun::agent(&self.info, &agent.fold.origin).start("on_chain_start", &input));
        }
        if resumed && self.modes.has(StreamMode::Values) {
            out.extend(values::values(agent));
        }
    }

    fn entry(&mut self, agent: &mut PresentedAgent, entry: &Arc<Entry>, at: Timestamp, out: &mut Vec<Frame>) {
        self.starts.finish(agent.fold.origin.lane);
        if entry.source == CheckpointSource::Loop && entry.node == TOOLS {
            self.calls_done(agent, entry, at, out);
        } else if entry.source == CheckpointSource::Loop && entry.node != START {
            self.node_done(agent, entry, at, out);
        } else if entry.source == CheckpointSource::Loop && self.modes.has(StreamMode::Events) && !agent.fold.is_main()
        {
            let input = entry.writes.first().map(UpdateOrEmpty);
            out.push(TracedRun::agent(&self.info, &agent.fold.origin).start("on_chain_start", &input));
        }
        agent.advance(entry);
        self.note_head(agent);
        let changed = entry.writes.iter().any(|update| !update.shows_nothing());
        if changed && self.modes.has(StreamMode::Values) {
            out.extend(values::values(agent));
        }
        if self.modes.include_steps() {
            agent.pending = Some(PendingCheckpoint {
                entry: Some(Arc::clone(entry)),
                resumed: None,
                jumps: false,
                at,
            });
        }
    }

    fn node_done(&mut self, agent: &PresentedAgent, entry: &Entry, at: Timestamp, out: &mut Vec<Frame>) {
        let nothing = Update::none();
        let update = entry.writes.first().unwrap_or(&nothing);
        if self.modes.include_messages() {
            self.messages
                .task_done(&self.info, agent, &agent.source(&entry.node, 0), update, out);
        }
        if self.modes.has(StreamMode::Events) && entry.node != MODEL {
            trace_records::hook(&self.info, agent, &entry.node, update, out);
        }
        if self.modes.has(StreamMode::Updates) {
            out.push(values::updates(agent, &entry.node, update, false));
        }
        self.steps(at).end(agent, &entry.node, 0, update, out);
    }

    fn calls_done(&mut self, agent: &PresentedAgent, entry: &Entry, at: Timestamp, out: &mut Vec<Frame>) {
        for (call, update) in entry.writes.iter().enumerate() {
            if agent.fold.answered.contains(&call) {
                continue;
            }
            // The result was sent before this reader joined, or by an earlier run.
            let cached = agent.fold.is_complete && entry.logged_writes.contains(&call);
            if !cached {
                self.call_done(agent, call, update, at, out);
            } else if self.modes.has(StreamMode::Updates) {
                out.push(values::updates(agent, TOOLS, update, true));
            }
        }
    }

    fn call_done(&mut self, agent: &PresentedAgent, call: usize, update: &Update, at: Timestamp, out: &mut Vec<Frame>) {
        if self.modes.include_messages() {
            self.messages
                .task_done(&self.info, agent, &agent.source(TOOLS, call), update, out);
        }
        if self.modes.has(StreamMode::Events) {
            trace_records::end_call(&self.info, agent, call, update, out);
        }
        if self.modes.has(StreamMode::Tools) {
            out.extend(tool_events::end_call(agent, update));
        }
        if self.modes.has(StreamMode::Updates) {
            out.push(values::updates(agent, TOOLS, update, false));
        }
        self.steps(at).end(agent, TOOLS, call, update, out);
    }

    fn interrupted(
        &mut self,
        agent: &mut PresentedAgent,
        interrupts: &[Interrupt],
        at: Timestamp,
        out: &mut Vec<Frame>,
    ) {
        let mut by_task: Vec<(TaskId, String, Vec<Value>)> = vec![];
        for interrupt in agent.fold.add_interrupts(interrupts) {
            let asker = self
                .interrupt_origins
                .entry(interrupt.id.clone())
                .or_insert_with(|| Arc::clone(&agent.fold.origin));
            let question = values::interrupt(interrupt, asker);
            let (task, node) = task_of(agent, asker, interrupt);
            if self.modes.has(StreamMode::Updates) {
                out.push(values::updates_with_interrupts(agent, std::slice::from_ref(&question)));
            }
            if self.modes.has(StreamMode::Values) {
                out.extend(values::values_with_interrupts(agent, std::slice::from_ref(&question)));
            }
            match by_task.iter_mut().find(|(known, ..)| *known == task) {
                Some((.., questions)) => questions.push(question),
                None => by_task.push((task, node, vec![question])),
            }
        }
        for (task, node, questions) in by_task {
            self.steps(at).end_with_interrupts(agent, &node, task, &questions, out);
        }
    }

    fn steps(&self, at: Timestamp) -> Steps<'_> {
        Steps {
            info: &self.info,
            modes: self.modes,
            heads: &self.heads,
            at,
        }
    }

    fn note_head(&mut self, agent: &PresentedAgent) {
        if let (true, Some(head)) = (self.modes.include_steps(), agent.fold.head) {
            self.heads
                .insert(agent.namespace.as_deref().unwrap_or_default().to_owned(), head);
        }
    }

    /// The state of an agent, if the mode `events` records it.
    fn recorded<'a>(&self, agent: &'a PresentedAgent) -> Option<&'a State> {
        agent.fold.state.as_ref().filter(|_| self.modes.has(StreamMode::Events))
    }
}

/// The task of `agent` that an interrupt belongs to, and its node. For an interrupt of a subagent, it is the call that
/// started the subagent.
fn task_of(agent: &PresentedAgent, asker: &Origin, interrupt: &Interrupt) -> (TaskId, String) {
    match (asker.namespace.get(agent.fold.origin.namespace.len()), &interrupt.asker) {
        (Some(call), _) => (*call, TOOLS.to_owned()),
        (None, InterruptSource::Call(_)) => (interrupt.task, TOOLS.to_owned()),
        (None, InterruptSource::Hook(name)) => (interrupt.task, name.clone()),
    }
}
