//! The models of an agent: the first is asked, and the others in their order when it fails.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::untagged::{self, TextOrList};

/// The maximum number of models of one agent.
pub const MAX_MODEL_NAMES: usize = 8;

/// The names of an agent's models, as `provider:model-name`: one text, or a list. The first model is asked; each other
/// one is asked when the one before it fails.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelNames(Vec<String>);

impl ModelNames {
    /// Returns the name of the first model; an empty text if there is none.
    pub fn first(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// Returns the names of the models that are asked when the first one fails, in their order.
    pub fn fallbacks(&self) -> &[String] {
        self.0.get(1..).unwrap_or_default()
    }

    /// Returns all names, the first model's first.
    pub fn all(&self) -> &[String] {
        &self.0
    }
}

impl From<&str> for ModelNames {
    fn from(name: &str) -> Self {
        Self(vec![name.to_owned()])
    }
}

impl From<Vec<String>> for ModelNames {
    fn from(names: Vec<String>) -> Self {
        Self(names)
    }
}

impl fmt::Display for ModelNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", then "))
    }
}

impl Serialize for ModelNames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [] => serializer.serialize_str(""),
            [one] => serializer.serialize_str(one),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ModelNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match untagged::read(deserializer, "a text or a list of texts")? {
            TextOrList::Text(name) => vec![name],
            TextOrList::List(names) => names,
        }))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn one_name_is_a_text_and_several_are_a_list_that_is_written_as_it_was_read() {
        for said in [json!("lab:a"), json!(["lab:a", "lab:b"])] {
            let read: ModelNames = serde_json::from_value(said.clone()).unwrap();
            assert_eq!(read.first(), "lab:a");
            assert_eq!(serde_json::to_value(&read).unwrap(), said);
        }
        let alone: ModelNames = serde_json::from_value(json!(["lab:a"])).unwrap();
        assert_eq!(alone, ModelNames::from("lab:a"));
        assert!(alone.fallbacks().is_empty());
    }

    #[test]
    fn other_values_are_refused_with_the_forms_that_are_taken() {
        for said in [json!(3), json!({"name": "lab:a"}), Value::Null, json!(["lab:a", 3])] {
            let refused = serde_json::from_value::<ModelNames>(said).unwrap_err().to_string();
            assert!(refused.contains("expected a"), "{refused}");
        }
    }
}
