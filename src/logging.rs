//! The log of the process: lines on standard error, written by a thread of its own.
//!
//! No task waits for the log or fails because of it: lines are put into a buffer. Lines are lost and counted in
//! `adjutant_log_lines_lost_total` of `GET /metrics` if the buffer is full, because the reader of the log is too slow,
//! or if a line cannot be written, because the disk is full or the reader has closed the pipe.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use tracing_subscriber::EnvFilter;

use crate::config::{self, Log, LogFormat};

/// The maximum size of the buffer, in bytes: some ten thousand lines, enough for a short stall of the reader.
const MAX_BUFFERED_BYTES: usize = 4 * 1024 * 1024;

/// The capacity that the buffers keep when they are empty, in bytes.
const IDLE_CAPACITY: usize = 64 * 1024;

/// The maximum time that the process waits on exit for lines to be written.
const FLUSH_DEADLINE: Duration = Duration::from_secs(1);

/// The log of this process, once it is started.
static PROCESS: OnceLock<Buffer> = OnceLock::new();

/// The format of its lines.
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Starts the log: lines and panics go to standard error from now on.
///
/// # Errors
/// Returns an error if the filter is invalid, if a log was started before, or if no thread can be started.
pub fn start(log: &Log) -> anyhow::Result<()> {
    let mut filter = EnvFilter::try_new(&log.filter)?;
    if !log.filter.contains("rmcp") {
        // Its lines repeat those of the MCP servers, and some come with each message.
        filter = filter.add_directive("rmcp=error".parse()?);
    }
    if !log.filter.contains("sqlx") {
        // Its lines repeat for each connection of the pool what the listener of the database says once.
        filter = filter
            .add_directive("sqlx=off".parse()?)
            .add_directive("sqlx_core::pool=off".parse()?);
    }
    if !log.filter.contains("async_nats") {
        // Its lines repeat what the exchange of chunks says once.
        filter = filter.add_directive("async_nats=off".parse()?);
    }
    if !log.filter.contains("rig") {
        // Its spans are entered with each piece of an answer. Only its own lines would name them, and the server logs what
        // becomes of a call.
        filter = filter.add_directive("rig::completions=warn".parse()?);
    }
    if log.access && !log.filter.contains("adjutant::access") {
        // The access log is asked for, whatever else the filter leaves out.
        filter = filter.add_directive("adjutant::access=info".parse()?);
    }
    let buffer = PROCESS.get_or_init(Buffer::default);
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(|| buffer.write_to(io::stderr()))?;
    // The subscriber would print its own errors with `eprintln!`, which panics if standard error is broken.
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(move || buffer)
        .with_ansi(io::stderr().is_terminal() && config::variable("NO_COLOR").is_none())
        .log_internal_errors(false);
    let started = match log.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    started.map_err(|error| anyhow!("the log cannot be started: {error}"))?;
    // A log is started once, so the format was not set before.
    let _ = FORMAT.set(log.format);
    std::panic::set_hook(Box::new(|panic| {
        let reason = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(%reason, %place, %backtrace, "panicked");
    }));
    Ok(())
}

/// Writes a line to standard error, after the lines logged before. Errors are ignored.
pub fn print(line: &str) {
    let line = format!("{line}\n");
    match PROCESS.get() {
        Some(buffer) => buffer.push(line.as_bytes()),
        None => drop(io::stderr().write_all(line.as_bytes())),
    }
}

/// Writes the error that ends the process: as a line of the log if its lines are JSON, otherwise as it is.
pub fn print_failure(error: &str) {
    let is_json = FORMAT.get() == Some(&LogFormat::Json);
    if is_json && tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!(error, "the server has failed");
    } else {
        print(error);
    }
}

/// Returns whether the log was started by [`start`].
pub fn is_started() -> bool {
    PROCESS.get().is_some()
}

/// Returns whether the log was started by [`start`] and a person may read it at a terminal.
pub fn is_on_terminal() -> bool {
    is_started() && io::stderr().is_terminal()
}

/// Waits until all lines are written, but at most one second.
pub fn flush() {
    if let Some(buffer) = PROCESS.get() {
        buffer.flush(FLUSH_DEADLINE);
    }
}

/// Returns the number of lines lost so far.
pub fn lines_lost() -> u64 {
    PROCESS.get().map_or(0, |buffer| buffer.lost.load(Ordering::Relaxed))
}

/// The lines that wait for the writing thread.
#[derive(Default)]
struct Buffer {
    state: Mutex<BufferState>,
    changed: Condvar,
    lost: AtomicU64,
}

#[derive(Default)]
struct BufferState {
    waiting: Vec<u8>,
    /// True if the thread is writing the lines that it took last.
    is_writing: bool,
}

impl Buffer {
    /// Adds whole lines. They are lost if the buffer is full.
    fn push(&self, lines: &[u8]) {
        let mut state = self.lock();
        if state.waiting.len() + lines.len() > MAX_BUFFERED_BYTES {
            drop(state);
            return self.count_lost(lines);
        }
        state.waiting.extend_from_slice(lines);
        drop(state);
        self.changed.notify_all();
    }

    fn count_lost(&self, lines: &[u8]) {
        let count = lines.iter().filter(|byte| **byte == b'\n').count();
        self.lost
            .fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Writes lines for as long as the process lives.
    fn write_to(&self, mut out: impl Write) {
        let mut batch = vec![];
        loop {
            self.take(&mut batch);
            let unwritten = write_some(&mut out, &batch);
            self.count_lost(unwritten);
            batch.clear();
            batch.shrink_to(IDLE_CAPACITY);
        }
    }

    /// Waits for lines and moves all of them into `batch`, which must be empty.
    fn take(&self, batch: &mut Vec<u8>) {
        let mut state = self.lock();
        state.is_writing = false;
        self.changed.notify_all();
        while state.waiting.is_empty() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut state.waiting, batch);
        state.is_writing = true;
    }

    /// Waits until everything is written, or the timeout has passed.
    fn flush(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.lock();
        while state.is_writing || !state.waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BufferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for &Buffer {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        self.push(lines);
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes as much as possible; returns what could not be written.
fn write_some<'a>(out: &mut impl Write, mut bytes: &'a [u8]) -> &'a [u8] {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return bytes,
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return bytes,
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A writer whose result for each write is sent by the test.
    struct Reader {
        answers: Receiver<io::Result<usize>>,
        written: Sender<Vec<u8>>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = self.answers.recv().unwrap_or(Ok(usize::MAX))?.min(bytes.len());
            let _ = self.written.send(bytes[..taken].to_vec());
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn begin() -> (Arc<Buffer>, Sender<io::Result<usize>>, Receiver<Vec<u8>>) {
        let buffer = Arc::<Buffer>::default();
        let (answer, answers) = channel();
        let (written, read) = channel();
        let writer = Arc::clone(&buffer);
        std::thread::spawn(move || writer.write_to(Reader { answers, written }));
        (buffer, answer, read)
    }

    #[test]
    fn a_stalled_reader_blocks_no_writer_and_lost_lines_are_counted() {
        let (buffer, answer, read) = begin();
        let line = vec![b'\n'; 1024 * 1024];
        for _ in 0..20 {
            buffer.push(&line);
        }
        // The writing thread may hold as much as the buffer.
        let lost = buffer.lost.load(Ordering::Relaxed) / (1024 * 1024);
        assert!((12..=16).contains(&lost), "{lost}");
        buffer.flush(Duration::ZERO);
        drop(answer);
        let mut came = 0;
        while came < (20 - lost) * 1024 * 1024 {
            came += read.recv().expect("the rest comes").len() as u64;
        }
        buffer.push(b"again\n");
        assert_eq!(read.recv().expect("it goes on"), b"again\n");
        buffer.flush(Duration::from_secs(60));
    }

    #[test]
    fn a_line_that_cannot_be_written_is_counted_and_writing_continues() {
        let (buffer, answer, read) = begin();
        answer.send(Err(io::ErrorKind::Interrupted.into())).unwrap();
        answer.send(Ok(2)).unwrap();
        answer.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        buffer.push(b"one\ntwo\n");
        buffer.flush(Duration::from_secs(60));
        assert_eq!(read.recv().expect("a piece"), b"on");
        assert_eq!(buffer.lost.load(Ordering::Relaxed), 2);
        answer.send(Ok(100)).unwrap();
        buffer.push(b"three\n");
        assert_eq!(read.recv().expect("the next line"), b"three\n");
        buffer.flush(Duration::from_secs(60));
        assert_eq!(buffer.lost.load(Ordering::Relaxed), 2);
    }
}
