//! Filters for JSON objects, and the index terms that find their matches.
//!
//! A value contains another if it is an equal scalar, an object with all keys of the other whose values contain those
//! of the other, or a list in which every item of the other has a match. Numbers are compared by value.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Number, Value};
use uuid::Uuid;

use super::Invalid;
use super::json_limits::{LimitExceeded, check_to};

/// The maximum nesting of a filter, in levels.
const MAX_DEPTH: usize = 16;
/// The maximum number of values in a filter, equal ones included. Each is compared at most once with every value of an
/// object, so the cost of a search grows linearly with the size of the object.
const MAX_VALUES: usize = 64;
/// The number of comparisons between two checks of the deadline.
const COMPARISONS_PER_CHECK: u32 = 4096;

/// The JSON object that matching objects must contain.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MetadataFilter(Map<String, Value>);

/// An index term: a digest of a path and the value there. Its 122 bits make collisions practically impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub Uuid);

impl MetadataFilter {
    /// Validates a filter; `field` is its name in errors.
    ///
    /// # Errors
    /// Returns an error if the filter nests deeper than 16 levels or has more than 64 values, equal ones included.
    pub fn new(field: &str, wanted: Map<String, Value>) -> Result<Self, Invalid> {
        match wanted.values().try_for_each(|value| check_to(value, MAX_DEPTH - 1)) {
            Ok(()) => {}
            Err(LimitExceeded::Depth) => {
                return Err(Invalid::new(field, format!("nests deeper than {MAX_DEPTH} levels")));
            }
            Err(exceeded) => return Err(exceeded.of(field)),
        }
        if wanted.values().map(count).sum::<usize>() > MAX_VALUES {
            return Err(Invalid::new(field, format!("names more than {MAX_VALUES} values")));
        }
        Ok(Self(wanted))
    }

    /// Returns whether every object matches.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the object that matches must contain.
    pub fn wanted(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Returns whether the object matches.
    pub fn matches(&self, object: &Map<String, Value>) -> bool {
        self.matches_unless(object, &|| false)
    }

    /// Returns whether the object matches; false when `is_over`, which is called every few thousand comparisons, is
    /// true.
    pub fn matches_unless(&self, object: &Map<String, Value>, is_over: &dyn Fn() -> bool) -> bool {
        self.matches_fields(|key| object.get(key).map(Cow::Borrowed), is_over)
    }

    /// Returns whether an object matches whose values are computed when they are needed.
    pub fn matches_fields<'v>(
        &self,
        value_of: impl Fn(&str) -> Option<Cow<'v, Value>>,
        is_over: &dyn Fn() -> bool,
    ) -> bool {
        let mut comparison = Comparison {
            until_check: COMPARISONS_PER_CHECK,
            is_over,
        };
        let mut fits =
            |(key, wanted): (&String, &Value)| value_of(key).is_some_and(|value| comparison.contains(&value, wanted));
        self.0.iter().all(&mut fits)
    }

    /// Returns terms that every matching object has.
    pub fn terms(&self) -> BTreeSet<Term> {
        let mut terms = BTreeSet::new();
        for (key, wanted) in &self.0 {
            collect_wanted(&mut terms, &key_path(&[], key), wanted);
        }
        terms
    }

    /// Returns whether the terms decide the match, so that every object with all of them matches. They do not for
    /// objects and lists inside lists: terms do not say which values belong to the same item.
    pub fn is_decided_by_terms(&self) -> bool {
        self.0.values().all(is_decided_by_terms)
    }
}

/// Returns the terms of an object: one for every value in it, at any depth.
pub fn terms_of(object: &Map<String, Value>) -> BTreeSet<Term> {
    let mut terms = BTreeSet::new();
    for (key, value) in object {
        collect(&mut terms, &key_path(&[], key), value);
    }
    terms
}

/// A running comparison.
///
/// A value of the filter and a value of the object are compared at most once: the cost is at most the number of the
/// filter's values, containers included, times the number of the object's.
struct Comparison<'a> {
    until_check: u32,
    is_over: &'a dyn Fn() -> bool,
}

impl Comparison<'_> {
    fn contains(&mut self, whole: &Value, part: &Value) -> bool {
        if self.is_stopped() {
            return false;
        }
        match (whole, part) {
            (Value::Object(whole), Value::Object(part)) => part
                .iter()
                .all(|(key, value)| whole.get(key).is_some_and(|found| self.contains(found, value))),
            (Value::Array(whole), Value::Array(part)) => part
                .iter()
                .all(|value| whole.iter().any(|found| self.contains(found, value))),
            (Value::Number(whole), Value::Number(part)) => canonical_number(whole) == canonical_number(part),
            (whole, part) => whole == part,
        }
    }

    /// Returns whether the comparison was stopped. Once true, the result stays true.
    fn is_stopped(&mut self) -> bool {
        if self.until_check > 0 {
            self.until_check -= 1;
            return false;
        }
        if (self.is_over)() {
            return true;
        }
        self.until_check = COMPARISONS_PER_CHECK;
        false
    }
}

/// Counts the values of a filter: its scalars and empty containers.
fn count(value: &Value) -> usize {
    match value {
        Value::Object(fields) if !fields.is_empty() => fields.values().map(count).sum(),
        Value::Array(items) if !items.is_empty() => items.iter().map(count).sum(),
        Value::Object(_) | Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

fn is_decided_by_terms(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().all(is_decided_by_terms),
        Value::Array(items) => items.iter().all(|item| !item.is_object() && !item.is_array()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

fn collect(terms: &mut BTreeSet<Term>, path: &[u8], value: &Value) {
    terms.insert(term_at(path, value));
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, value)| collect(terms, &key_path(path, key), value)),
        Value::Array(items) => items.iter().for_each(|item| collect(terms, &item_path(path), item)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Collects terms as [`collect`] does, without those of containers that are implied by a value inside.
fn collect_wanted(terms: &mut BTreeSet<Term>, path: &[u8], value: &Value) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            fields
                .iter()
                .for_each(|(key, value)| collect_wanted(terms, &key_path(path, key), value));
        }
        Value::Array(items) if !items.is_empty() => {
            items
                .iter()
                .for_each(|item| collect_wanted(terms, &item_path(path), item));
        }
        Value::Object(_) | Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            terms.insert(term_at(path, value));
        }
    }
}

/// Returns the path of a key. The length in front of each key keeps paths unambiguous.
fn key_path(path: &[u8], key: &str) -> Vec<u8> {
    [path, format!(".{}:", key.len()).as_bytes(), key.as_bytes()].concat()
}

/// Returns the path of any item of a list.
fn item_path(path: &[u8]) -> Vec<u8> {
    [path, b"#"].concat()
}

fn term_at(path: &[u8], value: &Value) -> Term {
    let value = match value {
        Value::Null => "=null".to_owned(),
        Value::Bool(truth) => format!("={truth}"),
        Value::Number(number) => format!("={}", canonical_number(number)),
        Value::String(text) => format!("\"{text}"),
        Value::Object(_) => "{".to_owned(),
        Value::Array(_) => "[".to_owned(),
    };
    Term(Uuid::new_v5(&Uuid::NAMESPACE_OID, &[path, value.as_bytes()].concat()))
}

/// Returns the canonical spelling of a number: 1 and 1.0 are the same.
pub fn canonical_number(number: &Number) -> String {
    match number.as_f64() {
        Some(float) if !number.is_i64() && !number.is_u64() && float.fract() == 0.0 && float.abs() < 1e15 => {
            format!("{float:.0}").replace("-0", "0")
        }
        Some(_) | None => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    fn filter(value: Value) -> MetadataFilter {
        MetadataFilter::new("metadata", object(value)).expect("a filter")
    }

    #[test]
    fn every_match_has_all_terms_of_the_filter() {
        let whole = object(json!({
            "text": "x", "one": 1, "half": 0.5, "yes": true, "nothing": null, "a.b": 1,
            "deep": {"a": {"b": [1, {"c": "d", "e": 2}, [3]]}, "z": 1}
        }));
        let cases = [
            (json!({}), true),
            (json!({"text": "x", "one": 1.0, "half": 0.5}), true),
            (json!({"one": "1"}), false),
            (json!({"one": true}), false),
            (json!({"yes": true, "nothing": null}), true),
            (json!({"absent": null}), false),
            (json!({"a": {"b": 1}}), false),
            (json!({"deep": {}}), true),
            (json!({"deep": []}), false),
            (json!({"deep": {"a": {"b": [1]}, "z": 1}}), true),
            (json!({"deep": {"a": {"b": [{"e": 2}, 1]}}}), true),
            (json!({"deep": {"a": {"b": [2]}}}), false),
        ];
        let terms = terms_of(&whole);
        for (wanted, expected) in cases {
            let wanted = filter(wanted);
            assert_eq!(wanted.matches(&whole), expected, "{wanted:?}");
            assert_eq!(wanted.terms().is_subset(&terms), expected, "{wanted:?}");
        }
    }

    #[test]
    fn terms_do_not_show_which_values_share_a_list_item() {
        let whole = object(json!({"list": [{"a": 1}, {"b": 2}]}));
        let wanted = filter(json!({"list": [{"a": 1, "b": 2}]}));
        assert!(wanted.terms().is_subset(&terms_of(&whole)));
        assert!(!wanted.matches(&whole));
        assert!(!wanted.is_decided_by_terms());
        assert!(filter(json!({"list": [1, "x"], "deep": {"a": {}}})).is_decided_by_terms());
    }

    #[test]
    fn a_filter_has_limits() {
        let deep = (0..16).fold(json!(1), |inner, _| json!({"a": inner}));
        assert!(MetadataFilter::new("values", object(json!({"a": deep}))).is_err_and(|error| error.field == "values"));
        let many: Map<String, Value> = (0..65).map(|n| (format!("k{n}"), json!(n))).collect();
        assert!(MetadataFilter::new("metadata", many).is_err());
        let equal = object(json!({"list": vec![1; 64]}));
        assert!(MetadataFilter::new("metadata", equal).is_ok());
        let equal = object(json!({"list": vec![vec![1; 13]; 5]}));
        assert!(
            MetadataFilter::new("metadata", equal).is_err(),
            "equal values count, each of them"
        );
    }

    #[test]
    fn a_comparison_stops_on_request() {
        let whole = object(json!({"list": vec![json!([0]); 100_000]}));
        let wanted = filter(json!({"list": [[1]]}));
        let asked = std::cell::Cell::new(0);
        let is_over = || {
            asked.set(asked.get() + 1);
            true
        };
        assert!(!wanted.matches_unless(&whole, &is_over));
        assert!(asked.get() > 0);
        assert!(
            filter(json!({"list": [[0]]})).matches_unless(&whole, &|| true),
            "what is found at once is found"
        );
    }
}
