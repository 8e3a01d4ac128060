//! The checks of what agents refer to outside this server: MCP servers, services of tools, and agents of other servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Context;

use super::super::mcp_logins::ServerLogins;
use super::super::{database_limits, definitions, mcp_servers_environment, peers};
use super::{CheckOutcome, PlannedCheck};
use crate::config::{Config, DatabaseUrl};
use crate::db::inspection::inspect_logins;
use crate::db::{DbError, DbLimits};
use crate::definition::mcp::McpReference;
use crate::definition::servers::{McpOwner, OwnedServers, ServerDefinition};
use crate::definition::{Headers, Location};
use crate::domain::mcp_login::LoginKey;
use crate::domain::suggestion::nearest;
use crate::domain::time::{Clock, SystemClock};
use crate::peer::Peers;
use crate::shutdown::Shutdown;
use crate::tool::mcp::McpEnvironment;
use crate::tool::remote;

/// The tools that agents name, by the server that they mean.
type NamedTools = BTreeMap<(McpOwner, String), BTreeSet<String>>;

/// Returns one check for each MCP server and each service of tools.
pub(super) fn servers(config: &Config, shutdown: &Shutdown) -> anyhow::Result<Vec<PlannedCheck>> {
    let client = remote::client().context("could not create the HTTP client for tools")?;
    let logins = ServerLogins {
        store: None,
        clock: Arc::new(SystemClock),
    };
    let environment: Arc<McpEnvironment> = Arc::new(mcp_servers_environment(client, &config.answers, logins, shutdown));
    let servers = definitions::of_files(config).all_servers();
    let mut named = named_tools(config, &servers);
    let planned = servers.into_iter().map(|(key, definition)| {
        let wanted = named.remove(&key).unwrap_or_default();
        let environment = Arc::clone(&environment);
        let (owner, name) = key;
        let label = owner.label(&name);
        if definition.needs_login() {
            let url = config.storage.session_url().clone();
            let found = find_login(
                url,
                database_limits(&config.storage),
                label.clone(),
                definition.url().to_owned(),
            );
            return PlannedCheck::new("mcp_server", label, found);
        }
        let kind = match &definition {
            ServerDefinition::Mcp(_) => "mcp_server",
            ServerDefinition::Http(_) => "tool_server",
        };
        PlannedCheck::new(kind, label, async move {
            match environment.list_tools(owner, &name, &definition).await {
                Ok(tools) => describe_tools(&name, &tools, &wanted),
                Err(reason) => unavailable(&definition, &reason),
            }
        })
    });
    Ok(planned.collect())
}

/// Returns the finding about a server that did not list its tools. The reason continues a sentence.
fn unavailable(definition: &ServerDefinition, reason: &str) -> CheckOutcome {
    match definition {
        ServerDefinition::Mcp(server) => {
            let advice = "check its `command`, `args` and `env`, or its `url` and `headers`";
            match server.required {
                true => CheckOutcome::fail(format!("the server {reason}"), advice),
                false => CheckOutcome::warn(format!("the server {reason}; runs go on without its tools"), advice),
            }
        }
        ServerDefinition::Http(_) => CheckOutcome::fail(
            format!("the server {reason}"),
            "check that the service runs, and its `url` and `headers`",
        ),
    }
}

/// Finds out whether an operator has logged in to a server. The server is not asked: its token is encrypted.
async fn find_login(url: DatabaseUrl, limits: DbLimits, server: String, address: String) -> CheckOutcome {
    let key = LoginKey::new(None, &server);
    let advice = format!("run `{}`", key.login_command());
    let logins = match inspect_logins(url.expose(), limits).await {
        Ok(logins) => logins,
        Err(error @ DbError::InUse { .. }) => {
            return CheckOutcome::warn(
                format!("it cannot be looked up whether an operator has logged in: {error}"),
                "fine if that is this server, whose log says so when an agent needs a login that nobody has made",
            );
        }
        Err(error) => {
            return CheckOutcome::fail(
                format!("it cannot be looked up whether an operator has logged in: {error}"),
                "correct what the check of the database says",
            );
        }
    };
    let mut of_server = logins.iter().filter(|login| login.key.server == server);
    let now = SystemClock.now();
    let Some(login) = of_server.clone().find(|login| login.key == key) else {
        return match of_server.next() {
            Some(_) => CheckOutcome::warn("an operator has logged in for some tenants only", advice),
            None => CheckOutcome::fail("no operator has logged in", advice),
        };
    };
    match login.problem(&address, now) {
        Some(problem) => CheckOutcome::fail(problem, advice),
        None => CheckOutcome::ok(format!(
            "logged in since {}; it was not called",
            login.logged_in_at.to_second()
        )),
    }
}

fn describe_tools(server: &str, listed: &[String], wanted: &BTreeSet<String>) -> CheckOutcome {
    let Some(missing) = wanted.iter().find(|tool| !listed.contains(tool)) else {
        let tools = match listed.len() {
            1 => "1 tool".to_owned(),
            count => format!("{count} tools"),
        };
        return CheckOutcome::ok(format!("lists {tools}"));
    };
    let meant = nearest(missing, listed.iter().map(String::as_str));
    let advice = match meant {
        Some(meant) => format!("did you mean `{server}/{meant}`?"),
        None => format!("it lists: {}", listed.join(", ")),
    };
    let message = format!("agents name `{server}/{missing}`, which the server does not list or which is disabled");
    CheckOutcome::fail(message, advice)
}

fn named_tools(config: &Config, servers: &OwnedServers) -> NamedTools {
    let mut named = NamedTools::new();
    let mut add = |owner: &McpOwner, tools: &[String]| {
        for reference in tools.iter().filter_map(|name| McpReference::read(name)) {
            let Some(tool) = reference.tool else { continue };
            let keys = owner.lookup_order().into_iter();
            let mut keys = keys.map(|owner| (owner, reference.server.to_owned()));
            if let Some(key) = keys.find(|key| servers.contains_key(key)) {
                named.entry(key).or_default().insert(tool.to_owned());
            }
        }
    };
    for (graph_id, agent) in &config.agents {
        add(&McpOwner::Agent(graph_id.clone()), &agent.tools);
        for subagent in &agent.subagents {
            let owner = McpOwner::Subagent(graph_id.clone(), subagent.name.clone());
            add(&owner, subagent.tools.as_deref().unwrap_or_default());
        }
    }
    named
}

/// Returns one check for each agent of another server.
pub(super) fn remote_agents(config: &Config, shutdown: &Shutdown) -> anyhow::Result<Vec<PlannedCheck>> {
    let peers = peers(config, shutdown).context("could not create the HTTP client for remote agents")?;
    let mut planned = vec![];
    for (graph_id, agent) in &config.agents {
        if let Some((remote_id, url)) = agent.remote() {
            let peers = peers.clone();
            let headers = agent.headers.clone();
            let remote_id = remote_id.to_owned();
            let url = url.to_owned();
            planned.push(PlannedCheck::new("remote_agent", graph_id.clone(), async move {
                find_agent(&peers, &headers, &remote_id, &url).await
            }));
        }
        let remote = agent.subagents.iter().filter_map(|subagent| {
            let Location::Remote { graph_id, url } = subagent.location() else {
                return None;
            };
            Some((subagent, graph_id.to_owned(), url.to_owned()))
        });
        for (subagent, remote_id, url) in remote {
            let peers = peers.clone();
            let name = format!("{graph_id}/{}", subagent.name);
            let headers = subagent.headers.clone();
            planned.push(PlannedCheck::new("remote_agent", name, async move {
                find_agent(&peers, &headers, &remote_id, &url).await
            }));
        }
    }
    Ok(planned)
}

async fn find_agent(peers: &Peers, headers: &Headers, graph_id: &str, url: &str) -> CheckOutcome {
    let advice = "start the other server, or correct the `url` and `headers` of the agent";
    let peer = match peers.peer(url, &headers.0, true) {
        Ok(peer) => peer,
        Err(error) => return CheckOutcome::fail(error.to_string(), advice),
    };
    let place = peer.display_url();
    if let Err(error) = peer.info().await {
        return CheckOutcome::fail(format!("the server {place} cannot be used: {error}"), advice);
    }
    match peer.has_agent(graph_id).await {
        Ok(true) => CheckOutcome::ok(format!("the server {place} has the agent `{graph_id}`")),
        Ok(false) => CheckOutcome::fail(
            format!("the server {place} has no agent `{graph_id}`"),
            "correct the `graph_id` of the agent",
        ),
        Err(error) => CheckOutcome::warn(
            format!("the server {place} answers, but its agents could not be listed: {error}"),
            "check the `headers` of the agent",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    #[test]
    fn a_tool_that_is_not_listed_is_reported_with_the_nearest_one() {
        let listed = ["search", "fetch"].map(str::to_owned);
        let wanted = |name: &str| [name.to_owned()].into();
        let found = describe_tools("docs", &listed, &wanted("serch"));
        assert_eq!(found.status, CheckStatus::Fail);
        assert_eq!(found.advice.as_deref(), Some("did you mean `docs/search`?"));
        assert_eq!(
            describe_tools("docs", &listed, &wanted("fetch")).status,
            CheckStatus::Ok
        );
    }
}
