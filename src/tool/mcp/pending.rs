//! The requests of a connection that have not been answered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::connection::ConnectionError;
use crate::model::pieces::PieceLimits;

type Answers = HashMap<u64, oneshot::Sender<Result<Value, ConnectionError>>>;

/// The pending requests, by their ids.
pub(super) struct PendingRequests {
    answers: Mutex<Answers>,
    /// Notified by everything that arrives.
    arrived: watch::Sender<()>,
    /// The time limits for arriving data.
    limits: PieceLimits,
}

impl PendingRequests {
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

    /// Registers request `id`.
    pub(super) fn register(&self, id: u64) -> PendingRequest<'_> {
        let (answer, answered) = oneshot::channel();
        self.answers().insert(id, answer);
        PendingRequest {
            requests: self,
            id,
            answered,
            arrivals: self.arrived.subscribe(),
        }
    }

    /// Passes an answer to the request that waits for it.
    pub(super) fn answer(&self, id: u64, answer: Result<Value, ConnectionError>) {
        if let Some(sender) = self.answers().remove(&id) {
            // The request may have been dropped meanwhile.
            let _ = sender.send(answer);
        }
    }

    /// Reports that data has arrived, which need not be an answer.
    pub(super) fn data_arrived(&self) {
        self.arrived.send_replace(());
    }

    /// Fails all pending requests.
    pub(super) fn fail_all(&self) {
        self.answers().clear();
    }
}

/// A pending request; dropping it removes it.
pub(super) struct PendingRequest<'a> {
    requests: &'a PendingRequests,
    id: u64,
    answered: oneshot::Receiver<Result<Value, ConnectionError>>,
    arrivals: watch::Receiver<()>,
}

impl PendingRequest<'_> {
    /// Waits for the answer. All requests share the connection, so any data shows that the server is working.
    pub(super) async fn answer(mut self) -> Result<Value, ConnectionError> {
        let limits = self.requests.limits;
        let mut limit = limits.first;
        loop {
            let silence = sleep_until(Instant::now() + limit.time);
            tokio::select! {
                biased;
                answered = &mut self.answered => return answered.unwrap_or(Err(ConnectionError::Closed)),
                Ok(()) = self.arrivals.changed() => limit = limits.between,
                () = silence => return Err(ConnectionError::TimedOut(limit)),
            }
        }
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.requests.answers().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_ends_when_nothing_arrives_for_too_long() {
        let limits = PieceLimits::of_others(Duration::from_secs(10), Duration::from_secs(20));
        let pending = PendingRequests::new(limits);
        let begun = Instant::now();
        assert_eq!(
            pending.register(1).answer().await,
            Err(ConnectionError::TimedOut(limits.first))
        );
        assert_eq!(begun.elapsed().as_secs(), 10);
        let request = pending.register(2);
        pending.data_arrived();
        assert_eq!(request.answer().await, Err(ConnectionError::TimedOut(limits.between)));
        let request = pending.register(3);
        pending.answer(3, Ok(Value::from(7)));
        assert_eq!(request.answer().await, Ok(Value::from(7)));
    }
}
