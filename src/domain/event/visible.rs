//! The parts of events that clients see.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Event, EventBody, Fact};
use crate::domain::message::{Content, Message, Role};
use crate::domain::state::Update;
use crate::domain::visibility::Visibility;

impl Visibility {
    /// Returns the visible part of `event`, caused by an agent with this visibility. None if no part is visible.
    pub fn visible_part(self, event: &Event) -> Option<Cow<'_, Event>> {
        match (self, &event.body) {
            (Self::Hidden, _) => None,
            (Self::Full, _)
            | (_, EventBody::Fact(Fact::Started { .. } | Fact::Asked { .. } | Fact::Ended { .. }))
            | (Self::ToolsOnly, EventBody::Fact(Fact::Calling { .. }) | EventBody::Output { .. }) => {
                Some(Cow::Borrowed(event))
            }
            (
                Self::ToolsOnly,
                EventBody::Fact(Fact::Answered {
                    head,
                    carried_from,
                    call,
                    writes,
                }),
            ) => {
                let fact = Fact::Answered {
                    head: *head,
                    carried_from: *carried_from,
                    call: *call,
                    writes: only_calls(writes),
                };
                Some(Cow::Owned(Event {
                    body: EventBody::Fact(fact),
                    ..event.clone()
                }))
            }
            (Self::ToolsOnly, EventBody::Entry(entry)) => {
                let mut entry = (**entry).clone();
                entry.writes = entry.writes.iter().map(only_calls).collect();
                let shown = entry.writes.iter().any(|writes| !writes.is_empty());
                shown.then(|| {
                    Cow::Owned(Event {
                        body: EventBody::Entry(Arc::new(entry)),
                        ..event.clone()
                    })
                })
            }
            (Self::Status | Self::ToolsOnly, _) => None,
        }
    }
}

/// Returns the writes that are tool calls or their results.
fn only_calls(writes: &Update) -> Update {
    let messages = writes.messages.iter().filter_map(|message| match &message.role {
        Role::Tool { .. } => Some(Arc::clone(message)),
        Role::Ai { tool_calls, .. } if !tool_calls.is_empty() => {
            let role = Role::Ai {
                tool_calls: tool_calls.clone(),
                invalid_tool_calls: vec![],
                usage_metadata: None,
            };
            let name = message.name.clone();
            let id = message.id.clone();
            Some(Arc::new(Message {
                name,
                id,
                ..Message::new(role, Content::default())
            }))
        }
        Role::Ai { .. } | Role::Human | Role::System | Role::Remove => None,
    });
    Update {
        messages: messages.collect(),
        ..Update::none()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::domain::checkpoint::{CheckpointSource, Entry, Lane};
    use crate::domain::event::Origin;
    use crate::domain::id::{CheckpointId, RunId};
    use crate::domain::message::{ToolCall, ToolStatus};
    use crate::domain::run::RunStatus;
    use crate::domain::time::Timestamp;

    fn event(body: EventBody) -> Event {
        let origin = Origin {
            lane: Lane::Main,
            namespace: vec![],
            agent: "a".to_owned(),
            path: vec![],
            cause: None,
            visibility: Visibility::Full,
            display_text: None,
        };
        Event {
            seq: 1,
            run: RunId::mint(),
            at: Timestamp(0),
            origin: Arc::new(origin),
            body,
        }
    }

    fn step(writes: Update) -> Event {
        let id = CheckpointId::mint();
        let source = CheckpointSource::Loop;
        let node = "model".to_owned();
        let entry = Entry {
            id,
            parent: None,
            step: 0,
            source,
            node,
            writes: vec![writes],
            logged_writes: vec![],
            carried_from: None,
        };
        event(EventBody::Entry(Arc::new(entry)))
    }

    fn written(event: &Event) -> Vec<Update> {
        match &event.body {
            EventBody::Entry(entry) => entry.writes.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tools_only_shows_calls_and_results_without_text_of_the_model() {
        let call = ToolCall::new("c1", "dig", Map::new());
        let role = Role::Ai {
            tool_calls: vec![call.clone()],
            invalid_tool_calls: vec![],
            usage_metadata: Some(json!(1)),
        };
        let mut writes = Update::messages([
            Message::human("secret"),
            Message::new(role, "secret"),
            Message::ai("secret"),
            Message::tool(&call, ToolStatus::Success, "dug"),
        ]);
        writes.fields.insert("notes".to_owned(), json!("secret"));
        let event_of = step(writes);
        let shown = Visibility::ToolsOnly.visible_part(&event_of).expect("something");
        let written = written(&shown);
        let text = serde_json::to_string(&written).expect("JSON");
        assert!(
            !text.contains("secret") && text.contains("c1") && text.contains("dug"),
            "{text}"
        );
        assert!(
            Visibility::Status.visible_part(&event_of).is_none() && Visibility::Full.visible_part(&event_of).is_some()
        );
        let silent = step(Update::messages([Message::ai("secret")]));
        assert!(Visibility::ToolsOnly.visible_part(&silent).is_none());
    }

    #[test]
    fn status_shows_start_and_end_and_hidden_shows_neither() {
        let ended = event(EventBody::Fact(Fact::Ended {
            status: RunStatus::Success,
            error: None,
            waits: false,
            used: None,
        }));
        assert!(Visibility::Status.visible_part(&ended).is_some() && Visibility::Hidden.visible_part(&ended).is_none());
        let ended_event = event(EventBody::Fact(Fact::Custom { value: json!("secret") }));
        assert!(Visibility::ToolsOnly.visible_part(&ended_event).is_none());
    }
}
