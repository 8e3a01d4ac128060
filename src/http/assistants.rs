//! Assistants: what a client can run. Every agent definition has one by itself.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, AssistantPath, Page, Select};
use super::wire::assistant::{AssistantSearch, AssistantView, COLUMNS};
use super::wire::json;
use super::{Answer, Api};

/// Finds assistants.
#[utoipa::path(post, path = "/assistants/search", tag = "Assistants", request_body = AssistantSearch,
    responses((status = 200, description = "A page of assistants", body = Vec<AssistantView>,
        headers(("x-pagination-total" = u64), ("x-pagination-next" = u64)))))]
pub(super) async fn search(
    State(api): State<Api>,
    ApiJson(mut body): ApiJson<AssistantSearch>,
) -> Result<Response, ApiError> {
    let page = Page::checked(body.limit, body.offset, 10)?;
    let select = Select::checked(body.select.take().unwrap_or_default(), &COLUMNS)?;
    let found = find(&api, &body);
    let total = found.len() as u64;
    let shown = found.iter().skip(page.offset as usize).take(page.limit as usize);
    let shown: Vec<Value> = shown.map(|view| select.pick(json(view))).collect();
    Ok((page.headers(total), Json(shown)).into_response())
}

/// Counts assistants.
#[utoipa::path(post, path = "/assistants/count", tag = "Assistants", request_body = AssistantSearch,
    responses((status = 200, description = "How many there are", body = u64)))]
pub(super) async fn count(State(api): State<Api>, ApiJson(body): ApiJson<AssistantSearch>) -> Answer<usize> {
    Ok(Json(find(&api, &body).len()))
}

fn find(api: &Api, wanted: &AssistantSearch) -> Vec<AssistantView> {
    let all = api.runs.assistants();
    let all = all.iter().map(AssistantView::from);
    let mut found: Vec<AssistantView> = all.filter(|view| wanted.wants(view)).collect();
    wanted.sort(&mut found);
    found
}

/// Shows an assistant.
#[utoipa::path(get, path = "/assistants/{assistant_id}", tag = "Assistants", params(AssistantPath),
    responses((status = 200, description = "The assistant", body = AssistantView),
        (status = 404, description = "There is none", body = ErrorBody)))]
pub(super) async fn get(State(api): State<Api>, path: AssistantPath) -> Answer<AssistantView> {
    let card = api.runs.assistants().into_iter().find(|card| card.id == path.assistant_id);
    card.map(|card| Json(AssistantView::from(&card))).ok_or_else(|| ApiError::not_found("assistant_not_found"))
}
