//! Who asks for something may leave before the answer: what was written down is carried out all the same.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Human, TestServer, eventually, on_both_engines};

/// How many leave, each a little later than the one before.
const LEAVERS: u64 = 150;
/// How much later.
const LATER: Duration = Duration::from_micros(40);

/// Sends a request and hangs up after so long.
async fn asks_and_leaves(human: &Human, path: &str, body: Value, patience: Duration) {
    let request = human.client().request(Method::POST, path).json(&body).send();
    // Whether there was an answer in time makes no difference.
    let _ = tokio::time::timeout(patience, request).await;
}

/// How the runs of a thread stand.
async fn standing(human: &Human) -> Vec<Value> {
    human
        .runs()
        .await
        .into_iter()
        .map(|run| run["status"].clone())
        .collect()
}

on_both_engines! {
    a_run_whose_client_left_while_it_was_begun_comes_to_its_end,
}

async fn a_run_whose_client_left_while_it_was_begun_comes_to_its_end(server: TestServer) {
    let mut people = vec![];
    let patience = (0..LEAVERS).map(|number| LATER * u32::try_from(number).unwrap());
    // The last one stays, so that there is a run to look at on the slowest machine, too.
    for patience in patience.chain([Duration::from_secs(60)]) {
        let human = server.human("agent").await;
        let body = human.wish("hello", json!({}));
        asks_and_leaves(&human, &human.path("/runs"), body, patience).await;
        people.push(human);
    }
    assert_eq!(standing(people.last().unwrap()).await.len(), 1);
    for human in &people {
        eventually(async || standing(human).await.iter().all(|status| status == "success")).await;
    }
}
