//! The console: pages for people in a browser, which use the API of this server as any other client does.
//!
//! The files are in the program; they are built from the sources in `console/`, and a test compares the two. They contain
//! no data of the server, so they are public, as the API document is: a page asks for a credential and sends it with its
//! requests.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{LazyLock, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use rust_embed::{EmbeddedFile, RustEmbed};

use super::AppState;
use super::error::ApiError;

/// The files of the console.
#[derive(RustEmbed)]
#[folder = "console/dist/"]
struct ConsoleFiles;

/// The page that loads all others.
const INDEX: &str = "index.html";

/// The folder of the files whose names contain a digest of their content.
const HASHED: &str = "assets/";

/// The content security policy of the console: own resources only, no scripts and styles in the page, and no frames.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The headers of all files.
const FILE_HEADERS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::VARY, "accept, accept-encoding"),
];

/// The routes of the console's files. Browsers get the first page at `/` as well, where other clients get an index of the
/// API.
pub(super) fn pages() -> Router<AppState> {
    Router::new()
        .route("/console", get(async |headers: HeaderMap| index(&headers).await))
        .route("/console/", get(async |headers: HeaderMap| index(&headers).await))
        .route(
            "/console/{*file}",
            get(async |Path(file): Path<String>, headers: HeaderMap| serve(&file, &headers).await),
        )
}

/// The first page.
///
/// # Errors
/// 404 if the program was built without it.
pub(super) async fn index(headers: &HeaderMap) -> Result<Response, ApiError> {
    serve(INDEX, headers).await
}

/// A file, compressed if the client accepts it; 304 if the client has it.
///
/// # Errors
/// 404 if there is no file of this name.
async fn serve(name: &str, headers: &HeaderMap) -> Result<Response, ApiError> {
    let file = ConsoleFiles::get(name).ok_or_else(ApiError::no_route)?;
    let digest = hex::encode(&file.metadata.sha256_hash()[..16]);
    let cache_control = match name.starts_with(HASHED) {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let compressed = match accepts_gzip(headers) {
        true => gzipped(name, &file).await?,
        false => None,
    };
    // The two forms are different bytes, so they have different tags.
    let tag = match &compressed {
        Some(_) => format!("\"{digest}-gzip\""),
        None => format!("\"{digest}\""),
    };
    let mut response = match has_tag(headers, &tag) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => whole_file(&file, compressed),
    };
    let response_headers = response.headers_mut();
    for (header, value) in FILE_HEADERS {
        response_headers.insert(header, HeaderValue::from_static(value));
    }
    response_headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache_control));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response_headers.insert(header::ETAG, tag);
    }
    Ok(response)
}

/// The response with the content of a file.
fn whole_file(file: &EmbeddedFile, compressed: Option<Bytes>) -> Response {
    let mimetype = file.metadata.mimetype();
    let content_type = match mimetype.starts_with("text/") {
        true => format!("{mimetype}; charset=utf-8"),
        false => mimetype.to_owned(),
    };
    let is_compressed = compressed.is_some();
    let body = compressed.unwrap_or_else(|| match &file.data {
        Cow::Borrowed(bytes) => Bytes::from_static(bytes),
        Cow::Owned(bytes) => Bytes::copy_from_slice(bytes),
    });
    let mut response = ([(header::CONTENT_TYPE, content_type)], Body::from(body)).into_response();
    if is_compressed {
        let gzip = HeaderValue::from_static("gzip");
        response.headers_mut().insert(header::CONTENT_ENCODING, gzip);
    }
    response
}

/// Returns whether the client accepts gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING);
    let accepted = accepted.iter().filter_map(|value| value.to_str().ok());
    let mut codings = accepted.flat_map(|value| value.split(','));
    codings.any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let weight = parts.find_map(|part| part.strip_prefix("q="));
        // A weight of zero means "not this one".
        let is_refused = weight.is_some_and(|weight| weight.parse::<f64>().is_ok_and(|weight| weight <= 0.0));
        is_gzip && !is_refused
    })
}

/// Returns whether the client says in `If-None-Match` that it has the content with this tag.
fn has_tag(headers: &HeaderMap, tag: &str) -> bool {
    let named = headers.get_all(header::IF_NONE_MATCH);
    let named = named.iter().filter_map(|value| value.to_str().ok());
    let mut tags = named.flat_map(|value| value.split(',')).map(str::trim);
    // The comparison is weak (RFC 9110, 13.1.2): proxies that compress a response weaken its tag.
    tags.any(|named| named == "*" || named.strip_prefix("W/").unwrap_or(named) == tag)
}

/// The compressed files, each of which is compressed when it is first requested; none for a file that would not be
/// smaller.
static COMPRESSED: LazyLock<Mutex<BTreeMap<String, Option<Bytes>>>> = LazyLock::new(Mutex::default);

/// Returns the file, compressed, if that is smaller.
///
/// # Errors
/// 500 if it cannot be compressed.
async fn gzipped(name: &str, file: &EmbeddedFile) -> Result<Option<Bytes>, ApiError> {
    let known = COMPRESSED.lock().ok().and_then(|files| files.get(name).cloned());
    if let Some(known) = known {
        return Ok(known);
    }
    let content = file.data.clone();
    let compressed = tokio::task::spawn_blocking(move || gzip(&content)).await;
    let compressed = compressed.map_err(|error| ApiError::fault(&error))?;
    let compressed = compressed.map_err(|error| ApiError::fault(&error))?;
    if let Ok(mut files) = COMPRESSED.lock() {
        files.insert(name.to_owned(), compressed.clone());
    }
    Ok(compressed)
}

fn gzip(content: &[u8]) -> std::io::Result<Option<Bytes>> {
    let mut encoder = GzEncoder::new(vec![], Compression::best());
    encoder.write_all(content)?;
    let compressed = encoder.finish()?;
    Ok((compressed.len() < content.len()).then(|| compressed.into()))
}
