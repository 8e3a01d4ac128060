//! A reader of server-sent events.

use std::time::Duration;

use reqwest::Response;
use reqwest::header::HeaderMap;
use serde_json::Value;

/// One event of the stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Frame {
    /// The name of the event.
    pub(crate) event: String,
    /// The JSON data.
    pub(crate) data: Value,
    /// The event id, if the stream is resumable.
    pub(crate) id: Option<String>,
}

impl Frame {
    /// Returns the stream mode, without the namespace behind it.
    pub(crate) fn mode(&self) -> &str {
        self.event.split('|').next().unwrap_or_default()
    }

    /// Returns the depth of the event's agent below the main agent.
    pub(crate) fn depth(&self) -> usize {
        self.event.matches("|tools:").count()
    }
}

/// The time after which a stream without the awaited event fails its test, instead of holding up all others.
const SILENCE: Duration = Duration::from_secs(120);

/// An open stream. Dropping it disconnects the client.
#[derive(Debug)]
pub(crate) struct Sse {
    response: Response,
    buffer: String,
}

impl Sse {
    /// Starts to read a response, which must be a stream.
    pub(crate) async fn open(response: Response) -> Self {
        let kind = response
            .headers()
            .get("content-type")
            .and_then(|kind| kind.to_str().ok())
            .unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            let status = response.status();
            let text = response.text().await.unwrap();
            panic!("not a stream: {status} {text}");
        }
        Self {
            response,
            buffer: String::new(),
        }
    }

    /// Returns the headers of the response.
    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Returns the id of the run from `Content-Location`, as the SDKs do.
    pub(crate) fn run_id(&self) -> String {
        let location = self
            .headers()
            .get("content-location")
            .expect("Content-Location")
            .to_str()
            .unwrap();
        location.rsplit('/').next().unwrap().to_owned()
    }

    /// Returns the next event; `None` at the end of the stream. Comments are skipped.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        self.try_next().await.expect("the stream goes on")
    }

    /// Returns the next event, unless the connection breaks; `None` at the end of the stream.
    pub(crate) async fn try_next(&mut self) -> reqwest::Result<Option<Frame>> {
        loop {
            while let Some((frame, rest)) = self.buffer.split_once("\r\n\r\n") {
                let frame = parse_frame(frame);
                self.buffer = rest.to_owned();
                if frame.is_some() {
                    return Ok(frame);
                }
            }
            let Some(chunk) = self.response.chunk().await? else {
                return Ok(None);
            };
            self.buffer
                .push_str(std::str::from_utf8(&chunk).expect("events are text"));
        }
    }

    /// Reads up to the first event that matches `wanted`, and returns the events up to it.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Frame) -> bool) -> Vec<Frame> {
        let mut frames = vec![];
        loop {
            let frame = tokio::time::timeout(SILENCE, self.next())
                .await
                .unwrap_or_else(|_| panic!("no event came for {SILENCE:?} after {frames:#?}"))
                .unwrap_or_else(|| panic!("the stream ended: {frames:#?}"));
            let done = wanted(&frame);
            frames.push(frame);
            if done {
                return frames;
            }
        }
    }

    /// Reads the events up to the end of the stream.
    pub(crate) async fn rest(mut self) -> Vec<Frame> {
        let mut frames = vec![];
        while let Some(frame) = self.next().await {
            frames.push(frame);
        }
        frames
    }
}

fn parse_frame(text: &str) -> Option<Frame> {
    let field = |name: &str| {
        let lines = text
            .split("\r\n")
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        lines.map(str::to_owned).next()
    };
    let data = field("data")?;
    let data = serde_json::from_str(&data).unwrap_or_else(|error| panic!("{error}: {data}"));
    Some(Frame {
        event: field("event").expect("every event has a name"),
        data,
        id: field("id"),
    })
}

/// Returns the events without ids and with the chunks of each message merged, so that live and replayed streams compare
/// equal.
pub(crate) fn put_together(frames: &[Frame]) -> Vec<Frame> {
    let mut whole: Vec<Frame> = vec![];
    for frame in frames {
        let frame = Frame {
            id: None,
            ..frame.clone()
        };
        if frame.mode() == "messages" && frame.data[0]["type"] == "AIMessageChunk" {
            let same = |other: &&mut Frame| other.event == frame.event && other.data[0]["id"] == frame.data[0]["id"];
            if let Some(earlier) = whole.iter_mut().rev().find(same) {
                merge_chunk(&mut earlier.data[0], &frame.data[0]);
                continue;
            }
        }
        whole.push(frame);
    }
    whole
}

/// Merges a chunk into a message, as the SDKs do.
fn merge_chunk(message: &mut Value, piece: &Value) {
    let text = |value: &Value| value["content"].as_str().unwrap_or_default().to_owned();
    message["content"] = (text(message) + &text(piece)).into();
    for chunk in piece["tool_call_chunks"].as_array().into_iter().flatten() {
        let chunks = message["tool_call_chunks"].as_array_mut().expect("a list of pieces");
        match chunks.iter_mut().find(|other| other["index"] == chunk["index"]) {
            Some(earlier) => {
                let args = |value: &Value| value["args"].as_str().unwrap_or_default().to_owned();
                earlier["args"] = (args(earlier) + &args(chunk)).into();
            }
            None => chunks.push(chunk.clone()),
        }
    }
    for field in ["usage_metadata", "chunk_position"] {
        if !piece[field].is_null() {
            message[field] = piece[field].clone();
        }
    }
    for (name, value) in piece["response_metadata"].as_object().into_iter().flatten() {
        message["response_metadata"][name] = value.clone();
    }
}
