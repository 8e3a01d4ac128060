//! A client of a thread's stream and commands (protocol v2).

use serde_json::{Value, json};

use super::client::Client;
use super::server::TestServer;
use super::sse::{Frame, Sse};

/// All channels.
pub(crate) const ALL: [&str; 9] = [
    "values",
    "updates",
    "messages",
    "tools",
    "lifecycle",
    "input",
    "checkpoints",
    "tasks",
    "custom",
];

/// A viewer of one thread.
#[derive(Debug, Clone)]
pub(crate) struct Viewer {
    client: Client,
    /// The id of the thread, which need not exist yet.
    pub(crate) thread: String,
}

impl Viewer {
    /// Creates a viewer of a thread that does not exist yet.
    pub(crate) fn of_new(server: &TestServer) -> Self {
        Self::of(server, &uuid::Uuid::new_v4().to_string())
    }

    /// Creates a viewer of this thread.
    pub(crate) fn of(server: &TestServer, thread: &str) -> Self {
        Self {
            client: server.client(),
            thread: thread.to_owned(),
        }
    }

    /// Sends a command and returns the whole response.
    pub(crate) async fn commands(&self, method: &str, params: Value) -> Value {
        let path = format!("/threads/{}/commands", self.thread);
        self.client
            .post(&path, json!({"id": 7, "method": method, "params": params}))
            .await
            .ok()
    }

    /// Sends a command that succeeds, and returns its result.
    pub(crate) async fn succeeds(&self, method: &str, params: Value) -> Value {
        let answer = self.commands(method, params).await;
        assert_eq!(&answer["type"], &json!("success"), "{answer}");
        assert_eq!(&answer["id"], &json!(7), "{answer}");
        answer["result"].clone()
    }

    /// Sends a command that is refused, and returns the error code.
    pub(crate) async fn refused(&self, method: &str, params: Value) -> String {
        let answer = self.commands(method, params).await;
        assert_eq!(&answer["type"], &json!("error"), "{answer}");
        assert!(answer["message"].is_string(), "{answer}");
        answer["error"].as_str().unwrap().to_owned()
    }

    /// Starts a run of an agent with a message, and returns the run's id.
    pub(crate) async fn starts(&self, agent: &str, text: impl ToString) -> String {
        let input = json!({"messages": [{"role": "user", "content": text.to_string()}]});
        let result = self
            .succeeds("run.start", json!({"assistant_id": agent, "input": input}))
            .await;
        result["run_id"].as_str().unwrap().to_owned()
    }

    /// Answers an interrupt.
    pub(crate) async fn responds(&self, asked: &Frame, decisions: Value) {
        let params = json!({
            "interrupt_id": data(asked)["interrupt_id"],
            "namespace": asked.data["params"]["namespace"],
            "response": {"decisions": decisions},
        });
        assert_eq!(self.succeeds("input.respond", params).await, json!({}));
    }

    /// Opens the stream with this filter.
    pub(crate) async fn opens(&self, body: Value) -> Sse {
        self.client
            .post_stream(&format!("/threads/{}/stream/events", self.thread), body)
            .await
    }

    /// Opens the stream with all channels.
    pub(crate) async fn opens_all(&self) -> Sse {
        self.opens(json!({"channels": ALL})).await
    }

    /// Reads the stream from its beginning up to the end of the last of `runs` runs.
    pub(crate) async fn replays(&self, runs: usize) -> Vec<Frame> {
        until_ends(&mut self.opens_all().await, runs).await
    }
}

/// Reads until `runs` runs have ended.
pub(crate) async fn until_ends(stream: &mut Sse, runs: usize) -> Vec<Frame> {
    let mut frames = vec![];
    for _ in 0..runs {
        frames.extend(stream.until(is_terminal).await);
    }
    frames
}

/// Returns whether the event is the end of a run.
pub(crate) fn is_terminal(frame: &Frame) -> bool {
    let ends = ["completed", "failed", "interrupted"];
    frame.event == "lifecycle" && depth(frame) == 0 && ends.iter().any(|end| data(frame)["event"] == *end)
}

/// Returns the data of the event.
pub(crate) fn data(frame: &Frame) -> &Value {
    &frame.data["params"]["data"]
}

/// Returns the depth of the event's agent below the main agent.
pub(crate) fn depth(frame: &Frame) -> usize {
    frame.data["params"]["namespace"].as_array().unwrap().len()
}

/// Returns the sequence number of the event.
pub(crate) fn seq(frame: &Frame) -> i64 {
    frame.data["seq"].as_i64().unwrap()
}

/// Returns the name of the event.
pub(crate) fn name(frame: &Frame) -> &str {
    frame.data["event_id"].as_str().unwrap()
}

/// Returns the events of some methods as short lines: `method event`, with `@depth` for subagents; the pieces of a
/// block are joined.
pub(crate) fn in_short(frames: &[Frame], methods: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for frame in frames.iter().filter(|frame| methods.contains(&frame.event.as_str())) {
        let line = line(frame);
        if lines.last() != Some(&line) || !line.contains("content-block-delta") {
            lines.push(line);
        }
    }
    lines
}

fn line(frame: &Frame) -> String {
    let data = data(frame);
    let what = match frame.event.as_str() {
        "values" => data["messages"].as_array().map_or(0, Vec::len).to_string(),
        "tools" => format!("{} {}", data["event"], data["tool_call_id"]),
        "lifecycle" => format!("{} {}", data["event"], data["graph_name"]),
        "input.requested" => data["value"]["action_requests"][0]["name"].to_string(),
        "messages" => format!("{} {}", data["event"], data.get("index").unwrap_or(&data["role"])),
        _ => String::new(),
    };
    let depth = match depth(frame) {
        0 => String::new(),
        depth => format!("@{depth}"),
    };
    format!("{}{depth} {what}", frame.event)
        .replace('"', "")
        .replace(" null", "")
        .trim_end()
        .to_owned()
}
