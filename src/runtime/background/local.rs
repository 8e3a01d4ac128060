//! Tasks that agents of this server do.

use std::time::Duration;

use futures::future::BoxFuture;

use super::room::{self, TaskParent};
use super::{
    PARENT_RUN, STOPS_WITHIN, STRANGER, TaskError, WAITS_ALREADY, fault, ids, own_task, record_of, sight, strategy,
    told, wish_for, wish_to_give_up,
};
use crate::db::{self, Tx};
use crate::domain::background::{TaskRecord, TaskRun, TaskSnapshot, TaskStatus};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::{Multitask, Run};
use crate::runtime::admission::{self, AdmissionContext, Admitted};
use crate::runtime::{CancelAction, CancelError, NewRun, Runs, Target};
use crate::tool::Scope;
use crate::tool::background::BackgroundOrder;

/// How often it is looked whether a cancelled task has stopped.
const LOOK: Duration = Duration::from_millis(20);

/// What came of asking for a run.
enum Begun {
    /// There is one now.
    Now(Box<Admitted>),
    /// The same call asked for it before.
    Before(Box<Run>),
}

impl Runs {
    /// Begins a task on this server.
    pub(super) async fn start_task(&self, scope: &Scope, order: BackgroundOrder<'_>) -> Result<TaskRun, String> {
        let (thread, run) = ids(scope)?;
        let wish = wish_for(scope, order, thread, Multitask::Reject);
        self.0
            .webhooks
            .check(&wish.request)
            .map_err(|invalid| told(&invalid.into()))?;
        let asker = TaskParent::of(scope);
        let record = record_of(scope, order, thread);
        self.begun(move |tx, context| Box::pin(async move { begin(tx, (run, &wish), record, &asker, &context).await }))
            .await
    }

    /// Gives a task on this server a further message.
    pub(super) async fn update_task(
        &self,
        scope: &Scope,
        task: ThreadId,
        order: BackgroundOrder<'_>,
    ) -> Result<TaskRun, String> {
        let (_, run) = ids(scope)?;
        let wish = wish_for(scope, order, task, strategy(order.agent.update_strategy));
        self.0
            .webhooks
            .check(&wish.request)
            .map_err(|invalid| told(&invalid.into()))?;
        let asker = TaskParent::of(scope);
        self.begun(move |tx, context| Box::pin(async move { go_on(tx, (run, &wish), task, &asker, &context).await }))
            .await
    }

    /// How a task on this server stands.
    pub(super) async fn look_at_task(&self, task: ThreadId) -> Result<TaskSnapshot, String> {
        self.0
            .db
            .read(move |tx| Box::pin(async move { sight::look(tx, task).await }))
            .await
            .map_err(fault)
    }

    /// Stops a task on this server: its runs, those that wait for their turn first, or what it waits for.
    pub(super) async fn cancel_task(&self, scope: &Scope, record: TaskRecord) -> Result<TaskSnapshot, String> {
        let task = record.task;
        let seen = self.look_at_task(task).await?;
        if seen.status == TaskStatus::Waiting {
            return self.give_up_task(scope, &record, seen).await;
        }
        if seen.status.is_final() {
            return Ok(seen);
        }
        let in_flight = self.0.db.read(move |tx| Box::pin(db::runs::in_flight(tx, task)));
        for run in in_flight.await.map_err(fault)?.into_iter().rev() {
            match self.cancel(task, run.id, CancelAction::Interrupt).await {
                Ok(()) | Err(CancelError::NoRun | CancelError::Over | CancelError::NoUndo) => {}
                Err(CancelError::Fault(error)) => return Err(fault(error)),
            }
        }
        let began = tokio::time::Instant::now();
        loop {
            let seen = self.look_at_task(task).await?;
            if seen.status.is_outcome() {
                return Ok(seen);
            }
            if began.elapsed() >= STOPS_WITHIN {
                // It was told to stop and cannot help but do so.
                return Ok(TaskSnapshot {
                    status: TaskStatus::Cancelled,
                    ..seen
                });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Gives up what a task waits for: nobody is asked any more.
    async fn give_up_task(
        &self,
        scope: &Scope,
        record: &TaskRecord,
        seen: TaskSnapshot,
    ) -> Result<TaskSnapshot, String> {
        let (_, run) = ids(scope)?;
        let wish = wish_to_give_up(scope, record.task, &record.graph_id);
        let begun = self.begun(move |tx, context| {
            Box::pin(async move {
                if let Some(before) = db::runs::get_by_id(tx, run).await? {
                    return Ok(Begun::Before(Box::new(before)));
                }
                let admitted = admission::start_as(tx, run, &wish, 0, &context).await?;
                Ok(Begun::Now(Box::new(admitted)))
            })
        });
        begun.await?;
        Ok(TaskSnapshot {
            status: TaskStatus::Cancelled,
            interrupts: vec![],
            ..seen
        })
    }

    /// Writes down that a run begins, unless the same call asked for it before, and takes it up.
    async fn begun<J>(&self, job: J) -> Result<TaskRun, String>
    where
        J: for<'t> FnOnce(&'t mut Tx<'_>, AdmissionContext) -> BoxFuture<'t, Result<Begun, TaskError>>,
        J: Send + 'static,
    {
        let work = self.seen_through(move |runs| async move {
            let (permit, context) = runs.with_slot(vec![]);
            let begun = runs.0.db.write(move |tx| job(tx, context)).await?;
            runs.0.jobs.has_tasks(true);
            Ok::<_, TaskError>(match begun {
                Begun::Now(admitted) => runs.take_up(*admitted, permit),
                Begun::Before(run) => *run,
            })
        });
        let run = work.await.map_err(TaskError::text)?;
        Ok(TaskRun {
            thread: run.thread.to_string(),
            run: run.id.to_string(),
            status: TaskStatus::from(run.status),
        })
    }
}

/// Begins a task, if that is allowed. Everything is checked and counted under the lock of the thread that asks, so that
/// calls side by side see each other.
async fn begin(
    tx: &mut Tx<'_>,
    (id, wish): (RunId, &NewRun),
    record: TaskRecord,
    asker: &TaskParent,
    context: &AdmissionContext,
) -> Result<Begun, TaskError> {
    if let Some(before) = db::runs::get_by_id(tx, id).await? {
        return Ok(Begun::Before(Box::new(before)));
    }
    let (ancestry, not_over) = room::admit(tx, asker, &record, context.now).await?;
    let record = TaskRecord {
        ancestry: ancestry.clone(),
        ..record
    };
    let mut wish = wish.clone();
    wish.request.background = Some(ancestry);
    let admitted = admission::start_as(tx, id, &wish, 0, context).await;
    let admitted = admitted.inspect_err(|_| asker.budget.not_begun(not_over))?;
    db::background::insert(tx, &record).await?;
    Ok(Begun::Now(Box::new(admitted)))
}

/// Gives a task a further message, if that is allowed.
async fn go_on(
    tx: &mut Tx<'_>,
    (id, wish): (RunId, &NewRun),
    task: ThreadId,
    asker: &TaskParent,
    context: &AdmissionContext,
) -> Result<Begun, TaskError> {
    if let Some(before) = db::runs::get_by_id(tx, id).await? {
        return Ok(Begun::Before(Box::new(before)));
    }
    db::threads::lock(tx, asker.thread).await?;
    let Some(record) = own_task(tx, task, asker.thread).await? else {
        return Err(TaskError::Refused(STRANGER.to_owned()));
    };
    let in_flight = db::runs::in_flight(tx, task).await?;
    let mine = serde_json::json!(asker.run);
    let is_mine = |run: &Run| run.metadata.get(PARENT_RUN) == Some(&mine);
    let waits = in_flight
        .iter()
        .any(|run| TaskStatus::from(run.status) == TaskStatus::Pending && is_mine(run));
    if wish.request.multitask == Multitask::Enqueue && waits {
        return Err(TaskError::Refused(WAITS_ALREADY.to_owned()));
    }
    if in_flight.is_empty() {
        room::again(tx, asker, &record.ancestry).await?;
    }
    let mut wish = wish.clone();
    wish.target = Target::Thread(task);
    wish.request.background = Some(record.ancestry);
    let admitted = admission::start_as(tx, id, &wish, 0, context).await?;
    db::background::watch(tx, task).await?;
    Ok(Begun::Now(Box::new(admitted)))
}
