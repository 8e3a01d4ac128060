//! Making threads, with a history if need be, and thinning them out.

use std::convert::Infallible;

use serde_json::{Map, Value};

use super::writing::History;
use super::{Runs, StateWriteError};
use crate::db::{self, DbResult};
use crate::domain::checkpoint::Lane;
use crate::domain::id::ThreadId;
use crate::domain::idempotency::{IdempotencyKey, Once, StoredResponse};
use crate::domain::state::State;
use crate::domain::thread::{Thread, Ttl, TtlStrategy};

/// A wish for a thread, checked for shape.
#[derive(Debug, Clone)]
pub struct NewThread {
    /// Its id.
    pub id: ThreadId,
    /// The owner's own notes.
    pub metadata: Map<String, Value>,
    /// How long it is to be kept; what the owner of the server decided, when none.
    pub ttl: Option<Ttl>,
    /// The history it begins with: every item is a step.
    pub supersteps: Vec<Superstep>,
}

/// A step of a history that a client brings.
#[derive(Debug, Clone)]
pub struct Superstep {
    /// What was written in it; one write for each node.
    pub updates: Vec<NodeWrite>,
}

/// What a node wrote, in a history that a client brings.
#[derive(Debug, Clone)]
pub struct NodeWrite {
    /// An object, a list of such, or nothing.
    pub values: Value,
    /// The node; `__input__` for a turn's input. The last one, or at first the input, when none.
    pub node: Option<String>,
}

/// A thread that was just made.
#[derive(Debug, Clone)]
pub struct CreatedThread {
    /// The thread.
    pub thread: Thread,
    /// The state that the history comes to with which it begins; none without a history.
    pub state: Option<State>,
}

impl Runs {
    /// Makes a thread, once for each key. Returns it with the state that its history comes to; or, if there is one of this
    /// id, which then stays as it is, the id. `shown` says how it is shown, which is what is kept.
    ///
    /// # Errors
    /// See [`StateWriteError`]; nothing is stored then.
    pub async fn create_thread(
        &self,
        wish: NewThread,
        key: Option<IdempotencyKey>,
        shown: fn(&CreatedThread) -> StoredResponse,
    ) -> Result<Result<Once<CreatedThread>, ThreadId>, StateWriteError> {
        let now = self.0.clock.now();
        let ttl = wish.ttl.or(self.0.retention.threads);
        let thread = Thread::new(wish.id, wish.metadata, now).with_ttl(ttl);
        let agents = self.0.registry.agents();
        let known = agents.last_on(&thread);
        let history = History::replayed(
            known.as_ref().map(|known| &*known.agent),
            &wish.supersteps,
            self.0.sizes,
        )?;
        let write = self.0.db.write_once(key, now, shown, move |tx| {
            Box::pin(async move {
                if !db::threads::insert(tx, &thread).await? {
                    return Ok(Err(thread.id));
                }
                if history.is_empty() {
                    return Ok(Ok(CreatedThread { thread, state: None }));
                }
                history.store(tx, thread.id, now).await?;
                let (machine, _) = db::checkpoints::machine(tx, thread.id, Lane::Main).await?;
                let stored = db::threads::find(tx, thread.id).await?.unwrap_or(thread);
                Ok(Ok(CreatedThread {
                    thread: stored,
                    state: machine.head.map(|_| machine.state),
                }))
            })
        });
        Ok(write.await?)
    }

    /// Copies a thread with the history of its main agent, once for each key; none if there is no such thread. `shown` says
    /// how the copy is shown, which is what is kept.
    ///
    /// The copy is made in pieces and appears as a whole. It is finished even if whoever asked for it leaves meanwhile.
    ///
    /// # Errors
    /// When the database fails; there is no copy then.
    pub async fn copy_thread(
        &self,
        from: ThreadId,
        key: Option<IdempotencyKey>,
        shown: fn(&CreatedThread) -> StoredResponse,
    ) -> DbResult<Option<Once<CreatedThread>>> {
        self.seen_through(move |runs| async move {
            let to = ThreadId::mint();
            let copied = runs.copy_in_pieces(from, to, key, shown).await;
            if !matches!(copied, Ok(None | Some(Once::First(_)))) {
                let abandoned = runs.0.db.write(move |tx| Box::pin(db::copies::abandon(tx, to))).await;
                if let Err(error) = abandoned {
                    tracing::warn!(thread = %to, %error, "an unfinished copy stays until it is swept");
                }
            }
            copied
        })
        .await
    }

    async fn copy_in_pieces(
        &self,
        from: ThreadId,
        to: ThreadId,
        key: Option<IdempotencyKey>,
        shown: fn(&CreatedThread) -> StoredResponse,
    ) -> DbResult<Option<Once<CreatedThread>>> {
        let now = self.0.clock.now();
        let begun = self
            .0
            .db
            .write(move |tx| Box::pin(db::copies::begin(tx, from, to, now)))
            .await?;
        let Some(mut copy) = begun else { return Ok(None) };
        loop {
            let read = self.0.db.read(move |tx| {
                Box::pin(async move {
                    let mut copy = copy;
                    let piece = copy.next(tx).await?;
                    Ok((copy, piece))
                })
            });
            let (read, piece) = read.await?;
            copy = read;
            let Some(piece) = piece else { break };
            let touched = self.0.clock.now();
            self.0
                .db
                .write(move |tx| Box::pin(db::copies::store(tx, piece, touched)))
                .await?;
        }
        let remains = copy.remains();
        let write = self.0.db.write_once(key, now, shown, move |tx| {
            Box::pin(async move {
                let thread = db::copies::finish(tx, to, remains, now).await?;
                let (machine, _) = db::checkpoints::machine(tx, to, Lane::Main).await?;
                Ok(Ok(CreatedThread {
                    thread,
                    state: machine.head.map(|_| machine.state),
                }))
            })
        });
        let finished: Result<_, Infallible> = write.await?;
        let Ok(once) = finished;
        Ok(Some(once))
    }

    /// Thins threads out: deletes them, or takes all but their newest state away. Returns how many; those that are not
    /// there do not count, nor those at work whose history was to go.
    ///
    /// # Errors
    /// When the database fails; some may be gone then.
    pub async fn prune(&self, threads: Vec<ThreadId>, strategy: TtlStrategy) -> DbResult<u64> {
        let mut pruned = 0;
        for thread in threads {
            let now = self.0.clock.now();
            let done = match strategy {
                TtlStrategy::Delete => self.delete_thread(thread).await?,
                TtlStrategy::KeepLatest => {
                    let write = self
                        .0
                        .db
                        .write(move |tx| Box::pin(async move { db::retention::keep_latest(tx, thread, now).await }));
                    db::unless_corrupt(write.await)?.unwrap_or(false)
                }
            };
            pruned += u64::from(done);
        }
        Ok(pruned)
    }
}
