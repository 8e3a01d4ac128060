//! The schemas of decisions about calls, and of the calls that a reviewer may write in place of others.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::interrupt::DecisionKind;
use crate::domain::remembered::DecisionScope;
use crate::domain::schema::{Schema, can_be_embedded};
use crate::domain::schema_text::SchemaText;
use crate::model::ToolSpec;

/// The most lists of tools that are kept for an agent.
pub(super) const MAX_KEPT: usize = 32;
/// The maximum size of the schemas that are kept for an agent, in bytes, except for the last one.
pub(super) const MAX_KEPT_BYTES: usize = 1024 * 1024;

/// Returns the schema of one decision. It uses conditions instead of alternatives, since their errors name the
/// mistake.
pub(super) fn decision_schema(allowed: &[DecisionKind], scopes: &[DecisionScope]) -> Value {
    let rules: Vec<Value> = allowed
        .iter()
        .filter_map(|kind| {
            let (properties, required) = match kind {
                DecisionKind::Approve => return None,
                DecisionKind::Edit => (
                    json!({"edited_action": {"$ref": "#/$defs/action"}}),
                    json!(["edited_action"]),
                ),
                DecisionKind::Reject => (json!({"message": {"type": ["string", "null"]}}), json!([])),
                DecisionKind::Respond => (json!({"message": {"type": "string"}}), json!(["message"])),
            };
            Some(json!({
                "if": {"properties": {"type": {"const": kind}}},
                "then": {"properties": properties, "required": required},
            }))
        })
        .collect();
    let properties = json!({"type": {"enum": allowed}, "scope": {"enum": scopes}});
    let mut schema = json!({"type": "object", "properties": properties, "required": ["type"]});
    if !rules.is_empty() {
        schema["allOf"] = Value::Array(rules);
    }
    schema
}

/// Returns the schema of an answer with a decision for each of these schemas, in their order.
pub(super) fn decisions_schema(positions: Vec<Value>) -> Value {
    let count = positions.len();
    let mut decisions = json!({"type": "array", "minItems": count, "maxItems": count});
    decisions["prefixItems"] = Value::Array(positions);
    json!({"type": "object", "properties": {"decisions": decisions}, "required": ["decisions"]})
}

/// A schema with the one of a call, to which it refers.
#[derive(Serialize)]
struct WithAction<'a> {
    #[serde(flatten)]
    schema: &'a Value,
    #[serde(rename = "$defs")]
    definitions: ActionDefinition<'a>,
}

#[derive(Serialize)]
struct ActionDefinition<'a> {
    action: &'a SchemaText,
}

/// Adds the schema of a call to the schema of an object that refers to it.
pub(super) fn with_action(schema: &Value, action: &SchemaText) -> SchemaText {
    let definitions = ActionDefinition { action };
    SchemaText::of(&WithAction { schema, definitions })
}

/// The schemas of the calls of some tools, for the last lists of tools. To find out whose schemas can be embedded takes longer than
/// everything else that a question needs.
#[derive(Default)]
pub(super) struct ActionSchemas(pub(super) Mutex<Vec<KnownTools>>);

/// Tools whose schemas were checked.
pub(super) struct KnownTools {
    tools: Vec<Arc<ToolSpec>>,
    /// The schema of their calls.
    schema: SchemaText,
}

impl ActionSchemas {
    /// Returns the schema of an answer with a decision for each of these schemas, which may refer to the one of a call of one of
    /// `tools`.
    pub(super) fn with_decisions(&self, positions: Vec<Value>, tools: Vec<Arc<ToolSpec>>) -> SchemaText {
        let is_about_one = positions.len() == 1;
        let decisions = decisions_schema(positions);
        let schema = with_action(&decisions, &self.of(tools.clone()));
        // Each decision refers to the schema of a call. All of them together may be more than answers are checked against.
        if is_about_one || Schema::compile_once(&schema).is_ok() {
            return schema;
        }
        with_action(&decisions, &SchemaText::from(action_schema(&tools, &[])))
    }

    /// Returns the schema of a call of one of `tools`.
    pub(super) fn of(&self, tools: Vec<Arc<ToolSpec>>) -> SchemaText {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = lock()
            .iter()
            .find(|known| known.tools == tools)
            .map(|known| known.schema.clone());
        if let Some(schema) = found {
            return schema;
        }
        let schema = SchemaText::from(action_schema(&tools, &embeddable(&tools)));
        let mut kept = lock();
        kept.push(KnownTools {
            tools,
            schema: schema.clone(),
        });
        // The list of a server's tools may change again and again.
        while kept.len() > MAX_KEPT || (kept.len() > 1 && bytes_of(&kept) > MAX_KEPT_BYTES) {
            kept.remove(0);
        }
        schema
    }
}

/// Returns the size of the schemas, in bytes.
fn bytes_of(kept: &[KnownTools]) -> usize {
    kept.iter().map(|known| known.schema.as_str().len()).sum()
}

/// Returns those of the tools whose schemas can be embedded into the one of their calls.
fn embeddable(tools: &[Arc<ToolSpec>]) -> Vec<Arc<ToolSpec>> {
    // An invalid schema would make the whole one invalid.
    let is_valid = |schema: &Value| can_be_embedded(schema) && Schema::compile(schema).is_ok();
    let alone = tools.iter().filter(|tool| is_valid(&tool.parameters));
    let alone: Vec<Arc<ToolSpec>> = alone.cloned().collect();
    // Each schema is small enough, but all of them together may not be, where a question has them.
    let decision = decision_schema(&DecisionKind::ALL, &DecisionScope::ALL);
    let action = SchemaText::from(action_schema(tools, &alone));
    let answer = with_action(&decisions_schema(vec![decision]), &action);
    match Schema::compile(&answer.parse()) {
        Ok(_) => alone,
        Err(_) => vec![],
    }
}

/// Returns the schema of a call of one of `tools`. The arguments of the `embedded` ones are checked.
fn action_schema(tools: &[Arc<ToolSpec>], embedded: &[Arc<ToolSpec>]) -> Value {
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    let rules: Vec<Value> = embedded
        .iter()
        .map(|tool| {
            json!({
                "if": {"properties": {"name": {"const": tool.name}}},
                "then": {"properties": {"args": tool.parameters}},
            })
        })
        .collect();
    let mut schema = json!({
        "type": "object",
        "properties": {"name": {"enum": names}, "args": {"type": "object"}},
        "required": ["name", "args"],
    });
    if !rules.is_empty() {
        schema["allOf"] = Value::Array(rules);
    }
    schema
}
