//! The actors of the tests: a user of an agent, the user's runs, and the interrupts to answer.

use reqwest::Method;
use serde_json::{Map, Value, json};

use super::client::{Client, Reply};
use super::sse::Sse;

/// A user who talks to one agent on a thread of their own.
#[derive(Debug, Clone)]
pub(crate) struct Human {
    client: Client,
    agent: String,
    /// The id of the thread.
    pub(crate) thread: String,
}

/// A run of a user.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    client: Client,
    /// The path of the run: `/threads/…/runs/…`.
    pub(crate) path: String,
    /// The id.
    pub(crate) id: String,
}

/// A pending interrupt, as the approvals resource returns it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Question(pub(crate) Value);

impl Question {
    /// Returns the id.
    pub(crate) fn id(&self) -> &str {
        self.0["id"].as_str().expect("an id")
    }

    /// Returns the calls to decide about.
    pub(crate) fn requests(&self) -> &[Value] {
        self.0["value"]["action_requests"].as_array().expect("a list")
    }

    /// Returns the name of the agent that asks.
    pub(crate) fn agent(&self) -> &str {
        self.0["agent_name"].as_str().expect("a name")
    }
}

impl Human {
    /// Creates a user of `agent` on a new thread.
    pub(crate) async fn on_new_thread(client: Client, agent: &str) -> Self {
        let thread = client.thread().await;
        Self {
            client,
            agent: agent.to_owned(),
            thread,
        }
    }

    /// Creates a user of `agent` on this thread.
    pub(crate) fn at(client: Client, agent: &str, thread: &str) -> Self {
        Self {
            client,
            agent: agent.to_owned(),
            thread: thread.to_owned(),
        }
    }

    /// Returns the same user on another thread.
    pub(crate) fn on(&self, thread: &str) -> Self {
        Self {
            thread: thread.to_owned(),
            ..self.clone()
        }
    }

    /// Returns the body of a run with the message `text` and the fields of `more`.
    pub(crate) fn run_body(&self, text: impl ToString, more: Value) -> Value {
        let message = json!({"role": "user", "content": text.to_string()});
        self.body(json!({"input": {"messages": [message]}}), more)
    }

    fn body(&self, mut body: Value, more: Value) -> Value {
        body["assistant_id"] = json!(self.agent);
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        body
    }

    /// Returns the user's HTTP client.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a path below the thread.
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/threads/{}{rest}", self.thread)
    }

    /// Starts a run with this body, without waiting for it.
    pub(crate) async fn starts(&self, body: Value) -> Run {
        let body = self.body(body, json!({}));
        self.run(&self.client.post(&self.path("/runs"), body).await.ok())
    }

    /// Starts a run with this message, without waiting for it.
    pub(crate) async fn asks(&self, text: impl ToString) -> Run {
        self.starts(self.run_body(text, json!({}))).await
    }

    /// Sends a message and waits for the resulting values of the thread.
    pub(crate) async fn says(&self, text: impl ToString) -> Value {
        let body = self.run_body(text, json!({}));
        self.client.post(&self.path("/runs/wait"), body).await.ok()
    }

    /// Sends a message and streams the run. `more` holds the stream modes.
    pub(crate) async fn streams(&self, text: impl ToString, more: Value) -> Sse {
        self.client
            .post_stream(&self.path("/runs/stream"), self.run_body(text, more))
            .await
    }

    /// Answers with `command.resume` and streams the run.
    pub(crate) async fn streams_resume(&self, answer: Value, more: Value) -> Sse {
        let body = self.body(json!({"command": {"resume": answer}}), more);
        self.client.post_stream(&self.path("/runs/stream"), body).await
    }

    /// Answers with `command.resume` and returns the response, successful or not.
    pub(crate) async fn tries_to_resume(&self, answer: Value) -> Reply {
        self.client
            .post(
                &self.path("/runs"),
                self.body(json!({"command": {"resume": answer}}), json!({})),
            )
            .await
    }

    /// Answers with `command.resume`, and returns the run.
    pub(crate) async fn resumes(&self, answer: Value) -> Run {
        self.run(&self.tries_to_resume(answer).await.ok())
    }

    /// Answers an interrupt with decisions about its calls, in their order.
    pub(crate) async fn decides(&self, question: &Question, decisions: Value) -> Run {
        let answer = Map::from_iter([(question.id().to_owned(), json!({"decisions": decisions}))]);
        self.resumes(Value::Object(answer)).await
    }

    /// Approves all calls of an interrupt.
    pub(crate) async fn approves(&self, question: &Question) -> Run {
        let decisions = vec![json!({"type": "approve"}); question.requests().len()];
        self.decides(question, json!(decisions)).await
    }

    /// Rejects all calls of an interrupt.
    pub(crate) async fn rejects(&self, question: &Question, reason: &str) -> Run {
        let decisions = vec![json!({"type": "reject", "message": reason}); question.requests().len()];
        self.decides(question, json!(decisions)).await
    }

    /// Answers through the approvals resource and returns the response, successful or not.
    pub(crate) async fn resolves(&self, question: &Question, answer: Value) -> Reply {
        let path = self.path(&format!("/interrupts/{}/resolve", question.id()));
        self.client.post(&path, answer).await
    }

    /// Returns the pending interrupts, oldest first.
    pub(crate) async fn questions(&self) -> Vec<Question> {
        let list = self.client.get(&self.path("/interrupts")).await.ok();
        let all = list["interrupts"].as_array().expect("a list").clone();
        all.into_iter()
            .filter(|question| question["status"] == "pending")
            .map(Question)
            .collect()
    }

    /// Returns the only pending interrupt.
    pub(crate) async fn question(&self) -> Question {
        let questions = self.questions().await;
        let [question] = questions.as_slice() else {
            panic!("not one question: {questions:#?}")
        };
        question.clone()
    }

    /// Reads something below the thread; `None` if it is refused or the connection breaks.
    pub(crate) async fn try_get(&self, rest: &str) -> Option<Value> {
        let reply = self.client.tries(Method::GET, &self.path(rest), None).await.ok()?;
        (reply.status < 400).then_some(reply.body)
    }

    /// Returns the thread.
    pub(crate) async fn record(&self) -> Value {
        self.client.get(&self.path("")).await.ok()
    }

    /// Returns the status of the thread.
    pub(crate) async fn status(&self) -> String {
        self.record().await["status"].as_str().expect("a status").to_owned()
    }

    /// Returns the state of the thread.
    pub(crate) async fn state(&self) -> Value {
        self.client.get(&self.path("/state")).await.ok()
    }

    /// Returns the history of the thread, newest first.
    pub(crate) async fn history(&self) -> Vec<Value> {
        let history = self
            .client
            .post(&self.path("/history"), json!({"limit": 1000}))
            .await
            .ok();
        history.as_array().expect("a list").clone()
    }

    /// Returns the transcript of the thread.
    pub(crate) async fn transcript(&self) -> Vec<String> {
        transcript(&self.state().await["values"])
    }

    /// Returns the runs of the thread, newest first.
    pub(crate) async fn runs(&self) -> Vec<Value> {
        let runs = self.client.get(&self.path("/runs?limit=1000")).await.ok();
        runs.as_array().expect("a list").clone()
    }

    /// Returns the run of this record.
    pub(crate) fn run(&self, record: &Value) -> Run {
        self.run_of_id(record["run_id"].as_str().expect("an id"))
    }

    /// Returns the run of this id.
    pub(crate) fn run_of_id(&self, id: &str) -> Run {
        Run {
            client: self.client.clone(),
            path: self.path(&format!("/runs/{id}")),
            id: id.to_owned(),
        }
    }
}

impl Run {
    /// Joins the run and returns its final values.
    pub(crate) async fn finishes(&self) -> Value {
        self.client.get(&format!("{}/join", self.path)).await.ok()
    }

    /// Returns the record of the run.
    pub(crate) async fn record(&self) -> Value {
        self.client.get(&self.path).await.ok()
    }

    /// Returns the status of the run.
    pub(crate) async fn status(&self) -> String {
        self.record().await["status"].as_str().expect("a status").to_owned()
    }

    /// Cancels the run and waits for its end.
    pub(crate) async fn is_cancelled(&self, action: &str) -> Reply {
        self.client
            .post(&format!("{}/cancel?wait=true&action={action}", self.path), json!({}))
            .await
    }

    /// Returns the runs of its subagents.
    pub(crate) async fn children(&self) -> Vec<Value> {
        let children = self.client.get(&format!("{}/children", self.path)).await.ok();
        let list = if children.is_array() {
            children
        } else {
            children["children"].clone()
        };
        list.as_array().expect("a list").clone()
    }

    /// Joins the stream after this event, or from now on if it is `None`.
    pub(crate) async fn is_joined(&self, last_event_id: Option<&str>) -> Sse {
        self.client
            .get_stream(&format!("{}/stream", self.path), last_event_id)
            .await
    }
}

/// Returns the answer to a question about one call that approves the call.
pub(crate) fn approval() -> Value {
    json!({"decisions": [{"type": "approve"}]})
}

/// Returns the `config` of a run by which a program of LangGraph continues its node, with the answers that the program was
/// given.
pub(crate) fn continuation(answers: &Value) -> Value {
    json!({"configurable": {"__pregel_resuming": true, "__pregel_resume_map": answers}})
}

/// Returns one line for each message, with its role and content. Scripts are shown as `…`.
pub(crate) fn transcript(values: &Value) -> Vec<String> {
    let messages = values["messages"]
        .as_array()
        .unwrap_or_else(|| panic!("no messages in {values:#}"));
    messages.iter().map(line).collect()
}

fn line(message: &Value) -> String {
    let content = match message["content"].as_str() {
        Some(text) if text.contains("{\"script\"") => "…".to_owned(),
        Some(text) => text.to_owned(),
        None => message["content"].to_string(),
    };
    let name = message["name"].as_str().unwrap_or_default();
    match message["type"].as_str().expect("a type") {
        "tool" if message["status"] == "error" => format!("{name} failed: {content}"),
        "tool" => format!("{name}: {content}"),
        "ai" => {
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            let names: Vec<&str> = calls.filter_map(|call| call["name"].as_str()).collect();
            match (names.is_empty(), content.is_empty()) {
                (true, _) => format!("ai: {content}"),
                (false, true) => format!("ai calls {}", names.join(", ")),
                (false, false) => format!("ai: {content}, calls {}", names.join(", ")),
            }
        }
        other => format!("{other}: {content}"),
    }
}
