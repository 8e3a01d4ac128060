//! How the server stops, and how every long task is started.
//!
//! There are two signals. *Soft*: take nothing new on, come to the next commit, leave. *Hard*: tasks are dropped where
//! they are, which is safe, since what was not committed did not happen. A first SIGINT or SIGTERM is soft; a second
//! one, or the deadline, is hard.
//!
//! Tasks are started here and nowhere else, so that none is forgotten when the server stops, and none dies unnoticed.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, info, warn};

/// How long tasks have to come to an end by themselves, unless told otherwise.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Stops the server, and starts what has to be stopped. Clones are handles of the same.
#[derive(Debug, Clone)]
pub struct Shutdown {
    hard: CancellationToken,
    soft: CancellationToken,
    tasks: TaskTracker,
    deadline: Duration,
    cause: Arc<OnceLock<Broken>>,
    /// The signal that dropped everything, when it was one.
    forced_by: Arc<OnceLock<&'static str>>,
    /// How many tasks were alive when everything was dropped.
    dropped: Arc<OnceLock<usize>>,
}

/// Why a server did not stop in good order. The process then ends with an exit code that is not zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopError {
    /// An essential task ended although nobody had asked it to.
    Broken(Broken),
    /// Tasks were dropped before they had come to an end.
    Forced {
        /// What dropped them.
        reason: String,
        /// How many there were.
        tasks: usize,
    },
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broken(broken) => broken.fmt(f),
            Self::Forced { reason, tasks } => {
                write!(
                    f,
                    "the server did not stop in good order: {reason}, and {tasks} tasks were dropped"
                )
            }
        }
    }
}

impl std::error::Error for StopError {}

/// An essential task that ended although nobody had asked it to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The task.
    pub task: &'static str,
    /// What happened to it.
    pub reason: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the task `{}` ended: {}", self.task, self.reason)
    }
}

impl std::error::Error for Broken {}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new(DEADLINE)
    }
}

impl Shutdown {
    /// A server that runs. Once told to stop, its tasks have until `deadline`.
    pub fn new(deadline: Duration) -> Self {
        let hard = CancellationToken::new();
        let soft = hard.child_token();
        let (cause, forced_by, dropped) = Default::default();
        Self {
            hard,
            soft,
            tasks: TaskTracker::new(),
            deadline,
            cause,
            forced_by,
            dropped,
        }
    }

    /// Tells when to take nothing new on and to leave at the next commit.
    pub fn soft(&self) -> &CancellationToken {
        &self.soft
    }

    /// Tells when to drop everything. It implies [`Shutdown::soft`].
    pub fn hard(&self) -> &CancellationToken {
        &self.hard
    }

    /// Asks everybody to leave; the deadline begins.
    pub fn begin(&self) {
        self.soft.cancel();
    }

    /// Drops everything.
    pub fn force(&self) {
        // The first time is the one that counts.
        let _ = self.dropped.set(self.tasks.len());
        self.hard.cancel();
    }

    /// How many tasks are alive.
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Starts a task that may end at any time. A panic is logged and harms nobody else; the handle then yields
    /// `None`, as it does when the task was dropped by [`Shutdown::hard`]. The handle may be thrown away.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<Option<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let hard = self.hard.clone();
        self.start(async move {
            match guarded(&hard, future).await {
                End::Done(output) => Some(output),
                End::Dropped => {
                    debug!(task = name, "task dropped");
                    None
                }
                End::Panicked(reason) => {
                    error!(task = name, %reason, "task panicked");
                    None
                }
            }
        })
    }

    /// Starts a task without which the server is of no use. When it ends before anybody asked it to, by an error, a
    /// panic, or just so, the server stops and [`Shutdown::finished`] says why.
    pub fn spawn_essential<F, E>(&self, name: &'static str, future: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let shutdown = self.clone();
        let watched = async move {
            let reason = match guarded(&shutdown.hard, future).await {
                End::Done(Ok(())) if shutdown.soft.is_cancelled() => return,
                End::Done(Ok(())) => "it came to an end by itself".to_owned(),
                End::Done(Err(error)) => error.to_string(),
                End::Panicked(reason) => format!("it panicked: {reason}"),
                End::Dropped => return,
            };
            error!(task = name, %reason, "essential task ended, the server stops");
            // Only the first is the cause; the others follow from it.
            let _ = shutdown.cause.set(Broken { task: name, reason });
            shutdown.begin();
        };
        // Nobody waits for the task itself; the tracker does.
        drop(self.start(watched));
    }

    /// Listens for SIGINT and SIGTERM: the first is soft, the second hard.
    pub fn listen_for_signals(&self) {
        let shutdown = self.clone();
        let listener = async move {
            let mut signals = match Signals::new() {
                Ok(signals) => signals,
                Err(error) => return warn!(%error, "signals cannot be heard; stop the process another way"),
            };
            let signal = signals.next().await;
            shutdown.begin();
            info!(signal, "stopping; once more to stop at once");
            let signal = signals.next().await;
            // Nobody sends a third reason.
            let _ = shutdown.forced_by.set(signal);
            shutdown.force();
            warn!(signal, "stopping at once");
        };
        // Not tracked: it must not keep the server alive, and a second signal has to be heard until the very end.
        #[expect(
            clippy::disallowed_methods,
            reason = "the one task that is meant to outlive the others"
        )]
        drop(tokio::spawn(listener));
    }

    /// Waits until the server was told to stop and all tasks have ended, by themselves or by the deadline.
    ///
    /// # Errors
    /// When it stopped because an essential task had ended, or when tasks had to be dropped.
    pub async fn finished(&self) -> Result<(), StopError> {
        self.soft.cancelled().await;
        self.tasks.close();
        let is_late = tokio::select! {
            () = self.tasks.wait() => false,
            () = self.hard.cancelled() => false,
            () = tokio::time::sleep(self.deadline) => true,
        };
        let reason = match self.forced_by.get() {
            Some(signal) => format!("it was stopped at once by a second {signal}"),
            None if is_late => format!("the deadline of {} s was reached", self.deadline.as_secs_f64()),
            None => "it was stopped at once".to_owned(),
        };
        let is_forced = is_late || self.hard.is_cancelled();
        self.force();
        let tasks = self.dropped.get().copied().unwrap_or(0);
        let forced = is_forced.then_some(StopError::Forced { reason, tasks });
        if let Some(forced) = &forced {
            warn!("{forced}");
        }
        self.tasks.wait().await;
        match self.cause.get() {
            Some(cause) => Err(StopError::Broken(cause.clone())),
            None => forced.map_or(Ok(()), Err),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "the one place where tasks are started")]
    fn start<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(self.tasks.track_future(future))
    }
}

/// How a task came to its end.
enum End<T> {
    Done(T),
    Dropped,
    Panicked(String),
}

/// Carries a future out until it ends, panics, or everything is dropped.
async fn guarded<F: Future>(hard: &CancellationToken, future: F) -> End<F::Output> {
    // Nothing of the future is looked at after a panic, so it cannot be seen half changed.
    let caught = AssertUnwindSafe(future).catch_unwind();
    match hard.run_until_cancelled(caught).await {
        None => End::Dropped,
        Some(Ok(output)) => End::Done(output),
        Some(Err(panic)) => End::Panicked(words_of(panic.as_ref())),
    }
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without words".to_owned())
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        match tokio::signal::ctrl_c().await {
            Ok(()) => "Ctrl-C",
            Err(_) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests;
