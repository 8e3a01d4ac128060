//! An MCP server that is a program: it reads messages from its standard input and writes them to its standard output, one
//! on a line.
//!
//! Threads carry the lines, since pipes of processes block. The program ends with its connection, and with it all programs
//! that it started: they are a group of processes.

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
use super::message::{self, Said};
use super::waiting::Waiting;
use super::wire::{Signs, Wire, WireError};
use crate::domain::json_limits::read_foreign;

/// How many messages may wait until the program reads them.
const UNREAD: usize = 64;
/// How many messages that answer nothing are read in a second; of a program that says more the rest has to wait.
const MOST_UNASKED: u32 = 1_000;
/// How much of a line that the program complains in is logged.
const SHOWN_CHARS: usize = 500;

/// How to start the program.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) command: String,
    pub(super) args: Vec<String>,
    /// All variables that it sees. They may hold secrets.
    pub(super) env: BTreeMap<String, String>,
    /// Where it runs.
    pub(super) folder: Option<PathBuf>,
}

/// A connection to a program.
pub(super) struct Pipes {
    lines: mpsc::Sender<String>,
    shared: Arc<Shared>,
}

struct Shared {
    waiting: Waiting,
    signs: Signs,
    child: Mutex<Option<Child>>,
    /// The longest line that is read, in bytes.
    max_message: usize,
}

impl Pipes {
    /// Starts the program of the server `name`.
    pub(super) fn open(name: &str, program: &Program, limits: McpLimits) -> Result<Self, WireError> {
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
        let cannot = |what: &str| WireError::Unreachable(format!("{what} `{}`", program.command));
        let mut child = command.spawn().map_err(|error| {
            if error.kind() != ErrorKind::NotFound {
                return cannot(&format!("{}, starting", error.kind()));
            }
            if program.command.contains('/') {
                return cannot("there is no program");
            }
            WireError::Unreachable(format!("the program `{}` is not in PATH", program.command))
        })?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let (lines, unread) = mpsc::channel(UNREAD);
        let waiting = Waiting::new(limits.pieces);
        let signs = Signs::default();
        let child = Mutex::new(Some(child));
        let max_message = limits.max_message_bytes;
        let shared = Shared {
            waiting,
            signs,
            child,
            max_message,
        };
        let pipes = Self {
            lines,
            shared: Arc::new(shared),
        };
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(cannot("no pipes to"));
        };
        let start = |part: &str, work: Box<dyn FnOnce() + Send>| {
            let made = thread::Builder::new().name(format!("mcp {name} {part}")).spawn(work);
            made.map(drop).map_err(|_| cannot("no thread for"))
        };
        start("in", Box::new(move || write_lines(stdin, unread)))?;
        let shared = Arc::clone(&pipes.shared);
        let answers = pipes.lines.downgrade();
        start("out", Box::new(move || read_lines(stdout, &shared, &answers)))?;
        let name = name.to_owned();
        start(
            "err",
            Box::new(move || log_lines(&name, BufReader::new(stderr), max_message)),
        )?;
        Ok(pipes)
    }
}

#[async_trait]
impl Wire for Pipes {
    async fn ask(&self, id: u64, request: &Value) -> Result<Value, WireError> {
        let wait = self.shared.waiting.begin(id);
        // Whoever comes after the end waits for nothing.
        if self.shared.signs.closed.is_cancelled() || self.lines.send(request.to_string()).await.is_err() {
            return Err(WireError::Closed);
        }
        wait.answer().await
    }

    async fn tell(&self, message: Value) {
        let _ = self.lines.send(message.to_string()).await;
    }

    fn signs(&self) -> &Signs {
        &self.shared.signs
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Shared {
    /// Nobody gets an answer any more, and the program ends if it has not.
    fn end(&self) {
        self.signs.closed.cancel();
        self.waiting.end();
        // Once only: when it has been waited for, its number may be that of another program.
        let Some(mut child) = self.child.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        // It has ended already, or does now.
        end_group(&child);
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The program is to lead a group of its own, to which the programs belong that it starts.
fn lead_a_group(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(not(unix))]
    let _ = command;
}

/// Ends all programs of the group that this one leads.
fn end_group(leader: &Child) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(leader.id()).ok().and_then(rustix::process::Pid::from_raw) {
        // There may be none left.
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
    let mut unasked = Unasked {
        count: 0,
        since: Instant::now(),
    };
    while let Some(line) = next_line(&mut reader, shared.max_message, || shared.waiting.arrive()) {
        let said = read_foreign(&line).unwrap_or_default();
        if !matches!(message::read(&said), Said::Answer(..)) {
            unasked.take_turn();
        }
        match message::read(&said) {
            Said::Answer(id, result) => shared.waiting.answer(id, result.map_err(WireError::Refused)),
            Said::Asks(answer) => {
                if let Some(lines) = answers.upgrade() {
                    // One that asks without reading the answers gets none.
                    let _ = lines.try_send(answer.to_string());
                }
            }
            Said::ToolsChanged => shared.signs.changed.notify_one(),
            Said::Other => {}
        }
    }
    shared.end();
}

/// Messages that answer nothing, counted second by second.
struct Unasked {
    count: u32,
    since: Instant,
}

impl Unasked {
    /// Waits when there have been too many.
    fn take_turn(&mut self) {
        const SECOND: Duration = Duration::from_secs(1);
        self.count += 1;
        if self.count < MOST_UNASKED {
            return;
        }
        // The pipe fills, and the program waits.
        thread::sleep(SECOND.saturating_sub(self.since.elapsed()));
        *self = Self {
            count: 0,
            since: Instant::now(),
        };
    }
}

/// The next line; none at the end, and when a line is longer than anybody has use for. Calls `arrive` for each piece of it.
fn next_line(reader: &mut impl BufRead, longest: usize, arrive: impl Fn()) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        let there = reader.fill_buf().ok().filter(|there| !there.is_empty())?;
        arrive();
        let end = there.iter().position(|byte| *byte == b'\n');
        let part = end.map_or(there.len(), |end| end + 1);
        line.extend_from_slice(&there[..part]);
        reader.consume(part);
        if line.len() > longest {
            return None;
        }
        if end.is_some() {
            return Some(line);
        }
    }
}

/// What the program says beside its answers is for the log.
fn log_lines(name: &str, mut reader: impl BufRead, longest: usize) {
    while let Some(line) = next_line(&mut reader, longest, || {}) {
        let line: String = String::from_utf8_lossy(&line)
            .trim_end()
            .chars()
            .take(SHOWN_CHARS)
            .collect();
        tracing::debug!(server = name, line, "an MCP server says");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_not_beyond_all_bounds() {
        let mut reader = BufReader::with_capacity(4, "one\nlonger than that\nno end".as_bytes());
        let lines: Vec<String> = std::iter::from_fn(|| next_line(&mut reader, 1000, || {}))
            .map(|line| String::from_utf8(line).expect("text"))
            .collect();
        assert_eq!(lines, ["one\n", "longer than that\n"]);
        let long = vec![b'x'; 1001];
        assert_eq!(next_line(&mut BufReader::new(long.as_slice()), 1000, || {}), None);
    }
}
