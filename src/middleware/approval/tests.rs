use super::actions::{MAX_KEPT, MAX_KEPT_BYTES};
use super::*;
use crate::definition::ApprovalChoices;
use crate::domain::id::ThreadId;
use crate::domain::machine::Failure;
use crate::domain::message::Role;
use crate::domain::schema::Schema;
use crate::domain::time::Timestamp;
use crate::tool::remembered::RememberedDecisions;
use crate::tool::{CallOutcome, Tool};

fn spec(name: &str, required: &[&str]) -> Arc<ToolSpec> {
    let parameters = json!({
        "type": "object",
        "properties": {"to": {"type": "string"}, "body": {"type": "string"}, "query": {"type": "string"}},
        "required": required,
    });
    Arc::new(ToolSpec {
        name: name.to_owned(),
        description: String::new(),
        parameters,
    })
}

/// A tool that is never called.
struct Stub(Arc<ToolSpec>);

#[async_trait]
impl Tool for Stub {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.0
    }

    async fn call(&self, _: &Scope, _: &State, _: &ToolCall) -> Result<CallOutcome, Halt> {
        Err(Halt::Stopped)
    }
}

fn policy() -> Approval {
    let three = vec![DecisionKind::Approve, DecisionKind::Edit, DecisionKind::Reject];
    let rules = BTreeMap::from([
        (
            "send_email".to_owned(),
            ApprovalRule::Choices(Box::new(ApprovalChoices {
                allowed_decisions: three,
                ..ApprovalChoices::default()
            })),
        ),
        ("pay".to_owned(), ApprovalRule::Switch(true)),
        ("lookup".to_owned(), ApprovalRule::Switch(false)),
    ]);
    let specs = [
        spec("send_email", &["to", "body"]),
        spec("pay", &["to"]),
        spec("lookup", &["query"]),
    ];
    Approval::new(
        rules,
        Toolbox::new(specs.map(|spec| Arc::new(Stub(spec)) as Arc<dyn Tool>)),
    )
}

fn mail(id: &str) -> ToolCall {
    let args = json!({"to": "a@b.c", "body": "hi"});
    ToolCall::new(id, "send_email", args.as_object().cloned().unwrap_or_default())
}

fn call(id: &str, name: &str) -> ToolCall {
    ToolCall::new(id, name, Map::from_iter([("to".to_owned(), json!("x"))]))
}

fn saying(calls: &[ToolCall]) -> State {
    let role = Role::Ai {
        tool_calls: calls.to_vec(),
        invalid_tool_calls: vec![],
        usage_metadata: None,
    };
    let answer = Message::new(role, "").with_id("ai-1");
    State {
        messages: vec![Arc::new(Message::human("go")), Arc::new(answer)].into(),
        ..State::default()
    }
}

async fn hook(state: &State, answer: Option<Value>) -> Result<HookResult, Halt> {
    let scope = Scope {
        answer,
        ..Scope::sample(Timestamp(0))
    };
    policy().hook(HookPoint::AfterModel, &scope, state).await
}

async fn question(state: &State) -> Question {
    match hook(state, None).await {
        Err(Halt::Ask(mut questions)) => questions.remove(0),
        other => panic!("{other:?}"),
    }
}

async fn decided_by(state: &State, decisions: Value) -> Update {
    let reaction = hook(state, Some(json!({"decisions": decisions})))
        .await
        .expect("a reaction");
    assert_eq!(reaction.jump, None);
    reaction.update
}

#[tokio::test]
async fn one_question_is_asked_about_all_calls_that_need_approval() {
    let state = saying(&[mail("m"), call("l", "lookup"), call("p", "pay")]);
    let question = question(&state).await;
    let expected = json!({
        "action_requests": [
            {
                "name": "send_email", "args": {"to": "a@b.c", "body": "hi"}, "tool_call_id": "m",
                "description":
                    "Tool execution requires approval\n\nTool: send_email\nArgs: {'to': 'a@b.c', 'body': 'hi'}",
            },
            {
                "name": "pay", "args": {"to": "x"}, "tool_call_id": "p",
                "description": "Tool execution requires approval\n\nTool: pay\nArgs: {'to': 'x'}",
            },
        ],
        "review_configs": [
            {"action_name": "send_email", "allowed_decisions": ["approve", "edit", "reject"]},
            {"action_name": "pay", "allowed_decisions": ["approve", "edit", "reject", "respond"]},
        ],
    });
    assert_eq!(question.value, expected);
    assert_eq!(question.calls, ["m", "p"]);
}

/// Decisions that cannot be read.
struct Unreadable;

#[async_trait]
impl RememberedDecisions for Unreadable {
    async fn of_thread(&self, _: ThreadId) -> Result<Arc<[RememberedDecision]>, Failure> {
        Err(Failure::new("StorageError", "they cannot be read"))
    }
}

#[tokio::test]
async fn remembered_decisions_are_read_only_for_calls_without_an_answer() {
    let state = saying(&[mail("m"), call("p", "pay")]);
    let hook_with = async |decisions: Value| {
        let scope = Scope {
            answer: Some(json!({"decisions": decisions})),
            remembered: Arc::new(Unreadable),
            ..Scope::sample(Timestamp(0))
        };
        policy().hook(HookPoint::AfterModel, &scope, &state).await
    };
    let both = hook_with(json!([{"type": "approve"}, {"type": "approve"}])).await;
    assert_eq!(both.expect("a reaction").reviewed.len(), 2);
    let failure = hook_with(json!([{"type": "approve"}])).await.expect_err("no reaction");
    assert_eq!(
        failure.failure().map(|failure| failure.class.as_str()),
        Some("StorageError")
    );
}

#[tokio::test]
async fn nothing_is_asked_when_no_call_needs_approval() {
    for calls in [vec![], vec![call("l", "lookup"), call("o", "other")]] {
        assert_eq!(hook(&saying(&calls), None).await, Ok(HookResult::default()));
    }
}

#[tokio::test]
async fn a_call_that_has_a_result_is_not_asked_about() {
    let mut state = saying(&[mail("m")]);
    state
        .messages
        .push(Arc::new(Message::tool(&mail("m"), ToolStatus::Error, "limit")));
    assert_eq!(hook(&state, None).await, Ok(HookResult::default()));
}

#[tokio::test]
async fn the_schema_of_the_answer_admits_what_is_allowed_and_nothing_else() {
    let question = question(&saying(&[mail("m"), call("p", "pay")])).await;
    let text = question.schema.as_str();
    assert!(
        text.starts_with(r#"{"type":"object","properties":{"decisions":{"type":"array","minItems":2,"#),
        "{text}"
    );
    let last = r#"}]}},"required":["decisions"],"$defs":{"action":{"type":"object","properties":{"name":{"enum":["#;
    assert!(text.contains(last), "{text}");
    let edit = |name: &str, args: Value| json!({"type": "edit", "edited_action": {"name": name, "args": args}});
    let mail = json!({"to": "x", "body": "y"});
    let good = [
        json!([{"type": "approve"}, {"type": "approve"}]),
        json!([{"type": "reject"}, {"type": "reject", "message": "no"}]),
        json!([edit("send_email", mail.clone()), {"type": "respond", "message": "paid"}]),
        json!([edit("lookup", json!({"query": "x"})), {"type": "approve"}]),
    ];
    for decisions in good {
        assert_eq!(question.check(&json!({"decisions": decisions})), Ok(()));
    }
    let bad = [
        json!([{"type": "approve"}]),
        json!([{"type": "respond", "message": "x"}, {"type": "approve"}]),
        json!([{"type": "odd"}, {"type": "approve"}]),
        json!([edit("unknown", mail), {"type": "approve"}]),
        json!([edit("send_email", json!({"to": "x"})), {"type": "approve"}]),
        json!([{"type": "edit"}, {"type": "approve"}]),
        json!([{"type": "approve"}, {"type": "respond"}]),
        json!([{"type": "reject", "message": 7}, {"type": "approve"}]),
    ];
    for decisions in bad {
        assert!(question.check(&json!({"decisions": decisions})).is_err(), "{decisions}");
    }
}

#[tokio::test]
async fn an_approval_repeats_the_answer_and_nothing_more() {
    let state = saying(&[mail("m")]);
    let update = decided_by(&state, json!([{"type": "approve"}])).await;
    assert_eq!(
        update,
        Update {
            messages: vec![Arc::clone(&state.messages.recent()[1])],
            ..Update::none()
        }
    );
}

#[tokio::test]
async fn an_edit_leaves_the_answer_as_it_is_and_notes_what_runs() {
    let state = saying(&[mail("m")]);
    let action = json!({"name": "send_email", "args": {"to": "z", "body": "b"}});
    let update = decided_by(&state, json!([{"type": "edit", "edited_action": action}])).await;
    assert_eq!(update.messages, [Arc::clone(&state.messages.recent()[1])]);
    assert_eq!(
        update.fields,
        BTreeMap::from([(EDITED_CALLS.to_owned(), json!({"m": action}))])
    );
}

/// The marks by which clients know the result of a decision.
fn marks_of(decision: &str) -> Map<String, Value> {
    let marks = json!({"lc_source": "hitl_interrupt_decision", "lc_data": {"decision": decision}});
    marks.as_object().cloned().unwrap_or_default()
}

#[test]
fn the_result_of_a_decision_about_a_single_call_is_marked() {
    let answers = [
        ("reject", json!({"type": "reject"})),
        (
            "respond",
            json!({"decisions": [{"type": "respond", "message": "paid by hand"}]}),
        ),
    ];
    for (decision, answer) in answers {
        let Some(ApprovalCheck::Answer(output)) = ApprovalCheck::of(&call("p", "pay"), &answer) else {
            panic!("{decision} has no result");
        };
        assert_eq!(output.writes.messages[0].additional_kwargs, marks_of(decision));
    }
}

#[tokio::test]
async fn rejections_and_responses_are_results() {
    let calls = [mail("m"), call("p", "pay"), call("q", "pay")];
    let decisions = json!([
        {"type": "reject", "message": "not now"}, {"type": "reject"}, {"type": "respond", "message": "paid by hand"},
    ]);
    let update = decided_by(&saying(&calls), decisions).await;
    let mut results: Vec<Message> = update
        .messages
        .iter()
        .skip(1)
        .map(|message| (**message).clone())
        .collect();
    let marks: Vec<Map<String, Value>> = results
        .iter_mut()
        .map(|result| std::mem::take(&mut result.additional_kwargs))
        .collect();
    assert_eq!(marks, ["reject", "reject", "respond"].map(marks_of));
    let default = "User rejected the tool call for `pay` with id p. The tool was not executed. \
        Do not retry this tool call unless the user explicitly requests it.";
    let expected = [
        Message::tool(
            &calls[0],
            ToolStatus::Error,
            "User rejected the tool call for `send_email` with reason: not now",
        ),
        Message::tool(&calls[1], ToolStatus::Error, default),
        Message::tool(&calls[2], ToolStatus::Success, "paid by hand"),
    ];
    assert_eq!(results, expected);
}

#[tokio::test]
async fn an_invalid_answer_repeats_the_question() {
    let state = saying(&[mail("m")]);
    let asked = question(&state).await;
    for answer in [
        json!("yes"),
        json!({"decisions": []}),
        json!({"decisions": [{"type": "odd"}]}),
    ] {
        assert_eq!(hook(&state, Some(answer)).await, Err(Halt::Ask(vec![asked.clone()])));
    }
}

#[tokio::test]
async fn an_old_edit_does_not_apply_to_a_new_call_with_the_same_id() {
    let action = json!({"name": "send_email", "args": {}});
    let cleared = BTreeMap::from([(EDITED_CALLS.to_owned(), json!({}))]);
    let mut state = saying(&[mail("m")]);
    state.fields.insert(EDITED_CALLS.to_owned(), json!({"m": action}));
    assert_eq!(
        question(&state).await.value["action_requests"][0]["args"],
        json!({"to": "a@b.c", "body": "hi"})
    );
    assert_eq!(decided_by(&state, json!([{"type": "approve"}])).await.fields, cleared);
    let mut free = saying(&[call("m", "lookup")]);
    free.fields.insert(EDITED_CALLS.to_owned(), json!({"m": action}));
    assert_eq!(
        hook(&free, None).await.map(|reaction| reaction.update.fields),
        Ok(cleared)
    );
}

#[tokio::test]
async fn the_result_of_an_edited_call_says_what_ran() {
    let mut state = saying(&[mail("m")]);
    let args = json!({"to": "edited@b.c", "body": "changed"});
    state.fields.insert(
        EDITED_CALLS.to_owned(),
        json!({"m": {"name": "send_email", "args": args}}),
    );
    let sent = ToolOutput::message(Message::tool(&mail("m"), ToolStatus::Success, "sent"));
    let answer = policy().receive(&Scope::sample(Timestamp(0)), &state, &mail("m"), sent);
    let expected = "Note: a human reviewer replaced this tool call before it ran. The call recorded in your message is \
        the one you produced, not the one that executed. This was intentional and authorized. Do not re-issue your \
        original call. Executed instead: send_email with arguments {\"to\": \"edited@b.c\", \"body\": \"changed\"}.\n\n\
        Tool response:\nsent";
    assert_eq!(answer.writes.messages[0].content, Content::from(expected));
}

/// Returns the schema of an answer about so many calls of a tool with these parameters.
fn schema_about(calls: usize, parameters: Value) -> SchemaText {
    let tool = ToolSpec {
        parameters,
        ..(*spec("pay", &[])).clone()
    };
    let decision = decision_schema(&DecisionKind::ALL, &DecisionScope::ALL);
    ActionSchemas::default().with_decisions(vec![decision; calls], vec![Arc::new(tool)])
}

/// Returns whether an answer to a question with this schema is refused if it edits the arguments of the only call to a text.
fn refuses_a_text(schema: &SchemaText) -> bool {
    let edit = json!({"type": "edit", "edited_action": {"name": "pay", "args": {"a": "text"}}});
    let compiled = Schema::compile_once(schema).expect("a schema within the limits");
    compiled.check("resume", &json!({"decisions": [edit]})).is_err()
}

#[test]
fn a_schema_of_an_answer_nests_no_deeper_than_answers_are_checked() {
    let mut embedded = 0;
    for levels in 1..40 {
        let inner = json!({"type": "object"});
        let parameters = (0..levels).fold(inner, |inner, _| json!({"type": "object", "properties": {"a": inner}}));
        embedded += i32::from(refuses_a_text(&schema_about(1, parameters)));
    }
    assert!((20..39).contains(&embedded), "{embedded}");
}

#[test]
fn a_schema_of_an_answer_about_many_calls_is_not_larger_than_answers_are_checked() {
    let many: Map<String, Value> = (0..1_000)
        .map(|at| (format!("p{at}"), json!({"type": "string"})))
        .collect();
    let mut parameters = json!({"type": "object", "properties": many});
    parameters["properties"]["a"] = json!({"type": "object"});
    assert!(refuses_a_text(&schema_about(1, parameters.clone())));
    let of_many = schema_about(30, parameters);
    assert!(Schema::compile_once(&of_many).is_ok());
    assert!(of_many.as_str().contains(r#""enum":["pay"]"#));
}

#[test]
fn the_schema_of_calls_is_that_of_the_present_tools() {
    let actions = ActionSchemas::default();
    let names = |schema: &SchemaText| schema.parse()["properties"]["name"]["enum"].clone();
    let both = || vec![spec("pay", &["to"]), spec("lookup", &["query"])];
    let first = actions.of(both());
    assert_eq!(names(&first), json!(["pay", "lookup"]));
    assert_eq!(actions.of(both()), first);
    let one = actions.of(vec![spec("pay", &["to"])]);
    assert_eq!(names(&one), json!(["pay"]));
    let changed = actions.of(vec![spec("pay", &["body"])]);
    assert_ne!(changed, one);
    for number in 0..2 * MAX_KEPT {
        actions.of(vec![spec(&format!("t{number}"), &[])]);
    }
    assert_eq!(actions.0.lock().expect("a list").len(), MAX_KEPT);
    for number in 0..6 {
        let name = format!("{number}{}", "x".repeat(MAX_KEPT_BYTES / 5 - 1_000));
        actions.of(vec![spec("large", &[name.as_str()])]);
    }
    assert_eq!(actions.0.lock().expect("a list").len(), 5);
    assert_eq!(actions.of(both()), first);
}
