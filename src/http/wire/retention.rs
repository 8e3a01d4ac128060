//! The retention and the storage of threads on the wire.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::read_id;
use crate::db::retention::TableUsage;
use crate::domain::Invalid;
use crate::domain::id::ThreadId;
use crate::domain::thread::{Thread, Ttl, TtlStrategy};
use crate::http::error::ApiError;

/// The time to live of a thread after its last change.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct TtlRequest {
    /// The time in minutes; more than 0.
    pub ttl: f64,
    /// The action after that time.
    #[serde(default)]
    pub strategy: Option<TtlStrategyWord>,
}

/// The action on an expired thread.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TtlStrategyWord {
    /// The thread is deleted.
    #[default]
    Delete,
    /// All but the newest state is deleted.
    KeepLatest,
}

impl From<TtlStrategyWord> for TtlStrategy {
    fn from(word: TtlStrategyWord) -> Self {
        match word {
            TtlStrategyWord::Delete => Self::Delete,
            TtlStrategyWord::KeepLatest => Self::KeepLatest,
        }
    }
}

impl From<TtlStrategy> for TtlStrategyWord {
    fn from(strategy: TtlStrategy) -> Self {
        match strategy {
            TtlStrategy::Delete => Self::Delete,
            TtlStrategy::KeepLatest => Self::KeepLatest,
        }
    }
}

/// The longest time, in minutes: a hundred years.
const LONGEST: f64 = 52_560_000.0;

impl TtlRequest {
    /// Validates the time to live.
    ///
    /// # Errors
    /// If the time is out of bounds.
    pub fn check(self) -> Result<Ttl, Invalid> {
        if !(self.ttl > 0.0 && self.ttl <= LONGEST) {
            return Err(Invalid::new(
                "ttl.ttl",
                format!("must be more than 0 and at most {LONGEST} minutes"),
            ));
        }
        let strategy = self.strategy.unwrap_or_default().into();
        Ok(Ttl {
            after: Duration::from_secs_f64(self.ttl * 60.0),
            strategy,
        })
    }
}

/// The time to live of a thread.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(title = "ThreadTtl")]
pub struct TtlView {
    /// The action after that time.
    pub strategy: TtlStrategyWord,
    /// The time in minutes after the last change.
    pub ttl_minutes: f64,
    /// The time of expiry; null if the thread has already been handled and not changed since.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

impl TtlView {
    /// The time to live of `thread`; `None` if it is unlimited.
    pub fn of(thread: &Thread) -> Option<Self> {
        let ttl = thread.ttl?;
        let strategy = ttl.strategy.into();
        let ttl_minutes = ttl.after.as_secs_f64() / 60.0;
        Some(Self {
            strategy,
            ttl_minutes,
            expires_at: thread.expires_at.map(|at| at.to_string()),
        })
    }
}

/// A request to prune threads.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ThreadPrune {
    /// The threads to prune.
    #[schema(value_type = Vec<Uuid>)]
    pub thread_ids: Vec<String>,
    /// The part to delete.
    #[serde(default)]
    pub strategy: TtlStrategyWord,
}

/// The maximum number of threads in a request.
const MAX_IDS: usize = 1000;

impl ThreadPrune {
    /// Validates the request. Returns each thread once.
    ///
    /// # Errors
    /// If an id is invalid, or there are too many.
    pub fn check(self) -> Result<(Vec<ThreadId>, TtlStrategy), ApiError> {
        if self.thread_ids.len() > MAX_IDS {
            return Err(Invalid::new("thread_ids", format!("has more than {MAX_IDS} entries")).into());
        }
        let mut ids = self
            .thread_ids
            .iter()
            .map(|id| read_id(id, "thread"))
            .collect::<Result<Vec<ThreadId>, _>>()?;
        ids.sort_unstable();
        ids.dedup();
        Ok((ids, self.strategy.into()))
    }
}

/// The result of pruning threads.
#[derive(Debug, Serialize, ToSchema)]
pub struct ThreadsPruned {
    /// The number of pruned threads.
    pub pruned_count: u64,
}

/// The storage used by a thread.
#[derive(Debug, Serialize, ToSchema)]
pub struct ThreadStorage {
    /// The thread.
    pub thread_id: Uuid,
    /// The number of rows in all tables.
    pub total_rows: i64,
    /// The size of the content of all tables in bytes, without keys and indexes.
    pub total_bytes: i64,
    /// The checkpoints.
    pub checkpoints: StorageShare,
    /// The other entries of the log.
    pub events: StorageShare,
    /// The runs, including child runs.
    pub runs: StorageShare,
    /// The interrupts.
    pub interrupts: StorageShare,
    /// The images, audio and files that the thread refers to. Each counts once, also if other threads refer to it.
    pub blobs: StorageShare,
}

/// The storage used by one table.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct StorageShare {
    /// The number of rows.
    pub rows: i64,
    /// The size of the content in bytes.
    pub bytes: i64,
}

impl ThreadStorage {
    /// Creates the view of a thread's storage.
    pub fn new(thread: ThreadId, shares: &[TableUsage]) -> Self {
        let of = |table: &str| {
            let share = shares.iter().find(|share| share.table == table);
            share
                .map(|share| StorageShare {
                    rows: share.rows,
                    bytes: share.bytes,
                })
                .unwrap_or_default()
        };
        Self {
            thread_id: thread.0,
            total_rows: shares.iter().map(|share| share.rows).sum(),
            total_bytes: shares.iter().map(|share| share.bytes).sum(),
            checkpoints: of("checkpoints"),
            events: of("events"),
            runs: of("runs"),
            interrupts: of("interrupts"),
            blobs: of("blobs"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_time_to_live_is_refused() {
        for minutes in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e12] {
            let request = TtlRequest {
                ttl: minutes,
                strategy: None,
            };
            assert!(
                request.check().is_err_and(|invalid| invalid.field == "ttl.ttl"),
                "{minutes}"
            );
        }
        let ttl = TtlRequest {
            ttl: 0.5,
            strategy: None,
        }
        .check();
        assert_eq!(
            ttl,
            Ok(Ttl {
                after: Duration::from_secs(30),
                strategy: TtlStrategy::Delete
            })
        );
    }
}
