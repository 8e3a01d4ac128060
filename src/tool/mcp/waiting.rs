//! The requests of a connection that somebody waits for.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::wire::WireError;
use crate::model::pieces::PieceLimits;

type Answers = HashMap<u64, oneshot::Sender<Result<Value, WireError>>>;

/// The requests that somebody waits for, by their numbers.
pub(super) struct Waiting {
    answers: Mutex<Answers>,
    /// Rung by everything that arrives.
    arrived: watch::Sender<()>,
    /// How long nothing may arrive.
    limits: PieceLimits,
}

impl Waiting {
    pub(super) fn new(limits: PieceLimits) -> Self {
        Self {
            answers: Mutex::default(),
            arrived: watch::Sender::new(()),
            limits,
        }
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait for the answer to request `id`.
    pub(super) fn begin(&self, id: u64) -> Wait<'_> {
        let (answer, answered) = oneshot::channel();
        self.answers().insert(id, answer);
        Wait {
            waiting: self,
            id,
            answered,
            arrivals: self.arrived.subscribe(),
        }
    }

    /// Hands an answer to who waits for it.
    pub(super) fn answer(&self, id: u64, answer: Result<Value, WireError>) {
        if let Some(waits) = self.answers().remove(&id) {
            // Who does not wait any more does not need it.
            let _ = waits.send(answer);
        }
    }

    /// Something has arrived, which need not be an answer.
    pub(super) fn arrive(&self) {
        self.arrived.send_replace(());
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
    arrivals: watch::Receiver<()>,
}

impl Wait<'_> {
    /// The answer. All requests share the connection, so whatever arrives over it shows that the server is at work.
    pub(super) async fn answer(mut self) -> Result<Value, WireError> {
        let limits = self.waiting.limits;
        let mut limit = limits.first;
        loop {
            let silence = sleep_until(Instant::now() + limit.time);
            tokio::select! {
                biased;
                answered = &mut self.answered => return answered.unwrap_or(Err(WireError::Closed)),
                Ok(()) = self.arrivals.changed() => limit = limits.between,
                () = silence => return Err(WireError::Silent(limit)),
            }
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.waiting.answers().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_ends_when_nothing_arrives_for_too_long() {
        let limits = PieceLimits::of_others(Duration::from_secs(10), Duration::from_secs(20));
        let waiting = Waiting::new(limits);
        let begun = Instant::now();
        assert_eq!(waiting.begin(1).answer().await, Err(WireError::Silent(limits.first)));
        assert_eq!(begun.elapsed().as_secs(), 10);
        let wait = waiting.begin(2);
        waiting.arrive();
        assert_eq!(wait.answer().await, Err(WireError::Silent(limits.between)));
        let wait = waiting.begin(3);
        waiting.answer(3, Ok(Value::from(7)));
        assert_eq!(wait.answer().await, Ok(Value::from(7)));
    }
}
