//! The schema of the answer to a question about calls.

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::actions::with_action;
use super::decision_schema;
use crate::domain::interrupt::DecisionKind;
use crate::domain::remembered::DecisionScope;
use crate::domain::schema_text::SchemaText;

/// The maximum size of a schema that is kept, in bytes.
const MAX_KEPT_BYTES: usize = 64 * 1024;

/// The decisions that are allowed about a call, and their reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CallChoices {
    pub(super) allowed: Vec<DecisionKind>,
    pub(super) scopes: Vec<DecisionScope>,
}

/// The schema of the last answer that an agent has asked for. Most of its questions are about calls of the same few tools.
#[derive(Default)]
pub(super) struct LastAnswer(Mutex<Option<KnownAnswer>>);

/// An answer whose schema was written.
struct KnownAnswer {
    choices: Vec<CallChoices>,
    action: Option<SchemaText>,
    schema: SchemaText,
}

impl LastAnswer {
    /// Returns the schema of a valid answer: for each call, in order, one of the decisions allowed for it. `action` is the schema of
    /// a call that a reviewer may write in place of another one.
    pub(super) fn of(&self, choices: Vec<CallChoices>, action: Option<SchemaText>) -> SchemaText {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = lock()
            .as_ref()
            .filter(|known| known.choices == choices && known.action == action)
            .map(|known| known.schema.clone());
        if let Some(schema) = found {
            return schema;
        }
        let schema = answer_schema(&choices, action.as_ref());
        if schema.as_str().len() <= MAX_KEPT_BYTES {
            let known = KnownAnswer {
                choices,
                action,
                schema: schema.clone(),
            };
            *lock() = Some(known);
        }
        schema
    }
}

fn answer_schema(choices: &[CallChoices], action: Option<&SchemaText>) -> SchemaText {
    let positions: Vec<Value> = choices
        .iter()
        .map(|choices| decision_schema(&choices.allowed, &choices.scopes))
        .collect();
    let count = choices.len();
    let mut schema = json!({
        "type": "object",
        "properties": {"decisions": {"type": "array", "minItems": count, "maxItems": count}},
        "required": ["decisions"],
    });
    schema["properties"]["decisions"]["prefixItems"] = Value::Array(positions);
    match action {
        Some(action) => with_action(&schema, action),
        None => schema.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(allowed: &[DecisionKind]) -> CallChoices {
        CallChoices {
            allowed: allowed.to_vec(),
            scopes: DecisionScope::ALL.to_vec(),
        }
    }

    #[test]
    fn a_schema_is_written_once_for_answers_of_the_same_form() {
        let answers = LastAnswer::default();
        let form = || vec![choices(&DecisionKind::ALL)];
        let action = || Some(SchemaText::from(json!({"type": "object"})));
        let first = answers.of(form(), action());
        let again = answers.of(form(), action());
        assert!(std::ptr::eq(first.as_str(), again.as_str()));
    }

    #[test]
    fn answers_of_other_forms_have_schemas_of_their_own() {
        let answers = LastAnswer::default();
        let forms = [
            (vec![choices(&DecisionKind::ALL)], Some(json!({"type": "object"}))),
            (vec![choices(&DecisionKind::ALL)], Some(json!({"type": "array"}))),
            (vec![choices(&DecisionKind::ALL)], None),
            (vec![choices(&[DecisionKind::Approve])], None),
            (
                vec![choices(&[DecisionKind::Approve]), choices(&[DecisionKind::Reject])],
                None,
            ),
        ];
        for (choices, action) in forms.iter().chain(&forms) {
            let action = action.clone().map(SchemaText::from);
            let expected = answer_schema(choices, action.as_ref());
            assert_eq!(answers.of(choices.clone(), action), expected);
        }
    }
}
