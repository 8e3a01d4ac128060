//! The child runs of an agent: its journal admits and finds them, and each gets a journal of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::LaneJournal;
use super::batch::{NewChild, SplitWrites};
use super::child::{self, AdmittedChild, PreparedChild};
use crate::agent::assemble::RegisteredAgent;
use crate::agent::{
    Child, ChildAdmission, ChildRecord, ChildStart, ExitReason, Journal, NewChildRun, PendingWrite, WaitingAgent,
};
use crate::db::{self, DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Origin;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::limits::Usage;
use crate::domain::machine::{Failure, Machine, Position};
use crate::domain::run::{DelegatedTask, Lineage, Run};
use crate::domain::state::Update;
use crate::domain::time::Timestamp;
use crate::domain::trace::SpanId;
use crate::runtime::children::RegisteredChild;
use crate::runtime::retry::retry_until_available;
use crate::runtime::run_context::{RunContext, exit_reason_of};
use crate::runtime::{interrupts, quotas};
use crate::tool::budget::Meter;

/// The request of a run for a new child run, with what is stored in the same transaction.
struct ChildRequest {
    new_run: NewChildRun,
    /// The newest checkpoint of the parent, with the position to store.
    head: Option<(CheckpointId, Position)>,
    parent: RunId,
    /// The usage of the parent, if it is to be stored.
    used: Option<Usage>,
    at: Timestamp,
}

impl ChildRequest {
    /// Admits the child run and stores the rest. None if another process holds the lease of the run.
    async fn admit(&self, tx: &mut Tx<'_>, run_context: &RunContext) -> DbResult<Option<AdmittedChild>> {
        if !run_context.holds_lease(tx, self.at).await? {
            return Ok(None);
        }
        let admission = child::admit(tx, run_context, &self.new_run, self.at).await?;
        if let (AdmittedChild::Admitted(_), Some((head, position))) = (&admission, &self.head) {
            let root = &run_context.run;
            db::checkpoints::set_position(tx, root.thread, *head, position, root.id).await?;
        }
        if let Some(used) = &self.used {
            let growth = quotas::count_growth(tx, run_context, self.parent, used).await?;
            db::runs::set_usage(tx, self.parent, used, run_context.run.id).await?;
            quotas::charge(tx, run_context, growth, self.at).await?;
        }
        Ok(Some(admission))
    }
}

/// A child run that is about to be stored, or was stored just now.
pub(super) struct UnstoredChild {
    prepared: Arc<PreparedChild>,
    order: DelegatedTask,
    stop: CancellationToken,
    meter: Arc<Meter>,
    pub(super) journal: LaneJournal,
    /// The start that is stored with it.
    start: Option<ChildStart>,
}

impl UnstoredChild {
    /// Returns the number of events of its start.
    pub(super) fn count(&self) -> usize {
        self.start.as_ref().map_or(0, |start| start.pending.len())
    }

    /// Builds its part of a batch, with numbers from `first` on.
    pub(super) fn build(&self, first: i64) -> NewChild {
        let start = self.start.as_ref().map(|start| {
            let writes = SplitWrites::of(start.pending.clone());
            self.journal.build_step(&start.machine, writes, None, first)
        });
        NewChild {
            prepared: Arc::clone(&self.prepared),
            first: start,
        }
    }
}

/// A child run as it is stored.
struct StoredChild {
    run: Run,
    /// The registered agent of the run, which is looked up after the run was read.
    known: Option<Arc<RegisteredAgent>>,
    machine: Machine,
    segment: Option<i64>,
    input: Option<Update>,
    is_to_stop: bool,
    used: Usage,
}

impl StoredChild {
    /// Reads a child run of a thread.
    async fn find(tx: &mut Tx<'_>, thread: ThreadId, child: RunId) -> DbResult<Option<Self>> {
        let Some(run) = db::runs::get_by_id(tx, child).await? else {
            return Ok(None);
        };
        let lane = Lane::Child(child);
        let (machine, segment) = db::checkpoints::machine(tx, thread, lane).await?;
        let input = db::checkpoints::input_of(tx, thread, lane).await?;
        Ok(Some(Self {
            run,
            known: None,
            machine,
            segment,
            input,
            is_to_stop: db::runs::is_to_stop(tx, child).await?,
            used: db::runs::usage(tx, child).await?,
        }))
    }
}

impl LaneJournal {
    /// Registers a child before its row is written or read, since a cancellation reads the row first.
    fn register_child(&self, child: RunId) -> RegisteredChild {
        self.run_context.children.register(child, self.stop.child_token())
    }

    fn child_journal(&self, run: &Run, segment: Option<i64>, at_work: RegisteredChild, meter: &Arc<Meter>) -> Self {
        let root = self.run_context.run.id;
        self.run_context.subagents_used.forget(run.id);
        Self {
            trace: self.run_context.trace.at(|| SpanId::of_child(run.id, root)),
            is_in_tree: run.lineage.root == root,
            created: Some(run.created_at),
            ended: AtomicBool::new(false),
            run_context: Arc::clone(&self.run_context),
            run: run.id,
            origin: Arc::new(Origin::of(run)),
            segment: Mutex::new(segment),
            began: self.run_context.core.clock.now(),
            meter: Some(Arc::clone(meter)),
            budget: None,
            stored: Mutex::default(),
            stop: at_work.stop().clone(),
            _at_work: Some(at_work),
        }
    }

    /// Reads a child, with its registered agent if it has one.
    async fn stored_child(&self, child: RunId) -> Result<Option<StoredChild>, ExitReason> {
        let thread = self.run_context.run.thread;
        let find = || {
            let db = &self.run_context.core.db;
            db.read(move |tx| Box::pin(StoredChild::find(tx, thread, child)))
        };
        let mut found = retry_until_available(self.run_context.run.id, find)
            .await
            .map_err(|error| exit_reason_of(self.run_context.run.id, &error))?;
        if let Some(stored) = &mut found {
            stored.known = self.registered_agent(&stored.run).await?;
        }
        Ok(found)
    }

    /// Returns the registered agent of a child, if it has one.
    async fn registered_agent(&self, child: &Run) -> Result<Option<Arc<RegisteredAgent>>, ExitReason> {
        if child.request.agent.is_none() {
            return Ok(None);
        }
        let registry = &self.run_context.core.registry;
        let tenant = &self.run_context.ownership.tenant;
        let known = retry_until_available(self.run_context.run.id, || registry.of_run_of_tenant(child, tenant)).await;
        known.map_err(|error| exit_reason_of(self.run_context.run.id, &error))
    }

    /// Returns a child run that is about to be stored, or was stored just now.
    fn unstored_child(
        &self,
        prepared: PreparedChild,
        order: DelegatedTask,
        at_work: RegisteredChild,
        start: Option<ChildStart>,
    ) -> UnstoredChild {
        let run = &prepared.run;
        let stop = at_work.stop().clone();
        let meter = Arc::new(Meter::new(Usage::default(), run.created_at));
        let journal = self.child_journal(run, None, at_work, &meter);
        // If it is never stored, nothing of it ends.
        journal.ended.store(true, Ordering::Relaxed);
        UnstoredChild {
            prepared: Arc::new(prepared),
            order,
            stop,
            meter,
            journal,
            start,
        }
    }

    /// Returns a child run that was stored just now.
    async fn new_child(&self, child: UnstoredChild) -> Result<Child, ExitReason> {
        let UnstoredChild {
            prepared,
            order,
            stop,
            meter,
            journal,
            start,
        } = child;
        journal.ended.store(false, Ordering::Relaxed);
        let known = self.registered_agent(&prepared.run).await?;
        let is_begun = start.is_some();
        let (machine, input) = match start {
            Some(start) => (start.machine, Some(start.input)),
            None => (Machine::default(), None),
        };
        Ok(Child {
            id: prepared.run.id,
            machine,
            order,
            stop,
            meter,
            known,
            input,
            is_begun,
            journal: Box::new(journal),
        })
    }

    /// Admits a child run in a transaction of its own. A repeated call finds the child that was admitted before.
    pub(super) async fn admit_child(
        &self,
        parent: &Machine,
        new_run: NewChildRun,
    ) -> Result<ChildAdmission, ExitReason> {
        let run_context = Arc::clone(&self.run_context);
        let now = self.run_context.core.clock.now();
        let head = parent.head.map(|head| (head, parent.position.clone()));
        let id = new_run.id;
        let order = new_run.order.clone();
        let at_work = self.register_child(id);
        let lane = self.run;
        let used = self.used(now);
        let request = Arc::new(ChildRequest {
            new_run,
            head,
            parent: lane,
            used,
            at: now,
        });
        // A repeated call finds the child that was admitted before, with the same time.
        let admit = || {
            let run_context = Arc::clone(&run_context);
            let request = Arc::clone(&request);
            let db = &self.run_context.core.db;
            db.write(move |tx| Box::pin(async move { request.admit(tx, &run_context).await }))
        };
        let admitted = retry_until_available(self.run_context.run.id, admit)
            .await
            .map_err(|error| exit_reason_of(self.run_context.run.id, &error))?
            .ok_or(ExitReason::LeaseLost)?;
        match admitted {
            AdmittedChild::Refused(reason) => Ok(ChildAdmission::Refused(reason)),
            AdmittedChild::Admitted(run) if run.created_at == now => {
                let child = self.unstored_child(PreparedChild::of(*run), order, at_work, None);
                let child = self.new_child(child).await?;
                Ok(ChildAdmission::Admitted(Box::new(child)))
            }
            AdmittedChild::Admitted(_) => match self.find_child(id).await? {
                Some((_, child)) => Ok(ChildAdmission::Admitted(Box::new(child))),
                None => Err(ExitReason::Fault(Failure::new("RuntimeError", "a child run vanished"))),
            },
        }
    }

    /// Admits child runs together with writes of their parent. Returns none if that is not possible: then nothing is stored.
    pub(super) async fn admit_children(
        &self,
        parent: &Machine,
        pending: Vec<PendingWrite>,
        requests: Vec<(NewChildRun, Option<ChildStart>)>,
    ) -> Result<Option<Vec<Child>>, ExitReason> {
        // Lists of child runs are in the order of their times.
        let others = u64::try_from(requests.len().saturating_sub(1)).unwrap_or_default();
        let now = self.run_context.core.clock.now();
        let mut created_at = now.minus(Duration::from_micros(others));
        let mut unstored = Vec::with_capacity(requests.len());
        for (new_run, start) in requests {
            let Ok(prepared) = child::prepare(&self.run_context, &new_run, created_at) else {
                return Ok(None);
            };
            created_at = created_at.plus(Duration::from_micros(1));
            let at_work = self.register_child(new_run.id);
            unstored.push(self.unstored_child(prepared, new_run.order, at_work, start));
        }
        if !self.commit_with(parent, pending, &unstored).await? {
            return Ok(None);
        }
        let mut children = Vec::with_capacity(unstored.len());
        for child in unstored {
            children.push(self.new_child(child).await?);
        }
        Ok(Some(children))
    }

    /// Finds a child run and takes it up. Returns it with its lineage.
    pub(super) async fn take_up_child(&self, child: RunId) -> Result<Option<(Lineage, Child)>, ExitReason> {
        let at_work = self.register_child(child);
        let found = self.stored_child(child).await?;
        Ok(found.map(|stored| {
            let StoredChild {
                run,
                known,
                mut machine,
                segment,
                input,
                is_to_stop,
                used,
            } = stored;
            // A failed run has notified its caller, or is about to, so it is not retried.
            let answered = machine.position.asked.iter().any(|asked| asked.answer.is_some());
            if answered && machine.position.failure.is_none() {
                machine.prepare_for_run();
            }
            let stop = at_work.stop().clone();
            if is_to_stop {
                stop.cancel();
            }
            let meter = Arc::new(Meter::new(used, self.run_context.core.clock.now()));
            let journal = Box::new(self.child_journal(&run, segment, at_work, &meter));
            let order = run.order().unwrap_or_default();
            (
                run.lineage,
                Child {
                    id: child,
                    machine,
                    order,
                    stop,
                    meter,
                    known,
                    input,
                    is_begun: false,
                    journal,
                },
            )
        }))
    }

    /// Finds a child run without taking it up.
    pub(super) async fn read_child(&self, child: RunId) -> Result<Option<ChildRecord>, ExitReason> {
        let found = self.stored_child(child).await?;
        Ok(found.map(|stored| ChildRecord {
            order: stored.run.order().unwrap_or_default(),
            lineage: stored.run.lineage,
            machine: stored.machine,
            known: stored.known,
            input: stored.input,
        }))
    }

    /// Waits until a child run that waits, or one below it, is cancelled.
    pub(super) async fn wait_for_cancellation(&self, child: RunId) -> Result<(), ExitReason> {
        // The child is registered before the read: a cancellation right after the read would be missed otherwise.
        let waits = self.run_context.parked.register(child, CancellationToken::new());
        let read = || {
            self.run_context
                .core
                .db
                .read(move |tx| Box::pin(db::runs::is_cancelled_while_waiting(tx, child)))
        };
        if !retry_until_available(self.run_context.run.id, read)
            .await
            .map_err(|error| exit_reason_of(self.run_context.run.id, &error))?
        {
            waits.stop().cancelled().await;
        }
        Ok(())
    }

    /// Returns a child run that waits, and those below it that wait.
    pub(super) async fn read_waiting_agents(&self, child: RunId) -> Result<Vec<WaitingAgent>, ExitReason> {
        let thread = self.run_context.run.thread;
        let read = || {
            let db = &self.run_context.core.db;
            db.read(move |tx| Box::pin(async move { interrupts::waiting_agents(tx, thread, child).await }))
        };
        retry_until_available(self.run_context.run.id, read)
            .await
            .map_err(|error| exit_reason_of(self.run_context.run.id, &error))
    }
}
