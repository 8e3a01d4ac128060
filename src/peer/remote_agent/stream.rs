//! The stream of a remote agent: publishes its messages piece by piece.

use std::sync::Arc;

use serde_json::Value;

use crate::domain::event::Chunk;
use crate::domain::json_limits::read_foreign;
use crate::domain::message::Content;
use crate::net::sse::PeerFrame;
use crate::tool::program::ProgramScope;

/// The messages of one turn that were received so far.
pub(super) struct RemoteMessages {
    program: Arc<ProgramScope>,
    /// The id of the last event that was processed.
    last_event: Option<String>,
    /// The number of bytes received.
    received: usize,
}

impl RemoteMessages {
    pub(super) fn new(program: Arc<ProgramScope>) -> Self {
        Self {
            program,
            last_event: None,
            received: 0,
        }
    }

    /// Counts received bytes. Returns false if the sum exceeds `most`.
    pub(super) fn receives(&mut self, bytes: usize, most: usize) -> bool {
        self.received = self.received.saturating_add(bytes);
        self.received <= most
    }

    /// Returns the id of the last event that was processed.
    pub(super) fn last_event(&self) -> Option<&str> {
        self.last_event.as_deref()
    }

    /// Prepares for the stream of another run.
    pub(super) fn restart(&mut self) {
        self.last_event = None;
    }

    /// Publishes the content of an event, if it has any.
    pub(super) async fn pass_on(&mut self, frame: PeerFrame) {
        if frame.id.is_some() {
            self.last_event = frame.id;
        }
        if frame.event != "messages" {
            return;
        }
        let Ok(Value::Array(pair)) = read_foreign(frame.data.as_bytes()) else {
            return;
        };
        let Some((message, pieces)) = pair.first().and_then(pieces) else {
            return;
        };
        // Publish the message even if this event has no visible content.
        self.program.stream(&message, None).await;
        for chunk in pieces {
            self.program.stream(&message, Some(chunk)).await;
        }
    }
}

/// Returns the id of a message with its text and call pieces; none for a message that is not a model's. A message
/// that is not streamed is one piece.
fn pieces(message: &Value) -> Option<(String, Vec<Chunk>)> {
    let calls = match message.get("type")?.as_str()? {
        "AIMessageChunk" => "tool_call_chunks",
        "ai" => "tool_calls",
        _ => return None,
    };
    let id = message.get("id")?.as_str()?.to_owned();
    let content: Content = serde_json::from_value(message.get("content")?.clone()).ok()?;
    let text = Some(content.text()).filter(|text| !text.is_empty()).map(Chunk::Text);
    let calls = message
        .get(calls)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .enumerate();
    let calls = calls.map(|(at, call)| {
        let text = |name: &str| call.get(name).and_then(Value::as_str).map(str::to_owned);
        let index = call
            .get("index")
            .and_then(Value::as_u64)
            .and_then(|index| usize::try_from(index).ok());
        let args = match call.get("args") {
            Some(Value::String(args)) => args.clone(),
            Some(Value::Null) | None => String::new(),
            Some(args) => args.to_string(),
        };
        Chunk::Call {
            index: index.unwrap_or(at),
            id: text("id"),
            name: text("name"),
            args,
        }
    });
    Some((id, text.into_iter().chain(calls).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::tool::program::ProgramOutput;

    #[tokio::test]
    async fn only_texts_and_calls_of_models_are_streamed() {
        let (program, mut output) = ProgramScope::new(0, CancellationToken::new());
        let mut stream = RemoteMessages::new(Arc::new(program));
        let frame = |id: &str, message: Value| PeerFrame {
            event: "messages".to_owned(),
            id: Some(id.to_owned()),
            data: json!([message, {}]).to_string(),
        };
        stream
            .pass_on(frame(
                "1",
                json!({"type": "AIMessageChunk", "id": "a", "content": "Hel"}),
            ))
            .await;
        let blocks = json!([{"type": "text", "text": "lo"}]);
        stream
            .pass_on(frame(
                "2",
                json!({"type": "AIMessageChunk", "id": "a", "content": blocks}),
            ))
            .await;
        stream
            .pass_on(frame(
                "3",
                json!({"type": "tool", "id": "t", "content": "42", "tool_call_id": "c"}),
            ))
            .await;
        let call = json!({"name": "dig", "args": {"deep": true}, "id": "c1", "type": "tool_call"});
        stream
            .pass_on(frame(
                "4",
                json!({"type": "ai", "id": "b", "content": "", "tool_calls": [call]}),
            ))
            .await;
        let chunks = json!([{"name": null, "args": "{\"de", "id": null, "index": 2}]);
        let chunk = json!({"type": "AIMessageChunk", "id": "b", "content": "", "tool_call_chunks": chunks});
        stream.pass_on(frame("5", chunk)).await;
        stream
            .pass_on(PeerFrame {
                event: "metadata".to_owned(),
                id: None,
                data: "{".to_owned(),
            })
            .await;
        assert_eq!(stream.last_event(), Some("5"));
        drop(stream);
        let mut all = vec![];
        while let Some(ProgramOutput::Piece { message, chunk }) = output.recv().await {
            all.extend(chunk.map(|chunk| (message, chunk)));
        }
        let piece = |message: &str, chunk: Chunk| (message.to_owned(), chunk);
        let text = |text: &str| piece("a", Chunk::Text(text.to_owned()));
        let whole = Chunk::Call {
            index: 0,
            id: Some("c1".to_owned()),
            name: Some("dig".to_owned()),
            args: "{\"deep\":true}".to_owned(),
        };
        let part = Chunk::Call {
            index: 2,
            id: None,
            name: None,
            args: "{\"de".to_owned(),
        };
        assert_eq!(all, [text("Hel"), text("lo"), piece("b", whole), piece("b", part)]);
    }
}
