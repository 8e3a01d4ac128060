//! The Store: what is remembered beyond one thread. An item is a JSON object under a key in a namespace.
//!
//! Not here: where items are kept ([`crate::db`]) and who may reach them ([`crate::tool::items`]).

use std::fmt;
use std::time::Duration;

use serde_json::{Map, Value};

use super::Invalid;
use super::json_limits::check;
use super::time::Timestamp;

pub mod filter;
pub mod template;
pub mod texts;

pub use filter::{Condition, Filter, Test};
pub use texts::TextPath;

/// The most labels that a namespace may have.
pub const DEEPEST_NAMESPACE: usize = 32;
/// The longest label, in bytes.
pub const LONGEST_LABEL: usize = 256;
/// The longest namespace, all labels and a dot after each, in bytes. With a key it fits into an entry of an index.
pub const LONGEST_NAMESPACE: usize = 1024;
/// The longest key, in bytes.
pub const LONGEST_KEY: usize = 512;
/// The largest value, as JSON text, in bytes.
pub const LARGEST_VALUE: usize = 1024 * 1024;
/// The longest time that an item can be told to stay: a hundred years, in minutes.
pub const LONGEST_TTL_MINUTES: f64 = 52_560_000.0;
/// The first label that clients may not use, as in the field's own servers.
pub const RESERVED_ROOT: &str = "langgraph";

/// The last character of all, which no label may contain: as a text it stands after every namespace.
pub const AFTER_ALL: char = char::MAX;

/// Where an item lies: a path of labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Namespace(Vec<String>);

impl Namespace {
    /// A namespace that items may be written to: at least one label, and not the reserved root.
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

    /// A namespace to read in, with all that lies below it; without any label it is the whole Store. `field` is what the
    /// error names.
    ///
    /// # Errors
    /// If a label is none, or there are too many.
    pub fn prefix(field: &str, labels: Vec<String>) -> Result<Self, Invalid> {
        for (at, label) in labels.iter().enumerate() {
            check_label(label).map_err(|reason| Invalid::new(format!("{field}[{at}]"), reason))?;
        }
        let length: usize = labels.iter().map(|label| label.len() + 1).sum();
        if labels.len() > DEEPEST_NAMESPACE {
            return Err(Invalid::new(field, format!("has more than {DEEPEST_NAMESPACE} labels")));
        }
        if length > LONGEST_NAMESPACE {
            return Err(Invalid::new(field, format!("is longer than {LONGEST_NAMESPACE} bytes")));
        }
        Ok(Self(labels))
    }

    /// A namespace that was stored, and so was checked.
    pub fn stored(labels: Vec<String>) -> Self {
        Self(labels)
    }

    /// The labels, outermost first.
    pub fn labels(&self) -> &[String] {
        &self.0
    }

    /// The namespace that `labels` lead to from here.
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

/// Says what is wrong with a label.
///
/// # Errors
/// The reason, in the words that clients of the field know.
pub fn check_label(label: &str) -> Result<(), String> {
    if label.is_empty() || label.contains('.') {
        return Err(format!(
            "Namespace label '{label}' must be a non-empty string without periods"
        ));
    }
    if label.len() > LONGEST_LABEL {
        return Err(format!("Namespace label is longer than {LONGEST_LABEL} bytes"));
    }
    if label.contains(['\0', AFTER_ALL]) {
        return Err("Namespace label contains a character that cannot be stored".to_owned());
    }
    Ok(())
}

/// Which item.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ItemAddress {
    /// Where it lies.
    pub namespace: Namespace,
    /// Its key there.
    pub key: String,
}

impl ItemAddress {
    /// The item under `key` in `namespace`.
    ///
    /// # Errors
    /// If the key is none.
    pub fn new(namespace: Namespace, key: impl Into<String>) -> Result<Self, Invalid> {
        let key = key.into();
        let reason = match key.len() {
            0 => "must not be empty".to_owned(),
            _ if key.contains('\0') => "contains a character that cannot be stored".to_owned(),
            1..=LONGEST_KEY => return Ok(Self { namespace, key }),
            _ => format!("is longer than {LONGEST_KEY} bytes"),
        };
        Err(Invalid::new("key", reason))
    }
}

/// Which items are wanted. They come in the order of their namespaces and keys.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemSearch {
    /// Where they lie: here, or anywhere below.
    pub prefix: Namespace,
    /// What they say.
    pub filter: Filter,
    /// How many at most.
    pub limit: u32,
    /// How many to pass over before.
    pub offset: u32,
}

/// A question to the Store.
#[derive(Debug, Clone, PartialEq)]
pub struct Inquiry {
    /// Which items are wanted.
    pub wanted: ItemSearch,
    /// What they are about, in words. Without an index it is not looked at.
    pub query: Option<String>,
    /// Whether those found stay longer for it; as configured, if nothing is said.
    pub refresh: Option<bool>,
}

/// Something that is remembered.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Which one it is.
    pub address: ItemAddress,
    /// What it says.
    pub value: Map<String, Value>,
    /// From when on it is gone; never, if none.
    pub expires_at: Option<Timestamp>,
    /// When it was first written.
    pub created_at: Timestamp,
    /// When it was last written.
    pub updated_at: Timestamp,
}

/// An item that was found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundItem {
    /// The item.
    pub item: Item,
    /// How close it is to what was asked for, from -1 to 1; none if nothing was.
    pub score: Option<f32>,
}

/// An item that somebody wants to be remembered.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemWish {
    /// Which one it is.
    pub address: ItemAddress,
    /// What it says, instead of whatever it said before.
    pub value: Map<String, Value>,
    /// How long it stays.
    pub stay: Stay,
    /// What it can be found by.
    pub indexing: Indexing,
}

/// How long an item stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stay {
    /// As long as the server is configured to keep items.
    #[default]
    AsConfigured,
    /// Until it is deleted.
    Forever,
    /// This long after it was last written, or read with a wish for that.
    For(Duration),
}

/// By which of its texts an item can be found, where the server has an index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Indexing {
    /// By those that the server is configured to index.
    #[default]
    AsConfigured,
    /// By none.
    Off,
    /// By these.
    Fields(Vec<TextPath>),
}

/// The direction in which a text of an item points.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemVector {
    /// The place of the text in the value.
    pub path: String,
    /// A unit vector; its length is the configured one.
    pub vector: Vec<f32>,
}

/// An item as it is to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemDraft {
    /// Which one it is.
    pub address: ItemAddress,
    /// What it says, instead of whatever it said before.
    pub value: Map<String, Value>,
    /// How long it stays; for ever, if none.
    pub ttl: Option<Duration>,
    /// What it can be found by.
    pub vectors: Vec<ItemVector>,
}

impl ItemDraft {
    /// An item that stays for `ttl`.
    ///
    /// # Errors
    /// If the value is too large or holds what no database can.
    pub fn new(address: ItemAddress, value: Map<String, Value>, ttl: Option<Duration>) -> Result<Self, Invalid> {
        let value = Value::Object(value);
        check(&value).map_err(|exceeded| exceeded.of("value"))?;
        if value.to_string().len() > LARGEST_VALUE {
            return Err(Invalid::new(
                "value",
                format!("is longer than {LARGEST_VALUE} bytes as JSON"),
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

/// A change of the Store.
#[derive(Debug, Clone, PartialEq)]
pub enum ItemChange {
    /// Writes an item over whatever is there.
    Put(ItemDraft),
    /// Forgets an item, if there is one.
    Delete(ItemAddress),
}

/// How long `minutes` are, as the time that an item stays.
///
/// # Errors
/// If that is no time, or longer than items can stay.
pub fn ttl(field: &str, minutes: f64) -> Result<Duration, Invalid> {
    if !(minutes > 0.0 && minutes <= LONGEST_TTL_MINUTES) {
        let reason = format!("must be more than 0 and at most {LONGEST_TTL_MINUTES} minutes");
        return Err(Invalid::new(field, reason));
    }
    Ok(Duration::from_secs_f64(minutes * 60.0))
}

/// Why an item cannot be there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
    /// An item needs a namespace.
    #[error("Namespace cannot be empty.")]
    NoNamespace,
    /// The namespace is not for clients.
    #[error("Root label for namespace cannot be \"{RESERVED_ROOT}\".")]
    Reserved,
    /// A field cannot be accepted.
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
    fn a_value_has_a_size_and_no_character_that_cannot_be_stored() {
        let address = ItemAddress::new(Namespace::stored(labels(&["a"])), "k").expect("a key");
        let draft = |value: Value| {
            let value = value.as_object().cloned().expect("an object");
            ItemDraft::new(address.clone(), value, None)
                .map(|draft| draft.value.len())
                .map_err(|e| e.to_string())
        };
        assert_eq!(draft(json!({"a": {"b": [1]}})), Ok(1));
        assert!(
            draft(json!({"a": {"b\0": [1]}})).is_err_and(|e| e.starts_with("value: contains the character U+0000"))
        );
        assert!(draft(json!({"a": "x".repeat(LARGEST_VALUE)})).is_err_and(|e| e.starts_with("value: is longer")));
    }

    #[test]
    fn a_time_to_live_is_a_number_of_minutes() {
        assert_eq!(ttl("ttl", 1.5), Ok(Duration::from_secs(90)));
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e12] {
            assert!(ttl("ttl", wrong).is_err(), "{wrong}");
        }
    }
}
