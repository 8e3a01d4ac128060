//! Wakes idle agents when something has come of their background tasks.
//!
//! A run is started on the thread of the agent, with what there is to tell as its input, in the transaction that notes that
//! it was told. Before, the state of the agent is asked whether it knows already: an agent that was at work when the task
//! ended has seen it by itself. So an outcome is told once, whichever of them is first and on however many servers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::lookout::Lookout;
use super::{sight, wish};
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{BackgroundTask, FIELD, Sight, TaskRecord, TaskRun, TaskStatus};
use crate::domain::checkpoint::Lane;
use crate::domain::id::ThreadId;
use crate::domain::run::{Multitask, RunRequest};
use crate::domain::state::State;
use crate::domain::thread::ThreadStatus;
use crate::runtime::admission::{self, Admitted, House, Occasion};
use crate::runtime::{AssistantRef, Runs, Target, Wish};

/// How often it is looked whether there is something to tell, even if nobody rang: another server may have ended a task.
const LOOK: Duration = Duration::from_secs(1);
/// How many agents are looked up at once.
const AT_ONCE: i64 = 64;

/// Says when it is worth looking whether an agent is to be woken.
#[derive(Debug, Default)]
pub(in crate::runtime) struct Waker {
    bell: Notify,
    /// Whether there may be tasks whose outcome is not known.
    armed: AtomicBool,
    /// Says when tasks on other servers are to be looked at.
    pub(super) lookout: Lookout,
}

impl Waker {
    /// Notes that there is a task.
    pub(super) fn arm(&self) {
        self.armed.store(true, Ordering::Release);
    }

    /// Notes that something has come of a task.
    pub(super) fn ring(&self) {
        self.bell.notify_one();
    }

    /// Notes that a run has ended; `of_task` if it was that of a task.
    pub(in crate::runtime) fn run_ended(&self, of_task: bool) {
        if of_task || self.armed.load(Ordering::Acquire) {
            self.bell.notify_one();
        }
    }
}

impl Runs {
    /// Wakes agents as something comes of their tasks. Ends with the server.
    pub(in crate::runtime) async fn keep_waking(self) {
        let soft = self.0.shutdown.soft().clone();
        while !soft.is_cancelled() {
            if let Err(error) = self.wake_parents().await {
                tracing::warn!(%error, "could not look for background tasks that are over");
            }
            soft.run_until_cancelled(timeout(LOOK, self.0.waker.bell.notified()))
                .await;
        }
    }

    /// Goes once through all agents that may have to be woken. One that cannot be woken holds up no other.
    async fn wake_parents(&self) -> DbResult<()> {
        self.0.waker.armed.store(false, Ordering::Release);
        let read = self.0.db.read(|tx| {
            Box::pin(async move {
                Ok((
                    db::background::any_watched(tx).await?,
                    db::background::parents_to_wake(tx, AT_ONCE).await?,
                ))
            })
        });
        let (any, parents) = read.await.inspect_err(|_| self.0.waker.arm())?;
        if any {
            self.0.waker.arm();
        }
        for parent in parents {
            let Err(error) = self.wake(parent).await else { continue };
            tracing::warn!(thread = %parent, %error, "could not tell an agent what came of a background task");
            if error.is_corrupt() {
                let write = self
                    .0
                    .db
                    .write(move |tx| Box::pin(async move { db::background::unwatch_all(tx, parent).await }));
                write.await?;
            }
        }
        Ok(())
    }

    async fn wake(&self, parent: ThreadId) -> DbResult<()> {
        let house = self.0.house();
        let (permit, occasion) = self.occasion();
        let write = self
            .0
            .db
            .write(move |tx| Box::pin(async move { wake(tx, parent, &house, occasion).await }));
        if let Some(admitted) = write.await? {
            let run = self.take_up(admitted, permit);
            tracing::info!(thread = %parent, run = %run.id, "an agent is told what came of its background tasks");
        }
        Ok(())
    }
}

/// A task with what is to be told of it.
struct News {
    record: TaskRecord,
    known: BackgroundTask,
    seen: Sight,
}

/// Starts a run that tells the agent of a thread what it does not know, if there is such a thing and it is idle.
async fn wake(tx: &mut Tx<'_>, parent: ThreadId, house: &House, occasion: Occasion) -> DbResult<Option<Admitted>> {
    let Some(thread) = db::threads::lock(tx, parent).await? else {
        return Ok(None);
    };
    if !matches!(thread.status, ThreadStatus::Idle | ThreadStatus::Error) {
        return Ok(None);
    }
    let (machine, _) = db::checkpoints::machine(tx, parent, Lane::Main).await?;
    let mut news = vec![];
    for record in db::background::watched(tx, parent).await? {
        let seen = match &record.url {
            None => sight::look(tx, record.task).await?,
            Some(_) => match &record.remote.seen {
                Some(seen) => seen.clone(),
                None => continue,
            },
        };
        if !seen.status.is_outcome() {
            continue;
        }
        // More comes of a task that waits.
        db::background::told(tx, record.task, seen.run.parse().ok(), !seen.status.is_final()).await?;
        let known = known(tx, &machine.state, &record)
            .await?
            .unwrap_or_else(|| unrecorded(&record, &seen));
        if record.notify && known.is_news(&seen) {
            news.push(News { record, known, seen });
        }
    }
    let Some(last) = news.last() else { return Ok(None) };
    let launcher = db::runs::get_by_id(tx, last.record.parent_run).await?;
    let launcher = launcher.map(|run| run.request).unwrap_or_default();
    let wish = wish_to_tell(&news, &last.record, (&machine.state, launcher), occasion);
    match admission::start(tx, &wish, house, occasion).await? {
        Ok(admitted) => Ok(Some(admitted)),
        Err(refusal) => {
            // It is told when the agent is asked for something the next time.
            tracing::warn!(thread = %parent, %refusal, "an agent could not be woken for its background tasks");
            Ok(None)
        }
    }
}

/// What is known of a task in the conversation: to the main agent, or else to the subagent that began it, and whose work is
/// over by now.
async fn known(tx: &mut Tx<'_>, main: &State, record: &TaskRecord) -> DbResult<Option<BackgroundTask>> {
    let task = record.task.to_string();
    let starter = record.ancestry.starter.as_ref();
    match (BackgroundTask::find(main, &task), starter) {
        (None, Some(starter)) => {
            let lane = Lane::Child(starter.run);
            let (machine, _) = db::checkpoints::machine(tx, record.parent_thread, lane).await?;
            Ok(BackgroundTask::find(&machine.state, &task))
        }
        (known, _) => Ok(known),
    }
}

/// A task that the state of its agent does not hold, since the run that began it broke off.
fn unrecorded(record: &TaskRecord, seen: &Sight) -> BackgroundTask {
    let thread = record.task.to_string();
    let run = seen.run.clone();
    BackgroundTask::begun(
        &record.agent,
        TaskRun {
            thread,
            run,
            status: TaskStatus::Running,
        },
        record.created_at,
    )
}

/// The run that tells the news, by the settings of the run that asked for the task.
fn wish_to_tell(news: &[News], last: &TaskRecord, (state, launcher): (&State, RunRequest), occasion: Occasion) -> Wish {
    let mut tasks = state
        .fields
        .get(FIELD)
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    let mut messages = vec![];
    for News { known, seen, .. } in news {
        messages.push(json!(known.notification(seen)));
        tasks.insert(known.task_id.clone(), json!(known.seen(seen, occasion.now)));
    }
    let ids: Vec<&str> = news.iter().map(|news| news.known.task_id.as_str()).collect();
    let metadata = Map::from_iter([("background_tasks".to_owned(), json!(ids))]);
    let RunRequest {
        mut config, context, ..
    } = launcher;
    config.shift_remove("metadata");
    let request = RunRequest {
        input: Some(json!({"messages": messages, FIELD: tasks})),
        config,
        context,
        multitask: Multitask::Reject,
        ..super::followed()
    };
    let parent = last.parent_thread;
    let assistant = AssistantRef::Id(last.parent_assistant);
    Wish {
        target: Target::Thread(parent),
        ..wish(parent, assistant, request, metadata)
    }
}
