//! Reads a value into a type and reports everything that has the wrong shape, not only the first mistake.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::diagnostic::{Diagnostic, FieldPath, Segment};
use super::strict::read_strictly;
use crate::domain::json_limits::{LimitExceeded, check, find_nul};
use crate::domain::serde_messages::for_toml;

/// The maximum number of mistakes that are reported. After each mistake the rest is read again.
const MOST_FINDINGS: usize = 100;

/// The result of reading.
#[derive(Debug)]
pub struct Parsed<T> {
    /// The value; fields with a wrong shape have their default. `None` if nothing could be read.
    pub value: Option<T>,
    /// The mistakes.
    pub findings: Vec<Diagnostic>,
    /// The list elements that were left out.
    pub gaps: FieldMap,
}

/// The elements of lists that were left out while reading, so that places in the value can be traced to the source.
#[derive(Debug, Default)]
pub struct FieldMap(Vec<(FieldPath, usize)>);

impl FieldMap {
    /// Returns the place in the source for a place in the value that was read.
    pub fn source_of(&self, field: &FieldPath) -> FieldPath {
        let mut source = FieldPath::default();
        for segment in &field.0 {
            let place = match segment {
                Segment::Key(key) => Segment::Key(key.clone()),
                Segment::Index(index) => Segment::Index(self.source_index(&source, *index)),
            };
            source.0.push(place);
        }
        source
    }

    fn source_index(&self, list: &FieldPath, index: usize) -> usize {
        let mut left_out: Vec<usize> = self.0.iter().filter(|(of, _)| of == list).map(|(_, at)| *at).collect();
        left_out.sort_unstable();
        left_out
            .into_iter()
            .fold(index, |index, gap| if gap <= index { index + 1 } else { index })
    }
}

/// Reads `value`. A part that does not fit is reported and removed, and the rest is read again. So `T` and all types in
/// it should have defaults.
pub fn read<T: DeserializeOwned>(mut value: Value) -> Parsed<T> {
    let mut findings: Vec<Diagnostic> = Vec::new();
    let mut gaps = FieldMap::default();
    if let Err(exceeded) = check(&value) {
        let place = match exceeded {
            LimitExceeded::Nul => find_nul(&value).unwrap_or_default(),
            LimitExceeded::Depth | LimitExceeded::Values => FieldPath::default(),
        };
        findings.push(Diagnostic::error(place, exceeded.to_string()));
        return Parsed {
            value: None,
            findings,
            gaps,
        };
    }
    loop {
        let wrong = match read_strictly(&value) {
            Ok(read) => {
                return Parsed {
                    value: Some(read),
                    findings,
                    gaps,
                };
            }
            Err(wrong) => wrong,
        };
        let source = gaps.source_of(&wrong.place);
        findings.push(Diagnostic::error(
            source.clone(),
            plain_words(&source, &wrong.error.to_string()),
        ));
        if let Some(list) = source.parent()
            && let Some(Segment::Index(at)) = source.0.last()
        {
            gaps.0.push((list, *at));
        }
        if findings.len() == MOST_FINDINGS {
            let message = format!("more may be wrong than these {MOST_FINDINGS} things, which are told first");
            findings.push(Diagnostic::error(FieldPath::default(), message));
            return Parsed {
                value: None,
                findings,
                gaps,
            };
        }
        if !take_out(&mut value, &wrong.place) {
            return Parsed {
                value: None,
                findings,
                gaps,
            };
        }
    }
}

/// Returns whether a diagnostic about `field` only repeats that the field, or an element of it, could not be read.
pub fn is_repeated_finding(field: &FieldPath, unread: &[Diagnostic]) -> bool {
    unread.iter().any(|earlier| {
        let is_element = matches!(earlier.field.0.last(), Some(Segment::Index(_)));
        field.after(&earlier.field).is_some() || is_element && earlier.field.parent().as_ref() == Some(field)
    })
}

/// Removes the value at `place`. Returns `false` if there is nothing to remove.
fn take_out(value: &mut Value, place: &FieldPath) -> bool {
    let Some((last, way)) = place.0.split_last() else {
        return false;
    };
    let container = way.iter().try_fold(value, |inside, segment| match segment {
        Segment::Key(key) => inside.get_mut(key),
        Segment::Index(index) => inside.get_mut(index),
    });
    match (container, last) {
        (Some(Value::Object(fields)), Segment::Key(key)) => fields.shift_remove(key).is_some(),
        (Some(Value::Array(items)), Segment::Index(index)) if *index < items.len() => {
            items.remove(*index);
            true
        }
        _ => false,
    }
}

/// Rewrites a message in the terms of configuration files.
fn plain_words(field: &FieldPath, message: &str) -> String {
    match for_toml(message) {
        Some(words) => words,
        None if field.is_secret() => "has the wrong form".to_owned(),
        None => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Outer {
        list: Vec<Inner>,
        inner: Option<Inner>,
        word: String,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Inner {
        number: u32,
    }

    fn reported(value: Value) -> Vec<String> {
        read::<Outer>(value).findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_list_is_no_table() {
        let reported = reported(json!({"inner": [1], "list": [{"number": 1}, [2]]}));
        assert_eq!(
            reported,
            [
                "inner: must be a table, not a list",
                "list[1]: must be a table, not a list"
            ]
        );
        let good = read::<Outer>(json!({"inner": {"number": 1}, "list": [{"number": 2}], "word": "x"})).value;
        let inner = |number| Inner { number };
        assert_eq!(
            good,
            Some(Outer {
                list: vec![inner(2)],
                inner: Some(inner(1)),
                word: "x".to_owned()
            })
        );
        assert_eq!(read::<Outer>(json!({"inner": null})).value, Some(Outer::default()));
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Places {
        named: BTreeMap<String, Counted>,
        form: Option<Form>,
        flat: Option<Flat>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Counted {
        #[serde(alias = "count")]
        number: u32,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Form {
        Wide { width: u32 },
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Flat {
        #[serde(flatten)]
        rest: Inner,
    }

    #[test]
    fn a_mistake_is_reported_at_the_innermost_value_whose_place_is_known() {
        let number = "must be a whole number from 0 to 4294967295";
        for (value, expected) in [
            (
                json!({"named": {"a b": {"number": "x"}}}),
                format!("named.\"a b\".number: {number}, not a text"),
            ),
            (
                json!({"named": {"a": {"number": 1, "numbr": 2}}}),
                "named.a.numbr: unknown key;".to_owned(),
            ),
            (
                json!({"named": {"a": {}}}),
                "named.a: `number` must be given".to_owned(),
            ),
            (
                json!({"named": {"a": {"number": 1, "count": 2}}}),
                "named.a: `number` is given twice".to_owned(),
            ),
            (
                json!({"form": {"wide": {"width": "x"}}}),
                format!("form: {number}, not a text"),
            ),
            (json!({"form": "narrow"}), "form: `narrow` is not allowed;".to_owned()),
            (json!({"flat": {"number": "x"}}), format!("flat: {number}, not a text")),
        ] {
            let findings = read::<Places>(value).findings;
            let reported: Vec<String> = findings.iter().map(ToString::to_string).collect();
            let first = reported.first().expect("a mistake");
            assert!(first.starts_with(&expected), "{reported:?} instead of {expected}");
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused_where_it_stands() {
        assert_eq!(
            reported(json!({"list": [{}, {"a\0": 1}]}))[0],
            "list[1].\"a\u{fffd}\": contains the character U+0000, which cannot be stored"
        );
        assert!(reported(json!({"word": "a\0"}))[0].starts_with("word: contains"));
    }

    #[test]
    fn a_heap_of_mistakes_is_not_read_to_its_end() {
        let heap: serde_json::Map<String, Value> = (0..20_000).map(|at| (format!("k{at}"), json!(1))).collect();
        let reading = read::<Outer>(Value::Object(heap));
        assert_eq!(reading.value, None);
        assert_eq!(reading.findings.len(), MOST_FINDINGS + 1);
        assert!(reading.findings[MOST_FINDINGS].message.starts_with("more may be wrong"));
    }
}
