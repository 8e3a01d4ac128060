use std::sync::Arc;

use serde_json::json;

use super::{Db, DbResult, object, on_both, read, saying, stored_thread, texts, thread_at, write};
use crate::db::checkpoints::{self, HistoryQuery, NewCheckpoint};
use crate::db::{DbError, Engine, Tx, copies, thread_search, threads};
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::call::{Call, CallStatus};
use crate::domain::checkpoint::{Checkpoint, Entry, Lane};
use crate::domain::id::{InterruptId, RunId, TaskId, ThreadId};
use crate::domain::interrupt::{Interrupt, InterruptSource, Question, QuestionKind};
use crate::domain::machine::{Phase, Position};
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;

on_both!(
    a_copy_has_the_history_with_its_branches,
    a_copy_asks_and_delegates_again,
    an_unknown_thread_is_not_copied,
    abandoned_copies_are_swept,
    a_piece_of_a_copy_that_was_deleted_is_refused
);

/// Stores a step on a thread.
pub(super) async fn put(db: &Db, thread: ThreadId, lane: Lane, seq: i64, entry: &Entry, position: Position) {
    let entry = entry.clone();
    write!(db, |tx| async {
        let placed = NewCheckpoint {
            thread,
            lane,
            seq,
            segment: None,
            run: None,
            entry: &entry,
            position: &position,
            at: Timestamp(seq),
        };
        checkpoints::insert(tx, &placed).await
    });
}

fn ended() -> Position {
    Position {
        phase: Phase::Ended,
        ..Position::default()
    }
}

async fn copy(db: &Db, from: ThreadId) -> ThreadId {
    copy_for(db, from, Ownership::default()).await
}

/// Copies a thread for an owner.
pub(super) async fn copy_for(db: &Db, from: ThreadId, owner: Ownership) -> ThreadId {
    let to = ThreadId::mint();
    let before = found(db).await;
    let begun = write!(db, |tx| copies::begin(tx, from, to, owner, Timestamp(90)));
    let mut copy = begun.expect("an original");
    loop {
        let (begun, piece) = read!(db, |tx| next(tx, copy));
        copy = begun;
        let Some(piece) = piece else { break };
        write!(db, |tx| copies::store(tx, piece, Timestamp(91)));
        assert_eq!(found(db).await, before, "searches do not find an unfinished copy");
    }
    write!(db, |tx| copies::finish(tx, copy, Timestamp(90)));
    db.states().clear();
    to
}

async fn next(tx: &mut Tx<'_>, mut copy: copies::Copy) -> DbResult<(copies::Copy, Option<copies::Piece>)> {
    let piece = copy.next(tx).await?;
    Ok((copy, piece))
}

/// Counts the threads that a search finds and whose creation time is that of copies.
async fn found(db: &Db) -> usize {
    let all = thread_search::ThreadQuery {
        limit: 100,
        ..thread_search::ThreadQuery::within(AccessScope::Server)
    };
    let page = read!(db, |tx| thread_search::search(tx, &all));
    page.threads
        .iter()
        .filter(|thread| thread.created_at == Timestamp(90))
        .count()
}

async fn history(db: &Db, thread: ThreadId) -> Vec<Checkpoint> {
    let all = HistoryQuery {
        limit: 1000,
        before: None,
    };
    read!(db, |tx| checkpoints::history(tx, thread, Lane::Main, all))
}

async fn a_copy_has_the_history_with_its_branches(db: Db) {
    let mut thread = thread_at(1);
    thread.metadata = object(json!({"k": "v"}));
    let original = thread.id;
    assert!(write!(db, |tx| threads::insert(tx, &thread)));
    let mut steps = vec![saying("s0", None, 0)];
    for at in 1..450 {
        let parent = steps.last().map(|step| step.id);
        steps.push(saying(&format!("s{at}"), parent, at));
    }
    steps.push(saying("branch", Some(steps[1].id), 2));
    for (seq, step) in (1..).zip(&steps) {
        put(&db, original, Lane::Main, seq, step, ended()).await;
    }
    let child = Lane::Child(RunId::mint());
    put(&db, original, child, 900, &saying("child", None, 0), ended()).await;

    let to = copy(&db, original).await;
    let old = history(&db, original).await;
    let new = history(&db, to).await;
    assert_eq!(new.len(), 451);
    assert_eq!(texts(&new[0].state), ["s0", "s1", "branch"]);
    for (old, new) in old.iter().zip(&new) {
        assert_eq!(old.entry.id, new.entry.id);
        assert_eq!(old.entry.parent, new.entry.parent);
        assert_eq!(&old.state, &new.state);
        assert_eq!(old.seq, new.seq);
        assert_eq!(old.created_at, new.created_at);
    }
    let copied = read!(db, |tx| threads::find(tx, to)).expect("the copy");
    assert_eq!(copied.metadata, object(json!({"k": "v"})));
    assert_eq!(copied.status, ThreadStatus::Idle);
    assert_eq!(copied.created_at, Timestamp(90));

    assert!(write!(db, |tx| threads::delete(tx, original)));
    db.states().clear();
    assert_eq!(history(&db, to).await.len(), 451);
}

async fn a_copy_asks_and_delegates_again(db: Db) {
    let original = stored_thread(&db).await;
    let step = saying("one", None, 0);
    let task = TaskId::of_step(Some(step.id), "tools", 0);
    let question = Question {
        kind: QuestionKind::Question,
        value: json!(1),
        schema: json!({}).into(),
        calls: vec![],
        key: None,
        approvers: Default::default(),
        ..Question::default()
    };
    let id = InterruptId::of_task(task, 0);
    let asked = Interrupt {
        id,
        task,
        asker: InterruptSource::Call("a".to_owned()),
        question: Arc::new(question),
        answer: None,
        is_inline: false,
    };
    let call = |id: &str, status: CallStatus| Call {
        id: id.to_owned(),
        edited: None,
        status,
        delegations: vec![],
    };
    let calls = vec![
        call("a", CallStatus::Asking),
        call(
            "b",
            CallStatus::Delegated {
                child: RunId::mint(),
                parked: true,
            },
        ),
        call("c", CallStatus::Started),
    ];
    let position = Position {
        phase: Phase::Tools { calls },
        asked: vec![asked],
        ..Position::default()
    };
    put(&db, original, Lane::Main, 1, &step, position).await;

    let to = copy(&db, original).await;
    let position = history(&db, to).await.remove(0).position;
    assert_eq!(position.asked, vec![]);
    assert!(position.copied);
    let calls = vec![
        call("a", CallStatus::Ready),
        call("b", CallStatus::Ready),
        call("c", CallStatus::Started),
    ];
    assert_eq!(position.phase, Phase::Tools { calls });
    let copied = read!(db, |tx| threads::find(tx, to)).expect("the copy");
    assert_eq!(copied.status, ThreadStatus::Interrupted);
}

async fn an_unknown_thread_is_not_copied(db: Db) {
    let from = ThreadId::mint();
    let to = ThreadId::mint();
    assert!(write!(db, |tx| copies::begin(tx, from, to, Ownership::default(), Timestamp(1))).is_none());
    assert_eq!(read!(db, |tx| threads::find(tx, to)), None);
}

async fn abandoned_copies_are_swept(db: Db) {
    let original = stored_thread(&db).await;
    let step = saying("one", None, 0);
    put(&db, original, Lane::Main, 1, &step, ended()).await;
    let to = ThreadId::mint();
    let hour = 3_600_000_000;
    let copy = write!(db, |tx| copies::begin(
        tx,
        original,
        to,
        Ownership::default(),
        Timestamp(10)
    ))
    .expect("an original");
    let (_, piece) = read!(db, |tx| next(tx, copy));
    let piece = piece.expect("a piece");
    write!(db, |tx| copies::store(tx, piece, Timestamp(20)));
    assert!(
        !write!(db, |tx| copies::sweep(tx, false, Timestamp(hour + 19))),
        "another server may still be making it"
    );
    let at_start = db.engine() == Engine::Sqlite;
    assert!(write!(db, |tx| copies::sweep(
        tx,
        at_start,
        Timestamp(if at_start { 20 } else { hour + 20 })
    )));
    assert_eq!(read!(db, |tx| threads::find(tx, to)), None);
    assert!(!write!(db, |tx| copies::sweep(tx, true, Timestamp(2 * hour))));
    assert!(read!(db, |tx| threads::find(tx, original)).is_some());
}

async fn a_piece_of_a_copy_that_was_deleted_is_refused(db: Db) {
    let original = stored_thread(&db).await;
    let step = saying("one", None, 0);
    put(&db, original, Lane::Main, 1, &step, ended()).await;
    let to = ThreadId::mint();
    let begun = write!(db, |tx| copies::begin(
        tx,
        original,
        to,
        Ownership::default(),
        Timestamp(10)
    ));
    let copy = begun.expect("an original");
    let (_, piece) = read!(db, |tx| next(tx, copy));
    let piece = piece.expect("a piece");
    write!(db, |tx| copies::abandon(tx, to));
    let stored = db.write(move |tx| Box::pin(copies::store(tx, piece, Timestamp(20))));
    let stored: DbResult<()> = stored.await;
    assert!(matches!(stored, Err(DbError::Conflict(_))), "{stored:?}");
    assert_eq!(read!(db, |tx| checkpoints::max_seq(tx, to)), 0);
}
