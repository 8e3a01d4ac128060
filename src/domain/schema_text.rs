//! JSON Schemas as texts. The schema of the answer to a question can be large, since it contains those of tools, and mostly it is
//! only stored and shown.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, OnceLock};

use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

/// A JSON Schema as a text, which is written as it was read. Copies share the text.
///
/// It can be read from a JSON text and from a [`Value`], but not within a variant of an enum whose tag is beside its fields.
#[derive(Debug, Clone)]
pub struct SchemaText(Arc<SharedText>);

/// The text of a schema, with what is known of it.
#[derive(Debug)]
struct SharedText {
    text: Box<str>,
    digest: OnceLock<String>,
}

/// The number of bytes of a digest.
const DIGEST_LEN: usize = 16;

static NO_SCHEMA: LazyLock<SchemaText> = LazyLock::new(|| SchemaText::stored("null"));

impl SchemaText {
    /// Writes a schema.
    pub(crate) fn of<T: Serialize + ?Sized>(schema: &T) -> Self {
        // A value of JSON can always be written.
        serde_json::to_string(schema).map_or_else(|_| Self::default(), Self::stored)
    }

    /// Takes the JSON text of a schema that was written before. It is not parsed, since that takes longer than all else that is
    /// done with most of them.
    pub(crate) fn stored(text: impl Into<Box<str>>) -> Self {
        Self(Arc::new(SharedText {
            text: text.into(),
            digest: OnceLock::new(),
        }))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Returns the beginning of the SHA-256 digest of the text, in hexadecimal digits. It is computed once for all copies.
    pub(crate) fn digest(&self) -> &str {
        self.0.digest.get_or_init(|| {
            let digest: [u8; 32] = Sha256::digest(self.as_str().as_bytes()).into();
            hex::encode(&digest[..DIGEST_LEN])
        })
    }

    /// Returns whether two schemas are copies of the same one.
    pub(crate) fn is_copy_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Parses the schema.
    pub fn parse(&self) -> Value {
        // The parser refuses only what nests too deep to be admitted as a schema.
        serde_json::from_str(self.as_str()).unwrap_or_default()
    }

    /// Returns the part at these names, each in the object before; none if there is none. Only that part is parsed.
    pub fn find(&self, names: &[&str]) -> Option<Value> {
        let mut part = self.as_str();
        for name in names {
            let fields: BTreeMap<String, &RawValue> = serde_json::from_str(part).ok()?;
            part = fields.get(*name).copied()?.get();
        }
        serde_json::from_str(part).ok()
    }
}

impl Default for SchemaText {
    /// Returns the text `null`, which is no schema.
    fn default() -> Self {
        NO_SCHEMA.clone()
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
        self.is_copy_of(other) || self.as_str() == other.as_str()
    }
}

impl Eq for SchemaText {}

impl Serialize for SchemaText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: &RawValue = serde_json::from_str(self.as_str()).map_err(S::Error::custom)?;
        text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SchemaText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self::stored(text.get()))
    }
}

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

    #[test]
    fn a_text_is_taken_as_it_was_stored_and_its_copies_share_a_digest() {
        let schema = SchemaText::from(json!({"type": "object"}));
        let stored = SchemaText::stored(schema.as_str());
        assert_eq!(stored, schema);
        assert!(!stored.is_copy_of(&schema) && stored.is_copy_of(&stored.clone()));
        assert_eq!(stored.digest(), schema.digest());
        assert_eq!(stored.digest().len(), 32);
        assert_ne!(stored.digest(), SchemaText::default().digest());
        assert_eq!(serde_json::to_string(&stored).expect("a text"), r#"{"type":"object"}"#);
    }
}
