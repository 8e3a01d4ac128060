//! Model calls of middleware: their answers are for the middleware alone, and no client sees them as messages.
//!
//! Such a call counts like every other one: in the budget of the agent and its account, in the slots and in the trace.

use futures::StreamExt;

use super::MiddlewareModel;
use crate::domain::foreign::admit_answer;
use crate::domain::limits::Spending;
use crate::domain::machine::Failure;
use crate::domain::message::{Message, Role};
use crate::domain::trace::{SpanData, SpanKind};
use crate::model::{Model, ModelError, ModelEvent, ModelRequest, span_provider_name};
use crate::tool::{Halt, Scope};

/// Asks the models in their order until one answers, and returns the whole answer. However many are asked, that is one
/// model call of the budget.
///
/// # Errors
/// [`Halt::Fail`] with the class of the last model's error, of that of a model for which the request is too long, or of
/// the limit that was reached; [`Halt::Stopped`] if the run has to stop.
pub async fn ask_model(scope: &Scope, models: &MiddlewareModel, request: ModelRequest) -> Result<Message, Halt> {
    scope.budget.claim(Spending::ModelCall, scope.now()).await?;
    let mut failed: Option<ModelError> = None;
    for choice in models.models() {
        let mut settings = choice.settings.clone();
        settings.extend(request.settings.clone());
        let request = ModelRequest {
            settings,
            ..request.clone()
        };
        let error = match &choice.model {
            Ok(model) => match ask_once(scope, model.as_ref(), request).await? {
                Ok(message) => {
                    scope.budget.add_tokens_of([&message]);
                    scope.budget.settle(scope.now()).await;
                    return Ok(message);
                }
                Err(error) => error,
            },
            Err(error) => error.clone(),
        };
        tracing::warn!(agent = %scope.agent, run = %scope.run, %error, "model call of a middleware failed");
        let may_fall_back = error.may_fall_back();
        // A shorter request may help, so this error precedes those of the other models.
        if !matches!(failed, Some(ModelError::TooLong { .. })) {
            failed = Some(error);
        }
        if !may_fall_back {
            break;
        }
    }
    Err(failed.as_ref().map_or(Halt::Stopped, failure_of))
}

/// Asks one model. Returns its answer or its error.
async fn ask_once(
    scope: &Scope,
    model: &dyn Model,
    request: ModelRequest,
) -> Result<Result<Message, ModelError>, Halt> {
    let span = begin_span(scope, model);
    let context = scope.trace.model_context();
    let request = ModelRequest {
        trace: context.map(|context| span.as_ref().map_or(context, |span| &span.context).clone()),
        ..request
    };
    let answer = receive(scope, model, request);
    let answer = scope.stop.run_until_cancelled(answer);
    let answer = scope.budget.in_time(scope.now(), answer).await;
    let answer = match answer {
        Err(late) => Err(late.into()),
        Ok(None) => Err(Halt::Stopped),
        Ok(Some(answer)) => Ok(answer),
    };
    end_span(scope, span, &answer);
    answer
}

async fn receive(scope: &Scope, model: &dyn Model, request: ModelRequest) -> Result<Message, ModelError> {
    let _slot = scope.slots.for_model().await;
    let mut stream = model.ask(request).await?;
    while let Some(event) = stream.next().await {
        match event? {
            ModelEvent::Done(mut message) => {
                admit_answer(&mut message);
                return Ok(*message);
            }
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

fn end_span(scope: &Scope, span: Option<SpanData>, answer: &Result<Result<Message, ModelError>, Halt>) {
    let Some(mut span) = span else { return };
    match answer {
        Ok(Ok(message)) => {
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
        Ok(Err(error)) => span.fail(error.class().to_owned()),
        Err(Halt::Fail(failure)) => span.fail(failure.class.clone()),
        // Another process may repeat the work, and records the span then.
        Err(Halt::Stopped | Halt::Ask(_)) => return,
    }
    scope.trace.end(Some(span));
}
