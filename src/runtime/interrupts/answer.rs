//! Answers of clients to interrupts.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::approvers::check_answers;
use super::branches::{LaterOpen, OpenAt, open_at, place_of};
use super::{Interrupts, remember};
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbResult, Tx};
use crate::domain::Invalid;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{AssistantId, CheckpointId, InterruptId, RunId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome};
use crate::domain::identity::Identity;
use crate::domain::interrupt::is_id;
use crate::domain::machine::Phase;
use crate::domain::run::{Resume, Run, RunRequest};
use crate::runtime::error::{ResolveError, StartError};
use crate::runtime::new_run::{AssistantRef, NewRun, Resolution, Target};

/// The answer of a resolution, by the interrupts that it answers.
#[derive(Default)]
pub(super) struct MatchedAnswer {
    /// The answers; none if the resolution has none.
    pub(super) answers: Option<Resume>,
    /// The open interrupts, among which are those that a client has answered.
    pub(super) open: Vec<InterruptRecord>,
    /// The checkpoint at which the interrupts wait that a client has answered.
    pub(super) place: Option<CheckpointId>,
}

impl MatchedAnswer {
    /// Returns answers that the server gives.
    pub(super) fn of_server(answers: Resume) -> Self {
        Self {
            answers: Some(answers),
            ..Self::default()
        }
    }
}

/// Assigns the answer of a client to the open interrupts at the checkpoint that its run names, or at the newest one, and
/// checks it. An answer by ids that are not open there goes to the branch on which they are. `open` are the open interrupts, if
/// they are to be read already.
///
/// # Errors
/// Returns the refusal of an answer that does not fit, or is not the caller's to give.
pub(super) async fn match_answer(
    tx: &mut Tx<'_>,
    run: &Run,
    answer: &Value,
    caller: &Identity,
    open: Option<LaterOpen>,
) -> Result<MatchedAnswer, StartError> {
    let thread = run.thread;
    let mut branch = run.request.checkpoint;
    let later = match open {
        Some(later) => later,
        None => LaterOpen::begin(tx, thread).await?,
    };
    let OpenAt { mut open, newest } = later.at(tx, branch).await?;
    if branch.is_none()
        && let Some(id) = id_elsewhere(&open, answer)
        && let Some(record) = db::interrupts::find(tx, thread, &id).await?
        && record.status == InterruptState::Pending
        && let Some(place) = place_of(tx, &record).await?
    {
        branch = Some(place);
        open = open_at(tx, thread, branch).await?;
    }
    check_in_time(tx, thread, &open, answer).await?;
    let answers = assign(&open, answer)?;
    check_answers(caller, answers.iter().map(|(record, _)| *record))?;
    let mut checked = Resume::default();
    for (record, answer) in answers {
        let question = &record.interrupt.question;
        let answer = question.normalised(answer);
        question.check(&answer)?;
        remember::check(record, &answer)?;
        checked.insert(record.interrupt.id.clone(), answer);
    }
    Ok(MatchedAnswer {
        answers: Some(checked),
        open,
        place: branch.or(newest),
    })
}

/// Returns the first id in an answer by ids of which none is open.
fn id_elsewhere(open: &[InterruptRecord], answer: &Value) -> Option<InterruptId> {
    let by_id = answers_by_id(answer)?;
    let is_open = |id: &String| open.iter().any(|record| record.interrupt.id.0 == *id);
    let first = by_id.keys().next()?;
    (!by_id.keys().any(is_open)).then(|| InterruptId(first.clone()))
}

/// Returns the answers by interrupt id, if the answer has that form.
fn answers_by_id(answer: &Value) -> Option<&Map<String, Value>> {
    answer
        .as_object()
        .filter(|map| !map.is_empty() && map.keys().all(|key| is_id(key)))
}

/// Refuses answers to interrupts of a thread that are not open any more.
async fn check_in_time(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    open: &[InterruptRecord],
    answer: &Value,
) -> Result<(), StartError> {
    let mut named: Vec<InterruptId> = answers_by_id(answer)
        .into_iter()
        .flat_map(Map::keys)
        .map(|id| InterruptId(id.clone()))
        .collect();
    named.retain(|id| open.iter().all(|record| record.interrupt.id != *id));
    for id in named {
        let found = db::interrupts::find(tx, thread, &id).await?;
        if let Some(record) = found.filter(|record| record.status != InterruptState::Pending) {
            return Err(StartError::StaleInterrupt(id, record.status.word()));
        }
    }
    Ok(())
}

/// An answer to one interrupt.
#[derive(Debug, Clone, PartialEq)]
pub struct InterruptReply {
    /// The id of the interrupt.
    pub interrupt: String,
    /// The checkpoint namespace of the agent that raised it, if it is to be checked.
    pub namespace: Option<String>,
    /// The answer.
    pub answer: Value,
}

/// The refusal of answers to interrupts.
#[derive(Debug, thiserror::Error)]
pub enum RespondError {
    /// The thread does not exist, or no run has been at work on it.
    #[error("no run is bound to this thread")]
    NoRun,
    /// The thread has no such interrupt, or the interrupt does not wait for an answer.
    #[error("no question {0} waits for an answer")]
    NoInterrupt(String),
    /// The run that would continue with the answers was not started.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl From<db::DbError> for RespondError {
    fn from(error: db::DbError) -> Self {
        Self::Start(error.into())
    }
}

/// The state of an interrupt for a client that brings an answer.
enum AnswerState {
    /// The interrupt is open, raised by an agent of this assistant.
    Open(AssistantId),
    /// The interrupt has the same answer already, which this run brought.
    AnsweredBy(RunId),
}

impl Interrupts {
    /// Answers one interrupt. Returns the run that continues with the answer; the same answer again returns the same
    /// run.
    ///
    /// # Errors
    /// Returns the refusal; nothing is stored then.
    pub async fn resolve(
        &self,
        thread: ThreadId,
        interrupt: InterruptId,
        answer: Value,
        caller: Arc<Identity>,
    ) -> Result<RunId, ResolveError> {
        let assistant = match self.answer_state(thread, &interrupt, &answer, &caller).await {
            Ok(AnswerState::Open(assistant)) => assistant,
            Ok(AnswerState::AnsweredBy(run)) => return Ok(run),
            Err(ResolveError::NoInterrupt) => return self.resolve_remotely(thread, &interrupt, answer, &caller).await,
            Err(error) => return Err(error),
        };
        let request = RunRequest {
            stream_mode: vec!["values".to_owned()],
            ..RunRequest::default()
        };
        let new_run = NewRun {
            target: Target::Thread(thread),
            assistant: AssistantRef::Id(assistant),
            caller: Arc::clone(&caller),
            request,
            resume: Some(Resolution::AnsweredAlone(interrupt.clone(), answer.clone())),
            metadata: Map::new(),
            after: Duration::ZERO,
        };
        match self.runs.start(new_run).await {
            Ok(run) => Ok(run.id),
            // The run that raised the interrupt may have been undone.
            Err(StartError::Invalid(invalid)) => match self.answer_state(thread, &interrupt, &answer, &caller).await? {
                AnswerState::Open(_) => Err(ResolveError::Invalid(invalid)),
                AnswerState::AnsweredBy(run) => Ok(run),
            },
            // Another client has answered first.
            Err(StartError::StaleInterrupt(_, status)) => {
                match self.answer_state(thread, &interrupt, &answer, &caller).await? {
                    AnswerState::Open(_) => Err(ResolveError::Stale(status)),
                    AnswerState::AnsweredBy(run) => Ok(run),
                }
            }
            Err(StartError::Fault(error)) => Err(error.into()),
            Err(StartError::Quota(reached)) => Err(reached.into()),
            Err(StartError::AssignedToOthers(assigned) | StartError::WaitsForApprovers(assigned)) => {
                Err(assigned.into())
            }
            // Answers are not refused because of the queue.
            Err(StartError::Busy | StartError::QueueFull(_) | StartError::ThreadFull(_)) => Err(ResolveError::Busy),
            Err(StartError::ModelNotAllowed(reason)) => Err(ResolveError::ModelNotAllowed(reason)),
            Err(StartError::NoAssistant(_) | StartError::NoAgent { .. }) => Err(ResolveError::NoAgent),
            Err(
                StartError::NoThread(_)
                | StartError::ForbiddenByPolicy(_)
                | StartError::PriorityNotAllowed
                | StartError::NoCheckpoint(_)
                | StartError::QuestionPending(_)
                | StartError::NoOpenInterrupt
                | StartError::AmbiguousAnswer(_)
                | StartError::ResumeNeedsThread,
            ) => Err(ResolveError::NoInterrupt),
        }
    }

    /// Returns the state of an interrupt for a client that brings this answer.
    async fn answer_state(
        &self,
        thread: ThreadId,
        interrupt: &InterruptId,
        answer: &Value,
        caller: &Identity,
    ) -> Result<AnswerState, ResolveError> {
        let id = interrupt.clone();
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                let Some(record) = db::interrupts::find(tx, thread, &id).await? else {
                    return Ok(None);
                };
                let run = db::runs::get_by_id(tx, record.run).await?;
                Ok(Some((record, run.map(|run| run.assistant))))
            })
        });
        let (record, assistant) = read.await?.ok_or(ResolveError::NoInterrupt)?;
        self.check_answer(caller, thread, &record)?;
        let same = record.interrupt.question.normalised(answer.clone());
        match (record.status, record.resumed_by) {
            (InterruptState::Pending, _) => assistant.map(AnswerState::Open).ok_or(ResolveError::NoAgent),
            (InterruptState::Resolved, Some(by)) if record.resolution == Some(same) => Ok(AnswerState::AnsweredBy(by)),
            (status, _) => Err(ResolveError::Stale(status.word())),
        }
    }

    /// Returns the assistant of the newest run on a thread, if there is one.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn assistant_of(&self, thread: ThreadId) -> DbResult<Option<AssistantId>> {
        let found = self
            .core
            .db
            .read(move |tx| Box::pin(db::threads::find(tx, thread)))
            .await?;
        let named = found.and_then(|thread| thread.metadata.get("assistant_id")?.as_str()?.parse().ok());
        Ok(named)
    }

    /// Answers interrupts of a thread with one run, which continues with all of the answers. The assistant and the
    /// answers are filled into `new_run`.
    ///
    /// # Errors
    /// Returns the refusal; nothing is stored then.
    pub async fn respond(
        &self,
        thread: ThreadId,
        new_run: NewRun,
        replies: &[InterruptReply],
    ) -> Result<Run, RespondError> {
        let assistant = self.assistant_of(thread).await?.ok_or(RespondError::NoRun)?;
        for reply in replies {
            if !self.is_open(thread, reply).await? {
                return Err(RespondError::NoInterrupt(reply.interrupt.clone()));
            }
        }
        let answers = replies
            .iter()
            .map(|reply| (reply.interrupt.clone(), reply.answer.clone()))
            .collect();
        let assistant = AssistantRef::Id(assistant);
        let resume = Some(Resolution::Answered(Value::Object(answers)));
        match self
            .runs
            .start(NewRun {
                assistant,
                resume,
                target: Target::Thread(thread),
                ..new_run
            })
            .await
        {
            Ok(run) => Ok(run),
            Err(error) => match replies.iter().find(|reply| is_about(&error, &reply.interrupt)) {
                // Another client answered first.
                Some(reply) => Err(RespondError::NoInterrupt(reply.interrupt.clone())),
                None => Err(error.into()),
            },
        }
    }

    /// Returns whether the interrupt of a reply is open and was raised in the namespace that the reply names.
    async fn is_open(&self, thread: ThreadId, reply: &InterruptReply) -> DbResult<bool> {
        let id = InterruptId(reply.interrupt.clone());
        let place = reply.namespace.clone();
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                let record = db::interrupts::find(tx, thread, &id).await?;
                let Some(record) = record.filter(|record| record.status == InterruptState::Pending) else {
                    return Ok(false);
                };
                let Some(place) = place else { return Ok(true) };
                let own = match record.lane {
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

    /// Starts a run, once per key. If its thread has open interrupts and the input answers them, the run continues with
    /// that answer instead of taking the input as a new message.
    ///
    /// # Errors
    /// Returns the refusal; nothing is stored then.
    pub async fn start_or_answer(
        &self,
        mut new_run: NewRun,
        key: Option<IdempotencyKey>,
    ) -> Result<IdempotentOutcome<Run>, StartError> {
        if let (Target::Thread(thread) | Target::ThreadOrNew(thread), Some(input)) =
            (&new_run.target, &new_run.request.input)
        {
            let thread = *thread;
            let checkpoint = new_run.request.checkpoint;
            let read = self.core.db.read(move |tx| Box::pin(open_at(tx, thread, checkpoint)));
            let open = read.await?;
            if !open.is_empty() && !is_message(&open, input) {
                new_run.resume = new_run.request.input.take().map(Resolution::Answered);
            }
        }
        match key {
            None => self.runs.start(new_run).await.map(IdempotentOutcome::First),
            Some(key) => self.runs.start_once(new_run, key, None).await,
        }
    }

    /// Makes the request for a run that continues where its thread has stopped, and takes no input. It stays as it is if the
    /// thread has not stopped within a turn. The run brings those of the `answers` by interrupt id for which the thread waits.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn continue_turn(&self, new_run: &mut NewRun, answers: &Map<String, Value>) -> DbResult<()> {
        let begins = new_run.request.input.is_some() && new_run.request.checkpoint.is_none();
        let Some(thread) = new_run.target.thread().filter(|_| begins) else {
            return Ok(());
        };
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                let open = open_at(tx, thread, None).await?;
                let head = db::checkpoints::head(tx, thread, Lane::Main).await?;
                let has_stopped = head.is_some_and(|head| head.position.phase != Phase::Ended);
                Ok((has_stopped || !open.is_empty(), open))
            })
        });
        let (has_stopped, open) = read.await?;
        if !has_stopped {
            return Ok(());
        }
        let ids = open.iter().map(|record| &record.interrupt.id.0);
        let given: Map<String, Value> = ids
            .filter_map(|id| Some((id.clone(), answers.get(id)?.clone())))
            .collect();
        new_run.request.input = None;
        if !given.is_empty() {
            new_run.resume = Some(Resolution::Answered(Value::Object(given)));
        }
        Ok(())
    }
}

/// Assigns the answers to the open interrupts.
fn assign<'a>(open: &'a [InterruptRecord], answer: &Value) -> Result<Vec<(&'a InterruptRecord, Value)>, StartError> {
    let ids = || {
        open.iter()
            .map(|record| record.interrupt.id.clone())
            .collect::<Vec<_>>()
    };
    if let Some(by_id) = answers_by_id(answer) {
        let find = |(id, answer): (&String, &Value)| {
            let record = open.iter().find(|record| record.interrupt.id.0 == *id);
            let record = record.ok_or_else(|| {
                Invalid::new(
                    format!("command.resume.{id}"),
                    "is not the id of a question that waits for an answer",
                )
            })?;
            Ok((record, answer.clone()))
        };
        return by_id.iter().map(find).collect();
    }
    match (open, answer) {
        ([], _) => Err(StartError::NoOpenInterrupt),
        (open, Value::Array(list)) if open.iter().all(|record| record.interrupt.question.wants_decisions()) => {
            in_order(open, list)
        }
        ([only], _) => Ok(vec![(only, answer.clone())]),
        _ => Err(StartError::AmbiguousAnswer(ids())),
    }
}

/// Assigns a list: one answer for each interrupt, or one decision for each tool call in question.
fn in_order<'a>(open: &'a [InterruptRecord], list: &[Value]) -> Result<Vec<(&'a InterruptRecord, Value)>, StartError> {
    let are_decisions = list.iter().all(|one| one.get("type").is_some());
    let calls: usize = open.iter().map(|record| record.interrupt.question.calls.len()).sum();
    if are_decisions && list.len() == calls {
        let mut rest = list;
        let mut take = |record: &'a InterruptRecord| {
            let (own, after) = rest.split_at(record.interrupt.question.calls.len());
            rest = after;
            (record, json!({"decisions": own}))
        };
        return Ok(open.iter().map(&mut take).collect());
    }
    if !are_decisions && list.len() == open.len() {
        let answer = |one: &Value| {
            if one.is_array() {
                json!({"decisions": one})
            } else {
                one.clone()
            }
        };
        return Ok(open.iter().zip(list.iter().map(answer)).collect());
    }
    let wanted = format!(
        "must be a list of {calls} decisions, one for each call, or of {} answers, one for each question; it has {} entries",
        open.len(),
        list.len()
    );
    Err(Invalid::new("command.resume", wanted).into())
}

/// Returns whether input is a new message rather than an answer to the open interrupts.
fn is_message(open: &[InterruptRecord], input: &Value) -> bool {
    let answers = match open {
        [only] => only.interrupt.question.check(input).is_ok(),
        _ => false,
    };
    !answers && input.get("messages").is_some()
}

/// Returns whether a run was refused because this interrupt is not open.
fn is_about(error: &StartError, interrupt: &str) -> bool {
    matches!(error, StartError::StaleInterrupt(id, _) if id.0 == interrupt)
        || matches!(error, StartError::Invalid(invalid) if invalid.field == format!("command.resume.{interrupt}"))
}
