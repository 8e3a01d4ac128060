//! A reviewer whose client reconnects: after each crash it reads where the thread stands, and does what is left to do.

use std::collections::BTreeMap;
use std::sync::Arc;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::super::random::Random;
use crate::support::TestServer;
use crate::support::client::{Client, Disconnected, Reply};
use crate::support::tools::{Tools, answer_with_effect};

/// A user of the treasurer on a thread of their own.
pub(super) struct Reviewer {
    client: Client,
    tools: Tools,
    random: Random,
    /// The id of the thread.
    pub(super) thread: String,
    /// The last event seen of each run.
    positions: BTreeMap<String, String>,
    /// The decisions about calls with an unknown outcome, the latest last.
    pub(super) decisions: Vec<Decision>,
    /// The number of answers so far.
    answers: usize,
    progress: Arc<watch::Sender<Progress>>,
}

/// The progress of a reviewer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// The number of events received.
    pub(super) events: usize,
    /// The number of answers that the server accepted.
    pub(super) accepted: usize,
}

/// A decision about a call with an unknown outcome.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decision {
    /// The id of the call.
    pub(super) call: String,
    /// `approve`, `respond` or `reject`.
    pub(super) kind: &'static str,
}

/// The limit on the steps of a conversation, far more than it needs.
const MAX_STEPS: usize = 100;

/// The reason that the reviewer gives for a rejection.
pub(super) const REJECTION: &str = "the outcome is unknown";

impl Reviewer {
    /// Creates a reviewer with a new thread on this server.
    pub(super) fn of(server: &TestServer, random: Random) -> Self {
        Self::on(server, random, uuid::Uuid::new_v4().to_string())
    }

    /// Creates a reviewer with this thread.
    pub(super) fn on(server: &TestServer, random: Random, thread: String) -> Self {
        Self {
            client: server.client(),
            tools: server.tools.clone(),
            random,
            thread,
            positions: BTreeMap::new(),
            decisions: vec![],
            answers: 0,
            progress: Arc::default(),
        }
    }

    /// Uses another server on the same database from now on.
    pub(super) fn moves_to(&mut self, server: &TestServer) {
        self.client = server.client();
    }

    /// Returns the progress, which changes as the reviewer goes on.
    pub(super) fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Reply, Disconnected> {
        let reply = self.client.tries(method, path, body).await?;
        assert!(reply.status < 500, "{path}: {reply:?}");
        Ok(reply)
    }

    /// Reads something below the thread.
    pub(super) async fn get(&self, rest: &str) -> Result<Value, Disconnected> {
        let path = format!("/threads/{}{rest}", self.thread);
        Ok(self.request(Method::GET, &path, None).await?.ok())
    }

    /// Posts something below the thread.
    pub(super) async fn post(&self, rest: &str, body: &Value) -> Result<Reply, Disconnected> {
        let path = format!("/threads/{}{rest}", self.thread);
        self.request(Method::POST, &path, Some(body)).await
    }

    /// Starts a run with this message, and follows and answers it to its end, over all crashes of the server.
    pub(super) async fn completes(&mut self, message: &str) {
        for _ in 0..MAX_STEPS {
            // After a broken connection, the next step reads again where the thread stands.
            if let Ok(true) = self.takes_a_step(message).await {
                return;
            }
        }
        panic!("the conversation does not come to an end");
    }

    /// Does the next thing that is left to do. Returns true if there is none.
    async fn takes_a_step(&mut self, message: &str) -> Result<bool, Disconnected> {
        self.creates_thread().await?;
        let runs = self.get("/runs?limit=1000").await?;
        let runs = runs.as_array().expect("a list");
        if runs.is_empty() {
            self.starts(message).await?;
            return Ok(false);
        }
        let is_unfinished = |run: &&Value| run["status"] == "running" || run["status"] == "pending";
        if let Some(run) = runs.iter().rev().find(is_unfinished) {
            self.follows(run["run_id"].as_str().expect("an id")).await?;
            return Ok(false);
        }
        let pending = self.get("/interrupts?status=pending").await?;
        let pending = pending["interrupts"].as_array().expect("a list");
        if pending.is_empty() {
            return Ok(true);
        }
        self.answers(pending).await?;
        Ok(false)
    }

    /// Creates the thread unless it exists.
    pub(super) async fn creates_thread(&self) -> Result<(), Disconnected> {
        let thread = json!({"thread_id": self.thread, "if_exists": "do_nothing"});
        self.request(Method::POST, "/threads", Some(&thread)).await.map(drop)
    }

    /// Starts the run and returns its id.
    pub(super) async fn starts(&self, message: &str) -> Result<String, Disconnected> {
        let body = json!({
            "assistant_id": "treasurer",
            "input": {"messages": [{"role": "user", "content": message}]},
            "stream_mode": ["updates", "messages-tuple"],
            "stream_subgraphs": true,
            "stream_resumable": true,
        });
        let run = self.post("/runs", &body).await?.ok();
        Ok(run["run_id"].as_str().expect("an id").to_owned())
    }

    /// Follows a run to its end, from behind the last event seen of it.
    pub(super) async fn follows(&mut self, run: &str) -> Result<(), Disconnected> {
        let path = format!("/threads/{}/runs/{run}/stream", self.thread);
        let last_event_id = self.positions.get(run).map_or("-1", String::as_str);
        let mut stream = self.client.tries_stream(&path, last_event_id).await?;
        while let Some(frame) = stream.try_next().await.map_err(|_| Disconnected)? {
            self.progress.send_modify(|progress| progress.events += 1);
            if let Some(id) = &frame.id {
                self.remembers(run, id);
            }
        }
        Ok(())
    }

    /// Remembers the position in the stream of a run. Positions never go back, not even after a crash.
    fn remembers(&mut self, run: &str, id: &str) {
        let before = self.positions.insert(run.to_owned(), id.to_owned());
        let Some(before) = before else { return };
        assert!(
            position(&before) <= position(id),
            "the stream went from {before} to {id}"
        );
    }

    /// Answers all pending interrupts or the first one, through the approvals resource or by a command.
    async fn answers(&mut self, pending: &[Value]) -> Result<(), Disconnected> {
        let answers_all = self.random.once_in(2);
        let by_command = self.answers % 2 == 1;
        self.answers += 1;
        let answered = if answers_all && by_command {
            pending
        } else {
            &pending[..1]
        };
        let answers: Vec<(String, Value)> = answered.iter().map(|question| self.answer_to(question)).collect();
        let reply = match answers.as_slice() {
            [(id, answer)] if !by_command => self.post(&format!("/interrupts/{id}/resolve"), answer).await?,
            [(_, answer)] if pending.len() == 1 => self.resumes(answer.clone()).await?,
            several => self.resumes(Value::Object(several.iter().cloned().collect())).await?,
        };
        assert!(matches!(reply.status, 200 | 202), "{answers:?}: {reply:?}");
        self.progress.send_modify(|progress| progress.accepted += 1);
        Ok(())
    }

    async fn resumes(&self, answer: Value) -> Result<Reply, Disconnected> {
        let body = json!({
            "assistant_id": "treasurer",
            "command": {"resume": answer},
            "stream_mode": ["updates"],
            "stream_resumable": true,
        });
        self.post("/runs", &body).await
    }

    /// Returns the id of an interrupt and the answer to it: calls are approved. For a call with an unknown outcome the
    /// reviewer looks at the tool, as a human would, and takes one of the decisions that make sense.
    fn answer_to(&mut self, question: &Value) -> (String, Value) {
        let id = question["id"].as_str().expect("an id").to_owned();
        let requests = question["value"]["action_requests"].as_array().expect("a list");
        let decisions: Vec<Value> = match question["kind"].as_str() {
            Some("tool_approval") => vec![json!({"type": "approve"}); requests.len()],
            Some("unknown_outcome") => requests.iter().map(|request| self.decides(request)).collect(),
            other => panic!("an unexpected question: {other:?}"),
        };
        (id, json!({"decisions": decisions}))
    }

    fn decides(&mut self, request: &Value) -> Value {
        let call = request["tool_call_id"].as_str().expect("an id").to_owned();
        let took_effect = self.tools.calls().iter().any(|made| made["key"] == call);
        let kind = match took_effect {
            _ if self.random.once_in(3) => "reject",
            true => "respond",
            false => "approve",
        };
        self.decisions.push(Decision { call, kind });
        match kind {
            "respond" => {
                let tool = request["name"].as_str().expect("a name");
                json!({"type": "respond", "message": answer_with_effect(tool, &request["args"])})
            }
            "reject" => json!({"type": "reject", "message": REJECTION}),
            _ => json!({"type": "approve"}),
        }
    }
}

/// Returns the order of an event id: the event, and the number of its piece. Behind that, an id says how much of an
/// answer was sent, which may still grow.
fn position(id: &str) -> (i64, u32) {
    let cursor = id.split('~').next().unwrap_or_default();
    let (seq, piece) = cursor.split_once('-').unwrap_or((cursor, "4294967295"));
    (seq.parse().expect("a number"), piece.parse().expect("a number"))
}
