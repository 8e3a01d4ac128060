//! Starting many runs at once, all of them or none.

use super::{Runs, StartError, Wish, admission};
use crate::domain::run::Run;

impl Runs {
    /// Starts runs that bring their own threads, all of them or none. They begin as there is room for them.
    ///
    /// # Errors
    /// That of the first wish that cannot be granted, with its number; nothing is stored then.
    pub async fn start_all(&self, wishes: Vec<Wish>) -> Result<Vec<Run>, (usize, StartError)> {
        let mut known = vec![];
        for (at, wish) in wishes.iter().enumerate() {
            let found = self.known(&wish.assistant).map_err(|error| (at, error))?;
            admission::check(wish, &found.agent.plan).map_err(|error| (at, error.into()))?;
            admission::check_stateless(wish).map_err(|error| (at, error))?;
            known.push(found);
        }
        let now = self.0.clock.now();
        let started = self.0.db.write(move |tx| {
            Box::pin(async move {
                let mut runs = vec![];
                for (at, (wish, known)) in wishes.iter().zip(&known).enumerate() {
                    match admission::start(tx, wish, known, None, now).await? {
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
