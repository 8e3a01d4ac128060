//! Ids in columns of runs that follow from the rest of the row, as in most rows. On SQLite such an id is left out; on Postgres it is
//! stored, since servers of the former release read it.

use uuid::Uuid;

use crate::db::engine::{Engine, IdColumn};
use crate::domain::id::AssistantId;
use crate::domain::run::Run;

/// Returns the root of a run as its row has it. The root of a main agent's run is the run itself.
pub(super) fn stored_root(run: &Run, engine: Engine) -> IdColumn<Option<Uuid>> {
    let lineage = &run.lineage;
    let is_implied = engine == Engine::Sqlite && lineage.depth == 0 && lineage.root == run.id;
    IdColumn((!is_implied).then_some(lineage.root.0))
}

/// Returns the assistant of a run as its row has it. That of most is the one that the agent of the request has by itself.
pub(super) fn stored_assistant(run: &Run, engine: Engine) -> IdColumn<Option<Uuid>> {
    let is_own = |graph_id: &str| AssistantId::of_graph(graph_id) == run.assistant;
    let agent = run.request.agent.as_ref();
    let is_implied = engine == Engine::Sqlite && agent.is_some_and(|agent| is_own(&agent.graph_id));
    IdColumn((!is_implied).then_some(run.assistant.0))
}
