//! Starting runs: one, one for each key, or many at once.
//!
//! A run that was written down as begun has to be taken up by the same process, else it is at work in name only until that
//! process ends. Whoever asks for it may leave in between, so all of this is [seen through](Runs::seen_through).

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::admission::{self, AdmissionContext, AdmissionDeps, Admitted};
use super::{NewRun, RunResponse, Runs, StartError, log_lines};
use crate::db::runs::Claim;
use crate::db::{self, DbError, DbResult, Tx};
use crate::domain::idempotency::{IdempotencyKey, Once, StoredResponse};
use crate::domain::run::Run;

impl Runs {
    /// Starts a run, or lets it wait for its turn.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is stored then.
    pub async fn start(&self, wish: NewRun) -> Result<Run, StartError> {
        let wish = Arc::new(vec![wish]);
        let house = self.prepared(&wish).await.map_err(|(_, refusal)| refusal)?;
        let work = self.seen_through(|runs| async move {
            let (permit, occasion) = runs.occasion();
            let write = runs
                .0
                .db
                .write(move |tx| Box::pin(async move { admission::start(tx, &wish[0], &house, occasion).await }));
            Ok(write.await?.map(|admitted| runs.take_up(admitted, permit)))
        });
        work.await?
    }

    /// Takes places in the queue, except for runs that bring an answer that somebody waits for, and checks ahead.
    ///
    /// # Errors
    /// Why the requests cannot be granted, with the number of the first one.
    async fn prepared(&self, wishes: &Arc<Vec<NewRun>>) -> Result<AdmissionDeps, (usize, StartError)> {
        for (at, wish) in wishes.iter().enumerate() {
            self.0
                .webhooks
                .check(&wish.request)
                .map_err(|error| (at, error.into()))?;
        }
        let places = wishes.iter().filter(|wish| wish.resume.is_none()).count();
        if places > 0 {
            self.take_places(places).await.map_err(|error| (0, error))?;
        }
        self.checked_ahead(wishes).await
    }

    /// What a request under this key was answered before, if it was. That answer is given again whatever would keep the
    /// request from being granted now: nothing is done for it.
    ///
    /// # Errors
    /// When the database fails.
    pub(super) async fn kept<T>(&self, key: Option<IdempotencyKey>) -> DbResult<Option<Once<T>>> {
        let Some(key) = key else { return Ok(None) };
        let now = self.0.clock.now();
        let found = self
            .0
            .db
            .read(move |tx| Box::pin(async move { db::idempotency::kept(tx, &key, now).await }));
        Ok(found.await?.map(|kept| kept.map_or(Once::Reused, Once::Again)))
    }

    /// Starts a run, once for each key. `shown` says how it is shown to who does not follow it, which is what is kept
    /// then; otherwise who asks again follows the same run.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is stored then, not even the key.
    pub async fn start_once(
        &self,
        wish: NewRun,
        key: IdempotencyKey,
        shown: Option<RunResponse>,
    ) -> Result<Once<Run>, StartError> {
        let wish = Arc::new(vec![wish]);
        let house = match self.prepared(&wish).await {
            Ok(house) => house,
            Err((_, refusal)) => return self.kept(Some(key)).await?.ok_or(refusal),
        };
        let work = self.seen_through(move |runs| async move {
            let (permit, occasion) = runs.occasion();
            let now = occasion.now;
            let kept = move |admitted: &Admitted| match shown {
                Some(shown) => shown(std::slice::from_ref(&admitted.run)),
                None => StoredResponse::Run {
                    thread: admitted.run.thread,
                    run: admitted.run.id,
                },
            };
            let write = runs.0.db.write_once(Some(key), now, kept, move |tx| {
                Box::pin(async move {
                    let mut admitted = admission::start(tx, &wish[0], &house, occasion).await?;
                    if let (Ok(admitted), None) = (&mut admitted, shown) {
                        admission::hold(tx, &mut admitted.run, now).await?;
                    }
                    Ok(admitted)
                })
            });
            Ok(write
                .await?
                .map(|once| once.map(|admitted| runs.take_up(admitted, permit))))
        });
        work.await?
    }

    /// Starts runs that bring their own threads, all of them or none, and with a key once: together with the key it is
    /// stored how they are shown. They begin as there is room for them.
    ///
    /// # Errors
    /// That of the first wish that cannot be granted, with its number; nothing is stored then.
    pub async fn start_all(
        &self,
        wishes: Vec<NewRun>,
        key: Option<IdempotencyKey>,
        shown: RunResponse,
    ) -> Result<Once<Vec<Run>>, (usize, StartError)> {
        for (at, wish) in wishes.iter().enumerate() {
            admission::check_stateless(wish).map_err(|error| (at, error))?;
        }
        let wishes = Arc::new(wishes);
        let house = match self.prepared(&wishes).await {
            Ok(house) => house,
            Err(refusal) => {
                let kept = self.kept(key).await.map_err(|error| (0, error.into()))?;
                return kept.ok_or(refusal);
            }
        };
        let occasion = self.0.occasion();
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

    /// Does what must not be left half done, even if whoever asked for it leaves meanwhile.
    ///
    /// # Errors
    /// Those of the work; [`DbError::Closed`] when the server stopped before it was done.
    pub(super) async fn seen_through<T, W>(&self, work: impl FnOnce(Self) -> W) -> DbResult<T>
    where
        T: Send + 'static,
        W: Future<Output = DbResult<T>> + Send + 'static,
    {
        let done = self.0.shutdown.spawn("change of runs", work(self.clone())).await;
        done.ok().flatten().ok_or(DbError::Closed)?
    }

    /// A slot in which a run may begin at once, if there is a free one, and how it is met.
    pub(super) fn occasion(&self) -> (Option<OwnedSemaphorePermit>, AdmissionContext) {
        let permit = Arc::clone(&self.0.slots).try_acquire_owned().ok();
        let worker = permit.is_some().then_some(self.0.id);
        (
            permit,
            AdmissionContext {
                worker,
                ..self.0.occasion()
            },
        )
    }

    /// Begins with a run that was admitted, or lets it wait, and hurries those that it displaces.
    pub(super) fn take_up(&self, admitted: Admitted, permit: Option<OwnedSemaphorePermit>) -> Run {
        let Admitted {
            run,
            claimed,
            displaced,
        } = admitted;
        log_lines::answered(&run);
        if claimed {
            self.0.begin(
                Claim {
                    run: run.clone(),
                    fence: 0,
                    crashes: 0,
                },
                true,
                permit,
            );
        } else {
            drop(permit);
            self.0.has_queued();
        }
        for (old, action) in displaced {
            self.0.stop(old, action);
        }
        run
    }
}

/// Admits all, or none: the threads of those before a refusal go again.
async fn admit_all(
    tx: &mut Tx<'_>,
    wishes: &[NewRun],
    house: &AdmissionDeps,
    occasion: AdmissionContext,
) -> DbResult<Result<Vec<Run>, (usize, StartError)>> {
    let mut runs: Vec<Run> = vec![];
    for (at, wish) in wishes.iter().enumerate() {
        match admission::start(tx, wish, house, AdmissionContext { number: at, ..occasion }).await? {
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
