//! Which web pages may call the server, and what they may read of its answers.

use std::time::Duration;

use axum::http::{HeaderName, Method, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

use super::origins::{LOOPBACK, OriginRules};

/// Which web pages may call the server.
#[derive(Debug, Clone)]
pub struct CorsSettings {
    /// Their origins.
    pub origins: OriginRules,
    /// Whether they may send cookies along; not with `*`.
    pub credentials: bool,
    /// Headers that they may read, besides those that the SDKs need.
    pub expose_headers: Vec<String>,
    /// For how long a browser may remember all this.
    pub max_age: Duration,
    /// Whether pages from public addresses may call a server at a private one.
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

/// What the SDKs read: where a run is, whether there is a next page, and what they are told about trying again.
const SDKS_READ: [HeaderName; 5] = [
    header::CONTENT_LOCATION,
    header::LOCATION,
    header::RETRY_AFTER,
    HeaderName::from_static("x-pagination-total"),
    HeaderName::from_static("x-pagination-next"),
];

const METHODS: [Method; 6] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::PATCH,
    Method::DELETE,
    Method::OPTIONS,
];

/// Answers the questions of browsers.
pub(super) fn layer(settings: &CorsSettings) -> CorsLayer {
    let any = settings.origins.any();
    let rules = settings.origins.clone();
    let origins = if any {
        AllowOrigin::from(Any)
    } else {
        AllowOrigin::predicate(move |origin, _| rules.allows(origin))
    };
    let exposed = settings.expose_headers.iter().filter_map(|name| name.parse().ok());
    CorsLayer::new()
        .allow_origin(origins)
        // Browsers do not take `*` for `authorization`, so what was asked for is named.
        .allow_headers(AllowHeaders::mirror_request())
        .allow_methods(METHODS)
        .allow_credentials(settings.credentials && !any)
        .allow_private_network(settings.private_network)
        .expose_headers(SDKS_READ.into_iter().chain(exposed).collect::<Vec<_>>())
        .max_age(settings.max_age)
        .vary([header::ORIGIN])
}
