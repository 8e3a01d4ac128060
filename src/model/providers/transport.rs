//! The transport to a provider, which adjusts requests and observes replies.
//!
//! rig-core reports the id of a tool call only when the call is complete, but the first chunk for clients must contain
//! it. So this transport reads the ids from the frames. It also moves Google's key from the URL, which appears in logs
//! and error texts, into a header, and sets file names and cache markers.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use futures::StreamExt;
use memchr::memmem::Finder;
use rig_core::driver::{Exchange, Opening, Transport};
use rig_core::error::ProviderError;
use rig_core::http_client::DynHttpClient;
use rig_core::wire::{Body, Encoded, Wire, WireFrame};
use serde::Deserialize;
use serde_json::Value;

use super::caching::CacheHint;
use super::chat_body::OmittedParts;
use super::file_names::FileNames;
use super::known_requests::KnownRequest;
use super::separators::Separator;
use super::{Protocol, caching, chat_markers, markers};
use crate::definition::PromptBlock;
use crate::domain::trace::SpanContext;

/// The ids of an answer's calls, in the order in which they began.
#[derive(Debug, Clone, Default)]
pub(super) struct CallIds(Arc<Mutex<Vec<String>>>);

impl CallIds {
    /// Returns the id of call number `index`, if it is known yet.
    pub(super) fn get(&self, index: usize) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(index)
            .cloned()
    }

    fn record(&self, id: String) {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Some gateways repeat the id on every chunk of a call.
        if !id.is_empty() && !ids.contains(&id) {
            ids.push(id);
        }
    }
}

/// The transport of one request.
#[derive(Clone)]
pub(super) struct AdjustedTransport {
    pub(super) http: DynHttpClient,
    pub(super) kind: Protocol,
    pub(super) ids: CallIds,
    /// The names of the files in the request.
    pub(super) file_names: FileNames,
    /// The parts of the request that rig-core did not get.
    pub(super) omitted: Option<OmittedParts>,
    /// The earlier request as which the request is encoded, if there is one.
    pub(super) known: Option<Arc<KnownRequest>>,
    /// The blocks of the instructions, if markers are set for the cache of the provider.
    pub(super) blocks: Arc<[PromptBlock]>,
    /// The separator between messages of the user.
    pub(super) separator: Option<Separator>,
    /// The hint to the cache of the provider.
    pub(super) cache: CacheHint,
    /// The key of the conversation for the cache, if the provider takes one.
    pub(super) conversation: Option<String>,
    /// The context of the trace, if the provider may get it.
    pub(super) trace: Option<SpanContext>,
}

impl<W> Transport<W> for AdjustedTransport
where
    W: Wire<Payload = Encoded, Frame = WireFrame>,
{
    fn send(&self, mut payload: Encoded, exchange: Exchange) -> Opening<WireFrame> {
        if self.kind == Protocol::GoogleGenAi {
            hide_key(&mut payload.request);
        }
        let has_markers = self.cache == CacheHint::Markers;
        let has_own = has_markers && self.blocks.iter().any(|block| block.cache_control.is_some());
        if self.kind == Protocol::Anthropic && has_own {
            markers::set(&mut payload.request, &self.blocks);
        }
        // Both parse the whole request, so the omitted parts, which are large, are set after them.
        if let Some(separator) = &self.separator {
            separator.remove(&mut payload.request);
        }
        self.file_names.set(&mut payload.request);
        let is_whole = match (&self.omitted, &self.known) {
            (Some(omitted), Some(known)) => omitted.set_with(&mut payload.request, known.fields()),
            (Some(omitted), None) => omitted.set(&mut payload.request),
            (None, _) => true,
        };
        if !is_whole {
            return Opening::failed(ProviderError::request("the request has no list of messages"));
        }
        if self.kind == Protocol::OpenAi && has_markers {
            chat_markers::set(&mut payload.request, &self.blocks);
        }
        if let Some(key) = self
            .conversation
            .as_ref()
            .filter(|_| self.cache == CacheHint::KeyInHeader)
        {
            caching::set_header(&mut payload.request, key);
        }
        pass_trace_on(&mut payload.request, self.trace.as_ref());
        let kind = self.kind;
        let ids = self.ids.clone();
        let opening = <DynHttpClient as Transport<W>>::send(&self.http, payload, exchange);
        Opening::new(async move {
            let opened = opening.await?;
            let exchanged = opened.map_frames(move |frames| {
                frames.inspect(move |frame: &Result<WireFrame, ProviderError>| {
                    if let Ok(WireFrame::Text(text)) = frame {
                        record_ids(kind, text, &ids);
                    }
                })
            });
            // A given document prevents rig-core from parsing every frame a second time.
            Ok(exchanged.with_document(Value::Null))
        })
    }
}

/// Adds the context of the trace to the headers.
fn pass_trace_on(request: &mut http::Request<Body>, trace: Option<&SpanContext>) {
    for (name, value) in trace.iter().flat_map(|trace| trace.headers()) {
        if let Ok(value) = http::HeaderValue::from_str(&value) {
            request.headers_mut().insert(name, value);
        }
    }
}

/// Moves `key=…` from the query into the equivalent header.
fn hide_key(request: &mut http::Request<Body>) {
    let address = request.uri().to_string();
    let Some((path, query)) = address.split_once('?') else {
        return;
    };
    let (keys, others): (Vec<&str>, Vec<&str>) = query.split('&').partition(|pair| pair.starts_with("key="));
    let Some(mut value) = keys
        .first()
        .and_then(|pair| http::HeaderValue::from_str(pair.strip_prefix("key=")?).ok())
    else {
        return;
    };
    let Ok(uri) = format!("{path}?{}", others.join("&")).trim_end_matches('?').parse() else {
        return;
    };
    value.set_sensitive(true);
    request.headers_mut().insert("x-goog-api-key", value);
    *request.uri_mut() = uri;
}

/// The word of all frames with calls in OpenAI's chat completions.
static IN_CHAT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"tool_calls\""));
/// The word of the frames that begin a call in OpenAI's responses.
static IN_RESPONSES: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("response.output_item.added"));
/// The word of the frames that begin a call in Anthropic's messages.
static IN_MESSAGES: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"tool_use\""));

/// Records the call ids in a frame. Only frames with the words that begin a call are parsed; nearly all others have
/// none.
fn record_ids(kind: Protocol, frame: &str, ids: &CallIds) {
    match kind {
        Protocol::OpenAi | Protocol::Ollama => {
            let Some(start) = IN_CHAT.find(frame.as_bytes()) else {
                return;
            };
            if !frame.get(start..).is_some_and(|rest| rest.contains("\"id\"")) {
                return;
            }
            let Ok(chunk) = serde_json::from_str::<ChatChunk>(frame) else {
                return;
            };
            let calls = chunk
                .choices
                .into_iter()
                .flat_map(|choice| choice.delta.unwrap_or_default().tool_calls);
            calls.flatten().filter_map(|call| call.id).for_each(|id| ids.record(id));
        }
        Protocol::OpenAiResponses => {
            if IN_RESPONSES.find(frame.as_bytes()).is_none() || !frame.contains("_call\"") {
                return;
            }
            if let Ok(ItemStart {
                item: Item { call_id: Some(id) },
            }) = serde_json::from_str(frame)
            {
                ids.record(id);
            }
        }
        Protocol::Anthropic => {
            if IN_MESSAGES.find(frame.as_bytes()).is_none() || !frame.contains("content_block_start") {
                return;
            }
            if let Ok(BlockStart {
                content_block:
                    Block {
                        kind: "tool_use",
                        id: Some(id),
                    },
            }) = serde_json::from_str::<BlockStart<'_>>(frame)
            {
                ids.record(id);
            }
        }
        Protocol::GoogleGenAi | Protocol::Scripted => {}
    }
}

#[derive(Deserialize)]
struct ChatChunk {
    #[serde(default)]
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
}

#[derive(Default, Deserialize)]
struct Delta {
    tool_calls: Option<Vec<CallStart>>,
}

#[derive(Deserialize)]
struct CallStart {
    id: Option<String>,
}

#[derive(Deserialize)]
struct ItemStart {
    item: Item,
}

#[derive(Deserialize)]
struct Item {
    call_id: Option<String>,
}

#[derive(Deserialize)]
struct BlockStart<'a> {
    #[serde(borrow)]
    content_block: Block<'a>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    id: Option<String>,
}
