//! The cost of an entry of the audit: in the transaction of the change, and in one of its own.

use adjutant::db::threads;
use adjutant::domain::access::{Action, Ownership};
use adjutant::domain::audit::{AuditEntry, AuditOutcome};
use adjutant::domain::id::ThreadId;
use adjutant::domain::identity::{Credential, Identity};
use adjutant::domain::thread::Thread;
use adjutant::domain::time::{Clock, SystemClock};
use serde_json::Map;

use crate::lab::Lab;
use crate::meter::{Cost, line};

/// Runs the benchmark. Each request inserts a thread.
pub(crate) async fn measure(lab: &Lab) {
    let caller = Identity {
        credential: Credential::Hook,
        ..Identity::unauthenticated()
    };
    for clients in [1, 16] {
        let without = Cost::of(2_000, clients, || insert(lab)).await;
        let with = Cost::of(2_000, clients, || async {
            let request = lab.runtime.audit.run_request(Some(&caller), async {
                lab.runtime.audit.record(entry(&caller));
                insert(lab).await;
            });
            request.await.expect("the entry is stored");
        });
        let with = with.await;
        let apart = Cost::of(2_000, clients, || async {
            insert(lab).await;
            let request = lab.runtime.audit.run_request(Some(&caller), async {
                lab.runtime.audit.record(entry(&caller));
            });
            request.await.expect("the entry is stored");
        });
        let apart = apart.await;
        for (name, cost) in [
            ("a change without an entry", &without),
            ("a change with its entry", &with),
            ("a change, then an entry by itself", &apart),
        ] {
            let numbers = [(cost.p50(), "ms p50"), (cost.cpu() * 1e3, "us CPU each")];
            line(&format!("{name}, {clients} at once"), &numbers);
        }
    }
}

async fn insert(lab: &Lab) {
    let thread = Thread::new(ThreadId::mint(), Ownership::default(), Map::new(), SystemClock.now());
    let write = lab
        .db
        .write(move |tx| Box::pin(async move { threads::insert(tx, &thread).await }));
    assert!(write.await.expect("a commit"), "the thread is new");
}

fn entry(caller: &Identity) -> AuditEntry {
    let now = SystemClock.now();
    AuditEntry::new(caller, Action::ThreadsCreate, String::new(), AuditOutcome::Allowed, now)
}
