//! `adjutant agents`.

use serde_json::{Value, json};

use super::{items, text, time};
use crate::client::api::ApiClient;
use crate::client::error::{ClientError, ClientResult};
use crate::client::escape;
use crate::client::output::{fields, print_list, print_one};
use crate::client::table::Table;
use crate::config::client::AgentsCommand;

/// Executes a command.
pub(in crate::client) async fn run(api: &ApiClient, command: &AgentsCommand) -> ClientResult<()> {
    match command {
        AgentsCommand::List {
            name, limit, output, ..
        } => {
            let agents = list(api, name.as_deref(), *limit).await?;
            print_list(output.format(), &agents, || table(&agents))
        }
        AgentsCommand::Show { agent, output, .. } => {
            let found = api.get(&["agents", agent], &[]).await?;
            print_one(output.format(), &found, || page(&found))
        }
        AgentsCommand::Graph { agent, output, .. } => {
            let graph = api.get(&["assistants", agent, "graph"], &[("xray", "true")]).await?;
            print_one(output.format(), &graph, || describe_graph(&graph))
        }
    }
}

/// Returns the agents of a server. Callers who may not read definitions, and servers that have none, have assistants.
pub(in crate::client) async fn list(api: &ApiClient, name: Option<&str>, limit: u32) -> ClientResult<Vec<Value>> {
    let mut body = json!({"limit": limit});
    if let Some(name) = name {
        body["name"] = json!(name);
    }
    match api.post(&["agents", "search"], &body).await {
        Ok(agents) => Ok(items(agents)),
        Err(error) if error.is_refusal(&[403, 404, 405]) => {
            Ok(items(api.post(&["assistants", "search"], &body).await?))
        }
        Err(error) => Err(error),
    }
}

/// Returns the agent with which a chat begins if none is named: the only one, or the one called `agent`.
pub(in crate::client) async fn default_agent(api: &ApiClient) -> ClientResult<String> {
    const NAMED: u32 = 20;
    let agents = list(api, None, NAMED).await?;
    let mut names: Vec<String> = agents.iter().map(|agent| text(agent, "graph_id")).collect();
    names.dedup();
    match names.as_slice() {
        [] => Err(ClientError::NotFound("the server has no agents".to_owned())),
        [only] => Ok(only.clone()),
        names if names.iter().any(|name| name == "agent") => Ok("agent".to_owned()),
        names => Err(ClientError::Usage(format!(
            "name the agent, one of: {}",
            names.join(", ")
        ))),
    }
}

/// Returns a table of agents.
pub(in crate::client) fn table(agents: &[Value]) -> Table {
    let mut table = Table::new(&["AGENT", "USABLE", "SOURCE", "MODEL", "SUBAGENTS", "DESCRIPTION"]);
    for agent in agents {
        let definition = &agent["definition"];
        let description = text(definition, "description");
        table.add(vec![
            text(agent, "graph_id"),
            text(agent, "usable"),
            text(agent, "source"),
            worker(definition),
            subagents(definition).join(", "),
            if description.is_empty() {
                text(agent, "description")
            } else {
                description
            },
        ]);
    }
    table
}

/// Returns the model of an agent, or the program that it is, or the agent of another server that it is.
fn worker(definition: &Value) -> String {
    let all = [
        text(definition, "model"),
        text(definition, "runnable"),
        remote(definition),
    ];
    all.into_iter().find(|one| !one.is_empty()).unwrap_or_default()
}

fn remote(definition: &Value) -> String {
    match (definition["graph_id"].as_str(), definition["url"].as_str()) {
        (Some(graph_id), Some(url)) => format!("{graph_id} at {url}"),
        (_, _) => String::new(),
    }
}

fn subagents(definition: &Value) -> Vec<String> {
    let all = definition["subagents"].as_array().into_iter().flatten();
    all.map(|subagent| text(subagent, "name")).collect()
}

fn page(agent: &Value) -> String {
    let definition = &agent["definition"];
    let list = |field: &str| {
        let names = definition[field].as_array().into_iter().flatten();
        names
            .map(|name| name.as_str().map_or_else(|| name.to_string(), str::to_owned))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let problems = agent["problems"].as_array().into_iter().flatten();
    let problems: Vec<String> = problems.map(|problem| text(problem, "message")).collect();
    let mut page = fields(&[
        ("Agent", text(agent, "graph_id")),
        ("Name", text(definition, "name")),
        ("Description", text(definition, "description")),
        ("Assistant", text(agent, "assistant_id")),
        ("Source", text(agent, "source")),
        ("File", text(agent, "file")),
        ("Version", text(agent, "version")),
        ("Usable", text(agent, "usable")),
        ("Problems", problems.join("\n")),
        ("Updated", time(agent, "updated_at")),
        ("Model", text(definition, "model")),
        ("Program", text(definition, "runnable")),
        ("Remote", remote(definition)),
        ("Tools", list("tools")),
        ("Approvals", approvals(definition)),
        ("Instructions", text(definition, "system_prompt")),
    ]);
    for subagent in definition["subagents"].as_array().into_iter().flatten() {
        page.push('\n');
        let tools = subagent["tools"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        page.push_str(&fields(&[
            ("Subagent", text(subagent, "name")),
            ("Description", text(subagent, "description")),
            ("Model", text(subagent, "model")),
            ("Tools", tools.collect::<Vec<_>>().join(", ")),
            ("Approvals", approvals(subagent)),
        ]));
    }
    page
}

/// Returns the tools whose calls a human has to approve.
fn approvals(definition: &Value) -> String {
    let rules = definition["interrupt_on"].as_object();
    let names = rules.map(|rules| {
        rules
            .iter()
            .filter(|rule| rule.1 != &json!(false))
            .map(|rule| rule.0.clone())
    });
    names
        .map(|names| names.collect::<Vec<_>>().join(", "))
        .unwrap_or_default()
}

/// Returns the nodes with the edges that leave them.
fn describe_graph(graph: &Value) -> String {
    let edges: Vec<&Value> = graph["edges"].as_array().into_iter().flatten().collect();
    let mut lines = String::new();
    for node in graph["nodes"].as_array().into_iter().flatten() {
        let id = text(node, "id");
        lines.push_str(&escape::line(&id));
        lines.push('\n');
        for edge in edges.iter().filter(|edge| text(edge, "source") == id) {
            let arrow = if edge["conditional"] == true { "⇢" } else { "→" };
            let label = text(edge, "data");
            let label = if label.is_empty() { label } else { format!(" ({label})") };
            let target = text(edge, "target");
            lines.push_str(&format!("  {}\n", escape::line(&format!("{arrow} {target}{label}"))));
        }
    }
    lines
}
