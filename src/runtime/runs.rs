//! The handle for runs: start and inspect them. Cancellation is in `cancel.rs`, deletion in `deletion.rs`, and the start for
//! clients that cancel by disconnecting in `unfollowed_runs.rs`.

use std::sync::Arc;
use std::time::Duration;

use super::admission::{self, AdmissionContext, Checked, UnstoredRun};
use super::admit::{Admission, AdmittedStart};
use super::cancel_action::CancelAction;
use super::dispatcher::Dispatcher;
use super::error::{BatchError, CancelError, StartError};
use super::new_run::{NewRun, may_step_at_once};
use super::prepare::{self, PlannedStep};
use super::retry::retry_while_busy;
use super::shared::Core;
use super::shared::unfollowed::CommitFlag;
use crate::db::{self, DbResult, RowAccess, Tx};
use crate::domain::id::RunId;
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome, StoredResponse};
use crate::domain::identity::Tenant;
use crate::domain::machine::Plan;
use crate::domain::run::Run;
use crate::domain::thread::Thread;
use crate::metrics::Backlog;

/// Renders runs as a stored response.
pub type RunResponse = fn(&[Run]) -> StoredResponse;

/// The handle for runs: starts, cancels and deletes them. Cheap to clone.
#[derive(Clone)]
pub struct Runs {
    pub(super) core: Arc<Core>,
    pub(super) dispatcher: Arc<Dispatcher>,
    pub(super) admission: Admission,
}

impl Runs {
    pub(super) fn new(dispatcher: &Arc<Dispatcher>) -> Self {
        Self {
            core: Arc::clone(&dispatcher.core),
            dispatcher: Arc::clone(dispatcher),
            admission: Admission::new(dispatcher),
        }
    }

    /// Starts a run, or queues it.
    ///
    /// # Errors
    /// Returns the refusal; nothing is stored then.
    pub async fn start(&self, new_run: NewRun) -> Result<Run, StartError> {
        let (new_runs, checked) = self.prepare(new_run).await?;
        self.admit(RunId::mint(), new_runs, checked, CommitFlag::default())
            .await
    }

    /// Makes the checks before the admission of a run.
    pub(super) async fn prepare(&self, new_run: NewRun) -> Result<(Arc<Vec<NewRun>>, Vec<Checked>), StartError> {
        let new_runs = Arc::new(vec![new_run]);
        let prepared = self.admission.prepare(&new_runs).await;
        let checked = prepared.map_err(|refusal| refusal.error)?;
        Ok((new_runs, checked))
    }

    /// Admits the run of a request that was prepared.
    pub(super) async fn admit(
        &self,
        id: RunId,
        new_runs: Arc<Vec<NewRun>>,
        checked: Vec<Checked>,
        written: CommitFlag,
    ) -> Result<Run, StartError> {
        let dispatcher = Arc::clone(&self.dispatcher);
        let admitted = self.admission.admit(checked, move |tx, context| {
            Box::pin(async move {
                let admitted = admit(tx, &dispatcher, id, &new_runs[0], &context, false).await;
                if admitted.is_ok() {
                    written.set();
                }
                admitted
            })
        });
        admitted.await
    }

    /// Starts a run once per key. `shown` renders the stored response to repeated requests; without it, a repeated
    /// request follows the same run.
    ///
    /// # Errors
    /// Returns the refusal; nothing is stored then, not even the key.
    pub async fn start_once(
        &self,
        new_run: NewRun,
        key: IdempotencyKey,
        shown: Option<RunResponse>,
    ) -> Result<IdempotentOutcome<Run>, StartError> {
        let new_runs = Arc::new(vec![new_run]);
        let checked = match self.admission.prepare(&new_runs).await {
            Ok(checked) => checked,
            Err(refusal) => return self.core.stored_response(Some(key)).await?.ok_or(refusal.error),
        };
        let dispatcher = Arc::clone(&self.dispatcher);
        let admitted = self.admission.admit_by(checked, move |context| {
            admit_with_key(
                Arc::clone(&dispatcher),
                key.clone(),
                Arc::clone(&new_runs),
                context,
                shown,
            )
        });
        admitted.await
    }

    /// Starts runs that create their own threads: all of them or none, and once per key. `shown` renders the stored
    /// response to repeated requests. The runs start as slots become free.
    ///
    /// # Errors
    /// Returns the refusal of the first request that is refused, with its position; nothing is stored then.
    pub async fn start_all(
        &self,
        new_runs: Vec<NewRun>,
        key: Option<IdempotencyKey>,
        shown: RunResponse,
    ) -> Result<IdempotentOutcome<Vec<Run>>, BatchError> {
        for (at, new_run) in new_runs.iter().enumerate() {
            admission::check_stateless(new_run).map_err(|error| BatchError { at, error })?;
        }
        let new_runs = Arc::new(new_runs);
        let checked = match self.admission.prepare(&new_runs).await {
            Ok(checked) => checked,
            Err(refusal) => return self.core.stored_response(key).await?.ok_or(refusal),
        };
        let context = self.admission.context(checked);
        let db = self.core.db.clone();
        let attempt = move || {
            let db = db.clone();
            let key = key.clone();
            let new_runs = Arc::clone(&new_runs);
            let context = context.clone();
            async move {
                let write = db.write_once(
                    key,
                    context.now,
                    move |runs: &Vec<Run>| shown(runs),
                    move |tx| Box::pin(async move { admit_all(tx, &new_runs, &context).await }),
                );
                write.await
            }
        };
        let runs = retry_while_busy(attempt).await?;
        self.dispatcher.wake_for_queued();
        Ok(runs)
    }

    /// Waits until no run and no job is at work in this process.
    pub async fn wait_until_idle(&self) {
        self.dispatcher.active.wait_until_ended(|_| true).await;
        self.core.jobs.wait_until_idle().await;
    }

    /// Releases the lease, so that another process may continue the unfinished runs at once.
    pub async fn close(&self) {
        if let Err(error) = self.dispatcher.release_lease().await {
            tracing::warn!(%error, "could not release the lease");
        }
    }

    /// Returns the number of runs at work and in the queue.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn backlog(&self) -> DbResult<Backlog> {
        let now = self.core.clock.now();
        let read = self
            .core
            .db
            .read(move |tx| Box::pin(async move { Ok((db::runs::queue(tx, now).await?, db::jobs::count(tx).await?)) }));
        // The queue is one of all tenants together.
        let (queue, jobs) = RowAccess::Server.scope(read).await?;
        let oldest = queue.oldest.map_or(Duration::ZERO, |due| now.since(due));
        let at_work = self.dispatcher.active.count();
        Ok(Backlog {
            at_work,
            slots: self.dispatcher.slot_count,
            queued: queue.due,
            running: queue.running,
            oldest,
            jobs,
        })
    }

    /// Cancels a run and waits until it is not at work in this process.
    pub(super) async fn stop_and_wait(&self, run: &Run) -> DbResult<()> {
        match self.cancel(run.thread, run.id, CancelAction::Interrupt).await {
            Ok(()) | Err(CancelError::NoRun | CancelError::Over | CancelError::NoUndo) => {}
            Err(CancelError::Fault(error)) => return Err(error),
        }
        let id = run.id;
        self.dispatcher.active.wait_until_ended(|other| other == id).await;
        Ok(())
    }

    /// Returns the nodes of the agent of a run, by the definition with which the run began. The tenant is that of its thread.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn plan_of_run(&self, run: &Run, tenant: &Tenant) -> DbResult<Option<Plan>> {
        // A subagent is described in the definition of the next agent above it that has one.
        let mut owner = run.clone();
        while let (None, Some(parent)) = (&owner.request.agent, owner.lineage.parent) {
            let read = self.core.db.read(move |tx| Box::pin(db::runs::get_by_id(tx, parent)));
            let Some(found) = read.await? else { return Ok(None) };
            owner = found;
        }
        let Some(known) = self.core.registry.of_run(&owner, Some(tenant)).await? else {
            return Ok(None);
        };
        let levels = run.lineage.depth.saturating_sub(owner.lineage.depth);
        if levels == 0 {
            return Ok(Some(known.agent().plan.clone()));
        }
        let found = known
            .agent()
            .subagents()
            .and_then(|all| all.get(run.lineage.agent(), levels));
        Ok(found.map(|agent| agent.plan.clone()))
    }

    /// Returns the nodes of the agent that worked on a thread last, as it is defined now; none if it does not exist for the
    /// tenant of the thread.
    pub fn plan_on(&self, thread: &Thread) -> Option<Plan> {
        let known = self.core.registry.last_on(thread)?;
        Some(known.agent().plan.clone())
    }
}

/// Admits a run. If repeated requests follow the run, its thread is kept for them. If the run begins at once, the same
/// transaction stores its first step, or delivers the answers that it brings, where that is possible.
async fn admit(
    tx: &mut Tx<'_>,
    dispatcher: &Dispatcher,
    id: RunId,
    new_run: &NewRun,
    context: &AdmissionContext,
    is_followed: bool,
) -> Result<AdmittedStart, StartError> {
    let mut unstored = admission::decide(tx, id, new_run, 0, context).await?;
    if is_followed {
        unstored.keep_for_key();
    }
    let answered = unstored.answered.take();
    let planned = plan_first_step(tx, dispatcher, &mut unstored).await?;
    let first_seq = planned.as_ref().map(|planned| planned.first);
    let mut start = AdmittedStart::from(unstored.store(tx, first_seq).await?);
    if let Some(planned) = planned {
        start.first_step = Some(Box::new(planned.store(tx).await?));
    } else if let Some(answered) = answered.filter(|_| start.admitted.claimed) {
        start.continued = Box::pin(prepare::continue_at_once(tx, &start.admitted.run, answered)).await?;
    }
    Ok(start)
}

/// Plans the first step of a run for the transaction that admits it, if the run is claimed and needs nothing else for
/// that.
async fn plan_first_step(
    tx: &mut Tx<'_>,
    dispatcher: &Dispatcher,
    unstored: &mut UnstoredRun,
) -> DbResult<Option<PlannedStep>> {
    if !may_step_at_once(&unstored.admitted.run.request) {
        return Ok(None);
    }
    let Some(claim) = unstored.admitted.claim() else {
        return Ok(None);
    };
    let run_context = Arc::new(dispatcher.run_context(claim));
    let log_end = unstored.log_end.take();
    PlannedStep::plan(tx, run_context, unstored.admitted.is_thread_new, log_end).await
}

/// Admits a run once per key. `shown` renders the response that is stored; without it, a repeated request follows the run.
async fn admit_with_key(
    dispatcher: Arc<Dispatcher>,
    key: IdempotencyKey,
    new_runs: Arc<Vec<NewRun>>,
    context: AdmissionContext,
    shown: Option<RunResponse>,
) -> Result<IdempotentOutcome<AdmittedStart>, StartError> {
    let now = context.now;
    let is_followed = shown.is_none();
    let kept = move |start: &AdmittedStart| match shown {
        Some(shown) => shown(std::slice::from_ref(&start.admitted.run)),
        None => StoredResponse::Run {
            thread: start.admitted.run.thread,
            run: start.admitted.run.id,
        },
    };
    let db = dispatcher.core.db.clone();
    let write = db.write_once(Some(key), now, kept, move |tx| {
        Box::pin(async move { admit(tx, &dispatcher, RunId::mint(), &new_runs[0], &context, is_followed).await })
    });
    write.await
}

/// Admits all runs of a batch. The refusal of one rolls all of them back.
async fn admit_all(tx: &mut Tx<'_>, new_runs: &[NewRun], context: &AdmissionContext) -> Result<Vec<Run>, BatchError> {
    let mut runs = vec![];
    for (at, new_run) in new_runs.iter().enumerate() {
        let admitted = admission::start_as(tx, RunId::mint(), new_run, at, context).await;
        runs.push(admitted.map_err(|error| BatchError { at, error })?.run);
    }
    Ok(runs)
}
