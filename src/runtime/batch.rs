//! Starting many runs at once, all of them or none.

use std::sync::Arc;

use super::{Runs, StartError, Wish, admission};
use crate::domain::run::Run;

impl Runs {
    /// Starts runs that bring their own threads, all of them or none. They begin as there is room for them.
    ///
    /// # Errors
    /// That of the first wish that cannot be granted, with its number; nothing is stored then.
    pub async fn start_all(&self, wishes: Vec<Wish>) -> Result<Vec<Run>, (usize, StartError)> {
        for (at, wish) in wishes.iter().enumerate() {
            admission::check_stateless(wish).map_err(|error| (at, error))?;
        }
        let (agents, now) = (Arc::clone(&self.0.agents), self.0.clock.now());
        let started = self.0.db.write(move |tx| {
            Box::pin(async move {
                let mut runs = vec![];
                for (at, wish) in wishes.iter().enumerate() {
                    match admission::start(tx, wish, &agents, None, now).await? {
                        Ok(admitted) => runs.push(admitted.run),
                        Err(refusal) => return Ok(Err((at, refusal))),
                    }
                }
                Ok(Ok(runs))
            })
        });
        let runs = started.await.map_err(|error| (0, error.into()))??;
        self.0.has_queued();
        Ok(runs)
    }
}
