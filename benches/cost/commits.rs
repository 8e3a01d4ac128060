//! The cost of a durable transaction, alone and with concurrent writers.

use adjutant::db::threads;
use adjutant::domain::access::Ownership;
use adjutant::domain::id::ThreadId;
use adjutant::domain::thread::Thread;
use adjutant::domain::time::{Clock, SystemClock};
use serde_json::Map;

use crate::lab::Lab;
use crate::meter::{Cost, line};

/// Runs the benchmark. Each transaction inserts a thread, the smallest row.
pub(crate) async fn measure(lab: &Lab) {
    for writers in [1, 16, 64] {
        let cost = Cost::of(2_000, writers, || async {
            let thread = Thread::new(ThreadId::mint(), Ownership::default(), Map::new(), SystemClock.now());
            let write = lab
                .db
                .write(move |tx| Box::pin(async move { threads::insert(tx, &thread).await }));
            assert!(write.await.expect("a commit"), "the thread is new");
        });
        let cost = cost.await;
        let numbers = [
            (cost.p50(), "ms p50"),
            (cost.cpu() * 1e3, "us CPU each"),
            (cost.rate(), "commits/s"),
        ];
        line(&format!("a transaction of one row, {writers} at once"), &numbers);
    }
}
