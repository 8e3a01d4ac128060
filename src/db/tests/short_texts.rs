//! The short form of texts.

use serde_json::json;
use sqlx::query_scalar;

use super::copies::copy_for;
use super::{Db, object, on_both, read, run_at, saying, stored_thread, texts, write};
use crate::db::checkpoints::{self, NewCheckpoint};
use crate::db::engine::{on_engine, upgrade};
use crate::db::events::{self, Logged, NewEvent};
use crate::db::runs::{self, RunRowUpdate};
use crate::db::{DbResult, Tx};
use crate::domain::access::Ownership;
use crate::domain::checkpoint::{Entry, Lane};
use crate::domain::event::Fact;
use crate::domain::id::{ThreadId, WorkerId};
use crate::domain::limits::Usage;
use crate::domain::machine::{Phase, Position};
use crate::domain::run::{AssignedAgent, Run};
use crate::domain::time::Timestamp;

on_both!(
    both_forms_of_the_texts_of_a_run_are_read,
    texts_in_the_short_form_take_fewer_bytes,
    the_metadata_of_a_run_are_read_as_they_were_given,
);

/// Returns the sum of the bytes of the texts of a thread.
async fn bytes(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<i64> {
    const SQL: &str = "select cast((select sum(octet_length(writes) + octet_length(position)) from checkpoints \
        where thread_id = $1) + (select sum(octet_length(body)) from events where thread_id = $1) \
        + (select sum(octet_length(request) + octet_length(usage)) from runs where thread_id = $1) as bigint)";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(thread.0)
        .fetch_one(conn)
        .await)?)
}

fn usage() -> Usage {
    Usage {
        model_calls: 1,
        input_tokens: 46,
        ..Usage::default()
    }
}

/// Stores a run with a step and an event on a new thread.
async fn store(db: &Db) -> Run {
    let thread = stored_thread(db).await;
    let mut run = run_at(thread, 2);
    run.request.agent = Some(AssignedAgent {
        graph_id: "agent".to_owned(),
        version: 1,
        definition: None,
    });
    let stored = run.clone();
    let worker = WorkerId::mint();
    write!(db, |tx| runs::insert(tx, &run, None));
    let id = stored.id;
    let claim = write!(db, |tx| runs::claim(tx, id, worker, Timestamp(2))).expect("a claim");
    let entry = saying("a long time ago", None, 1);
    write!(db, |tx| async {
        let holder = runs::LeaseHolder {
            thread,
            run: id,
            worker,
            fence: claim.fence,
        };
        let used = usage();
        let with_usage = RunRowUpdate {
            usage: Some(&used),
            ..RunRowUpdate::at(Timestamp(3))
        };
        runs::store_fenced(tx, holder, with_usage).await?;
        let placed = NewCheckpoint {
            thread,
            lane: Lane::Main,
            seq: 1,
            segment: None,
            run: Some(id),
            entry: &entry,
            position: &Position {
                phase: Phase::Ended,
                taken: 2,
                ..Position::default()
            },
            at: Timestamp(3),
        };
        checkpoints::insert(tx, &placed).await?;
        let fact = started(&entry);
        let event = NewEvent {
            thread,
            seq: 2,
            run: id,
            lane: Lane::Main,
            fact: &fact,
            at: Timestamp(3),
        };
        events::insert(tx, &[event]).await
    });
    stored
}

fn started(entry: &Entry) -> Fact {
    Fact::Started {
        base: Some(entry.id),
        carried_from: None,
        attempt: 1,
        resumed: false,
        calls: vec![],
    }
}

/// Reads what [`store`] has stored.
async fn check(db: &Db, stored: &Run) {
    let id = stored.id;
    let thread = stored.thread;
    db.states().clear();
    let run = read!(db, |tx| runs::get_by_id(tx, id)).expect("the run");
    assert_eq!(run.request, stored.request);
    assert_eq!(run.metadata, stored.metadata);
    assert_eq!(run.assistant, stored.assistant);
    assert_eq!(run.lineage, stored.lineage);
    assert_eq!(read!(db, |tx| runs::usage(tx, id)), usage());
    let log = read!(db, |tx| events::read(tx, thread, 0, 9));
    let Logged::Entry(entry) = &log[0].what else {
        panic!("{log:?}")
    };
    assert_eq!(log[1].what, Logged::Fact(started(entry)));
    let step = entry.id;
    let found = read!(db, |tx| checkpoints::get(tx, thread, step)).expect("the checkpoint");
    assert_eq!(texts(&found.state), ["a long time ago"]);
    assert_eq!(found.position.phase, Phase::Ended);
    assert_eq!(found.position.taken, 2);
}

async fn both_forms_of_the_texts_of_a_run_are_read(db: Db) {
    db.set_forms(0);
    let long = store(&db).await;
    db.set_forms(upgrade::SHORT_TEXTS);
    let short = store(&db).await;
    for forms in [0, upgrade::SHORT_TEXTS] {
        db.set_forms(forms);
        check(&db, &long).await;
        check(&db, &short).await;
    }
    // A copy is in the form of the time at which it is made.
    let copied = copy_for(&db, long.thread, Ownership::default()).await;
    let state = read!(db, |tx| async {
        let head = checkpoints::head(tx, copied, Lane::Main).await?.expect("a checkpoint");
        checkpoints::load_state(tx, copied, Lane::Main, &head).await
    });
    assert_eq!(texts(&state), ["a long time ago"]);
}

async fn texts_in_the_short_form_take_fewer_bytes(db: Db) {
    let mut sizes = vec![];
    for forms in [0, upgrade::SHORT_TEXTS] {
        db.set_forms(forms);
        let thread = store(&db).await.thread;
        sizes.push(read!(db, |tx| bytes(tx, thread)));
    }
    assert!(sizes[1] * 5 < sizes[0] * 4, "{sizes:?} bytes");
}

async fn the_metadata_of_a_run_are_read_as_they_were_given(db: Db) {
    for forms in [0, upgrade::SHORT_TEXTS] {
        db.set_forms(forms);
        let thread = stored_thread(&db).await;
        let assistant = run_at(thread, 2).assistant.to_string();
        let all = [
            json!({}),
            json!({"a": 1}),
            json!({"a": 1, "assistant_id": assistant}),
            json!({"assistant_id": "another", "a": 1}),
            json!({"graph_id": "agent", "a": 1}),
            json!({"created_by": "system", "graph_id": "agent", "a": 1, "assistant_id": assistant}),
            json!({"created_by": "system", "graph_id": "another"}),
            json!({"created_by": "me", "graph_id": "agent"}),
            json!({"created_by": "system"}),
        ];
        let agent = AssignedAgent {
            graph_id: "agent".to_owned(),
            version: 1,
            definition: None,
        };
        let with_agent = all.clone().map(|metadata| (metadata, Some(agent.clone())));
        let other = AssignedAgent {
            graph_id: "another".to_owned(),
            ..agent.clone()
        };
        let with_other = all.clone().map(|metadata| (metadata, Some(other.clone())));
        for (metadata, agent) in all
            .map(|metadata| (metadata, None))
            .into_iter()
            .chain(with_agent)
            .chain(with_other)
        {
            let mut run = Run {
                metadata: object(metadata),
                ..run_at(thread, 2)
            };
            run.request.agent = agent;
            let given = run.metadata.clone();
            let id = run.id;
            let assistant = run.assistant;
            write!(db, |tx| runs::insert(tx, &run, None));
            let found = read!(db, |tx| runs::get_by_id(tx, id)).expect("the run");
            assert_eq!(found.metadata, given);
            assert_eq!(found.assistant, assistant);
        }
    }
}
