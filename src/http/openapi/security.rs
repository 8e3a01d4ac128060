//! The ways of authentication in the API document.

use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{Components, OpenApi};

use super::operations;
use crate::domain::call_token::CALL_PATH;

/// The name of the scheme with the header of an API key.
const API_KEY: &str = "ApiKey";
/// The name of the scheme with the header `authorization`.
const BEARER: &str = "Bearer";

/// The name of the scheme with the token of a call.
const CALL_TOKEN: &str = "CallToken";

/// The endpoints that need no credentials, whatever the server has.
pub(super) const PUBLIC: [&str; 2] = ["/ok", "/ready"];

/// Describes the credentials, which a server without authentication does not need.
pub(super) fn add_security_schemes(document: &mut OpenApi) {
    let api_key = ApiKeyValue::with_description("x-api-key", "An API key, as the SDKs send it");
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("An API key, or a token of a configured issuer"))
        .build();
    let components = document.components.get_or_insert_with(Components::new);
    components.add_security_scheme(API_KEY, SecurityScheme::ApiKey(ApiKey::Header(api_key)));
    components.add_security_scheme(BEARER, SecurityScheme::Http(bearer));
    let of_call = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "The token of a tool call that is being made, from the request to the tool",
        ))
        .build();
    components.add_security_scheme(CALL_TOKEN, SecurityScheme::Http(of_call));
    let nothing = SecurityRequirement::default();
    document.security = Some(credentials().chain([nothing]).collect());
    let of_calls = document
        .paths
        .paths
        .iter_mut()
        .filter(|(path, _)| path.starts_with(CALL_PATH));
    for operation in of_calls.flat_map(|(_, item)| operations(item)) {
        operation.security = Some(vec![SecurityRequirement::new::<_, [&str; 0], _>(CALL_TOKEN, [])]);
    }
    for path in PUBLIC {
        let health = document.paths.paths.get_mut(path).and_then(|item| item.get.as_mut());
        if let Some(operation) = health {
            operation.security = Some(vec![]);
        }
    }
}

/// Describes that every endpoint needs credentials, except those that say otherwise.
pub(in crate::http) fn require_credentials(document: &mut OpenApi) {
    document.security = Some(credentials().collect());
}

/// The credentials, of which one is enough.
fn credentials() -> impl Iterator<Item = SecurityRequirement> {
    [API_KEY, BEARER]
        .into_iter()
        .map(|scheme| SecurityRequirement::new::<_, [&str; 0], _>(scheme, []))
}
