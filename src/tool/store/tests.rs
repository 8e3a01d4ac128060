use serde_json::json;

use super::*;
use crate::domain::time::Timestamp;
use crate::tool::items::ItemsInMemory;

struct Desk {
    scope: Scope,
    items: ItemsInMemory,
    tools: Vec<Arc<dyn Tool>>,
}

impl Desk {
    fn new(labels: &[&str]) -> Self {
        let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        let template = NamespaceTemplate::read(&labels).expect("a template");
        let items = ItemsInMemory::default();
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

    /// What a call says, and what it changes, which is carried out.
    async fn calls(&self, name: &str, args: Value) -> Result<(String, Vec<ItemChange>), String> {
        let tool = self.tools.iter().find(|tool| tool.spec().name == name).expect("a tool");
        let call = ToolCall::new("c", name, args.as_object().cloned().expect("an object"));
        match tool.call(&self.scope, &State::default(), &call).await {
            Ok(CallOutcome::Answer(answer)) => {
                answer.changes.iter().for_each(|change| self.items.apply(change));
                Ok((answer.writes.messages[0].content.text(), answer.changes))
            }
            Ok(CallOutcome::Delegate(_)) => panic!("nobody is asked"),
            Err(Halt::Fail(failure)) => Err(failure.message),
            Err(halt) => panic!("{halt:?}"),
        }
    }
}

#[tokio::test]
async fn what_is_put_is_part_of_the_answer_and_can_be_read_then() {
    let desk = Desk::new(&["memories", "{user}"]);
    let put = json!({"key": "food", "value": {"likes": "fish"}, "namespace": ["facts"]});
    let (said, changes) = desk.calls("store_put", put).await.expect("it works");
    assert_eq!(said, "Stored under `food`.");
    let [ItemChange::Put(draft)] = changes.as_slice() else {
        panic!("{changes:?}")
    };
    assert_eq!(draft.address.namespace.labels(), ["memories", "u1", "facts"]);
    let get = json!({"key": "food", "namespace": ["facts"]});
    assert_eq!(
        desk.calls("store_get", get.clone()).await.expect("it works").0,
        r#"{"likes":"fish"}"#
    );
    let found = desk.calls("store_search", json!({})).await.expect("it works").0;
    let found: Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!(&found[0]["namespace"], &json!(["facts"]));
    assert_eq!(&found[0]["key"], &json!("food"));
    desk.calls("store_delete", get.clone()).await.expect("it works");
    assert_eq!(
        desk.calls("store_get", get).await.expect("it works").0,
        "There is nothing under `food`."
    );
    assert_eq!(
        desk.calls("store_search", json!({})).await.expect("it works").0,
        "Nothing was found."
    );
}

#[tokio::test]
async fn a_model_cannot_leave_its_namespace() {
    let desk = Desk::new(&["memories", "{user}"]);
    for wrong in [json!(["a.b"]), json!([""]), json!(vec!["x"; 40])] {
        let refused = desk.calls("store_get", json!({"key": "k", "namespace": wrong})).await;
        assert!(
            refused.as_ref().is_err_and(|text| text.starts_with("namespace")),
            "{refused:?}"
        );
    }
    desk.calls("store_put", json!({"key": "", "value": {}}))
        .await
        .expect_err("there is no such key");
}

#[tokio::test]
async fn a_run_that_says_too_little_of_itself_has_no_memory() {
    let desk = Desk::new(&["memories", "{team}"]);
    let refused = desk
        .calls("store_get", json!({"key": "k"}))
        .await
        .expect_err("it is refused");
    assert_eq!(
        refused,
        "There is no memory for this run: the context of the run says nothing of `team`."
    );
}

#[tokio::test]
async fn the_server_knows_better_than_the_context_who_is_asked() {
    let mut desk = Desk::new(&["{assistant_id}"]);
    desk.scope.context = Arc::new(Map::from_iter([("assistant_id".to_owned(), json!("another"))]));
    let (_, changes) = desk
        .calls("store_put", json!({"key": "k", "value": {}}))
        .await
        .expect("it works");
    let [ItemChange::Put(draft)] = changes.as_slice() else {
        panic!("{changes:?}")
    };
    assert_eq!(draft.address.namespace.labels(), [desk.scope.assistant.to_string()]);
}

#[test]
fn readers_have_no_tools_that_write() {
    let template = NamespaceTemplate::read(&["m".to_owned()]).expect("a template");
    let names: Vec<String> = tools(&template, true)
        .iter()
        .map(|tool| tool.spec().name.clone())
        .collect();
    assert_eq!(names, ["store_get", "store_search"]);
}
