//! The messages that arrive over a transport, with the limits on them.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::ServerJsonRpcMessage;
use tokio::time::{Instant, sleep_until};

use super::message::{self, Incoming};
use super::notices::OpenCalls;
use super::signals::Signals;
use crate::domain::json_limits::read_foreign;

/// The maximum number of messages per second that are not answers. Further ones wait in the pipe or the socket, and the
/// server with them.
const MAX_OTHER_PER_SECOND: u32 = 1_000;
const SECOND: Duration = Duration::from_secs(1);

/// Reads messages of a server.
pub(super) struct Inbox {
    signals: Arc<Signals>,
    /// The calls to which notices belong.
    calls: Arc<OpenCalls>,
    /// True if the last message was a notice.
    has_notice: bool,
    /// The number of messages in the current second that are not answers.
    others: u32,
    since: Instant,
}

impl Inbox {
    /// Creates the inbox of a connection with one stream for all answers.
    pub(super) fn new(signals: &Arc<Signals>) -> Self {
        Self::of_response(signals, Arc::clone(&signals.calls))
    }

    /// Creates the inbox of the response to one request, with the call that the request makes.
    pub(super) fn of_response(signals: &Arc<Signals>, calls: Arc<OpenCalls>) -> Self {
        Self {
            signals: Arc::clone(signals),
            calls,
            has_notice: false,
            others: 0,
            since: Instant::now(),
        }
    }

    /// Waits for the rest of the second if there were too many messages. The future may be dropped at any time.
    pub(super) async fn ready(&mut self) {
        if self.others >= MAX_OTHER_PER_SECOND {
            sleep_until(self.since + SECOND).await;
            self.others = 0;
            self.since = Instant::now();
        }
    }

    /// Returns whether the last message was a notice about a call.
    pub(super) fn has_notice(&self) -> bool {
        self.has_notice
    }

    /// Reads a message; returns answers and requests. What exceeds the limits of JSON from outside is ignored.
    pub(super) fn read(&mut self, text: &[u8]) -> Option<ServerJsonRpcMessage> {
        let incoming = message::read(read_foreign(text).unwrap_or_default());
        self.has_notice = matches!(incoming, Incoming::Notice(_));
        if let Incoming::Answer(answer) = incoming {
            return Some(answer);
        }
        self.others += 1;
        match incoming {
            Incoming::Request(request) => Some(request),
            Incoming::ToolsChanged => {
                self.signals.tools_changed.notify_one();
                None
            }
            Incoming::Notice(notice) => {
                self.calls.deliver(notice);
                None
            }
            Incoming::Answer(_) | Incoming::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn more_than_a_thousand_messages_take_more_than_a_second() {
        let begun = Instant::now();
        let mut inbox = Inbox::new(&Arc::default());
        for _ in 0..MAX_OTHER_PER_SECOND {
            inbox.ready().await;
            assert!(inbox.read(b"no message").is_none());
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        inbox.ready().await;
        assert_eq!(begun.elapsed(), SECOND);
    }
}
