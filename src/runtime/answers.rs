//! The handle for interrupts: clients read and answer them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::background::BackgroundTasks;
use super::error::{AssignedToOthers, ResolveError, StartError};
use super::interrupts::{NOT_OPEN, check_answers, open_at, record_attempt};
use super::new_run::{ANSWERS, AssistantRef, NewRun, Resolution, Target};
use super::runs::Runs;
use super::shared::Core;
use crate::db::checkpoints::Head;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbResult, Tx};
use crate::domain::Invalid;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{AssistantId, InterruptId, RunId, ThreadId};
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome};
use crate::domain::identity::Identity;
use crate::domain::input::read_input;
use crate::domain::machine::Phase;
use crate::domain::run::{QueueTurn, Run, RunRequest, RunStatus};
use crate::domain::state::State;

mod remembered;
mod remote;

/// The handle for interrupts: reads and answers them. Cheap to clone.
#[derive(Clone)]
pub struct Interrupts {
    pub(super) core: Arc<Core>,
    pub(super) runs: Runs,
    pub(super) tasks: BackgroundTasks,
}

impl Interrupts {
    pub(super) fn new(runs: Runs, tasks: BackgroundTasks) -> Self {
        Self {
            core: Arc::clone(&runs.core),
            runs,
            tasks,
        }
    }
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
                | StartError::Forbidden(_)
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
        let mut is_answer = false;
        if let (Target::Thread(thread) | Target::ThreadOrNew(thread), Some(input)) =
            (&new_run.target, &new_run.request.input)
        {
            let thread = *thread;
            let checkpoint = new_run.request.checkpoint;
            let read = self.core.db.read(move |tx| Box::pin(open_at(tx, thread, checkpoint)));
            let open = read.await?;
            if !open.is_empty() && !is_message(&open, input) {
                new_run.resume = new_run.request.input.take().map(Resolution::Answered);
                is_answer = true;
            }
        }
        let started = match key {
            None => self.runs.start(new_run).await.map(IdempotentOutcome::First),
            Some(key) => self.runs.start_once(new_run, key, None).await,
        };
        started.map_err(|refusal| if is_answer { in_input(refusal) } else { refusal })
    }

    /// Makes the request for a run that continues where its thread has stopped, and takes no input. It stays as it is if the
    /// thread has not stopped within a turn, or the turn is that of another node of the program. The run brings those of the
    /// `answers` by interrupt id for which the thread waits.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn continue_turn(&self, new_run: &mut NewRun, answers: &Map<String, Value>) -> DbResult<()> {
        let Some(input) = &new_run.request.input else {
            return Ok(());
        };
        let begins = new_run.request.checkpoint.is_none();
        let Some(thread) = new_run.target.thread().filter(|_| begins) else {
            return Ok(());
        };
        let sent = NodeInput {
            input: input.clone(),
            node: node_of(&new_run.metadata).cloned(),
        };
        let read = self.core.db.read(move |tx| {
            Box::pin(async move {
                let open = open_at(tx, thread, None).await?;
                let head = db::checkpoints::head(tx, thread, Lane::Main).await?;
                let is_within_turn = head.as_ref().is_some_and(|head| head.position.phase != Phase::Ended);
                let continues = (is_within_turn || !open.is_empty()) && sent.is_of_turn(tx, thread, head).await?;
                Ok((continues, open))
            })
        });
        let (continues, open) = read.await?;
        if !continues {
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

    /// Checks that the caller may answer an interrupt of this thread. A refusal is recorded in the audit.
    ///
    /// # Errors
    /// Returns the interrupt, which is assigned to others.
    fn check_answer(
        &self,
        caller: &Identity,
        thread: ThreadId,
        record: &InterruptRecord,
    ) -> Result<(), AssignedToOthers> {
        let checked = check_answers(caller, [record]);
        if let Err(assigned) = &checked {
            record_attempt(&self.core, caller, thread, assigned);
        }
        checked
    }
}

/// The key in the metadata of a run under which a program of LangGraph names its node and the task of the node.
const NODE: &str = "langgraph_checkpoint_ns";

/// Returns the node of a program, and its task, for which a run works.
fn node_of(metadata: &Map<String, Value>) -> Option<&Value> {
    metadata.get(NODE).filter(|node| node.is_string())
}

/// Returns the names in a node with its task: those of the subgraphs around the node, and its own.
fn names_of(node: &Value) -> Vec<&str> {
    let parts = node.as_str().unwrap_or_default().split('|');
    parts.map(|part| part.split(':').next().unwrap_or_default()).collect()
}

/// The input of a node of a program that continues.
struct NodeInput {
    input: Value,
    /// The node and its task, if the program names them.
    node: Option<Value>,
}

impl NodeInput {
    /// Returns whether the turn on a thread, which is not over, is that of this node, so that the node sends its input again.
    /// Nodes at the same time have one thread: another one may be at work, or have stopped. `head` is the newest checkpoint.
    async fn is_of_turn(&self, tx: &mut Tx<'_>, thread: ThreadId, head: Option<Head>) -> DbResult<bool> {
        let mut at_work = db::runs::in_flight(tx, thread).await?;
        // The input may also wait for the turn of another node.
        if at_work.iter().any(|run| self.is_of_node_of(run) == Some(true)) {
            return Ok(true);
        }
        at_work.retain(|run| run.status == RunStatus::Running || run.request.turn() == QueueTurn::Answer);
        if at_work.is_empty() {
            return self.is_of_stopped_turn(tx, thread, head).await;
        }
        if at_work.iter().all(|run| self.is_of_node_of(run).is_some()) {
            return Ok(false);
        }
        if at_work
            .iter()
            .any(|run| run.request.input.as_ref() == Some(&self.input))
        {
            return Ok(true);
        }
        self.is_on_thread(tx, thread, head).await
    }

    /// Returns whether the turn that has stopped at `head` is that of this node.
    async fn is_of_stopped_turn(&self, tx: &mut Tx<'_>, thread: ThreadId, head: Option<Head>) -> DbResult<bool> {
        let Some(last) = head.as_ref().and_then(|head| head.run) else {
            return Ok(true);
        };
        let Some(last) = db::runs::get_by_id(tx, last).await? else {
            return Ok(true);
        };
        match self.is_of_node_of(&last) {
            Some(true) | None => Ok(true),
            // In a program that has branched off, the same node has another task.
            Some(false) if self.has_name_of_node_of(&last) => self.is_on_thread(tx, thread, head).await,
            Some(false) => Ok(false),
        }
    }

    /// Returns whether the messages of the input are on the thread, whose newest checkpoint is `head`.
    async fn is_on_thread(&self, tx: &mut Tx<'_>, thread: ThreadId, head: Option<Head>) -> DbResult<bool> {
        let (machine, _) = db::checkpoints::machine_of(tx, thread, head).await?;
        Ok(self.is_in(&machine.state))
    }

    /// Returns whether a run works for the same node; none if that is not known.
    fn is_of_node_of(&self, run: &Run) -> Option<bool> {
        let node = self.node.as_ref()?;
        node_of(&run.metadata).map(|other| other == node)
    }

    /// Returns whether a run works for a node with the same name, whatever its task is.
    fn has_name_of_node_of(&self, run: &Run) -> bool {
        self.node.as_ref().map(names_of) == node_of(&run.metadata).map(names_of)
    }

    /// Returns whether the messages of the input are in a state.
    fn is_in(&self, state: &State) -> bool {
        let messages = read_input(&self.input).unwrap_or_default().messages;
        let all = state.messages.all();
        let known: BTreeSet<&str> = all.iter().filter_map(|message| message.id.as_deref()).collect();
        let is_known = |id: &str| known.contains(id) || state.messages.has_left(id);
        !messages.is_empty()
            && messages
                .iter()
                .all(|message| message.id.as_deref().is_some_and(is_known))
    }
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
    let is_not_open =
        |invalid: &Invalid| invalid.reason == NOT_OPEN && invalid.field == format!("{ANSWERS}.{interrupt}");
    matches!(error, StartError::StaleInterrupt(id, _) if id.0 == interrupt)
        || matches!(error, StartError::Invalid(invalid) if is_not_open(invalid))
}

/// Returns a refusal that names the answer in `command.resume`, with the field `input` in which it was given.
fn in_input(mut refusal: StartError) -> StartError {
    if let StartError::Invalid(invalid) = &mut refusal
        && let Some(place) = invalid.field.strip_prefix(ANSWERS)
    {
        invalid.field = format!("input{place}");
    }
    refusal
}
