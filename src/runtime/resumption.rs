//! Runs that continue a thread with a resolution that did not come from a client: the expiry of interrupts (`expire.rs`), the
//! answer on the server of a remote agent (`remote.rs`), or the cancellation of a subagent that waits (`cancel.rs`).

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::admission::{self, AdmissionContext, Admitted};
use super::new_run::{AssistantRef, NewRun, Resolution, Target, streamed_request};
use crate::db::{DbResult, Tx};
use crate::domain::id::{AssistantId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::run::{Multitask, RunRequest};

mod cancel;
mod expire;
mod remote;

pub(super) use cancel::{CallerNotice, cancel_waiting, report_cancelled};
pub(super) use expire::{ExpiredInterrupts, resume_expired};
pub(super) use remote::resume_answered_remotely;

/// Starts a run that continues a thread with a resolution that did not come from a client. Returns none if the run is
/// refused; then nothing is stored, and the transaction can continue.
async fn continue_thread(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    assistant: AssistantId,
    resolution: Resolution,
    context: &AdmissionContext,
) -> DbResult<Option<Admitted>> {
    let (request, metadata) = match &resolution {
        Resolution::Answered(_) | Resolution::AnsweredAlone(..) => (RunRequest::default(), Map::new()),
        Resolution::AnsweredRemotely(child) => {
            let request = RunRequest {
                // Another run may be at work on the thread; then there is nothing to continue.
                multitask: Multitask::Reject,
                ..streamed_request()
            };
            (request, metadata("settled_elsewhere", &[*child]))
        }
        Resolution::Expired(ids) => {
            let request = RunRequest {
                // Another run may be at work on the thread; the job tries again when it has ended.
                multitask: Multitask::Reject,
                ..streamed_request()
            };
            (request, metadata("expired_interrupt_ids", ids))
        }
        Resolution::Cancelled(children) => {
            let request = RunRequest {
                stream_mode: vec!["values".to_owned()],
                ..RunRequest::default()
            };
            (request, metadata("cancelled_run_ids", children))
        }
    };
    let new_run = NewRun {
        target: Target::Thread(thread),
        assistant: AssistantRef::Id(assistant),
        caller: Arc::new(Identity::server()),
        request,
        resume: Some(resolution),
        metadata,
        after: Duration::ZERO,
    };
    match admission::try_start(tx, &new_run, context).await? {
        Ok(admitted) => Ok(Some(admitted)),
        Err(refusal) => {
            tracing::warn!(%thread, %refusal, "no run could be started after an interrupt was resolved");
            Ok(None)
        }
    }
}

fn metadata<T: Serialize>(key: &str, ids: &[T]) -> Map<String, Value> {
    Map::from_iter([(key.to_owned(), json!(ids))])
}
