//! The types of Rust whose values SQLite stores.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::types::Json;
use sqlx::{Decode, Encode, Type};
use uuid::Uuid;

use super::{Sqlite, SqliteArgumentBuffer, SqliteTypeInfo, SqliteValue, SqliteValueRef};

/// Returns the error about a value of another storage class.
fn unexpected(value: &SqliteValue, expected: &str) -> BoxDynError {
    let found = sqlx::Value::type_info(value);
    format!("the value is {found}, and not {expected}").into()
}

fn integer(value: SqliteValueRef<'_>) -> Result<i64, BoxDynError> {
    match value.0 {
        SqliteValue::Integer(number) => Ok(*number),
        SqliteValue::Null | SqliteValue::Real(_) | SqliteValue::Text(_) | SqliteValue::Blob(_) => {
            Err(unexpected(value.0, "INTEGER"))
        }
    }
}

/// Returns the bytes of a text or a blob.
fn bytes(value: SqliteValueRef<'_>) -> Result<&[u8], BoxDynError> {
    match value.0 {
        SqliteValue::Text(bytes) | SqliteValue::Blob(bytes) => Ok(bytes),
        SqliteValue::Null | SqliteValue::Integer(_) | SqliteValue::Real(_) => Err(unexpected(value.0, "TEXT or BLOB")),
    }
}

/// Implements the traits for a type of whole numbers.
macro_rules! whole_number {
    ($number:ty) => {
        impl Type<Sqlite> for $number {
            fn type_info() -> SqliteTypeInfo {
                SqliteTypeInfo::Integer
            }
        }

        impl Encode<'_, Sqlite> for $number {
            fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
                buffer.push(SqliteValue::Integer(i64::from(*self)));
                Ok(IsNull::No)
            }
        }

        impl<'r> Decode<'r, Sqlite> for $number {
            fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
                Ok(integer(value)?.try_into()?)
            }
        }
    };
}

whole_number!(i16);
whole_number!(i32);
whole_number!(i64);

impl Type<Sqlite> for bool {
    fn type_info() -> SqliteTypeInfo {
        SqliteTypeInfo::Integer
    }
}

impl Encode<'_, Sqlite> for bool {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.push(SqliteValue::Integer(i64::from(*self)));
        Ok(IsNull::No)
    }
}

impl<'r> Decode<'r, Sqlite> for bool {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(integer(value)? != 0)
    }
}

impl Type<Sqlite> for f64 {
    fn type_info() -> SqliteTypeInfo {
        SqliteTypeInfo::Real
    }

    fn compatible(ty: &SqliteTypeInfo) -> bool {
        matches!(ty, SqliteTypeInfo::Real | SqliteTypeInfo::Integer)
    }
}

impl Encode<'_, Sqlite> for f64 {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.push(SqliteValue::Real(*self));
        Ok(IsNull::No)
    }
}

impl<'r> Decode<'r, Sqlite> for f64 {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        match value.0 {
            SqliteValue::Real(number) => Ok(*number),
            #[expect(clippy::cast_precision_loss, reason = "SQLite converts whole numbers alike")]
            SqliteValue::Integer(number) => Ok(*number as Self),
            SqliteValue::Null | SqliteValue::Text(_) | SqliteValue::Blob(_) => Err(unexpected(value.0, "REAL")),
        }
    }
}

impl Type<Sqlite> for str {
    fn type_info() -> SqliteTypeInfo {
        SqliteTypeInfo::Text
    }
}

impl Encode<'_, Sqlite> for &'_ str {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.push(SqliteValue::Text(self.as_bytes().to_vec()));
        Ok(IsNull::No)
    }
}

impl<'r> Decode<'r, Sqlite> for &'r str {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(str::from_utf8(bytes(value)?)?)
    }
}

impl Encode<'_, Sqlite> for Cow<'_, str> {
    fn encode(self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <String as Encode<'_, Sqlite>>::encode(self.into_owned(), buffer)
    }

    fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <&str as Encode<'_, Sqlite>>::encode(self.as_ref(), buffer)
    }
}

impl Type<Sqlite> for String {
    fn type_info() -> SqliteTypeInfo {
        SqliteTypeInfo::Text
    }
}

impl Encode<'_, Sqlite> for String {
    fn encode(self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.push(SqliteValue::Text(self.into_bytes()));
        Ok(IsNull::No)
    }

    fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <&str as Encode<'_, Sqlite>>::encode(self.as_str(), buffer)
    }
}

impl<'r> Decode<'r, Sqlite> for String {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        <&str as Decode<'r, Sqlite>>::decode(value).map(str::to_owned)
    }
}

impl Type<Sqlite> for [u8] {
    fn type_info() -> SqliteTypeInfo {
        SqliteTypeInfo::Blob
    }

    fn compatible(ty: &SqliteTypeInfo) -> bool {
        matches!(ty, SqliteTypeInfo::Blob | SqliteTypeInfo::Text)
    }
}

impl Encode<'_, Sqlite> for &'_ [u8] {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.push(SqliteValue::Blob(self.to_vec()));
        Ok(IsNull::No)
    }
}

impl<'r> Decode<'r, Sqlite> for &'r [u8] {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        bytes(value)
    }
}

impl Type<Sqlite> for Vec<u8> {
    fn type_info() -> SqliteTypeInfo {
        SqliteTypeInfo::Blob
    }

    fn compatible(ty: &SqliteTypeInfo) -> bool {
        <[u8] as Type<Sqlite>>::compatible(ty)
    }
}

impl Encode<'_, Sqlite> for Vec<u8> {
    fn encode(self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.push(SqliteValue::Blob(self));
        Ok(IsNull::No)
    }

    fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <&[u8] as Encode<'_, Sqlite>>::encode(self.as_slice(), buffer)
    }
}

impl<'r> Decode<'r, Sqlite> for Vec<u8> {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        bytes(value).map(<[u8]>::to_vec)
    }
}

/// The sixteen bytes of the id.
impl Type<Sqlite> for Uuid {
    fn type_info() -> SqliteTypeInfo {
        SqliteTypeInfo::Blob
    }
}

impl Encode<'_, Sqlite> for Uuid {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.push(SqliteValue::Blob(self.as_bytes().to_vec()));
        Ok(IsNull::No)
    }
}

impl<'r> Decode<'r, Sqlite> for Uuid {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self::from_slice(bytes(value)?)?)
    }
}

impl<T> Type<Sqlite> for Json<T> {
    fn type_info() -> SqliteTypeInfo {
        SqliteTypeInfo::Text
    }
}

impl<T: Serialize> Encode<'_, Sqlite> for Json<T> {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.push(SqliteValue::Text(serde_json::to_vec(&self.0)?));
        Ok(IsNull::No)
    }
}

impl<'r, T: Deserialize<'r> + 'r> Decode<'r, Sqlite> for Json<T> {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self(serde_json::from_slice(bytes(value)?)?))
    }
}

sqlx_core::impl_encode_for_option!(Sqlite);
