//! The questions of positions and events.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sqlx::{query, query_scalar};

use super::copies::put;
use super::interrupts::pending_interrupt;
use super::{Db, on_both, read, saying, stored_thread, write};
use crate::db::engine::{on_engine, upgrade};
use crate::db::events::{self, Logged, NewEvent};
use crate::db::interrupts::{self, InterruptRecord, InterruptState};
use crate::db::{DbResult, Tx, checkpoints, retention, stored_bytes};
use crate::domain::call::{Call, CallStatus};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::interrupt::{Interrupt, QuestionKind};
use crate::domain::machine::{Phase, Position};
use crate::domain::time::Timestamp;

on_both!(
    a_question_is_stored_in_one_row_and_read_everywhere,
    both_forms_of_positions_and_events_are_read,
    a_question_that_was_read_with_its_position_stays_there,
    a_transaction_decodes_a_question_once,
    an_interrupt_without_a_row_stays_without_its_question,
    an_answer_whose_question_is_gone_has_no_effect,
    a_row_without_its_question_is_not_shown,
    a_pruned_thread_keeps_the_question_that_is_open,
    a_question_of_a_copy_is_measured_once,
    a_long_schema_of_approvals_is_stored_once_for_a_tenant,
    a_schema_stays_with_its_question_while_servers_may_be_at_work_that_look_for_it_there,
    an_interrupt_whose_schema_is_gone_is_not_shown,
    a_schema_without_questions_is_deleted_some_days_after_its_last_use,
);

/// A thread with an open interrupt, and the checkpoint at which it waits.
struct Asked {
    thread: ThreadId,
    head: CheckpointId,
    record: InterruptRecord,
}

impl Asked {
    fn interrupt(&self) -> Interrupt {
        self.record.interrupt.clone()
    }
}

/// Stores an interrupt with its position and its event on a new thread.
async fn ask(db: &Db) -> Asked {
    let thread = stored_thread(db).await;
    let mut record = pending_interrupt(thread, Lane::Main, 2);
    Arc::make_mut(&mut record.interrupt.question).value = json!("what is the question");
    let step = saying("hi", None, 0);
    let head = step.id;
    let position = waiting(record.interrupt.clone());
    put(db, thread, Lane::Main, 1, &step, position).await;
    let stored = record.clone();
    write!(db, |tx| async {
        let fact = Fact::Asked {
            head: Some(head),
            carried_from: None,
            interrupts: vec![stored.interrupt.clone()],
        };
        let event = NewEvent {
            thread,
            seq: 2,
            run: stored.run,
            lane: Lane::Main,
            fact: &fact,
            at: Timestamp(2),
        };
        events::insert(tx, &[event]).await?;
        interrupts::insert(tx, &stored).await
    });
    Asked { thread, head, record }
}

fn waiting(asked: Interrupt) -> Position {
    Position {
        phase: Phase::Tools { calls: vec![] },
        asked: vec![asked],
        ..Position::default()
    }
}

/// Returns the number of columns of a thread in which the question is.
async fn copies(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<i64> {
    const SQL: &str = "select count(*) from (select position as found from checkpoints where thread_id = $1 \
        union all select before from checkpoints where thread_id = $1 \
        union all select next_event from checkpoints where thread_id = $1 \
        union all select body from events where thread_id = $1 \
        union all select interrupt from interrupts where thread_id = $1 \
        union all select before from interrupts where thread_id = $1) texts where found like '%what is the question%'";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(thread.0)
        .fetch_one(conn)
        .await)?)
}

/// Returns the interrupts of the newest position of the main agent.
async fn of_position(db: &Db, thread: ThreadId) -> Vec<Interrupt> {
    let head = read!(db, |tx| checkpoints::head(tx, thread, Lane::Main));
    head.expect("a checkpoint").position.asked
}

/// Returns the interrupts of the only event.
async fn of_event(db: &Db, thread: ThreadId) -> Vec<Interrupt> {
    let log = read!(db, |tx| events::read(tx, thread, 1, 9));
    let [only] = log.as_slice() else { panic!("{log:?}") };
    let Logged::Fact(Fact::Asked { interrupts, .. }) = &only.what else {
        panic!("{log:?}")
    };
    interrupts.clone()
}

async fn a_question_is_stored_in_one_row_and_read_everywhere(db: Db) {
    let asked = ask(&db).await;
    let thread = asked.thread;
    let found = read!(db, |tx| copies(tx, thread));
    // Of a sealed text nothing is found.
    assert_eq!(found, i64::from(!db.is_sealing()));
    assert_eq!(of_position(&db, thread).await, [asked.interrupt()]);
    assert_eq!(of_event(&db, thread).await, [asked.interrupt()]);
    let head = asked.head;
    let at = read!(db, |tx| checkpoints::find_head(tx, thread, head)).expect("the checkpoint");
    assert_eq!(at.position.asked, [asked.interrupt()]);
    let (machine, _) = read!(db, |tx| checkpoints::machine(tx, thread, Lane::Main));
    assert_eq!(machine.position.asked, [asked.interrupt()]);

    // An answer changes the position, on behalf of another run, and then the question is gone from it for ever.
    let mut position = machine.position;
    position.asked[0].answer = Some(json!("yes"));
    let expected = position.asked.clone();
    let by = RunId::mint();
    write!(db, |tx| checkpoints::set_position(tx, thread, head, &position, by));
    assert_eq!(read!(db, |tx| copies(tx, thread)), i64::from(!db.is_sealing()));
    assert_eq!(of_position(&db, thread).await, expected);
    write!(db, |tx| checkpoints::restore_positions(tx, by));
    assert_eq!(of_position(&db, thread).await, [asked.interrupt()]);
}

async fn both_forms_of_positions_and_events_are_read(db: Db) {
    db.set_forms(upgrade::SHORT_TEXTS);
    let former = ask(&db).await;
    db.set_forms(upgrade::QUESTIONS_ONCE);
    let new = ask(&db).await;
    let places = [(&former, 3), (&new, 1)];
    for forms in [upgrade::SHORT_TEXTS, upgrade::QUESTIONS_ONCE] {
        db.set_forms(forms);
        for (asked, count) in places {
            let thread = asked.thread;
            let expected = if db.is_sealing() { 0 } else { count };
            assert_eq!(read!(db, |tx| copies(tx, thread)), expected);
            let found = of_position(&db, thread).await;
            assert_eq!(found[0].question, asked.record.interrupt.question);
            let found = of_event(&db, thread).await;
            assert_eq!(found[0].question, asked.record.interrupt.question);
        }
    }
}

async fn a_question_that_was_read_with_its_position_stays_there(db: Db) {
    // As in a copy, whose answered interrupts have no rows.
    let thread = stored_thread(&db).await;
    let mut asked = pending_interrupt(thread, Lane::Main, 2).interrupt;
    asked.is_inline = true;
    asked.answer = Some(json!("yes"));
    let step = saying("hi", None, 0);
    let head = step.id;
    put(&db, thread, Lane::Main, 1, &step, waiting(asked.clone())).await;
    for by in [RunId::mint(), RunId::mint()] {
        let found = of_position(&db, thread).await;
        assert_eq!(found, [asked.clone()]);
        let position = waiting(found[0].clone());
        write!(db, |tx| checkpoints::set_position(tx, thread, head, &position, by));
    }
    assert_eq!(of_position(&db, thread).await, [asked]);
}

async fn a_transaction_decodes_a_question_once(db: Db) {
    let thread = ask(&db).await.thread;
    let (records, head) = read!(db, |tx| async {
        let records = interrupts::of_thread(tx, thread, None).await?;
        DbResult::Ok((records, checkpoints::head(tx, thread, Lane::Main).await?))
    });
    let position = head.expect("a checkpoint").position;
    assert!(Arc::ptr_eq(&records[0].interrupt.question, &position.asked[0].question));
}

async fn an_interrupt_without_a_row_stays_without_its_question(db: Db) {
    let asked = ask(&db).await;
    let thread = asked.thread;
    let by = asked.record.run;
    // As when a run is rolled back; of its log only this is left here.
    write!(db, |tx| interrupts::restore(tx, thread, by));
    for found in [of_position(&db, thread).await, of_event(&db, thread).await] {
        assert_eq!(found.len(), 1);
        assert!(found[0].lacks_question());
        assert_eq!(found[0].id, asked.record.interrupt.id);
    }
}

async fn an_answer_whose_question_is_gone_has_no_effect(db: Db) {
    let asked = ask(&db).await;
    let thread = asked.thread;
    let head = asked.head;
    let call = Call {
        id: "c".to_owned(),
        edited: None,
        status: CallStatus::Ready,
        delegations: vec![],
    };
    let mut answered = asked.interrupt();
    answered.answer = Some(json!("yes"));
    let position = Position {
        phase: Phase::Tools { calls: vec![call] },
        ..waiting(answered.clone())
    };
    let by = RunId::mint();
    write!(db, |tx| checkpoints::set_position(tx, thread, head, &position, by));
    assert_eq!(of_position(&db, thread).await, [answered]);
    let by = asked.record.run;
    write!(db, |tx| interrupts::restore(tx, thread, by));
    let found = read!(db, |tx| checkpoints::head(tx, thread, Lane::Main));
    let position = found.expect("a checkpoint").position;
    assert!(position.asked.is_empty(), "{position:?}");
    let Phase::Tools { calls } = &position.phase else {
        panic!("{position:?}")
    };
    // The answer may have been that the call must not be repeated.
    assert_eq!(calls[0].status, CallStatus::Started);
}

async fn a_row_without_its_question_is_not_shown(db: Db) {
    let Asked { thread, mut record, .. } = ask(&db).await;
    record.interrupt = record.interrupt.without_question();
    write!(db, |tx| interrupts::insert(tx, &record));
    let shown = read!(db, |tx| interrupts::of_thread(tx, thread, None));
    assert!(shown.is_empty(), "{shown:?}");
}

async fn a_pruned_thread_keeps_the_question_that_is_open(db: Db) {
    let asked = ask(&db).await;
    let thread = asked.thread;
    assert!(write!(db, |tx| retention::keep_latest(tx, thread, Timestamp(9))));
    assert_eq!(of_position(&db, thread).await, [asked.interrupt()]);
    assert_eq!(of_event(&db, thread).await, [asked.interrupt()]);
    let open = read!(db, |tx| interrupts::of_thread(
        tx,
        thread,
        Some(InterruptState::Pending)
    ));
    assert_eq!(open, [asked.record]);
}

/// Measures a thread, and returns how many bytes it has.
async fn measured(db: &Db, thread: ThreadId) -> i64 {
    const SQL: &str = "select bytes from thread_bytes where thread_id = $1";
    write!(db, |tx| async {
        stored_bytes::measure(tx, thread, Timestamp(9)).await?;
        DbResult::Ok(on_engine!(tx, |conn| query_scalar(SQL)
            .bind(thread.0)
            .fetch_one(conn)
            .await)?)
    })
}

async fn a_question_of_a_copy_is_measured_once(db: Db) {
    let thread = ask(&db).await.thread;
    let before = measured(&db, thread).await;
    // A copy has interrupts with the number that follows its log.
    let copied = pending_interrupt(thread, Lane::Main, 3);
    let run = copied.run;
    write!(db, |tx| interrupts::insert(tx, &copied));
    for _ in 0..2 {
        assert_eq!(measured(&db, thread).await, before);
    }
    write!(db, |tx| async {
        let event = NewEvent {
            thread,
            seq: 3,
            run,
            lane: Lane::Main,
            fact: &Fact::Paused,
            at: Timestamp(3),
        };
        events::insert(tx, &[event]).await
    });
    let after = measured(&db, thread).await;
    assert!(after > before + 100, "{before}, then {after}");
    assert_eq!(measured(&db, thread).await, after);
}

/// The time of questions about which it matters when they are asked.
const SOME_DAY: Timestamp = Timestamp(1_700_000_000_000_000);

/// Returns an open approval with a long schema.
fn approval(thread: ThreadId, name: &str) -> InterruptRecord {
    let mut record = pending_interrupt(thread, Lane::Main, 2);
    let question = Arc::make_mut(&mut record.interrupt.question);
    question.kind = QuestionKind::ToolApproval;
    question.schema = json!({"description": format!("the schema of {name}"), "enum": vec!["x".repeat(30); 50]}).into();
    record.created_at = SOME_DAY;
    record
}

/// Stores an open approval on a new thread.
async fn ask_for_approval(db: &Db, name: &str) -> InterruptRecord {
    let record = approval(stored_thread(db).await, name);
    let stored = record.clone();
    write!(db, |tx| interrupts::insert(tx, &stored));
    record
}

/// Returns the number that a query finds.
async fn number(db: &Db, sql: &'static str) -> i64 {
    read!(db, |tx| async {
        DbResult::Ok(on_engine!(tx, |conn| query_scalar(sql).fetch_one(conn).await)?)
    })
}

/// The number of stored schemas.
const SCHEMAS: &str = "select count(*) from answer_schemas";

async fn a_long_schema_of_approvals_is_stored_once_for_a_tenant(db: Db) {
    const LONG: &str = "select count(*) from interrupts where octet_length(interrupt) > 1500";
    for name in ["pay", "send", "pay"] {
        let asked = ask_for_approval(&db, name).await;
        let thread = asked.thread;
        let id = asked.interrupt.id.clone();
        assert_eq!(read!(db, |tx| interrupts::find(tx, thread, &id)), Some(asked.clone()));
        let stored = read!(db, |tx| interrupts::of_thread(tx, thread, None));
        assert_eq!(stored, std::slice::from_ref(&asked));
        // A position has its question from the row.
        let step = saying("hi", None, 0);
        put(&db, thread, Lane::Main, 1, &step, waiting(asked.interrupt.clone())).await;
        assert_eq!(of_position(&db, thread).await, [asked.interrupt]);
    }
    assert_eq!(number(&db, SCHEMAS).await, 2);
    assert_eq!(number(&db, LONG).await, 0);
}

async fn a_schema_stays_with_its_question_while_servers_may_be_at_work_that_look_for_it_there(db: Db) {
    let mut asked = vec![];
    for (forms, count) in [(upgrade::EVENTS_IN_STEPS, 0), (upgrade::ANSWER_SCHEMAS, 1)] {
        db.set_forms(forms);
        asked.push(ask_for_approval(&db, "pay").await);
        assert_eq!(number(&db, SCHEMAS).await, count);
    }
    for forms in [upgrade::EVENTS_IN_STEPS, upgrade::ANSWER_SCHEMAS] {
        db.set_forms(forms);
        for record in &asked {
            let thread = record.thread;
            let found = read!(db, |tx| interrupts::of_thread(tx, thread, None));
            assert_eq!(found, std::slice::from_ref(record));
        }
    }
}

async fn an_interrupt_whose_schema_is_gone_is_not_shown(db: Db) {
    const LOSE: &str = "delete from answer_schemas";
    // No other test reads it, which would keep it in memory.
    let asked = ask_for_approval(&db, "an approval that is lost").await;
    let thread = asked.thread;
    write!(db, |tx| async {
        DbResult::Ok(on_engine!(tx, |conn| query(LOSE).execute(conn).await.map(drop))?)
    });
    let found = read!(db, |tx| interrupts::of_thread(tx, thread, None));
    assert!(found.is_empty(), "{found:?}");
}

async fn a_schema_without_questions_is_deleted_some_days_after_its_last_use(db: Db) {
    let days = |count: u64| Timestamp(SOME_DAY.0).plus(Duration::from_secs(count * 24 * 3600));
    let first = ask_for_approval(&db, "pay").await;
    ask_for_approval(&db, "send").await;
    let swept = async |at: Timestamp| write!(db, |tx| interrupts::sweep_schemas(tx, at, 100));
    assert_eq!(swept(days(20)).await, 0);

    // A later question uses the schema again.
    let later = InterruptRecord {
        created_at: days(15),
        ..approval(stored_thread(&db).await, "pay")
    };
    let stored = later.clone();
    write!(db, |tx| interrupts::insert(tx, &stored));
    for record in [first, later] {
        let thread = record.thread;
        let run = record.run;
        write!(db, |tx| interrupts::restore(tx, thread, run));
    }
    assert_eq!(swept(days(20)).await, 0);
    assert_eq!(swept(days(30)).await, 1);
    assert_eq!(number(&db, SCHEMAS).await, 1);
}
