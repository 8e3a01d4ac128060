//! The obstacles to runs that have waited in the queue, because of which they may not begin any more.

use std::sync::Arc;

use crate::db::DbResult;
use crate::domain::access::Action;
use crate::domain::id::InterruptId;
use crate::domain::machine::Failure;
use crate::runtime::resource_ref::ResourceRef;
use crate::runtime::run_context::RunContext;
use crate::runtime::{access, interrupts};

/// Returns the reason why a run that waited in the queue may not begin any more: the interrupts that it answers were
/// dropped, the run was delayed and its user has lost the right to it, or the thread has an open interrupt that is assigned to
/// others, and the run would continue beside it.
pub(in crate::runtime) async fn find_obstacle(run_context: &RunContext) -> DbResult<Option<Failure>> {
    let run = &run_context.run;
    // A run that was claimed where it was admitted has not waited: the admission has found no obstacle.
    if run_context.fence == 0 {
        return Ok(None);
    }
    if is_late(run_context).await? {
        let text = "The thread went on without this answer before the run began: the question was dropped, and the answer \
            had no effect.";
        return Ok(Some(Failure::new("AnswerTooLateError", text)));
    }
    if has_lost_permission(run_context).await? {
        let text = "The user who has started this run may not start it any more: the thread or the assistant is not shared \
            with the user now, or a policy forbids the run.";
        return Ok(Some(Failure::new("PermissionError", text)));
    }
    if !interrupts::bypasses_interrupts(&run.request) {
        return Ok(None);
    }
    let thread = run.thread;
    let own = run.id;
    let user = run.request.caller.clone();
    let read = run_context
        .core
        .db
        .read(move |tx| Box::pin(async move { interrupts::check_way(tx, thread, user.as_ref(), Some(own)).await }));
    let obstacle = read.await?.err();
    Ok(obstacle.map(|assigned| Failure::new("PermissionError", format!("the thread waits for an answer: {assigned}"))))
}

/// Returns whether a delayed run has lost the permission to begin: its thread or its assistant is no longer shared with its
/// user, or a policy forbids the run.
async fn has_lost_permission(run_context: &RunContext) -> DbResult<bool> {
    let RunContext { core, run, .. } = run_context;
    let is_delayed = run.due_at > run.created_at && run.attempt == 1 && run.request.background.is_none();
    let Some(user) = run.request.caller.as_ref().filter(|_| is_delayed).cloned() else {
        return Ok(false);
    };
    let thread = ResourceRef::Thread(run.thread);
    let assistant = ResourceRef::Assistant(run.assistant);
    let mut needed = vec![(Action::ThreadsCreateRun, thread), (Action::AssistantsRead, assistant)];
    if run.request.brings_update() {
        needed.push((Action::ThreadsUpdate, thread));
    }
    let of_read = Arc::clone(core);
    let read = core.db.read(move |tx| {
        Box::pin(async move {
            for (action, resource) in needed {
                if !access::may_user(tx, &of_read, &user, &[action], resource).await? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    });
    Ok(!read.await?)
}

/// Returns whether a run brings answers of which none can be used any more.
async fn is_late(run_context: &RunContext) -> DbResult<bool> {
    let run = &run_context.run;
    let answers = run.request.command.as_ref().and_then(|command| command.resume.as_ref());
    let ids: Vec<InterruptId> = answers
        .into_iter()
        .flat_map(|answers| answers.keys().cloned())
        .collect();
    if ids.is_empty() {
        return Ok(false);
    }
    let thread = run.thread;
    let own = run.id;
    let read = run_context
        .core
        .db
        .read(move |tx| Box::pin(async move { interrupts::is_late(tx, thread, own, &ids).await }));
    read.await
}
