//! A thread on another server that executes a task of this one: its runs are started once, polled and cancelled.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::client::{Peer, PeerError, PeerResult, RemoteRunRequest};
use super::responses::{PeerInterrupt, PeerRun, PeerState, PeerThread, RUN_KEY};
use crate::domain::background::{MAX_PAST_OUTCOMES, MAX_RESULT_CHARS, PastRun, TaskSnapshot, TaskStatus};
use crate::domain::backoff::Backoff;
use crate::domain::limits::Usage;
use crate::domain::machine::END;
use crate::domain::run::RunStatus;
use crate::domain::state::{State, Update};
use crate::domain::text_limits::first_chars;

/// The pauses between attempts and between polls.
pub(super) const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(200), Duration::from_secs(5));
/// The number of latest runs that are searched for one of this server.
pub(super) const SEARCHED_RUNS: u32 = 20;
/// The number of attempts to read a thread that changes meanwhile.
const ATTEMPTS: u32 = 3;
/// The maximum size of media and questions that are stored, in bytes of JSON.
const MAX_KEPT_BYTES: usize = 1024 * 1024;
/// The class of the error of a run whose answer came too late.
const ANSWER_TOO_LATE: &str = "AnswerTooLateError";
/// The maximum length of a stored error, in characters.
const MAX_ERROR_CHARS: usize = 2_000;

/// A thread on another server for work of this one, whose id was chosen here.
#[derive(Clone)]
pub struct RemoteThread {
    /// The server.
    pub peer: Peer,
    /// The thread.
    pub thread: Uuid,
}

/// The error of a run that was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailed {
    /// The cause.
    pub error: PeerError,
    /// True if it is certain that no run was started.
    pub is_certain: bool,
}

impl From<PeerError> for StartFailed {
    fn from(error: PeerError) -> Self {
        Self {
            error,
            is_certain: true,
        }
    }
}

impl RemoteThread {
    /// Creates the thread, unless it exists, and starts a run on it, unless one with this key exists. Transient
    /// errors are retried for up to `patience`.
    ///
    /// # Errors
    /// See [`StartFailed`].
    pub async fn create_and_start(
        &self,
        metadata: &Map<String, Value>,
        order: RemoteRunRequest,
        key: &str,
        patience: Duration,
    ) -> Result<PeerRun, StartFailed> {
        self.with_retries(patience, || self.peer.create_thread(self.thread, metadata))
            .await?;
        self.start_run(order, key, patience).await
    }

    /// Starts a run, unless one with this key exists. Transient errors are retried for up to `patience`.
    ///
    /// # Errors
    /// See [`StartFailed`].
    pub async fn start_run(
        &self,
        mut order: RemoteRunRequest,
        key: &str,
        patience: Duration,
    ) -> Result<PeerRun, StartFailed> {
        order.metadata.insert(RUN_KEY.to_owned(), key.into());
        let since = Instant::now();
        let mut is_certain = true;
        let mut failures = 0;
        loop {
            let left = patience.saturating_sub(since.elapsed());
            let found = self
                .with_retries(left, || self.find(key))
                .await
                .map_err(|error| StartFailed { error, is_certain })?;
            if let Some(run) = found {
                return Ok(run);
            }
            match self.peer.create_run(self.thread, &order, key).await {
                Ok(run) => return Ok(run),
                Err(error) => {
                    is_certain &= error.is_refusal();
                    failures += 1;
                    // If it is unknown whether the run was started, or the thread is busy, maybe with this very run,
                    // the search is repeated.
                    let is_transient = error.is_transient() || matches!(error, PeerError::Refused { status: 409, .. });
                    if !is_transient || since.elapsed() + BACKOFF.pause(failures) > patience {
                        return Err(StartFailed { error, is_certain });
                    }
                }
            }
            sleep(BACKOFF.spread_pause(failures, self.thread)).await;
        }
    }

    /// Returns the run that was started with this key.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn find(&self, key: &str) -> PeerResult<Option<PeerRun>> {
        Ok(self.runs().await?.into_iter().find(|run| run.has_key(key)))
    }

    /// Returns the latest runs, newest first.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn runs(&self) -> PeerResult<Vec<PeerRun>> {
        self.peer.runs(self.thread, SEARCHED_RUNS).await
    }

    /// Returns how the work on the thread stands, with its result or its questions; none if there is no run. `before`
    /// is the last snapshot of a task: with it, the runs that have ended before are in the new one.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn snapshot(&self, before: Option<&TaskSnapshot>) -> PeerResult<Option<TaskSnapshot>> {
        if let Some(before) = before.filter(|before| before.status == TaskStatus::Running)
            && let Some(seen) = self.unchanged(before).await?
        {
            return Ok(Some(seen));
        }
        let mut runs = self.latest_runs().await?;
        for _ in 0..ATTEMPTS {
            let Some(seen) = self.snapshot_of(&runs).await? else {
                return Ok(None);
            };
            let past = match before {
                Some(before) => self.read_past_runs(&runs, &seen, before).await?,
                None => vec![],
            };
            let seen = TaskSnapshot { past, ..seen };
            if matches!(seen.status, TaskStatus::Pending | TaskStatus::Running) {
                return Ok(Some(seen));
            }
            // Another client may have started a run since; then the state belongs to that run.
            let now = self.latest_runs().await?;
            let statuses = |runs: &[PeerRun]| -> Vec<(Uuid, RunStatus)> {
                runs.iter().map(|run| (run.run_id, run.status)).collect()
            };
            if statuses(&runs) == statuses(&now) {
                return Ok(Some(seen));
            }
            runs = now;
        }
        Ok(runs.first().map(|run| TaskSnapshot {
            past: before.map(|before| before.past.clone()).unwrap_or_default(),
            ..TaskSnapshot::of(run.run_id.to_string(), TaskStatus::Running)
        }))
    }

    /// Returns the snapshot of a running task if nothing has changed since `before`. Most polls end here: they read two
    /// runs with their inputs instead of [`SEARCHED_RUNS`].
    async fn unchanged(&self, before: &TaskSnapshot) -> PeerResult<Option<TaskSnapshot>> {
        match self.peer.runs(self.thread, 2).await {
            Err(PeerError::Misunderstood(_)) => Ok(None),
            listed => Ok(still_running(&listed?, before)),
        }
    }

    /// Returns the latest runs, newest first; only the newest one if the list is too long to be read.
    async fn latest_runs(&self) -> PeerResult<Vec<PeerRun>> {
        match self.runs().await {
            Err(PeerError::Misunderstood(_)) => Ok(self.newest().await?.into_iter().collect()),
            listed => listed,
        }
    }

    /// Returns how the work stands according to the latest runs. They end in another order than they were created: an
    /// answer may go before queued messages.
    async fn snapshot_of(&self, runs: &[PeerRun]) -> PeerResult<Option<TaskSnapshot>> {
        if let Some(at_work) = runs.iter().find(|run| run.status == RunStatus::Running) {
            return Ok(Some(at_work.snapshot()));
        }
        let pending = runs.iter().find(|run| run.status == RunStatus::Pending);
        let mut ended = ended(runs);
        let thread = match ended.last().filter(|last| last.status.has_failed()) {
            Some(_) if pending.is_none() => self.peer.thread(self.thread).await?,
            Some(_) | None => None,
        };
        let mut error = thread.as_ref().and_then(failure);
        if thread.as_ref().is_some_and(has_late_answer) {
            // The thread has the error of its last run alone: a run before it may have failed at work.
            while ended.len() > 1
                && let Some(last) = ended.last().copied().filter(|last| last.status.has_failed())
            {
                if let Some(outcome) = self.outcome_of(last).await? {
                    error = error.or(outcome.error);
                    break;
                }
                if !is_failed_answer(last) {
                    break;
                }
                ended.pop();
                error = None;
            }
        }
        let Some(last) = ended.last() else {
            return Ok(pending.map(PeerRun::snapshot));
        };
        let seen = last.snapshot();
        match last.status {
            RunStatus::Success if pending.is_none() => {
                return Ok(Some(with_result(seen, self.peer.state(self.thread).await?)));
            }
            RunStatus::Error | RunStatus::Timeout if pending.is_none() => {
                let used = self.used().await;
                return Ok(Some(TaskSnapshot { error, used, ..seen }));
            }
            RunStatus::Success
            | RunStatus::Error
            | RunStatus::Timeout
            | RunStatus::Interrupted
            | RunStatus::Pending
            | RunStatus::Running => {}
        }
        // A queued message may wait for the answer to a question, and one that was cancelled may have done so.
        let state = self.peer.state(self.thread).await.unwrap_or_default();
        let asks = state.as_ref().is_some_and(|state| !state.questions().is_empty());
        if let Some(asker) = asker(runs).filter(|_| asks) {
            return Ok(Some(with_result(asker.snapshot(), state)));
        }
        if let Some(pending) = pending {
            return Ok(Some(pending.snapshot()));
        }
        Ok(Some(TaskSnapshot {
            used: state.as_ref().and_then(used_by),
            ..seen
        }))
    }

    /// Returns the runs that have ended, but for the one that `seen` shows, in the order of their ends. Outcomes that
    /// `before` does not have are read in the history of the thread.
    async fn read_past_runs(
        &self,
        runs: &[PeerRun],
        seen: &TaskSnapshot,
        before: &TaskSnapshot,
    ) -> PeerResult<Vec<PastRun>> {
        let mut past = vec![];
        for run in ended(runs).into_iter().rev() {
            let id = run.run_id.to_string();
            if id == seen.run {
                continue;
            }
            let is_kept = past.len() < MAX_PAST_OUTCOMES;
            let outcome = match before.past.iter().find(|known| known.run == id) {
                Some(known) => known.outcome.clone().filter(|_| is_kept),
                None if before.run == id && before.status.is_outcome() => before.outcome(),
                None if is_kept && self.is_of_task(run) => self.outcome_of(run).await?,
                None => None,
            };
            past.push(PastRun { run: id, outcome });
        }
        past.reverse();
        Ok(past)
    }

    /// Returns the key of the run that cancels the questions of a run.
    pub fn key_of_cancellation(&self, run: &str) -> String {
        format!("{}-over-{run}", self.thread)
    }

    /// Returns whether a run does the work of the task: this server has started it, or it goes on with an answer. What
    /// people do on the thread besides does not count.
    fn is_of_task(&self, run: &PeerRun) -> bool {
        let cancels = self.key_of_cancellation("");
        run.key()
            .map_or_else(|| run.brings_answers(), |key| !key.starts_with(&cancels))
    }

    /// Returns the outcome of a run after which others have begun; none if the run asked something or was cancelled, or
    /// if its answer came too late.
    async fn outcome_of(&self, run: &PeerRun) -> PeerResult<Option<Box<TaskSnapshot>>> {
        let has_outcome = match run.status {
            RunStatus::Success | RunStatus::Error | RunStatus::Timeout => true,
            RunStatus::Pending | RunStatus::Running | RunStatus::Interrupted => false,
        };
        if !has_outcome {
            return Ok(None);
        }
        let state = match self.peer.state_after(self.thread, run.run_id).await {
            Err(error) if error.is_transient() => return Err(error),
            // A server without such histories.
            Err(_) => None,
            Ok(state) => state,
        };
        let outcome = match (run.status.has_failed(), state) {
            (true, None) if run.brings_answers() => return Ok(None),
            (true, state) => TaskSnapshot {
                error: state.as_ref().and_then(task_error),
                ..run.snapshot()
            },
            (false, Some(state)) if state.next.is_empty() => with_result(run.snapshot(), Some(state)),
            (false, _) => return Ok(None),
        };
        Ok(outcome.outcome())
    }

    /// Returns the usage of the whole thread; none if it is unknown.
    async fn used(&self) -> Option<Usage> {
        used_by(&self.peer.state(self.thread).await.ok()??)
    }

    pub(super) async fn newest(&self) -> PeerResult<Option<PeerRun>> {
        Ok(self.peer.runs(self.thread, 1).await?.into_iter().next())
    }

    /// Cancels all running and queued runs, newest first.
    ///
    /// # Errors
    /// See [`PeerError`]; some of the runs may have been cancelled then.
    pub async fn cancel_runs(&self) -> PeerResult<()> {
        for run in self.runs().await?.into_iter().filter(|run| !run.status.is_final()) {
            self.peer.cancel(self.thread, run.run_id).await?;
        }
        Ok(())
    }

    /// Cancels the open interrupts of the thread, since their answers are not needed any more.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn cancel_interrupts(&self, graph_id: &str, key: &str) -> PeerResult<()> {
        let order = RemoteRunRequest {
            assistant_id: graph_id.to_owned(),
            command: Some(json!({"goto": END})),
            multitask_strategy: "reject",
            stream_mode: vec!["values"],
            ..RemoteRunRequest::default()
        };
        self.start_run(order, key, Duration::ZERO)
            .await
            .map(drop)
            .map_err(|not_begun| not_begun.error)
    }

    /// Repeats a request until it succeeds, for as long as `patience` allows.
    pub(super) async fn with_retries<T, F>(&self, patience: Duration, ask: impl Fn() -> F) -> PeerResult<T>
    where
        F: Future<Output = PeerResult<T>>,
    {
        let since = Instant::now();
        let mut failures = 0;
        loop {
            let error = match ask().await {
                Err(error) if error.is_transient() => error,
                answer => return answer,
            };
            failures += 1;
            if since.elapsed() + BACKOFF.pause(failures) > patience {
                return Err(error);
            }
            tracing::debug!(thread = %self.thread, place = %self.peer.display_url(), %error, "another server is unreachable; retrying");
            sleep(BACKOFF.spread_pause(failures, self.thread)).await;
        }
    }
}

/// Returns the snapshot of a task whose newest run was running in `before` and still is; none if it is another, or the
/// run before it is not known to have ended: its outcome would be missing. The runs are the latest, newest first.
fn still_running(runs: &[PeerRun], before: &TaskSnapshot) -> Option<TaskSnapshot> {
    let (newest, earlier) = runs.split_first()?;
    let is_same = newest.status == RunStatus::Running && newest.run_id.to_string() == before.run;
    let is_known = |run: &PeerRun| {
        let id = run.run_id.to_string();
        before.past.iter().any(|past| past.run == id)
    };
    let is_unchanged = is_same && earlier.iter().all(is_known);
    is_unchanged.then(|| TaskSnapshot {
        past: before.past.clone(),
        ..newest.snapshot()
    })
}

/// Returns the runs that have ended, in the order of their ends.
fn ended(runs: &[PeerRun]) -> Vec<&PeerRun> {
    let mut ended: Vec<&PeerRun> = runs.iter().rev().filter(|run| run.status.is_final()).collect();
    // A server that does not state the times gets its runs in the order of their creation.
    ended.sort_by_key(|run| run.changed_at());
    ended
}

/// Returns the run whose questions a thread has, if it has any: the last one that has ended with success. None if a run
/// is at work, or a message began after it, which dropped its questions, and failed. The runs are the latest, newest
/// first.
pub fn asker(runs: &[PeerRun]) -> Option<&PeerRun> {
    if runs.iter().any(|run| run.status == RunStatus::Running) {
        return None;
    }
    let ended = ended(runs);
    let at = ended.iter().rposition(|run| run.status == RunStatus::Success)?;
    let mut later = ended.iter().skip(at + 1);
    // A queued message that was cancelled has not begun, and an answer that failed may have come too late.
    let are_kept = later.all(|run| !run.status.has_failed() || is_failed_answer(run));
    ended.get(at).copied().filter(|_| are_kept)
}

/// Returns whether a run brought answers and failed.
fn is_failed_answer(run: &PeerRun) -> bool {
    run.status == RunStatus::Error && run.brings_answers()
}

/// Returns whether the last run of a thread failed since its answer came too late.
fn has_late_answer(thread: &PeerThread) -> bool {
    let class = thread.error.as_ref().and_then(|error| error.get("error")?.as_str());
    class == Some(ANSWER_TOO_LATE)
}

/// Returns the error of the first task that has failed.
fn task_error(state: &PeerState) -> Option<String> {
    let error = state.tasks.iter().find_map(|task| task.error.as_ref()?.as_str())?;
    Some(first_chars(error, MAX_ERROR_CHARS).to_owned())
}

/// Returns the reason why the last run of a thread failed, if the thread states it.
pub(super) fn failure(thread: &PeerThread) -> Option<String> {
    let error = thread.error.as_ref()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let parts = [
        text(error),
        error.get("error").and_then(text),
        error.get("message").and_then(text),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| first_chars(&parts.join(": "), MAX_ERROR_CHARS).to_owned())
}

/// Adds the result or the questions of a completed run to its snapshot.
fn with_result(seen: TaskSnapshot, state: Option<PeerState>) -> TaskSnapshot {
    let Some(state) = state else {
        let error = "The thread of the task was deleted there.".to_owned();
        return TaskSnapshot {
            status: TaskStatus::Error,
            error: Some(error),
            ..seen
        };
    };
    let seen = TaskSnapshot {
        used: used_by(&state),
        ..seen
    };
    let questions = state.questions();
    if !questions.is_empty() {
        return TaskSnapshot {
            status: TaskStatus::Waiting,
            interrupts: kept_questions(&questions),
            ..seen
        };
    }
    let mut update = Update::none();
    let messages = state
        .values
        .get("messages")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    update.messages = messages
        .filter_map(|message| serde_json::from_value(message.clone()).ok())
        .collect();
    let structured = state.values.get("structured_response").cloned();
    update
        .fields
        .extend(structured.map(|value| ("structured_response".to_owned(), value)));
    let mut final_state = State::default();
    final_state.apply(&update);
    // One extra character, to detect that the text was truncated.
    let result = final_state
        .conclusion()
        .map(|text| first_chars(&text, MAX_RESULT_CHARS + 1).to_owned());
    let mut media = final_state.media();
    if size(&media) > MAX_KEPT_BYTES {
        media = vec![
            json!({"type": "text", "text": "(The media are too large to be passed on; see them on the other server.)"}),
        ];
    }
    TaskSnapshot { result, media, ..seen }
}

/// Returns the usage of a thread, as far as its messages report it.
fn used_by(state: &PeerState) -> Option<Usage> {
    let messages = state.values.get("messages")?.as_array()?;
    let count = |kind: &str| {
        let all = messages
            .iter()
            .filter(|message| message.get("type").and_then(Value::as_str) == Some(kind));
        u64::try_from(all.count()).unwrap_or(u64::MAX)
    };
    let tokens = |name: &str| {
        let all = messages
            .iter()
            .filter_map(|message| message.get("usage_metadata")?.get(name)?.as_u64());
        all.fold(0, u64::saturating_add)
    };
    let model_calls = count("ai");
    let tool_calls = count("tool");
    let input_tokens = tokens("input_tokens");
    let output_tokens = tokens("output_tokens");
    Some(Usage {
        model_calls,
        tool_calls,
        input_tokens,
        output_tokens,
        ..Usage::default()
    })
}

/// Returns the questions in the form in which they are stored: as a whole, or without the schemas of their answers if they would
/// be too large, or only with their ids.
fn kept_questions(questions: &[PeerInterrupt]) -> Vec<Value> {
    let forms: [fn(&PeerInterrupt) -> Value; 2] = [
        |asked| json!({"id": asked.id, "value": asked.value, "response_schema": asked.response_schema}),
        |asked| json!({"id": asked.id, "value": asked.value}),
    ];
    for form in forms {
        let kept: Vec<Value> = questions.iter().map(form).collect();
        if size(&kept) <= MAX_KEPT_BYTES {
            return kept;
        }
    }
    let note = "(The question is too large to be passed on; see it on its server.)";
    let short = questions.iter().map(|asked| json!({"id": asked.id, "value": note}));
    short.collect()
}

fn size(values: &[Value]) -> usize {
    serde_json::to_string(values).map_or(usize::MAX, |text| text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(values: Value) -> PeerState {
        serde_json::from_value(values).expect("a state")
    }

    fn run(number: u128, status: &str, second: u32) -> PeerRun {
        let run = json!({"run_id": Uuid::from_u128(number), "status": status,
            "updated_at": format!("2026-01-05T10:00:{second:02}.5+00:00"), "kwargs": {"command": null}});
        serde_json::from_value(run).expect("a run")
    }

    #[test]
    fn a_thread_waits_for_the_run_that_ended_last_unless_one_is_at_work() {
        let asker_of = |runs: &[PeerRun]| asker(runs).map(|run| run.run_id.as_u128());
        // An answer was sent after the message, and went first.
        let runs = [run(3, "success", 20), run(2, "success", 30), run(1, "success", 10)];
        let order: Vec<u128> = ended(&runs).iter().map(|run| run.run_id.as_u128()).collect();
        assert_eq!(order, [1, 3, 2]);
        assert_eq!(asker_of(&runs), Some(2));
        assert_eq!(asker_of(&[run(2, "pending", 5), run(1, "success", 10)]), Some(1));
        assert_eq!(asker_of(&[run(2, "interrupted", 15), run(1, "success", 10)]), Some(1));
        assert_eq!(asker_of(&[run(2, "running", 15), run(1, "success", 10)]), None);
        for failed in ["error", "timeout"] {
            assert_eq!(asker_of(&[run(2, failed, 15), run(1, "success", 10)]), None);
            assert_eq!(asker_of(&[run(2, failed, 5), run(1, "success", 10)]), Some(1));
        }
        let late = PeerRun {
            kwargs: Some(json!({"command": {"resume": "yes"}})),
            ..run(2, "error", 15)
        };
        assert_eq!(asker_of(&[late, run(1, "success", 10)]), Some(1));
        assert!(!runs[0].brings_answers());
        let untimed = [2, 1].map(|number| PeerRun {
            updated_at: None,
            ..run(number, "success", 0)
        });
        assert_eq!(asker_of(&untimed), Some(2), "they ended in the order of their creation");
    }

    #[test]
    fn a_task_is_as_before_while_its_newest_run_runs_and_the_run_before_it_is_known() {
        let id = |number: u128| Uuid::from_u128(number).to_string();
        let past = PastRun {
            run: id(1),
            outcome: None,
        };
        let before = TaskSnapshot {
            past: vec![past],
            ..TaskSnapshot::of(id(2), TaskStatus::Running)
        };
        let at_work = || run(2, "running", 20);
        let known = [at_work(), run(1, "success", 10)];
        assert_eq!(still_running(&known, &before), Some(before.clone()));
        assert_eq!(still_running(&known[..1], &before), Some(before.clone()));
        assert_eq!(still_running(&[at_work(), run(4, "success", 10)], &before), None);
        assert_eq!(
            still_running(&[run(2, "success", 30), run(1, "success", 10)], &before),
            None
        );
        assert_eq!(still_running(&[run(3, "pending", 25), at_work()], &before), None);
        assert_eq!(still_running(&[], &before), None);
    }

    fn done() -> TaskSnapshot {
        TaskSnapshot::of("r1", TaskStatus::Success)
    }

    #[test]
    fn the_result_of_a_run_is_its_last_message_or_its_questions() {
        let image = json!({"type": "image_url", "image_url": {"url": "https://example.org/x.png"}});
        let said = json!([{"type": "text", "text": "the text"}, image]);
        let values =
            json!({"values": {"messages": [{"type": "human", "content": "do"}, {"type": "ai", "content": said}]}});
        let seen = with_result(done(), Some(state(values)));
        assert_eq!(seen.status, TaskStatus::Success);
        assert_eq!(seen.result.as_deref(), Some("the text"));
        assert_eq!(seen.media.clone(), vec![image]);
        let past = seen.outcome().expect("an outcome");
        assert_eq!(past.result, seen.result);
        assert_eq!(past.media.len(), 0, "they are passed on with the newest outcome alone");
        let used = Usage {
            model_calls: 1,
            ..Usage::default()
        };
        assert_eq!(seen.used, Some(used));
        let asks = json!({"values": {}, "interrupts": [{"id": "q1", "value": "Which?"}]});
        let seen = with_result(done(), Some(state(asks)));
        assert_eq!(seen.status, TaskStatus::Waiting);
        assert_eq!(seen.asked(), vec![json!({"id": "q1", "value": "Which?"})]);
        assert_eq!(with_result(done(), None).status, TaskStatus::Error);
    }

    #[test]
    fn large_values_are_not_stored() {
        let large = "x".repeat(MAX_KEPT_BYTES);
        let asks = json!({"values": {}, "interrupts": [{"id": "q1", "value": large}]});
        let seen = with_result(done(), Some(state(asks)));
        assert!(size(&seen.interrupts) < 1000 && seen.interrupts[0]["id"] == "q1");
        let asked = json!({"id": "q1", "value": "Which?", "response_schema": {"description": large}});
        let seen = with_result(done(), Some(state(json!({"values": {}, "interrupts": [asked]}))));
        assert_eq!(seen.interrupts, [json!({"id": "q1", "value": "Which?"})]);
        let image = json!({"type": "image", "data": large});
        let values = json!({"values": {"messages": [{"type": "ai", "content": [image]}]}});
        assert!(size(&with_result(done(), Some(state(values))).media) < 1000);
        let values = json!({"values": {"messages": [{"type": "ai", "content": large}]}});
        let result = with_result(done(), Some(state(values))).result.expect("a result");
        assert_eq!(result.chars().count(), MAX_RESULT_CHARS + 1);
    }
}
