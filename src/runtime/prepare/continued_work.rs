//! The work that a run continues: an interrupted step that gets the answers of the run, or one that a crash left.

use super::earlier_runs::EarlierRuns;
use super::load_state::{Found, is_unreadable};
use crate::db::{self, DbResult, Tx};
use crate::domain::id::CheckpointId;
use crate::domain::run::{Command, Run, RunRequest};
use crate::runtime::interrupts::{self, AnswerDelivery, AnsweredWork, Delivered};
use crate::runtime::run_context::RunContext;

/// The work that a run continues, after what it brings was delivered.
#[derive(Default)]
pub(in crate::runtime) struct ContinuedWork {
    /// The older checkpoint from which the run continues, if it does not continue from the newest.
    pub(super) branch: Option<CheckpointId>,
    /// The state at which it begins, if it was read already.
    pub(super) found: Option<Found>,
    /// The runs that it continues, if they were read already.
    pub(super) earlier: Option<EarlierRuns>,
}

/// Delivers the answers of a client that a run brings in the transaction that admits it for this process, and reads what else it
/// needs, as far as that is in memory or small. None if the driver of the run has to do that: an agent besides the main one gets
/// something, the run continues an older checkpoint, or what is stored cannot be read, which ends the run but does not refuse the
/// request.
pub(in crate::runtime) async fn continue_at_once(
    tx: &mut Tx<'_>,
    run: &Run,
    work: AnsweredWork,
) -> DbResult<Option<Box<ContinuedWork>>> {
    let Some(command) = run.request.command.as_ref().filter(|command| command.resumes()) else {
        return Ok(None);
    };
    let Some(asked_at) = command.continuation.branch else {
        return Ok(None);
    };
    let answers = command.resume.as_ref();
    let found = AnswerDelivery::of_answered(tx, run.thread, run.id, Some(asked_at), answers, work).await;
    let (delivery, runs) = match found {
        Ok((delivery, runs)) if delivery.is_for_newest() => (delivery, runs),
        Ok(_) => return Ok(None),
        Err(error) if is_unreadable(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let end = delivery.give_to_newest(tx).await?;
    Ok(Some(Box::new(ContinuedWork {
        branch: None,
        found: end.and_then(|end| Found::in_memory(tx, end, run.id)),
        earlier: EarlierRuns::from_few_resumed(tx, runs.resumed, run.id, runs.used).await?,
    })))
}

/// Delivers what a run brings. If it brings answers, and begins for the first time, the same transaction reads what else it needs,
/// as far as that is in memory or small: other writes wait for it.
pub(super) async fn continue_work(run_context: &RunContext) -> DbResult<ContinuedWork> {
    let run = &run_context.run;
    let thread = run.thread;
    let id = run.id;
    let command = run.request.command.as_ref();
    let answers = command.and_then(|command| command.resume.clone());
    let asked_at = command.and_then(|command| command.continuation.branch);
    let reads_on = run.attempt == 1 && asked_at.is_some() && command.is_some_and(Command::resumes);
    let write = run_context.core.db.write(move |tx| {
        Box::pin(async move {
            let resumed = match reads_on {
                true => Some(db::interrupts::few_resumed_later(tx, thread).await?),
                false => None,
            };
            let Delivered { branch, end } = interrupts::deliver(tx, thread, id, asked_at, answers.as_ref()).await?;
            let Some(resumed) = resumed else {
                return DbResult::Ok(ContinuedWork {
                    branch,
                    ..ContinuedWork::default()
                });
            };
            let resumed = resumed.read(tx).await?;
            Ok(ContinuedWork {
                branch,
                found: end.and_then(|end| Found::in_memory(tx, end, id)),
                earlier: EarlierRuns::from_few_resumed(tx, resumed, id, None).await?,
            })
        })
    });
    write.await
}

/// Returns whether a request continues the work in progress rather than beginning anew.
pub(super) fn continues_work(request: &RunRequest) -> bool {
    match &request.command {
        Some(command) => command.resumes(),
        None => request.input.is_none(),
    }
}
