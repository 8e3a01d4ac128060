//! Values that are written in one of two shapes, such as a switch or a table of settings.
//!
//! The code that `#[serde(untagged)]` derives would only report that no variant matched.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A switch, or a table of settings.
pub(super) enum SwitchOrTable<T> {
    Switch(bool),
    Table(T),
}

/// A text, or a table.
pub(super) enum TextOrTable<T> {
    Text(String),
    Table(T),
}

/// A text, or a list.
pub(super) enum TextOrList<T> {
    Text(String),
    List(Vec<T>),
}

/// Reads a value in one of the shapes of `V`, which can be what `expected` says.
pub(super) fn read<'de, D, V>(deserializer: D, expected: &'static str) -> Result<V, D::Error>
where
    D: Deserializer<'de>,
    Shapes<V>: Visitor<'de, Value = V>,
{
    let shapes: Shapes<V> = Shapes {
        expected,
        value: PhantomData,
    };
    deserializer.deserialize_any(shapes)
}

/// The visitor of a value in one of the shapes of `V`.
pub(super) struct Shapes<V> {
    expected: &'static str,
    value: PhantomData<V>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Shapes<SwitchOrTable<T>> {
    type Value = SwitchOrTable<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_bool<E>(self, on: bool) -> Result<Self::Value, E> {
        Ok(SwitchOrTable::Switch(on))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(SwitchOrTable::Table)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Shapes<TextOrTable<T>> {
    type Value = TextOrTable<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOrTable::Text(text.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(TextOrTable::Table)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Shapes<TextOrList<T>> {
    type Value = TextOrList<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(TextOrList::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(TextOrList::List)
    }
}
