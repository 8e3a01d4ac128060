//! Filters of items as SQL over JSON, for each engine. Both engines find the same items: a missing field is null,
//! numbers are compared by value and strings by code points.

use serde_json::Value;
use sqlx::types::Json;
use sqlx::{Postgres, QueryBuilder};

use super::valid_json;
use crate::domain::item::{Condition, ItemFilter, Test};
use crate::sqlite::Sqlite;

/// A query under construction, on either engine.
pub(in crate::db) trait Matches {
    /// Appends each condition of the filter on the JSON object in `column`, after `and`.
    fn push_matches(&mut self, column: &str, filter: &ItemFilter);
}

/// Returns the SQL operator of a test.
fn operator(test: Test) -> &'static str {
    match test {
        Test::Eq => " = ",
        Test::Ne => " <> ",
        Test::Gt => " > ",
        Test::Gte => " >= ",
        Test::Lt => " < ",
        Test::Lte => " <= ",
    }
}

impl Matches for QueryBuilder<Postgres> {
    fn push_matches(&mut self, column: &str, filter: &ItemFilter) {
        for Condition { path, test, operand } in filter.conditions() {
            match (test, operand) {
                (Test::Eq | Test::Ne, _) => {
                    self.push(" and coalesce(");
                    push_field(self, column, path);
                    self.push(", 'null'::jsonb)")
                        .push(operator(*test))
                        .push_bind(Json(operand.clone()));
                }
                (_, Value::String(text)) => {
                    self.push(" and jsonb_typeof(");
                    push_field(self, column, path);
                    self.push(") = 'string' and (");
                    push_field(self, column, path);
                    self.push(" #>> '{}') collate \"C\"")
                        .push(operator(*test))
                        .push_bind(text.clone());
                }
                (_, number) => {
                    self.push(" and jsonb_typeof(");
                    push_field(self, column, path);
                    self.push(") = 'number' and ");
                    push_field(self, column, path);
                    self.push(operator(*test)).push_bind(Json(number.clone()));
                }
            }
        }
    }
}

fn push_field(query: &mut QueryBuilder<Postgres>, column: &str, path: &[String]) {
    query.push("(").push(column);
    for name in path {
        query.push(" -> ").push_bind(name.clone());
    }
    query.push(")");
}

impl Matches for QueryBuilder<Sqlite> {
    fn push_matches(&mut self, column: &str, filter: &ItemFilter) {
        for Condition { path, test, operand } in filter.conditions() {
            self.push(" and ");
            match (test, operand) {
                (Test::Eq | Test::Ne, _) => {
                    // A missing field is null, so a field equals null if no non-null value exists.
                    let not = (*test == Test::Ne) != operand.is_null();
                    push_at(self, column, path, not, |query, row| {
                        if operand.is_null() {
                            query.push(format!("{row}.type <> 'null'"));
                        } else {
                            push_equal(query, row, operand, 0);
                        }
                    });
                }
                (test, operand) => push_at(self, column, path, false, |query, row| {
                    let kind = if operand.is_string() {
                        "'text'"
                    } else {
                        "'integer', 'real'"
                    };
                    query
                        .push(format!("{row}.type in ({kind}) and {row}.value"))
                        .push(operator(*test));
                    push_scalar(query, operand);
                }),
            }
        }
    }
}

/// Appends the condition that a value at the path exists (or does not exist) that passes the test.
fn push_at(
    query: &mut QueryBuilder<Sqlite>,
    column: &str,
    path: &[String],
    not: bool,
    test: impl Fn(&mut QueryBuilder<Sqlite>, &str),
) {
    let mut json = valid_json(column);
    if not {
        query.push("not ");
    }
    for (at, name) in path.iter().enumerate() {
        let row = format!("f{at}");
        query
            .push(format!(
                "exists (select 1 from json_each({json}) {row} where {row}.key = "
            ))
            .push_bind(name.clone());
        query.push(" and ");
        json = format!("{row}.value");
        if at + 1 < path.len() {
            query.push(format!("{row}.type = 'object' and "));
        } else {
            test(query, &row);
        }
    }
    query.push(")".repeat(path.len()));
}

/// Appends the condition that a row of `json_each` equals `operand`.
fn push_equal(query: &mut QueryBuilder<Sqlite>, row: &str, operand: &Value, depth: usize) {
    let inner = format!("e{depth}");
    let each = format!(" and exists (select 1 from json_each({row}.value) {inner} where {inner}.key = ");
    match operand {
        Value::Null => _ = query.push(format!("{row}.type = 'null'")),
        Value::Bool(truth) => _ = query.push(format!("{row}.type = '{truth}'")),
        Value::String(_) => {
            query.push(format!("{row}.type = 'text' and {row}.value = "));
            push_scalar(query, operand);
        }
        Value::Number(_) => {
            query.push(format!("{row}.type in ('integer', 'real') and {row}.value = "));
            push_scalar(query, operand);
        }
        Value::Array(items) => {
            query.push(format!(
                "{row}.type = 'array' and json_array_length({row}.value) = {}",
                items.len()
            ));
            for (at, item) in items.iter().enumerate() {
                query.push(&each).push(at).push(" and ");
                push_equal(query, &inner, item, depth + 1);
                query.push(")");
            }
        }
        Value::Object(fields) => {
            query.push(format!(
                "{row}.type = 'object' and (select count(*) from json_each({row}.value)) = "
            ));
            query.push(fields.len());
            for (key, value) in fields {
                query.push(&each).push_bind(key.clone()).push(" and ");
                push_equal(query, &inner, value, depth + 1);
                query.push(")");
            }
        }
    }
}

/// Appends a number or a string.
fn push_scalar(query: &mut QueryBuilder<Sqlite>, operand: &Value) {
    match (operand.as_i64(), operand) {
        (Some(whole), _) => query.push_bind(whole),
        (None, Value::String(text)) => query.push_bind(text.clone()),
        (None, other) => query.push_bind(other.as_f64()),
    };
}
