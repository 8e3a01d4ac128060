//! The equality and the order of JSON values. Numbers are compared by value, so that `1` and `1.0` are equal.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// Compares two numbers by value: whole ones exactly, others as floating-point numbers.
pub fn compare_numbers(one: &Number, other: &Number) -> Option<Ordering> {
    match (one.as_i128(), other.as_i128()) {
        (Some(one), Some(other)) => Some(one.cmp(&other)),
        (_, _) => one.as_f64()?.partial_cmp(&other.as_f64()?),
    }
}

/// Returns whether two values are equal, numbers by value. The order of keys does not matter.
pub fn are_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => compare_numbers(one, other) == Some(Ordering::Equal),
        (Value::Array(some), Value::Array(others)) => {
            some.len() == others.len() && some.iter().zip(others).all(|(one, other)| are_equal(one, other))
        }
        (Value::Object(some), Value::Object(others)) => {
            let is_there = |(key, one)| others.get(key).is_some_and(|other| are_equal(one, other));
            some.len() == others.len() && some.iter().all(is_there)
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_equal_by_value_at_any_depth() {
        assert!(are_equal(
            &json!({"a": [1, {"b": 2.0}]}),
            &json!({"a": [1.0, {"b": 2}]})
        ));
        assert!(!are_equal(&json!({"a": [1]}), &json!({"a": [1, 2]})));
        assert!(!are_equal(&json!(1), &json!("1")));
    }

    #[test]
    fn large_whole_numbers_are_compared_exactly() {
        assert!(!are_equal(
            &json!(9_007_199_254_740_993_u64),
            &json!(9_007_199_254_740_992_u64)
        ));
    }
}
