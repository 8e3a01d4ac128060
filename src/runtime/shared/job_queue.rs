//! The state of the job queue in this process; see [`jobs`](crate::runtime::jobs).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};

use super::left_claims::LeftClaims;
use crate::db::retention::DuePosition;
use crate::domain::job::JobKind;

/// The limits of a kind of jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::runtime) struct JobLimits {
    /// The most tasks that run jobs of the kind in this process.
    pub(in crate::runtime) at_once: usize,
    /// The most jobs that one task claims and runs, one after the other.
    pub(in crate::runtime) batch: usize,
}

/// The state of the job queue in this process.
#[derive(Debug)]
pub(in crate::runtime) struct JobQueue {
    /// Wakes the loop.
    pub(in crate::runtime) wakeup: Notify,
    /// True when the loop is to look for facts because of which jobs are due.
    pub(in crate::runtime) discovers: AtomicBool,
    tasks: Mutex<KnownTasks>,
    pub(in crate::runtime) left_claims: LeftClaims,
    pub(in crate::runtime) left_by_sweep: SweepPositions,
    /// The states of the kinds, in the order of [`JobKind::ALL`].
    pub(in crate::runtime) kinds: Vec<KindState>,
}

/// The knowledge of this process about background tasks and work on other servers.
#[derive(Debug, Default)]
struct KnownTasks {
    /// True when there may be tasks whose outcome is not known, or work on other servers.
    may_be_any: bool,
    /// The number of times that one was begun in this process.
    begun: u64,
    /// The value of `begun` when the loop began to look for facts last.
    begun_before_look: u64,
}

/// The state of a kind.
#[derive(Debug)]
pub(in crate::runtime) struct KindState {
    pub(in crate::runtime) kind: JobKind,
    pub(in crate::runtime) limits: JobLimits,
    pub(in crate::runtime) slots: Arc<Semaphore>,
}

impl KindState {
    fn new(kind: JobKind, limits: JobLimits) -> Self {
        Self {
            kind,
            limits,
            slots: Arc::new(Semaphore::new(limits.at_once)),
        }
    }
}

impl JobQueue {
    /// Returns the queue at the start of the process. `limits` are those of the kinds.
    pub(in crate::runtime) fn new(limits: fn(JobKind) -> JobLimits) -> Self {
        let kinds = JobKind::ALL.iter().map(|kind| KindState::new(*kind, limits(*kind)));
        Self {
            wakeup: Notify::new(),
            discovers: AtomicBool::new(true),
            tasks: Mutex::default(),
            left_claims: LeftClaims::default(),
            left_by_sweep: SweepPositions::default(),
            kinds: kinds.collect(),
        }
    }

    /// Wakes the loop, so that it looks for due jobs.
    pub(in crate::runtime) fn wake(&self) {
        self.wakeup.notify_one();
    }

    /// Wakes the loop, so that it also looks for facts because of which jobs are due.
    pub(in crate::runtime) fn discover(&self) {
        self.discovers.store(true, Ordering::Release);
        self.wake();
    }

    /// Notes that there is a background task whose outcome is not known, or work on another server.
    pub(in crate::runtime) fn note_task(&self) {
        let mut tasks = self.tasks();
        tasks.may_be_any = true;
        tasks.begun += 1;
    }

    /// Wakes the loop after the end of a run, if there may be an agent to notify, or work on another server to end. `of_task`
    /// is true for the run of a background task.
    pub(in crate::runtime) fn run_ended(&self, of_task: bool) {
        if of_task || self.tasks().may_be_any {
            self.discover();
        }
    }

    /// Begins a look for facts. Returns the number of tasks that had begun before the look before it.
    pub(in crate::runtime) fn begin_look(&self) -> u64 {
        let mut tasks = self.tasks();
        let begun = tasks.begun;
        std::mem::replace(&mut tasks.begun_before_look, begun)
    }

    /// Stores whether there may be tasks, as a look has found them. What is known stays during the look, which may not read
    /// the end of a run that comes meanwhile. `known` tasks are those that the look had to find; those that began later may not
    /// have been stored yet.
    pub(in crate::runtime) fn looked(&self, known: u64, any: bool) {
        let mut tasks = self.tasks();
        tasks.may_be_any = any || tasks.begun != known;
    }

    fn tasks(&self) -> MutexGuard<'_, KnownTasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no job is at work in this process.
    pub(in crate::runtime) async fn wait_until_idle(&self) {
        for state in &self.kinds {
            let all = u32::try_from(state.limits.at_once).unwrap_or(u32::MAX);
            drop(state.slots.acquire_many(all).await);
        }
    }
}

/// The places at which the last sweep of this process has left the threads, since it had passed over too many of them. So
/// however many threads cannot be swept, those behind them are.
#[derive(Debug, Default)]
pub(in crate::runtime) struct SweepPositions {
    pub(in crate::runtime) expired: Mutex<Option<DuePosition>>,
    pub(in crate::runtime) unpruned: Mutex<Option<DuePosition>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_run_during_a_look_wakes_the_loop() {
        let queue = JobQueue::new(|_| JobLimits { at_once: 1, batch: 1 });
        let is_woken = |queue: &JobQueue| queue.discovers.swap(false, Ordering::AcqRel);
        assert!(is_woken(&queue), "it looks at its start");
        queue.run_ended(false);
        assert!(!is_woken(&queue), "there are no tasks");
        queue.note_task();
        for _ in 0..3 {
            let known = queue.begin_look();
            queue.run_ended(false);
            assert!(is_woken(&queue), "the look may have read before");
            queue.looked(known, true);
        }
        let known = queue.begin_look();
        queue.looked(known, false);
        queue.run_ended(false);
        assert!(!is_woken(&queue), "they are over");
        queue.note_task();
        let early = queue.begin_look();
        queue.looked(early, false);
        queue.run_ended(false);
        assert!(is_woken(&queue), "the task may be stored after the look");
        let late = queue.begin_look();
        queue.looked(late, false);
        queue.run_ended(false);
        assert!(!is_woken(&queue), "it is over, too");
    }
}
