//! The compaction of a thread's conversation.

use std::sync::Arc;
use std::time::Duration;

use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::client::ClientId;
use super::error::{ApiError, ErrorBody};
use super::extract::{self, ApiPath, ThreadPath};
use super::idempotency::{Idempotent, KeyHeader, Raw};
use super::wait::{self, CancelOnDisconnect, WaitTimes};
use super::wire::compaction::{CompactionCreate, CompactionView};
use super::wire::run::CheckedRun;
use super::wire::{failure, json as to_json};
use super::{Api, runs};
use crate::db::{background, threads};
use crate::domain::Invalid;
use crate::domain::checkpoint::Lane;
use crate::domain::event::{EventBody, Fact};
use crate::domain::id::ThreadId;
use crate::domain::machine::Failure;
use crate::domain::run::{Multitask, Run, RunRequest};
use crate::domain::summarization::{NODE, STATUS};
use crate::domain::visibility::Visibility;
use crate::events::After;
use crate::runtime::{AssistantRef, NewRun, Target};

/// Compacts the conversation of a thread: a summary stands for its older part in requests to the model from then on. The
/// stored messages, open interrupts and waiting subagents stay as they are.
///
/// The compaction is a run on the thread, which the response waits for. A summary that fails returns 200 with
/// `__error__`, as a run that fails does.
#[utoipa::path(post, path = "/threads/{thread_id}/compact", tag = "State", params(ThreadPath, KeyHeader),
    request_body = CompactionCreate,
    responses((status = 200, description = "The outcome of the compaction", body = CompactionView),
        (status = 404, description = "Thread not found", body = ErrorBody),
        (status = 409, description = "The thread has active runs", body = ErrorBody),
        (status = 422, description = "No agent has worked on the thread, or its conversation is not summarised",
            body = ErrorBody)))]
pub(super) async fn compact(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    client: ClientId,
    Idempotent(key, Raw(body)): Idempotent<Raw>,
) -> Result<Response, ApiError> {
    // Clients may send no body at all.
    let body: CompactionCreate = match body.is_empty() {
        true => CompactionCreate::default(),
        false => extract::object(&body)?,
    };
    let thread = path.thread_id;
    let request = RunRequest {
        compaction: Some(body.check()?),
        multitask: Multitask::Reject,
        stream_mode: ["custom", "updates"].map(str::to_owned).to_vec(),
        stream_resumable: true,
        ..RunRequest::default()
    };
    let new_run = NewRun {
        target: Target::Thread(thread),
        assistant: assistant_of(&api, thread).await?,
        caller: Arc::clone(&api.caller),
        request,
        resume: None,
        metadata: Map::new(),
        after: Duration::ZERO,
    };
    let permit = api.open_stream(Some(thread), client)?;
    let checked = CheckedRun {
        new_run,
        cancel_on_disconnect: false,
        program_answers: None,
    };
    let started = runs::start(&api, checked, key).await?;
    let headers = runs::location_headers(&started.run, Some("join"));
    let times = WaitTimes::of(&api.settings);
    let result = Box::pin(compaction_result(api, started.run));
    let response = wait::respond_when_done(result, times, CancelOnDisconnect::default()).await;
    Ok(permit.hold(runs::mark_if_replayed(
        (headers, response).into_response(),
        started.is_replay,
    )))
}

/// Returns the assistant whose run was the last one on a thread.
async fn assistant_of(api: &Api, thread: ThreadId) -> Result<AssistantRef, ApiError> {
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let visibility = background::visibility(tx, thread).await?;
            let found = threads::find(tx, thread).await?;
            Ok(found.filter(|_| visibility == Visibility::Full))
        })
    });
    let found = read.await?.ok_or_else(|| ApiError::no_thread(thread))?;
    let named = ["assistant_id", "graph_id"].into_iter();
    let mut named = named.filter_map(|key| found.metadata.get(key).and_then(Value::as_str));
    let reason = "has no conversation: no agent has worked on the thread yet";
    named
        .next()
        .map(AssistantRef::read)
        .ok_or_else(|| Invalid::new("thread_id", reason).into())
}

/// The result of a compaction, when its run has ended.
async fn compaction_result(api: Api, run: Run) -> Result<Value, ApiError> {
    let mut tail = api.events.tail(&run, After::Start);
    let mut done = None;
    let mut error: Option<Failure> = None;
    while let Some(event) = tail.next().await? {
        if event.origin.lane != Lane::Main {
            continue;
        }
        match &event.body {
            EventBody::Entry(entry) if entry.node == NODE => {
                done = entry
                    .writes
                    .iter()
                    .find_map(|update| update.fields.get(STATUS).cloned());
            }
            EventBody::Fact(Fact::Custom { value }) if value["status"] == "failed" => {
                let class = value["error"].as_str().unwrap_or("SummarizationError");
                error = Some(Failure::new(class, "The conversation could not be summarised."));
            }
            EventBody::Fact(Fact::Ended { error: Some(ended), .. }) => error = Some(ended.clone()),
            EventBody::Entry(_)
            | EventBody::Fact(_)
            | EventBody::Delta(_)
            | EventBody::Begun(_)
            | EventBody::Output { .. } => {}
        }
    }
    if tail.is_cut() {
        return Err(ApiError::shutting_down());
    }
    Ok(match (done, error) {
        (Some(status), _) => to_json(&CompactionView::compacted(run.id, &status)),
        (None, Some(error)) => json!({"__error__": failure(&error)}),
        (None, None) => to_json(&CompactionView::nothing_to_do(run.id)),
    })
}
