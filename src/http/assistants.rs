//! Assistants: agent definitions with settings, which clients run. Each definition has a default assistant.

use std::collections::BTreeMap;

use axum::Json;
use axum::response::Response;

use super::error::{ApiError, ErrorBody};
use super::extract::{AgentPath, ApiJson, ApiPath, AssistantPath, Page, Params, SubgraphPath, no_content};
use super::idempotency::{self, Idempotent, KeyHeader};
use super::wire::assistant::{
    AssistantCreate, AssistantPatch, AssistantSearch, AssistantView, CheckedAssistant, CheckedAssistantSearch,
    GraphView, SchemasView, VersionChoice, VersionSearch, VersionView,
};
use super::wire::json;
use super::{Api, JsonResult};
use crate::db::assistants;
use crate::domain::access::Action;
use crate::domain::assistant::Assistant;
use crate::domain::filter::MetadataFilter;
use crate::domain::id::AssistantId;
use crate::runtime::{AssistantError, AssistantRef, NewAssistant, ResourceRef};

/// Creates an assistant: an agent definition with settings.
#[utoipa::path(post, path = "/assistants", tag = "Assistants", request_body = AssistantCreate,
    params(KeyHeader),
    responses((status = 200, description = "The assistant", body = AssistantView),
        (status = 400, description = "`config.configurable` and `context` are both given and differ", body = ErrorBody),
        (status = 404, description = "Agent definition not found", body = ErrorBody),
        (status = 409, description = "Another assistant has this id", body = ErrorBody)))]
pub(super) async fn create(
    api: Api,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<AssistantCreate>>,
) -> Result<Response, ApiError> {
    let CheckedAssistant {
        id,
        settings,
        reuse_existing,
    } = body.check()?;
    api.check_new(Action::AssistantsCreate, &settings.metadata)?;
    // An assistant that the caller may not read is only taken.
    let reuse_existing = reuse_existing && api.may(Action::AssistantsRead, ResourceRef::Assistant(id)).await?;
    let new = NewAssistant {
        id,
        ownership: api.ownership(),
        settings,
        reuse_existing,
    };
    let created_response =
        |assistant: &Assistant| idempotency::stored_response(&AssistantView::from(assistant.clone()), None);
    let once = api.assistants.create_assistant(new, key, created_response).await?;
    idempotency::respond(once, |assistant| idempotency::response(created_response(&assistant)))
}

/// Searches assistants.
///
/// If a page would exceed the maximum response size, it has fewer items than `limit`, and `x-pagination-next` holds the
/// `offset` of the first item that was left out.
#[utoipa::path(post, path = "/assistants/search", tag = "Assistants", request_body = AssistantSearch,
    responses((status = 200, description = "A page of assistants", body = Vec<AssistantView>,
        headers(("x-pagination-total" = u64), ("x-pagination-next" = u64)))))]
pub(super) async fn search(api: Api, ApiJson(body): ApiJson<AssistantSearch>) -> Result<Response, ApiError> {
    let CheckedAssistantSearch { query, page, select } = body.check(api.scope(Action::AssistantsSearch))?;
    let permit = api.answer_permit().await?;
    let bytes = api.answers.bytes();
    let read = api.search(move |tx| {
        Box::pin(async move {
            let total = assistants::count(tx, &query).await?;
            Ok((assistants::search(tx, &query, bytes).await?, total))
        })
    });
    let (found, total) = read.await?;
    permit.page(page, Some(total), found, |one| {
        Some(select.pick(json(&AssistantView::from(one))))
    })
}

/// Counts the assistants that match a search.
#[utoipa::path(post, path = "/assistants/count", tag = "Assistants", request_body = AssistantSearch,
    responses((status = 200, description = "The number of matches", body = u64)))]
pub(super) async fn count(api: Api, ApiJson(body): ApiJson<AssistantSearch>) -> JsonResult<i64> {
    let query = body.check(api.scope(Action::AssistantsSearch))?.query;
    Ok(Json(
        api.search(move |tx| Box::pin(async move { assistants::count(tx, &query).await }))
            .await?,
    ))
}

/// Shows an assistant.
#[utoipa::path(get, path = "/assistants/{assistant_id}", tag = "Assistants", params(AssistantPath),
    responses((status = 200, description = "The assistant", body = AssistantView),
        (status = 404, description = "Assistant not found", body = ErrorBody)))]
pub(super) async fn get(api: Api, ApiPath(path): ApiPath<AssistantPath>) -> JsonResult<AssistantView> {
    find(&api, path.assistant_id).await.map(|found| Json(found.into()))
}

/// Updates an assistant. The change becomes a new version, which is used from now on.
#[utoipa::path(patch, path = "/assistants/{assistant_id}", tag = "Assistants", params(AssistantPath),
    request_body = AssistantPatch,
    responses((status = 200, description = "The assistant", body = AssistantView),
        (status = 400, description = "`config.configurable` and `context` are both given and differ", body = ErrorBody),
        (status = 404, description = "Assistant or agent definition not found", body = ErrorBody)))]
pub(super) async fn patch(
    api: Api,
    ApiPath(path): ApiPath<AssistantPath>,
    ApiJson(body): ApiJson<AssistantPatch>,
) -> JsonResult<AssistantView> {
    Ok(Json(
        api.assistants
            .change_assistant(&api.caller.tenant, path.assistant_id, body.check()?)
            .await?
            .into(),
    ))
}

/// Deletes an assistant with all its versions. Its runs continue. The default assistant of a definition cannot be
/// deleted.
#[utoipa::path(delete, path = "/assistants/{assistant_id}", tag = "Assistants",
    params(AssistantPath, ("delete_threads" = Option<bool>, Query,
        description = "Whether to delete the threads that used it last; their runs are cancelled")),
    responses((status = 204, description = "The assistant is deleted"),
        (status = 404, description = "Assistant not found", body = ErrorBody),
        (status = 409, description = "The assistant is the default assistant of a definition", body = ErrorBody)))]
pub(super) async fn delete(
    api: Api,
    ApiPath(path): ApiPath<AssistantPath>,
    params: Params,
) -> Result<Response, ApiError> {
    let threads = params.flag("delete_threads")?.then(|| api.scope(Action::ThreadsDelete));
    api.assistants.delete_assistant(path.assistant_id, threads).await?;
    Ok(no_content())
}

/// Lists the versions of an assistant, newest first.
#[utoipa::path(post, path = "/assistants/{assistant_id}/versions", tag = "Assistants", params(AssistantPath),
    request_body = VersionSearch,
    responses((status = 200, description = "A page of versions", body = Vec<VersionView>),
        (status = 404, description = "Assistant not found", body = ErrorBody)))]
pub(super) async fn versions(
    api: Api,
    ApiPath(path): ApiPath<AssistantPath>,
    ApiJson(body): ApiJson<VersionSearch>,
) -> Result<Response, ApiError> {
    let id = path.assistant_id;
    let page = Page::checked(body.limit, body.offset, 10)?;
    let metadata = MetadataFilter::new("metadata", body.metadata.unwrap_or_default())?;
    let permit = api.answer_permit().await?;
    let wanted = page.query(api.answers.bytes());
    let read = api.search(move |tx| {
        Box::pin(async move {
            match assistants::find(tx, id).await? {
                Some(_) => assistants::versions(tx, id, &metadata, wanted).await.map(Some),
                None => Ok(None),
            }
        })
    });
    let found = read.await?.ok_or(AssistantError::NoAssistant(id))?;
    permit.page(page, None, found, |version| Some(json(&VersionView::from(version))))
}

/// Selects the version of an assistant that new runs use.
#[utoipa::path(post, path = "/assistants/{assistant_id}/latest", tag = "Assistants", params(AssistantPath),
    request_body = VersionChoice,
    responses((status = 200, description = "The assistant with the settings of that version", body = AssistantView),
        (status = 404, description = "Assistant or version not found", body = ErrorBody)))]
pub(super) async fn use_version(
    api: Api,
    ApiPath(path): ApiPath<AssistantPath>,
    ApiJson(body): ApiJson<VersionChoice>,
) -> JsonResult<AssistantView> {
    Ok(Json(
        api.assistants
            .use_version(&api.caller.tenant, path.assistant_id, body.version)
            .await?
            .into(),
    ))
}

/// Shows the graph of an assistant's agent: the model, the tools and the middleware hooks.
#[utoipa::path(get, path = "/assistants/{assistant_id}/graph", tag = "Assistants",
    params(AgentPath, ("xray" = Option<String>, Query,
        description = "Whether to include subagents: true, or the number of levels")),
    responses((status = 200, description = "The graph", body = GraphView),
        (status = 404, description = "Assistant not found, or its agent is not configured", body = ErrorBody)))]
pub(super) async fn graph(api: Api, ApiPath(path): ApiPath<AgentPath>, params: Params) -> JsonResult<GraphView> {
    let levels = match params.text("xray").map(str::parse) {
        Some(Ok(levels)) => levels,
        Some(Err(_)) | None if params.flag("xray")? => u32::MAX,
        Some(Err(_)) | None => 0,
    };
    let graph_id = graph_id_of(&api, path.assistant).await?;
    let drawing = api
        .assistants
        .graph(&api.caller.tenant, &graph_id, levels)
        .await
        .ok_or_else(|| ApiError::no_agent(&graph_id))?;
    Ok(Json(drawing.into()))
}

/// Shows the input, output, state and configuration schemas of an assistant's agent.
#[utoipa::path(get, path = "/assistants/{assistant_id}/schemas", tag = "Assistants", params(AgentPath),
    responses((status = 200, description = "The schemas", body = SchemasView),
        (status = 404, description = "Assistant not found, or its agent is not configured", body = ErrorBody)))]
pub(super) async fn schemas(api: Api, ApiPath(path): ApiPath<AgentPath>) -> JsonResult<SchemasView> {
    let graph_id = graph_id_of(&api, path.assistant).await?;
    let schemas = api
        .assistants
        .schemas(&api.caller.tenant, &graph_id)
        .ok_or_else(|| ApiError::no_agent(&graph_id))?;
    Ok(Json(SchemasView::new(&graph_id, schemas)))
}

/// Shows the schemas of the subagents of an assistant's agent, by name.
#[utoipa::path(get, path = "/assistants/{assistant_id}/subgraphs", tag = "Assistants",
    params(AgentPath, ("recurse" = Option<bool>, Query,
        description = "Whether to include the subagents of subagents, as `outer|inner`")),
    responses((status = 200, description = "The schemas, by name", body = BTreeMap<String, SchemasView>),
        (status = 404, description = "Assistant not found, or its agent is not configured", body = ErrorBody)))]
pub(super) async fn subgraphs(api: Api, ApiPath(path): ApiPath<AgentPath>, params: Params) -> JsonResult<Subgraphs> {
    subagents(&api, path.assistant, None, params.flag("recurse")?).await
}

/// Shows the schemas of one subagent of an assistant's agent. The result is empty if no subagent has this name.
#[utoipa::path(get, path = "/assistants/{assistant_id}/subgraphs/{namespace}", tag = "Assistants",
    params(SubgraphPath, ("recurse" = Option<bool>, Query,
        description = "Whether to include the subagents of subagents, as `outer|inner`")),
    responses((status = 200, description = "The schemas, by name", body = BTreeMap<String, SchemasView>),
        (status = 404, description = "Assistant not found, or its agent is not configured", body = ErrorBody)))]
pub(super) async fn subgraph(api: Api, ApiPath(path): ApiPath<SubgraphPath>, params: Params) -> JsonResult<Subgraphs> {
    subagents(&api, path.assistant, Some(&path.namespace), params.flag("recurse")?).await
}

/// The schemas of subagents, by name.
type Subgraphs = BTreeMap<String, SchemasView>;

async fn subagents(
    api: &Api,
    assistant: AssistantRef,
    namespace: Option<&str>,
    recurse: bool,
) -> JsonResult<Subgraphs> {
    let graph_id = graph_id_of(api, assistant).await?;
    let found = api
        .assistants
        .subagents(&api.caller.tenant, &graph_id, namespace, recurse)
        .ok_or_else(|| ApiError::no_agent(&graph_id))?;
    Ok(Json(
        found
            .into_iter()
            .map(|(name, schemas)| (name, SchemasView::new(&graph_id, schemas)))
            .collect(),
    ))
}

async fn find(api: &Api, id: AssistantId) -> Result<Assistant, ApiError> {
    let found = api
        .db
        .read(move |tx| Box::pin(async move { assistants::find(tx, id).await }))
        .await?;
    found.ok_or_else(|| ApiError::not_found("assistant_not_found"))
}

/// The `graph_id` of an assistant's definition.
async fn graph_id_of(api: &Api, assistant: AssistantRef) -> Result<String, ApiError> {
    match assistant {
        AssistantRef::Id(id) => find(api, id).await.map(|found| found.settings.graph_id),
        AssistantRef::Graph(graph_id)
            if is_usable(api, &graph_id) && api.check_agent(Action::AssistantsRead, &graph_id).is_ok() =>
        {
            let assistant = ResourceRef::Assistant(AssistantId::of_graph(&graph_id));
            api.check_policies(Action::AssistantsRead, assistant).await?;
            Ok(graph_id)
        }
        AssistantRef::Graph(_) => Err(ApiError::bad_id("assistant")),
    }
}

/// Returns whether there is an agent of this name that can run, for any tenant.
fn is_usable(api: &Api, graph_id: &str) -> bool {
    let found = api.definitions.agent(graph_id);
    found.is_some_and(|agent| agent.is_usable)
}
