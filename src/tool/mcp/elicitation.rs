//! Questions of MCP servers in the middle of a call (`elicitation/create`).
//!
//! Servers without a handshake ask in results instead: see [`super::input`]. Here a question becomes an interrupt of the
//! run, too, which may be answered days later. The session with the server does not live that long, so the call ends with
//! the question, and is made again with the answer: when the server asks the same again, it gets the answer at once. A
//! question does not say to which call it belongs, so the calls of such a server are made one after the other.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{ElicitRequestParams, ElicitResult, ElicitationAction};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::domain::interrupt::{Question, QuestionKind};
use crate::domain::machine::Failure;
use crate::domain::schema::Schema;
use crate::domain::schema_text::SchemaText;
use crate::tool::remote::{MAX_QUESTION_BYTES, MAX_QUESTIONS};

/// The `type` of such a question.
const ELICITATION: &str = "mcp_elicitation";

/// The questions of a server that may ask.
#[derive(Default)]
pub(super) struct Elicitations {
    /// Held by the call that is made.
    turn: tokio::sync::Mutex<()>,
    current: Mutex<Option<CurrentCall>>,
}

/// The call that is made.
struct CurrentCall {
    /// The questions that were answered before the call was repeated, each with its answer.
    answers: Vec<(Arc<Question>, Value)>,
    /// Takes the questions that have no answer. The first one ends the call.
    asked: mpsc::Sender<ElicitRequestParams>,
}

/// The turn of a call, until it is dropped.
pub(super) struct CallTurn<'a> {
    elicitations: &'a Elicitations,
    asked: mpsc::Receiver<ElicitRequestParams>,
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

impl Drop for CallTurn<'_> {
    fn drop(&mut self) {
        *self.elicitations.current() = None;
    }
}

impl CallTurn<'_> {
    /// Waits for a question that has no answer yet.
    pub(super) async fn asked(&mut self) -> ElicitRequestParams {
        match self.asked.recv().await {
            Some(asked) => asked,
            // The sender is held as long as the turn.
            None => std::future::pending().await,
        }
    }
}

impl Elicitations {
    /// Waits for the end of the call before, and begins one with these answers.
    pub(super) async fn begin(&self, answers: &[(Arc<Question>, Value)]) -> CallTurn<'_> {
        let turn = self.turn.lock().await;
        let (sender, asked) = mpsc::channel(1);
        *self.current() = Some(CurrentCall {
            answers: answers.to_vec(),
            asked: sender,
        });
        CallTurn {
            elicitations: self,
            asked,
            _turn: turn,
        }
    }

    /// Returns the reply to a question of the server: the answer that a human has given, or that there is none, which
    /// ends the call.
    pub(super) fn reply(&self, params: ElicitRequestParams) -> ElicitResult {
        let cancel = ElicitResult::new(ElicitationAction::Cancel);
        let mut current = self.current();
        let Some(call) = current.as_mut() else {
            return cancel;
        };
        let Some(value) = value_of(&params) else {
            // A page to visit is no form.
            return ElicitResult::new(ElicitationAction::Decline);
        };
        let answered = call.answers.iter().position(|(question, _)| question.value == value);
        match answered {
            // A server that asks the same twice gets two answers, in their order.
            Some(at) => serde_json::from_value(call.answers.remove(at).1).unwrap_or(cancel),
            None => {
                // The call may have ended meanwhile, by an earlier question.
                drop(call.asked.try_send(params));
                cancel
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<CurrentCall>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the value of the question as clients read it; `None` if it is not a form.
fn value_of(params: &ElicitRequestParams) -> Option<Value> {
    if let ElicitRequestParams::FormElicitationParams {
        message,
        requested_schema,
        ..
    } = params
    {
        Some(json!({"type": ELICITATION, "message": message, "requested_schema": requested_schema}))
    } else {
        None
    }
}

/// Returns the question to the human, which follows `answered` others of the same call.
///
/// # Errors
/// If it is beyond the limits.
pub(super) fn question(params: &ElicitRequestParams, answered: usize) -> Result<Question, Failure> {
    let invalid = |why: String| Failure::new("ToolAnswerError", format!("its question is invalid: {why}"));
    let value =
        value_of(params).ok_or_else(|| invalid("it is no form, and pages to visit are not supported".to_owned()))?;
    if answered >= MAX_QUESTIONS {
        return Err(invalid(format!("the call asks more than {MAX_QUESTIONS}")));
    }
    let schema = SchemaText::from(json!({
        "type": "object",
        "properties": {
            "action": {"enum": ["accept", "decline", "cancel"]},
            "content": value["requested_schema"],
        },
        "required": ["action"],
        "if": {"properties": {"action": {"const": "accept"}}},
        "then": {"required": ["content"]},
    }));
    if schema.as_str().len().max(value.to_string().len()) > MAX_QUESTION_BYTES {
        return Err(invalid(format!("it is longer than {MAX_QUESTION_BYTES} bytes")));
    }
    Schema::compile_once(&schema).map_err(|error| invalid(error.to_string()))?;
    Ok(Question {
        kind: QuestionKind::Question,
        value,
        schema,
        key: Some((answered + 1).to_string()),
        ..Question::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(message: &str) -> ElicitRequestParams {
        let params = json!({"message": message,
            "requestedSchema": {"type": "object", "properties": {"seat": {"type": "string"}}}});
        serde_json::from_value(params).expect("parameters")
    }

    #[tokio::test]
    async fn a_question_is_answered_when_the_call_is_repeated() {
        let elicitations = Elicitations::default();
        assert_eq!(elicitations.reply(asked("Where?")).action, ElicitationAction::Cancel);
        let mut turn = elicitations.begin(&[]).await;
        assert_eq!(elicitations.reply(asked("Where?")).action, ElicitationAction::Cancel);
        let question = question(&turn.asked().await, 0).expect("a question");
        assert_eq!(question.value["message"], "Where?");
        let answer = json!({"action": "accept", "content": {"seat": "4a"}});
        assert!(question.check(&answer).is_ok());
        assert!(question.check(&json!({"action": "accept"})).is_err());
        drop(turn);
        let _turn = elicitations.begin(&[(Arc::new(question), answer)]).await;
        let reply = elicitations.reply(asked("Where?"));
        assert_eq!(reply.content, Some(json!({"seat": "4a"})));
        assert_eq!(elicitations.reply(asked("When?")).action, ElicitationAction::Cancel);
    }
}
