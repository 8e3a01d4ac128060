use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use serde_json::Map;
use sqlx::query;

use super::copies::put;
use super::interrupts::pending_interrupt;
use super::{Db, on_both, read, run_at, saying, stored_thread, write};
use crate::db::engine::on_engine;
use crate::db::interrupts::InterruptState;
use crate::db::runs::{ChildRowUpdate, LeaseHolder};
use crate::db::{DbError, DbResult, Tx, checkpoints, interrupts, runs, threads, workers};
use crate::domain::access::Ownership;
use crate::domain::account::{Account, RunQueue};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{InterruptId, RunId, TaskId, ThreadId, WorkerId};
use crate::domain::identity::{Identity, Tenant, UserId};
use crate::domain::limits::Usage;
use crate::domain::machine::{Failure, Position};
use crate::domain::run::{Command, Lineage, Run, RunRequest, RunStatus, namespace_text};
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::time::Timestamp;
use crate::domain::visibility::Visibility;

on_both!(
    a_run_is_read_as_it_was_stored,
    the_followers_of_a_run_are_read_until_it_ends,
    runs_are_listed_newest_first,
    a_run_takes_over_from_the_newest_run_of_its_thread,
    a_claim_names_the_owner_of_the_thread,
    one_run_per_thread_is_claimed_at_a_time,
    only_one_concurrent_claim_on_a_thread_succeeds,
    runs_become_due_in_order,
    a_run_that_is_stored_with_its_first_event_has_its_number,
    an_answer_begins_before_the_other_runs_of_its_thread,
    a_run_that_waits_for_answers_begins_when_no_interrupt_is_pending,
    a_run_whose_answer_came_too_late_does_not_tell_how_the_work_stands,
    the_run_that_began_last_tells_how_the_work_stands_unless_none_has_begun,
    runs_that_ended_by_themselves_are_found_in_the_order_in_which_they_began,
    the_beginnings_of_the_last_runs_and_of_those_of_subagents_are_found,
    messages_that_wait_for_answers_are_let_go_and_held,
    a_run_leaves_its_thread_busy_while_another_one_waits,
    due_and_running_runs_are_counted,
    runs_are_counted_together_with_the_end_of_the_log,
    a_worker_with_an_old_fence_cannot_write,
    orphaned_runs_are_adopted,
    an_orphaned_run_that_cannot_be_read_is_ended_and_counted,
    crashes_are_counted_since_the_last_progress,
    a_cancel_request_reaches_the_worker,
    stopping_a_run_stops_the_runs_below_it,
    an_undone_run_leaves_the_subagents_of_earlier_runs_as_it_found_them
);

fn child_of(parent: &Run, now: i64) -> Run {
    let mut child = run_at(parent.thread, now);
    child.lineage = Lineage {
        root: parent.lineage.root,
        parent: Some(parent.id),
        depth: parent.lineage.depth + 1,
        cause: Some("call_1".to_owned()),
        namespace: vec![TaskId::of_step(None, "tools", 0), TaskId::of_step(None, "tools", 1)],
        path: vec!["agent".to_owned(), "helper".to_owned()],
        visibility: Visibility::Status,
    };
    child.status = RunStatus::Running;
    child
}

/// Returns a run that answers an interrupt.
/// Returns a run that brings an answer.
pub(super) fn answer_at(thread: ThreadId, now: i64) -> Run {
    let mut run = run_at(thread, now);
    let resume = BTreeMap::from([(InterruptId("q".to_owned()), serde_json::json!({"x": 1}))]);
    run.request.command = Some(Command {
        resume: Some(resume),
        ..Command::default()
    });
    run
}

async fn a_run_is_read_as_it_was_stored(db: Db) {
    let thread = stored_thread(&db).await;
    let mut run = answer_at(thread, 5);
    run.error = Some(Failure::new("E", "m"));
    let child = child_of(&run, 6);
    let grandchild = child_of(&child, 7);
    for run in [run.clone(), child.clone(), grandchild.clone()] {
        write!(db, |tx| runs::insert(tx, &run, None));
    }
    let id = run.id;
    let below = child.id;
    assert_eq!(read!(db, |tx| runs::find(tx, thread, id)), Some(run.clone()));
    assert_eq!(read!(db, |tx| runs::find(tx, ThreadId::mint(), id)), None);
    assert_eq!(read!(db, |tx| runs::get_by_id(tx, below)), Some(child.clone()));
    assert_eq!(read!(db, |tx| runs::children(tx, id)), vec![child.clone()]);
    assert_eq!(read!(db, |tx| runs::descendants(tx, id)), vec![child, grandchild]);
    let request = RunRequest::default();
    let changed = request.clone();
    assert!(write!(db, |tx| runs::set_request(tx, id, &changed, Timestamp(8))));
    assert_eq!(
        read!(db, |tx| runs::get_by_id(tx, id)).map(|run| run.request),
        Some(request)
    );
    assert!(write!(db, |tx| runs::delete(tx, thread, id)));
    assert!(!write!(db, |tx| runs::delete(tx, thread, id)));
    assert_eq!(read!(db, |tx| runs::get_by_id(tx, below)), None);
}

async fn the_followers_of_a_run_are_read_until_it_ends(db: Db) {
    let thread = stored_thread(&db).await;
    let mut run = run_at(thread, 5);
    // A blob.
    run.request.input = Some(serde_json::json!({"image": "QUJD".repeat(50_000)}));
    run.request.followers = vec![WorkerId::mint(), WorkerId::mint()];
    let id = run.id;
    let wanted = run.request.followers.clone();
    write!(db, |tx| runs::insert(tx, &run, None));
    assert_eq!(read!(db, |tx| runs::followers(tx, id)), wanted);
    assert!(write!(db, |tx| runs::set_status(
        tx,
        id,
        RunStatus::Success,
        None,
        Timestamp(6)
    )));
    assert!(read!(db, |tx| runs::followers(tx, id)).is_empty());
    let unknown = RunId::mint();
    assert!(read!(db, |tx| runs::followers(tx, unknown)).is_empty());
}

async fn runs_are_listed_newest_first(db: Db) {
    let thread = stored_thread(&db).await;
    let all: Vec<Run> = (0..4).map(|n| run_at(thread, n)).collect();
    let child = child_of(&all[0], 9);
    for run in all.iter().cloned().chain([child]) {
        write!(db, |tx| runs::insert(tx, &run, None));
    }
    let ids: Vec<RunId> = all.iter().map(|run| run.id).collect();
    let failure = Failure::new("E", "m");
    let failed = ids[1];
    assert!(write!(db, |tx| runs::set_status(
        tx,
        failed,
        RunStatus::Error,
        Some(&failure),
        Timestamp(50)
    )));
    let listed = {
        let wanted = runs::RunList {
            thread,
            status: None,
            limit: 2,
            offset: 1,
            bytes: usize::MAX,
        };
        read!(db, |tx| runs::list(tx, &wanted)).into_items()
    };
    assert_eq!(listed.iter().map(|run| run.id).collect::<Vec<_>>(), [ids[2], ids[1]]);
    assert_eq!(listed[1].error, Some(Failure::new("E", "m")));
    assert_eq!(listed[1].status, RunStatus::Error);
    assert_eq!(listed[1].updated_at, Timestamp(50));
    let pending = {
        let wanted = runs::RunList {
            thread,
            status: Some(RunStatus::Pending),
            limit: 10,
            offset: 0,
            bytes: usize::MAX,
        };
        read!(db, |tx| runs::list(tx, &wanted)).into_items()
    };
    assert_eq!(
        pending.iter().map(|run| run.id).collect::<Vec<_>>(),
        [ids[3], ids[2], ids[0]]
    );
    let waiting = read!(db, |tx| runs::in_flight(tx, thread));
    assert_eq!(
        waiting.iter().map(|run| run.id).collect::<Vec<_>>(),
        [ids[0], ids[2], ids[3]]
    );
    assert_eq!(
        read!(db, |tx| runs::ids_in_flight(tx, thread)),
        [ids[0], ids[2], ids[3]]
    );
    let counted = read!(db, |tx| runs::count_in_flight(tx, thread));
    assert_eq!(counted.waiting, 3);
    assert_eq!(counted.at_work, 0);
    assert!(!counted.is_none());
    assert!(read!(db, |tx| runs::count_in_flight(tx, ThreadId::mint())).is_none());
    assert_eq!(
        read!(db, |tx| runs::count_pending(tx, 2)),
        2,
        "counting ends at the limit"
    );
}

async fn a_run_takes_over_from_the_newest_run_of_its_thread(db: Db) {
    let thread = stored_thread(&db).await;
    assert_eq!(read!(db, |tx| runs::find_before(tx, thread)), None);
    let ann = Identity {
        user: UserId::stored("ann".to_owned()),
        ..Identity::unauthenticated()
    };
    let old = run_at(thread, 1);
    let mut new = run_at(thread, 2);
    new.request.assign_to(&ann);
    new.queue = RunQueue::new(Account::of(&ann), 3);
    let child = child_of(&new, 3);
    let expected = runs::RunBefore {
        run: new.id,
        agent: None,
        queue: new.queue.clone(),
        caller: new.request.caller.clone(),
        trace: None,
        used: None,
    };
    assert!(expected.caller.is_some());
    for run in [old, new, child] {
        write!(db, |tx| runs::insert(tx, &run, None));
    }
    assert_eq!(read!(db, |tx| runs::find_before(tx, thread)), Some(expected));
}

async fn a_claim_names_the_owner_of_the_thread(db: Db) {
    let owner = Ownership {
        tenant: Tenant::stored("acme".to_owned()),
        owner: UserId::stored("ann".to_owned()),
    };
    let thread = Thread::new(ThreadId::mint(), owner.clone(), Map::new(), Timestamp(1));
    let run = run_at(thread.id, 1);
    let id = run.id;
    write!(db, |tx| threads::insert(tx, &thread));
    write!(db, |tx| runs::insert(tx, &run, None));
    let first = WorkerId::mint();
    let second = WorkerId::mint();
    let claim = write!(db, |tx| runs::claim(tx, id, first, Timestamp(2))).expect("a claim");
    assert_eq!(claim.ownership, owner);
    let adopted = write!(db, |tx| runs::adopt_orphans(tx, second, Timestamp(3), 9));
    assert_eq!(adopted.claims.first().map(|claim| &claim.ownership), Some(&owner));
}

async fn one_run_per_thread_is_claimed_at_a_time(db: Db) {
    let thread = stored_thread(&db).await;
    let worker = WorkerId::mint();
    let first = run_at(thread, 1);
    let second = run_at(thread, 2);
    let a = first.id;
    let b = second.id;
    for run in [first, second] {
        write!(db, |tx| runs::insert(tx, &run, None));
    }
    let claim = write!(db, |tx| runs::claim(tx, a, worker, Timestamp(3))).expect("a claim");
    assert_eq!(claim.run.id, a);
    assert_eq!(claim.run.status, RunStatus::Running);
    assert_eq!(claim.run.attempt, 1);
    assert_eq!(claim.fence, 1);
    assert_eq!(write!(db, |tx| runs::claim(tx, a, worker, Timestamp(4))), None);
    assert_eq!(write!(db, |tx| runs::claim(tx, b, worker, Timestamp(4))), None);
    write!(db, |tx| runs::set_status(tx, a, RunStatus::Success, None, Timestamp(5)));
    assert!(write!(db, |tx| runs::claim(tx, b, worker, Timestamp(6))).is_some());
    let mut third = run_at(thread, 7);
    third.status = RunStatus::Running;
    let refused = db
        .write(move |tx| Box::pin(async move { runs::insert(tx, &third, Some(worker)).await }))
        .await;
    assert!(matches!(refused, Err(DbError::Conflict(_))), "{refused:?}");
}

async fn only_one_concurrent_claim_on_a_thread_succeeds(db: Db) {
    let thread = stored_thread(&db).await;
    let all: Vec<Run> = (0..8).map(|n| run_at(thread, n)).collect();
    let ids: Vec<RunId> = all.iter().map(|run| run.id).collect();
    for run in all {
        write!(db, |tx| runs::insert(tx, &run, None));
    }
    let claims = ids.iter().map(|id| {
        let db = db.clone();
        let id = *id;
        async move { write!(db, |tx| runs::claim(tx, id, WorkerId::mint(), Timestamp(9))) }
    });
    let claimed = futures::future::join_all(claims).await.into_iter().flatten().count();
    assert_eq!(claimed, 1);
}

async fn runs_become_due_in_order(db: Db) {
    let one = stored_thread(&db).await;
    let two = stored_thread(&db).await;
    let worker = WorkerId::mint();
    let first = run_at(one, 1);
    let second = run_at(one, 2);
    let other = run_at(two, 3);
    let mut later = run_at(two, 0);
    later.due_at = Timestamp(1000);
    let a = first.id;
    let b = second.id;
    let c = other.id;
    let d = later.id;
    for run in [first, second, other, later] {
        write!(db, |tx| runs::insert(tx, &run, None));
    }
    let next = async |now: i64| write!(db, |tx| runs::next_in_queue(tx, &RunQueue::default(), Timestamp(now)));
    assert_eq!(next(0).await, None);
    assert_eq!(read!(db, |tx| runs::next_due_at(tx)), Some(Timestamp(1)));
    assert_eq!(next(10).await, Some(a));
    write!(db, |tx| runs::claim(tx, a, worker, Timestamp(10)));
    assert_eq!(next(10).await, Some(c));
    write!(db, |tx| runs::claim(tx, c, worker, Timestamp(10)));
    assert_eq!(next(2000).await, None);
    assert_eq!(read!(db, |tx| runs::next_due_at(tx)), None);
    write!(db, |tx| runs::set_status(
        tx,
        a,
        RunStatus::Success,
        None,
        Timestamp(11)
    ));
    assert_eq!(next(10).await, Some(b));
    write!(db, |tx| runs::claim(tx, b, worker, Timestamp(12)));
    write!(db, |tx| runs::set_status(
        tx,
        c,
        RunStatus::Success,
        None,
        Timestamp(13)
    ));
    assert_eq!(next(10).await, None);
    assert_eq!(read!(db, |tx| runs::next_due_at(tx)), Some(Timestamp(1000)));
    assert_eq!(next(1000).await, Some(d));
}

async fn an_answer_begins_before_the_other_runs_of_its_thread(db: Db) {
    let thread = stored_thread(&db).await;
    let worker = WorkerId::mint();
    let message = run_at(thread, 1);
    let answer = answer_at(thread, 2);
    let a = message.id;
    let b = answer.id;
    for run in [message, answer] {
        write!(db, |tx| runs::insert(tx, &run, None));
    }
    let next = async || write!(db, |tx| runs::next_in_queue(tx, &RunQueue::default(), Timestamp(9)));
    assert!(read!(db, |tx| runs::has_queued_answer(tx, thread)));
    assert_eq!(next().await, Some(b));
    assert_eq!(write!(db, |tx| runs::claim(tx, a, worker, Timestamp(9))), None);
    write!(db, |tx| runs::claim(tx, b, worker, Timestamp(9)));
    assert!(!read!(db, |tx| runs::has_queued_answer(tx, thread)));
    assert_eq!(read!(db, |tx| runs::at_work(tx, thread)), Some(b));
    write!(db, |tx| runs::set_status(
        tx,
        b,
        RunStatus::Success,
        None,
        Timestamp(10)
    ));
    assert_eq!(next().await, Some(a));
}

async fn a_run_that_waits_for_answers_begins_when_no_interrupt_is_pending(db: Db) {
    let thread = stored_thread(&db).await;
    let asked = pending_interrupt(thread, Lane::Main, 1);
    let mut message = run_at(thread, 1);
    message.request.after_answers = true;
    let id = message.id;
    write!(db, |tx| interrupts::insert(tx, &asked));
    write!(db, |tx| runs::insert(tx, &message, None));
    let next = async || write!(db, |tx| runs::next_in_queue(tx, &RunQueue::default(), Timestamp(9)));
    assert_eq!(next().await, None);
    assert_eq!(read!(db, |tx| runs::next_due_at(tx)), None);
    assert_eq!(read!(db, |tx| runs::queue(tx, Timestamp(9))).due, 0);
    assert_eq!(read!(db, |tx| runs::latest(tx, thread)), None);
    write!(db, |tx| interrupts::drop_pending(tx, thread, None, Timestamp(5)));
    assert_eq!(next().await, Some(id));
    assert_eq!(read!(db, |tx| runs::queue(tx, Timestamp(9))).due, 1);
    assert_eq!(read!(db, |tx| runs::latest(tx, thread)).map(|run| run.id), Some(id));
}

/// Stores a run that a worker has claimed.
pub(super) async fn claimed_run(db: &Db, run: Run, now: i64) -> LeaseHolder {
    let thread = run.thread;
    let id = run.id;
    let worker = WorkerId::mint();
    write!(db, |tx| runs::insert(tx, &run, None));
    let claim = write!(db, |tx| runs::claim(tx, id, worker, Timestamp(now))).expect("a claim");
    holder(thread, id, worker, claim.fence)
}

/// Stores a run that began with entry `seq` of the log and has ended.
async fn ended_run(db: &Db, run: Run, status: RunStatus, seq: i64) {
    let holder = claimed_run(db, run, seq).await;
    let trace = runs::RunRowUpdate {
        seq: Some(seq),
        ..runs::RunRowUpdate::at(Timestamp(seq))
    };
    write!(db, |tx| runs::end_fenced(tx, holder, end_with(status, None), trace));
}

/// Returns the end of a run that leaves no work.
fn end_with(status: RunStatus, error: Option<&Failure>) -> runs::EndOfRun<'_> {
    runs::EndOfRun {
        status,
        error,
        waits: false,
    }
}

async fn a_run_whose_answer_came_too_late_does_not_tell_how_the_work_stands(db: Db) {
    let thread = stored_thread(&db).await;
    let message = run_at(thread, 1);
    let answer = answer_at(thread, 2);
    let done = message.id;
    let late = answer.id;
    ended_run(&db, message, RunStatus::Success, 3).await;
    ended_run(&db, answer, RunStatus::Error, 7).await;
    let latest = async || read!(db, |tx| runs::latest(tx, thread)).map(|run| run.id);
    assert_eq!(latest().await, Some(done));
    // An answer that was used, and whose run failed before its first step.
    let mut answered = pending_interrupt(thread, Lane::Main, 1);
    answered.status = InterruptState::Resolved;
    answered.resumed_by = Some(late);
    write!(db, |tx| interrupts::insert(tx, &answered));
    assert_eq!(latest().await, Some(late));
}

async fn the_run_that_began_last_tells_how_the_work_stands_unless_none_has_begun(db: Db) {
    let thread = stored_thread(&db).await;
    let latest = async || read!(db, |tx| runs::latest(tx, thread)).map(|run| run.id);
    let withdraw = async |created: i64, ended: i64| {
        let queued = run_at(thread, created);
        let id = queued.id;
        write!(db, |tx| runs::insert(tx, &queued, None));
        write!(db, |tx| runs::set_status(
            tx,
            id,
            RunStatus::Interrupted,
            None,
            Timestamp(ended)
        ));
        id
    };
    assert_eq!(latest().await, None);
    // Those that never began have no order but that of their ends.
    let first = withdraw(2, 9).await;
    withdraw(3, 8).await;
    assert_eq!(latest().await, Some(first));
    let message = run_at(thread, 5);
    let other = run_at(thread, 4);
    let ids = [message.id, other.id];
    ended_run(&db, message, RunStatus::Success, 6).await;
    assert_eq!(latest().await, Some(ids[0]));
    ended_run(&db, other, RunStatus::Error, 7).await;
    withdraw(8, 12).await;
    assert_eq!(latest().await, Some(ids[1]));
}

async fn runs_that_ended_by_themselves_are_found_in_the_order_in_which_they_began(db: Db) {
    let thread = stored_thread(&db).await;
    let all: Vec<Run> = (1..=6).map(|now| run_at(thread, now)).collect();
    let ids: Vec<RunId> = all.iter().map(|run| run.id).collect();
    let ends = [
        (RunStatus::Success, 2),
        (RunStatus::Error, 9),
        (RunStatus::Interrupted, 5),
        (RunStatus::Timeout, 7),
    ];
    for (run, (status, seq)) in all.iter().zip(ends) {
        ended_run(&db, run.clone(), status, seq).await;
    }
    let queued = all[4].clone();
    write!(db, |tx| runs::insert(tx, &queued, None));
    ended_run(&db, all[5].clone(), RunStatus::Success, 11).await;
    let found = async |these: &[RunId], after: Option<RunId>| {
        let these: BTreeSet<RunId> = these.iter().copied().collect();
        let found = read!(db, |tx| runs::ended_among(tx, thread, &these, after));
        found.into_iter().map(|(run, seq)| (run.id, seq)).collect::<Vec<_>>()
    };
    let own = &ids[..5];
    assert_eq!(found(own, None).await, [(ids[0], 2), (ids[3], 7), (ids[1], 9)]);
    assert_eq!(found(own, Some(ids[0])).await, [(ids[3], 7), (ids[1], 9)]);
    assert!(found(own, Some(ids[5])).await.is_empty());
    assert!(found(own, Some(RunId::mint())).await.is_empty());
    assert!(found(&[], None).await.is_empty());
}

async fn the_beginnings_of_the_last_runs_and_of_those_of_subagents_are_found(db: Db) {
    let thread = stored_thread(&db).await;
    let first = run_at(thread, 1);
    let mut child = child_of(&first, 2);
    child.lineage.namespace.truncate(1);
    let namespace = namespace_text(&child.lineage.namespace);
    ended_run(&db, first, RunStatus::Success, 5).await;
    write!(db, |tx| runs::insert(tx, &child, None));
    for (now, seq) in [(3, 12), (4, 9)] {
        ended_run(&db, run_at(thread, now), RunStatus::Success, seq).await;
    }
    let queued = run_at(thread, 6);
    write!(db, |tx| runs::insert(tx, &queued, None));
    let begun = async |others: i64| read!(db, |tx| runs::begun_before_last(tx, thread, others));
    assert_eq!(begun(0).await, Some(12));
    assert_eq!(begun(1).await, Some(9));
    assert_eq!(begun(2).await, Some(5));
    assert_eq!(begun(3).await, None);
    let with = async |namespaces: &[&str]| {
        let namespaces: Vec<String> = namespaces.iter().map(|text| (*text).to_owned()).collect();
        read!(db, |tx| runs::begun_with(tx, thread, &namespaces))
    };
    assert_eq!(with(&["tools:unknown", namespace.as_str()]).await, Some(5));
    assert_eq!(with(&["tools:unknown"]).await, None);
    assert_eq!(with(&[]).await, None);
}

async fn a_run_leaves_its_thread_busy_while_another_one_waits(db: Db) {
    let thread = stored_thread(&db).await;
    let other = stored_thread(&db).await;
    claimed_run(&db, run_at(other, 1), 1).await;
    let elsewhere = run_at(other, 2);
    write!(db, |tx| runs::insert(tx, &elsewhere, None));
    for (waits, status) in [(true, ThreadStatus::Busy), (false, ThreadStatus::Idle)] {
        let holder = claimed_run(&db, run_at(thread, 2), 2).await;
        let next = run_at(thread, 3);
        let next_id = next.id;
        write!(db, |tx| runs::insert(tx, &next, None));
        if !waits {
            write!(db, |tx| runs::delete(tx, thread, next_id));
        }
        let counted = read!(db, |tx| runs::count_in_flight(tx, thread));
        assert_eq!(counted.at_work, 1);
        assert_eq!(counted.waiting, u64::from(waits));
        let trace = runs::RunRowUpdate::at(Timestamp(4));
        let left = threads::ThreadAfterRun {
            run: holder.run,
            status: ThreadStatus::Idle,
            error: None,
        };
        let ends = db.write(move |tx| {
            Box::pin(async move {
                runs::end_fenced(tx, holder, end_with(RunStatus::Success, None), trace).await?;
                threads::leave_without_messages(tx, thread, &left, Timestamp(4)).await
            })
        });
        let ended: DbResult<()> = ends.await;
        ended.expect("the end");
        let found = read!(db, |tx| threads::find(tx, thread)).expect("the thread");
        assert_eq!(found.status, status);
        write!(db, |tx| runs::delete(tx, thread, next_id));
    }
}

async fn messages_that_wait_for_answers_are_let_go_and_held(db: Db) {
    let thread = stored_thread(&db).await;
    let asked = pending_interrupt(thread, Lane::Main, 1);
    let mut message = run_at(thread, 2);
    message.request.after_answers = true;
    let id = message.id;
    let ended = threads::ThreadAfterRun {
        run: RunId::mint(),
        status: ThreadStatus::Idle,
        error: None,
    };
    write!(db, |tx| interrupts::insert(tx, &asked));
    let leave = async || {
        let left = ended.clone();
        write!(db, |tx| threads::leave(tx, thread, &left, Timestamp(5))).map(|left| left.may_hold_messages)
    };
    let leave_without = async || {
        let left = ended.clone();
        db.write(move |tx| {
            Box::pin(async move { threads::leave_without_messages(tx, thread, &left, Timestamp(6)).await })
        })
        .await
    };
    let updated_at = async || read!(db, |tx| threads::find(tx, thread)).map(|thread| thread.updated_at);
    let status = async || read!(db, |tx| threads::find(tx, thread)).map(|thread| thread.status);
    assert_eq!(leave().await, Some(false), "there is no message yet");
    assert!(leave_without().await.is_ok());
    assert_eq!(updated_at().await, Some(Timestamp(6)));
    write!(db, |tx| runs::insert(tx, &message, None));
    assert_eq!(leave().await, Some(true));
    assert!(
        matches!(leave_without().await, Err(DbError::NoRow)),
        "messages have to be looked at"
    );
    assert_eq!(updated_at().await, Some(Timestamp(5)), "nothing was stored");
    assert_eq!(status().await, Some(ThreadStatus::Idle), "the message is held");
    assert!(!write!(db, |tx| runs::hold_messages(tx, thread, true)));
    assert!(write!(db, |tx| runs::hold_messages(tx, thread, false)));
    assert!(!write!(db, |tx| runs::hold_messages(tx, thread, false)));
    let next = async || write!(db, |tx| runs::next_in_queue(tx, &RunQueue::default(), Timestamp(9)));
    assert_eq!(next().await, Some(id));
    assert_eq!(leave().await, Some(true), "it may be held again");
    assert_eq!(status().await, Some(ThreadStatus::Busy));
    assert!(write!(db, |tx| runs::hold_messages(tx, thread, true)));
    assert_eq!(next().await, None);
    write!(db, |tx| interrupts::drop_pending(tx, thread, None, Timestamp(6)));
    assert_eq!(leave().await, Some(false));
    assert_eq!(next().await, Some(id));
}

async fn due_and_running_runs_are_counted(db: Db) {
    let one = stored_thread(&db).await;
    let two = stored_thread(&db).await;
    let first = run_at(one, 1);
    let second = run_at(one, 2);
    let mut later = run_at(two, 0);
    later.due_at = Timestamp(1000);
    let a = first.id;
    let child = child_of(&first, 3);
    for run in [first, second, later, child] {
        write!(db, |tx| runs::insert(tx, &run, None));
    }
    let queue = async |now: i64| read!(db, |tx| runs::queue(tx, Timestamp(now)));
    assert_eq!(
        queue(0).await,
        runs::QueueDepth {
            due: 0,
            oldest: None,
            running: 0
        }
    );
    assert_eq!(
        queue(10).await,
        runs::QueueDepth {
            due: 2,
            oldest: Some(Timestamp(1)),
            running: 0
        }
    );
    let worker = WorkerId::mint();
    let claim = write!(db, |tx| runs::claim(tx, a, worker, Timestamp(10))).expect("a claim");
    assert_eq!(
        queue(1000).await,
        runs::QueueDepth {
            due: 2,
            oldest: Some(Timestamp(1000)),
            running: 1
        },
        "no server can begin the second run of the first thread"
    );
    let fence = claim.fence;
    let begun = runs::RunRowUpdate {
        seq: Some(1),
        ..runs::RunRowUpdate::at(Timestamp(600))
    };
    write!(db, |tx| runs::end_fenced(
        tx,
        holder(one, a, worker, fence),
        end_with(RunStatus::Success, None),
        begun
    ));
    assert_eq!(
        queue(1000).await,
        runs::QueueDepth {
            due: 2,
            oldest: Some(Timestamp(600)),
            running: 0
        },
        "the second run was due earlier, but its thread was not free"
    );
}

/// Reads the end of the log of a thread together with the number of its runs, and alone: the highest number, and that of the
/// newest checkpoint of the main agent.
async fn ends_of_log(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<(i64, Option<i64>)>> {
    let counted = runs::count_in_flight_with_log_later(tx, thread).await?;
    let alone = checkpoints::log_end_later(tx, thread).await?;
    let (in_flight, together) = counted.count(tx).await?;
    assert_eq!(in_flight.waiting, 1);
    assert_eq!(in_flight.at_work, 0);
    let mut ends = vec![];
    for end in [together, alone] {
        let end = end.read(tx).await?;
        let newest = end.newest?.map(|head| head.seq);
        ends.push((end.summary.max_seq, newest));
    }
    Ok(ends)
}

async fn runs_are_counted_together_with_the_end_of_the_log(db: Db) {
    let thread = stored_thread(&db).await;
    let run = run_at(thread, 1);
    write!(db, |tx| runs::insert(tx, &run, None));
    assert_eq!(read!(db, |tx| ends_of_log(tx, thread)), [(0, None); 2]);
    let step = saying("a", None, -1);
    put(&db, thread, Lane::Main, 1, &step, Position::default()).await;
    assert_eq!(read!(db, |tx| ends_of_log(tx, thread)), [(1, Some(1)); 2]);
    let step = saying("b", None, -1);
    let lane = Lane::Child(RunId::mint());
    put(&db, thread, lane, 2, &step, Position::default()).await;
    assert_eq!(
        read!(db, |tx| ends_of_log(tx, thread)),
        [(2, Some(1)); 2],
        "the newest step is one of a subagent"
    );
}

fn holder(thread: ThreadId, run: RunId, worker: WorkerId, fence: i64) -> LeaseHolder {
    LeaseHolder {
        thread,
        run,
        worker,
        fence,
    }
}

async fn a_worker_with_an_old_fence_cannot_write(db: Db) {
    let thread = stored_thread(&db).await;
    let run = run_at(thread, 1);
    let id = run.id;
    let old = WorkerId::mint();
    let new = WorkerId::mint();
    write!(db, |tx| runs::insert(tx, &run, None));
    let claim = write!(db, |tx| runs::claim(tx, id, old, Timestamp(2))).expect("a claim");
    let fence = claim.fence;
    assert!(write!(db, |tx| runs::check_fence(
        tx,
        holder(thread, id, old, fence),
        Timestamp(3)
    )));
    let adopted = write!(db, |tx| runs::adopt_orphans(tx, new, Timestamp(4), 10));
    let newer = adopted.claims[0].fence;
    assert!(newer > fence);
    assert!(!write!(db, |tx| runs::check_fence(
        tx,
        holder(thread, id, old, fence),
        Timestamp(5)
    )));
    assert!(!write!(db, |tx| runs::check_fence(
        tx,
        holder(thread, id, old, newer),
        Timestamp(5)
    )));
    assert!(write!(db, |tx| runs::check_fence(
        tx,
        holder(thread, id, new, newer),
        Timestamp(5)
    )));
    let failed = (RunStatus::Error, Some(Failure::new("E", "m")));
    let (status, error) = failed.clone();
    let ends = db.write(move |tx| {
        Box::pin(async move {
            let end = end_with(status, error.as_ref());
            runs::end_fenced(
                tx,
                holder(thread, id, old, fence),
                end,
                runs::RunRowUpdate::at(Timestamp(6)),
            )
            .await
        })
    });
    assert!(matches!(ends.await, Err(DbError::NoRow)));
    assert!(read!(db, |tx| runs::get_by_id(tx, id)).is_some_and(|run| run.status == RunStatus::Running));
    assert_eq!(read!(db, |tx| runs::waiting_queues(tx, "", 9)), []);
    let (status, error) = failed.clone();
    write!(db, |tx| runs::end_fenced(
        tx,
        holder(thread, id, new, newer),
        end_with(status, error.as_ref()),
        runs::RunRowUpdate::at(Timestamp(7))
    ));
    let ended = read!(db, |tx| runs::get_by_id(tx, id)).expect("the run");
    assert_eq!(ended.status, failed.0);
    assert_eq!(ended.error, failed.1);
    assert_eq!(ended.updated_at, Timestamp(7));
}

async fn a_run_that_is_stored_with_its_first_event_has_its_number(db: Db) {
    let mut run = run_at(stored_thread(&db).await, 1);
    run.status = RunStatus::Running;
    let id = run.id;
    let worker = WorkerId::mint();
    write!(db, |tx| runs::insert_begun(tx, &run, Some(worker), Some(5)));
    assert_eq!(read!(db, |tx| runs::first_seq(tx, id)), Some(5));
}

async fn orphaned_runs_are_adopted(db: Db) {
    let alive = WorkerId::mint();
    let dead = WorkerId::mint();
    let adopter = WorkerId::mint();
    let mut ids = vec![];
    for (now, worker) in [
        (1, Some(alive)),
        (2, Some(dead)),
        (3, None),
        (4, Some(WorkerId::mint())),
    ] {
        let mut run = run_at(stored_thread(&db).await, now);
        run.status = RunStatus::Running;
        ids.push(run.id);
        write!(db, |tx| runs::insert(tx, &run, worker));
    }
    let expired = Duration::ZERO;
    let long = Duration::from_secs(1000);
    write!(db, |tx| workers::renew_lease(tx, dead, long, None));
    write!(db, |tx| workers::renew_lease(tx, dead, expired, None));
    write!(db, |tx| workers::renew_lease(tx, alive, long, None));
    write!(db, |tx| workers::renew_lease(tx, adopter, long, None));
    assert!(write!(db, |tx| workers::has_other_workers(tx, adopter)));
    // The clock of the adopting server does not matter, only that of the database.
    let adopt = async |limit: i64| {
        let adopted = write!(db, |tx| runs::adopt_orphans(tx, adopter, Timestamp(i64::MAX), limit));
        assert_eq!(adopted.ended, 0);
        adopted
            .claims
            .iter()
            .map(|claim| (claim.run.id, claim.run.attempt, claim.fence, claim.crashes))
            .collect::<Vec<_>>()
    };
    assert_eq!(adopt(2).await, [(ids[1], 2, 1, 1), (ids[2], 2, 1, 0)]);
    assert_eq!(adopt(9).await, [(ids[3], 2, 1, 1)]);
    assert_eq!(adopt(9).await, []);
    write!(db, |tx| workers::retire(tx, alive));
    assert_eq!(adopt(9).await, [(ids[0], 2, 1, 1)]);
    write!(db, |tx| workers::retire_all(tx));
    assert_eq!(adopt(9).await, []);
    let next = WorkerId::mint();
    let adopted = write!(db, |tx| runs::adopt_orphans(tx, next, Timestamp(101), 9));
    assert_eq!(adopted.claims.len(), 4);
}

async fn an_orphaned_run_that_cannot_be_read_is_ended_and_counted(db: Db) {
    let mut ids = vec![];
    for now in [1, 2] {
        let mut run = run_at(stored_thread(&db).await, now);
        run.status = RunStatus::Running;
        ids.push(run.id);
        write!(db, |tx| runs::insert(tx, &run, None));
    }
    let broken = ids[0];
    let spoil = db.write(move |tx| {
        Box::pin(async move {
            const SQL: &str = "update runs set request = $2 where run_id = $1";
            let too_deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
            on_engine!(tx, |conn| query(SQL)
                .bind(broken.0)
                .bind(too_deep)
                .execute(conn)
                .await
                .map(drop))?;
            DbResult::Ok(())
        })
    });
    spoil.await.expect("a write");
    let worker = WorkerId::mint();
    let adopted = write!(db, |tx| runs::adopt_orphans(tx, worker, Timestamp(3), 9));
    assert_eq!(adopted.ended, 1);
    let adopted: Vec<RunId> = adopted.claims.iter().map(|claim| claim.run.id).collect();
    assert_eq!(adopted, [ids[1]]);
    let ended = read!(db, |tx| runs::get_by_id(tx, broken)).expect("the run is there");
    assert_eq!(ended.status, RunStatus::Error);
}

async fn crashes_are_counted_since_the_last_progress(db: Db) {
    let thread = stored_thread(&db).await;
    let mut run = run_at(thread, 1);
    run.status = RunStatus::Running;
    let id = run.id;
    let mut worker = WorkerId::mint();
    write!(db, |tx| runs::insert(tx, &run, Some(worker)));
    let adopted = async |by: WorkerId| {
        let adopted = write!(db, |tx| runs::adopt_orphans(tx, by, Timestamp(2), 9));
        adopted
            .claims
            .first()
            .map(|claim| (claim.fence, claim.crashes))
            .expect("an orphaned run")
    };
    for crashes in 1..=3 {
        worker = WorkerId::mint();
        assert_eq!(adopted(worker).await, (crashes, u32::try_from(crashes).unwrap()));
    }
    // A released run did not crash, whether it was released alone or with all others.
    write!(db, |tx| runs::release(tx, id, worker, 3));
    worker = WorkerId::mint();
    assert_eq!(adopted(worker).await, (4, 3));
    write!(db, |tx| runs::release_all(tx, worker));
    worker = WorkerId::mint();
    assert_eq!(adopted(worker).await, (5, 3));
    let trace = runs::RunRowUpdate::at(Timestamp(3));
    write!(db, |tx| runs::store_fenced(tx, holder(thread, id, worker, 5), trace));
    worker = WorkerId::mint();
    assert_eq!(
        adopted(worker).await,
        (6, 4),
        "a write without progress does not reset the count"
    );
    let trace = runs::RunRowUpdate {
        makes_progress: true,
        ..trace
    };
    write!(db, |tx| runs::store_fenced(tx, holder(thread, id, worker, 6), trace));
    assert_eq!(adopted(WorkerId::mint()).await, (7, 1));
}

async fn a_cancel_request_reaches_the_worker(db: Db) {
    let run = run_at(stored_thread(&db).await, 1);
    let id = run.id;
    let worker = WorkerId::mint();
    write!(db, |tx| runs::insert(tx, &run, None));
    write!(db, |tx| runs::claim(tx, id, worker, Timestamp(2)));
    assert_eq!(read!(db, |tx| runs::cancels_of(tx, worker)), []);
    assert!(write!(db, |tx| runs::request_cancel(tx, id, "rollback")));
    assert_eq!(
        read!(db, |tx| runs::cancels_of(tx, worker)),
        [(id, "rollback".to_owned())]
    );
    write!(db, |tx| runs::set_status(
        tx,
        id,
        RunStatus::Interrupted,
        None,
        Timestamp(3)
    ));
    assert_eq!(read!(db, |tx| runs::cancels_of(tx, worker)), []);
    assert!(!write!(db, |tx| runs::request_cancel(tx, id, "interrupt")));
}

async fn stopping_a_run_stops_the_runs_below_it(db: Db) {
    let thread = stored_thread(&db).await;
    let worker = WorkerId::mint();
    let now = Timestamp(9);
    let mut main = run_at(thread, 1);
    main.status = RunStatus::Running;
    let first = child_of(&main, 2);
    let second = child_of(&main, 3);
    let below = child_of(&first, 4);
    let deepest = child_of(&child_of(&first, 4), 5);
    let deepest = Run {
        lineage: Lineage {
            parent: Some(below.id),
            ..deepest.lineage.clone()
        },
        ..deepest
    };
    write!(db, |tx| runs::insert(tx, &main, Some(worker)));
    let all = [first, second, below, deepest];
    for run in all.clone() {
        write!(db, |tx| runs::insert(tx, &run, None));
    }
    let [first, second, below, deepest] = all.map(|run| run.id);
    let top = read!(db, |tx| runs::get_by_id(tx, first))
        .expect("the run is stored")
        .lineage
        .root;
    let all = 10;
    let ids = |runs: Vec<Run>| runs.into_iter().map(|run| run.id).collect::<Vec<_>>();
    assert_eq!(
        ids(read!(db, |tx| runs::tree(tx, top, all))),
        [top, first, second, below, deepest]
    );
    assert_eq!(ids(read!(db, |tx| runs::tree(tx, first, all))), [first, below, deepest]);
    assert_eq!(ids(read!(db, |tx| runs::tree(tx, top, 2))), [top, first]);
    let mut members = read!(db, |tx| runs::members(tx, first));
    members.sort_unstable();
    let mut expected = vec![first, below, deepest];
    expected.sort_unstable();
    assert_eq!(members, expected);
    assert!(!read!(db, |tx| runs::is_to_stop(tx, first)));
    assert!(write!(db, |tx| runs::request_cancel(tx, first, "interrupt")));
    assert!(read!(db, |tx| runs::is_to_stop(tx, first)));
    assert_eq!(
        read!(db, |tx| runs::cancels_of(tx, worker)),
        [(first, "interrupt".to_owned())]
    );
    assert_eq!(read!(db, |tx| runs::cancels_of(tx, WorkerId::mint())), []);
    let used = Usage {
        tool_calls: 2,
        seconds: 0.5,
        ..Usage::default()
    };
    write!(db, |tx| runs::set_usage(tx, below, &used, top));
    assert_eq!(read!(db, |tx| runs::usage(tx, below)), used);
    assert_eq!(read!(db, |tx| runs::usage(tx, second)), Usage::default());
    assert_eq!(read!(db, |tx| runs::usages(tx, top)), HashMap::from([(below, used)]));
    write!(db, |tx| runs::stop_below(tx, first, top, now));
    for (run, status) in [
        (first, "running"),
        (second, "running"),
        (below, "interrupted"),
        (deepest, "interrupted"),
    ] {
        assert_eq!(
            read!(db, |tx| runs::get_by_id(tx, run)).map(|run| run.status.word()),
            Some(status)
        );
    }
    write!(db, |tx| runs::mark_unreported(tx, below));
    assert_eq!(read!(db, |tx| runs::unreported(tx, thread)), [below]);
    write!(db, |tx| runs::mark_reported(tx, first));
    let left = read!(db, |tx| runs::unreported(tx, thread));
    assert_eq!(left, [], "nobody waits below a run that has ended");
}

async fn an_undone_run_leaves_the_subagents_of_earlier_runs_as_it_found_them(db: Db) {
    let thread = stored_thread(&db).await;
    let now = Timestamp(9);
    let mut first = run_at(thread, 1);
    first.status = RunStatus::Success;
    let mut waits = child_of(&first, 2);
    waits.status = RunStatus::Interrupted;
    let mut main = run_at(thread, 3);
    main.status = RunStatus::Running;
    let begun = child_of(&waits, 4);
    let own = child_of(&main, 5);
    for run in [&first, &waits, &main, &begun, &own] {
        let run = run.clone();
        write!(db, |tx| runs::insert(tx, &run, None));
    }
    let [first, waits, main, begun, own] = [&first, &waits, &main, &begun, &own].map(|run| run.id);
    let used = |calls: u64| Usage {
        tool_calls: calls,
        seconds: 0.5,
        ..Usage::default()
    };
    let [before, between, after] = [1, 3, 5].map(used);
    write!(db, |tx| runs::set_usage(tx, waits, &before, first));
    for child in [begun, own] {
        write!(db, |tx| runs::mark_begun_by(tx, child, main));
    }
    for child in [waits, begun, own] {
        let status = RunStatus::Running;
        write!(db, |tx| {
            let update = ChildRowUpdate {
                status,
                error: None,
                usage: Some(&between),
            };
            runs::update_child(tx, child, update, main, now)
        });
        write!(db, |tx| {
            let update = ChildRowUpdate {
                status,
                error: None,
                usage: None,
            };
            runs::update_child(tx, child, update, main, now)
        });
        assert_eq!(read!(db, |tx| runs::usage(tx, child)), between);
        write!(db, |tx| runs::set_usage(tx, child, &after, main));
    }
    write!(db, |tx| runs::set_usage(tx, main, &before, main));
    write!(db, |tx| runs::set_usage(tx, main, &after, main));
    write!(db, |tx| runs::restore_children(tx, main));
    assert_eq!(read!(db, |tx| runs::usage(tx, main)), after, "it is no subagent's");
    let kept = read!(db, |tx| runs::get_by_id(tx, waits)).expect("the run that waits");
    assert_eq!(kept.status, RunStatus::Interrupted);
    assert_eq!(read!(db, |tx| runs::usage(tx, waits)), before);
    assert_eq!(read!(db, |tx| runs::get_by_id(tx, begun)), None);
    assert_eq!(read!(db, |tx| runs::usage(tx, own)), after, "it goes with its root");
    assert!(!read!(db, |tx| runs::exists(tx, begun)));
    assert!(read!(db, |tx| runs::exists(tx, own)));
}
