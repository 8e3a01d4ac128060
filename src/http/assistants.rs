//! Assistants: what a client can run. Every agent definition has one by itself.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
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
use crate::domain::assistant::Assistant;
use crate::domain::filter::MetadataFilter;
use crate::domain::id::AssistantId;
use crate::runtime::{AssistantError, AssistantRef};

/// Makes an assistant: an agent definition with settings.
#[utoipa::path(post, path = "/assistants", tag = "Assistants", request_body = AssistantCreate,
    params(KeyHeader),
    responses((status = 200, description = "The assistant", body = AssistantView),
        (status = 400, description = "`config.configurable` and `context` differ", body = ErrorBody),
        (status = 404, description = "There is no such agent definition", body = ErrorBody),
        (status = 409, description = "This id is taken by another assistant", body = ErrorBody)))]
pub(super) async fn create(
    State(api): State<Api>,
    Idempotent(key, ApiJson(body)): Idempotent<ApiJson<AssistantCreate>>,
) -> Result<Response, ApiError> {
    let CheckedAssistant {
        id,
        settings,
        or_take_it,
    } = body.check()?;
    let made = |made: &Assistant| idempotency::kept(&AssistantView::from(made.clone()));
    let once = api
        .assistants
        .create_assistant(id, settings, or_take_it, key, made)
        .await?;
    idempotency::answer(once, |assistant| idempotency::shown(made(&assistant)))
}

/// Finds assistants. An answer has a bound in bytes, beyond which it has fewer of them than `limit`; then `x-pagination-next`
/// is the `offset` of the first that was left out.
#[utoipa::path(post, path = "/assistants/search", tag = "Assistants", request_body = AssistantSearch,
    responses((status = 200, description = "A page of assistants", body = Vec<AssistantView>,
        headers(("x-pagination-total" = u64), ("x-pagination-next" = u64)))))]
pub(super) async fn search(
    State(api): State<Api>,
    ApiJson(body): ApiJson<AssistantSearch>,
) -> Result<Response, ApiError> {
    let CheckedAssistantSearch { wanted, page, select } = body.check()?;
    let permit = api.answers.permit().await?;
    let bytes = api.answers.bytes();
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            let total = assistants::count(tx, &wanted).await?;
            Ok((assistants::search(tx, &wanted, bytes).await?, total))
        })
    });
    let (found, total) = read.await?;
    permit.page(page, Some(total), found, |one| {
        Some(select.pick(json(&AssistantView::from(one))))
    })
}

/// Counts assistants.
#[utoipa::path(post, path = "/assistants/count", tag = "Assistants", request_body = AssistantSearch,
    responses((status = 200, description = "How many there are", body = u64)))]
pub(super) async fn count(State(api): State<Api>, ApiJson(body): ApiJson<AssistantSearch>) -> JsonResult<i64> {
    let wanted = body.check()?.wanted;
    Ok(Json(
        api.db
            .read(move |tx| Box::pin(async move { assistants::count(tx, &wanted).await }))
            .await?,
    ))
}

/// Shows an assistant.
#[utoipa::path(get, path = "/assistants/{assistant_id}", tag = "Assistants", params(AssistantPath),
    responses((status = 200, description = "The assistant", body = AssistantView),
        (status = 404, description = "There is no such assistant", body = ErrorBody)))]
pub(super) async fn get(State(api): State<Api>, ApiPath(path): ApiPath<AssistantPath>) -> JsonResult<AssistantView> {
    find(&api, path.assistant_id).await.map(|found| Json(found.into()))
}

/// Changes an assistant: makes a new version of it, and takes that into use.
#[utoipa::path(patch, path = "/assistants/{assistant_id}", tag = "Assistants", params(AssistantPath),
    request_body = AssistantPatch,
    responses((status = 200, description = "The assistant", body = AssistantView),
        (status = 400, description = "`config.configurable` and `context` differ", body = ErrorBody),
        (status = 404, description = "There is no such assistant, or no such agent definition", body = ErrorBody)))]
pub(super) async fn patch(
    State(api): State<Api>,
    ApiPath(path): ApiPath<AssistantPath>,
    ApiJson(body): ApiJson<AssistantPatch>,
) -> JsonResult<AssistantView> {
    Ok(Json(
        api.assistants
            .change_assistant(path.assistant_id, body.check()?)
            .await?
            .into(),
    ))
}

/// Deletes an assistant with all its versions. Its runs go on. The one that a definition has by itself stays for as long
/// as there is the definition.
#[utoipa::path(delete, path = "/assistants/{assistant_id}", tag = "Assistants",
    params(AssistantPath, ("delete_threads" = Option<bool>, Query,
        description = "Whether the threads on which it worked last go with it; their runs are stopped")),
    responses((status = 204, description = "The assistant is deleted"),
        (status = 404, description = "There is no such assistant", body = ErrorBody),
        (status = 409, description = "A definition has it by itself", body = ErrorBody)))]
pub(super) async fn delete(
    State(api): State<Api>,
    ApiPath(path): ApiPath<AssistantPath>,
    params: Params,
) -> Result<Response, ApiError> {
    api.assistants
        .delete_assistant(path.assistant_id, params.flag("delete_threads")?)
        .await?;
    Ok(no_content())
}

/// Lists the versions of an assistant, newest first.
#[utoipa::path(post, path = "/assistants/{assistant_id}/versions", tag = "Assistants", params(AssistantPath),
    request_body = VersionSearch,
    responses((status = 200, description = "A page of versions", body = Vec<VersionView>),
        (status = 404, description = "There is no such assistant", body = ErrorBody)))]
pub(super) async fn versions(
    State(api): State<Api>,
    ApiPath(path): ApiPath<AssistantPath>,
    ApiJson(body): ApiJson<VersionSearch>,
) -> Result<Response, ApiError> {
    let id = path.assistant_id;
    let page = Page::checked(body.limit, body.offset, 10)?;
    let metadata = MetadataFilter::new("metadata", body.metadata.unwrap_or_default())?;
    let part = (page.limit.into(), page.offset.into());
    let permit = api.answers.permit().await?;
    let bytes = api.answers.bytes();
    let read = api.db.read(move |tx| {
        Box::pin(async move {
            match assistants::find(tx, id).await? {
                Some(_) => assistants::versions(tx, id, &metadata, part, bytes).await.map(Some),
                None => Ok(None),
            }
        })
    });
    let found = read.await?.ok_or(AssistantError::NoAssistant(id))?;
    permit.page(page, None, found, |version| Some(json(&VersionView::from(version))))
}

/// Takes a version of an assistant into use.
#[utoipa::path(post, path = "/assistants/{assistant_id}/latest", tag = "Assistants", params(AssistantPath),
    request_body = VersionChoice,
    responses((status = 200, description = "The assistant, as that version says", body = AssistantView),
        (status = 404, description = "There is no such assistant, or it has no such version", body = ErrorBody)))]
pub(super) async fn use_version(
    State(api): State<Api>,
    ApiPath(path): ApiPath<AssistantPath>,
    ApiJson(body): ApiJson<VersionChoice>,
) -> JsonResult<AssistantView> {
    Ok(Json(
        api.assistants
            .use_version(path.assistant_id, body.version)
            .await?
            .into(),
    ))
}

/// Draws the loop of an assistant's agent: the model, the tools, the hooks of its policies.
#[utoipa::path(get, path = "/assistants/{assistant_id}/graph", tag = "Assistants",
    params(AgentPath, ("xray" = Option<String>, Query,
        description = "Whether subagents are drawn, too: true, or how many levels of them")),
    responses((status = 200, description = "The graph", body = GraphView),
        (status = 404, description = "There is no such assistant, or its agent is not configured", body = ErrorBody)))]
pub(super) async fn graph(
    State(api): State<Api>,
    ApiPath(path): ApiPath<AgentPath>,
    params: Params,
) -> JsonResult<GraphView> {
    let levels = match params.text("xray").map(str::parse) {
        Some(Ok(levels)) => levels,
        Some(Err(_)) | None if params.flag("xray")? => u32::MAX,
        Some(Err(_)) | None => 0,
    };
    let graph_id = graph_of(&api, path.assistant).await?;
    let drawing = api
        .assistants
        .graph(&graph_id, levels)
        .ok_or_else(|| ApiError::no_agent(&graph_id))?;
    Ok(Json(drawing.into()))
}

/// Shows what an assistant's agent takes, keeps and gives.
#[utoipa::path(get, path = "/assistants/{assistant_id}/schemas", tag = "Assistants", params(AgentPath),
    responses((status = 200, description = "The schemas", body = SchemasView),
        (status = 404, description = "There is no such assistant, or its agent is not configured", body = ErrorBody)))]
pub(super) async fn schemas(State(api): State<Api>, ApiPath(path): ApiPath<AgentPath>) -> JsonResult<SchemasView> {
    let graph_id = graph_of(&api, path.assistant).await?;
    let schemas = api
        .assistants
        .schemas(&graph_id)
        .ok_or_else(|| ApiError::no_agent(&graph_id))?;
    Ok(Json(SchemasView::new(&graph_id, schemas)))
}

/// Shows the schemas of the subagents of an assistant's agent, by name.
#[utoipa::path(get, path = "/assistants/{assistant_id}/subgraphs", tag = "Assistants",
    params(AgentPath, ("recurse" = Option<bool>, Query,
        description = "Whether the subagents of subagents are shown, too, as `outer|inner`")),
    responses((status = 200, description = "The schemas, by name", body = BTreeMap<String, SchemasView>),
        (status = 404, description = "There is no such assistant, or its agent is not configured", body = ErrorBody)))]
pub(super) async fn subgraphs(
    State(api): State<Api>,
    ApiPath(path): ApiPath<AgentPath>,
    params: Params,
) -> JsonResult<Subgraphs> {
    subagents(&api, path.assistant, None, params.flag("recurse")?).await
}

/// Shows the schemas of one subagent of an assistant's agent; nothing if there is none of this name.
#[utoipa::path(get, path = "/assistants/{assistant_id}/subgraphs/{namespace}", tag = "Assistants",
    params(SubgraphPath, ("recurse" = Option<bool>, Query,
        description = "Whether to look for it among the subagents of subagents, as `outer|inner`")),
    responses((status = 200, description = "The schemas, by name", body = BTreeMap<String, SchemasView>),
        (status = 404, description = "There is no such assistant, or its agent is not configured", body = ErrorBody)))]
pub(super) async fn subgraph(
    State(api): State<Api>,
    ApiPath(path): ApiPath<SubgraphPath>,
    params: Params,
) -> JsonResult<Subgraphs> {
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
    let graph_id = graph_of(api, assistant).await?;
    let found = api
        .assistants
        .subagents(&graph_id, namespace, recurse)
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

/// The definition of this assistant.
async fn graph_of(api: &Api, assistant: AssistantRef) -> Result<String, ApiError> {
    match assistant {
        AssistantRef::Id(id) => find(api, id).await.map(|found| found.settings.graph_id),
        AssistantRef::Graph(graph_id) if api.runs.plan_of(&graph_id).is_some() => Ok(graph_id),
        AssistantRef::Graph(_) => Err(ApiError::bad_id("assistant")),
    }
}
