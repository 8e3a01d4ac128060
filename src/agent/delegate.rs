//! Delegation: runs the loop of a subagent for a call.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Map;
use tokio_util::sync::CancellationToken;

use super::assemble::RegisteredAgent;
use super::calls::{CallResult, record_answer};
use super::journal::{Child, ChildAdmission, ChildStart, ExitReason, Journal, NewChildRun, PendingWrite, format_error};
use super::step::PendingWrites;
use super::subagent::{ChildResult, Subagent, changed_files};
use super::subagent_registry::ReferencedAgent;
use super::{Agent, Breakpoints, Loop, LoopOutcome};
use crate::definition::form_problem;
use crate::domain::call::{CallStatus, DelegationResult, ToolOutput};
use crate::domain::event::Fact;
use crate::domain::id::{CheckpointId, RunId, TaskId};
use crate::domain::limits::Usage;
use crate::domain::machine::{Failure, Machine, Phase, Plan};
use crate::domain::message::ToolCall;
use crate::domain::run::{
    AfterDelegation, DelegatedTask, Lineage, MAX_DELEGATED_PROMPT_BYTES, MAX_DELEGATIONS, RunStatus,
};
use crate::domain::state::{FileWrites, Update};
use crate::domain::state_size::StateSize;
use crate::domain::visibility::Visibility;
use crate::tool::budget::{Meter, Refused};
use crate::tool::file_claims::FileClaims;
use crate::tool::{Delegation, ProgressSink, Scope};

impl Loop<'_> {
    /// Starts child runs for these calls, and stores the pending writes with them. If a limit forbids one, its call is answered
    /// with the reason.
    pub(super) async fn delegate_all<'a>(
        &'a self,
        machine: &mut Machine,
        pending: &mut PendingWrites,
        delegations: Vec<(usize, Delegation)>,
    ) -> Result<Vec<BoxFuture<'a, (usize, CallResult)>>, ExitReason> {
        let mut planned = Vec::with_capacity(delegations.len());
        for (at, delegation) in delegations {
            match self.plan_delegation(machine, at, delegation).await {
                Ok(Some(plan)) => planned.push((plan, machine.call_status(at).cloned())),
                Ok(None) => self.record_refused_delegation(machine, at),
                Err(stop) => {
                    // The results that came with the delegations.
                    self.flush(machine, pending).await?;
                    return Err(stop);
                }
            }
        }
        if planned.is_empty() {
            return Ok(vec![]);
        }
        planned.iter().for_each(|(plan, _)| plan.mark_delegated(machine));
        let requests = planned
            .iter()
            .map(|(plan, _)| (plan.request.clone(), self.start_of_child(machine, plan)))
            .collect();
        let mut started = Vec::with_capacity(planned.len());
        if let Some(children) = self.journal.new_children(machine, pending.clone(), requests).await? {
            pending.clear();
            for ((plan, _), child) in planned.into_iter().zip(children) {
                started.push(self.begin_child(machine, plan, child).await?);
            }
            return Ok(started);
        }
        // A call that is refused must not be stored as delegated, so one begins after the other.
        for (plan, before) in &planned {
            machine.set_call_status(plan.at, before.clone().unwrap_or(CallStatus::Ready));
        }
        self.flush(machine, pending).await?;
        for (plan, _) in planned {
            plan.mark_delegated(machine);
            match self.journal.child(machine, plan.request.clone()).await? {
                ChildAdmission::Admitted(child) => started.push(self.begin_child(machine, plan, *child).await?),
                ChildAdmission::Refused(reason) => {
                    self.scope.budget.child_done();
                    record_answer(machine, plan.at, ToolOutput::error(&plan.call, reason));
                    self.record_refused_delegation(machine, plan.at);
                }
            }
        }
        Ok(started)
    }

    /// Plans a child run for the call at `at`. If a limit forbids it, the call is answered with the reason.
    async fn plan_delegation(
        &self,
        machine: &mut Machine,
        at: usize,
        delegation: Delegation,
    ) -> Result<Option<PlannedDelegation>, ExitReason> {
        let Some(call) = machine.call(at) else {
            return Ok(None);
        };
        let resolved = match self.resolve_subagent(&delegation.subagent, &delegation.order) {
            Ok(resolved) => resolved,
            Err(text) => {
                record_answer(machine, at, ToolOutput::error(&call, text));
                return Ok(None);
            }
        };
        let then = delegation.order.then;
        if then == AfterDelegation::CallAgain && machine.delegations(at).len() >= MAX_DELEGATIONS {
            let text = format!(
                "`{}` has delegated {MAX_DELEGATIONS} times in one call, which is the limit. Nothing was delegated.",
                call.name
            );
            record_answer(machine, at, ToolOutput::error(&call, text));
            return Ok(None);
        }
        if let Some(refusal) = self.claim_child().await? {
            record_answer(machine, at, ToolOutput::error(&call, refusal));
            return Ok(None);
        }
        let task = then.task(machine.call_task(at), machine.delegations(at).len());
        let lineage = self.lineage_of_child(task, &call, delegation.subagent);
        let order = DelegatedTask {
            display_text: resolved.display_text().map(str::to_owned),
            ..delegation.order
        };
        let request = NewChildRun {
            id: RunId::of_child(task),
            lineage,
            order,
            max_depth: self.max_child_depth(),
            graph_id: resolved.graph_id().map(str::to_owned),
            url: resolved.url().map(str::to_owned),
        };
        Ok(Some(PlannedDelegation {
            at,
            call,
            resolved,
            request,
        }))
    }

    /// Returns the start of a child run, if it can be stored with the run: what follows is a step of its own. None for an agent
    /// that is registered itself, whose definition is known only after the admission, and for a program, which stores its
    /// start when it is called.
    fn start_of_child(&self, machine: &Machine, plan: &PlannedDelegation) -> Option<ChildStart> {
        let PlannedDelegation { resolved, request, .. } = plan;
        let is_known = match resolved {
            ResolvedSubagent::OfParent(agent) => agent.program().is_none(),
            ResolvedSubagent::Registered(_) => false,
        };
        if !is_known {
            return None;
        }
        let subagent = self.subagent(resolved.clone(), &request.order, None, request.lineage.depth)?;
        let input = subagent.input(&request.order, &machine.state_for_child(plan.at));
        let mut machine = Machine::default();
        let pending = start_of(&mut machine, &subagent.plan(self.scope.step_limit), &input);
        Some(ChildStart {
            machine,
            input,
            pending,
        })
    }

    /// Returns the work of a child run that was admitted.
    async fn begin_child<'a>(
        &'a self,
        machine: &Machine,
        plan: PlannedDelegation,
        child: Child,
    ) -> Result<BoxFuture<'a, (usize, CallResult)>, ExitReason> {
        let PlannedDelegation {
            at,
            call,
            resolved,
            request: NewChildRun { lineage, .. },
        } = plan;
        let subagent = self
            .subagent(resolved, &child.order, child.known.as_ref(), lineage.depth)
            .ok_or_else(|| lost_part("definition"))?;
        let child = subagent.with_input(child, &machine.state_for_child(at));
        let place = self.place_of_child(machine, at, lineage);
        // Nothing was changed yet by one that has just begun.
        if !child.is_begun {
            self.claim_files_of(&subagent, &place, &child.machine, child.input.as_ref())
                .await?;
        }
        Ok(self.run_child(at, call, subagent, place, child))
    }

    /// Counts a child run against the limits, for every way to start one. Returns the text for the model if a limit
    /// forbids it.
    async fn claim_child(&self) -> Result<Option<String>, ExitReason> {
        let claimed = self
            .scope
            .budget
            .claim_child(self.lineage.depth + 1, self.scope.now())
            .await;
        match claimed {
            Ok(()) => Ok(None),
            Err(Refused::Away) => Err(ExitReason::Unavailable),
            Err(Refused::Exceeded(limit)) => Ok(Some(not_delegated(&limit))),
            Err(Refused::Quota(reached)) => Ok(Some(not_delegated(&reached))),
        }
    }

    /// Continues the child run of the call at `at`, or cancels it if the call is no longer in the conversation. If the
    /// definition of the subagent is gone, the child run ends with a failure.
    pub(super) async fn continue_child<'a>(
        &'a self,
        machine: &Machine,
        at: usize,
        child: RunId,
    ) -> Result<BoxFuture<'a, (usize, CallResult)>, ExitReason> {
        let (lineage, child) = self
            .journal
            .find_child(child)
            .await?
            .ok_or_else(|| lost_part("child run"))?;
        let call = machine.call(at);
        let subagent = match self.subagent_of(&lineage, &child.order, child.known.as_ref()) {
            Ok(subagent) => subagent,
            Err(failure) => {
                let call = call.unwrap_or_else(|| abandoned_call(&lineage));
                return Ok(self.fail_child(at, call, lineage, child, failure));
            }
        };
        self.scope.budget.child_goes_on();
        let child = subagent.with_input(child, &machine.state_for_child(at));
        let place = self.place_of_child(machine, at, lineage);
        let Some(call) = call else {
            return Ok(self.abandon_child(at, subagent, place, child));
        };
        self.claim_files_of(&subagent, &place, &child.machine, child.input.as_ref())
            .await?;
        Ok(self.run_child(at, call, subagent, place, child))
    }

    /// Claims the files that the step of `machine` has changed so far: calls may have been answered and subagents may
    /// have worked before an interrupt, or in a process that lost the run. What is `driven` from now on claims its files
    /// when it is loaded.
    pub(super) async fn claim_changed_files(&self, machine: &Machine, driven: &[usize]) -> Result<(), ExitReason> {
        for (at, writes) in machine.writes_so_far() {
            let claims = self.scope.files.of_call(machine.call_task(at), &self.scope.agent);
            claims.restore(writes.files.keys());
        }
        for (at, id) in machine.child_runs() {
            // The work of one whose call is gone is not handed in.
            if driven.contains(&at) || machine.call_id(at).is_none() {
                continue;
            }
            let Some(child) = self.journal.child_record(id).await? else {
                continue;
            };
            if let Ok(subagent) = self.subagent_of(&child.lineage, &child.order, child.known.as_ref()) {
                let place = self.place_of_child(machine, at, child.lineage);
                self.claim_files_of(&subagent, &place, &child.machine, child.input.as_ref())
                    .await?;
            }
        }
        Ok(())
    }

    /// Claims the files that a child run and the child runs below it have changed. The changes are merged later, and no other
    /// call may change the same files meanwhile.
    fn claim_files_of<'a>(
        &'a self,
        subagent: &'a Subagent,
        place: &'a ChildPlace,
        machine: &'a Machine,
        input: Option<&'a Update>,
    ) -> BoxFuture<'a, Result<(), ExitReason>> {
        Box::pin(async move {
            // Nothing is handed in of one that has failed.
            if machine.head.is_none() || machine.position.failure.is_some() {
                return Ok(());
            }
            // Nothing is done in this loop that stops, counts or is stored.
            let meter = Arc::new(Meter::new(Usage::default(), self.scope.now()));
            let below = self.loop_of_child(subagent, place, self.journal, self.scope.stop.clone(), meter);
            let changed = match input {
                Some(input) => changed_files(&machine.state, &input.files),
                None => changed_files(&machine.state, &FileWrites::new()),
            };
            below.scope.files.restore(changed.keys());
            below.claim_changed_files(machine, &[]).await
        })
    }

    /// Returns the loop of a child run.
    fn loop_of_child<'a>(
        &'a self,
        subagent: &'a Subagent,
        place: &'a ChildPlace,
        journal: &'a dyn Journal,
        stop: CancellationToken,
        meter: Arc<Meter>,
    ) -> Loop<'a> {
        Loop {
            state_size: StateSize::new(self.scope.sizes),
            agent: &subagent.agent,
            plan: subagent.plan(self.scope.step_limit),
            lineage: &place.lineage,
            base: subagent.base,
            scope: self.scope_of_child(subagent, place, stop, meter),
            journal,
            breakpoints: Breakpoints::default(),
            leave: self.leave.clone(),
        }
    }

    /// Finds the subagent that executes a child run.
    ///
    /// # Errors
    /// The failure of the child run, if the definition of its subagent is gone.
    fn subagent_of(
        &self,
        lineage: &Lineage,
        order: &DelegatedTask,
        known: Option<&Arc<RegisteredAgent>>,
    ) -> Result<Subagent, Failure> {
        let gone = || "The agent of this run is not configured on this server any more.".to_owned();
        let resolved = self.resolve_subagent(lineage.agent(), order);
        let found = resolved.and_then(|resolved| self.subagent(resolved, order, known, lineage.depth).ok_or_else(gone));
        found.map_err(|text| Failure::new("AgentNotFoundError", text))
    }

    /// Continues a parked child run after it, or one below it, was cancelled.
    pub(super) async fn resume_child<'a>(
        &'a self,
        machine: &mut Machine,
        at: usize,
        child: RunId,
    ) -> Result<BoxFuture<'a, (usize, CallResult)>, ExitReason> {
        machine.set_call_status(at, CallStatus::Delegated { child, parked: false });
        // The child run is already counted as running.
        self.scope.budget.child_done();
        self.continue_child(machine, at, child).await
    }

    /// Waits until the parked child run of the call at `at`, or one below it, is cancelled.
    pub(super) fn child_cancellation(
        &self,
        at: usize,
        child: RunId,
    ) -> BoxFuture<'_, (usize, RunId, Result<(), ExitReason>)> {
        Box::pin(async move { (at, child, self.journal.child_cancelled(child).await) })
    }

    fn run_child<'a>(
        &'a self,
        at: usize,
        call: ToolCall,
        subagent: Subagent,
        place: ChildPlace,
        child: Child,
    ) -> BoxFuture<'a, (usize, CallResult)> {
        Box::pin(async move {
            let span = self.begin_delegation(&call, place.lineage.namespace.last().copied());
            let driven = self.drive_child(&call, &subagent, &place, child).await;
            self.end_delegation(span, &driven);
            (at, CallResult::Child(driven))
        })
    }

    /// Cancels the child run of the call at `at`, which is no longer in the conversation.
    fn abandon_child<'a>(
        &'a self,
        at: usize,
        subagent: Subagent,
        place: ChildPlace,
        child: Child,
    ) -> BoxFuture<'a, (usize, CallResult)> {
        child.stop.cancel();
        let position = &child.machine.position;
        if position.failure.is_none() && !matches!(position.phase, Phase::Ended) {
            // The runs that wait below count as running until they are cancelled, as below a child run that is driven.
            let meter = Arc::clone(&child.meter);
            let budget = self
                .scope
                .budget
                .below(subagent.limits.clone(), meter, place.lineage.depth);
            let waiting = child.machine.parked_children();
            waiting.iter().for_each(|_| budget.child_goes_on());
        }
        Box::pin(async move {
            let call = abandoned_call(&place.lineage);
            let ended = self.drive_child(&call, &subagent, &place, child).await;
            (at, CallResult::Child(ended))
        })
    }

    /// Ends the child run of the call at `at`, which nothing can continue, with this failure. Its caller goes on.
    fn fail_child<'a>(
        &'a self,
        at: usize,
        call: ToolCall,
        lineage: Lineage,
        child: Child,
        failure: Failure,
    ) -> BoxFuture<'a, (usize, CallResult)> {
        Box::pin(async move {
            let span = self.begin_delegation(&call, lineage.namespace.last().copied());
            let failed = store_failure(child, failure).await.map(|(failure, then)| {
                let output = ToolOutput::error(&call, failure_text(lineage.agent(), &failure));
                child_result(then, lineage.agent(), output)
            });
            self.end_delegation(span, &failed);
            (at, CallResult::Child(failed))
        })
    }

    /// Drives a child run until it ends or waits.
    async fn drive_child(
        &self,
        call: &ToolCall,
        subagent: &Subagent,
        place: &ChildPlace,
        child: Child,
    ) -> Result<ChildResult, ExitReason> {
        let agent = place.lineage.agent();
        let Child {
            id,
            mut machine,
            stop,
            meter,
            input,
            is_begun,
            journal,
            order,
            known: _,
        } = child;
        let input = input.unwrap_or_default();
        let outcome = match (&machine.position.phase, &machine.position.failure) {
            (_, Some(failure)) => LoopOutcome::Failed(failure.clone()),
            (Phase::Ended, None) => LoopOutcome::Done,
            (Phase::Start | Phase::Hooks { .. } | Phase::Model | Phase::Tools { .. } | Phase::Work { .. }, None) => {
                let below = self.loop_of_child(subagent, place, journal.as_ref(), stop, meter);
                self.drive_below(&below, &mut machine, &input, is_begun).await?
            }
        };
        if !matches!(outcome, LoopOutcome::Parked(_)) {
            self.scope.budget.child_done();
            self.scope.budget.settle(self.scope.now()).await;
        }
        let output = match outcome {
            LoopOutcome::Done | LoopOutcome::Paused => subagent.result(call, self.agent, &machine.state, &input),
            LoopOutcome::Parked(questions) => return Ok(ChildResult::Parked { child: id, questions }),
            LoopOutcome::Failed(failure) => ToolOutput::error(call, failure_text(agent, &failure)),
        };
        Ok(child_result(order.then, agent, output))
    }

    /// Drives the loop of a child until it ends or waits. If only the child was cancelled, it ends here, and its
    /// caller continues. `is_begun` says that its start is stored.
    async fn drive_below(
        &self,
        below: &Loop<'_>,
        machine: &mut Machine,
        input: &Update,
        is_begun: bool,
    ) -> Result<LoopOutcome, ExitReason> {
        let mut pending = match is_begun {
            true => vec![],
            false => start_of(machine, &below.plan, input),
        };
        let is_alone =
            || below.scope.stop.is_cancelled() && !self.scope.stop.is_cancelled() && !self.leave.is_cancelled();
        let driven = if is_alone() {
            below.flush(machine, &mut pending).await.and(Err(ExitReason::Cancelled))
        } else {
            below.drive(machine, pending).await
        };
        match driven {
            Err(ExitReason::Cancelled) | Ok(LoopOutcome::Parked(_)) if is_alone() => below.cancel(machine).await,
            driven => driven.inspect_err(|_| self.scope.budget.child_done()),
        }
    }

    /// Finds the subagent with this name for a delegated task.
    ///
    /// # Errors
    /// The text for the model, if there is no such subagent, or if it cannot do the task in the requested form.
    fn resolve_subagent(&self, name: &str, order: &DelegatedTask) -> Result<ResolvedSubagent, String> {
        let unknown = || format!("There is no subagent `{name}` here.");
        let own = self.agent.model_loop().ok_or_else(unknown)?;
        let registry = own.subagents.as_ref().ok_or_else(unknown)?;
        let depth = self.lineage.depth + 1 - self.base;
        let referenced = registry.referenced(name).cloned();
        let here = self.agent.own_subagent(name, depth);
        let is_remote = here.as_ref().is_some_and(|agent| agent.remote().is_some());
        let begins_itself = is_remote || referenced.is_some() || here.as_ref().is_some_and(|agent| agent.is_fork);
        if begins_itself && !order.initial_messages.is_empty() {
            return Err(format!(
                "`{name}` takes no initial messages: it is a fork, or an agent with a definition of its own. Nothing was \
                 delegated."
            ));
        }
        let is_program = here.as_ref().is_some_and(|agent| agent.program().is_some());
        if let Some(problem) = prompt_error(name, order, begins_itself || is_program) {
            return Err(problem);
        }
        let Some(format) = &order.response_format else {
            return referenced
                .map(ResolvedSubagent::Registered)
                .or_else(|| here.map(ResolvedSubagent::OfParent))
                .ok_or_else(unknown);
        };
        if is_remote {
            return Err(format!(
                "`{name}` works on another server, which cannot be told of a form: say in the description what the \
                 result has to look like. Nothing was delegated."
            ));
        }
        // The definition of another registered agent is known only at admission.
        let problem = here
            .as_ref()
            .map_or_else(|| form_problem(format, |_| false), |agent| agent.form_problem(format));
        if let Some(problem) = problem {
            return Err(format_error(name, &problem));
        }
        let formed = || {
            own.forks
                .in_form(name, format)
                .or_else(|| registry.in_form(name, depth, format))
        };
        referenced
            .map(ResolvedSubagent::Registered)
            .or_else(|| formed().map(ResolvedSubagent::OfParent))
            .ok_or_else(unknown)
    }

    /// Returns the subagent that executes a task, `depth` delegations below the main agent. `known` is the registered agent
    /// with the definition that the child run started with, if it has one.
    fn subagent(
        &self,
        resolved: ResolvedSubagent,
        order: &DelegatedTask,
        known: Option<&Arc<RegisteredAgent>>,
        depth: u32,
    ) -> Option<Subagent> {
        // An agent with its own definition counts its own levels, but never beyond the limit of its caller.
        let levels = self.max_child_depth().saturating_sub(depth);
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
            ResolvedSubagent::Registered(referenced) => {
                let known = known?;
                let agent = match &order.response_format {
                    Some(format) => known.in_form(levels > 0, format),
                    None if levels > 0 => Arc::clone(known.agent()),
                    None => known.without_delegations(),
                };
                let mut limits = referenced.limits.unwrap_or_else(|| agent.limits.clone());
                limits.depth = limits.depth.into_iter().chain([levels]).min();
                Some(Subagent {
                    agent,
                    limits,
                    base: depth,
                    step_limit: referenced.step_limit,
                    is_external: true,
                })
            }
        }
    }

    /// Returns the maximum depth of agents below this one.
    fn max_child_depth(&self) -> u32 {
        let own = self
            .agent
            .subagents()
            .map_or(0, |registry| self.base.saturating_add(registry.max_depth));
        own.min(self.scope.budget.max_depth())
    }

    /// Returns the place of a child run of the call at `at`. Its claims on files are those of the call.
    fn place_of_child(&self, machine: &Machine, at: usize, lineage: Lineage) -> ChildPlace {
        let claims = self.scope.files.of_call(machine.call_task(at), lineage.agent());
        ChildPlace { lineage, claims }
    }

    fn lineage_of_child(&self, task: TaskId, call: &ToolCall, subagent: String) -> Lineage {
        let mut namespace = self.lineage.namespace.clone();
        namespace.push(task);
        let mut path = self.lineage.path.clone();
        let registry = self.agent.subagents();
        let visibility = registry.map_or(Visibility::Full, |registry| registry.visibility(&subagent));
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
        place: &ChildPlace,
        stop: CancellationToken,
        meter: Arc<Meter>,
    ) -> Scope {
        let ChildPlace { lineage, claims } = place;
        let child = lineage.namespace.last().map(|task| RunId::of_child(*task));
        Scope {
            files: match subagent.agent.shares.files {
                true => claims.clone(),
                false => FileClaims::default(),
            },
            agent: lineage.agent().to_owned(),
            path: lineage.path.clone().into(),
            depth: lineage.depth,
            subagent: child,
            visibility: lineage.visibility,
            stop,
            trace: child.map_or_else(|| self.scope.trace.clone(), |child| self.trace_of_child(child)),
            budget: self.scope.budget.below(subagent.limits.clone(), meter, lineage.depth),
            progress: ProgressSink::default(),
            answer: None,
            question: None,
            answers: Arc::default(),
            delegations: Arc::default(),
            program: Arc::default(),
            ..self.scope.clone()
        }
    }
}

/// A delegation whose child run is to be admitted.
struct PlannedDelegation {
    at: usize,
    call: ToolCall,
    resolved: ResolvedSubagent,
    request: NewChildRun,
}

impl PlannedDelegation {
    /// Records that the call is delegated.
    fn mark_delegated(&self, machine: &mut Machine) {
        let child = self.request.id;
        machine.set_call_status(self.at, CallStatus::Delegated { child, parked: false });
    }
}

/// The origin of a subagent's definition.
#[derive(Clone)]
enum ResolvedSubagent {
    /// The definition is part of the parent's.
    OfParent(Arc<Agent>),
    /// The subagent is another agent registered on this server.
    Registered(ReferencedAgent),
}

impl ResolvedSubagent {
    fn display_text(&self) -> Option<&str> {
        match self {
            Self::OfParent(agent) => agent.display_text.as_deref(),
            Self::Registered(referenced) => referenced.display_text.as_deref(),
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
            Self::Registered(referenced) => Some(&referenced.graph_id),
        }
    }
}

/// The place of a child run in its tree.
struct ChildPlace {
    lineage: Lineage,
    /// The claims on files that the child run has to respect.
    claims: FileClaims,
}

/// Returns the writes of the start of a child run. A new `machine` gets its input, others continue.
fn start_of(machine: &mut Machine, plan: &Plan, input: &Update) -> PendingWrites {
    let resumed = machine.head.is_some();
    let mut pending = vec![PendingWrite::Fact(Fact::Started {
        base: machine.head,
        carried_from: machine.position.carried_from,
        attempt: 1,
        resumed,
        calls: vec![],
    })];
    if !resumed {
        let ids = [CheckpointId::mint(), CheckpointId::mint()];
        pending.extend(PendingWrite::input(machine, plan, input.clone(), ids));
    }
    pending
}

/// Returns the text for the delegating model if the task's instructions cannot be used.
fn prompt_error(subagent: &str, order: &DelegatedTask, has_its_own: bool) -> Option<String> {
    let prompt = order.system_prompt.as_ref()?;
    if has_its_own {
        return Some(format!(
            "`{subagent}` takes no `system_prompt`: it is a fork, a program, or an agent with a definition of its own. \
             Nothing was delegated."
        ));
    }
    let is_too_long = prompt.len() > MAX_DELEGATED_PROMPT_BYTES;
    is_too_long.then(|| {
        format!(
            "The `system_prompt` for `{subagent}` has {} bytes; at most {MAX_DELEGATED_PROMPT_BYTES} are allowed. Nothing \
             was delegated.",
            prompt.len()
        )
    })
}

/// Returns the text for the delegating model about a limit that forbids a child run.
fn not_delegated(limit: &dyn std::fmt::Display) -> String {
    format!("{limit} Nothing was delegated; do the work yourself, or finish with what you have.")
}

/// Returns the call of a child run that is no longer in the conversation. Nothing reads its result.
fn abandoned_call(lineage: &Lineage) -> ToolCall {
    ToolCall::new(lineage.cause.clone().unwrap_or_default(), "", Map::new())
}

/// Returns the result of a child run of `subagent` that has ended.
fn child_result(then: AfterDelegation, subagent: &str, output: ToolOutput) -> ChildResult {
    match then {
        AfterDelegation::Answer => ChildResult::Answer(output),
        AfterDelegation::CallAgain => ChildResult::ForTool(DelegationResult::new(subagent, output)),
    }
}

/// Stores that a child run has ended with a failure, unless it has ended before. Returns its failure, and the use of its
/// result.
async fn store_failure(child: Child, failure: Failure) -> Result<(Failure, AfterDelegation), ExitReason> {
    let Child {
        mut machine,
        journal,
        order,
        ..
    } = child;
    if let Some(before) = machine.position.failure.take() {
        return Ok((before, order.then));
    }
    if !matches!(machine.position.phase, Phase::Ended) {
        let started = Fact::Started {
            base: machine.head,
            carried_from: machine.position.carried_from,
            attempt: 1,
            resumed: machine.head.is_some(),
            calls: vec![],
        };
        machine.position.failure = Some(failure.clone());
        // Like one that is cancelled: what waits below it stops, too, and its questions are dropped.
        let over = Fact::over(RunStatus::Interrupted, Some(failure.clone()));
        let pending = [started, over].map(PendingWrite::Fact);
        journal.commit(&machine, pending.into()).await?;
    }
    Ok((failure, order.then))
}

fn lost_part(what: &str) -> ExitReason {
    ExitReason::Fault(Failure::new(
        "RuntimeError",
        format!("a delegated call lost its {what}"),
    ))
}

/// Returns the text for the delegating model about a child run that failed or was cancelled.
fn failure_text(subagent: &str, failure: &Failure) -> String {
    if *failure == Failure::cancelled() {
        return format!("The subagent `{subagent}` was cancelled by request before it was done: it has no result.");
    }
    format!(
        "The subagent `{subagent}` failed ({}): {} Its other work is kept; delegate again if the task is still needed.",
        failure.class, failure.message
    )
}
