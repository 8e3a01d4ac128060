//! Admits runs and starts them, or leaves them in the queue. `precheck` makes slow checks before the transaction. A run that
//! clients start, and that begins at once, takes its [first step](FirstStep) in the same transaction.
//!
//! The process that stores a run as running must also drive it. Otherwise no process would drive the run until that
//! process ends. Clients may disconnect in between, so admission runs in a [task of its own](Core::run_detached). If the
//! database does not say whether the run is stored, the dispatch loop looks for it.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use super::admission::{AdmissionContext, Admitted, Checked};
use super::dispatcher::Dispatcher;
use super::error::{BatchError, StartError};
use super::new_run::NewRun;
use super::prepare::{ContinuedWork, FirstStep};
use super::resource_ref::ResourceRef;
use super::retry::{TransactionError, retry_while_busy};
use super::shared::Core;
use super::{audit, log_lines, stored_bytes};
use crate::db::{DbError, Tx};
use crate::domain::access::{Action, Ownership, may_prioritise};
use crate::domain::idempotency::IdempotentOutcome;
use crate::domain::identity::Identity;
use crate::domain::run::{Run, RunRequest};

mod precheck;

/// Admits runs and starts them, or leaves them in the queue. Cheap to clone.
#[derive(Clone)]
pub(super) struct Admission {
    core: Arc<Core>,
    dispatcher: Arc<Dispatcher>,
}

impl Admission {
    pub(super) fn new(dispatcher: &Arc<Dispatcher>) -> Self {
        Self {
            core: Arc::clone(&dispatcher.core),
            dispatcher: Arc::clone(dispatcher),
        }
    }

    /// Returns the context of a run that has to wait for a slot.
    pub(super) fn context(&self, checked: Vec<Checked>) -> AdmissionContext {
        AdmissionContext::queued(&self.core, checked)
    }

    /// Reserves room in the queue, except for runs that bring an answer, and makes the slow checks.
    ///
    /// # Errors
    /// Returns the refusal of the first request that is refused, with its position.
    pub(super) async fn prepare(&self, new_runs: &Arc<Vec<NewRun>>) -> Result<Vec<Checked>, BatchError> {
        for (at, new_run) in new_runs.iter().enumerate() {
            let checked = self.core.webhooks.check(&new_run.request);
            checked.map_err(|error| BatchError {
                at,
                error: error.into(),
            })?;
            let thread = new_run.target.thread();
            let resource = thread.map_or(ResourceRef::Collection, ResourceRef::Thread);
            let checked = check_priority(
                &self.core,
                &new_run.caller,
                Action::ThreadsCreateRun,
                resource,
                &new_run.request,
            );
            checked.map_err(|error| BatchError { at, error })?;
        }
        // Requests that are admitted together have the same caller. An answer continues a run that was accepted, which
        // may be that of another user.
        let first = new_runs
            .iter()
            .enumerate()
            .find(|(_, new_run)| new_run.resume.is_none());
        if let Some((at, first)) = first {
            let checked = stored_bytes::check(&self.core, &Ownership::of(&first.caller));
            checked.map_err(|reached| BatchError {
                at,
                error: reached.into(),
            })?;
        }
        let places = new_runs.iter().filter(|new_run| new_run.resume.is_none()).count();
        if places > 0 {
            let taken = self.core.queue.take_places(&self.core.db, places).await;
            taken.map_err(|error| BatchError { at: 0, error })?;
        }
        self.precheck(new_runs).await
    }

    /// Runs a job that admits a run in one transaction; see [`Admission::admit_by`].
    ///
    /// # Errors
    /// Returns the error of the job, which is rolled back, or [`DbError::Closed`] when the server stopped before.
    pub(super) async fn admit<A, E, J>(&self, checked: Vec<Checked>, job: J) -> Result<A::Started, E>
    where
        A: MayStart,
        E: From<DbError> + TransactionError + Send + 'static,
        J: for<'t> FnOnce(&'t mut Tx<'_>, AdmissionContext) -> BoxFuture<'t, Result<A, E>> + Clone + Send + 'static,
    {
        let db = self.core.db.clone();
        let transaction = move |context: AdmissionContext| {
            let db = db.clone();
            let job = job.clone();
            async move { db.write(move |tx| job(tx, context)).await }
        };
        self.admit_by(checked, transaction).await
    }

    /// Admits a run by a transaction, then starts that run if there is a free slot. This is completed even if the caller
    /// is dropped meanwhile, and the transaction is repeated if another one is in its way.
    ///
    /// # Errors
    /// Returns the error of the transaction, or [`DbError::Closed`] when the server stopped before.
    pub(super) async fn admit_by<A, E, F>(
        &self,
        checked: Vec<Checked>,
        transaction: impl Fn(AdmissionContext) -> F + Send + 'static,
    ) -> Result<A::Started, E>
    where
        A: MayStart,
        E: From<DbError> + TransactionError + Send + 'static,
        F: Future<Output = Result<A, E>> + Send + 'static,
    {
        let admission = self.clone();
        let work = self.core.run_detached(async move {
            let _in_progress = admission.dispatcher.uncertain_claims.begin_admission();
            let (slot, context) = admission.with_slot(checked);
            let admitted = retry_while_busy(move || transaction(context.clone())).await;
            let admitted = admitted.inspect_err(|error| {
                if let Some(fault) = error.db_error() {
                    admission.dispatcher.admission_has_failed(fault);
                }
            })?;
            Ok(admitted.started(|start| admission.start_or_queue(start, slot)))
        });
        work.await
    }

    /// Takes a free slot, if there is one, and returns the context of a run that may start in it. A server that stops has
    /// none.
    fn with_slot(&self, checked: Vec<Checked>) -> (Option<TakenSlot>, AdmissionContext) {
        let permit = match self.core.shutdown.soft().is_cancelled() {
            true => None,
            false => Arc::clone(&self.dispatcher.slots).try_acquire_owned().ok(),
        };
        let worker = permit.is_some().then_some(self.core.id);
        let context = AdmissionContext {
            worker,
            ..self.context(checked)
        };
        let slot = permit.map(|permit| TakenSlot {
            permit: Some(permit),
            dispatcher: Arc::clone(&self.dispatcher),
        });
        (slot, context)
    }

    /// Starts a run that was admitted, or leaves it in the queue, and stops the run that it displaces.
    pub(super) fn start_or_queue(&self, start: AdmittedStart, slot: Option<TakenSlot>) -> Run {
        let AdmittedStart {
            admitted,
            first_step,
            continued,
        } = start;
        log_lines::interrupts_answered(&admitted.run);
        if let Some(first_step) = first_step {
            self.dispatcher
                .begin_after(first_step, slot.and_then(TakenSlot::into_permit));
        } else if let Some(claim) = admitted.claim() {
            self.dispatcher
                .begin_admitted(claim, continued, slot.and_then(TakenSlot::into_permit));
        } else {
            drop(slot);
            self.dispatcher.wake_for_queued();
        }
        if let Some((old, action)) = admitted.displaced {
            self.dispatcher.stop(old, action);
        }
        admitted.run
    }
}

/// Checks whether a caller may give the runs of a request their priority. A refusal is recorded.
///
/// # Errors
/// [`StartError::PriorityNotAllowed`].
pub(super) fn check_priority(
    core: &Arc<Core>,
    caller: &Identity,
    action: Action,
    resource: ResourceRef,
    request: &RunRequest,
) -> Result<(), StartError> {
    if request.priority == 0 || may_prioritise(caller) {
        return Ok(());
    }
    audit::record_refusal(core, caller, action, resource.to_string(), &[]);
    Err(StartError::PriorityNotAllowed)
}

/// A slot that was taken before it is known whether a run starts in it. If none does, a queued run may.
pub(super) struct TakenSlot {
    permit: Option<OwnedSemaphorePermit>,
    dispatcher: Arc<Dispatcher>,
}

impl TakenSlot {
    /// Returns the slot for a run that starts.
    fn into_permit(mut self) -> Option<OwnedSemaphorePermit> {
        self.permit.take()
    }
}

impl Drop for TakenSlot {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            drop(permit);
            self.dispatcher.wake_for_slot();
        }
    }
}

/// A run that was admitted, with what the same transaction has done of its work.
pub(super) struct AdmittedStart {
    pub(super) admitted: Admitted,
    /// The first step of a claimed run, if it is stored.
    pub(super) first_step: Option<Box<FirstStep>>,
    /// The work that a claimed run continues, if the answers to it are delivered.
    pub(super) continued: Option<Box<ContinuedWork>>,
}

impl From<Admitted> for AdmittedStart {
    fn from(admitted: Admitted) -> Self {
        Self {
            admitted,
            first_step: None,
            continued: None,
        }
    }
}

/// The result of a transaction that may have admitted a run.
pub(super) trait MayStart: Send + 'static {
    /// The type of the result after the run was started or queued.
    type Started: Send + 'static;

    /// Starts the run, if there is one.
    fn started(self, begin: impl FnOnce(AdmittedStart) -> Run) -> Self::Started;
}

impl MayStart for AdmittedStart {
    type Started = Run;

    fn started(self, begin: impl FnOnce(AdmittedStart) -> Run) -> Run {
        begin(self)
    }
}

impl MayStart for IdempotentOutcome<AdmittedStart> {
    type Started = IdempotentOutcome<Run>;

    fn started(self, begin: impl FnOnce(AdmittedStart) -> Run) -> IdempotentOutcome<Run> {
        self.map(begin)
    }
}

impl MayStart for Option<Admitted> {
    type Started = Option<Run>;

    fn started(self, begin: impl FnOnce(AdmittedStart) -> Run) -> Option<Run> {
        self.map(|admitted| begin(admitted.into()))
    }
}

impl<T: Send + 'static> MayStart for (T, Option<Admitted>) {
    type Started = (T, Option<Run>);

    fn started(self, begin: impl FnOnce(AdmittedStart) -> Run) -> Self::Started {
        let (value, admitted) = self;
        (value, admitted.started(begin))
    }
}
