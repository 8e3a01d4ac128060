use serde_json::json;

use super::*;
use crate::domain::time::Timestamp;
use crate::tool::items::InMemoryItems;
use crate::tool::scope::ContextEntries;

struct StoreTools {
    scope: Scope,
    items: InMemoryItems,
    tools: Vec<Arc<dyn Tool>>,
}

impl StoreTools {
    fn new(labels: &[&str]) -> Self {
        let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        let template = NamespaceTemplate::read(&labels).expect("a template");
        let items = InMemoryItems::default();
        let scope = Scope {
            store: Arc::new(items.clone()),
            ..Scope::sample(Timestamp(0))
        };
        Self {
            scope,
            items,
            tools: tools(&template, false),
        }
    }

    /// Makes a call, applies its changes, and returns the text of its result and the changes.
    async fn call_tool(&self, name: &str, args: Value) -> Result<(String, Vec<ItemChange>), String> {
        let tool = self.tools.iter().find(|tool| tool.spec().name == name).expect("a tool");
        let call = ToolCall::new("c", name, args.as_object().cloned().expect("an object"));
        match tool.call(&self.scope, &State::default(), &call).await {
            Ok(CallOutcome::Answer(answer)) => {
                answer.changes.iter().for_each(|change| self.items.apply(change));
                Ok((answer.writes.messages[0].content.text(), answer.changes))
            }
            Ok(CallOutcome::Delegate(_)) => panic!("a store tool does not delegate"),
            Err(Halt::Fail(failure)) => Err(failure.message),
            Err(halt) => panic!("{halt:?}"),
        }
    }
}

#[tokio::test]
async fn a_put_is_part_of_the_result_and_can_be_read_afterwards() {
    let store_tools = StoreTools::new(&["memories", "{user}"]);
    let put = json!({"key": "food", "value": {"likes": "fish"}, "namespace": ["facts"]});
    let (text, changes) = store_tools.call_tool("store_put", put).await.expect("a result");
    assert_eq!(text, "Stored under `food`.");
    let [ItemChange::Put(draft)] = changes.as_slice() else {
        panic!("{changes:?}")
    };
    assert_eq!(draft.address.namespace.labels(), ["memories", "u1", "facts"]);
    let get = json!({"key": "food", "namespace": ["facts"]});
    assert_eq!(
        store_tools
            .call_tool("store_get", get.clone())
            .await
            .expect("a result")
            .0,
        r#"{"likes":"fish"}"#
    );
    let found = store_tools
        .call_tool("store_search", json!({}))
        .await
        .expect("a result")
        .0;
    let found: Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!(&found[0]["namespace"], &json!(["facts"]));
    assert_eq!(&found[0]["key"], &json!("food"));
    store_tools
        .call_tool("store_delete", get.clone())
        .await
        .expect("a result");
    assert_eq!(
        store_tools.call_tool("store_get", get).await.expect("a result").0,
        "There is nothing under `food`."
    );
    assert_eq!(
        store_tools
            .call_tool("store_search", json!({}))
            .await
            .expect("a result")
            .0,
        "Nothing was found."
    );
}

#[tokio::test]
async fn a_model_cannot_leave_its_namespace() {
    let store_tools = StoreTools::new(&["memories", "{user}"]);
    for wrong in [json!(["a.b"]), json!([""]), json!(vec!["x"; 40])] {
        let refused = store_tools
            .call_tool("store_get", json!({"key": "k", "namespace": wrong}))
            .await;
        assert!(
            refused.as_ref().is_err_and(|text| text.starts_with("namespace")),
            "{refused:?}"
        );
    }
    store_tools
        .call_tool("store_put", json!({"key": "", "value": {}}))
        .await
        .expect_err("there is no such key");
}

#[tokio::test]
async fn a_run_without_the_context_of_the_template_has_no_memory() {
    let store_tools = StoreTools::new(&["memories", "{team}"]);
    let refused = store_tools
        .call_tool("store_get", json!({"key": "k"}))
        .await
        .expect_err("a refusal");
    assert_eq!(
        refused,
        "There is no memory for this run: the context of the run has no `team`."
    );
}

#[tokio::test]
async fn the_assistant_id_comes_from_the_server_and_not_from_the_context() {
    let mut store_tools = StoreTools::new(&["{assistant_id}"]);
    let given = || Map::from_iter([("assistant_id".to_owned(), json!("another"))]);
    store_tools.scope.context = ContextEntries::new(given);
    let (_, changes) = store_tools
        .call_tool("store_put", json!({"key": "k", "value": {}}))
        .await
        .expect("a result");
    let [ItemChange::Put(draft)] = changes.as_slice() else {
        panic!("{changes:?}")
    };
    assert_eq!(
        draft.address.namespace.labels(),
        [store_tools.scope.assistant.to_string()]
    );
}

#[test]
fn read_only_access_has_no_tools_that_write() {
    let template = NamespaceTemplate::read(&["m".to_owned()]).expect("a template");
    let names: Vec<String> = tools(&template, true)
        .iter()
        .map(|tool| tool.spec().name.clone())
        .collect();
    assert_eq!(names, ["store_get", "store_search"]);
}
