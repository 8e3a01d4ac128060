//! Requests in chat completions that rig-core does not encode, since it has encoded one of the same form.
//!
//! With a conversation that is encoded here, rig-core gets stand-ins for all that differs between the requests of an agent: the
//! instructions, the tools and the messages, see [`super::chat_body`]. To encode the stand-ins took 50,000 instructions, in each
//! step anew. So the first request is kept as rig-core has encoded it, and later ones of the same [form](RequestForm) are made of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rig_core::completion::CompletionRequest;
use rig_core::error::EncodeError;
use rig_core::operation::Completion;
use rig_core::wire::{Body, Descriptor, Encoded, Framing, Mode, Projector, Wire, WireFrame};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::definition::AnswerFormat;
use crate::model::{ModelRequest, ToolChoice};

/// The maximum number of requests that are kept for one model.
const MAX_REQUESTS: usize = 8;

/// All of a request with stand-ins that rig-core gets, and that can differ from one request to the next.
#[derive(Debug)]
pub(super) struct RequestForm {
    settings: Map<String, Value>,
    has_instructions: bool,
    /// The name of the first tool, which is that of the stand-in.
    first_tool: Option<String>,
    tool_choice: ToolChoice,
    answer_format: Option<Arc<AnswerFormat>>,
}

impl RequestForm {
    fn of(request: &ModelRequest) -> Self {
        Self {
            settings: request.settings.clone(),
            has_instructions: !request.system.is_blank(),
            first_tool: request.tools.first().map(|tool| tool.name.clone()),
            tool_choice: request.tool_choice,
            answer_format: request.answer_format.clone(),
        }
    }

    fn fits(&self, request: &ModelRequest) -> bool {
        self.has_instructions != request.system.is_blank()
            && self.first_tool.as_deref() == request.tools.first().map(|tool| tool.name.as_str())
            && self.tool_choice == request.tool_choice
            && self.answer_format == request.answer_format
            && self.settings == request.settings
    }
}

/// A request as rig-core has encoded it, without its messages and its tools.
pub(super) struct KnownRequest {
    form: Arc<RequestForm>,
    head: http::Request<()>,
    fields: BTreeMap<String, Box<RawValue>>,
    framing: Framing,
    request_id_header: Option<&'static str>,
    relaxed_content_type: bool,
    route: Option<&'static str>,
    project: Option<Projector>,
    analysis_only: Option<fn(&WireFrame) -> bool>,
}

impl KnownRequest {
    /// Returns what is kept of a request; none if it is no request with messages.
    fn new(form: &Arc<RequestForm>, encoded: &Encoded) -> Option<Self> {
        let Body::Bytes(body) = encoded.request.body() else {
            return None;
        };
        let mut fields: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(body).ok()?;
        fields.remove("messages")?;
        fields.remove("tools");
        let mut head = http::Request::new(());
        head.method_mut().clone_from(encoded.request.method());
        head.uri_mut().clone_from(encoded.request.uri());
        head.headers_mut().clone_from(encoded.request.headers());
        Some(Self {
            form: Arc::clone(form),
            head,
            fields,
            framing: encoded.framing,
            request_id_header: encoded.request_id_header,
            relaxed_content_type: encoded.relaxed_content_type,
            route: encoded.route,
            project: encoded.project,
            analysis_only: encoded.analysis_only,
        })
    }

    /// Returns the fields of the body besides the messages and the tools.
    pub(super) fn fields(&self) -> &BTreeMap<String, Box<RawValue>> {
        &self.fields
    }

    /// Returns the request without a body.
    fn encoded(&self) -> Encoded {
        Encoded {
            request: self.head.clone().map(|()| Body::empty()),
            framing: self.framing,
            request_id_header: self.request_id_header,
            relaxed_content_type: self.relaxed_content_type,
            route: self.route,
            project: self.project,
            analysis_only: self.analysis_only,
        }
    }
}

/// The last requests to a model that were of different forms.
#[derive(Default)]
pub(super) struct KnownRequests(Mutex<VecDeque<Arc<KnownRequest>>>);

impl KnownRequests {
    /// Returns the way in which a request with stand-ins is encoded.
    pub(super) fn encoding(self: &Arc<Self>, request: &ModelRequest) -> RequestEncoding {
        let known = self.lock().iter().find(|known| known.form.fits(request)).cloned();
        match known {
            Some(known) => RequestEncoding::Known(known),
            None => RequestEncoding::Kept(Arc::new(RequestForm::of(request)), Arc::clone(self)),
        }
    }

    fn keep(&self, request: KnownRequest) {
        let mut known = self.lock();
        known.truncate(MAX_REQUESTS - 1);
        known.push_front(Arc::new(request));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<KnownRequest>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way in which a request is encoded.
#[derive(Clone)]
pub(super) enum RequestEncoding {
    /// By rig-core.
    Whole,
    /// By rig-core, and it is kept for later requests of this form.
    Kept(Arc<RequestForm>, Arc<KnownRequests>),
    /// As an earlier request, whose body is set by [`super::chat_body`].
    Known(Arc<KnownRequest>),
}

impl RequestEncoding {
    /// Returns the earlier request, if there is one.
    pub(super) fn known(&self) -> Option<Arc<KnownRequest>> {
        match self {
            Self::Known(known) => Some(Arc::clone(known)),
            Self::Whole | Self::Kept(..) => None,
        }
    }
}

/// The wire format of one request, around that of its model.
#[derive(Clone)]
pub(super) struct RequestWire<W> {
    pub(super) wire: W,
    pub(super) encoding: RequestEncoding,
}

impl<W> Wire for RequestWire<W>
where
    W: Wire<Op = Completion, Payload = Encoded>,
{
    type Op = Completion;
    type Payload = Encoded;
    type Frame = W::Frame;
    type Decoder<'id> = W::Decoder<'id>;
    type Reassembler = W::Reassembler;

    fn describe(&self) -> Descriptor<'_> {
        self.wire.describe()
    }

    fn encode(&self, request: CompletionRequest, mode: Mode) -> Result<Encoded, EncodeError> {
        if let RequestEncoding::Known(known) = &self.encoding {
            return Ok(known.encoded());
        }
        let encoded = self.wire.encode(request, mode)?;
        if let RequestEncoding::Kept(form, known) = &self.encoding
            && let Some(request) = KnownRequest::new(form, &encoded)
        {
            known.keep(request);
        }
        Ok(encoded)
    }

    fn decoder<'id>(&self) -> Self::Decoder<'id> {
        self.wire.decoder()
    }

    fn reassembler(&self) -> Self::Reassembler {
        self.wire.reassembler()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asking(setting: usize) -> ModelRequest {
        ModelRequest {
            settings: Map::from_iter([("setting".to_owned(), json!(setting))]),
            ..ModelRequest::default()
        }
    }

    fn encoded(body: &Value) -> Encoded {
        let body = Body::Bytes(body.to_string().into_bytes());
        let request = http::Request::post("http://127.0.0.1/v1").header("x-key", "secret");
        Encoded::new(request.body(body).expect("a request"), Framing::Sse)
    }

    fn keep(known: &Arc<KnownRequests>, request: &ModelRequest) {
        let form = Arc::new(RequestForm::of(request));
        let sent = encoded(&json!({"model": "m", "messages": [], "tools": [], "setting": request.settings["setting"]}));
        known.keep(KnownRequest::new(&form, &sent).expect("a request with messages"));
    }

    #[test]
    fn the_last_requests_of_different_forms_are_known() {
        let known = Arc::new(KnownRequests::default());
        for setting in 0..=MAX_REQUESTS {
            assert!(known.encoding(&asking(setting)).known().is_none());
            keep(&known, &asking(setting));
        }
        assert_eq!(known.lock().len(), MAX_REQUESTS);
        assert!(known.encoding(&asking(0)).known().is_none(), "it is the oldest");
        for setting in 1..=MAX_REQUESTS {
            let found = known.encoding(&asking(setting)).known().expect("a known request");
            let names: Vec<&str> = found.fields().keys().map(String::as_str).collect();
            assert_eq!(names, ["model", "setting"]);
            assert_eq!(found.fields()["setting"].get(), setting.to_string());
            let again = found.encoded();
            assert_eq!(again.request.headers()["x-key"], "secret");
            assert_eq!(again.request.uri(), "http://127.0.0.1/v1");
            assert_eq!(again.framing, Framing::Sse);
        }
    }

    #[test]
    fn a_request_without_messages_is_not_kept() {
        let form = Arc::new(RequestForm::of(&asking(1)));
        assert!(KnownRequest::new(&form, &encoded(&json!({"input": []}))).is_none());
        assert!(KnownRequest::new(&form, &encoded(&json!([]))).is_none());
    }
}
