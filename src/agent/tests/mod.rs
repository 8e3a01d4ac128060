//! Tests of the loop with a journal in memory, and with crashes at any commit.

mod cast;
mod children;
mod crash;
mod crash_windows;
mod graphs;
mod hooks;
mod limits;
mod memory;
mod programs;
mod runs;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Agent, Breakpoints, ExitReason, Loop, LoopOutcome, PendingWrite, identified};
use crate::domain::access::Ownership;
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::{AssistantId, CheckpointId, InterruptId, RunId, ThreadId};
use crate::domain::limits::Usage;
use crate::domain::machine::{Machine, Plan};
use crate::domain::message::Message;
use crate::domain::run::Lineage;
use crate::domain::size::SizeLimits;
use crate::domain::state::{State, Update};
use crate::domain::state_size::StateSize;
use crate::domain::time::{ManualClock, Timestamp};
use crate::domain::trace::TraceScope;
use crate::tool::budget::{Budget, Meter};
use crate::tool::items::InMemoryItems;
use crate::tool::scope::NoTasks;
use crate::tool::{ContextEntries, Scope};

use memory::{Crash, Memory, Store};

/// A thread with its agent, on a server that may crash.
struct Stage {
    agent: Agent,
    store: Arc<Store>,
    breakpoints: Breakpoints,
    step_limit: Option<u32>,
    thread: ThreadId,
    stop: Mutex<CancellationToken>,
}

/// The input of a run.
#[derive(Debug, Clone)]
enum RunInput {
    Input(Update),
    Answers(BTreeMap<InterruptId, Value>),
    Continue,
}

impl Stage {
    fn new(agent: Agent) -> Self {
        Self {
            agent,
            store: Arc::default(),
            breakpoints: Breakpoints::default(),
            step_limit: None,
            thread: ThreadId::mint(),
            stop: Mutex::default(),
        }
    }

    /// Runs until the end, without a crash.
    async fn runs(&self, input: RunInput) -> LoopOutcome {
        self.attempt(RunId::mint(), &input).await.unwrap()
    }

    async fn hears(&self, text: impl Into<String>) -> LoopOutcome {
        self.runs(says(text)).await
    }

    async fn is_answered(&self, id: &InterruptId, answer: Value) -> LoopOutcome {
        self.runs(RunInput::Answers(BTreeMap::from([(id.clone(), answer)])))
            .await
    }

    /// Starts a new process, which crashes as `crash` says.
    fn restarts(&self, crash: Option<Crash>) {
        let stop = CancellationToken::new();
        *self.stop.lock().unwrap() = stop.clone();
        self.store.revive(crash, stop);
    }

    /// Starts a run, or starts it again after a crash, as the server does.
    async fn attempt(&self, run: RunId, input: &RunInput) -> Result<LoopOutcome, ExitReason> {
        if let RunInput::Answers(answers) = input {
            self.store.deliver(answers)?;
        }
        let plan = Plan {
            step_limit: self.step_limit.unwrap_or(u32::MAX),
            ..self.agent.plan.clone()
        };
        let mut machine = self.store.machine(Lane::Main);
        let own = self.store.owner(Lane::Main) == Some(run);
        let resumed = own || !matches!(input, RunInput::Input(_));
        let mut pending = vec![PendingWrite::Fact(Fact::Started {
            base: machine.head,
            carried_from: machine.position.carried_from,
            attempt: 1,
            resumed,
            calls: vec![],
        })];
        match input {
            _ if own => {}
            RunInput::Input(input) => {
                let ids = [CheckpointId::mint(), CheckpointId::mint()];
                pending.extend(PendingWrite::input(&mut machine, &plan, identified(input.clone()), ids));
            }
            RunInput::Answers(_) | RunInput::Continue => machine.prepare_for_run(),
        }
        let lineage = Lineage::root(run, &self.agent.name);
        let journal = Memory::new(&self.store, Lane::Main, run, run);
        let driving = Loop {
            state_size: StateSize::default(),
            agent: &self.agent,
            plan,
            lineage: &lineage,
            scope: self.scope(&lineage),
            journal: &journal,
            breakpoints: self.breakpoints.clone(),
            leave: CancellationToken::new(),
            base: 0,
        };
        driving.drive(&mut machine, pending).await
    }

    fn scope(&self, lineage: &Lineage) -> Scope {
        Scope {
            agent: self.agent.name.clone(),
            path: lineage.path.clone().into(),
            thread: self.thread,
            ownership: Ownership::default(),
            run: lineage.root,
            origin: crate::domain::run::RunOrigin::of(lineage.root),
            assistant: AssistantId::of_graph("agent"),
            depth: 0,
            subagent: None,
            visibility: lineage.visibility,
            context: ContextEntries::new(serde_json::Map::new),
            context_scoping: crate::definition::ContextScoping::default(),
            clock: Arc::new(ManualClock::starting_at(Timestamp(0))),
            tasks: Arc::new(NoTasks),
            remembered: Arc::new(crate::tool::remembered::NothingRemembered),
            sandboxes: Arc::new(crate::tool::thread_sandboxes::NoSandboxes),
            tokens: Arc::new(crate::tool::call_tokens::NoCallTokens),
            store: Arc::new(InMemoryItems::default()),
            task: None,
            step_limit: None,
            sizes: SizeLimits::default(),
            slots: crate::tool::CallSlots::default(),
            stop: self.stop.lock().unwrap().clone(),
            budget: self.budget(lineage.root),
            progress: crate::tool::ProgressSink::default(),
            form: None,
            answer: None,
            question: None,
            answers: Arc::default(),
            delegations: Arc::default(),
            files: crate::tool::file_claims::FileClaims::default(),
            trace: TraceScope::default(),
            program: Arc::default(),
        }
    }

    /// Returns the remaining budget of the run's tree, given the stored usage.
    fn budget(&self, run: RunId) -> Budget {
        let meter = self.store.meter_of(run);
        let whole = self.store.used().into_values().fold(Usage::default(), Usage::plus);
        Budget::of_main(self.agent.limits.clone(), meter, Meter::new(whole, Timestamp(0)))
    }

    fn machine(&self) -> Machine {
        self.store.machine(Lane::Main)
    }

    fn state(&self) -> State {
        self.machine().state
    }

    /// Returns the texts of the tool results of the main agent, in order.
    fn results(&self) -> Vec<String> {
        let state = self.state();
        state
            .messages
            .recent()
            .iter()
            .filter(|m| m.answers().is_some())
            .map(|m| m.content.text())
            .collect()
    }
}

fn says(text: impl Into<String>) -> RunInput {
    RunInput::Input(Update::messages([Message::human(text.into())]))
}

/// Returns a script for the scripted model: the calls of each step as (id, tool, args), and `done` at the end.
fn script(steps: &[&[(&str, &str, Value)]]) -> String {
    let call = |(id, name, args): &(&str, &str, Value)| json!({"id": id, "name": name, "args": args});
    let mut steps: Vec<Value> = steps
        .iter()
        .map(|calls| json!({"tool_calls": calls.iter().map(call).collect::<Vec<_>>()}))
        .collect();
    steps.push(json!({"text": "done"}));
    json!({ "script": steps }).to_string()
}

/// Returns the open interrupts of a run.
fn questions(outcome: &LoopOutcome) -> Vec<InterruptId> {
    match outcome {
        LoopOutcome::Parked(questions) => questions.iter().map(|question| question.id.clone()).collect(),
        other => panic!("{other:?}"),
    }
}
