//! Starting runs: one, one for each key, or many at once.
//!
//! A run that was written down as begun has to be taken up by the same process, else it is at work in name only until that
//! process ends. Whoever asks for it may leave in between, so all of this is [seen through](Runs::seen_through).

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use super::admission::{self, AdmissionContext, Admitted, Checked};
use super::{BatchError, NewRun, RunResponse, Runs, StartError, log_lines};
use crate::db::runs::Claim;
use crate::db::{DbError, Tx};
use crate::domain::id::RunId;
use crate::domain::idempotency::{IdempotencyKey, Once, StoredResponse};
use crate::domain::run::Run;

impl Runs {
    /// Starts a run, or lets it wait for its turn.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is stored then.
    pub async fn start(&self, wish: NewRun) -> Result<Run, StartError> {
        let wish = Arc::new(vec![wish]);
        let checked = self.prepared(&wish).await.map_err(|refusal| refusal.error)?;
        let admitted = self.admit(checked, |tx, context| {
            Box::pin(async move { admission::start(tx, &wish[0], &context).await })
        });
        admitted.await
    }

    /// Takes places in the queue, except for runs that bring an answer that somebody waits for, and checks ahead.
    ///
    /// # Errors
    /// Why the requests cannot be granted, with the number of the first one.
    async fn prepared(&self, wishes: &Arc<Vec<NewRun>>) -> Result<Vec<Checked>, BatchError> {
        for (at, wish) in wishes.iter().enumerate() {
            let checked = self.0.webhooks.check(&wish.request);
            checked.map_err(|error| BatchError {
                at,
                error: error.into(),
            })?;
        }
        let places = wishes.iter().filter(|wish| wish.resume.is_none()).count();
        if places > 0 {
            let taken = self.take_places(places).await;
            taken.map_err(|error| BatchError { at: 0, error })?;
        }
        self.checked_ahead(wishes).await
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
        let checked = match self.prepared(&wish).await {
            Ok(checked) => checked,
            Err(refusal) => return self.0.kept(Some(key)).await?.ok_or(refusal.error),
        };
        let work = self.seen_through(move |runs| async move {
            let (permit, context) = runs.with_slot(checked);
            let now = context.now;
            let kept = move |admitted: &Admitted| match shown {
                Some(shown) => shown(std::slice::from_ref(&admitted.run)),
                None => StoredResponse::Run {
                    thread: admitted.run.thread,
                    run: admitted.run.id,
                },
            };
            let write = runs.0.db.write_once(Some(key), now, kept, move |tx| {
                Box::pin(async move {
                    let mut admitted = admission::start(tx, &wish[0], &context).await?;
                    if shown.is_none() {
                        admission::hold(tx, &mut admitted.run, now).await?;
                    }
                    Ok::<_, StartError>(admitted)
                })
            });
            let once = write.await?;
            Ok(once.map(|admitted| runs.take_up(admitted, permit)))
        });
        work.await
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
    ) -> Result<Once<Vec<Run>>, BatchError> {
        for (at, wish) in wishes.iter().enumerate() {
            admission::check_stateless(wish).map_err(|error| BatchError { at, error })?;
        }
        let wishes = Arc::new(wishes);
        let checked = match self.prepared(&wishes).await {
            Ok(checked) => checked,
            Err(refusal) => return self.0.kept(key).await?.ok_or(refusal),
        };
        let context = self.0.admission_context(checked);
        let job = self.0.db.write_once(
            key,
            context.now,
            move |runs: &Vec<Run>| shown(runs),
            move |tx| Box::pin(async move { admit_all(tx, &wishes, &context).await }),
        );
        let runs = job.await?;
        self.0.has_queued();
        Ok(runs)
    }

    /// Does what must not be left half done, even if whoever asked for it leaves meanwhile.
    ///
    /// # Errors
    /// Those of the work; [`DbError::Closed`] when the server stopped before it was done.
    pub(super) async fn seen_through<T, E, W>(&self, work: impl FnOnce(Self) -> W) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DbError> + Send + 'static,
        W: Future<Output = Result<T, E>> + Send + 'static,
    {
        self.0.detached(work(self.clone())).await
    }

    /// Admits runs with a job, in one transaction, and begins with the one that it returns, if there is a free slot. It is
    /// finished even if whoever asked for it leaves meanwhile.
    ///
    /// # Errors
    /// Those of the job, which are rolled back; [`DbError::Closed`] when the server stopped before it was done.
    pub(super) async fn admit<A, E, J>(&self, checked: Vec<Checked>, job: J) -> Result<A::Started, E>
    where
        A: MayStart,
        E: From<DbError> + Send + 'static,
        J: for<'t> FnOnce(&'t mut Tx<'_>, AdmissionContext) -> BoxFuture<'t, Result<A, E>> + Send + 'static,
    {
        let work = self.seen_through(move |runs| async move {
            let (permit, context) = runs.with_slot(checked);
            let admitted = runs.0.db.write(move |tx| job(tx, context)).await?;
            Ok(admitted.started(|admitted| runs.take_up(admitted, permit)))
        });
        work.await
    }

    /// A slot in which a run may begin at once, if there is a free one, and what the run is admitted with.
    pub(super) fn with_slot(&self, checked: Vec<Checked>) -> (Option<OwnedSemaphorePermit>, AdmissionContext) {
        let permit = Arc::clone(&self.0.slots).try_acquire_owned().ok();
        let worker = permit.is_some().then_some(self.0.id);
        let context = AdmissionContext {
            worker,
            ..self.0.admission_context(checked)
        };
        (permit, context)
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

/// What a transaction returns that may have admitted a run.
pub(super) trait MayStart: Send + 'static {
    /// The same once the run has begun, or waits.
    type Started: Send + 'static;

    /// Begins with the run, if there is one.
    fn started(self, begin: impl FnOnce(Admitted) -> Run) -> Self::Started;
}

impl MayStart for Admitted {
    type Started = Run;

    fn started(self, begin: impl FnOnce(Admitted) -> Run) -> Run {
        begin(self)
    }
}

impl MayStart for Option<Admitted> {
    type Started = Option<Run>;

    fn started(self, begin: impl FnOnce(Admitted) -> Run) -> Option<Run> {
        self.map(begin)
    }
}

impl<T: Send + 'static> MayStart for (T, Option<Admitted>) {
    type Started = (T, Option<Run>);

    fn started(self, begin: impl FnOnce(Admitted) -> Run) -> Self::Started {
        let (value, admitted) = self;
        (value, admitted.map(begin))
    }
}

/// Admits all runs of a batch. The refusal of one rolls all of them back.
async fn admit_all(tx: &mut Tx<'_>, wishes: &[NewRun], context: &AdmissionContext) -> Result<Vec<Run>, BatchError> {
    let mut runs = vec![];
    for (at, wish) in wishes.iter().enumerate() {
        let admitted = admission::start_as(tx, RunId::mint(), wish, at, context).await;
        runs.push(admitted.map_err(|error| BatchError { at, error })?.run);
    }
    Ok(runs)
}
