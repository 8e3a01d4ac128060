use serde_json::json;

use super::{Db, on_both, read, stored_thread, write};
use crate::db::interrupts::{self, InterruptRecord, InterruptState};
use crate::domain::access::AccessScope;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{InterruptId, RunId, TaskId, ThreadId};
use crate::domain::interrupt::{Interrupt, InterruptSource, Question, QuestionKind};
use crate::domain::time::Timestamp;

on_both!(interrupts_are_stored_and_answered, pending_interrupts_are_dropped);

pub(super) fn pending_interrupt(thread: ThreadId, lane: Lane, seq: i64) -> InterruptRecord {
    let task = TaskId::of_step(None, &format!("{thread}"), usize::try_from(seq).expect("small"));
    let question = Question {
        kind: QuestionKind::Question,
        value: json!("why?"),
        schema: json!({}),
        calls: vec!["c".to_owned()],
        key: None,
    };
    let asker = InterruptSource::Call("c".to_owned());
    InterruptRecord {
        interrupt: Interrupt {
            id: InterruptId::of_task(task, 0),
            task,
            asker,
            question,
            answer: None,
        },
        thread,
        run: RunId::mint(),
        lane,
        agent: "helper".to_owned(),
        path: vec!["agent".to_owned(), "helper".to_owned()],
        task_call_id: Some("call".to_owned()),
        seq,
        status: InterruptState::Pending,
        resolution: None,
        resumed_by: None,
        created_at: Timestamp(seq),
        resolved_at: None,
    }
}

async fn interrupts_are_stored_and_answered(db: Db) {
    let one = stored_thread(&db).await;
    let two = stored_thread(&db).await;
    let all = [
        pending_interrupt(one, Lane::Main, 3),
        pending_interrupt(one, Lane::Main, 1),
        pending_interrupt(two, Lane::Main, 2),
    ];
    for asked in all.clone() {
        write!(db, |tx| interrupts::insert(tx, &asked));
    }
    let [later, first, on_other_thread] = all;
    let id = first.interrupt.id.clone();
    let missing = InterruptId("no".to_owned());
    let wanted = id.clone();
    assert_eq!(read!(db, |tx| interrupts::find(tx, one, &wanted)), Some(first.clone()));
    let wanted = id.clone();
    assert_eq!(read!(db, |tx| interrupts::find(tx, two, &wanted)), None);
    let wanted = id.clone();
    assert_eq!(read!(db, |tx| interrupts::find_by_id(tx, &wanted)), Some(first.clone()));
    assert_eq!(read!(db, |tx| interrupts::find_by_id(tx, &missing)), None);
    assert_eq!(
        read!(db, |tx| interrupts::of_thread(tx, one, None)),
        [first.clone(), later.clone()]
    );
    assert_eq!(
        read!(db, |tx| interrupts::pending(tx, &AccessScope::Server, 2, 1)),
        [on_other_thread, later.clone()]
    );

    let by = RunId::mint();
    let resolve = async |now: i64| {
        let id = id.clone();
        write!(db, |tx| interrupts::resolve(
            tx,
            one,
            &id,
            &json!({"yes": 1}),
            by,
            Timestamp(now)
        ))
    };
    assert!(resolve(9).await);
    assert!(!resolve(10).await);
    let answered = InterruptRecord {
        status: InterruptState::Resolved,
        resolution: Some(json!({"yes": 1})),
        resumed_by: Some(by),
        resolved_at: Some(Timestamp(9)),
        ..first.clone()
    };
    assert_eq!(
        read!(db, |tx| interrupts::of_thread(tx, one, Some(InterruptState::Resolved))),
        [answered]
    );
    assert_eq!(
        read!(db, |tx| interrupts::of_thread(tx, one, Some(InterruptState::Pending))),
        [later]
    );
    let again = first.clone();
    write!(db, |tx| interrupts::insert(tx, &again));
    assert_eq!(read!(db, |tx| interrupts::find(tx, one, &id)), Some(first));
}

async fn pending_interrupts_are_dropped(db: Db) {
    let thread = stored_thread(&db).await;
    let child = Lane::Child(RunId::mint());
    for asked in [
        pending_interrupt(thread, Lane::Main, 1),
        pending_interrupt(thread, child, 2),
        pending_interrupt(thread, child, 3),
    ] {
        write!(db, |tx| interrupts::insert(tx, &asked));
    }
    assert_eq!(
        write!(db, |tx| interrupts::drop_pending(tx, thread, Some(&[]), Timestamp(4))),
        0
    );
    assert_eq!(
        write!(db, |tx| interrupts::drop_pending(
            tx,
            thread,
            Some(&[child]),
            Timestamp(4)
        )),
        2
    );
    let open = read!(db, |tx| interrupts::of_thread(
        tx,
        thread,
        Some(InterruptState::Pending)
    ));
    assert_eq!(open.iter().map(|asked| asked.lane).collect::<Vec<_>>(), [Lane::Main]);
    assert_eq!(
        write!(db, |tx| interrupts::drop_pending(tx, thread, None, Timestamp(5))),
        1
    );
    let dropped = read!(db, |tx| interrupts::of_thread(
        tx,
        thread,
        Some(InterruptState::Dropped)
    ));
    assert_eq!(
        dropped.iter().map(|asked| asked.resolved_at).collect::<Vec<_>>(),
        [Some(Timestamp(5)), Some(Timestamp(4)), Some(Timestamp(4))]
    );
}
