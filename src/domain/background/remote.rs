//! Background tasks on other servers: their stored data, and the intervals of polling.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{TaskSnapshot, TaskStatus};
use crate::domain::backoff::Backoff;
use crate::domain::time::Timestamp;

/// The intervals at which tasks on other servers are polled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PollPolicy {
    /// The pauses. The first one follows the start of a task or a change of its status; each poll without a change counts
    /// as a failure.
    pub backoff: Backoff,
    /// The time after which a task on an unreachable server fails.
    pub patience: Duration,
}

impl Default for PollPolicy {
    fn default() -> Self {
        Self {
            backoff: Backoff::doubling(Duration::from_secs(1), Duration::from_secs(30)),
            patience: Duration::from_secs(86_400),
        }
    }
}

impl PollPolicy {
    /// Returns the pause after this number of polls without a change. It is spread, so that the tasks of one server
    /// are not polled at the same time.
    pub fn pause(&self, looks: u32, task: Uuid) -> Duration {
        self.backoff.spread_pause(looks.saturating_add(1), task)
    }
}

/// The maximum number of answered interrupts that are stored with a task.
const MAX_ANSWERED: usize = 16;
/// The maximum size of a stored question, in bytes of JSON.
const MAX_QUESTION_BYTES: usize = 16 * 1024;

/// An answered interrupt of a task on another server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// The question.
    pub question: Value,
    /// The answer.
    pub answer: Value,
    /// The run that asked.
    pub asked_by: String,
    /// The run that continued with the answer.
    pub resumed_by: String,
    /// The time when the question was first seen.
    pub asked_at: Timestamp,
    /// The time of the answer.
    pub at: Timestamp,
}

/// The stored data of a task on another server.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RemoteWork {
    /// The last snapshot; none while the task is being started.
    pub seen: Option<TaskSnapshot>,
    /// True if the task is to be cancelled there, or was. The next message to it takes that back; the late answer to an
    /// earlier one does not.
    pub cancel_requested: bool,
    /// The number of polls since the last change.
    pub attempts: u32,
    /// The time since which the server is unreachable.
    pub lost_since: Option<Timestamp>,
    /// The time of the next poll, if any. Only written: the job has the effective one.
    pub due_at: Option<Timestamp>,
    /// A number that grows with each change. A snapshot taken at an older version is discarded.
    pub version: i64,
}

impl RemoteWork {
    /// Returns whether the snapshot equals the last one.
    pub fn is_unchanged(&self, seen: &TaskSnapshot) -> bool {
        let known = self.seen.as_ref().map(|known| TaskSnapshot {
            since: None,
            answered: vec![],
            ..known.clone()
        });
        known.as_ref() == Some(seen) && self.lost_since.is_none()
    }

    /// Returns the data after an interrupt was answered and a run continues with the answer.
    #[must_use]
    pub fn with_answer(&self, mut answered: Answered) -> Self {
        let mut all = self.seen.as_ref().map(|seen| seen.answered.clone()).unwrap_or_default();
        if answered.question.to_string().len() > MAX_QUESTION_BYTES {
            answered.question =
                json!({"id": answered.question["id"], "value": "(The question was too large to be kept.)"});
        }
        let run = answered.resumed_by.clone();
        let at = answered.at;
        all.push(answered);
        all.drain(..all.len().saturating_sub(MAX_ANSWERED));
        let seen = TaskSnapshot {
            since: Some(at),
            answered: all,
            past: self.seen.as_ref().map(TaskSnapshot::past_of_next).unwrap_or_default(),
            ..TaskSnapshot::of(run, TaskStatus::Running)
        };
        Self {
            seen: Some(seen),
            due_at: Some(at),
            ..Self::default()
        }
    }

    /// Returns the data after a poll, which has the result `seen`.
    #[must_use]
    pub fn after(&self, seen: Result<TaskSnapshot, String>, task: Uuid, now: Timestamp, polling: &PollPolicy) -> Self {
        match seen {
            Ok(seen) => {
                let before = self.seen.as_ref().map(|before| (&before.run, before.status));
                let is_same = before == Some((&seen.run, seen.status));
                let count = if is_same { self.attempts + 1 } else { 0 };
                // A waiting task is polled further, unless it was cancelled.
                let since = self
                    .seen
                    .as_ref()
                    .filter(|_| is_same)
                    .and_then(|before| before.since)
                    .or(Some(now));
                let answered = self
                    .seen
                    .as_ref()
                    .map(|before| before.answered.clone())
                    .unwrap_or_default();
                let seen = TaskSnapshot {
                    since,
                    answered,
                    ..seen
                };
                let is_over = seen.status.is_final() || (self.cancel_requested && seen.status == TaskStatus::Waiting);
                let goes_on = !is_over;
                Self {
                    cancel_requested: self.cancel_requested,
                    attempts: count,
                    lost_since: None,
                    due_at: goes_on.then(|| now.plus(polling.pause(count, task))),
                    seen: Some(seen),
                    version: self.version,
                }
            }
            Err(reason) => {
                let since = self.lost_since.unwrap_or(now);
                let count = self.attempts + 1;
                let mut work = Self {
                    attempts: count,
                    lost_since: Some(since),
                    ..self.clone()
                };
                if let Some(seen) = &mut work.seen {
                    seen.missed = false;
                }
                if now.since(since) >= polling.patience {
                    let run = self.seen.as_ref().map(|seen| seen.run.clone()).unwrap_or_default();
                    let error = format!(
                        "{reason}, for {} seconds; its outcome is unknown",
                        polling.patience.as_secs()
                    );
                    work.seen = Some(TaskSnapshot {
                        error: Some(error),
                        past: self.seen.as_ref().map(|seen| seen.past.clone()).unwrap_or_default(),
                        ..TaskSnapshot::of(run, TaskStatus::Error)
                    });
                    work.due_at = None;
                } else {
                    work.due_at = Some(now.plus(polling.pause(count, task)));
                }
                work
            }
        }
    }

    /// Returns the data after a poll that has not found the task for the first time. For a moment, something before the other
    /// server may have answered in its place, so until the next poll it counts as unreachable; `reason` says so.
    #[must_use]
    pub fn after_missed(&self, reason: String, task: Uuid, now: Timestamp, polling: &PollPolicy) -> Self {
        let mut work = self.after(Err(reason), task, now, polling);
        if let Some(seen) = work.seen.as_mut().filter(|_| work.due_at.is_some()) {
            seen.missed = true;
        }
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLLING: PollPolicy = PollPolicy {
        backoff: Backoff::doubling(Duration::from_secs(1), Duration::from_secs(8)),
        patience: Duration::from_secs(100),
    };
    const TASK: Uuid = Uuid::from_u128(128);

    fn second(number: i64) -> Timestamp {
        Timestamp(number * 1_000_000)
    }

    fn after(work: &RemoteWork, seen: Result<TaskSnapshot, String>, at: i64) -> RemoteWork {
        work.after(seen, TASK, second(at), &POLLING)
    }

    #[test]
    fn polls_become_rarer_while_nothing_changes() {
        let running = || Ok(TaskSnapshot::of("r1", TaskStatus::Running));
        let mut work = after(&RemoteWork::default(), running(), 0);
        let mut pauses = vec![];
        for at in 1..=5 {
            work = after(&work, running(), at);
            pauses.push(work.due_at.expect("it is looked at again").since(second(at)).as_secs());
        }
        assert_eq!(pauses, [2, 4, 8, 8, 8]);
        let other = after(&work, Ok(TaskSnapshot::of("r2", TaskStatus::Running)), 9);
        assert_eq!(other.attempts, 0);
        assert_eq!(other.due_at, Some(second(10)));
        let done = after(&other, Ok(TaskSnapshot::of("r2", TaskStatus::Success)), 10);
        assert_eq!(done.due_at, None);
        assert!(!done.cancel_requested);
    }

    #[test]
    fn a_waiting_task_is_polled_until_it_is_cancelled() {
        let waits = || Ok(TaskSnapshot::of("r1", TaskStatus::Waiting));
        let work = after(&RemoteWork::default(), waits(), 0);
        assert!(work.due_at.is_some());
        let unwanted = after(
            &RemoteWork {
                cancel_requested: true,
                ..work
            },
            waits(),
            1,
        );
        assert_eq!(unwanted.due_at, None);
        assert!(unwanted.cancel_requested, "a late answer does not go on with it");
    }

    #[test]
    fn a_task_on_a_server_that_is_unreachable_for_too_long_fails() {
        let lost = || Err("it could not be reached".to_owned());
        let work = after(
            &RemoteWork::default(),
            Ok(TaskSnapshot::of("r1", TaskStatus::Running)),
            0,
        );
        let work = after(&work, lost(), 10);
        assert_eq!(work.lost_since, Some(second(10)));
        assert_eq!(work.seen.as_ref().map(|seen| seen.status), Some(TaskStatus::Running));
        let back = after(&work, Ok(TaskSnapshot::of("r1", TaskStatus::Running)), 50);
        assert_eq!(back.lost_since, None);
        let gone = after(&after(&back, lost(), 60), lost(), 160);
        let seen = gone.seen.expect("an outcome");
        assert_eq!(seen.status, TaskStatus::Error);
        assert_eq!(seen.run.as_str(), "r1");
        assert_eq!(gone.due_at, None);
        assert!(seen.error.is_some_and(|error| error.contains("for 100 seconds")));
    }

    #[test]
    fn a_task_is_missed_until_another_poll_has_a_result() {
        let missed = |work: &RemoteWork, at: i64| work.after_missed("not there".to_owned(), TASK, second(at), &POLLING);
        let is_missed = |work: &RemoteWork| work.seen.as_ref().is_some_and(|seen| seen.missed);
        let running = || Ok(TaskSnapshot::of("r1", TaskStatus::Running));
        let work = after(&RemoteWork::default(), running(), 0);
        let unreachable = after(&work, Err("it could not be reached".to_owned()), 1);
        assert!(!is_missed(&unreachable));
        let once = missed(&unreachable, 2);
        assert!(is_missed(&once));
        assert!(!once.is_unchanged(&TaskSnapshot::of("r1", TaskStatus::Running)));
        assert!(!is_missed(&after(&once, running(), 3)));
        assert!(!is_missed(&after(&once, Err("it could not be reached".to_owned()), 3)));
        let over = missed(&once, 101);
        assert_eq!(over.due_at, None, "it was out of reach for too long");
        assert!(!is_missed(&over));
    }
}
