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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_for_which_nobody_waits_any_more_is_told_so() {
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
                _ = &mut work => panic!("it works until it is told to stop"),
                begun = has_begun => begun.expect("it begins"),
            }
        }
        tokio::time::timeout(Duration::from_secs(10), has_ended)
            .await
            .expect("in time")
            .expect("it ends");
    }

    #[tokio::test]
    async fn what_the_work_comes_to_is_the_answer_and_a_panic_an_error() {
        assert_eq!(off_thread(|_| 7).await.expect("seven"), 7);
        assert!(matches!(
            off_thread(|_| panic!("no")).await,
            Err::<(), _>(DbError::Panicked(_))
        ));
    }
}
