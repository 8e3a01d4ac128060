//! Interrupts of background tasks on other servers: they are listed as the last poll found them, and answered through the
//! other server.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::Interrupts;
use crate::db::background::remote::WorkCondition;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbResult};
use crate::domain::Invalid;
use crate::domain::access::AccessScope;
use crate::domain::background::{Answered, TaskRecord, TaskSnapshot, TaskStatus};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{InterruptId, RunId, TaskId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::interrupt::{Interrupt, InterruptSource};
use crate::domain::machine::MODEL;
use crate::domain::time::Timestamp;
use crate::peer::{PeerError, RemoteRunRequest, StartFailed, asker, resume, to_question};
use crate::runtime::audit::{record_remote_answer, store_pending};
use crate::runtime::background::remote::unavailable;
use crate::runtime::error::ResolveError;
use crate::runtime::new_run::{ANSWERS, STREAM_MODES};

/// The longest time for which an answer is sent to another server, while a client waits for it.
const PATIENCE: Duration = Duration::from_secs(10);

impl Interrupts {
    /// Returns the interrupts of the remote task with this thread, in the order in which they were raised, or none if
    /// there is no such task.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn of_remote_task(&self, task: ThreadId) -> DbResult<Option<Vec<InterruptRecord>>> {
        Ok(self.remote_task(task).await?.map(|record| interrupts_of(&record)))
    }

    /// Returns the open interrupts of up to `tasks` remote tasks that agents on threads in a scope have started.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn pending_of_remote_tasks(&self, scope: AccessScope, tasks: i64) -> DbResult<Vec<InterruptRecord>> {
        let read = self
            .core
            .db
            .search(move |tx| Box::pin(async move { db::background::remote::waiting(tx, &scope, tasks).await }));
        let all = read.await?.iter().flat_map(interrupts_of).collect::<Vec<_>>();
        Ok(all
            .into_iter()
            .filter(|asked| asked.status == InterruptState::Pending)
            .collect())
    }

    /// Returns the remote task with this thread, unless its record cannot be read.
    async fn remote_task(&self, task: ThreadId) -> DbResult<Option<TaskRecord>> {
        let read = self
            .core
            .db
            .read(move |tx| Box::pin(async move { db::background::find(tx, task).await }));
        Ok(db::unless_corrupt(read.await)?
            .flatten()
            .filter(|record| record.url.is_some()))
    }

    /// Sends an answer to the server that raised the interrupt. Returns the run that continues there; the same answer
    /// again returns the same run.
    pub(super) async fn resolve_remotely(
        &self,
        task: ThreadId,
        interrupt: &InterruptId,
        answer: Value,
        caller: &Identity,
    ) -> Result<RunId, ResolveError> {
        let record = self.remote_task(task).await?.ok_or(ResolveError::NoInterrupt)?;
        let all = interrupts_of(&record);
        let found = all
            .iter()
            .rfind(|asked| asked.interrupt.id == *interrupt)
            .ok_or(ResolveError::NoInterrupt)?;
        self.check_answer(caller, task, found)?;
        let given = answer;
        let question = &found.interrupt.question;
        let answer = question.normalised(given.clone());
        match (found.status, found.resumed_by) {
            (InterruptState::Pending, _) => {}
            // A server of an earlier release has stored an answer as it was given.
            (_, Some(by)) if [Some(&answer), Some(&given)].contains(&found.resolution.as_ref()) => return Ok(by),
            (status, _) => return Err(ResolveError::Stale(status.word())),
        }
        let field = format!("{ANSWERS}.{}", interrupt.0);
        let checked = question.check(&answer);
        checked.map_err(|refusal| question.refusal_in(&field, &given, refusal))?;
        let (place, agent) = self
            .tasks
            .remote_thread_of_task(&record)
            .await
            .map_err(ResolveError::Elsewhere)?;
        let lost = |error: &PeerError| ResolveError::Elsewhere(unavailable(&record, &place, error));
        // A repeated answer leads to the same run, even if this server dies in between.
        let question = format!("{}-{}-", record.task, interrupt.0);
        let key = format!(
            "{question}{}",
            Uuid::new_v5(&record.task.0, answer.to_string().as_bytes())
        );
        let runs = place.runs().await.map_err(|error| lost(&error))?;
        let asked_by = record
            .remote
            .seen
            .as_ref()
            .map(|seen| seen.run.clone())
            .unwrap_or_default();
        let asker = asker(&runs).map(|run| run.run_id.to_string());
        if asker.as_ref() != Some(&asked_by) && !runs.iter().any(|run| run.has_key(&key)) {
            return Err(ResolveError::Stale("answered, or dropped, where it was asked"));
        }
        let pending = all
            .iter()
            .filter(|asked| asked.status == InterruptState::Pending)
            .count();
        let resume = match (pending, &found.interrupt.question.key) {
            (2.., Some(id)) => json!({id: answer}),
            (_, _) => resume(&[(Arc::clone(&found.interrupt.question), answer.clone())]),
        };
        let order = RemoteRunRequest {
            assistant_id: agent.graph_id.clone().unwrap_or_default(),
            command: Some(json!({"resume": resume})),
            multitask_strategy: "reject",
            stream_mode: STREAM_MODES.into(),
            stream_resumable: true,
            ..RemoteRunRequest::default()
        };
        record_remote_answer(&self.core, caller, task, interrupt, &answer);
        // The other server acts on the answer before this one writes anything.
        store_pending(&self.core.db).await?;
        let run = place
            .start_run(order, &key, PATIENCE)
            .await
            .map_err(|StartFailed { error, .. }| match &error {
                PeerError::Refused { status: 409, .. } => ResolveError::Busy,
                PeerError::Refused { message, .. } if error.is_refusal() => {
                    Invalid::new(field.clone(), message.clone()).into()
                }
                PeerError::Unreachable(_) | PeerError::Refused { .. } | PeerError::Misunderstood(_) => lost(&error),
            })?;
        let at = self.core.clock.now();
        let resumed_by = run.run_id.to_string();
        let question = record
            .remote
            .seen
            .iter()
            .flat_map(|seen| &seen.interrupts)
            .zip(ids(&record));
        let question = question
            .into_iter()
            .find(|(_, id)| id == interrupt)
            .map(|(asked, _)| asked.clone());
        let question = question.unwrap_or(Value::Null);
        let answered = Answered {
            question,
            answer,
            asked_by,
            resumed_by,
            asked_at: found.created_at,
            at,
        };
        let after = record.remote.with_answer(answered);
        let noted = self.tasks.note(&record, after, WorkCondition::IsWanted).await;
        noted.map_err(ResolveError::Elsewhere)?;
        Ok(RunId(run.run_id))
    }
}

/// Returns the ids of the open interrupts of a task. Very old servers give none.
fn ids(record: &TaskRecord) -> Vec<InterruptId> {
    let asked = record.remote.seen.iter().flat_map(|seen| &seen.interrupts).enumerate();
    asked.map(|(at, asked)| id_of(asked, record, at)).collect()
}

fn id_of(asked: &Value, record: &TaskRecord, at: usize) -> InterruptId {
    let made = || {
        Uuid::new_v5(&record.task.0, format!("question {at}").as_bytes())
            .simple()
            .to_string()
    };
    InterruptId(asked["id"].as_str().map_or_else(made, str::to_owned))
}

/// Returns the interrupts of a task: those that were answered through this server, and the open ones.
fn interrupts_of(record: &TaskRecord) -> Vec<InterruptRecord> {
    let Some(seen) = &record.remote.seen else { return vec![] };
    let answered = seen.answered.iter().filter_map(|answered| {
        let asked = open_interrupt(record, &answered.question, &answered.asked_by, answered.asked_at, 0)?;
        Some(InterruptRecord {
            status: InterruptState::Resolved,
            resolution: Some(answered.answer.clone()),
            resumed_by: answered.resumed_by.parse().ok(),
            resolved_at: Some(answered.at),
            ..asked
        })
    });
    let TaskSnapshot {
        status,
        interrupts,
        run,
        since,
        ..
    } = seen;
    let is_open = *status == TaskStatus::Waiting && !record.remote.cancel_requested;
    let open = interrupts.iter().filter(|_| is_open).enumerate();
    let open =
        open.filter_map(|(at, asked)| open_interrupt(record, asked, run, since.unwrap_or(record.created_at), at));
    answered.chain(open).collect()
}

/// Returns an open interrupt.
fn open_interrupt(
    record: &TaskRecord,
    asked: &Value,
    run: &str,
    since: Timestamp,
    at: usize,
) -> Option<InterruptRecord> {
    let id = id_of(asked, record, at);
    let question = to_question(serde_json::from_value(asked.clone()).ok()?);
    let task = TaskId(record.task.0);
    let asker = InterruptSource::Hook(MODEL.to_owned());
    Some(InterruptRecord {
        interrupt: Interrupt {
            id,
            task,
            asker,
            question: Arc::new(question),
            answer: None,
            is_inline: false,
        },
        thread: record.task,
        run: run.parse().ok()?,
        lane: Lane::Main,
        agent: record.agent.clone(),
        path: vec![record.agent.clone()],
        task_call_id: Some(record.call.clone()),
        seq: 0,
        ordinal: i32::try_from(at).unwrap_or(i32::MAX),
        status: InterruptState::Pending,
        resolution: None,
        resumed_by: None,
        created_at: since,
        resolved_at: None,
    })
}
