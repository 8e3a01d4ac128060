//! Delegation: the same loop, one level down.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt};
use tokio_util::sync::CancellationToken;

use super::calls::{CallResult, settle};
use super::journal::{Child, ChildVerdict, ExitReason, NewChildRun, PendingWrite};
use super::roster::ReferencedAgent;
use super::{Agent, Breakpoints, Growth, Loop, LoopOutcome};
use crate::definition::form_problem;
use crate::domain::background::{self, BackgroundTask};
use crate::domain::call::{CallStatus, ToolOutput};
use crate::domain::event::Fact;
use crate::domain::id::{CheckpointId, RunId};
use crate::domain::interrupt::Interrupt;
use crate::domain::limits::Limits;
use crate::domain::machine::{Failure, Machine, Phase, Plan};
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::run::{DelegatedTask, Lineage, MAX_ORDERED_PROMPT_BYTES};
use crate::domain::state::{ORDERED_PROMPT, State, Update};
use crate::domain::visibility::Visibility;
use crate::tool::budget::{Meter, Refused};
use crate::tool::{Delegation, ProgressSink, Scope};

/// The result of a child run.
pub(super) enum ChildResult {
    /// With a result for the model.
    Answer(ToolOutput),
    /// With questions that somebody has to answer first.
    Parked { child: RunId, questions: Vec<Interrupt> },
}

impl Loop<'_> {
    /// Starts a child for the call at `at`, if limits allow; else answers the call with the reason.
    pub(super) async fn delegate<'a>(
        &'a self,
        machine: &mut Machine,
        at: usize,
        wish: Delegation,
    ) -> Result<Option<BoxFuture<'a, (usize, CallResult)>>, ExitReason> {
        let Some(call) = machine.call(at) else {
            return Ok(None);
        };
        let resolved = match self.resolve_subagent(&wish.subagent, &wish.order) {
            Ok(resolved) => resolved,
            Err(text) => {
                settle(machine, at, ToolOutput::error(&call, text));
                return Ok(None);
            }
        };
        if let Some(refusal) = self.claim_child().await? {
            settle(machine, at, ToolOutput::error(&call, refusal));
            return Ok(None);
        }
        let id = RunId::of_child(machine.call_task(at));
        let lineage = self.lineage_of_child(machine, at, &call, wish.subagent);
        let graph_id = resolved.graph_id().map(str::to_owned);
        let order = DelegatedTask {
            display_text: resolved.display_text().map(str::to_owned),
            ..wish.order
        };
        let url = resolved.url().map(str::to_owned);
        let wish = NewChildRun {
            id,
            lineage: lineage.clone(),
            order,
            max_depth: self.deepest(),
            graph_id,
            url,
        };
        machine.set_fate(
            at,
            CallStatus::Delegated {
                child: id,
                parked: false,
            },
        );
        match self.journal.child(machine, wish).await? {
            ChildVerdict::Admitted(child) => {
                let subagent = self
                    .subagent(resolved, &child, lineage.depth)
                    .ok_or_else(|| lost("definition"))?;
                let child = subagent.handed_down(*child, &machine.state);
                Ok(Some(self.run_child(at, call, subagent, lineage, child)))
            }
            ChildVerdict::Refused(reason) => {
                self.scope.budget.child_done();
                settle(machine, at, ToolOutput::error(&call, reason));
                Ok(None)
            }
        }
    }

    /// Counts a child that is about to be started: the one place where that is decided, whoever asks for it. Returns the
    /// text for the model when a limit forbids it.
    async fn claim_child(&self) -> Result<Option<String>, ExitReason> {
        let claimed = self
            .scope
            .budget
            .claim_child(self.lineage.depth + 1, self.scope.now())
            .await;
        match claimed {
            Ok(()) => Ok(None),
            Err(Refused::Away) => Err(ExitReason::Away),
            Err(Refused::Exceeded(limit)) => Ok(Some(format!(
                "{limit} Nothing was delegated; do the work yourself, or finish with what you have."
            ))),
        }
    }

    /// Goes on with the child that already works on the call at `at`.
    pub(super) async fn go_on_with_child<'a>(
        &'a self,
        machine: &Machine,
        at: usize,
        child: RunId,
    ) -> Result<BoxFuture<'a, (usize, CallResult)>, ExitReason> {
        let call = machine.call(at).ok_or_else(|| lost("place in the conversation"))?;
        let (lineage, child) = self.journal.find_child(child).await?.ok_or_else(|| lost("child run"))?;
        let resolved = self.resolve_subagent(lineage.agent(), &child.order);
        let resolved = resolved.map_err(|_| lost("subagent's definition"))?;
        let subagent = self
            .subagent(resolved, &child, lineage.depth)
            .ok_or_else(|| lost("subagent's definition"))?;
        self.scope.budget.child_goes_on();
        let child = subagent.handed_down(child, &machine.state);
        Ok(self.run_child(at, call, subagent, lineage, child))
    }

    /// Goes on with a child that waited and was cancelled, or one below it.
    pub(super) async fn take_up_again<'a>(
        &'a self,
        machine: &mut Machine,
        at: usize,
        child: RunId,
    ) -> Result<BoxFuture<'a, (usize, CallResult)>, ExitReason> {
        machine.set_fate(at, CallStatus::Delegated { child, parked: false });
        // It counts already among those under way.
        self.scope.budget.child_done();
        self.go_on_with_child(machine, at, child).await
    }

    /// Waits until the child that waits at `at` was cancelled, or one below it.
    pub(super) fn until_given_up(
        &self,
        at: usize,
        child: RunId,
    ) -> BoxFuture<'_, (usize, RunId, Result<(), ExitReason>)> {
        async move { (at, child, self.journal.given_up(child).await) }.boxed()
    }

    fn run_child<'a>(
        &'a self,
        at: usize,
        call: ToolCall,
        subagent: Subagent,
        lineage: Lineage,
        child: Child,
    ) -> BoxFuture<'a, (usize, CallResult)> {
        async move {
            (
                at,
                CallResult::Child(self.drive_child(&call, &subagent, &lineage, child).await),
            )
        }
        .boxed()
    }

    /// Runs a child to its end, or until it waits.
    async fn drive_child(
        &self,
        call: &ToolCall,
        subagent: &Subagent,
        lineage: &Lineage,
        child: Child,
    ) -> Result<ChildResult, ExitReason> {
        let Child {
            id,
            mut machine,
            stop,
            meter,
            input,
            journal,
            order: _,
            known: _,
        } = child;
        let input = input.unwrap_or_default();
        let ending = match (&machine.position.phase, &machine.position.failure) {
            (_, Some(failure)) => LoopOutcome::Failed(failure.clone()),
            (Phase::Ended, None) => LoopOutcome::Done,
            (Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Tools { .. } | Phase::Work { .. }, None) => {
                let below = Loop {
                    growth: Growth::new(self.scope.sizes),
                    agent: &subagent.agent,
                    plan: subagent.plan(self.scope.step_limit),
                    lineage,
                    base: subagent.base,
                    scope: self.scope_of_child(subagent, lineage, stop, meter),
                    journal: journal.as_ref(),
                    breakpoints: Breakpoints::default(),
                    leave: self.leave.clone(),
                };
                self.drive_below(&below, &mut machine, &input).await?
            }
        };
        if !matches!(ending, LoopOutcome::Parked(_)) {
            self.scope.budget.child_done();
            self.scope.budget.settle(self.scope.now()).await;
        }
        Ok(match ending {
            LoopOutcome::Done | LoopOutcome::Paused => {
                ChildResult::Answer(self.result(call, subagent, &machine.state, &input))
            }
            LoopOutcome::Parked(questions) => ChildResult::Parked { child: id, questions },
            LoopOutcome::Failed(failure) => {
                ChildResult::Answer(ToolOutput::error(call, failed(lineage.agent(), &failure)))
            }
        })
    }

    /// Drives the loop of a child until it ends or waits. It ends here when it alone was cancelled: its caller goes on.
    async fn drive_below(
        &self,
        below: &Loop<'_>,
        machine: &mut Machine,
        input: &Update,
    ) -> Result<LoopOutcome, ExitReason> {
        let begun = machine.head.is_some();
        let mut notes = vec![PendingWrite::Fact(Fact::Started {
            base: machine.head,
            attempt: 1,
            resumed: begun,
        })];
        if !begun {
            let ids = [CheckpointId::mint(), CheckpointId::mint()];
            notes.extend(PendingWrite::input(machine, &below.plan, input.clone(), ids));
        }
        let is_alone =
            || below.scope.stop.is_cancelled() && !self.scope.stop.is_cancelled() && !self.leave.is_cancelled();
        let driven = if is_alone() {
            below.flush(machine, &mut notes).await.and(Err(ExitReason::Cancelled))
        } else {
            below.drive(machine, notes).await
        };
        match driven {
            Err(ExitReason::Cancelled) | Ok(LoopOutcome::Parked(_)) if is_alone() => below.cancel(machine).await,
            driven => driven.inspect_err(|_| self.scope.budget.child_done()),
        }
    }

    /// Finds the subagent of this name, for this work.
    ///
    /// # Errors
    /// The text for the model, when there is none, or none that can do the work in this form.
    fn resolve_subagent(&self, name: &str, order: &DelegatedTask) -> Result<ResolvedSubagent, String> {
        let nobody = || format!("There is no subagent `{name}` here.");
        let own = self.agent.model_loop().ok_or_else(nobody)?;
        let roster = own.subagents.as_ref().ok_or_else(nobody)?;
        let depth = self.lineage.depth + 1 - self.base;
        let referred = roster.referred(name).cloned();
        let fork = own.forks.get(name);
        let here = fork.or_else(|| roster.get(name, depth));
        let is_remote = here.as_ref().is_some_and(|agent| agent.remote().is_some());
        let begins_itself = is_remote || referred.is_some() || here.as_ref().is_some_and(|agent| agent.is_fork);
        if begins_itself && !order.initial_messages.is_empty() {
            return Err(format!(
                "`{name}` takes no initial messages: it is a fork, or an agent with a definition of its own. Nothing was \
                 delegated."
            ));
        }
        let is_program = here.as_ref().is_some_and(|agent| agent.program().is_some());
        if let Some(problem) = prompt_problem(name, order, begins_itself || is_program) {
            return Err(problem);
        }
        let Some(format) = &order.response_format else {
            return referred
                .map(ResolvedSubagent::Registered)
                .or_else(|| here.map(ResolvedSubagent::OfParent))
                .ok_or_else(nobody);
        };
        if is_remote {
            return Err(format!(
                "`{name}` works on another server, which cannot be told of a form: say in the description what the \
                 result has to look like. Nothing was delegated."
            ));
        }
        // What another agent of this server is like is known when it is admitted.
        let problem = here
            .as_ref()
            .map_or_else(|| form_problem(format, |_| false), |agent| agent.form_problem(format));
        if let Some(problem) = problem {
            return Err(form_refused(name, &problem));
        }
        let formed = || {
            own.forks
                .in_form(name, format)
                .or_else(|| roster.in_form(name, depth, format))
        };
        referred
            .map(ResolvedSubagent::Registered)
            .or_else(|| formed().map(ResolvedSubagent::OfParent))
            .ok_or_else(nobody)
    }

    /// The subagent that works as `child`, `depth` delegations below the main agent.
    fn subagent(&self, resolved: ResolvedSubagent, child: &Child, depth: u32) -> Option<Subagent> {
        // An agent with a definition of its own counts its own levels, but not beyond those of whoever called it.
        let levels = self.deepest().saturating_sub(depth);
        match resolved {
            ResolvedSubagent::OfParent(agent) => {
                let mut limits = agent.limits.clone();
                if agent.remote().is_some() {
                    limits.depth = limits.depth.into_iter().chain([levels]).min();
                }
                Some(Subagent {
                    limits,
                    agent,
                    base: self.base,
                    step_limit: None,
                    is_external: false,
                })
            }
            ResolvedSubagent::Registered(referred) => {
                let known = child.known.as_ref()?;
                let agent = match &child.order.response_format {
                    Some(format) => known.in_form(levels > 0, format),
                    None if levels > 0 => Arc::clone(&known.agent),
                    None => known.without_delegations(),
                };
                let mut limits = referred.limits.unwrap_or_else(|| agent.limits.clone());
                limits.depth = limits.depth.into_iter().chain([levels]).min();
                Some(Subagent {
                    agent,
                    limits,
                    base: depth,
                    step_limit: referred.step_limit,
                    is_external: true,
                })
            }
        }
    }

    /// How deep in the tree an agent below this one may stand.
    fn deepest(&self) -> u32 {
        let own = self
            .agent
            .subagents()
            .map_or(0, |roster| self.base.saturating_add(roster.max_depth));
        own.min(self.scope.budget.floor())
    }

    fn lineage_of_child(&self, machine: &Machine, at: usize, call: &ToolCall, subagent: String) -> Lineage {
        let mut namespace = self.lineage.namespace.clone();
        namespace.push(machine.call_task(at));
        let mut path = self.lineage.path.clone();
        let roster = self.agent.subagents();
        let visibility = roster.map_or(Visibility::Full, |roster| roster.visibility(&subagent));
        path.push(subagent);
        Lineage {
            root: self.lineage.root,
            parent: Some(self.journal.run()),
            depth: self.lineage.depth + 1,
            cause: Some(call.id.clone()),
            namespace,
            path,
            visibility: self.lineage.visibility.min(visibility),
        }
    }

    fn scope_of_child(
        &self,
        subagent: &Subagent,
        lineage: &Lineage,
        stop: CancellationToken,
        meter: Arc<Meter>,
    ) -> Scope {
        Scope {
            agent: lineage.agent().to_owned(),
            path: lineage.path.clone().into(),
            depth: lineage.depth,
            subagent: lineage.namespace.last().map(|task| RunId::of_child(*task)),
            visibility: lineage.visibility,
            stop,
            budget: self.scope.budget.below(subagent.limits.clone(), meter, lineage.depth),
            progress: ProgressSink::default(),
            answer: None,
            question: None,
            answers: Arc::default(),
            program: Arc::default(),
            ..self.scope.clone()
        }
    }

    /// What a child that came to its end tells its parent, and what it wrote into the fields that both share.
    fn result(&self, call: &ToolCall, subagent: &Subagent, state: &State, input: &Update) -> ToolOutput {
        let mut writes = subagent.agent.shares.of(written(state, input));
        if subagent.is_external {
            writes.fields.retain(|name, _| self.agent.declared.has(name));
            writes.rules.retain(|name, _| self.agent.declared.has(name));
        }
        if subagent.is_external && self.agent.plan.rules.contains_key(background::FIELD) {
            // What it has begun in the background belongs to the conversation: its caller looks after it from now on.
            BackgroundTask::all(state)
                .iter()
                .for_each(|task| writes.merge(task.write()));
        }
        writes.messages.push(Arc::new(said(call, state, input)));
        ToolOutput {
            writes,
            ends: false,
            shown: false,
            changes: vec![],
        }
    }

    /// The questions that keep this lane waiting: its own, and those of the children it waits for.
    pub(super) async fn open_questions(&self, machine: &Machine) -> Result<Vec<Interrupt>, ExitReason> {
        let mut questions: Vec<Interrupt> = machine.open_questions().cloned().collect();
        for child in machine.parked_children() {
            questions.extend(self.journal.questions_of(child).await?);
        }
        Ok(questions)
    }
}

/// How a subagent is described.
enum ResolvedSubagent {
    /// With its parent.
    OfParent(Arc<Agent>),
    /// It is another agent of this server.
    Registered(ReferencedAgent),
}

impl ResolvedSubagent {
    fn display_text(&self) -> Option<&str> {
        match self {
            Self::OfParent(agent) => agent.display_text.as_deref(),
            Self::Registered(referred) => referred.display_text.as_deref(),
        }
    }

    fn url(&self) -> Option<&str> {
        match self {
            Self::OfParent(agent) => agent.remote().map(|remote| remote.url.as_str()),
            Self::Registered(_) => None,
        }
    }

    fn graph_id(&self) -> Option<&str> {
        match self {
            Self::OfParent(_) => None,
            Self::Registered(referred) => Some(&referred.graph_id),
        }
    }
}

/// A subagent, and how it works in the place where it is.
struct Subagent {
    agent: Arc<Agent>,
    limits: Limits,
    /// The depth from which its levels of delegation are counted.
    base: u32,
    step_limit: Option<u32>,
    /// Whether its definition is not its parent's: they need not have the same fields.
    is_external: bool,
}

impl Subagent {
    /// Its hooks and its limit of steps, which is never higher than the one that the run was started with.
    fn plan(&self, handed_down: Option<u32>) -> Plan {
        let plan = self.agent.plan.clone();
        let own = self.step_limit.unwrap_or(plan.step_limit);
        Plan {
            step_limit: handed_down.map_or(own, |limit| limit.min(own)),
            ..plan
        }
    }

    /// The child with what it is given: the fields that both share, and one human message. One on another server is given
    /// the message alone.
    fn handed_down(&self, child: Child, parent: &State) -> Child {
        if child.input.is_some() {
            return child;
        }
        let shared = || self.agent.shares.of(parent.for_subagent());
        let mut input = if self.agent.remote().is_some() {
            Update::none()
        } else {
            shared()
        };
        if self.is_external {
            input.fields.retain(|name, _| self.agent.declared.has(name));
        }
        let mut order = child.order.description.clone();
        if self.agent.is_fork {
            order = format!(
                "You are the subagent `{}` now. {FORK_PREAMBLE}\n\n{order}",
                self.agent.name
            );
            input.messages.extend_from_slice(parent.before_last_answer());
            // A program reads what its caller shares with everybody; a fork is its caller.
            if self.agent.program().is_none() {
                input = Update {
                    fields: parent.fields_for_fork(),
                    ..input
                }
                .ruled(&parent.rules);
            }
        }
        input.messages.extend_from_slice(&self.agent.initial);
        input
            .messages
            .extend(child.order.initial_messages.iter().cloned().map(Arc::new));
        input.messages.push(Arc::new(Message::human(order)));
        if let Some(prompt) = &child.order.system_prompt {
            input.fields.insert(ORDERED_PROMPT.to_owned(), prompt.clone().into());
        }
        Child {
            input: Some(super::driver::with_ids(input)),
            ..child
        }
    }
}

/// What the delegating model is told when the instructions that an order brings cannot be followed.
fn prompt_problem(subagent: &str, order: &DelegatedTask, has_its_own: bool) -> Option<String> {
    let prompt = order.system_prompt.as_ref()?;
    if has_its_own {
        return Some(format!(
            "`{subagent}` takes no `system_prompt`: it is a fork, a program, or an agent with a definition of its own. \
             Nothing was delegated."
        ));
    }
    let is_too_long = prompt.len() > MAX_ORDERED_PROMPT_BYTES;
    is_too_long.then(|| {
        format!(
            "The `system_prompt` for `{subagent}` has {} bytes; at most {MAX_ORDERED_PROMPT_BYTES} are allowed. Nothing \
             was delegated.",
            prompt.len()
        )
    })
}

/// What the delegating model is told when the subagent cannot answer in the form that was asked for.
pub(super) fn form_refused(subagent: &str, problem: &str) -> String {
    format!("`{subagent}` cannot answer in the form that was asked for: {problem}. Nothing was delegated.")
}

fn lost(what: &str) -> ExitReason {
    ExitReason::Fault(Failure::new(
        "RuntimeError",
        format!("a delegated call lost its {what}"),
    ))
}

/// What a child that came to its end tells its parent: the structured answer, or the last thing it said.
fn said(call: &ToolCall, state: &State, input: &Update) -> Message {
    // What stands before the order was said by somebody else.
    let order = input.messages.last().and_then(|message| message.id.as_deref());
    let text = state.conclusion_after(order).unwrap_or_else(|| NOTHING_SAID.to_owned());
    Message::tool(call, ToolStatus::Success, text)
}

const FORK_PREAMBLE: &str = "The conversation above led to the order below; it does not go on here, and its user does not \
    hear you. Carry out the order yourself, without delegating: your caller sees your last message and nothing else.";

const NOTHING_SAID: &str = "The subagent finished without saying anything.";

/// What a child wrote: the difference between where it ended and what it was given.
fn written(state: &State, input: &Update) -> Update {
    let files = state
        .files
        .iter()
        .filter(|(path, file)| input.files.get(*path) != Some(&Some(Arc::clone(file))));
    let gone = input.files.keys().filter(|path| !state.files.contains_key(*path));
    let fields = state
        .fields
        .iter()
        .filter(|(name, _)| state.shares(name))
        .filter_map(|(name, value)| {
            let rule = state.rules.get(name).copied().unwrap_or_default();
            Some((name.clone(), rule.difference(input.fields.get(name), value)?))
        });
    Update {
        messages: vec![],
        files: files
            .map(|(path, file)| (path.clone(), Some(Arc::clone(file))))
            .chain(gone.map(|path| (path.clone(), None)))
            .collect(),
        fields: fields.collect(),
        ..Update::none()
    }
    .ruled(&state.rules)
}

/// What the delegating model is told about a child that failed, or was cancelled.
fn failed(subagent: &str, failure: &Failure) -> String {
    if *failure == Failure::cancelled() {
        return format!("The subagent `{subagent}` was cancelled by request before it was done: it has no result.");
    }
    format!(
        "The subagent `{subagent}` failed ({}): {} Its other work is kept; delegate again if the task is still needed.",
        failure.class, failure.message
    )
}
