//! Wire formats of rig-core without three computations whose results nothing reads here. They took a large part of the
//! processor time of a run.
//!
//! For each request rig-core computes a fingerprint of all tools and of the system prompt, which it reads for some models of
//! Anthropic only. And from the frames of each reply, which it parses anew for that, it rebuilds the document that the
//! provider would have sent without streaming. It also copies the whole conversation to add documents to it, of which
//! there are none.

use std::sync::Arc;

use rig_core::completion::options::{OptionFields, OptionMap};
use rig_core::completion::{Accepts, CompletionRequest, LaterSystem, Media, Pairing, ReplayTarget};
use rig_core::error::EncodeError;
use rig_core::message::{Api, AssistantContent, Origin};
use rig_core::operation::Completion;
use rig_core::wire::document::{Reassemble, Serves};
use rig_core::wire::{Descriptor, Mode, Wire};
use serde_json::{Map, Value};

/// A wire format of rig-core. It is shared, since each request needs several.
#[derive(Debug, Clone)]
pub(super) struct LeanWire<W>(Arc<W>);

impl<W> LeanWire<W> {
    /// Creates it around the wire format of rig-core.
    pub(super) fn new(wire: W) -> Self {
        Self(Arc::new(wire))
    }
}

/// The document of a reply, which is not rebuilt.
#[derive(Debug, Default)]
pub(super) struct NoDocument;

impl<F> Reassemble<F> for NoDocument {
    fn absorb(&mut self, _frame: &F) {}

    fn finish(self) -> Value {
        Value::Null
    }
}

impl Serves<Completion> for NoDocument {}

impl<W: Wire<Op = Completion> + ReplayTarget> Wire for LeanWire<W> {
    type Op = Completion;
    type Payload = W::Payload;
    type Frame = W::Frame;
    type Decoder<'id> = W::Decoder<'id>;
    type Reassembler = NoDocument;

    fn describe(&self) -> Descriptor<'_> {
        let mut description = self.0.describe();
        description.replay = Some(self);
        description
    }

    fn encode(&self, request: CompletionRequest, mode: Mode) -> Result<Self::Payload, EncodeError> {
        self.0.encode(request, mode)
    }

    fn decoder<'id>(&self) -> Self::Decoder<'id> {
        self.0.decoder()
    }
}

/// Forwards functions to the wire format of rig-core.
macro_rules! forward {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self $(, $argument: $type)*) -> $result {
            ReplayTarget::$name(&*self.0 $(, $argument)*)
        })*
    };
}

impl<W: ReplayTarget + Send> ReplayTarget for LeanWire<W> {
    forward! {
        fn api(&self) -> Api;
        fn provider(&self) -> &str;
        fn model(&self) -> &str;
        fn accepts(&self, model: &str) -> Accepts;
        fn map_options(&self, request: &CompletionRequest, fields: OptionFields<'_>) -> OptionMap;
        fn encodes(&self, model: &str, media: Media<'_>) -> bool;
        fn normalize_tool_call_id(&self, id: &str, model: &str, source: Option<&Origin>) -> String;
        fn continues_stored(&self, request: &CompletionRequest) -> bool;
        fn declares_tools(&self, request: &CompletionRequest) -> bool;
        fn identity(&self, item: &Value) -> Map<String, Value>;
        fn call_id_slot(&self) -> Option<&'static str>;
        fn states_finish_reason(&self) -> bool;
        fn binds_context(&self, model: &str) -> bool;
        fn route(&self, request: &CompletionRequest) -> Option<&dyn ReplayTarget>;
        fn needs_next(&self, item: &Value) -> bool;
        fn hosted_pair(&self, item: &Value) -> Option<(Pairing, String)>;
        fn starts_with_user(&self) -> bool;
        fn later_system(&self, model: &str) -> LaterSystem;
        fn alternates_roles(&self) -> bool;
        fn hosted_needs_tools(&self) -> bool;
        fn result_parts(&self, model: &str) -> bool;
        fn sends_alone(&self, block: &AssistantContent) -> bool;
    }

    /// Says that documents are not added to the conversation: no request has any.
    fn takes_documents(&self) -> bool {
        true
    }

    /// Says that the provider drops items that are bound to other tools by itself, also where there are no such items: then
    /// nothing reads the fingerprint.
    fn drops_unbound_items(&self, request: &CompletionRequest) -> bool {
        let model = request.model.as_deref().unwrap_or_else(|| self.0.model());
        !self.0.binds_context(model) || self.0.drops_unbound_items(request)
    }
}

#[cfg(test)]
mod tests {
    use rig_core::providers::anthropic::wire::{AnthropicConfig, Messages};
    use serde_json::json;

    use super::*;

    /// A model whose thinking is bound to the tools and the system prompt.
    const BOUND: &str = "claude-opus-5";

    fn claude(model: &str) -> LeanWire<Messages> {
        LeanWire::new(Messages {
            provider: AnthropicConfig::new("key".to_owned()),
            model: model.to_owned(),
            default_max_tokens: Some(1),
            prompt_caching: false,
            static_prefix_cache_ttl: None,
            strict_tools: false,
            tool_input_streaming: Default::default(),
        })
    }

    fn with_thinking(kind: &str) -> CompletionRequest {
        let mut request = CompletionRequest::new("hello");
        request.additional_params = Some(json!({"thinking": {"type": kind}}));
        request
    }

    #[test]
    fn the_tools_of_a_request_are_compared_where_bound_thinking_is_not_dropped() {
        let bound = claude(BOUND);
        assert!(bound.binds_context(BOUND));
        assert!(!bound.drops_unbound_items(&with_thinking("disabled")));
        assert!(bound.drops_unbound_items(&with_thinking("adaptive")));
        assert!(bound.drops_unbound_items(&CompletionRequest::new("hello")));
        let free = claude("m-1");
        assert!(!free.0.drops_unbound_items(&with_thinking("disabled")));
        assert!(
            free.drops_unbound_items(&with_thinking("disabled")),
            "nothing to compare"
        );
        let mut of_bound = with_thinking("disabled");
        of_bound.model = Some(BOUND.to_owned());
        assert!(!free.drops_unbound_items(&of_bound), "the model of the request decides");
    }
}
