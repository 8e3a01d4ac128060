//! The names of files, for which the library has no place in OpenAI's protocol: it calls every PDF the same.

use rig_core::completion::CompletionRequest;
use rig_core::message::{Document, DocumentMediaType, DocumentSourceKind, Message as Said, UserContent};
use rig_core::wire::Body;
use serde_json::Value;

use super::Protocol;

/// Where the name of a document stands among what the library passes on; for Anthropic it is the document's title.
pub(super) const TITLE: &str = "title";

/// The names of the PDF files in a request, in their order; none for one that has no name.
#[derive(Debug, Clone, Default)]
pub(super) struct FileNames(Vec<Option<String>>);

impl FileNames {
    /// Those of a request to a provider of this kind, unless they reach it anyway.
    pub(super) fn of(request: &CompletionRequest, kind: Protocol) -> Self {
        if kind != Protocol::OpenAi {
            return Self::default();
        }
        let users = request.chat_history.iter().filter_map(|said| {
            let Said::User { content } = said else { return None };
            Some(content)
        });
        let documents = users.flatten().filter_map(|part| {
            let UserContent::Document(document) = part else {
                return None;
            };
            is_sent_by_name(document).then_some(document)
        });
        let name = |document: &Document| Some(document.additional_params.as_ref()?.get(TITLE)?.as_str()?.to_owned());
        Self(documents.map(name).collect())
    }

    /// Puts the names into an encoded request.
    pub(super) fn put(&self, request: &mut http::Request<Body>) {
        if self.0.iter().all(Option::is_none) {
            return;
        }
        let Body::Bytes(bytes) = request.body_mut() else { return };
        let Ok(mut body) = serde_json::from_slice::<Value>(bytes) else {
            return;
        };
        let messages = body
            .get_mut("messages")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten();
        let blocks = messages
            .filter_map(|message| message.get_mut("content")?.as_array_mut())
            .flatten();
        let sent: Vec<&mut Value> = blocks
            .filter_map(|block| block.get_mut("file")?.get_mut("filename"))
            .collect();
        // Were they not the same files, a file would get the name of another.
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

/// Whether the library sends the document as a file with a name.
fn is_sent_by_name(document: &Document) -> bool {
    document.media_type == Some(DocumentMediaType::PDF)
        && matches!(
            document.data,
            DocumentSourceKind::Base64(_) | DocumentSourceKind::Url(_)
        )
}
