//! The shutdown of the server, and the start of every long task.
//!
//! There are two signals. *Soft*: accept nothing new, and stop at the next commit. *Hard*: tasks are dropped where they
//! are, which is safe, since uncommitted work is repeated or lost as after a crash. The first SIGINT, SIGTERM or SIGHUP
//! is soft; a second one, or the deadline, is hard.
//!
//! All tasks are started here, so that each of them is stopped with the server and no panic goes unnoticed.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, info, warn};

use crate::domain::panic::panic_text;

/// The time after the first signal of the system in which others count as the same one: launchers such as `timeout` and
/// `npx` hand on what the whole group of processes gets as well.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// The default time for tasks to finish after the soft signal.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// The shutdown signals and the task tracker of a server. Clones are handles to the same server.
#[derive(Debug, Clone)]
pub struct Shutdown {
    hard: CancellationToken,
    soft: CancellationToken,
    tasks: TaskTracker,
    deadline: Duration,
    cause: Arc<OnceLock<Broken>>,
    /// The signal that caused the hard shutdown, if one did.
    forced_by: Arc<OnceLock<&'static str>>,
    /// The number of tasks that were alive at the hard shutdown.
    dropped: Arc<OnceLock<usize>>,
}

/// The error of a server that did not shut down cleanly. The exit code of the process is then not zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopError {
    /// An essential task ended before the shutdown.
    Broken(Broken),
    /// Tasks were dropped before they had finished.
    Forced {
        /// The cause of the hard shutdown.
        reason: String,
        /// The number of dropped tasks.
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
                    "the server did not shut down cleanly: {reason}, and {tasks} tasks were dropped"
                )
            }
        }
    }
}

impl std::error::Error for StopError {}

/// The error for an essential task that ended before the shutdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The name of the task.
    pub task: &'static str,
    /// The reason.
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
    /// Creates the signals of a running server. After the soft signal its tasks have until `deadline`.
    pub fn new(deadline: Duration) -> Self {
        let hard = CancellationToken::new();
        let soft = hard.child_token();
        Self {
            hard,
            soft,
            tasks: TaskTracker::new(),
            deadline,
            cause: Default::default(),
            forced_by: Default::default(),
            dropped: Default::default(),
        }
    }

    /// Returns the token of the soft signal: accept nothing new, and stop at the next commit.
    pub fn soft(&self) -> &CancellationToken {
        &self.soft
    }

    /// Returns the token of the hard signal: everything is dropped. Implies [`Shutdown::soft`].
    pub fn hard(&self) -> &CancellationToken {
        &self.hard
    }

    /// Sends the soft signal; the deadline starts.
    pub fn begin(&self) {
        self.soft.cancel();
    }

    /// Sends the hard signal.
    pub fn force(&self) {
        // Only the first call counts.
        let _ = self.dropped.set(self.tasks.len());
        self.hard.cancel();
    }

    /// Returns the number of running tasks.
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Starts a task that may end at any time. A panic is logged and affects no other task; the handle then yields
    /// `None`, as it does if the task was dropped by [`Shutdown::hard`]. The handle may be dropped.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> JoinHandle<Option<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.spawn_boxed(name, Box::pin(future))
    }

    /// Starts a task like [`Shutdown::spawn`]. The code of tokio that runs a task is compiled for each type of future:
    /// those with the same output have one type here.
    fn spawn_boxed<T: Send + 'static>(
        &self,
        name: &'static str,
        future: BoxFuture<'static, T>,
    ) -> JoinHandle<Option<T>> {
        let hard = self.hard.clone();
        self.start(async move {
            match run_guarded(&hard, future).await {
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

    /// Starts a task that the server cannot do without. If it ends before the shutdown, by an error, a panic, or
    /// without one, the server stops, and [`Shutdown::finished`] returns the reason.
    pub fn spawn_essential<F, E>(&self, name: &'static str, future: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display + Send + 'static,
    {
        let future = async move { future.await.map_err(|error| error.to_string()) };
        self.spawn_essential_boxed(name, Box::pin(future));
    }

    fn spawn_essential_boxed(&self, name: &'static str, future: BoxFuture<'static, Result<(), String>>) {
        let shutdown = self.clone();
        let watched = async move {
            let reason = match run_guarded(&shutdown.hard, future).await {
                End::Done(Ok(())) if shutdown.soft.is_cancelled() => return,
                End::Done(Ok(())) => "it ended without an error".to_owned(),
                End::Done(Err(error)) => error,
                End::Panicked(reason) => format!("it panicked: {reason}"),
                End::Dropped => return,
            };
            error!(task = name, %reason, "essential task ended, the server stops");
            // Only the first is the cause; the others are its consequences.
            let _ = shutdown.cause.set(Broken { task: name, reason });
            shutdown.begin();
        };
        // The tracker waits for the task, so the handle is not needed.
        drop(self.start(watched));
    }

    /// Listens for SIGINT, SIGTERM and SIGHUP: the first is soft, the second hard, unless it comes at once.
    pub fn listen_for_signals(&self) {
        let shutdown = self.clone();
        let listener = async move {
            let mut signals = match Signals::new() {
                Ok(signals) => signals,
                Err(error) => return warn!(%error, "cannot listen for signals; stop the process another way"),
            };
            let signal = signals.next().await;
            shutdown.begin();
            info!(signal, "stopping; send the signal again to stop at once");
            let begun = Instant::now();
            let signal = loop {
                let signal = signals.next().await;
                if begun.elapsed() >= SAME_REQUEST {
                    break signal;
                }
            };
            // There is no third signal: this can be set only once.
            let _ = shutdown.forced_by.set(signal);
            shutdown.force();
            warn!(signal, "stopping at once");
        };
        // Not tracked: it must not delay the end of the server, and must receive a second signal until then.
        #[expect(
            clippy::disallowed_methods,
            reason = "the one task that is meant to outlive the others"
        )]
        drop(tokio::spawn(listener));
    }

    /// Waits until the shutdown has started and all tasks have ended, by themselves or by the deadline.
    ///
    /// # Errors
    /// Returns an error if an essential task ended first, or if tasks were dropped.
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

/// The outcome of a task.
enum End<T> {
    Done(T),
    Dropped,
    Panicked(String),
}

/// Runs a future until it completes, panics, or is dropped by the hard signal.
async fn run_guarded<F: Future>(hard: &CancellationToken, future: F) -> End<F::Output> {
    // The future is not used after a panic, so a broken invariant in it cannot be observed.
    let caught = AssertUnwindSafe(future).catch_unwind();
    match hard.run_until_cancelled(caught).await {
        None => End::Dropped,
        Some(Ok(output)) => End::Done(output),
        Some(Err(panic)) => End::Panicked(panic_text(panic.as_ref())),
    }
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// None if the process ignores the signal.
    hangup: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};

        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: match ignores_hangup() {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    async fn next(&mut self) -> &'static str {
        let Self {
            interrupt,
            terminate,
            hangup,
        } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
            _ = hung_up => "SIGHUP",
        }
    }
}

/// Returns whether the process was started with SIGHUP ignored, as by `nohup`, so that it outlives its terminal. Where the
/// system does not tell, the signal keeps its usual effect.
#[cfg(unix)]
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|signals| u64::from_str_radix(signals.trim(), 16).ok());
    // The lowest bit is the first signal, which is SIGHUP.
    ignored.is_none_or(|signals| signals & 1 == 1)
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
