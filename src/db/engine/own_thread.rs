//! The threads of the writer and the readers of SQLite.

use std::panic::resume_unwind;
use std::thread::{Builder, JoinHandle};

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// A thread and its task, which ends when this is dropped.
struct TaskThread {
    dropped: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Drop for TaskThread {
    /// Waits until the task is dropped, as a task of the runtime is: a database file that it holds can be opened again then.
    fn drop(&mut self) {
        self.dropped.cancel();
        if let Some(thread) = self.thread.take() {
            // After a panic, which the log has, nothing is left to do.
            let _ = thread.join();
        }
    }
}

/// Runs a task that executes statements of SQLite on a thread of its own, within the runtime of the caller. Statements block, and
/// the workers of the runtime must not.
///
/// If the future is dropped, so is the task. A panic of the task is one of the future.
pub(in crate::db) async fn on_own_thread(name: &'static str, task: BoxFuture<'static, ()>) {
    let dropped = CancellationToken::new();
    let runtime = Handle::current();
    let (ended, has_ended) = oneshot::channel();
    let is_dropped = dropped.clone();
    let work = move || {
        runtime.block_on(async move {
            tokio::select! {
                biased;
                () = is_dropped.cancelled() => {}
                () = task => {}
            }
        });
        let _ = ended.send(());
    };
    let thread = match Builder::new().name(name.to_owned()).spawn(work) {
        Ok(thread) => thread,
        Err(error) => return tracing::error!(%error, task = name, "no thread could be started"),
    };
    let mut running = TaskThread {
        dropped,
        thread: Some(thread),
    };
    // After a panic of the task the sender is gone. The panic goes on in the caller, also while the server stops.
    if has_ended.await.is_err()
        && let Some(Err(panic)) = running.thread.take().map(JoinHandle::join)
    {
        resume_unwind(panic);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::time::{sleep, timeout};

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn the_task_has_a_thread_and_the_timers_of_the_runtime() {
        let (told, tells) = oneshot::channel();
        let task = async move {
            sleep(Duration::from_millis(1)).await;
            let name = std::thread::current().name().map(str::to_owned);
            let _ = told.send(name);
        };
        on_own_thread("a task", Box::pin(task)).await;
        assert_eq!(tells.await.expect("a name").as_deref(), Some("a task"));
    }

    #[tokio::test]
    async fn a_task_whose_caller_is_dropped_is_dropped() {
        let (held, is_dropped) = oneshot::channel::<()>();
        let (begun, has_begun) = oneshot::channel();
        let task = async move {
            let _held = held;
            let _ = begun.send(());
            std::future::pending::<()>().await;
        };
        let mut caller = Box::pin(on_own_thread("a task", Box::pin(task)));
        tokio::select! {
            () = &mut caller => panic!("the task does not end by itself"),
            begun = has_begun => begun.expect("it begins"),
        }
        drop(caller);
        let held = is_dropped.now_or_never();
        assert!(held.is_some(), "what the task holds is dropped with it");
    }

    #[tokio::test]
    async fn a_panic_of_the_task_is_one_of_its_caller() {
        let task: BoxFuture<'static, ()> = Box::pin(async { panic!("no") });
        let ended = timeout(LONG, on_own_thread("a task", task));
        let panic = AssertUnwindSafe(ended).catch_unwind().await.expect_err("a panic");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"no"));
    }
}
