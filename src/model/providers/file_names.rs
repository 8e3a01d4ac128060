//! File names in requests to OpenAI. rig-core gives every PDF the same name, so the names are set in the encoded
//! request.

use rig_core::completion::CompletionRequest;
use rig_core::message::{Document, DocumentMediaType, DocumentSourceKind, Message as RigMessage, UserContent};
use rig_core::wire::Body;
use serde_json::Value;

use super::Protocol;

/// The key of a document's name in rig-core's additional parameters; Anthropic sends it as the document's title.
pub(super) const TITLE: &str = "title";

/// The names of the PDF files in a request, in their order; `None` for a file without a name.
#[derive(Debug, Clone, Default)]
pub(super) struct FileNames(Vec<Option<String>>);

impl FileNames {
    /// Returns the names of the files in a request, if rig-core does not send them to this kind of provider.
    pub(super) fn of(request: &CompletionRequest, kind: Protocol) -> Self {
        let sends_url = match kind {
            Protocol::OpenAi => true,
            // Files at an address have no name in responses.
            Protocol::OpenAiResponses => false,
            Protocol::Anthropic | Protocol::GoogleGenAi | Protocol::Ollama | Protocol::Scripted => {
                return Self::default();
            }
        };
        let users = request.chat_history.iter().filter_map(|message| {
            let RigMessage::User { content } = message else {
                return None;
            };
            Some(content)
        });
        let documents = users.flatten().filter_map(|part| {
            let UserContent::Document(document) = part else {
                return None;
            };
            is_sent_by_name(document, sends_url).then_some(document)
        });
        let name = |document: &Document| Some(document.additional_params.as_ref()?.get(TITLE)?.as_str()?.to_owned());
        Self(documents.map(name).collect())
    }

    /// Sets the names in an encoded request.
    pub(super) fn set(&self, request: &mut http::Request<Body>) {
        if self.0.iter().all(Option::is_none) {
            return;
        }
        let Body::Bytes(bytes) = request.body_mut() else { return };
        let Ok(mut body) = serde_json::from_slice::<Value>(bytes) else {
            return;
        };
        let list = if body.get("messages").is_some() {
            "messages"
        } else {
            "input"
        };
        let messages = body.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        let blocks = messages
            .filter_map(|message| message.get_mut("content")?.as_array_mut())
            .flatten();
        let sent: Vec<&mut Value> = blocks
            .filter_map(|block| match block.get("file").is_some() {
                true => block.get_mut("file")?.get_mut("filename"),
                false => block.get_mut("filename"),
            })
            .collect();
        // A different number would give a file the name of another one.
        if sent.len() != self.0.len() {
            return;
        }
        for (sent, name) in sent.into_iter().zip(&self.0) {
            if let Some(name) = name {
                *sent = name.as_str().into();
            }
        }
        *bytes = body.to_string().into_bytes();
    }
}

/// Returns whether rig-core sends the document as a file with a name.
fn is_sent_by_name(document: &Document, sends_url: bool) -> bool {
    document.media_type == Some(DocumentMediaType::PDF)
        && (matches!(document.data, DocumentSourceKind::Base64(_))
            || sends_url && matches!(document.data, DocumentSourceKind::Url(_)))
}
