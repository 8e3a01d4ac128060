//! Claims that the database has stored although this process was not told so.
//!
//! This process would not drive such a run, and no other process would take it over. So the dispatch loop looks for runs
//! that this process holds and does not drive, and gives them back: often for a while after a claim without an answer, as for
//! other [late commits](crate::runtime::late_commits), and else from time to time.
//!
//! A run whose claim is stored this moment is not driven yet either. So a run is given back when two looks have found it and
//! all admissions that were in progress at the first look have ended before the second. The dispatch loop itself claims
//! runs only between two looks.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Dispatcher;
use crate::db::runs::LeaseHolder;
use crate::db::{self, DbError, DbResult, Tx};
use crate::runtime::late_commits;

/// The claims of this process that may be stored without an answer.
#[derive(Debug, Default)]
pub(in crate::runtime) struct UncertainClaims(Mutex<Findings>);

#[derive(Debug, Default)]
struct Findings {
    /// The time of the last claim without an answer, while looks are frequent because of it.
    failed_at: Option<Instant>,
    /// The time of the last look.
    looked_at: Option<Instant>,
    /// The claims of runs that were found not driven.
    undriven: Vec<LeaseHolder>,
    /// The number of the first admission that cannot have stored these claims, since it began later.
    first_later: u64,
    /// The number of the next admission.
    next: u64,
    /// The numbers of the admissions in progress.
    in_progress: BTreeSet<u64>,
}

/// An admission that may claim a run. It has ended when this is dropped.
pub(in crate::runtime) struct AdmissionInProgress {
    claims: Arc<UncertainClaims>,
    number: u64,
}

impl Drop for AdmissionInProgress {
    fn drop(&mut self) {
        self.claims.findings().in_progress.remove(&self.number);
    }
}

/// A look for runs that are not driven.
struct Look {
    began: Instant,
    /// True if no admission is in progress that may drive a run of the last look.
    is_certain: bool,
}

impl UncertainClaims {
    /// Notes that an admission begins. It ends after the run that it claims is registered as at work.
    pub(in crate::runtime) fn begin_admission(self: &Arc<Self>) -> AdmissionInProgress {
        let mut findings = self.findings();
        let number = findings.next;
        findings.next += 1;
        findings.in_progress.insert(number);
        AdmissionInProgress {
            claims: Arc::clone(self),
            number,
        }
    }

    /// Notes that a claim has failed with this error, if it may be stored all the same.
    pub(super) fn note(&self, error: &DbError) {
        if error.may_be_committed() {
            self.findings().failed_at = Some(Instant::now());
        }
    }

    /// Returns whether looks are to be frequent.
    pub(super) fn are_any(&self) -> bool {
        let findings = self.findings();
        findings.failed_at.is_some() || !findings.undriven.is_empty()
    }

    /// Returns whether a look is due; `longest` is the pause between looks without a cause.
    fn is_look_due(&self, longest: Duration) -> bool {
        let is_long_ago = |at: Instant| at.elapsed() >= longest;
        self.are_any() || self.findings().looked_at.is_none_or(is_long_ago)
    }

    /// Begins a look. To be called before the runs are read.
    fn begin_look(&self) -> Look {
        let findings = self.findings();
        let first = findings.in_progress.first();
        Look {
            began: Instant::now(),
            is_certain: first.is_none_or(|first| *first >= findings.first_later),
        }
    }

    /// Notes what a look has found. Returns the claims that are to be given back.
    fn found(&self, look: &Look, undriven: Vec<LeaseHolder>) -> Vec<LeaseHolder> {
        let mut findings = self.findings();
        findings.looked_at = Some(look.began);
        if !look.is_certain {
            return vec![];
        }
        let has_arrived = |failed: Instant| !late_commits::is_likely(failed, look.began);
        if undriven.is_empty() && findings.failed_at.is_some_and(has_arrived) {
            findings.failed_at = None;
        }
        findings.first_later = findings.next;
        // The claims stay noted, since the transaction that gives them back may fail.
        let before = std::mem::replace(&mut findings.undriven, undriven);
        let twice = findings.undriven.iter().filter(|holder| before.contains(holder));
        twice.copied().collect()
    }

    fn findings(&self) -> MutexGuard<'_, Findings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dispatcher {
    /// Notes that the admission of a run has failed with this error. If the run may be stored all the same, the dispatch
    /// loop looks for it.
    pub(in crate::runtime) fn admission_has_failed(&self, error: &DbError) {
        let were_any = self.uncertain_claims.are_any();
        self.uncertain_claims.note(error);
        // Later looks need no wakeup.
        if self.uncertain_claims.are_any() && !were_any {
            self.wake_for_queued();
        }
    }

    /// If a look is due, releases the runs that this process holds and does not drive.
    pub(super) async fn release_undriven(&self, tx: &mut Tx<'_>) -> DbResult<()> {
        if !self.uncertain_claims.is_look_due(self.core.longest_sleep()) {
            return Ok(());
        }
        let look = self.uncertain_claims.begin_look();
        let mut undriven = db::runs::held_by(tx, self.core.id).await?;
        undriven.retain(|holder| !self.active.has(holder.run));
        for holder in self.uncertain_claims.found(&look, undriven) {
            db::runs::release(tx, holder.run, holder.worker, holder.fence).await?;
            tracing::info!(run = %holder.run, "released a run whose claim was stored without an answer");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::id::{RunId, ThreadId, WorkerId};
    use crate::runtime::late_commits::ARRIVAL;

    const LONGEST: Duration = Duration::from_secs(60);

    fn holder() -> LeaseHolder {
        LeaseHolder {
            thread: ThreadId::mint(),
            run: RunId::mint(),
            worker: WorkerId::mint(),
            fence: 1,
        }
    }

    /// Looks for runs, and returns those that are to be given back.
    fn look(claims: &UncertainClaims, undriven: Vec<LeaseHolder>) -> Vec<LeaseHolder> {
        let look = claims.begin_look();
        claims.found(&look, undriven)
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_claim_that_two_looks_find_not_driven_is_given_back() {
        let claims = UncertainClaims::default();
        let stored_this_moment = holder();
        let lost = holder();
        assert_eq!(look(&claims, vec![stored_this_moment, lost]), []);
        assert_eq!(look(&claims, vec![lost]), [lost]);
        // The transaction may have failed.
        assert_eq!(look(&claims, vec![lost]), [lost]);
        // Under a later claim it would be another one.
        let later = LeaseHolder { fence: 2, ..lost };
        assert_eq!(look(&claims, vec![later]), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_is_not_given_back_while_its_admission_may_be_in_progress() {
        let claims = Arc::new(UncertainClaims::default());
        let admission = claims.begin_admission();
        let stored = holder();
        assert_eq!(look(&claims, vec![stored]), []);
        assert_eq!(look(&claims, vec![stored]), [], "the answer may be on its way");
        // The admission ends while a look reads the runs, and drives its run.
        let reading = claims.begin_look();
        let later = claims.begin_admission();
        drop(admission);
        assert_eq!(claims.found(&reading, vec![stored]), []);
        assert_eq!(
            look(&claims, vec![stored]),
            [stored],
            "the later one has stored another claim"
        );
        drop(later);
    }

    #[tokio::test(start_paused = true)]
    async fn looks_are_frequent_while_a_commit_may_still_arrive() {
        let claims = UncertainClaims::default();
        claims.note(&DbError::Busy);
        assert!(!claims.are_any(), "nothing is stored then");
        claims.note(&DbError::late());
        let on_its_way = claims.begin_look();
        tokio::time::advance(ARRIVAL).await;
        claims.found(&on_its_way, vec![]);
        assert!(claims.are_any(), "the commit may have arrived after the look");
        look(&claims, vec![holder()]);
        assert!(claims.are_any());
        look(&claims, vec![]);
        assert!(!claims.are_any());
    }

    #[tokio::test(start_paused = true)]
    async fn a_commit_that_arrives_late_is_found_too() {
        let claims = UncertainClaims::default();
        assert!(claims.is_look_due(LONGEST));
        look(&claims, vec![]);
        assert!(!claims.is_look_due(LONGEST));
        tokio::time::advance(LONGEST).await;
        assert!(claims.is_look_due(LONGEST));
        look(&claims, vec![holder()]);
        assert!(claims.is_look_due(LONGEST), "a second look decides");
        look(&claims, vec![]);
        assert!(!claims.is_look_due(LONGEST));
    }
}
