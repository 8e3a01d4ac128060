//! The requests that rig-core has encoded last, for those that differ in their omitted parts alone.
//!
//! Instructions, tools and plain conversations are set when rig-core has encoded a request, see [`super::chat_body`]. So most
//! requests of an agent are the same for rig-core, and to encode one took it 45,000 instructions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rig_core::completion::CompletionRequest;
use rig_core::error::EncodeError;
use rig_core::message::{Message, UserContent};
use rig_core::wire::{Body, Encoded, Mode};

use super::request::STAND_IN;

/// The maximum number of requests that are kept for one model.
const MAX_REQUESTS: usize = 8;
/// The size of a request without its omitted parts up to which it is kept, in bytes.
const MAX_BYTES: usize = 16 << 10;

/// The encoded requests of one model.
#[derive(Clone, Default)]
pub(super) struct EncodedRequests(Arc<Mutex<VecDeque<KnownRequest>>>);

/// A request without its omitted parts, and what rig-core has encoded it to.
struct KnownRequest {
    request: Vec<u8>,
    encoded: Encoded,
}

impl EncodedRequests {
    /// Returns the encoded request. `encode` is only called if it is not known.
    ///
    /// # Errors
    /// Those of `encode`.
    pub(super) fn encode(
        &self,
        request: CompletionRequest,
        mode: Mode,
        encode: impl FnOnce(CompletionRequest) -> Result<Encoded, EncodeError>,
    ) -> Result<Encoded, EncodeError> {
        let Some(key) = key_of(&request, mode) else {
            return encode(request);
        };
        if let Some(known) = self.find(&key) {
            return Ok(known);
        }
        let encoded = encode(request)?;
        if let Some(kept) = copy(&encoded) {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.truncate(MAX_REQUESTS - 1);
            known.push_front(KnownRequest {
                request: key,
                encoded: kept,
            });
        }
        Ok(encoded)
    }

    fn find(&self, request: &[u8]) -> Option<Encoded> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.iter().find(|known| known.request == request)?;
        copy(&known.encoded)
    }
}

/// Returns the text of a streamed request whose instructions and conversation are omitted; none for other requests.
fn key_of(request: &CompletionRequest, mode: Mode) -> Option<Vec<u8>> {
    let is_omitted = request.chat_history.iter().all(is_stand_in);
    if mode != Mode::Streaming || !is_omitted {
        return None;
    }
    serde_json::to_vec(request).ok().filter(|text| text.len() <= MAX_BYTES)
}

fn is_stand_in(message: &Message) -> bool {
    match message {
        Message::System { content } => content == STAND_IN,
        Message::User { content } => {
            matches!(content.as_slice(), [UserContent::Text(text)] if text.text == STAND_IN)
        }
        Message::Assistant(_) => false,
    }
}

fn copy(encoded: &Encoded) -> Option<Encoded> {
    let Body::Bytes(bytes) = encoded.request.body() else {
        return None;
    };
    let mut request = http::Request::new(Body::Bytes(bytes.clone()));
    *request.method_mut() = encoded.request.method().clone();
    *request.uri_mut() = encoded.request.uri().clone();
    *request.headers_mut() = encoded.request.headers().clone();
    Some(Encoded { request, ..*encoded })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rig_core::wire::Framing;

    use super::*;

    #[test]
    fn a_request_is_encoded_once_unless_it_has_a_conversation() {
        let known = EncodedRequests::default();
        let count = Cell::new(0);
        let encode = |prompt: &str, max_tokens: u64| {
            let mut request = CompletionRequest::new(prompt);
            request.max_tokens = Some(max_tokens);
            let encoded = known.encode(request, Mode::Streaming, |request| {
                count.set(count.get() + 1);
                let body = format!("{:?}", request.max_tokens).into_bytes();
                let request = http::Request::post("http://localhost/v1").header("accept", "a");
                let request = request.body(Body::Bytes(body)).expect("a request");
                Ok(Encoded::new(request, Framing::Sse).with_request_id_header(Some("x-id")))
            });
            encoded.expect("a request")
        };
        for (prompt, max_tokens, expected) in [
            (STAND_IN, 1, 1),
            (STAND_IN, 1, 1),
            (STAND_IN, 2, 2),
            (STAND_IN, 1, 2),
            ("hello", 1, 3),
            ("hello", 1, 4),
        ] {
            let encoded = encode(prompt, max_tokens);
            assert_eq!(count.get(), expected, "{prompt} {max_tokens}");
            assert_eq!(encoded.request.method(), "POST");
            assert_eq!(encoded.request.uri(), "http://localhost/v1");
            assert_eq!(encoded.request.headers()["accept"], "a");
            assert_eq!(encoded.request_id_header, Some("x-id"));
            let Body::Bytes(body) = encoded.request.body() else {
                panic!("bytes")
            };
            assert_eq!(*body, format!("Some({max_tokens})").into_bytes());
        }
        for max_tokens in 0..20 {
            encode(STAND_IN, max_tokens);
        }
        assert_eq!(known.0.lock().expect("no panic").len(), MAX_REQUESTS);
    }
}
