//! A collector that is down, slow or answers nonsense never slows or ends a run; what is dropped is counted.

use serde_json::Value;

use crate::support::collector::Collector;
use crate::support::{TestServer, eventually, script, without_postgres};

without_postgres! {
    a_collector_that_is_down_does_not_harm_a_run,
    a_collector_that_refuses_does_not_harm_a_run,
    a_collector_that_answers_nonsense_does_not_harm_a_run,
    a_collector_that_is_silent_does_not_harm_a_run_or_delay_the_end_of_the_server,
    spans_that_find_no_room_are_counted,
    the_last_spans_are_sent_before_the_server_ends,
}

/// Returns a counter of the server, summed over its labels.
async fn counter(server: &TestServer, name: &str) -> f64 {
    let metrics = server.client().get("/metrics?format=json").await.ok();
    let samples = metrics["metrics"].as_array().expect("a list").clone();
    let found = samples.iter().filter(|sample| sample["name"] == name);
    found.filter_map(|sample| sample["value"].as_f64()).sum()
}

async fn finishes_a_run(server: &TestServer) {
    let values: Value = server.human("plain").await.says(script().says("done")).await;
    assert_eq!(values["messages"][1]["content"], "done");
}

async fn a_collector_that_is_down_does_not_harm_a_run(server: TestServer) {
    // A port that was free a moment ago.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let section = format!("[telemetry]\notlp_endpoint = \"http://{address}\"\nexport_interval_s = 0.05");
    server.is_configured_with(&section).await;
    finishes_a_run(&server).await;
    eventually(async || counter(&server, "adjutant_trace_spans_dropped_total").await > 0.0).await;
    assert!(counter(&server, "adjutant_trace_spans_exported_total").await.abs() < f64::EPSILON);
    finishes_a_run(&server).await;
}

async fn a_collector_that_refuses_does_not_harm_a_run(server: TestServer) {
    let collector = Collector::start().await;
    collector.answers(401, "who are you?");
    server.is_configured_with(&collector.section("")).await;
    finishes_a_run(&server).await;
    eventually(async || counter(&server, "adjutant_trace_spans_dropped_total").await > 0.0).await;
}

async fn a_collector_that_answers_nonsense_does_not_harm_a_run(server: TestServer) {
    let collector = Collector::start().await;
    collector.answers(200, "<html>not a message</html>");
    server.is_configured_with(&collector.section("")).await;
    finishes_a_run(&server).await;
    eventually(async || counter(&server, "adjutant_trace_spans_exported_total").await > 0.0).await;
    finishes_a_run(&server).await;
}

async fn a_collector_that_is_silent_does_not_harm_a_run_or_delay_the_end_of_the_server(server: TestServer) {
    let collector = Collector::start().await;
    collector.is_silent();
    server
        .is_configured_with(&collector.section("timeout_s = 60\nshutdown_s = 0.2"))
        .await;
    finishes_a_run(&server).await;
    collector.is_asked().await;
    finishes_a_run(&server).await;
    // The server would be forced to end, which is an error, if it waited for the collector.
    server.is_stopped().await;
}

async fn spans_that_find_no_room_are_counted(server: TestServer) {
    let collector = Collector::start().await;
    collector.is_silent();
    let small = "queue_size = 1\nbatch_size = 1\ntimeout_s = 60\nshutdown_s = 0.2";
    server.is_configured_with(&collector.section(small)).await;
    finishes_a_run(&server).await;
    assert!(counter(&server, "adjutant_trace_spans_dropped_total").await > 0.0);
    server.is_stopped().await;
}

async fn the_last_spans_are_sent_before_the_server_ends(server: TestServer) {
    let collector = Collector::start().await;
    let section = collector.section("").replace("0.05", "60");
    server.is_configured_with(&section).await;
    finishes_a_run(&server).await;
    assert_eq!(collector.requests().len(), 0);
    server.is_stopped().await;
    collector.only("invoke_agent plain-agent").await;
}
