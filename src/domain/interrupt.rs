//! Questions to a human, and the answers.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Invalid;
use super::id::{InterruptId, TaskId};
use super::schema::Schema;

/// A question that a run has asked and waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Interrupt {
    /// Identifies the question for as long as it is open.
    pub id: InterruptId,
    /// The task that asked; clients file the question under it.
    pub task: TaskId,
    /// Where the answer goes.
    pub asker: Asker,
    /// What is asked, and how it may be answered.
    pub question: Question,
    /// The answer, once a valid one was given and until the asker has read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
}

/// Who asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asker {
    /// The hook of this public name (`HumanInTheLoopMiddleware.after_model`).
    Hook(String),
    /// The tool call of this id.
    Call(String),
}

/// Whether this is an id of a question, as servers of this wire give them.
pub fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What stands for the answer to a question of another server that was settled there: whoever asked looks how it stands
/// there, and takes nothing to it.
pub fn settled_elsewhere() -> Value {
    json!({"adjutant_settled_elsewhere": true})
}

/// What kind of answer is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionKind {
    /// May these tool calls be made?
    ToolApproval,
    /// A tool call was begun before a crash; what shall become of it?
    UnknownOutcome,
    /// Any other question of a tool or a policy.
    Question,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// What kind of answer is wanted.
    pub kind: QuestionKind,
    /// The question as clients read it; for approvals `{action_requests, review_configs}`.
    pub value: Value,
    /// JSON Schema of a valid answer.
    pub schema: Value,
    /// The tool calls in question, in the order of `action_requests`.
    #[serde(default)]
    pub calls: Vec<String>,
    /// What the asker itself calls it, to tell the answers to several questions apart: of a remote agent, the id under
    /// which its server asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// What a reviewer may do with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecisionKind {
    /// Let it run.
    Approve,
    /// Let another call run in its place.
    Edit,
    /// Do not run it; the model is told.
    Reject,
    /// Do not run it; the reviewer's text is the result.
    Respond,
}

impl DecisionKind {
    /// All four, in the order in which clients list them.
    pub const ALL: [Self; 4] = [Self::Approve, Self::Edit, Self::Reject, Self::Respond];

    /// The word for it.
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
    /// Let it run.
    Approve,
    /// Let this run in its place.
    Edit {
        /// The call that really runs.
        edited_action: Action,
    },
    /// Do not run it.
    Reject {
        /// Why, for the model.
        #[serde(default)]
        message: Option<String>,
    },
    /// Do not run it; this is its result.
    Respond {
        /// The result.
        message: String,
    },
}

/// A call as a reviewer writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// The tool.
    pub name: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Map<String, Value>,
}

/// The answer to an approval: one decision for each call asked about, in that order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decisions {
    /// The decisions.
    pub decisions: Vec<Decision>,
}

impl Question {
    /// Whether it is answered by decisions about calls.
    pub fn wants_decisions(&self) -> bool {
        self.kind != QuestionKind::Question
    }

    /// Checks an answer before anything is stored.
    ///
    /// # Errors
    /// Names the part of the answer that is wrong and what would be right.
    pub fn check(&self, answer: &Value) -> Result<(), Invalid> {
        if self.wants_decisions() {
            self.check_decisions(answer)?;
        }
        // One that was not admitted checks nothing.
        Schema::compile(&self.schema).map_or(Ok(()), |schema| schema.check("resume", answer))
    }

    /// The mistakes that people make most often, said better than a schema can.
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
