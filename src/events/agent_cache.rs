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
    children: HashMap<RunId, Arc<Origin>>,
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

    /// Converts a logged row of the run to an event.
    pub(super) async fn event(&mut self, logged: LoggedEvent) -> DbResult<Event> {
        let origin = match logged.lane {
            Lane::Main => Arc::clone(&self.main),
            Lane::Child(child) => self.child(child).await?,
        };
        let body = match logged.what {
            Logged::Entry(entry) => EventBody::Entry(Arc::new(entry)),
            Logged::Fact(fact) => EventBody::Fact(fact),
        };
        Ok(Event {
            seq: logged.seq,
            run: self.run,
            at: logged.at,
            origin,
            body,
        })
    }

    async fn child(&mut self, child: RunId) -> DbResult<Arc<Origin>> {
        if let Some(known) = self.children.get(&child) {
            return Ok(Arc::clone(known));
        }
        let found = self
            .db
            .read(move |tx| Box::pin(async move { db::runs::get_by_id(tx, child).await }))
            .await?;
        let origin = found.map_or_else(|| Arc::clone(&self.main), |run| Arc::new(Origin::of(&run)));
        self.children.insert(child, Arc::clone(&origin));
        Ok(origin)
    }
}
