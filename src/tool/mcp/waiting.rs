//! The requests of a connection that somebody waits for.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::oneshot;

use super::wire::WireError;

type Answers = HashMap<u64, oneshot::Sender<Result<Value, WireError>>>;

/// The requests that somebody waits for, by their numbers.
#[derive(Default)]
pub(super) struct Waiting(Mutex<Answers>);

impl Waiting {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait for the answer to request `id`.
    pub(super) fn begin(&self, id: u64) -> Wait<'_> {
        let (answer, answered) = oneshot::channel();
        self.answers().insert(id, answer);
        Wait { waiting: self, id, answered }
    }

    /// Hands an answer to who waits for it.
    pub(super) fn answer(&self, id: u64, answer: Result<Value, WireError>) {
        if let Some(waits) = self.answers().remove(&id) {
            // Who does not wait any more does not need it.
            let _ = waits.send(answer);
        }
    }

    /// Nobody gets an answer any more.
    pub(super) fn end(&self) {
        self.answers().clear();
    }
}

/// A request that somebody waits for; it is forgotten when nobody does any more.
pub(super) struct Wait<'a> {
    waiting: &'a Waiting,
    id: u64,
    answered: oneshot::Receiver<Result<Value, WireError>>,
}

impl Wait<'_> {
    /// The answer.
    pub(super) async fn answer(mut self) -> Result<Value, WireError> {
        (&mut self.answered).await.unwrap_or(Err(WireError::Closed))
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.waiting.answers().remove(&self.id);
    }
}
