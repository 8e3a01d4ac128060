//! A source of values for `serde` that does not accept a list instead of a table, and that says where a value did not fit.
//!
//! The derived code of a table would also accept a list with the fields in their order, so that `limits = [1]` would
//! silently limit the depth.

use std::cell::RefCell;
use std::slice;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Error as _, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::{Deserialize, Deserializer, forward_to_deserialize_any};
use serde_json::{Error, Value, map};

use super::diagnostic::FieldPath;

/// A mistake in a value, and its place.
pub(super) struct Misplaced {
    pub(super) place: FieldPath,
    pub(super) error: Error,
}

/// Reads a value, which must have a table where the type has one.
///
/// # Errors
/// Returns the first mistake.
pub(super) fn read_strictly<T: DeserializeOwned>(value: &Value) -> Result<T, Misplaced> {
    let failed = RefCell::new(None);
    let whole = Strict {
        value,
        place: &Place::Root,
        failed: &failed,
    };
    <T as Deserialize<'_>>::deserialize(whole).map_err(|error| Misplaced {
        place: failed.take().unwrap_or_default(),
        error,
    })
}

/// The place of a value in the whole.
enum Place<'p> {
    Root,
    Key(&'p Place<'p>, &'p str),
    Index(&'p Place<'p>, usize),
}

impl Place<'_> {
    fn path(&self) -> FieldPath {
        match self {
            Self::Root => FieldPath::default(),
            Self::Key(parent, key) => parent.path().then(*key),
            Self::Index(parent, index) => parent.path().then(*index),
        }
    }

    /// Notes this place as that of a mistake, unless the mistake is in a value inside.
    fn note(&self, failed: &RefCell<Option<FieldPath>>) {
        let mut failed = failed.borrow_mut();
        if failed.is_none() {
            *failed = Some(self.path());
        }
    }
}

/// A value that is read so, and its place.
#[derive(Clone, Copy)]
struct Strict<'p, 'de> {
    value: &'de Value,
    place: &'p Place<'p>,
    /// The place of the first mistake.
    failed: &'p RefCell<Option<FieldPath>>,
}

impl<'de> Strict<'_, 'de> {
    /// Reads a value inside this one.
    fn read_inside<S: DeserializeSeed<'de>>(
        &self,
        place: &Place<'_>,
        value: &'de Value,
        seed: S,
    ) -> Result<S::Value, Error> {
        let inside = Strict {
            value,
            place,
            failed: self.failed,
        };
        seed.deserialize(inside).inspect_err(|_| place.note(self.failed))
    }
}

impl<'de> Deserializer<'de> for Strict<'_, 'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Array(items) => visitor.visit_seq(Items {
                list: self,
                items: items.iter(),
                index: 0,
            }),
            Value::Object(fields) => visitor.visit_map(Fields {
                table: self,
                fields: fields.iter(),
                pending: None,
            }),
            // Not left to the value itself, for which everything would be compiled again.
            Value::Null => visitor.visit_unit(),
            Value::Bool(truth) => visitor.visit_bool(*truth),
            Value::Number(number) => number.deserialize_any(visitor),
            Value::String(text) => visitor.visit_borrowed_str(text),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        if self.value.is_array() {
            return Err(Error::invalid_type(Unexpected::Seq, &"a table"));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.value.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.value.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

/// The elements of a list.
struct Items<'p, 'de> {
    list: Strict<'p, 'de>,
    items: slice::Iter<'de, Value>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'_, 'de> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some(value) = self.items.next() else {
            return Ok(None);
        };
        let place = Place::Index(self.list.place, self.index);
        self.index += 1;
        self.list.read_inside(&place, value, seed).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// The fields of a table.
struct Fields<'p, 'de> {
    table: Strict<'p, 'de>,
    fields: map::Iter<'de>,
    /// The field whose key was read and whose value was not.
    pending: Option<(&'de str, &'de Value)>,
}

impl<'de> MapAccess<'de> for Fields<'_, 'de> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        let Some((key, value)) = self.fields.next() else {
            return Ok(None);
        };
        let key = key.as_str();
        self.pending = Some((key, value));
        let name: StrDeserializer<'_, Error> = key.into_deserializer();
        let place = Place::Key(self.table.place, key);
        let read = seed.deserialize(name);
        read.map(Some).inspect_err(|_| place.note(self.table.failed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let Some((key, value)) = self.pending.take() else {
            return Err(Error::custom("the value was read before its key"));
        };
        let place = Place::Key(self.table.place, key);
        self.table.read_inside(&place, value, seed)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.fields.len())
    }
}
