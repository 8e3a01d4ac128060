//! What tools and policies tell clients while they work: the stream mode `custom`.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{Mutex, mpsc};

/// How many words may wait until the loop has stored them. Who tells more waits.
const UNHEARD: usize = 64;

/// Tells the clients of a run something. Each agent of a run has its own; clones are handles of the same.
///
/// What is told is stored before clients see it, in the order in which it was told and before the result of whoever told
/// it. A step that a crash makes the server repeat tells it again.
#[derive(Clone)]
pub struct Voice(Arc<Line>);

struct Line {
    mouth: mpsc::Sender<Value>,
    ear: Mutex<mpsc::Receiver<Value>>,
}

impl Default for Voice {
    fn default() -> Self {
        let (mouth, ear) = mpsc::channel(UNHEARD);
        Self(Arc::new(Line { mouth, ear: Mutex::new(ear) }))
    }
}

impl Voice {
    /// Tells clients `value`, any JSON. Waits while too much is told at once.
    pub async fn tell(&self, value: Value) {
        // The other end lives as long as this one.
        let _ = self.0.mouth.send(value).await;
    }

    /// Waits for the next word.
    pub async fn heard(&self) -> Option<Value> {
        self.0.ear.lock().await.recv().await
    }

    /// What was told and not heard yet.
    pub fn unheard(&self) -> Vec<Value> {
        let Ok(mut ear) = self.0.ear.try_lock() else { return vec![] };
        std::iter::from_fn(|| ear.try_recv().ok()).collect()
    }
}
