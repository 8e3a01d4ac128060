//! Notices of a server in the middle of a call: its progress, and lines of its log. Clients of the run get both as events of
//! the stream mode `custom`.
//!
//! A server may send as many as it likes. So a call keeps only its newest progress and some lines until they are passed on,
//! which happens less and less often the longer the call takes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::model::{ClientRequest, GetExtensions, GetMeta, ProgressToken};
use serde_json::{Number, Value, json};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::domain::access::Ownership;
use crate::domain::backoff::Backoff;
use crate::domain::event::TOOL_PROGRESS;
use crate::domain::json_size::json_size;
use crate::domain::text_limits::first_chars;
use crate::tool::progress::ProgressSink;

/// The name of the event with a line of the log.
const TOOL_LOG: &str = "tool_log";
/// The pauses between events. Each is made [`SENT_PER_PAUSE`] times before the next longer one.
const PAUSES: Backoff = Backoff::doubling(Duration::from_millis(250), Duration::from_secs(60));
const SENT_PER_PAUSE: u32 = 32;
/// The maximum length of the message of a progress, and of a line, in characters.
const MAX_CHARS: usize = 1_000;
/// The maximum length of the names of a level and of a logger, in characters.
const MAX_NAME_CHARS: usize = 100;
/// The maximum number of lines that wait. Further ones are left out.
const MAX_LINES: usize = 16;
/// The maximum size of all messages and lines of one call, in bytes. Later progress is numbers alone.
const MAX_BYTES: usize = 256 * 1024;
/// The size of a line beside its data, in bytes.
const LINE_BYTES: usize = 256;

/// A notification about a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Notice {
    /// The progress of the call that has this token.
    Progress(ProgressToken, Progress),
    /// A line of the log. It does not say to which call it belongs.
    Log(LogLine),
}

/// The progress of a call.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Progress {
    progress: Number,
    total: Option<Number>,
    message: Option<String>,
}

/// A line of the log of a server.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LogLine {
    level: String,
    logger: Option<String>,
    data: Value,
}

impl Progress {
    /// Reads the parameters of `notifications/progress`; `None` if they name no progress.
    pub(super) fn read(params: &Value) -> Option<Self> {
        let number = |name: &str| params.get(name).and_then(Value::as_number).cloned();
        Some(Self {
            progress: number("progress")?,
            total: number("total"),
            message: text_of(params, "message", MAX_CHARS),
        })
    }
}

impl LogLine {
    /// Reads the parameters of `notifications/message`; `None` if they have neither a level nor data.
    pub(super) fn read(params: &Value) -> Option<Self> {
        Some(Self {
            level: text_of(params, "level", MAX_NAME_CHARS)?,
            logger: text_of(params, "logger", MAX_NAME_CHARS),
            data: shortened(params.get("data")?),
        })
    }
}

/// Returns the beginning of a text in an object.
fn text_of(params: &Value, name: &str, max_chars: usize) -> Option<String> {
    let text = params.get(name).and_then(Value::as_str);
    text.map(|text| first_chars(text, max_chars).to_owned())
}

/// Returns the data of a line. Of long ones only the beginning is kept, as text.
fn shortened(data: &Value) -> Value {
    match data {
        Value::String(text) => first_chars(text, MAX_CHARS).into(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            match json_size(data, MAX_CHARS) {
                Some(_) => data.clone(),
                None => first_chars(&data.to_string(), MAX_CHARS).into(),
            }
        }
    }
}

/// The notices of one call until they are sent. Its request has a clone in its extensions, for the transport.
#[derive(Debug, Clone)]
pub(super) struct CallNotices(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    /// To whom the thread of the call belongs.
    owner: Ownership,
    waiting: Mutex<Waiting>,
    arrived: Notify,
    /// Cancelled when the call is over. Later notices are ignored.
    over: CancellationToken,
}

/// The notices that wait.
#[derive(Debug)]
struct Waiting {
    progress: Option<Progress>,
    /// The lines, each with the number of those that were left out before it.
    lines: Vec<(u64, LogLine)>,
    /// The number of lines that were left out after these.
    left_out: u64,
    /// The size of the messages and lines that may still be kept.
    bytes_left: usize,
}

impl CallNotices {
    pub(super) fn new(owner: &Ownership) -> Self {
        let waiting = Waiting {
            progress: None,
            lines: vec![],
            left_out: 0,
            bytes_left: MAX_BYTES,
        };
        Self(Arc::new(Kept {
            owner: owner.clone(),
            waiting: Mutex::new(waiting),
            arrived: Notify::new(),
            over: CancellationToken::new(),
        }))
    }

    /// Notes that the call is over.
    pub(super) fn end(&self) {
        self.0.over.cancel();
    }

    /// Returns a guard that notes this when it is dropped.
    pub(super) fn end_on_drop(&self) -> DropGuard {
        self.0.over.clone().drop_guard()
    }

    fn is_over(&self) -> bool {
        self.0.over.is_cancelled()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_progress(&self, progress: Progress) {
        if self.is_over() {
            return;
        }
        self.waiting().progress = Some(progress);
        self.0.arrived.notify_one();
    }

    fn add_line(&self, line: LogLine) {
        if self.is_over() {
            return;
        }
        let mut waiting = self.waiting();
        let has_room = waiting.lines.len() < MAX_LINES;
        let size = json_size(&line.data, waiting.bytes_left).map(|size| size + LINE_BYTES);
        match size.filter(|size| has_room && *size <= waiting.bytes_left) {
            Some(size) => {
                let left_out = std::mem::take(&mut waiting.left_out);
                waiting.bytes_left -= size;
                waiting.lines.push((left_out, line));
            }
            None => waiting.left_out += 1,
        }
        drop(waiting);
        self.0.arrived.notify_one();
    }

    /// Takes what waits: the names of events, and their payloads.
    fn take(&self) -> Vec<(&'static str, Value)> {
        let mut waiting = self.waiting();
        let mut taken = vec![];
        for (left_out, line) in std::mem::take(&mut waiting.lines) {
            let mut payload = json!({"level": line.level, "logger": line.logger, "data": line.data});
            if left_out > 0 {
                payload["left_out"] = left_out.into();
            }
            taken.push((TOOL_LOG, payload));
        }
        if let Some(progress) = waiting.progress.take() {
            let message = progress.message.filter(|message| message.len() <= waiting.bytes_left);
            waiting.bytes_left -= message.as_ref().map_or(0, String::len);
            let payload = json!({"progress": progress.progress, "total": progress.total, "message": message});
            taken.push((TOOL_PROGRESS, payload));
        }
        taken
    }

    /// Waits for notices; `None` when the call is over and all are taken.
    async fn next(&self) -> Option<Vec<(&'static str, Value)>> {
        loop {
            let taken = self.take();
            if !taken.is_empty() {
                return Some(taken);
            }
            if self.is_over() {
                return None;
            }
            tokio::select! {
                () = self.0.arrived.notified() => {}
                () = self.0.over.cancelled() => {}
            }
        }
    }

    /// Sends the notices to clients until the call is over; those that wait then are sent at once. `event_of` makes an event
    /// of a name and a payload.
    pub(super) async fn send_to(&self, clients: &ProgressSink, event_of: impl Fn(&str, Value) -> Value) {
        let mut sent: u32 = 0;
        while let Some(taken) = self.next().await {
            for (name, payload) in taken {
                clients.send_notice(event_of(name, payload)).await;
            }
            sent = sent.saturating_add(1);
            let pause = PAUSES.pause(1 + sent / SENT_PER_PAUSE);
            let _ = timeout(pause, self.0.over.cancelled()).await;
        }
    }
}

/// The calls to which the notices of a stream may belong: those of a connection, or the one to which a response belongs.
#[derive(Debug, Default)]
pub(super) struct OpenCalls(Mutex<Calls>);

#[derive(Debug, Default)]
struct Calls {
    open: Vec<(ProgressToken, CallNotices)>,
    /// The owner of the first call.
    owner: Option<Ownership>,
    /// True if calls of different owners were made.
    has_several_owners: bool,
}

impl OpenCalls {
    /// Returns the call that a request makes, if it is one.
    pub(super) fn of(request: &ClientRequest) -> Self {
        let calls = Self::default();
        calls.add(request);
        calls
    }

    /// Adds the call that a request makes, if it is one.
    pub(super) fn add(&self, request: &ClientRequest) {
        let Some(notices) = request.extensions().get::<CallNotices>() else {
            return;
        };
        if let Some(token) = request.get_meta().get_progress_token() {
            self.add_call(token, notices.clone());
        }
    }

    fn add_call(&self, token: ProgressToken, notices: CallNotices) {
        let mut calls = self.calls();
        calls.open.retain(|(_, other)| !other.is_over());
        let owner = calls.owner.get_or_insert_with(|| notices.0.owner.clone());
        let is_other = *owner != notices.0.owner;
        calls.has_several_owners |= is_other;
        calls.open.push((token, notices));
    }

    /// Gives a notice to the call to which it belongs. A line of the log belongs to the only call that is open. It may come
    /// late, so it belongs to none if calls of different owners were made: it could be about another user's.
    pub(super) fn deliver(&self, notice: Notice) {
        let calls = self.calls();
        let mut open = calls.open.iter().filter(|(_, notices)| !notices.is_over());
        match notice {
            Notice::Progress(token, progress) => {
                if let Some((_, notices)) = open.find(|(other, _)| *other == token) {
                    notices.add_progress(progress);
                }
            }
            Notice::Log(_) if calls.has_several_owners => {}
            Notice::Log(line) => {
                if let (Some((_, notices)), None) = (open.next(), open.next()) {
                    notices.add_line(line);
                }
            }
        }
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
