//! The transport *stdio*: a program that reads messages from its standard input and writes them to its standard output,
//! one per line.
//!
//! Threads transfer the lines, since the pipes block. The program is the leader of a process group; closing the
//! connection kills the whole group.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::mpsc;

use super::McpLimits;
use super::connection::{Connection, ConnectionError, ServerEvents};
use super::message::{self, Incoming};
use super::pending::PendingRequests;
use crate::domain::json_limits::read_foreign;

/// The maximum number of messages that the program has not read yet.
const MAX_UNREAD: usize = 64;
/// The maximum number of messages per second that are not answers; further ones wait in the pipe.
const MAX_OTHER_PER_SECOND: u32 = 1_000;
/// The maximum number of characters that are logged of a line of standard error.
const MAX_LOGGED_CHARS: usize = 500;

/// The command that starts the program.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) command: String,
    pub(super) args: Vec<String>,
    /// The whole environment of the program. It may contain secrets.
    pub(super) env: BTreeMap<String, String>,
    /// The working directory.
    pub(super) folder: Option<PathBuf>,
}

/// A connection to a running program.
pub(super) struct StdioConnection {
    lines: mpsc::Sender<String>,
    shared: Arc<Shared>,
}

struct Shared {
    pending: PendingRequests,
    events: ServerEvents,
    child: Mutex<Option<Child>>,
    /// The maximum length of a line, in bytes.
    max_message: usize,
}

impl StdioConnection {
    /// Starts the program of the server `name`.
    pub(super) fn open(name: &str, program: &Program, limits: McpLimits) -> Result<Self, ConnectionError> {
        let mut command = Command::new(&program.command);
        command.args(&program.args).env_clear().envs(&program.env);
        if let Some(folder) = &program.folder {
            command.current_dir(folder);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        lead_a_group(&mut command);
        let failed = |what: &str| ConnectionError::Unreachable(format!("{what} `{}`", program.command));
        let mut child = command.spawn().map_err(|error| {
            if error.kind() != ErrorKind::NotFound {
                return failed(&format!("{}, starting", error.kind()));
            }
            if program.command.contains('/') {
                return failed("there is no program");
            }
            ConnectionError::Unreachable(format!("the program `{}` is not in PATH", program.command))
        })?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let (lines, unread) = mpsc::channel(MAX_UNREAD);
        let pending = PendingRequests::new(limits.pieces);
        let events = ServerEvents::default();
        let child = Mutex::new(Some(child));
        let max_message = limits.max_message_bytes;
        let shared = Shared {
            pending,
            events,
            child,
            max_message,
        };
        let connection = Self {
            lines,
            shared: Arc::new(shared),
        };
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(failed("cannot open the pipes of"));
        };
        let start = |part: &str, work: Box<dyn FnOnce() + Send>| {
            let made = thread::Builder::new().name(format!("mcp {name} {part}")).spawn(work);
            made.map(drop).map_err(|_| failed("cannot start a thread for"))
        };
        start("in", Box::new(move || write_lines(stdin, unread)))?;
        let shared = Arc::clone(&connection.shared);
        let answers = connection.lines.downgrade();
        start("out", Box::new(move || read_lines(stdout, &shared, &answers)))?;
        let name = name.to_owned();
        start(
            "err",
            Box::new(move || log_lines(&name, BufReader::new(stderr), max_message)),
        )?;
        Ok(connection)
    }
}

#[async_trait]
impl Connection for StdioConnection {
    async fn request(&self, id: u64, message: &Value) -> Result<Value, ConnectionError> {
        let request = self.shared.pending.register(id);
        // The program may have ended before the request was registered.
        if self.shared.events.closed.is_cancelled() || self.lines.send(message.to_string()).await.is_err() {
            return Err(ConnectionError::Closed);
        }
        request.answer().await
    }

    async fn notify(&self, message: Value) {
        let _ = self.lines.send(message.to_string()).await;
    }

    fn events(&self) -> &ServerEvents {
        &self.shared.events
    }
}

impl Drop for StdioConnection {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Shared {
    /// Closes the connection, fails all pending requests and kills the process group.
    fn close(&self) {
        self.events.closed.cancel();
        self.pending.fail_all();
        // Only once: after the wait, the process id may belong to another process.
        let Some(mut child) = self.child.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        // Errors mean that the program has ended already.
        kill_group(&child);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Makes the program the leader of a new process group, to which its child processes belong.
fn lead_a_group(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}

/// Kills all processes of the group of `leader`.
fn kill_group(leader: &Child) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(leader.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // An error means that no process of the group is left.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = leader;
}

fn write_lines(mut stdin: ChildStdin, mut lines: mpsc::Receiver<String>) {
    while let Some(mut line) = lines.blocking_recv() {
        line.push('\n');
        if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
            return;
        }
    }
}

fn read_lines(stdout: ChildStdout, shared: &Shared, answers: &mpsc::WeakSender<String>) {
    let mut reader = BufReader::new(stdout);
    let mut other_messages = OtherMessages {
        count: 0,
        since: Instant::now(),
    };
    while let Some(line) = next_line(&mut reader, shared.max_message, || shared.pending.data_arrived()) {
        let message = read_foreign(&line).unwrap_or_default();
        if !matches!(message::read(&message), Incoming::Answer(..)) {
            other_messages.add();
        }
        match message::read(&message) {
            Incoming::Answer(id, result) => shared.pending.answer(id, result.map_err(ConnectionError::Refused)),
            Incoming::Request(answer) => {
                if let Some(lines) = answers.upgrade() {
                    // A program that does not read the replies gets no more of them.
                    let _ = lines.try_send(answer.to_string());
                }
            }
            Incoming::ToolsChanged => shared.events.changed.notify_one(),
            Incoming::Other => {}
        }
    }
    shared.close();
}

/// The number of messages in the current second that are not answers.
struct OtherMessages {
    count: u32,
    since: Instant,
}

impl OtherMessages {
    /// Counts a message; sleeps for the rest of the second if there were too many.
    fn add(&mut self) {
        const SECOND: Duration = Duration::from_secs(1);
        self.count += 1;
        if self.count < MAX_OTHER_PER_SECOND {
            return;
        }
        // Meanwhile the pipe fills and the program has to wait.
        thread::sleep(SECOND.saturating_sub(self.since.elapsed()));
        *self = Self {
            count: 0,
            since: Instant::now(),
        };
    }
}

/// Reads the next line; `None` at the end and after a line that is too long. Calls `data_arrived` for each piece.
fn next_line(reader: &mut impl BufRead, max_bytes: usize, data_arrived: impl Fn()) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        let available = reader.fill_buf().ok().filter(|available| !available.is_empty())?;
        data_arrived();
        let end = available.iter().position(|byte| *byte == b'\n');
        let part = end.map_or(available.len(), |end| end + 1);
        line.extend_from_slice(&available[..part]);
        reader.consume(part);
        if line.len() > max_bytes {
            return None;
        }
        if end.is_some() {
            return Some(line);
        }
    }
}

/// Logs the standard error of the program.
fn log_lines(name: &str, mut reader: impl BufRead, max_bytes: usize) {
    while let Some(line) = next_line(&mut reader, max_bytes, || {}) {
        let line: String = String::from_utf8_lossy(&line)
            .trim_end()
            .chars()
            .take(MAX_LOGGED_CHARS)
            .collect();
        tracing::debug!(server = name, line, "standard error of an MCP server");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_whole_and_up_to_the_limit() {
        let mut reader = BufReader::with_capacity(4, "one\nlonger than that\nno end".as_bytes());
        let lines: Vec<String> = std::iter::from_fn(|| next_line(&mut reader, 1000, || {}))
            .map(|line| String::from_utf8(line).expect("text"))
            .collect();
        assert_eq!(lines, ["one\n", "longer than that\n"]);
        let long = vec![b'x'; 1001];
        assert_eq!(next_line(&mut BufReader::new(long.as_slice()), 1000, || {}), None);
    }
}
