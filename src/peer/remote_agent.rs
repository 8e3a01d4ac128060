//! A remote agent: a program that has its work done on another server.
//!
//! One turn is one run there, with the task as input, or with the answers to its questions. The ids of thread and run
//! are derived from the local run, so that after a crash the run is found again and no second one is started. While
//! the other server is down, requests are retried until the configured patience is over.

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
use crate::domain::backoff::Backoff;
use crate::domain::foreign::{admit_answer, admit_update};
use crate::domain::id::RunId;
use crate::domain::interrupt::{Question, answered_remotely};
use crate::domain::limits::Spending;
use crate::domain::machine::Failure;
use crate::domain::message::Message;
use crate::domain::run::{HOPS, LEVELS, RunStatus};
use crate::domain::state::{State, Update};
use crate::net::sse::Frames;
use crate::tool::budget::LIMIT_EXCEEDED;
use crate::tool::{Halt, Runnable, Scope};

mod stream;
mod transcript;

use stream::RemoteMessages;
use transcript::{Transcript, transcript};

/// The class of most failures.
const CLASS: &str = "RemoteAgentError";
/// The number of attempts to cancel a run on the other server.
const CANCEL_ATTEMPTS: u32 = 6;
/// The pauses between these attempts.
const CANCEL_BACKOFF: Backoff = Backoff {
    first: BACKOFF.first,
    factor: 3.0,
    longest: Duration::from_secs(60),
};
/// The maximum number of servers that pass work on as a whole.
const MAX_HOPS: u32 = 8;
/// The number of times that refused answers are sent again.
const MAX_REFUSALS: u32 = 3;

/// An agent on another server, as a program.
#[derive(Clone)]
pub struct RemoteAgent {
    peers: Peers,
    peer: Peer,
    graph_id: Arc<str>,
    step_limit: Option<u32>,
}

impl RemoteAgent {
    /// Creates the agent `graph_id` of this server, with a limit of steps.
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
    /// The run on the other server is found again, so no second one is started.
    fn after_crash(&self) -> AfterCrash {
        AfterCrash::Repeat
    }

    fn keeps_time(&self) -> bool {
        true
    }

    async fn run(&self, scope: &Scope, state: State) -> Result<Update, Halt> {
        // Each execution counts like a model call, with the tokens that the other server reports.
        scope.budget.claim(Spending::ModelCall, scope.now()).await?;
        let order = match scope.subagent {
            Some(_) => RemoteOrder::task(&state),
            None if scope.origin.hops >= MAX_HOPS => return Err(too_many_hops().into()),
            None => RemoteOrder::conversation(&state),
        };
        let turn = Arc::new(RemoteTurn::new(self.clone(), scope));
        let ended = turn.run(order, RemoteMessages::new(Arc::clone(&scope.program))).await;
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

/// Returns the messages before the answer, unless they exceed the limits for JSON from outside.
fn admitted(scope: &Scope, mut before: Update) -> Update {
    match admit_update(&mut before) {
        Ok(()) => before,
        Err(exceeded) => {
            tracing::warn!(agent = %scope.agent, run = %scope.run, %exceeded, "messages of a remote agent exceed the limits and are dropped");
            Update::none()
        }
    }
}

/// Creates the failure for work that servers pass on to each other without end.
fn too_many_hops() -> Failure {
    let message = format!(
        "The work was passed on by {MAX_HOPS} servers, each of whose agents is an agent of the next server. Correct the \
         `url` and the `graph_id` in one of their definitions."
    );
    Failure::new(CLASS, message)
}

/// Returns the thread on the other server for a local run.
pub fn remote_thread(peer: Peer, run: RunId) -> RemoteThread {
    RemoteThread {
        peer,
        thread: Uuid::new_v5(&run.0, b"thread"),
    }
}

/// The result of a turn.
enum TurnResult {
    /// The turn is complete.
    Done(Box<Transcript>),
    /// Humans have to answer these questions first.
    Questions(Vec<Question>),
}

/// The input of a turn.
struct RemoteOrder {
    /// The messages, as clients of the API write them.
    messages: Value,
    /// The id of the last message, if the other server keeps it.
    last: Option<String>,
}

impl RemoteOrder {
    /// Returns the description of the work of a subagent.
    fn task(state: &State) -> Self {
        let order = state.messages.newest(Message::is_human);
        let text = order.map(|message| message.content.text()).unwrap_or_default();
        Self {
            messages: json!([{"role": "user", "content": text}]),
            last: None,
        }
    }

    /// Returns the conversation of a main agent. The thread on this server is the conversation, and every turn has a
    /// thread of its own on the other server, so forks, copies and changes of this thread need nothing there.
    fn conversation(state: &State) -> Self {
        Self {
            messages: json!(state.messages),
            last: state.messages.last().and_then(|message| message.id.clone()),
        }
    }
}

/// One turn: one run on the other server.
struct RemoteTurn {
    agent: RemoteAgent,
    scope: Scope,
    /// The local run; the same after a crash.
    caller: RunId,
    remote: RemoteThread,
    /// The key of the turn: it differs between turns, and is the same after a crash.
    key: String,
    /// The run on the other server, once it is known.
    run: Mutex<Option<Uuid>>,
    /// True if a run was requested, which may start even if its response is not awaited.
    asked: AtomicBool,
}

impl RemoteTurn {
    fn new(agent: RemoteAgent, scope: &Scope) -> Self {
        let caller = scope.subagent.unwrap_or(scope.origin.first);
        Self {
            remote: remote_thread(agent.peer.clone().with_trace(scope.trace.context()), caller),
            key: format!("{caller}-{}", scope.program.asked),
            agent,
            scope: scope.clone(),
            caller,
            run: Mutex::default(),
            asked: AtomicBool::default(),
        }
    }

    /// Runs the turn, or continues to wait for it. If the caller gives up for good, the remote run is cancelled.
    async fn run(self: Arc<Self>, order: RemoteOrder, mut stream: RemoteMessages) -> Result<TurnResult, Failure> {
        let mut guard = CancelGuard {
            turn: Arc::clone(&self),
            is_due: None,
        };
        let time_left = self.scope.budget.time_left(self.scope.now());
        let working = self.work(order, &mut stream);
        let ended = match time_left {
            None => working.await,
            Some((time, _)) => timeout(time, working).await.unwrap_or_else(|_| Err(self.timed_out())),
        };
        guard.is_due = Some(ended.is_err());
        ended
    }

    async fn work(&self, order: RemoteOrder, stream: &mut RemoteMessages) -> Result<TurnResult, Failure> {
        let last = order.last;
        let run = if self.scope.answers.is_empty() {
            self.asked.store(true, Ordering::Relaxed);
            let begun = self
                .remote
                .create_and_start(
                    &self.metadata(),
                    self.run_request(Some(order.messages), &[]),
                    &self.key,
                    self.agent.peers.patience,
                )
                .await;
            begun.map_err(|failed| self.start_failed(&failed))?
        } else {
            self.send_answers(stream).await?
        };
        let (run, state) = self.outcome(run, stream).await?;
        match run.status {
            RunStatus::Success => {}
            RunStatus::Interrupted => return Err(self.failed("its run was cancelled there")),
            RunStatus::Error | RunStatus::Timeout | RunStatus::Pending | RunStatus::Running => {
                return Err(self.failed(&self.read_failure(run.status).await?));
            }
        }
        let questions = state.questions();
        if !questions.is_empty() {
            return Ok(TurnResult::Questions(
                questions.into_iter().map(question::to_question).collect(),
            ));
        }
        let result = transcript(&state.values, last.as_deref()).map_err(|why| self.failed(why))?;
        Ok(TurnResult::Done(Box::new(result)))
    }

    /// Sends the answers and returns the run that continues. Questions that are no longer open were answered on the
    /// other server; then its newest run is the result.
    async fn send_answers(&self, stream: &mut RemoteMessages) -> Result<PeerRun, Failure> {
        let mut refusals = 0;
        loop {
            let runs = self.with_retries(|| self.remote.runs()).await?;
            if let Some(begun) = runs.iter().find(|run| run.has_key(&self.key)) {
                return Ok(begun.clone());
            }
            let newest = runs.into_iter().next();
            if let Some(run) = newest.clone().filter(|run| !run.status.is_final()) {
                // Another client has continued the thread.
                self.wait_for(run, stream).await?;
                continue;
            }
            let questions = self.state().await?.questions();
            let is_open = |question: &Question| questions.iter().any(|asked| is_asked(asked.id.as_deref(), question));
            let answers = self.scope.answers.iter();
            let answers = answers.filter(|(question, answer)| *answer != answered_remotely() && is_open(question));
            let answers: Vec<_> = answers.cloned().collect();
            if answers.is_empty() {
                return newest.ok_or_else(|| self.failed("its run was not found there"));
            }
            self.asked.store(true, Ordering::Relaxed);
            match self.start_run(self.run_request(None, &answers)).await {
                Ok(run) => return Ok(run),
                // The question may have been answered there in the meantime.
                Err(failed) if failed.error.is_refusal() && refusals < MAX_REFUSALS => refusals += 1,
                Err(failed) => return Err(self.start_failed(&failed)),
            }
        }
    }

    /// Waits until no run is active and returns the last run with the thread's state. Another client may have
    /// continued the thread after this run.
    async fn outcome(&self, mut run: PeerRun, stream: &mut RemoteMessages) -> Result<(PeerRun, PeerState), Failure> {
        loop {
            run = self.wait_for(run, stream).await?;
            let state = self.state().await?;
            match self.with_retries(|| self.remote.newest()).await? {
                Some(newer) if newer.run_id != run.run_id => run = newer,
                Some(_) | None => return Ok((run, state)),
            }
        }
    }

    async fn state(&self) -> Result<PeerState, Failure> {
        let state = self.with_retries(|| self.agent.peer.state(self.remote.thread)).await?;
        state.ok_or_else(|| self.failed("its thread was not found there"))
    }

    async fn start_run(&self, request: RemoteRunRequest) -> Result<PeerRun, StartFailed> {
        let patience = self.agent.peers.patience;
        self.remote.start_run(request, &self.key, patience).await
    }

    fn start_failed(&self, failed: &StartFailed) -> Failure {
        self.asked.store(!failed.is_certain, Ordering::Relaxed);
        self.unavailable(&failed.error)
    }

    /// Returns the request for a run, with its input or with the answers to the questions.
    fn run_request(&self, input: Option<Value>, answers: &[(Arc<Question>, Value)]) -> RemoteRunRequest {
        let mut metadata = self.metadata();
        let levels = self.scope.budget.max_depth().saturating_sub(self.scope.depth);
        metadata.insert(LEVELS.to_owned(), levels.into());
        if self.scope.subagent.is_none() {
            metadata.insert(HOPS.to_owned(), (self.scope.origin.hops + 1).into());
        }
        let steps = self.agent.step_limit.into_iter().chain(self.scope.step_limit).min();
        RemoteRunRequest {
            assistant_id: self.agent.graph_id.to_string(),
            input: input.map(|messages| json!({"messages": messages})),
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

    /// Returns the metadata for readers of the thread on the other server.
    fn metadata(&self) -> Map<String, Value> {
        let path = &self.scope.path;
        let entries = [
            ("subagent_name", json!(path.last())),
            ("parent_thread_id", json!(self.scope.thread)),
            ("parent_agent_path", json!(path)),
        ];
        entries
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }

    /// Waits until the run has ended. Its stream is read if there is a free slot; otherwise the run is polled.
    async fn wait_for(&self, mut run: PeerRun, stream: &mut RemoteMessages) -> Result<PeerRun, Failure> {
        let peer = &self.agent.peer;
        let id = run.run_id;
        let before = self.run.lock().unwrap_or_else(PoisonError::into_inner).replace(id);
        if before.is_some_and(|before| before != id) {
            stream.restart();
        }
        let mut polls = 0;
        while !run.status.is_final() {
            if let Ok(listener) = self.agent.peers.listeners.try_acquire() {
                if self.listen(id, stream).await? {
                    polls = 0;
                }
                drop(listener);
            }
            let found = self.with_retries(|| peer.run(self.remote.thread, id)).await?;
            run = found.ok_or_else(|| self.failed("its run was not found there"))?;
            if !run.status.is_final() {
                polls += 1;
                sleep(BACKOFF.spread_pause(polls, self.remote.thread)).await;
            }
        }
        Ok(run)
    }

    /// Reads the stream of the run until it ends, or until nothing arrives for too long; then the run is polled.
    /// Returns false if nothing was received.
    async fn listen(&self, run: Uuid, stream: &mut RemoteMessages) -> Result<bool, Failure> {
        let Ok(mut response) = self
            .agent
            .peer
            .listen(self.remote.thread, run, stream.last_event())
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

    /// Returns the reason why the run failed.
    async fn read_failure(&self, status: RunStatus) -> Result<String, Failure> {
        let thread = self.with_retries(|| self.agent.peer.thread(self.remote.thread)).await?;
        let what = if status == RunStatus::Timeout {
            "its run took too long there"
        } else {
            "its run failed there"
        };
        let reason_given = thread.and_then(|thread| failure(&thread));
        Ok(reason_given.map_or_else(|| what.to_owned(), |reason_given| format!("{what} with {reason_given}")))
    }

    /// Repeats a request until it succeeds, for as long as the configured patience allows.
    async fn with_retries<T, F>(&self, ask: impl Fn() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, PeerError>>,
    {
        self.remote
            .with_retries(self.agent.peers.patience, ask)
            .await
            .map_err(|error| self.unavailable(&error))
    }

    /// Creates the failure for a request that failed for good.
    fn unavailable(&self, error: &PeerError) -> Failure {
        let is_given_up = error.is_transient() || matches!(error, PeerError::Refused { status: 409, .. });
        if is_given_up {
            self.failed_for_good(error)
        } else {
            self.failed(&error.to_string())
        }
    }

    fn failed(&self, why: &str) -> Failure {
        let graph_id = &self.agent.graph_id;
        let url = self.agent.peer.display_url();
        Failure::new(CLASS, format!("The agent `{graph_id}` at {url}: {why}."))
    }

    fn failed_for_good(&self, error: &PeerError) -> Failure {
        self.failed(&format!(
            "{error}, for {} seconds (the setting `[peers] patience_s`)",
            self.agent.peers.patience.as_secs()
        ))
    }

    fn timed_out(&self) -> Failure {
        let failure = self.failed("it did not finish within its time limit (`wall_s`)");
        Failure::new(LIMIT_EXCEEDED, failure.message)
    }

    /// Cancels the remote run, if there is one. Returns false if a run was requested but does not exist yet.
    async fn cancel(&self) -> Result<bool, PeerError> {
        let known = *self.run.lock().unwrap_or_else(PoisonError::into_inner);
        let run = match known {
            Some(run) => Some(run),
            None => self.remote.find(&self.key).await?.map(|run| run.run_id),
        };
        match run {
            Some(run) => self.agent.peer.cancel(self.remote.thread, run).await.map(|_| true),
            None => Ok(!self.asked.load(Ordering::Relaxed)),
        }
    }
}

/// Cancels the remote run when dropped, unless it is still wanted.
struct CancelGuard {
    turn: Arc<RemoteTurn>,
    /// True if the run has to be cancelled; none while it is awaited.
    is_due: Option<bool>,
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        let scope = &self.turn.scope;
        // On shutdown the remote run continues, and the next process waits for it.
        let is_due = self
            .is_due
            .unwrap_or_else(|| scope.stop.is_cancelled() && !scope.program.leave.is_cancelled());
        if !is_due {
            return;
        }
        let turn = Arc::clone(&self.turn);
        let leave = scope.program.leave.clone();
        let cancelling = async move {
            for attempts in 1..=CANCEL_ATTEMPTS {
                match turn.cancel().await {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(error) => {
                        let run = turn.caller;
                        let url = turn.agent.peer.display_url();
                        tracing::warn!(%run, %url, %error, "could not cancel a run on another server");
                    }
                }
                sleep(CANCEL_BACKOFF.pause(attempts)).await;
            }
        };
        let cancelling = async move { leave.run_until_cancelled(cancelling).await.unwrap_or_default() };
        (self.turn.agent.peers.spawn)("dismissal", cancelling.boxed());
    }
}
