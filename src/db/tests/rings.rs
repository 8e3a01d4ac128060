use std::time::Duration;

use super::{open, postgres, write};
use crate::db::rings::{Ring, ring};
use crate::domain::id::{RunId, ThreadId};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn are_heard_by_another_process_once_they_are_durable() {
    let Some(database) = postgres::fresh_database().await else {
        return;
    };
    let here = open(&database.url).await;
    let there = open(&database.url).await;
    let mut rings = there.rings();
    let undone = RunId::mint();
    let failed = here.write(move |tx| {
        Box::pin(async move {
            ring(tx, Ring::Cancel(undone)).await?;
            Err::<(), _>(crate::db::DbError::Busy)
        })
    });
    assert!(failed.await.is_err());
    for rung in [Ring::Cancel(RunId::mint()), Ring::Ended(ThreadId::mint()), Ring::Queue] {
        // The other one may not listen yet.
        while !matches!(tokio::time::timeout(Duration::from_millis(300), rings.recv()).await, Ok(Ok(heard)) if heard == rung)
        {
            write!(here, |tx| ring(tx, rung));
        }
    }
    while let Ok(heard) = rings.try_recv() {
        assert_ne!(heard, Ring::Cancel(undone));
    }
    here.close().await;
    there.close().await;
    database.discard().await;
}
