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

use super::admission::{self, AdmissionDeps};
use super::{AssistantRef, CronError, NewRun, Runs, StartError, Target, assistants};
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
    pub(super) house: AdmissionDeps,
    /// The thread of the cron.
    pub(super) thread: Option<ThreadId>,
    /// The request that was checked.
    pub(super) request: Option<RunRequest>,
    /// Why it is not granted, if that is known already.
    pub(super) refusal: Option<StartError>,
}

/// The cron that is wished for, if its runs can be admitted as far as can be told ahead. It has no due time yet.
async fn lay_out(
    tx: &mut Tx<'_>,
    wish: NewCron,
    house: &AdmissionDeps,
    (id, now): (CronId, Timestamp),
) -> DbResult<Result<Cron, CronError>> {
    let cast = match assistants::cast(tx, &house.registry.agents(), &wish.assistant).await? {
        Ok(cast) => cast,
        Err(refusal) => return Ok(Err(refusal.into())),
    };
    let cron = wish.into_cron(id, cast.assistant.id, now);
    if let Err(invalid) = admission::check_ahead(&wish_of(&cron), &cast, house) {
        return Ok(Err(invalid.into()));
    }
    if cron.thread.is_none() && cron.request.checkpoint.is_some() {
        let reason = "needs a thread: a cron without one begins anew each time";
        return Ok(Err(Invalid::new("checkpoint", reason).into()));
    }
    Ok(Ok(cron))
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
        let house = match self.cron_ahead(&wish, id, now).await {
            Ok(house) => house,
            Err(refusal) => return self.kept(key).await?.ok_or(refusal),
        };
        let write = self.0.db.write_once(key, now, shown, move |tx| {
            Box::pin(async move {
                if let Some(thread) = wish.thread
                    && db::threads::lock(tx, thread).await?.is_none()
                {
                    return Ok(Err(CronError::NoThread(thread)));
                }
                let mut cron = match lay_out(tx, wish, &house, (id, now)).await? {
                    Ok(cron) => cron,
                    Err(refusal) => return Ok(Err(refusal)),
                };
                cron.due_at = cron.next_after(now);
                db::crons::insert(tx, &cron).await?;
                Ok(Ok(cron))
            })
        });
        write.await?
    }

    /// Puts `wish` in the place of `old`, a cron as it was read. Its next due time changes only with its schedule, its
    /// zone or its end, or when it is enabled: what was due while it was not is not made up for.
    ///
    /// # Errors
    /// See [`CronError`]; [`CronError::Stale`] when the cron is not as it was read. Nothing is stored then.
    pub async fn update_cron(&self, old: Cron, wish: NewCron) -> Result<Cron, CronError> {
        let now = self.0.clock.now();
        let house = self.cron_ahead(&wish, old.id, now).await?;
        self.0
            .db
            .write(move |tx| {
                Box::pin(async move {
                    // In the order in which the deletion of a thread takes them.
                    if let Some(thread) = old.thread {
                        db::threads::lock(tx, thread).await?;
                    }
                    let Some(found) = db::crons::lock(tx, old.id).await? else {
                        return Ok(Err(CronError::NoCron));
                    };
                    if (found.updated_at, &found.payload) != (old.updated_at, &old.payload) {
                        return Ok(Err(CronError::Stale));
                    }
                    let mut new = match lay_out(tx, wish, &house, (old.id, now)).await? {
                        Ok(new) => Cron {
                            thread: old.thread,
                            created_at: old.created_at,
                            ..new
                        },
                        Err(refusal) => return Ok(Err(refusal)),
                    };
                    let is_woken = new.enabled && !found.enabled;
                    let still_due = found.due_at.filter(|due| new.end.is_none_or(|end| *due <= end));
                    let goes_on = !is_woken && new.schedule == found.schedule && still_due.is_some();
                    new.due_at = if goes_on { still_due } else { new.next_after(now) };
                    db::crons::update(tx, &new).await?;
                    Ok(Ok(new))
                })
            })
            .await?
    }

    /// What a cron is made with, after those parts of the wish were checked whose check takes long.
    async fn cron_ahead(&self, wish: &NewCron, id: CronId, now: Timestamp) -> Result<AdmissionDeps, CronError> {
        self.0.webhooks.check(&wish.request)?;
        // Which assistant is meant is found out by whoever looks at the wish.
        let cron = wish.clone().into_cron(id, AssistantId(uuid::Uuid::nil()), now);
        let ahead = NewRun {
            assistant: wish.assistant.clone(),
            ..wish_of(&cron)
        };
        let checked = self.checked_ahead(&Arc::new(vec![ahead])).await;
        checked.map_err(|(_, refusal)| CronError::of_check(refusal))
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
                house: self.0.house(),
                thread: None,
                request: None,
                refusal: None,
            });
        };
        let checked = self.checked_ahead(&Arc::new(vec![wish_of(&cron)])).await;
        let thread = cron.thread;
        let request = Some(cron.request);
        match checked {
            Ok(house) => Ok(RunAhead {
                house,
                thread,
                request,
                refusal: None,
            }),
            Err((_, StartError::Fault(error))) => Err(error),
            Err((_, refusal)) => Ok(RunAhead {
                house: self.0.house(),
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
