//! All that the loop asks of the outer world.

use async_trait::async_trait;

use crate::domain::checkpoint::Entry;
use crate::domain::event::{Delta, Fact};
use crate::domain::id::RunId;
use crate::domain::machine::{Failure, Machine};
use crate::domain::run::Lineage;
use crate::domain::state::Update;
use crate::tool::Delegation;

/// What the loop writes through. One journal serves one lane of a thread.
#[async_trait]
pub trait Journal: Send + Sync {
    /// Stores, in one transaction: the entries, where `machine` now stands, and the facts, in the order of `notes`.
    /// Returns only when all of it is durable; until then nobody sees it.
    ///
    /// # Errors
    /// [`Stop::LeaseLost`] when another process has taken the run over; nothing was stored then.
    async fn commit(&self, machine: &Machine, notes: Vec<Note>) -> Result<(), Stop>;

    /// Passes on a piece of an answer that is still being given. Followers see it at once; it is not stored.
    fn say(&self, delta: Delta);

    /// Finds the child run of this call, or creates it if limits allow. Creating is durable before this returns.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    async fn child(&self, wish: ChildWish) -> Result<ChildVerdict, Stop>;
}

/// Something to be stored.
#[derive(Debug, Clone)]
pub enum Note {
    /// A step was taken.
    Entry(Entry),
    /// Something else happened.
    Fact(Fact),
}

/// What a child run is to be.
#[derive(Debug, Clone)]
pub struct ChildWish {
    /// The delegation.
    pub delegation: Delegation,
    /// The child's place in the tree.
    pub lineage: Lineage,
    /// What the child begins with: its one human message, and the fields handed down.
    pub input: Update,
    /// The child, when the call already has one.
    pub known: Option<RunId>,
}

/// Whether there is a child to drive.
pub enum ChildVerdict {
    /// There is.
    Admitted(Box<Child>),
    /// A limit forbids it; the text is for the delegating model.
    Refused(String),
}

/// A child run, ready to be driven.
pub struct Child {
    /// Its id.
    pub id: RunId,
    /// Where it stands: fresh, waiting, under way, or ended.
    pub machine: Machine,
    /// What it began with; the difference to its state is what it wrote.
    pub input: Update,
    /// Whether it has begun before.
    pub resumed: bool,
    /// Where it writes.
    pub journal: Box<dyn Journal>,
}

/// Why a loop was left without having come to its end.
#[derive(Debug, Clone, PartialEq)]
pub enum Stop {
    /// The run was told to stop, or the server is shutting down.
    Cancelled,
    /// Another process has taken the run over: nothing more may be written.
    LeaseLost,
    /// The outer world failed; the run cannot go on here and now.
    Fault(Failure),
}
