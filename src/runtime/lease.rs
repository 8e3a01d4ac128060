//! The lease on this process: as long as it is renewed, nobody takes over the runs that this process has claimed.

use std::sync::Arc;

use super::CancelAction;
use super::worker::Worker;
use crate::db::{self, DbResult, Engine};
use crate::domain::id::RunId;
use crate::domain::time::Timestamp;

impl Worker {
    /// Takes the lease on this process, so that its claims hold. Runs that an earlier process left are due again.
    pub(super) async fn sign_on(&self) -> DbResult<()> {
        let (id, until, alone) = (self.id, self.clock.now().plus(self.lease), self.db.engine() == Engine::Sqlite);
        self.db
            .write(move |tx| {
                Box::pin(async move {
                    // An embedded database has one server, so all others are gone for certain.
                    if alone {
                        db::workers::retire_all(tx).await?;
                    }
                    db::workers::beat(tx, id, until).await
                })
            })
            .await
    }

    /// Gives the lease on this process back; what is still running may be taken over at once.
    pub(super) async fn sign_off(&self) -> DbResult<()> {
        let id = self.id;
        self.db.write(move |tx| Box::pin(async move { db::workers::retire(tx, id).await })).await
    }

    /// Keeps the lease and hears of cancellations that came to other processes. Ends with the server.
    pub(super) async fn keep_lease(self: Arc<Self>) {
        let mut good_until = self.clock.now().plus(self.lease);
        while self.shutdown.soft().run_until_cancelled(tokio::time::sleep(self.heartbeat)).await.is_some() {
            let until = self.clock.now().plus(self.lease);
            match self.beat(until).await {
                Ok(cancels) => {
                    good_until = until;
                    cancels.into_iter().for_each(|(run, action)| {
                        self.stop(run, action);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "could not renew the lease");
                    if self.clock.now() > good_until {
                        self.active().values().for_each(|active| active.stop.cancel());
                    }
                }
            }
        }
    }

    async fn beat(&self, until: Timestamp) -> DbResult<Vec<(RunId, CancelAction)>> {
        let id = self.id;
        let cancels = self
            .db
            .write(move |tx| {
                Box::pin(async move {
                    db::workers::beat(tx, id, until).await?;
                    db::runs::cancels_of(tx, id).await
                })
            })
            .await?;
        Ok(cancels.into_iter().map(|(run, word)| (run, CancelAction::from_word(&word))).collect())
    }
}
