//! A policy of an agent that a definition lists by name, with its settings.

use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::builtins::OTHER_NAMES;
use super::diagnostic::FieldPath;
use super::untagged::{self, TextOrTable};

/// A policy by its name, with its settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The name of a built-in policy, or of one that the embedding program has registered.
    pub name: String,
    /// The settings.
    pub settings: Map<String, Value>,
}

impl Policy {
    /// Creates the policy of this name without settings.
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            settings: Map::new(),
        }
    }

    /// Returns the text in a setting.
    pub fn text(&self, setting: &str) -> Option<&str> {
        self.settings.get(setting).and_then(Value::as_str)
    }

    /// Returns the names in a setting, which is a text or a list, each with its place below `field`, that of the policy.
    pub(super) fn names(&self, setting: &str, field: &FieldPath) -> Vec<(FieldPath, &str)> {
        let Some(named) = self.settings.get(setting) else {
            return vec![];
        };
        let field = field.then(setting);
        let all = named.as_array().into_iter().flatten().enumerate();
        let all = all.filter_map(|(at, name)| Some((field.then(at), name.as_str()?)));
        let one = named.as_str().map(|name| (field.clone(), name));
        one.into_iter().chain(all).collect()
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.settings.is_empty() {
            return serializer.serialize_str(&self.name);
        }
        let mut map = serializer.serialize_map(Some(self.settings.len() + 1))?;
        map.serialize_entry("name", &self.name)?;
        self.settings
            .iter()
            .try_for_each(|(key, value)| map.serialize_entry(key, value))?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "the name of a policy or a table with `name` and its settings";
        let mut settings: Map<String, Value> = match untagged::read(deserializer, expected)? {
            TextOrTable::Text(name) => return Ok(Self::named(&name)),
            TextOrTable::Table(settings) => settings,
        };
        let name = match settings.shift_remove("name") {
            Some(Value::String(name)) => name,
            Some(_) | None => String::new(),
        };
        rename(&name, &mut settings);
        Ok(Self { name, settings })
    }
}

/// Gives the settings of the policy of this name that have the names of LangChain those of the server.
fn rename(policy: &str, settings: &mut Map<String, Value>) {
    for (_, other, own) in OTHER_NAMES.iter().filter(|(name, ..)| *name == policy) {
        // With both names the other one is an unknown key.
        if !settings.contains_key(*own)
            && let Some(value) = settings.shift_remove(*other)
        {
            settings.insert((*own).to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_written_as_its_name_or_with_its_settings_and_stays_as_it_is_written() {
        let list = json!(["audit", {"name": "StoreMiddleware", "read_only": true}, "TodoListMiddleware"]);
        let policies: Vec<Policy> = serde_json::from_value(list.clone()).expect("policies");
        assert_eq!(policies[1].name.as_str(), "StoreMiddleware");
        assert_eq!(&policies[1].settings["read_only"], &json!(true));
        assert_eq!(serde_json::to_value(&policies).expect("JSON"), list);
    }

    #[test]
    fn settings_may_have_the_names_of_langchain() {
        let list = json!([{"name": "ToolCallLimitMiddleware", "tool_name": "lookup", "run_limit": 1},
            {"name": "ToolRetryMiddleware", "initial_delay": 0.5, "max_delay": 2.0},
            {"name": "PIIMiddleware", "pii_type": "email"},
            {"name": "ToolCallLimitMiddleware", "tool": "lookup", "tool_name": "publish"}, {"name": "audit", "max_delay": 1}]);
        let policies: Vec<Policy> = serde_json::from_value(list).expect("policies");
        let understood = json!([{"name": "ToolCallLimitMiddleware", "tool": "lookup", "run_limit": 1},
            {"name": "ToolRetryMiddleware", "initial_delay_s": 0.5, "max_delay_s": 2.0},
            {"name": "PIIMiddleware", "type": "email"},
            {"name": "ToolCallLimitMiddleware", "tool": "lookup", "tool_name": "publish"}, {"name": "audit", "max_delay": 1}]);
        assert_eq!(serde_json::to_value(&policies).expect("JSON"), understood);
    }
}
