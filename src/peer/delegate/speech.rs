//! What an agent elsewhere says while it is at work, passed on piece by piece.

use serde_json::Value;
use tokio::sync::mpsc;

use crate::domain::json_limits::read_foreign;
use crate::domain::message::Content;
use crate::domain::state::Update;
use crate::model::{ModelError, ModelEvent};
use crate::net::sse::Frame;

/// Passes on what is said.
pub(super) struct Speech {
    say: mpsc::Sender<Result<ModelEvent, ModelError>>,
    /// The message under way.
    message: Option<String>,
    /// The last event that was passed on.
    place: Option<String>,
    /// How many bytes were received.
    received: usize,
}

impl Speech {
    pub(super) fn new(say: mpsc::Sender<Result<ModelEvent, ModelError>>) -> Self {
        Self {
            say,
            message: None,
            place: None,
            received: 0,
        }
    }

    /// Counts bytes that were received. False if they are more than `most` together.
    pub(super) fn receives(&mut self, bytes: usize, most: usize) -> bool {
        self.received = self.received.saturating_add(bytes);
        self.received <= most
    }

    /// The place in the stream up to which everything was passed on.
    pub(super) fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// Another run is listened to, whose stream begins anew.
    pub(super) fn begins_anew(&mut self) {
        self.place = None;
    }

    /// Passes on what an event says, if it says anything.
    pub(super) async fn pass_on(&mut self, frame: Frame) {
        if frame.id.is_some() {
            self.place = frame.id;
        }
        if frame.event != "messages" {
            return;
        }
        let Ok(Value::Array(pair)) = read_foreign(frame.data.as_bytes()) else {
            return;
        };
        let Some((id, pieces)) = pair.first().and_then(pieces) else {
            return;
        };
        if self.message.as_ref() != Some(&id) {
            self.message = Some(id.clone());
            self.send(ModelEvent::Message(id)).await;
        }
        for piece in pieces {
            self.send(piece).await;
        }
    }

    /// Passes on what was written before the answer.
    pub(super) async fn heard(&mut self, update: Update) {
        if !update.is_empty() {
            self.send(ModelEvent::Heard(Box::new(update))).await;
        }
    }

    async fn send(&self, event: ModelEvent) {
        // Nobody listens any more when the work was stopped.
        drop(self.say.send(Ok(event)).await);
    }
}

/// The message that pieces belong to, and the pieces: text, and calls. None for what no model says. A model that does not
/// stream comes in one piece.
fn pieces(message: &Value) -> Option<(String, Vec<ModelEvent>)> {
    let calls = match message.get("type")?.as_str()? {
        "AIMessageChunk" => "tool_call_chunks",
        "ai" => "tool_calls",
        _ => return None,
    };
    let id = message.get("id")?.as_str()?.to_owned();
    let content: Content = serde_json::from_value(message.get("content")?.clone()).ok()?;
    let text = Some(content.text())
        .filter(|text| !text.is_empty())
        .map(ModelEvent::Text);
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
        ModelEvent::CallChunk {
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

    use super::*;

    #[tokio::test]
    async fn what_models_say_and_call_is_passed_on_and_nothing_else() {
        let (say, mut heard) = mpsc::channel(16);
        let mut speech = Speech::new(say);
        let frame = |id: &str, message: Value| Frame {
            event: "messages".to_owned(),
            id: Some(id.to_owned()),
            data: json!([message, {}]).to_string(),
        };
        speech
            .pass_on(frame(
                "1",
                json!({"type": "AIMessageChunk", "id": "a", "content": "Hel"}),
            ))
            .await;
        let blocks = json!([{"type": "text", "text": "lo"}]);
        speech
            .pass_on(frame(
                "2",
                json!({"type": "AIMessageChunk", "id": "a", "content": blocks}),
            ))
            .await;
        speech
            .pass_on(frame(
                "3",
                json!({"type": "tool", "id": "t", "content": "42", "tool_call_id": "c"}),
            ))
            .await;
        let call = json!({"name": "dig", "args": {"deep": true}, "id": "c1", "type": "tool_call"});
        speech
            .pass_on(frame(
                "4",
                json!({"type": "ai", "id": "b", "content": "", "tool_calls": [call]}),
            ))
            .await;
        let chunks = json!([{"name": null, "args": "{\"de", "id": null, "index": 2}]);
        let chunk = json!({"type": "AIMessageChunk", "id": "b", "content": "", "tool_call_chunks": chunks});
        speech.pass_on(frame("5", chunk)).await;
        speech
            .pass_on(Frame {
                event: "metadata".to_owned(),
                id: None,
                data: "{".to_owned(),
            })
            .await;
        assert_eq!(speech.place(), Some("5"));
        drop(speech);
        let mut all = vec![];
        while let Some(Ok(event)) = heard.recv().await {
            all.push(event);
        }
        let message = |id: &str| ModelEvent::Message(id.to_owned());
        let text = |text: &str| ModelEvent::Text(text.to_owned());
        let whole = ModelEvent::CallChunk {
            index: 0,
            id: Some("c1".to_owned()),
            name: Some("dig".to_owned()),
            args: "{\"deep\":true}".to_owned(),
        };
        let part = ModelEvent::CallChunk {
            index: 2,
            id: None,
            name: None,
            args: "{\"de".to_owned(),
        };
        assert_eq!(all, [message("a"), text("Hel"), text("lo"), message("b"), whole, part]);
    }
}
