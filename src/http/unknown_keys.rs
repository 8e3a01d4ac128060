//! Keys of a request that mean nothing here. They are refused, since whoever writes `inputs` means `input`.

use std::fmt;

use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

use super::error::ApiError;
use crate::definition::suggestion;
use crate::domain::Invalid;

/// What the official SDKs send with runs and this server has no use for.
const IGNORED_IN_RUNS: [&str; 2] = ["langsmith_tracer", "strict_resume"];

/// What the batches of the JavaScript SDK have besides: it sends the caller's objects as they are, so that the names of its
/// own options are in them.
const IGNORED_IN_BATCHES: [&str; 19] = [
    "_langsmithTracer",
    "afterSeconds",
    "assistantId",
    "checkpointDuring",
    "checkpointId",
    "feedbackKeys",
    "ifNotExists",
    "interruptAfter",
    "interruptBefore",
    "multitaskStrategy",
    "onCompletion",
    "onDisconnect",
    "onRunCreated",
    "raiseError",
    "signal",
    "streamMode",
    "streamResumable",
    "streamSubgraphs",
    "threadId",
];

/// The longest piece of an unknown key that is repeated, in characters.
const MAX_KEY_CHARS: usize = 100;

/// The keys that a `T` has; none if it takes any.
pub(super) fn fields_of<T: DeserializeOwned>() -> Option<&'static [&'static str]> {
    let mut fields = None;
    // It always fails: nothing is read, the type only says what it would read.
    drop(T::deserialize(FieldsOf(&mut fields)));
    fields
}

/// Refuses the first key that is not `known`, if not all are.
///
/// # Errors
/// Names the key, and the one that was probably meant.
pub(super) fn check<'k>(
    given: impl Iterator<Item = &'k String>,
    known: Option<&[&'static str]>,
) -> Result<(), ApiError> {
    let Some(known) = known else { return Ok(()) };
    match first_unknown(given, known, &IGNORED_IN_RUNS) {
        Some(key) => Err(refusal(&shorten(key), key, known)),
        None => Ok(()),
    }
}

/// The same for the item of a list.
///
/// # Errors
/// As [`check`].
pub(super) fn check_item<'k>(
    at: usize,
    given: impl Iterator<Item = &'k String>,
    known: &[&'static str],
) -> Result<(), ApiError> {
    let ignored = [IGNORED_IN_RUNS.as_slice(), &IGNORED_IN_BATCHES].concat();
    match first_unknown(given, known, &ignored) {
        Some(key) => Err(refusal(&format!("[{at}].{}", shorten(key)), key, known)),
        None => Ok(()),
    }
}

fn first_unknown<'k>(
    mut given: impl Iterator<Item = &'k String>,
    known: &[&str],
    ignored: &[&str],
) -> Option<&'k String> {
    given.find(|key| !known.contains(&key.as_str()) && !ignored.contains(&key.as_str()))
}

fn refusal(place: &str, key: &str, known: &[&'static str]) -> ApiError {
    let hint = suggestion(key, known.iter().copied(), "allowed are");
    Invalid::new(place, format!("unknown key; {hint}")).into()
}

/// The key, without its rest when it is long.
fn shorten(key: &str) -> String {
    key.chars().take(MAX_KEY_CHARS).collect()
}

/// A source of nothing that notes which fields a type asks for.
struct FieldsOf<'f>(&'f mut Option<&'static [&'static str]>);

impl<'de> Deserializer<'de> for FieldsOf<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom(NoInput))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Error> {
        *self.0 = Some(fields);
        Err(Error::custom(NoInput))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

struct NoInput;

impl fmt::Display for NoInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing is there to be read")
    }
}
