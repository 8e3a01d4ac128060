use std::time::Duration;

use super::{open, postgres, write};
use crate::db::notifications::{Notification, notify};
use crate::domain::id::{RunId, ThreadId};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notifications_reach_another_server_after_the_commit() {
    super::on_server(async {
    let Some(database) = postgres::fresh_database().await else {
        return;
    };
    let sender = open(&database.url).await;
    let receiver = open(&database.url).await;
    let mut notifications = receiver.notifications();
    let undone = RunId::mint();
    let failed = sender.write(move |tx| {
        Box::pin(async move {
            notify(tx, Notification::Cancel(undone)).await?;
            Err::<(), _>(crate::db::DbError::Busy)
        })
    });
    assert!(failed.await.is_err());
    for sent in [
        Notification::Cancel(RunId::mint()),
        Notification::Ended(ThreadId::mint()),
        Notification::Queue,
        Notification::Released,
        Notification::Jobs,
        Notification::Definitions,
    ] {
        // The receiver may not listen yet, so the notification is sent until it arrives.
        while !matches!(tokio::time::timeout(Duration::from_millis(300), notifications.recv()).await, Ok(Ok(received)) if received == sent)
        {
            write!(sender, |tx| notify(tx, sent));
        }
    }
    while let Ok(received) = notifications.try_recv() {
        assert_ne!(received, Notification::Cancel(undone));
    }
    sender.close().await;
    receiver.close().await;
    database.discard().await;
    })
    .await;
}
