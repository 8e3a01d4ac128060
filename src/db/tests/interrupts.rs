use std::collections::HashMap;
use std::sync::Arc;

use serde_json::json;

use super::{Db, on_both, read, stored_thread, thread_at, write};
use crate::db::interrupts::{self, FEW_ANSWERED, InterruptRecord, InterruptState, VisibleInterrupts};
use crate::db::{DbResult, Tx};
use crate::domain::access::{AccessScope, Assignee, InterruptScope, Ownership};
use crate::domain::approvers::Approvers;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{InterruptId, RunId, TaskId, ThreadId};
use crate::domain::identity::{Tenant, UserId, UserRole};
use crate::domain::interrupt::{Expiry, Interrupt, InterruptSource, Question, QuestionKind};
use crate::domain::ruling::RowCondition;
use crate::domain::time::Timestamp;

on_both!(
    interrupts_are_stored_and_answered,
    interrupts_raised_together_keep_their_order,
    a_write_reads_only_few_answered_interrupts,
    pending_interrupts_are_dropped,
    assigned_interrupts_are_found_by_their_approvers,
    an_interrupt_that_is_raised_again_has_its_new_approvers,
    the_next_expiry_is_that_of_a_pending_interrupt,
);

pub(super) fn pending_interrupt(thread: ThreadId, lane: Lane, seq: i64) -> InterruptRecord {
    let task = TaskId::of_step(None, &format!("{thread}"), usize::try_from(seq).expect("small"));
    let question = Question {
        kind: QuestionKind::Question,
        value: json!("why?"),
        schema: json!({}).into(),
        calls: vec!["c".to_owned()],
        key: None,
        approvers: Default::default(),
        ..Question::default()
    };
    let asker = InterruptSource::Call("c".to_owned());
    InterruptRecord {
        interrupt: Interrupt {
            id: InterruptId::of_task(task, 0),
            task,
            asker,
            question: Arc::new(question),
            answer: None,
            is_inline: false,
        },
        thread,
        run: RunId::mint(),
        lane,
        agent: "helper".to_owned(),
        path: vec!["agent".to_owned(), "helper".to_owned()],
        task_call_id: Some("call".to_owned()),
        seq,
        ordinal: 0,
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
    assert_eq!(read!(db, |tx| interrupts::find(tx, one, &missing)), None);
    assert_eq!(
        read!(db, |tx| interrupts::of_thread(tx, one, None)),
        [first.clone(), later.clone()]
    );
    let everywhere = InterruptScope {
        threads: AccessScope::Server,
        assigned: None,
        forbids: RowCondition::NEVER,
    };
    assert_eq!(
        read!(db, |tx| interrupts::pending(tx, &everywhere, 2, 1)),
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

async fn interrupts_raised_together_keep_their_order(db: Db) {
    let thread = stored_thread(&db).await;
    let mut together: Vec<InterruptRecord> = (0..6)
        .map(|number| {
            let mut record = pending_interrupt(thread, Lane::Main, 2);
            record.interrupt.id = InterruptId::of_task(record.interrupt.task, number);
            record
        })
        .collect();
    // Against the order of the ids.
    together.sort_by_key(|record| std::cmp::Reverse(record.interrupt.id.clone()));
    for (record, ordinal) in together.iter_mut().zip(0..) {
        record.ordinal = ordinal;
    }
    for record in together.clone().into_iter().rev() {
        write!(db, |tx| interrupts::insert(tx, &record));
    }
    assert_eq!(read!(db, |tx| interrupts::of_thread(tx, thread, None)), together);
    let open = Some(InterruptState::Pending);
    assert_eq!(read!(db, |tx| interrupts::of_thread(tx, thread, open)), together);
    let everywhere = InterruptScope {
        threads: AccessScope::Server,
        assigned: None,
        forbids: RowCondition::NEVER,
    };
    let scope = everywhere.clone();
    assert_eq!(read!(db, |tx| interrupts::pending(tx, &scope, 10, 0)), together);
    let wanted = VisibleInterrupts {
        thread,
        scope: everywhere,
        id: None,
        status: None,
    };
    assert_eq!(read!(db, |tx| interrupts::visible(tx, &wanted)), together);
    // An undone answer leaves the order as it was.
    let by = RunId::mint();
    let answered = together[3].clone();
    write!(db, |tx| interrupts::resolve_found(
        tx,
        &answered,
        &json!(1),
        by,
        Timestamp(9)
    ));
    let resolved = Some(InterruptState::Resolved);
    let found = read!(db, |tx| interrupts::of_thread(tx, thread, resolved));
    assert_eq!(
        found.iter().map(|record| record.resumed_by).collect::<Vec<_>>(),
        [Some(by)]
    );
    write!(db, |tx| interrupts::restore(tx, thread, by));
    assert_eq!(read!(db, |tx| interrupts::of_thread(tx, thread, open)), together);
}

async fn few_resumed(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<HashMap<RunId, RunId>>> {
    interrupts::few_resumed_later(tx, thread).await?.read(tx).await
}

async fn a_write_reads_only_few_answered_interrupts(db: Db) {
    let thread = stored_thread(&db).await;
    let mut resumed = HashMap::new();
    for number in 0..=FEW_ANSWERED {
        assert_eq!(read!(db, |tx| few_resumed(tx, thread)), Some(resumed.clone()));
        let asked = pending_interrupt(thread, Lane::Main, i64::try_from(number).expect("small"));
        let id = asked.interrupt.id.clone();
        let by = RunId::mint();
        resumed.insert(by, asked.run);
        write!(db, |tx| interrupts::insert(tx, &asked));
        assert!(write!(db, |tx| interrupts::resolve(
            tx,
            thread,
            &id,
            &json!(1),
            by,
            Timestamp(9)
        )));
    }
    assert_eq!(read!(db, |tx| few_resumed(tx, thread)), None);
    assert_eq!(read!(db, |tx| interrupts::resumed(tx, thread)), resumed);
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

/// Stores an interrupt that is assigned to these users and roles, on a thread of this tenant.
async fn assigned(db: &Db, tenant: &str, seq: i64, users: &[&str], roles: &[UserRole]) -> InterruptRecord {
    let thread = crate::domain::thread::Thread {
        ownership: Ownership {
            tenant: Tenant::stored(tenant.to_owned()),
            owner: UserId::stored("ann".to_owned()),
        },
        ..thread_at(1)
    };
    let mut asked = pending_interrupt(thread.id, Lane::Main, seq);
    Arc::make_mut(&mut asked.interrupt.question).approvers = Approvers {
        users: users.iter().map(|user| UserId::stored((*user).to_owned())).collect(),
        roles: roles.to_vec(),
    };
    let stored = asked.clone();
    write!(db, |tx| crate::db::threads::insert(tx, &thread));
    write!(db, |tx| interrupts::insert(tx, &stored));
    asked
}

/// The scope of a caller of the tenant `acme` who sees nothing but what is assigned to them.
fn assigned_to(user: &str, roles: &[UserRole]) -> InterruptScope {
    InterruptScope {
        threads: AccessScope::Nothing,
        assigned: Some(Assignee {
            tenant: Tenant::stored("acme".to_owned()),
            user: UserId::stored(user.to_owned()),
            roles: roles.to_vec(),
        }),
        forbids: RowCondition::NEVER,
    }
}

async fn assigned_interrupts_are_found_by_their_approvers(db: Db) {
    let to_eve = assigned(&db, "acme", 1, &["eve"], &[]).await;
    let to_role = assigned(&db, "acme", 2, &[], &[UserRole::Approver]).await;
    let to_both = assigned(&db, "acme", 3, &["eve", "bob"], &[UserRole::Approver]).await;
    let to_nobody = assigned(&db, "acme", 4, &[], &[]).await;
    assigned(&db, "other", 5, &["eve"], &[UserRole::Approver]).await;
    let approver = [UserRole::Approver];
    for (scope, expected) in [
        (assigned_to("eve", &[]), vec![to_eve.clone(), to_both.clone()]),
        (
            assigned_to("eve", &approver),
            vec![to_eve, to_role.clone(), to_both.clone()],
        ),
        (assigned_to("mia", &approver), vec![to_role, to_both.clone()]),
        (assigned_to("bob", &[UserRole::User]), vec![to_both.clone()]),
        (assigned_to("approver", &[]), vec![]),
    ] {
        let within = scope.clone();
        assert_eq!(
            read!(db, |tx| interrupts::pending(tx, &within, 10, 0)),
            expected,
            "{scope:?}"
        );
        let within = scope.clone();
        let second: Vec<_> = expected.iter().skip(1).take(1).cloned().collect();
        assert_eq!(
            read!(db, |tx| interrupts::pending(tx, &within, 1, 1)),
            second,
            "{scope:?}"
        );
    }
    let of_ann = InterruptScope {
        threads: AccessScope::Own {
            ownership: Ownership {
                tenant: Tenant::stored("acme".to_owned()),
                owner: UserId::stored("ann".to_owned()),
            },
            shared: vec![],
        },
        ..assigned_to("ann", &[])
    };
    let thread = to_nobody.thread;
    let visible = |scope: &InterruptScope| VisibleInterrupts {
        thread,
        scope: scope.clone(),
        id: None,
        status: None,
    };
    let wanted = visible(&of_ann);
    assert_eq!(read!(db, |tx| interrupts::visible(tx, &wanted)), [to_nobody]);
    let wanted = visible(&assigned_to("eve", &approver));
    assert_eq!(read!(db, |tx| interrupts::visible(tx, &wanted)), []);
    let eve = assigned_to("eve", &[]).assigned.expect("a caller");
    let other = eve.clone();
    assert!(!read!(db, |tx| interrupts::is_assigned_any(tx, thread, &other)));
    assert!(read!(db, |tx| interrupts::is_assigned_any(tx, to_both.thread, &eve)));
}

async fn an_interrupt_that_is_raised_again_has_its_new_approvers(db: Db) {
    let mut asked = assigned(&db, "acme", 1, &["eve", "bob"], &[]).await;
    Arc::make_mut(&mut asked.interrupt.question).approvers.users.remove(0);
    let again = asked.clone();
    write!(db, |tx| interrupts::insert(tx, &again));
    let scope = assigned_to("eve", &[]);
    assert_eq!(read!(db, |tx| interrupts::pending(tx, &scope, 10, 0)), []);
    let scope = assigned_to("bob", &[]);
    assert_eq!(read!(db, |tx| interrupts::pending(tx, &scope, 10, 0)), [asked]);
}

async fn the_next_expiry_is_that_of_a_pending_interrupt(db: Db) {
    let thread = stored_thread(&db).await;
    let next = async |now: i64| read!(db, |tx| interrupts::next_expiry(tx, Timestamp(now)));
    let endless = pending_interrupt(thread, Lane::Main, 1);
    write!(db, |tx| interrupts::insert(tx, &endless));
    assert_eq!(next(0).await, None);
    for (seq, after_s) in [(2, 60), (3, 30)] {
        let mut asked = pending_interrupt(thread, Lane::Main, seq);
        Arc::make_mut(&mut asked.interrupt.question).expiry = Some(Expiry {
            after_s,
            answer: json!({}),
        });
        write!(db, |tx| interrupts::insert(tx, &asked));
    }
    assert_eq!(next(0).await, Some(Timestamp(30_000_003)));
    assert_eq!(next(30_000_003).await, Some(Timestamp(60_000_002)));
    write!(db, |tx| interrupts::drop_pending(tx, thread, None, Timestamp(4)));
    assert_eq!(next(0).await, None);
}
