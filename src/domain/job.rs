//! Jobs: durable work with a due time.

use uuid::Uuid;

use super::id::JobId;

/// A job that a worker has claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedJob {
    /// The id, valid until the job is complete or deleted.
    pub id: JobId,
    /// The kind.
    pub kind: JobKind,
    /// The delivery, cron, run or thread that the job is for. There is at most one job of a kind for each key.
    pub key: Uuid,
    /// The number of claims since the job was scheduled.
    pub attempts: u32,
    /// The number of the claim. A worker with an older number has lost the job.
    pub fence: i64,
}

/// Defines [`JobKind`] with one row a kind. A macro, since an enum does not list its variants.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $word:literal),* $(,)?) => {
        /// The kinds of jobs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum JobKind {
            $($(#[$doc])* $kind),*
        }

        impl JobKind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// Returns the word used in the database and in metrics.
            pub fn word(self) -> &'static str {
                match self {
                    $(Self::$kind => $word),*
                }
            }
        }
    };
}

kinds! {
    /// Sends a webhook. The key is the delivery.
    Webhook = "webhook",
    /// Starts the run of a cron. The key is the cron.
    Cron = "cron",
    /// Polls or cancels a background task on another server. The key is the task.
    PollRemote = "poll_remote",
    /// Cancels work on another server that is not needed any more. The key is the run of the subagent, or the task.
    CancelRemote = "cancel_remote",
    /// Checks whether an interrupt of another server was answered there. The key is the run of the subagent.
    WatchInterrupt = "watch_interrupt",
    /// Starts a run that continues a thread whose interrupts have expired. The key is the thread.
    ExpireInterrupts = "expire_interrupts",
    /// Ends a sandbox whose thread was deleted. The key is the sandbox.
    EndSandbox = "end_sandbox",
    /// Starts a run that reports the outcome of background tasks to an idle agent. The key is the agent's thread.
    NotifyParent = "notify_parent",
    /// Deletes expired threads, histories and idempotency keys. The key is nil.
    Sweep = "sweep",
    /// Deletes old deliveries. The key is nil.
    SweepDeliveries = "sweep_deliveries",
    /// Removes expired items of the Store. The key is nil.
    SweepItems = "sweep_items",
}

impl JobKind {
    /// Parses the word used in the database.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.word() == word)
    }
}
