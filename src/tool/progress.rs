//! Progress of tools and policies for clients: the stream mode `custom`, and pieces of results.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{Mutex, mpsc};

use crate::domain::json_limits;

/// The maximum number of events that wait until the loop has passed them on. Further senders wait.
const CAPACITY: usize = 64;

/// Sends progress to the clients of a run. Each agent of a run has its own; clones are handles of the same.
///
/// Clients receive events in the order in which they were sent, and before the result of their sender. A step that a
/// crash makes the server repeat sends them again.
#[derive(Clone)]
pub struct ProgressSink {
    channel: Arc<Channel>,
    /// True if the pieces of results are left out.
    withholds_output: bool,
}

/// An event of progress.
#[derive(Debug, Clone, PartialEq)]
pub enum ProgressEvent {
    /// Any JSON. It is stored before clients see it.
    Custom(Value),
    /// Any JSON with texts from the server of a tool. It is stored, too, and is withheld where pieces of results are.
    Notice(Value),
    /// A piece of the result of a call. It is not stored: the result supersedes it.
    Output {
        /// The call's id.
        call: String,
        /// More text.
        text: String,
    },
}

struct Channel {
    sender: mpsc::Sender<ProgressEvent>,
    receiver: Mutex<mpsc::Receiver<ProgressEvent>>,
}

impl Default for ProgressSink {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        Self {
            channel: Arc::new(Channel {
                sender,
                receiver: Mutex::new(receiver),
            }),
            withholds_output: false,
        }
    }
}

impl ProgressSink {
    /// Sends `value`, any JSON. Waits while too many events are waiting.
    ///
    /// A value that exceeds the limits of JSON from outside is left out, since it could not be read back from the log.
    pub async fn send(&self, value: Value) {
        self.push_admitted(value, ProgressEvent::Custom).await;
    }

    /// Sends what the server of a tool tells about a call in the middle of it, in the same way. Clients of agents with a
    /// policy that rewrites results do not receive it.
    pub async fn send_notice(&self, value: Value) {
        self.push_admitted(value, ProgressEvent::Notice).await;
    }

    /// Returns a handle that sends no pieces of results: for calls that clients do not see.
    #[must_use]
    pub fn without_output(&self) -> Self {
        Self {
            withholds_output: true,
            ..self.clone()
        }
    }

    /// Sends the next piece of the text of the result of the call of this id, for clients that show it at once.
    /// Waits while too many events are waiting.
    pub async fn send_output(&self, call: &str, text: impl Into<String>) {
        if self.withholds_output {
            return;
        }
        self.push(ProgressEvent::Output {
            call: call.to_owned(),
            text: json_limits::without_nul(text.into()),
        })
        .await;
    }

    async fn push_admitted(&self, mut value: Value, event: fn(Value) -> ProgressEvent) {
        match json_limits::admit(&mut value) {
            Ok(()) => self.push(event(value)).await,
            Err(exceeded) => tracing::warn!(%exceeded, "progress of a tool was left out"),
        }
    }

    async fn push(&self, event: ProgressEvent) {
        // The other end lives as long as this one.
        let _ = self.channel.sender.send(event).await;
    }

    /// Waits for the next event.
    pub async fn recv(&self) -> Option<ProgressEvent> {
        self.channel.receiver.lock().await.recv().await
    }

    /// Returns the events that wait.
    pub fn drain(&self) -> Vec<ProgressEvent> {
        let Ok(mut receiver) = self.channel.receiver.try_lock() else {
            return vec![];
        };
        std::iter::from_fn(|| receiver.try_recv().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_call_that_clients_do_not_see_sends_events_but_no_pieces_of_its_result() {
        let sink = ProgressSink::default();
        let hidden = sink.without_output();
        hidden.send_output("c", "a piece").await;
        hidden.send(json!({"done": 1})).await;
        assert_eq!(sink.drain(), [ProgressEvent::Custom(json!({"done": 1}))]);
    }
}
