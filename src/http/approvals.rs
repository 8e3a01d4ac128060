//! Remembered decisions as resources: what reviewers have decided for the rest of a thread.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiPath, ApprovalPath, ThreadPath};
use super::wire::approval::ApprovalList;
use super::{Api, JsonResult};
use crate::db::{remembered, threads};
use crate::domain::access::Action;

/// Lists the decisions that are remembered for the rest of the thread, oldest first. A caller who may not read the thread
/// gets those whose approvers the caller is among.
#[utoipa::path(get, path = "/threads/{thread_id}/approvals", tag = "Approvals", params(ThreadPath),
    responses((status = 200, description = "The remembered decisions", body = ApprovalList),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn list(api: Api, ApiPath(path): ApiPath<ThreadPath>) -> JsonResult<ApprovalList> {
    let thread = path.thread_id;
    let scope = api.interrupt_scope(Action::InterruptsRead);
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            if threads::find(tx, thread).await?.is_none() {
                return Ok(None);
            }
            remembered::visible(tx, thread, &scope).await.map(Some)
        })
    });
    let found = read.await?.ok_or_else(|| ApiError::no_thread(thread))?;
    Ok(Json(found.into()))
}

/// Revokes a remembered decision. The next such call is asked about again.
#[utoipa::path(delete, path = "/threads/{thread_id}/approvals/{approval_id}", tag = "Approvals", params(ApprovalPath),
    responses((status = 204, description = "Revoked"),
        (status = 403, description = "The caller may not revoke the decision", body = ErrorBody),
        (status = 404, description = "Remembered decision not found", body = ErrorBody)))]
pub(super) async fn revoke(api: Api, ApiPath(path): ApiPath<ApprovalPath>) -> Result<StatusCode, ApiError> {
    let caller = Arc::clone(&api.caller);
    let scope = api.interrupt_scope(Action::InterruptsResolve);
    let revoked = api.interrupts.revoke(path.thread_id, path.approval_id, caller, scope);
    revoked.await?;
    Ok(StatusCode::NO_CONTENT)
}
