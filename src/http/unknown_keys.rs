//! Unknown keys of request bodies. They are refused, since `inputs` is most likely a typo of `input`.

use std::fmt;

use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;

use super::error::ApiError;
use crate::definition::suggestion;
use crate::domain::Invalid;
use crate::domain::text_limits::first_chars;

/// Keys that the official SDKs send with runs, or take for themselves, and this server ignores.
const IGNORED_IN_RUNS: [&str; 3] = ["langsmith_tracer", "raise_error", "strict_resume"];

/// Further keys of batches by the SDKs: the own options of the JavaScript SDK, which sends them along with the request,
/// and `thread_id`, which is a field of the Python SDK's type. The runs of a batch have threads of their own.
const IGNORED_IN_BATCHES: [&str; 21] = [
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
    "strictResume",
    "threadId",
    "thread_id",
];

/// The longest part of an unknown key that an error repeats, in characters.
const MAX_KEY_CHARS: usize = 100;

/// The keys of `T`; `None` if it accepts any key.
pub(super) fn fields_of<T: DeserializeOwned>() -> Option<&'static [&'static str]> {
    let mut fields = None;
    // Deserializing always fails: the type only reports its fields.
    drop(T::deserialize(FieldsOf(&mut fields)));
    fields
}

/// Refuses the first key that is not in `known`.
///
/// # Errors
/// Names the key and suggests the most similar one.
pub(super) fn check<'k>(
    given: impl Iterator<Item = &'k String>,
    known: Option<&[&'static str]>,
) -> Result<(), ApiError> {
    let Some(known) = known else { return Ok(()) };
    match first_unknown(given, known, &IGNORED_IN_RUNS) {
        Some(key) => Err(refusal(first_chars(key, MAX_KEY_CHARS), key, known)),
        None => Ok(()),
    }
}

/// Refuses the first unknown key of an item of a list.
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
        Some(key) => Err(refusal(
            &format!("[{at}].{}", first_chars(key, MAX_KEY_CHARS)),
            key,
            known,
        )),
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

fn refusal(field: &str, key: &str, known: &[&'static str]) -> ApiError {
    let hint = suggestion(key, known.iter().copied(), "allowed are");
    Invalid::new(field, format!("unknown key; {hint}")).into()
}

/// A deserializer without input that records the fields of a type.
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
