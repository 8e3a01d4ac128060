//! Answers to open questions that come without the name of an assistant, or in the place of new input.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::core::Core;
use super::{AssistantRef, NewRun, ResolveError, Runs, StartError, Target, resume};
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbResult};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{AssistantId, InterruptId, RunId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, Once};
use crate::domain::run::{Run, RunRequest};

/// An answer to one question.
#[derive(Debug, Clone, PartialEq)]
pub struct InterruptReply {
    /// The question.
    pub interrupt: String,
    /// Where the one who answers saw it asked, when that is to be checked: the namespace as clients write it.
    pub namespace: Option<String>,
    /// The answer.
    pub answer: Value,
}

/// Why questions were not answered.
#[derive(Debug, thiserror::Error)]
pub enum RespondError {
    /// No run has been at work on the thread, or there is no such thread.
    #[error("no run is bound to this thread")]
    NoRun,
    /// There is no such question on the thread, or it does not wait for an answer.
    #[error("no question {0} waits for an answer")]
    NoInterrupt(String),
    /// The run that would go on with the answers was not started.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl From<db::DbError> for RespondError {
    fn from(error: db::DbError) -> Self {
        Self::Start(error.into())
    }
}

/// How a question stands.
enum Standing {
    /// It waits for its answer, asked by an agent of this assistant.
    Open(AssistantId),
    /// It has this very answer, with which this run went on.
    AnsweredBy(RunId),
}

/// Open questions, and the answers to them. Cheap to clone.
#[derive(Clone)]
pub struct Interrupts {
    core: Arc<Core>,
    runs: Runs,
}

impl Interrupts {
    pub(super) fn new(core: Arc<Core>, runs: Runs) -> Self {
        Self { core, runs }
    }

    /// Gives the answer to one question; returns the run that goes on with it. The same answer again gives the same run.
    ///
    /// # Errors
    /// See [`ResolveError`]; nothing is stored then.
    pub async fn resolve(
        &self,
        thread: ThreadId,
        interrupt: InterruptId,
        answer: Value,
    ) -> Result<RunId, ResolveError> {
        let assistant = match self.question(thread, &interrupt, &answer).await {
            Ok(Standing::Open(assistant)) => assistant,
            Ok(Standing::AnsweredBy(run)) => return Ok(run),
            Err(ResolveError::NoInterrupt) => return self.runs.resolve_elsewhere(thread, &interrupt, answer).await,
            Err(error) => return Err(error),
        };
        let request = RunRequest {
            stream_mode: vec!["values".to_owned()],
            ..RunRequest::default()
        };
        let wish = NewRun {
            target: Target::Thread(thread),
            assistant: AssistantRef::Id(assistant),
            request,
            resume: Some(Value::Object(
                [(interrupt.0.clone(), answer.clone())].into_iter().collect(),
            )),
            metadata: Map::new(),
            after: Duration::ZERO,
        };
        match self.runs.start(wish).await {
            Ok(run) => Ok(run.id),
            // Not a question that waits: somebody was quicker.
            Err(StartError::Invalid(invalid)) => match self.question(thread, &interrupt, &answer).await? {
                Standing::Open(_) => Err(ResolveError::Invalid(invalid)),
                Standing::AnsweredBy(run) => Ok(run),
            },
            Err(StartError::Fault(error)) => Err(error.into()),
            // Answers are not refused because of the queue.
            Err(StartError::Busy | StartError::QueueFull(_) | StartError::ThreadFull(_)) => Err(ResolveError::Busy),
            Err(StartError::NoAssistant(_) | StartError::NoAgent { .. }) => Err(ResolveError::NoAgent),
            Err(
                StartError::NoThread(_)
                | StartError::NoCheckpoint(_)
                | StartError::QuestionPending(_)
                | StartError::NoOpenInterrupt
                | StartError::AmbiguousAnswer(_)
                | StartError::ResumeNeedsThread,
            ) => Err(ResolveError::NoInterrupt),
        }
    }

    /// How a question stands for somebody who gives this answer.
    async fn question(
        &self,
        thread: ThreadId,
        interrupt: &InterruptId,
        answer: &Value,
    ) -> Result<Standing, ResolveError> {
        let id = interrupt.clone();
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                let Some(asked) = db::interrupts::find(tx, thread, &id).await? else {
                    return Ok(None);
                };
                let run = db::runs::get_by_id(tx, asked.run).await?;
                Ok(run.map(|run| (asked, run.assistant)))
            })
        });
        let (asked, assistant) = read.await?.ok_or(ResolveError::NoInterrupt)?;
        match (asked.status, asked.resumed_by) {
            (InterruptState::Pending, _) => Ok(Standing::Open(assistant)),
            (InterruptState::Resolved, Some(by)) if asked.resolution.as_ref() == Some(answer) => {
                Ok(Standing::AnsweredBy(by))
            }
            (status, _) => Err(ResolveError::Stale(status.word())),
        }
    }

    /// The assistant whose run was the last to be asked for on a thread; none if there was none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn assistant_of(&self, thread: ThreadId) -> DbResult<Option<AssistantId>> {
        let found = self
            .core
            .db
            .read(move |tx| Box::pin(db::threads::find(tx, thread)))
            .await?;
        let named = found.and_then(|thread| thread.metadata.get("assistant_id")?.as_str()?.parse().ok());
        Ok(named)
    }

    /// Answers questions of a thread with one run, which goes on with all of the answers. What it shall do besides is in
    /// `wish`; its assistant and its answers are filled in.
    ///
    /// # Errors
    /// See [`RespondError`]; nothing is stored then.
    pub async fn respond(
        &self,
        thread: ThreadId,
        wish: NewRun,
        replies: &[InterruptReply],
    ) -> Result<Run, RespondError> {
        let assistant = self.assistant_of(thread).await?.ok_or(RespondError::NoRun)?;
        for reply in replies {
            if !self.waits(thread, reply).await? {
                return Err(RespondError::NoInterrupt(reply.interrupt.clone()));
            }
        }
        let answers = replies
            .iter()
            .map(|reply| (reply.interrupt.clone(), reply.answer.clone()))
            .collect();
        let assistant = AssistantRef::Id(assistant);
        let resume = Some(Value::Object(answers));
        match self
            .runs
            .start(NewRun {
                assistant,
                resume,
                target: Target::Thread(thread),
                ..wish
            })
            .await
        {
            Ok(run) => Ok(run),
            Err(error) => match replies.iter().find(|reply| is_about(&error, &reply.interrupt)) {
                // Somebody was quicker.
                Some(reply) => Err(RespondError::NoInterrupt(reply.interrupt.clone())),
                None => Err(error.into()),
            },
        }
    }

    /// Whether the question of a reply waits for an answer, and was asked where the reply says.
    async fn waits(&self, thread: ThreadId, reply: &InterruptReply) -> DbResult<bool> {
        let id = InterruptId(reply.interrupt.clone());
        let place = reply.namespace.clone();
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                let asked = db::interrupts::find(tx, thread, &id).await?;
                let Some(asked) = asked.filter(|asked| asked.status == InterruptState::Pending) else {
                    return Ok(false);
                };
                let Some(place) = place else { return Ok(true) };
                let own = match asked.lane {
                    Lane::Main => String::new(),
                    Lane::Child(child) => {
                        let run = db::runs::get_by_id(tx, child).await?;
                        run.map(|run| run.lineage.checkpoint_ns()).unwrap_or_default()
                    }
                };
                Ok(own == place)
            })
        });
        read.await
    }

    /// Starts a run, once for each key. When questions wait on its thread and the input answers them, it goes on with the answer instead of
    /// taking the input for a new message.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is stored then.
    pub async fn start_or_answer(
        &self,
        mut wish: NewRun,
        key: Option<IdempotencyKey>,
    ) -> Result<Once<Run>, StartError> {
        if let (Target::Thread(thread) | Target::ThreadOrNew(thread), Some(input)) = (&wish.target, &wish.request.input)
        {
            let thread = *thread;
            let open = self
                .core
                .db
                .read(move |tx| Box::pin(resume::pending(tx, thread)))
                .await?;
            if !open.is_empty() && !is_message(&open, input) {
                wish.resume = wish.request.input.take();
            }
        }
        match key {
            None => self.runs.start(wish).await.map(Once::First),
            Some(key) => self.runs.start_once(wish, key, None).await,
        }
    }
}

/// Whether input is rather something new to say than the answer to what waits.
fn is_message(open: &[InterruptRecord], input: &Value) -> bool {
    let answers = match open {
        [only] => only.interrupt.question.check(input).is_ok(),
        _ => false,
    };
    !answers && input.get("messages").is_some()
}

/// Whether a run was refused since this is not a question that waits.
fn is_about(error: &StartError, interrupt: &str) -> bool {
    matches!(error, StartError::Invalid(invalid) if invalid.field == format!("command.resume.{interrupt}"))
}
