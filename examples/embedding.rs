//! A server with parts of its own, written in Rust: a tool, a policy, a model and a subagent.
//!
//! ```text
//! cargo run --example embedding
//! curl -s localhost:8123/runs/wait -H 'content-type: application/json' \
//!   -d '{"assistant_id": "desk", "input": {"messages": [{"role": "user", "content": "Count the words of this."}]}}'
//! ```

use std::sync::Arc;

use adjutant::{
    Adjutant, Builder, CallOutcome, Contribution, Delegation, Halt, Message, Middleware, Model, ModelError, ModelEvent,
    ModelRequest, Scope, State, Tool, ToolCall, ToolSpec, Update, async_trait,
};
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::{Map, Value, json};

/// The configuration, which a server otherwise reads from a file. It refers to the parts registered below by name.
pub(crate) const CONFIGURATION: &str = r#"
[server]
listen = "127.0.0.1:8123"

[storage]
url = "sqlite://desk.db"

[agents.desk]
model = "house:clerk"
system_prompt = "You serve at the desk."
tools = ["count_words"]
middleware = ["HouseStyle"]

[[agents.desk.subagents]]
name = "counter"
description = "Counts the words of a text."
runnable = "count"

[agents.counter]
runnable = "count"
"#;

/// An agent that is a program, with nothing but a name of its own, and a subagent of the desk. It receives the state with
/// its task as the last message, and returns what it writes.
async fn count(_: Scope, state: State) -> Result<Update, Halt> {
    let text = state
        .messages
        .last()
        .map(|order| order.content.text())
        .unwrap_or_default();
    let words = text.split_whitespace().count();
    Ok(Update::messages([Message::ai(format!("{words} words"))]))
}

/// A tool that delegates to a subagent. The server manages the run of the subagent, its depth and its limits; the
/// subagent's answer is the result of the call.
struct CountWords(Arc<ToolSpec>);

impl CountWords {
    fn new() -> Self {
        let properties = json!({"text": {"type": "string"}});
        let parameters = json!({"type": "object", "properties": properties, "required": ["text"]});
        let name = "count_words".to_owned();
        let description = "Counts the words of a text.".to_owned();
        Self(Arc::new(ToolSpec {
            name,
            description,
            parameters,
        }))
    }
}

#[async_trait]
impl Tool for CountWords {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.0
    }

    async fn call(&self, _: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let text = call.args.get("text").and_then(Value::as_str).unwrap_or_default();
        Ok(CallOutcome::Delegate(Delegation::to("counter", text)))
    }
}

/// A policy that adds to the system prompt of every agent that lists it.
struct HouseStyle;

impl Middleware for HouseStyle {
    fn name(&self) -> &str {
        "HouseStyle"
    }

    fn contribution(&self) -> Contribution {
        Contribution {
            prompt: Some("Answer in one sentence.".to_owned()),
            ..Contribution::default()
        }
    }
}

/// A model: calls a tool to count the words of the first message, and reports the result.
struct Clerk;

#[async_trait]
impl Model for Clerk {
    fn identity(&self) -> (&str, &str) {
        ("house", "clerk")
    }

    async fn ask(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError> {
        let text = request
            .messages
            .last()
            .map(|message| message.content.text())
            .unwrap_or_default();
        let is_counted = request
            .messages
            .last()
            .is_some_and(|message| message.answers().is_some());
        let answer = if is_counted {
            Message::ai(format!("That makes {text}."))
        } else {
            let args = Map::from_iter([("text".to_owned(), Value::from(text))]);
            Message::calling([ToolCall::new("call_1", "count_words", args)])
        };
        Ok(stream::iter([Ok(ModelEvent::Done(Box::new(answer)))]).boxed())
    }
}

/// Builds the server with its parts, ready for `serve` or `start`.
pub(crate) fn desk() -> Builder {
    Adjutant::builder()
        .config_text(CONFIGURATION)
        .runnable("count", count)
        .tool(CountWords::new())
        .middleware(HouseStyle)
        .model("house:clerk", Clerk)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    desk().serve().await
}
