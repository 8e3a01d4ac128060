//! The summary of the older part of a conversation, in whose place models read it.
//!
//! The messages of a thread stay in its log, and in its state as long as they fit. The private field [`EVENT`] says which of
//! them a summary stands for, and [`SummarizationEvent::view`] makes the messages for a model of that.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::message::{Message, Role};
use super::stored::is_default;
use super::text_limits::first_chars;

/// The private field with the last [`SummarizationEvent`].
pub const EVENT: &str = "_summarization_event";

/// The field with [`SummarizationEvent::status`], which clients see.
pub const STATUS: &str = "summarization";

/// The key in the `additional_kwargs` of a summary that repeats the user's last request: the number of answers to it that
/// the summary stands for.
pub const SUMMARIZED_ANSWERS: &str = "summarized_answers";

/// The name of the middleware, which is also the node of a compaction that a client asked for.
pub const NODE: &str = "SummarizationMiddleware";

/// The number of characters that remain of the beginning, and of the end, of a text that is shortened for the model.
const SHORTENED_CHARS: usize = 1_000;

/// The number of characters that remain of a text in the arguments of a call.
const ARGUMENT_CHARS: usize = 20;

/// The older part of a conversation, and its summary.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SummarizationEvent {
    /// The number of messages that the summary stands for, with those that have left the state.
    pub cutoff_index: usize,
    /// The id of the last one of them. The index alone would not hold if messages are removed or added.
    pub last_message_id: Option<String>,
    /// The summary, as models read it; none if no message was summarised yet.
    pub summary_message: Option<Message>,
    /// The file with the messages that the last summary replaced.
    pub file_path: Option<String>,
    /// The id of the newest message at that time. The token counts of earlier answers do not hold any more.
    pub created_after: Option<String>,
    /// The messages after the summary that are too long for the model: the file with the text, by message id. Empty if
    /// there is no such file.
    pub shortened: BTreeMap<String, String>,
    /// The id of the message up to which long texts in the arguments of calls are shortened for the model.
    pub arguments_until: Option<String>,
    /// The length from which such a text is shortened, in characters.
    pub max_argument_chars: u32,
    /// The id of the message up to which media leave the state with this event, to keep it within its bound; the log has
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub media_left_until: Option<String>,
    /// The id of the last message that leaves the state with this event, to keep it within its bound; the log has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_until: Option<String>,
    /// The number of messages that have left the state, with this event and before.
    #[serde(skip_serializing_if = "is_default")]
    pub left_messages: usize,
    /// The last request of the user among these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_request: Option<UserRequest>,
    /// The number of compactions on this lane.
    pub count: u64,
    /// The time, ISO 8601.
    pub created_at: String,
}

/// A request of the user for which the agent works.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct UserRequest {
    /// The id of the message.
    pub id: Option<String>,
    /// The text, without its middle if it is long.
    pub text: String,
    /// The number of answers of the model since then.
    pub answers: usize,
}

impl SummarizationEvent {
    /// Returns the last event of the state with these fields.
    pub fn of(fields: &BTreeMap<String, Value>) -> Option<Self> {
        serde_json::from_value(fields.get(EVENT)?.clone()).ok()
    }

    /// Returns the id of the last message that the summary stands for; none if there is no summary.
    pub fn last_summarized(&self) -> Option<&str> {
        self.last_message_id
            .as_deref()
            .filter(|_| self.summary_message.is_some())
    }

    /// Returns the index of the first message that the summary does not stand for: 0 if there is no summary, or if the
    /// messages that it stands for are gone.
    pub fn cutoff(&self, messages: &[Arc<Message>]) -> usize {
        let Some(last) = self.last_summarized() else { return 0 };
        messages
            .iter()
            .rposition(|message| message.id.as_deref() == Some(last))
            .map_or(0, |at| at + 1)
    }

    /// Returns the messages for a model: the summary and the messages after it.
    pub fn view(&self, messages: &[Arc<Message>]) -> Vec<Arc<Message>> {
        let cutoff = self.cutoff(messages);
        let summary = self.summary_message.iter().filter(|_| cutoff > 0);
        let summary = summary.map(|summary| Arc::new(summary.clone()));
        let kept = &messages[cutoff..];
        let until = self.arguments_until.as_deref();
        let until = until.and_then(|id| kept.iter().rposition(|message| message.id.as_deref() == Some(id)));
        let kept = kept.iter().enumerate().map(|(at, message)| {
            let is_older = until.is_some_and(|until| at <= until);
            self.shorten(message, is_older)
        });
        summary.chain(kept).collect()
    }

    fn shorten(&self, message: &Arc<Message>, is_older: bool) -> Arc<Message> {
        let path = message.id.as_ref().and_then(|id| self.shortened.get(id));
        if let Some(path) = path {
            return Arc::new(shortened(message, path));
        }
        let arguments = is_older.then(|| with_shorter_arguments(message, self.max_argument_chars));
        arguments.flatten().map_or_else(|| Arc::clone(message), Arc::new)
    }

    /// Returns what clients see of the event.
    pub fn status(&self) -> Value {
        let mut status = json!({
            "summarized_messages": self.cutoff_index,
            "count": self.count,
            "file_path": self.file_path,
            "created_at": self.created_at,
        });
        if self.left_messages > 0 {
            status["left_messages"] = self.left_messages.into();
        }
        status
    }
}

/// Returns the messages of a conversation as the agent's model reads them. `fields` are those of its state.
pub fn view(fields: &BTreeMap<String, Value>, messages: &[Arc<Message>]) -> Vec<Arc<Message>> {
    match SummarizationEvent::of(fields) {
        Some(event) => event.view(messages),
        None => messages.to_vec(),
    }
}

/// Returns a message whose calls have no text of more than `most` characters in their arguments; none if it has no
/// such text anyway.
fn with_shorter_arguments(message: &Message, most: u32) -> Option<Message> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let is_long = |value: &Value| value.as_str().is_some_and(|text| text.chars().nth(most).is_some());
    if !message.tool_calls().iter().any(|call| call.args.values().any(is_long)) {
        return None;
    }
    let mut message = message.clone();
    if let Role::Ai { tool_calls, .. } = &mut message.role {
        let values = tool_calls.iter_mut().flat_map(|call| call.args.values_mut());
        for value in values.filter(|value| is_long(value)) {
            let text = value.as_str().unwrap_or_default();
            let head = first_chars(text, ARGUMENT_CHARS);
            *value = format!("{head}… [shortened, of {} characters]", text.chars().count()).into();
        }
    }
    Some(message)
}

/// Returns whether shortening the text of a message would make it shorter.
pub fn can_be_shortened(message: &Message) -> bool {
    message.content.text().chars().nth(4 * SHORTENED_CHARS).is_some()
}

/// Returns a message with the beginning and the end of its text. The whole text is in the file `path`, unless that is
/// empty. Blocks that are not text stay.
pub fn shortened(message: &Message, path: &str) -> Message {
    let text = message.content.text();
    let count = text.chars().count();
    let place = match path {
        "" => "The rest is not available.".to_owned(),
        path => format!("All of it is in the file {path}: read it in parts with read_file, or search it with grep."),
    };
    let head = first_chars(&text, SHORTENED_CHARS);
    let tail: String = text.chars().skip(count.saturating_sub(SHORTENED_CHARS)).collect();
    let notice = format!(
        "This text of {count} characters is too long to be shown whole. {place}\n\nIts beginning:\n{head}\n\nIts end:\n{tail}"
    );
    Message {
        content: message.content.with_text(notice),
        ..message.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(count: usize) -> Vec<Arc<Message>> {
        (0..count)
            .map(|n| Arc::new(Message::human(format!("message {n}")).with_id(format!("m{n}"))))
            .collect()
    }

    fn event(last: &str) -> SummarizationEvent {
        SummarizationEvent {
            cutoff_index: 2,
            last_message_id: Some(last.to_owned()),
            summary_message: Some(Message::human("summary").with_id("s")),
            ..SummarizationEvent::default()
        }
    }

    fn texts(messages: &[Arc<Message>]) -> Vec<String> {
        messages.iter().map(|message| message.content.text()).collect()
    }

    #[test]
    fn the_summary_stands_for_the_messages_up_to_the_last_one_that_it_covers() {
        let all = messages(4);
        assert_eq!(texts(&event("m1").view(&all)), ["summary", "message 2", "message 3"]);
        // A message before the cut was removed: the index would be wrong now.
        assert_eq!(
            texts(&event("m1").view(&all[1..])),
            ["summary", "message 2", "message 3"]
        );
    }

    #[test]
    fn a_summary_of_messages_that_are_gone_is_not_shown() {
        let all = messages(3);
        assert_eq!(texts(&event("gone").view(&all)), texts(&all));
    }

    #[test]
    fn a_long_message_keeps_its_beginning_and_end_and_names_its_file() {
        let text = format!("begin{}end", "x".repeat(5_000));
        let long = Arc::new(Message::human(text).with_id("m0"));
        assert!(can_be_shortened(&long));
        let event = SummarizationEvent {
            shortened: BTreeMap::from([("m0".to_owned(), "/large/m0".to_owned())]),
            ..SummarizationEvent::default()
        };
        let shown = event.view(&[Arc::clone(&long)])[0].content.text();
        assert!(shown.len() < 2_500, "{}", shown.len());
        for part in ["/large/m0", "begin", "end", "5008 characters"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!can_be_shortened(&Message::human(shown)));
    }
}
