//! The content of a file in the state of a thread.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::deflated::Deflated;

/// The length from which a content is compressed, in bytes. Less would hardly save memory.
const LEAST_COMPRESSED: usize = 2048;

/// The text of a file, or its bytes as base64. Those of files that were not written lately are compressed.
#[derive(Clone)]
pub struct FileContent(Form);

#[derive(Clone)]
enum Form {
    Plain(PlainText),
    Compressed(Arc<Deflated>),
}

#[derive(Clone)]
struct PlainText {
    text: String,
    /// The compressed text, once it was wanted; none if it would hardly be smaller. The states with this file share it.
    deflated: OnceLock<Option<Arc<Deflated>>>,
}

impl FileContent {
    /// Returns the text. A compressed one is decompressed.
    pub fn text(&self) -> Cow<'_, str> {
        match &self.0 {
            Form::Plain(plain) => Cow::Borrowed(&plain.text),
            Form::Compressed(deflated) => Cow::Owned(deflated.text()),
        }
    }

    /// Returns the length of the text, in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Form::Plain(plain) => plain.text.len(),
            Form::Compressed(deflated) => deflated.length(),
        }
    }

    /// Returns whether the text is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the approximate size in memory, in bytes.
    pub fn weight(&self) -> usize {
        match &self.0 {
            Form::Plain(plain) => plain.text.len(),
            Form::Compressed(deflated) => deflated.weight(),
        }
    }

    /// Returns the same text compressed; none if it is compressed, is short, or would hardly be smaller.
    pub fn compressed(&self) -> Option<Self> {
        let Form::Plain(plain) = &self.0 else { return None };
        if plain.text.len() < LEAST_COMPRESSED {
            return None;
        }
        let deflated = plain.deflated.get_or_init(|| {
            let deflated = Deflated::of(|writer| writer.write_all(plain.text.as_bytes()))?;
            let is_worth_it = deflated.weight() <= plain.text.len() / 2 && deflated.text() == plain.text;
            is_worth_it.then(|| Arc::new(deflated))
        });
        deflated.clone().map(|deflated| Self(Form::Compressed(deflated)))
    }
}

impl Default for FileContent {
    fn default() -> Self {
        Self::from(String::new())
    }
}

impl From<String> for FileContent {
    fn from(text: String) -> Self {
        Self(Form::Plain(PlainText {
            text,
            deflated: OnceLock::new(),
        }))
    }
}

impl From<&str> for FileContent {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl PartialEq for FileContent {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.text() == other.text()
    }
}

impl PartialEq<str> for FileContent {
    fn eq(&self, other: &str) -> bool {
        self.text() == other
    }
}

impl PartialEq<&str> for FileContent {
    fn eq(&self, other: &&str) -> bool {
        self.text() == *other
    }
}

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text(), f)
    }
}

impl Serialize for FileContent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for FileContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_compressed_content_reads_as_before() {
        let plain = FileContent::from("wörds and words\n".repeat(1_000));
        let compressed = plain.compressed().expect("a compressed content");
        assert_eq!(compressed, plain);
        assert_eq!(compressed.text(), plain.text());
        assert_eq!(compressed.len(), plain.len());
        assert_eq!(json!(compressed), json!(plain));
        assert!(compressed.weight() < plain.weight() / 10);
        assert!(compressed.compressed().is_none());
    }

    #[test]
    fn a_content_that_would_hardly_be_smaller_stays_as_it_is() {
        assert!(FileContent::from("short").compressed().is_none());
        let mut state = 1u32;
        let random = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            char::from(b'!' + u8::try_from((state >> 16) % 90).unwrap_or(0))
        });
        let plain = FileContent::from(random.take(4_000).collect::<String>());
        assert!(plain.compressed().is_none());
        let is_tried = matches!(&plain.0, Form::Plain(plain) if plain.deflated.get().is_some());
        assert!(is_tried, "it is not tried again");
    }

    #[test]
    fn a_content_that_states_share_is_compressed_once() {
        let plain = FileContent::from("words\n".repeat(1_000));
        let deflated = || match plain.compressed().expect("a compressed content").0 {
            Form::Compressed(deflated) => Some(deflated),
            Form::Plain(_) => None,
        };
        let both = deflated().zip(deflated());
        assert!(both.is_some_and(|(one, other)| Arc::ptr_eq(&one, &other)));
    }
}
