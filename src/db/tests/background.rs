use super::interrupts::pending_interrupt;
use super::runs::answer_at;
use super::{Db, on_both, read, run_at, stored_thread, write};
use crate::db::background::remote::WorkCondition;
use crate::db::background::{self, remote};
use crate::db::jobs::{self, JobOwner};
use crate::db::{interrupts, remote_runs, runs, threads};
use crate::domain::background::{RemoteWork, TaskLineage, TaskRecord, TaskSnapshot, TaskStatus};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{AssistantId, RunId, ThreadId};
use crate::domain::job::JobKind;
use crate::domain::remote_run::RemoteRun;
use crate::domain::run::RunStatus;
use crate::domain::time::Timestamp;
use crate::domain::visibility::Visibility;

on_both!(
    an_agent_that_could_not_be_told_yet_hides_no_other,
    what_a_deleted_task_may_have_left_is_to_be_cancelled,
    a_remote_run_is_over_when_no_run_may_continue_it,
    a_remote_run_waits_until_an_answer_is_on_its_way,
);

/// Stores a task on another server, as it was polled last.
async fn stored_task(db: &Db, parent: ThreadId, seen: TaskStatus) -> TaskRecord {
    let run = RunId::mint();
    let record = TaskRecord {
        task: ThreadId::mint(),
        parent_thread: parent,
        parent_run: run,
        parent_assistant: AssistantId::of_graph("away"),
        call: "a1".to_owned(),
        agent: "far".to_owned(),
        graph_id: "agent".to_owned(),
        url: Some("https://example.org".to_owned()),
        ancestry: TaskLineage {
            top: run,
            nesting: 1,
            levels: None,
            trees: vec![],
            starter: None,
            visibility: Visibility::default(),
        },
        notify: true,
        watched: true,
        reported_run: None,
        created_at: Timestamp(1),
        remote: RemoteWork {
            due_at: Some(Timestamp(2)),
            ..RemoteWork::default()
        },
    };
    let new = record.clone();
    write!(db, |tx| background::insert(tx, &new));
    let work = RemoteWork {
        seen: Some(TaskSnapshot::of(RunId::mint().to_string(), seen)),
        due_at: (!seen.is_final()).then_some(Timestamp(3)),
        ..RemoteWork::default()
    };
    let noted = record.clone();
    assert!(write!(db, |tx| remote::note(tx, &noted, &work, WorkCondition::Always)));
    record
}

async fn an_agent_that_could_not_be_told_yet_hides_no_other(db: Db) {
    let first = stored_thread(&db).await;
    let second = stored_thread(&db).await;
    for parent in [first, second] {
        stored_task(&db, parent, TaskStatus::Success).await;
    }
    let found = read!(db, |tx| background::parents_to_wake(tx, 1));
    let [told] = found[..] else { panic!("{found:?}") };
    let other = if told == first { second } else { first };
    let owner = JobOwner {
        thread: Some(told),
        assistant: None,
    };
    write!(db, |tx| jobs::ensure(
        tx,
        JobKind::NotifyParent,
        told.0,
        owner,
        Timestamp(1)
    ));
    assert_eq!(read!(db, |tx| background::parents_to_wake(tx, 1)), [other]);
    write!(db, |tx| jobs::delete(tx, JobKind::NotifyParent, told.0));
    assert_eq!(read!(db, |tx| background::parents_to_wake(tx, 2)).len(), 2);
}

async fn what_a_deleted_task_may_have_left_is_to_be_cancelled(db: Db) {
    let parent = stored_thread(&db).await;
    stored_task(&db, parent, TaskStatus::Success).await;
    let open = stored_task(&db, parent, TaskStatus::Running).await;
    let polled = read!(db, |tx| remote::polled(tx, parent));
    assert_eq!(polled.iter().map(|record| record.task).collect::<Vec<_>>(), [open.task]);
    let run = RunId(open.task.0);
    let work = RemoteRun {
        run,
        first: run,
        graph_id: "away".to_owned(),
        definition: None,
        agent: open.agent,
        url: "https://example.org".to_owned(),
        of_deleted_task: true,
        lost_since: None,
        was_missed: false,
    };
    let left = work.clone();
    write!(db, |tx| threads::delete(tx, parent));
    assert_eq!(read!(db, |tx| jobs::count(tx)), []);
    write!(db, |tx| remote_runs::insert_of_deleted_task(tx, &left, Timestamp(5)));
    assert_eq!(read!(db, |tx| remote_runs::find(tx, run)), Some(work.clone()));
    for was_missed in [true, false] {
        let since = Timestamp(6);
        write!(db, |tx| remote_runs::set_lost(tx, run, since, was_missed));
        let expected = RemoteRun {
            lost_since: Some(since),
            was_missed,
            ..work.clone()
        };
        assert_eq!(read!(db, |tx| remote_runs::find(tx, run)), Some(expected));
    }
    assert!(read!(db, |tx| remote_runs::is_unwanted(tx, run)));
    assert_eq!(read!(db, |tx| jobs::count(tx)), [(JobKind::CancelRemote, 1)]);
    assert!(!read!(db, |tx| remote_runs::any_over(tx)), "it has a job");
}

/// Returns the remote run of a run.
fn remote_run_of(run: RunId) -> RemoteRun {
    RemoteRun {
        run,
        first: run,
        graph_id: "agent".to_owned(),
        definition: None,
        agent: "far".to_owned(),
        url: "https://example.org".to_owned(),
        of_deleted_task: false,
        lost_since: None,
        was_missed: false,
    }
}

/// Stores a run of the main agent with this status, and its remote run.
pub(super) async fn stored_remote_run(db: &Db, thread: ThreadId, status: RunStatus) -> RunId {
    let mut run = run_at(thread, 1);
    run.status = status;
    let id = run.id;
    write!(db, |tx| runs::insert(tx, &run, None));
    write!(db, |tx| remote_runs::insert(tx, &remote_run_of(id)));
    id
}

async fn a_remote_run_is_over_when_no_run_may_continue_it(db: Db) {
    let thread = stored_thread(&db).await;
    let stopped = stored_remote_run(&db, thread, RunStatus::Interrupted).await;
    assert!(read!(db, |tx| remote_runs::is_unwanted(tx, stopped)));
    assert!(read!(db, |tx| remote_runs::any_over(tx)));
    let queued = run_at(thread, 2);
    let other = queued.id;
    write!(db, |tx| runs::insert(tx, &queued, None));
    assert!(!read!(db, |tx| remote_runs::is_unwanted(tx, stopped)));
    assert!(!read!(db, |tx| remote_runs::any_over(tx)));
    write!(db, |tx| runs::set_status(
        tx,
        other,
        RunStatus::Success,
        None,
        Timestamp(3)
    ));
    assert!(read!(db, |tx| remote_runs::is_unwanted(tx, stopped)));
    let mut asked = pending_interrupt(thread, Lane::Main, 1);
    asked.run = stopped;
    write!(db, |tx| interrupts::insert(tx, &asked));
    assert!(!read!(db, |tx| remote_runs::is_unwanted(tx, stopped)));
    write!(db, |tx| interrupts::drop_pending(tx, thread, None, Timestamp(4)));
    assert!(read!(db, |tx| remote_runs::is_unwanted(tx, stopped)));
}

async fn a_remote_run_waits_until_an_answer_is_on_its_way(db: Db) {
    let thread = stored_thread(&db).await;
    let asking = stored_remote_run(&db, thread, RunStatus::Success).await;
    assert!(!read!(db, |tx| remote_runs::waits(tx, asking)));
    let mut asked = pending_interrupt(thread, Lane::Main, 1);
    asked.run = asking;
    write!(db, |tx| interrupts::insert(tx, &asked));
    assert!(read!(db, |tx| remote_runs::waits(tx, asking)));
    assert!(read!(db, |tx| remote_runs::any_unwatched(tx)));
    let message = run_at(thread, 2);
    write!(db, |tx| runs::insert(tx, &message, None));
    assert!(read!(db, |tx| remote_runs::waits(tx, asking)));
    let answer = answer_at(thread, 3);
    write!(db, |tx| runs::insert(tx, &answer, None));
    assert!(!read!(db, |tx| remote_runs::waits(tx, asking)));
    assert!(!read!(db, |tx| remote_runs::any_unwatched(tx)));
}
