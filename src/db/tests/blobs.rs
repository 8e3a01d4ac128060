//! Base64 content that is stored once as a blob: read back equal, and deleted with the last row that refers to it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, query_scalar};

use super::copies::copy_for;
use super::{Db, on_both, read, run_at, saying, stored_thread, thread_at, write};
use crate::db::checkpoints::{self, NewCheckpoint};
use crate::db::engine::on_engine;
use crate::db::events::{self, Logged, NewEvent};
use crate::db::stored_bytes::{StorageOwner, stored};
use crate::db::{DbResult, Tx, retention, runs, threads};
use crate::domain::access::Ownership;
use crate::domain::call::{Call, CallStatus, ToolOutput};
use crate::domain::checkpoint::{Entry, Lane};
use crate::domain::event::Fact;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::identity::{Tenant, UserId};
use crate::domain::machine::{Phase, Position};
use crate::domain::message::{Content, Message, ToolCall, ToolStatus};
use crate::domain::run::{Run, RunRequest};
use crate::domain::state::Update;
use crate::domain::thread::Thread;
use crate::domain::time::Timestamp;

on_both!(
    the_same_image_is_stored_once_and_read_back_equal,
    content_of_calls_under_way_is_read_back_equal,
    a_blob_is_deleted_with_the_last_thread_that_refers_to_it,
    a_blob_is_deleted_with_the_run_that_is_rolled_back,
    a_blob_is_deleted_with_the_request_that_refers_to_it,
    pruning_keeps_the_blobs_of_the_newest_state,
    a_copy_for_another_tenant_has_blobs_of_its_own,
    a_message_that_looks_like_a_reference_is_read_back_as_it_is,
    blobs_survive_threads_that_are_deleted_at_the_same_time,
    a_blob_counts_once_for_its_owner,
);

/// Returns the base64 text of an image of which `seed` is a part.
fn image(seed: &str) -> String {
    let bytes: Vec<u8> = seed.bytes().cycle().take(30_001).collect();
    STANDARD.encode(bytes)
}

/// Returns the same image in each spelling.
fn spellings(data: &str) -> Vec<Value> {
    vec![
        json!({"type": "image", "base64": data, "mime_type": "image/png"}),
        json!({"type": "image", "source_type": "base64", "data": data, "mime_type": "image/png"}),
        json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}}),
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}),
        json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}),
        json!({"type": "file", "file": {"filename": "a.pdf", "file_data": format!("data:application/pdf;base64,{data}")}}),
        json!({"type": "video", "base64": data, "mime_type": "video/mp4"}),
    ]
}

fn message(blocks: Vec<Value>) -> Message {
    let mut message = Message::human("").with_id(uuid::Uuid::now_v7().to_string());
    message.content = Content::Blocks(blocks);
    message
}

fn entry_of(message: Message, parent: Option<CheckpointId>, step: i64) -> Entry {
    Entry {
        writes: vec![Update::messages([message])],
        ..saying("", parent, step)
    }
}

async fn put(tx: &mut Tx<'_>, thread: ThreadId, seq: i64, run: Option<RunId>, entry: &Entry) -> DbResult<()> {
    let position = Position {
        phase: Phase::Ended,
        ..Position::default()
    };
    let placed = NewCheckpoint {
        thread,
        lane: Lane::Main,
        seq,
        segment: None,
        run,
        entry,
        position: &position,
        at: Timestamp(seq),
    };
    checkpoints::insert(tx, &placed).await.map(drop)
}

/// Stores one step whose message has this image.
async fn put_image(db: &Db, thread: ThreadId, seq: i64, data: &str) -> Entry {
    let entry = entry_of(message(spellings(data)), None, seq);
    let stored = entry.clone();
    write!(db, |tx| async { put(tx, thread, seq, None, &stored).await });
    entry
}

async fn number(db: &Db, sql: &str) -> i64 {
    let sql = sql.to_owned();
    read!(db, |tx| async {
        Ok(on_engine!(tx, |conn| query_scalar(AssertSqlSafe(sql))
            .fetch_one(conn)
            .await)?)
    })
}

/// Returns the numbers of blobs and of references to them.
async fn counts(db: &Db) -> [i64; 2] {
    let references = "select (select count(*) from entry_blobs) + (select count(*) from request_blobs)";
    [
        number(db, "select count(*) from blobs").await,
        number(db, references).await,
    ]
}

/// Returns the messages at a checkpoint, read from the database.
async fn messages_at(db: &Db, thread: ThreadId, id: CheckpointId) -> Vec<Message> {
    db.states().clear();
    let found = read!(db, |tx| checkpoints::get(tx, thread, id)).expect("the checkpoint");
    found
        .state
        .messages
        .recent()
        .iter()
        .map(|message| Message::clone(message))
        .collect()
}

fn messages_of(entry: &Entry) -> Vec<Message> {
    let messages = entry.writes.iter().flat_map(|update| &update.messages);
    messages.map(|message| Message::clone(message)).collect()
}

async fn the_same_image_is_stored_once_and_read_back_equal(db: Db) {
    let data = image("the same image");
    let thread = stored_thread(&db).await;
    let mut parent = None;
    let mut all = vec![];
    for seq in 1..=50 {
        let entry = entry_of(message(spellings(&data)), parent, seq);
        parent = Some(entry.id);
        all.extend(messages_of(&entry));
        let stored = entry.clone();
        write!(db, |tx| async { put(tx, thread, seq, None, &stored).await });
    }
    let fact = Fact::BrokenOff {
        message: Box::new(message(spellings(&data))),
        failed: true,
    };
    let logged = fact.clone();
    let mut run = run_at(thread, 60);
    run.request.input = Some(json!({"messages": [{"type": "human", "content": spellings(&data)}]}));
    let asked = run.clone();
    write!(db, |tx| async {
        let event = NewEvent {
            thread,
            seq: 51,
            run: asked.id,
            lane: Lane::Main,
            fact: &logged,
            at: Timestamp(51),
        };
        events::insert(tx, &[event]).await?;
        runs::insert(tx, &asked, None).await
    });
    assert_eq!(counts(&db).await, [1, 52]);
    let texts = "select cast((select sum(octet_length(writes) + octet_length(position)) from checkpoints) \
        + (select sum(octet_length(body)) from events) + (select sum(octet_length(request)) from runs) as bigint)";
    let size = number(&db, texts).await;
    assert!(size < 400_000, "{size} bytes besides the blob");
    assert_eq!(number(&db, "select bytes from blobs").await, 30_001);
    let last = parent.expect("a checkpoint");
    assert_eq!(messages_at(&db, thread, last).await, all, "state");
    let history = read!(db, |tx| checkpoints::history(
        tx,
        thread,
        Lane::Main,
        checkpoints::HistoryQuery {
            limit: 100,
            before: None
        }
    ));
    assert_eq!(history.len(), 50);
    let oldest = history.last().expect("a checkpoint");
    assert_eq!(*oldest.state.messages.recent()[0], all[0], "history");
    let log = read!(db, |tx| events::read(tx, thread, 0, 100));
    let written = log.iter().filter_map(|event| match &event.what {
        Logged::Entry(entry) => Some(messages_of(entry)),
        Logged::Fact(_) => None,
    });
    assert_eq!(written.flatten().collect::<Vec<_>>(), all, "log");
    assert!(log.iter().any(|event| event.what == Logged::Fact(fact.clone())));
    let found: Run = read!(db, |tx| runs::get_by_id(tx, run.id)).expect("the run");
    assert_eq!(found.request, run.request);
    assert_eq!(found.error, None);
    let listed = read!(db, |tx| runs::in_flight(tx, thread));
    assert_eq!(listed[0].request, run.request);
    assert!(read!(db, |tx| runs::find_before(tx, thread)).is_some());
}

async fn content_of_calls_under_way_is_read_back_equal(db: Db) {
    let data = image("a result");
    let thread = stored_thread(&db).await;
    let entry = entry_of(Message::human("hi"), None, 1);
    let id = entry.id;
    let call = ToolCall::new("c1", "read_file", serde_json::Map::new());
    let mut result = Message::tool(&call, ToolStatus::Success, "");
    result.content = Content::Blocks(spellings(&data));
    let call = Call {
        id: "c1".to_owned(),
        edited: None,
        status: CallStatus::Answered(Box::new(ToolOutput::message(result))),
        delegations: vec![],
    };
    let position = Position {
        phase: Phase::Tools { calls: vec![call] },
        ..Position::default()
    };
    let kept = position.clone();
    write!(db, |tx| async {
        put(tx, thread, 1, None, &entry).await?;
        checkpoints::set_position(tx, thread, id, &kept, RunId::mint()).await
    });
    assert_eq!(counts(&db).await, [1, 1]);
    let head = read!(db, |tx| checkpoints::head(tx, thread, Lane::Main)).expect("a head");
    assert_eq!(head.position, position);
    let found = read!(db, |tx| checkpoints::find_head(tx, thread, id)).expect("a head");
    assert_eq!(found.position, position);
    let copy = copy_for(&db, thread, Ownership::default()).await;
    write!(db, |tx| threads::delete(tx, thread));
    let copied = read!(db, |tx| checkpoints::head(tx, copy, Lane::Main)).expect("a head");
    assert_eq!(copied.position.phase, position.phase);
    assert_eq!(counts(&db).await, [1, 1]);
}

async fn a_blob_is_deleted_with_the_last_thread_that_refers_to_it(db: Db) {
    let one = stored_thread(&db).await;
    let two = stored_thread(&db).await;
    put_image(&db, one, 1, &image("shared")).await;
    let kept = put_image(&db, two, 1, &image("shared")).await;
    put_image(&db, one, 2, &image("of the first")).await;
    assert_eq!(counts(&db).await, [2, 3]);
    write!(db, |tx| threads::delete(tx, one));
    assert_eq!(counts(&db).await, [1, 1]);
    assert_eq!(messages_at(&db, two, kept.id).await, messages_of(&kept));
    write!(db, |tx| threads::delete(tx, two));
    assert_eq!(counts(&db).await, [0, 0]);
}

async fn a_blob_is_deleted_with_the_run_that_is_rolled_back(db: Db) {
    let thread = stored_thread(&db).await;
    let kept = put_image(&db, thread, 1, &image("before")).await;
    let run = run_at(thread, 1);
    let id = run.id;
    let entry = entry_of(message(spellings(&image("undone"))), Some(kept.id), 2);
    write!(db, |tx| async {
        runs::insert(tx, &run, None).await?;
        put(tx, thread, 2, Some(id), &entry).await
    });
    assert_eq!(counts(&db).await, [2, 2]);
    write!(db, |tx| checkpoints::delete_of_run(tx, thread, id));
    assert_eq!(counts(&db).await, [1, 1]);
    assert_eq!(messages_at(&db, thread, kept.id).await, messages_of(&kept));
}

async fn a_blob_is_deleted_with_the_request_that_refers_to_it(db: Db) {
    let thread = stored_thread(&db).await;
    let mut run = run_at(thread, 1);
    let id = run.id;
    let request = |seed: &str| RunRequest {
        input: Some(json!({"messages": [{"type": "human", "content": spellings(&image(seed))}]})),
        ..RunRequest::default()
    };
    run.request = request("first");
    let next = request("second");
    write!(db, |tx| runs::insert(tx, &run, None));
    assert_eq!(counts(&db).await, [1, 1]);
    let wanted = next.clone();
    write!(db, |tx| runs::set_request(tx, id, &wanted, Timestamp(2)));
    assert_eq!(counts(&db).await, [1, 1]);
    let found = read!(db, |tx| runs::get_by_id(tx, id)).expect("the run");
    assert_eq!(found.request, next);
    write!(db, |tx| runs::delete(tx, thread, id));
    assert_eq!(counts(&db).await, [0, 0]);
}

async fn pruning_keeps_the_blobs_of_the_newest_state(db: Db) {
    let thread = stored_thread(&db).await;
    let kept = entry_of(message(spellings(&image("kept"))), None, 1);
    let replaced = entry_of(message(spellings(&image("replaced"))), Some(kept.id), 2);
    let mut now = message(vec![json!({"type": "text", "text": "nothing"})]);
    now.id = replaced.writes[0].messages[0].id.clone();
    let last = entry_of(now, Some(replaced.id), 3);
    let newest = last.id;
    let expected: Vec<Message> = messages_of(&kept).into_iter().chain(messages_of(&last)).collect();
    write!(db, |tx| async {
        for (entry, seq) in [kept, replaced, last].iter().zip(1..) {
            put(tx, thread, seq, None, entry).await?;
        }
        Ok::<_, crate::db::DbError>(())
    });
    assert_eq!(counts(&db).await, [2, 2]);
    assert!(write!(db, |tx| retention::keep_latest(tx, thread, Timestamp(9))));
    assert_eq!(counts(&db).await, [1, 1]);
    assert_eq!(messages_at(&db, thread, newest).await, expected);
    let storage = read!(db, |tx| retention::storage(tx, thread)).expect("the storage");
    let blobs = storage.iter().find(|part| part.table == "blobs").expect("blobs");
    assert_eq!(blobs.rows, 1);
    assert_eq!(blobs.bytes, 30_001);
}

fn owner(tenant: &str, user: &str) -> Ownership {
    Ownership {
        tenant: Tenant::stored(tenant.to_owned()),
        owner: UserId::stored(user.to_owned()),
    }
}

async fn thread_of(db: &Db, ownership: Ownership) -> ThreadId {
    let thread = Thread {
        ownership,
        ..thread_at(1)
    };
    let id = thread.id;
    write!(db, |tx| threads::insert(tx, &thread));
    id
}

async fn a_copy_for_another_tenant_has_blobs_of_its_own(db: Db) {
    let thread = thread_of(&db, owner("acme", "ann")).await;
    let entry = put_image(&db, thread, 1, &image("copied")).await;
    let same = copy_for(&db, thread, owner("acme", "bob")).await;
    assert_eq!(counts(&db).await, [1, 2]);
    let other = copy_for(&db, thread, owner("other", "cleo")).await;
    assert_eq!(counts(&db).await, [2, 3]);
    write!(db, |tx| threads::delete(tx, thread));
    assert_eq!(counts(&db).await, [2, 2]);
    for copy in [same, other] {
        assert_eq!(messages_at(&db, copy, entry.id).await, messages_of(&entry));
        write!(db, |tx| threads::delete(tx, copy));
    }
    assert_eq!(counts(&db).await, [0, 0]);
}

async fn a_message_that_looks_like_a_reference_is_read_back_as_it_is(db: Db) {
    let victim = stored_thread(&db).await;
    put_image(&db, victim, 1, &image("secret")).await;
    let digest: String = read!(db, |tx| async {
        Ok(on_engine!(tx, |conn| query_scalar("select digest from blobs")
            .fetch_one(conn)
            .await)?)
    });
    let header = format!("blobs1:[{{\"at\":0,\"digest\":\"{digest}\",\"bytes\":30001}}]\n");
    let forged = [
        json!({"type": "text", "text": header}),
        json!({"type": "image", "base64": header, "mime_type": "image/png"}),
        json!({"at": 0, "digest": digest, "bytes": 30_001}),
        json!(header),
    ];
    let thread = thread_of(&db, owner("other", "eve")).await;
    let mut blocks = forged.to_vec();
    blocks.extend(spellings(&image("beside")));
    for (blocks, seq) in [forged.to_vec(), blocks].into_iter().zip(1..) {
        let entry = entry_of(message(blocks), None, seq);
        let stored = entry.clone();
        write!(db, |tx| async { put(tx, thread, seq, None, &stored).await });
        assert_eq!(messages_at(&db, thread, entry.id).await, messages_of(&entry));
    }
    assert_eq!(counts(&db).await, [2, 2]);
}

async fn blobs_survive_threads_that_are_deleted_at_the_same_time(db: Db) {
    let data = image("contended");
    let mut tasks = vec![];
    for _ in 0..8 {
        let db = db.clone();
        let data = data.clone();
        let work = async move {
            for seq in 1..=6 {
                let thread = stored_thread(&db).await;
                let entry = put_image(&db, thread, seq, &data).await;
                assert_eq!(messages_at(&db, thread, entry.id).await, messages_of(&entry));
                write!(db, |tx| threads::delete(tx, thread));
            }
        };
        tasks.push(tokio::spawn(crate::db::RowAccess::in_current(work)));
    }
    for task in tasks {
        task.await.expect("a task");
    }
    assert_eq!(counts(&db).await, [0, 0]);
}

async fn a_blob_counts_once_for_its_owner(db: Db) {
    let one = thread_of(&db, owner("acme", "ann")).await;
    let two = thread_of(&db, owner("acme", "ann")).await;
    let three = thread_of(&db, owner("acme", "bob")).await;
    for thread in [one, two, three] {
        put_image(&db, thread, 1, &image("counted")).await;
        put_image(&db, thread, 2, &image("counted")).await;
    }
    let by = |user: Option<&str>| StorageOwner {
        tenant: Tenant::stored("acme".to_owned()),
        owner: user.map(|user| UserId::stored(user.to_owned())),
    };
    for user in [None, Some("ann"), Some("bob")] {
        let by = by(user);
        assert_eq!(read!(db, |tx| stored(tx, &by)), 30_001);
    }
    let by = by(Some("eve"));
    assert_eq!(read!(db, |tx| stored(tx, &by)), 0);
}
