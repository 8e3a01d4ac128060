//! What a client wants to see of a state: fields of it, and of the values single keys.

use serde_json::Value;

use super::StateView;
use crate::http::error::ApiError;
use crate::http::extract::Select;
use crate::http::wire;

const VALUES: &str = "values";

const COLUMNS: [&str; 10] = [
    VALUES,
    "next",
    "tasks",
    "metadata",
    "created_at",
    "checkpoint",
    "parent_checkpoint",
    "interrupts",
    "checkpoint_id",
    "parent_checkpoint_id",
];

/// What a client wants to see of a state; all of it unless something is named.
#[derive(Debug, Clone, Default)]
pub struct StateSelection {
    columns: Select,
    /// The keys of the values that are wanted; all when none is named.
    keys: Vec<String>,
}

impl StateSelection {
    /// A selection by names of fields, and `values.KEY` for a key of the values.
    ///
    /// # Errors
    /// If a state has no such field.
    pub fn checked(wanted: Vec<String>) -> Result<Self, ApiError> {
        let mut keys = vec![];
        let mut columns = Vec::with_capacity(wanted.len());
        for name in wanted {
            let key = name.split_once('.').filter(|(column, _)| *column == VALUES).map(|(_, key)| key.to_owned());
            columns.push(if key.is_some() { VALUES.to_owned() } else { name });
            keys.push(key);
        }
        // Who wants all values wants every key, whatever else is named.
        let whole = columns.iter().zip(&keys).any(|(column, key)| column == VALUES && key.is_none());
        let keys = if whole { vec![] } else { keys.into_iter().flatten().collect() };
        Ok(Self { columns: Select::checked(columns, &COLUMNS)?, keys })
    }

    /// What is wanted of `view`.
    pub fn pick(&self, view: &StateView) -> Value {
        let mut item = self.columns.pick(wire::json(view));
        if let (false, Some(Value::Object(values))) = (self.keys.is_empty(), item.get_mut(VALUES)) {
            values.retain(|key, _| self.keys.contains(key));
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn picked(names: &[&str]) -> Value {
        let mut view = StateView::empty(None);
        view.values = json!({"messages": [], "files": {}});
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        StateSelection::checked(names).expect("all are fields").pick(&view)
    }

    #[test]
    fn fields_and_single_keys_are_selected() {
        assert_eq!(picked(&["next"]), json!({"next": []}));
        assert_eq!(picked(&["values.files"]), json!({"values": {"files": {}}}));
        assert_eq!(picked(&["values.none", "next"]), json!({"values": {}, "next": []}));
        assert_eq!(picked(&["values.files", "values"]), json!({"values": {"messages": [], "files": {}}}));
        assert_eq!(picked(&[]).as_object().map(serde_json::Map::len), Some(10));
    }

    #[test]
    fn what_a_state_does_not_have_is_named() {
        let error = StateSelection::checked(vec!["next".into(), "nope".into()]).expect_err("there is no such field");
        assert!(error.message().starts_with("select[1]: is \"nope\""), "{}", error.message());
    }
}
