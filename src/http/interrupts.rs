//! Interrupts as resources: questions to a human, and their answers.

use std::sync::Arc;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, InterruptPath, Params, ThreadPath};
use super::wire::interrupt::{InterruptList, InterruptResolve, InterruptResolved, InterruptView, events_of};
use super::{Api, JsonResult};
use crate::db::interrupts::{self, InterruptRecord, InterruptState, VisibleInterrupts};
use crate::db::{audit, threads};
use crate::domain::access::Action;
use crate::domain::audit::AuditEntry;
use crate::domain::identity::Tenant;
use crate::runtime::{ResolveError, interrupt_text};

/// Lists the open interrupts of all threads that the caller may read, and those that are assigned to the caller, oldest
/// first.
#[utoipa::path(get, path = "/interrupts", tag = "Approvals",
    params(("status" = Option<String>, Query, description = "The status; only `pending` is supported"),
        ("limit" = Option<u32>, Query, description = "The maximum number of items; 10 by default"),
        ("offset" = Option<u32>, Query, description = "The number of items to skip")),
    responses((status = 200, description = "The interrupts", body = InterruptList)))]
pub(super) async fn pending(api: Api, params: Params) -> JsonResult<InterruptList> {
    params.word("status", (), [("pending", ())])?;
    let page = params.page(10)?;
    let limit = i64::from(page.limit);
    let offset = i64::from(page.offset);
    let scope = api.interrupt_scope(Action::InterruptsSearch);
    let turn = api.search_turn().await?;
    let remote = api
        .interrupts
        .pending_of_remote_tasks(scope.threads.clone(), limit + offset)
        .await?;
    drop(turn);
    // Local and remote interrupts are merged before a page is cut.
    let (limit_of_read, offset_of_read) = if remote.is_empty() {
        (limit, offset)
    } else {
        (limit + offset, 0)
    };
    let mut all = api
        .search(move |tx| Box::pin(async move { interrupts::pending(tx, &scope, limit_of_read, offset_of_read).await }))
        .await?;
    if !remote.is_empty() {
        all.extend(remote);
        all.sort_by_key(|record| record.created_at);
        let offset_of_read = page.offset as usize;
        let limit_of_read = page.limit as usize;
        all = all.into_iter().skip(offset_of_read).take(limit_of_read).collect();
    }
    Ok(Json(all.into()))
}

/// Lists the interrupts of a thread in the order in which they were raised. A caller who may not read the thread gets
/// those that are assigned to the caller.
#[utoipa::path(get, path = "/threads/{thread_id}/interrupts", tag = "Approvals",
    params(ThreadPath,
        ("status" = Option<String>, Query, description = "The status: pending, resolved, expired or dropped"),
        ("include" = Option<String>, Query, description = "`audit` adds who did what to each of them, and when")),
    responses((status = 200, description = "The interrupts", body = InterruptList),
        (status = 404, description = "Thread not found", body = ErrorBody)))]
pub(super) async fn list(api: Api, ApiPath(path): ApiPath<ThreadPath>, params: Params) -> JsonResult<InterruptList> {
    let thread = path.thread_id;
    let status = params.word(
        "status",
        None,
        InterruptState::ALL.map(|status| (status.word(), Some(status))),
    )?;
    let with_audit = params.word("include", false, [("audit", true)])?;
    let wanted = VisibleInterrupts {
        thread,
        scope: api.interrupt_scope(Action::InterruptsRead),
        id: None,
        status,
    };
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let Some(owned) = threads::find(tx, thread).await? else {
                return Ok(None);
            };
            let found = interrupts::visible(tx, &wanted).await?;
            Ok(Some((found, owned.ownership.tenant)))
        })
    });
    let mut entries = vec![];
    let found = match read.await? {
        Some((found, tenant)) => {
            if with_audit {
                entries = audit_of(&api, tenant, &found).await?;
            }
            found
        }
        None => {
            let records = api
                .interrupts
                .of_remote_task(thread)
                .await?
                .ok_or_else(|| ApiError::no_thread(thread))?;
            records
                .into_iter()
                .filter(|record| status.is_none_or(|status| record.status == status))
                .collect()
        }
    };
    let events = |record: &InterruptRecord| {
        let resource = interrupt_text(thread, &record.interrupt.id);
        let own = entries.iter().filter(|entry| entry.resource == resource);
        let own: Vec<AuditEntry> = own.cloned().collect();
        events_of(record, &own)
    };
    let audit: Vec<_> = found.iter().map(|record| with_audit.then(|| events(record))).collect();
    let mut list: InterruptList = found.into();
    for (view, events) in list.interrupts.iter_mut().zip(audit) {
        view.audit = events;
    }
    Ok(Json(list))
}

/// Returns the entries of the audit about these interrupts. None is older than the first of them.
async fn audit_of(api: &Api, tenant: Tenant, found: &[InterruptRecord]) -> Result<Vec<AuditEntry>, ApiError> {
    let Some(since) = found.iter().map(|record| record.created_at).min() else {
        return Ok(vec![]);
    };
    let resources: Vec<String> = found
        .iter()
        .map(|record| interrupt_text(record.thread, &record.interrupt.id))
        .collect();
    let action = Action::InterruptsResolve.word();
    api.search(move |tx| Box::pin(async move { audit::of_resources(tx, &tenant, action, &resources, since).await }))
        .await
}

/// Shows an interrupt with its question and the JSON Schema of a valid answer.
#[utoipa::path(get, path = "/threads/{thread_id}/interrupts/{interrupt_id}", tag = "Approvals", params(InterruptPath),
    responses((status = 200, description = "The interrupt", body = InterruptView),
        (status = 404, description = "Interrupt not found", body = ErrorBody)))]
pub(super) async fn get(api: Api, ApiPath(path): ApiPath<InterruptPath>) -> JsonResult<InterruptView> {
    Ok(Json(find(&api, path).await?.into()))
}

async fn find(api: &Api, path: InterruptPath) -> Result<InterruptRecord, ApiError> {
    let InterruptPath {
        thread_id,
        interrupt_id,
    } = path;
    let wanted = VisibleInterrupts {
        thread: thread_id,
        scope: api.interrupt_scope(Action::InterruptsRead),
        id: Some(interrupt_id.clone()),
        status: None,
    };
    let read = api
        .db
        .read(move |tx| Box::pin(async move { interrupts::visible(tx, &wanted).await }));
    if let Some(found) = read.await?.pop() {
        return Ok(found);
    }
    let remote = api.interrupts.of_remote_task(thread_id).await?.unwrap_or_default();
    remote
        .into_iter()
        .rfind(|record| record.interrupt.id == interrupt_id)
        .ok_or_else(ApiError::no_interrupt)
}

/// Answers an interrupt and resumes the run. Sending the same answer again returns the same run.
#[utoipa::path(post, path = "/threads/{thread_id}/interrupts/{interrupt_id}/resolve", tag = "Approvals",
    params(InterruptPath), request_body = InterruptResolve,
    responses((status = 202, description = "The interrupt and the resumed run", body = InterruptResolved),
        (status = 403, description = "The interrupt is assigned to others", body = ErrorBody),
        (status = 404, description = "Interrupt not found", body = ErrorBody),
        (status = 409, description = "The interrupt has a different answer, or is no longer open", body = ErrorBody),
        (status = 422, description = "The answer does not match the schema of the interrupt", body = ErrorBody),
        (status = 502, description = "The interrupt belongs to a remote agent that cannot be reached", body = ErrorBody)))]
pub(super) async fn resolve(
    api: Api,
    ApiPath(path): ApiPath<InterruptPath>,
    ApiJson(body): ApiJson<InterruptResolve>,
) -> Result<Response, ApiError> {
    let answer = body.answer()?;
    // Of a thread, the caller may see this interrupt and not that one.
    let interrupt = find(&api, path.clone()).await?.interrupt.id;
    let resolved = api
        .interrupts
        .resolve(
            path.thread_id,
            path.interrupt_id.clone(),
            answer,
            Arc::clone(&api.caller),
        )
        .await;
    let run = match resolved {
        Err(ResolveError::Invalid(refusal)) => return Err(body.refused(&interrupt, refusal).into()),
        resolved => resolved?,
    };
    let interrupt = find(&api, path).await?.into();
    Ok((
        StatusCode::ACCEPTED,
        Json(InterruptResolved {
            interrupt,
            run_id: run.0,
        }),
    )
        .into_response())
}
