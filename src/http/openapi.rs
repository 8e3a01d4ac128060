//! The OpenAPI document, and the pages that show it.
//!
//! The document is generated from the route table. A copy is kept in `openapi/openapi.json`; a test fails when it is
//! out of date.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use utoipa::OpenApi;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{AdditionalProperties, ArrayItems, SchemaType, Type};
use utoipa::openapi::{self, Content, ContentBuilder, Ref, RefOr, ResponseBuilder, Schema};

mod partial_schemas;
mod security;
mod swagger_ui;

use security::require_credentials;

use super::error::{ApiError, ErrorBody};
use super::{AppState, endpoint_documents};

/// The head of the document, without endpoints.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "adjutant",
        description = "A server for deep agents: durable threads, delegation to subagents, approvals and streams. \
                       It speaks the wire of the LangGraph Platform, so that its SDKs work unchanged; approvals and \
                       child runs are resources of their own besides. Every error is `{detail, code}`: `detail` is \
                       for people, `code` is for programs and does not change.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(ErrorBody)),
    tags(
        (name = "Server", description = "The server itself: health, version, metrics"),
        (name = "Access", description = "The caller, API keys, the audit, and the data of users"),
        (name = "Assistants", description = "Agent definitions with settings, which clients run"),
        (name = "Agents", description = "Agent definitions: from files, or created by clients"),
        (name = "Threads", description = "Conversations with an assistant"),
        (name = "State", description = "States and histories of threads"),
        (name = "Runs", description = "Executions of an assistant on a thread"),
        (name = "Stateless runs", description = "Runs on a new thread, which is deleted after the run by default"),
        (name = "Crons", description = "Schedules that start runs"),
        (name = "Webhooks", description = "Deliveries of webhooks that report the end of runs"),
        (name = "Approvals", description = "Interrupts: questions to a human, and their answers"),
        (name = "Calls", description = "The data of a run that its tools may read, with the token of a call"),
        (name = "MCP", description = "The MCP server: agents as tools of MCP clients"),
        (name = "Store", description = "The Store: items in namespaces that outlive threads"),
    )
)]
struct Preface;

/// The document without the endpoints.
pub(super) fn preface() -> openapi::OpenApi {
    Preface::openapi()
}

/// The description of responses with the status 503.
const UNAVAILABLE: &str = "The server is overloaded or shutting down, or its database does not answer; `Retry-After` \
                           holds the seconds to wait";

/// The complete document.
pub fn document() -> openapi::OpenApi {
    complete(endpoint_documents())
}

/// Adds what all endpoints have in common: their error responses, and the partial shapes that `select` leaves.
fn complete(mut document: openapi::OpenApi) -> openapi::OpenApi {
    partial_schemas::add_partial_schemas(&mut document);
    close_bodies(&mut document);
    security::add_security_schemes(&mut document);
    for (path, item) in &mut document.paths.paths {
        for operation in operations(item) {
            qualify_operation_id(operation);
            document_numbers_as_json(operation);
            if !security::PUBLIC.contains(&path.as_str()) {
                add_error(
                    operation,
                    "429",
                    "With `[quotas]`: a quota is used up; `limit` names it. Requests per second and open streams are \
                     counted by each server process for itself",
                );
                add_error(operation, "401", "With `[auth]`: there are no valid credentials");
                add_error(
                    operation,
                    "403",
                    "With `[auth]`: no role of the caller allows this; or the page is foreign",
                );
                // Each of these reads the database, at least to find out who calls.
                add_error(operation, "503", UNAVAILABLE);
            }
        }
        item.get.iter_mut().for_each(|operation| add_errors(operation, false));
        let changing = [&mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        changing
            .into_iter()
            .flatten()
            .for_each(|operation| add_errors(operation, true));
    }
    document
}

/// The bodies that may have unknown keys: those of the thread stream protocol, which has versions of its own.
const OPEN_BODIES: [&str; 2] = ["ThreadCommand", "ThreadStreamRequest"];

/// Documents that request bodies have no unknown keys, see [`unknown_keys`](super::unknown_keys).
fn close_bodies(document: &mut openapi::OpenApi) {
    let mut sent = vec![];
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        let Some(RefOr::T(body)) = &operation.request_body else {
            continue;
        };
        let contents = body.content.values().filter_map(|content| match content {
            RefOr::T(content) => Some(content),
            RefOr::Ref(_) => None,
        });
        sent.extend(contents.filter_map(|content| name_of_object(content.schema.as_ref()?)));
    }
    let schemas = document
        .components
        .iter_mut()
        .flat_map(|components| &mut components.schemas);
    for (_, schema) in schemas.filter(|(name, _)| sent.contains(name) && !OPEN_BODIES.contains(&name.as_str())) {
        if let RefOr::T(Schema::Object(object)) = schema {
            object.additional_properties = Some(Box::new(AdditionalProperties::FreeForm(false)));
        }
    }
}

/// The name of the object schema, or of the items of a list.
fn name_of_object(schema: &RefOr<Schema>) -> Option<String> {
    match schema {
        RefOr::Ref(named) => named.ref_location.rsplit('/').next().map(str::to_owned),
        RefOr::T(Schema::Array(list)) => match &list.items {
            ArrayItems::RefOrSchema(item) => name_of_object(item),
            ArrayItems::False => None,
        },
        RefOr::T(_) => None,
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.post,
        &mut item.put,
        &mut item.patch,
        &mut item.delete,
    ]
    .into_iter()
    .flatten()
}

/// Prefixes an operation id with its tag, since handlers of different modules have the same names.
fn qualify_operation_id(operation: &mut Operation) {
    let group = operation
        .tags
        .iter()
        .flatten()
        .next()
        .map(|tag| tag.to_lowercase().replace(' ', "_"));
    if let (Some(group), Some(name)) = (group, &mut operation.operation_id) {
        *name = format!("{group}_{name}");
    }
}

/// Documents a bare number as JSON; by default it would be documented as text.
fn document_numbers_as_json(operation: &mut Operation) {
    let is_number = |content: &RefOr<Content>| {
        let RefOr::T(Content {
            schema: Some(RefOr::T(Schema::Object(schema))),
            ..
        }) = content
        else {
            return false;
        };
        schema.schema_type == SchemaType::Type(Type::Integer)
    };
    for response in operation.responses.responses.values_mut() {
        let RefOr::T(response) = response else { continue };
        if response.content.get("text/plain").is_some_and(is_number)
            && let Some(number) = response.content.swap_remove("text/plain")
        {
            response.content.insert("application/json".to_owned(), number);
        }
    }
}

fn add_error(operation: &mut Operation, status: &str, text: &str) {
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("ErrorBody")))
        .build();
    let response = ResponseBuilder::new()
        .description(text)
        .content("application/json", content)
        .build();
    operation
        .responses
        .responses
        .entry(status.to_owned())
        .or_insert(RefOr::T(response));
}

fn add_errors(operation: &mut Operation, changes: bool) {
    let takes_body = operation.request_body.is_some();
    let takes_input = takes_body || operation.parameters.as_ref().is_some_and(|all| !all.is_empty());
    let mut add = |status: &str, text: &str| add_error(operation, status, text);
    if changes {
        add("403", "The page's origin is not in `cors_origins`");
    }
    if takes_body {
        add("402", "With `[quotas]`: the money for models is used up for today");
        add("507", "With `[quotas]`: as much is stored as allowed");
        add("408", "The body did not arrive in time");
        add("413", "The body is too large");
        add(
            "415",
            "The content type is not `application/json`, or the body is compressed",
        );
        add("503", UNAVAILABLE);
    }
    add("421", "The host is not in `hosts`");
    if takes_input {
        add("422", "The request is invalid; `detail` names the field");
    }
    add("500", "Internal error; `detail` holds the id under which it was logged");
}

/// The routes `/openapi.json`, and `/docs`, a page that needs no external resources. The document is made when it is first
/// read, since few servers are ever asked for it.
pub(super) fn pages(requires_credentials: bool) -> Router<AppState> {
    let text = Arc::new(LazyLock::new(move || {
        let mut document = document();
        if requires_credentials {
            require_credentials(&mut document);
        }
        Bytes::from(document.to_json().unwrap_or_default())
    }));
    Router::new()
        .route(
            swagger_ui::DOCUMENT,
            get(async move || ([(header::CONTENT_TYPE, "application/json")], Bytes::clone(&text))),
        )
        // Browsers request it on every page.
        .route(
            "/favicon.ico",
            get(async || ([(header::CACHE_CONTROL, "max-age=86400")], StatusCode::NO_CONTENT)),
        )
        .route("/docs", get(front_page))
        .route("/docs/{*file}", get(asset))
}

/// The content security policy of pages: own resources only, and no frames.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
    img-src 'self' data:; font-src 'self' data:; connect-src 'self'; base-uri 'self'; form-action 'none'; \
    frame-ancestors 'none'";

/// The headers of pages and their assets.
const PAGE_HEADERS: [(HeaderName, &str); 3] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
];

/// The page itself. Its path has no trailing slash, so a `<base>` element names the folder of its assets.
async fn front_page() -> Result<Response, ApiError> {
    let page = swagger_ui::file("index.html").await?.ok_or_else(ApiError::no_route)?;
    let page = String::from_utf8_lossy(&page.content).replacen("<head>", "<head><base href=\"/docs/\">", 1);
    Ok((PAGE_HEADERS, Html(page)).into_response())
}

/// An asset of the page.
async fn asset(Path(name): Path<String>) -> Result<Response, ApiError> {
    let found = swagger_ui::file(&name).await?.ok_or_else(ApiError::no_route)?;
    Ok((
        PAGE_HEADERS,
        [(header::CONTENT_TYPE, found.content_type)],
        found.content,
    )
        .into_response())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_copy_in_the_repository_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi/openapi.json");
        let now = document().to_pretty_json().expect("the document is JSON") + "\n";
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            std::fs::write(&path, &now).expect("the copy can be written");
        }
        let copy = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            copy == now,
            "openapi/openapi.json is out of date; run `UPDATE_OPENAPI=1 cargo test --lib openapi` and look at the diff"
        );
    }

    #[test]
    fn questions_and_their_answers_may_be_any_value() {
        let whole = serde_json::to_value(document()).expect("the document is JSON");
        for (schema, field) in [
            ("InterruptView", "value"),
            ("InterruptResolve", "response"),
            ("CommandBody", "resume"),
        ] {
            let shown = &whole["components"]["schemas"][schema]["properties"][field];
            assert!(shown["description"].is_string(), "{schema} has `{field}`: {shown}");
            assert!(shown["type"].is_null(), "{schema}: {shown}");
        }
    }

    #[test]
    fn every_endpoint_is_described_and_says_how_it_fails() {
        for (path, item) in document().paths.paths {
            for operation in [item.get, item.post, item.put, item.patch, item.delete]
                .into_iter()
                .flatten()
            {
                assert!(
                    operation.summary.is_some_and(|text| !text.is_empty()),
                    "{path} has no summary"
                );
                assert!(operation.tags.is_some_and(|tags| tags.len() == 1), "{path} has no tag");
                assert!(operation.responses.responses.contains_key("500"), "{path} never fails");
                assert!(
                    operation.responses.responses.contains_key("503") || security::PUBLIC.contains(&path.as_str()),
                    "{path} is always available"
                );
            }
        }
    }
}
