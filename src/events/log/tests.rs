use futures::FutureExt;

use super::*;
use crate::domain::event::Origin;
use crate::domain::id::RunId;
use crate::domain::run::RunStatus;
use crate::domain::time::Timestamp;

fn event(seq: i64) -> Event {
    let origin = Origin {
        lane: Lane::Main,
        namespace: vec![],
        agent: String::new(),
        path: vec![],
        cause: None,
        visibility: Default::default(),
        display_text: None,
    };
    Event {
        seq,
        run: RunId::mint(),
        at: Timestamp(0),
        origin: Arc::new(origin),
        body: EventBody::Fact(Fact::Paused),
    }
}

fn publish(log: &ThreadLog, seqs: impl IntoIterator<Item = i64>) {
    log.publish(seqs.into_iter().map(|seq| Arc::new(event(seq))));
}

/// The visible numbers after `after`; `None` if stored events have to be read first.
fn seen(log: &ThreadLog, after: i64) -> Option<Vec<i64>> {
    match log.buffered(RunId::mint(), after) {
        Buffered::Events(events) => Some(events.iter().map(|event| event.seq).collect()),
        Buffered::Stored(_) => None,
    }
}

#[test]
fn events_become_visible_in_the_order_of_their_numbers() {
    let log = ThreadLog::default();
    log.open(1);
    assert_eq!(log.reserve(2), 1);
    assert_eq!(log.reserve(1), 3);
    publish(&log, [3]);
    assert_eq!(seen(&log, 0), Some(vec![]));
    publish(&log, [1, 2]);
    assert_eq!(seen(&log, 0), Some(vec![1, 2, 3]));
    assert_eq!(seen(&log, 2), Some(vec![3]));
}

#[test]
fn a_volatile_event_waits_for_the_stored_event_before_it() {
    let log = ThreadLog::default();
    log.open(1);
    log.publish_volatile(event);
    log.reserve(1);
    log.publish_volatile(event);
    assert_eq!(seen(&log, 0), Some(vec![1]));
    publish(&log, [2]);
    assert_eq!(seen(&log, 0), Some(vec![1, 2, 3]));
}

#[test]
fn abandoned_numbers_do_not_block_readers() {
    let log = ThreadLog::default();
    log.open(1);
    let first = log.reserve(2);
    log.reserve(1);
    publish(&log, [3]);
    log.abandon(first, 2);
    assert_eq!(seen(&log, 0), Some(vec![3]));
}

#[test]
fn what_an_ended_run_was_storing_is_read_from_the_database() {
    let log = ThreadLog::default();
    log.open(1);
    log.reserve(1);
    log.publish_volatile(event);
    log.close(0);
    assert!(matches!(log.buffered(RunId::mint(), 0), Buffered::Stored(Some(2))));
    assert_eq!(seen(&log, 2), Some(vec![]));
    assert!(!log.is_active());
}

#[test]
fn an_event_with_an_unreserved_number_is_not_published() {
    let log = ThreadLog::default();
    log.open(1);
    log.reserve(1);
    log.open(10);
    publish(&log, [1]);
    assert_eq!(seen(&log, 9), Some(vec![]));
}

#[test]
fn events_before_those_in_memory_are_read_from_the_database() {
    let log = ThreadLog::default();
    assert!(matches!(log.buffered(RunId::mint(), 0), Buffered::Stored(None)));
    log.open(10);
    assert!(matches!(log.buffered(RunId::mint(), 8), Buffered::Stored(Some(9))));
    assert_eq!(seen(&log, 9), Some(vec![]));
}

#[test]
fn the_oldest_events_are_dropped_unless_they_are_being_stored() {
    let log = ThreadLog::default();
    log.open(1);
    log.reserve(1);
    for _ in 0..CAPACITY {
        log.publish_volatile(event);
    }
    assert_eq!(seen(&log, 0), Some(vec![]));
    publish(&log, [1]);
    assert!(matches!(log.buffered(RunId::mint(), 0), Buffered::Stored(Some(1))));
    assert_eq!(seen(&log, 1).map(|seqs| (seqs[0], seqs.len())), Some((2, CAPACITY)));
}

#[test]
fn the_newest_event_is_a_visible_one() {
    let log = ThreadLog::default();
    log.open(1);
    log.publish_volatile(event);
    log.reserve(1);
    log.publish_volatile(event);
    assert_eq!(
        log.newest(),
        Some(1),
        "the second is not visible yet, so a reader from now on must still see it"
    );
    publish(&log, [2]);
    assert_eq!(log.newest(), Some(3));
}

#[test]
fn readers_wake_on_new_events_and_when_a_run_starts_or_ends() {
    let log = ThreadLog::default();
    let rang = |what: &str, act: &dyn Fn()| {
        let change = log.next_change();
        act();
        assert!(change.now_or_never().is_some(), "{what}");
    };
    rang("open", &|| log.open(1));
    rang("say", &|| log.publish_volatile(event));
    rang("abandon", &|| log.abandon(log.reserve(1), 1));
    rang("publish", &|| publish(&log, [log.reserve(1)]));
    rang("close", &|| log.close(0));
}

/// An event of an agent.
fn event_of(lane: Lane, seq: i64, fact: Fact) -> Event {
    let paused = event(seq);
    let origin = Origin {
        lane,
        ..Origin::clone(&paused.origin)
    };
    Event {
        origin: Arc::new(origin),
        body: EventBody::Fact(fact),
        ..paused
    }
}

/// Returns whether something wakes those who wait for the end of a run.
fn wakes_who_waits(log: &ThreadLog, act: impl Fn()) -> bool {
    let end = log.next_end();
    act();
    end.now_or_never().is_some()
}

#[test]
fn who_waits_for_the_end_of_a_run_in_another_process_is_not_woken_by_pieces_of_answers() {
    let log = ThreadLog::default();
    let wakes = |act: &dyn Fn()| wakes_who_waits(&log, act);
    assert!(wakes(&|| log.follow(0, 2, [stored(1), chunk(2)])));
    let change = log.next_change();
    assert!(!wakes(&|| log.follow(2, 4, [chunk(3), chunk(4)])));
    assert!(change.now_or_never().is_some(), "others read them");
    assert!(wakes(&|| log.follow(4, 6, [chunk(5), stored(6)])));
    assert!(!wakes(&|| log.follow(4, 6, [chunk(5), stored(6)])), "they are known");
    assert!(wakes(&|| log.follow(9, 10, [chunk(10)])), "some are missing");
    assert!(wakes(&|| log.wake()));
}

#[test]
fn who_waits_for_the_end_of_a_run_is_not_woken_by_each_event() {
    let log = ThreadLog::default();
    let wakes = |act: &dyn Fn()| wakes_who_waits(&log, act);
    let publish_fact = |lane, fact| log.publish([Arc::new(event_of(lane, log.reserve(1), fact))]);
    let start = || Fact::started_anew(None);
    let end = || Fact::over(RunStatus::Success, None);
    let child = Lane::Child(RunId::mint());
    assert!(wakes(&|| log.open(1)));
    assert!(wakes(&|| publish_fact(Lane::Main, start())));
    assert!(!wakes(&|| log.publish_volatile(event)));
    assert!(!wakes(&|| publish(&log, [log.reserve(1)])));
    assert!(!wakes(&|| publish_fact(child, start())));
    assert!(!wakes(&|| publish_fact(child, end())));
    assert!(wakes(&|| publish_fact(Lane::Main, end())));
    assert!(wakes(&|| log.close(0)));
}

#[test]
fn who_waits_for_the_end_of_a_run_reads_what_memory_would_drop() {
    let log = ThreadLog::default();
    log.open(1);
    let mut read = 0;
    let mut times = 0;
    for number in 0..4 * CAPACITY {
        let end = log.next_end();
        match number % 3 {
            0 => publish(&log, [log.reserve(1)]),
            _ => log.publish_volatile(event),
        }
        if end.now_or_never().is_some() {
            let news = seen(&log, read).expect("memory has them");
            read = news.last().copied().unwrap_or(read);
            times += 1;
        }
    }
    assert_eq!(times, 8);
    assert_eq!(read, log.newest().expect("a run is active"));
}

/// The numbers of [`seen`] for a reader of this run.
fn here(log: &ThreadLog, run: RunId, after: i64) -> Option<Vec<i64>> {
    match log.buffered(run, after) {
        Buffered::Events(events) => Some(events.iter().map(|event| event.seq).collect()),
        Buffered::Stored(_) => None,
    }
}

#[test]
fn readers_of_a_fresh_run_need_no_database_and_others_do() {
    let log = ThreadLog::default();
    let run = RunId::mint();
    let other = RunId::mint();
    assert_eq!(here(&log, run, 0), None);
    log.expect_run(run, true);
    assert_eq!(here(&log, run, 0), Some(vec![]));
    assert_eq!(here(&log, other, 0), None);
    assert_eq!(log.newest(), None);
    log.open(41);
    log.publish_volatile(|seq| Event { run, ..event(seq) });
    assert_eq!(here(&log, run, 0), Some(vec![41]));
    assert_eq!(here(&log, other, 0), None);
    assert_eq!(log.newest(), Some(41));
}

#[test]
fn readers_of_a_run_that_was_taken_over_read_stored_events() {
    let log = ThreadLog::default();
    let run = RunId::mint();
    log.expect_run(run, false);
    assert_eq!(here(&log, run, 0), None);
    log.open(41);
    assert_eq!(here(&log, run, 0), None);
    assert_eq!(here(&log, run, 40), Some(vec![]));
}

#[test]
fn a_late_close_does_not_affect_the_next_run() {
    let log = ThreadLog::default();
    let run = RunId::mint();
    let first = log.expect_run(RunId::mint(), true);
    log.open(1);
    let second = log.expect_run(run, true);
    log.open(5);
    let reserved = log.reserve(1);
    log.close(first);
    assert!(log.is_active());
    log.publish([Arc::new(event(reserved))]);
    assert_eq!(here(&log, run, 0), Some(vec![reserved]));
    log.close(second);
    assert!(!log.is_active());
}

fn chunk(seq: i64) -> Slot {
    Slot {
        seq,
        content: SlotContent::Visible(Arc::new(event(seq))),
    }
}

fn stored(seq: i64) -> Slot {
    Slot {
        seq,
        content: SlotContent::Stored(None),
    }
}

/// The number up to which stored events have to be read; `None` if there is nothing to read.
fn stored_to_read(log: &ThreadLog, after: i64) -> Option<i64> {
    match log.buffered(RunId::mint(), after) {
        Buffered::Events(_) => None,
        Buffered::Stored(upto) => upto,
    }
}

#[test]
fn events_of_another_process_are_read_in_order_with_the_stored_ones() {
    let log = ThreadLog::default();
    log.follow(0, 4, [stored(1), stored(2), chunk(3), chunk(4)]);
    log.follow(4, 8, [chunk(5), stored(7), chunk(8)]);
    assert_eq!(stored_to_read(&log, 0), Some(2));
    assert_eq!(seen(&log, 2), Some(vec![3, 4, 5]));
    assert_eq!(stored_to_read(&log, 5), Some(7));
    assert_eq!(seen(&log, 7), Some(vec![8]));
    assert_eq!(seen(&log, 8), Some(vec![]));
    assert!(log.is_followed());
}

#[test]
fn events_of_another_process_that_come_twice_are_added_once() {
    let log = ThreadLog::default();
    log.follow(0, 2, [chunk(1), chunk(2)]);
    log.follow(0, 3, [chunk(1), chunk(2), chunk(3)]);
    log.follow(1, 2, [chunk(2)]);
    assert_eq!(seen(&log, 0), Some(vec![1, 2, 3]));
}

#[test]
fn a_reader_steps_over_missing_events_of_another_process() {
    let log = ThreadLog::default();
    log.follow(0, 2, [chunk(1), chunk(2)]);
    log.follow(5, 7, [chunk(6), chunk(7)]);
    assert_eq!(stored_to_read(&log, 0), Some(5));
    assert_eq!(stored_to_read(&log, 2), Some(5));
    assert_eq!(seen(&log, 5), Some(vec![6, 7]));
}

#[test]
fn a_run_that_is_active_here_takes_nothing_of_another_process() {
    let log = ThreadLog::default();
    log.follow(0, 2, [chunk(1), chunk(2)]);
    let holder = log.expect_run(RunId::mint(), false);
    assert_eq!(seen(&log, 0), None, "the stored events are read first");
    log.open(10);
    log.follow(2, 3, [chunk(3)]);
    assert_eq!(seen(&log, 9), Some(vec![]));
    log.close(holder);
    log.follow(20, 21, [chunk(21)]);
    assert_eq!(stored_to_read(&log, 9), Some(20));
    assert_eq!(seen(&log, 20), Some(vec![21]));
}

#[test]
fn the_end_of_a_run_in_another_process_sends_readers_to_the_database() {
    let log = ThreadLog::default();
    log.follow(0, 1, [chunk(1)]);
    log.evict();
    assert_eq!(seen(&log, 0), Some(vec![1]), "readers may still come");
    log.wake();
    assert!(!log.is_followed());
    log.evict();
    assert_eq!(stored_to_read(&log, 0), Some(1));
}

#[test]
fn events_that_are_sent_again_from_an_earlier_number_replace_those_in_memory() {
    let log = ThreadLog::default();
    log.follow(5, 7, [chunk(6), chunk(7)]);
    log.follow_again(0);
    log.follow(0, 4, [chunk(1), chunk(3)]);
    log.follow(4, 8, [chunk(6), chunk(7), chunk(8)]);
    assert_eq!(seen(&log, 0), Some(vec![1, 3, 6, 7, 8]));
    // Known events are not read twice.
    log.follow_again(0);
    log.follow(0, 4, [chunk(1), chunk(3)]);
    assert_eq!(seen(&log, 0), Some(vec![1, 3, 6, 7, 8]));
    assert_eq!(seen(&log, 7), Some(vec![8]));
}

#[test]
fn events_that_are_sent_again_change_nothing_while_a_run_is_active_here() {
    let log = ThreadLog::default();
    log.open(5);
    log.publish_volatile(event);
    log.follow_again(0);
    assert_eq!(seen(&log, 4), Some(vec![5]));
}
