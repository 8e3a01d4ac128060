//! Results that require input (`input_required`), by which servers ask from version 2026-07-28 of the protocol on.
//!
//! Each request in such a result becomes an interrupt of the run. When all of them are answered, the call is made again
//! with the answers (`inputResponses`) and with the state that the result named (`requestState`). The server keeps nothing
//! meanwhile, and the state is stored with the questions, so the answers may come days later.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, ElicitRequestParams};
use serde_json::{Map, Value};

use super::elicitation;
use super::message::ELICITATION;
use crate::domain::backoff::Backoff;
use crate::domain::interrupt::{InputRequest, Question};
use crate::domain::machine::Failure;
use crate::tool::remote::{MAX_KEY_BYTES, MAX_QUESTIONS};

/// The value of `resultType` of such a result.
const INPUT_REQUIRED: &str = "input_required";
/// The maximum number of results of one call that require input.
const MAX_ROUNDS: u32 = 16;
/// The maximum size of `requestState`, in bytes.
const MAX_STATE_BYTES: usize = 64 * 1024;
/// The pauses before a call is made again without a question to a human.
const PAUSES: Backoff = Backoff::doubling(Duration::from_millis(50), Duration::from_millis(200));

/// The input with which a call is made, after results that required it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct CallInput {
    /// The number of these results.
    round: u32,
    /// The answers to the requests of the last one, by their keys.
    responses: BTreeMap<String, Value>,
    /// The state that the last one has named.
    state: Option<String>,
    /// The questions of `elicitation/create` that have not been asked in a result yet, each with its answer. They are from the
    /// time before the connections to the server began without a handshake.
    earlier: Vec<(Value, Value)>,
}

/// A requirement of a result.
#[derive(Debug, PartialEq)]
pub(super) enum Requirement {
    /// The answers to these questions.
    Answers(Vec<Question>),
    /// Another call with this input, which is known.
    Call(CallInput),
}

impl CallInput {
    /// Returns the input of a call whose last result has asked these questions, which have been answered. Other questions
    /// in the list are those of `elicitation/create`.
    pub(super) fn of(answers: &[(Arc<Question>, Value)]) -> Self {
        let mut input = Self::default();
        for (question, answer) in answers {
            let Some(request) = &question.request else {
                input.earlier.push((question.value.clone(), answer.clone()));
                continue;
            };
            input.round = request.round;
            input.state = input.state.or_else(|| request.state.clone());
            input.responses.insert(request.key.clone(), response(answer));
        }
        if input.round > 0 {
            // It is not known which of them have answered requests of earlier results.
            input.earlier.clear();
        }
        input
    }

    /// Returns the parameters of the call with this input.
    pub(super) fn add_to(&self, mut params: CallToolRequestParams) -> CallToolRequestParams {
        params.input_responses = (!self.responses.is_empty()).then(|| self.responses.clone());
        params.request_state = self.state.clone();
        params
    }

    /// Returns the pause before the call.
    pub(super) fn pause(&self) -> Duration {
        PAUSES.pause(self.round)
    }

    /// Returns the requirement of a result of the call; `None` if the result is the last one. `may_ask` says whether the
    /// server may ask humans.
    ///
    /// # Errors
    /// If the requirement cannot be met.
    pub(super) fn requirement(&self, result: &Value, may_ask: bool) -> Result<Option<Requirement>, Failure> {
        if result.get("resultType").and_then(Value::as_str) != Some(INPUT_REQUIRED) {
            return Ok(None);
        }
        let round = self.round + 1;
        if round > MAX_ROUNDS {
            return Err(refusal(&format!("it has required input {MAX_ROUNDS} times")));
        }
        let mut state = state(result)?;
        let none = Map::new();
        let requests = match result.get("inputRequests") {
            None | Some(Value::Null) => &none,
            Some(Value::Object(requests)) => requests,
            Some(_) => return Err(refusal("`inputRequests` is not an object")),
        };
        if requests.is_empty() {
            let state = state.ok_or_else(|| refusal("it requires input and does not say which"))?;
            let input = Self {
                round,
                responses: BTreeMap::new(),
                state: Some(state),
                earlier: self.earlier.clone(),
            };
            return Ok(Some(Requirement::Call(input)));
        }
        if !may_ask {
            return Err(refusal(
                "it asks a human, and the server may not (its setting `elicitation`)",
            ));
        }
        if requests.len() > MAX_QUESTIONS {
            return Err(refusal(&format!("it asks more than {MAX_QUESTIONS} questions")));
        }
        let mut questions = vec![];
        for (key, request) in requests {
            questions.push(Question {
                // Questions with keys are kept when the call asks again, and those of this round are not needed then.
                key: None,
                request: Some(InputRequest {
                    key: key.clone(),
                    round,
                    state: state.take(),
                }),
                ..question(key, request)?
            });
        }
        Ok(Some(match self.answered_earlier(&questions) {
            Some(input) => Requirement::Call(input),
            None => Requirement::Answers(questions),
        }))
    }

    /// Returns the input of the next call if all of these questions were asked and answered before there were results that
    /// require input.
    fn answered_earlier(&self, questions: &[Question]) -> Option<Self> {
        let mut earlier = self.earlier.clone();
        let mut answered = vec![];
        for question in questions {
            let at = earlier.iter().position(|(value, _)| *value == question.value)?;
            answered.push((Arc::new(question.clone()), earlier.remove(at).1));
        }
        Some(Self {
            earlier,
            ..Self::of(&answered)
        })
    }
}

/// Returns the answer to a question as the result of its request.
fn response(answer: &Value) -> Value {
    let fields = ["action", "content"].into_iter();
    let fields = fields.filter_map(|name| Some((name.to_owned(), answer.get(name)?.clone())));
    Value::Object(fields.collect())
}

/// Returns the question that a request asks.
fn question(key: &str, request: &Value) -> Result<Question, Failure> {
    if key.len() > MAX_KEY_BYTES {
        return Err(refusal(&format!(
            "a key in `inputRequests` is longer than {MAX_KEY_BYTES} bytes"
        )));
    }
    match request.get("method").and_then(Value::as_str) {
        Some(ELICITATION) => {}
        Some(method @ ("sampling/createMessage" | "roots/list")) => {
            return Err(refusal(&format!("it requires `{method}`, which is not supported")));
        }
        Some(_) | None => return Err(refusal("it requires something that is not supported")),
    }
    let params = request.get("params").cloned().unwrap_or_default();
    let params: ElicitRequestParams =
        serde_json::from_value(params).map_err(|_| refusal("a question in `inputRequests` has an unexpected form"))?;
    elicitation::question(&params, 0)
}

/// Returns the state that a result names.
fn state(result: &Value) -> Result<Option<String>, Failure> {
    match result.get("requestState") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(state)) if state.len() <= MAX_STATE_BYTES => Ok(Some(state.clone())),
        Some(Value::String(_)) => Err(refusal(&format!(
            "its `requestState` is longer than {MAX_STATE_BYTES} bytes"
        ))),
        Some(_) => Err(refusal("its `requestState` is not a text")),
    }
}

fn refusal(why: &str) -> Failure {
    Failure::new("ToolAnswerError", format!("its answer is refused: {why}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(message: &str) -> Value {
        let schema = json!({"type": "object", "properties": {"seat": {"type": "string"}}});
        json!({"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}})
    }

    fn requiring(requests: Value, state: Value) -> Value {
        json!({"resultType": INPUT_REQUIRED, "inputRequests": requests, "requestState": state})
    }

    fn refused(result: &Value) -> String {
        let refused = CallInput::default().requirement(result, true);
        refused.expect_err("it is refused").message
    }

    #[test]
    fn a_call_is_made_again_with_the_answers_and_the_state() {
        let result = requiring(json!({"one": request("Which?"), "two": request("Where?")}), json!("s1"));
        let Ok(Some(Requirement::Answers(questions))) = CallInput::default().requirement(&result, true) else {
            panic!("it asks");
        };
        assert_eq!(questions[0].value["message"], "Which?");
        let answers = [
            json!({"action": "accept", "content": {"seat": "4a"}, "more": 1}),
            json!({"action": "decline"}),
        ];
        let answered: Vec<(Arc<Question>, Value)> = questions.into_iter().map(Arc::new).zip(answers).collect();
        let input = CallInput::of(&answered);
        let params = input.add_to(CallToolRequestParams::new("book"));
        let expected = json!({
            "name": "book",
            "inputResponses": {"one": {"action": "accept", "content": {"seat": "4a"}}, "two": {"action": "decline"}},
            "requestState": "s1",
        });
        assert_eq!(serde_json::to_value(&params).expect("JSON"), expected);
        let Ok(Some(Requirement::Call(next))) = input.requirement(&requiring(Value::Null, json!("s2")), true) else {
            panic!("it is called again");
        };
        let params = next.add_to(CallToolRequestParams::new("book"));
        let expected = json!({"name": "book", "requestState": "s2"});
        assert_eq!(serde_json::to_value(&params).expect("JSON"), expected);
        assert_eq!(next.requirement(&json!({"content": []}), true), Ok(None));
    }

    #[test]
    fn a_question_that_was_answered_earlier_is_not_asked_again() {
        let decline = json!({"action": "decline"});
        let accept = json!({"action": "accept", "content": {"seat": "4a"}});
        let earlier = |message: &str, answer: &Value| {
            let asked = question("any", &request(message)).expect("a question");
            (Arc::new(asked), answer.clone())
        };
        let answers = [earlier("Which?", &accept), earlier("Which?", &decline)];
        let input = CallInput::of(&answers);
        let both = requiring(json!({"one": request("Which?"), "two": request("Where?")}), json!("s1"));
        assert!(matches!(
            input.requirement(&both, true),
            Ok(Some(Requirement::Answers(questions))) if questions.len() == 2
        ));
        let which = requiring(json!({"one": request("Which?")}), json!("s1"));
        let Ok(Some(Requirement::Call(next))) = input.requirement(&which, true) else {
            panic!("it is called again");
        };
        let params = next.add_to(CallToolRequestParams::new("book"));
        let expected = json!({"name": "book", "inputResponses": {"one": accept}, "requestState": "s1"});
        assert_eq!(serde_json::to_value(&params).expect("JSON"), expected);
        let Ok(Some(Requirement::Call(next))) = next.requirement(&which, true) else {
            panic!("there were two answers");
        };
        let Ok(Some(Requirement::Answers(questions))) = next.requirement(&which, true) else {
            panic!("each answer counts once");
        };
        let later: Vec<(Arc<Question>, Value)> = questions
            .into_iter()
            .map(|question| (Arc::new(question), accept.clone()))
            .collect();
        let input = CallInput::of(&[answers.as_slice(), later.as_slice()].concat());
        assert!(matches!(
            input.requirement(&which, true),
            Ok(Some(Requirement::Answers(_)))
        ));
    }

    #[test]
    fn what_cannot_be_met_is_refused() {
        let long = "x".repeat(MAX_STATE_BYTES + 1);
        assert!(refused(&requiring(Value::Null, json!(long))).contains("longer than 65536 bytes"));
        assert!(refused(&requiring(Value::Null, json!(7))).contains("not a text"));
        assert!(refused(&requiring(json!({}), Value::Null)).contains("does not say which"));
        let sampling = json!({"one": {"method": "sampling/createMessage", "params": {}}});
        assert!(refused(&requiring(sampling, Value::Null)).contains("`sampling/createMessage`"));
        let page = json!({"mode": "url", "message": "Pay.", "url": "https://pay.example.org", "elicitationId": "1"});
        let page = json!({"one": {"method": "elicitation/create", "params": page}});
        assert!(refused(&requiring(page, Value::Null)).contains("pages to visit"));
        let many: Map<String, Value> = (0..=MAX_QUESTIONS)
            .map(|at| (at.to_string(), request("Who?")))
            .collect();
        assert!(refused(&requiring(Value::Object(many), Value::Null)).contains("more than 64"));
        let asks = requiring(json!({"one": request("Which?")}), Value::Null);
        let silenced = CallInput::default().requirement(&asks, false);
        assert!(silenced.is_err_and(|failure| failure.message.contains("`elicitation`")));
    }

    #[test]
    fn a_call_that_requires_input_without_end_is_refused() {
        let mut input = CallInput::default();
        for _ in 0..MAX_ROUNDS {
            let Ok(Some(Requirement::Call(next))) = input.requirement(&requiring(Value::Null, json!("s")), true) else {
                panic!("it is called again");
            };
            input = next;
        }
        assert!(input.requirement(&requiring(Value::Null, json!("s")), true).is_err());
    }
}
