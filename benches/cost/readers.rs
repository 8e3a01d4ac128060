//! What readers cost while nothing happens, and what they hold.

use std::time::Duration;

use adjutant::domain::id::ThreadId;
use adjutant::domain::run::Run;
use futures::future::join_all;

use crate::lab::{Lab, one_step, pieces};
use crate::meter::{count, cpu, line, memory};
use crate::stream::read;

/// For how long it is looked.
const WATCH: Duration = Duration::from_secs(4);
/// For how long the model says nothing: longer than that.
const SILENCE_MS: u64 = 7_000;
const HEARTBEAT: Duration = Duration::from_secs(1);

pub(crate) async fn ask(lab: &Lab) {
    for readers in [0, 100, 1000] {
        let run = lab
            .start(ThreadId::mint(), &pieces(1, SILENCE_MS), Duration::ZERO)
            .await;
        watch(
            lab,
            &run,
            &format!("{readers} readers of a run whose model thinks"),
            readers,
        )
        .await;
    }
    // Nobody in this process works on it, so readers look at the database now and then.
    for readers in [1, 100] {
        let run = lab
            .start(ThreadId::mint(), &one_step(), Duration::from_secs(3600))
            .await;
        watch(
            lab,
            &run,
            &format!("{readers} readers of a run that waits its turn"),
            readers,
        )
        .await;
    }
}

/// Measures from a moment after everybody has come to a moment before anything happens.
async fn watch(lab: &Lab, run: &Run, name: &str, readers: usize) {
    let held = memory();
    let reading = join_all((0..readers).map(|_| read(lab, run, HEARTBEAT)));
    let watching = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = cpu();
        let held = memory() - held;
        tokio::time::sleep(WATCH).await;
        let spent = cpu().saturating_sub(before).as_secs_f64() * 1e6 / WATCH.as_secs_f64();
        let each = count(readers.max(1));
        line(
            name,
            &[
                (spent, "us CPU/s"),
                (spent / each, "us CPU/s each"),
                (held / each, "kB each"),
            ],
        );
    };
    // The watcher decides when it is over.
    tokio::select! {
        biased;
        () = watching => {}
        _ = reading, if readers > 0 => panic!("the readers ended before they were watched"),
    }
}
