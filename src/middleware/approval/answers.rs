//! The schema of the answer to a question about calls.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::actions::{ActionSchemas, decision_schema, decisions_schema};
use crate::domain::interrupt::DecisionKind;
use crate::domain::remembered::DecisionScope;
use crate::domain::schema_text::SchemaText;
use crate::model::ToolSpec;

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
    tools: Option<Vec<Arc<ToolSpec>>>,
    schema: SchemaText,
}

impl LastAnswer {
    /// Returns the schema of a valid answer: for each call, in order, one of the decisions allowed for it. If a reviewer may write
    /// a call in place of another one, it is a call of one of `tools`, whose schemas are in `actions`.
    pub(super) fn of(
        &self,
        choices: Vec<CallChoices>,
        tools: Option<Vec<Arc<ToolSpec>>>,
        actions: &ActionSchemas,
    ) -> SchemaText {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = lock()
            .as_ref()
            .filter(|known| known.choices == choices && known.tools == tools)
            .map(|known| known.schema.clone());
        if let Some(schema) = found {
            return schema;
        }
        let schema = answer_schema(&choices, tools.clone(), actions);
        if schema.as_str().len() <= MAX_KEPT_BYTES {
            let known = KnownAnswer {
                choices,
                tools,
                schema: schema.clone(),
            };
            *lock() = Some(known);
        }
        schema
    }
}

fn answer_schema(choices: &[CallChoices], tools: Option<Vec<Arc<ToolSpec>>>, actions: &ActionSchemas) -> SchemaText {
    let positions: Vec<Value> = choices
        .iter()
        .map(|choices| decision_schema(&choices.allowed, &choices.scopes))
        .collect();
    match tools {
        Some(tools) => actions.with_decisions(positions, tools),
        None => decisions_schema(positions).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn choices(allowed: &[DecisionKind]) -> CallChoices {
        CallChoices {
            allowed: allowed.to_vec(),
            scopes: DecisionScope::ALL.to_vec(),
        }
    }

    /// Returns a tool whose argument has this type.
    fn tool(kind: &str) -> Vec<Arc<ToolSpec>> {
        vec![Arc::new(ToolSpec {
            name: "pay".to_owned(),
            description: String::new(),
            parameters: json!({"type": "object", "properties": {"to": {"type": kind}}}),
        })]
    }

    #[test]
    fn a_schema_is_written_once_for_answers_of_the_same_form() {
        let actions = ActionSchemas::default();
        let answers = LastAnswer::default();
        let form = || vec![choices(&DecisionKind::ALL)];
        let first = answers.of(form(), Some(tool("string")), &actions);
        let again = answers.of(form(), Some(tool("string")), &actions);
        assert!(std::ptr::eq(first.as_str(), again.as_str()));
    }

    #[test]
    fn answers_of_other_forms_have_schemas_of_their_own() {
        let actions = ActionSchemas::default();
        let answers = LastAnswer::default();
        let forms = [
            (vec![choices(&DecisionKind::ALL)], Some(tool("string"))),
            (vec![choices(&DecisionKind::ALL)], Some(tool("integer"))),
            (vec![choices(&DecisionKind::ALL)], None),
            (vec![choices(&[DecisionKind::Approve])], None),
            (
                vec![choices(&[DecisionKind::Approve]), choices(&[DecisionKind::Reject])],
                None,
            ),
        ];
        for (choices, tools) in forms.iter().chain(&forms) {
            let expected = answer_schema(choices, tools.clone(), &actions);
            assert_eq!(answers.of(choices.clone(), tools.clone(), &actions), expected);
        }
        let texts: BTreeSet<String> = forms
            .into_iter()
            .map(|(choices, tools)| answers.of(choices, tools, &actions).as_str().to_owned())
            .collect();
        assert_eq!(texts.len(), 5);
    }
}
