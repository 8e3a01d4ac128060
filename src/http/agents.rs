//! Agents: definitions that clients read, and may create, change and delete.

use axum::Json;
use axum::extract::Path;
use axum::response::Response;
use serde_json::Value;

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, JsonWithDefinition, Params, no_content};
use super::wire::agent::{
    AgentOrVersion, AgentSearch, AgentValidate, AgentVersionView, AgentView, CheckedAgentSearch, ValidationView,
};
use super::wire::{Object, json};
use super::{Api, JsonResult};
use crate::db::{ListPart, definitions};
use crate::domain::access::Action;
use crate::domain::identity::Tenant;
use crate::runtime::{AgentRecord, DefinitionError};

/// Creates or changes an agent definition.
///
/// A new agent belongs to the tenant of the caller and does not exist for other tenants. A definition that differs from the
/// current one becomes a new version. Running runs keep the version they started with. The default assistant is available on
/// this server at once, and on other servers within one or two seconds.
#[utoipa::path(put, path = "/agents/{graph_id}", tag = "Agents", request_body = Object,
    params(("graph_id" = String, Path, description = "The name of the agent: 1 to 128 letters, digits, `_`, `-` or `.`")),
    responses((status = 200, description = "The agent", body = AgentView),
        (status = 403, description = "The configuration does not allow clients to define agents, or the tenant this one",
            body = ErrorBody),
        (status = 409, description = "The name is taken by a file or by another tenant, or the clients of all tenants have too many agents",
            body = ErrorBody),
        (status = 429, description = "The clients of the tenant have too many agents, or another quota is used up; `limit` names it",
            body = ErrorBody),
        (status = 422, description = "The definition is invalid; `findings` lists all errors", body = ErrorBody)))]
pub(super) async fn put(
    api: Api,
    Path(graph_id): Path<String>,
    ApiJson(body): ApiJson<Object>,
) -> JsonResult<AgentView> {
    api.check_agent(Action::AgentsPut, &graph_id)?;
    Ok(Json(
        api.definitions
            .put_agent(&api.caller, &graph_id, Value::Object(body))
            .await?
            .into(),
    ))
}

/// Shows an agent definition with its diagnostics; with `version`, one stored version.
#[utoipa::path(get, path = "/agents/{graph_id}", tag = "Agents",
    params(("graph_id" = String, Path, description = "The agent"),
        ("version" = Option<i64>, Query, description = "The number of a version")),
    responses((status = 200, description = "The agent, or the requested version", body = AgentOrVersion),
        (status = 404, description = "Agent or version not found", body = ErrorBody)))]
pub(super) async fn get(api: Api, Path(graph_id): Path<String>, params: Params) -> JsonResult<AgentOrVersion> {
    let found = find(&api, Action::AgentsRead, &graph_id)?;
    let Some(text) = params.text("version") else {
        return Ok(Json(AgentOrVersion::Agent(Box::new(found.into()))));
    };
    let number = text
        .parse()
        .map_err(|_| ApiError::bad_parameter("version", text, "must be a whole number"))?;
    let key = graph_id.clone();
    let reader = reader_of(&api);
    let read = api
        .db
        .read(move |tx| Box::pin(async move { definitions::version(tx, &key, reader.as_ref(), number).await }));
    let version = read.await?.ok_or(DefinitionError::NoVersion(graph_id, number))?;
    Ok(Json(AgentOrVersion::Version(version.into())))
}

/// Deletes an agent that a client of the caller's tenant created, with its versions and its default assistant.
///
/// Running runs continue. Other assistants of the agent are kept but can no longer run.
#[utoipa::path(delete, path = "/agents/{graph_id}", tag = "Agents",
    params(("graph_id" = String, Path, description = "The agent")),
    responses((status = 204, description = "The agent is deleted"),
        (status = 403, description = "The configuration does not allow clients to define agents", body = ErrorBody),
        (status = 404, description = "Agent not found", body = ErrorBody),
        (status = 409, description = "The agent is defined in a file", body = ErrorBody)))]
pub(super) async fn delete(api: Api, Path(graph_id): Path<String>) -> Result<Response, ApiError> {
    find(&api, Action::AgentsDelete, &graph_id)?;
    api.definitions.remove_agent(&api.caller, &graph_id).await?;
    Ok(no_content())
}

/// Lists the versions of an agent, newest first. The server keeps the last 100.
#[utoipa::path(get, path = "/agents/{graph_id}/versions", tag = "Agents",
    params(("graph_id" = String, Path, description = "The agent"),
        ("limit" = Option<u32>, Query, description = "The maximum number of items, 1 to 1000; 10 by default"),
        ("offset" = Option<u32>, Query, description = "The number of items to skip")),
    responses((status = 200, description = "A page of versions", body = Vec<AgentVersionView>,
            headers(("x-pagination-total" = u64), ("x-pagination-next" = u64))),
        (status = 404, description = "Agent not found", body = ErrorBody)))]
pub(super) async fn versions(api: Api, Path(graph_id): Path<String>, params: Params) -> Result<Response, ApiError> {
    let page = params.page(10)?;
    find(&api, Action::AgentsRead, &graph_id)?;
    let permit = api.answer_permit().await?;
    let wanted = page.query(api.answers.bytes());
    let reader = reader_of(&api);
    let read = api.search(move |tx| {
        Box::pin(async move {
            let reader = reader.as_ref();
            let total = definitions::count_versions(tx, &graph_id, reader).await?;
            Ok((definitions::versions(tx, &graph_id, reader, wanted).await?, total))
        })
    });
    let (found, total) = read.await?;
    permit.page(page, Some(total), found, |version| {
        Some(json(&AgentVersionView::from(version)))
    })
}

/// Returns an agent that exists for the tenant of the caller.
fn find(api: &Api, action: Action, graph_id: &str) -> Result<AgentRecord, ApiError> {
    let missing = || DefinitionError::NoAgent(graph_id.to_owned());
    api.check_agent(action, graph_id).map_err(|_| missing())?;
    let found = api.definitions.agent(graph_id);
    // The agents may have changed since the check.
    let found = found.filter(|record| !record.is_of_another(&api.caller.tenant));
    Ok(found.ok_or_else(missing)?)
}

/// Returns the tenant for which versions are read; none without authentication, when all versions are there.
fn reader_of(api: &Api) -> Option<Tenant> {
    let caller = &api.caller;
    (!caller.is_unrestricted()).then(|| caller.tenant.clone())
}

/// Validates an agent definition without storing it.
#[utoipa::path(post, path = "/agents/validate", tag = "Agents", request_body = AgentValidate,
    responses((status = 200, description = "The result of the validation with all diagnostics", body = ValidationView)))]
pub(super) async fn validate(
    api: Api,
    JsonWithDefinition(body): JsonWithDefinition<AgentValidate>,
) -> JsonResult<ValidationView> {
    let graph_id = body.graph_id.as_deref().unwrap_or("agent");
    Ok(Json(
        api.definitions
            .validate_agent(&api.caller, graph_id, Value::Object(body.definition))
            .into(),
    ))
}

/// Searches agents by name, source and usability.
#[utoipa::path(post, path = "/agents/search", tag = "Agents", request_body = AgentSearch,
    responses((status = 200, description = "A page of agents", body = Vec<AgentView>,
        headers(("x-pagination-total" = u64), ("x-pagination-next" = u64)))))]
pub(super) async fn search(api: Api, ApiJson(body): ApiJson<AgentSearch>) -> Result<Response, ApiError> {
    let CheckedAgentSearch { filter, page, select } = body.check()?;
    let limit = usize::try_from(page.limit).unwrap_or(0);
    let offset = usize::try_from(page.offset).unwrap_or(usize::MAX);
    let permit = api.answer_permit().await?;
    let existing = api.access.agents_of(&api.caller);
    let tenant = &api.caller.tenant;
    let exists = |record: &AgentRecord| existing.contains(&record.version.graph_id) && !record.is_of_another(tenant);
    let wanted = |record: &AgentRecord| filter.matches(record) && exists(record);
    let (found, total) = api.definitions.agents(wanted, limit, offset);
    let found = ListPart {
        rows: found.into_iter().map(Some).collect(),
        is_cut: false,
    };
    let total = i64::try_from(total).unwrap_or(i64::MAX);
    permit.page(page, Some(total), found, |one| {
        Some(select.pick(json(&AgentView::from(one))))
    })
}
