//! State fields that a definition declares: their merge rules, visibility and schemas.
//!
//! An [`Update`](super::state::Update) carries the rules of its fields, so that a history can be folded without its
//! agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The rule for a write to a field that has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Merge {
    /// The new value replaces the old one.
    #[default]
    Last,
    /// The items are appended to the list.
    Append,
    /// The keys are set in the object; `null` deletes a key.
    ByKey,
}

/// The access of clients to a field: to read it, and to write it by the input of a run. Updates of the state and
/// `command.update` are written like those of a node, as in LangGraph, and may write every field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldVisibility {
    /// Inputs can write the field, and clients can read it.
    #[default]
    Public,
    /// Inputs can write the field, but clients cannot read it.
    Input,
    /// Clients can read the field, but inputs cannot write it.
    Output,
    /// Clients cannot read the field, inputs cannot write it, and it is not passed between an agent and its subagents.
    Private,
}

/// The merge rule and the visibility of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FieldRule {
    /// The merge rule.
    #[serde(default)]
    pub merge: Merge,
    /// The visibility to clients.
    #[serde(default)]
    pub visibility: FieldVisibility,
}

impl FieldRule {
    /// Returns whether clients cannot read the field.
    pub fn is_hidden(self) -> bool {
        matches!(self.visibility, FieldVisibility::Input | FieldVisibility::Private)
    }

    /// Returns the result of writing `value` over the old value.
    pub fn write(self, there: Option<Value>, value: Value) -> Value {
        match (self.merge, there, value) {
            (Merge::Append | Merge::ByKey, Some(there), Value::Null) => there,
            (Merge::Append, Some(Value::Array(mut items)), Value::Array(more)) => {
                items.extend(more);
                Value::Array(items)
            }
            (Merge::ByKey, Some(Value::Object(mut fields)), Value::Object(more)) => {
                set(&mut fields, more);
                Value::Object(fields)
            }
            (Merge::ByKey, None, Value::Object(more)) => {
                let mut fields = Map::new();
                set(&mut fields, more);
                Value::Object(fields)
            }
            (_, _, value) => value,
        }
    }

    /// Returns one write with the effect of `first` followed by `later`.
    pub fn combine(self, first: Value, later: Value) -> Value {
        match (self.merge, first, later) {
            // A `null` that deletes a key is kept: the key may exist before both writes.
            (Merge::ByKey, Value::Object(mut fields), Value::Object(more)) => {
                fields.extend(more);
                Value::Object(fields)
            }
            (_, first, later) => self.write(Some(first), later),
        }
    }

    /// Returns the write that changes `before` into `after`, if one is needed.
    pub fn difference(self, before: Option<&Value>, after: &Value) -> Option<Value> {
        match (self.merge, before, after) {
            (_, Some(before), after) if before == after => None,
            (Merge::Append, Some(Value::Array(before)), Value::Array(after)) if after.starts_with(before) => {
                Some(Value::Array(after[before.len()..].to_vec()))
            }
            (Merge::ByKey, Some(Value::Object(before)), Value::Object(after)) => {
                let changed = after.iter().filter(|(key, value)| before.get(*key) != Some(value));
                let removed = before.keys().filter(|key| !after.contains_key(*key));
                let changed = changed.map(|(key, value)| (key.clone(), value.clone()));
                Some(Value::Object(
                    changed.chain(removed.map(|key| (key.clone(), Value::Null))).collect(),
                ))
            }
            (_, _, after) => Some(after.clone()),
        }
    }
}

fn set(fields: &mut Map<String, Value>, more: Map<String, Value>) {
    for (key, value) in more {
        if value.is_null() {
            fields.shift_remove(&key);
        } else {
            fields.insert(key, value);
        }
    }
}

/// The rules of declared fields, by name.
pub type Rules = Arc<BTreeMap<String, FieldRule>>;

/// The declaration of a state field in a definition.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FieldDefinition {
    /// The merge rule.
    pub merge: Merge,
    /// The visibility to clients.
    pub visibility: FieldVisibility,
    /// The JSON Schema of a write: of the value; for `append` of a list, for `by_key` of an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

impl FieldDefinition {
    /// Returns the rule of the field.
    pub fn rule(&self) -> FieldRule {
        FieldRule {
            merge: self.merge,
            visibility: self.visibility,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(merge: Merge) -> FieldRule {
        FieldRule {
            merge,
            visibility: FieldVisibility::Public,
        }
    }

    #[test]
    fn values_are_merged_by_their_rule() {
        let written = |merge, there: Value, value| rule(merge).write(Some(there), value);
        assert_eq!(written(Merge::Last, json!([1]), json!([2])), json!([2]));
        assert_eq!(written(Merge::Append, json!([1]), json!([2, 3])), json!([1, 2, 3]));
        assert_eq!(written(Merge::Append, json!([1]), Value::Null), json!([1]));
        assert_eq!(
            written(Merge::ByKey, json!({"a": 1, "b": 1}), json!({"a": 2, "b": null})),
            json!({"a": 2})
        );
        assert_eq!(
            rule(Merge::ByKey).write(None, json!({"a": 1, "b": null})),
            json!({"a": 1})
        );
    }

    #[test]
    fn a_difference_written_over_the_old_value_gives_the_new_one() {
        for (merge, before, after) in [
            (Merge::Append, json!([1]), json!([1, 2])),
            (Merge::ByKey, json!({"a": 1, "b": 1}), json!({"b": 2, "c": 3})),
            (Merge::Last, json!(1), json!("x")),
        ] {
            let difference = rule(merge).difference(Some(&before), &after).expect("they differ");
            assert_eq!(rule(merge).write(Some(before.clone()), difference), after);
            assert_eq!(rule(merge).difference(Some(&before), &before), None);
        }
        assert_eq!(rule(Merge::Append).difference(None, &json!([1])), Some(json!([1])));
    }

    #[test]
    fn a_combined_write_equals_both_writes_in_order() {
        let first = json!({"a": null, "b": 2});
        let later = json!({"b": null, "c": 3});
        let both = rule(Merge::ByKey).combine(first.clone(), later.clone());
        let there = Some(json!({"a": 0, "b": 0}));
        let one_by_one = rule(Merge::ByKey).write(Some(rule(Merge::ByKey).write(there.clone(), first)), later);
        assert_eq!(rule(Merge::ByKey).write(there, both), one_by_one);
    }
}
