use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;

use super::*;

/// Sets a mark when it is dropped.
struct Mark(Arc<AtomicBool>);

impl Drop for Mark {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_task_that_watches_the_soft_signal_ends_by_itself() {
    let shutdown = Shutdown::default();
    let soft = shutdown.soft().clone();
    let task = shutdown.spawn("watcher", async move {
        soft.cancelled().await;
        "left"
    });

    shutdown.begin();

    assert_eq!(shutdown.finished().await, Ok(()));
    assert_eq!(task.await.expect("the task ended"), Some("left"));
    assert_eq!(shutdown.tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_does_not_end_is_dropped_at_the_deadline() {
    let shutdown = Shutdown::default();
    let dropped = Arc::new(AtomicBool::new(false));
    let mark = Mark(Arc::clone(&dropped));
    let task = shutdown.spawn("sleeper", async move {
        let _mark = mark;
        std::future::pending::<()>().await;
    });

    let begun = Instant::now();
    shutdown.begin();

    let reason = "the deadline of 30 s was reached".to_owned();
    assert_eq!(shutdown.finished().await, Err(StopError::Forced { reason, tasks: 1 }));
    assert_eq!(begun.elapsed(), DEADLINE);
    assert!(dropped.load(Ordering::SeqCst));
    assert_eq!(task.await.expect("the task ended"), None);
}

#[tokio::test]
async fn a_hard_shutdown_does_not_wait_for_the_deadline() {
    let shutdown = Shutdown::new(Duration::from_secs(3600));
    shutdown.spawn("sleeper", std::future::pending::<()>());

    shutdown.begin();
    shutdown.force();

    let reason = "it was stopped at once".to_owned();
    assert_eq!(shutdown.finished().await, Err(StopError::Forced { reason, tasks: 1 }));
}

#[tokio::test]
async fn a_panic_ends_only_its_own_task() {
    let shutdown = Shutdown::default();
    let clumsy: JoinHandle<Option<()>> = shutdown.spawn("clumsy", async { panic!("oh no") });
    let steady = shutdown.spawn("steady", async { 7 });

    assert_eq!(clumsy.await.expect("the panic was caught"), None);
    assert_eq!(steady.await.expect("the task ended"), Some(7));
    assert!(!shutdown.soft().is_cancelled());
}

#[tokio::test]
async fn the_end_of_an_essential_task_stops_the_server() {
    let reason_of = async |future: BoxFuture<'static, Result<(), String>>| {
        let shutdown = Shutdown::default();
        shutdown.spawn_essential("listener", future);
        shutdown
            .finished()
            .await
            .expect_err("the server stops because of the task")
            .to_string()
    };

    assert_eq!(
        reason_of(async { Err("port lost".to_owned()) }.boxed()).await,
        "the task `listener` ended: port lost"
    );
    assert_eq!(
        reason_of(async { panic!("oh {}", "no") }.boxed()).await,
        "the task `listener` ended: it panicked: oh no"
    );
    assert_eq!(
        reason_of(async { Ok(()) }.boxed()).await,
        "the task `listener` ended: it ended without an error"
    );
}

#[tokio::test]
async fn an_essential_task_may_end_after_the_soft_signal() {
    let shutdown = Shutdown::default();
    let soft = shutdown.soft().clone();
    shutdown.spawn_essential("listener", async move {
        soft.cancelled().await;
        Ok::<(), String>(())
    });

    shutdown.begin();

    assert_eq!(shutdown.finished().await, Ok(()));
}
