//! Jobs: what the server is to do later, or again and again.

use uuid::Uuid;

use super::id::JobId;

/// A job that a worker has claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedJob {
    /// Identifies it until it is done or deleted.
    pub id: JobId,
    /// What is to be done.
    pub kind: JobKind,
    /// To which delivery, cron, run or thread; there is at most one job of a kind for each.
    pub key: Uuid,
    /// How often it was claimed since it was scheduled.
    pub attempts: u32,
    /// Counts the claims: who shows an older number has lost the job.
    pub fence: i64,
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $word:literal),* $(,)?) => {
        /// What a job does.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum JobKind {
            $($(#[$doc])* $kind),*
        }

        impl JobKind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$kind),*];

            /// The word for it.
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
    /// Polls a background task that another server does, or has it stopped there. The key is the task.
    PollRemote = "poll_remote",
    /// Has work stopped at another server that nobody waits for any more. The key is the run of the subagent.
    CancelRemote = "cancel_remote",
    /// Looks whether a question of another server was answered there. The key is the run of the subagent.
    WatchInterrupt = "watch_interrupt",
    /// Starts a run that tells an idle agent the outcome of its background tasks. The key is its thread.
    NotifyParent = "notify_parent",
    /// Deletes threads, histories and idempotency keys whose time is over. The key is nil.
    Sweep = "sweep",
    /// Deletes deliveries of webhooks that ended long ago. The key is nil.
    SweepDeliveries = "sweep_deliveries",
}

impl JobKind {
    /// The kind of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.word() == word)
    }
}
