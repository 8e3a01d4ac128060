//! An agent on another server that stands in for a language model here.
//!
//! One turn of it is a run there: what it is told first, or the answers to what it asked. Thread and run are found again
//! by ids that follow from who asks: a server that dies meanwhile comes back to the run that is under way, and no second
//! one is begun. What the other server makes of the time of its own death is its affair; here it is waited for with
//! patience.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::FutureExt;
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::answers::{PeerRun, PeerState, PeerThread};
use super::client::{Peer, PeerError, Peers, RunOrder};
use super::frames::Frames;
use super::question;
use crate::domain::run::{LEVELS, RunStatus};
use crate::model::{Errand, Model, ModelError, ModelEvent, ModelRequest};

mod speech;
mod transcript;

use speech::Speech;
use transcript::transcript;

/// The note on a run by which it is found again.
const ERRAND: &str = "adjutant_errand";
/// The class of most errors.
const CLASS: &str = "RemoteAgentError";
/// The first pause before something is tried or looked at again; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// After how long without a sign of life a stream counts as broken.
const SILENCE: Duration = Duration::from_secs(60);
/// How many of the newest runs of a thread are looked through for one of ours.
const LOOKED_THROUGH: u32 = 20;
/// How many events may wait to be passed on.
const ROOM: usize = 64;
/// How often it is tried to tell the other server that work is not wanted any more.
const DISMISSALS: u32 = 6;

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
        Self { peers, peer, graph_id: graph_id.into(), step_limit }
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
            return Err(ModelError::Misconfigured { message: "nobody says who asks".to_owned() });
        };
        let told = request.messages.iter().rev().find(|message| message.is_human());
        let told = told.map(|message| message.content.text()).unwrap_or_default();
        let (say, heard) = mpsc::channel(ROOM);
        let turn =
            Turn { thread: thread_of(&errand), key: key_of(&errand), to: self.clone(), errand, run: Mutex::default() };
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

/// The thread there on which a run from here has its work done.
fn thread_of(errand: &Errand) -> Uuid {
    Uuid::new_v5(&errand.run.0, b"thread")
}

/// What tells one turn from the next, and is the same when the turn is taken again after a crash.
fn key_of(errand: &Errand) -> String {
    format!("{}-{}", errand.run, errand.questions)
}

/// One turn: a run there.
struct Turn {
    to: Delegate,
    errand: Arc<Errand>,
    thread: Uuid,
    key: String,
    /// The run, once it is known.
    run: Mutex<Option<Uuid>>,
}

impl Turn {
    /// Has the work done, or goes on waiting for it. Whoever stops waiting for good has it stopped there as well.
    async fn take(self: Arc<Self>, told: String, mut speech: Speech) -> Result<ModelEvent, ModelError> {
        let mut dismissal = Dismissal { turn: Arc::clone(&self), is_due: None };
        let working = self.work(told, &mut speech);
        let ended = match self.errand.time {
            None => working.await,
            Some(time) => timeout(time, working).await.unwrap_or_else(|_| Err(self.out_of_time())),
        };
        dismissal.is_due = Some(ended.is_err());
        ended
    }

    async fn work(&self, told: String, speech: &mut Speech) -> Result<ModelEvent, ModelError> {
        let notes = self.notes();
        self.patiently(|| self.to.peer.create_thread(self.thread, &notes)).await?;
        let run = self.begin(told).await?;
        *self.run.lock().unwrap_or_else(PoisonError::into_inner) = Some(run.run_id);
        let run = self.wait_for(run, speech).await?;
        match run.status {
            RunStatus::Success => {}
            RunStatus::Interrupted => return Err(self.failed("its run was cancelled there")),
            RunStatus::Error | RunStatus::Timeout | RunStatus::Pending | RunStatus::Running => {
                return Err(self.failed(&self.reason(run.status).await?));
            }
        }
        let state = self.patiently(|| self.to.peer.state(self.thread)).await?;
        let state: PeerState = state.ok_or_else(|| self.failed("its thread is gone there"))?;
        let questions = state.questions();
        if !questions.is_empty() {
            return Ok(ModelEvent::Asks(questions.into_iter().map(question::passed_on).collect()));
        }
        let (heard, answer) = transcript(&state.values).map_err(|why| self.failed(why))?;
        speech.heard(heard).await;
        Ok(ModelEvent::Done(Box::new(answer)))
    }

    /// The run of this turn: begun before, or begun now.
    async fn begin(&self, told: String) -> Result<PeerRun, ModelError> {
        let (peer, since, mut pause) = (&self.to.peer, Instant::now(), FIRST_PAUSE);
        let order = self.order(told);
        loop {
            let runs = self.patiently(|| peer.runs(self.thread, LOOKED_THROUGH)).await?;
            if let Some(run) = runs.into_iter().find(|run| run.is_noted(ERRAND, &self.key)) {
                return Ok(run);
            }
            match peer.create_run(self.thread, &order, &self.key).await {
                Ok(run) => return Ok(run),
                // Whether it began is not known, or the thread is busy, maybe with this very run: it is looked at again.
                Err(error) if error.may_pass() || matches!(error, PeerError::Refused { status: 409, .. }) => {
                    if since.elapsed() >= self.to.peers.patience {
                        return Err(self.given_up(&error));
                    }
                    sleep(self.spread(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(error) => return Err(self.failed(&error.to_string())),
            }
        }
    }

    fn order(&self, told: String) -> RunOrder {
        let answers = &self.errand.answers;
        let input = || json!({"messages": [{"role": "user", "content": told}]});
        let mut metadata = self.notes();
        metadata.insert(ERRAND.to_owned(), self.key.clone().into());
        if let Some(levels) = self.errand.levels {
            metadata.insert(LEVELS.to_owned(), levels.into());
        }
        RunOrder {
            assistant_id: self.to.graph_id.to_string(),
            input: answers.is_empty().then(input),
            command: (!answers.is_empty()).then(|| json!({"resume": question::resume(answers)})),
            metadata,
            stream_mode: vec!["messages-tuple"],
            stream_resumable: true,
            multitask_strategy: "reject",
            config: self.to.step_limit.map(|limit| ("recursion_limit".to_owned(), limit.into())).into_iter().collect(),
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
        let (peer, id) = (&self.to.peer, run.run_id);
        let mut pause = FIRST_PAUSE;
        while !run.status.is_final() {
            if let Ok(ear) = self.to.peers.ears.try_acquire() {
                if self.listen(id, speech).await {
                    pause = FIRST_PAUSE;
                }
                drop(ear);
            }
            let found = self.patiently(|| peer.run(self.thread, id)).await?;
            run = found.ok_or_else(|| self.failed("its run is not known there any more"))?;
            if !run.status.is_final() {
                sleep(self.spread(pause)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        Ok(run)
    }

    /// Passes on what the run tells until it has nothing more to tell. False if nothing was heard at all.
    async fn listen(&self, run: Uuid, speech: &mut Speech) -> bool {
        let Ok(mut response) = self.to.peer.listen(self.thread, run, speech.place()).await else {
            return false;
        };
        let (mut frames, mut heard) = (Frames::default(), false);
        while let Ok(Ok(Some(bytes))) = timeout(SILENCE, response.chunk()).await {
            heard = true;
            for frame in frames.take(&bytes) {
                speech.pass_on(frame).await;
            }
        }
        heard
    }

    /// Why the run failed.
    async fn reason(&self, status: RunStatus) -> Result<String, ModelError> {
        let thread = self.patiently(|| self.to.peer.thread(self.thread)).await?;
        let told = thread.and_then(|thread: PeerThread| thread.error);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let told = told.and_then(|error| {
            let parts = [text(&error), error.get("error").and_then(text), error.get("message").and_then(text)];
            let parts: Vec<String> = parts.into_iter().flatten().collect();
            (!parts.is_empty()).then(|| parts.join(": "))
        });
        let what = if status == RunStatus::Timeout { "its run took too long there" } else { "its run failed there" };
        let shown = |told: String| told.chars().take(2_000).collect::<String>();
        Ok(told.map_or_else(|| what.to_owned(), |told| format!("{what} with {}", shown(told))))
    }

    /// Asks until there is an answer, for as long as the owner has patience.
    async fn patiently<T, F>(&self, ask: impl Fn() -> F) -> Result<T, ModelError>
    where
        F: Future<Output = Result<T, PeerError>>,
    {
        let (since, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.may_pass() => error,
                Err(error) => return Err(self.failed(&error.to_string())),
            };
            if since.elapsed() + pause > self.to.peers.patience {
                return Err(self.given_up(&error));
            }
            tracing::debug!(run = %self.errand.run, place = %self.to.peer.place(), %error, "another server is out of reach");
            sleep(self.spread(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// A pause of about this length: many that wait for one server shall not come back at one moment.
    fn spread(&self, pause: Duration) -> Duration {
        let share = u32::from(self.errand.run.0.as_bytes()[15]);
        pause * 3 / 4 + pause * share / 512
    }

    fn failed(&self, why: &str) -> ModelError {
        let (graph_id, place) = (&self.to.graph_id, self.to.peer.place());
        ModelError::Elsewhere { class: CLASS.to_owned(), message: format!("The agent `{graph_id}` at {place}: {why}.") }
    }

    fn given_up(&self, error: &PeerError) -> ModelError {
        self.failed(&format!("{error}, for {} seconds", self.to.peers.patience.as_secs()))
    }

    fn out_of_time(&self) -> ModelError {
        let ModelError::Elsewhere { message, .. } =
            self.failed("it had not come to an end when its time (`wall_s`) was over")
        else {
            return self.failed("its time is over");
        };
        ModelError::Elsewhere { class: "LimitExceededError".to_owned(), message }
    }

    /// Has the run stopped there, if there is one.
    async fn dismiss(&self) -> Result<(), PeerError> {
        let known = *self.run.lock().unwrap_or_else(PoisonError::into_inner);
        let run = match known {
            Some(run) => Some(run),
            None => {
                let runs = self.to.peer.runs(self.thread, LOOKED_THROUGH).await?;
                runs.into_iter().find(|run| run.is_noted(ERRAND, &self.key)).map(|run| run.run_id)
            }
        };
        match run {
            Some(run) => self.to.peer.cancel(self.thread, run).await.map(drop),
            None => Ok(()),
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
        let is_due = self.is_due.unwrap_or_else(|| errand.stop.is_cancelled() && !errand.leave.is_cancelled());
        if !is_due {
            return;
        }
        let (turn, leave) = (Arc::clone(&self.turn), errand.leave.clone());
        let telling = async move {
            let mut pause = FIRST_PAUSE;
            for _ in 0..DISMISSALS {
                match turn.dismiss().await {
                    Ok(()) => return,
                    Err(error) => {
                        let (run, place) = (turn.errand.run, turn.to.peer.place());
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
