//! The handle for threads: create, copy, prune and delete them, and write into their states.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Map, Value};

use super::background::delete_thread;
use super::deliveries::Deliveries;
use super::error::{CreateThreadError, StateWriteError};
use super::interrupts::{self, open_interrupts};
use super::registry::Registry;
use super::retry::write_while_busy;
use super::runs::Runs;
use super::shared::Core;
use super::state_update::{self, History, StateWrite, Superstep};
use crate::db::checkpoints::NewCheckpoint;
use crate::db::erasure::{ErasedRows, ErasureRequest};
use crate::db::interrupts::InterruptRecord;
use crate::db::{self, DbError, DbResult, Tx};
use crate::domain::access::Ownership;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{CheckpointId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome, StoredResponse};
use crate::domain::identity::Identity;
use crate::domain::machine::Machine;
use crate::domain::state::State;
use crate::domain::thread::{Thread, Ttl, TtlStrategy};
use crate::domain::time::Timestamp;

/// A request for a thread whose form was checked.
#[derive(Debug, Clone)]
pub struct NewThread {
    /// The id.
    pub id: ThreadId,
    /// The owner and the tenant.
    pub ownership: Ownership,
    /// The metadata.
    pub metadata: Map<String, Value>,
    /// The lifetime; the default of the server when none.
    pub ttl: Option<Ttl>,
    /// The history with which the thread begins. Each item is a step.
    pub supersteps: Vec<Superstep>,
}

/// A thread that was just created.
#[derive(Debug, Clone)]
pub struct CreatedThread {
    /// The thread.
    pub thread: Thread,
    /// The state that results from the given history; none without a history.
    pub state: Option<State>,
    /// The open interrupts of a copy.
    pub interrupts: Vec<InterruptRecord>,
}

/// The handle for threads: creates, copies, prunes and deletes them, and writes into their states. Cheap to clone.
#[derive(Clone)]
pub struct Threads {
    core: Arc<Core>,
    runs: Runs,
    deliveries: Deliveries,
}

impl Threads {
    pub(super) fn new(runs: Runs, deliveries: Deliveries) -> Self {
        Self {
            core: Arc::clone(&runs.core),
            runs,
            deliveries,
        }
    }

    /// Writes into the state of a thread on which no run is at work.
    ///
    /// # Errors
    /// See [`StateWriteError`]; nothing is stored then.
    pub async fn write_state(
        &self,
        thread: ThreadId,
        write: StateWrite,
        key: Option<IdempotencyKey>,
        shown: fn(ThreadId, CheckpointId) -> StoredResponse,
    ) -> Result<IdempotentOutcome<CheckpointId>, StateWriteError> {
        let caller = Arc::clone(&write.caller);
        let checked = match state_update::precheck(&self.core, thread, write).await {
            Ok(checked) => checked,
            Err(refusal) => return self.core.stored_response(key).await?.ok_or(refusal),
        };
        let registry = Arc::clone(&self.core.registry);
        let now = self.core.clock.now();
        let kept = move |left: &CheckpointId| shown(thread, *left);
        let write = self.core.db.write_once(key, now, kept, move |tx| {
            Box::pin(async move { state_update::write(tx, thread, checked, &registry, now).await })
        });
        let written = write.await;
        if let Err(StateWriteError::WaitsForApprovers(assigned)) = &written {
            interrupts::record_attempt(&self.core, &caller, thread, assigned);
        }
        written
    }

    /// Stops the work on a thread, then deletes the thread. Returns false if it does not exist.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn delete_thread(&self, thread: ThreadId) -> DbResult<bool> {
        for run in self
            .core
            .db
            .read(move |tx| Box::pin(db::runs::in_flight(tx, thread)))
            .await?
        {
            self.runs.stop_and_wait(&run).await?;
        }
        self.deliveries.forget_thread(thread).await?;
        let now = self.core.clock.now();
        let write = write_while_busy(&self.core.db, move |tx| Box::pin(delete_thread(tx, thread, now)));
        let is_deleted = write.await?;
        // Its sandboxes are to end, and the work on other servers.
        self.core.jobs.discover();
        Ok(is_deleted)
    }

    /// Stops the work of a user, and erases everything that belongs to the user.
    ///
    /// # Errors
    /// Returns an error when the database fails. What was erased before stays erased; the same request again finishes it.
    pub async fn erase_user(&self, request: ErasureRequest) -> DbResult<ErasedRows> {
        let threads = self.clone();
        let delete_thread = move |thread: ThreadId| -> BoxFuture<'static, DbResult<bool>> {
            let threads = threads.clone();
            Box::pin(async move { threads.delete_thread(thread).await })
        };
        self.core.db.erase(request, delete_thread).await
    }

    /// Creates a thread, once per key. Returns it with the state that results from its history. `shown` renders the
    /// stored response.
    ///
    /// # Errors
    /// See [`CreateThreadError`]; nothing is stored then.
    pub async fn create_thread(
        &self,
        new_thread: NewThread,
        key: Option<IdempotencyKey>,
        shown: fn(&CreatedThread) -> StoredResponse,
    ) -> Result<IdempotentOutcome<CreatedThread>, CreateThreadError> {
        let now = self.core.clock.now();
        let ttl = new_thread.ttl.or(self.core.retention.threads);
        let thread = Thread::new(new_thread.id, new_thread.ownership, new_thread.metadata, now).with_ttl(ttl);
        let known = self.core.registry.last_on(&thread);
        let sizes = self.core.sizes;
        let supersteps = new_thread.supersteps;
        let has_history = !supersteps.is_empty();
        let replay = move || History::replayed(known.as_ref().map(|known| &**known.agent()), &supersteps, sizes);
        // The values are checked against the schemas of the agent's fields.
        let history = match has_history {
            true => db::off_thread(move |_| replay()).await?,
            false => replay(),
        }?;
        let id = thread.id;
        let write = self.core.db.write_once(key, now, shown, move |tx| {
            Box::pin(async move {
                if history.is_empty() {
                    db::threads::insert_later(tx, &thread).await?;
                    return Ok(CreatedThread {
                        thread,
                        state: None,
                        interrupts: vec![],
                    });
                }
                if !db::threads::insert(tx, &thread).await? {
                    return Err(CreateThreadError::Exists(thread.id));
                }
                history.store(tx, thread.id, now).await?;
                let (machine, _) = db::checkpoints::machine(tx, thread.id, Lane::Main).await?;
                let stored = db::threads::find(tx, thread.id).await?.unwrap_or(thread);
                Ok(CreatedThread {
                    thread: stored,
                    state: machine.head.map(|_| machine.state),
                    interrupts: vec![],
                })
            })
        });
        write.await.map_err(|error| {
            // Only the end of the transaction says that the id is taken.
            let is_conflict = matches!(
                error,
                CreateThreadError::Write(StateWriteError::Fault(DbError::Conflict(_)))
            );
            match is_conflict && !has_history {
                true => CreateThreadError::Exists(id),
                false => error,
            }
        })
    }

    /// Copies a thread with the history of its main agent and what waits for answers, once per key. The copy belongs to
    /// `caller`, on whose behalf its work goes on. Returns none if the thread does not exist. `shown` renders the stored
    /// response.
    ///
    /// The copy is made in pieces and appears as a whole. It is completed even if the client disconnects meanwhile.
    ///
    /// # Errors
    /// Returns an error when the database fails; no copy is left then.
    pub async fn copy_thread(
        &self,
        from: ThreadId,
        caller: Arc<Identity>,
        key: Option<IdempotencyKey>,
        shown: fn(&CreatedThread) -> StoredResponse,
    ) -> DbResult<Option<IdempotentOutcome<CreatedThread>>> {
        let threads = self.clone();
        let work = self.core.run_detached(async move {
            let to = ThreadId::mint();
            let copied = threads.copy_in_pieces(from, to, &caller, key, shown).await;
            if !matches!(copied, Ok(None | Some(IdempotentOutcome::First(_)))) {
                let abandoned = threads.core.db.write(move |tx| Box::pin(db::copies::abandon(tx, to)));
                if let Err(error) = abandoned.await {
                    tracing::warn!(thread = %to, %error, "an unfinished copy stays until it is swept");
                }
            }
            copied
        });
        work.await
    }

    async fn copy_in_pieces(
        &self,
        from: ThreadId,
        to: ThreadId,
        caller: &Identity,
        key: Option<IdempotencyKey>,
        shown: fn(&CreatedThread) -> StoredResponse,
    ) -> DbResult<Option<IdempotentOutcome<CreatedThread>>> {
        let now = self.core.clock.now();
        let ownership = Ownership::of(caller);
        let registry = Arc::clone(&self.core.registry);
        let begun = self.core.db.write(move |tx| {
            Box::pin(async move {
                let mut begun = db::copies::begin(tx, from, to, ownership, now).await?;
                if let Some(copy) = &mut begun {
                    remove_choices_of_starter(tx, from, copy, &registry).await?;
                }
                DbResult::Ok(begun)
            })
        });
        let Some(mut copy) = begun.await? else { return Ok(None) };
        copy.assign_to(caller);
        loop {
            let read = self.core.db.read(move |tx| {
                Box::pin(async move {
                    let mut copy = copy;
                    let piece = copy.next(tx).await?;
                    Ok((copy, piece))
                })
            });
            let (read, piece) = read.await?;
            copy = read;
            let Some(piece) = piece else { break };
            let touched = self.core.clock.now();
            self.core
                .db
                .write(move |tx| Box::pin(db::copies::store(tx, piece, touched)))
                .await?;
        }
        let lanes = copy.lanes();
        let write = self.core.db.write_once(key, now, shown, move |tx| {
            Box::pin(async move {
                let thread = db::copies::finish(tx, copy, now).await?;
                let mut state = None;
                for lane in lanes {
                    let machine = without_open_tasks(tx, to, lane, now).await?;
                    if lane == Lane::Main {
                        state = machine.head.map(|_| machine.state);
                    }
                }
                let newest = db::checkpoints::newest_summary(tx, to, Lane::Main).await?;
                DbResult::Ok(CreatedThread {
                    thread,
                    state,
                    interrupts: open_interrupts(tx, to, newest).await?,
                })
            })
        });
        let copied = write.await?;
        if let IdempotentOutcome::First(copied) = &copied
            && copied.interrupts.iter().any(|asked| asked.expires_at().is_some())
        {
            self.core.jobs.discover();
        }
        Ok(Some(copied))
    }

    /// Prunes threads: deletes them, or deletes all but their newest state. Returns the number of pruned threads.
    /// Threads that do not exist do not count, and neither do threads at work whose history was to be deleted.
    ///
    /// # Errors
    /// Returns an error when the database fails; some threads may be pruned already.
    pub async fn prune(&self, threads: Vec<ThreadId>, strategy: TtlStrategy) -> DbResult<u64> {
        let mut pruned = 0;
        for thread in threads {
            let now = self.core.clock.now();
            let done = match strategy {
                TtlStrategy::Delete => self.delete_thread(thread).await?,
                TtlStrategy::KeepLatest => {
                    let write = self
                        .core
                        .db
                        .write(move |tx| Box::pin(db::retention::keep_latest(tx, thread, now)));
                    db::unless_corrupt(write.await)?.unwrap_or(false)
                }
            };
            pruned += u64::from(done);
        }
        Ok(pruned)
    }
}

/// Removes from the copy of a background task's thread what the agent that started the task has chosen: on the thread of the
/// task, nothing is chosen.
async fn remove_choices_of_starter(
    tx: &mut Tx<'_>,
    from: ThreadId,
    copy: &mut db::copies::Copy,
    registry: &Registry,
) -> DbResult<()> {
    if db::background::find(tx, from).await?.is_none() {
        return Ok(());
    }
    let Some(thread) = db::threads::find(tx, from).await? else {
        return Ok(());
    };
    if let Some(known) = registry.of_thread(tx, &thread).await? {
        for name in known.choice_names() {
            copy.remove_from_context(name);
        }
    }
    Ok(())
}

/// Removes the background tasks that are not over from an agent of a thread that was copied, since nothing of them reaches the
/// copy. Returns the agent.
async fn without_open_tasks(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane, now: Timestamp) -> DbResult<Machine> {
    let head = db::checkpoints::head(tx, thread, lane).await?;
    let run = head.as_ref().and_then(|head| head.run);
    let (mut machine, segment) = db::checkpoints::machine_of(tx, thread, head).await?;
    let Some(mut entry) = machine.remove_open_tasks(CheckpointId::mint()) else {
        return Ok(machine);
    };
    // A write that names no node counts as written by that of the original's last step.
    if let Some(parent) = entry.parent
        && let Some(node) = db::checkpoints::last_node(tx, thread, parent).await?
    {
        entry.node = node;
    }
    let placed = NewCheckpoint {
        thread,
        lane,
        seq: db::checkpoints::max_seq(tx, thread).await? + 1,
        segment,
        run,
        entry: &entry,
        position: &machine.position,
        at: now,
    };
    db::checkpoints::insert(tx, &placed).await?;
    Ok(machine)
}
