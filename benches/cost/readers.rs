//! The cost of readers while no event happens, and the memory that they hold.

use std::time::Duration;

use adjutant::domain::id::ThreadId;
use adjutant::domain::run::Run;
use futures::future::join_all;

use crate::lab::{Lab, one_step, pieces};
use crate::meter::{count, cpu, line, memory};
use crate::stream::read;

/// The duration of a measurement.
const WINDOW: Duration = Duration::from_secs(4);
/// The time in which the model sends nothing, in milliseconds: longer than a measurement.
const SILENCE_MS: u64 = 7_000;
const HEARTBEAT: Duration = Duration::from_secs(1);

pub(crate) async fn measure(lab: &Lab) {
    for readers in [0, 100, 1000] {
        let run = lab
            .start(ThreadId::mint(), &pieces(1, SILENCE_MS), Duration::ZERO)
            .await;
        measure_idle(
            lab,
            &run,
            &format!("{readers} readers of a run whose model sends nothing"),
            readers,
        )
        .await;
    }
    // No worker of this process executes the run, so readers poll the database.
    for readers in [1, 100] {
        let run = lab
            .start(ThreadId::mint(), &one_step(), Duration::from_secs(3600))
            .await;
        measure_idle(lab, &run, &format!("{readers} readers of a queued run"), readers).await;
    }
}

/// Measures from shortly after all readers have connected until shortly before the next event.
async fn measure_idle(lab: &Lab, run: &Run, name: &str, readers: usize) {
    let held = memory();
    let reading = join_all((0..readers).map(|_| read(lab, run, HEARTBEAT)));
    let measuring = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = cpu();
        let held = memory() - held;
        tokio::time::sleep(WINDOW).await;
        let spent = cpu().saturating_sub(before).as_secs_f64() * 1e6 / WINDOW.as_secs_f64();
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
    // The measurement decides when the run is dropped.
    tokio::select! {
        biased;
        () = measuring => {}
        _ = reading, if readers > 0 => panic!("the readers ended before they were watched"),
    }
}
