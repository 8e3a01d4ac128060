//! How long threads are kept, and what they take up, on the wire.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::thread::read_id;
use crate::db::retention::TableUsage;
use crate::domain::Invalid;
use crate::domain::id::ThreadId;
use crate::domain::thread::{Thread, Ttl, TtlStrategy};
use crate::http::error::ApiError;

/// How long a thread is kept after anything about it last changed.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct TtlRequest {
    /// Minutes; more than 0.
    pub ttl: f64,
    /// What happens then.
    #[serde(default)]
    pub strategy: Option<TtlStrategyWord>,
}

/// What happens to a thread whose time is over.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TtlStrategyWord {
    /// It is deleted.
    #[default]
    Delete,
    /// Only its newest state is kept.
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
    /// The time that is wished for.
    ///
    /// # Errors
    /// If it is none.
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

/// How long a thread is kept.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(title = "ThreadTtl")]
pub struct TtlView {
    /// What happens then.
    pub strategy: TtlStrategyWord,
    /// Minutes after anything about it last changed.
    pub ttl_minutes: f64,
    /// When its time is over; null if what was to happen has happened, and nothing since.
    #[schema(format = DateTime)]
    pub expires_at: Option<String>,
}

impl TtlView {
    /// How long `thread` is kept; none if it is for good.
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

/// Threads to be thinned out.
#[derive(Debug, Deserialize, ToSchema)]
pub struct ThreadPrune {
    /// Which.
    #[schema(value_type = Vec<Uuid>)]
    pub thread_ids: Vec<String>,
    /// How.
    #[serde(default)]
    pub strategy: TtlStrategyWord,
}

/// How many threads a request may name.
const MAX_IDS: usize = 1000;

impl ThreadPrune {
    /// The threads, each once, and how.
    ///
    /// # Errors
    /// If an id is none, or there are too many.
    pub fn check(self) -> Result<(Vec<ThreadId>, TtlStrategy), ApiError> {
        if self.thread_ids.len() > MAX_IDS {
            return Err(Invalid::new("thread_ids", format!("has more than {MAX_IDS} entries")).into());
        }
        let mut ids = self
            .thread_ids
            .iter()
            .map(|id| read_id(id))
            .collect::<Result<Vec<_>, _>>()?;
        ids.sort_unstable();
        ids.dedup();
        Ok((ids, self.strategy.into()))
    }
}

/// How many threads were thinned out.
#[derive(Debug, Serialize, ToSchema)]
pub struct ThreadsPruned {
    /// How many.
    pub pruned_count: u64,
}

/// What the server stores for a thread.
#[derive(Debug, Serialize, ToSchema)]
pub struct ThreadStorage {
    /// The thread.
    pub thread_id: Uuid,
    /// Rows of all tables.
    pub total_rows: i64,
    /// Bytes of content in all tables; keys and indexes not counted.
    pub total_bytes: i64,
    /// Its steps, with what each wrote.
    pub checkpoints: StorageShare,
    /// What else is in its log.
    pub events: StorageShare,
    /// Its runs, those of subagents included.
    pub runs: StorageShare,
    /// Questions to humans, and their answers.
    pub interrupts: StorageShare,
}

/// What one table holds.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct StorageShare {
    /// How many rows.
    pub rows: i64,
    /// How many bytes of content.
    pub bytes: i64,
}

impl ThreadStorage {
    /// Shows what the tables hold of a thread.
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
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_makes_no_sense_is_refused() {
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
