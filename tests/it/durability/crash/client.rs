//! A client that goes on when the server dies: it waits for the next one, looks where things stand, and does what is
//! left to do.

use std::collections::BTreeMap;
use std::sync::Arc;

use reqwest::{Method, Response};
use serde_json::{Map, Value, json};

use super::chance::Chance;
use super::effects::answer_of;
use super::process::KillableServer;

/// The server went away in the middle.
#[derive(Debug)]
pub(super) struct Gone;

/// A client with a thread of its own.
pub(super) struct Client {
    http: reqwest::Client,
    house: Arc<KillableServer>,
    chance: Chance,
    /// Its thread.
    pub(super) thread: String,
    /// The last event seen of each run.
    positions: BTreeMap<String, String>,
    /// What it decided about calls of unknown outcome, the latest last.
    pub(super) decided: Vec<Decided>,
    /// How many answers it has given.
    answers: u64,
}

/// A decision about a call of which nobody knew whether it took effect.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decided {
    /// The call.
    pub(super) call: String,
    /// `approve`, `respond` or `reject`.
    pub(super) decision: &'static str,
}

/// How many rounds a conversation may take; far more than it needs.
const MOST_ROUNDS: usize = 100;

/// What a reviewer says who reports a call as failed.
pub(super) const REFUSED: &str = "nobody knows";

impl Client {
    /// A client of `house`.
    pub(super) fn of(house: &Arc<KillableServer>, chance: Chance, thread: String) -> Self {
        let http = adjutant::net::client_builder().no_proxy().build().expect("a client");
        Self {
            http,
            house: Arc::clone(house),
            chance,
            thread,
            positions: BTreeMap::new(),
            decided: vec![],
            answers: 0,
        }
    }

    /// From now on it talks to another server on the same database.
    pub(super) fn turns_to(&mut self, house: &Arc<KillableServer>) {
        self.house = Arc::clone(house);
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Response, Gone> {
        let mut request = self.http.request(method, format!("{}{path}", self.house.base().await));
        if let Some(body) = body {
            request = request.json(body);
        }
        request.send().await.map_err(|_| Gone)
    }

    async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, Value), Gone> {
        let response = self.send(method, path, body).await?;
        let status = response.status().as_u16();
        let text = response.text().await.map_err(|_| Gone)?;
        assert!(status < 500, "{path} was answered with {status}: {text}");
        Ok((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// Reads something below the thread.
    pub(super) async fn get(&self, rest: &str) -> Result<Value, Gone> {
        let path = format!("/threads/{}{rest}", self.thread);
        let (status, body) = self.call(Method::GET, &path, None).await?;
        assert_eq!(status, 200, "{path}: {body}");
        Ok(body)
    }

    /// Posts something below the thread.
    pub(super) async fn post(&self, rest: &str, body: &Value) -> Result<(u16, Value), Gone> {
        self.call(Method::POST, &format!("/threads/{}{rest}", self.thread), Some(body))
            .await
    }

    /// Has `wish` fulfilled, whatever happens to the server meanwhile.
    pub(super) async fn has_its_way(&mut self, wish: &str) {
        for _ in 0..MOST_ROUNDS {
            // One who was cut off looks again where things stand.
            if let Ok(true) = self.takes_a_step(wish).await {
                return;
            }
        }
        panic!("the conversation does not come to an end");
    }

    /// Does what is to be done now. True if nothing is.
    async fn takes_a_step(&mut self, wish: &str) -> Result<bool, Gone> {
        self.makes_a_thread().await?;
        let runs = self.get("/runs?limit=1000").await?;
        let runs = runs.as_array().expect("a list");
        if runs.is_empty() {
            self.begins(wish).await?;
            return Ok(false);
        }
        let at_work = |run: &&Value| run["status"] == "running" || run["status"] == "pending";
        if let Some(run) = runs.iter().rev().find(at_work) {
            self.follows(run["run_id"].as_str().expect("an id")).await?;
            return Ok(false);
        }
        let open = self.get("/interrupts?status=pending").await?["interrupts"]
            .as_array()
            .expect("a list")
            .clone();
        if open.is_empty() {
            return Ok(true);
        }
        self.answers(&open).await?;
        Ok(false)
    }

    /// Makes its thread, unless it is there.
    pub(super) async fn makes_a_thread(&self) -> Result<(), Gone> {
        let make = json!({"thread_id": self.thread, "if_exists": "do_nothing"});
        self.call(Method::POST, "/threads", Some(&make)).await.map(drop)
    }

    /// Asks for the run.
    pub(super) async fn begins(&self, wish: &str) -> Result<String, Gone> {
        let body = json!({
            "assistant_id": "chief",
            "input": {"messages": [{"role": "user", "content": wish}]},
            "stream_mode": ["updates", "messages-tuple"],
            "stream_subgraphs": true,
            "stream_resumable": true,
        });
        let (status, run) = self.post("/runs", &body).await?;
        assert_eq!(status, 200, "{run}");
        Ok(run["run_id"].as_str().expect("an id").to_owned())
    }

    /// Follows a run to its end, from behind the last event that it saw of it.
    pub(super) async fn follows(&mut self, run: &str) -> Result<(), Gone> {
        let path = format!("{}/threads/{}/runs/{run}/stream", self.house.base().await, self.thread);
        let seen = self.positions.get(run).map_or("-1", String::as_str);
        let mut response = self
            .http
            .get(path)
            .header("Last-Event-ID", seen)
            .send()
            .await
            .map_err(|_| Gone)?;
        assert_eq!(response.status().as_u16(), 200);
        let mut buffer = String::new();
        while let Some(chunk) = response.chunk().await.map_err(|_| Gone)? {
            buffer.push_str(std::str::from_utf8(&chunk).expect("events are text"));
            while let Some((frame, rest)) = buffer.split_once("\r\n\r\n") {
                self.sees(run, frame);
                buffer = rest.to_owned();
            }
        }
        Ok(())
    }

    /// Takes an event in. Positions never go back, not even over a crash.
    fn sees(&mut self, run: &str, frame: &str) {
        if !frame.lines().any(|line| line.starts_with("event: ")) {
            return;
        }
        self.house.desk.note(|seen| seen.events += 1);
        let Some(id) = frame.lines().find_map(|line| line.strip_prefix("id: ")) else {
            return;
        };
        if let Some(before) = self.positions.insert(run.to_owned(), id.to_owned()) {
            // Within one place an answer may still grow; the rest of the position says how far it came.
            assert!(
                place(&before) <= place(id),
                "the stream went from {before} to {id}:\n{frame}"
            );
        }
    }

    /// Answers open questions: all at once, or the first one; by the resource, or by a command.
    async fn answers(&mut self, open: &[Value]) -> Result<(), Gone> {
        let all_at_once = self.chance.once_in(2);
        let by_command = self.answers % 2 == 1;
        self.answers += 1;
        let answered = if all_at_once && by_command { open } else { &open[..1] };
        let answers: Vec<(String, Value)> = answered.iter().map(|question| self.answer_to(question)).collect();
        let (status, body) = match answers.as_slice() {
            [(id, answer)] if !by_command => self.post(&format!("/interrupts/{id}/resolve"), answer).await?,
            [(_, answer)] if open.len() == 1 => self.commands(answer.clone()).await?,
            several => self.commands(Value::Object(several.iter().cloned().collect())).await?,
        };
        assert!(
            status == 200 || status == 202,
            "the answers {answers:?} were refused with {status}: {body}"
        );
        self.house.desk.note(|seen| seen.resumed += 1);
        Ok(())
    }

    async fn commands(&self, answer: Value) -> Result<(u16, Value), Gone> {
        let body = json!({
            "assistant_id": "chief",
            "command": {"resume": answer},
            "stream_mode": ["updates"],
            "stream_resumable": true,
        });
        self.post("/runs", &body).await
    }

    /// The answer to a question: approvals are given. About a call of unknown outcome the client asks the tool, as a
    /// human would, and then does one of the things that make sense.
    fn answer_to(&mut self, question: &Value) -> (String, Value) {
        let id = question["id"].as_str().expect("an id").to_owned();
        let requests = question["value"]["action_requests"].as_array().expect("a list").clone();
        let decisions: Vec<Value> = match question["kind"].as_str() {
            Some("tool_approval") => vec![json!({"type": "approve"}); requests.len()],
            Some("unknown_outcome") => requests.iter().map(|request| self.decides(request)).collect(),
            other => panic!("an unexpected question: {other:?}"),
        };
        (
            id,
            Value::Object(Map::from_iter([("decisions".to_owned(), decisions.into())])),
        )
    }

    fn decides(&mut self, request: &Value) -> Value {
        let call = request["tool_call_id"].as_str().expect("an id").to_owned();
        let took_effect = self.house.desk.effects_of(&call) > 0;
        let reject = self.chance.once_in(3);
        let decision = match (took_effect, reject) {
            (_, true) => "reject",
            (true, false) => "respond",
            (false, false) => "approve",
        };
        self.decided.push(Decided { call, decision });
        match decision {
            "respond" => {
                let tool = request["name"].as_str().expect("a name");
                json!({"type": "respond", "message": answer_of(tool, &request["args"])})
            }
            "reject" => json!({"type": "reject", "message": REFUSED}),
            _ => json!({"type": "approve"}),
        }
    }
}

/// The part of a position that says where it is: the event, and which piece of it, if not all.
fn place(position: &str) -> (i64, u32) {
    let cursor = position.split('~').next().unwrap_or_default();
    let (seq, piece) = cursor.split_once('-').unwrap_or((cursor, "4294967295"));
    (seq.parse().expect("a number"), piece.parse().expect("a number"))
}
