//! The amount of metadata beside the pieces of an answer, as a reader requests it.

use axum::extract::FromRequestParts;
use axum::http::HeaderName;
use axum::http::request::Parts;
use utoipa::IntoParams;

use crate::domain::text_limits::first_chars;
use crate::http::error::ApiError;
use crate::http::extract::Params;

/// The request header. The SDKs send it with every request when it is among their default headers, so that reconnecting
/// needs no further thought.
const HEADER: HeaderName = HeaderName::from_static("x-stream-metadata");
/// The query parameter, for readers that cannot send headers, such as the `EventSource` of browsers.
const PARAMETER: &str = "stream_metadata";

/// The metadata of pieces of answers in the mode `messages-tuple`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MetadataDetail {
    /// Every piece has all of it.
    #[default]
    Full,
    /// The first piece of a message has all of it; the others name the agent, the node, the namespace and the run.
    Lean,
}

/// The choice in the query, as the API document shows it.
#[derive(IntoParams)]
#[expect(
    dead_code,
    reason = "only the document shows it; requests are read by `MetadataDetail`"
)]
#[into_params(parameter_in = Query)]
pub struct MetadataDetailParameter {
    /// The metadata of pieces in the mode `messages-tuple`: `full` (default), or `lean` for only the agent, the node, the
    /// namespace and the run on every piece of a message but the first. The header `x-stream-metadata` has precedence.
    #[param(rename = "stream_metadata", example = "lean")]
    parameter: Option<String>,
}

/// The choice in a header, as the API document shows it.
#[derive(IntoParams)]
#[expect(
    dead_code,
    reason = "only the document shows it; requests are read by `MetadataDetail`"
)]
#[into_params(parameter_in = Header)]
pub struct MetadataDetailHeader {
    /// The same as `stream_metadata`, for clients that send the same headers with every request.
    #[param(rename = "x-stream-metadata", example = "lean")]
    header: Option<String>,
}

impl MetadataDetail {
    fn of_word(word: &str) -> Result<Self, ApiError> {
        match word {
            "" | "full" => Ok(Self::Full),
            "lean" => Ok(Self::Lean),
            other => Err(ApiError::bad_parameter(
                PARAMETER,
                first_chars(other, 100),
                "allowed are: full, lean",
            )),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for MetadataDetail {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        if let Some(value) = parts.headers.get(HEADER) {
            return Self::of_word(value.to_str().unwrap_or("with other characters").trim());
        }
        let params = Params::from_request_parts(parts, state).await?;
        params.text(PARAMETER).map_or(Ok(Self::Full), Self::of_word)
    }
}
