use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::domain::json_limits::MAX_DEPTH;

fn messages(value: Value) -> Vec<Message> {
    let update = read_input(&json!({ "messages": value })).expect("the input is good");
    update.messages.iter().map(|message| (**message).clone()).collect()
}

fn refused(input: Value) -> String {
    read_input(&input).expect_err("the input is bad").to_string()
}

#[test]
fn a_text_is_a_humans_message() {
    assert_eq!(messages(json!("hello")), vec![Message::human("hello")]);
    assert_eq!(
        messages(json!(["a", "b"])),
        vec![Message::human("a"), Message::human("b")]
    );
}

#[test]
fn a_message_may_come_alone() {
    assert_eq!(
        messages(json!({"role": "user", "content": "hi", "id": "h1"})),
        vec![Message::human("hi").with_id("h1")]
    );
}

#[test]
fn a_pair_names_the_role_first() {
    assert_eq!(messages(json!([["assistant", "hi"]])), vec![Message::ai("hi")]);
}

#[test]
fn every_spelling_of_a_role_is_known() {
    let of = |role: &str| {
        messages(json!([{"role": role, "content": "x", "tool_call_id": "c", "id": "i"}]))[0]
            .role
            .clone()
    };
    assert_eq!(of("user"), Role::Human);
    assert_eq!(of("human"), Role::Human);
    assert!(matches!(of("assistant"), Role::Ai { .. }));
    assert!(matches!(of("ai"), Role::Ai { .. }));
    assert_eq!(of("system"), Role::System);
    assert_eq!(of("developer"), Role::System);
    assert!(matches!(of("tool"), Role::Tool { .. }));
    assert!(matches!(of("function"), Role::Tool { .. }));
    assert_eq!(of("remove"), Role::Remove);
}

#[test]
fn type_is_another_name_of_role() {
    assert_eq!(
        messages(json!([{"type": "human", "content": "x"}])),
        vec![Message::human("x")]
    );
}

/// Returns an instance as LangChain serialises it.
fn instance(package: [&str; 2], class: &str, kwargs: Value) -> Value {
    json!({"lc": 1, "type": "constructor", "id": [package[0], package[1], class], "kwargs": kwargs})
}

#[test]
fn an_instance_of_langchain_is_the_message_of_its_arguments() {
    let cases = [
        ("HumanMessage", "human"),
        ("HumanMessageChunk", "human"),
        ("AIMessage", "ai"),
        ("AIMessageChunk", "ai"),
        ("SystemMessage", "system"),
        ("SystemMessageChunk", "system"),
        ("ToolMessage", "tool"),
        ("ToolMessageChunk", "tool"),
        ("FunctionMessage", "function"),
        ("RemoveMessage", "remove"),
    ];
    let kwargs = json!({"content": [{"type": "text", "text": "x"}], "id": "i", "name": "n", "tool_call_id": "c",
        "status": "error", "artifact": {"a": 1}, "additional_kwargs": {"k": 1}, "response_metadata": {"m": 2},
        "tool_calls": [{"name": "f", "args": {"a": 1}, "id": "c1", "type": "tool_call"}], "invalid_tool_calls": []});
    for (class, role) in cases {
        let mut plain = kwargs.clone();
        plain["role"] = json!(role);
        for package in [["langchain_core", "messages"], ["langchain", "schema"]] {
            let sent = instance(package, class, kwargs.clone());
            assert_eq!(messages(json!([sent])), messages(json!([plain.clone()])), "{class}");
        }
    }
    let chat = instance(
        ["langchain_core", "messages"],
        "ChatMessage",
        json!({"role": "user", "content": "hi"}),
    );
    assert_eq!(messages(chat), vec![Message::human("hi")]);
}

#[test]
fn an_instance_that_is_no_message_is_refused_by_its_class() {
    let refused_as = |sent: Value| refused(json!({"messages": ["a", sent]}));
    let of = |class: &str, kwargs: Value| refused_as(instance(["langchain_core", "messages"], class, kwargs));
    let error = of("PromptTemplate", json!({}));
    assert!(
        error.starts_with("messages[1].id: names the class \"PromptTemplate\", but allowed are: HumanMessage, "),
        "{error}"
    );
    assert!(of("HumanMessage", json!({})).starts_with("messages[1].kwargs.content: is missing"));
    assert!(of("HumanMessage", json!("hi")).starts_with("messages[1].kwargs: must be an object"));
    assert!(of("ChatMessage", json!({"content": "x"})).starts_with("messages[1].kwargs.role: is missing"));
    let robot = json!({"role": "robot", "content": "x"});
    assert!(of("ChatMessage", robot).starts_with("messages[1].kwargs.role: is \"robot\""));
    let nameless = json!({"lc": 1, "type": "constructor", "id": [], "kwargs": {"content": "x"}});
    assert!(refused_as(nameless).starts_with("messages[1].id: must be a list"));
    let empty = json!({"lc": 1, "type": "constructor", "id": ["langchain_core", "messages", "HumanMessage"]});
    assert!(refused_as(empty).starts_with("messages[1].kwargs: is missing"));
}

#[test]
fn calls_come_in_two_forms() {
    let plain = messages(json!([{"role": "ai", "tool_calls": [{"id": "c", "name": "f", "args": {"a": 1}}]}]));
    let openai = messages(json!([{"role": "assistant", "content": null, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}]));
    assert_eq!(plain, openai);
    assert_eq!(plain[0].tool_calls()[0].args["a"], 1);
}

#[test]
fn invalid_arguments_make_an_invalid_call() {
    let message = &messages(json!([{"role": "ai", "tool_calls": [
        {"id": "c", "function": {"name": "f", "arguments": "{oops"}}]}]))[0];
    assert!(message.tool_calls().is_empty());
    assert_eq!(message.invalid_tool_calls()[0].args.as_deref(), Some("{oops"));
}

#[test]
fn a_stored_message_can_be_sent_back() {
    let stored = Message::ai("yes").with_id("m1");
    let sent = serde_json::to_value(&stored).expect("messages are JSON");
    assert_eq!(messages(json!([sent])), vec![stored]);
}

#[test]
fn content_that_is_null_is_empty() {
    for role in ["user", "system", "assistant", "tool"] {
        let sent = messages(json!([{"role": role, "content": null, "tool_call_id": "c"}]));
        assert_eq!(sent[0].content, Content::default(), "{role}");
    }
}

#[test]
fn errors_name_the_field() {
    assert!(
        refused(json!({"messages": ["a", "b", {"role": "robot", "content": ""}]})).starts_with("messages[2].role: is")
    );
    assert!(refused(json!({"messages": [{"content": "x"}]})).starts_with("messages[0].role: is missing"));
    assert!(refused(json!({"messages": [{"role": "user"}]})).starts_with("messages[0].content: is missing"));
    assert!(refused(json!({"messages": [{"role": "user", "content": 7}]})).starts_with("messages[0].content: must be"));
    assert!(refused(json!({"messages": [["a", "b", "c"]]})).starts_with("messages[0]: must be a pair"));
    assert!(refused(json!({"messages": [["robot", "b"]]})).starts_with("messages[0][0]: is"));
    assert!(refused(json!({"messages": [{"role": "tool", "content": "x"}]})).starts_with("messages[0].tool_call_id"));
    assert!(refused(json!({"messages": 7})).starts_with("messages: must be"));
    assert!(refused(json!({"files": {"/a": 7}})).starts_with("files[\"/a\"]: must be"));
    assert!(refused(json!({"files": {"/a": {}}})).starts_with("files[\"/a\"].content: is missing"));
    assert!(refused(json!("hello")).starts_with("input: must be an object"));
    let call = json!({"messages": [{"role": "ai", "tool_calls": [{"id": "c", "name": "f", "args": []}]}]});
    assert!(refused(call).starts_with("messages[0].tool_calls[0].args: must be an object"));
}

#[test]
fn files_may_be_texts_and_null_deletes() {
    let input = json!({"files": {"/a": "text", "/b": null, "/c": {"content": ["l1", "l2"]}}});
    let files = read_input(&input).expect("the input is good").files;
    assert_eq!(files["/a"].as_ref().expect("a file").content, "text");
    assert_eq!(files["/b"], None);
    assert_eq!(files["/c"].as_ref().expect("a file").content, "l1\nl2");
}

#[test]
fn private_and_output_fields_are_ignored_in_input() {
    let input =
        json!({"topic": "x", "todos": [], "_hidden": 1, "hitl_edited_tool_calls": {}, "structured_response": {}});
    let update = read_input(&input).expect("the input is good");
    assert_eq!(update.fields.keys().collect::<Vec<_>>(), ["topic"]);
}

#[test]
fn a_state_write_may_set_output_fields_but_no_private_ones() {
    let update = read_update(&json!({"todos": [], "_hidden": 1})).expect("the values are good");
    assert_eq!(update.fields.keys().collect::<Vec<_>>(), ["todos"]);
}

#[test]
fn a_list_of_updates_is_applied_in_order() {
    let update = read_update(&json!([{"topic": "x"}, {"topic": "y"}])).expect("the values are good");
    assert_eq!(update.fields["topic"], "y");
    assert!(read_update(&json!([{"topic": "x"}, 7])).is_err_and(|error| error.field == "[1]"));
}

#[test]
fn an_input_that_is_no_object_is_refused_with_the_way_out() {
    for input in [
        json!([{"role": "user", "content": "z"}]),
        json!([]),
        json!("z"),
        json!(7),
        json!(true),
    ] {
        let error = refused(input);
        assert!(
            error.starts_with(r#"input: must be an object of state fields, as in {"messages": [...]}, not "#),
            "{error}"
        );
    }
    assert_eq!(read_input(&Value::Null), Ok(Update::none()));
}

#[test]
fn too_many_messages_are_refused() {
    assert!(refused(json!({"messages": vec!["x"; MAX_MESSAGES + 1]})).starts_with("messages: has 10001"));
}

#[test]
fn an_input_that_nests_too_deeply_is_refused() {
    let deep = (0..MAX_DEPTH).fold(json!("x"), |inner, _| json!([inner]));
    assert!(read_input(&json!({"topic": deep})).is_err());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "(user|ai|tool|remove|[a-z]{0,4})".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(
                ("(messages|files|role|type|content|id|tool_calls|[a-z]{1,3})", inner),
                0..5
            )
            .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_input_makes_it_panic(value in any_json()) {
        let _ = read_input(&value);
        let _ = read_input(&json!({ "messages": value }));
    }
}

#[test]
fn clients_may_delete_and_pin_skills_but_not_write_them() {
    let update = read_input(&json!({"skills_metadata": null, "pinned_skills": ["a"]})).expect("the input is good");
    assert_eq!(
        update.fields,
        [
            ("pinned_skills".to_owned(), json!(["a"])),
            ("skills_metadata".to_owned(), Value::Null)
        ]
        .into()
    );
    let given =
        read_input(&json!({"skills_metadata": [{"name": "x"}], "skills_load_errors": []})).expect("it is ignored");
    assert!(given.is_empty());
    assert!(refused(json!({"pinned_skills": [1]})).contains("pinned_skills: must be a list of names of skills"));
    assert!(refused(json!({"pinned_skills": vec!["x"; 33]})).contains("32 are allowed"));
}
