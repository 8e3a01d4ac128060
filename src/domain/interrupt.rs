//! Interrupts: questions to a human, and the decisions that answer them.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Invalid;
use super::approvers::Approvers;
use super::id::{InterruptId, TaskId};
use super::schema::Schema;
use super::schema_text::SchemaText;

/// A question that a run has asked and waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interrupt {
    /// The id, valid while the question is open.
    pub id: InterruptId,
    /// The task that asked; clients list the interrupt under it.
    pub task: TaskId,
    /// The hook or call that asked and receives the answer.
    pub asker: InterruptSource,
    /// The question, and the form of a valid answer. Both may be large, so positions and events are stored without them: the
    /// row of the interrupt has the question.
    #[serde(default = "stored_elsewhere", skip_serializing_if = "is_stored_elsewhere")]
    pub question: Arc<Question>,
    /// The answer, from the moment a valid one is given until the hook or call has read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// True if the question stays with the position, since no row is sure to have it: a former release has stored the position,
    /// or the question was answered before its thread was copied.
    #[serde(skip)]
    pub is_inline: bool,
}

/// The question of an interrupt that was stored without it.
static STORED_ELSEWHERE: LazyLock<Arc<Question>> = LazyLock::new(Arc::default);

fn stored_elsewhere() -> Arc<Question> {
    Arc::clone(&STORED_ELSEWHERE)
}

fn is_stored_elsewhere(question: &Arc<Question>) -> bool {
    Arc::ptr_eq(question, &STORED_ELSEWHERE)
}

impl Interrupt {
    /// Returns the interrupt without its question, as positions and events are stored.
    #[must_use]
    pub fn without_question(&self) -> Self {
        Self {
            id: self.id.clone(),
            task: self.task,
            asker: self.asker.clone(),
            question: stored_elsewhere(),
            answer: self.answer.clone(),
            is_inline: false,
        }
    }

    /// Returns the interrupt without the schema of its answer, as a row is stored beside that schema.
    #[must_use]
    pub fn without_schema(&self) -> Self {
        Self {
            id: self.id.clone(),
            task: self.task,
            asker: self.asker.clone(),
            question: Arc::new(Question {
                schema: schema_stored_apart(),
                ..Question::clone(&self.question)
            }),
            answer: self.answer.clone(),
            is_inline: self.is_inline,
        }
    }

    /// Returns whether the interrupt was stored without its question, which was not put back yet.
    pub fn lacks_question(&self) -> bool {
        is_stored_elsewhere(&self.question)
    }
}

/// The source of an interrupt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptSource {
    /// The hook with this public name (`HumanInTheLoopMiddleware.after_model`).
    Hook(String),
    /// The tool call with this id.
    Call(String),
}

/// Returns whether the text has the form of an interrupt id: 32 hexadecimal digits.
pub fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the placeholder for the answer to a remote interrupt that was answered on the other server. The call then
/// reads the status of the remote run and sends no answer to it.
pub fn answered_remotely() -> Value {
    json!({"adjutant_settled_elsewhere": true})
}

/// The kind of answer that a question expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionKind {
    /// A decision for each of these tool calls.
    ToolApproval,
    /// A decision about a tool call that was started before a crash and whose outcome is unknown.
    UnknownOutcome,
    /// Any other answer, for a tool or a policy.
    #[default]
    Question,
}

/// The expiry of a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expiry {
    /// The time after which the question expires, in seconds since it was raised.
    pub after_s: u64,
    /// The answer that it gets then.
    pub answer: Value,
}

/// The `type` of the question about one tool call.
pub const TOOL_APPROVAL: &str = "tool_approval";

/// The `type` of questions that the tool `ask_user` asks.
pub const ASK_USER: &str = "ask_user";

/// The schema of a question that was stored without it.
static SCHEMA_STORED_APART: LazyLock<SchemaText> = LazyLock::new(|| SchemaText::of(&Value::Null));

fn schema_stored_apart() -> SchemaText {
    SCHEMA_STORED_APART.clone()
}

fn is_schema_stored_apart(schema: &SchemaText) -> bool {
    schema.is_copy_of(&SCHEMA_STORED_APART)
}

/// The content of an interrupt.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Question {
    /// The kind of answer expected.
    pub kind: QuestionKind,
    /// The question as clients read it; for approvals `{action_requests, review_configs}`, or, about one call,
    /// `{type: "tool_approval", tool_call_id, name, args, description}`.
    pub value: Value,
    /// The JSON Schema of a valid answer. That of an approval has the schemas of all tools, and many questions have the same one.
    /// So a row may be stored without it.
    #[serde(default = "schema_stored_apart", skip_serializing_if = "is_schema_stored_apart")]
    pub schema: SchemaText,
    /// The ids of the tool calls in question, in the order of `action_requests`.
    #[serde(default)]
    pub calls: Vec<String>,
    /// The asker's own key for the question, which tells the answers to several questions apart; for a remote agent,
    /// the id of the interrupt on its server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The expiry; none if the question waits for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<Expiry>,
    /// The names of the agents from the main agent down to the one that asks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agent_path: Vec<String>,
    /// The approvers to whom the question is assigned. If there are none, everybody may answer who may change the thread.
    #[serde(default, skip_serializing_if = "Approvers::is_empty")]
    pub approvers: Approvers,
    /// The request of an MCP server that the answer is for, if the result of a call contained it. Clients do not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<InputRequest>,
}

/// A request in a result of an MCP server that requires input. The call is made again with the answers to all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRequest {
    /// The key of the request, unique in the result.
    pub key: String,
    /// The number of results of the call that required input, up to this one.
    pub round: u32,
    /// The state that the server gets back with the answers; of several requests, only the first has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// The kinds of decisions about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecisionKind {
    /// Run the call.
    Approve,
    /// Run an edited call instead.
    Edit,
    /// Do not run the call; the model receives the reason.
    Reject,
    /// Do not run the call; the reviewer's text is the result.
    Respond,
}

impl DecisionKind {
    /// All kinds, in the order in which clients list them.
    pub const ALL: [Self; 4] = [Self::Approve, Self::Edit, Self::Reject, Self::Respond];

    /// Returns the word that clients use.
    pub fn word(self) -> &'static str {
        match self {
            Self::Approve => "approve",
            Self::Edit => "edit",
            Self::Reject => "reject",
            Self::Respond => "respond",
        }
    }
}

/// A reviewer's decision about one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Decision {
    /// Run the call.
    Approve,
    /// Run this call instead.
    Edit {
        /// The edited call.
        edited_action: ReviewAction,
    },
    /// Do not run the call.
    Reject {
        /// The reason, for the model.
        #[serde(default)]
        message: Option<String>,
    },
    /// Do not run the call; use this text as its result.
    Respond {
        /// The result.
        message: String,
    },
}

/// A call as a reviewer writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReviewAction {
    /// The name of the tool.
    pub name: String,
    /// The arguments.
    #[serde(default)]
    pub args: Map<String, Value>,
}

/// The answer to an approval: one decision for each call, in the order of the calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decisions {
    /// The decisions.
    pub decisions: Vec<Decision>,
}

impl Question {
    /// Returns whether the question is answered by decisions about calls.
    pub fn wants_decisions(&self) -> bool {
        self.kind != QuestionKind::Question
    }

    /// Returns whether the question is about one call and answered by one decision, which is in no list.
    pub fn is_per_call(&self) -> bool {
        self.kind == QuestionKind::ToolApproval && self.has_type(TOOL_APPROVAL)
    }

    /// Returns whether the question was stored without the schema of its answer, which was not put back yet.
    pub fn lacks_schema(&self) -> bool {
        is_schema_stored_apart(&self.schema)
    }

    /// Returns the kinds of decisions that the schema allows, for a question that is answered by one decision.
    pub fn allowed_types(&self) -> Option<Value> {
        self.schema.find(&["properties", "type", "enum"])
    }

    /// Returns whether clients are told the schema of a valid answer together with the question.
    pub fn shows_schema(&self) -> bool {
        self.is_per_call() || self.has_type(ASK_USER)
    }

    fn has_type(&self, name: &str) -> bool {
        self.value.get("type").and_then(Value::as_str) == Some(name)
    }

    /// Returns the answer in the form in which it is checked and stored. A client that knows only lists of decisions
    /// may answer the question about one call by a list of one. A client without forms may answer `ask_user` by a text or
    /// a list.
    pub fn normalised(&self, answer: Value) -> Value {
        if self.kind == QuestionKind::Question && self.has_type(ASK_USER) {
            return self.normalised_answers(answer);
        }
        let Some([only]) = answer.get("decisions").and_then(Value::as_array).map(Vec::as_slice) else {
            return answer;
        };
        if self.is_per_call() { only.clone() } else { answer }
    }

    fn normalised_answers(&self, answer: Value) -> Value {
        let questions = self
            .value
            .get("questions")
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        let answers = match (questions, answer) {
            ([_], Value::String(text)) => vec![Value::String(text)],
            // The list is the answer, unless it holds the answer.
            ([only], Value::Array(list)) if only["type"] == "multi_select" && !list.iter().any(Value::is_array) => {
                vec![Value::Array(list)]
            }
            (_, Value::Array(list)) => list,
            (_, other) => return other,
        };
        json!({"type": "answered", "answers": answers})
    }

    /// Returns the refusal of the [normalised](Self::normalised) form of an answer that was `given` in this field.
    #[must_use]
    pub fn refusal_in(&self, field: &str, given: &Value, refusal: Invalid) -> Invalid {
        match refusal.field.strip_prefix("resume") {
            Some(place) => Invalid::new(format!("{field}{}", self.place_as_given(given, place)), refusal.reason),
            None => refusal,
        }
    }

    /// Returns a place in an answer as it was given, for the same place in its [normalised](Self::normalised) form: `.type` is
    /// `.decisions[0].type` if the only decision was given in a list.
    fn place_as_given(&self, given: &Value, place: &str) -> String {
        let normalised = self.normalised(given.clone());
        if normalised == *given {
            return place.to_owned();
        }
        if self.is_per_call() {
            return format!(".decisions[0]{place}");
        }
        let is_list_of_answers = normalised.get("answers") == Some(given);
        let in_answers = place.strip_prefix(".answers").filter(|_| is_list_of_answers);
        in_answers.unwrap_or_default().to_owned()
    }

    /// Validates an answer, before it is stored.
    ///
    /// # Errors
    /// Returns the part of the answer that is wrong and what is expected.
    pub fn check(&self, answer: &Value) -> Result<(), Invalid> {
        // Nobody may answer a question whose valid answers are not known.
        if self.lacks_schema() {
            return Err(Invalid::new(
                "resume",
                "cannot be checked: the schema of the answer is missing",
            ));
        }
        if self.is_per_call() {
            self.check_decision(answer)?;
        } else if self.wants_decisions() {
            self.check_decisions(answer)?;
        }
        // A schema beyond the limits was never admitted and is not checked.
        Schema::compile_once(&self.schema).map_or(Ok(()), |schema| schema.check("resume", answer))
    }

    /// Checks the type of the decision about one call.
    fn check_decision(&self, answer: &Value) -> Result<(), Invalid> {
        let Some(kind) = answer.get("type") else {
            return Err(Invalid::new(
                "resume",
                "must be one decision, such as {\"type\": \"approve\"}",
            ));
        };
        let allowed = self.allowed_types();
        let allowed = allowed.as_ref().and_then(Value::as_array);
        if allowed.is_some_and(|allowed| !allowed.contains(kind)) {
            let allowed = json!(allowed);
            return Err(Invalid::new(
                "resume.type",
                format!("is {kind}, but allowed are {allowed}"),
            ));
        }
        Ok(())
    }

    /// Checks for the most frequent mistakes, with clearer errors than a JSON Schema gives.
    fn check_decisions(&self, answer: &Value) -> Result<(), Invalid> {
        let Some(decisions) = answer.get("decisions").and_then(Value::as_array) else {
            return Err(Invalid::new(
                "resume",
                "must be an object {\"decisions\": [...]} with one decision per call",
            ));
        };
        if decisions.len() != self.calls.len() {
            let reason = format!(
                "has {} decisions, but {} calls wait for one",
                decisions.len(),
                self.calls.len()
            );
            return Err(Invalid::new("resume.decisions", reason));
        }
        let configs = self.value.get("review_configs").and_then(Value::as_array);
        for (at, decision) in decisions.iter().enumerate() {
            let allowed = configs.and_then(|all| all.get(at)?.get("allowed_decisions")?.as_array());
            let kind = decision.get("type").unwrap_or(&Value::Null);
            if allowed.is_some_and(|allowed| !allowed.contains(kind)) {
                let allowed = json!(allowed);
                let field = format!("resume.decisions[{at}].type");
                return Err(Invalid::new(field, format!("is {kind}, but allowed are {allowed}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
