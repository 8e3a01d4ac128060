//! The dashboard, the alert rules and the adapter of `deploy` name metrics that the server has.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use crate::support::{TestServer, lookup, script, without_postgres};

const DASHBOARD: &str = "deploy/grafana/adjutant.json";
const ALERTS: &str = "deploy/prometheus/alerts.yaml";
const ADAPTER: &str = "deploy/prometheus/adapter.yaml";

without_postgres! {
    the_dashboard_and_the_alerts_name_metrics_of_the_server,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("the file is there")
}

/// Returns the metrics that a text names, without the endings of their parts.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    words
        .filter(|word| word.starts_with("adjutant_") || word.starts_with("process_"))
        .map(family)
        .collect()
}

/// Returns the name of a metric without the ending of one of its parts.
fn family(name: &str) -> String {
    let endings = ["_bucket", "_sum", "_count", "_total", "_info"];
    let ending = endings
        .into_iter()
        .find(|ending| name.ends_with(ending))
        .unwrap_or_default();
    name[..name.len() - ending.len()].to_owned()
}

/// Returns all values of the keys `expr` in a document.
fn expressions(document: &Value, found: &mut Vec<String>) {
    found.extend(document["expr"].as_str().map(str::to_owned));
    let fields = document.as_object().into_iter().flat_map(Map::values);
    let items = document.as_array().into_iter().flatten();
    fields.chain(items).for_each(|value| expressions(value, found));
}

async fn the_dashboard_and_the_alerts_name_metrics_of_the_server(server: TestServer) {
    let work = script().calls(lookup("l1", "x")).says("done");
    server.human("plain").await.says(work).await;
    let text = server.client().get("/metrics").await.ok();
    let text = text.as_str().expect("text").to_owned();
    let known: BTreeSet<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .map(family)
        .collect();
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    let alerts: Value = serde_saphyr::from_str(&read(ALERTS)).expect("YAML");
    for (file, document, least) in [(DASHBOARD, &dashboard, 15), (ALERTS, &alerts, 8)] {
        let mut found = vec![];
        expressions(document, &mut found);
        assert!(found.len() >= least, "{file} has only {} expressions", found.len());
        for expression in found {
            let named = metrics_in(&expression);
            assert!(!named.is_empty(), "{file}: {expression} names no metric");
            let unknown: Vec<&String> = named.difference(&known).collect();
            assert!(
                unknown.is_empty(),
                "{file}: {expression} names {unknown:?}, and there are {known:?}"
            );
        }
    }
    let adapter: Value = serde_saphyr::from_str(&read(ADAPTER)).expect("YAML");
    for rule in adapter["rules"]["external"].as_array().expect("rules") {
        let series = metrics_in(rule["seriesQuery"].as_str().expect("a query"));
        assert!(!series.is_empty() && series.is_subset(&known), "{rule}");
    }
    for rule in alerts["groups"][0]["rules"].as_array().expect("rules") {
        assert!(
            rule["alert"].is_string() && rule["annotations"]["summary"].is_string(),
            "{rule}"
        );
        assert!(rule["labels"]["severity"].is_string(), "{rule}");
    }
}
