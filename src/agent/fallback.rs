//! Fail-over: asks the models of an agent in their order until one answers.
//!
//! Each model repeats a request that failed for a passing reason, see [`crate::model::retry`]; the next model is asked
//! when that did not help. An answer that broke off is void, and the next model's answer supersedes it. The events of
//! failed models are stored together with the step, so after a crash the step begins anew with the first model, and
//! nothing is shown twice.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

use super::answer::AnswerStream;
use super::answer_filters::AnswerFilters;
use super::journal::PendingWrite;
use super::step::{PendingWrites, mint_answer_id};
use super::{Loop, ModelLoop};
use crate::domain::event::{AnswerHead, Fact};
use crate::domain::id::TaskId;
use crate::middleware::ModelAnswer;
use crate::model::{Model, ModelError, ModelRequest};
use crate::tool::Halt;

/// The step that asks the models.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelStep {
    /// The task.
    pub(super) task: TaskId,
    /// The number of the step.
    pub(super) number: i64,
}

/// The end of one request to one model.
pub(super) struct ModelAttempt {
    /// The answer, or why there is none.
    pub(super) answer: Result<ModelAnswer, Halt>,
    /// The error, if it was the model that failed.
    pub(super) error: Option<ModelError>,
}

/// One of the models of an agent.
#[derive(Clone, Copy)]
struct Choice<'a> {
    name: &'a str,
    model: &'a Result<Arc<dyn Model>, ModelError>,
    settings: &'a Map<String, Value>,
}

impl ModelLoop {
    /// Returns the models in the order in which they are asked.
    fn choices(&self) -> Vec<Choice<'_>> {
        let first = Choice {
            name: &self.model_name,
            model: &self.model,
            settings: &self.settings,
        };
        let others = self.fallbacks.iter().map(|fallback| Choice {
            name: &fallback.name,
            model: &fallback.model,
            settings: &fallback.settings,
        });
        [first].into_iter().chain(others).collect()
    }

    /// Returns the settings of a model, with the changes that middleware made to those of the first model.
    fn changed_settings(&self, own: &Map<String, Value>, requested: &Map<String, Value>) -> Map<String, Value> {
        let mut settings = own.clone();
        settings.retain(|name, _| requested.contains_key(name) || !self.settings.contains_key(name));
        let changed = requested
            .iter()
            .filter(|(name, value)| self.settings.get(*name) != Some(value));
        settings.extend(changed.map(|(name, value)| (name.clone(), value.clone())));
        settings
    }
}

impl Loop<'_> {
    /// Asks the models in their order until one answers. The events to store for models that failed are added to
    /// `broken`.
    pub(super) async fn ask_models(
        &self,
        own: &ModelLoop,
        request: ModelRequest,
        step: ModelStep,
        broken: &Mutex<PendingWrites>,
    ) -> Result<ModelAnswer, Halt> {
        let mut facts = vec![];
        let answer = self.ask_in_order(own, request, step, &mut facts).await;
        // On shutdown the next process asks again, the first model first.
        let is_repeated = matches!(answer, Err(Halt::Stopped)) && self.leave.is_cancelled();
        if !is_repeated {
            broken.lock().unwrap_or_else(PoisonError::into_inner).append(&mut facts);
        }
        answer
    }

    async fn ask_in_order(
        &self,
        own: &ModelLoop,
        mut request: ModelRequest,
        step: ModelStep,
        facts: &mut PendingWrites,
    ) -> Result<ModelAnswer, Halt> {
        let choices = own.choices();
        let mut too_long = None;
        let mut last = Err(Halt::Stopped);
        for (at, choice) in choices.iter().enumerate() {
            let settings = own.changed_settings(choice.settings, &request.settings);
            let for_choice = match at + 1 == choices.len() {
                true => std::mem::take(&mut request),
                false => request.clone(),
            };
            let request = ModelRequest { settings, ..for_choice };
            let ModelAttempt { answer, error } = self.ask_one(own, choice, request, step, facts).await;
            last = answer;
            let Some(error) = error.filter(ModelError::may_fall_back) else {
                return last;
            };
            if let Some(next) = choices.get(at + 1) {
                tracing::warn!(
                    agent = self.scope.agent,
                    run = %self.scope.subagent.unwrap_or(self.scope.run),
                    from = choice.name,
                    to = next.name,
                    class = error.class(),
                    "the model failed; asking the next one"
                );
                facts.push(PendingWrite::Fact(Fact::FellBack {
                    from: choice.name.to_owned(),
                    to: next.name.to_owned(),
                    error: error.class().to_owned(),
                }));
            }
            if matches!(error, ModelError::TooLong { .. }) && too_long.is_none() {
                too_long = Some(last);
                last = Err(Halt::Stopped);
            }
        }
        // A shorter conversation may help, so this error precedes those of the other models.
        too_long.unwrap_or(last)
    }

    async fn ask_one(
        &self,
        own: &ModelLoop,
        choice: &Choice<'_>,
        request: ModelRequest,
        step: ModelStep,
        facts: &mut PendingWrites,
    ) -> ModelAttempt {
        let identity = choice.model.as_ref().map(|model| model.identity());
        let head = AnswerHead {
            message: mint_answer_id(),
            task: step.task,
            step: step.number,
            provider: identity.map_or("none", |identity| identity.0).to_owned(),
            model: identity.map_or("none", |identity| identity.1).to_owned(),
        };
        let chat = self.begin_chat(&request, &head);
        let request = self.passing_trace_on(request, chat.as_ref());
        // Filters keep a part of the text, so each answer has its own.
        let answer = AnswerStream::new(head, self.journal).with_filters(AnswerFilters::of(&own.stack));
        let attempt = self.stream_answer(choice.model, request, answer, facts).await;
        self.end_chat(chat, &attempt.answer);
        attempt
    }
}
