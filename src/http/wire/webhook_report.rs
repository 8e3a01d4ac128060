//! The payload of webhooks: the report of an ended run.

use serde_json::json;

use super::run::RunView;
use super::{Object, failure};
use crate::runtime::Report;

/// The run with the values of its thread, its start and end times, and its error.
pub fn render(report: &Report<'_>) -> Object {
    let run = super::json(&RunView::from(report.run.clone()));
    let mut fields = run.as_object().cloned().unwrap_or_default();
    fields.insert(
        "run_started_at".to_owned(),
        json!(report.began.map(|at| at.to_string())),
    );
    fields.insert("run_ended_at".to_owned(), json!(report.ended.to_string()));
    fields.insert("values".to_owned(), json!(report.values));
    if let Some(error) = &report.run.error {
        fields.insert("error".to_owned(), failure(error));
    }
    fields
}
