//! Turns of tenants and users in the queue: the choice of the run that begins next.
//!
//! The tenant with the fewest runs at work is next; among those with equally many, the one whose last turn is the
//! longest ago. Within a tenant the highest priority is next, then the user by the same two rules, then the oldest run.
//! So a tenant that floods the queue waits for its own runs, and the others do not wait for them.
//!
//! The last turns are remembered by each process for itself. At most [`MOST_PLACES`] places in the queue are looked at
//! for one run; if there are more, the next look continues behind them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::db::runs::Claim;
use crate::db::{self, DbResult, Tx};
use crate::domain::account::{Account, QuotaLevel, RunQueue};
use crate::domain::id::WorkerId;
use crate::domain::quota::Quotas;
use crate::domain::time::Timestamp;

/// The most places in the queue that are looked at for one run.
const MOST_PLACES: usize = 256;

/// The most tenants and users whose last turns are remembered. Beyond it, all are forgotten.
const MOST_REMEMBERED: usize = 16_384;

/// The turns that this process has given.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<LastTurns>);

/// The last turns.
#[derive(Debug, Default)]
struct LastTurns {
    /// The number of turns so far.
    count: u64,
    /// The number of the last turn of each tenant and user.
    last: HashMap<String, u64>,
    /// The place after which the next look begins.
    after: String,
}

/// The numbers of running runs, by tenant, user and key.
#[derive(Debug, Default)]
struct RunningCounts(HashMap<String, u64>);

impl RunningCounts {
    fn new(counted: &[(RunQueue, u64)]) -> Self {
        let mut sums: HashMap<String, u64> = HashMap::new();
        for (queue, count) in counted {
            for subject in QuotaLevel::ALL
                .into_iter()
                .filter_map(|level| queue.account.subject(level))
            {
                *sums.entry(subject.to_owned()).or_default() += count;
            }
        }
        Self(sums)
    }

    fn of(&self, subject: &str) -> u64 {
        self.0.get(subject).copied().unwrap_or(0)
    }

    /// Returns whether the quotas of an account allow one more run.
    fn allows(&self, quotas: &Quotas, account: &Account) -> bool {
        let mut rules = quotas.rules_for(account);
        rules.all(|applied| {
            let limit = applied.rule.runs_at_work;
            limit.is_none_or(|limit| self.of(applied.subject) < limit)
        })
    }
}

impl LastTurns {
    fn of(&self, subject: &str) -> u64 {
        self.last.get(subject).copied().unwrap_or(0)
    }

    /// Returns the places whose runs may begin, in the order of their turns.
    fn order(&self, mut waiting: Vec<RunQueue>, at_work: &RunningCounts, quotas: &Quotas) -> Vec<RunQueue> {
        waiting.retain(|queue| at_work.allows(quotas, &queue.account));
        waiting.sort_by_cached_key(|queue| {
            let tenant = queue.account.subject(QuotaLevel::Tenant).unwrap_or_default();
            let user = queue.account.subject(QuotaLevel::User).unwrap_or_default();
            let by_tenant = (at_work.of(tenant), self.of(tenant), tenant.to_owned());
            let by_user = (at_work.of(user), self.of(user), queue.text());
            (by_tenant, Reverse(queue.priority), by_user)
        });
        waiting
    }

    /// Records that a run of this place began.
    fn record(&mut self, account: &Account) {
        if self.last.len() >= MOST_REMEMBERED {
            self.last.clear();
        }
        self.count += 1;
        for level in [QuotaLevel::Tenant, QuotaLevel::User] {
            if let Some(subject) = account.subject(level) {
                self.last.insert(subject.to_owned(), self.count);
            }
        }
    }
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, LastTurns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the places with runs that wait.
    async fn find_waiting(&self, tx: &mut Tx<'_>) -> DbResult<Vec<RunQueue>> {
        let most = i64::try_from(MOST_PLACES).unwrap_or(i64::MAX);
        let after = self.lock().after.clone();
        let mut waiting = db::runs::waiting_queues(tx, &after, most).await?;
        if !after.is_empty() && waiting.len() < MOST_PLACES {
            let first = db::runs::waiting_queues(tx, "", most).await?;
            let room = MOST_PLACES - waiting.len();
            waiting.extend(first.into_iter().take_while(|queue| queue.text() <= after).take(room));
        }
        let is_full = waiting.len() == MOST_PLACES;
        self.lock().after = waiting
            .last()
            .filter(|_| is_full)
            .map(RunQueue::text)
            .unwrap_or_default();
        Ok(waiting)
    }

    /// Claims the next run that is due, for the worker of this process.
    pub(super) async fn claim_next(
        &self,
        tx: &mut Tx<'_>,
        quotas: &Quotas,
        worker: WorkerId,
        now: Timestamp,
    ) -> DbResult<QueueOutcome> {
        let waiting = self.find_waiting(tx).await?;
        if waiting.is_empty() {
            return Ok(QueueOutcome::Empty);
        }
        let is_limited = |queue: &RunQueue| {
            let mut rules = quotas.rules_for(&queue.account);
            rules.any(|applied| applied.rule.runs_at_work.is_some())
        };
        if waiting.iter().any(is_limited) {
            db::runs::lock_claims(tx).await?;
        }
        // A single place without a limit is next whatever is at work.
        let at_work = match waiting.as_slice() {
            [only] if !is_limited(only) => RunningCounts::default(),
            _ => RunningCounts::new(&db::runs::at_work_by_queue(tx).await?),
        };
        let order = self.lock().order(waiting, &at_work, quotas);
        for queue in order {
            let mut passed = None;
            while let Some(run) = db::runs::next_in_queue(tx, &queue, now)
                .await?
                .filter(|run| passed != Some(*run))
            {
                if let Some(claim) = db::runs::claim(tx, run, worker, now).await? {
                    self.lock().record(&queue.account);
                    return Ok(QueueOutcome::Claimed(Box::new(claim)));
                }
                // The run could not be read and was ended, or its thread is busy again.
                passed = Some(run);
            }
        }
        Ok(QueueOutcome::Waiting(db::runs::next_due_at(tx).await?))
    }
}

/// The result of a look at the queue.
pub(super) enum QueueOutcome {
    /// No run is queued, due or not.
    Empty,
    /// Runs are queued, and none could be claimed. The next one whose thread is free for it is due at this time, which may have
    /// passed.
    Waiting(Option<Timestamp>),
    /// This run was claimed.
    Claimed(Box<Claim>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::identity::{Credential, Identity, Tenant, UserId};
    use crate::domain::quota::QuotaRule;

    fn place(tenant: &str, user: &str, priority: u8) -> RunQueue {
        let identity = Identity {
            tenant: Tenant::stored(tenant.to_owned()),
            user: UserId::stored(user.to_owned()),
            credential: Credential::Hook,
            ..Identity::unauthenticated()
        };
        RunQueue::new(Account::of(&identity), priority)
    }

    /// Returns the tenants, users and priorities of the turns that are given while all runs end at once.
    fn play(waiting: &[RunQueue], turns: usize) -> Vec<RunQueue> {
        let mut last = LastTurns::default();
        let quotas = Quotas::default();
        let mut given = vec![];
        for _ in 0..turns {
            let next = last
                .order(waiting.to_vec(), &RunningCounts::default(), &quotas)
                .remove(0);
            last.record(&next.account);
            given.push(next);
        }
        given
    }

    #[test]
    fn tenants_take_turns_whatever_waits_behind_them() {
        let acme = place("acme", "ann", 0);
        let other = place("other", "zoe", 0);
        let given = play(&[acme.clone(), other.clone()], 4);
        assert_eq!(given, [acme.clone(), other.clone(), acme, other]);
    }

    #[test]
    fn the_tenant_with_the_fewest_runs_at_work_is_next() {
        let acme = place("acme", "ann", 9);
        let other = place("other", "zoe", 0);
        let at_work = RunningCounts::new(&[(place("acme", "bob", 0), 2), (other.clone(), 1)]);
        let order = LastTurns::default().order(vec![acme.clone(), other.clone()], &at_work, &Quotas::default());
        assert_eq!(order, [other, acme]);
    }

    #[test]
    fn a_priority_counts_within_the_tenant_only() {
        let urgent = place("acme", "ann", 9);
        let usual = place("acme", "bob", 0);
        let other = place("other", "zoe", 0);
        let given = play(&[usual, urgent.clone(), other.clone()], 4);
        assert_eq!(given, [urgent.clone(), other.clone(), urgent, other]);
    }

    #[test]
    fn users_of_a_tenant_take_turns() {
        let ann = place("acme", "ann", 0);
        let bob = place("acme", "bob", 0);
        let given = play(&[ann.clone(), bob.clone()], 4);
        assert_eq!(given.iter().filter(|turn| **turn == ann).count(), 2);
        assert_ne!(given[0], given[1]);
        assert_ne!(given[2], given[3]);
    }

    #[test]
    fn an_account_with_as_many_runs_as_allowed_has_no_turn() {
        let quotas = Quotas {
            per_user: QuotaRule {
                runs_at_work: Some(1),
                ..QuotaRule::default()
            },
            ..Quotas::default()
        };
        let ann = place("acme", "ann", 0);
        let bob = place("acme", "bob", 0);
        let at_work = RunningCounts::new(&[(ann.clone(), 1)]);
        let order = LastTurns::default().order(vec![ann, bob.clone()], &at_work, &quotas);
        assert_eq!(order, [bob]);
    }

    #[test]
    fn the_memory_for_turns_is_bounded() {
        let mut last = LastTurns::default();
        for number in 0..MOST_REMEMBERED {
            last.record(&place(&format!("t{number}"), "u", 0).account);
        }
        assert!(last.last.len() <= MOST_REMEMBERED);
    }
}
