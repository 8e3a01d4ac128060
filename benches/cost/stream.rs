//! The cost of a streamed token: from the model through the log and the presenter to the bytes that a client receives.

use std::time::Duration;

use adjutant::domain::id::ThreadId;
use adjutant::domain::run::Run;
use adjutant::events::After;
use adjutant::http::stream::{MetadataDetail, RunInfo, StreamMode, StreamRequest, stream_run};
use futures::StreamExt;

use crate::lab::{AGENT, Lab, one_step, pieces};
use crate::meter::{Cost, count, line};

const TOKENS: usize = 500;

pub(crate) async fn measure(lab: &Lab) {
    let script = one_step();
    for clients in [1, 16] {
        let bare = Cost::of(200, clients, || lab.run(ThreadId::mint(), &script)).await;
        for readers in [0, 1, 10] {
            let cost = Cost::of(60, clients, || streamed(lab, readers)).await;
            let token = (cost.cpu() - bare.cpu()) * 1e3 / count(TOKENS);
            let numbers = [
                (cost.p50(), "ms p50"),
                (cost.cpu(), "ms CPU/run"),
                (token, "us CPU/token"),
            ];
            line(
                &format!("{TOKENS} tokens, {readers} readers, {clients} at once"),
                &numbers,
            );
        }
    }
}

/// Measures a run with this number of `messages-tuple` readers, in addition to one that waits for its end.
async fn streamed(lab: &Lab, readers: usize) {
    let run = lab.start(ThreadId::mint(), &pieces(TOKENS, 0), Duration::ZERO).await;
    let reading = (0..readers).map(|_| async {
        let bytes = read(lab, &run, Duration::from_secs(5)).await;
        assert!(bytes > TOKENS * 100, "{bytes} bytes are too few for {TOKENS} tokens");
    });
    let waiting = async {
        let mut tail = lab.events.tail(&run, After::Start);
        while tail.next().await.expect("the log can be read").is_some() {}
    };
    futures::join!(futures::future::join_all(reading), waiting);
}

/// Reads a run's stream to its end; returns the number of bytes.
pub(crate) async fn read(lab: &Lab, run: &Run, heartbeat: Duration) -> usize {
    let request = StreamRequest {
        info: RunInfo::of(run, AGENT),
        modes: vec![StreamMode::MessagesTuple],
        subgraphs: false,
        resumable: false,
        resume_from: None,
        filter: None,
        detail: MetadataDetail::Full,
        heartbeat,
        on_disconnect: None,
    };
    let answer = stream_run(lab.events.clone(), lab.events.tail(run, After::Start), request);
    let body = answer.into_body().into_data_stream();
    body.fold(
        0,
        |sum, bytes| async move { sum + bytes.map_or(0, |bytes| bytes.len()) },
    )
    .await
}
