//! Webhook deliveries: the reports of ended runs, and sending one again.

use axum::Json;
use axum::response::Response;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiPath, DeliveryPath, Params};
use super::wire::delivery::DeliveryView;
use super::wire::{json, read_id};
use super::{Api, JsonResult};
use crate::db::deliveries::{self, DeliverySearch};
use crate::domain::access::Action;
use crate::domain::delivery::DeliveryStatus;
use crate::domain::id::{RunId, ThreadId};

/// Lists webhook deliveries, newest first. Finished deliveries are deleted after some days.
#[utoipa::path(get, path = "/webhooks/deliveries", tag = "Webhooks",
    params(("status" = Option<String>, Query, description = "The status: pending, delivered or dead"),
        ("run_id" = Option<uuid::Uuid>, Query, description = "A run"),
        ("thread_id" = Option<uuid::Uuid>, Query, description = "A thread"),
        ("limit" = Option<i64>, Query, description = "The maximum number of items, 1 to 1000; 10 by default"),
        ("offset" = Option<i64>, Query, description = "The number of items to skip")),
    responses((status = 200, description = "A page of deliveries", body = Vec<DeliveryView>,
        headers(("x-pagination-total" = u64), ("x-pagination-next" = u64)))))]
pub(super) async fn list(api: Api, params: Params) -> Result<Response, ApiError> {
    let page = params.page(10)?;
    let run = params.text("run_id").map(|id| read_id::<RunId>(id, "run"));
    let thread = params.text("thread_id").map(|id| read_id::<ThreadId>(id, "thread"));
    let query = DeliverySearch {
        scope: api.scope(Action::DeliveriesSearch),
        run: run.transpose()?,
        thread: thread.transpose()?,
        status: params.word(
            "status",
            None,
            DeliveryStatus::ALL.map(|status| (status.word(), Some(status))),
        )?,
        limit: page.limit.into(),
        offset: page.offset.into(),
    };
    let permit = api.answer_permit().await?;
    let bytes = api.answers.bytes();
    let read = api.search(move |tx| {
        Box::pin(async move {
            Ok((
                deliveries::count(tx, &query).await?,
                deliveries::search(tx, &query, bytes).await?,
            ))
        })
    });
    let (total, found) = read.await?;
    permit.page(page, Some(total), found, |delivery| {
        Some(json(&DeliveryView::from(delivery)))
    })
}

/// Shows a webhook delivery, with its payload unless a policy forbids the caller to read the thread.
#[utoipa::path(get, path = "/webhooks/deliveries/{delivery_id}", tag = "Webhooks", params(DeliveryPath),
    responses((status = 200, description = "The delivery", body = DeliveryView),
        (status = 404, description = "Delivery not found", body = ErrorBody)))]
pub(super) async fn get(api: Api, ApiPath(path): ApiPath<DeliveryPath>) -> JsonResult<DeliveryView> {
    let id = path.delivery_id;
    let found = api
        .db
        .read(move |tx| Box::pin(async move { deliveries::find(tx, id).await }))
        .await?;
    let found = found.ok_or_else(|| ApiError::not_found("delivery_not_found"))?;
    // The payload has the state of the thread.
    let is_hidden = api
        .access
        .hides_thread(&api.caller, found.thread, &found.ownership)
        .await?;
    Ok(Json(if is_hidden {
        found.into()
    } else {
        DeliveryView::whole(found)
    }))
}

/// Sends a delivery again, whatever its status, with a full set of attempts. The delivery keeps its id.
#[utoipa::path(post, path = "/webhooks/deliveries/{delivery_id}/redeliver", tag = "Webhooks", params(DeliveryPath),
    responses((status = 200, description = "The delivery, now pending again", body = DeliveryView),
        (status = 404, description = "Delivery not found", body = ErrorBody)))]
pub(super) async fn redeliver(api: Api, ApiPath(path): ApiPath<DeliveryPath>) -> JsonResult<DeliveryView> {
    let renewed = api.deliveries.redeliver(path.delivery_id).await?;
    renewed
        .map(|renewed| Json(renewed.into()))
        .ok_or_else(|| ApiError::not_found("delivery_not_found"))
}
