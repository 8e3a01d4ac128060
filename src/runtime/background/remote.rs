//! Tasks that agents of other servers do.
//!
//! A task is written down before its server hears of it, and what comes of it afterwards. In between this server may die:
//! thread and key of the work follow from the call, so that the call finds what it began when it is made again; and if it is
//! not, the job [`poll_remote`](crate::runtime::jobs) finds what it left.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::room::{self, TaskParent};
use super::{MODES, PARENT_RUN, STOPS_WITHIN, WAITS_ALREADY, fault, ids, notes, own_task, record_of};
use crate::db::{self, DbResult, Tx};
use crate::definition::{SubagentDefinition, UpdateStrategy};
use crate::domain::background::{RemoteWork, TaskRecord, TaskRun, TaskSnapshot, TaskStatus};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::run::{LEVELS, RunStatus};
use crate::domain::time::Timestamp;
use crate::peer::responses::PeerRun;
use crate::peer::{PeerError, RemoteRunRequest, RemoteThread, StartFailed};
use crate::runtime::{Runs, ledger};
use crate::tool::Scope;
use crate::tool::background::BackgroundOrder;

/// How long it is tried to begin work there while the agent waits for it.
pub(super) const BEGINS_WITHIN: Duration = Duration::from_secs(30);
/// How much later it may be polled, and found that nobody tries any more.
const MARGIN: Duration = Duration::from_secs(60);
/// How long it is waited for a server to say how a task stands.
pub(in crate::runtime) const LOOKS_FOR: Duration = Duration::from_secs(5);
/// How often it is looked whether cancelled work has stopped.
const PAUSE: Duration = Duration::from_millis(100);
/// What is said of work of which there is no trace any more.
const GONE: &str = "The thread of the task, or its work there, was deleted.";

impl Runs {
    /// Begins a task on another server.
    pub(super) async fn start_remote(&self, scope: &Scope, order: BackgroundOrder<'_>) -> Result<TaskRun, String> {
        let (task, _) = ids(scope)?;
        let mut record = record_of(scope, order, task);
        record.remote.due_at = Some(scope.now().plus(BEGINS_WITHIN + MARGIN));
        let asker = TaskParent::of(scope);
        let now = scope.now();
        let write = self
            .0
            .db
            .write(move |tx| Box::pin(async move { write_down(tx, record, &asker, now).await }));
        let record = write.await.map_err(fault)??;
        match &record.remote {
            RemoteWork {
                cancel_requested: true,
                seen,
                ..
            } => {
                return Err(seen.as_ref().and_then(|seen| seen.error.clone()).unwrap_or_default());
            }
            RemoteWork { seen: Some(seen), .. } => return Ok(run_of(&record, seen)),
            RemoteWork { seen: None, .. } => {}
        }
        let place = match self.remote_thread(&record).await {
            Ok((place, _)) => place,
            Err(reason) => return Err(self.not_begun(scope, &record, reason, true).await),
        };
        let request = request(scope, order, &record);
        let notes = notes(scope, order);
        let patience = BEGINS_WITHIN.min(self.0.registry.workshop.peers.patience());
        match place
            .create_and_start(&notes, request, &record.task.to_string(), patience)
            .await
        {
            Ok(run) => self.under_way(&record, run.snapshot()).await,
            Err(StartFailed { error, is_certain }) => {
                let reason = unavailable(&record, &place, &error);
                Err(self.not_begun(scope, &record, reason, is_certain).await)
            }
        }
    }

    /// Gives a task on another server a further message.
    pub(super) async fn update_remote(
        &self,
        scope: &Scope,
        record: TaskRecord,
        order: BackgroundOrder<'_>,
    ) -> Result<TaskRun, String> {
        let key = format!("{}-{}", record.task, ids(scope)?.1);
        let (place, _) = self.remote_thread(&record).await?;
        if order.agent.update_strategy == UpdateStrategy::Enqueue {
            let runs = place
                .runs()
                .await
                .map_err(|error| unavailable(&record, &place, &error))?;
            let mine = scope.run.to_string();
            let waits = |run: &PeerRun| {
                run.status == RunStatus::Pending && run.has_metadata(PARENT_RUN, &mine) && !run.has_key(&key)
            };
            if runs.iter().any(waits) {
                return Err(WAITS_ALREADY.to_owned());
            }
        }
        // From now on more may come of it than was seen, even if nobody hears of it here before it begins.
        let before = record.remote.seen.clone();
        let waits = TaskSnapshot::of(before.as_ref().map_or("", |seen| &seen.run), TaskStatus::Pending);
        let due_at = Some(scope.now().plus(BEGINS_WITHIN + MARGIN));
        let expected = RemoteWork {
            seen: Some(waits),
            due_at,
            ..RemoteWork::default()
        };
        let asker = TaskParent::of(scope);
        let task = record.task;
        let was_over = is_over(before.as_ref());
        let write = self
            .0
            .db
            .write(move |tx| Box::pin(async move { go_on(tx, task, &asker, (was_over, &expected)).await }));
        write.await.map_err(fault)??;
        let mut request = request(scope, order, &record);
        request.multitask_strategy = match order.agent.update_strategy {
            UpdateStrategy::Interrupt => "interrupt",
            UpdateStrategy::Enqueue => "enqueue",
        };
        let patience = BEGINS_WITHIN.min(self.0.registry.workshop.peers.patience());
        match place.start_run(request, &key, patience).await {
            Ok(run) => self.under_way(&record, run.snapshot()).await,
            Err(StartFailed { error, is_certain }) => {
                let reason = unavailable(&record, &place, &error);
                let due_at = Some(scope.now());
                self.note(
                    &record,
                    RemoteWork {
                        seen: before,
                        due_at,
                        ..RemoteWork::default()
                    },
                )
                .await?;
                Err(match is_certain {
                    true => format!("The task was not given the message. {reason}"),
                    false => format!("It is not known whether the task was given the message. {reason}"),
                })
            }
        }
    }

    /// How a task on another server stands: now, or before, if that is out of reach.
    pub(super) async fn look_at_remote(&self, record: &TaskRecord) -> Result<TaskSnapshot, String> {
        let lost = match self.remote_thread(record).await {
            Ok((place, _)) => match timeout(LOOKS_FOR, place.snapshot()).await {
                Ok(Ok(seen)) => return self.has_seen(record, seen).await,
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

    /// Stops a task on another server. That it is not wanted is written down first, so that it is stopped there even if
    /// that server is out of reach for now, or this one dies.
    pub(super) async fn cancel_remote(&self, record: TaskRecord) -> Result<TaskSnapshot, String> {
        let seen = self.look_at_remote(&record).await?;
        if seen.status.is_final() {
            return Ok(TaskSnapshot { lost: None, ..seen });
        }
        let due_at = Some(self.0.clock.now().plus(STOPS_WITHIN * 2));
        let known = Some(TaskSnapshot {
            lost: None,
            ..seen.clone()
        });
        self.note(
            &record,
            RemoteWork {
                seen: known,
                cancel_requested: true,
                due_at,
                ..RemoteWork::default()
            },
        )
        .await?;
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
        let (place, agent) = self.remote_thread(&record).await?;
        match timeout(STOPS_WITHIN * 2, stop(&place, &agent, STOPS_WITHIN)).await {
            Ok(Ok(Some(seen))) if seen.status.is_outcome() => {
                let over = TaskSnapshot {
                    status: TaskStatus::Cancelled,
                    ..seen
                };
                self.note(
                    &record,
                    RemoteWork {
                        seen: Some(over),
                        ..RemoteWork::default()
                    },
                )
                .await?;
            }
            // It was told to stop, and is looked at until it has.
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

    /// Where a task is done, and who does it, as the definition says that its conversation has now; or else the one with
    /// which it was begun.
    pub(in crate::runtime) async fn remote_thread(
        &self,
        record: &TaskRecord,
    ) -> Result<(RemoteThread, SubagentDefinition), String> {
        let url = record.url.as_deref().unwrap_or_default();
        let parent = record.starter();
        let run = self
            .0
            .db
            .read(move |tx| Box::pin(async move { db::runs::get_by_id(tx, parent).await }));
        let run = run.await.map_err(fault)?;
        let registry = &self.0.registry;
        let agents = registry.agents();
        let now = match &run {
            Some(run) => agents.of_run(run).cloned(),
            None => agents
                .all()
                .find(|known| known.assistant == record.parent_assistant)
                .cloned(),
        };
        let named = now.filter(|known| known.remote_subagent(&record.agent, url).is_some());
        let known = match (named, run) {
            (Some(known), _) => Some(known),
            (None, Some(run)) => registry.of_run(&run).await.map_err(fault)?,
            (None, None) => None,
        };
        let found = known
            .as_ref()
            .and_then(|known| known.remote_subagent(&record.agent, url));
        let (agent, is_owners) =
            found.ok_or_else(|| format!("The agent `{}` is not defined any more.", record.agent))?;
        let peer = registry.workshop.peers.peer(url, &agent.headers.0, is_owners);
        let peer = peer.map_err(|invalid| format!("The agent `{}` cannot be reached: its {invalid}.", record.agent))?;
        Ok((
            RemoteThread {
                peer,
                thread: record.task.0,
            },
            agent.clone(),
        ))
    }

    /// Writes down that work is under way there. What came of it already is only told after a look, which brings the result.
    async fn under_way(&self, record: &TaskRecord, seen: TaskSnapshot) -> Result<TaskRun, String> {
        let run = run_of(record, &seen);
        let now = self.0.clock.now();
        let has_come = seen.status.is_outcome();
        let seen = TaskSnapshot {
            status: seen.status.unreported(),
            ..seen
        };
        let work = RemoteWork::default().after(
            Ok(seen),
            record.task.0,
            self.0.clock.now(),
            self.0.registry.workshop.peers.poll_policy(),
        );
        let due_at = if has_come { Some(now) } else { work.due_at };
        self.note(record, RemoteWork { due_at, ..work }).await?;
        self.0.jobs.has_tasks(true);
        self.0.jobs.wake();
        Ok(run)
    }

    /// Writes down what was seen, if it is something new.
    async fn has_seen(&self, record: &TaskRecord, seen: Option<TaskSnapshot>) -> Result<TaskSnapshot, String> {
        let before = &record.remote;
        let run = before.seen.as_ref().map(|seen| seen.run.clone()).unwrap_or_default();
        let seen = seen.unwrap_or_else(|| gone(run));
        if !before.is_unchanged(&seen) {
            let after = before.after(
                Ok(seen.clone()),
                record.task.0,
                self.0.clock.now(),
                self.0.registry.workshop.peers.poll_policy(),
            );
            self.write_down(record, after, Some(before.version)).await?;
        }
        Ok(seen)
    }

    /// Writes down what is known of a task from now on, whoever looks at it.
    pub(super) async fn note(&self, record: &TaskRecord, work: RemoteWork) -> Result<(), String> {
        self.write_down(record, work, None).await?;
        self.0.jobs.wake();
        Ok(())
    }

    async fn write_down(&self, record: &TaskRecord, work: RemoteWork, version: Option<i64>) -> Result<(), String> {
        let record = record.clone();
        let write = self
            .0
            .db
            .write(move |tx| Box::pin(async move { note_down(tx, &record, &work, version).await }));
        write.await.map(drop).map_err(fault)
    }

    /// Writes down that a task was not begun; what may have begun nevertheless is stopped. Returns what is said about it.
    async fn not_begun(&self, scope: &Scope, record: &TaskRecord, reason: String, is_certain: bool) -> String {
        let text = format!("The task was not started. {reason}");
        let error = TaskSnapshot {
            error: Some(text.clone()),
            ..TaskSnapshot::of("", TaskStatus::Error)
        };
        let now = self.0.clock.now();
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
        let write = self.0.db.write(move |tx| {
            Box::pin(async move {
                match is_certain {
                    true => db::background::remote::forget(tx, task).await?,
                    false => {
                        db::background::remote::note(tx, &record, &dropped, None).await?;
                        db::background::told(tx, task, None, false).await?;
                    }
                }
                let not_over = room::count(db::background::not_over(tx, parent).await?);
                room::give_back(tx, &budget, not_over, now).await
            })
        });
        if let Err(error) = write.await {
            return fault(error);
        }
        self.0.jobs.wake();
        text
    }
}

/// Writes down what is known of a task from now on, and what it has used: that counts for all trees for which it works. What
/// is told is what all of it has used, so it counts once however often it is told.
pub(in crate::runtime) async fn note_down(
    tx: &mut Tx<'_>,
    record: &TaskRecord,
    work: &RemoteWork,
    version: Option<i64>,
) -> DbResult<bool> {
    if let Some(told) = work.seen.as_ref().and_then(|seen| seen.used) {
        let before = db::background::remote::used(tx, record.task).await?;
        // What was said may be shorter by now than it was.
        let used = before.at_least(told);
        if used != before {
            // Trees before tasks, as whoever begins one takes them.
            ledger::tell(tx, &record.ancestry.trees, RunId(record.task.0), &used).await?;
            db::background::remote::set_used(tx, record.task, &used).await?;
        }
    }
    db::background::remote::note(tx, record, work, version).await
}

/// Writes a task down that is about to begin, if that is allowed; or finds it again.
async fn write_down(
    tx: &mut Tx<'_>,
    record: TaskRecord,
    asker: &TaskParent,
    now: Timestamp,
) -> DbResult<Result<TaskRecord, String>> {
    if let Some(before) = db::background::find(tx, record.task).await? {
        return Ok(Ok(before));
    }
    let ancestry = match room::admit(tx, asker, &record, now).await? {
        Ok((ancestry, _)) => ancestry,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let record = TaskRecord { ancestry, ..record };
    db::background::insert(tx, &record).await?;
    Ok(Ok(record))
}

/// Writes down that more is expected of a task, if that is allowed.
async fn go_on(
    tx: &mut Tx<'_>,
    task: ThreadId,
    asker: &TaskParent,
    (was_over, expected): (bool, &RemoteWork),
) -> DbResult<Result<(), String>> {
    db::threads::lock(tx, asker.thread).await?;
    let Some(record) = own_task(tx, task, asker.thread).await? else {
        return Ok(Err(super::STRANGER.to_owned()));
    };
    if was_over && let Err(refusal) = room::again(tx, asker, &record.ancestry).await? {
        return Ok(Err(refusal));
    }
    db::background::watch(tx, task).await?;
    db::background::remote::note(tx, &record, expected, None).await?;
    Ok(Ok(()))
}

/// What a run there shall do.
fn request(scope: &Scope, order: BackgroundOrder<'_>, record: &TaskRecord) -> RemoteRunRequest {
    let agent = order.agent;
    let mut metadata = notes(scope, order);
    // Two servers whose agents have each other work would go on without end.
    let ancestry = &record.ancestry;
    let levels = super::DEEPEST.saturating_sub(ancestry.nesting);
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
        .then(|| ("configurable".to_owned(), parent))
        .into_iter()
        .chain(steps);
    RemoteRunRequest {
        assistant_id: agent.graph_id.clone(),
        input: Some(json!({"messages": [{"role": "user", "content": order.text}]})),
        metadata,
        stream_mode: MODES.into(),
        stream_resumable: true,
        multitask_strategy: "reject",
        webhook: agent.webhook.clone(),
        config: config.collect::<Map<String, Value>>(),
        ..RemoteRunRequest::default()
    }
}

/// Stops what is done there, and says how it stands then, or after `patience`; what waits for a human is given up.
pub(in crate::runtime) async fn stop(
    place: &RemoteThread,
    agent: &SubagentDefinition,
    patience: Duration,
) -> Result<Option<TaskSnapshot>, PeerError> {
    place.cancel_runs().await?;
    let began = Instant::now();
    loop {
        let seen = place.snapshot().await?;
        match &seen {
            Some(waits) if waits.status == TaskStatus::Waiting => {
                let key = format!("{}-over-{}", place.thread, waits.run);
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

/// Work of which there is no trace any more.
pub(in crate::runtime) fn gone(run: String) -> TaskSnapshot {
    TaskSnapshot {
        error: Some(GONE.to_owned()),
        ..TaskSnapshot::of(run, TaskStatus::Error)
    }
}

/// Why an agent there was of no use, in a sentence.
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
