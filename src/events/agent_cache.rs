//! A cache of a run's agents by lane.

use std::collections::HashMap;
use std::sync::Arc;

use crate::db::events::{Logged, LoggedEvent};
use crate::db::{self, Db, DbResult};
use crate::domain::checkpoint::Lane;
use crate::domain::event::{Event, EventBody, Origin};
use crate::domain::id::RunId;
use crate::domain::run::Run;

/// The agents of one run of the main agent that were looked up.
pub(super) struct AgentCache {
    db: Db,
    run: RunId,
    main: Arc<Origin>,
    /// The subagents; none for those whose runs were deleted.
    children: HashMap<RunId, Option<Arc<Origin>>>,
}

impl AgentCache {
    pub(super) fn new(db: Db, run: &Run) -> Self {
        Self {
            db,
            run: run.id,
            main: Arc::new(Origin::of(run)),
            children: HashMap::new(),
        }
    }

    /// The run.
    pub(super) fn run(&self) -> RunId {
        self.run
    }

    /// Converts a logged row of the run to an event; none if it is of a subagent whose run was deleted: the subagent was begun by
    /// another run, and went with it.
    pub(super) async fn event(&mut self, logged: LoggedEvent) -> DbResult<Option<Event>> {
        let origin = match logged.lane {
            Lane::Main => Arc::clone(&self.main),
            Lane::Child(child) => match self.child(child).await? {
                Some(origin) => origin,
                None => return Ok(None),
            },
        };
        let body = match logged.what {
            Logged::Entry(entry) => EventBody::Entry(Arc::new(entry)),
            Logged::Fact(fact) => EventBody::Fact(fact),
        };
        Ok(Some(Event {
            seq: logged.seq,
            run: self.run,
            at: logged.at,
            origin,
            body,
        }))
    }

    async fn child(&mut self, child: RunId) -> DbResult<Option<Arc<Origin>>> {
        if let Some(known) = self.children.get(&child) {
            return Ok(known.clone());
        }
        let found = self
            .db
            .read(move |tx| Box::pin(async move { db::runs::get_by_id(tx, child).await }))
            .await?;
        let origin = found.map(|run| Arc::new(Origin::of(&run)));
        self.children.insert(child, origin.clone());
        Ok(origin)
    }
}
