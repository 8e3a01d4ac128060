//! Ids in columns of runs that follow from the rest of the row, as in most rows. On SQLite such an id is an empty blob; on Postgres
//! it is stored, since servers of the former release read it.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgTypeInfo, PgValueRef};
use sqlx::sqlite::{SqliteArgumentsBuffer, SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Encode, Postgres, Sqlite, Type};
use uuid::Uuid;

use crate::db::engine::Engine;
use crate::domain::id::AssistantId;
use crate::domain::run::Run;

/// An id to bind to a column, or decode from it; none if it is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ImpliedId(pub(super) Option<Uuid>);

impl ImpliedId {
    /// Returns the root of a run as its row has it. The root of a main agent's run is the run itself.
    pub(super) fn root_of(run: &Run, engine: Engine) -> Self {
        let lineage = &run.lineage;
        let is_implied = engine == Engine::Sqlite && lineage.depth == 0 && lineage.root == run.id;
        Self((!is_implied).then_some(lineage.root.0))
    }

    /// Returns the assistant of a run as its row has it. That of most is the one that the agent of the request has by itself.
    pub(super) fn assistant_of(run: &Run, engine: Engine) -> Self {
        let is_own = |graph_id: &str| AssistantId::of_graph(graph_id) == run.assistant;
        let agent = run.request.agent.as_ref();
        let is_implied = engine == Engine::Sqlite && agent.is_some_and(|agent| is_own(&agent.graph_id));
        Self((!is_implied).then_some(run.assistant.0))
    }
}

impl Type<Postgres> for ImpliedId {
    fn type_info() -> PgTypeInfo {
        <Uuid as Type<Postgres>>::type_info()
    }
}

impl Encode<'_, Postgres> for ImpliedId {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <Uuid as Encode<'_, Postgres>>::encode_by_ref(&self.0.unwrap_or_default(), buffer)
    }
}

impl<'r> Decode<'r, Postgres> for ImpliedId {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        let id = <Uuid as Decode<'r, Postgres>>::decode(value)?;
        Ok(Self(Some(id)))
    }
}

impl Type<Sqlite> for ImpliedId {
    fn type_info() -> SqliteTypeInfo {
        <Vec<u8> as Type<Sqlite>>::type_info()
    }
}

impl Encode<'_, Sqlite> for ImpliedId {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        let bytes = self.0.map_or_else(Vec::new, |id| id.as_bytes().to_vec());
        <Vec<u8> as Encode<'_, Sqlite>>::encode(bytes, buffer)
    }
}

impl<'r> Decode<'r, Sqlite> for ImpliedId {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        let bytes = <&[u8] as Decode<'r, Sqlite>>::decode(value)?;
        if bytes.is_empty() {
            return Ok(Self(None));
        }
        Ok(Self(Some(Uuid::from_slice(bytes)?)))
    }
}
