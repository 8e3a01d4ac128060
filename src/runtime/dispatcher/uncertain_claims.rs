//! Claims whose transactions have failed without an answer: the database may have stored them all the same.
//!
//! This process would not drive such a run, and no other process would take it over. So while the outcome of a claim is
//! unknown, the dispatcher looks for runs that this process holds and does not drive, and gives them back.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Dispatcher;
use crate::db::runs::LeaseHolder;
use crate::db::{self, DbError, DbResult, Tx};

/// The time after which a commit that has failed here cannot arrive at the database any more: Postgres ends sessions that
/// are idle in a transaction earlier.
const ARRIVAL: Duration = Duration::from_secs(5);

/// The claims of this process whose outcome is unknown.
#[derive(Debug, Default)]
pub(super) struct UncertainClaims(Mutex<Findings>);

#[derive(Debug, Default)]
struct Findings {
    /// The time of the last claim that failed, until it is known what became of all of them.
    failed_at: Option<Instant>,
    /// The claims of runs that the last look found not driven.
    undriven: Vec<LeaseHolder>,
}

impl UncertainClaims {
    /// Notes that a claim has failed with this error, if its outcome is unknown.
    pub(super) fn note(&self, error: &DbError) {
        if matches!(error, DbError::Unavailable(_)) {
            self.findings().failed_at = Some(Instant::now());
        }
    }

    /// Returns whether the outcome of a claim is unknown.
    pub(super) fn are_any(&self) -> bool {
        self.findings().failed_at.is_some()
    }

    /// Notes what a look that began at `began` has found. Returns the claims that the look before has found, too: a claim
    /// that is stored this moment is driven by the next look.
    fn found_twice(&self, began: Instant, undriven: Vec<LeaseHolder>) -> Vec<LeaseHolder> {
        let mut findings = self.findings();
        let has_arrived = |failed: Instant| failed + ARRIVAL <= began;
        if undriven.is_empty() && findings.failed_at.is_some_and(has_arrived) {
            findings.failed_at = None;
        }
        let before = std::mem::replace(&mut findings.undriven, undriven);
        let twice = findings.undriven.iter().filter(|holder| before.contains(holder));
        twice.copied().collect()
    }

    fn findings(&self) -> MutexGuard<'_, Findings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dispatcher {
    /// Notes that the admission of a run has failed with this error. If its outcome is unknown, the dispatch loop looks for
    /// the run.
    pub(in crate::runtime) fn admission_has_failed(&self, error: &DbError) {
        let were_any = self.uncertain_claims.are_any();
        self.uncertain_claims.note(error);
        // Later looks need no wakeup.
        if self.uncertain_claims.are_any() && !were_any {
            self.has_queued();
        }
    }

    /// Releases the runs that this process holds and does not drive, once two looks have found them.
    pub(super) async fn release_undriven(&self, tx: &mut Tx<'_>) -> DbResult<()> {
        let began = Instant::now();
        let mut undriven = db::runs::held_by(tx, self.core.id).await?;
        undriven.retain(|holder| !self.active().contains_key(&holder.run));
        for holder in self.uncertain_claims.found_twice(began, undriven) {
            db::runs::release(tx, holder.run, holder.worker, holder.fence).await?;
            tracing::info!(run = %holder.run, "gave back a run whose claim was stored without an answer");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::id::{RunId, WorkerId};

    fn holder() -> LeaseHolder {
        LeaseHolder {
            run: RunId::mint(),
            worker: WorkerId::mint(),
            fence: 1,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_claim_that_two_looks_find_not_driven_is_given_back() {
        let claims = UncertainClaims::default();
        let stored_this_moment = holder();
        let lost = holder();
        claims.note(&DbError::late());
        assert_eq!(claims.found_twice(Instant::now(), vec![stored_this_moment, lost]), []);
        assert_eq!(claims.found_twice(Instant::now(), vec![lost]), [lost]);
        // Under a later claim it would be another one.
        let later = LeaseHolder { fence: 2, ..lost };
        assert_eq!(claims.found_twice(Instant::now(), vec![later]), []);
    }

    #[tokio::test(start_paused = true)]
    async fn looks_go_on_while_a_commit_may_still_arrive() {
        let claims = UncertainClaims::default();
        claims.note(&DbError::Busy);
        assert!(!claims.are_any(), "nothing is stored then");
        claims.note(&DbError::late());
        let began = Instant::now();
        tokio::time::advance(ARRIVAL).await;
        // The look was on its way when the commit arrived.
        claims.found_twice(began, vec![]);
        assert!(claims.are_any());
        claims.found_twice(Instant::now(), vec![holder()]);
        assert!(claims.are_any());
        claims.found_twice(Instant::now(), vec![]);
        assert!(!claims.are_any());
    }
}
