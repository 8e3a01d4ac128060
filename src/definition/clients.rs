//! The models, tools and agents that definitions of clients may use.

/// The names that definitions of clients may use: none, unless the configuration lists them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientRules {
    /// True if clients may define agents.
    pub enabled: bool,
    /// Tools, tools of MCP servers (`server/tool`), programs and registered policies, by name. A name that ends in `*`
    /// means all names that begin with the part before it.
    pub tools: Vec<String>,
    /// Models, as `provider:model-name`; `provider:*` means all models of a provider.
    pub models: Vec<String>,
    /// Agents that subagents may be: agents of this server by `graph_id`, agents of other servers by address.
    pub agents: Vec<String>,
}

impl ClientRules {
    /// The message if clients may not define agents.
    pub const DISABLED: &str = "this server takes no definitions from clients: `enabled = true` in the section \
        `[agents_api]` of its configuration allows them";
}
