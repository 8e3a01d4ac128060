//! Answers to open questions that come without the name of an assistant, or in the place of new input.

use serde_json::Value;

use super::{AssistantRef, NewRun, Runs, StartError, Target, resume};
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbResult};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{AssistantId, InterruptId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, Once};
use crate::domain::run::Run;

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

impl Runs {
    /// The assistant whose run was the last to be asked for on a thread; none if there was none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn assistant_of(&self, thread: ThreadId) -> DbResult<Option<AssistantId>> {
        let found = self
            .0
            .db
            .read(move |tx| Box::pin(async move { db::threads::find(tx, thread).await }))
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
        let read = self.0.db.read(move |tx| {
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
                .0
                .db
                .read(move |tx| Box::pin(async move { resume::pending(tx, thread).await }))
                .await?;
            if !open.is_empty() && !is_message(&open, input) {
                wish.resume = wish.request.input.take();
            }
        }
        match key {
            None => self.start(wish).await.map(Once::First),
            Some(key) => self.start_once(wish, key, None).await,
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
