//! The mapping of a provider's failures to [`ModelError`].

use std::time::Duration;

use http::HeaderMap;
use rig_core::ProviderResponseError;
use rig_core::error::ProviderError;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::bounded::SizeExceeded;
use crate::domain::text_limits::first_chars;
use crate::model::ModelError;
use crate::net::retry_after;

/// The maximum length of a provider's message, in characters.
const MAX_MESSAGE_CHARS: usize = 1000;

/// The texts by which providers and common servers report that a request exceeds the model's context.
const CONTEXT_OVERFLOW_TEXTS: [&str; 13] = [
    "context_length_exceeded",
    "maximum context length",
    "context window",
    "prompt is too long",
    "input is too long",
    "exceeds the maximum number of tokens",
    "too many tokens",
    // Anthropic, where the requested output does not fit.
    "exceed context limit",
    // Servers of llama.cpp, vLLM and Ollama.
    "exceeds the available context size",
    "longer than the maximum model length",
    "exceeds the context length",
    // xAI and Groq.
    "maximum prompt length",
    "reduce the length of the messages",
];

/// The text by which OpenAI reports that a single request exceeds the tokens of a minute: it is a rate limit by its status,
/// but the same request never fits.
const BEYOND_RATE_LIMIT: &str = "request too large for";

/// Converts a failure. `has_begun` says whether a piece of the answer has already been passed on. The key is removed
/// from the text in case the provider repeats it.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the enum of rig-core is not exhaustive; see the last arm"
)]
pub(super) fn map(error: &ProviderError, has_begun: bool, key: Option<&SecretString>) -> ModelError {
    if let Some(exceeded) = exceeded(error) {
        let message = exceeded.to_string();
        return match exceeded {
            SizeExceeded::TimedOut(_) => ModelError::TimedOut { message },
            SizeExceeded::TooLarge(_) => ModelError::TooLarge { message },
        };
    }
    let message = |text: &str| sanitized(text, key);
    match error {
        ProviderError::ProviderResponse(reply)
        | ProviderError::InvalidAuthentication(reply)
        | ProviderError::CacheExpired { response: reply, .. } => response_error(reply, has_begun, key),
        ProviderError::Truncated => ModelError::Interrupted {
            message: message("the reply ended before it was complete"),
        },
        ProviderError::Http(cause) => connection_error(has_begun, message(&chain(cause.as_ref()))),
        ProviderError::Json(_)
        | ProviderError::Response(_)
        | ProviderError::Provider(_)
        | ProviderError::Relayed(_) => connection_error(has_begun, message(&error.to_string())),
        // All others are requests that could not be built: nothing was sent.
        _ => ModelError::Refused {
            status: 400,
            message: message(&error.to_string()),
        },
    }
}

/// Returns the limit that the response exceeded, if that is the cause.
fn exceeded(error: &ProviderError) -> Option<&SizeExceeded> {
    let ProviderError::Http(transport) = error else {
        return None;
    };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(transport.as_ref());
    while let Some(error) = cause {
        if let Some(exceeded) = error.downcast_ref() {
            return Some(exceeded);
        }
        cause = error.source();
    }
    None
}

fn connection_error(has_begun: bool, message: String) -> ModelError {
    if has_begun {
        ModelError::Interrupted { message }
    } else {
        ModelError::Unavailable {
            retry_after: None,
            message,
        }
    }
}

/// Converts an error that the provider returned, as an HTTP response or in the middle of a stream.
fn response_error(reply: &ProviderResponseError, has_begun: bool, key: Option<&SecretString>) -> ModelError {
    let body: Value = serde_json::from_str(&reply.body).unwrap_or(Value::Null);
    let message = sanitized(message_of(&body).unwrap_or(&reply.body), key);
    let in_response = body.pointer("/response/error/code").and_then(Value::as_str);
    let in_event = || body.get("code").and_then(Value::as_str).map(str::to_owned);
    let code = in_response.map(str::to_owned).or_else(|| reply.machine_code());
    let code = code.or_else(in_event).unwrap_or_default();
    let status = reply
        .status
        .map(|status| status.as_u16())
        .filter(|status| *status >= 300)
        .or_else(|| status_in_stream(&body, &code));
    let retry_after = reply
        .headers
        .as_ref()
        .and_then(from_headers)
        .or_else(|| from_body(&body));
    let lower = format!("{code} {message}").to_lowercase();
    if reply.refusal {
        return ModelError::Refused {
            status: status.unwrap_or(400),
            message,
        };
    }
    match status {
        Some(413) => ModelError::TooLong { message },
        Some(400 | 422 | 500) if CONTEXT_OVERFLOW_TEXTS.iter().any(|mark| lower.contains(mark)) => {
            ModelError::TooLong { message }
        }
        Some(429) if lower.contains(BEYOND_RATE_LIMIT) => ModelError::TooLong { message },
        // An account without credit has the status of a rate limit, but a retry cannot fix it.
        Some(429) if code == "insufficient_quota" => ModelError::Refused { status: 429, message },
        Some(408 | 409 | 425 | 429 | 500..) | None if has_begun => ModelError::Interrupted { message },
        Some(429) => ModelError::RateLimited { retry_after, message },
        Some(408 | 409 | 425 | 500..) | None => ModelError::Unavailable { retry_after, message },
        Some(status) => ModelError::Refused { status, message },
    }
}

/// Returns the HTTP status of an error inside a stream: the number in it, or the status of its name.
fn status_in_stream(body: &Value, code: &str) -> Option<u16> {
    let number = error_of(body)
        .and_then(|error| error.get("code"))
        .and_then(Value::as_u64);
    if let Some(status) = number
        .and_then(|number| u16::try_from(number).ok())
        .filter(|status| (400..600).contains(status))
    {
        return Some(status);
    }
    match code {
        "rate_limit_error" | "rate_limit_exceeded" | "RESOURCE_EXHAUSTED" | "insufficient_quota" => Some(429),
        "overloaded_error" => Some(529),
        "invalid_request_error" | "INVALID_ARGUMENT" | "context_length_exceeded" => Some(400),
        "authentication_error" | "UNAUTHENTICATED" | "invalid_api_key" => Some(401),
        "permission_error" | "PERMISSION_DENIED" => Some(403),
        _ => None,
    }
}

/// Returns the error object of a body; Google wraps it in a list in streams.
fn error_of(body: &Value) -> Option<&Value> {
    let body = body.get(0).unwrap_or(body);
    // OpenAI's responses have the error in the failed response.
    let failed = body.pointer("/response/error").filter(|error| error.is_object());
    failed
        .or_else(|| body.get("error"))
        .or_else(|| body.get("message").map(|_| body))
}

fn message_of(body: &Value) -> Option<&str> {
    let error = error_of(body)?;
    error.as_str().or_else(|| error.get("message")?.as_str())
}

fn from_headers(headers: &HeaderMap) -> Option<Duration> {
    let ms = headers.get("retry-after-ms").and_then(|value| value.to_str().ok());
    match ms.and_then(|ms| ms.trim().parse::<f64>().ok()) {
        Some(ms) => Duration::try_from_secs_f64(ms / 1000.0).ok(),
        None => retry_after(headers),
    }
}

/// Returns the delay in the body of Google's errors, as in `"retryDelay": "13s"`.
fn from_body(body: &Value) -> Option<Duration> {
    let details = error_of(body)?.get("details")?.as_array()?;
    let delay = details.iter().find_map(|detail| detail.get("retryDelay")?.as_str())?;
    Duration::try_from_secs_f64(delay.strip_suffix('s')?.parse().ok()?).ok()
}

/// Returns the text of an error with its causes, since the outermost one rarely explains a connection failure.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}

fn sanitized(text: &str, key: Option<&SecretString>) -> String {
    let text = first_chars(text, MAX_MESSAGE_CHARS);
    match key.map(ExposeSecret::expose_secret).filter(|key| !key.is_empty()) {
        Some(key) => text.replace(key, "[key]"),
        None => text.to_owned(),
    }
}
