//! The stream of a thread, which is opened again when it breaks. No event comes twice.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use reqwest::Response;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::event::ThreadFrame;
use crate::client::api::ApiClient;
use crate::client::error::{ClientError, ClientResult};
use crate::domain::backoff::{Backoff, Pauses};
use crate::domain::json_limits::read_foreign;
use crate::net;
use crate::net::sse::Frames;

/// The channels of a chat.
const CHANNELS: [&str; 5] = ["messages", "tools", "lifecycle", "input", "custom"];

/// The largest event, in bytes; larger ones are left out.
const MAX_EVENT_BYTES: usize = 32 * 1024 * 1024;

/// The number of names of events that are kept.
const MAX_SEEN: usize = 20_000;

/// The time without any data after which a connection is taken for broken. The server sends a sign of life more often.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// The time for which the server may be unreachable.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(300);

/// The pauses between attempts to connect.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(100), Duration::from_secs(5));

/// An item of a stream.
#[derive(Debug)]
pub(super) enum StreamItem {
    /// An event, and its JSON.
    Event(Box<ThreadFrame>, Value),
    /// The connection is lost, for this reason. It is made again.
    Lost(String),
    /// The connection is there again.
    Back,
    /// Events are missing: the server does not have them any more.
    Gap,
}

/// The stream of a thread.
pub(super) struct Subscription {
    api: ApiClient,
    thread: String,
    /// The number of the last stored event.
    since: i64,
    seen: Seen,
    connection: Option<Connection>,
    ready: VecDeque<(ThreadFrame, Value)>,
    outage: Option<Outage>,
}

struct Connection {
    response: Response,
    frames: Frames,
    /// The time of the last data.
    heard: Instant,
}

/// A time without a connection.
struct Outage {
    began: Instant,
    pauses: Pauses,
    retry_at: Instant,
}

impl Subscription {
    /// Subscribes to the events of a thread, from its first.
    pub(super) fn new(api: ApiClient, thread: String) -> Self {
        Self {
            api,
            thread,
            since: 0,
            seen: Seen::default(),
            connection: None,
            ready: VecDeque::new(),
            outage: None,
        }
    }

    /// Waits for what comes next. May be dropped and called again.
    ///
    /// # Errors
    /// The server refuses the stream, or cannot be reached for too long.
    pub(super) async fn next(&mut self) -> ClientResult<StreamItem> {
        loop {
            if let Some((frame, event)) = self.ready.pop_front() {
                if frame.is_stored() {
                    self.since = self.since.max(frame.seq);
                }
                return Ok(StreamItem::Event(Box::new(frame), event));
            }
            let Some(connection) = &mut self.connection else {
                match self.connect().await? {
                    Some(incoming) => return Ok(incoming),
                    None => continue,
                }
            };
            let silent = connection.heard + IDLE_TIMEOUT;
            let reason = match tokio::time::timeout_at(silent, connection.response.chunk()).await {
                Ok(Ok(Some(bytes))) => {
                    connection.heard = Instant::now();
                    let frames = connection.frames.take(&bytes);
                    let events = frames
                        .into_iter()
                        .filter_map(|frame| read_foreign::<Value>(frame.data.as_bytes()).ok());
                    for event in events {
                        let frame = ThreadFrame::read(&event).filter(|frame| self.seen.is_new(&frame.id));
                        self.ready.extend(frame.map(|frame| (frame, event)));
                    }
                    continue;
                }
                Ok(Ok(None)) => "the server closed the stream".to_owned(),
                Ok(Err(error)) => net::describe_error(&error),
                Err(_) => "the server was silent for too long".to_owned(),
            };
            self.connection = None;
            self.schedule_retry();
            return Ok(StreamItem::Lost(reason));
        }
    }

    /// Connects. Returns what is worth telling.
    async fn connect(&mut self) -> ClientResult<Option<StreamItem>> {
        if let Some(outage) = &self.outage {
            tokio::time::sleep_until(outage.retry_at).await;
        }
        let body = json!({"channels": CHANNELS, "since": self.since});
        match self.api.open_stream(&self.thread, &body).await {
            Ok(response) => {
                self.connection = Some(Connection {
                    response,
                    frames: Frames::up_to(MAX_EVENT_BYTES),
                    heard: Instant::now(),
                });
                Ok(self.outage.take().map(|_| StreamItem::Back))
            }
            Err(ClientError::Refused {
                code,
                min_available_seq,
                ..
            }) if code.as_deref() == Some("resume_gap") => {
                let first = min_available_seq.unwrap_or(self.since + 1);
                // It has to grow, or this would not end.
                self.since = (first - 1).max(self.since + 1);
                Ok(Some(StreamItem::Gap))
            }
            Err(error) if error.is_transient() && self.may_retry() => {
                let is_first = self.outage.is_none();
                self.schedule_retry();
                Ok(is_first.then(|| StreamItem::Lost(error.to_string())))
            }
            Err(error) => Err(error),
        }
    }

    fn may_retry(&self) -> bool {
        self.outage
            .as_ref()
            .is_none_or(|outage| outage.began.elapsed() < UNREACHABLE_TIMEOUT)
    }

    fn schedule_retry(&mut self) {
        let outage = self.outage.get_or_insert_with(|| Outage {
            began: Instant::now(),
            pauses: BACKOFF.pauses_with_jitter(),
            retry_at: Instant::now(),
        });
        let pause = outage.pauses.next().unwrap_or(BACKOFF.longest);
        outage.retry_at = Instant::now() + pause;
    }
}

/// The names of the latest events.
#[derive(Default)]
struct Seen {
    names: HashSet<String>,
    order: VecDeque<String>,
}

impl Seen {
    /// Returns whether an event has not come before.
    fn is_new(&mut self, name: &str) -> bool {
        if !self.names.insert(name.to_owned()) {
            return false;
        }
        self.order.push_back(name.to_owned());
        if self.order.len() > MAX_SEEN
            && let Some(oldest) = self.order.pop_front()
        {
            self.names.remove(&oldest);
        }
        true
    }
}
