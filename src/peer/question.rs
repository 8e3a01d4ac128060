//! The conversion of another server's interrupts into local questions.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::responses::PeerInterrupt;
use crate::domain::approvers::Approvers;
use crate::domain::interrupt::{DecisionKind, Question, QuestionKind, TOOL_APPROVAL, is_id};
use crate::domain::schema::Schema;
use crate::domain::schema_text::SchemaText;

/// Converts an interrupt into a question. Approvals are recognised by their form, so that they can be decided like
/// those of local agents.
pub fn to_question(interrupt: PeerInterrupt) -> Question {
    let PeerInterrupt {
        id,
        value,
        response_schema,
    } = interrupt;
    // The remote run may be looked at many times until its interrupt is answered.
    let schema = response_schema.filter(Value::is_object).map(SchemaText::from);
    let schema = schema.filter(|schema| Schema::compile_once(schema).is_ok());
    let list = |name: &str| {
        value
            .get(name)
            .and_then(Value::as_array)
            .filter(|list| !list.is_empty())
    };
    let (kind, calls, own) = match (list("action_requests"), list("review_configs")) {
        (Some(requests), Some(configs)) => {
            let id = |(at, request): (usize, &Value)| {
                let id = request.get("tool_call_id").and_then(Value::as_str);
                id.map_or_else(|| at.to_string(), str::to_owned)
            };
            let calls = requests.iter().enumerate().map(id).collect();
            (QuestionKind::ToolApproval, calls, decisions(requests.len(), configs))
        }
        (_, _) => match call_of_approval(&value).filter(|_| schema.is_some()) {
            Some(call) => (QuestionKind::ToolApproval, vec![call], json!({})),
            None => (QuestionKind::Question, vec![], json!({})),
        },
    };
    Question {
        kind,
        schema: schema.unwrap_or_else(|| own.into()),
        value,
        calls,
        key: id,
        approvers: Approvers::default(),
        ..Question::default()
    }
}

/// Returns the id of the call that is to be approved, if an interrupt is about one call.
fn call_of_approval(value: &Value) -> Option<String> {
    let is_approval = value.get("type").and_then(Value::as_str) == Some(TOOL_APPROVAL);
    let call = value.get("tool_call_id").filter(|_| is_approval);
    call.and_then(Value::as_str).map(str::to_owned)
}

/// Returns the schema of valid decisions about `count` calls.
fn decisions(count: usize, configs: &[Value]) -> Value {
    let position = |at: usize| {
        let allowed = configs.get(at).and_then(|config| config.get("allowed_decisions"));
        let allowed = allowed
            .filter(|allowed| allowed.as_array().is_some_and(|all| !all.is_empty()))
            .cloned();
        let kinds = allowed.unwrap_or_else(|| json!(DecisionKind::ALL.map(DecisionKind::word)));
        json!({"type": "object", "required": ["type"], "properties": {"type": {"enum": kinds}}})
    };
    let positions: Vec<Value> = (0..count).map(position).collect();
    json!({
        "type": "object",
        "required": ["decisions"],
        "properties": {"decisions": {
            "type": "array", "minItems": count, "maxItems": count, "prefixItems": positions,
        }},
    })
}

/// Returns the `resume` value for these answers: by interrupt id, so that no answer goes to another interrupt. Old
/// servers have ids in an unknown form; a single answer is sent to them without an id.
pub fn resume(answers: &[(Arc<Question>, Value)]) -> Value {
    if let [(question, only)] = answers
        && !question.key.as_deref().is_some_and(is_id)
    {
        return only.clone();
    }
    let by_id = answers
        .iter()
        .filter_map(|(question, answer)| Some((question.key.clone()?, answer.clone())));
    Value::Object(by_id.collect::<Map<_, _>>())
}

/// Returns whether the interrupt with id `there` is the one behind `question`. Without an id it may be.
pub fn is_asked(there: Option<&str>, question: &Question) -> bool {
    match (there, question.key.as_deref()) {
        (Some(there), Some(here)) => there == here,
        (_, _) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::responses::PeerState;

    fn asked(value: Value) -> Question {
        to_question(PeerInterrupt {
            id: Some("q1".to_owned()),
            value,
            response_schema: None,
        })
    }

    #[test]
    fn an_approval_of_another_server_is_checked_like_a_local_one() {
        let configs = json!([{"action_name": "send", "allowed_decisions": ["approve"]}]);
        let question = asked(json!({"action_requests": [{"name": "send", "args": {}}], "review_configs": configs}));
        assert_eq!(question.kind, QuestionKind::ToolApproval);
        assert_eq!(question.calls.len(), 1);
        let check = |kind: &str| question.check(&json!({"decisions": [{"type": kind}]}));
        assert_eq!(check("approve"), Ok(()));
        assert!(check("reject").is_err());
        assert!(question.check(&json!({"decisions": []})).is_err());
    }

    #[test]
    fn an_approval_of_one_call_is_answered_by_one_decision() {
        let schema = json!({"type": "object", "required": ["type"], "properties": {"type": {"enum": ["approve"]}}});
        let question = to_question(PeerInterrupt {
            id: Some("q1".to_owned()),
            value: json!({"type": "tool_approval", "tool_call_id": "m1", "name": "send", "args": {}}),
            response_schema: Some(schema),
        });
        assert!(question.is_per_call());
        assert_eq!(question.calls, ["m1"]);
        let listed = question.normalised(json!({"decisions": [{"type": "approve"}]}));
        assert_eq!(listed, json!({"type": "approve"}));
        assert_eq!(question.check(&listed), Ok(()));
        assert!(question.check(&json!({"type": "reject"})).is_err());
    }

    #[test]
    fn the_questions_of_a_server_that_shows_no_schemas_are_answered_as_it_asks() {
        let asked_in_state = |value: Value| {
            let tasks = json!([{"id": "t1", "name": "model", "interrupts": [{"id": "q1", "value": value}]}]);
            let state = json!({"values": {"messages": []}, "next": ["model"], "tasks": tasks});
            let state: PeerState = serde_json::from_value(state).expect("a state");
            let questions: Vec<Question> = state.questions().into_iter().map(to_question).collect();
            assert_eq!(questions.len(), 1);
            questions[0].clone()
        };
        let listed = json!({"decisions": [{"type": "approve"}]});
        // A program may use the word for questions of its own.
        let of_one = asked_in_state(json!({"type": "tool_approval", "tool_call_id": "m1", "name": "send", "args": {}}));
        assert_eq!(of_one.kind, QuestionKind::Question);
        assert_eq!(of_one.normalised(listed.clone()), listed);
        assert_eq!(of_one.check(&listed), Ok(()));
        let review = json!({"action_name": "send", "allowed_decisions": ["approve"]});
        let requests = json!([{"name": "send", "args": {}}]);
        let of_list = asked_in_state(json!({"action_requests": requests, "review_configs": [review]}));
        assert_eq!(of_list.kind, QuestionKind::ToolApproval);
        assert!(!of_list.is_per_call());
        assert_eq!(of_list.normalised(listed.clone()), listed);
        assert_eq!(of_list.check(&listed), Ok(()));
        assert!(of_list.check(&json!({"decisions": [{"type": "reject"}]})).is_err());
    }

    #[test]
    fn any_other_question_is_passed_on_unchanged() {
        let question = asked(json!("Which one?"));
        assert_eq!(question.kind, QuestionKind::Question);
        assert_eq!(question.value.clone(), json!("Which one?"));
        assert_eq!(question.check(&json!("that one")), Ok(()));
        assert_eq!(question.key.as_deref(), Some("q1"));
    }

    #[test]
    fn answers_are_sent_by_id_or_as_they_are_to_old_servers() {
        let first = asked(json!("a?"));
        let id = "0123456789abcdef0123456789abcdef";
        let named = Question {
            key: Some(id.to_owned()),
            ..first.clone()
        };
        assert_eq!(resume(&[(Arc::new(named), json!(1))]), json!({id: 1}));
        let second = Question {
            key: Some("q2".to_owned()),
            ..first.clone()
        };
        let first = Arc::new(first);
        assert_eq!(resume(&[(Arc::clone(&first), json!(1))]), json!(1));
        assert_eq!(
            resume(&[(first, json!(1)), (Arc::new(second), json!(2))]),
            json!({"q1": 1, "q2": 2})
        );
    }
}
