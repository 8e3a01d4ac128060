//! JSON Schemas as texts. The schema of the answer to a question can be large, since it contains those of tools, and mostly it is
//! only stored and shown.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

/// A JSON Schema as a text, which is written as it was read. Copies share the text.
///
/// It can be read from a JSON text and from a [`Value`], but not within a variant of an enum whose tag is beside its fields.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SchemaText(Arc<RawValue>);

impl SchemaText {
    /// Writes a schema.
    pub(crate) fn of<T: Serialize + ?Sized>(schema: &T) -> Self {
        // A value of JSON can always be written.
        to_raw_value(schema).map_or_else(|_| Self::default(), |text| Self(text.into()))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Parses the schema.
    pub fn parse(&self) -> Value {
        // The parser refuses only what nests too deep to be admitted as a schema.
        serde_json::from_str(self.as_str()).unwrap_or_default()
    }

    /// Returns the part at these names, each in the object before; none if there is none. Only that part is parsed.
    pub fn find(&self, names: &[&str]) -> Option<Value> {
        let mut part: &RawValue = &self.0;
        for name in names {
            let fields: BTreeMap<String, &RawValue> = serde_json::from_str(part.get()).ok()?;
            part = fields.get(*name).copied()?;
        }
        serde_json::from_str(part.get()).ok()
    }
}

impl Default for SchemaText {
    /// Returns the text `null`, which is no schema.
    fn default() -> Self {
        Self(RawValue::NULL.to_owned().into())
    }
}

impl From<Value> for SchemaText {
    fn from(schema: Value) -> Self {
        Self::of(&schema)
    }
}

impl PartialEq for SchemaText {
    /// Returns whether the texts are the same. Two texts of one schema may differ.
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for SchemaText {}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Asked {
        schema: SchemaText,
    }

    #[test]
    fn a_schema_is_written_as_it_was_read() {
        let text = r#"{"schema":{"type": "object",  "properties":{"b":{},"a":{"const":1.50}}}}"#;
        let read: Asked = serde_json::from_str(text).expect("a schema");
        assert_eq!(serde_json::to_string(&read).expect("a text"), text);
        assert_eq!(read.schema.parse()["properties"]["a"], json!({"const": 1.5}));

        let value = json!({"schema": {"z": 1, "a": [true, null]}});
        let read: Asked = serde_json::from_value(value.clone()).expect("a schema");
        assert_eq!(read.schema.as_str(), r#"{"z":1,"a":[true,null]}"#);
        assert_eq!(read.schema, SchemaText::from(value["schema"].clone()));
        assert_eq!(serde_json::to_value(&read).expect("a value"), value);
    }

    #[test]
    fn a_part_is_found_by_its_names() {
        let schema = SchemaText::from(json!({"properties": {"type": {"enum": ["a", "\"b\""]}}, "required": ["type"]}));
        assert_eq!(
            schema.find(&["properties", "type", "enum"]),
            Some(json!(["a", "\"b\""]))
        );
        assert_eq!(schema.find(&[]), Some(schema.parse()));
        for names in [["properties", "other"], ["required", "0"], ["other", "type"]] {
            assert_eq!(schema.find(&names), None);
        }
        assert_eq!(SchemaText::default().parse(), Value::Null);
        assert_eq!(SchemaText::default().find(&["type"]), None);
    }
}
