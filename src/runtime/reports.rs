//! Reports about runs that have ended are stored for their webhooks, in the transactions that end the runs.

use serde_json::{Map, Value};

use super::access;
use super::resource_ref::ResourceRef;
use super::shared::Core;
use super::webhooks::Report;
use crate::db::{self, DbResult, Tx};
use crate::domain::access::Action;
use crate::domain::checkpoint::Lane;
use crate::domain::delivery::Delivery;
use crate::domain::run::{Run, RunStatus};
use crate::domain::time::Timestamp;

/// The field of a report with the values of the thread.
const VALUES: &str = "values";

/// Stores the report about a run that was cancelled before it began, or that another process ends.
pub(super) async fn report_withdrawn(tx: &mut Tx<'_>, core: &Core, run: &Run, now: Timestamp) -> DbResult<()> {
    if run.request.webhook().is_none() {
        return Ok(());
    }
    let Some(facts) = db::access::thread_facts(tx, run.thread, false).await? else {
        return Ok(());
    };
    // A history that cannot be read must not prevent the cancellation of a run.
    let read = db::unless_corrupt(db::checkpoints::machine(tx, run.thread, Lane::Main).await)?;
    let values = read.map(|(machine, _)| machine.state.values()).unwrap_or_default();
    let run = Run {
        status: RunStatus::Interrupted,
        updated_at: now,
        ..run.clone()
    };
    let report = Report {
        run: &run,
        began: None,
        ended: now,
        values,
    };
    match core.webhooks.delivery(&report, &facts.ownership) {
        Some(delivery) => Box::pin(store(tx, core, &run, &delivery)).await,
        None => Ok(()),
    }
}

/// Stores the report about the end of a run. It has no values if the user who started the run may not see those of the thread
/// now: a thread may be shared no more.
pub(super) async fn store(tx: &mut Tx<'_>, core: &Core, run: &Run, report: &Delivery) -> DbResult<()> {
    const ACTIONS: [Action; 2] = [Action::ThreadsRead, Action::ThreadsCreateRun];
    // The thread of a background task belongs to the owner of the thread that started it.
    let user = run.request.caller.as_ref().filter(|_| run.request.background.is_none());
    let thread = ResourceRef::Thread(run.thread);
    if let Some(user) = user
        && !access::may_user(tx, core, user, &ACTIONS, thread).await?
    {
        return db::deliveries::insert(tx, &without_values(report)).await;
    }
    db::deliveries::insert(tx, report).await
}

/// Returns a report with empty values.
fn without_values(report: &Delivery) -> Delivery {
    let mut body: Map<String, Value> = serde_json::from_str(&report.body).unwrap_or_default();
    body.insert(VALUES.to_owned(), Value::Object(Map::new()));
    Delivery {
        body: Value::Object(body).to_string(),
        ..report.clone()
    }
}
