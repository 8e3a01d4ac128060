//! Starting many runs at once, all of them or none.

use super::admission::{self, House, Occasion};
use super::{Runs, Shown, StartError, Wish};
use crate::db::{self, DbResult, Tx};
use crate::domain::idempotency::{Key, Once};
use crate::domain::run::Run;

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
        for (at, wish) in wishes.iter().enumerate() {
            self.0.webhooks.check(&wish.request).map_err(|error| (at, error.into()))?;
            admission::check_stateless(wish).map_err(|error| (at, error))?;
        }
        let (house, occasion) = (self.0.house(), self.0.occasion());
        let job = self.0.db.write_once(
            key,
            occasion.now,
            move |runs: &Vec<Run>| shown(runs),
            move |tx| Box::pin(async move { admit_all(tx, &wishes, &house, occasion).await }),
        );
        let runs = job.await.map_err(|error| (0, error.into()))??;
        self.0.has_queued();
        Ok(runs)
    }
}

/// Admits all, or none: the threads of those before a refusal go again.
async fn admit_all(
    tx: &mut Tx<'_>,
    wishes: &[Wish],
    house: &House,
    occasion: Occasion,
) -> DbResult<Result<Vec<Run>, (usize, StartError)>> {
    let mut runs: Vec<Run> = vec![];
    for (at, wish) in wishes.iter().enumerate() {
        match admission::start(tx, wish, house, occasion).await? {
            Ok(admitted) => runs.push(admitted.run),
            Err(refusal) => {
                for run in runs {
                    db::threads::delete(tx, run.thread).await?;
                }
                return Ok(Err((at, refusal)));
            }
        }
    }
    Ok(Ok(runs))
}
