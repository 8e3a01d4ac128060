//! Lanes in columns of the log: `uuid` on Postgres, the nil UUID for the main agent; on SQLite a blob, which is empty for the
//! main agent, since most rows are its own.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgValueRef};
use sqlx::sqlite::{SqliteArgumentsBuffer, SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Encode, Postgres, Sqlite, Type};
use uuid::Uuid;

use super::lanes::{lane_id, lane_of};
use crate::domain::checkpoint::Lane;

/// A lane to bind to a column of `checkpoints` or `events`, or decode from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::db) struct LaneColumn(pub(in crate::db) Lane);

impl LaneColumn {
    /// Returns the bytes in SQLite.
    fn bytes(self) -> Vec<u8> {
        match self.0 {
            Lane::Main => vec![],
            Lane::Child(run) => run.0.as_bytes().to_vec(),
        }
    }
}

impl Type<Postgres> for LaneColumn {
    fn type_info() -> PgTypeInfo {
        <Uuid as Type<Postgres>>::type_info()
    }
}

impl Encode<'_, Postgres> for LaneColumn {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <Uuid as Encode<'_, Postgres>>::encode_by_ref(&lane_id(self.0), buffer)
    }
}

impl<'r> Decode<'r, Postgres> for LaneColumn {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let id = <Uuid as Decode<'r, Postgres>>::decode(value)?;
        Ok(Self(lane_of(id)))
    }
}

impl Type<Sqlite> for LaneColumn {
    fn type_info() -> SqliteTypeInfo {
        <Vec<u8> as Type<Sqlite>>::type_info()
    }
}

impl Encode<'_, Sqlite> for LaneColumn {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        <Vec<u8> as Encode<'_, Sqlite>>::encode(self.bytes(), buffer)
    }
}

impl<'r> Decode<'r, Sqlite> for LaneColumn {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        let bytes = <&[u8] as Decode<'r, Sqlite>>::decode(value)?;
        if bytes.is_empty() {
            return Ok(Self(Lane::Main));
        }
        Ok(Self(lane_of(Uuid::from_slice(bytes)?)))
    }
}
