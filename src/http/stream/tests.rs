//! The response of a stream as a client reads it, over a log that the test writes.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::StreamExt;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::*;
use crate::db::DbError;
use crate::domain::checkpoint::Lane;
use crate::domain::event::{EventBody, Fact, Origin};
use crate::domain::id::{AssistantId, CheckpointId, RunId};
use crate::domain::run::RunStatus;
use crate::domain::time::Timestamp;

/// A log that a test writes. It ends when the sender is dropped.
struct Written(mpsc::UnboundedReceiver<Arc<Event>>, bool);

/// A log of a database that is closed.
struct ClosedLog;

impl Log for ClosedLog {
    async fn next(&mut self) -> DbResult<Option<Arc<Event>>> {
        Err(DbError::Closed)
    }

    fn is_cut(&self) -> bool {
        false
    }

    async fn load(&mut self, _: Needs) -> DbResult<Loaded> {
        Err(DbError::Closed)
    }
}

impl Log for Written {
    async fn next(&mut self) -> DbResult<Option<Arc<Event>>> {
        Ok(self.0.recv().await)
    }

    fn is_cut(&self) -> bool {
        self.1
    }

    async fn load(&mut self, needs: Needs) -> DbResult<Loaded> {
        match needs.state {
            Some(_) => Err(DbError::Unfit("there are no states in this test".to_owned())),
            None => Ok(Loaded::default()),
        }
    }
}

fn event(seq: i64, fact: Fact) -> Arc<Event> {
    let agent = "main-agent".to_owned();
    let origin = Origin {
        lane: Lane::Main,
        namespace: vec![],
        path: vec![agent.clone()],
        agent,
        cause: None,
        visibility: Default::default(),
        display_text: None,
    };
    let run = RunId::mint();
    Arc::new(Event {
        seq,
        run,
        at: Timestamp(0),
        origin: Arc::new(origin),
        body: EventBody::Fact(fact),
    })
}

fn started(resumed: bool) -> Fact {
    Fact::Started {
        base: None,
        carried_from: None,
        attempt: 1,
        resumed,
        calls: vec![],
    }
}

fn custom(word: &str) -> Fact {
    Fact::Custom {
        value: Value::from(word),
    }
}

fn ended() -> Fact {
    Fact::Ended {
        status: RunStatus::Success,
        error: None,
        waits: false,
        used: None,
    }
}

fn request(modes: &[StreamMode]) -> StreamRequest {
    let info = RunInfo {
        run: RunId::mint(),
        thread: ThreadId::mint(),
        graph_id: "agent".to_owned(),
        assistant: AssistantId::of_graph("agent"),
        attempt: 1,
        created_at: Timestamp(0),
        input: None,
        tags: vec![],
        metadata: Map::new(),
        jumps: false,
    };
    StreamRequest {
        info,
        modes: modes.to_vec(),
        subgraphs: false,
        resumable: false,
        resume_from: None,
        filter: None,
        detail: MetadataDetail::Full,
        heartbeat: Duration::from_secs(5),
        on_disconnect: None,
    }
}

/// The writes that a client receives for `facts`, which are logged before it connects.
async fn answer(facts: &[Fact], request: StreamRequest) -> Vec<String> {
    let (sender, log) = mpsc::unbounded_channel();
    for (seq, fact) in (1..).zip(facts) {
        assert!(sender.send(event(seq, fact.clone())).is_ok());
    }
    drop(sender);
    body(Written(log, false), request).map(text).collect().await
}

fn body(log: Written, request: StreamRequest) -> impl futures::Stream<Item = io::Result<Bytes>> {
    let heartbeat = request.heartbeat;
    pump::body(RunProjection::new(request), log, heartbeat)
}

fn text(bytes: io::Result<Bytes>) -> String {
    String::from_utf8_lossy(&bytes.expect("the stream does not break off")).into_owned()
}

#[tokio::test]
async fn ready_events_are_sent_in_one_write() {
    let writes = answer(
        &[started(false), custom("a"), custom("b"), ended()],
        request(&[StreamMode::Custom]),
    )
    .await;
    assert_eq!(writes.len(), 1);
    assert!(writes[0].starts_with("event: metadata\r\ndata: {\"run_id\":"));
    assert!(writes[0].ends_with("event: custom\r\ndata: \"a\"\r\n\r\nevent: custom\r\ndata: \"b\"\r\n\r\n"));
}

#[tokio::test]
async fn a_resumable_run_has_ids_and_a_resuming_reader_gets_the_rest() {
    let facts = [started(true), custom("a"), custom("b"), ended()];
    let modes = [StreamMode::Custom, StreamMode::Values];
    let all = answer(
        &facts,
        StreamRequest {
            resumable: true,
            ..request(&modes)
        },
    )
    .await
    .concat();
    let ids: Vec<_> = all.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(ids, ["1-0", "1-1", "2-0", "3-0"]);
    let seen = "1-0".parse().ok();
    let rest = answer(
        &facts,
        StreamRequest {
            resumable: true,
            resume_from: seen,
            ..request(&modes)
        },
    )
    .await
    .concat();
    let ids: Vec<_> = rest.lines().filter_map(|line| line.strip_prefix("id: ")).collect();
    assert_eq!(ids, ["1-1", "2-0", "3-0"]);
}

#[tokio::test]
async fn a_filter_keeps_the_modes_that_the_run_and_the_reader_request() {
    let facts = [started(true), custom("a"), ended()];
    let filter = Some(vec![StreamMode::Custom, StreamMode::Updates]);
    let filtered = answer(
        &facts,
        StreamRequest {
            filter,
            ..request(&[StreamMode::Custom, StreamMode::Values])
        },
    )
    .await;
    assert_eq!(filtered.concat(), "event: custom\r\ndata: \"a\"\r\n\r\n");
}

#[tokio::test]
async fn a_shutdown_aborts_the_stream_and_does_not_cancel_the_run() {
    let (sender, log) = mpsc::unbounded_channel();
    assert!(sender.send(event(1, custom("a"))).is_ok());
    drop(sender);
    let stopped = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&stopped);
    let on_disconnect: Box<dyn FnOnce() + Send> = Box::new(move || _ = count.fetch_add(1, Ordering::SeqCst));
    let request = StreamRequest {
        on_disconnect: Some(on_disconnect),
        ..request(&[StreamMode::Custom])
    };
    let writes: Vec<_> = body(Written(log, true), request).collect().await;
    let [Ok(_), Ok(last), Err(_)] = &writes[..] else {
        panic!("{writes:?}");
    };
    assert!(last.ends_with(b"\r\nretry: 500\r\n\r\n"), "{last:?}");
    assert_eq!(stopped.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_stream_whose_database_is_closed_breaks_off_and_does_not_seem_complete() {
    let request = request(&[StreamMode::Custom]);
    let heartbeat = request.heartbeat;
    let body = pump::body(RunProjection::new(request), ClosedLog, heartbeat);
    let writes: Vec<_> = body.collect().await;
    let [Ok(_), Err(_)] = &writes[..] else {
        panic!("{writes:?}");
    };
}

#[tokio::test(start_paused = true)]
async fn an_idle_stream_sends_heartbeats() {
    let (sender, log) = mpsc::unbounded_channel();
    let begun = tokio::time::Instant::now();
    let mut body = Box::pin(body(Written(log, false), request(&[StreamMode::Custom])));
    assert_eq!(body.next().await.map(text).as_deref(), Some(": heartbeat\r\n\r\n"));
    assert_eq!(begun.elapsed().as_secs(), 5);
    assert!(sender.send(event(1, custom("a"))).is_ok());
    assert!(
        body.next()
            .await
            .map(text)
            .is_some_and(|text| text.starts_with("event: custom"))
    );
    drop(sender);
    assert_eq!(body.next().await.map(text), None);
}

#[tokio::test]
async fn a_disconnect_counts_only_before_the_end_of_the_run() {
    let left = Arc::new(AtomicUsize::new(0));
    let guard = || {
        let left = Arc::clone(&left);
        let on_disconnect: Box<dyn FnOnce() + Send> = Box::new(move || {
            left.fetch_add(1, Ordering::SeqCst);
        });
        StreamRequest {
            on_disconnect: Some(on_disconnect),
            ..request(&[StreamMode::Custom])
        }
    };
    answer(&[custom("a"), ended()], guard()).await;
    assert_eq!(left.load(Ordering::SeqCst), 0);
    let (sender, log) = mpsc::unbounded_channel();
    assert!(sender.send(event(1, custom("a"))).is_ok());
    let mut body = Box::pin(body(Written(log, false), guard()));
    assert!(body.next().await.is_some());
    drop(body);
    assert_eq!(left.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_log_that_cannot_be_read_ends_the_stream_with_an_error() {
    let base = Some(CheckpointId::mint());
    let facts = [Fact::Started {
        base,
        carried_from: None,
        attempt: 1,
        resumed: false,
        calls: vec![],
    }];
    let told = answer(&facts, request(&[StreamMode::Values])).await.concat();
    assert!(
        told.starts_with("event: error\r\ndata: {\"error\":\"InternalServerError\""),
        "{told}"
    );
}
