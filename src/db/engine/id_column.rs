//! Ids in columns of which most rows have the same, or one that follows from the rest of the row: on SQLite an empty blob stands
//! for it, on Postgres the nil UUID, where a column has it at all.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};
use uuid::Uuid;

use super::lanes::{lane_id, lane_of};
use crate::domain::checkpoint::Lane;
use crate::sqlite::{Sqlite, SqliteArgumentBuffer, SqliteTypeInfo, SqliteValueRef};

/// A value of a column with ids.
pub(in crate::db) trait ColumnId: Copy {
    /// Returns the id; none if it is left out.
    fn id(self) -> Option<Uuid>;

    /// Returns the value with this id, or that of rows without one.
    fn of_id(id: Option<Uuid>) -> Self;
}

/// An id that is left out where it follows from the rest of the row.
impl ColumnId for Option<Uuid> {
    fn id(self) -> Option<Uuid> {
        self
    }

    fn of_id(id: Option<Uuid>) -> Self {
        id
    }
}

/// A lane, which has an id unless it is that of the main agent.
impl ColumnId for Lane {
    fn id(self) -> Option<Uuid> {
        Some(lane_id(self)).filter(|id| !id.is_nil())
    }

    fn of_id(id: Option<Uuid>) -> Self {
        lane_of(id.unwrap_or_default())
    }
}

/// A value to bind to a column with ids, or decode from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::db) struct IdColumn<T>(pub(in crate::db) T);

impl<T> Type<Postgres> for IdColumn<T> {
    fn type_info() -> PgTypeInfo {
        <Uuid as Type<Postgres>>::type_info()
    }
}

impl<T: ColumnId> Encode<'_, Postgres> for IdColumn<T> {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <Uuid as Encode<'_, Postgres>>::encode_by_ref(&self.0.id().unwrap_or_default(), buffer)
    }
}

impl<'r, T: ColumnId> Decode<'r, Postgres> for IdColumn<T> {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let id = <Uuid as Decode<'r, Postgres>>::decode(value)?;
        Ok(Self(T::of_id(Some(id))))
    }
}

impl<T> Type<Sqlite> for IdColumn<T> {
    fn type_info() -> SqliteTypeInfo {
        <Vec<u8> as Type<Sqlite>>::type_info()
    }
}

impl<T: ColumnId> Encode<'_, Sqlite> for IdColumn<T> {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let bytes = self.0.id().map_or_else(Vec::new, |id| id.as_bytes().to_vec());
        <Vec<u8> as Encode<'_, Sqlite>>::encode(bytes, buffer)
    }
}

impl<'r, T: ColumnId> Decode<'r, Sqlite> for IdColumn<T> {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        let bytes = <&[u8] as Decode<'r, Sqlite>>::decode(value)?;
        if bytes.is_empty() {
            return Ok(Self(T::of_id(None)));
        }
        Ok(Self(T::of_id(Some(Uuid::from_slice(bytes)?))))
    }
}
