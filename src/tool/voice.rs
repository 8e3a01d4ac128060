//! What tools and policies tell clients while they work: the stream mode `custom`, and pieces of results.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{Mutex, mpsc};

use crate::domain::json_limits;

/// How many words may wait until the loop has passed them on. Who tells more waits.
const UNHEARD: usize = 64;

/// Tells the clients of a run something. Each agent of a run has its own; clones are handles of the same.
///
/// Clients get it in the order in which it was told and before the result of whoever told it. A step that a crash makes the
/// server repeat tells it again.
#[derive(Clone)]
pub struct ProgressSink(Arc<Line>);

/// What is told.
#[derive(Debug, Clone, PartialEq)]
pub enum ProgressEvent {
    /// Any JSON. It is stored before clients see it.
    Custom(Value),
    /// A piece of what a call will come to. It is not stored: the result supersedes it.
    Output {
        /// The call's id.
        call: String,
        /// More text.
        text: String,
    },
}

struct Line {
    mouth: mpsc::Sender<ProgressEvent>,
    ear: Mutex<mpsc::Receiver<ProgressEvent>>,
}

impl Default for ProgressSink {
    fn default() -> Self {
        let (mouth, ear) = mpsc::channel(UNHEARD);
        Self(Arc::new(Line {
            mouth,
            ear: Mutex::new(ear),
        }))
    }
}

impl ProgressSink {
    /// Tells clients `value`, any JSON. Waits while too much is told at once.
    ///
    /// What exceeds the limits of JSON from outside is not told, since it could not be read back from the log.
    pub async fn tell(&self, mut value: Value) {
        match json_limits::admit(&mut value) {
            Ok(()) => self.say(ProgressEvent::Custom(value)).await,
            Err(exceeded) => tracing::warn!(%exceeded, "what a tool wanted to tell clients was left out"),
        }
    }

    /// Tells clients, who may want to show it at once, the next piece of the text that the call of this id will come to.
    /// Waits while too much is told at once.
    pub async fn tell_output(&self, call: &str, text: impl Into<String>) {
        self.say(ProgressEvent::Output {
            call: call.to_owned(),
            text: json_limits::without_nul(text.into()),
        })
        .await;
    }

    async fn say(&self, word: ProgressEvent) {
        // The other end lives as long as this one.
        let _ = self.0.mouth.send(word).await;
    }

    /// Waits for the next word.
    pub async fn heard(&self) -> Option<ProgressEvent> {
        self.0.ear.lock().await.recv().await
    }

    /// What was told and not heard yet.
    pub fn unheard(&self) -> Vec<ProgressEvent> {
        let Ok(mut ear) = self.0.ear.try_lock() else {
            return vec![];
        };
        std::iter::from_fn(|| ear.try_recv().ok()).collect()
    }
}
