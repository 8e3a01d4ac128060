//! The work on one run: the task that drives it from the claim to its end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::Dispatcher;
use super::run_end::LOST;
use crate::agent::assemble::RegisteredAgent;
use crate::agent::{Breakpoints, ExitReason, Loop, LoopOutcome};
use crate::db::{self, DbError, RowAccess};
use crate::domain::machine::{Failure, Machine};
use crate::domain::state_size::StateSize;
use crate::runtime::active_runs::ActiveRun;
use crate::runtime::interrupts::StoredDecisions;
use crate::runtime::journal::LaneJournal;
use crate::runtime::prepare::{self, BegunRun, ContinuedWork, FirstStep, ReadyMachine};
use crate::runtime::run_context::{RunContext, exit_reason_of};

/// The number of crashes in a row without progress after which a run is not retried.
const MAX_CRASHES: u32 = 8;

/// The part of the work on a run that the transaction that admitted it has done.
#[derive(Default)]
pub(super) struct AdmittedWork {
    /// The first step, if it is stored.
    pub(super) first_step: Option<Box<FirstStep>>,
    /// The work that the run continues, if the answers to it are delivered.
    pub(super) continued: Option<Box<ContinuedWork>>,
}

impl Dispatcher {
    /// Starts the task that drives a run; `fresh` when no process has done so before. `admitted` is the part of the work that
    /// is done, and `permit` the slot of the run.
    pub(super) fn start_driving(
        self: &Arc<Self>,
        run_context: Arc<RunContext>,
        fresh: bool,
        admitted: AdmittedWork,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let run = &run_context.run;
        let AdmittedWork {
            mut first_step,
            continued,
        } = admitted;
        let stop = self.core.shutdown.hard().child_token();
        let leave = self.core.shutdown.soft().child_token();
        let active = ActiveRun::new(stop.clone(), leave.clone());
        let late = self.active.register(run.id, active);
        if fresh {
            self.core
                .metrics
                .work()
                .run_started(run.lineage.agent(), self.core.clock.now().since(run.due_at));
        }
        let this = Arc::clone(self);
        let id = run.id;
        let holder = run_context.log.expect_run(id, fresh);
        // Here already, so that a stream of the run begins with these events.
        let mut begun = match &late {
            Some(_) => None,
            None => first_step.take().map(|step| Box::new(step.publish())),
        };
        // Whoever starts the run, it works for the tenant of its thread.
        let access = RowAccess::of_owner(&run_context.ownership);
        // Boxed at once: what carries it to its task would copy its ten thousand bytes again and again.
        let driving = Box::pin(async move {
            if let Some(active) = late {
                this.active.register_later(id, active).await;
                begun = first_step.map(|step| Box::new(step.publish()));
            }
            let work = AssertUnwindSafe(this.work(&run_context, begun, continued, stop, leave)).catch_unwind();
            if work.await.is_err() {
                tracing::error!(run = %id, "a run panicked");
                let text = format!("The server failed. Its log has the cause under the id of the run, {id}.");
                let failure = Failure::new("InternalError", text);
                this.fail(&run_context, &Machine::default(), failure).await;
            }
            run_context.log.close(holder);
            drop(permit);
            this.active.remove(id);
            this.wake_for_slot();
            this.core.jobs.run_ended(run_context.run.request.background.is_some());
            this.delete_temporary_thread(&run_context).await;
        });
        drop(self.core.spawn("run", access.scope(driving)));
    }

    /// Drives a run to its end and stores the end, unless the loop itself did.
    async fn work(
        self: &Arc<Self>,
        run_context: &Arc<RunContext>,
        begun: Option<Box<BegunRun>>,
        continued: Option<Box<ContinuedWork>>,
        stop: CancellationToken,
        leave: CancellationToken,
    ) {
        let run = &run_context.run;
        // The crashes are checked before anything is loaded, since loading may be the cause of the crash.
        if run_context.crashes >= MAX_CRASHES {
            let text = format!("The server stopped {MAX_CRASHES} times while it ran this run; it is not tried again.");
            return self
                .fail(
                    run_context,
                    &Machine::default(),
                    Failure::new("TooManyAttemptsError", text),
                )
                .await;
        }
        let Some(ready) = self.make_ready(run_context, begun.map(|begun| *begun), continued).await else {
            return;
        };
        let ReadyMachine {
            known,
            mut machine,
            notes,
            segment,
            plan,
            only_notes,
            budget,
            remembers,
            origin,
        } = ready;
        let journal = LaneJournal::main(Arc::clone(run_context), segment, stop.clone(), Some(budget.clone()));
        let agent = if run.levels() == Some(0) {
            known.without_delegations()
        } else {
            Arc::clone(known.agent())
        };
        let mut scope = self.scope(run_context, &known, origin, stop, budget);
        if remembers {
            scope.remembered = Arc::new(StoredDecisions(self.core.db.clone()));
        }
        let driving = Loop {
            state_size: StateSize::new(self.core.sizes),
            agent: &agent,
            plan,
            lineage: &run.lineage,
            scope,
            journal: &journal,
            breakpoints: Breakpoints {
                before: run.request.interrupt_before.clone(),
                after: run.request.interrupt_after.clone(),
            },
            leave,
            base: 0,
        };
        let driven = if only_notes {
            driving.close(&machine, notes).await
        } else if let Some(request) = run.request.compaction {
            Box::pin(driving.compact(&mut machine, notes, request)).await
        } else {
            driving.drive(&mut machine, notes).await
        };
        match driven {
            Ok(LoopOutcome::Done | LoopOutcome::Failed(_) | LoopOutcome::Parked(_) | LoopOutcome::Paused) => {}
            Err(ExitReason::LeaseLost) => tracing::warn!(run = %run.id, "{LOST}"),
            Err(ExitReason::Unavailable) => self.give_back(run_context).await,
            Err(ExitReason::Fault(failure)) => self.fail(run_context, &machine, failure).await,
            Err(ExitReason::Cancelled) => self.cancelled(run_context, &machine, &journal).await,
        }
    }

    /// Makes a run ready to be driven. If that fails, the run is ended, or released when the database did not answer.
    async fn make_ready(
        &self,
        run_context: &Arc<RunContext>,
        begun: Option<BegunRun>,
        continued: Option<Box<ContinuedWork>>,
    ) -> Option<ReadyMachine> {
        let opened = match begun {
            Some(begun) => prepare::go_on(run_context, begun).await,
            None => {
                let known = self.load_agent(run_context).await?;
                match prepare::find_obstacle(run_context).await {
                    Ok(None) => {}
                    Ok(Some(obstacle)) => {
                        self.fail(run_context, &Machine::default(), obstacle).await;
                        return None;
                    }
                    Err(error) => {
                        self.not_loaded(run_context, "could not read the interrupts of a thread", &error)
                            .await;
                        return None;
                    }
                }
                prepare::open(run_context, known, continued).await
            }
        };
        match opened {
            Ok(ready) => Some(ready),
            Err(error) => {
                self.not_loaded(run_context, "could not load the state of a run", &error)
                    .await;
                None
            }
        }
    }

    /// Returns the agent of a run. Without one the run is ended, or released when the database did not answer.
    async fn load_agent(&self, run_context: &Arc<RunContext>) -> Option<Arc<RegisteredAgent>> {
        let run = &run_context.run;
        let tenant = &run_context.ownership.tenant;
        match self.core.registry.of_run_of_tenant(run, tenant).await {
            Ok(Some(known)) => return Some(known),
            Ok(None) => {
                let text = "The agent of this run is not configured on this server any more.".to_owned();
                let failure = Failure::new("AgentNotFoundError", text);
                self.fail(run_context, &Machine::default(), failure).await;
            }
            Err(error) => {
                let what = "could not load the definition of the agent of a run";
                self.not_loaded(run_context, what, &error).await;
            }
        }
        None
    }

    /// Ends a run that cannot be read, or releases it when the database did not answer. `what` says what has failed.
    async fn not_loaded(&self, run_context: &Arc<RunContext>, what: &'static str, error: &DbError) {
        if !error.is_out_of_reach() {
            tracing::error!(run = %run_context.run.id, %error, "{what}");
        }
        if error.is_corrupt() {
            return self
                .fail(run_context, &Machine::default(), db::runs::unreadable(error))
                .await;
        }
        match exit_reason_of(run_context.run.id, error) {
            ExitReason::Fault(failure) => self.fail(run_context, &Machine::default(), failure).await,
            ExitReason::Unavailable | ExitReason::LeaseLost | ExitReason::Cancelled => {
                self.give_back(run_context).await;
            }
        }
    }
}
