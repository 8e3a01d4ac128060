//! What an agent elsewhere says while it is at work, passed on piece by piece.

use serde_json::Value;
use tokio::sync::mpsc;

use crate::domain::message::Content;
use crate::domain::state::Update;
use crate::model::{ModelError, ModelEvent};
use crate::peer::frames::Frame;

/// Passes on what is said.
pub(super) struct Speech {
    say: mpsc::Sender<Result<ModelEvent, ModelError>>,
    /// The message under way.
    message: Option<String>,
    /// The last event that was passed on.
    place: Option<String>,
}

impl Speech {
    pub(super) fn new(say: mpsc::Sender<Result<ModelEvent, ModelError>>) -> Self {
        Self { say, message: None, place: None }
    }

    /// The place in the stream up to which everything was passed on.
    pub(super) fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// Passes on the text of an event, if it has any.
    pub(super) async fn pass_on(&mut self, frame: Frame) {
        if frame.id.is_some() {
            self.place = frame.id;
        }
        if frame.event != "messages" {
            return;
        }
        let Ok(Value::Array(pair)) = serde_json::from_str(&frame.data) else { return };
        let Some((id, text)) = pair.first().and_then(piece) else { return };
        if self.message.as_ref() != Some(&id) {
            self.message = Some(id.clone());
            self.send(ModelEvent::Message(id)).await;
        }
        if !text.is_empty() {
            self.send(ModelEvent::Text(text)).await;
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

/// The message that a piece belongs to, and its text; none for what no model says.
fn piece(message: &Value) -> Option<(String, String)> {
    let is_ai = matches!(message.get("type")?.as_str()?, "AIMessageChunk" | "ai");
    let id = message.get("id")?.as_str().filter(|_| is_ai)?;
    let content: Content = serde_json::from_value(message.get("content")?.clone()).ok()?;
    Some((id.to_owned(), content.text()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn the_text_of_models_is_passed_on_and_nothing_else() {
        let (say, mut heard) = mpsc::channel(16);
        let mut speech = Speech::new(say);
        let frame = |id: &str, message: Value| Frame {
            event: "messages".to_owned(),
            id: Some(id.to_owned()),
            data: json!([message, {}]).to_string(),
        };
        speech.pass_on(frame("1", json!({"type": "AIMessageChunk", "id": "a", "content": "Hel"}))).await;
        let blocks = json!([{"type": "text", "text": "lo"}]);
        speech.pass_on(frame("2", json!({"type": "AIMessageChunk", "id": "a", "content": blocks}))).await;
        speech.pass_on(frame("3", json!({"type": "tool", "id": "t", "content": "42", "tool_call_id": "c"}))).await;
        speech.pass_on(frame("4", json!({"type": "ai", "id": "b", "content": ""}))).await;
        speech.pass_on(Frame { event: "metadata".to_owned(), id: None, data: "{".to_owned() }).await;
        assert_eq!(speech.place(), Some("4"));
        drop(speech);
        let mut all = vec![];
        while let Some(Ok(event)) = heard.recv().await {
            all.push(event);
        }
        let (message, text) =
            (|id: &str| ModelEvent::Message(id.to_owned()), |text: &str| ModelEvent::Text(text.to_owned()));
        assert_eq!(all, [message("a"), text("Hel"), text("lo"), message("b")]);
    }
}
