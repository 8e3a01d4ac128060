use super::*;
use crate::domain::event::Fact;

fn approval() -> Question {
    Question {
        kind: QuestionKind::ToolApproval,
        value: json!({
            "action_requests": [{"name": "a"}, {"name": "b"}],
            "review_configs": [
                {"action_name": "a", "allowed_decisions": ["approve", "edit"]},
                {"action_name": "b", "allowed_decisions": ["approve", "reject"]},
            ],
        }),
        schema: json!({
            "type": "object",
            "properties": {"decisions": {"items": {"properties": {"message": {"type": "string"}}}}},
        })
        .into(),
        calls: vec!["1".to_owned(), "2".to_owned()],
        key: None,
        approvers: Default::default(),
        ..Question::default()
    }
}

fn refused(answer: &Value) -> Invalid {
    approval().check(answer).unwrap_err()
}

#[test]
fn one_allowed_decision_for_each_call_is_a_valid_answer() {
    let answer = json!({"decisions": [{"type": "approve"}, {"type": "reject", "message": "no"}]});
    assert_eq!(approval().check(&answer), Ok(()));
}

#[test]
fn the_error_names_the_invalid_part_of_an_answer() {
    let table = [
        (json!("approve"), "resume", "must be an object"),
        (
            json!({"decisions": [{"type": "approve"}]}),
            "resume.decisions",
            "has 1 decisions, but 2 calls wait",
        ),
        (
            json!({"decisions": [{"type": "approve"}, {"type": "edit"}]}),
            "resume.decisions[1].type",
            "is \"edit\"",
        ),
        (
            json!({"decisions": [{}, {"type": "approve"}]}),
            "resume.decisions[0].type",
            "is null",
        ),
        (
            json!({"decisions": [{"type": "approve"}, {"type": "reject", "message": 1}]}),
            "resume.decisions.1.message",
            "1",
        ),
    ];
    for (answer, field, reason) in table {
        let invalid = refused(&answer);
        assert_eq!(invalid.field, field, "{answer}");
        assert!(invalid.reason.contains(reason), "{invalid}");
    }
}

#[test]
fn a_plain_question_accepts_what_its_schema_accepts() {
    let question = Question {
        kind: QuestionKind::Question,
        schema: json!({"type": "integer"}).into(),
        ..approval()
    };
    assert_eq!(question.check(&json!(1)), Ok(()));
    assert_eq!(question.check(&json!("one")).unwrap_err().field, "resume");
    let unreadable = Question {
        schema: json!({"type": "nonsense"}).into(),
        ..question
    };
    assert_eq!(
        unreadable.check(&json!("one")),
        Ok(()),
        "a schema that is none refuses nothing"
    );
}

#[test]
fn decisions_are_read_as_clients_write_them() {
    let words = json!({"decisions": [
        {"type": "approve"},
        {"type": "edit", "edited_action": {"name": "a", "args": {"x": 1}}},
        {"type": "reject"},
        {"type": "respond", "message": "m"},
    ]});
    let read: Decisions = serde_json::from_value(words).unwrap();
    let action = ReviewAction {
        name: "a".to_owned(),
        args: Map::from_iter([("x".to_owned(), json!(1))]),
    };
    let expected = [
        Decision::Approve,
        Decision::Edit { edited_action: action },
        Decision::Reject { message: None },
        Decision::Respond {
            message: "m".to_owned(),
        },
    ];
    assert_eq!(read.decisions, expected);
}

fn asked(question: Question) -> Interrupt {
    Interrupt {
        id: InterruptId("i".to_owned()),
        task: TaskId::of_step(None, "tools", 0),
        asker: InterruptSource::Call("1".to_owned()),
        question: Arc::new(question),
        answer: Some(json!("yes")),
        is_inline: false,
    }
}

#[test]
fn an_event_is_read_with_the_questions_of_its_interrupts_and_without() {
    for interrupt in [asked(approval()), asked(approval()).without_question()] {
        let fact = Fact::Asked {
            head: None,
            carried_from: None,
            interrupts: vec![interrupt],
        };
        let stored = serde_json::to_string(&fact).unwrap();
        assert_eq!(serde_json::from_str::<Fact>(&stored).unwrap(), fact, "{stored}");
    }
}

#[test]
fn an_interrupt_is_read_with_its_question_and_without() {
    // Also a question without any content is stored.
    for whole in [asked(approval()), asked(Question::default())] {
        let stored = serde_json::to_value(&whole).unwrap();
        assert!(stored.get("question").is_some(), "{stored}");
        let read: Interrupt = serde_json::from_value(stored).unwrap();
        assert_eq!(read, whole);
        assert!(!read.lacks_question());

        let stored = serde_json::to_value(whole.without_question()).unwrap();
        assert!(stored.get("question").is_none(), "{stored}");
        let read: Interrupt = serde_json::from_value(stored).unwrap();
        assert!(read.lacks_question());
        assert_eq!((&read.id, &read.answer), (&whole.id, &whole.answer));
    }
}

#[test]
fn a_place_in_an_answer_is_named_as_the_answer_was_given() {
    let ask = |questions: Value| Question {
        kind: QuestionKind::Question,
        value: json!({"type": ASK_USER, "questions": questions}),
        ..Question::default()
    };
    let one = ask(json!([{"type": "text"}]));
    assert_eq!(one.place_as_given(&json!("yes"), ".answers.0"), "");
    assert_eq!(one.place_as_given(&json!(["yes"]), ".answers.0"), ".0");
    let whole = json!({"type": "answered", "answers": ["yes"]});
    assert_eq!(one.place_as_given(&whole, ".answers.0"), ".answers.0");
    let several = ask(json!([{"type": "multi_select"}]));
    assert_eq!(several.place_as_given(&json!(["a", "b"]), ".answers.0"), "");
    let approval = Question {
        kind: QuestionKind::ToolApproval,
        value: json!({"type": TOOL_APPROVAL}),
        ..Question::default()
    };
    assert_eq!(approval.place_as_given(&json!({"type": "approve"}), ".type"), ".type");
    let list = json!({"decisions": [{"type": "approve"}]});
    assert_eq!(approval.place_as_given(&list, ".type"), ".decisions[0].type");
}
