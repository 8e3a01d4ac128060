//! Readers of a database in memory and a log that the test writes.

use std::time::Duration;

use serde_json::Map;

use super::*;
use crate::domain::access::Ownership;
use crate::domain::account::RunQueue;
use crate::domain::event::{AnswerHead, Chunk, Delta, Origin};
use tokio_util::sync::CancellationToken;

use crate::db::RowAccess;
use crate::db::events::NewEvent;
use crate::domain::id::{AssistantId, RunId, TaskId, ThreadId};
use crate::domain::run::{Lineage, RunRequest, RunStatus};
use crate::domain::thread::Thread;
use crate::domain::time::Timestamp;
use crate::events::Events;
use crate::events::slot::{Slot, SlotContent};

/// The time limit for events that must arrive at once.
const PATIENCE: Duration = Duration::from_secs(10);

/// A thread with its log.
struct Scene {
    events: Events,
    db: Db,
    thread: ThreadId,
    log: Arc<ThreadLog>,
}

impl Scene {
    #[expect(
        clippy::disallowed_methods,
        reason = "the writer of a database that lives as long as the test"
    )]
    async fn new() -> Self {
        let spawn = |_: &'static str, task: futures::future::BoxFuture<'static, ()>| drop(tokio::spawn(task));
        let db = Db::open("sqlite::memory:", &spawn).await.unwrap();
        let thread = ThreadId::mint();
        let row = Thread::new(thread, Ownership::default(), Map::new(), Timestamp(0));
        db.write(move |tx| Box::pin(async move { db::threads::insert(tx, &row).await }))
            .await
            .unwrap();
        let events = Events::new(db.clone(), CancellationToken::new());
        let log = events.log(thread);
        Self {
            events,
            db,
            thread,
            log,
        }
    }

    async fn run(&self, status: RunStatus) -> Run {
        let id = RunId::mint();
        let run = Run {
            id,
            thread: self.thread,
            assistant: AssistantId::of_graph("agent"),
            lineage: Lineage::root(id, "main"),
            status,
            request: RunRequest::default(),
            metadata: Map::new(),
            error: None,
            attempt: 1,
            created_at: Timestamp(0),
            updated_at: Timestamp(0),
            due_at: Timestamp(0),
            queue: RunQueue::default(),
        };
        let row = run.clone();
        self.db
            .write(move |tx| Box::pin(async move { db::runs::insert(tx, &row, None).await }))
            .await
            .unwrap();
        run
    }

    async fn ends(&self, run: &Run) {
        let id = run.id;
        let status = RunStatus::Success;
        let job = self.db.write(move |tx| {
            Box::pin(async move { db::runs::set_status(tx, id, status, None, Timestamp(1)).await.map(drop) })
        });
        job.await.unwrap();
    }

    /// Stores facts under these numbers.
    async fn stores(&self, run: &Run, facts: &[(i64, Fact)]) {
        let thread = self.thread;
        let run = run.id;
        let facts = facts.to_vec();
        let job = self.db.write(move |tx| {
            Box::pin(async move {
                let placed = |(seq, fact)| NewEvent {
                    thread,
                    seq,
                    run,
                    lane: Lane::Main,
                    fact,
                    at: Timestamp(0),
                };
                let placed: Vec<_> = facts.iter().map(|(seq, fact)| placed((*seq, fact))).collect();
                db::events::insert(tx, &placed).await
            })
        });
        job.await.unwrap();
    }

    /// Stores facts under the next numbers and publishes them, as a journal does.
    async fn commits(&self, run: &Run, facts: &[Fact]) {
        let first = self.log.reserve(facts.len());
        let numbered: Vec<_> = (first..).zip(facts.iter().cloned()).collect();
        self.stores(run, &numbered).await;
        self.log
            .publish(numbered.into_iter().map(|(seq, fact)| Arc::new(event(run, seq, fact))));
    }
}

fn event(run: &Run, seq: i64, fact: Fact) -> Event {
    let path = run.lineage.path.clone();
    let origin = Origin {
        lane: Lane::Main,
        namespace: vec![],
        agent: "main".to_owned(),
        path,
        cause: None,
        visibility: Default::default(),
        display_text: None,
    };
    Event {
        seq,
        run: run.id,
        at: Timestamp(0),
        origin: Arc::new(origin),
        body: EventBody::Fact(fact),
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

/// The numbers of all events that `tail` reads until it ends.
async fn all(tail: &mut Tail) -> Vec<i64> {
    let mut seqs = vec![];
    while let Some(event) = tail.next().await.unwrap() {
        seqs.push(event.seq);
    }
    seqs
}

#[tokio::test]
async fn a_reader_from_the_start_gets_every_event_once_and_in_order() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Running).await;
            scene.log.open(1);
            let mut tail = scene.events.tail(&run, After::Start);
            scene.commits(&run, &[Fact::Paused, Fact::Paused]).await;
            assert_eq!(tail.next().await.unwrap().unwrap().seq, 1);
            assert!(!tail.waiting.is_empty());
            scene.log.publish_volatile(|seq| event(&run, seq, Fact::Paused));
            scene.commits(&run, &[ended()]).await;
            assert_eq!(all(&mut tail).await, [2, 3, 4]);
        })
        .await;
}

#[tokio::test]
async fn a_reader_that_is_woken_at_the_end_gets_every_event() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Running).await;
            scene.log.expect_run(run.id, true);
            scene.log.open(1);
            let mut tail = scene.events.tail(&run, After::Start).waking_at_end();
            let work = async {
                scene.commits(&run, &[Fact::Paused]).await;
                scene.log.publish_volatile(|seq| event(&run, seq, Fact::Paused));
                scene.commits(&run, &[ended()]).await;
            };
            let reading = timeout(PATIENCE, all(&mut tail));
            let (read, ()) = tokio::join!(reading, work);
            assert_eq!(read.expect("it is woken"), [1, 2, 3]);
        })
        .await;
}

#[tokio::test]
async fn a_late_reader_reads_stored_events_and_then_those_in_memory() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Running).await;
            scene.stores(&run, &[(1, Fact::Paused), (2, Fact::Paused)]).await;
            scene.log.open(3);
            scene.log.publish_volatile(|seq| event(&run, seq, Fact::Paused));
            scene.commits(&run, &[ended()]).await;
            assert_eq!(all(&mut scene.events.tail(&run, After::Start)).await, [1, 2, 3, 4]);
            assert_eq!(all(&mut scene.events.tail(&run, After::Seq(2))).await, [3, 4]);
        })
        .await;
}

#[tokio::test]
async fn a_reader_of_a_long_run_passes_from_stored_events_to_memory() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let older = scene.run(RunStatus::Success).await;
            scene.stores(&older, &[(1, Fact::Paused), (2, ended())]).await;
            let run = scene.run(RunStatus::Running).await;
            scene.log.open(3);
            let count = usize::try_from(PAGE).unwrap() + 10;
            scene.commits(&run, &vec![Fact::Paused; count]).await;
            let mut tail = scene.events.tail(&run, After::Start);
            for seq in (3..).take(count) {
                let event = timeout(PATIENCE, tail.next()).await.expect("an event that is there");
                assert_eq!(event.unwrap().map(|event| event.seq), Some(seq));
            }
        })
        .await;
}

#[tokio::test]
async fn a_slow_reader_gets_stored_events_and_misses_only_volatile_ones() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Running).await;
            scene.log.open(1);
            scene.commits(&run, &[Fact::Paused]).await;
            scene.log.publish_volatile(|seq| event(&run, seq, Fact::Paused));
            scene.commits(&run, &[Fact::Paused]).await;
            let mut tail = scene.events.tail(&run, After::Start);
            for _ in 0..1024 {
                scene.log.publish_volatile(|seq| event(&run, seq, Fact::Paused));
            }
            scene.commits(&run, &[ended()]).await;
            let seqs = all(&mut tail).await;
            assert_eq!(seqs[..2].to_vec(), vec![1, 3]);
            assert_eq!(seqs.len(), 2 + 1024);
            assert_eq!(seqs.last(), Some(&1028));
        })
        .await;
}

#[tokio::test]
async fn a_reader_after_the_end_ends_at_once() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Success).await;
            scene.stores(&run, &[(1, Fact::Paused), (2, ended())]).await;
            assert_eq!(all(&mut scene.events.tail(&run, After::Start)).await, [1, 2]);
            assert_eq!(
                all(&mut scene.events.tail(&run, After::Seq(2))).await,
                Vec::<i64>::new()
            );
            assert_eq!(all(&mut scene.events.tail(&run, After::Now)).await, Vec::<i64>::new());
        })
        .await;
}

#[tokio::test]
async fn a_reader_of_an_ended_run_does_not_wait_for_another_run() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Success).await;
            scene.stores(&run, &[(1, ended())]).await;
            scene.log.open(2);
            let mut tail = scene.events.tail(&run, After::Seq(1));
            let end = timeout(PATIENCE, all(&mut tail)).await;
            assert_eq!(end.ok(), Some(vec![]));
        })
        .await;
}

#[tokio::test]
async fn a_reader_of_a_run_that_is_rolled_back_does_not_wait_for_the_next_run() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Running).await;
            let holder = scene.log.expect_run(run.id, true);
            scene.log.open(1);
            scene.commits(&run, &[Fact::Paused]).await;
            let mut each = scene.events.tail(&run, After::Start);
            let mut end = scene.events.tail(&run, After::Start).waking_at_end();
            for tail in [&mut each, &mut end] {
                assert_eq!(tail.next().await.unwrap().unwrap().seq, 1);
            }
            // Its log has no end, and the next run is there before it is closed.
            scene.ends(&run).await;
            let next = scene.run(RunStatus::Running).await;
            scene.log.expect_run(next.id, true);
            scene.log.close(holder);
            scene.log.open(2);
            for tail in [&mut each, &mut end] {
                let rest = timeout(PATIENCE, all(tail)).await;
                assert_eq!(rest.expect("the run is over"), Vec::<i64>::new());
            }
        })
        .await;
}

#[tokio::test]
async fn a_reader_from_before_the_start_gets_the_first_event() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Pending).await;
            let mut tail = scene.events.tail(&run, After::Now);
            assert_eq!(tail.start_from_now().await.unwrap(), 0);
            scene.log.open(1);
            scene.commits(&run, &[Fact::Paused, ended()]).await;
            assert_eq!(all(&mut tail).await, [1, 2]);
        })
        .await;
}

#[tokio::test]
async fn a_reader_follows_a_run_in_another_process() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Running).await;
            let mut tail = scene.events.tail(&run, After::Start);
            scene.stores(&run, &[(1, Fact::Paused)]).await;
            assert_eq!(tail.next().await.unwrap().unwrap().seq, 1);
            scene.stores(&run, &[(2, Fact::Paused)]).await;
            scene.ends(&run).await;
            assert_eq!(
                all(&mut tail).await,
                [2],
                "it ends without a last event when the run is over"
            );
        })
        .await;
}

#[tokio::test]
async fn a_reader_gets_what_a_run_was_storing_when_it_was_left() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Running).await;
            scene.log.open(1);
            let mut tail = scene.events.tail(&run, After::Start);
            // Nobody waits any more for the end of this commit of a subagent, which publishes its event.
            let left = scene.log.reserve(1);
            scene.stores(&run, &[(left, Fact::Paused)]).await;
            scene.commits(&run, &[ended()]).await;
            scene.log.close(0);
            assert_eq!(all(&mut tail).await, [1, 2]);
        })
        .await;
}

#[tokio::test]
async fn a_reader_does_not_get_the_events_of_other_runs() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let other = scene.run(RunStatus::Success).await;
            let run = scene.run(RunStatus::Pending).await;
            scene.log.open(1);
            scene.commits(&other, &[Fact::Paused, ended()]).await;
            scene.log.close(0);
            scene.log.open(3);
            scene.commits(&run, &[ended()]).await;
            assert_eq!(all(&mut scene.events.tail(&run, After::Start)).await, [3]);
            assert_eq!(all(&mut scene.events.tail(&other, After::Start)).await, [1, 2]);
        })
        .await;
}

#[tokio::test]
async fn a_reader_from_now_on_gets_only_new_events() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Running).await;
            scene.log.open(1);
            scene.commits(&run, &[Fact::Paused]).await;
            let first = scene.log.reserve(1);
            let mut tail = scene.events.tail(&run, After::Now);
            assert_eq!(tail.start_from_now().await.unwrap(), 1);
            scene.log.publish([Arc::new(event(&run, first, ended()))]);
            assert_eq!(all(&mut tail).await, [2]);
        })
        .await;
}

impl Scene {
    /// Publishes a piece of the answer `message`.
    fn says(&self, run: &Run, message: &str, ordinal: u32, chunk: Chunk) {
        self.log
            .publish_volatile(|seq| piece(run, seq, message, ordinal, chunk));
    }
}

/// A piece of the answer `message`.
fn piece(run: &Run, seq: i64, message: &str, ordinal: u32, chunk: Chunk) -> Event {
    let answer = AnswerHead {
        message: message.to_owned(),
        task: TaskId::of_step(None, "model", 0),
        step: 1,
        provider: "lab".to_owned(),
        model: "m".to_owned(),
    };
    let delta = Delta {
        answer: Arc::new(answer),
        ordinal,
        chunk,
    };
    Event {
        body: EventBody::Delta(delta),
        ..event(run, seq, Fact::Paused)
    }
}

fn text() -> Chunk {
    Chunk::Text("word ".to_owned())
}

/// The next event, which must be there at once.
async fn next(tail: &mut Tail) -> Arc<Event> {
    let next = timeout(PATIENCE, tail.next()).await.expect("an event that is there");
    next.unwrap().expect("an event")
}

#[tokio::test]
async fn a_reader_from_now_on_gets_the_beginning_of_the_answer_that_is_being_given() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Running).await;
            scene.log.open(1);
            scene.says(&run, "m1", 0, Chunk::Begin);
            scene.commits(&run, &[Fact::Undone]).await;
            scene.says(&run, "m2", 0, Chunk::Begin);
            scene.commits(&run, &[Fact::Paused]).await;
            scene.says(&run, "m2", 1, text());
            let mut tail = scene.events.tail(&run, After::Now);
            let first = [next(&mut tail).await.seq, next(&mut tail).await.seq];
            assert_eq!(first, [3, 5]);
            scene.says(&run, "m2", 2, text());
            assert_eq!(next(&mut tail).await.seq, 6);
            let mut other = scene.events.tail(&run, After::Joined(4));
            let first = [next(&mut other).await.seq, next(&mut other).await.seq];
            assert_eq!(first, [3, 5]);
            scene.commits(&run, &[ended()]).await;
            assert_eq!(all(&mut tail).await, [7]);
            assert_eq!(all(&mut other).await, [6, 7]);
        })
        .await;
}

#[tokio::test]
async fn a_reader_from_now_on_gets_the_beginning_of_an_answer_that_is_longer_than_memory() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Running).await;
            scene.log.open(1);
            scene.says(&run, "m1", 0, Chunk::Begin);
            for ordinal in 1..2000 {
                scene.says(&run, "m1", ordinal, text());
            }
            let mut tail = scene.events.tail(&run, After::Now);
            let mut said = String::new();
            let mut number = None;
            loop {
                let event = next(&mut tail).await;
                let EventBody::Delta(delta) = &event.body else {
                    panic!("{event:?}")
                };
                assert!(number.is_none_or(|number| delta.ordinal == number + 1), "{event:?}");
                number = Some(delta.ordinal);
                if let Chunk::Text(text) = &delta.chunk {
                    said.push_str(text);
                }
                if delta.ordinal == 1999 {
                    break;
                }
            }
            assert_eq!(said, "word ".repeat(1999));
        })
        .await;
}

#[tokio::test]
async fn a_reader_from_now_on_gets_the_beginning_from_another_process_once_it_has_come() {
    RowAccess::Server
        .scope(async {
            let scene = Scene::new().await;
            let run = scene.run(RunStatus::Running).await;
            scene.stores(&run, &[(3, Fact::Paused)]).await;
            let mut tail = scene.events.tail(&run, After::Now);
            assert_eq!(tail.start_from_now().await.unwrap(), 3);
            let slot = |seq, content| Slot { seq, content };
            let visible = |event| SlotContent::Visible(Arc::new(event));
            let slots = [
                slot(1, visible(piece(&run, 1, "m1", 0, Chunk::Begin))),
                slot(2, visible(piece(&run, 2, "m1", 1, text()))),
                slot(3, SlotContent::Stored(None)),
                slot(4, visible(piece(&run, 4, "m1", 2, text()))),
            ];
            scene.log.follow(0, 4, slots);
            for seq in [1, 2, 4] {
                assert_eq!(next(&mut tail).await.seq, seq);
            }
        })
        .await;
}
