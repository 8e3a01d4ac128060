//! Background tasks on other servers.
//!
//! A task is stored before its server is called, and its outcome afterwards. This server may crash in between. The ids
//! of the remote thread and run follow from the tool call, so a repeated call finds the work that it started. If the
//! call is not repeated, the job [`poll_remote`](crate::runtime::jobs) finds the work.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::limits::{self, TaskParent};
use super::{
    BackgroundTasks, STOP_TIMEOUT, TaskError, WAITS_ALREADY, find_own_task, new_record, notes, storage_error, task_ids,
};
use crate::agent::assemble::RegisteredAgent;
use crate::db::background::remote::WorkCondition;
use crate::db::{self, DbResult, Tx};
use crate::definition::{SubagentDefinition, UpdateStrategy};
use crate::domain::background::{RemoteWork, TaskRecord, TaskRun, TaskSnapshot, TaskStatus};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::{LEVELS, RunStatus};
use crate::domain::run_config::CONFIGURABLE;
use crate::domain::time::Timestamp;
use crate::peer::responses::PeerRun;
use crate::peer::{PeerError, RemoteRunRequest, RemoteThread, StartFailed};
use crate::runtime::ledger;
use crate::runtime::new_run::{PARENT_RUN, STREAM_MODES};
use crate::runtime::retry::retry_until_available;
use crate::tool::Scope;
use crate::tool::scope::BackgroundOrder;

/// The longest time for which the start of a task is tried while the agent waits.
pub(in crate::runtime) const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of each request that starts a task. A request gets no answer when the other server is replaced
/// meanwhile, for example; then there is time for further ones, which find a task that the first one has started.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after [`START_TIMEOUT`] in which the other server may still start the task.
pub(in crate::runtime) const MARGIN: Duration = Duration::from_secs(60);
/// The timeout of a poll.
pub(in crate::runtime) const POLL_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two polls of work that was cancelled.
const PAUSE: Duration = Duration::from_millis(100);
/// The refusal when a task was cancelled while its work was started.
const CANCELLED_MEANWHILE: &str = "The task was cancelled meanwhile; what was started is stopped.";
/// The error of a task whose work was deleted on the other server.
const DELETED: &str = "The thread of the task, or its work there, was deleted.";

impl BackgroundTasks {
    /// Starts a task on another server.
    pub(super) async fn start_remote(&self, scope: &Scope, order: BackgroundOrder<'_>) -> Result<TaskRun, String> {
        let (task, _) = task_ids(scope)?;
        let mut record = new_record(scope, order, task);
        record.remote.due_at = Some(scope.now().plus(START_TIMEOUT + MARGIN));
        let parent = TaskParent::of(scope);
        let now = scope.now();
        let insert = || {
            let record = record.clone();
            let parent = parent.clone();
            self.core
                .db
                .write(move |tx| Box::pin(async move { insert_task(tx, record, &parent, now).await }))
        };
        let record = retry_until_available(scope.run, insert)
            .await
            .map_err(TaskError::text)?;
        match &record.remote {
            RemoteWork {
                cancel_requested: true,
                seen,
                ..
            } => {
                let reason = seen.as_ref().and_then(|seen| seen.error.clone());
                return Err(reason.unwrap_or_else(|| CANCELLED_MEANWHILE.to_owned()));
            }
            RemoteWork { seen: Some(seen), .. } => return Ok(run_of(&record, seen)),
            RemoteWork { seen: None, .. } => {}
        }
        let place = match self.remote_thread_of_task(&record).await {
            Ok((place, _)) => for_start(place, scope),
            Err(reason) => return Err(self.store_not_started(scope, &record, reason, true).await),
        };
        let request = request(scope, order, &record);
        let notes = notes(scope, order);
        let patience = START_TIMEOUT.min(self.core.registry.factory.peers.patience());
        match place
            .create_and_start(&notes, request, &record.task.to_string(), patience)
            .await
        {
            Ok(run) => self.store_started(&record, run.snapshot()).await,
            Err(StartFailed { error, is_certain }) => {
                let reason = unavailable(&record, &place, &error);
                Err(self.store_not_started(scope, &record, reason, is_certain).await)
            }
        }
    }

    /// Sends a further message to a task on another server.
    pub(super) async fn update_remote(
        &self,
        scope: &Scope,
        record: TaskRecord,
        order: BackgroundOrder<'_>,
    ) -> Result<TaskRun, String> {
        let key = format!("{}-{}", record.task, task_ids(scope)?.1);
        let place = for_start(self.remote_thread_of_task(&record).await?.0, scope);
        if order.agent.update_strategy == UpdateStrategy::Enqueue {
            let runs = place
                .runs()
                .await
                .map_err(|error| unavailable(&record, &place, &error))?;
            let mine = scope.run.to_string();
            let task_key = record.task.to_string();
            // Clients write this key, too, and some servers give the metadata of the thread to all of its runs. So it says
            // something only about a run that this server has started for the task.
            let is_of_task = |other: &str| other.starts_with(&task_key) && other != key;
            let waits = |run: &PeerRun| {
                run.status == RunStatus::Pending
                    && run.has_metadata(PARENT_RUN, &mine)
                    && run.key().is_some_and(is_of_task)
            };
            if runs.iter().any(waits) {
                return Err(WAITS_ALREADY.to_owned());
            }
        }
        // From now on another outcome may follow, even if this server does not learn that the message arrived.
        let before = record.remote.seen.clone();
        let waits = TaskSnapshot {
            past: before.as_ref().map(TaskSnapshot::past_of_next).unwrap_or_default(),
            ..TaskSnapshot::of(before.as_ref().map_or("", |seen| &seen.run), TaskStatus::Pending)
        };
        let due_at = Some(scope.now().plus(START_TIMEOUT + MARGIN));
        let expected = RemoteWork {
            seen: Some(waits),
            due_at,
            ..RemoteWork::default()
        };
        let parent = TaskParent::of(scope);
        let task = record.task;
        let expect = || {
            let parent = parent.clone();
            let expected = expected.clone();
            self.core
                .db
                .write(move |tx| Box::pin(async move { continue_task(tx, task, &parent, &expected).await }))
        };
        retry_until_available(scope.run, expect)
            .await
            .map_err(TaskError::text)?;
        let mut request = request(scope, order, &record);
        request.multitask_strategy = match order.agent.update_strategy {
            UpdateStrategy::Interrupt => "interrupt",
            UpdateStrategy::Enqueue => "enqueue",
        };
        let patience = START_TIMEOUT.min(self.core.registry.factory.peers.patience());
        match place.start_run(request, &key, patience).await {
            Ok(run) => self.store_started(&record, run.snapshot()).await,
            Err(StartFailed { error, is_certain }) => {
                let reason = unavailable(&record, &place, &error);
                let due_at = Some(scope.now());
                let as_before = RemoteWork {
                    seen: before,
                    due_at,
                    ..RemoteWork::default()
                };
                self.note(&record, as_before, WorkCondition::IsWanted).await?;
                Err(match is_certain {
                    true => format!("The task was not given the message. {reason}"),
                    false => format!("It is not known whether the task was given the message. {reason}"),
                })
            }
        }
    }

    /// Polls a task on another server. Returns the last known state if that server is out of reach.
    pub(super) async fn poll_task(&self, record: &TaskRecord) -> Result<TaskSnapshot, String> {
        let lost = match self.remote_thread_of_task(record).await {
            Ok((place, _)) => match timeout(POLL_TIMEOUT, place.snapshot(record.remote.seen.as_ref())).await {
                // The job that polls the task looks again before it takes the task for deleted.
                Ok(Ok(None)) if !was_missed(record) => not_found(record),
                Ok(Ok(seen)) => return self.store_seen(record, seen).await,
                Ok(Err(error)) => unavailable(record, &place, &error),
                Err(_) => unavailable(record, &place, &PeerError::Unreachable("it took too long".to_owned())),
            },
            Err(reason) => reason,
        };
        let known = record.remote.seen.clone().ok_or_else(|| lost.clone())?;
        Ok(TaskSnapshot {
            lost: Some(lost.trim_end_matches('.').to_owned()),
            ..known
        })
    }

    /// Cancels a task on another server. The cancellation is stored first, so that it takes place even if that server
    /// is out of reach, or this server crashes.
    pub(super) async fn cancel_remote(&self, record: TaskRecord) -> Result<TaskSnapshot, String> {
        let seen = self.poll_task(&record).await?;
        if seen.status.is_final() {
            return Ok(TaskSnapshot { lost: None, ..seen });
        }
        let due_at = Some(self.core.clock.now().plus(STOP_TIMEOUT * 2));
        let known = Some(TaskSnapshot {
            lost: None,
            ..seen.clone()
        });
        let unwanted = RemoteWork {
            seen: known,
            cancel_requested: true,
            due_at,
            ..RemoteWork::default()
        };
        self.note(&record, unwanted, WorkCondition::Always).await?;
        let cancelled = TaskSnapshot {
            interrupts: vec![],
            ..TaskSnapshot {
                status: TaskStatus::Cancelled,
                ..seen
            }
        };
        if cancelled.lost.is_some() {
            return Ok(cancelled);
        }
        let (place, agent) = self.remote_thread_of_task(&record).await?;
        let version = self.version_of_unwanted(record.task).await?;
        let stopping = stop(&place, &agent, record.remote.seen.as_ref(), STOP_TIMEOUT);
        match timeout(STOP_TIMEOUT * 2, stopping).await {
            Ok(Ok(Some(seen))) if seen.status.is_outcome() => {
                let over = TaskSnapshot {
                    status: TaskStatus::Cancelled,
                    ..seen
                };
                let ended = RemoteWork {
                    seen: Some(over),
                    cancel_requested: true,
                    ..RemoteWork::default()
                };
                // Otherwise a message goes on with the task, or has begun work that is to be cancelled, too.
                if let Some(version) = version {
                    self.note(&record, ended, WorkCondition::HasVersion(version)).await?;
                }
            }
            // The cancellation was requested; the task is polled until it has stopped.
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                return Ok(TaskSnapshot {
                    lost: Some(error.to_string()),
                    ..cancelled
                });
            }
            Err(_) => {
                return Ok(TaskSnapshot {
                    lost: Some("it took too long".to_owned()),
                    ..cancelled
                });
            }
        }
        Ok(cancelled)
    }

    /// Returns the version of the state of a task that is to be cancelled; none if a message goes on with it, or it is gone.
    async fn version_of_unwanted(&self, task: ThreadId) -> Result<Option<i64>, String> {
        let read = self
            .core
            .db
            .read(move |tx| Box::pin(async move { db::background::find(tx, task).await }));
        let found = read.await.map_err(storage_error)?;
        let unwanted = found.filter(|record| record.remote.cancel_requested);
        Ok(unwanted.map(|record| record.remote.version))
    }

    /// Returns the thread of a remote task and the definition of its agent. The present definition of the
    /// conversation's agent decides. If that does not name the agent any more, the definition with which the task was
    /// started decides.
    pub(in crate::runtime) async fn remote_thread_of_task(
        &self,
        record: &TaskRecord,
    ) -> Result<(RemoteThread, SubagentDefinition), String> {
        let url = record.url.as_deref().unwrap_or_default();
        let parent = record.starter();
        let task = record.task;
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                let run = db::runs::get_by_id(tx, parent).await?;
                Ok((run, db::access::thread_facts(tx, task, false).await?))
            })
        });
        let (run, facts) = read.await.map_err(storage_error)?;
        let tenant = facts.as_ref().map(|facts| &facts.ownership.tenant);
        let registry = &self.core.registry;
        // An agent of another tenant that has the name now has headers of that tenant.
        let now = match &run {
            Some(run) => registry.present_of_run(run, tenant),
            None => {
                let agents = registry.agents();
                let parent = agents.all().find(|known| known.assistant == record.parent_assistant);
                parent.and_then(|known| registry.present(&known.graph_id, tenant))
            }
        };
        let named = now.filter(|known| known.remote_subagent(&record.agent, url).is_some());
        let known = match (named, run) {
            (Some(known), _) => Some(known),
            (None, Some(run)) => registry.of_run(&run, tenant).await.map_err(storage_error)?,
            (None, None) => self.describing_agent_of_detached(record.task).await?,
        };
        let found = known
            .as_ref()
            .and_then(|known| known.remote_subagent(&record.agent, url));
        let (agent, is_owners) =
            found.ok_or_else(|| format!("The agent `{}` is not defined any more.", record.agent))?;
        let peer = registry.factory.peers.peer(url, &agent.headers.0, is_owners);
        let peer = peer.map_err(|invalid| format!("The agent `{}` cannot be reached: its {invalid}.", record.agent))?;
        Ok((
            RemoteThread {
                peer,
                thread: record.task.0,
            },
            agent.clone(),
        ))
    }

    /// Returns the agent in whose definition the agent of a detached task is described: the run that started the task is
    /// gone.
    async fn describing_agent_of_detached(&self, task: ThreadId) -> Result<Option<Arc<RegisteredAgent>>, String> {
        let registry = Arc::clone(&self.core.registry);
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                match db::background::remote::described_in(tx, task).await? {
                    Some((graph_id, Some(digest))) => registry.of_digest(tx, &graph_id, &digest).await,
                    Some((graph_id, None)) => Ok(registry.agents().of_graph(&graph_id).cloned()),
                    None => Ok(None),
                }
            })
        });
        read.await.map_err(storage_error)
    }

    /// Stores that work is in progress on the other server, unless the task was cancelled meanwhile: then the work is
    /// cancelled by the job that polls it. An outcome is stored only after a poll, which brings the result.
    async fn store_started(&self, record: &TaskRecord, seen: TaskSnapshot) -> Result<TaskRun, String> {
        let run = run_of(record, &seen);
        let now = self.core.clock.now();
        let has_come = seen.status.is_outcome();
        let before = record.remote.seen.as_ref();
        let seen = TaskSnapshot {
            status: seen.status.unreported(),
            past: before.map(TaskSnapshot::past_of_next).unwrap_or_default(),
            ..seen
        };
        let work = RemoteWork::default().after(
            Ok(seen),
            record.task.0,
            self.core.clock.now(),
            self.core.registry.factory.peers.poll_policy(),
        );
        let due_at = if has_come { Some(now) } else { work.due_at };
        let work = RemoteWork { due_at, ..work };
        // The model must not be told that nothing was started.
        let store = || self.store_work(record, work.clone(), WorkCondition::IsWanted);
        let is_wanted = retry_until_available(record.parent_run, store)
            .await
            .map_err(storage_error)?;
        self.core.jobs.note_task();
        self.core.jobs.wake();
        match is_wanted {
            true => Ok(run),
            false => Err(CANCELLED_MEANWHILE.to_owned()),
        }
    }

    /// Stores the polled state, if it has changed.
    async fn store_seen(&self, record: &TaskRecord, seen: Option<TaskSnapshot>) -> Result<TaskSnapshot, String> {
        let before = &record.remote;
        let run = before.seen.as_ref().map(|seen| seen.run.clone()).unwrap_or_default();
        let seen = seen.unwrap_or_else(|| deleted_snapshot(run));
        if !before.is_unchanged(&seen) {
            let after = before.after(
                Ok(seen.clone()),
                record.task.0,
                self.core.clock.now(),
                self.core.registry.factory.peers.poll_policy(),
            );
            let condition = WorkCondition::HasVersion(before.version);
            let stored = self.store_work(record, after, condition).await;
            stored.map_err(storage_error)?;
        }
        Ok(seen)
    }

    /// Stores the state of a remote task, if the condition holds.
    pub(in crate::runtime) async fn note(
        &self,
        record: &TaskRecord,
        work: RemoteWork,
        condition: WorkCondition,
    ) -> Result<(), String> {
        let stored = self.store_work(record, work, condition).await;
        stored.map(drop).map_err(storage_error)
    }

    /// Stores the state of a remote task, if the condition holds. Returns false if not.
    async fn store_work(&self, record: &TaskRecord, work: RemoteWork, condition: WorkCondition) -> DbResult<bool> {
        let record = record.clone();
        let write = self
            .core
            .db
            .write(move |tx| Box::pin(async move { store_polled(tx, &record, &work, condition).await }));
        let is_stored = write.await?;
        // The task may be polled earlier than the loop knows.
        self.core.jobs.wake();
        Ok(is_stored)
    }

    /// Stores that a task was not started. If it may have started nevertheless, it is cancelled. Returns the text for
    /// the model.
    async fn store_not_started(&self, scope: &Scope, record: &TaskRecord, reason: String, is_certain: bool) -> String {
        let text = format!("The task was not started. {reason}");
        let error = TaskSnapshot {
            error: Some(text.clone()),
            ..TaskSnapshot::of("", TaskStatus::Error)
        };
        let now = self.core.clock.now();
        let task = record.task;
        let dropped = RemoteWork {
            seen: Some(error),
            cancel_requested: true,
            due_at: Some(now),
            ..RemoteWork::default()
        };
        let parent = scope.thread;
        let record = record.clone();
        let budget = scope.budget.clone();
        let write = self.core.db.write(move |tx| {
            Box::pin(async move {
                match is_certain {
                    true => db::background::remote::forget(tx, task).await?,
                    false => {
                        db::background::remote::note(tx, &record, &dropped, WorkCondition::Always).await?;
                        db::background::set_notified(tx, task, None, false).await?;
                    }
                }
                let not_over = limits::count(db::background::not_over(tx, parent).await?);
                limits::give_back(tx, &budget, not_over, now).await
            })
        });
        if let Err(error) = write.await {
            return storage_error(error);
        }
        self.core.jobs.wake();
        text
    }
}

/// Stores the polled state of a task and its usage, which counts for all its trees. A poll brings the total usage, so
/// it counts once however often it is polled. A detached task of which nothing is left there is deleted. Returns false if the
/// condition does not hold.
pub(in crate::runtime) async fn store_polled(
    tx: &mut Tx<'_>,
    record: &TaskRecord,
    work: &RemoteWork,
    condition: WorkCondition,
) -> DbResult<bool> {
    if let Some(told) = work.seen.as_ref().and_then(|seen| seen.used) {
        let before = db::background::remote::used(tx, record.task).await?;
        // The other server may report less usage than before, so the larger figures count.
        let used = before.at_least(told);
        if used != before {
            // Trees are locked before tasks, as when a task is started.
            ledger::set_usage(tx, &record.ancestry.trees, RunId(record.task.0), &used).await?;
            db::background::remote::set_used(tx, record.task, &used).await?;
        }
    }
    let is_stored = db::background::remote::note(tx, record, work, condition).await?;
    if is_stored && work.due_at.is_none() {
        // Nothing looks at it again, whoever stores this: the run that started it may have been undone meanwhile.
        db::background::remote::forget_detached(tx, record.task).await?;
    }
    Ok(is_stored)
}

/// Stores a task that is about to start, if the limits allow it. A task that is stored already is returned.
async fn insert_task(
    tx: &mut Tx<'_>,
    record: TaskRecord,
    parent: &TaskParent,
    now: Timestamp,
) -> Result<TaskRecord, TaskError> {
    if let Some(before) = db::background::find(tx, record.task).await? {
        return Ok(before);
    }
    let (ancestry, not_over) = limits::admit(tx, parent, &record, now).await?;
    let record = TaskRecord { ancestry, ..record };
    let inserted = db::background::insert(tx, &record).await;
    inserted.inspect_err(|_| parent.not_begun(not_over))?;
    Ok(record)
}

/// Stores that a further message is sent to a task, if the limits allow it. A try whose commit was not acknowledged may have
/// stored that already; the task is not over then.
async fn continue_task(
    tx: &mut Tx<'_>,
    task: ThreadId,
    parent: &TaskParent,
    expected: &RemoteWork,
) -> Result<(), TaskError> {
    db::threads::lock(tx, parent.thread).await?;
    let Some(record) = find_own_task(tx, task, parent.thread).await? else {
        return Err(TaskError::Refused(super::NOT_OWN_TASK.to_owned()));
    };
    if is_over(record.remote.seen.as_ref()) {
        limits::check_restart(tx, parent, &record.ancestry).await?;
    }
    db::background::watch(tx, task).await?;
    db::background::remote::note(tx, &record, expected, WorkCondition::Always).await?;
    Ok(())
}

/// Returns the thread of a task for the requests of a call to its server: with the trace of the call, and a short timeout of
/// each.
fn for_start(thread: RemoteThread, scope: &Scope) -> RemoteThread {
    let peer = thread
        .peer
        .with_trace(scope.trace.context())
        .with_timeout(ATTEMPT_TIMEOUT);
    RemoteThread { peer, ..thread }
}

/// Returns the request for a run on the other server.
fn request(scope: &Scope, order: BackgroundOrder<'_>, record: &TaskRecord) -> RemoteRunRequest {
    let agent = order.agent;
    let mut metadata = notes(scope, order);
    // Without the number of levels, two servers whose agents delegate to each other would go on without end.
    let ancestry = &record.ancestry;
    let levels = super::MAX_NESTING.saturating_sub(ancestry.nesting);
    metadata.insert(
        LEVELS.to_owned(),
        ancestry.levels.map_or(levels, |left| left.min(levels)).into(),
    );
    let parent = json!({"deepagents_parent": {"thread_id": scope.thread, "assistant_id": scope.assistant}});
    let steps = scope
        .step_limit
        .map(|limit| ("recursion_limit".to_owned(), json!(limit)));
    let config = agent
        .notify_parent
        .then(|| (CONFIGURABLE.to_owned(), parent))
        .into_iter()
        .chain(steps);
    RemoteRunRequest {
        assistant_id: agent.graph_id.clone(),
        input: Some(json!({"messages": [{"role": "user", "content": order.text}]})),
        metadata,
        stream_mode: STREAM_MODES.into(),
        stream_resumable: true,
        multitask_strategy: "reject",
        webhook: agent.webhook.clone(),
        config: config.collect::<Map<String, Value>>(),
        ..RemoteRunRequest::default()
    }
}

/// Cancels the runs of a remote task and its open interrupts. Returns the state after that, or the last one after
/// `patience`. `before` is the last known state, if the outcomes of earlier runs matter.
pub(in crate::runtime) async fn stop(
    place: &RemoteThread,
    agent: &SubagentDefinition,
    before: Option<&TaskSnapshot>,
    patience: Duration,
) -> Result<Option<TaskSnapshot>, PeerError> {
    place.cancel_runs().await?;
    let began = Instant::now();
    loop {
        let seen = place.snapshot(before).await?;
        match &seen {
            Some(waits) if waits.status == TaskStatus::Waiting => {
                let key = place.key_of_cancellation(&waits.run);
                place
                    .cancel_interrupts(agent.graph_id.as_deref().unwrap_or_default(), &key)
                    .await?;
                return Ok(seen);
            }
            Some(over) if over.status.is_outcome() => return Ok(seen),
            Some(_) if began.elapsed() < patience => sleep(PAUSE).await,
            Some(_) | None => return Ok(seen),
        }
    }
}

/// Returns the state of a task whose work was deleted on the other server.
pub(in crate::runtime) fn deleted_snapshot(run: String) -> TaskSnapshot {
    TaskSnapshot {
        error: Some(DELETED.to_owned()),
        ..TaskSnapshot::of(run, TaskStatus::Error)
    }
}

/// Returns whether the last poll has not found the task.
fn was_missed(record: &TaskRecord) -> bool {
    record.remote.seen.as_ref().is_some_and(|seen| seen.missed)
}

/// Returns a sentence that says that the other server does not know a task.
pub(in crate::runtime) fn not_found(record: &TaskRecord) -> String {
    format!("The agent `{}`: its server does not know the task.", record.graph_id)
}

/// Returns a sentence that says why a remote agent could not be used.
pub(in crate::runtime) fn unavailable(record: &TaskRecord, place: &RemoteThread, error: &PeerError) -> String {
    format!(
        "The agent `{}` at {}: {error}.",
        record.graph_id,
        place.peer.display_url()
    )
}

fn is_over(seen: Option<&TaskSnapshot>) -> bool {
    seen.is_some_and(|seen| seen.status.is_final())
}

fn run_of(record: &TaskRecord, seen: &TaskSnapshot) -> TaskRun {
    TaskRun {
        thread: record.task.to_string(),
        run: seen.run.clone(),
        status: seen.status,
    }
}
