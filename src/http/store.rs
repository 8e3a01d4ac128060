//! The Store: items in namespaces that outlive threads.

use axum::Json;
use axum::response::{IntoResponse, Response};

use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, Page, Params, no_content};
use super::wire::item::{
    FoundItemView, FoundItems, FoundNamespaces, ItemDelete, ItemPut, ItemSearchBody, ItemView, NamespaceSearchBody,
};
use super::wire::json;
use super::{Api, JsonResult};
use crate::domain::Invalid;
use crate::domain::access::Ownership;
use crate::domain::item::{ItemAddress, ItemQuery, Namespace};

/// Stores an item, replacing an existing one.
#[utoipa::path(put, path = "/store/items", tag = "Store", request_body = ItemPut,
    responses((status = 204, description = "The item is stored"),
        (status = 400, description = "The namespace is empty or reserved", body = ErrorBody),
        (status = 424, description = "The embedding model failed; nothing is stored", body = ErrorBody)))]
pub(super) async fn put(api: Api, ApiJson(body): ApiJson<ItemPut>) -> Result<Response, ApiError> {
    api.check_room()?;
    api.store.put(&api.ownership(), body.check()?).await?;
    Ok(no_content())
}

/// Returns an item, or null if it does not exist.
#[utoipa::path(get, path = "/store/items", tag = "Store",
    params(("namespace" = String, Query, description = "The namespace: its labels, separated by periods"),
        ("key" = String, Query, description = "The key within the namespace"),
        ("refresh_ttl" = Option<bool>, Query, description = "Whether the read renews the time to live; as configured if absent")),
    responses((status = 200, description = "The item, or null", body = Option<ItemView>)))]
pub(super) async fn get(api: Api, params: Params) -> JsonResult<Option<ItemView>> {
    let address = address_in(&params)?;
    let refresh = params
        .text("refresh_ttl")
        .is_some()
        .then(|| params.flag("refresh_ttl"))
        .transpose()?;
    let found = api.store.get(&api.ownership(), address, refresh).await?;
    Ok(Json(found.map(ItemView::from)))
}

/// Returns the address of the item that a request asks for.
///
/// # Errors
/// Names the invalid parameter.
pub(super) fn address_in(params: &Params) -> Result<ItemAddress, Invalid> {
    let namespace = params.text("namespace").unwrap_or_default();
    let labels = namespace.split('.').map(str::to_owned).collect();
    let key = params.text("key").ok_or_else(|| Invalid::new("key", "must be given"))?;
    ItemAddress::new(Namespace::prefix("namespace", labels)?, key)
}

/// Sends a page of the items that a search finds in the Store of this owner.
pub(super) async fn search_in(api: &Api, space: &Ownership, query: ItemQuery) -> Result<Response, ApiError> {
    let page = Page {
        limit: query.wanted.limit,
        offset: query.wanted.offset,
    };
    let permit = api.answer_permit().await?;
    let turn = api.search_turn().await?;
    let found = api.store.search(space, query, api.answers.bytes()).await?;
    drop(turn);
    let texts = permit.texts(found, |found| Some(json(&FoundItemView::from(found))))?;
    let headers = page.truncated_headers(None, texts.rows_read, texts.is_cut);
    Ok((headers, permit.object("items", texts)).into_response())
}

/// Deletes an item, if it exists.
#[utoipa::path(delete, path = "/store/items", tag = "Store", request_body = ItemDelete,
    responses((status = 204, description = "The item is deleted")))]
pub(super) async fn delete(api: Api, ApiJson(body): ApiJson<ItemDelete>) -> Result<Response, ApiError> {
    api.store.delete(&api.ownership(), body.check()?).await?;
    Ok(no_content())
}

/// Searches items by namespace, filter and meaning.
///
/// If a page would exceed the maximum response size, it has fewer items than `limit`, and `x-pagination-next` holds the
/// `offset` of the first item that was left out.
#[utoipa::path(post, path = "/store/items/search", tag = "Store", request_body = ItemSearchBody,
    responses((status = 200, description = "A page of items", body = FoundItems,
            headers(("x-pagination-next" = u64))),
        (status = 424, description = "The embedding model failed", body = ErrorBody)))]
pub(super) async fn search(api: Api, ApiJson(body): ApiJson<ItemSearchBody>) -> Result<Response, ApiError> {
    search_in(&api, &api.ownership(), body.check()?).await
}

/// Lists the namespaces that contain items.
#[utoipa::path(post, path = "/store/namespaces", tag = "Store", request_body = NamespaceSearchBody,
    responses((status = 200, description = "A page of namespaces", body = FoundNamespaces)))]
pub(super) async fn namespaces(api: Api, ApiJson(body): ApiJson<NamespaceSearchBody>) -> JsonResult<FoundNamespaces> {
    let _turn = api.search_turn().await?;
    let found = api.store.namespaces(&api.ownership(), body.check()?).await?;
    Ok(Json(FoundNamespaces {
        namespaces: found.into_iter().map(|name| name.labels().to_vec()).collect(),
    }))
}
