//! Encryption at rest: what is sealed and what is not, keys that change, and what remains of erased data.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, query, query_scalar};

use super::crons::cron_at;
use super::interrupts::pending_interrupt;
use super::{Refusal, end_run, master_keys, object, open_with, read, run_at, saying, texts, thread_at, write};
use crate::db::checkpoints::NewCheckpoint;
use crate::db::engine::{Conn, on_engine};
use crate::db::erasure::{DataSubject, ErasedRows, ErasureRequest};
use crate::db::events::{Logged, NewEvent};
use crate::db::items::{self, VectorQuery, VectorSearch, nearest};
use crate::db::{
    Db, DbError, DbResult, MasterKeys, RekeyTarget, Tx, assistants, checkpoints, crons, definitions, deliveries,
    events, interrupts, runs, threads,
};
use crate::definition::{AgentDefinition, DefinitionSource};
use crate::domain::access::Ownership;
use crate::domain::assistant::Assistant;
use crate::domain::checkpoint::{Entry, Lane};
use crate::domain::delivery::Delivery;
use crate::domain::event::Fact;
use crate::domain::id::{AssistantId, CheckpointId, RunId, ThreadId, WorkerId};
use crate::domain::idempotency::{IdempotencyKey, IdempotentOutcome, StoredResponse};
use crate::domain::identity::{Tenant, UserId};
use crate::domain::item::{ItemAddress, ItemFilter, ItemSearch, ItemVector, Namespace, PreparedItem};
use crate::domain::machine::{Failure, Position};
use crate::domain::message::{Content, Message};
use crate::domain::run::{AssignedAgent, Run, RunCaller, RunStatus};
use crate::domain::state::Update;
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::time::Timestamp;

/// The text that must not be found in the database.
const MARKER: &str = "xyzzy-plugh-4711";

/// Defines a test per engine for each `async fn name(place: &Place)`.
macro_rules! in_places {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let folder = tempfile::tempdir().expect("a folder");
                let url = format!("sqlite://{}/adjutant.db", folder.path().display());
                crate::db::tests::on_server(super::$name(&super::Place { url })).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                if let Some(database) = crate::db::tests::postgres::fresh_database().await {
                    let url = database.url.clone();
                    crate::db::tests::on_server(super::$name(&super::Place { url })).await;
                    database.discard().await;
                }
            })*
        }
    };
}

in_places! {
    nothing_that_was_said_is_stored_in_the_clear,
    plain_rows_are_read_and_rekeying_seals_them,
    rekeying_that_was_interrupted_is_finished,
    a_new_master_key_takes_over,
    new_data_keys_seal_everything_anew,
    everything_can_be_made_plain_again,
    a_database_with_sealed_values_needs_its_keys,
    a_rolled_back_transaction_seals_nothing,
    keys_that_the_database_has_lost_seal_nothing,
    lost_keys_seal_nothing_also_if_their_numbers_are_given_again,
    lost_keys_seal_nothing_also_if_more_numbers_were_given_since,
    each_tenant_has_a_key_of_its_own,
    values_of_other_rows_are_refused,
    a_definition_is_kept_while_a_sealed_request_needs_it,
    rekeying_keeps_no_definition_for_a_run_that_has_ended,
    sealed_items_are_filtered_and_ranked,
    a_user_is_erased_and_others_stay,
    an_erased_tenant_cannot_be_read_from_a_backup,
}

/// A place for a database.
struct Place {
    url: String,
}

impl Place {
    async fn open(&self, keys: Option<MasterKeys>) -> Db {
        open_with(&self.url, keys).await.expect("a database")
    }

    async fn open_with(&self, names: &str) -> Db {
        self.open(Some(master_keys(names))).await
    }

    /// Returns the error of opening the database.
    async fn refuses(&self, keys: Option<MasterKeys>) -> String {
        let opened = open_with(&self.url, keys).await;
        opened.err().expect("it is refused").to_string()
    }
}

fn ownership(tenant: &str, owner: &str) -> Ownership {
    Ownership {
        tenant: Tenant::stored(tenant.to_owned()),
        owner: UserId::stored(owner.to_owned()),
    }
}

/// Everything that one owner has.
#[derive(Clone)]
struct Belongings {
    thread: Thread,
    run: Run,
    checkpoint: CheckpointId,
    /// A message with an image, which is stored as a blob.
    picture: Entry,
    address: ItemAddress,
}

/// Returns the caller of a run, whose name for people is `text`.
fn caller(text: &str) -> RunCaller {
    let caller = json!({"identity": "ann", "tenant": "acme", "display_name": text, "roles": [], "permissions": []});
    serde_json::from_value(caller).expect("a caller")
}

/// Returns a step with a message that has an image with a text.
fn picture(text: &str) -> Entry {
    let image = json!({"type": "image", "base64": STANDARD.encode(text.repeat(3000)), "mime_type": "image/png"});
    let mut entry = saying("picture", None, 0);
    let mut message = Message::human("").with_id("picture");
    message.content = Content::Blocks(vec![image]);
    entry.writes = vec![Update::messages([message])];
    entry
}

/// Stores one row of each table, with a text in every place that is sealed.
async fn store(db: &Db, owner: Ownership, text: &'static str) -> Belongings {
    let thread = Thread {
        ownership: owner.clone(),
        config: object(json!({"configurable": {"note": text}})),
        ..thread_at(1)
    };
    let mut run = run_at(thread.id, 2);
    run.request.input = Some(json!({"messages": [text]}));
    run.request.caller = Some(caller(text));
    run.metadata = object(json!({"note": text}));
    run.error = Some(Failure::new("SomeError", text));
    let entry = saying(text, None, 0);
    let picture = picture(text);
    let pictured = picture.clone();
    let address = ItemAddress::new(Namespace::stored(vec!["notes".to_owned()]), "k").expect("an address");
    let mut draft = PreparedItem::new(address.clone(), object(json!({"note": text})), None).expect("an item");
    draft.vectors = vec![ItemVector {
        path: "note".to_owned(),
        vector: vec![0.6, 0.8],
    }];
    let made = Belongings {
        thread: thread.clone(),
        run: run.clone(),
        checkpoint: entry.id,
        picture,
        address,
    };
    write!(db, |tx| async {
        threads::insert(tx, &thread).await?;
        runs::insert(tx, &run, None).await?;
        runs::set_status(tx, run.id, run.status, run.error.as_ref(), Timestamp(3)).await?;
        let position = Position::default();
        let placed = NewCheckpoint {
            thread: thread.id,
            lane: Lane::Main,
            seq: 1,
            segment: None,
            run: Some(run.id),
            entry: &entry,
            position: &position,
            at: Timestamp(3),
        };
        checkpoints::insert(tx, &placed).await?;
        let pictured = NewCheckpoint {
            seq: 3,
            entry: &pictured,
            ..placed
        };
        let said = Fact::Custom { value: json!(text) };
        let behind = NewEvent {
            thread: thread.id,
            seq: 4,
            run: run.id,
            lane: Lane::Main,
            fact: &said,
            at: Timestamp(3),
        };
        events::insert_with_steps(tx, &[pictured], &[behind]).await?;
        checkpoints::set_position(tx, thread.id, entry.id, &position, RunId::mint()).await?;
        let fact = Fact::BrokenOff {
            message: Box::new(Message::ai(text)),
            failed: true,
        };
        let event = NewEvent {
            thread: thread.id,
            seq: 2,
            run: run.id,
            lane: Lane::Main,
            fact: &fact,
            at: Timestamp(3),
        };
        events::insert(tx, &[event]).await?;
        let mut asked = pending_interrupt(thread.id, Lane::Main, 1);
        Arc::make_mut(&mut asked.interrupt.question).value = json!(text);
        interrupts::insert(tx, &asked).await?;
        let id = &asked.interrupt.id;
        interrupts::resolve(tx, thread.id, id, &json!(text), RunId::mint(), Timestamp(4)).await?;
        items::put(tx, &owner, &draft, Timestamp(3)).await?;
        let mut cron = cron_at(Some(thread.id), 5);
        cron.ownership = owner.clone();
        cron.request.input = Some(json!(text));
        cron.payload = object(json!({"note": text}));
        let mut assistant = Assistant::automatic("agent", "agent", None, Timestamp(1));
        assistant.id = AssistantId::mint();
        assistant.ownership = owner.clone();
        assistant.settings.config = object(json!({"note": text}));
        assistant.settings.context = object(json!({"note": text}));
        cron.assistant = assistant.id;
        assistants::insert(tx, &assistant).await?;
        crons::insert(tx, &cron).await?;
        let url = format!("https://example.org/{text}");
        let body = json!({"note": text}).to_string();
        let delivery = Delivery::new(run.id, thread.id, owner.clone(), &url, body, Timestamp(3));
        deliveries::insert(tx, &delivery).await
    });
    store_answer(db, &made.thread, text).await;
    made
}

/// Stores the answer to a request with an idempotency key.
async fn store_answer(db: &Db, thread: &Thread, text: &'static str) {
    let kept = StoredResponse::Answer {
        status: 200,
        body: json!({"note": text}).to_string(),
        location: Some(format!("/{text}")),
        thread: Some(thread.id),
    };
    let client = format!("{}/{}", thread.ownership.tenant, thread.ownership.owner);
    let key = IdempotencyKey::new(&client, "once", &[]).expect("a key");
    let once: IdempotentOutcome<()> = db
        .write_once(
            Some(key),
            Timestamp(5),
            move |()| kept,
            |_| Box::pin(async { DbResult::Ok(()) }),
        )
        .await
        .expect("a write");
    assert!(matches!(once, IdempotentOutcome::First(())));
}

fn definition(text: &str) -> AgentDefinition {
    serde_json::from_value(json!({"model": "scripted:x", "system_prompt": text})).expect("a definition")
}

async fn store_definition(db: &Db, definition: &AgentDefinition) {
    let definition = definition.clone();
    write!(db, |tx| definitions::keep(
        tx,
        "agent",
        &definition,
        &DefinitionSource::Client,
        Timestamp(1)
    ));
}

/// Checks that everything that was stored is read as it was.
async fn check(db: &Db, made: &Belongings, text: &'static str) {
    db.states().clear();
    let Belongings {
        thread,
        run,
        checkpoint,
        picture,
        address,
    } = made.clone();
    let owner = thread.ownership.clone();
    let id = thread.id;
    let found = read!(db, |tx| threads::find(tx, id)).expect("the thread");
    assert_eq!(found.config, thread.config);
    let found = read!(db, |tx| runs::get_by_id(tx, run.id)).expect("the run");
    assert_eq!(found.request, run.request);
    assert_eq!(found.metadata, run.metadata);
    assert_eq!(found.error, run.error);
    let before = read!(db, |tx| runs::find_before(tx, id)).expect("the run");
    assert_eq!(before.caller, Some(caller(text)));
    let state = read!(db, |tx| checkpoints::get(tx, id, checkpoint))
        .expect("the checkpoint")
        .state;
    assert_eq!(texts(&state), [text]);
    let image = picture.id;
    let state = read!(db, |tx| checkpoints::get(tx, id, image))
        .expect("the checkpoint")
        .state;
    assert_eq!(state.messages.recent(), picture.writes[0].messages);
    let log = read!(db, |tx| events::read(tx, id, 0, 10));
    assert!(format!("{log:?}").matches(text).count() >= 2, "{log:?}");
    let said = Logged::Fact(Fact::Custom { value: json!(text) });
    assert!(log.last().is_some_and(|last| last.what == said), "{log:?}");
    let asked = read!(db, |tx| interrupts::of_thread(tx, id, None));
    assert_eq!(asked[0].interrupt.question.value, json!(text));
    assert_eq!(asked[0].resolution, Some(json!(text)));
    let item = read!(db, |tx| items::find(tx, &owner, &address, Timestamp(9))).expect("the item");
    assert_eq!(item.value, object(json!({"note": text})));
}

/// Returns the rows of all tables as text, on Postgres, and the bytes of all files as text, on SQLite.
async fn everything_in(db: &Db, place: &Place) -> String {
    if let Some(path) = place.url.strip_prefix("sqlite://") {
        let folder = Path::new(path).parent().expect("a folder");
        let files = std::fs::read_dir(folder).expect("the folder");
        let read = |file: std::io::Result<std::fs::DirEntry>| std::fs::read(file.expect("a file").path()).expect("it");
        return files
            .map(|file| String::from_utf8_lossy(&read(file)).into_owned())
            .collect();
    }
    write!(db, |tx| rows_of_postgres(tx))
}

async fn rows_of_postgres(tx: &mut Tx<'_>) -> DbResult<String> {
    const TABLES: &str = "select table_name::text from information_schema.tables where table_schema = 'public'";
    let Conn::Postgres(conn) = &mut tx.conn else {
        panic!("not on Postgres")
    };
    let tables: Vec<String> = query_scalar(TABLES).fetch_all(&mut *conn).await?;
    assert!(tables.len() > 30, "{tables:?}");
    let mut all = String::new();
    for table in tables {
        let sql = format!("select coalesce(string_agg(cast(t as text), ' '), '') from {table} t");
        let text: String = query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *conn).await?;
        all.push_str(&text);
    }
    Ok(all)
}

async fn rekey(db: &Db, target: RekeyTarget) -> u64 {
    let progress = db.rekey(target, |_, _| {}).await.expect("rekeyed");
    assert_eq!(progress.unreadable, 0);
    progress.values
}

async fn nothing_that_was_said_is_stored_in_the_clear(place: &Place) {
    let db = place.open(None).await;
    store(&db, ownership("plain", "ann"), MARKER).await;
    assert!(
        everything_in(&db, place).await.contains(MARKER),
        "a plain database shows it"
    );
    db.close().await;
    let folder = tempfile::tempdir().expect("a folder");
    let sealed = match place.url.starts_with("sqlite") {
        true => Place {
            url: format!("sqlite://{}/sealed.db", folder.path().display()),
        },
        false => {
            let db = place.open(None).await;
            let erased = erase(&db, request_of("plain", None)).await.expect("erased");
            assert_eq!(erased.threads, 1);
            db.close().await;
            Place { url: place.url.clone() }
        }
    };
    let db = sealed.open_with("test").await;
    let made = store(&db, ownership("acme", "ann"), MARKER).await;
    store_definition(&db, &definition(MARKER)).await;
    check(&db, &made, MARKER).await;
    assert!(!everything_in(&db, &sealed).await.contains(MARKER));
    db.close().await;
    let db = sealed.open_with("test").await;
    check(&db, &made, MARKER).await;
    assert!(!everything_in(&db, &sealed).await.contains(MARKER));
    db.close().await;
}

async fn plain_rows_are_read_and_rekeying_seals_them(place: &Place) {
    let db = place.open(None).await;
    let made = store(&db, ownership("acme", "ann"), MARKER).await;
    store_definition(&db, &definition(MARKER)).await;
    db.close().await;
    let db = place.open_with("test").await;
    check(&db, &made, MARKER).await;
    assert!(
        rekey(&db, RekeyTarget::FirstMasterKey).await > 15,
        "every column is sealed"
    );
    check(&db, &made, MARKER).await;
    assert_eq!(rekey(&db, RekeyTarget::FirstMasterKey).await, 0, "nothing is left");
    db.close().await;
    let db = place.open_with("test").await;
    check(&db, &made, MARKER).await;
    assert!(
        !everything_in(&db, place).await.contains(MARKER),
        "what was plain is overwritten"
    );
    db.close().await;
}

async fn rekeying_that_was_interrupted_is_finished(place: &Place) {
    let db = place.open(None).await;
    let made = store(&db, ownership("acme", "ann"), MARKER).await;
    db.close().await;
    let db = place.open_with("test").await;
    let (began, has_begun) = tokio::sync::oneshot::channel();
    let mut began = Some(began);
    let rekeying = db.rekey(RekeyTarget::FirstMasterKey, move |table, _| {
        if table == "runs" {
            let _ = began.take().map(|began| began.send(()));
        }
    });
    tokio::select! {
        biased;
        _ = has_begun => {}
        _ = rekeying => panic!("it is interrupted before its end"),
    }
    let left = rekey(&db, RekeyTarget::FirstMasterKey).await;
    assert!(left > 5, "{left} values were left");
    check(&db, &made, MARKER).await;
    assert_eq!(rekey(&db, RekeyTarget::FirstMasterKey).await, 0);
    db.close().await;
}

async fn a_new_master_key_takes_over(place: &Place) {
    let db = place.open_with("old").await;
    let made = store(&db, ownership("acme", "ann"), MARKER).await;
    db.close().await;
    let db = place.open_with("new old").await;
    check(&db, &made, MARKER).await;
    let progress = db.rekey(RekeyTarget::FirstMasterKey, |_, _| {}).await.expect("rekeyed");
    assert_eq!(progress.rewrapped, 2, "the key of the tenant, and that of the server");
    assert_eq!(progress.values, 0, "the data keys are the same");
    db.close().await;
    let db = place.open_with("new").await;
    check(&db, &made, MARKER).await;
    db.close().await;
    let refused = place.refuses(Some(master_keys("old"))).await;
    assert!(refused.contains("under the key `new`"), "{refused}");
}

async fn new_data_keys_seal_everything_anew(place: &Place) {
    let db = place.open_with("test").await;
    let made = store(&db, ownership("acme", "ann"), MARKER).await;
    let before = everything_in(&db, place).await;
    assert!(rekey(&db, RekeyTarget::NewDataKeys).await > 15);
    check(&db, &made, MARKER).await;
    assert_ne!(everything_in(&db, place).await, before);
    assert_eq!(
        rekey(&db, RekeyTarget::FirstMasterKey).await,
        0,
        "nothing is under the old keys"
    );
    db.close().await;
    let db = place.open_with("test").await;
    check(&db, &made, MARKER).await;
    db.close().await;
}

async fn everything_can_be_made_plain_again(place: &Place) {
    let db = place.open_with("test").await;
    let made = store(&db, ownership("acme", "ann"), MARKER).await;
    assert!(rekey(&db, RekeyTarget::Plain).await > 15);
    db.close().await;
    let db = place.open(None).await;
    check(&db, &made, MARKER).await;
    let refused = db.rekey(RekeyTarget::FirstMasterKey, |_, _| {}).await;
    assert!(matches!(refused, Err(DbError::Unfit(_))), "{refused:?}");
    db.close().await;
}

async fn a_database_with_sealed_values_needs_its_keys(place: &Place) {
    let db = place.open_with("right").await;
    store(&db, ownership("acme", "ann"), MARKER).await;
    db.close().await;
    let refused = place.refuses(None).await;
    assert!(refused.contains("add the section [encryption]"), "{refused}");
    let refused = place.refuses(Some(master_keys("wrong"))).await;
    assert!(
        refused.contains("not among the keys of [encryption] (wrong)"),
        "{refused}"
    );
    let same_name = MasterKeys::read("right:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA").expect("a key");
    let refused = place.refuses(Some(same_name)).await;
    assert!(refused.contains("it is another key"), "{refused}");
}

async fn a_rolled_back_transaction_seals_nothing(place: &Place) {
    let db = place.open_with("test").await;
    let thread = thread_at(1);
    let refused = db.write(move |tx| {
        Box::pin(async move {
            threads::insert(tx, &thread).await?;
            Err::<(), Refusal>(Refusal)
        })
    });
    assert_eq!(refused.await, Err(Refusal));
    let made = store(&db, Ownership::default(), MARKER).await;
    db.close().await;
    let db = place.open_with("test").await;
    check(&db, &made, MARKER).await;
    db.close().await;
}

async fn keys_that_the_database_has_lost_seal_nothing(place: &Place) {
    lost_keys_seal_nothing(place, &["delete from data_keys", "delete from data_key_changes"]).await;
}

async fn lost_keys_seal_nothing_also_if_their_numbers_are_given_again(place: &Place) {
    lost_keys_seal_nothing(place, &["delete from data_keys"]).await;
}

async fn lost_keys_seal_nothing_also_if_more_numbers_were_given_since(place: &Place) {
    let losses = &[
        "delete from data_keys",
        "update data_key_changes set number = number + 1",
    ];
    lost_keys_seal_nothing(place, losses).await;
}

/// Checks that nothing is sealed with keys that the database has lost by these statements.
async fn lost_keys_seal_nothing(place: &Place, losses: &'static [&'static str]) {
    let db = place.open_with("test").await;
    store(&db, ownership("acme", "ann"), MARKER).await;
    // The database is that of a standby now, which was behind.
    write!(db, |tx| async {
        for &sql in losses {
            on_engine!(tx, |conn| query(sql).execute(conn).await.map(drop))?;
        }
        DbResult::Ok(())
    });
    // Equal content would be in blobs that are sealed with the lost keys.
    let text = "something else";
    let made = store(&db, ownership("acme", "bob"), text).await;
    assert_eq!(
        read!(db, |tx| data_key_count(tx)),
        2,
        "that of the tenant, and that of the server"
    );
    db.close().await;
    let db = place.open_with("test").await;
    check(&db, &made, text).await;
    db.close().await;
}

async fn data_key_count(tx: &mut Tx<'_>) -> DbResult<i64> {
    const SQL: &str = "select count(*) from data_keys where wrapped is not null";
    Ok(on_engine!(tx, |conn| query_scalar(SQL).fetch_one(conn).await)?)
}

async fn each_tenant_has_a_key_of_its_own(place: &Place) {
    let db = place.open_with("test").await;
    let ann = store(&db, ownership("acme", "ann"), MARKER).await;
    let bob = store(&db, ownership("other", "bob"), MARKER).await;
    assert_eq!(read!(db, |tx| data_key_count(tx)), 3, "two tenants and the server");
    check(&db, &ann, MARKER).await;
    check(&db, &bob, MARKER).await;
    db.close().await;
}

async fn values_of_other_rows_are_refused(place: &Place) {
    let db = place.open_with("test").await;
    let ann = store(&db, ownership("acme", "ann"), MARKER).await;
    let other = store(&db, ownership("acme", "bob"), "something else").await;
    let from = ann.run.id;
    let to = other.run.id;
    write!(db, |tx| async {
        const SQL: &str =
            "update runs set request = (select request from runs source where source.run_id = $1) where run_id = $2";
        on_engine!(tx, |conn| query(SQL)
            .bind(from.0)
            .bind(to.0)
            .execute(conn)
            .await
            .map(drop))?;
        DbResult::Ok(())
    });
    let read = read!(db, |tx| runs::get_by_id(tx, to)).expect("the run");
    assert_eq!(read.request.input, None, "the request of another run is not read");
    db.close().await;
}

/// Stores a pending run that is pinned to this definition, of which no version is left.
async fn store_pinned_run(db: &Db, pinned: &AgentDefinition) -> Run {
    store_definition(db, pinned).await;
    store_definition(db, &definition("newer")).await;
    let thread = thread_at(1);
    let mut run = run_at(thread.id, 2);
    run.request.agent = Some(AssignedAgent {
        graph_id: "agent".to_owned(),
        version: 1,
        definition: Some(pinned.digest()),
    });
    let stored = run.clone();
    write!(db, |tx| async {
        threads::insert(tx, &thread).await?;
        runs::insert(tx, &run, None).await?;
        definitions::forget_versions(tx, "agent", 1).await
    });
    stored
}

async fn a_definition_is_kept_while_a_sealed_request_needs_it(place: &Place) {
    let db = place.open_with("test").await;
    let pinned = definition("pinned");
    let thread = store_pinned_run(&db, &pinned).await.thread;
    let digest = pinned.digest();
    write!(db, |tx| definitions::sweep(tx, Timestamp(100)));
    let wanted = digest.clone();
    assert!(
        read!(db, |tx| definitions::find(tx, &wanted)).is_some(),
        "a pending run needs it"
    );
    write!(db, |tx| threads::delete(tx, thread));
    write!(db, |tx| definitions::sweep(tx, Timestamp(100)));
    assert!(read!(db, |tx| definitions::find(tx, &digest)).is_none());
    db.close().await;
}

async fn rekeying_keeps_no_definition_for_a_run_that_has_ended(place: &Place) {
    let db = place.open_with("test").await;
    let pinned = definition("pinned");
    let run = store_pinned_run(&db, &pinned).await;
    end_run(&db, run.id, false).await;
    let change = threads::ThreadChange {
        status: Some(ThreadStatus::Interrupted),
        ..Default::default()
    };
    write!(db, |tx| threads::set(tx, run.thread, change, Timestamp(5)));
    assert!(rekey(&db, RekeyTarget::NewDataKeys).await > 0);
    write!(db, |tx| definitions::sweep(tx, Timestamp(100)));
    let digest = pinned.digest();
    assert!(read!(db, |tx| definitions::find(tx, &digest)).is_none());
    db.close().await;
}

async fn sealed_items_are_filtered_and_ranked(place: &Place) {
    let db = place.open_with("test").await;
    assert_eq!(db.vector_search().await.expect("an answer"), VectorSearch::Scan);
    let owner = ownership("acme", "ann");
    for number in 0..40 {
        let address = ItemAddress::new(Namespace::stored(vec!["notes".to_owned()]), format!("k{number:02}"));
        let value = object(json!({"number": number, "kind": if number % 2 == 0 { "even" } else { "odd" }}));
        let mut draft = PreparedItem::new(address.expect("an address"), value, None).expect("an item");
        let angle = f32::from(u8::try_from(number).expect("small")) / 40.0;
        draft.vectors = vec![ItemVector {
            path: "kind".to_owned(),
            vector: vec![angle.cos(), angle.sin()],
        }];
        let space = owner.clone();
        write!(db, |tx| items::put(tx, &space, &draft, Timestamp(1)));
    }
    let wanted = |filter: Value, limit, offset| ItemSearch {
        prefix: Namespace::stored(vec!["notes".to_owned()]),
        filter: ItemFilter::read("filter", &object(filter)).expect("a filter"),
        limit,
        offset,
    };
    let search = wanted(json!({"kind": "odd", "number": {"$gt": 10.5}}), 3, 2);
    let space = owner.clone();
    let found = read!(db, |tx| items::search(tx, &space, &search, 1 << 20, Timestamp(2)));
    let keys: Vec<String> = found.into_items().into_iter().map(|item| item.address.key).collect();
    assert_eq!(keys, ["k15", "k17", "k19"]);
    let search = wanted(json!({"kind": "even"}), 2, 0);
    let near = VectorQuery {
        vector: vec![1.0, 0.0],
        by: VectorSearch::Scan,
    };
    let found = read!(db, |tx| nearest(tx, &owner, &search, &near, Timestamp(2))).expect("few enough");
    let keys: Vec<String> = found.into_iter().map(|found| found.item.address.key).collect();
    assert_eq!(keys, ["k00", "k02"]);
    db.close().await;
}

fn request_of(tenant: &str, user: Option<&str>) -> ErasureRequest {
    let client = format!("{tenant}/{}", user.unwrap_or("ann"));
    ErasureRequest {
        subject: DataSubject {
            tenant: Tenant::stored(tenant.to_owned()),
            user: user.map(|user| UserId::stored(user.to_owned())),
        },
        clients: vec![IdempotencyKey::prefix_of(&client)],
        account: format!("{tenant}/"),
        with_audit: true,
    }
}

async fn erase(db: &Db, request: ErasureRequest) -> DbResult<ErasedRows> {
    let of_threads = db.clone();
    let delete_thread = move |thread: ThreadId| -> BoxFuture<'static, DbResult<bool>> {
        let db = of_threads.clone();
        Box::pin(async move { db.write(move |tx| Box::pin(threads::delete(tx, thread))).await })
    };
    db.erase(request, delete_thread).await
}

async fn a_user_is_erased_and_others_stay(place: &Place) {
    let db = place.open(None).await;
    store(&db, ownership("acme", "ann"), MARKER).await;
    let bob = store(&db, ownership("acme", "bob"), "of bob").await;
    assert!(everything_in(&db, place).await.contains(MARKER));
    let erased = erase(&db, request_of("acme", Some("ann"))).await.expect("erased");
    let expected = ErasedRows {
        threads: 1,
        assistants: 1,
        crons: 1,
        items: 1,
        deliveries: 1,
        ..ErasedRows::default()
    };
    assert_eq!(erased, expected);
    // On SQLite the log is emptied soon after the last deletion.
    let waits = async {
        while everything_in(&db, place).await.contains(MARKER) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waits)
        .await
        .expect("nothing is left");
    check(&db, &bob, "of bob").await;
    db.close().await;
    let db = place.open(None).await;
    assert!(!everything_in(&db, place).await.contains(MARKER));
    db.close().await;
}

async fn an_erased_tenant_cannot_be_read_from_a_backup(place: &Place) {
    let db = place.open_with("test").await;
    let ann = store(&db, ownership("acme", "ann"), MARKER).await;
    let bob = store(&db, ownership("other", "bob"), "of bob").await;
    let run = ann.run.id;
    // A backup of the table would bring this back.
    let request: String = read!(db, |tx| async {
        const SQL: &str = "select request from runs where run_id = $1";
        Ok(on_engine!(tx, |conn| query_scalar(SQL)
            .bind(run.0)
            .fetch_one(conn)
            .await)?)
    });
    let erased = erase(&db, request_of("acme", None)).await.expect("erased");
    assert_eq!(erased.threads, 1);
    assert_eq!(erased.data_keys, 1);
    check(&db, &bob, "of bob").await;
    let restored = run.0;
    let thread = bob.thread.id;
    let again = Run {
        id: run,
        thread,
        error: None,
        ..bob.run.clone()
    };
    write!(db, |tx| async {
        const SQL: &str = "update runs set request = $2 where run_id = $1";
        runs::insert(tx, &again, None).await?;
        on_engine!(tx, |conn| query(SQL)
            .bind(restored)
            .bind(&request)
            .execute(conn)
            .await
            .map(drop))?;
        DbResult::Ok(())
    });
    let read = read!(db, |tx| runs::get_by_id(tx, run)).expect("the run");
    assert_eq!(read.request.input, None, "nobody has the key any more");
    let claim = write!(db, |tx| runs::claim(tx, run, WorkerId::mint(), Timestamp(9)));
    assert_eq!(claim, None, "what remains of a deleted tenant does not block the queue");
    let read = read!(db, |tx| runs::get_by_id(tx, run)).expect("the run");
    assert_eq!(read.status, RunStatus::Error);
    assert!(read.error.is_some_and(|error| error.message.contains("cannot be read")));
    write!(db, |tx| async {
        const SQL: &str = "delete from runs where run_id = $1";
        on_engine!(tx, |conn| query(SQL).bind(restored).execute(conn).await.map(drop))?;
        DbResult::Ok(())
    });
    db.close().await;
    let db = place.open_with("test").await;
    check(&db, &bob, "of bob").await;
    db.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_reads_what_the_first_server_sealed() {
    super::on_server(Box::pin(async {
        let Some(database) = super::postgres::fresh_database().await else {
            return;
        };
        let place = Place {
            url: database.url.clone(),
        };
        let one = place.open_with("test").await;
        let other = place.open_with("test").await;
        let ann = store(&one, ownership("acme", "ann"), MARKER).await;
        check(&other, &ann, MARKER).await;
        let bob = store(&other, ownership("acme", "bob"), MARKER).await;
        check(&one, &bob, MARKER).await;
        assert_eq!(
            read!(one, |tx| data_key_count(tx)),
            2,
            "both use one key for the tenant"
        );
        one.close().await;
        other.close().await;
        database.discard().await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_are_not_in_the_files_of_postgres() {
    super::on_server(Box::pin(async {
        let Some(database) = super::postgres::fresh_database().await else {
            return;
        };
        let place = Place {
            url: database.url.clone(),
        };
        let control = "a-text-that-is-stored-in-the-clear-0815";
        let db = place.open_with("test").await;
        store(&db, ownership("acme", "ann"), "sealed-text-that-is-nowhere-0816").await;
        let thread = Thread {
            metadata: object(json!({"note": control})),
            ..thread_at(1)
        };
        write!(db, |tx| threads::insert(tx, &thread));
        let folder = match database.admin != database.url {
            true => Some(flushed_folder(&database.admin).await),
            false => None,
        };
        let grep = |text: &str| {
            let folder = folder.as_deref().unwrap_or("/nowhere");
            Command::new("grep")
                .args(["-rqaF", text, folder])
                .status()
                .expect("grep")
                .success()
        };
        // A server elsewhere, or of another user, does not show its files.
        if grep(control) {
            assert!(!grep("sealed-text-that-is-nowhere-0816"));
        }
        db.close().await;
        database.discard().await;
    }))
    .await;
}

/// Writes everything to the files of the database, and returns their folder.
async fn flushed_folder(url: &str) -> String {
    let mut conn = PgConnection::connect(url).await.expect("a superuser");
    query("checkpoint")
        .execute(&mut conn)
        .await
        .expect("everything is written");
    query_scalar("select setting from pg_settings where name = 'data_directory'")
        .fetch_one(&mut conn)
        .await
        .expect("a folder")
}
