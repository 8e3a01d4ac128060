//! Work that takes long without waiting for anything: it has no place on the threads that serve everybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{DbError, DbResult};

/// Tells such work that nobody waits for it any more.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Whether the work is to end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Sets the flag when whoever waits is dropped.
struct StopWhenDropped(Stop);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Does `work` on a thread of its own and waits for it. When nobody waits any more, because the client left or its time is
/// over, the work is told so.
///
/// # Errors
/// [`DbError::Panicked`].
pub async fn off_thread<T, W>(work: W) -> DbResult<T>
where
    T: Send + 'static,
    W: FnOnce(&Stop) -> T + Send + 'static,
{
    let stop = Stop::default();
    let waiting = StopWhenDropped(stop.clone());
    let done = tokio::task::spawn_blocking(move || work(&stop)).await;
    drop(waiting);
    done.map_err(|error| DbError::Panicked(error.to_string()))
}
