use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use futures::future::lazy;
use sqlx::raw_sql;
use uuid::Uuid;

use super::{Db, Refusal, on_both, read, thread_at, write};
use crate::db::audit::{self, AuditSearch, PartOfUser};
use crate::db::engine::on_engine;
use crate::db::{DbError, DbResult, PendingEntries, RowAccess, threads};
use crate::domain::access::{Action, Ownership};
use crate::domain::audit::{AuditEntry, AuditOutcome};
use crate::domain::id::ThreadId;
use crate::domain::identity::{Identity, Tenant, UserId};
use crate::domain::time::Timestamp;

on_both!(
    the_first_write_of_a_request_stores_its_entries,
    an_entry_is_stored_once,
    an_entry_is_read_as_it_was_stored,
    the_database_refuses_to_change_an_entry,
    a_refused_write_leaves_its_entry_to_the_next,
    an_entry_of_a_refused_job_is_not_lost,
    a_write_whose_entry_cannot_be_stored_is_rolled_back,
    side_by_side_writes_of_a_request_store_one_entry,
    a_task_of_its_own_writes_for_the_request_that_it_carries_on,
    old_entries_are_deleted,
    a_page_goes_on_behind_the_last_entry,
    a_search_finds_the_entries_of_its_time,
    the_entries_about_a_user_are_found_and_deleted_part_by_part,
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

fn search_for_all() -> AuditSearch {
    AuditSearch {
        tenant: Tenant::default(),
        user: None,
        resource: None,
        action: None,
        outcome: None,
        since: None,
        until: None,
        before: None,
        limit: 100,
    }
}

/// Returns the number of entries in the table.
async fn stored(db: &Db) -> usize {
    let wanted = search_for_all();
    read!(db, |tx| audit::search(tx, &wanted, 1 << 20)).into_items().len()
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

async fn an_entry_is_read_as_it_was_stored(db: Db) {
    let denied = |entry: AuditEntry| AuditEntry {
        outcome: AuditOutcome::Denied,
        ..entry
    };
    let with_detail = |entry: AuditEntry| entry.because_of(&["p1".to_owned()]);
    let from_an_address = AuditEntry {
        resource: "thread:1".to_owned(),
        address: Some(Ipv4Addr::LOCALHOST.into()),
        ..entry()
    };
    let mut entries = vec![
        from_an_address,
        with_detail(entry()),
        denied(entry()),
        denied(with_detail(entry())),
    ];
    let stored: Vec<Arc<AuditEntry>> = entries.iter().cloned().map(Arc::new).collect();
    // On SQLite the statements are sent together, so the values of all but the first get other numbers.
    write!(db, |tx| audit::insert_all(tx, &stored));
    let wanted = search_for_all();
    let found = read!(db, |tx| audit::search(tx, &wanted, 1 << 20)).into_items();
    entries.reverse();
    assert_eq!(found, entries);
}

async fn the_database_refuses_to_change_an_entry(db: Db) {
    const SQL: &str = "update audit set user_id = 'another'";
    let stored = entry();
    let expected = stored.clone();
    write!(db, |tx| audit::insert(tx, &stored));
    let change = db.write(|tx| {
        Box::pin(async move {
            on_engine!(tx, |conn| raw_sql(SQL).execute(conn).await.map(drop))?;
            DbResult::Ok(())
        })
    });
    let changed: DbResult<()> = change.await;
    assert!(changed.is_err(), "{changed:?}");
    let wanted = search_for_all();
    let found = read!(db, |tx| audit::search(tx, &wanted, 1 << 20)).into_items();
    assert_eq!(found, [expected]);
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
            let entries = PendingEntries::current().expect("the operation works for the request");
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
    let carried = lazy(|_| RowAccess::in_current(PendingEntries::in_current(writes)));
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

async fn a_page_goes_on_behind_the_last_entry(db: Db) {
    let entries: Vec<Arc<AuditEntry>> = (0..60).map(|_| Arc::new(entry())).collect();
    let mut ids: Vec<Uuid> = entries.iter().map(|entry| entry.id).collect();
    write!(db, |tx| audit::insert_all(tx, &entries));
    ids.reverse();
    let mut found = vec![];
    // A page is read in batches, the first of which is smaller than this.
    for expected in [50, 10, 0] {
        let wanted = AuditSearch {
            before: found.last().copied(),
            limit: 50,
            ..search_for_all()
        };
        let page = read!(db, |tx| audit::search(tx, &wanted, 1 << 20)).into_items();
        assert_eq!(page.len(), expected);
        found.extend(page.iter().map(|entry| entry.id));
    }
    assert_eq!(found, ids);
}

async fn a_search_finds_the_entries_of_its_time(db: Db) {
    const HALF_HOUR: i64 = 30 * 60 * 1_000_000;
    let at = |half_hours: i64| Timestamp(1_790_000_000_000_000 + half_hours * HALF_HOUR);
    // The id of an entry is made last, by half an hour here.
    let made_at = |half_hours: i64| AuditEntry {
        id: Uuid::from_u128(u128::try_from(at(half_hours + 1).millis()).expect("after 1970") << 80),
        resource: "thread:1".to_owned(),
        created_at: at(half_hours),
        ..entry()
    };
    let entries: Vec<Arc<AuditEntry>> = (0..20).map(|number| Arc::new(made_at(number))).collect();
    write!(db, |tx| audit::insert_all(tx, &entries));
    let wanted = AuditSearch {
        since: Some(at(5)),
        until: Some(at(8)),
        ..search_for_all()
    };
    let found = read!(db, |tx| audit::search(tx, &wanted, 1 << 20)).into_items();
    let times: Vec<Timestamp> = found.iter().map(|entry| entry.created_at).collect();
    assert_eq!(times, [at(7), at(6), at(5)]);
    let tenant = Tenant::default();
    let resources = ["thread:1".to_owned()];
    let found = read!(db, |tx| audit::of_resources(
        tx,
        &tenant,
        "threads:create",
        &resources,
        at(15)
    ));
    let times: Vec<Timestamp> = found.iter().map(|entry| entry.created_at).collect();
    assert!(times.ends_with(&[15, 16, 17, 18, 19].map(at)), "{times:?}");
    assert!(
        !times.contains(&at(5)),
        "entries from long before are not read: {times:?}"
    );
}

async fn the_entries_about_a_user_are_found_and_deleted_part_by_part(db: Db) {
    let of = |user: &str| {
        let user = user.to_owned();
        Arc::new(AuditEntry { user, ..entry() })
    };
    let entries: Vec<Arc<AuditEntry>> = ["ann", "bob", "ann", "bob", "ann"].into_iter().map(of).collect();
    let ids: Vec<Uuid> = entries.iter().map(|entry| entry.id).collect();
    write!(db, |tx| audit::insert_all(tx, &entries));
    let tenant = Tenant::default();
    let ann = UserId::stored("ann".to_owned());
    let found = async |after: Uuid, entries: i64| {
        let tenant = tenant.clone();
        let ann = ann.clone();
        read!(db, |tx| audit::ids_of_user(tx, &tenant, &ann, after, entries))
    };
    let part = |found: &[Uuid], end: Option<Uuid>| PartOfUser {
        found: found.to_vec(),
        end,
    };
    assert_eq!(found(Uuid::nil(), 3).await, part(&[ids[0], ids[2]], Some(ids[2])));
    assert_eq!(
        found(ids[0], 1).await,
        part(&[], Some(ids[1])),
        "the entry is about bob"
    );
    assert_eq!(found(ids[2], 3).await, part(&[ids[4]], None));
    let caller = Ownership {
        tenant: tenant.clone(),
        owner: ann.clone(),
    };
    let first = ids[0];
    let whole = read!(db, |tx| audit::of_user(tx, &caller.tenant, &caller.owner, first, 9));
    let found_ids: Vec<Uuid> = whole.found.iter().map(|entry| entry.id).collect();
    assert_eq!(found_ids, [ids[2], ids[4]]);
    let two = [ids[0], ids[2]];
    assert_eq!(write!(db, |tx| audit::delete(tx, &Tenant::default(), &two)), 2);
    assert_eq!(found(Uuid::nil(), 9).await, part(&[ids[4]], None));
    assert_eq!(stored(&db).await, 3);
}
