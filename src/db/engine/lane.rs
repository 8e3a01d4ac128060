//! The stored ids of histories: that of the run of a subagent; for the main agent the nil UUID on Postgres, and an empty blob
//! on SQLite, where it is in two rows and an index of each step.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgValueRef};
use sqlx::sqlite::{SqliteArgumentsBuffer, SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Encode, Postgres, Sqlite, Type};
use uuid::Uuid;

use crate::domain::checkpoint::Lane;
use crate::domain::id::RunId;

/// A history to bind to a column or decode from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::db) struct LaneId(pub(in crate::db) Lane);

impl LaneId {
    fn of_uuid(id: Uuid) -> Self {
        Self(match id.is_nil() {
            true => Lane::Main,
            false => Lane::Child(RunId(id)),
        })
    }

    fn uuid(self) -> Uuid {
        match self.0 {
            Lane::Main => Uuid::nil(),
            Lane::Child(run) => run.0,
        }
    }
}

impl Type<Postgres> for LaneId {
    fn type_info() -> PgTypeInfo {
        <Uuid as Type<Postgres>>::type_info()
    }

    fn compatible(ty: &PgTypeInfo) -> bool {
        <Uuid as Type<Postgres>>::compatible(ty)
    }
}

impl Encode<'_, Postgres> for LaneId {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <Uuid as Encode<'_, Postgres>>::encode_by_ref(&self.uuid(), buffer)
    }
}

impl<'r> Decode<'r, Postgres> for LaneId {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        <Uuid as Decode<'r, Postgres>>::decode(value).map(Self::of_uuid)
    }
}

impl Type<Sqlite> for LaneId {
    fn type_info() -> SqliteTypeInfo {
        <Vec<u8> as Type<Sqlite>>::type_info()
    }

    fn compatible(ty: &SqliteTypeInfo) -> bool {
        <Vec<u8> as Type<Sqlite>>::compatible(ty)
    }
}

impl Encode<'_, Sqlite> for LaneId {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        let bytes = match self.0 {
            Lane::Main => vec![],
            Lane::Child(run) => run.0.as_bytes().to_vec(),
        };
        <Vec<u8> as Encode<'_, Sqlite>>::encode(bytes, buffer)
    }
}

impl<'r> Decode<'r, Sqlite> for LaneId {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        let bytes = <&[u8] as Decode<'r, Sqlite>>::decode(value)?;
        if bytes.is_empty() {
            return Ok(Self(Lane::Main));
        }
        Ok(Self::of_uuid(Uuid::from_slice(bytes)?))
    }
}
