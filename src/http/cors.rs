//! CORS: the web pages that may call the server, and the response headers that they may read.

use std::time::Duration;

use axum::http::{HeaderName, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use super::origins::{LOOPBACK, OriginRules};
use super::requests::REQUEST_ID;

/// The CORS settings of the server.
#[derive(Debug, Clone)]
pub struct CorsSettings {
    /// The allowed origins.
    pub origins: OriginRules,
    /// True if pages may send cookies; not with `*`.
    pub credentials: bool,
    /// Response headers that pages may read, besides those that the SDKs need.
    pub expose_headers: Vec<String>,
    /// The time for which browsers may cache a preflight response.
    pub max_age: Duration,
    /// True if pages from public addresses may call a server at a private address.
    pub private_network: bool,
}

impl Default for CorsSettings {
    fn default() -> Self {
        Self {
            origins: OriginRules::new(&[LOOPBACK.to_owned()]),
            credentials: false,
            expose_headers: vec![],
            max_age: Duration::from_secs(600),
            private_network: false,
        }
    }
}

/// The response headers that the SDKs and MCP clients read.
const SDKS_READ: [HeaderName; 7] = [
    header::CONTENT_LOCATION,
    header::LOCATION,
    header::RETRY_AFTER,
    HeaderName::from_static("x-pagination-total"),
    HeaderName::from_static("x-pagination-next"),
    HeaderName::from_static("mcp-session-id"),
    REQUEST_ID,
];

const METHODS: [Method; 6] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];

/// The middleware that answers preflight requests.
pub(super) fn layer(settings: &CorsSettings) -> CorsLayer {
    let any = settings.origins.any();
    let rules = settings.origins.clone();
    let origins = if any {
        AllowOrigin::from(Any)
    } else {
        AllowOrigin::predicate(move |origin, request| {
            let is_allowed = rules.allows(origin);
            // Browsers ask so for other pages only, and tell their developers little.
            if !is_allowed && request.method == Method::OPTIONS {
                tracing::debug!(?origin, "a page is not allowed: its origin is not in `cors_origins`");
            }
            is_allowed
        })
    };
    let exposed = settings.expose_headers.iter().filter_map(|name| name.parse().ok());
    CorsLayer::new()
        .allow_origin(origins)
        // Browsers do not accept `*` for `authorization`, so the requested headers are listed.
        .allow_headers(AllowHeaders::mirror_request())
        .allow_methods(METHODS)
        .allow_credentials(settings.credentials && !any)
        .allow_private_network(settings.private_network)
        .expose_headers(SDKS_READ.into_iter().chain(exposed).collect::<Vec<_>>())
        .max_age(settings.max_age)
        .vary([header::ORIGIN])
}
