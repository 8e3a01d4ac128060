use std::sync::{Arc, Mutex};

use futures::future::{BoxFuture, lazy};
use sqlx::raw_sql;
use uuid::Uuid;

use super::{Db, Refusal, on_both, read, thread_at, write};
use crate::db::audit::{self, AuditSearch};
use crate::db::engine::on_engine;
use crate::db::erasure::{DataSubject, ErasureRequest};
use crate::db::{DbError, DbResult, PendingEntries, RowAccess, threads};
use crate::domain::access::{Action, Ownership};
use crate::domain::audit::{AuditEntry, AuditOutcome};
use crate::domain::id::ThreadId;
use crate::domain::identity::{Identity, Tenant, UserId};
use crate::domain::time::Timestamp;

on_both!(
    the_first_write_of_a_request_stores_its_entries,
    an_entry_is_stored_once,
    a_refused_write_leaves_its_entry_to_the_next,
    an_entry_of_a_refused_job_is_not_lost,
    a_write_whose_entry_cannot_be_stored_is_rolled_back,
    side_by_side_writes_of_a_request_store_one_entry,
    a_task_of_its_own_writes_for_the_request_that_it_carries_on,
    old_entries_are_deleted,
    a_search_finds_the_few_entries_of_a_user_among_many,
    a_search_looks_at_no_entries_that_are_much_older_than_it_says,
    the_entries_of_a_user_are_erased_among_many,
);

fn entry() -> AuditEntry {
    let caller = Identity::unauthenticated();
    AuditEntry::new(
        &caller,
        Action::ThreadsCreate,
        String::new(),
        AuditOutcome::Allowed,
        Timestamp(1),
    )
}

fn entry_of(user: &str, time: i64) -> AuditEntry {
    AuditEntry {
        user: user.to_owned(),
        created_at: Timestamp(time),
        ..entry()
    }
}

/// Stores entries, the oldest first.
async fn store(db: &Db, entries: Vec<AuditEntry>) {
    write!(db, |tx| async move {
        for entry in &entries {
            audit::insert(tx, entry).await?;
        }
        DbResult::Ok(())
    });
}

/// Stores an entry of ann, many of bob, and another one of ann.
async fn store_many(db: &Db) {
    let of_bob = (0..MANY).map(|_| entry_of("bob", 2));
    let first = std::iter::once(entry_of("ann", 1));
    let last = std::iter::once(entry_of("ann", 3));
    // Each id is later than the one before.
    store(db, first.chain(of_bob).chain(last).collect()).await;
}

/// More entries than are looked through together.
const MANY: usize = 1100;

/// The entries of the audit that a search finds.
async fn found(db: &Db, wanted: AuditSearch) -> Vec<AuditEntry> {
    read!(db, |tx| audit::search(tx, &wanted, 1 << 20)).into_items()
}

fn search_for(user: Option<&str>, limit: i64) -> AuditSearch {
    AuditSearch {
        tenant: Tenant::default(),
        user: user.map(str::to_owned),
        resource: None,
        action: None,
        outcome: None,
        since: None,
        until: None,
        before: None,
        limit,
    }
}

/// The entries of a request, and those that were taken over after its end.
struct AuditedRequest {
    entries: PendingEntries,
    left: Arc<Mutex<Vec<Uuid>>>,
}

impl AuditedRequest {
    /// Begins a request with one entry.
    fn begin() -> Self {
        let left = Arc::new(Mutex::new(vec![]));
        let taken = Arc::clone(&left);
        let entries = PendingEntries::new(move |left| {
            let mut taken = taken.lock().expect("the lock is not poisoned");
            taken.extend(left.iter().map(|entry| entry.id));
        });
        entries.add(entry());
        Self { entries, left }
    }

    /// Runs work for the request.
    async fn run<W: Future>(&self, work: W) -> W::Output {
        self.entries.clone().scope(work).await
    }

    /// Ends the request. Returns the number of entries that nobody has stored.
    fn end(self) -> usize {
        drop(self.entries);
        self.left.lock().expect("the lock is not poisoned").len()
    }
}

/// Stores a new thread; a refusal rolls it back.
async fn insert_thread(db: &Db, refusal: Result<(), Refusal>) -> Result<ThreadId, Refusal> {
    let thread = thread_at(1);
    let id = thread.id;
    let write = db.write(move |tx| {
        Box::pin(async move {
            threads::insert(tx, &thread).await?;
            refusal
        })
    });
    write.await.map(|()| id)
}

/// Returns the number of entries in the table.
async fn stored(db: &Db) -> usize {
    found(db, search_for(None, 100)).await.len()
}

async fn the_first_write_of_a_request_stores_its_entries(db: Db) {
    let request = AuditedRequest::begin();
    request.entries.add(entry());
    request.run(insert_thread(&db, Ok(()))).await.expect("a write");
    assert_eq!(stored(&db).await, 2);
    assert!(request.entries.is_empty());
    assert_eq!(request.end(), 0);
}

async fn an_entry_is_stored_once(db: Db) {
    let request = AuditedRequest::begin();
    for _ in 0..3 {
        request.run(insert_thread(&db, Ok(()))).await.expect("a write");
    }
    insert_thread(&db, Ok(())).await.expect("a write of nobody");
    assert_eq!(stored(&db).await, 1);
}

async fn a_refused_write_leaves_its_entry_to_the_next(db: Db) {
    let request = AuditedRequest::begin();
    let refused = request.run(insert_thread(&db, Err(Refusal))).await;
    assert_eq!(refused, Err(Refusal));
    assert_eq!(stored(&db).await, 0);
    assert!(!request.entries.is_empty());
    request.run(insert_thread(&db, Ok(()))).await.expect("a write");
    assert_eq!(stored(&db).await, 1);
    let other = AuditedRequest::begin();
    let refused = other.run(insert_thread(&db, Err(Refusal))).await;
    assert_eq!(refused, Err(Refusal));
    assert_eq!(other.end(), 1, "the entry is taken over");
}

async fn an_entry_of_a_refused_job_is_not_lost(db: Db) {
    let request = AuditedRequest::begin();
    request.run(insert_thread(&db, Ok(()))).await.expect("a write");
    let refused = request.run(db.write::<(), Refusal, _>(|_| {
        Box::pin(async {
            let entries = PendingEntries::current().expect("the job works for the request");
            entries.add(entry());
            Err(Refusal)
        })
    }));
    assert_eq!(refused.await, Err(Refusal));
    assert_eq!(stored(&db).await, 1);
    assert_eq!(request.end(), 1, "the entry is taken over");
}

async fn a_write_whose_entry_cannot_be_stored_is_rolled_back(db: Db) {
    write!(db, |tx| async {
        on_engine!(tx, |conn| raw_sql("drop table audit").execute(conn).await.map(drop))?;
        DbResult::Ok(())
    });
    let request = AuditedRequest::begin();
    let thread = thread_at(1);
    let id = thread.id;
    let write = db.write(move |tx| Box::pin(async move { threads::insert(tx, &thread).await }));
    let outcome: Result<bool, DbError> = request.run(write).await;
    assert!(outcome.is_err(), "{outcome:?}");
    assert!(read!(db, |tx| threads::find(tx, id)).is_none());
    assert_eq!(request.end(), 1, "the entry is taken over");
    insert_thread(&db, Ok(())).await.expect("a write without an entry");
}

async fn side_by_side_writes_of_a_request_store_one_entry(db: Db) {
    let request = AuditedRequest::begin();
    let writes = (0..16).map(|_| insert_thread(&db, Ok(())));
    let written = request.run(futures::future::join_all(writes)).await;
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    assert_eq!(stored(&db).await, 1);
    assert_eq!(request.end(), 0);
}

async fn a_task_of_its_own_writes_for_the_request_that_it_carries_on(db: Db) {
    let request = AuditedRequest::begin();
    let writer = db.clone();
    let (may_write, waits) = tokio::sync::oneshot::channel::<()>();
    let writes = async move {
        waits.await.expect("the test goes on");
        insert_thread(&writer, Ok(())).await
    };
    let carried = lazy(|_| RowAccess::carry(PendingEntries::carry(writes)));
    let work = request.run(carried).await;
    let tasks = tokio_util::task::TaskTracker::new();
    let task = tasks.spawn(work);
    // The client is gone before the task has written.
    let left = Arc::clone(&request.left);
    assert_eq!(request.end(), 0);
    may_write.send(()).expect("the task waits");
    task.await.expect("it does not panic").expect("a write");
    assert_eq!(stored(&db).await, 1);
    assert!(left.lock().expect("the lock is not poisoned").is_empty());
}

async fn old_entries_are_deleted(db: Db) {
    for number in 0..5 {
        for tenant in ["acme", "default"] {
            let entry = AuditEntry {
                tenant: tenant.to_owned(),
                created_at: Timestamp(number),
                ..entry()
            };
            write!(db, |tx| audit::insert(tx, &entry));
        }
    }
    assert_eq!(write!(db, |tx| audit::sweep(tx, Timestamp(3), 4)), 4);
    assert_eq!(write!(db, |tx| audit::sweep(tx, Timestamp(3), 4)), 2);
    assert_eq!(write!(db, |tx| audit::sweep(tx, Timestamp(3), 4)), 0);
    assert_eq!(stored(&db).await, 2);
}

async fn a_search_finds_the_few_entries_of_a_user_among_many(db: Db) {
    store_many(&db).await;
    let times = |entries: Vec<AuditEntry>| -> Vec<i64> { entries.iter().map(|entry| entry.created_at.0).collect() };
    assert_eq!(times(found(&db, search_for(Some("ann"), 10)).await), [3, 1]);
    let first = found(&db, search_for(Some("ann"), 1)).await;
    let next = AuditSearch {
        before: first.first().map(|entry| entry.id),
        ..search_for(Some("ann"), 10)
    };
    assert_eq!(times(first), [3]);
    assert_eq!(times(found(&db, next).await), [1]);
    assert_eq!(found(&db, search_for(Some("bob"), 5000)).await.len(), MANY);
    assert!(found(&db, search_for(Some("carl"), 10)).await.is_empty());
}

async fn a_search_looks_at_no_entries_that_are_much_older_than_it_says(db: Db) {
    const DAY: i64 = 86_400_000_000;
    let mut entries = vec![entry_of("ann", 10 * DAY)];
    entries.extend((0..MANY).map(|_| entry_of("bob", DAY)));
    entries.push(entry_of("ann", 9 * DAY));
    store(&db, entries).await;
    let since = |time: i64| AuditSearch {
        since: Some(Timestamp(time)),
        ..search_for(Some("ann"), 10)
    };
    // The oldest entry has a later time, which no clock of a server explains.
    assert_eq!(found(&db, since(9 * DAY)).await.len(), 1);
    assert_eq!(found(&db, since(DAY)).await.len(), 2);
}

async fn the_entries_of_a_user_are_erased_among_many(db: Db) {
    store_many(&db).await;
    let request = ErasureRequest {
        subject: DataSubject::user(Ownership {
            tenant: Tenant::default(),
            owner: UserId::stored("ann".to_owned()),
        }),
        clients: vec![],
        account: "default/ann/".to_owned(),
        with_audit: true,
    };
    let no_thread = |_: ThreadId| -> BoxFuture<'static, DbResult<bool>> { Box::pin(async { Ok(false) }) };
    let erased = db.erase(request, no_thread).await.expect("it is erased");
    assert_eq!(erased.audit, 2);
    assert!(found(&db, search_for(Some("ann"), 10)).await.is_empty());
    assert_eq!(found(&db, search_for(None, 5000)).await.len(), MANY);
}
