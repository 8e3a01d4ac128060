//! The values of a statement of Postgres: in binary form for a statement that is sent alone, as literals for statements that are
//! sent together. The protocol of Postgres has values only for one statement at a time, and the driver waits for its end.
//!
//! Postgres takes longer for a value of `execute` than for the column that it goes into, even for a null: it prepares an expression
//! for each. So values that most executions of a statement have alike are [moved](PostgresValues::move_into_text) into the text that
//! is prepared.

use std::ops::Range;

use memchr::{memchr, memchr2};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgArguments, PgTypeInfo};
use sqlx::{Arguments, Encode, Postgres, Type, TypeInfo};
use uuid::Uuid;

use crate::db::engine::batch::{push_number, push_with_values};

/// The most bytes of values that become literals. A literal of bytes has twice their length, and is decoded for that; from about
/// this size on, that costs more than to wait for the statement.
const MOST_LITERAL_BYTES: usize = 32 * 1024;

/// The most values of a statement of which some are moved into its text. Texts of many rows seldom have the same nulls, and each
/// other text is prepared anew.
const MOST_MOVED_AMONG: usize = 160;
/// The least number that may be the same value as another one of its row by design, such as a time. Small ones are the same by chance.
const LEAST_REPEATED_NUMBER: i64 = 1 << 32;

/// The values of a statement.
#[derive(Default)]
pub(in crate::db) struct PostgresValues {
    values: Vec<PostgresValue>,
    /// The values in binary form, one behind the other.
    bytes: PgArgumentBuffer,
    /// A value that could not be encoded.
    error: Option<BoxDynError>,
    /// True if a value can be no literal.
    has_other: bool,
}

/// A value of a statement.
struct PostgresValue {
    type_info: PgTypeInfo,
    /// The way in which it is written as a literal; none if values of its type are sent in binary form only.
    form: Option<LiteralForm>,
    /// The place of its bytes; none for null.
    range: Option<Range<usize>>,
}

/// The way in which a value is written as a literal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LiteralForm {
    Bool,
    Int,
    Float8,
    Text,
    /// Text behind a byte for the version.
    Jsonb,
    Uuid,
    Bytes,
}

impl LiteralForm {
    /// Returns the form for a type; none if values of the type are sent in binary form only.
    fn of(type_info: &PgTypeInfo) -> Option<Self> {
        Some(match type_info.name() {
            "BOOL" => Self::Bool,
            "INT2" | "INT4" | "INT8" => Self::Int,
            "FLOAT8" => Self::Float8,
            "TEXT" | "VARCHAR" => Self::Text,
            "JSONB" => Self::Jsonb,
            "UUID" => Self::Uuid,
            "BYTEA" => Self::Bytes,
            _ => return None,
        })
    }
}

impl PostgresValues {
    /// Adds a value.
    pub(in crate::db) fn add<'q, T>(&mut self, value: T)
    where
        T: Encode<'q, Postgres> + Type<Postgres>,
    {
        let type_info = value.produces().unwrap_or_else(T::type_info);
        let start = self.bytes.len();
        let range = match value.encode(&mut self.bytes) {
            Ok(IsNull::No) => Some(start..self.bytes.len()),
            Ok(IsNull::Yes) => None,
            Err(error) => {
                self.error = Some(error);
                return;
            }
        };
        let form = LiteralForm::of(&type_info);
        self.has_other |= match form {
            // A text message ends at the first character U+0000. Postgres refuses the character in binary form.
            Some(LiteralForm::Text | LiteralForm::Jsonb) => memchr(0, &self.bytes[start..]).is_some(),
            Some(_) => false,
            None => true,
        };
        self.values.push(PostgresValue { type_info, form, range });
    }

    /// Returns the error of a value that could not be encoded.
    pub(in crate::db) fn take_error(&mut self) -> sqlx::Result<()> {
        self.error
            .take()
            .map_or(Ok(()), |error| Err(sqlx::Error::Encode(error)))
    }

    /// Returns whether the values can be, and are worth being, literals.
    pub(super) fn can_be_literals(&self) -> bool {
        !self.has_other && self.bytes.len() <= MOST_LITERAL_BYTES
    }

    /// Returns whether there are no values.
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Removes the values that most executions of the statement `sql` have alike, and those that repeat an earlier one. Returns the
    /// text for the values that remain; none if all do.
    ///
    /// Of other statements than inserts of values, only nulls and truth values are moved: a plan could depend on other ones.
    pub(super) fn move_into_text(&mut self, sql: &str) -> Option<String> {
        if self.values.len() > MOST_MOVED_AMONG {
            return None;
        }
        let is_insert = is_insert_of_values(sql);
        // The position of each value among those that remain; none for one that is in the text.
        let mut places = Vec::with_capacity(self.values.len());
        let mut remaining: Vec<usize> = vec![];
        for (index, value) in self.values.iter().enumerate() {
            if self.is_common(value, is_insert) {
                places.push(None);
                continue;
            }
            let repeated = match is_insert && self.may_be_repeated(value) {
                true => remaining.iter().position(|at| self.are_equal(&self.values[*at], value)),
                false => None,
            };
            let place = repeated.unwrap_or(remaining.len());
            if repeated.is_none() {
                remaining.push(index);
            }
            places.push(Some(place));
        }
        if remaining.len() == self.values.len() {
            return None;
        }
        let mut text = String::with_capacity(sql.len() + 16 * places.len());
        push_with_values(&mut text, sql, |text, number| {
            let place = number.checked_sub(1).and_then(|index| places.get(index));
            match place {
                Some(None) => self.push_typed_literal(text, number),
                Some(Some(place)) => {
                    text.push('$');
                    push_number(text, place + 1);
                }
                // A number without a value, which is higher than those of all values.
                None => {
                    text.push('$');
                    push_number(text, number);
                }
            }
        });
        let mut remaining = remaining.into_iter().peekable();
        let mut index = 0;
        self.values.retain(|_| {
            let remains = remaining.next_if_eq(&index).is_some();
            index += 1;
            remains
        });
        Some(text)
    }

    /// Returns whether most executions of a statement have this value alike: null, true or false, and in an insert 0 or an empty text.
    fn is_common(&self, value: &PostgresValue, is_insert: bool) -> bool {
        let Some(bytes) = self.bytes_of(value) else {
            return true;
        };
        match value.form {
            Some(LiteralForm::Bool) => true,
            Some(LiteralForm::Int) => is_insert && integer(bytes) == 0,
            Some(LiteralForm::Text) => is_insert && bytes.is_empty(),
            Some(LiteralForm::Float8 | LiteralForm::Jsonb | LiteralForm::Uuid | LiteralForm::Bytes) | None => false,
        }
    }

    /// Returns whether a value is likely to be in the other executions of its statement where it is in this one: an id, or a time.
    fn may_be_repeated(&self, value: &PostgresValue) -> bool {
        match (value.form, self.bytes_of(value)) {
            (Some(LiteralForm::Uuid), Some(_)) => true,
            (Some(LiteralForm::Int), Some(bytes)) => integer(bytes) >= LEAST_REPEATED_NUMBER,
            (_, _) => false,
        }
    }

    /// Returns whether two values that [may be repeated](Self::may_be_repeated) are equal. So large a number has one type.
    fn are_equal(&self, one: &PostgresValue, other: &PostgresValue) -> bool {
        one.form == other.form && self.bytes_of(one) == self.bytes_of(other)
    }

    /// Returns the binary form of a value; none for null.
    fn bytes_of(&self, value: &PostgresValue) -> Option<&[u8]> {
        value.range.clone().map(|range| &self.bytes[range])
    }

    /// Returns the types of the values.
    pub(super) fn types(&self) -> impl Iterator<Item = &PgTypeInfo> {
        self.values.iter().map(|value| &value.type_info)
    }

    /// Returns the values for a statement that is sent alone.
    pub(super) fn into_arguments(self) -> Result<PgArguments, BoxDynError> {
        let mut arguments = PgArguments::default();
        for PostgresValue { type_info, range, .. } in self.values {
            let bytes = range.map(|range| &self.bytes[range]);
            arguments.add(EncodedValue { type_info, bytes })?;
        }
        Ok(arguments)
    }

    /// Adds all values to a text, separated by commas.
    pub(super) fn push_literals(&self, text: &mut String) {
        for (index, value) in self.values.iter().enumerate() {
            if index > 0 {
                text.push_str(", ");
            }
            self.push_value(text, value);
        }
    }

    /// Adds the value with this number, from 1, to a text, with its type. A number without a value is left as it is, so that Postgres
    /// refuses the statement.
    pub(super) fn push_typed_literal(&self, text: &mut String, number: usize) {
        let Some(value) = number.checked_sub(1).and_then(|index| self.values.get(index)) else {
            text.push('$');
            push_number(text, number);
            return;
        };
        text.push_str("cast(");
        self.push_value(text, value);
        text.push_str(" as ");
        text.push_str(value.type_info.name());
        text.push(')');
    }

    fn push_value(&self, text: &mut String, value: &PostgresValue) {
        match (value.form, self.bytes_of(value)) {
            (Some(form), Some(bytes)) => push_literal(text, form, bytes),
            _ => text.push_str("null"),
        }
    }
}

/// Returns whether a statement stores rows of values, also if it must change a row.
fn is_insert_of_values(sql: &str) -> bool {
    let insert = sql.strip_prefix("with changed as (").unwrap_or(sql);
    insert.starts_with("insert into ") && insert.contains(" values (")
}

/// A value in the binary form of Postgres.
struct EncodedValue<'v> {
    type_info: PgTypeInfo,
    /// None for null.
    bytes: Option<&'v [u8]>,
}

impl Type<Postgres> for EncodedValue<'_> {
    fn type_info() -> PgTypeInfo {
        <Vec<u8> as Type<Postgres>>::type_info()
    }
}

impl Encode<'_, Postgres> for EncodedValue<'_> {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let Some(bytes) = self.bytes else {
            return Ok(IsNull::Yes);
        };
        buffer.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(self.type_info.clone())
    }
}

/// Adds a literal with these bytes, which are the binary form of a value.
fn push_literal(text: &mut String, form: LiteralForm, bytes: &[u8]) {
    match form {
        LiteralForm::Bool => text.push_str(if bytes == [1] { "true" } else { "false" }),
        LiteralForm::Int => push_quoted(text, &integer(bytes).to_string()),
        LiteralForm::Float8 => {
            let number = bytes.try_into().map_or(f64::NAN, f64::from_be_bytes);
            push_quoted(text, &number.to_string());
        }
        LiteralForm::Text => push_quoted(text, &String::from_utf8_lossy(bytes)),
        LiteralForm::Jsonb => push_quoted(text, &String::from_utf8_lossy(bytes.get(1..).unwrap_or_default())),
        LiteralForm::Uuid => {
            let mut buffer = Uuid::encode_buffer();
            let id = Uuid::from_slice(bytes).unwrap_or_default();
            text.push('\'');
            text.push_str(id.as_hyphenated().encode_lower(&mut buffer));
            text.push('\'');
        }
        LiteralForm::Bytes => push_bytes(text, bytes),
    }
}

/// Returns the number with these bytes.
fn integer(bytes: &[u8]) -> i64 {
    let is_negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
    let sign = if is_negative { -1 } else { 0 };
    bytes.iter().fold(sign, |number, byte| (number << 8) | i64::from(*byte))
}

/// Adds a string. With `e` it is read alike whatever `standard_conforming_strings` is.
fn push_quoted(text: &mut String, mut value: &str) {
    text.reserve(value.len() + 3);
    text.push_str("e'");
    while let Some(at) = memchr2(b'\'', b'\\', value.as_bytes()) {
        let (before, rest) = value.split_at(at);
        let (quoted, behind) = rest.split_at(1);
        text.push_str(before);
        text.push_str(quoted);
        text.push_str(quoted);
        value = behind;
    }
    text.push_str(value);
    text.push('\'');
}

/// Adds a string of hexadecimal digits.
fn push_bytes(text: &mut String, bytes: &[u8]) {
    let digits = hex::encode(bytes);
    text.reserve(digits.len() + 6);
    text.push_str("e'\\\\x");
    text.push_str(&digits);
    text.push('\'');
}

#[cfg(test)]
mod tests {
    use sqlx::types::Json;

    use super::*;

    fn literals(add: impl FnOnce(&mut PostgresValues)) -> String {
        let mut values = PostgresValues::default();
        add(&mut values);
        assert!(values.can_be_literals());
        let mut text = String::new();
        values.push_literals(&mut text);
        text
    }

    #[test]
    fn values_become_literals() {
        let id = Uuid::from_u128(0x0192_f7a1_0000_7000_8000_0000_0000_0001);
        let text = literals(|values| {
            values.add(true);
            values.add(-5_i32);
            values.add(i64::MIN);
            values.add(1.5_f64);
            values.add(None::<String>);
            values.add(id);
            values.add(vec![0_u8, 255]);
            values.add(Json(serde_json::json!({"a": "it's"})));
        });
        assert_eq!(
            text,
            "true, e'-5', e'-9223372036854775808', e'1.5', null, '0192f7a1-0000-7000-8000-000000000001', \
             e'\\\\x00ff', e'{\"a\":\"it''s\"}'"
        );
    }

    #[test]
    fn a_text_cannot_end_its_literal() {
        let text = literals(|values| {
            values.add("'); drop table runs; --");
            values.add("\\'); drop table runs; --");
            values.add("");
        });
        assert_eq!(
            text,
            "e'''); drop table runs; --', e'\\\\''); drop table runs; --', e''"
        );
    }

    #[test]
    fn a_literal_in_the_place_of_a_number_has_its_type() {
        let mut values = PostgresValues::default();
        values.add(7_i64);
        let mut text = String::new();
        values.push_typed_literal(&mut text, 1);
        values.push_typed_literal(&mut text, 2);
        assert_eq!(text, "cast(e'7' as INT8)$2");
    }

    /// Returns the text of a statement with these values, and the literals of the values that remain.
    fn moved(sql: &str, add: impl FnOnce(&mut PostgresValues)) -> (Option<String>, String) {
        let mut values = PostgresValues::default();
        add(&mut values);
        let text = values.move_into_text(sql);
        let mut literals = String::new();
        values.push_literals(&mut literals);
        (text, literals)
    }

    #[test]
    fn values_that_executions_have_alike_are_in_the_text_of_an_insert() {
        let id = Uuid::from_u128(1);
        let now = 1_700_000_000_000_000_i64;
        let sql = "insert into runs values ($1, $2, $3, $4, $5, $6), ($7, $8, $9, $10, $11, $12)";
        let (text, literals) = moved(sql, |values| {
            for number in [7_i64, 0] {
                values.add(id);
                values.add(now);
                values.add(number);
                values.add(number == 0);
                values.add("");
                values.add(None::<String>);
            }
        });
        assert_eq!(
            text.as_deref(),
            Some(
                "insert into runs values ($1, $2, $3, cast(false as BOOL), cast(e'' as TEXT), cast(null as TEXT)), \
                 ($1, $2, cast(e'0' as INT8), cast(true as BOOL), cast(e'' as TEXT), cast(null as TEXT))"
            )
        );
        assert_eq!(
            literals,
            "'00000000-0000-0000-0000-000000000001', e'1700000000000000', e'7'"
        );
    }

    #[test]
    fn small_numbers_and_texts_that_are_equal_by_chance_stay_values() {
        let (text, literals) = moved("insert into a values ($1, $2, $3, $4)", |values| {
            values.add(5_i64);
            values.add(5_i64);
            values.add("b");
            values.add("b");
        });
        assert_eq!(text, None);
        assert_eq!(literals, "e'5', e'5', e'b', e'b'");
    }

    #[test]
    fn only_nulls_and_truth_values_are_in_the_text_of_another_statement() {
        let id = Uuid::from_u128(1);
        let sql = "update a set b = coalesce($1, b), c = $2, d = '$1', e = $3, f = $4 where g = $5 and h = $6";
        let (text, literals) = moved(sql, |values| {
            values.add(None::<i64>);
            values.add(true);
            values.add(0_i64);
            values.add("");
            values.add(id);
            values.add(id);
        });
        assert_eq!(
            text.as_deref(),
            Some(
                "update a set b = coalesce(cast(null as INT8), b), c = cast(true as BOOL), d = '$1', e = $1, f = $2 \
                 where g = $3 and h = $4"
            )
        );
        assert_eq!(
            literals,
            "e'0', e'', '00000000-0000-0000-0000-000000000001', '00000000-0000-0000-0000-000000000001'"
        );
    }

    #[test]
    fn a_statement_of_many_rows_keeps_its_values() {
        let (text, _) = moved("insert into a values ($1)", |values| {
            (0..=MOST_MOVED_AMONG).for_each(|_| values.add(None::<i64>));
        });
        assert_eq!(text, None);
    }

    #[test]
    fn an_insert_that_must_change_a_row_is_an_insert() {
        assert!(is_insert_of_values(
            "with changed as (insert into a (b) values ($1) returning 1) select 1 / count(*) from changed"
        ));
        assert!(!is_insert_of_values("insert into a (b) select c from d where e = $1"));
        assert!(!is_insert_of_values("update a set b = $1"));
    }

    #[test]
    fn values_that_can_be_no_literals_are_told() {
        let is_literal = |add: &dyn Fn(&mut PostgresValues)| {
            let mut values = PostgresValues::default();
            add(&mut values);
            values.can_be_literals()
        };
        assert!(is_literal(&|values| values.add("a")));
        assert!(!is_literal(&|values| values.add("a\0b")), "Postgres is to refuse it");
        assert!(is_literal(&|values| values.add(vec![0_u8])));
        assert!(!is_literal(&|values| values.add(vec![1.0_f32])), "an array");
        assert!(!is_literal(&|values| values.add(vec![7_u8; MOST_LITERAL_BYTES + 1])));
    }
}
