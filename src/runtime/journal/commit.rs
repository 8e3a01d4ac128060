//! The transaction of one commit.

use std::sync::atomic::Ordering;

use super::batch::{CommitBatch, NewChild, RunEnd};
use super::child::{self, PreparedChild};
use crate::db::checkpoints::NewCheckpoint;
use crate::db::events::NewEvent;
use crate::db::runs::{ChildRowUpdate, EndOfRun, RunRowUpdate};
use crate::db::threads::ThreadAfterRun;
use crate::db::{self, DbResult, Tx};
use crate::domain::checkpoint::Lane;
use crate::domain::id::RunId;
use crate::domain::quota::DayUse;
use crate::domain::run::{Run, RunStatus};
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;
use crate::runtime::commit_order::Turn;
use crate::runtime::resumption::report_cancelled;
use crate::runtime::run_context::RunContext;
use crate::runtime::thread_status::{leave_thread, thread_status};
use crate::runtime::{interrupts, quotas, reports};

/// The outcome of a batch.
pub(super) enum CommitOutcome {
    /// The batch was stored now.
    Now,
    /// The batch was stored before, with numbers from this one on; only the response of the database was lost.
    Before(i64),
    /// Another process holds the lease. Nothing is stored.
    Lost,
}

/// Stores a batch in its `turn`, unless it is stored already under one of the numbers that it had `before`.
///
/// # Errors
/// [`DbError::NoRow`](crate::db::DbError::NoRow) by the end of the transaction: if another process holds the lease of the run, or
/// if the run ends without looking for messages that its thread may have.
pub(super) async fn write_batch(
    tx: &mut Tx<'_>,
    run_context: &RunContext,
    lane: Lane,
    batch: &CommitBatch,
    mut turn: Turn,
    before: &[i64],
) -> DbResult<CommitOutcome> {
    turn.wait().await;
    let thread = run_context.run.thread;
    let root = run_context.run.id;
    let run = run_of(lane, root);
    let at = batch.at;
    // The row of the main agent's run has the lease, the end of the run and its usage, so one statement changes all
    // three.
    let used = batch.used.as_ref();
    let usage = used.filter(|_| lane == Lane::Main);
    let growth = match used {
        Some(used) => quotas::count_growth(tx, run_context, run, used).await?,
        None => DayUse::default(),
    };
    let trace = RunRowUpdate {
        seq: (!run_context.has_first_seq.load(Ordering::Relaxed)).then_some(batch.first),
        usage,
        makes_progress: batch.makes_progress(),
        at,
    };
    match &batch.ended {
        Some(end) if lane == Lane::Main => {
            let end = EndOfRun {
                status: end.status,
                error: end.error.as_ref(),
                waits: end.waits,
            };
            db::runs::end_fenced(tx, run_context.holder(), end, trace).await?;
        }
        Some(_) | None => db::runs::store_fenced(tx, run_context.holder(), trace).await?,
    }
    // The row is locked now until the end of the transaction, so the turn is over. SQLite has one writer at a time anyway.
    drop(turn);
    // An earlier try has released the row by now, whatever its outcome.
    for first in before {
        if db::events::is_stored(tx, thread, *first).await? {
            return Ok(CommitOutcome::Before(*first));
        }
    }
    write_rows(tx, run_context, lane, batch).await?;
    quotas::charge(tx, run_context, growth, at).await?;
    Ok(CommitOutcome::Now)
}

/// Returns the run of the agent of a history.
fn run_of(lane: Lane, root: RunId) -> RunId {
    match lane {
        Lane::Main => root,
        Lane::Child(child) => child,
    }
}

/// Stores a batch, but for what is in the row of the main agent's run. This process must hold that run until the end of the
/// transaction.
pub(super) async fn write_rows(
    tx: &mut Tx<'_>,
    run_context: &RunContext,
    lane: Lane,
    batch: &CommitBatch,
) -> DbResult<()> {
    let children: Vec<&PreparedChild> = batch.children.iter().map(|child| &*child.prepared).collect();
    child::store_all(tx, run_context, &children).await?;
    let thread = run_context.run.thread;
    let root = run_context.run.id;
    let run = run_of(lane, root);
    let at = batch.at;
    write_log(tx, &run_context.run, lane, batch).await?;
    if let Some((head, position)) = &batch.head {
        db::checkpoints::set_position(tx, thread, *head, position, root).await?;
    }
    for (checkpoint, position) in &batch.left {
        db::checkpoints::set_position(tx, thread, *checkpoint, position, root).await?;
    }
    if lane != Lane::Main {
        change_child(tx, run, batch, root).await?;
    }
    let mut replaced = Vec::with_capacity(batch.asked.len());
    for asked in &batch.asked {
        replaced.push(db::interrupts::insert_later(tx, asked).await?);
    }
    for change in &batch.items {
        db::items::change(tx, &run_context.ownership, change, at).await?;
    }
    if let Some(end) = &batch.ended {
        if lane != Lane::Main {
            end_child(tx, run_context, run, end, at).await?;
        } else {
            if let Some(ledger) = run_context.ledger.get() {
                let waiting = batch.rest.filter(|_| end.waits).map_or(0, |rest| rest.under_way);
                ledger.close(tx, at, waiting).await?;
            }
            end_main(tx, run_context, end, at).await?;
            if let Some(report) = &batch.report {
                Box::pin(reports::store(tx, &run_context.core, &run_context.run, report)).await?;
            }
        }
    }
    // The rows are there already if a run ends.
    for replaced in replaced {
        replaced.save(tx).await?;
    }
    Ok(())
}

/// Stores the steps of a batch as checkpoints of the history `lane`, and its other events, with those of its new child runs.
async fn write_log(tx: &mut Tx<'_>, root: &Run, lane: Lane, batch: &CommitBatch) -> DbResult<()> {
    let mut steps = vec![];
    let mut facts = vec![];
    // The row of a child run says already that it has begun, and its first writes are nothing but entries of the log.
    for NewChild { prepared, first } in &batch.children {
        if let Some(first) = first {
            add_entries(&mut steps, &mut facts, root, Lane::Child(prepared.run.id), first);
        }
    }
    add_entries(&mut steps, &mut facts, root, lane, batch);
    db::events::insert_with_steps(tx, &steps, &facts).await
}

/// Adds the steps of a batch of the history `lane`, and its other events, to those that are stored together.
fn add_entries<'a>(
    steps: &mut Vec<NewCheckpoint<'a>>,
    facts: &mut Vec<NewEvent<'a>>,
    root: &Run,
    lane: Lane,
    batch: &'a CommitBatch,
) {
    facts.extend(batch.facts.iter().map(|placed| NewEvent {
        thread: root.thread,
        seq: placed.seq,
        run: root.id,
        lane: placed.lane,
        fact: &placed.fact,
        at: batch.at,
    }));
    steps.extend(batch.entries.iter().map(|laid| NewCheckpoint {
        thread: root.thread,
        lane,
        seq: laid.seq,
        segment: Some(laid.segment),
        run: Some(root.id),
        entry: &laid.entry,
        position: &laid.position,
        at: batch.at,
    }));
}

/// Stores the end of a run of the main agent. Unless the run succeeded, the runs below it are stopped.
async fn end_main(tx: &mut Tx<'_>, run_context: &RunContext, end: &RunEnd, at: Timestamp) -> DbResult<()> {
    let thread = run_context.run.thread;
    if matches!(
        end.status,
        RunStatus::Interrupted | RunStatus::Error | RunStatus::Timeout
    ) {
        db::runs::stop_children(tx, thread, Some(run_context.run.id), at).await?;
    }
    let status = match end.status {
        RunStatus::Error | RunStatus::Timeout => ThreadStatus::Error,
        RunStatus::Success | RunStatus::Pending | RunStatus::Running if !end.waits => ThreadStatus::Idle,
        RunStatus::Success | RunStatus::Pending | RunStatus::Running | RunStatus::Interrupted => {
            ThreadStatus::Interrupted
        }
    };
    // The rows are read after the write to the thread, whose lock is held while subagents are cancelled. SQLite has one writer anyway.
    let cancelled = match end.waits {
        true => Some(db::runs::unreported_later(tx, thread).await?),
        false => None,
    };
    let mut left = ThreadAfterRun {
        run: run_context.run.id,
        status,
        error: end.error.clone(),
    };
    if status == ThreadStatus::Idle && run_context.run.request.checkpoint.is_some() {
        // A run from an older checkpoint may have written nothing. Then the thread is at its newest checkpoint as before.
        (left.status, left.error) = Box::pin(thread_status(tx, thread)).await?;
    }
    // Nearly always the thread holds no messages for certain, and on SQLite the transaction waits for nothing then.
    match end.looks_for_messages {
        true => Box::pin(leave_thread(tx, thread, &left, at)).await?,
        false => db::threads::leave_without_messages(tx, thread, &left, at).await?,
    }
    match cancelled {
        Some(cancelled) => Box::pin(report_cancelled(tx, run_context, cancelled, at)).await,
        None => Ok(()),
    }
}

/// Stores what a batch of a subagent says about its row: its status, if it begins or ends, and its usage.
async fn change_child(tx: &mut Tx<'_>, run: RunId, batch: &CommitBatch, root: RunId) -> DbResult<()> {
    let status = match &batch.ended {
        Some(end) => Some((end.status, end.error.as_ref())),
        None => batch.begins().then_some((RunStatus::Running, None)),
    };
    let usage = batch.used.as_ref();
    match (status, usage) {
        (Some((status, error)), usage) => {
            let update = ChildRowUpdate { status, error, usage };
            db::runs::update_child(tx, run, update, root, batch.at).await
        }
        (None, Some(used)) => db::runs::set_usage(tx, run, used, root).await,
        (None, None) => Ok(()),
    }
}

/// Stores what the end of a subagent run, whose row has it, means for others. If the run was cancelled, or has failed, the runs
/// below it are stopped, including those that wait. Nobody can answer their questions any more, nor those of the run itself: its
/// caller goes on without it.
async fn end_child(tx: &mut Tx<'_>, run_context: &RunContext, run: RunId, end: &RunEnd, at: Timestamp) -> DbResult<()> {
    let thread = run_context.run.thread;
    let root = run_context.run.id;
    // A run that waits has no error.
    if end.error.is_some() {
        db::runs::mark_reported(tx, run).await?;
        db::runs::stop_below(tx, run, root, at).await?;
        interrupts::drop_of_subagents(tx, thread, run, root, at).await?;
    }
    Ok(())
}
