//! Answers that wait for the end of a run. While they wait they send a newline now and then, which JSON readers skip.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::{Value, json};

use super::Api;
use super::error::ApiError;
use super::subagents;
use super::threads::Glimpse;
use super::wire::interrupt::{brief, full};
use super::wire::{failure, json as shown};
use crate::db::{DbResult, runs};
use crate::domain::checkpoint::Lane;
use crate::domain::event::{EventBody, Fact};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::interrupt::Interrupt;
use crate::domain::machine::Failure;
use crate::domain::run::{Run, RunStatus};
use crate::domain::state::State;
use crate::domain::visibility::Visibility;
use crate::events::{After, Events, Tail};
use crate::runtime::Runs;

/// Answers with the JSON that `outcome` comes to, and with a newline every `beat` until then.
pub(super) fn respond(
    outcome: impl Future<Output = Result<Value, ApiError>> + Send + 'static,
    beat: Duration,
    leave: Leave,
) -> Response {
    let waiting = Some((Box::pin(outcome), leave));
    let chunks = stream::unfold(waiting, move |waiting| async move {
        let (mut outcome, mut leave) = waiting?;
        match tokio::time::timeout(beat, &mut outcome).await {
            Ok(outcome) => {
                leave.forget();
                Some((Ok::<_, Infallible>(Bytes::from(told(outcome).to_string())), None))
            }
            Err(_) => Some((Ok(Bytes::from_static(b"\n")), Some((outcome, leave)))),
        }
    });
    let mut response = Body::from_stream(chunks).into_response();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The status was sent long ago, so a fault is told in the body, as clients expect it of runs.
fn told(outcome: Result<Value, ApiError>) -> Value {
    outcome.unwrap_or_else(|error| json!({"__error__": {"error": "InternalServerError", "message": error.message()}}))
}

/// Stops a run when the client that waits for it leaves.
#[derive(Default)]
pub(super) struct Leave(Option<(Runs, ThreadId, RunId)>);

impl Leave {
    /// Stops `run` if its client leaves, provided that this is `wanted`.
    pub(super) fn stops(wanted: bool, runs: &Runs, run: &Run) -> Self {
        Self(wanted.then(|| (runs.clone(), run.thread, run.id)))
    }

    fn forget(&mut self) {
        self.0 = None;
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        if let Some((runs, thread, run)) = self.0.take() {
            runs.cancel_soon(thread, run);
        }
    }
}

/// What a new run comes to: its last values, with the question it asks; or why it failed.
pub(super) async fn outcome(api: Api, run: Run) -> Result<Value, ApiError> {
    let mut follower = Follower {
        thread: run.thread,
        state: State::default(),
        asked: vec![],
        end: None,
    };
    follower
        .follow(&api.events, api.events.tail(&run, After::Start))
        .await?;
    if run.lineage.visibility != Visibility::Full {
        follower.state = State::default();
    }
    Ok(follower.answer())
}

/// Follows a run from its first event to its last. The thread itself may be gone by then.
struct Follower {
    thread: ThreadId,
    state: State,
    asked: Vec<Interrupt>,
    end: Option<(RunStatus, Option<Failure>)>,
}

impl Follower {
    async fn follow(&mut self, events: &Events, mut tail: Tail) -> Result<(), ApiError> {
        while let Some(event) = tail.next().await? {
            if event.origin.lane == Lane::Main {
                self.take(events, &event.body).await?;
            }
        }
        if tail.is_cut() {
            Err(ApiError::leaving())
        } else {
            Ok(())
        }
    }

    async fn take(&mut self, events: &Events, body: &EventBody) -> DbResult<()> {
        match body {
            EventBody::Entry(entry) => {
                entry.writes.iter().for_each(|update| self.state.apply(update));
                self.asked.clear();
            }
            EventBody::Fact(Fact::Started { base, .. }) => {
                self.asked.clear();
                self.state = match base {
                    Some(base) => State::clone(&*events.state_at(self.thread, *base).await?),
                    None => State::default(),
                };
            }
            EventBody::Fact(Fact::Asked { interrupts, .. }) => {
                let is_new = |new: &&Interrupt| !self.asked.iter().any(|known| known.id == new.id);
                let new: Vec<Interrupt> = interrupts.iter().filter(is_new).cloned().collect();
                self.asked.extend(new);
            }
            EventBody::Fact(Fact::Ended { status, error, .. }) => self.end = Some((*status, error.clone())),
            EventBody::Fact(
                Fact::Calling { .. }
                | Fact::Answered { .. }
                | Fact::BrokenOff { .. }
                | Fact::Paused
                | Fact::Undone
                | Fact::Custom { .. },
            )
            | EventBody::Delta(_)
            | EventBody::Begun(_)
            | EventBody::Output { .. } => {}
        }
        Ok(())
    }

    fn answer(self) -> Value {
        match self.end {
            Some((RunStatus::Error | RunStatus::Timeout, Some(error))) => json!({"__error__": failure(&error)}),
            Some(_) => with_questions(shown(&self.state), &self.asked),
            // It was undone, or deleted.
            None => json!({}),
        }
    }
}

/// Values with the open question; the questions alone if there are several.
fn with_questions(mut values: Value, asked: &[Interrupt]) -> Value {
    let questions: Vec<Value> = asked.iter().map(full).collect();
    match (questions.len(), &mut values) {
        (0, _) => values,
        (1, Value::Object(fields)) => {
            fields.insert("__interrupt__".to_owned(), questions.into());
            values
        }
        _ => json!({"__interrupt__": questions}),
    }
}

/// Waits for the end of a run that began earlier, then tells how its thread stands.
pub(super) async fn join(api: Api, run: Run) -> Result<Value, ApiError> {
    over(&api, &run).await?;
    if run.lineage.depth > 0 {
        return subagents::outcome(&api, &run).await;
    }
    let thread = run.thread;
    let id = run.id;
    let read = api.db.read(move |tx| {
        Box::pin(async move { Ok((runs::find(tx, thread, id).await?, Glimpse::find(tx, thread).await?)) })
    });
    let (run, glimpse) = read.await?;
    match (run.and_then(|run| run.error), glimpse) {
        (Some(error), _) => Ok(json!({"__error__": failure(&error)})),
        (None, None) => Ok(json!({})),
        (None, Some(glimpse)) if !glimpse.asked.is_empty() => {
            let asked: Vec<Value> = glimpse.asked.iter().map(|asked| brief(&asked.interrupt)).collect();
            Ok(json!({"__interrupt__": asked}))
        }
        (None, Some(glimpse)) => Ok(glimpse
            .state(&api)
            .await?
            .map_or_else(|| json!({}), |state| shown(&*state))),
    }
}

/// Waits for the end of a run.
pub(super) async fn over(api: &Api, run: &Run) -> Result<(), ApiError> {
    let mut tail = match run.lineage.depth {
        0 => api.events.tail(run, After::Now),
        _ => match subagents::at_work_for(api, run).await? {
            Some((main, _)) => api.events.tail_of_child(&main, run),
            None => return Ok(()),
        },
    };
    while tail.next().await?.is_some() {}
    if tail.is_cut() {
        Err(ApiError::leaving())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;
    use crate::domain::id::TaskId;
    use crate::domain::interrupt::{Asker, Question, QuestionKind};

    fn question(number: usize) -> Interrupt {
        let task = TaskId::of_step(None, "tools", number);
        let question = Question {
            kind: QuestionKind::Question,
            value: json!(number),
            schema: json!({}),
            calls: vec![],
            key: None,
        };
        let id = crate::domain::id::InterruptId::of_task(task, 0);
        Interrupt {
            id,
            task,
            asker: Asker::Call("c".into()),
            question,
            answer: None,
        }
    }

    #[test]
    fn one_question_comes_with_the_values_and_several_come_alone() {
        let values = json!({"messages": []});
        assert_eq!(with_questions(values.clone(), &[]), values);
        let one = with_questions(values.clone(), &[question(0)]);
        assert_eq!(one["messages"], json!([]));
        assert_eq!(one["__interrupt__"][0]["value"], 0);
        let two = with_questions(values, &[question(0), question(1)]);
        assert_eq!(two.as_object().map(serde_json::Map::len), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn newlines_are_sent_until_the_answer_is_there() {
        let slow = async {
            tokio::time::sleep(Duration::from_secs(12)).await;
            Ok(json!({"done": true}))
        };
        let response = respond(slow, Duration::from_secs(5), Leave::default());
        let body = to_bytes(response.into_body(), 1000)
            .await
            .expect("the body is in memory");
        assert_eq!(&body[..], b"\n\n{\"done\":true}");
    }

    #[test]
    fn a_fault_while_waiting_is_told_in_the_body() {
        let told = told(Err(ApiError::fault(&"secret")));
        assert_eq!(told["__error__"]["error"], "InternalServerError");
        assert!(!told.to_string().contains("secret"));
    }
}
