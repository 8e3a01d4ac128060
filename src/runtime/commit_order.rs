//! The order in which the commits of one run are stored.
//!
//! Agents of a run that work side by side take the numbers of their events from one sequence, and Postgres may finish
//! the later of two commits first. Readers in other processes take everything below the highest number that they find.
//! So each commit locks the row of the run before the next commit may ask for that lock.

use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;

/// The line in which the commits of a run stand.
#[derive(Default)]
pub(super) struct CommitOrder(Mutex<Option<oneshot::Receiver<()>>>);

/// The place of a commit in the line. Dropping it lets the next one go ahead.
pub(super) struct Turn {
    before: Option<oneshot::Receiver<()>>,
    _next: oneshot::Sender<()>,
}

impl CommitOrder {
    /// The next place.
    pub(super) fn next_turn(&self) -> Turn {
        let (next, after) = oneshot::channel();
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(after);
        Turn { before, _next: next }
    }
}

impl Turn {
    /// Waits until all before are stored, or hold what keeps others from being stored first, or gave up.
    pub(super) async fn wait(&mut self) {
        if let Some(before) = &mut self.before {
            // Nothing is ever sent: the other end is dropped.
            let _ = before.await;
            self.before = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn a_turn_comes_when_the_one_before_is_over_however_that_happens() {
        let turns = CommitOrder::default();
        let mut first = turns.next_turn();
        let mut second = turns.next_turn();
        let mut third = turns.next_turn();
        assert!(first.wait().now_or_never().is_some());
        assert!(second.wait().now_or_never().is_none());
        drop(first);
        assert!(second.wait().now_or_never().is_some() && third.wait().now_or_never().is_none());
        drop(second);
        assert!(third.wait().now_or_never().is_some() && third.wait().now_or_never().is_some());
    }
}
