//! What the scripted model will say, written by the test.

use std::fmt;

use serde_json::{Value, json};

/// The turns of one agent, from its human message on. As text it is that human message.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    turns: Vec<Value>,
    settings: Vec<(&'static str, u64)>,
}

/// A script without a turn.
pub(crate) fn script() -> Script {
    Script::default()
}

/// A tool call with this id.
pub(crate) fn call(id: &str, name: &str, args: Value) -> Value {
    json!({"id": id, "name": name, "args": args})
}

/// A delegation: `description` is all that the subagent is told, so its script.
pub(crate) fn task(id: &str, subagent: &str, description: impl fmt::Display) -> Value {
    call(
        id,
        "task",
        json!({"description": description.to_string(), "subagent_type": subagent}),
    )
}

/// A mail to `to`.
pub(crate) fn mail(id: &str, to: &str) -> Value {
    call(id, "send_email", json!({"to": to, "body": "hi"}))
}

/// A question for the tool `lookup`.
pub(crate) fn lookup(id: &str, query: &str) -> Value {
    call(id, "lookup", json!({"query": query}))
}

impl Script {
    /// A turn that says something.
    pub(crate) fn says(self, text: &str) -> Self {
        self.turn(json!({"text": text}))
    }

    /// A turn that makes one call.
    pub(crate) fn calls(self, call: Value) -> Self {
        self.calls_all([call])
    }

    /// A turn that makes several calls at once.
    pub(crate) fn calls_all(self, calls: impl IntoIterator<Item = Value>) -> Self {
        let calls: Vec<Value> = calls.into_iter().collect();
        self.turn(json!({"tool_calls": calls}))
    }

    /// A turn in which the provider answers with this status.
    pub(crate) fn fails(self, status: u16) -> Self {
        self.turn(json!({"error": status}))
    }

    /// Any turn.
    pub(crate) fn turn(mut self, turn: Value) -> Self {
        self.turns.push(turn);
        self
    }

    /// Text and arguments come in pieces of this many characters.
    pub(crate) fn in_pieces_of(mut self, characters: u64) -> Self {
        self.settings.push(("chunk", characters));
        self
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = json!({"script": self.turns});
        for (name, value) in &self.settings {
            text[*name] = json!(value);
        }
        write!(f, "{text}")
    }
}
