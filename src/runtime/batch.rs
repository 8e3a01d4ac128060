//! Starting many runs at once, all of them or none.

use std::sync::Arc;

use super::{Runs, Shown, StartError, Wish, admission};
use crate::agent::assemble::Known;
use crate::db::{DbResult, Tx};
use crate::domain::idempotency::{Key, Once};
use crate::domain::run::Run;
use crate::domain::time::Timestamp;

impl Runs {
    /// Starts runs that bring their own threads, all of them or none, and with a key once: together with the key it is
    /// stored how they are shown. They begin as there is room for them.
    ///
    /// # Errors
    /// That of the first wish that cannot be granted, with its number; nothing is stored then.
    pub async fn start_all(
        &self,
        wishes: Vec<Wish>,
        key: Option<Key>,
        shown: Shown,
    ) -> Result<Once<Vec<Run>>, (usize, StartError)> {
        let mut known = vec![];
        for (at, wish) in wishes.iter().enumerate() {
            let found = self.known(&wish.assistant).map_err(|error| (at, error))?;
            admission::check(wish, &found.agent.plan).map_err(|error| (at, error.into()))?;
            admission::check_stateless(wish).map_err(|error| (at, error))?;
            known.push(found);
        }
        let now = self.0.clock.now();
        let job = self.0.db.write_once(
            key,
            now,
            move |runs: &Vec<Run>| shown(runs),
            move |tx| Box::pin(async move { admit_all(tx, &wishes, &known, now).await }),
        );
        let runs = job.await.map_err(|error| (0, error.into()))??;
        self.0.has_queued();
        Ok(runs)
    }
}

async fn admit_all(
    tx: &mut Tx<'_>,
    wishes: &[Wish],
    known: &[Arc<Known>],
    now: Timestamp,
) -> DbResult<Result<Vec<Run>, (usize, StartError)>> {
    let mut runs = vec![];
    for (at, (wish, known)) in wishes.iter().zip(known).enumerate() {
        match admission::start(tx, wish, known, None, now).await? {
            Ok(admitted) => runs.push(admitted.run),
            Err(refusal) => return Ok(Err((at, refusal))),
        }
    }
    Ok(Ok(runs))
}
