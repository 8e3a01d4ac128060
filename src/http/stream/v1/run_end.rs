//! The frames at the end of a run.

use serde_json::{Value, json};

use super::Frame;
use crate::domain::id::RunId;
use crate::domain::limits::Totals;
use crate::domain::machine::Failure;
use crate::domain::run::RunStatus;
use crate::http::wire::child_run::UsageView;

/// `usage`: the usage of the run.
pub(super) fn usage(run: RunId, used: &Totals) -> Frame {
    Frame::of("usage", &with_totals(json!({"run_id": run}), Some(used)))
}

/// `error`: the error of a run that failed. The stream of a cancelled run just ends, as clients show every `error` to their
/// users.
pub(super) fn error(status: RunStatus, error: Option<&Failure>, used: Option<&Totals>) -> Option<Frame> {
    let error = error.filter(|_| status.has_failed());
    let frame = |class: &str, message: &str| {
        Frame::of("error", &with_totals(json!({"error": class, "message": message}), used))
    };
    match (error, status) {
        (Some(failure), _) => Some(frame(&failure.class, &failure.message)),
        (None, RunStatus::Error) => Some(frame("RuntimeError", "the run failed")),
        (None, RunStatus::Timeout) => Some(frame("TimeoutError", "the run took too long")),
        (None, RunStatus::Pending | RunStatus::Running | RunStatus::Success | RunStatus::Interrupted) => None,
    }
}

/// Adds the usage to `data`.
fn with_totals(mut data: Value, used: Option<&Totals>) -> Value {
    if let Some(Totals { own, tree }) = used {
        data["usage"] = json!(UsageView::from(*own));
        data["tree_usage"] = json!(tree.map(UsageView::from));
    }
    data
}
