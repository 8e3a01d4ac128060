//! Endpoints for tools, which read the run that calls them with the token of the call: fields of the state, files, and items
//! of the Store. Only what the definition of the tool declares can be read, and only until the call is over.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::error::{ApiError, ErrorBody, shortened};
use super::extract::{ApiJson, Params};
use super::wire::Object;
use super::wire::call::{CallFileView, CallFilesView, CallStateView};
use super::wire::item::{FoundItems, ItemSearchBody, ItemView};
use super::{Api, AppState, JsonResult, store};
use crate::db::checkpoints;
use crate::domain::Invalid;
use crate::domain::call_token::CallBinding;
use crate::domain::machine::Machine;
use crate::domain::path;

/// The number of bytes of a file that are read at once unless the request says otherwise.
const DEFAULT_BYTES: u32 = 1024 * 1024;
/// The size of what is said about a file besides its path, in bytes, approximately.
const FACTS_BYTES: usize = 200;
/// The header with the size of a file.
const FILE_SIZE: HeaderName = HeaderName::from_static("x-file-size");

/// The parts of the server, for a request with the token of this call.
pub(super) struct CallApi {
    api: Api,
    call: Arc<CallBinding>,
}

impl Deref for CallApi {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl FromRequestParts<AppState> for CallApi {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let api = Api::from_request_parts(parts, state).await?;
        let call = parts.extensions.get::<Arc<CallBinding>>().cloned();
        let call = call.ok_or_else(ApiError::no_call)?;
        Ok(Self { api, call })
    }
}

impl CallApi {
    /// Reads the newest checkpoint of the agent that makes the call.
    async fn machine(&self) -> Result<Machine, ApiError> {
        let thread = self.call.thread;
        let lane = self.call.lane();
        let read = self
            .db
            .read(move |tx| Box::pin(async move { checkpoints::machine(tx, thread, lane).await }));
        let read = read.await?;
        Ok(read.0)
    }

    /// Returns the fields that a request asks for: all that are declared, unless it names some.
    fn wanted_fields(&self, params: &Params) -> Result<Vec<String>, ApiError> {
        let declared = &self.call.access.state;
        if declared.is_empty() {
            return Err(ApiError::not_declared("the state"));
        }
        let named = params.texts("fields");
        match named.iter().find(|name| !self.call.access.has_field(name)) {
            Some(name) => Err(ApiError::not_declared(&format!("the field `{}`", shortened(name)))),
            None if named.is_empty() => Ok(declared.clone()),
            None => Ok(named),
        }
    }
}

/// Returns fields of the state of the agent that makes the call.
///
/// A list that is too long for one response is read in parts: `offset` and `limit` go with one field.
#[utoipa::path(get, path = "/call/state", tag = "Calls",
    params(("fields" = Option<Vec<String>>, Query, description = "The fields; all that the tool declares if absent"),
        ("offset" = Option<u32>, Query, description = "The number of entries to skip, of one field that is a list"),
        ("limit" = Option<u32>, Query, description = "The maximum number of entries of that list, up to 1000")),
    responses((status = 200, description = "The fields; those that are not set are left out", body = CallStateView),
        (status = 401, description = "The token is unknown, or its call is over", body = ErrorBody),
        (status = 403, description = "The tool does not declare a field", body = ErrorBody)))]
pub(super) async fn state(api: CallApi, params: Params) -> Result<Response, ApiError> {
    let fields = api.wanted_fields(&params)?;
    let is_page = params.text("offset").is_some() || params.text("limit").is_some();
    let page = params.page(100)?;
    let permit = api.answer_permit().await?;
    let machine = api.machine().await?;
    let mut view = CallStateView {
        checkpoint_id: machine.head.map(|head| head.to_string()),
        values: Object::new(),
        total: None,
    };
    let most = api.answers.bytes();
    if is_page {
        let [field] = fields.as_slice() else {
            return Err(Invalid::new("fields", "must name one field, with `offset` and `limit`").into());
        };
        let entries = match machine.state.value(field).map(Cow::into_owned) {
            Some(Value::Array(entries)) => entries,
            Some(_) => return Err(Invalid::new("fields", format!("`{field}` is no list")).into()),
            None => vec![],
        };
        view.total = Some(entries.len());
        let part = fitting(page.part(entries), most, |entry| entry.to_string().len());
        view.values.insert(field.clone(), part.into());
        return permit.answer(&view);
    }
    let mut length = 0;
    for field in fields {
        let Some(value) = machine.state.value(&field).map(Cow::into_owned) else {
            continue;
        };
        length += value.to_string().len();
        if length > most {
            let reason =
                format!("are longer than {most} bytes: name fewer, or read a list in parts with `offset` and `limit`");
            return Err(Invalid::new("fields", reason).into());
        }
        view.values.insert(field, value);
    }
    permit.answer(&view)
}

/// Returns as many of these items as are not longer than `most` bytes together, at least one.
fn fitting<T>(items: impl Iterator<Item = T>, most: usize, length_of: impl Fn(&T) -> usize) -> Vec<T> {
    let mut length = 0_usize;
    let mut fitting = vec![];
    for item in items {
        length = length.saturating_add(length_of(&item));
        if length > most && !fitting.is_empty() {
            break;
        }
        fitting.push(item);
    }
    fitting
}

/// Lists the files that the call may read, in the order of their paths.
///
/// The files are in the workspace of the agent that makes the call, and its permissions apply. Up to 10,000 are listed.
#[utoipa::path(get, path = "/call/files", tag = "Calls",
    params(("offset" = Option<u32>, Query, description = "The number of files to skip"),
        ("limit" = Option<u32>, Query, description = "The maximum number of files, up to 1000; 100 if absent")),
    responses((status = 200, description = "A page of files", body = CallFilesView),
        (status = 401, description = "The token is unknown, or its call is over", body = ErrorBody),
        (status = 403, description = "The tool declares no files", body = ErrorBody),
        (status = 409, description = "The agent is not configured on this server any more", body = ErrorBody),
        (status = 424, description = "The workspace of the agent cannot be read", body = ErrorBody)))]
pub(super) async fn files(api: CallApi, params: Params) -> Result<Response, ApiError> {
    if api.call.access.files.is_empty() {
        return Err(ApiError::not_declared("the list of files"));
    }
    let page = params.page(100)?;
    let permit = api.answer_permit().await?;
    let open = api.call_files.open(&api.call).await?;
    let found = open.list().await?;
    let total = found.paths.len();
    let length_of = |path: &String| path.len().saturating_add(FACTS_BYTES);
    let shown = fitting(page.part(found.paths), api.answers.bytes(), length_of);
    let mut facts = open.facts(&shown, &found.sizes).await?;
    let view = |path: String| {
        let known = facts.remove(&path).unwrap_or_default();
        CallFileView::new(path, known)
    };
    permit.answer(&CallFilesView {
        files: shown.into_iter().map(view).collect(),
        total,
        truncated: found.is_cut,
    })
}

/// Returns the bytes of a file, or a part of them.
///
/// The file is read in the workspace of the agent that makes the call, and with its permissions.
#[utoipa::path(get, path = "/call/files/content", tag = "Calls",
    params(("path" = String, Query, description = "The absolute path"),
        ("offset" = Option<u64>, Query, description = "The number of bytes to skip"),
        ("limit" = Option<u32>, Query, description = "The maximum number of bytes; 1048576 if absent")),
    responses((status = 200, description = "The bytes", body = Vec<u8>, content_type = "application/octet-stream",
            headers(("x-file-size" = u64, description = "The size of the file, in bytes"))),
        (status = 401, description = "The token is unknown, or its call is over", body = ErrorBody),
        (status = 403, description = "The tool or its agent may not read the file", body = ErrorBody),
        (status = 404, description = "The file does not exist", body = ErrorBody),
        (status = 409, description = "The agent is not configured on this server any more", body = ErrorBody),
        (status = 424, description = "The workspace of the agent, or the file, cannot be read", body = ErrorBody)))]
pub(super) async fn file_content(api: CallApi, params: Params) -> Result<Response, ApiError> {
    let given = params
        .text("path")
        .ok_or_else(|| Invalid::new("path", "must be given"))?;
    let path = path::normalise(given).map_err(|why| Invalid::new("path", why))?;
    if !api.call.access.readable_files().has(&path) {
        return Err(ApiError::not_declared(&format!("the file `{}`", shortened(&path))));
    }
    let most = u32::try_from(api.answers.bytes()).unwrap_or(u32::MAX);
    let limit = params.count("limit", 1, most)?.unwrap_or(DEFAULT_BYTES.min(most));
    let offset = params.count("offset", 0, u32::MAX)?.unwrap_or(0);
    let permit = api.answer_permit().await?;
    let open = api.call_files.open(&api.call).await?;
    let bytes = open.read(&path).await?;
    let bytes = bytes.ok_or_else(|| ApiError::not_found("file_not_found"))?;
    let begin = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let length = usize::try_from(limit).unwrap_or(usize::MAX);
    let end = begin.saturating_add(length).min(bytes.len());
    let part = bytes.get(begin..end).unwrap_or_default().to_vec();
    Ok(([(FILE_SIZE, HeaderValue::from(bytes.len()))], permit.bytes(part)).into_response())
}

/// Returns an item of the Store of the owner of the run, or null if it does not exist.
#[utoipa::path(get, path = "/call/store/items", tag = "Calls",
    params(("namespace" = String, Query, description = "The namespace: its labels, separated by periods"),
        ("key" = String, Query, description = "The key within the namespace")),
    responses((status = 200, description = "The item, or null", body = Option<ItemView>),
        (status = 401, description = "The token is unknown, or its call is over", body = ErrorBody),
        (status = 403, description = "The tool does not declare the namespace", body = ErrorBody)))]
pub(super) async fn item(api: CallApi, params: Params) -> JsonResult<Option<ItemView>> {
    let address = store::address_in(&params)?;
    if !api.call.access.has_namespace(&address.namespace) {
        return Err(ApiError::not_declared("the namespace"));
    }
    let found = api.store.get(&api.call.ownership, address, None).await?;
    Ok(Json(found.map(ItemView::from)))
}

/// Searches items of the Store of the owner of the run by namespace, filter and meaning.
///
/// `namespace_prefix` lies in a namespace that the tool declares.
#[utoipa::path(post, path = "/call/store/items/search", tag = "Calls", request_body = ItemSearchBody,
    responses((status = 200, description = "A page of items", body = FoundItems,
            headers(("x-pagination-next" = u64))),
        (status = 401, description = "The token is unknown, or its call is over", body = ErrorBody),
        (status = 403, description = "The tool does not declare the namespace", body = ErrorBody),
        (status = 424, description = "The embedding model failed", body = ErrorBody)))]
pub(super) async fn search_items(api: CallApi, ApiJson(body): ApiJson<ItemSearchBody>) -> Result<Response, ApiError> {
    let query = body.check()?;
    if !api.call.access.has_namespace(&query.wanted.prefix) {
        return Err(ApiError::not_declared("the namespace"));
    }
    store::search_in(&api, &api.call.ownership, query).await
}
