//! Runs that are started by the clock.
//!
//! A due time is met exactly once: the run is made in the transaction that moves the cron on to its next due time, and with it
//! the job of the cron; of several servers on one database the one that has claimed the job does it. What was missed, because no server ran or the
//! thread of a process stood still, is made up for by one run, however many due times went by.
//!
//! A schedule speaks of the hours of the day, so a server goes by its own clock, and so it does for runs that are put off.
//! Nothing that must happen once rests on it: who has claimed the job moves the cron on. Servers whose clocks differ
//! begin early or late by the difference, and that is all.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::admission::{self, AdmissionContext, Checked};
use super::{AssistantRef, BatchError, CronError, NewRun, Runs, StartError, Target};
use crate::db::{self, DbResult, Tx};
use crate::domain::Invalid;
use crate::domain::cron::{Cron, Schedule};
use crate::domain::id::{AssistantId, CronId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, Once, StoredResponse};
use crate::domain::run::RunRequest;
use crate::domain::time::Timestamp;

/// A wish for a cron, checked for shape but not yet for sense.
#[derive(Debug, Clone)]
pub struct NewCron {
    /// Where its runs shall run; none gives every run a thread of its own.
    pub thread: Option<ThreadId>,
    /// Who shall run.
    pub assistant: AssistantRef,
    /// When.
    pub schedule: Schedule,
    /// After this instant no run is started any more.
    pub end: Option<Timestamp>,
    /// Whether runs are started at all.
    pub enabled: bool,
    /// Whether a thread of a run's own stays when the run is over.
    pub keep_threads: bool,
    /// What each run shall do.
    pub request: RunRequest,
    /// The requester's notes.
    pub metadata: Map<String, Value>,
    /// The wish as the client wrote it.
    pub payload: Map<String, Value>,
}

impl NewCron {
    /// The cron that is wished for. It has no due time yet.
    fn into_cron(self, id: CronId, assistant: AssistantId, now: Timestamp) -> Cron {
        let Self {
            thread,
            schedule,
            end,
            enabled,
            keep_threads,
            mut request,
            metadata,
            mut payload,
            ..
        } = self;
        mark(&mut request.config, id);
        payload.insert("assistant_id".to_owned(), json!(assistant));
        mark(open(&mut payload, "config"), id);
        let due_at = None;
        let created_at = now;
        let updated_at = now;
        Cron {
            id,
            assistant,
            thread,
            schedule,
            end,
            enabled,
            keep_threads,
            due_at,
            request,
            payload,
            metadata,
            created_at,
            updated_at,
        }
    }
}

/// Notes in the settings of a run by which cron it is started.
fn mark(config: &mut Map<String, Value>, id: CronId) {
    open(config, "configurable").insert("cron_id".to_owned(), json!(id));
}

/// The object under this name; made if there is none.
fn open<'a>(object: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let value = object.entry(name).or_insert(Value::Null);
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("an object was just put there")
}

/// What one due time asks for.
pub(super) fn wish_of(cron: &Cron) -> NewRun {
    let keep = cron.keep_threads;
    let mut metadata = cron.metadata.clone();
    metadata.insert("cron_id".to_owned(), json!(cron.id));
    NewRun {
        target: cron.thread.map_or(Target::Stateless { keep }, Target::Thread),
        assistant: AssistantRef::Id(cron.assistant),
        request: cron.request.clone(),
        resume: None,
        metadata,
        after: Duration::ZERO,
    }
}

/// What the run of a cron is admitted with.
pub(super) struct RunAhead {
    pub(super) checked: Vec<Checked>,
    /// The thread of the cron.
    pub(super) thread: Option<ThreadId>,
    /// The request that was checked.
    pub(super) request: Option<RunRequest>,
    /// Why it is not granted, if that is known already.
    pub(super) refusal: Option<StartError>,
}

/// The cron that is wished for, if its runs can be admitted as far as can be told ahead. It has no due time yet.
async fn lay_out(tx: &mut Tx<'_>, wish: NewCron, context: &AdmissionContext, id: CronId) -> Result<Cron, CronError> {
    let resolved = context.registry.resolve(tx, &wish.assistant).await?;
    let cron = wish.into_cron(id, resolved.assistant.id, context.now);
    admission::check_ahead(&wish_of(&cron), &resolved, context)?;
    if cron.thread.is_none() && cron.request.checkpoint.is_some() {
        let reason = "needs a thread: a cron without one begins anew each time";
        return Err(Invalid::new("checkpoint", reason).into());
    }
    Ok(cron)
}

impl Runs {
    /// Makes a cron, once for each key; what is kept is how it is `shown`.
    ///
    /// # Errors
    /// See [`CronError`]; nothing is stored then.
    pub async fn create_cron(
        &self,
        wish: NewCron,
        key: Option<IdempotencyKey>,
        shown: fn(&Cron) -> StoredResponse,
    ) -> Result<Once<Cron>, CronError> {
        let id = CronId::mint();
        let now = self.0.clock.now();
        let checked = match self.cron_ahead(&wish, id, now).await {
            Ok(checked) => checked,
            Err(refusal) => return self.0.kept(key).await?.ok_or(refusal),
        };
        let context = AdmissionContext {
            now,
            ..self.0.admission_context(checked)
        };
        let write = self.0.db.write_once(key, now, shown, move |tx| {
            Box::pin(async move {
                if let Some(thread) = wish.thread
                    && db::threads::lock(tx, thread).await?.is_none()
                {
                    return Err(CronError::NoThread(thread));
                }
                let mut cron = lay_out(tx, wish, &context, id).await?;
                cron.due_at = cron.next_after(now);
                db::crons::insert(tx, &cron).await?;
                Ok(cron)
            })
        });
        write.await
    }

    /// Puts `wish` in the place of `old`, a cron as it was read. Its next due time changes only with its schedule, its
    /// zone or its end, or when it is enabled: what was due while it was not is not made up for.
    ///
    /// # Errors
    /// See [`CronError`]; [`CronError::Stale`] when the cron is not as it was read. Nothing is stored then.
    pub async fn update_cron(&self, old: Cron, wish: NewCron) -> Result<Cron, CronError> {
        let now = self.0.clock.now();
        let checked = self.cron_ahead(&wish, old.id, now).await?;
        let context = AdmissionContext {
            now,
            ..self.0.admission_context(checked)
        };
        self.0
            .db
            .write(move |tx| {
                Box::pin(async move {
                    // In the order in which the deletion of a thread takes them.
                    if let Some(thread) = old.thread {
                        db::threads::lock(tx, thread).await?;
                    }
                    let Some(found) = db::crons::lock(tx, old.id).await? else {
                        return Err(CronError::NoCron);
                    };
                    if (found.updated_at, &found.payload) != (old.updated_at, &old.payload) {
                        return Err(CronError::Stale);
                    }
                    let mut new = Cron {
                        thread: old.thread,
                        created_at: old.created_at,
                        ..lay_out(tx, wish, &context, old.id).await?
                    };
                    let is_woken = new.enabled && !found.enabled;
                    let still_due = found.due_at.filter(|due| new.end.is_none_or(|end| *due <= end));
                    let goes_on = !is_woken && new.schedule == found.schedule && still_due.is_some();
                    new.due_at = if goes_on { still_due } else { new.next_after(now) };
                    db::crons::update(tx, &new).await?;
                    Ok(new)
                })
            })
            .await
    }

    /// Checks those parts of the wish for a cron whose check takes long.
    async fn cron_ahead(&self, wish: &NewCron, id: CronId, now: Timestamp) -> Result<Vec<Checked>, CronError> {
        self.0.webhooks.check(&wish.request)?;
        // Which assistant is meant is found out by whoever looks at the wish.
        let cron = wish.clone().into_cron(id, AssistantId(uuid::Uuid::nil()), now);
        let ahead = NewRun {
            assistant: wish.assistant.clone(),
            ..wish_of(&cron)
        };
        let checked = self.checked_ahead(&Arc::new(vec![ahead])).await;
        checked.map_err(|refused| CronError::of_check(refused.error))
    }

    /// What the run of a cron is admitted with, after its request was checked, as far as that takes long.
    pub(super) async fn run_ahead(&self, id: CronId) -> DbResult<RunAhead> {
        let found = self
            .0
            .db
            .read(move |tx| Box::pin(async move { db::crons::find(tx, id).await }))
            .await;
        // One that is gone or cannot be read is met by the write.
        let Some(cron) = db::unless_corrupt(found)?.flatten() else {
            return Ok(RunAhead {
                checked: vec![],
                thread: None,
                request: None,
                refusal: None,
            });
        };
        let checked = self.checked_ahead(&Arc::new(vec![wish_of(&cron)])).await;
        let thread = cron.thread;
        let request = Some(cron.request);
        match checked {
            Ok(checked) => Ok(RunAhead {
                checked,
                thread,
                request,
                refusal: None,
            }),
            Err(BatchError {
                error: StartError::Fault(error),
                ..
            }) => Err(error),
            Err(BatchError { error: refusal, .. }) => Ok(RunAhead {
                checked: vec![],
                thread,
                request,
                refusal: Some(refusal),
            }),
        }
    }

    /// Deletes a cron. False if there is none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn delete_cron(&self, id: CronId) -> DbResult<bool> {
        self.0
            .db
            .write(move |tx| Box::pin(async move { db::crons::delete(tx, id).await }))
            .await
    }
}
