//! An MCP server that is a program: it reads messages from its standard input and writes them to its standard output, one
//! on a line.
//!
//! Two threads carry the lines, since pipes of processes block. The program ends with its connection.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::mpsc;

use super::message::{self, Said};
use super::waiting::Waiting;
use super::wire::{LONGEST_MESSAGE, Signs, Wire, WireError};
use crate::domain::json_limits::read_foreign;

/// How many messages may wait until the program reads them.
const UNREAD: usize = 64;
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
    child: Mutex<Child>,
}

impl Pipes {
    /// Starts the program of the server `name`.
    pub(super) fn open(name: &str, program: &Program) -> Result<Self, WireError> {
        let mut command = Command::new(&program.command);
        command.args(&program.args).env_clear().envs(&program.env);
        if let Some(folder) = &program.folder {
            command.current_dir(folder);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let cannot = |what: &str| WireError::Unreachable(format!("{what} `{}`", program.command));
        let mut child = command.spawn().map_err(|error| cannot(&format!("{}, starting", error.kind())))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (lines, unread) = mpsc::channel(UNREAD);
        let shared = Shared { waiting: Waiting::default(), signs: Signs::default(), child: Mutex::new(child) };
        let pipes = Self { lines, shared: Arc::new(shared) };
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(cannot("no pipes to"));
        };
        let start = |part: &str, work: Box<dyn FnOnce() + Send>| {
            let made = thread::Builder::new().name(format!("mcp {name} {part}")).spawn(work);
            made.map(drop).map_err(|_| cannot("no thread for"))
        };
        start("in", Box::new(move || write_lines(stdin, unread)))?;
        let (shared, answers) = (Arc::clone(&pipes.shared), pipes.lines.downgrade());
        start("out", Box::new(move || read_lines(stdout, &shared, &answers)))?;
        let name = name.to_owned();
        start("err", Box::new(move || log_lines(&name, BufReader::new(stderr))))?;
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
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // It has ended already, or does now.
        let _ = child.kill();
        let _ = child.wait();
    }
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
    while let Some(line) = next_line(&mut reader) {
        let Ok(said) = read_foreign(&line) else { continue };
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

/// The next line; none at the end, and when a line is longer than anybody has use for.
fn next_line(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        let there = reader.fill_buf().ok().filter(|there| !there.is_empty())?;
        let end = there.iter().position(|byte| *byte == b'\n');
        let part = end.map_or(there.len(), |end| end + 1);
        line.extend_from_slice(&there[..part]);
        reader.consume(part);
        if line.len() > LONGEST_MESSAGE {
            return None;
        }
        if end.is_some() {
            return Some(line);
        }
    }
}

/// What the program says beside its answers is for the log.
fn log_lines(name: &str, mut reader: impl BufRead) {
    while let Some(line) = next_line(&mut reader) {
        let line: String = String::from_utf8_lossy(&line).trim_end().chars().take(SHOWN_CHARS).collect();
        tracing::debug!(server = name, line, "an MCP server says");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_and_not_beyond_all_bounds() {
        let mut reader = BufReader::with_capacity(4, "one\nlonger than that\nno end".as_bytes());
        let lines: Vec<String> =
            std::iter::from_fn(|| next_line(&mut reader)).map(|line| String::from_utf8(line).expect("text")).collect();
        assert_eq!(lines, ["one\n", "longer than that\n"]);
        let long = vec![b'x'; LONGEST_MESSAGE + 1];
        assert_eq!(next_line(&mut BufReader::new(long.as_slice())), None);
    }
}
