//! The threads of the writer of SQLite and of its connection.

use std::panic::resume_unwind;
use std::thread::{Builder, JoinHandle};

use futures::future::BoxFuture;
#[cfg(target_os = "linux")]
use rustix::process::getpriority_process;
#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, SqliteConnection};
#[cfg(target_os = "linux")]
use thread_priority::unix::{
    NormalThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};
#[cfg(target_os = "linux")]
use thread_priority::{ThreadPriority, ThreadPriorityValue};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// The processor on which the writer of SQLite and the thread of its connection stay.
///
/// The two work by turns: the writer sends statements and waits, the other thread runs them and waits. On two processors
/// each turn had to wake a processor that slept or to wait for one that was at work elsewhere. On one processor, sixteen
/// clients have a quarter more runs in a second, with a tenth less work for each. The scheduler moves other threads away
/// from a processor that is busy.
#[derive(Debug, Clone, Copy)]
pub(in crate::db) struct Processor {
    /// None where threads cannot be kept on a processor.
    number: Option<usize>,
}

impl Processor {
    /// Keeps the calling thread, and the threads that it starts, on this processor. It is a better place, not a needed one:
    /// without the permission the threads stay where they are.
    fn keep_thread(self) {
        #[cfg(target_os = "linux")]
        if let Some(number) = self.number.filter(|&number| number < CpuSet::MAX_CPU) {
            let mut processors = CpuSet::new();
            processors.set(number);
            if let Err(error) = sched_setaffinity(None, &processors) {
                tracing::debug!(%error, "a thread cannot be kept on one processor");
            }
        }
    }

    /// Returns the processor of the calling thread. A new thread begins on the one with the least work.
    fn of_this_thread() -> Self {
        #[cfg(target_os = "linux")]
        let number = Some(sched_getcpu());
        #[cfg(not(target_os = "linux"))]
        let number = None;
        Self { number }
    }
}

/// A connection whose thread stays on one processor.
pub(in crate::db) struct KeptConnection {
    pub(in crate::db) conn: SqliteConnection,
    pub(in crate::db) processor: Processor,
}

/// Opens a connection whose thread stays on one processor.
///
/// # Errors
/// When the connection cannot be opened.
pub(in crate::db) async fn connect(options: SqliteConnectOptions) -> Result<KeptConnection, sqlx::Error> {
    let runtime = Handle::current();
    let (connected, is_connected) = oneshot::channel();
    let connect = move || {
        let processor = Processor::of_this_thread();
        // The thread of the connection, which sqlx starts, inherits it.
        processor.keep_thread();
        let conn = runtime.block_on(options.connect());
        let _ = connected.send(conn.map(|conn| KeptConnection { conn, processor }));
    };
    Builder::new().name("database opening".to_owned()).spawn(connect)?;
    // Without an answer the thread has panicked.
    is_connected.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

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

/// Runs the writer of SQLite, which waits for the thread of its connection with each statement, on a thread of its own,
/// within the runtime of the caller.
///
/// What another thread wakes waits in the queue that the workers of the runtime share, where they also put what is too
/// much for their own queues. With a thousand streams the writer waited there for more than 2 ms after each statement, and
/// no run could begin meanwhile. Readers are several, so that none of them holds up all runs.
///
/// The thread stays on `processor`, where the thread of the connection is.
///
/// If the future is dropped, so is the task. A panic of the task is one of the future.
pub(in crate::db) async fn on_own_thread(name: &'static str, processor: Processor, task: BoxFuture<'static, ()>) {
    let dropped = CancellationToken::new();
    let runtime = Handle::current();
    let (ended, has_ended) = oneshot::channel();
    let is_dropped = dropped.clone();
    let work = move || {
        processor.keep_thread();
        #[cfg(target_os = "linux")]
        wait_for_others();
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

/// Has this thread begin only when its processor is free, instead of at once in the place of the thread that wakes it.
///
/// The thread of the connection wakes the writer with the end of each statement, also of those that are sent together. The writer
/// took its processor each time, to wait again for the next one: half of all switches between threads in a run.
#[cfg(target_os = "linux")]
fn wait_for_others() {
    // The library also sets the niceness, here to 0. An operator may have chosen another one.
    let Ok(niceness_0) = ThreadPriorityValue::try_from(49) else {
        return;
    };
    if getpriority_process(None) != Ok(0) {
        return;
    }
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Batch);
    let set = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Crossplatform(niceness_0), policy);
    if let Err(error) = set {
        tracing::debug!(?error, "the scheduling policy of a thread cannot be set");
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::time::Duration;

    use futures::FutureExt;
    #[cfg(target_os = "linux")]
    use rustix::thread::sched_getaffinity;
    use sqlx::raw_sql;
    use tokio::sync::mpsc;
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
        on_own_thread("a task", Processor::of_this_thread(), Box::pin(task)).await;
        assert_eq!(tells.await.expect("a name").as_deref(), Some("a task"));
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_writer_and_the_thread_of_its_connection_stay_on_one_processor() {
        let options = SqliteConnectOptions::new().in_memory(true);
        let KeptConnection { mut conn, processor } = connect(options).await.expect("a connection");
        let (tell, mut told) = mpsc::unbounded_channel();
        let tell_of_commit = tell.clone();
        let on_commit = move || {
            let _ = tell_of_commit.send(sched_getaffinity(None));
            true
        };
        // SQLite calls it on the thread of the connection.
        conn.lock_handle()
            .await
            .expect("the connection")
            .set_commit_hook(on_commit);
        raw_sql("create table items (id)")
            .execute(&mut conn)
            .await
            .expect("a table");
        let task = async move {
            let _ = tell.send(sched_getaffinity(None));
        };
        on_own_thread("a task", processor, Box::pin(task)).await;
        let number = processor.number.expect("a processor");
        for thread in ["the connection", "the writer"] {
            let processors = told.recv().await.expect(thread).expect("its processors");
            assert_eq!(processors.count(), 1, "{thread}");
            assert!(processors.is_set(number), "{thread}");
        }
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
        let mut caller = Box::pin(on_own_thread("a task", Processor::of_this_thread(), Box::pin(task)));
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
        let ended = timeout(LONG, on_own_thread("a task", Processor::of_this_thread(), task));
        let panic = AssertUnwindSafe(ended).catch_unwind().await.expect_err("a panic");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"no"));
    }
}
