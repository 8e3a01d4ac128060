//! The built-in tools of the demonstration. They need no network and have no effects.
//!
//! A definition declares them with `kind = "builtin"` and may replace their description and schema.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use super::halt::Halt;
use super::outcome::CallOutcome;
use super::scope::Scope;
use super::toolbox::Tool;
use crate::definition::{AfterCrash, OnError, ToolDefinition};
use crate::domain::call::ToolOutput;
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::state::State;
use crate::model::ToolSpec;

/// Returns the built-in tool of `definition` under its declared name; `None` for an unknown one, which validation
/// rejects.
pub fn built_in(name: &str, definition: &ToolDefinition) -> Option<Arc<dyn Tool>> {
    let (action, description, parameters) = match definition.builtin.as_deref()? {
        "lookup" => (
            Action::Lookup,
            "Looks up what is known about something.",
            json!({"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}),
        ),
        "publish" => (
            Action::Publish,
            "Publishes a text where everybody can read it.",
            json!({
                "type": "object",
                "properties": {"title": {"type": "string"}, "text": {"type": "string"}},
                "required": ["title", "text"],
            }),
        ),
        _ => return None,
    };
    let given = Some(definition.description.as_str()).filter(|text| !text.trim().is_empty());
    let spec = ToolSpec {
        name: name.to_owned(),
        description: given.unwrap_or(description).to_owned(),
        parameters: if definition.parameters.is_null() {
            parameters
        } else {
            definition.parameters.clone()
        },
    };
    Some(Arc::new(Demo {
        spec: Arc::new(spec),
        action,
        after_crash: definition.after_crash,
        on_error: definition.on_error,
    }))
}

/// The actions of the built-in tools.
#[derive(Debug, Clone, Copy)]
enum Action {
    Lookup,
    Publish,
}

struct Demo {
    spec: Arc<ToolSpec>,
    action: Action,
    after_crash: AfterCrash,
    on_error: OnError,
}

#[async_trait]
impl Tool for Demo {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    fn after_crash(&self) -> AfterCrash {
        match self.action {
            Action::Lookup => AfterCrash::Repeat,
            Action::Publish => self.after_crash,
        }
    }

    fn on_error(&self) -> OnError {
        self.on_error
    }

    async fn call(&self, _scope: &Scope, _state: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let text = match self.action {
            Action::Lookup => lookup(call.text_argument("query")),
            Action::Publish => publish(call.text_argument("title"), call.text_argument("text")),
        };
        Ok(CallOutcome::Answer(ToolOutput::message(Message::tool(
            call,
            ToolStatus::Success,
            text,
        ))))
    }
}

fn lookup(query: &str) -> String {
    /// A small encyclopaedia: keywords and their entries.
    const KNOWN: [(&str, &str); 6] = [
        (
            "adjutant",
            "An adjutant is an officer who helps a commander by carrying out the details of the work.",
        ),
        (
            "agent",
            "An agent is a model that works in a loop: it thinks, calls tools, reads the results, and goes on.",
        ),
        (
            "checkpoint",
            "A checkpoint is a stored state from which work goes on after an interruption.",
        ),
        (
            "delegat",
            "To delegate is to hand a piece of work to another agent and to take back only the result.",
        ),
        (
            "otter",
            "Otters hunt fish and crabs in rivers and along coasts; sea otters open shells with stones.",
        ),
        (
            "rust",
            "Rust is a programming language that finds memory errors and data races when it compiles.",
        ),
    ];
    let words = query.to_lowercase();
    let facts: Vec<&str> = KNOWN
        .iter()
        .filter(|(word, _)| words.contains(word))
        .map(|(_, fact)| *fact)
        .collect();
    if facts.is_empty() {
        let count = KNOWN.len();
        return format!("The demonstration's encyclopaedia has {count} entries, and none about \"{query}\".");
    }
    facts.join(" ")
}

fn publish(title: &str, text: &str) -> String {
    let title = if title.is_empty() { "Untitled" } else { title };
    format!(
        "Published \"{title}\" ({} characters). This is a demonstration: nobody else can see it.",
        text.chars().count()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::{BUILT_IN, ToolKind};

    #[test]
    fn every_built_in_tool_that_can_be_declared_exists_with_a_valid_schema() {
        for name in BUILT_IN {
            let definition = ToolDefinition {
                kind: ToolKind::Builtin,
                builtin: Some(name.to_owned()),
                ..ToolDefinition::default()
            };
            let tool = built_in("mine", &definition).expect("the tool exists");
            assert_eq!(tool.spec().name, "mine");
            assert!(crate::domain::schema::Schema::compile(&tool.spec().parameters).is_ok());
        }
    }

    #[test]
    fn a_declaration_may_describe_a_built_in_tool_in_its_own_words() {
        let definition = ToolDefinition {
            kind: ToolKind::Builtin,
            builtin: Some("lookup".to_owned()),
            description: "Asks the oracle.".to_owned(),
            ..ToolDefinition::default()
        };
        let tool = built_in("oracle", &definition).expect("the tool exists");
        assert_eq!(tool.spec().description, "Asks the oracle.");
    }

    #[test]
    fn a_lookup_finds_what_the_question_mentions() {
        assert_eq!(
            lookup("What is Rust?"),
            "Rust is a programming language that finds memory errors and data races when it compiles."
        );
    }
}
