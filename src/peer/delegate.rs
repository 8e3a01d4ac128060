//! An agent on another server that stands in for a language model here.
//!
//! One turn of it is a run there: what it is told first, or the answers to what it asked. Thread and run are found again
//! by ids that follow from who asks: a server that dies meanwhile comes back to the run that is under way, and no second
//! one is begun. What the other server makes of the time of its own death is its affair; here it is waited for with
//! patience.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::FutureExt;
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::answers::{PeerRun, PeerState};
use super::client::{Peer, PeerError, Peers, RunOrder};
use super::question::{self, is_asked};
use super::workplace::{BACKOFF, NotBegun, Workplace, failure};
use crate::domain::backoff::spread;
use crate::domain::id::RunId;
use crate::domain::interrupt::{Question, settled_elsewhere};
use crate::domain::run::{LEVELS, RunStatus};
use crate::model::{Errand, Model, ModelError, ModelEvent, ModelRequest};
use crate::net::sse::Frames;

mod speech;
mod transcript;

use speech::Speech;
use transcript::transcript;

/// The class of most errors.
const CLASS: &str = "RemoteAgentError";
/// How many events may wait to be passed on.
const ROOM: usize = 64;
/// How often it is tried to tell the other server that work is not wanted any more.
const DISMISSALS: u32 = 6;
/// How often answers are taken there that are not wanted.
const REFUSALS: u32 = 3;

/// An agent on another server.
#[derive(Clone)]
pub struct Delegate {
    peers: Peers,
    peer: Peer,
    graph_id: Arc<str>,
    step_limit: Option<u32>,
}

impl Delegate {
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
impl Model for Delegate {
    fn identity(&self) -> (&str, &str) {
        ("agent", &self.graph_id)
    }

    fn stands_in(&self) -> bool {
        true
    }

    async fn ask(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError> {
        let Some(errand) = request.errand else {
            return Err(ModelError::Misconfigured {
                message: "nobody says who asks".to_owned(),
            });
        };
        let told = request.messages.iter().rev().find(|message| message.is_human());
        let told = told.map(|message| message.content.text()).unwrap_or_default();
        let (say, heard) = mpsc::channel(ROOM);
        let place = workplace(self.peer.clone(), errand.run);
        let run = Mutex::default();
        let asked = AtomicBool::default();
        let turn = Turn {
            place,
            key: key_of(&errand),
            to: self.clone(),
            errand,
            run,
            asked,
        };
        let end = Arc::new(turn).take(told, Speech::new(say.clone()));
        let work = async move { drop(say.send(end.await).await) }.boxed();
        Ok(stream::unfold((heard, Some(work)), |(mut heard, mut work)| async move {
            loop {
                let Some(working) = &mut work else {
                    return heard.recv().await.map(|event| (event, (heard, None)));
                };
                tokio::select! {
                    biased;
                    Some(event) = heard.recv() => return Some((event, (heard, work))),
                    () = working => work = None,
                }
            }
        })
        .boxed())
    }
}

/// Where a run from here has its work done.
pub fn workplace(peer: Peer, run: RunId) -> Workplace {
    Workplace {
        peer,
        thread: Uuid::new_v5(&run.0, b"thread"),
    }
}

/// What tells one turn from the next, and is the same when the turn is taken again after a crash.
fn key_of(errand: &Errand) -> String {
    format!("{}-{}", errand.run, errand.questions)
}

/// One turn: a run there.
struct Turn {
    to: Delegate,
    errand: Arc<Errand>,
    place: Workplace,
    key: String,
    /// The run, once it is known.
    run: Mutex<Option<Uuid>>,
    /// Whether one was asked for: it may begin after the answer is not waited for any more.
    asked: AtomicBool,
}

impl Turn {
    /// Has the work done, or goes on waiting for it. Whoever stops waiting for good has it stopped there as well.
    async fn take(self: Arc<Self>, told: String, mut speech: Speech) -> Result<ModelEvent, ModelError> {
        let mut dismissal = Dismissal {
            turn: Arc::clone(&self),
            is_due: None,
        };
        let working = self.work(told, &mut speech);
        let ended = match self.errand.time {
            None => working.await,
            Some(time) => timeout(time, working).await.unwrap_or_else(|_| Err(self.out_of_time())),
        };
        dismissal.is_due = Some(ended.is_err());
        ended
    }

    async fn work(&self, told: String, speech: &mut Speech) -> Result<ModelEvent, ModelError> {
        let run = match self.errand.answers.is_empty() {
            true => {
                self.asked.store(true, Ordering::Relaxed);
                let begun = self
                    .place
                    .begin(&self.notes(), self.order(Some(told), &[]), self.key())
                    .await;
                begun.map_err(|not_begun| self.not_begun(&not_begun))?
            }
            false => self.answered(speech).await?,
        };
        let (run, state) = self.outcome(run, speech).await?;
        match run.status {
            RunStatus::Success => {}
            RunStatus::Interrupted => return Err(self.failed("its run was cancelled there")),
            RunStatus::Error | RunStatus::Timeout | RunStatus::Pending | RunStatus::Running => {
                return Err(self.failed(&self.reason(run.status).await?));
            }
        }
        let questions = state.questions();
        if !questions.is_empty() {
            return Ok(ModelEvent::Asks(
                questions.into_iter().map(question::passed_on).collect(),
            ));
        }
        let (heard, answer) = transcript(&state.values).map_err(|why| self.failed(why))?;
        speech.heard(heard).await;
        Ok(ModelEvent::Done(Box::new(answer)))
    }

    /// Takes the answers there; returns the run that goes on with them. A question that is not asked there any more was
    /// settled there: then it is gone on with whatever came of that.
    async fn answered(&self, speech: &mut Speech) -> Result<PeerRun, ModelError> {
        let mut refusals = 0;
        loop {
            let runs = self.patiently(|| self.place.runs()).await?;
            if let Some(begun) = runs.iter().find(|run| run.is_errand(&self.key)) {
                return Ok(begun.clone());
            }
            let newest = runs.into_iter().next();
            if let Some(run) = newest.clone().filter(|run| !run.status.is_final()) {
                // Somebody there was quicker.
                self.wait_for(run, speech).await?;
                continue;
            }
            let questions = self.state().await?.questions();
            let is_open = |question: &Question| questions.iter().any(|asked| is_asked(asked.id.as_deref(), question));
            let answers = self.errand.answers.iter();
            let answers = answers.filter(|(question, answer)| *answer != settled_elsewhere() && is_open(question));
            let answers: Vec<_> = answers.cloned().collect();
            if answers.is_empty() {
                return newest.ok_or_else(|| self.failed("its run is not known there any more"));
            }
            self.asked.store(true, Ordering::Relaxed);
            match self.place.order(self.order(None, &answers), self.key()).await {
                Ok(run) => return Ok(run),
                // What was asked may have been settled in between.
                Err(not_begun) if not_begun.error.is_refusal() && refusals < REFUSALS => refusals += 1,
                Err(not_begun) => return Err(self.not_begun(&not_begun)),
            }
        }
    }

    /// What the work came to once nothing is at work there any more, and where the thread stands then. Somebody there may
    /// have gone on with what this run came to.
    async fn outcome(&self, mut run: PeerRun, speech: &mut Speech) -> Result<(PeerRun, PeerState), ModelError> {
        loop {
            run = self.wait_for(run, speech).await?;
            let state = self.state().await?;
            match self.patiently(|| self.place.newest()).await? {
                Some(newer) if newer.run_id != run.run_id => run = newer,
                Some(_) | None => return Ok((run, state)),
            }
        }
    }

    async fn state(&self) -> Result<PeerState, ModelError> {
        let state = self.patiently(|| self.to.peer.state(self.place.thread)).await?;
        state.ok_or_else(|| self.failed("its thread is gone there"))
    }

    /// What tells this turn from others, and for how long it is tried to begin it.
    fn key(&self) -> (&str, Duration) {
        (&self.key, self.to.peers.patience)
    }

    fn not_begun(&self, not_begun: &NotBegun) -> ModelError {
        self.asked.store(!not_begun.is_certain, Ordering::Relaxed);
        self.lost(&not_begun.error)
    }

    /// A run there, with what it is told first or the answers to what it asked.
    fn order(&self, told: Option<String>, answers: &[(Question, Value)]) -> RunOrder {
        let mut metadata = self.notes();
        if let Some(levels) = self.errand.levels {
            metadata.insert(LEVELS.to_owned(), levels.into());
        }
        let steps = self.to.step_limit.into_iter().chain(self.errand.step_limit).min();
        RunOrder {
            assistant_id: self.to.graph_id.to_string(),
            input: told.map(|told| json!({"messages": [{"role": "user", "content": told}]})),
            command: (!answers.is_empty()).then(|| json!({"resume": question::resume(answers)})),
            metadata,
            stream_mode: vec!["messages-tuple"],
            stream_resumable: true,
            multitask_strategy: "reject",
            config: steps
                .map(|limit| ("recursion_limit".to_owned(), limit.into()))
                .into_iter()
                .collect(),
            ..RunOrder::default()
        }
    }

    /// What those read who look at the thread there.
    fn notes(&self) -> Map<String, Value> {
        let caller = &self.errand.caller;
        let notes = [
            ("subagent_name", json!(caller.path.last())),
            ("parent_thread_id", json!(caller.thread)),
            ("parent_agent_path", json!(caller.path)),
        ];
        notes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Waits until the run is over. It is listened to if there is room, and else looked at now and then.
    async fn wait_for(&self, mut run: PeerRun, speech: &mut Speech) -> Result<PeerRun, ModelError> {
        let peer = &self.to.peer;
        let id = run.run_id;
        let before = self.run.lock().unwrap_or_else(PoisonError::into_inner).replace(id);
        if before.is_some_and(|before| before != id) {
            speech.begins_anew();
        }
        let mut looks = 0;
        while !run.status.is_final() {
            if let Ok(ear) = self.to.peers.ears.try_acquire() {
                if self.listen(id, speech).await? {
                    looks = 0;
                }
                drop(ear);
            }
            let found = self.patiently(|| peer.run(self.place.thread, id)).await?;
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
    async fn listen(&self, run: Uuid, speech: &mut Speech) -> Result<bool, ModelError> {
        let Ok(mut response) = self.to.peer.listen(self.place.thread, run, speech.place()).await else {
            return Ok(false);
        };
        let limits = self.to.peer.answers;
        let mut frames = Frames::up_to(limits.max_event_bytes);
        let mut heard = false;
        while let Ok(Some(bytes)) = response.next().await {
            heard = true;
            if !speech.receives(bytes.len(), limits.max_stream_bytes) {
                let most = limits.max_stream_bytes;
                let why = format!(
                    "it streamed more than {most} bytes in one turn (the setting `[answers] max_remote_stream_bytes`)"
                );
                return Err(self.failed(&why));
            }
            for frame in frames.take(&bytes) {
                speech.pass_on(frame).await;
            }
        }
        Ok(heard)
    }

    /// Why the run failed.
    async fn reason(&self, status: RunStatus) -> Result<String, ModelError> {
        let thread = self.patiently(|| self.to.peer.thread(self.place.thread)).await?;
        let what = if status == RunStatus::Timeout {
            "its run took too long there"
        } else {
            "its run failed there"
        };
        let told = thread.and_then(|thread| failure(&thread));
        Ok(told.map_or_else(|| what.to_owned(), |told| format!("{what} with {told}")))
    }

    /// Asks until there is an answer, for as long as the owner has patience.
    async fn patiently<T, F>(&self, ask: impl Fn() -> F) -> Result<T, ModelError>
    where
        F: Future<Output = Result<T, PeerError>>,
    {
        self.place
            .patiently(self.to.peers.patience, ask)
            .await
            .map_err(|error| self.lost(&error))
    }

    /// That the other server is of no use, or was not for too long.
    fn lost(&self, error: &PeerError) -> ModelError {
        let is_given_up = error.may_pass() || matches!(error, PeerError::Refused { status: 409, .. });
        if is_given_up {
            self.given_up(error)
        } else {
            self.failed(&error.to_string())
        }
    }

    fn failed(&self, why: &str) -> ModelError {
        let graph_id = &self.to.graph_id;
        let place = self.to.peer.place();
        ModelError::Elsewhere {
            class: CLASS.to_owned(),
            message: format!("The agent `{graph_id}` at {place}: {why}."),
        }
    }

    fn given_up(&self, error: &PeerError) -> ModelError {
        self.failed(&format!(
            "{error}, for {} seconds (the setting `[peers] patience_s`)",
            self.to.peers.patience.as_secs()
        ))
    }

    fn out_of_time(&self) -> ModelError {
        let ModelError::Elsewhere { message, .. } =
            self.failed("it had not come to an end when its time (`wall_s`) was over")
        else {
            return self.failed("its time is over");
        };
        ModelError::Elsewhere {
            class: "LimitExceededError".to_owned(),
            message,
        }
    }

    /// Has the run stopped there, if there is one. False if one was asked for that cannot be seen yet.
    async fn dismiss(&self) -> Result<bool, PeerError> {
        let known = *self.run.lock().unwrap_or_else(PoisonError::into_inner);
        let run = match known {
            Some(run) => Some(run),
            None => self.place.find(&self.key).await?.map(|run| run.run_id),
        };
        match run {
            Some(run) => self.to.peer.cancel(self.place.thread, run).await.map(|_| true),
            None => Ok(!self.asked.load(Ordering::Relaxed)),
        }
    }
}

/// Sees to it that work there stops that is not wanted any more.
struct Dismissal {
    turn: Arc<Turn>,
    /// Whether the work is not wanted; not known while it is waited for.
    is_due: Option<bool>,
}

impl Drop for Dismissal {
    fn drop(&mut self) {
        let errand = &self.turn.errand;
        // A server that leaves only stops waiting.
        let is_due = self
            .is_due
            .unwrap_or_else(|| errand.stop.is_cancelled() && !errand.leave.is_cancelled());
        if !is_due {
            return;
        }
        let turn = Arc::clone(&self.turn);
        let leave = errand.leave.clone();
        let telling = async move {
            let mut pause = BACKOFF.first;
            for _ in 0..DISMISSALS {
                match turn.dismiss().await {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(error) => {
                        let run = turn.errand.run;
                        let place = turn.to.peer.place();
                        tracing::warn!(%run, %place, %error, "could not have work stopped at another server");
                    }
                }
                sleep(pause).await;
                pause *= 3;
            }
        };
        let telling = async move { leave.run_until_cancelled(telling).await.unwrap_or_default() };
        (self.turn.to.peers.spawn)("dismissal", telling.boxed());
    }
}
