//! Crons: runs that start at scheduled times.
//!
//! Each due time starts one run. The transaction that stores the run also moves the cron and its job to the next due
//! time. Of several servers on one database, the server that has claimed the job runs this transaction. Due times that
//! passed while no server was running are made up for by a single run.
//!
//! Schedules follow the clock of the server, and so do delayed runs. No guarantee depends on it. Servers whose clocks
//! differ start runs early or late by the difference.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::admission::{self, AdmissionContext, Checked};
use super::admit::{Admission, check_priority};
use super::error::{BatchError, CronError, StartError};
use super::new_run::{AssistantRef, NewRun, Target};
use super::resource_ref::ResourceRef;
use super::shared::Core;
use crate::db::{self, DbResult, Tx};
use crate::domain::Invalid;
use crate::domain::access::{Action, Ownership};
use crate::domain::cron::{Cron, Schedule};
use crate::domain::id::{AssistantId, CronId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome, StoredResponse};
use crate::domain::identity::Identity;
use crate::domain::run::RunRequest;
use crate::domain::run_config::CONFIGURABLE;
use crate::domain::thread::Thread;
use crate::domain::time::Timestamp;

/// A request for a cron whose form was checked.
#[derive(Debug, Clone)]
pub struct NewCron {
    /// The caller who creates the cron. The cron and the threads that it makes belong to this user.
    pub caller: Arc<Identity>,
    /// The thread of its runs; with none, every run has a thread of its own.
    pub thread: Option<ThreadId>,
    /// The assistant of its runs.
    pub assistant: AssistantRef,
    /// The times of its runs.
    pub schedule: Schedule,
    /// The time after which no run is started.
    pub end: Option<Timestamp>,
    /// False if no runs are started for now.
    pub enabled: bool,
    /// True if the thread of a run is kept after the run.
    pub keep_threads: bool,
    /// The request of each run.
    pub request: RunRequest,
    /// The metadata.
    pub metadata: Map<String, Value>,
    /// The request as the client wrote it.
    pub payload: Map<String, Value>,
}

impl NewCron {
    /// Returns the cron without a due time.
    fn into_cron(self, id: CronId, assistant: AssistantId, now: Timestamp) -> Cron {
        let Self {
            caller,
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
        request.assign_to(&caller);
        mark(&mut request.config, id);
        payload.insert("assistant_id".to_owned(), json!(assistant));
        mark(open(&mut payload, "config"), id);
        let due_at = None;
        let created_at = now;
        let updated_at = now;
        Cron {
            id,
            ownership: Ownership::of(&caller),
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

/// Stores in the settings of a run that this cron started it.
fn mark(config: &mut Map<String, Value>, id: CronId) {
    open(config, CONFIGURABLE).insert("cron_id".to_owned(), json!(id));
}

/// Returns the object under this name, and creates it if it does not exist.
fn open<'a>(object: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let value = object.entry(name).or_insert(Value::Null);
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("an object was just put there")
}

/// Returns the run of one due time.
pub(super) fn new_run_of(cron: &Cron) -> NewRun {
    let keep = cron.keep_threads;
    let mut metadata = cron.metadata.clone();
    metadata.insert("cron_id".to_owned(), json!(cron.id));
    NewRun {
        target: cron.thread.map_or(Target::Stateless { keep }, Target::Thread),
        caller: Arc::new(Identity::server_for(&cron.ownership)),
        assistant: AssistantRef::Id(cron.assistant),
        request: cron.request.clone(),
        resume: None,
        metadata,
        after: Duration::ZERO,
    }
}

/// The result of the checks that are made before the run of a cron is admitted.
pub(super) struct PrecheckedRun {
    pub(super) checked: Vec<Checked>,
    /// The thread of the cron.
    pub(super) thread: Option<ThreadId>,
    /// The request that was checked.
    pub(super) request: Option<RunRequest>,
    /// The refusal, if one is known already.
    pub(super) refusal: Option<StartError>,
}

/// Returns the cron without a due time, if its runs can be admitted as far as is known in advance. `thread` is the thread of
/// its runs, if they have one.
async fn check_cron(
    tx: &mut Tx<'_>,
    new_cron: NewCron,
    thread: Option<&Thread>,
    context: &AdmissionContext,
    id: CronId,
) -> Result<Cron, CronError> {
    let caller = Arc::clone(&new_cron.caller);
    let found = admission::find_assistant(tx, &new_cron.assistant, &caller, &context.core).await;
    let mut resolved = found.map_err(CronError::of_check)?;
    let cron = new_cron.into_cron(id, resolved.assistant.id, context.now);
    let new_run = new_run_of(&cron);
    // The choices decide which models the runs ask, so the tenant is checked with them, as when a run is admitted.
    let chosen = admission::choose_ahead(tx, &new_run, &mut resolved, thread).await;
    chosen.map_err(CronError::of_check)?;
    admission::check_tenant(&resolved, &caller.tenant, &caller, &context.core).map_err(CronError::of_check)?;
    if !caller.is_unrestricted() {
        let checked = check_thread(tx, &cron, &caller, &context.core).await;
        checked.map_err(CronError::of_check)?;
    }
    admission::check_ahead(&new_run, &resolved, context)?;
    let Some(checkpoint) = cron.request.checkpoint else {
        return Ok(cron);
    };
    let Some(thread) = cron.thread else {
        let reason = "needs a thread: a cron without one begins anew each time";
        return Err(Invalid::new("checkpoint", reason).into());
    };
    match db::checkpoints::find_head(tx, thread, checkpoint).await? {
        Some(_) => Ok(cron),
        None => Err(StartError::NoCheckpoint(checkpoint).into()),
    }
}

/// Returns whether a change needs the right to set priorities: a higher priority, or the priority of the cron for other or
/// more runs. Without that right the owner of a cron may still stop the cron.
fn prioritises_more(old: &Cron, new: &Cron) -> bool {
    if new.request.priority > old.request.priority {
        return true;
    }
    let has_same_times = new.schedule == old.schedule && new.end == old.end;
    let has_same_runs = old.enabled && has_same_times && has_same_request(old, new);
    new.enabled && !has_same_runs
}

/// Returns whether the runs of two crons have the same request, whoever sends it.
fn has_same_request(old: &Cron, new: &Cron) -> bool {
    let of_anybody = |request: &RunRequest| RunRequest {
        caller: None,
        ..request.clone()
    };
    of_anybody(&new.request) == of_anybody(&old.request)
}

/// Returns whether a cron with this change starts no run, and has no other request. Then its runs are not checked: a cron whose
/// runs are refused by now can be stopped. When it is enabled again, they are checked.
fn only_stops(old: &Cron, new_cron: &NewCron, now: Timestamp) -> bool {
    !new_cron.enabled && has_same_request(old, &new_cron.clone().into_cron(old.id, old.assistant, now))
}

/// Returns the thread of a cron's runs, or one as the cron creates for each of them.
async fn thread_of_runs(tx: &mut Tx<'_>, cron: &Cron) -> Result<Thread, StartError> {
    match cron.thread {
        Some(id) => db::threads::find(tx, id).await?.ok_or(StartError::NoThread(id)),
        None => Ok(Thread::new(
            ThreadId::mint(),
            cron.ownership.clone(),
            new_run_of(cron).metadata,
            cron.created_at,
        )),
    }
}

/// Checks that a user who creates or changes a cron may write into the state of its thread if its runs do so by a command, and
/// that no policy forbids the runs.
async fn check_thread(tx: &mut Tx<'_>, cron: &Cron, user: &Identity, core: &Arc<Core>) -> Result<(), StartError> {
    let thread = thread_of_runs(tx, cron).await?;
    if cron.request.brings_update() {
        admission::check_update(tx, &thread, user, core).await?;
    }
    check_by_policies(tx, cron, &thread, user, core).await
}

/// Checks that no policy forbids a user the runs of a cron on their thread, or on threads that the cron creates.
async fn check_by_policies(
    tx: &mut Tx<'_>,
    cron: &Cron,
    thread: &Thread,
    user: &Identity,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    if cron.thread.is_none() && cron.keep_threads {
        admission::refuse_by_policies(tx, thread, user, Action::ThreadsCreate, core).await?;
    }
    if cron.request.brings_update() {
        admission::refuse_by_policies(tx, thread, user, Action::ThreadsUpdate, core).await?;
    }
    admission::refuse_by_policies(tx, thread, user, Action::ThreadsCreateRun, core).await
}

/// Checks that the user of a cron may still read its assistant, which may be shared no more, and that no policy forbids the next
/// run: the thread may have other metadata than before.
pub(super) async fn check_user(tx: &mut Tx<'_>, cron: &Cron, core: &Arc<Core>) -> Result<(), StartError> {
    let Some(user) = &cron.request.caller else {
        return Ok(());
    };
    if let Some(assistant) = db::assistants::find(tx, cron.assistant).await? {
        admission::refuse_assistant(&assistant, user, core)?;
    }
    let thread = thread_of_runs(tx, cron).await?;
    check_by_policies(tx, cron, &thread, &user.to_identity(), core).await
}

/// The handle for crons: creates, changes and deletes them. Cheap to clone.
#[derive(Clone)]
pub struct Crons {
    pub(super) core: Arc<Core>,
    pub(super) admission: Admission,
}

impl Crons {
    pub(super) fn new(core: Arc<Core>, admission: Admission) -> Self {
        Self { core, admission }
    }

    /// Creates a cron, once per key. `shown` renders the stored response to repeated requests.
    ///
    /// # Errors
    /// See [`CronError`]; nothing is stored then.
    pub async fn create(
        &self,
        new_cron: NewCron,
        key: Option<IdempotencyKey>,
        shown: fn(&Cron) -> StoredResponse,
    ) -> Result<IdempotentOutcome<Cron>, CronError> {
        let id = CronId::mint();
        let now = self.core.clock.now();
        let checked = match self.precheck_cron(&new_cron, None, id, now).await {
            Ok(checked) => checked,
            Err(refusal) => return self.core.stored_response(key).await?.ok_or(refusal),
        };
        let context = AdmissionContext {
            now,
            ..self.admission.context(checked)
        };
        let write = self.core.db.write_once(key, now, shown, move |tx| {
            Box::pin(async move {
                let thread = match new_cron.thread {
                    Some(thread) => {
                        let locked = db::threads::lock(tx, thread).await?;
                        Some(locked.ok_or(CronError::NoThread(thread))?)
                    }
                    None => None,
                };
                let mut cron = check_cron(tx, new_cron, thread.as_ref(), &context, id).await?;
                cron.due_at = cron.next_after(now);
                db::crons::insert(tx, &cron).await?;
                Ok::<_, CronError>(cron)
            })
        });
        let created = write.await?;
        self.core.jobs.wake();
        Ok(created)
    }

    /// Replaces the cron `old`, as it was read, with `new_cron`. It keeps its owner, for whom its runs work. The next
    /// due time changes only with the schedule, the zone or the end, or when the cron is enabled. Due times that passed
    /// while it was disabled are not made up for.
    ///
    /// # Errors
    /// See [`CronError`]; [`CronError::Stale`] when the cron was changed since it was read. Nothing is stored then.
    pub async fn update(&self, old: Cron, new_cron: NewCron) -> Result<Cron, CronError> {
        let now = self.core.clock.now();
        let only_stops = only_stops(&old, &new_cron, now);
        let checked = match only_stops {
            true => vec![],
            false => self.precheck_cron(&new_cron, Some(&old), old.id, now).await?,
        };
        let context = AdmissionContext {
            now,
            ..self.admission.context(checked)
        };
        let write = self.core.db.write(move |tx| {
            Box::pin(async move {
                // The locks are taken in the same order as by the deletion of a thread.
                let thread = match old.thread {
                    Some(thread) => db::threads::lock(tx, thread).await?,
                    None => None,
                };
                let Some(found) = db::crons::lock(tx, old.id).await? else {
                    return Err(CronError::NoCron);
                };
                if (found.updated_at, &found.payload) != (old.updated_at, &old.payload) {
                    return Err(CronError::Stale);
                }
                let new = match only_stops {
                    true => new_cron.into_cron(old.id, old.assistant, now),
                    false => check_cron(tx, new_cron, thread.as_ref(), &context, old.id).await?,
                };
                let mut new = Cron {
                    ownership: found.ownership.clone(),
                    request: RunRequest {
                        caller: found.request.caller.clone(),
                        ..new.request
                    },
                    thread: old.thread,
                    created_at: old.created_at,
                    ..new
                };
                let is_woken = new.enabled && !found.enabled;
                let still_due = found.due_at.filter(|due| new.end.is_none_or(|end| *due <= end));
                let goes_on = !is_woken && new.schedule == found.schedule && still_due.is_some();
                new.due_at = if goes_on { still_due } else { new.next_after(now) };
                db::crons::update(tx, &new).await?;
                Ok(new)
            })
        });
        let updated = write.await?;
        self.core.jobs.wake();
        Ok(updated)
    }

    /// Makes the checks of the request for a cron that need no transaction. `old` is the cron that it changes.
    async fn precheck_cron(
        &self,
        new_cron: &NewCron,
        old: Option<&Cron>,
        id: CronId,
        now: Timestamp,
    ) -> Result<Vec<Checked>, CronError> {
        let NewCron { caller, request, .. } = new_cron;
        self.core.webhooks.check(request)?;
        // The id is a placeholder: the check resolves the assistant.
        let cron = new_cron.clone().into_cron(id, AssistantId(uuid::Uuid::nil()), now);
        if old.is_none_or(|old| prioritises_more(old, &cron)) {
            let (action, resource) = match (old, new_cron.thread) {
                (Some(old), _) => (Action::CronsUpdate, ResourceRef::Cron(old.id)),
                (None, Some(thread)) => (Action::CronsCreate, ResourceRef::Thread(thread)),
                (None, None) => (Action::CronsCreate, ResourceRef::Collection),
            };
            check_priority(&self.core, caller, action, resource, request)?;
        }
        let ahead = NewRun {
            assistant: new_cron.assistant.clone(),
            ..new_run_of(&cron)
        };
        let checked = self.admission.precheck(&Arc::new(vec![ahead])).await;
        checked.map_err(|refused| CronError::of_check(refused.error))
    }

    /// Makes the slow checks of the run of a cron.
    pub(super) async fn precheck_run(&self, id: CronId) -> DbResult<PrecheckedRun> {
        let found = self
            .core
            .db
            .read(move |tx| Box::pin(async move { db::crons::find(tx, id).await }))
            .await;
        // A cron that is gone or cannot be read is handled by the write.
        let Some(cron) = db::unless_corrupt(found)?.flatten() else {
            return Ok(PrecheckedRun {
                checked: vec![],
                thread: None,
                request: None,
                refusal: None,
            });
        };
        let checked = self.admission.precheck(&Arc::new(vec![new_run_of(&cron)])).await;
        let thread = cron.thread;
        let request = Some(cron.request);
        match checked {
            Ok(checked) => Ok(PrecheckedRun {
                checked,
                thread,
                request,
                refusal: None,
            }),
            Err(BatchError {
                error: StartError::Fault(error),
                ..
            }) => Err(error),
            Err(BatchError { error: refusal, .. }) => Ok(PrecheckedRun {
                checked: vec![],
                thread,
                request,
                refusal: Some(refusal),
            }),
        }
    }

    /// Deletes a cron. Returns false if it does not exist.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn delete(&self, id: CronId) -> DbResult<bool> {
        self.core
            .db
            .write(move |tx| Box::pin(async move { db::crons::delete(tx, id).await }))
            .await
    }
}
