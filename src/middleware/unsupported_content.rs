//! Middleware: content that the model cannot take does not end the run, now or in any later turn.
//!
//! A block that can never be sent to the model becomes a text that names it. If the provider refuses a request that has
//! new media in it, the request is made once more without them, and the messages whose media were refused are
//! remembered. The messages of the state stay as they are: only requests are made without the content.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Middleware, ModelAnswer, NextModel};
use crate::definition::{MediaInputs, builtins};
use crate::domain::machine::Failure;
use crate::domain::media::{MediaKind, media_kind, placeholder};
use crate::domain::message::{Content, Message, Role};
use crate::domain::state::{State, Update};
use crate::model::{CONTEXT_OVERFLOW, Model, ModelError, ModelRequest};
use crate::tool::Halt;

/// The private field with the messages whose media the provider has refused: the failure's class by message id.
const REFUSED: &str = "_refused_content";
/// The reason for media that the provider has refused.
const BY_PROVIDER: &str = "the provider of the model refused it";

/// A model, and the media that it takes as its profile says.
pub struct ModelWithInputs {
    /// The model.
    pub model: Arc<dyn Model>,
    /// The media.
    pub inputs: MediaInputs,
}

impl ModelWithInputs {
    /// Returns the reason why the model cannot take a block.
    fn refusal(&self, block: &Value) -> Option<String> {
        self.inputs.refusal(block).or_else(|| self.model.refusal(block))
    }
}

/// The middleware.
pub struct UnsupportedContent {
    models: Vec<ModelWithInputs>,
}

impl UnsupportedContent {
    /// Creates the middleware for an agent with these models that can be used.
    pub fn new(models: impl IntoIterator<Item = ModelWithInputs>) -> Self {
        Self {
            models: models.into_iter().collect(),
        }
    }

    /// Returns the reason why none of the models can take a block, which is that of the first one.
    fn refusal(&self, block: &Value) -> Option<String> {
        let mut reasons = self.models.iter().map(|model| model.refusal(block));
        let first = reasons.next()??;
        reasons.all(|reason| reason.is_some()).then_some(first)
    }

    /// Returns the reason why a block of this message is not sent to the model.
    fn reason(&self, message: &Message, block: &Value, refused: &BTreeMap<String, String>) -> Option<String> {
        let is_media = media_kind(block).is_some();
        if is_media && message.id.as_ref().is_some_and(|id| refused.contains_key(id)) {
            return Some(BY_PROVIDER.to_owned());
        }
        match message.role {
            Role::Human => self.refusal(block),
            // Other blocks of a result are sent as JSON.
            Role::Tool { .. } => is_media.then(|| self.refusal(block)).flatten(),
            Role::System | Role::Ai { .. } | Role::Remove => None,
        }
    }

    /// Returns the messages with placeholders for the blocks that cannot be sent.
    fn with_placeholders(&self, messages: &[Arc<Message>], refused: &BTreeMap<String, String>) -> Vec<Arc<Message>> {
        let all = messages.iter();
        all.map(|message| replaced(message, |block| self.reason(message, block, refused)))
            .collect()
    }
}

#[async_trait]
impl Middleware for UnsupportedContent {
    fn name(&self) -> &str {
        builtins::UNSUPPORTED_CONTENT
    }

    async fn wrap_model_call(&self, mut request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let mut refused = refused_before(next.state);
        let has_blocks = |message: &Arc<Message>| matches!(message.content, Content::Blocks(_));
        if !request.messages.iter().any(has_blocks) {
            return next.ask(request).await;
        }
        request.messages = self.with_placeholders(&request.messages, &refused);
        let groups = [new_media(&request.messages), earlier_files(&request.messages)];
        if groups.iter().all(Vec::is_empty) {
            return next.ask(request).await;
        }
        let mut failure = match next.ask(request.clone()).await {
            Err(Halt::Fail(failure)) if may_be_about_content(&failure) => failure,
            answer => return answer,
        };
        for suspects in groups.into_iter().filter(|group| !group.is_empty()) {
            tracing::warn!(agent = %next.scope.agent, run = %next.scope.run, class = failure.class,
                messages = suspects.len(), "a request with media was refused; it is made once more without them");
            leave_out(&mut request.messages, &suspects);
            let ids = suspects.iter().filter_map(|message| message.id.clone());
            refused.extend(ids.map(|id| (id, failure.class.clone())));
            match next.ask(request.clone()).await {
                Err(Halt::Fail(again)) if may_be_about_content(&again) => failure = again,
                Err(halt) => return Err(halt),
                Ok(answer) => return Ok(remembering(answer, refused, next.state)),
            }
        }
        Err(Halt::Fail(failure))
    }
}

/// Returns an answer that has the messages whose media the provider has refused put down in the state.
fn remembering(mut answer: ModelAnswer, mut refused: BTreeMap<String, String>, state: &State) -> ModelAnswer {
    // Messages that are gone need no entry.
    let all = state.messages.all();
    refused.retain(|id, _| all.iter().any(|message| message.id.as_ref() == Some(id)));
    let mut extra = Update::none();
    extra.fields.insert(REFUSED.to_owned(), json!(refused));
    extra.merge(answer.extra);
    answer.extra = extra;
    answer
}

/// Puts placeholders for all media into these of the messages.
fn leave_out(messages: &mut [Arc<Message>], suspects: &[Arc<Message>]) {
    let is_suspect = |message: &Arc<Message>| suspects.iter().any(|suspect| Arc::ptr_eq(suspect, message));
    for message in messages {
        if is_suspect(message) {
            *message = replaced(message, |block| media_kind(block).map(|_| BY_PROVIDER.to_owned()));
        }
    }
}

/// Returns whether a request that failed in this way may succeed without its media.
fn may_be_about_content(failure: &Failure) -> bool {
    failure.class == CONTEXT_OVERFLOW || ModelError::is_about_request(failure)
}

/// Returns the messages whose media the provider has refused before.
fn refused_before(state: &State) -> BTreeMap<String, String> {
    let stored = state.fields.get(REFUSED).cloned();
    stored
        .and_then(|stored| serde_json::from_value(stored).ok())
        .unwrap_or_default()
}

/// Returns the messages with media after the last answer of the model. The provider has taken most media before.
fn new_media(messages: &[Arc<Message>]) -> Vec<Arc<Message>> {
    let new = messages[after_last_answer(messages)..].iter();
    new.filter(|message| has_media(message, |_| true)).cloned().collect()
}

/// Returns the results of tools before the last answer of the model that have files or audio. Earlier releases did not
/// send these, so that the provider may not have taken them before.
fn earlier_files(messages: &[Arc<Message>]) -> Vec<Arc<Message>> {
    let is_file = |kind: MediaKind| kind != MediaKind::Image;
    let earlier = messages[..after_last_answer(messages)].iter();
    let results = earlier.filter(|message| message.answers().is_some() && has_media(message, is_file));
    results.cloned().collect()
}

/// Returns the place after the last answer of the model.
fn after_last_answer(messages: &[Arc<Message>]) -> usize {
    let last = messages.iter().rposition(|message| message.is_ai());
    last.map_or(0, |at| at + 1)
}

/// Returns whether a message has media of a kind that `is_meant`.
fn has_media(message: &Message, is_meant: impl Fn(MediaKind) -> bool) -> bool {
    match &message.content {
        Content::Text(_) => false,
        Content::Blocks(blocks) => blocks.iter().filter_map(media_kind).any(is_meant),
    }
}

/// Returns the message with a placeholder for each block that `reason` gives a reason for.
fn replaced(message: &Arc<Message>, reason: impl Fn(&Value) -> Option<String>) -> Arc<Message> {
    let Content::Blocks(blocks) = &message.content else {
        return Arc::clone(message);
    };
    let reasons: Vec<Option<String>> = blocks.iter().map(reason).collect();
    if reasons.iter().all(Option::is_none) {
        return Arc::clone(message);
    }
    let blocks = blocks.iter().zip(reasons).map(|(block, reason)| match reason {
        Some(why) => placeholder(block, &why),
        None => block.clone(),
    });
    Arc::new(Message {
        content: Content::Blocks(blocks.collect()),
        ..Message::clone(message)
    })
}
