//! Filters of searches in the Store: comparisons of the fields of items.

use std::cmp::Ordering;

use serde_json::{Map, Value};

use crate::domain::Invalid;
use crate::domain::json_equality::{are_equal, compare_numbers};
use crate::domain::json_limits::find_nul;

/// The maximum number of values in a filter, those inside lists and objects included.
const MAX_VALUES: usize = 100;
/// The maximum nesting of the fields and values of a filter, in levels.
const MAX_DEPTH: usize = 8;
/// The maximum length of a text or field name in a filter, in bytes.
const MAX_TEXT_BYTES: usize = 4096;

/// Conditions that must all be true. A field that an item does not have counts as null.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ItemFilter(Vec<Condition>);

/// One condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The path of the field, outermost name first; at least one name.
    pub path: Vec<String>,
    /// The comparison.
    pub test: Test,
    /// The value to compare with. For comparisons of order it is a number or a text, and only fields of that type
    /// match.
    pub operand: Value,
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// `$eq`: equal. Numbers are compared by value, lists item by item, objects key by key.
    Eq,
    /// `$ne`: not equal.
    Ne,
    /// `$gt`: greater than. Texts are compared by code points.
    Gt,
    /// `$gte`: greater than or equal.
    Gte,
    /// `$lt`: less than.
    Lt,
    /// `$lte`: less than or equal.
    Lte,
}

impl Test {
    const ALL: [(&'static str, Self); 6] = [
        ("$eq", Self::Eq),
        ("$ne", Self::Ne),
        ("$gt", Self::Gt),
        ("$gte", Self::Gte),
        ("$lt", Self::Lt),
        ("$lte", Self::Lte),
    ];

    fn of_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == word).map(|(_, test)| *test)
    }

    /// Returns whether the comparison is one of order.
    pub fn is_order(self) -> bool {
        !matches!(self, Self::Eq | Self::Ne)
    }
}

impl ItemFilter {
    /// Parses `{"field": value, "field": {"$gt": value}, "field": {"inner": …}}`. `name` is the filter's name in
    /// errors.
    ///
    /// # Errors
    /// Returns the field whose condition is invalid.
    pub fn read(name: &str, fields: &Map<String, Value>) -> Result<Self, Invalid> {
        let mut reader = Reader {
            name,
            values: 0,
            conditions: vec![],
        };
        reader.fields(&[], fields)?;
        Ok(Self(reader.conditions))
    }

    /// Returns the conditions in the order given.
    pub fn conditions(&self) -> &[Condition] {
        &self.0
    }

    /// Returns whether a value meets all conditions. The database decides the same, unless values are encrypted.
    pub fn matches(&self, value: &Map<String, Value>) -> bool {
        self.0.iter().all(|condition| condition.is_met_by(value))
    }
}

impl Condition {
    /// Returns whether the field of a value passes the test.
    fn is_met_by(&self, value: &Map<String, Value>) -> bool {
        let mut names = self.path.iter();
        let first = names.next().and_then(|name| value.get(name));
        let field = names.fold(first, |at, name| at?.as_object()?.get(name));
        let field = field.unwrap_or(&Value::Null);
        let order = match (field, &self.operand) {
            (_, _) if !self.test.is_order() => None,
            (Value::String(text), Value::String(other)) => Some(text.cmp(other)),
            (Value::Number(number), Value::Number(other)) => compare_numbers(number, other),
            (_, _) => None,
        };
        match self.test {
            Test::Eq => are_equal(field, &self.operand),
            Test::Ne => !are_equal(field, &self.operand),
            Test::Gt => order.is_some_and(Ordering::is_gt),
            Test::Gte => order.is_some_and(Ordering::is_ge),
            Test::Lt => order.is_some_and(Ordering::is_lt),
            Test::Lte => order.is_some_and(Ordering::is_le),
        }
    }
}

struct Reader<'a> {
    name: &'a str,
    values: usize,
    conditions: Vec<Condition>,
}

impl Reader<'_> {
    fn wrong(&self, path: &[String], reason: impl Into<String>) -> Invalid {
        let field = std::iter::once(self.name)
            .chain(path.iter().map(String::as_str))
            .collect::<Vec<_>>()
            .join(".");
        Invalid::new(field, reason)
    }

    fn fields(&mut self, path: &[String], fields: &Map<String, Value>) -> Result<(), Invalid> {
        if path.len() >= MAX_DEPTH {
            return Err(self.wrong(path, format!("nests deeper than {MAX_DEPTH} fields")));
        }
        for (key, value) in fields {
            let mut path = path.to_vec();
            path.push(key.clone());
            if key.starts_with('$') {
                return Err(self.wrong(&path, "is an operator where the name of a field should be"));
            }
            if key.len() > MAX_TEXT_BYTES || key.contains('\0') {
                return Err(self.wrong(&path, "is not a valid field name"));
            }
            self.field(path, value)?;
        }
        Ok(())
    }

    fn field(&mut self, path: Vec<String>, value: &Value) -> Result<(), Invalid> {
        let Value::Object(inner) = value else {
            return self.condition(path, Test::Eq, value);
        };
        if inner.is_empty() {
            return self.condition(path, Test::Eq, value);
        }
        if !inner.keys().any(|key| key.starts_with('$')) {
            return self.fields(&path, inner);
        }
        for (word, operand) in inner {
            let Some(test) = Test::of_word(word) else {
                let all = Test::ALL.map(|(name, _)| name).join(", ");
                return Err(self.wrong(
                    &path,
                    format!("has `{word}` among operators, but there are only: {all}"),
                ));
            };
            self.condition(path.clone(), test, operand)?;
        }
        Ok(())
    }

    fn condition(&mut self, path: Vec<String>, test: Test, operand: &Value) -> Result<(), Invalid> {
        if test.is_order() && !matches!(operand, Value::Number(_) | Value::String(_)) {
            return Err(self.wrong(&path, "can be greater or less than a number or a text only"));
        }
        if find_nul(operand).is_some() {
            return Err(self.wrong(&path, "contains the character U+0000, which items cannot contain"));
        }
        self.count(&path, operand, MAX_DEPTH)?;
        self.conditions.push(Condition {
            path,
            test,
            operand: operand.clone(),
        });
        Ok(())
    }

    /// Checks the number, nesting and length of the values of an operand.
    fn count(&mut self, path: &[String], operand: &Value, deepest: usize) -> Result<(), Invalid> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(Invalid::new(
                self.name,
                format!("mentions more than {MAX_VALUES} values"),
            ));
        }
        let is_long = |text: &str| text.len() > MAX_TEXT_BYTES;
        let too_long = match operand {
            Value::String(text) => is_long(text),
            Value::Object(fields) => fields.keys().any(|key| is_long(key)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => false,
        };
        if too_long {
            return Err(self.wrong(path, format!("has a text of more than {MAX_TEXT_BYTES} bytes")));
        }
        let inner: Vec<&Value> = match operand {
            Value::Array(items) => items.iter().collect(),
            Value::Object(fields) => fields.values().collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return Ok(()),
        };
        if deepest == 0 {
            return Err(self.wrong(path, format!("has a value that nests deeper than {MAX_DEPTH}")));
        }
        inner
            .into_iter()
            .try_for_each(|value| self.count(path, value, deepest - 1))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(filter: Value) -> Result<Vec<(String, Test, Value)>, String> {
        let fields = filter.as_object().cloned().expect("an object");
        let filter = ItemFilter::read("filter", &fields).map_err(|error| error.to_string())?;
        let shown = |c: &Condition| (c.path.join("/"), c.test, c.operand.clone());
        Ok(filter.conditions().iter().map(shown).collect())
    }

    #[test]
    fn fields_are_compared_for_equality_or_by_operators_at_any_depth() {
        let filter = json!({"a": 1, "b": {"$gt": 2, "$lte": 5}, "c": {"d": {"$ne": "x"}, "e": [1]}, "f": {}});
        let expected = [
            ("a", Test::Eq, json!(1)),
            ("b", Test::Gt, json!(2)),
            ("b", Test::Lte, json!(5)),
            ("c/d", Test::Ne, json!("x")),
            ("c/e", Test::Eq, json!([1])),
            ("f", Test::Eq, json!({})),
        ];
        assert_eq!(
            read(filter),
            Ok(expected
                .map(|(path, test, value)| (path.to_owned(), test, value))
                .to_vec())
        );
    }

    #[test]
    fn the_error_names_the_invalid_condition() {
        let deep = (0..9).fold(json!(1), |inner, _| json!({"a": inner}));
        let cases = [
            (json!({"$or": []}), "filter.$or: is an operator where"),
            (json!({"a": {"$in": [1]}}), "filter.a: has `$in` among operators"),
            (json!({"a": {"$gt": 1, "b": 2}}), "filter.a: has `b` among operators"),
            (
                json!({"a": {"b": {"$gt": [1]}}}),
                "filter.a.b: can be greater or less than",
            ),
            (json!({"a": "\0"}), "filter.a: contains the character U+0000"),
            (json!({"a": vec![0; 101]}), "filter: mentions more than 100 values"),
            (json!({"a": "x".repeat(5000)}), "filter.a: has a text of more than"),
            (deep.clone(), "nests deeper than 8 fields"),
            (json!({"a": {"$eq": deep}}), "filter.a: has a value that nests deeper"),
        ];
        for (filter, reason) in cases {
            let refused = read(filter).expect_err(reason);
            assert!(refused.contains(reason), "{refused}");
        }
    }
}
