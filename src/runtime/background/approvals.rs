//! Questions of tasks on other servers: shown here as they were seen, and answered from here.

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::MODES;
use super::remote::unavailable;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbResult};
use crate::domain::Invalid;
use crate::domain::background::{Answered, TaskRecord, TaskSnapshot, TaskStatus};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{InterruptId, RunId, TaskId, ThreadId};
use crate::domain::interrupt::{Interrupt, InterruptSource};
use crate::domain::machine::MODEL;
use crate::domain::time::Timestamp;
use crate::peer::{PeerError, RemoteRunRequest, StartFailed, resume, to_question};
use crate::runtime::{ResolveError, Runs};

/// How long it is tried to take an answer to another server, while somebody waits for it.
const PATIENCE: Duration = Duration::from_secs(10);

impl Runs {
    /// The questions of the task on another server whose thread this is, in the order in which they were asked. None if it
    /// is none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn asked_by_remote(&self, task: ThreadId) -> DbResult<Option<Vec<InterruptRecord>>> {
        Ok(self.remote_task(task).await?.map(|record| asked(&record)))
    }

    /// The questions that tasks on other servers wait with, those of up to `tasks` tasks.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn pending_elsewhere(&self, tasks: i64) -> DbResult<Vec<InterruptRecord>> {
        let read = self
            .0
            .db
            .read(move |tx| Box::pin(db::background::remote::waiting(tx, tasks)));
        let all = read.await?.iter().flat_map(asked).collect::<Vec<_>>();
        Ok(all
            .into_iter()
            .filter(|asked| asked.status == InterruptState::Pending)
            .collect())
    }

    /// The task on another server whose thread this is; none, too, if what is stored of it cannot be read.
    async fn remote_task(&self, task: ThreadId) -> DbResult<Option<TaskRecord>> {
        let read = self
            .0
            .db
            .read(move |tx| Box::pin(async move { db::background::find(tx, task).await }));
        Ok(db::unless_corrupt(read.await)?
            .flatten()
            .filter(|record| record.url.is_some()))
    }

    /// Takes the answer to a question to the server that asks it; returns the run that goes on with it there. The same
    /// answer again gives the same run.
    pub(in crate::runtime) async fn resolve_elsewhere(
        &self,
        task: ThreadId,
        interrupt: &InterruptId,
        answer: Value,
    ) -> Result<RunId, ResolveError> {
        let record = self.remote_task(task).await?.ok_or(ResolveError::NoInterrupt)?;
        let all = asked(&record);
        let found = all
            .iter()
            .rfind(|asked| asked.interrupt.id == *interrupt)
            .ok_or(ResolveError::NoInterrupt)?;
        match (found.status, found.resumed_by) {
            (InterruptState::Pending, _) => {}
            (_, Some(by)) if found.resolution.as_ref() == Some(&answer) => return Ok(by),
            (status, _) => return Err(ResolveError::Stale(status.word())),
        }
        found.interrupt.question.check(&answer)?;
        let (place, agent) = self.remote_thread(&record).await.map_err(ResolveError::Elsewhere)?;
        let lost = |error: &PeerError| ResolveError::Elsewhere(unavailable(&record, &place, error));
        // Whoever answers twice comes to the same run, also if this server dies in between.
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
        let newest = runs.first().map(|run| run.run_id.to_string());
        if newest.as_ref() != Some(&asked_by) && !runs.iter().any(|run| run.has_key(&key)) {
            return Err(ResolveError::Stale("answered, or dropped, where it was asked"));
        }
        let pending = all
            .iter()
            .filter(|asked| asked.status == InterruptState::Pending)
            .count();
        let resume = match (pending, &found.interrupt.question.key) {
            (2.., Some(id)) => json!({id: answer}),
            (_, _) => resume(&[(found.interrupt.question.clone(), answer.clone())]),
        };
        let order = RemoteRunRequest {
            assistant_id: agent.graph_id.clone().unwrap_or_default(),
            command: Some(json!({"resume": resume})),
            multitask_strategy: "reject",
            stream_mode: MODES.into(),
            stream_resumable: true,
            ..RemoteRunRequest::default()
        };
        let run = place
            .start_run(order, &key, PATIENCE)
            .await
            .map_err(|StartFailed { error, .. }| match &error {
                PeerError::Refused { status: 409, .. } => ResolveError::Busy,
                PeerError::Refused { message, .. } if error.is_refusal() => {
                    Invalid::new("answer", message.clone()).into()
                }
                PeerError::Unreachable(_) | PeerError::Refused { .. } | PeerError::Misunderstood(_) => lost(&error),
            })?;
        let at = self.0.clock.now();
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
        let noted = self.note(&record, record.remote.with_answer(answered)).await;
        noted.map_err(ResolveError::Elsewhere)?;
        Ok(RunId(run.run_id))
    }
}

/// The ids of the questions that a task waits with; very old servers give none.
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

/// The questions of a task: those that were answered here, and those that it waits with.
fn asked(record: &TaskRecord) -> Vec<InterruptRecord> {
    let Some(seen) = &record.remote.seen else { return vec![] };
    let answered = seen.answered.iter().filter_map(|answered| {
        let asked = one(record, &answered.question, (&answered.asked_by, answered.asked_at), 0)?;
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
    let open = open.filter_map(|(at, asked)| one(record, asked, (run, since.unwrap_or(record.created_at)), at));
    answered.chain(open).collect()
}

/// A question that waits.
fn one(record: &TaskRecord, asked: &Value, (run, since): (&str, Timestamp), at: usize) -> Option<InterruptRecord> {
    let id = id_of(asked, record, at);
    let question = to_question(serde_json::from_value(asked.clone()).ok()?);
    let task = TaskId(record.task.0);
    let asker = InterruptSource::Hook(MODEL.to_owned());
    Some(InterruptRecord {
        interrupt: Interrupt {
            id,
            task,
            asker,
            question,
            answer: None,
        },
        thread: record.task,
        run: run.parse().ok()?,
        lane: Lane::Main,
        agent: record.agent.clone(),
        path: vec![record.agent.clone()],
        task_call_id: Some(record.call.clone()),
        seq: i64::try_from(at).unwrap_or(i64::MAX),
        status: InterruptState::Pending,
        resolution: None,
        resumed_by: None,
        created_at: since,
        resolved_at: None,
    })
}
