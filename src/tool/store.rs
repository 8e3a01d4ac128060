//! The tools with which an agent remembers things beyond its thread. They reach one namespace, and what lies below it.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::halt::Halt;
use super::outcome::CallOutcome;
use super::scope::Scope;
use super::toolbox::Tool;
use crate::domain::Invalid;
use crate::domain::call::ToolOutput;
use crate::domain::item::template::NamespaceTemplate;
use crate::domain::item::{
    FoundItem, Indexing, Item, ItemAddress, ItemChange, ItemError, ItemFilter, ItemLifetime, ItemQuery, ItemSearch,
    Namespace, NewItem,
};
use crate::domain::machine::Failure;
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::state::State;
use crate::model::ToolSpec;

/// The default number of items that one search shows.
const FOUND: u32 = 10;
/// The most items that one search shows.
const MOST_FOUND: u32 = 50;

/// The operation of a tool of the Store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Get,
    Search,
    Put,
    Delete,
}

/// The tools of an agent whose items lie where `template` says; only those that read, if `read_only`.
pub fn tools(template: &NamespaceTemplate, read_only: bool) -> Vec<Arc<dyn Tool>> {
    let all = [Action::Get, Action::Search, Action::Put, Action::Delete];
    let wanted = all
        .into_iter()
        .filter(|action| !read_only || matches!(action, Action::Get | Action::Search));
    let tool = |action: Action| -> Arc<dyn Tool> {
        Arc::new(StoreTool {
            spec: Arc::new(action.spec()),
            action,
            template: template.clone(),
        })
    };
    wanted.map(tool).collect()
}

impl Action {
    fn spec(self) -> ToolSpec {
        let key = json!({"type": "string", "description": "The item's key, unique where it lies."});
        let (name, description, own, required) = match self {
            Self::Get => (
                "store_get",
                "Reads one item of the long-term memory, which outlives this conversation.",
                json!({"key": key}),
                json!(["key"]),
            ),
            Self::Search => (
                "store_search",
                "Finds items of the long-term memory, which outlives this conversation: by what they are about (`query`), \
                 by what their fields say (`filter`), or all of them.",
                json!({
                    "query": {"type": "string", "description": "What the items are about, in words."},
                    "filter": {"type": "object", "description": "Fields and their values, as in {\"kind\": \"note\", \
                        \"year\": {\"$gte\": 2020}}. Operators: $eq, $ne, $gt, $gte, $lt, $lte."},
                    "limit": {"type": "integer", "minimum": 1, "maximum": MOST_FOUND},
                    "offset": {"type": "integer", "minimum": 0},
                }),
                json!([]),
            ),
            Self::Put => (
                "store_put",
                "Writes an item to the long-term memory, which outlives this conversation, in place of what is under that \
                 key. It can be read from the next message on.",
                json!({
                    "key": key,
                    "value": {"type": "object", "description": "What is to be remembered, as a JSON object."},
                }),
                json!(["key", "value"]),
            ),
            Self::Delete => (
                "store_delete",
                "Removes an item from the long-term memory.",
                json!({"key": key}),
                json!(["key"]),
            ),
        };
        let mut properties = own.as_object().cloned().unwrap_or_default();
        properties.insert(
            "namespace".to_owned(),
            json!({
                "type": "array", "items": {"type": "string"},
                "description": "Where in the memory, as a path of labels without periods; its top if left out.",
            }),
        );
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        ToolSpec {
            name: name.to_owned(),
            description: description.to_owned(),
            parameters,
        }
    }
}

/// Returns the value of a placeholder of a workspace that the server itself knows: no client can choose it.
pub(super) fn server_value(scope: &Scope, name: &str) -> Option<String> {
    match name {
        "assistant_id" => Some(scope.assistant.to_string()),
        "thread_id" => Some(scope.thread.to_string()),
        "agent_name" => Some(scope.agent.clone()),
        "tenant" => Some(scope.ownership.tenant.as_str().to_owned()),
        "user_id" => Some(scope.ownership.owner.as_str().to_owned()).filter(|user| !user.is_empty()),
        _ => None,
    }
}

/// Returns the value of a placeholder in a namespace of the Store.
pub(super) fn placeholder(scope: &Scope, name: &str) -> Option<String> {
    match name {
        "assistant_id" | "thread_id" | "agent_name" => server_value(scope, name),
        name => match scope.context.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        },
    }
}

struct StoreTool {
    spec: Arc<ToolSpec>,
    action: Action,
    template: NamespaceTemplate,
}

impl StoreTool {
    /// The namespace of this run, under which nothing but its own items lie.
    fn root(&self, scope: &Scope) -> Result<Namespace, Failure> {
        self.template.fill(|name| placeholder(scope, name)).map_err(|unfilled| {
            let text = format!("There is no memory for this run: {unfilled}.");
            Failure::new("StoreAccessError", text)
        })
    }

    /// The text for the model, and the change to be stored with it.
    async fn carry_out(&self, scope: &Scope, asked: &Map<String, Value>) -> Result<(String, Vec<ItemChange>), Failure> {
        let root = self.root(scope)?;
        let place = place(&root, asked).map_err(|error| Failure::new("InvalidItemError", error.to_string()))?;
        if self.action == Action::Search {
            return Ok((search(scope, place, root.labels().len(), asked).await?, vec![]));
        }
        let key = asked.get("key").and_then(Value::as_str).unwrap_or_default();
        let address = ItemAddress::new(place, key).map_err(|error| invalid(&error))?;
        Ok(match self.action {
            Action::Get | Action::Search => (get(scope, address).await?, vec![]),
            Action::Put => {
                let value = asked
                    .get("value")
                    .and_then(Value::as_object)
                    .cloned()
                    .unwrap_or_default();
                let item = NewItem {
                    address,
                    value,
                    lifetime: ItemLifetime::default(),
                    indexing: Indexing::default(),
                };
                (
                    format!("Stored under `{key}`."),
                    vec![ItemChange::Put(scope.store.draft(item).await?)],
                )
            }
            Action::Delete => (
                format!("There is nothing under `{key}` any more."),
                vec![ItemChange::Delete(address)],
            ),
        })
    }
}

async fn get(scope: &Scope, address: ItemAddress) -> Result<String, Failure> {
    let key = address.key.clone();
    let found = scope.store.get(address).await?;
    Ok(found.map_or_else(
        || format!("There is nothing under `{key}`."),
        |item| Value::Object(item.value).to_string(),
    ))
}

async fn search(scope: &Scope, place: Namespace, depth: usize, asked: &Map<String, Value>) -> Result<String, Failure> {
    let number = |name: &str, default: u32| {
        asked
            .get(name)
            .and_then(Value::as_u64)
            .map_or(default, |given| u32::try_from(given).unwrap_or(u32::MAX))
    };
    let filter = asked.get("filter").and_then(Value::as_object);
    let filter = filter
        .map(|filter| ItemFilter::read("filter", filter))
        .transpose()
        .map_err(|error| invalid(&error))?;
    let wanted = ItemSearch {
        prefix: place,
        filter: filter.unwrap_or_default(),
        limit: number("limit", FOUND).clamp(1, MOST_FOUND),
        offset: number("offset", 0).min(i32::MAX.unsigned_abs()),
    };
    let query = asked.get("query").and_then(Value::as_str).map(str::to_owned);
    let found = scope
        .store
        .search(ItemQuery {
            wanted,
            query,
            refresh: None,
        })
        .await?;
    if found.is_empty() {
        return Ok("Nothing was found.".to_owned());
    }
    Ok(Value::Array(found.into_iter().map(|found| item_json(found, depth)).collect()).to_string())
}

/// An item as a model sees it: with its place below the agent's own namespace.
fn item_json(found: FoundItem, depth: usize) -> Value {
    let Item {
        address,
        value,
        updated_at,
        ..
    } = found.item;
    let place: Vec<&String> = address.namespace.labels().iter().skip(depth).collect();
    let mut shown =
        json!({"namespace": place, "key": address.key, "value": value, "updated_at": updated_at.to_string()});
    if let Some(score) = found.score {
        shown["score"] = json!(score);
    }
    shown
}

fn invalid(error: &Invalid) -> Failure {
    Failure::new("InvalidItemError", error.to_string())
}

/// The place that a model named, below `root`.
fn place(root: &Namespace, asked: &Map<String, Value>) -> Result<Namespace, ItemError> {
    let labels = asked.get("namespace").and_then(Value::as_array).into_iter().flatten();
    root.below(labels.filter_map(Value::as_str).map(str::to_owned).collect())
}

#[async_trait]
impl Tool for StoreTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    async fn call(&self, scope: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let (text, changes) = self.carry_out(scope, &call.args).await.map_err(Halt::Fail)?;
        let answer = ToolOutput::message(Message::tool(call, ToolStatus::Success, text));
        Ok(CallOutcome::Answer(ToolOutput { changes, ..answer }))
    }
}

#[cfg(test)]
mod tests;
