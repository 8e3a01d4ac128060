//! Model calls of middleware: their answers are for the middleware alone, and no client sees them as messages.
//!
//! Such a call counts like every other one: in the budget of the agent and its account, in the slots and in the trace.

use std::sync::Arc;

use futures::StreamExt;

use crate::domain::limits::Spending;
use crate::domain::machine::Failure;
use crate::domain::message::{Message, Role};
use crate::domain::trace::{SpanData, SpanKind};
use crate::model::{Model, ModelError, ModelEvent, ModelRequest, span_provider_name};
use crate::tool::{Halt, Scope};

/// Asks a model and returns its whole answer.
///
/// # Errors
/// [`Halt::Fail`] with the class of the model's error or of the limit that was reached; [`Halt::Stopped`] if the run
/// has to stop.
pub async fn ask_model(
    scope: &Scope,
    model: &Result<Arc<dyn Model>, ModelError>,
    request: ModelRequest,
) -> Result<Message, Halt> {
    let model = model.as_ref().map_err(failure_of)?;
    scope.budget.claim(Spending::ModelCall, scope.now()).await?;
    let span = begin_span(scope, model.as_ref());
    let context = scope.trace.model_context();
    let request = ModelRequest {
        trace: context.map(|context| span.as_ref().map_or(context, |span| &span.context).clone()),
        ..request
    };
    let answer = receive(scope, model.as_ref(), request);
    let answer = scope.stop.run_until_cancelled(answer);
    let answer = scope.budget.in_time(scope.now(), answer).await;
    let answer = match answer {
        Err(late) => Err(late.into()),
        Ok(None) => Err(Halt::Stopped),
        Ok(Some(Ok(message))) => Ok(message),
        Ok(Some(Err(error))) => {
            tracing::warn!(agent = %scope.agent, run = %scope.run, %error, "model call of a middleware failed");
            Err(failure_of(&error))
        }
    };
    end_span(scope, span, &answer);
    let message = answer?;
    scope.budget.add_tokens_of([&message]);
    scope.budget.settle(scope.now()).await;
    Ok(message)
}

async fn receive(scope: &Scope, model: &dyn Model, request: ModelRequest) -> Result<Message, ModelError> {
    let _slot = scope.slots.for_model().await;
    let mut stream = model.ask(request).await?;
    while let Some(event) = stream.next().await {
        match event? {
            ModelEvent::Done(message) => return Ok(*message),
            ModelEvent::Text(_) | ModelEvent::Reasoning(_) | ModelEvent::CallChunk { .. } => {}
        }
    }
    Err(ModelError::Interrupted {
        message: "the stream closed before the answer was complete".to_owned(),
    })
}

fn failure_of(error: &ModelError) -> Halt {
    Halt::Fail(Failure::new(error.class(), error.client_text()))
}

fn begin_span(scope: &Scope, model: &dyn Model) -> Option<SpanData> {
    let mut span = scope.trace.begin(SpanKind::Client)?;
    let (provider, model) = model.identity();
    span.name = format!("chat {model}");
    span.set("gen_ai.operation.name", "chat");
    span.set("gen_ai.provider.name", span_provider_name(provider).into_owned());
    span.set("gen_ai.request.model", model.to_owned());
    span.set("gen_ai.agent.name", scope.agent.clone());
    span.set("gen_ai.conversation.id", scope.thread.to_string());
    span.set("langsmith.span.kind", "llm");
    Some(span)
}

fn end_span(scope: &Scope, span: Option<SpanData>, answer: &Result<Message, Halt>) {
    let Some(mut span) = span else { return };
    match answer {
        Ok(message) => {
            if let Role::Ai {
                usage_metadata: Some(usage),
                ..
            } = &message.role
            {
                for (name, key) in [
                    ("input_tokens", "gen_ai.usage.input_tokens"),
                    ("output_tokens", "gen_ai.usage.output_tokens"),
                ] {
                    span.set_some(key, usage.get(name).and_then(serde_json::Value::as_u64));
                }
            }
        }
        Err(Halt::Fail(failure)) => span.fail(failure.class.clone()),
        // Another process may repeat the work, and records the span then.
        Err(Halt::Stopped | Halt::Ask(_)) => return,
    }
    scope.trace.end(Some(span));
}
