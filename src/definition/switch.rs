//! Settings that are a switch, or a table of settings of their own.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The value of such a setting.
pub(super) enum SwitchOrTable<T> {
    Switch(bool),
    Table(T),
}

impl<T> SwitchOrTable<T> {
    /// Reads the value, which can be what `expected` says. Derived code would only report that no variant matched.
    pub(super) fn read<'de, D>(deserializer: D, expected: &'static str) -> Result<Self, D::Error>
    where
        D: Deserializer<'de>,
        T: Deserialize<'de>,
    {
        deserializer.deserialize_any(SwitchReader {
            expected,
            table: PhantomData,
        })
    }
}

struct SwitchReader<T> {
    expected: &'static str,
    table: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for SwitchReader<T> {
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
