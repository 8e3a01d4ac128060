//! Background tasks that another server does: what is known of them here, and when they are looked at.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{TaskSnapshot, TaskStatus};
use crate::domain::backoff::{Backoff, spread};
use crate::domain::time::Timestamp;

/// When tasks on other servers are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PollPolicy {
    /// How long after it was begun, or something about it changed; each further time it is waited twice as long.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
    /// For how long a server may be out of reach before its tasks are given up.
    pub patience: Duration,
}

impl Default for PollPolicy {
    fn default() -> Self {
        let first = Duration::from_secs(1);
        let longest = Duration::from_secs(30);
        Self {
            first,
            longest,
            patience: Duration::from_secs(86_400),
        }
    }
}

impl PollPolicy {
    /// How long it is waited after so many looks in vain; tasks of one server shall not all be looked at at one moment.
    pub fn pause(&self, looks: u32, task: Uuid) -> Duration {
        let backoff = Backoff::doubling(self.first, self.longest);
        spread(backoff.pause(looks.saturating_add(1)), task)
    }
}

/// How many answered questions of a task are remembered.
const MOST_ANSWERED: usize = 16;
/// How much of such a question is remembered, in bytes of JSON.
const LONGEST_QUESTION: usize = 16 * 1024;

/// A question of a task on another server that was answered here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// The question, as it was seen.
    pub question: Value,
    /// The answer.
    pub answer: Value,
    /// The run that asked.
    pub asked_by: String,
    /// The run that went on with the answer.
    pub resumed_by: String,
    /// When it was first seen.
    pub asked_at: Timestamp,
    /// When it was answered.
    pub at: Timestamp,
}

/// What is known of a task that another server does.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RemoteWork {
    /// How it stood when it was seen last; none while it is being begun.
    pub seen: Option<TaskSnapshot>,
    /// Whether it is to be stopped there.
    pub cancel_requested: bool,
    /// How often it was looked at in vain since something changed.
    pub attempts: u32,
    /// Since when its server is out of reach.
    pub lost_since: Option<Timestamp>,
    /// When it is to be polled next; not at all when none. That is written, and not read: it is the job's.
    pub due_at: Option<Timestamp>,
    /// Grows with each change: what was seen under an older number is not written any more.
    pub version: i64,
}

impl RemoteWork {
    /// Whether this is what was seen before.
    pub fn is_unchanged(&self, seen: &TaskSnapshot) -> bool {
        let known = self.seen.as_ref().map(|known| TaskSnapshot {
            since: None,
            answered: vec![],
            ..known.clone()
        });
        known.as_ref() == Some(seen) && self.lost_since.is_none()
    }

    /// What is known when a question was answered, and a run goes on with that.
    #[must_use]
    pub fn with_answer(&self, mut answered: Answered) -> Self {
        let mut all = self.seen.as_ref().map(|seen| seen.answered.clone()).unwrap_or_default();
        if answered.question.to_string().len() > LONGEST_QUESTION {
            answered.question =
                json!({"id": answered.question["id"], "value": "(The question was too large to be kept.)"});
        }
        let run = answered.resumed_by.clone();
        let at = answered.at;
        all.push(answered);
        all.drain(..all.len().saturating_sub(MOST_ANSWERED));
        let seen = TaskSnapshot {
            since: Some(at),
            answered: all,
            ..TaskSnapshot::of(run, TaskStatus::Running)
        };
        Self {
            seen: Some(seen),
            due_at: Some(at),
            ..Self::default()
        }
    }

    /// What is known after it was `seen`, or was not to be seen for some reason.
    #[must_use]
    pub fn after(
        &self,
        seen: Result<TaskSnapshot, String>,
        (task, now): (Uuid, Timestamp),
        looks: &PollPolicy,
    ) -> Self {
        match seen {
            Ok(seen) => {
                let before = self.seen.as_ref().map(|before| (&before.run, before.status));
                let is_same = before == Some((&seen.run, seen.status));
                let count = if is_same { self.attempts + 1 } else { 0 };
                // More comes of a task that waits, unless nobody wants it.
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
                    cancel_requested: self.cancel_requested && goes_on,
                    attempts: count,
                    lost_since: None,
                    due_at: goes_on.then(|| now.plus(looks.pause(count, task))),
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
                if now.since(since) >= looks.patience {
                    let run = self.seen.as_ref().map(|seen| seen.run.clone()).unwrap_or_default();
                    let error = format!(
                        "{reason}, for {} seconds; it is not known what became of it",
                        looks.patience.as_secs()
                    );
                    work.seen = Some(TaskSnapshot {
                        error: Some(error),
                        ..TaskSnapshot::of(run, TaskStatus::Error)
                    });
                    work.due_at = None;
                } else {
                    work.due_at = Some(now.plus(looks.pause(count, task)));
                }
                work
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKS: PollPolicy = PollPolicy {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(8),
        patience: Duration::from_secs(100),
    };
    const TASK: Uuid = Uuid::from_u128(128);

    fn second(number: i64) -> Timestamp {
        Timestamp(number * 1_000_000)
    }

    fn after(work: &RemoteWork, seen: Result<TaskSnapshot, String>, at: i64) -> RemoteWork {
        work.after(seen, (TASK, second(at)), &LOOKS)
    }

    #[test]
    fn the_less_happens_the_seldomer_it_is_looked() {
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
    fn a_task_that_waits_is_looked_at_until_nobody_wants_it() {
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
        assert!(!unwanted.cancel_requested);
    }

    #[test]
    fn a_server_that_is_gone_for_too_long_is_given_up() {
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
}
