//! The demonstration: the behaviour of `scripted:demo` without a script, so that a fresh installation shows planning,
//! delegation, an approval and a summary without any key.
//!
//! The behaviour depends only on the offered tools and on the messages since the last human message, so the same
//! conversation always continues in the same way.
//!
//! * **With a tool `task`** it plays the main agent: first it writes todos (`write_todos`, when offered) and gives a
//!   part each to two subagents, in parallel; then it calls the first gated tool it finds (`publish`, `send_email`);
//!   then it ticks the todos off; then it answers and quotes what came back.
//! * **Without** it plays a subagent: it calls its first tool that looks something up (`lookup`, `search`) once,
//!   then its gated tool once, if it has one, then answers. Whether a gated tool needs an approval is the server's
//!   business; a refusal is reported in the answer.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::answer::{PlannedCall, ScriptedAnswer};
use crate::domain::message::{Message, Role, ToolStatus};
use crate::domain::text_limits::cut_after;
use crate::model::ToolSpec;

/// The tools with effects, in the order in which they are tried.
const GATED: [&str; 2] = ["publish", "send_email"];

/// The maximum length of a quotation, in characters.
const MAX_QUOTE_CHARS: usize = 240;

/// Returns the next turn of the demonstration. `turn` holds the messages after the last human message, whose text is
/// `question`.
pub fn demo(question: &str, turn: &[Arc<Message>], tools: &[Arc<ToolSpec>]) -> ScriptedAnswer {
    let scene = Demonstration {
        question: quote(question),
        turn,
        tools,
    };
    if scene.tool("task").is_some() {
        scene.main_agent()
    } else {
        scene.subagent()
    }
}

struct Demonstration<'a> {
    question: String,
    turn: &'a [Arc<Message>],
    tools: &'a [Arc<ToolSpec>],
}

impl Demonstration<'_> {
    fn main_agent(&self) -> ScriptedAnswer {
        if self.calls_of("task") == 0 {
            return self.delegate();
        }
        if let Some(gated) = self.due_gated() {
            return ScriptedAnswer {
                text: format!(
                    "Both parts on \"{}\" are in. Next is `{}`, which may need your approval. ",
                    self.question, gated.name
                ),
                calls: vec![self.call(gated)],
                ..ScriptedAnswer::default()
            };
        }
        if self.calls_of("write_todos") == 1 {
            return ScriptedAnswer {
                calls: vec![self.todos("completed", "completed")],
                ..ScriptedAnswer::default()
            };
        }
        ScriptedAnswer::text(self.summary("Done with"))
    }

    fn subagent(&self) -> ScriptedAnswer {
        let is_lookup = |tool: &&Arc<ToolSpec>| tool.name.contains("lookup") || tool.name.contains("search");
        if let Some(tool) = self
            .tools
            .iter()
            .find(is_lookup)
            .filter(|tool| self.calls_of(&tool.name) == 0)
        {
            return ScriptedAnswer {
                text: format!("I look up \"{}\" first. ", self.question),
                calls: vec![self.call(tool)],
                ..ScriptedAnswer::default()
            };
        }
        if let Some(gated) = self.due_gated() {
            return ScriptedAnswer {
                text: format!("For \"{}\" I need `{}`. ", self.question, gated.name),
                calls: vec![self.call(gated)],
                ..ScriptedAnswer::default()
            };
        }
        ScriptedAnswer::text(self.summary("My part is done:"))
    }

    /// Returns the plan, and then a part of the work for each of two subagents.
    fn delegate(&self) -> ScriptedAnswer {
        let mut calls = Vec::new();
        if self.tool("write_todos").is_some() && self.calls_of("write_todos") == 0 {
            calls.push(self.todos("in_progress", "pending"));
        }
        let [first, second] = self.helpers();
        for (helper, prefix) in [
            (&first, "Find out what is known about"),
            (&second, "Draft a short answer to"),
        ] {
            let args = json!({"description": format!("{prefix}: {}", self.question), "subagent_type": helper});
            calls.push(PlannedCall::new("task", &args));
        }
        let text = format!(
            "You asked: \"{}\". I make a plan and ask {first} and {second} for a part each. ",
            self.question
        );
        ScriptedAnswer {
            text,
            calls,
            ..ScriptedAnswer::default()
        }
    }

    /// Returns two subagents of the tool `task`: a researcher and a writer if there are, else the first two.
    fn helpers(&self) -> [String; 2] {
        let names: Vec<&str> = self
            .tool("task")
            .and_then(|task| task.parameters.pointer("/properties/subagent_type/enum")?.as_array())
            .map(|names| names.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let first = names
            .iter()
            .find(|name| **name == "researcher")
            .or(names.first())
            .copied();
        let first = first.unwrap_or("general-purpose");
        let second = names
            .iter()
            .find(|name| **name == "writer")
            .or(names.iter().find(|name| **name != first))
            .copied();
        [first.to_owned(), second.unwrap_or(first).to_owned()]
    }

    fn todos(&self, first: &str, second: &str) -> PlannedCall {
        let args = json!({"todos": [
            {"content": format!("Collect what is known about: {}", self.question), "status": first},
            {"content": "Put the answer together and deliver it", "status": second},
        ]});
        PlannedCall::new("write_todos", &args)
    }

    /// Returns the final answer, which quotes every result since the question.
    fn summary(&self, opening: &str) -> String {
        let mut text = format!("{opening} \"{}\".", self.question);
        for message in self.turn {
            let Role::Tool { status, .. } = message.role else {
                continue;
            };
            let name = message.name.as_deref().unwrap_or("tool");
            if name == "write_todos" {
                continue;
            }
            let verb = if status == ToolStatus::Error {
                "did not go through"
            } else {
                "answered"
            };
            text.push_str(&format!("\n- `{name}` {verb}: {}", quote(&message.content.text())));
        }
        text
    }

    fn tool(&self, name: &str) -> Option<&Arc<ToolSpec>> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    fn calls_of(&self, name: &str) -> usize {
        self.turn
            .iter()
            .flat_map(|message| message.tool_calls())
            .filter(|call| call.name == name)
            .count()
    }

    fn due_gated(&self) -> Option<&Arc<ToolSpec>> {
        GATED
            .iter()
            .find_map(|name| self.tool(name))
            .filter(|tool| self.calls_of(&tool.name) == 0)
    }

    /// Returns a call with arguments that match the tool's schema.
    fn call(&self, tool: &ToolSpec) -> PlannedCall {
        let properties = tool.parameters.get("properties").and_then(Value::as_object);
        let required: Option<Vec<&str>> = tool
            .parameters
            .get("required")
            .and_then(Value::as_array)
            .map(|names| names.iter().filter_map(Value::as_str).collect());
        let args: Map<String, Value> = properties
            .into_iter()
            .flatten()
            .filter(|(name, _)| {
                required
                    .as_ref()
                    .is_none_or(|required| required.contains(&name.as_str()))
            })
            .map(|(name, schema)| (name.clone(), self.argument(name, schema)))
            .collect();
        PlannedCall::new(tool.name.clone(), &Value::Object(args))
    }

    fn argument(&self, name: &str, schema: &Value) -> Value {
        if let Some(first) = schema.get("enum").and_then(|choices| choices.get(0)) {
            return first.clone();
        }
        match schema.get("type").and_then(Value::as_str) {
            Some("integer" | "number") => json!(1),
            Some("boolean") => json!(true),
            Some("array") => json!([]),
            Some("object") => json!({}),
            Some("null") => Value::Null,
            Some(_) | None => match name {
                "to" | "recipient" | "email" | "address" => json!("team@example.com"),
                "subject" | "title" => json!(format!("About: {}", self.question)),
                "body" | "content" | "text" | "message" | "draft" => json!(self.latest()),
                _ => json!(self.question),
            },
        }
    }

    /// Returns the latest result, or the question if there is none yet.
    fn latest(&self) -> String {
        let is_result =
            |message: &&Arc<Message>| message.answers().is_some() && message.name.as_deref() != Some("write_todos");
        let result = self
            .turn
            .iter()
            .rev()
            .find(is_result)
            .map(|message| message.content.text());
        result
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| self.question.clone())
    }
}

/// Returns at most [`MAX_QUOTE_CHARS`] characters of a text, on one line.
fn quote(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    cut_after(&line, MAX_QUOTE_CHARS, "…")
}
