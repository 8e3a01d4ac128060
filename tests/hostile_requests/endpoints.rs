//! The targets of requests: every operation of the served OpenAPI document, and existing resources.

use serde_json::{Value, json};

use super::server::Server;

/// One operation of the OpenAPI document.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    /// The HTTP method, in capitals.
    pub(crate) method: String,
    /// The path, with its variables in braces.
    pub(crate) path: String,
    /// The names of its query parameters.
    pub(crate) query: Vec<String>,
    /// The names of the fields of its body; `None` if it has no body.
    pub(crate) fields: Option<Vec<String>>,
}

/// All operations, and the ids of existing resources.
pub(crate) struct Places {
    /// Every operation of the document.
    pub(crate) operations: Vec<Operation>,
    /// The values of path variables, by name.
    ids: Vec<(&'static str, String)>,
}

impl Places {
    /// Returns the id of an existing resource for this path variable.
    pub(crate) fn id(&self, variable: &str) -> &str {
        self.ids
            .iter()
            .find(|(name, _)| *name == variable)
            .map_or("nothing", |(_, id)| id)
    }
}

/// Reads the document, and creates a thread with a run, an assistant and a cron.
pub(crate) async fn places(server: &Server) -> Places {
    let client = server.client();
    let document = client.get("/openapi.json").await;
    let operations = operations(&document);
    assert!(
        operations.len() > 60,
        "the document has only {} operations",
        operations.len()
    );
    let thread = client.post("/threads", json!({})).await["thread_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let input = json!({"messages": [{"role": "user", "content": "hello"}]});
    let run = client
        .post(
            &format!("/threads/{thread}/runs"),
            json!({"assistant_id": "plain", "input": input}),
        )
        .await;
    let run = run["run_id"].as_str().unwrap().to_owned();
    client.get(&format!("/threads/{thread}/runs/{run}/join")).await;
    let state = client.get(&format!("/threads/{thread}/state")).await;
    let checkpoint = state["checkpoint"]["checkpoint_id"].as_str().unwrap().to_owned();
    let assistant = client.post("/assistants", json!({"graph_id": "plain"})).await;
    let assistant = assistant["assistant_id"].as_str().unwrap().to_owned();
    let cron = client
        .post("/runs/crons", json!({"assistant_id": "plain", "schedule": "0 0 1 1 *"}))
        .await;
    let cron = cron["cron_id"].as_str().unwrap().to_owned();
    let ids = vec![
        ("thread_id", thread),
        ("run_id", run),
        ("checkpoint_id", checkpoint),
        ("assistant_id", assistant),
        ("cron_id", cron),
        ("graph_id", "plain".to_owned()),
    ];
    Places { operations, ids }
}

fn operations(document: &Value) -> Vec<Operation> {
    let mut all = vec![];
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "patch", "delete"] {
            let Some(operation) = item.get(method) else { continue };
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            let in_query = parameters.iter().filter(|parameter| parameter["in"] == "query");
            let query = in_query
                .filter_map(|parameter| parameter["name"].as_str())
                .map(str::to_owned)
                .collect();
            let body = operation
                .get("requestBody")
                .map(|body| &body["content"]["application/json"]["schema"]);
            let fields = body.map(|schema| fields(document, schema));
            all.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                query,
                fields,
            });
        }
    }
    all
}

/// Returns the field names of an object schema, or of the items of an array schema.
fn fields(document: &Value, schema: &Value) -> Vec<String> {
    if let Some(name) = schema["$ref"]
        .as_str()
        .and_then(|reference| reference.rsplit('/').next())
    {
        return fields(document, &document["components"]["schemas"][name]);
    }
    if schema["type"] == "array" {
        return fields(document, &schema["items"]);
    }
    schema["properties"]
        .as_object()
        .map(|all| all.keys().cloned().collect())
        .unwrap_or_default()
}
