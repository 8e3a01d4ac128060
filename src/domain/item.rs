//! The Store's data types: an item is a JSON object under a key in a namespace, and outlives threads.
//!
//! Storage is in [`crate::db`], the access rules of agents are in [`crate::tool::items`].

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use super::Invalid;
use super::json_limits::check;
use super::time::Timestamp;

pub mod filter;
pub mod template;
pub mod texts;

pub use filter::{Condition, ItemFilter, Test};
pub use texts::TextPath;

/// The maximum number of labels in a namespace.
pub const MAX_NAMESPACE_LABELS: usize = 32;
/// The maximum length of a label, in bytes.
pub const MAX_LABEL_BYTES: usize = 256;
/// The maximum length of a namespace, in bytes: all labels, and a dot after each. With a key it fits into an index
/// entry.
pub const MAX_NAMESPACE_BYTES: usize = 1024;
/// The maximum length of a key, in bytes.
pub const MAX_KEY_BYTES: usize = 512;
/// The maximum size of a value, in bytes of JSON.
pub const MAX_VALUE_BYTES: usize = 1024 * 1024;
/// The maximum time to live of an item: a hundred years, in minutes.
pub const MAX_TTL_MINUTES: f64 = 52_560_000.0;
/// The first label that clients may not use, as on LangGraph's own servers.
pub const RESERVED_ROOT: &str = "langgraph";

/// The last Unicode character, which no label may contain. As text it sorts after every namespace.
pub const AFTER_ALL: char = char::MAX;

/// The namespace of an item: a path of labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Namespace(Vec<String>);

impl Namespace {
    /// Creates a namespace that items may be written to: at least one label, and not the reserved root.
    ///
    /// # Errors
    /// See [`ItemError`].
    pub fn of_item(labels: Vec<String>) -> Result<Self, ItemError> {
        match labels.first().map(String::as_str) {
            None => Err(ItemError::NoNamespace),
            Some(RESERVED_ROOT) => Err(ItemError::Reserved),
            Some(_) => Ok(Self::prefix("namespace", labels)?),
        }
    }

    /// Creates a prefix for searches. It includes all namespaces below it; without labels it is the whole Store.
    /// `field` is its name in errors.
    ///
    /// # Errors
    /// Returns an error if a label is invalid, or if there are too many.
    pub fn prefix(field: &str, labels: Vec<String>) -> Result<Self, Invalid> {
        for (at, label) in labels.iter().enumerate() {
            check_label(label).map_err(|reason| Invalid::new(format!("{field}[{at}]"), reason))?;
        }
        let length: usize = labels.iter().map(|label| label.len() + 1).sum();
        if labels.len() > MAX_NAMESPACE_LABELS {
            return Err(Invalid::new(
                field,
                format!("has more than {MAX_NAMESPACE_LABELS} labels"),
            ));
        }
        if length > MAX_NAMESPACE_BYTES {
            return Err(Invalid::new(
                field,
                format!("is longer than {MAX_NAMESPACE_BYTES} bytes"),
            ));
        }
        Ok(Self(labels))
    }

    /// Creates a namespace from labels that were validated when they were stored.
    pub fn stored(labels: Vec<String>) -> Self {
        Self(labels)
    }

    /// Returns the labels, outermost first.
    pub fn labels(&self) -> &[String] {
        &self.0
    }

    /// Returns the namespace with `labels` appended.
    ///
    /// # Errors
    /// As [`Namespace::of_item`].
    pub fn below(&self, labels: Vec<String>) -> Result<Self, ItemError> {
        Self::of_item(self.0.iter().cloned().chain(labels).collect())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// Validates a label.
///
/// # Errors
/// Returns the reason, worded as LangGraph words it.
pub fn check_label(label: &str) -> Result<(), String> {
    if label.is_empty() || label.contains('.') {
        return Err(format!(
            "Namespace label '{label}' must be a non-empty string without periods"
        ));
    }
    if label.len() > MAX_LABEL_BYTES {
        return Err(format!("Namespace label is longer than {MAX_LABEL_BYTES} bytes"));
    }
    if label.contains(['\0', AFTER_ALL]) {
        return Err("Namespace label contains a character that cannot be stored".to_owned());
    }
    Ok(())
}

/// The address of an item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ItemAddress {
    /// The namespace.
    pub namespace: Namespace,
    /// The key.
    pub key: String,
}

impl ItemAddress {
    /// Creates the address of `key` in `namespace`.
    ///
    /// # Errors
    /// Returns an error if the key is invalid.
    pub fn new(namespace: Namespace, key: impl Into<String>) -> Result<Self, Invalid> {
        let key = key.into();
        let reason = match key.len() {
            0 => "must not be empty".to_owned(),
            _ if key.contains('\0') => "contains a character that cannot be stored".to_owned(),
            1..=MAX_KEY_BYTES => return Ok(Self { namespace, key }),
            _ => format!("is longer than {MAX_KEY_BYTES} bytes"),
        };
        Err(Invalid::new("key", reason))
    }
}

/// A search for items. The results are ordered by namespace and key.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemSearch {
    /// The namespace to search, with all namespaces below it.
    pub prefix: Namespace,
    /// The conditions on the value.
    pub filter: ItemFilter,
    /// The maximum number of results.
    pub limit: u32,
    /// The number of results to skip.
    pub offset: u32,
}

/// A query to the Store: a search, ranked by similarity if there is a text.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemQuery {
    /// The search.
    pub wanted: ItemSearch,
    /// The text to rank the results by. Ignored without a vector index.
    pub query: Option<String>,
    /// True if the time to live of the results starts anew; the configured default, if none.
    pub refresh: Option<bool>,
}

/// A JSON object in the Store.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// The address.
    pub address: ItemAddress,
    /// The value.
    pub value: Map<String, Value>,
    /// The time at which the item expires; none for an item that is kept until it is deleted.
    pub expires_at: Option<Timestamp>,
    /// The time of the first write.
    pub created_at: Timestamp,
    /// The time of the last write.
    pub updated_at: Timestamp,
}

/// A search result.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundItem {
    /// The item.
    pub item: Item,
    /// The similarity to the query, from -1 to 1; none without a query.
    pub score: Option<f32>,
}

/// A request to write an item.
#[derive(Debug, Clone, PartialEq)]
pub struct NewItem {
    /// The address.
    pub address: ItemAddress,
    /// The value, which replaces an older one.
    pub value: Map<String, Value>,
    /// The time to live.
    pub lifetime: ItemLifetime,
    /// The texts to index.
    pub indexing: Indexing,
}

/// The time to live in a request to write an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ItemLifetime {
    /// The configured default.
    #[default]
    AsConfigured,
    /// No expiry.
    Forever,
    /// This long after the last write, or after the last read that refreshes it.
    For(Duration),
}

/// The texts of an item to index, where the server has a vector index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Indexing {
    /// The texts that the server is configured to index.
    #[default]
    AsConfigured,
    /// No text.
    Off,
    /// The texts at these paths.
    Fields(Vec<TextPath>),
}

/// The embedding of one text of an item.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemVector {
    /// The path of the text in the value.
    pub path: String,
    /// A unit vector of the configured dimension.
    pub vector: Vec<f32>,
}

/// An item that is ready to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct PreparedItem {
    /// The address.
    pub address: ItemAddress,
    /// The value, which replaces an older one.
    pub value: Map<String, Value>,
    /// The time to live; none for no expiry.
    pub ttl: Option<Duration>,
    /// The embeddings.
    pub vectors: Vec<ItemVector>,
}

impl PreparedItem {
    /// Creates an item with the time to live `ttl`.
    ///
    /// # Errors
    /// Returns an error if the value is too large or contains characters that databases cannot store.
    pub fn new(address: ItemAddress, value: Map<String, Value>, ttl: Option<Duration>) -> Result<Self, Invalid> {
        let value = Value::Object(value);
        check(&value).map_err(|exceeded| exceeded.of("value"))?;
        if value.to_string().len() > MAX_VALUE_BYTES {
            return Err(Invalid::new(
                "value",
                format!("is longer than {MAX_VALUE_BYTES} bytes as JSON"),
            ));
        }
        let Value::Object(value) = value else {
            return Err(Invalid::new("value", "must be an object"));
        };
        Ok(Self {
            address,
            value,
            ttl,
            vectors: vec![],
        })
    }
}

/// A write to the Store.
#[derive(Debug, Clone, PartialEq)]
pub enum ItemChange {
    /// Writes an item and replaces an older one.
    Put(PreparedItem),
    /// Deletes an item, if it exists.
    Delete(ItemAddress),
}

/// Converts minutes to a time to live.
///
/// # Errors
/// Returns an error if the number is no valid duration, or exceeds [`MAX_TTL_MINUTES`].
pub fn ttl(field: &str, minutes: f64) -> Result<Duration, Invalid> {
    if !(minutes > 0.0 && minutes <= MAX_TTL_MINUTES) {
        let reason = format!("must be more than 0 and at most {MAX_TTL_MINUTES} minutes");
        return Err(Invalid::new(field, reason));
    }
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

/// The error for an item that cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
    /// The namespace has no labels.
    #[error("Namespace cannot be empty.")]
    NoNamespace,
    /// The namespace is reserved.
    #[error("Root label for namespace cannot be \"{RESERVED_ROOT}\".")]
    Reserved,
    /// A field is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(labels: &[&str]) -> Vec<String> {
        labels.iter().map(|label| (*label).to_owned()).collect()
    }

    #[test]
    fn a_namespace_has_labels_without_periods() {
        let cases: [(&[&str], &str); 6] = [
            (&[], "Namespace cannot be empty."),
            (&["langgraph", "x"], "Root label for namespace cannot be \"langgraph\"."),
            (
                &["a.b"],
                "namespace[0]: Namespace label 'a.b' must be a non-empty string without periods",
            ),
            (
                &["a", ""],
                "namespace[1]: Namespace label '' must be a non-empty string without periods",
            ),
            (
                &["a\0"],
                "namespace[0]: Namespace label contains a character that cannot be stored",
            ),
            (&["a"; 33], "namespace: has more than 32 labels"),
        ];
        for (given, reason) in cases {
            assert_eq!(
                Namespace::of_item(labels(given)).expect_err("it is none").to_string(),
                reason
            );
        }
        let long = "x".repeat(200);
        let long = Namespace::of_item(vec![long; 6])
            .expect_err("it is too long")
            .to_string();
        assert_eq!(long, "namespace: is longer than 1024 bytes");
        assert_eq!(
            Namespace::of_item(labels(&["a", "langgraph"])).map(|n| n.to_string()),
            Ok("a.langgraph".to_owned())
        );
        assert_eq!(Namespace::prefix("p", vec![]), Ok(Namespace::default()));
    }

    #[test]
    fn a_key_has_a_length() {
        for key in ["", "\0", &"k".repeat(513)] {
            assert!(ItemAddress::new(Namespace::default(), key).is_err(), "{key:?}");
        }
        assert!(ItemAddress::new(Namespace::default(), "k".repeat(512)).is_ok());
    }

    #[test]
    fn values_that_are_too_large_or_contain_nul_are_refused() {
        let address = ItemAddress::new(Namespace::stored(labels(&["a"])), "k").expect("a key");
        let draft = |value: Value| {
            let value = value.as_object().cloned().expect("an object");
            PreparedItem::new(address.clone(), value, None)
                .map(|draft| draft.value.len())
                .map_err(|e| e.to_string())
        };
        assert_eq!(draft(json!({"a": {"b": [1]}})), Ok(1));
        assert!(
            draft(json!({"a": {"b\0": [1]}})).is_err_and(|e| e.starts_with("value: contains the character U+0000"))
        );
        assert!(draft(json!({"a": "x".repeat(MAX_VALUE_BYTES)})).is_err_and(|e| e.starts_with("value: is longer")));
    }

    #[test]
    fn a_time_to_live_is_a_number_of_minutes() {
        assert_eq!(ttl("ttl", 1.5), Ok(Duration::from_secs(90)));
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e12] {
            assert!(ttl("ttl", wrong).is_err(), "{wrong}");
        }
    }
}
