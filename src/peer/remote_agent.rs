//! An agent on another server, as a program here.
//!
//! One turn of it is a run there: its order, or the answers to what it asked. Thread and run are found again
//! by ids that follow from the run here: a server that dies meanwhile comes back to the run that is under way, and no second
//! one is begun. What the other server makes of the time of its own death is its affair; here it is waited for with
//! patience.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::FutureExt;
use serde_json::{Map, Value, json};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::client::{Peer, PeerError, Peers, RemoteRunRequest};
use super::question::{self, is_asked};
use super::remote_thread::{BACKOFF, RemoteThread, StartFailed, failure};
use super::responses::{PeerRun, PeerState};
use crate::definition::AfterCrash;
use crate::domain::backoff::spread;
use crate::domain::foreign::{admit_answer, admit_update};
use crate::domain::id::RunId;
use crate::domain::interrupt::{Question, answered_remotely};
use crate::domain::limits::Spending;
use crate::domain::machine::Failure;
use crate::domain::run::{LEVELS, RunStatus};
use crate::domain::state::{State, Update};
use crate::net::sse::Frames;
use crate::tool::budget::LIMIT_EXCEEDED;
use crate::tool::{Halt, Runnable, Scope};

mod stream;
mod transcript;

use stream::RemoteMessages;
use transcript::{Transcript, transcript};

/// The class of most errors.
const CLASS: &str = "RemoteAgentError";
/// How often it is tried to tell the other server that work is not wanted any more.
const CANCEL_ATTEMPTS: u32 = 6;
/// How often answers are taken there that are not wanted.
const REFUSALS: u32 = 3;

/// An agent on another server: a program that has the work done there.
#[derive(Clone)]
pub struct RemoteAgent {
    peers: Peers,
    peer: Peer,
    graph_id: Arc<str>,
    step_limit: Option<u32>,
}

impl RemoteAgent {
    /// The agent `graph_id` of this server, which may take so many steps.
    pub fn new(peers: Peers, peer: Peer, graph_id: &str, step_limit: Option<u32>) -> Self {
        Self {
            peers,
            peer,
            graph_id: graph_id.into(),
            step_limit,
        }
    }
}

#[async_trait]
impl Runnable for RemoteAgent {
    /// The run there is found again, and no second one is begun.
    fn after_crash(&self) -> AfterCrash {
        AfterCrash::Repeat
    }

    fn keeps_time(&self) -> bool {
        true
    }

    async fn run(&self, scope: &Scope, state: State) -> Result<Update, Halt> {
        // Like a model, it counts each time when it is asked, and the tokens that it says it used.
        scope.budget.claim(Spending::ModelCall, scope.now()).await?;
        let order = state.messages.iter().rev().find(|message| message.is_human());
        let order = order.map(|message| message.content.text()).unwrap_or_default();
        let turn = Arc::new(RemoteTurn::new(self.clone(), scope));
        let ended = turn.take(order, RemoteMessages::new(Arc::clone(&scope.program))).await;
        let result = match ended {
            Ok(TurnResult::Done(result)) => result,
            Ok(TurnResult::Questions(questions)) => return Err(Halt::Ask(questions)),
            Err(failure) => {
                tracing::warn!(agent = %scope.agent, run = %scope.run, error = %failure.message, "remote agent failed");
                return Err(failure.into());
            }
        };
        let Transcript { before, mut answer } = *result;
        let before = admitted(scope, before);
        admit_answer(&mut answer);
        answer.name = Some(scope.agent.clone());
        scope
            .budget
            .add_tokens_of(before.messages.iter().map(AsRef::as_ref).chain([&answer]));
        scope.budget.settle(scope.now()).await;
        scope.program.write(before).await;
        Ok(Update::messages([answer]))
    }
}

/// What the agent wrote before its answer, if it is within the limits of what comes from outside.
fn admitted(scope: &Scope, mut before: Update) -> Update {
    match admit_update(&mut before) {
        Ok(()) => before,
        Err(exceeded) => {
            tracing::warn!(agent = %scope.agent, run = %scope.run, %exceeded, "what a remote agent wrote was left out");
            Update::none()
        }
    }
}

/// Where a run from here has its work done.
pub fn remote_thread(peer: Peer, run: RunId) -> RemoteThread {
    RemoteThread {
        peer,
        thread: Uuid::new_v5(&run.0, b"thread"),
    }
}

/// The result of a turn.
enum TurnResult {
    /// It is done.
    Done(Box<Transcript>),
    /// Humans have to answer these first.
    Questions(Vec<Question>),
}

/// One turn: a run there.
struct RemoteTurn {
    agent: RemoteAgent,
    scope: Scope,
    /// The run that has the work done; the same when it is run again after a crash.
    caller: RunId,
    place: RemoteThread,
    /// What tells one turn from the next, and is the same when the turn is taken again after a crash.
    key: String,
    /// The run there, once it is known.
    run: Mutex<Option<Uuid>>,
    /// Whether one was asked for: it may begin after the answer is not waited for any more.
    asked: AtomicBool,
}

impl RemoteTurn {
    fn new(agent: RemoteAgent, scope: &Scope) -> Self {
        let caller = scope.subagent.unwrap_or(scope.run);
        Self {
            place: remote_thread(agent.peer.clone(), caller),
            key: format!("{caller}-{}", scope.program.asked),
            agent,
            scope: scope.clone(),
            caller,
            run: Mutex::default(),
            asked: AtomicBool::default(),
        }
    }

    /// Has the work done, or goes on waiting for it. Whoever stops waiting for good has it stopped there as well.
    async fn take(self: Arc<Self>, order: String, mut stream: RemoteMessages) -> Result<TurnResult, Failure> {
        let mut guard = CancelGuard {
            turn: Arc::clone(&self),
            is_due: None,
        };
        let time_left = self.scope.budget.time_left(self.scope.now());
        let working = self.work(order, &mut stream);
        let ended = match time_left {
            None => working.await,
            Some((time, _)) => timeout(time, working).await.unwrap_or_else(|_| Err(self.out_of_time())),
        };
        guard.is_due = Some(ended.is_err());
        ended
    }

    async fn work(&self, order: String, stream: &mut RemoteMessages) -> Result<TurnResult, Failure> {
        let run = if self.scope.answers.is_empty() {
            self.asked.store(true, Ordering::Relaxed);
            let begun = self
                .place
                .create_and_start(&self.metadata(), self.run_request(Some(order), &[]), &self.key, self.agent.peers.patience)
                .await;
            begun.map_err(|failed| self.start_failed(&failed))?
        } else {
            self.answered(stream).await?
        };
        let (run, state) = self.outcome(run, stream).await?;
        match run.status {
            RunStatus::Success => {}
            RunStatus::Interrupted => return Err(self.failed("its run was cancelled there")),
            RunStatus::Error | RunStatus::Timeout | RunStatus::Pending | RunStatus::Running => {
                return Err(self.failed(&self.reason(run.status).await?));
            }
        }
        let questions = state.questions();
        if !questions.is_empty() {
            return Ok(TurnResult::Questions(
                questions.into_iter().map(question::to_question).collect(),
            ));
        }
        let result = transcript(&state.values).map_err(|why| self.failed(why))?;
        Ok(TurnResult::Done(Box::new(result)))
    }

    /// Takes the answers there; returns the run that goes on with them. A question that is not asked there any more was
    /// settled there: then it is gone on with whatever came of that.
    async fn answered(&self, stream: &mut RemoteMessages) -> Result<PeerRun, Failure> {
        let mut refusals = 0;
        loop {
            let runs = self.with_retries(|| self.place.runs()).await?;
            if let Some(begun) = runs.iter().find(|run| run.has_key(&self.key)) {
                return Ok(begun.clone());
            }
            let newest = runs.into_iter().next();
            if let Some(run) = newest.clone().filter(|run| !run.status.is_final()) {
                // Somebody there was quicker.
                self.wait_for(run, stream).await?;
                continue;
            }
            let questions = self.state().await?.questions();
            let is_open = |question: &Question| questions.iter().any(|asked| is_asked(asked.id.as_deref(), question));
            let answers = self.scope.answers.iter();
            let answers = answers.filter(|(question, answer)| *answer != answered_remotely() && is_open(question));
            let answers: Vec<_> = answers.cloned().collect();
            if answers.is_empty() {
                return newest.ok_or_else(|| self.failed("its run is not known there any more"));
            }
            self.asked.store(true, Ordering::Relaxed);
            match self.start_run(self.run_request(None, &answers)).await {
                Ok(run) => return Ok(run),
                // What was asked may have been settled in between.
                Err(failed) if failed.error.is_refusal() && refusals < REFUSALS => refusals += 1,
                Err(failed) => return Err(self.start_failed(&failed)),
            }
        }
    }

    /// What the work came to once nothing is at work there any more, and where the thread stands then. Somebody there may
    /// have gone on with what this run came to.
    async fn outcome(&self, mut run: PeerRun, stream: &mut RemoteMessages) -> Result<(PeerRun, PeerState), Failure> {
        loop {
            run = self.wait_for(run, stream).await?;
            let state = self.state().await?;
            match self.with_retries(|| self.place.newest()).await? {
                Some(newer) if newer.run_id != run.run_id => run = newer,
                Some(_) | None => return Ok((run, state)),
            }
        }
    }

    async fn state(&self) -> Result<PeerState, Failure> {
        let state = self.with_retries(|| self.agent.peer.state(self.place.thread)).await?;
        state.ok_or_else(|| self.failed("its thread is gone there"))
    }

    async fn start_run(&self, request: RemoteRunRequest) -> Result<PeerRun, StartFailed> {
        let patience = self.agent.peers.patience;
        self.place.start_run(request, &self.key, patience).await
    }

    fn start_failed(&self, failed: &StartFailed) -> Failure {
        self.asked.store(!failed.is_certain, Ordering::Relaxed);
        self.lost(&failed.error)
    }

    /// A run there, with what it is told first or the answers to what it asked.
    fn run_request(&self, input: Option<String>, answers: &[(Question, Value)]) -> RemoteRunRequest {
        let mut metadata = self.metadata();
        let levels = self.scope.budget.floor().saturating_sub(self.scope.depth);
        metadata.insert(LEVELS.to_owned(), levels.into());
        let steps = self.agent.step_limit.into_iter().chain(self.scope.step_limit).min();
        RemoteRunRequest {
            assistant_id: self.agent.graph_id.to_string(),
            input: input.map(|text| json!({"messages": [{"role": "user", "content": text}]})),
            command: (!answers.is_empty()).then(|| json!({"resume": question::resume(answers)})),
            metadata,
            stream_mode: vec!["messages-tuple"],
            stream_resumable: true,
            multitask_strategy: "reject",
            config: steps
                .map(|limit| ("recursion_limit".to_owned(), limit.into()))
                .into_iter()
                .collect(),
            ..RemoteRunRequest::default()
        }
    }

    /// What those read who look at the thread there.
    fn metadata(&self) -> Map<String, Value> {
        let path = &self.scope.path;
        let notes = [
            ("subagent_name", json!(path.last())),
            ("parent_thread_id", json!(self.scope.thread)),
            ("parent_agent_path", json!(path)),
        ];
        notes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Waits until the run is over. It is listened to if there is room, and else looked at now and then.
    async fn wait_for(&self, mut run: PeerRun, stream: &mut RemoteMessages) -> Result<PeerRun, Failure> {
        let peer = &self.agent.peer;
        let id = run.run_id;
        let before = self.run.lock().unwrap_or_else(PoisonError::into_inner).replace(id);
        if before.is_some_and(|before| before != id) {
            stream.restart();
        }
        let mut looks = 0;
        while !run.status.is_final() {
            if let Ok(listener) = self.agent.peers.listeners.try_acquire() {
                if self.listen(id, stream).await? {
                    looks = 0;
                }
                drop(listener);
            }
            let found = self.with_retries(|| peer.run(self.place.thread, id)).await?;
            run = found.ok_or_else(|| self.failed("its run is not known there any more"))?;
            if !run.status.is_final() {
                looks += 1;
                sleep(spread(BACKOFF.pause(looks), self.place.thread)).await;
            }
        }
        Ok(run)
    }

    /// Passes on what the run tells until it has nothing more to tell, or nothing arrives for too long: then it is looked
    /// whether the run is at work. False if nothing was heard at all.
    async fn listen(&self, run: Uuid, stream: &mut RemoteMessages) -> Result<bool, Failure> {
        let Ok(mut response) = self
            .agent
            .peer
            .listen(self.place.thread, run, stream.last_event())
            .await
        else {
            return Ok(false);
        };
        let limits = self.agent.peer.answers;
        let mut frames = Frames::up_to(limits.max_event_bytes);
        let mut has_received = false;
        while let Ok(Some(bytes)) = response.next().await {
            has_received = true;
            if !stream.receives(bytes.len(), limits.max_stream_bytes) {
                let most = limits.max_stream_bytes;
                let why = format!(
                    "it streamed more than {most} bytes in one turn (the setting `[answers] max_remote_stream_bytes`)"
                );
                return Err(self.failed(&why));
            }
            for frame in frames.take(&bytes) {
                stream.pass_on(frame).await;
            }
        }
        Ok(has_received)
    }

    /// Why the run failed.
    async fn reason(&self, status: RunStatus) -> Result<String, Failure> {
        let thread = self.with_retries(|| self.agent.peer.thread(self.place.thread)).await?;
        let what = if status == RunStatus::Timeout {
            "its run took too long there"
        } else {
            "its run failed there"
        };
        let told = thread.and_then(|thread| failure(&thread));
        Ok(told.map_or_else(|| what.to_owned(), |told| format!("{what} with {told}")))
    }

    /// Asks until there is an answer, for as long as the owner has patience.
    async fn with_retries<T, F>(&self, ask: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, PeerError>>,
    {
        self.place
            .with_retries(self.agent.peers.patience, ask)
            .await
            .map_err(|error| self.lost(&error))
    }

    /// That the other server is of no use, or was not for too long.
    fn lost(&self, error: &PeerError) -> Failure {
        let is_given_up = error.is_transient() || matches!(error, PeerError::Refused { status: 409, .. });
        if is_given_up {
            self.given_up(error)
        } else {
            self.failed(&error.to_string())
        }
    }

    fn failed(&self, why: &str) -> Failure {
        let graph_id = &self.agent.graph_id;
        let place = self.agent.peer.place();
        Failure::new(CLASS, format!("The agent `{graph_id}` at {place}: {why}."))
    }

    fn given_up(&self, error: &PeerError) -> Failure {
        self.failed(&format!(
            "{error}, for {} seconds (the setting `[peers] patience_s`)",
            self.agent.peers.patience.as_secs()
        ))
    }

    fn out_of_time(&self) -> Failure {
        let failure = self.failed("it had not come to an end when its time (`wall_s`) was over");
        Failure::new(LIMIT_EXCEEDED, failure.message)
    }

    /// Has the run cancelled there, if there is one. False if one was asked for that cannot be seen yet.
    async fn cancel(&self) -> Result<bool, PeerError> {
        let known = *self.run.lock().unwrap_or_else(PoisonError::into_inner);
        let run = match known {
            Some(run) => Some(run),
            None => self.place.find(&self.key).await?.map(|run| run.run_id),
        };
        match run {
            Some(run) => self.agent.peer.cancel(self.place.thread, run).await.map(|_| true),
            None => Ok(!self.asked.load(Ordering::Relaxed)),
        }
    }
}

/// Has the run there cancelled when it is dropped and the work is not wanted any more.
struct CancelGuard {
    turn: Arc<RemoteTurn>,
    /// Whether the work is not wanted; not known while it is waited for.
    is_due: Option<bool>,
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        let scope = &self.turn.scope;
        // A server that leaves only stops waiting.
        let is_due = self
            .is_due
            .unwrap_or_else(|| scope.stop.is_cancelled() && !scope.program.leave.is_cancelled());
        if !is_due {
            return;
        }
        let turn = Arc::clone(&self.turn);
        let leave = scope.program.leave.clone();
        let cancelling = async move {
            let mut pause = BACKOFF.first;
            for _ in 0..CANCEL_ATTEMPTS {
                match turn.cancel().await {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(error) => {
                        let run = turn.caller;
                        let place = turn.agent.peer.place();
                        tracing::warn!(%run, %place, %error, "could not have work stopped at another server");
                    }
                }
                sleep(pause).await;
                pause *= 3;
            }
        };
        let cancelling = async move { leave.run_until_cancelled(cancelling).await.unwrap_or_default() };
        (self.turn.agent.peers.spawn)("dismissal", cancelling.boxed());
    }
}
