//! Responses of issuers and of the hook: JSON of a bounded size.

use reqwest::{Response, StatusCode};
use serde::de::DeserializeOwned;

use crate::net;

/// Reads the body of a successful response as JSON.
///
/// # Errors
/// A text for the log: the status is not 200, the body is larger than `max_bytes`, breaks off, or is not the expected
/// JSON. The text does not contain the body, which may contain secrets.
pub(super) async fn read<T: DeserializeOwned>(response: Response, max_bytes: usize) -> Result<T, String> {
    let status = response.status();
    if status != StatusCode::OK {
        return Err(format!("the response has the status {}", status.as_u16()));
    }
    let bytes = net::read_bounded(response, max_bytes).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let place = format!("line {} column {}", error.line(), error.column());
        format!(
            "the response is not the expected JSON ({:?} error at {place})",
            error.classify()
        )
    })
}
