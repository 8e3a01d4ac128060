//! Runs CPU-bound work on tokio's blocking threads, so that it does not block the worker threads of the runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{DbError, DbResult};

/// A flag that asks the work to end, because its caller no longer waits.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Returns whether the work is to end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A guard that sets the flag when the caller's future is dropped.
struct StopWhenDropped(CancelFlag);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` on a blocking thread and waits for it. When the future is dropped, because the client disconnected or a
/// timeout passed, the flag given to `work` is set.
///
/// # Errors
/// [`DbError::Panicked`] when the work panics.
pub async fn off_thread<T, W>(work: W) -> DbResult<T>
where
    T: Send + 'static,
    W: FnOnce(&CancelFlag) -> T + Send + 'static,
{
    let stop = CancelFlag::default();
    let guard = StopWhenDropped(stop.clone());
    let done = tokio::task::spawn_blocking(move || work(&stop)).await;
    drop(guard);
    done.map_err(|error| DbError::Panicked(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn dropping_the_future_sets_the_stop_flag() {
        let (began, has_begun) = oneshot::channel();
        let (ended, has_ended) = oneshot::channel();
        let work = off_thread(move |stop| {
            let _ = began.send(());
            while !stop.is_set() {
                std::thread::yield_now();
            }
            let _ = ended.send(());
        });
        {
            tokio::pin!(work);
            tokio::select! {
                _ = &mut work => panic!("it works until the flag is set"),
                begun = has_begun => begun.expect("it begins"),
            }
        }
        tokio::time::timeout(Duration::from_secs(10), has_ended)
            .await
            .expect("in time")
            .expect("it ends");
    }

    #[tokio::test]
    async fn the_result_is_returned_and_a_panic_is_an_error() {
        assert_eq!(off_thread(|_| 7).await.expect("seven"), 7);
        assert!(matches!(
            off_thread(|_| panic!("no")).await,
            Err::<(), _>(DbError::Panicked(_))
        ));
    }
}
