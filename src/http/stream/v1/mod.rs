//! The stream modes of the first protocol: events of the log become frames.
//!
//! A [`V1Presenter`] is pure: it waits for nothing and looks at nothing but the events. There is one for each reader, for it
//! remembers what this reader has seen.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::fold::AgentFold;
use super::frame::{AnswerOffset, Frame};
use crate::domain::checkpoint::{CheckpointSource, Entry, Lane};
use crate::domain::event::{Event, EventBody, Fact, Origin};
use crate::domain::id::{AssistantId, CheckpointId, InterruptId, RunId, TaskId, ThreadId};
use crate::domain::interrupt::{Interrupt, InterruptSource};
use crate::domain::machine::{MODEL, START, TOOLS};
use crate::domain::run::{Run, RunStatus};
use crate::domain::state::{State, Update};
use crate::domain::time::Timestamp;
use crate::events::AgentSnapshot;
use agent::{PendingCheckpoint, ShownAgent};
use messages::Messages;
pub use mode::{Modes, StreamMode};
use records::TracedRun;
use starts::SeenStarts;
use steps::Steps;
use values::{UpdateOrEmpty, UpdateOrNull};

mod agent;
mod answer;
mod ends;
mod messages;
mod metadata;
mod mode;
mod next_tasks;
mod partial;
mod records;
mod starts;
mod steps;
#[cfg(test)]
mod tests;
mod values;

/// What frames tell about the run besides what happens in it.
#[derive(Debug, Clone)]
pub struct RunInfo {
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

impl RunInfo {
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

/// What has to be read before an event can be presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// The checkpoint whose state is needed.
    pub state: Option<CheckpointId>,
    /// The checkpoint from which an agent goes on that this reader has not seen before.
    pub resumed: Option<CheckpointId>,
}

/// What was read for an event, as [`Needs`] says.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The state at the checkpoint.
    pub state: Option<Arc<State>>,
    /// How the agent stood that goes on.
    pub resumed: Option<AgentSnapshot>,
}

/// Turns the events of one run into the frames of one reader.
pub struct V1Presenter {
    info: RunInfo,
    modes: Modes,
    subgraphs: bool,
    /// Whether the reader wants the frame that names the run.
    opens: bool,
    agents: HashMap<Lane, ShownAgent>,
    /// The newest checkpoints by namespace.
    heads: BTreeMap<String, CheckpointId>,
    messages: Messages,
    starts: SeenStarts,
    /// Who first asked a question; callers repeat it.
    askers: HashMap<InterruptId, Arc<Origin>>,
}

impl V1Presenter {
    /// A presenter for a reader who has seen nothing yet. With `subgraphs`, subagents are shown under their namespace.
    pub fn new(info: RunInfo, modes: Modes, subgraphs: bool) -> Self {
        Self {
            info: RunInfo {
                metadata: metadata::without_own(info.metadata),
                ..info
            },
            modes,
            subgraphs,
            opens: true,
            agents: HashMap::new(),
            heads: BTreeMap::new(),
            messages: Messages::new(modes),
            starts: SeenStarts::default(),
            askers: HashMap::new(),
        }
    }

    /// The reader was here before and heard this much of answers that were not finished then.
    pub fn recall(&mut self, said: Vec<AnswerOffset>) {
        self.starts.recall(&said);
        self.messages.recall(said);
    }

    /// How much was said of what is not finished, for the reader of a frame with which `this` was said.
    pub fn unfinished(&self, this: Option<AnswerOffset>) -> Vec<AnswerOffset> {
        let is_other = |other: &AnswerOffset| this.is_none_or(|this| this.answer != other.answer);
        let others = self.messages.unfinished().chain(self.starts.open()).filter(is_other);
        let mut said: Vec<AnswerOffset> = others.chain(this).collect();
        said.sort_unstable_by_key(|said| said.answer);
        said
    }

    /// Leaves out the frame that names the run, for readers who asked for certain modes only.
    pub fn without_opening(mut self) -> Self {
        self.opens = false;
        self
    }

    /// What [`V1Presenter::present`] needs to know together with `event`.
    pub fn needs(&self, event: &Event) -> Needs {
        let known = self.agents.get(&event.origin.lane);
        let needs_state = self.modes_for(&event.origin).need_state();
        let shows_steps = self.modes.tell_steps() && self.shows(&event.origin);
        Needs {
            state: AgentFold::missing_state(known.map(|known| &known.agent), &event.body).filter(|_| needs_state),
            // Of an agent that this reader has seen, the checkpoint from which it goes on was shown.
            resumed: match &event.body {
                EventBody::Fact(Fact::Started {
                    base, resumed: true, ..
                }) if shows_steps && known.is_none() => *base,
                EventBody::Fact(_)
                | EventBody::Entry(_)
                | EventBody::Delta(_)
                | EventBody::Begun(_)
                | EventBody::Output { .. } => None,
            },
        }
    }

    /// The frames that `event` becomes. `loaded` is what [`V1Presenter::needs`] asked for.
    pub fn present(&mut self, event: &Event, loaded: Loaded) -> Vec<Frame> {
        let mut out = Vec::new();
        let Some(event) = event.origin.visibility.visible_part(event) else {
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
        if modes.has(StreamMode::Events) {
            self.begin_calls(event, &mut out);
        }
        self.see(modes);
        self.take(event, loaded, &mut out);
        self.see(asked);
        out
    }

    fn see(&mut self, modes: Modes) {
        self.modes = modes;
        self.messages.see(modes);
    }

    fn take(&mut self, event: &Event, loaded: Loaded, out: &mut Vec<Frame>) {
        let lane = event.origin.lane;
        if let EventBody::Delta(delta) = &event.body {
            if self.modes.tell_messages() {
                let shown = self
                    .agents
                    .entry(lane)
                    .or_insert_with(|| ShownAgent::new(&event.origin));
                self.messages.piece(&self.info, shown, delta, out);
            }
            return;
        }
        let mut shown = self
            .agents
            .remove(&lane)
            .unwrap_or_else(|| ShownAgent::new(&event.origin));
        shown.agent.enter(&event.body, loaded.state, self.modes.need_state());
        match &event.body {
            EventBody::Entry(entry) => self.entry(&mut shown, entry, event.at, out),
            EventBody::Fact(fact) => self.fact(&mut shown, fact, loaded.resumed, event.at, out),
            EventBody::Delta(_) | EventBody::Begun(_) | EventBody::Output { .. } => {}
        }
        self.agents.insert(lane, shown);
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
            seen.and([StreamMode::Events].into_iter().collect())
        }
    }

    fn fact(
        &mut self,
        shown: &mut ShownAgent,
        fact: &Fact,
        resumed_at: Option<AgentSnapshot>,
        at: Timestamp,
        out: &mut Vec<Frame>,
    ) {
        match fact {
            Fact::Started { attempt, resumed, .. } => {
                self.started(shown, *attempt, *resumed, out);
                shown.pending = (*resumed && self.modes.tell_steps()).then(|| {
                    let entry = resumed_at.as_ref().map(|standing| Arc::clone(&standing.entry));
                    PendingCheckpoint {
                        entry,
                        resumed: resumed_at,
                        at,
                    }
                });
                if let Some(entry) = shown.pending.as_ref().and_then(|pending| pending.entry.as_ref()) {
                    shown.agent.step = Some(entry.step);
                }
            }
            Fact::Answered { call, writes, .. } => self.call_written(shown, *call, writes, at, out),
            Fact::Asked { interrupts, .. } => self.asked(shown, interrupts, at, out),
            Fact::BrokenOff { message, .. } if self.modes.tell_messages() => {
                self.messages.broken_off(&self.info, shown, message, out);
            }
            Fact::Paused if self.modes.has(StreamMode::Updates) => out.push(values::updates_asking(shown, &[])),
            Fact::Custom { value } if self.modes.has(StreamMode::Custom) => out.push(values::custom(shown, value)),
            Fact::Ended {
                status, error, used, ..
            } => {
                if let (RunStatus::Success, Some(state)) = (status, self.recorded(shown)) {
                    let agent = TracedRun::agent(&self.info, &shown.agent.origin);
                    out.push(agent.ended("on_chain_end", state, &Value::Null));
                }
                if shown.agent.is_main() {
                    let used = used.as_deref();
                    out.extend(
                        used.filter(|_| self.modes.has(StreamMode::Usage))
                            .map(|used| ends::usage(self.info.run, used)),
                    );
                    out.extend(ends::error(*status, error.as_ref(), used));
                }
            }
            Fact::Calling { .. } | Fact::BrokenOff { .. } | Fact::Paused | Fact::Undone | Fact::Custom { .. } => {}
        }
    }

    fn started(&mut self, shown: &mut ShownAgent, attempt: u32, resumed: bool, out: &mut Vec<Frame>) {
        shown.calls_begun = false;
        self.note_head(shown);
        self.starts.finish(shown.agent.origin.lane);
        if shown.agent.is_main() {
            self.info.attempt = attempt;
            if self.opens {
                out.push(Frame::of(
                    "metadata",
                    &json!({"run_id": self.info.run, "attempt": attempt}),
                ));
            }
        }
        if self.modes.has(StreamMode::Events) && (shown.agent.is_main() || resumed) {
            let input = self.info.input.as_ref().filter(|_| shown.agent.is_main());
            out.push(TracedRun::agent(&self.info, &shown.agent.origin).began("on_chain_start", &input));
        }
        if resumed && self.modes.has(StreamMode::Values) {
            out.extend(values::values(shown));
        }
    }

    fn entry(&mut self, shown: &mut ShownAgent, entry: &Arc<Entry>, at: Timestamp, out: &mut Vec<Frame>) {
        self.starts.finish(shown.agent.origin.lane);
        if entry.source == CheckpointSource::Loop && entry.node == TOOLS {
            self.calls_written(shown, entry, at, out);
        } else if entry.source == CheckpointSource::Loop && entry.node != START {
            self.node_written(shown, entry, at, out);
        } else if entry.source == CheckpointSource::Loop && self.modes.has(StreamMode::Events) && !shown.agent.is_main()
        {
            let input = entry.writes.first().map(UpdateOrEmpty);
            out.push(TracedRun::agent(&self.info, &shown.agent.origin).began("on_chain_start", &input));
        }
        shown.advance(entry);
        self.note_head(shown);
        let changed = entry.writes.iter().any(|update| !UpdateOrNull(update).is_empty());
        if changed && self.modes.has(StreamMode::Values) {
            out.extend(values::values(shown));
        }
        if self.modes.tell_steps() {
            shown.pending = Some(PendingCheckpoint {
                entry: Some(Arc::clone(entry)),
                resumed: None,
                at,
            });
        }
    }

    fn node_written(&mut self, shown: &ShownAgent, entry: &Entry, at: Timestamp, out: &mut Vec<Frame>) {
        let nothing = Update::none();
        let update = entry.writes.first().unwrap_or(&nothing);
        if self.modes.tell_messages() {
            self.messages
                .written(&self.info, (shown, &shown.source(&entry.node, 0)), update, out);
        }
        if self.modes.has(StreamMode::Events) && entry.node != MODEL {
            records::hook(&self.info, shown, &entry.node, update, out);
        }
        if self.modes.has(StreamMode::Updates) {
            out.push(values::updates(shown, &entry.node, update, false));
        }
        self.steps(at).end(shown, &entry.node, 0, update, out);
    }

    fn calls_written(&mut self, shown: &ShownAgent, entry: &Entry, at: Timestamp, out: &mut Vec<Frame>) {
        for (call, update) in entry.writes.iter().enumerate() {
            if shown.agent.answered.contains(&call) {
                continue;
            }
            // Announced before this reader came, or by an earlier run.
            let cached = shown.agent.is_whole && entry.logged_writes.contains(&call);
            if !cached {
                self.call_written(shown, call, update, at, out);
            } else if self.modes.has(StreamMode::Updates) {
                out.push(values::updates(shown, TOOLS, update, true));
            }
        }
    }

    fn call_written(&mut self, shown: &ShownAgent, call: usize, update: &Update, at: Timestamp, out: &mut Vec<Frame>) {
        if self.modes.tell_messages() {
            self.messages
                .written(&self.info, (shown, &shown.source(TOOLS, call)), update, out);
        }
        if self.modes.has(StreamMode::Events) {
            records::end_call(&self.info, shown, call, update, out);
        }
        if self.modes.has(StreamMode::Updates) {
            out.push(values::updates(shown, TOOLS, update, false));
        }
        self.steps(at).end(shown, TOOLS, call, update, out);
    }

    fn asked(&mut self, shown: &mut ShownAgent, interrupts: &[Interrupt], at: Timestamp, out: &mut Vec<Frame>) {
        let mut by_task: Vec<(TaskId, String, Vec<Value>)> = vec![];
        for interrupt in shown.agent.ask(interrupts) {
            let asker = self
                .askers
                .entry(interrupt.id.clone())
                .or_insert_with(|| Arc::clone(&shown.agent.origin));
            let question = values::interrupt(interrupt, asker);
            let (task, node) = task_of(shown, asker, interrupt);
            if self.modes.has(StreamMode::Updates) {
                out.push(values::updates_asking(shown, std::slice::from_ref(&question)));
            }
            if self.modes.has(StreamMode::Values) {
                out.extend(values::values_asking(shown, std::slice::from_ref(&question)));
            }
            match by_task.iter_mut().find(|(known, ..)| *known == task) {
                Some((.., questions)) => questions.push(question),
                None => by_task.push((task, node, vec![question])),
            }
        }
        for (task, node, questions) in by_task {
            self.steps(at).end_asking(shown, &node, task, &questions, out);
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

    fn note_head(&mut self, shown: &ShownAgent) {
        if let (true, Some(head)) = (self.modes.tell_steps(), shown.agent.head) {
            self.heads
                .insert(shown.namespace.as_deref().unwrap_or_default().to_owned(), head);
        }
    }

    /// The state of an agent, if it is to be recorded.
    fn recorded<'a>(&self, shown: &'a ShownAgent) -> Option<&'a State> {
        shown
            .agent
            .state
            .as_ref()
            .filter(|_| self.modes.has(StreamMode::Events))
    }
}

/// The task of `shown`'s agent under which a question is filed, and its node. For a question that a subagent asked this is
/// the call that the subagent works on.
fn task_of(shown: &ShownAgent, asker: &Origin, interrupt: &Interrupt) -> (TaskId, String) {
    match (
        asker.namespace.get(shown.agent.origin.namespace.len()),
        &interrupt.asker,
    ) {
        (Some(call), _) => (*call, TOOLS.to_owned()),
        (None, InterruptSource::Call(_)) => (interrupt.task, TOOLS.to_owned()),
        (None, InterruptSource::Hook(name)) => (interrupt.task, name.clone()),
    }
}
