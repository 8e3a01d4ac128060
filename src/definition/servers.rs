//! Servers of either kind, and their owners.

use std::collections::BTreeMap;

use super::agent::{AgentDefinition, with_fields_mut};
use super::diagnostic::FieldPath;
use super::mcp::McpServerDefinition;
use super::tool_server::ToolServerDefinition;
use crate::domain::headers::Headers;

/// A server of tools of either kind.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerDefinition {
    /// A server of the Model Context Protocol.
    Mcp(Box<McpServerDefinition>),
    /// A service behind HTTP that describes its tools itself.
    Http(Box<ToolServerDefinition>),
}

impl From<McpServerDefinition> for ServerDefinition {
    fn from(definition: McpServerDefinition) -> Self {
        Self::Mcp(Box::new(definition))
    }
}

impl From<ToolServerDefinition> for ServerDefinition {
    fn from(definition: ToolServerDefinition) -> Self {
        Self::Http(Box::new(definition))
    }
}

impl ServerDefinition {
    /// Returns the address of a server behind HTTP; empty for a program.
    pub fn url(&self) -> &str {
        match self {
            Self::Mcp(server) => server.url.as_deref().unwrap_or_default(),
            Self::Http(server) => &server.url,
        }
    }

    /// Returns whether an operator has to log in before the server can be used.
    pub fn needs_login(&self) -> bool {
        match self {
            Self::Mcp(server) => server.needs_login(),
            Self::Http(_) => false,
        }
    }

    /// Returns the headers of its requests.
    pub fn headers(&self) -> &Headers {
        match self {
            Self::Mcp(server) => &server.headers,
            Self::Http(server) => &server.headers,
        }
    }

    /// Returns the definition with other headers.
    #[must_use]
    pub fn with_headers(mut self, headers: Headers) -> Self {
        match &mut self {
            Self::Mcp(server) => server.headers = headers,
            Self::Http(server) => server.headers = headers,
        }
        self
    }
}

/// The owner of a server. Only the owner, and its subagents, can name the server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum McpOwner {
    /// The configuration; all agents can name it.
    #[default]
    Everyone,
    /// The agent with this `graph_id`.
    Agent(String),
    /// A subagent of the agent with this `graph_id`.
    Subagent(String, String),
}

impl McpOwner {
    /// Returns the name under which operators find a server of this owner: `name`, `agent/name` or `agent/subagent/name`.
    pub fn label(&self, name: &str) -> String {
        match self {
            Self::Everyone => name.to_owned(),
            Self::Agent(agent) => format!("{agent}/{name}"),
            Self::Subagent(agent, subagent) => format!("{agent}/{subagent}/{name}"),
        }
    }

    /// Returns the owners whose servers this owner can name, in the order in which a server is looked up.
    pub fn lookup_order(&self) -> Vec<Self> {
        let mut all = vec![self.clone()];
        if let Self::Subagent(agent, _) = self {
            all.push(Self::Agent(agent.clone()));
        }
        if *self != Self::Everyone {
            all.push(Self::Everyone);
        }
        all
    }
}

/// Servers, by owner and name.
pub type OwnedServers = BTreeMap<(McpOwner, String), ServerDefinition>;

impl AgentDefinition {
    /// Returns the servers of the agent of this `graph_id` and of its subagents.
    pub fn own_servers(&self, graph_id: &str) -> OwnedServers {
        let mut servers = OwnedServers::new();
        let agent = McpOwner::Agent(graph_id.to_owned());
        servers.extend(
            self.mcp_servers
                .iter()
                .map(|(name, server)| ((agent.clone(), name.clone()), server.clone().into())),
        );
        for subagent in &self.subagents {
            let owner = McpOwner::Subagent(graph_id.to_owned(), subagent.name.clone());
            let own = subagent.mcp_servers.iter();
            servers.extend(own.map(|(name, server)| ((owner.clone(), name.clone()), server.clone().into())));
        }
        servers
    }

    /// Returns the definition without MCP servers, which may hold secrets: the part of a file that is stored.
    #[must_use]
    pub fn without_servers(&self) -> Self {
        let mut without = self.clone();
        without.mcp_servers.clear();
        without
            .subagents
            .iter_mut()
            .for_each(|subagent| subagent.mcp_servers.clear());
        without
    }

    /// Returns the servers that are defined here, with their fields.
    pub fn servers_mut(&mut self) -> impl Iterator<Item = (FieldPath, &mut McpServerDefinition)> {
        let below = with_fields_mut(&mut self.subagents);
        let below = below.flat_map(|(field, subagent)| servers_of(field, &mut subagent.mcp_servers));
        servers_of(FieldPath::default(), &mut self.mcp_servers).chain(below)
    }
}

/// Returns the servers of the agent in `field`, with their fields.
fn servers_of(
    field: FieldPath,
    servers: &mut BTreeMap<String, McpServerDefinition>,
) -> impl Iterator<Item = (FieldPath, &mut McpServerDefinition)> {
    let list = field.then("mcp_servers");
    servers
        .iter_mut()
        .map(move |(name, server)| (list.then(name.as_str()), server))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_looked_for_outwards() {
        let subagent = McpOwner::Subagent("a".to_owned(), "b".to_owned());
        let agent = McpOwner::Agent("a".to_owned());
        assert_eq!(
            subagent.lookup_order(),
            [subagent.clone(), agent.clone(), McpOwner::Everyone]
        );
        assert_eq!(agent.lookup_order(), [agent.clone(), McpOwner::Everyone]);
    }
}
