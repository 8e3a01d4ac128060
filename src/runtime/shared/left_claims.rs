//! Left claims: claims of this process on jobs that it does not execute, because the database stored the claim without
//! an acknowledgement, or because the end of the job could not be stored.
//!
//! Without more, such a job would be executed when the lease of the claim expires. Leases are long, and the job may be
//! the one that notifies an agent. So the loop releases such claims. The loop makes all claims of this process, so a
//! claim without a job that this process executes is a left one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::db::DbError;
use crate::domain::id::JobId;
use crate::domain::job::ClaimedJob;
use crate::runtime::late_commits::is_likely;

/// The claims of this process on jobs.
#[derive(Debug, Default)]
pub(in crate::runtime) struct LeftClaims(Mutex<JobClaims>);

#[derive(Debug, Default)]
struct JobClaims {
    /// The jobs at work, each with the number of its claims: one that was rescheduled meanwhile may be claimed again.
    at_work: BTreeMap<JobId, usize>,
    /// The time of the last failure after which a claim may be left; none once all of them were given back.
    failed_at: Option<Instant>,
}

/// A look for claims that are left.
#[derive(Debug)]
pub(in crate::runtime) struct ClaimScan {
    began: Instant,
    /// The jobs at work.
    pub(in crate::runtime) at_work: Vec<JobId>,
}

impl LeftClaims {
    /// Notes that this process works on these jobs.
    pub(in crate::runtime) fn begin(&self, jobs: &[ClaimedJob]) {
        let mut claims = self.claims();
        for job in jobs {
            *claims.at_work.entry(job.id).or_default() += 1;
        }
    }

    /// Notes that this process has ended its work on a job.
    pub(in crate::runtime) fn end(&self, job: JobId) {
        let mut claims = self.claims();
        if let Some(count) = claims.at_work.get_mut(&job) {
            *count -= 1;
            if *count == 0 {
                claims.at_work.remove(&job);
            }
        }
    }

    /// Notes that a claim, or the end of one, has failed with this error. The claim may be left.
    pub(in crate::runtime) fn note(&self, error: &DbError) {
        // A claim whose end found the database busy is left, too.
        if error.may_be_committed() || matches!(error, DbError::Busy) {
            self.claims().failed_at = Some(Instant::now());
        }
    }

    /// Returns whether claims may be left.
    pub(in crate::runtime) fn may_be_any(&self) -> bool {
        self.claims().failed_at.is_some()
    }

    /// Begins a look, if claims may be left.
    pub(in crate::runtime) fn begin_look(&self) -> Option<ClaimScan> {
        let claims = self.claims();
        claims.failed_at?;
        Some(ClaimScan {
            began: Instant::now(),
            at_work: claims.at_work.keys().copied().collect(),
        })
    }

    /// Notes that the claims that a look has found are given back. Later looks are needed until no commit can arrive any more.
    pub(in crate::runtime) fn looked(&self, look: &ClaimScan) {
        let mut claims = self.claims();
        if claims.failed_at.is_some_and(|failed| !is_likely(failed, look.began)) {
            claims.failed_at = None;
        }
    }

    fn claims(&self) -> MutexGuard<'_, JobClaims> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::domain::job::JobKind;
    use crate::runtime::late_commits::ARRIVAL;

    fn job() -> ClaimedJob {
        ClaimedJob {
            id: JobId::mint(),
            kind: JobKind::PollRemote,
            key: Uuid::nil(),
            attempts: 1,
            fence: 1,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn looks_are_made_until_no_commit_can_arrive_any_more() {
        let claims = LeftClaims::default();
        claims.note(&DbError::Closed);
        assert!(claims.begin_look().is_none(), "this process stops");
        claims.note(&DbError::late());
        let early = claims.begin_look().expect("a look");
        tokio::time::advance(ARRIVAL).await;
        claims.looked(&early);
        assert!(claims.may_be_any(), "a commit may have arrived after the look");
        let last = claims.begin_look().expect("a look");
        claims.looked(&last);
        assert!(!claims.may_be_any());
        assert!(claims.begin_look().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_is_at_work_until_its_last_claim_has_ended() {
        let claims = LeftClaims::default();
        claims.note(&DbError::late());
        let one = job();
        let at_work = || claims.begin_look().expect("a look").at_work;
        claims.begin(std::slice::from_ref(&one));
        claims.begin(std::slice::from_ref(&one));
        claims.end(one.id);
        assert_eq!(at_work(), [one.id], "it was claimed again");
        claims.end(one.id);
        assert_eq!(at_work(), []);
    }
}
