use std::sync::Arc;

use serde_json::json;
use sqlx::{query, query_scalar};

use super::copies::copy_for;
use super::{Db, on_both, read, run_at, saying, stored_thread, texts, write};
use crate::db::checkpoints::{self, HistoryQuery, NewCheckpoint};
use crate::db::engine::{on_engine, upgrade};
use crate::db::events::{self, Logged, LoggedEvent, NewEvent};
use crate::db::{DbError, DbResult, Engine, Tx, retention, runs};
use crate::domain::access::Ownership;
use crate::domain::checkpoint::{CheckpointSource, Entry, Lane};
use crate::domain::event::Fact;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::machine::{Machine, Phase, Position};
use crate::domain::message::{Message, REMOVE_ALL, Role};
use crate::domain::state::{File, State, Update};
use crate::domain::time::Timestamp;

on_both!(
    folding_equals_applying_each_update,
    checkpoints_form_segments,
    forks_of_forks_are_folded,
    long_branches_are_folded_from_any_state_in_memory,
    a_history_has_all_branches_newest_first,
    the_checkpoint_from_which_a_step_was_carried_on_is_stored,
    lanes_are_separate,
    states_are_cached,
    parents_are_known_whether_they_are_stored_or_not,
    a_segment_without_its_first_step_has_no_state,
    the_parent_of_a_step_after_a_deleted_run_is_the_step_before_it,
    a_machine_is_in_memory_if_its_state_is_cached,
    a_checkpoint_needs_its_parent_and_a_free_number,
    many_checkpoints_are_stored_in_batches,
    the_log_has_steps_and_events_in_order,
    a_start_that_an_input_follows_is_in_the_log,
    an_event_behind_its_step_is_in_the_log,
    events_have_rows_while_servers_may_be_at_work_that_find_them_nowhere_else,
    a_start_without_a_row_goes_with_the_history_before_its_input,
    a_start_that_its_input_does_not_tell_has_a_row,
    the_checkpoints_of_a_run_are_deleted,
    an_update_is_found_between_two_numbers_of_the_log,
    the_last_step_of_a_run_that_was_not_deleted_is_found
);

/// Stores a step of the main agent and returns its segment.
async fn add(db: &Db, thread: ThreadId, seq: i64, entry: &Entry) -> i64 {
    let entry = entry.clone();
    write!(db, |tx| insert_step(tx, thread, seq, entry))
}

async fn insert_step(tx: &mut Tx<'_>, thread: ThreadId, seq: i64, entry: Entry) -> DbResult<i64> {
    insert_step_of(tx, thread, None, seq, entry).await
}

async fn insert_step_of(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    run: Option<RunId>,
    seq: i64,
    entry: Entry,
) -> DbResult<i64> {
    let position = Position {
        taken: 3,
        ..Position::default()
    };
    let at = Timestamp(seq);
    let placed = NewCheckpoint {
        thread,
        lane: Lane::Main,
        seq,
        segment: None,
        run,
        entry: &entry,
        position: &position,
        at,
    };
    checkpoints::insert(tx, &placed).await
}

/// Returns the texts of the messages at a checkpoint, folded without the cache.
async fn texts_at(db: &Db, thread: ThreadId, checkpoint: CheckpointId) -> Vec<String> {
    db.states().clear();
    let state = read!(db, |tx| state_at(tx, thread, checkpoint));
    texts(&state)
}

async fn state_at(tx: &mut Tx<'_>, thread: ThreadId, checkpoint: CheckpointId) -> DbResult<State> {
    let head = checkpoints::find_head(tx, thread, checkpoint)
        .await?
        .expect("the checkpoint");
    checkpoints::load_state(tx, thread, head.lane, &head).await
}

async fn folding_equals_applying_each_update(db: Db) {
    let thread = stored_thread(&db).await;
    let say = |id: &str, text: &str| Update::messages([Message::human(text).with_id(id)]);
    let remove = |id: &str| Update::messages([Message::new(Role::Remove, "").with_id(id)]);
    let file = |text: &str| Some(Arc::new(File::text(text, Timestamp(1))));
    let files = |changes: Vec<(&str, Option<Arc<File>>)>| Update {
        files: changes
            .into_iter()
            .map(|(path, file)| (path.to_owned(), file))
            .collect(),
        ..Update::none()
    };
    let steps = [
        vec![
            say("a", "one"),
            say("b", "two"),
            files(vec![("/x", file("x")), ("/y", file("y"))]),
        ],
        vec![
            Update::messages([Message::human("nameless")]),
            say("c", "three"),
            Update::field("todos", json!([1])),
        ],
        vec![
            remove("a"),
            say("b", "TWO"),
            say("d", "four"),
            files(vec![("/x", None), ("/y", file("Y"))]),
        ],
        vec![],
        vec![
            say("c", "THREE"),
            Update::field("todos", json!([2])),
            Update::field("_private", json!(null)),
        ],
        vec![remove(REMOVE_ALL), say("b", "again"), say("a", "anew")],
    ];
    let mut expected = State::default();
    let mut parent = None;
    for (at, writes) in (1_i64..).zip(steps) {
        let mut entry = saying("", parent, at);
        entry.writes = writes;
        entry.logged_writes = vec![0];
        parent = Some(entry.id);
        entry.writes.iter().for_each(|update| expected.apply(update));
        add(&db, thread, at, &entry).await;
        let id = entry.id;
        db.states().clear();
        let found = read!(db, |tx| checkpoints::get(tx, thread, id)).expect("the checkpoint");
        assert_eq!(found.state, expected.clone());
        assert_eq!(found.entry, entry);
        assert_eq!(found.seq, at);
        assert_eq!(found.position.taken, 3);
        assert_eq!(found.created_at, Timestamp(at));
    }
}

async fn checkpoints_form_segments(db: Db) {
    let thread = stored_thread(&db).await;
    let a = saying("a", None, -1);
    let b = saying("b", Some(a.id), 0);
    let c = saying("c", Some(b.id), 1);
    let fork = saying("d", Some(b.id), 1);
    let e = saying("e", Some(fork.id), 2);
    let f = saying("f", Some(c.id), 2);
    let other_fork = saying("g", Some(a.id), 0);
    let mut segments = vec![];
    for (seq, entry) in [
        (1, &a),
        (2, &b),
        (5, &c),
        (6, &fork),
        (7, &e),
        (8, &f),
        (9, &other_fork),
    ] {
        segments.push(add(&db, thread, seq, entry).await);
    }
    assert_eq!(segments, [1, 1, 1, 6, 6, 1, 9]);
    assert_eq!(texts_at(&db, thread, f.id).await, ["a", "b", "c", "f"]);
    assert_eq!(texts_at(&db, thread, e.id).await, ["a", "b", "d", "e"]);
    assert_eq!(texts_at(&db, thread, other_fork.id).await, ["a", "g"]);
    assert_eq!(texts_at(&db, thread, b.id).await, ["a", "b"]);
    let head = read!(db, |tx| checkpoints::head(tx, thread, Lane::Main)).expect("a head");
    assert_eq!(head.id, other_fork.id);
    assert_eq!(head.seq, 9);
    assert_eq!(head.segment, 9);
    assert_eq!(head.step, 0);
    assert_eq!(head.run, None);
}

async fn forks_of_forks_are_folded(db: Db) {
    let thread = stored_thread(&db).await;
    let mut parent = None;
    let mut trunk = vec![];
    for seq in 1..=20 {
        let entry = saying(&format!("t{seq}"), parent, seq);
        parent = Some(entry.id);
        add(&db, thread, seq, &entry).await;
        trunk.push(entry.id);
    }
    // A fork of a fork of a fork, each a few steps long.
    let mut expected: Vec<String> = (1..=10).map(|n| format!("t{n}")).collect();
    let mut from = trunk[9];
    let mut seq = 20;
    for branch in 0..3 {
        let mut last = from;
        for step in 0..3 {
            seq += 1;
            let text = format!("b{branch}.{step}");
            let entry = saying(&text, Some(last), seq);
            last = entry.id;
            add(&db, thread, seq, &entry).await;
            if step < 2 {
                expected.push(text);
                from = entry.id;
            }
        }
        assert_eq!(texts_at(&db, thread, from).await, expected);
    }
    assert_eq!(texts_at(&db, thread, trunk[19]).await.len(), 20);
}

/// Adds `count` steps after `parent`, with the numbers from `first` on as texts. Returns their ids.
async fn add_many(
    db: &Db,
    thread: ThreadId,
    first: i64,
    parent: Option<CheckpointId>,
    count: i64,
) -> Vec<CheckpointId> {
    let mut entries: Vec<Entry> = vec![];
    for seq in first..first + count {
        let parent = entries.last().map_or(parent, |entry| Some(entry.id));
        entries.push(saying(&seq.to_string(), parent, seq));
    }
    let ids = entries.iter().map(|entry| entry.id).collect();
    db.write(move |tx| {
        Box::pin(async move {
            let position = Position::default();
            let checkpoint = |(seq, entry)| NewCheckpoint {
                thread,
                lane: Lane::Main,
                seq,
                segment: None,
                run: None,
                entry,
                position: &position,
                at: Timestamp(seq),
            };
            let placed: Vec<NewCheckpoint<'_>> = (first..).zip(&entries).map(checkpoint).collect();
            checkpoints::insert_all(tx, &placed).await
        })
    })
    .await
    .expect("a write");
    ids
}

async fn long_branches_are_folded_from_any_state_in_memory(db: Db) {
    let thread = stored_thread(&db).await;
    let trunk = add_many(&db, thread, 1, None, 600).await;
    let branch = add_many(&db, thread, 601, Some(trunk[299]), 300).await;
    let path: Vec<CheckpointId> = trunk[..300].iter().chain(&branch).copied().collect();
    let said: Vec<String> = (1..=300).chain(601..=900).map(|seq| seq.to_string()).collect();
    // At most 256 steps of a segment are read at once.
    for at in [0, 254, 255, 256, 299, 300, 554, 555, 556, 557, 599] {
        assert_eq!(texts_at(&db, thread, path[at]).await, said[..=at], "{at}");
    }
    let last = path[599];
    for cached in [0, 42, 43, 44, 45, 298, 299, 300, 301, 342, 343, 344, 345, 598, 599] {
        let made_up = State {
            fields: [("from".to_owned(), json!("memory"))].into(),
            ..State::default()
        };
        db.states().clear();
        db.states().put(path[cached], Arc::new(made_up));
        let state = read!(db, |tx| state_at(tx, thread, last));
        assert_eq!(texts(&state), said[cached + 1..], "{cached}");
        assert_eq!(state.fields["from"], json!("memory"), "{cached}");
    }
    let end = trunk[599];
    assert_eq!(texts_at(&db, thread, end).await.len(), 600);
    // Their ids are read in parts, too: those of 344 to 599, of 88 to 343, and of the others.
    for cached in [0, 86, 87, 88, 89, 342, 343, 344] {
        db.states().clear();
        db.states().put(trunk[cached], Arc::default());
        let said: Vec<String> = (cached + 2..=600).map(|seq| seq.to_string()).collect();
        let state = read!(db, |tx| state_at(tx, thread, end));
        assert_eq!(texts(&state), said, "{cached}");
    }
}

/// Adds the checkpoints `a` to `f`, one after the other: `a`, `b`, `c` and `f`, and from `a` on `d` and `e`.
async fn two_branches(db: &Db, thread: ThreadId) -> [Entry; 6] {
    let a = saying("a", None, -1);
    let b = saying("b", Some(a.id), 0);
    let c = saying("c", Some(b.id), 1);
    let mut d = saying("d", Some(a.id), 0);
    d.source = CheckpointSource::Fork;
    let e = saying("e", Some(d.id), 1);
    let f = saying("f", Some(c.id), 2);
    let all = [a, b, c, d, e, f];
    for (seq, entry) in (1..).zip(&all) {
        add(db, thread, seq, entry).await;
    }
    all
}

async fn a_history_has_all_branches_newest_first(db: Db) {
    let thread = stored_thread(&db).await;
    let [a, _, _, d, _, f] = two_branches(&db, thread).await;
    let history = async |limit: i64, before: Option<CheckpointId>| {
        db.states().clear();
        let found = read!(db, |tx| checkpoints::history(
            tx,
            thread,
            Lane::Main,
            HistoryQuery { limit, before }
        ));
        found
            .iter()
            .map(|checkpoint| texts(&checkpoint.state).concat())
            .collect::<Vec<_>>()
    };
    assert_eq!(history(10, None).await, ["abcf", "ade", "ad", "abc", "ab", "a"]);
    assert_eq!(history(2, None).await, ["abcf", "ade"]);
    assert_eq!(history(3, Some(f.id)).await, ["ade", "ad", "abc"]);
    assert_eq!(history(3, Some(a.id)).await, Vec::<String>::new());
    assert_eq!(history(3, Some(CheckpointId::mint())).await, Vec::<String>::new());
    let found = read!(db, |tx| checkpoints::history(
        tx,
        thread,
        Lane::Main,
        HistoryQuery { limit: 3, before: None }
    ));
    assert_eq!(found[2].entry, d);
}

async fn lanes_are_separate(db: Db) {
    let thread = stored_thread(&db).await;
    let run = RunId::mint();
    let main = saying("main", None, -1);
    add(&db, thread, 1, &main).await;
    let inner = saying("inner", None, -1);
    let id = inner.id;
    let position = Position {
        phase: Phase::Model,
        ..Position::default()
    };
    let lane = Lane::Child(run);
    let stored = position.clone();
    db.write(move |tx| {
        Box::pin(async move {
            let entry = &inner;
            let position = &stored;
            let at = Timestamp(2);
            let placed = NewCheckpoint {
                thread,
                lane,
                seq: 2,
                segment: None,
                run: Some(run),
                entry,
                position,
                at,
            };
            checkpoints::insert(tx, &placed).await
        })
    })
    .await
    .expect("a write");
    let head = read!(db, |tx| checkpoints::head(tx, thread, lane)).expect("a head");
    assert_eq!(head.id, id);
    assert_eq!(head.lane, lane);
    assert_eq!(head.run, Some(run));
    assert_eq!(head.position, position);
    assert_eq!(texts_at(&db, thread, id).await, ["inner"]);
    db.states().clear();
    for (wanted, text) in [(main.id, "main"), (id, "inner")] {
        let state = read!(db, |tx| checkpoints::find_state(tx, thread, wanted)).expect("a state");
        assert_eq!(texts(&state), [text]);
        let elsewhere = read!(db, |tx| checkpoints::find_state(tx, ThreadId::mint(), wanted));
        assert!(elsewhere.is_none());
    }
    assert_eq!(
        read!(db, |tx| checkpoints::head(tx, thread, Lane::Main)).map(|head| head.id),
        Some(main.id)
    );
    let found = read!(db, |tx| checkpoints::history(
        tx,
        thread,
        lane,
        HistoryQuery { limit: 9, before: None }
    ));
    assert_eq!(found.len(), 1);
    let ended = Position {
        phase: Phase::Ended,
        ..Position::default()
    };
    let changed = ended.clone();
    let other_position = changed.clone();
    write!(db, |tx| checkpoints::set_position(
        tx,
        ThreadId::mint(),
        id,
        &other_position,
        RunId::mint()
    ));
    let kept = read!(db, |tx| checkpoints::find_head(tx, thread, id)).map(|head| head.position);
    assert_ne!(kept, Some(ended.clone()));
    write!(db, |tx| checkpoints::set_position(
        tx,
        thread,
        id,
        &changed,
        RunId::mint()
    ));
    assert_eq!(
        read!(db, |tx| checkpoints::find_head(tx, thread, id)).map(|head| head.position),
        Some(ended)
    );
    assert!(read!(db, |tx| checkpoints::find_head(tx, ThreadId::mint(), id)).is_none());
}

/// Returns the machine of the main agent, if its state is in memory.
async fn machine_in_memory(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Option<(Machine, Option<i64>)>> {
    let newest = checkpoints::head(tx, thread, Lane::Main).await?;
    Ok(checkpoints::machine_in_memory(tx, newest))
}

async fn a_machine_is_in_memory_if_its_state_is_cached(db: Db) {
    let thread = stored_thread(&db).await;
    let empty = read!(db, |tx| machine_in_memory(tx, thread));
    assert_eq!(
        empty.map(|(machine, segment)| (machine.head, segment)),
        Some((None, None))
    );
    let entry = saying("a", None, -1);
    let id = entry.id;
    let segment = add(&db, thread, 1, &entry).await;
    let unknown = read!(db, |tx| machine_in_memory(tx, thread));
    assert!(unknown.is_none());
    let whole = read!(db, |tx| checkpoints::machine(tx, thread, Lane::Main));
    let cached = read!(db, |tx| machine_in_memory(tx, thread)).expect("the machine");
    assert_eq!(cached, whole);
    assert_eq!(cached.0.head, Some(id));
    assert_eq!(cached.1, Some(segment));
}

async fn states_are_cached(db: Db) {
    let thread = stored_thread(&db).await;
    let a = saying("a", None, -1);
    let b = saying("b", Some(a.id), 0);
    let c = saying("c", Some(b.id), 1);
    for (seq, entry) in (1..).zip([&a, &b, &c]) {
        add(&db, thread, seq, entry).await;
    }
    let id = c.id;
    let middle = b.id;
    assert!(db.states().get(id).is_none());
    let made_up = State {
        fields: [("from".to_owned(), json!("memory"))].into(),
        ..State::default()
    };
    db.states().put(middle, Arc::new(made_up));
    let state = read!(db, |tx| state_at(tx, thread, id));
    assert_eq!(texts(&state), vec!["c".to_owned()]);
    assert_eq!(state.fields["from"].clone(), json!("memory"));
    assert!(db.states().get(id).is_some());
    db.states().clear();
    for _ in 0..600 {
        db.states().put(CheckpointId::mint(), Arc::default());
    }
    db.states().put(id, Arc::default());
    assert!(db.states().get(id).is_some());
    assert!(format!("{:?}", db.states()).contains("entries: 512"));
}

async fn parents_are_known_whether_they_are_stored_or_not(db: Db) {
    const STORED: &str = "select count(parent_id) from checkpoints where thread_id = $1";
    let thread = stored_thread(&db).await;
    let a = saying("a", None, -1);
    let b = saying("b", Some(a.id), 0);
    let fork = saying("fork", Some(a.id), 0);
    // Behind a step of another segment.
    let c = saying("c", Some(b.id), 1);
    for (seq, entry) in (1..).zip([&a, &b, &fork, &c]) {
        add(&db, thread, seq, entry).await;
    }
    let stored: i64 = read!(db, |tx| async {
        Ok::<_, DbError>(on_engine!(tx, |conn| query_scalar(STORED)
            .bind(thread.0)
            .fetch_one(conn)
            .await)?)
    });
    let expected = match db.engine() {
        Engine::Sqlite => 1,
        Engine::Postgres => 3,
    };
    assert_eq!(stored, expected);
    for entry in [&a, &b, &fork, &c] {
        let id = entry.id;
        let summary = read!(db, |tx| checkpoints::load_summary(tx, thread, Lane::Main, id));
        assert_eq!(summary.expect("the checkpoint").parent, entry.parent);
    }
    let log = read!(db, |tx| events::read(tx, thread, 0, 9));
    let entries = [&a, &b, &fork, &c].map(|entry| Logged::Entry(entry.clone()));
    assert_eq!(log.into_iter().map(|logged| logged.what).collect::<Vec<_>>(), entries);
    write!(db, |tx| lose_first(tx, thread));
    assert!(has_no_state(&db, thread, c.id).await);
}

/// Deletes the first step of a thread.
async fn lose_first(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<()> {
    const SQL: &str = "delete from checkpoints where thread_id = $1 and seq = 1";
    on_engine!(tx, |conn| query(SQL).bind(thread.0).execute(conn).await.map(drop))?;
    Ok(())
}

/// Returns whether the state at a checkpoint cannot be read from the database.
async fn has_no_state(db: &Db, thread: ThreadId, id: CheckpointId) -> bool {
    db.states().clear();
    let read = db.read(move |tx| Box::pin(state_at(tx, thread, id))).await;
    read.is_err_and(|error| error.is_corrupt())
}

async fn a_segment_without_its_first_step_has_no_state(db: Db) {
    // At most 256 steps are read at once.
    for count in [2, 256, 257, 258, 513, 600] {
        let thread = stored_thread(&db).await;
        let ids = add_many(&db, thread, 1, None, count).await;
        write!(db, |tx| lose_first(tx, thread));
        let last = ids.last().copied().expect("a checkpoint");
        assert!(has_no_state(&db, thread, last).await, "{count}");
        db.states().put(ids[1], Arc::default());
        let state = read!(db, |tx| state_at(tx, thread, last));
        assert_eq!(texts(&state).len(), ids.len() - 2, "{count}");
    }
}

async fn the_parent_of_a_step_after_a_deleted_run_is_the_step_before_it(db: Db) {
    let thread = stored_thread(&db).await;
    let run = RunId::mint();
    let a = saying("a", None, -1);
    let undone = saying("undone", Some(a.id), 0);
    let b = saying("b", Some(a.id), 0);
    add(&db, thread, 1, &a).await;
    write!(db, |tx| insert_step_of(tx, thread, Some(run), 2, undone));
    write!(db, |tx| checkpoints::delete_of_run(tx, thread, run));
    assert_eq!(add(&db, thread, 3, &b).await, 1, "the segment goes on");
    let newest = read!(db, |tx| checkpoints::newest_summary(tx, thread, Lane::Main)).expect("a checkpoint");
    assert_eq!((newest.id, newest.parent), (b.id, Some(a.id)));
    assert_eq!(texts_at(&db, thread, b.id).await, ["a", "b"]);
}

async fn a_checkpoint_needs_its_parent_and_a_free_number(db: Db) {
    let thread = stored_thread(&db).await;
    let orphan = saying("a", Some(CheckpointId::mint()), 0);
    let refused = db.write(move |tx| Box::pin(insert_step(tx, thread, 1, orphan))).await;
    assert!(matches!(refused, Err(DbError::Conflict(_))), "{refused:?}");
    add(&db, thread, 1, &saying("a", None, -1)).await;
    let same_number = saying("b", None, -1);
    let refused = db
        .write(move |tx| Box::pin(insert_step(tx, thread, 1, same_number)))
        .await;
    assert!(matches!(refused, Err(DbError::Conflict(_))), "{refused:?}");
}

async fn many_checkpoints_are_stored_in_batches(db: Db) {
    let thread = stored_thread(&db).await;
    let mut entries: Vec<Entry> = vec![];
    for n in 0..450 {
        entries.push(saying(&n.to_string(), entries.last().map(|entry| entry.id), n));
    }
    let last = entries[449].id;
    db.write(move |tx| {
        Box::pin(async move {
            let position = Position::default();
            let checkpoint = |(seq, entry)| {
                let lane = Lane::Main;
                let at = Timestamp(seq);
                NewCheckpoint {
                    thread,
                    lane,
                    seq,
                    segment: None,
                    run: None,
                    entry,
                    position: &position,
                    at,
                }
            };
            let placed: Vec<NewCheckpoint<'_>> = (1..).zip(&entries).map(checkpoint).collect();
            assert_eq!(checkpoints::insert_all(tx, &placed).await?, 1);
            assert_eq!(checkpoints::insert_all(tx, &[]).await?, 0);
            DbResult::Ok(())
        })
    })
    .await
    .expect("a write");
    let state = read!(db, |tx| state_at(tx, thread, last));
    assert_eq!(texts(&state), (0..450).map(|n| n.to_string()).collect::<Vec<_>>());
}

async fn the_log_has_steps_and_events_in_order(db: Db) {
    let thread = stored_thread(&db).await;
    let run = RunId::mint();
    let other = RunId::mint();
    let entries: Vec<Entry> = [2, 4].iter().map(|n| saying(&n.to_string(), None, *n)).collect();
    let first = entries[0].clone();
    let second = entries[1].clone();
    db.write(move |tx| {
        Box::pin(async move {
            let lane = Lane::Main;
            let position = Position::default();
            let facts = [1, 3, 5].map(|n| Fact::Custom { value: json!(n) });
            let fact = |seq: i64, run, fact| NewEvent {
                thread,
                seq,
                run,
                lane,
                fact,
                at: Timestamp(seq),
            };
            let facts = [
                fact(1, run, &facts[0]),
                fact(3, run, &facts[1]),
                fact(5, other, &facts[2]),
            ];
            events::insert(tx, &facts).await?;
            let checkpoint = |seq, run, entry| {
                let at = Timestamp(seq);
                NewCheckpoint {
                    thread,
                    lane,
                    seq,
                    segment: None,
                    run,
                    entry,
                    position: &position,
                    at,
                }
            };
            checkpoints::insert_all(
                tx,
                &[checkpoint(2, Some(run), &entries[0]), checkpoint(4, None, &entries[1])],
            )
            .await
        })
    })
    .await
    .expect("a write");
    let all = read!(db, |tx| events::read(tx, thread, 0, 10));
    assert_eq!(all.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(all[0].what, Logged::Fact(Fact::Custom { value: json!(1) }));
    assert_eq!(&all[1].what, &Logged::Entry(first));
    assert_eq!(all[1].run, Some(run));
    assert_eq!(all[1].at, Timestamp(2));
    assert_eq!(&all[3].what, &Logged::Entry(second));
    assert_eq!(all[3].run, None);
    assert_eq!(all[3].lane, Lane::Main);
    let seqs = async |after: i64, limit: i64| {
        let page = read!(db, |tx| events::read(tx, thread, after, limit));
        page.iter().map(|event| event.seq).collect::<Vec<_>>()
    };
    assert_eq!(seqs(1, 2).await, [2, 3]);
    assert_eq!(seqs(5, 10).await, Vec::<i64>::new());
}

/// Stores an event as number `seq`, and an input as the number that follows.
async fn store_input(
    db: &Db,
    thread: ThreadId,
    run: RunId,
    seq: i64,
    parent: Option<CheckpointId>,
    fact: Fact,
) -> Entry {
    let input = Entry {
        source: CheckpointSource::Input,
        node: "__start__".to_owned(),
        writes: vec![],
        ..saying("", parent, 0)
    };
    let entry = input.clone();
    write!(db, |tx| async {
        let at = Timestamp(5);
        let lane = Lane::Main;
        let step = NewCheckpoint {
            thread,
            lane,
            seq: seq + 1,
            segment: None,
            run: Some(run),
            entry: &entry,
            position: &Position::default(),
            at,
        };
        let event = NewEvent {
            thread,
            seq,
            run,
            lane,
            fact: &fact,
            at,
        };
        events::insert_with_steps(tx, &[step], &[event]).await
    });
    input
}

/// Returns an entry of the log of [`store_input`] or [`store_step`].
fn logged(run: RunId, seq: i64, what: Logged) -> LoggedEvent {
    LoggedEvent {
        seq,
        run: Some(run),
        lane: Lane::Main,
        at: Timestamp(5),
        what,
    }
}

async fn event_rows(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<i64> {
    const SQL: &str = "select count(*) from events where thread_id = $1";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(thread.0)
        .fetch_one(conn)
        .await)?)
}

async fn a_start_that_an_input_follows_is_in_the_log(db: Db) {
    let thread = stored_thread(&db).await;
    let run = RunId::mint();
    let first = saying("a", None, -1);
    add(&db, thread, 1, &first).await;
    let started = Fact::started_anew(Some(first.id));
    let input = store_input(&db, thread, run, 2, Some(first.id), started.clone()).await;
    assert_eq!(read!(db, |tx| event_rows(tx, thread)), 0);
    let log = read!(db, |tx| events::read(tx, thread, 1, 10));
    let expected = [
        logged(run, 2, Logged::Fact(started)),
        logged(run, 3, Logged::Entry(input)),
    ];
    assert_eq!(log, expected);
    for (after, limit, page) in [
        (0, 2, vec![1, 2]),
        (1, 1, vec![2]),
        (2, 1, vec![3]),
        (0, 9, vec![1, 2, 3]),
    ] {
        let found = read!(db, |tx| events::read(tx, thread, after, limit));
        let found: Vec<i64> = found.iter().map(|event| event.seq).collect();
        assert_eq!(found, page, "{limit} after {after}");
    }
    for (seq, is_there) in [(1, true), (2, true), (3, true), (4, false)] {
        assert_eq!(read!(db, |tx| events::is_stored(tx, thread, seq)), is_there, "{seq}");
    }
    let copy = copy_for(&db, thread, Ownership::default()).await;
    let copied = read!(db, |tx| events::read(tx, copy, 0, 10));
    assert!(
        copied.iter().all(|event| matches!(event.what, Logged::Entry(_))),
        "{copied:?}"
    );
    write!(db, |tx| checkpoints::delete_of_run(tx, thread, run));
    assert_eq!(read!(db, |tx| events::bounds(tx, thread)), Some((1, 1)));
}

/// Stores a step as the first entry of a log, and these events behind it.
async fn store_step(db: &Db, thread: ThreadId, run: RunId, facts: Vec<Fact>) -> Entry {
    let step = saying("a", None, -1);
    let entry = step.clone();
    write!(db, |tx| async {
        let at = Timestamp(5);
        let lane = Lane::Main;
        let placed = NewCheckpoint {
            thread,
            lane,
            seq: 1,
            segment: None,
            run: Some(run),
            entry: &entry,
            position: &Position::default(),
            at,
        };
        let events = (2..).zip(&facts).map(|(seq, fact)| NewEvent {
            thread,
            seq,
            run,
            lane,
            fact,
            at,
        });
        events::insert_with_steps(tx, &[placed], &events.collect::<Vec<_>>()).await
    });
    step
}

async fn an_event_behind_its_step_is_in_the_log(db: Db) {
    let thread = stored_thread(&db).await;
    let run = RunId::mint();
    let step = store_step(&db, thread, run, vec![Fact::Paused, Fact::Undone]).await;
    assert_eq!(read!(db, |tx| event_rows(tx, thread)), 1);
    let log = read!(db, |tx| events::read(tx, thread, 0, 10));
    let expected = [
        logged(run, 1, Logged::Entry(step)),
        logged(run, 2, Logged::Fact(Fact::Paused)),
        logged(run, 3, Logged::Fact(Fact::Undone)),
    ];
    assert_eq!(log, expected);
    for (after, limit, page) in [
        (0, 1, vec![1]),
        (0, 2, vec![1, 2]),
        (1, 1, vec![2]),
        (1, 2, vec![2, 3]),
        (2, 1, vec![3]),
        (3, 9, vec![]),
    ] {
        let found = read!(db, |tx| events::read(tx, thread, after, limit));
        let found: Vec<i64> = found.iter().map(|event| event.seq).collect();
        assert_eq!(found, page, "{limit} after {after}");
    }
    for (seq, is_there) in [(0, false), (1, true), (2, true), (3, true), (4, false)] {
        assert_eq!(read!(db, |tx| events::is_stored(tx, thread, seq)), is_there, "{seq}");
    }
    let other = stored_thread(&db).await;
    store_step(&db, other, run, vec![Fact::Paused]).await;
    assert_eq!(read!(db, |tx| events::bounds(tx, other)), Some((1, 2)));
    assert_eq!(read!(db, |tx| checkpoints::max_seq(tx, other)), 2);
    for (seq, is_there) in [(2, true), (3, false)] {
        assert_eq!(read!(db, |tx| events::is_stored(tx, other, seq)), is_there, "{seq}");
    }
    write!(db, |tx| checkpoints::delete_of_run(tx, other, run));
    assert_eq!(read!(db, |tx| events::bounds(tx, other)), None);
}

async fn events_have_rows_while_servers_may_be_at_work_that_find_them_nowhere_else(db: Db) {
    for (forms, rows) in [(upgrade::QUESTIONS_ONCE, 2), (upgrade::EVENTS_IN_STEPS, 0)] {
        db.set_forms(forms);
        let begun = stored_thread(&db).await;
        store_input(&db, begun, RunId::mint(), 1, None, Fact::started_anew(None)).await;
        let paused = stored_thread(&db).await;
        store_step(&db, paused, RunId::mint(), vec![Fact::Paused]).await;
        let stored = read!(db, |tx| async {
            DbResult::Ok(event_rows(tx, begun).await? + event_rows(tx, paused).await?)
        });
        assert_eq!(stored, rows);
        for thread in [begun, paused] {
            let log = read!(db, |tx| events::read(tx, thread, 0, 9));
            assert_eq!(log.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2]);
            assert_eq!(read!(db, |tx| checkpoints::max_seq(tx, thread)), 2);
        }
    }
}

async fn a_start_without_a_row_goes_with_the_history_before_its_input(db: Db) {
    let thread = stored_thread(&db).await;
    let run = RunId::mint();
    store_input(&db, thread, run, 7, None, Fact::started_anew(None)).await;
    assert_eq!(read!(db, |tx| events::bounds(tx, thread)), Some((7, 8)));
    assert!(write!(db, |tx| retention::keep_latest(tx, thread, Timestamp(9))));
    assert_eq!(read!(db, |tx| events::bounds(tx, thread)), Some((8, 8)));
    let log = read!(db, |tx| events::read(tx, thread, 0, 10));
    assert_eq!(log.iter().map(|event| event.seq).collect::<Vec<_>>(), [8]);
}

async fn a_start_that_its_input_does_not_tell_has_a_row(db: Db) {
    let again = Fact::Started {
        base: None,
        carried_from: None,
        attempt: 2,
        resumed: false,
        calls: vec![],
    };
    for fact in [again, Fact::started_anew(Some(CheckpointId::mint())), Fact::Paused] {
        let thread = stored_thread(&db).await;
        store_input(&db, thread, RunId::mint(), 1, None, fact.clone()).await;
        assert_eq!(read!(db, |tx| event_rows(tx, thread)), 1, "{fact:?}");
        let log = read!(db, |tx| events::read(tx, thread, 0, 10));
        assert_eq!(log[0].what, Logged::Fact(fact));
        assert_eq!(log.len(), 2);
    }
}

async fn the_checkpoints_of_a_run_are_deleted(db: Db) {
    let thread = stored_thread(&db).await;
    let run = RunId::mint();
    let a = saying("a", None, -1);
    add(&db, thread, 1, &a).await;
    let undone = saying("b", Some(a.id), 0);
    let kept = saying("c", Some(a.id), 0);
    db.write(move |tx| {
        Box::pin(async move {
            let lane = Lane::Main;
            let position = Position::default();
            let at = Timestamp(2);
            let run = Some(run);
            let entry = &undone;
            let placed = NewCheckpoint {
                thread,
                lane,
                seq: 2,
                segment: None,
                run,
                entry,
                position: &position,
                at,
            };
            checkpoints::insert(tx, &placed).await
        })
    })
    .await
    .expect("a write");
    write!(db, |tx| checkpoints::delete_of_run(tx, thread, run));
    assert_eq!(read!(db, |tx| checkpoints::max_seq(tx, thread)), 1);
    assert_eq!(
        add(&db, thread, 3, &kept).await,
        1,
        "the new checkpoint continues the segment"
    );
    assert_eq!(texts_at(&db, thread, kept.id).await, ["a", "c"]);
}

async fn an_update_is_found_between_two_numbers_of_the_log(db: Db) {
    let thread = stored_thread(&db).await;
    let first = saying("a", None, 0);
    let update = Entry {
        source: CheckpointSource::Update,
        ..saying("b", Some(first.id), 1)
    };
    add(&db, thread, 1, &first).await;
    add(&db, thread, 2, &update).await;
    let found = Some((update.id, 2));
    assert_eq!(read!(db, |tx| checkpoints::update_between(tx, thread, 1, 3)), found);
    assert_eq!(
        read!(db, |tx| checkpoints::update_between(tx, thread, 0, i64::MAX)),
        found
    );
    assert_eq!(read!(db, |tx| checkpoints::update_between(tx, thread, 1, 2)), None);
    assert_eq!(read!(db, |tx| checkpoints::update_between(tx, thread, 2, 9)), None);
}

async fn the_last_step_of_a_run_that_was_not_deleted_is_found(db: Db) {
    let thread = stored_thread(&db).await;
    let run = run_at(thread, 1);
    let a = saying("a", None, -1);
    let b = saying("b", Some(a.id), 0);
    let c = saying("c", Some(b.id), 1);
    let steps = [(2, Some(run.id), a), (4, Some(RunId::mint()), b), (6, None, c)];
    write!(db, |tx| runs::insert(tx, &run, None));
    for (seq, run, entry) in steps {
        write!(db, |tx| insert_step_of(tx, thread, run, seq, entry));
    }
    let last = async |until: i64| read!(db, |tx| checkpoints::last_of_runs(tx, thread, Lane::Main, until));
    assert_eq!(last(9).await, Some(2));
    assert_eq!(last(1).await, None);
    let newest = read!(db, |tx| checkpoints::newest_state(tx, thread, Lane::Main));
    assert_eq!(texts(&newest.expect("a state")), ["a", "b", "c"]);
    assert_eq!(
        read!(db, |tx| checkpoints::newest_state(tx, ThreadId::mint(), Lane::Main)),
        None
    );
}

async fn the_checkpoint_from_which_a_step_was_carried_on_is_stored(db: Db) {
    let thread = stored_thread(&db).await;
    let first = saying("a", None, -1);
    let carried = Entry {
        source: CheckpointSource::Fork,
        carried_from: Some(first.id),
        ..saying("b", Some(first.id), 0)
    };
    let done = Entry {
        carried_from: Some(first.id),
        ..saying("c", Some(carried.id), 1)
    };
    for (seq, entry) in (1..).zip([&first, &carried, &done]) {
        add(&db, thread, seq, entry).await;
    }
    let copy = copy_for(&db, thread, Ownership::default()).await;
    let id = done.id;
    for thread in [thread, copy] {
        let all = read!(db, |tx| events::read(tx, thread, 0, 10));
        let all: Vec<Logged> = all.into_iter().map(|event| event.what).collect();
        let stored = [&first, &carried, &done].map(|entry| Logged::Entry(entry.clone()));
        assert_eq!(all, stored);
        let found = read!(db, |tx| checkpoints::get(tx, thread, id)).expect("a checkpoint");
        assert_eq!(found.entry, done);
    }
}
