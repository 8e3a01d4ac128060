//! What can be asked: every operation of the served document, and what exists to ask it about.

use serde_json::{Value, json};

use super::server::Server;

/// One operation of the document.
#[derive(Debug, Clone)]
pub(crate) struct Operation {
    /// The method, in capitals.
    pub(crate) method: String,
    /// The path, with its variables in braces.
    pub(crate) path: String,
    /// The names of its parameters in the query.
    pub(crate) query: Vec<String>,
    /// The names of the fields of its body; none when it has no body.
    pub(crate) fields: Option<Vec<String>>,
}

/// All operations, and ids of things that exist.
pub(crate) struct Places {
    /// Every operation of the document.
    pub(crate) operations: Vec<Operation>,
    /// Values for the variables of paths, by the name of the variable.
    ids: Vec<(&'static str, String)>,
}

impl Places {
    /// The id of something that exists, for this variable of a path.
    pub(crate) fn id(&self, variable: &str) -> &str {
        self.ids
            .iter()
            .find(|(name, _)| *name == variable)
            .map_or("nothing", |(_, id)| id)
    }
}

/// Reads the document, and makes a thread with a run, an assistant and a cron.
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

/// The names of the fields of an object with this schema, or of the items of a list of such.
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
