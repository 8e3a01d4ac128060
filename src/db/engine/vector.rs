//! Vectors in columns: `real[]` on Postgres; on SQLite a blob of little-endian `f32` values.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

use crate::sqlite::{Sqlite, SqliteArgumentBuffer, SqliteTypeInfo, SqliteValueRef};

/// A vector to bind to a column or decode from it.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::db) struct Vector(pub(in crate::db) Vec<f32>);

impl Vector {
    /// Returns the numbers as little-endian bytes.
    pub(in crate::db) fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// Reads what [`Vector::to_bytes`] has returned; none if the length is wrong.
    pub(in crate::db) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<4>();
        let numbers = numbers.iter().map(|number| f32::from_le_bytes(*number));
        rest.is_empty().then(|| Self(numbers.collect()))
    }
}

impl Type<Postgres> for Vector {
    fn type_info() -> PgTypeInfo {
        f32::array_type_info()
    }

    fn compatible(ty: &PgTypeInfo) -> bool {
        f32::array_compatible(ty)
    }
}

impl Encode<'_, Postgres> for Vector {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <Vec<f32> as Encode<'_, Postgres>>::encode_by_ref(&self.0, buffer)
    }
}

impl<'r> Decode<'r, Postgres> for Vector {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        <Vec<f32> as Decode<'r, Postgres>>::decode(value).map(Self)
    }
}

impl Type<Sqlite> for Vector {
    fn type_info() -> SqliteTypeInfo {
        <Vec<u8> as Type<Sqlite>>::type_info()
    }
}

impl Encode<'_, Sqlite> for Vector {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <Vec<u8> as Encode<'_, Sqlite>>::encode(self.to_bytes(), buffer)
    }
}

impl<'r> Decode<'r, Sqlite> for Vector {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        let bytes = <&[u8] as Decode<'r, Sqlite>>::decode(value)?;
        Self::from_bytes(bytes).ok_or_else(|| "the length of a vector is not a multiple of four bytes".into())
    }
}
