//! The transport *stdio*: a program that reads messages from its standard input and writes them to its standard output,
//! one per line.
//!
//! The program is the leader of a process group; closing the connection kills the whole group.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::error::ConnectionError;
use super::inbox::Inbox;
use super::message;
use super::signals::{Signals, abandoned, note_call};
use super::{McpLimits, SpawnServer};
use crate::domain::text_limits::first_chars;

/// The maximum number of messages that the program has not read yet.
const MAX_UNREAD: usize = 64;
/// The maximum number of characters that are logged of a line of standard error.
const MAX_LOGGED_CHARS: usize = 500;
/// The time after the connection is closed in which the rest of standard error is logged.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

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

/// A running program.
pub(super) struct StdioTransport {
    /// The lines for its standard input.
    unread: mpsc::Sender<String>,
    stdout: Lines<ChildStdout>,
    inbox: Inbox,
    signals: Arc<Signals>,
    /// `None` once the program was killed.
    child: Option<Child>,
}

impl StdioTransport {
    /// Starts the program of the server `name`.
    pub(super) fn open(
        name: &str,
        program: &Program,
        limits: McpLimits,
        signals: &Arc<Signals>,
        spawn: &SpawnServer,
    ) -> Result<Self, ConnectionError> {
        let failed = |what: &str| ConnectionError::Unreachable(format!("{what} `{}`", program.command));
        let mut child = command(program).spawn().map_err(|error| {
            if error.kind() != ErrorKind::NotFound {
                return failed(&format!("{}, starting", error.kind()));
            }
            if program.command.contains('/') {
                return failed("there is no program");
            }
            ConnectionError::Unreachable(format!("the program `{}` is not in PATH", program.command))
        })?;
        let no_pipe = || failed("cannot open the pipes of");
        let stdin = child.stdin.take().ok_or_else(no_pipe)?;
        let stdout = child.stdout.take().ok_or_else(no_pipe)?;
        let stderr = child.stderr.take().ok_or_else(no_pipe)?;
        let (unread, lines) = mpsc::channel(MAX_UNREAD);
        spawn(Box::pin(write_lines(stdin, lines, Arc::clone(signals))));
        let stderr = Lines::new(stderr, limits.max_message_bytes);
        spawn(Box::pin(log_lines(name.to_owned(), stderr, Arc::clone(signals))));
        Ok(Self {
            unread,
            stdout: Lines::new(stdout, limits.max_message_bytes),
            inbox: Inbox::new(signals),
            signals: Arc::clone(signals),
            child: Some(child),
        })
    }

    /// Closes the connection and kills the process group.
    fn kill(&mut self) {
        self.signals.closed.cancel();
        // Only once: the process id may belong to another process after the runtime has waited for the child.
        if let Some(mut child) = self.child.take() {
            // Errors mean that the program has ended already.
            kill_group(&child);
            let _ = child.start_kill();
        }
    }
}

impl Drop for StdioTransport {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Transport<RoleClient> for StdioTransport {
    type Error = ConnectionError;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), ConnectionError>> + Send + 'static {
        note_call(&message, &self.signals);
        let abandoned = abandoned(&message);
        let line = message::write(&message).map(|text| text + "\n");
        let unread = self.unread.clone();
        async move {
            let line = line?;
            let Some(abandoned) = abandoned else {
                // A program that does not read gets no more replies and notifications.
                let _ = unread.try_send(line);
                return Ok(());
            };
            let sent = abandoned.run_until_cancelled(unread.send(line)).await;
            sent.unwrap_or(Ok(())).map_err(|_| ConnectionError::Closed)
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            self.inbox.ready().await;
            let Some(line) = self.stdout.next(|| self.signals.data_arrived()).await else {
                self.kill();
                return None;
            };
            if let Some(message) = self.inbox.read(&line) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), ConnectionError> {
        self.kill();
        Ok(())
    }
}

fn command(program: &Program) -> Command {
    let mut command = Command::new(&program.command);
    command.args(&program.args).env_clear().envs(&program.env);
    if let Some(folder) = &program.folder {
        command.current_dir(folder);
    }
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    // The program leads a new process group, to which its child processes belong.
    #[cfg(unix)]
    command.process_group(0);
    command
}

/// Kills all processes of the group of `leader`.
fn kill_group(leader: &Child) {
    #[cfg(unix)]
    if let Some(group) = leader
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(rustix::process::Pid::from_raw)
    {
        // An error means that no process of the group is left.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = leader;
}

/// Writes lines to the program until the connection closes.
async fn write_lines(mut stdin: ChildStdin, mut lines: mpsc::Receiver<String>, signals: Arc<Signals>) {
    let write = async {
        while let Some(line) = lines.recv().await {
            if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
                return;
            }
        }
    };
    signals.closed.run_until_cancelled(write).await;
}

/// Logs the standard error of the program until the program ends.
async fn log_lines(name: String, mut stderr: Lines<ChildStderr>, signals: Arc<Signals>) {
    let log = async {
        while let Some(line) = stderr.next(|| {}).await {
            let text = String::from_utf8_lossy(&line);
            let line = first_chars(text.trim_end(), MAX_LOGGED_CHARS);
            tracing::debug!(server = name, line, "standard error of an MCP server");
        }
    };
    // A process that has left the group may keep the pipe open.
    let closed = async {
        signals.closed.cancelled().await;
        sleep(STDERR_TIMEOUT).await;
    };
    tokio::select! {
        () = log => {}
        () = closed => {}
    }
}

/// The lines that a program writes, up to a length.
struct Lines<R> {
    reader: BufReader<R>,
    /// The line that is not complete.
    line: Vec<u8>,
    max_bytes: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn new(reader: R, max_bytes: usize) -> Self {
        Self {
            reader: BufReader::new(reader),
            line: vec![],
            max_bytes,
        }
    }

    /// Reads the next line; `None` at the end and after a line that is too long. Calls `data_arrived` for each piece.
    /// The future may be dropped at any time; nothing that was read is lost.
    async fn next(&mut self, data_arrived: impl Fn()) -> Option<Vec<u8>> {
        loop {
            let available = self.reader.fill_buf().await.ok()?;
            if available.is_empty() {
                return None;
            }
            data_arrived();
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = end.map_or(available.len(), |end| end + 1);
            self.line.extend_from_slice(&available[..part]);
            self.reader.consume(part);
            if self.line.len() > self.max_bytes {
                return None;
            }
            if end.is_some() {
                return Some(std::mem::take(&mut self.line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of a text that comes in small pieces.
    async fn lines(text: &[u8]) -> Vec<String> {
        let mut lines = Lines {
            reader: BufReader::with_capacity(4, text),
            line: vec![],
            max_bytes: 1000,
        };
        let mut all = vec![];
        while let Some(line) = lines.next(|| {}).await {
            all.push(String::from_utf8(line).expect("text"));
        }
        all
    }

    #[tokio::test]
    async fn lines_are_read_whole_and_up_to_the_limit() {
        assert_eq!(
            lines(b"one\nlonger than that\nno end").await,
            ["one\n", "longer than that\n"]
        );
        assert_eq!(lines(&[b'x'; 1001]).await, [""; 0]);
    }
}
