//! A thread on another server that executes a task of this one: its runs are started once, polled and cancelled.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::client::{Peer, PeerError, PeerResult, RemoteRunRequest};
use super::responses::{PeerInterrupt, PeerRun, PeerState, PeerThread};
use crate::domain::background::{MAX_RESULT_CHARS, TaskSnapshot, TaskStatus};
use crate::domain::backoff::{Backoff, spread};
use crate::domain::limits::Usage;
use crate::domain::machine::END;
use crate::domain::run::RunStatus;
use crate::domain::state::{State, Update};

/// The metadata key by which a run is found again.
pub(super) const RUN_KEY: &str = "adjutant_errand";
/// The pauses between attempts and between polls.
pub(super) const BACKOFF: Backoff = Backoff::doubling(Duration::from_millis(200), Duration::from_secs(5));
/// The number of latest runs that are searched for one of this server.
pub(super) const SEARCHED_RUNS: u32 = 20;
/// The number of attempts to read a thread that changes meanwhile.
const ATTEMPTS: u32 = 3;
/// The maximum size of media and questions that are stored, in bytes of JSON.
const MAX_KEPT_BYTES: usize = 1024 * 1024;
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
                    // It is unknown whether the run was started, or the thread is busy, maybe with this very run:
                    // search again.
                    let is_transient = error.is_transient() || matches!(error, PeerError::Refused { status: 409, .. });
                    if !is_transient || since.elapsed() + BACKOFF.pause(failures) > patience {
                        return Err(StartFailed { error, is_certain });
                    }
                }
            }
            sleep(spread(BACKOFF.pause(failures), self.thread)).await;
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

    /// Returns the status and the result of the newest run; none if there is no run.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn snapshot(&self) -> PeerResult<Option<TaskSnapshot>> {
        let mut newest = self.newest().await?;
        for _ in 0..ATTEMPTS {
            let Some(run) = newest else { return Ok(None) };
            let seen = run.snapshot();
            let seen = match run.status {
                RunStatus::Pending | RunStatus::Running => return Ok(Some(seen)),
                RunStatus::Interrupted => {
                    return Ok(Some(TaskSnapshot {
                        used: self.used().await,
                        ..seen
                    }));
                }
                RunStatus::Error | RunStatus::Timeout => {
                    let thread = self.peer.thread(self.thread).await?;
                    TaskSnapshot {
                        error: thread.and_then(|thread| failure(&thread)),
                        used: self.used().await,
                        ..seen
                    }
                }
                RunStatus::Success => with_result(seen, self.peer.state(self.thread).await?),
            };
            // Another client may have started a run since; then the state belongs to that run.
            newest = self.newest().await?;
            if newest.as_ref().is_some_and(|newest| newest.run_id == run.run_id) {
                return Ok(Some(seen));
            }
        }
        Ok(newest.map(|run| TaskSnapshot::of(run.run_id.to_string(), TaskStatus::Running)))
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
            sleep(spread(BACKOFF.pause(failures), self.thread)).await;
        }
    }
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
    (!parts.is_empty()).then(|| parts.join(": ").chars().take(MAX_ERROR_CHARS).collect())
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
            interrupts: kept_questions(questions),
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
        .map(|text| text.chars().take(MAX_RESULT_CHARS + 1).collect());
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

/// Returns the questions in the form in which they are stored.
fn kept_questions(questions: Vec<PeerInterrupt>) -> Vec<Value> {
    let kept = |short: bool| -> Vec<Value> {
        let one = |asked: &PeerInterrupt| match short {
            false => json!({"id": asked.id, "value": asked.value, "response_schema": asked.response_schema}),
            true => {
                json!({"id": asked.id, "value": "(The question is too large to be passed on; see it on its server.)"})
            }
        };
        questions.iter().map(one).collect()
    };
    let whole = kept(false);
    if size(&whole) > MAX_KEPT_BYTES {
        kept(true)
    } else {
        whole
    }
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
        let image = json!({"type": "image", "data": large});
        let values = json!({"values": {"messages": [{"type": "ai", "content": [image]}]}});
        assert!(size(&with_result(done(), Some(state(values))).media) < 1000);
        let values = json!({"values": {"messages": [{"type": "ai", "content": large}]}});
        let result = with_result(done(), Some(state(values))).result.expect("a result");
        assert_eq!(result.chars().count(), MAX_RESULT_CHARS + 1);
    }
}
