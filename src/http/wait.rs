//! Responses that wait for the end of a run. They send newlines meanwhile, which JSON parsers skip.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use futures::stream;
use serde::Serialize;
use serde_json::{Value, json};

use super::error::ApiError;
use super::run_stream::active_main_run;
use super::stream::fold::AgentFold;
use super::threads::ThreadSummary;
use super::wire::interrupt::{brief, full};
use super::wire::{failure, json as to_json, json_text};
use super::{Api, ApiSettings};
use crate::db::interrupts::InterruptState;
use crate::db::{checkpoints, interrupts, runs};
use crate::domain::checkpoint::Lane;
use crate::domain::event::{Event, EventBody, Fact, Origin};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::interrupt::Interrupt;
use crate::domain::machine::Failure;
use crate::domain::run::{Run, RunStatus};
use crate::domain::state::State;
use crate::domain::visibility::Visibility;
use crate::events::{After, Tail};
use crate::runtime::Runs;

/// The time for which the head of a response waits for a result, so that both are sent in one piece.
const QUICK: Duration = Duration::from_millis(100);

/// The times of a response that waits.
#[derive(Clone, Copy)]
pub(super) struct WaitTimes {
    /// The time between two newlines.
    beat: Duration,
    /// The time for which the head waits.
    quick: Duration,
}

impl WaitTimes {
    /// Returns the times by the settings. The head does not wait until the time limit of its request.
    pub(super) fn of(settings: &ApiSettings) -> Self {
        let beat = settings.heartbeat;
        Self {
            beat,
            quick: QUICK.min(beat).min(settings.request / 2),
        }
    }
}

/// Responds with the JSON of `result`, and with a newline in each interval until then.
pub(super) async fn respond_when_done<T: Serialize + Send + 'static>(
    mut result: BoxFuture<'static, Result<T, ApiError>>,
    times: WaitTimes,
    mut guard: CancelOnDisconnect,
) -> Response {
    let body = match tokio::time::timeout(times.quick, &mut result).await {
        Ok(done) => {
            guard.disarm();
            Body::from(result_text(done))
        }
        Err(_) => waiting_body(result, times.beat, guard),
    };
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Returns the JSON of `result`, behind a newline for every `beat` until then.
fn waiting_body<T: Serialize + Send + 'static>(
    result: BoxFuture<'static, Result<T, ApiError>>,
    beat: Duration,
    guard: CancelOnDisconnect,
) -> Body {
    let waiting = Some((result, guard));
    let chunks = stream::unfold(waiting, move |waiting| async move {
        let (mut result, mut guard) = waiting?;
        match tokio::time::timeout(beat, &mut result).await {
            Ok(result) => {
                guard.disarm();
                Some((Ok::<_, Infallible>(Bytes::from(result_text(result))), None))
            }
            Err(_) => Some((Ok(Bytes::from_static(b"\n")), Some((result, guard)))),
        }
    });
    Body::from_stream(chunks)
}

/// Reports an error in the body, as the SDKs expect for runs: the status of a response that has waited is sent already.
fn result_text(result: Result<impl Serialize, ApiError>) -> String {
    match result {
        Ok(result) => json_text(&result),
        Err(error) => {
            let error = json!({"error": "InternalServerError", "message": error.message()});
            json!({"__error__": error}).to_string()
        }
    }
}

/// Cancels a run when the waiting client disconnects.
#[derive(Default)]
pub(super) struct CancelOnDisconnect(Option<(Runs, ThreadId, RunId)>);

impl CancelOnDisconnect {
    /// Cancels `run` when its client disconnects, if `is_enabled`.
    pub(super) fn new(is_enabled: bool, runs: &Runs, run: &Run) -> Self {
        Self(is_enabled.then(|| (runs.clone(), run.thread, run.id)))
    }

    /// Leaves the run alone from now on.
    pub(super) fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDisconnect {
    fn drop(&mut self) {
        if let Some((runs, thread, run)) = self.0.take() {
            runs.cancel_soon(thread, run);
        }
    }
}

/// Reads the events of a run from its start, and folds them into its result.
pub(super) struct RunReader {
    api: Api,
    run: Run,
    tail: Tail,
    main: AgentFold,
    end: Option<(RunStatus, Option<Failure>)>,
}

/// The result of a run.
pub(super) struct RunOutcome {
    /// The state of the main agent; empty if clients may not see it.
    pub(super) state: State,
    /// The interrupts that the run raised and that nobody has answered.
    pub(super) interrupts: Vec<Interrupt>,
    /// The status and the failure; `None` if the run was rolled back or deleted.
    pub(super) end: Option<(RunStatus, Option<Failure>)>,
}

impl RunReader {
    /// Creates the reader of a run.
    pub(super) fn new(api: &Api, run: Run) -> Self {
        Self {
            tail: api.events.tail(&run, After::Start),
            main: AgentFold::new(&Arc::new(Origin::of(&run))),
            api: api.clone(),
            run,
            end: None,
        }
    }

    /// Returns the next event of the run and of the runs below it; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Arc<Event>>, ApiError> {
        let Some(event) = self.tail.next().await? else {
            return Ok(None);
        };
        if event.origin.lane == Lane::Main {
            self.fold(&event.body).await?;
        }
        Ok(Some(event))
    }

    async fn fold(&mut self, body: &EventBody) -> Result<(), ApiError> {
        let base = match AgentFold::required_state(Some(&self.main), body) {
            Some(checkpoint) => Some(self.api.events.state_at(self.run.thread, checkpoint).await?),
            None => None,
        };
        self.main.begin_event(body, base, true);
        match body {
            EventBody::Entry(entry) => self.main.advance(entry),
            EventBody::Fact(Fact::Asked { interrupts, .. }) => {
                self.main.add_interrupts(interrupts);
            }
            EventBody::Fact(Fact::Ended { status, error, .. }) => self.end = Some((*status, error.clone())),
            EventBody::Fact(_) | EventBody::Delta(_) | EventBody::Begun(_) | EventBody::Output { .. } => {}
        }
        Ok(())
    }

    /// Reads to the end and returns the result.
    ///
    /// # Errors
    /// If the server shuts down before the end of the run.
    pub(super) async fn outcome(mut self) -> Result<RunOutcome, ApiError> {
        // Each wake-up takes the whole way through the request, and a run has many events.
        self.tail = self.tail.waking_at_end();
        while self.next().await?.is_some() {}
        if self.tail.is_cut() {
            return Err(ApiError::shutting_down());
        }
        let is_visible = self.run.lineage.visibility == Visibility::Full;
        let state = self.main.state.filter(|_| is_visible).unwrap_or_default();
        Ok(RunOutcome {
            state,
            interrupts: self.main.interrupts,
            end: self.end,
        })
    }
}

/// The result of a new run.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum NewRunResult {
    /// The final values.
    Values(Box<State>),
    /// The values with the only open interrupt.
    Asking(Box<AskingValues>),
    /// Several open interrupts without the values, or an error.
    Other(Value),
}

/// The values of a run that waits for an answer.
#[derive(Serialize)]
pub(super) struct AskingValues {
    #[serde(flatten)]
    values: State,
    #[serde(rename = "__interrupt__")]
    interrupts: [Value; 1],
}

/// The result of a new run: its final values with its interrupts, or its error.
pub(super) async fn run_result(api: Api, run: Run) -> Result<NewRunResult, ApiError> {
    let outcome = RunReader::new(&api, run).outcome().await?;
    Ok(match outcome.end {
        Some((status, Some(error))) if status.has_failed() => {
            NewRunResult::Other(json!({"__error__": failure(&error)}))
        }
        Some(_) if outcome.interrupts.is_empty() => NewRunResult::Values(Box::new(outcome.state)),
        Some(_) => with_questions(outcome.state, &outcome.interrupts),
        // The run was rolled back or deleted.
        None => NewRunResult::Other(json!({})),
    })
}

/// The values with one open interrupt; only the interrupts if there are several.
fn with_questions(values: State, interrupts: &[Interrupt]) -> NewRunResult {
    let questions: Vec<Value> = interrupts.iter().map(full).collect();
    match <[Value; 1]>::try_from(questions) {
        Ok(interrupts) => NewRunResult::Asking(Box::new(AskingValues { values, interrupts })),
        Err(questions) => NewRunResult::Other(json!({"__interrupt__": questions})),
    }
}

/// The error with which a run failed.
fn error_of(run: &Run) -> Option<&Failure> {
    run.error.as_ref().filter(|_| run.status.has_failed())
}

/// Waits for the end of a run that was started earlier, and returns the result of its thread. The thread may have gone
/// on since; a run that failed stays an error.
pub(super) async fn join_run(api: Api, run: Run) -> Result<Value, ApiError> {
    wait_for_end(&api, &run).await?;
    if run.lineage.depth > 0 {
        return child_result(&api, &run).await;
    }
    let thread = run.thread;
    let id = run.id;
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            Ok((
                runs::find(tx, thread, id).await?,
                ThreadSummary::find(tx, thread).await?,
            ))
        })
    });
    let (run, summary) = read.await?;
    // The run, or the whole thread, was rolled back or deleted.
    let Some((run, summary)) = run.zip(summary) else {
        return Ok(json!({}));
    };
    if let Some(error) = error_of(&run) {
        return Ok(json!({"__error__": failure(error)}));
    }
    if !summary.interrupts.is_empty() {
        let interrupts: Vec<Value> = summary
            .interrupts
            .iter()
            .map(|record| brief(&record.interrupt))
            .collect();
        return Ok(json!({"__interrupt__": interrupts}));
    }
    let state = summary.state(&api).await?;
    Ok(state.map_or_else(|| json!({}), |state| to_json(&*state)))
}

/// Waits for the end of a run.
pub(super) async fn wait_for_end(api: &Api, run: &Run) -> Result<(), ApiError> {
    let mut tail = match run.lineage.depth {
        0 => api.events.tail(run, After::Now).waking_at_end(),
        _ => match active_main_run(api, run).await? {
            Some((main, _)) => api.events.tail_of_child(&main, run),
            None => return Ok(()),
        },
    };
    while tail.next().await?.is_some() {}
    if tail.is_cut() {
        Err(ApiError::shutting_down())
    } else {
        Ok(())
    }
}

/// The result of a child run that is not active: the subagent's values, its open interrupts, or the error with which it
/// failed.
async fn child_result(api: &Api, child: &Run) -> Result<Value, ApiError> {
    let thread = child.thread;
    let id = child.id;
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let Some(run) = runs::find(tx, thread, id).await? else {
                return Ok(None);
            };
            let below = runs::members(tx, id).await?;
            let mut open = interrupts::of_thread(tx, thread, Some(InterruptState::Pending)).await?;
            open.retain(|record| matches!(record.lane, Lane::Child(lane) if below.contains(&lane)));
            let (machine, _) = checkpoints::machine(tx, thread, Lane::Child(id)).await?;
            Ok(Some((error_of(&run).cloned(), open, machine.state)))
        })
    });
    Ok(match read.await? {
        None => json!({}),
        Some((Some(error), ..)) => json!({"__error__": failure(&error)}),
        Some((None, open, _)) if open.is_empty() && child.lineage.visibility != Visibility::Full => json!({}),
        Some((None, open, state)) if open.is_empty() => to_json(&state),
        Some((None, open, _)) => {
            let open: Vec<Value> = open.iter().map(|record| brief(&record.interrupt)).collect();
            json!({"__interrupt__": open})
        }
    })
}

#[cfg(test)]
mod tests {
    use axum::body::{HttpBody, to_bytes};

    use super::*;
    use crate::domain::id::TaskId;
    use crate::domain::interrupt::{InterruptSource, Question, QuestionKind};

    const TIMES: WaitTimes = WaitTimes {
        beat: Duration::from_secs(5),
        quick: QUICK,
    };

    fn question(number: usize) -> Interrupt {
        let task = TaskId::of_step(None, "tools", number);
        let question = Question {
            kind: QuestionKind::Question,
            value: json!(number),
            schema: json!({}).into(),
            calls: vec![],
            key: None,
            approvers: Default::default(),
            ..Question::default()
        };
        let id = crate::domain::id::InterruptId::of_task(task, 0);
        Interrupt {
            id,
            task,
            asker: InterruptSource::Call("c".into()),
            question: Arc::new(question),
            answer: None,
            is_inline: false,
        }
    }

    #[test]
    fn one_interrupt_comes_with_the_values_and_several_come_alone() {
        let shown = |interrupts: &[Interrupt]| to_json(&with_questions(State::default(), interrupts));
        let one = shown(&[question(0)]);
        assert_eq!(one["messages"], json!([]));
        assert_eq!(one["__interrupt__"][0]["value"], 0);
        let two = shown(&[question(0), question(1)]);
        assert_eq!(two.as_object().map(serde_json::Map::len), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn newlines_are_sent_until_the_result_is_ready() {
        let slow = async {
            tokio::time::sleep(Duration::from_secs(12)).await;
            Ok(json!({"done": true}))
        };
        let response = respond_when_done(Box::pin(slow), TIMES, CancelOnDisconnect::default()).await;
        let body = to_bytes(response.into_body(), 1000)
            .await
            .expect("the body is in memory");
        assert_eq!(&body[..], b"\n\n{\"done\":true}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_that_is_there_soon_is_sent_with_the_head_of_the_response() {
        for (wait, is_whole) in [(QUICK / 2, true), (QUICK * 2, false)] {
            let soon = async move {
                tokio::time::sleep(wait).await;
                Ok(json!({"done": true}))
            };
            let response = respond_when_done(Box::pin(soon), TIMES, CancelOnDisconnect::default()).await;
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
            let (_, body) = response.into_parts();
            assert_eq!(body.size_hint().exact().is_some(), is_whole);
            let body = to_bytes(body, 1000).await.expect("the body is in memory");
            assert_eq!(&body[..], b"{\"done\":true}");
        }
    }

    #[test]
    fn a_fault_while_waiting_is_reported_in_the_body() {
        let failed: Result<Value, ApiError> = Err(ApiError::fault(&"secret"));
        let text = result_text(failed);
        let body: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(body["__error__"]["error"], "InternalServerError");
        assert!(!text.contains("secret"));
    }
}
