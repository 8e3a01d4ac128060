//! A client may disconnect before the response: a stored run is executed all the same, unless it asks to be cancelled then.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Human, TestServer, eventually, lookup, on_both_engines, script};

/// The number of clients that disconnect, each a little later than the one before.
const LEAVERS: u64 = 150;
/// The difference between two clients.
const LATER: Duration = Duration::from_micros(40);

/// Sends a request and hangs up after so long.
async fn asks_and_leaves(human: &Human, path: &str, body: Value, patience: Duration) {
    let request = human.client().request(Method::POST, path).json(&body).send();
    // An answer in time makes no difference.
    let _ = tokio::time::timeout(patience, request).await;
}

/// Returns the runs of a thread.
async fn standing(human: &Human) -> Vec<Value> {
    human
        .runs()
        .await
        .into_iter()
        .map(|run| run["status"].clone())
        .collect()
}

on_both_engines! {
    a_run_finishes_though_its_client_disconnects_at_the_start,
    a_run_is_cancelled_on_request_if_its_client_disconnects_before_the_result,
}

async fn a_run_finishes_though_its_client_disconnects_at_the_start(server: TestServer) {
    let mut people = vec![];
    let patience = (0..LEAVERS).map(|number| LATER * u32::try_from(number).unwrap());
    // The last one stays, so that there is a run to look at on the slowest machine, too.
    for patience in patience.chain([Duration::from_secs(60)]) {
        let human = server.human("agent").await;
        let body = human.run_body("hello", json!({}));
        asks_and_leaves(&human, &human.path("/runs"), body, patience).await;
        people.push(human);
    }
    assert_eq!(standing(people.last().unwrap()).await.len(), 1);
    for human in &people {
        eventually(async || standing(human).await.iter().all(|status| status == "success")).await;
    }
}

async fn a_run_is_cancelled_on_request_if_its_client_disconnects_before_the_result(server: TestServer) {
    let stays = server.human("agent").await;
    let goes = server.human("agent").await;
    server.tools.hold("lookup");
    let text = script().calls(lookup("c1", "x")).says("done");
    // The client leaves as soon as the tool is called, which usually is before the head of the response.
    let waits_and_leaves = async |human: &Human, more: Value, calls: usize| {
        let body = human.run_body(&text, more);
        let request = human.client().request(Method::POST, &human.path("/runs/wait"));
        let result = async { request.json(&body).send().await?.text().await };
        tokio::select! {
            result = result => panic!("the tool is held: {result:?}"),
            () = server.tools.called("lookup", calls) => {}
        }
    };
    waits_and_leaves(&stays, json!({}), 1).await;
    waits_and_leaves(&goes, json!({"on_disconnect": "cancel"}), 2).await;
    eventually(async || standing(&goes).await == ["interrupted"]).await;
    assert_eq!(standing(&stays).await, ["running"]);
    server.tools.let_go("lookup");
    eventually(async || standing(&stays).await == ["success"]).await;
}
