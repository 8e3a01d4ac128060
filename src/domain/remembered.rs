//! Remembered decisions: what a reviewer has decided about a tool for the rest of a thread ("always allow", "always
//! deny"), so that the same question is not asked again.

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::Invalid;
use super::approvers::Approvers;
use super::condition::ArgumentCondition;
use super::id::{DecisionId, InterruptId, RunId, ThreadId};
use super::identity::UserId;
use super::interrupt::{Decision, DecisionKind, Question, QuestionKind};
use super::message::ToolCall;
use super::time::Timestamp;

/// The maximum number of remembered decisions of a thread.
pub const MAX_REMEMBERED: usize = 100;
/// The value of `for` that stands for the arguments of the call.
pub const SAME_ARGUMENTS: &str = "same_arguments";

/// The reach of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecisionScope {
    /// This call.
    #[default]
    Once,
    /// This call, and later calls of the same tool by the same agent on this thread.
    Thread,
}

impl DecisionScope {
    /// All scopes.
    pub const ALL: [Self; 2] = [Self::Once, Self::Thread];
}

/// A decision that is applied to later calls of the same agent on the same thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RememberedDecision {
    /// The id.
    pub id: DecisionId,
    /// The thread.
    pub thread: ThreadId,
    /// The run that brought the decision.
    pub run: RunId,
    /// The interrupt that was answered with it.
    pub interrupt: InterruptId,
    /// The names of the agents from the main agent down to the one that asked.
    pub path: Vec<String>,
    /// The tool.
    pub tool: String,
    /// `approve` or `reject`.
    pub decision: DecisionKind,
    /// The reason of a rejection, for the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The calls that it covers, by their arguments; all calls of the tool if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ArgumentCondition>,
    /// True if calls with arguments that the condition does not name are not covered. Servers of earlier releases, which
    /// do not know it, cover them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    /// The approvers of the question. It covers only calls with the same approvers.
    #[serde(default, skip_serializing_if = "Approvers::is_empty")]
    pub approvers: Approvers,
    /// The user who decided; none without authentication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_by: Option<UserId>,
    /// The time of the decision.
    pub created_at: Timestamp,
}

impl RememberedDecision {
    /// Returns whether the decision covers this call of the agent at `path`, whose approvers are these. A condition
    /// that cannot be applied to the arguments does not cover them.
    pub fn covers(&self, path: &[String], call: &ToolCall, approvers: &Approvers) -> bool {
        let is_same = self.path == path && self.tool == call.name && self.approvers == *approvers;
        let meets = |condition: &ArgumentCondition| condition.compile().is_ok_and(|ready| ready.holds(&call.args));
        let is_named = |name: &String| match &self.condition {
            Some(ArgumentCondition::All(tests)) => tests.contains_key(name),
            Some(ArgumentCondition::Any(_)) | None => false,
        };
        let has_others = self.exact && !call.args.keys().all(is_named);
        is_same && !has_others && self.condition.as_ref().is_none_or(meets)
    }

    /// Returns the decision about a call that it covers.
    pub fn decision(&self) -> Decision {
        match self.decision {
            DecisionKind::Approve => Decision::Approve,
            DecisionKind::Edit | DecisionKind::Reject | DecisionKind::Respond => Decision::Reject {
                message: self.message.clone(),
            },
        }
    }
}

/// A decision with its scope, which is to be remembered.
#[derive(Debug, Clone, PartialEq)]
pub struct DecisionToRemember {
    /// The tool.
    pub tool: String,
    /// `approve` or `reject`.
    pub decision: DecisionKind,
    /// The reason of a rejection.
    pub message: Option<String>,
    /// The calls that it covers.
    pub condition: Option<ArgumentCondition>,
    /// True if calls with further arguments are not covered.
    pub exact: bool,
}

/// The parts of a decision that say what it covers beyond its call.
#[derive(Debug, Deserialize)]
struct Given {
    #[serde(rename = "type")]
    kind: DecisionKind,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    scope: DecisionScope,
    #[serde(default, rename = "for")]
    covers: Option<CoveredCalls>,
}

/// The calls that a decision covers: those with the same arguments, or with arguments that meet a condition.
#[derive(Debug)]
enum CoveredCalls {
    SameArguments,
    Condition(ArgumentCondition),
}

impl<'de> Deserialize<'de> for CoveredCalls {
    /// Written by hand, since the derived code would only report that no variant matched.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CoversVisitor;

        impl<'de> Visitor<'de> for CoversVisitor {
            type Value = CoveredCalls;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "`{SAME_ARGUMENTS}` or a condition on the arguments")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<CoveredCalls, E> {
                match text {
                    SAME_ARGUMENTS => Ok(CoveredCalls::SameArguments),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<CoveredCalls, A::Error> {
                ArgumentCondition::deserialize(MapAccessDeserializer::new(map)).map(CoveredCalls::Condition)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<CoveredCalls, A::Error> {
                let list = serde::de::value::SeqAccessDeserializer::new(list);
                ArgumentCondition::deserialize(list).map(CoveredCalls::Condition)
            }
        }

        deserializer.deserialize_any(CoversVisitor)
    }
}

/// Returns the decisions in a valid answer that are to be remembered. Answers to other servers are remembered there.
///
/// # Errors
/// Names the part of the answer that is wrong.
pub fn to_remember(question: &Question, answer: &Value) -> Result<Vec<DecisionToRemember>, Invalid> {
    if question.kind != QuestionKind::ToolApproval || question.key.is_some() {
        return Ok(vec![]);
    }
    let requests = question.value.get("action_requests").and_then(Value::as_array);
    let requests: Vec<&Value> = requests.map_or_else(|| vec![&question.value], |all| all.iter().collect());
    let list = answer.get("decisions").and_then(Value::as_array);
    let decisions: Vec<&Value> = list.map_or_else(|| vec![answer], |all| all.iter().collect());
    let mut all = vec![];
    for (at, (request, decision)) in requests.into_iter().zip(decisions).enumerate() {
        let field = match list {
            Some(_) => format!("resume.decisions[{at}]"),
            None => "resume".to_owned(),
        };
        all.extend(one_to_remember(&field, request, decision)?);
    }
    Ok(all)
}

fn one_to_remember(field: &str, request: &Value, decision: &Value) -> Result<Option<DecisionToRemember>, Invalid> {
    let of_covers = decision.get("for").map(|_| format!("{field}.for"));
    let place = || of_covers.clone().unwrap_or_else(|| field.to_owned());
    let given: Given =
        serde_json::from_value(decision.clone()).map_err(|error| Invalid::new(place(), error.to_string()))?;
    if given.scope == DecisionScope::Once {
        return match given.covers {
            Some(_) => Err(Invalid::new(place(), "needs `\"scope\": \"thread\"`")),
            None => Ok(None),
        };
    }
    if !matches!(given.kind, DecisionKind::Approve | DecisionKind::Reject) {
        let reason = "`thread` is for `approve` and `reject`; another decision is about one call";
        return Err(Invalid::new(format!("{field}.scope"), reason));
    }
    let exact = matches!(given.covers, Some(CoveredCalls::SameArguments));
    let condition = match given.covers {
        None => None,
        Some(CoveredCalls::Condition(condition)) => Some(condition),
        Some(CoveredCalls::SameArguments) => {
            let args = request.get("args").and_then(Value::as_object);
            Some(ArgumentCondition::same_as(args.unwrap_or(&Map::new())))
        }
    };
    if let Some(Err(invalid)) = condition.as_ref().map(ArgumentCondition::compile) {
        let place = std::iter::once(place()).chain(invalid.place);
        return Err(Invalid::new(place.collect::<Vec<_>>().join("."), invalid.reason));
    }
    Ok(Some(DecisionToRemember {
        tool: request["name"].as_str().unwrap_or_default().to_owned(),
        decision: given.kind,
        message: given.message,
        condition,
        exact,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the decision to approve a mail for the rest of the thread, for these calls.
    fn approved(covers: Value) -> RememberedDecision {
        let request = json!({"name": "send_email", "args": {"to": "bob", "n": 1}});
        let decision = json!({"type": "approve", "scope": "thread", "for": covers});
        let given = one_to_remember("resume", &request, &decision);
        let given = given.expect("it is valid").expect("it is to be remembered");
        let stored = json!({"id": uuid::Uuid::nil(), "thread": uuid::Uuid::nil(), "run": uuid::Uuid::nil(),
            "interrupt": "i", "path": ["main"], "tool": given.tool, "decision": "approve", "condition": given.condition,
            "exact": given.exact, "created_at": Timestamp(0)});
        serde_json::from_value(stored).expect("a decision")
    }

    fn covers(decision: &RememberedDecision, args: Value) -> bool {
        let call = ToolCall::new("c", "send_email", args.as_object().cloned().unwrap_or_default());
        decision.covers(&["main".to_owned()], &call, &Approvers::default())
    }

    #[test]
    fn the_same_arguments_are_no_others() {
        let same = approved(json!(SAME_ARGUMENTS));
        assert!(covers(&same, json!({"n": 1, "to": "bob"})));
        for other in [
            json!({"to": "bob"}),
            json!({"to": "bob", "n": 2}),
            json!({"to": "bob", "n": 1, "cc": "eve"}),
            json!({"to": "bob", "n": 1, "cc": null}),
        ] {
            assert!(!covers(&same, other.clone()), "{other}");
        }
        let condition = approved(json!({"to": {"equals": "bob"}}));
        assert!(
            covers(&condition, json!({"to": "bob", "cc": "eve"})),
            "it names one argument"
        );
    }
}
