//! Agents: how they are defined. What a client runs are their assistants.

use axum::Json;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::Value;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, JsonWithDefinition, Params, no_content};
use super::wire::agent::{
    AgentOrVersion, AgentSearch, AgentVersionView, AgentView, Candidate, CheckedAgentSearch, VerdictView,
};
use super::wire::{Object, json};
use super::{Api, JsonResult};
use crate::db::{ListPart, definitions};
use crate::runtime::DefinitionError;

/// Defines an agent, or changes its definition: a new version, unless it is the one in use. Runs that began keep to the
/// version with which they began. Its assistant is there at once on this server; other servers follow within a second or two.
#[utoipa::path(put, path = "/agents/{graph_id}", tag = "Agents", request_body = Object,
    params(("graph_id" = String, Path, description = "The agent: 1 to 128 letters, digits, `_`, `-` or `.`")),
    responses((status = 200, description = "The agent", body = AgentView),
        (status = 403, description = "The configuration does not let clients define agents", body = ErrorBody),
        (status = 409, description = "A file defines it, or clients have defined too many", body = ErrorBody),
        (status = 422, description = "The definition cannot be used; `findings` has every reason", body = ErrorBody)))]
pub(super) async fn put(
    State(api): State<Api>,
    Path(graph_id): Path<String>,
    ApiJson(body): ApiJson<Object>,
) -> JsonResult<AgentView> {
    Ok(Json(
        api.definitions.put_agent(&graph_id, Value::Object(body)).await?.into(),
    ))
}

/// Shows an agent as it is defined now, with what is wrong or odd; or one of its versions.
#[utoipa::path(get, path = "/agents/{graph_id}", tag = "Agents",
    params(("graph_id" = String, Path, description = "The agent"),
        ("version" = Option<i64>, Query, description = "Only this version of it")),
    responses((status = 200, description = "The agent, or with `version` that version", body = AgentOrVersion),
        (status = 404, description = "There is no such agent, or it has no such version", body = ErrorBody)))]
pub(super) async fn get(
    State(api): State<Api>,
    Path(graph_id): Path<String>,
    params: Params,
) -> JsonResult<AgentOrVersion> {
    let found = api
        .definitions
        .agent(&graph_id)
        .ok_or_else(|| DefinitionError::NoAgent(graph_id.clone()))?;
    let Some(text) = params.text("version") else {
        return Ok(Json(AgentOrVersion::Agent(Box::new(found.into()))));
    };
    let number = text.parse().map_err(|_| ApiError::bad_parameter("version", text))?;
    let key = graph_id.clone();
    let read = api
        .db
        .read(move |tx| Box::pin(async move { definitions::version(tx, &key, number).await }));
    let version = read.await?.ok_or(DefinitionError::NoVersion(graph_id, number))?;
    Ok(Json(AgentOrVersion::Version(version.into())))
}

/// Removes an agent that a client defined, with its versions and the assistant that it has by itself. Runs that began go on;
/// other assistants of it stay and cannot run.
#[utoipa::path(delete, path = "/agents/{graph_id}", tag = "Agents",
    params(("graph_id" = String, Path, description = "The agent")),
    responses((status = 204, description = "The agent is deleted"),
        (status = 403, description = "The configuration does not let clients define agents", body = ErrorBody),
        (status = 404, description = "There is no such agent", body = ErrorBody),
        (status = 409, description = "A file defines it", body = ErrorBody)))]
pub(super) async fn delete(State(api): State<Api>, Path(graph_id): Path<String>) -> Result<Response, ApiError> {
    api.definitions.remove_agent(&graph_id).await?;
    Ok(no_content())
}

/// Lists the versions of an agent, newest first. The last hundred are kept.
#[utoipa::path(get, path = "/agents/{graph_id}/versions", tag = "Agents",
    params(("graph_id" = String, Path, description = "The agent"),
        ("limit" = Option<u32>, Query, description = "How many at most: 1 to 1000, 10 if absent"),
        ("offset" = Option<u32>, Query, description = "How many to pass over")),
    responses((status = 200, description = "A page of versions", body = Vec<AgentVersionView>,
            headers(("x-pagination-total" = u64), ("x-pagination-next" = u64))),
        (status = 404, description = "There is no such agent", body = ErrorBody)))]
pub(super) async fn versions(
    State(api): State<Api>,
    Path(graph_id): Path<String>,
    params: Params,
) -> Result<Response, ApiError> {
    let page = params.page(10)?;
    api.definitions
        .agent(&graph_id)
        .ok_or_else(|| DefinitionError::NoAgent(graph_id.clone()))?;
    let part = (page.limit.into(), page.offset.into());
    let permit = api.answers.permit().await?;
    let bytes = api.answers.bytes();
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let total = definitions::count_versions(tx, &graph_id).await?;
            Ok((definitions::versions(tx, &graph_id, part, bytes).await?, total))
        })
    });
    let (found, total) = read.await?;
    permit.page(page, Some(total), found, |version| {
        Some(json(&AgentVersionView::from(version)))
    })
}

/// Says what is wrong with a definition, or odd, without using it.
#[utoipa::path(post, path = "/agents/validate", tag = "Agents", request_body = Candidate,
    responses((status = 200, description = "Whether it could be used, and every reason why not", body = VerdictView)))]
pub(super) async fn validate(
    State(api): State<Api>,
    JsonWithDefinition(body): JsonWithDefinition<Candidate>,
) -> JsonResult<VerdictView> {
    let graph_id = body.graph_id.as_deref().unwrap_or("agent");
    Ok(Json(
        api.definitions
            .validate_agent(graph_id, Value::Object(body.definition))
            .into(),
    ))
}

/// Finds agents, by their names.
#[utoipa::path(post, path = "/agents/search", tag = "Agents", request_body = AgentSearch,
    responses((status = 200, description = "A page of agents", body = Vec<AgentView>,
        headers(("x-pagination-total" = u64), ("x-pagination-next" = u64)))))]
pub(super) async fn search(State(api): State<Api>, ApiJson(body): ApiJson<AgentSearch>) -> Result<Response, ApiError> {
    let CheckedAgentSearch { wanted, page, select } = body.check()?;
    let part = (
        usize::try_from(page.limit).unwrap_or(0),
        usize::try_from(page.offset).unwrap_or(usize::MAX),
    );
    let permit = api.answers.permit().await?;
    let (found, total) = api.definitions.agents(|record| wanted.matches(record), part);
    let found = ListPart {
        rows: found.into_iter().map(Some).collect(),
        is_cut: false,
    };
    let total = i64::try_from(total).unwrap_or(i64::MAX);
    permit.page(page, Some(total), found, |one| {
        Some(select.pick(json(&AgentView::from(one))))
    })
}
