//! Builders for the scripts of the scripted model.

use std::fmt;

use serde_json::{Value, json};

/// The turns of one agent after a human message. Its text form is that human message.
#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    turns: Vec<Value>,
    settings: Vec<(&'static str, u64)>,
}

/// Creates a script without turns.
pub(crate) fn script() -> Script {
    Script::default()
}

/// Returns a tool call with this id.
pub(crate) fn call(id: &str, name: &str, args: Value) -> Value {
    json!({"id": id, "name": name, "args": args})
}

/// Returns a call of `task`; `description`, the subagent's whole input, is its script.
pub(crate) fn task(id: &str, subagent: &str, description: impl fmt::Display) -> Value {
    call(
        id,
        "task",
        json!({"description": description.to_string(), "subagent_type": subagent}),
    )
}

/// Returns a call of `send_email`.
pub(crate) fn mail(id: &str, to: &str) -> Value {
    call(id, "send_email", json!({"to": to, "body": "hi"}))
}

/// Returns a call of the subagent `mailer`, which writes to `to` by the call `mail_id`.
pub(crate) fn mailer(id: &str, mail_id: &str, to: &str) -> Value {
    let work = script().calls(mail(mail_id, to)).says(&format!("{to} knows"));
    task(id, "mailer", work)
}

/// Returns calls of two mailers, which ask whether they may write to ann and to bob.
pub(crate) fn two_mailers() -> [Value; 2] {
    [mailer("t1", "m1", "ann"), mailer("t2", "m2", "bob")]
}

/// Returns a call of `lookup`.
pub(crate) fn lookup(id: &str, query: &str) -> Value {
    call(id, "lookup", json!({"query": query}))
}

impl Script {
    /// Adds a turn with a text.
    pub(crate) fn says(self, text: &str) -> Self {
        self.turn(json!({"text": text}))
    }

    /// Adds a turn with one call.
    pub(crate) fn calls(self, call: Value) -> Self {
        self.calls_all([call])
    }

    /// Adds a turn with several calls.
    pub(crate) fn calls_all(self, calls: impl IntoIterator<Item = Value>) -> Self {
        let calls: Vec<Value> = calls.into_iter().collect();
        self.turn(json!({"tool_calls": calls}))
    }

    /// Adds a turn that fails with this HTTP status.
    pub(crate) fn fails(self, status: u16) -> Self {
        self.turn(json!({"error": status}))
    }

    /// Adds a turn.
    pub(crate) fn turn(mut self, turn: Value) -> Self {
        self.turns.push(turn);
        self
    }

    /// Sets the size of the pieces of texts and arguments, in characters.
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
