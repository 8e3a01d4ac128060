//! Tools of MCP servers: programs that this process starts (stdio), and servers behind HTTP.
//!
//! Each server has a task that connects to it when it is first needed, or at the start, lists its tools, and reconnects when
//! the connection is lost. The tools of the last list stay on offer meanwhile; a call waits for the connection for a limited
//! time. Before the first list a run waits, and fails when the attempt to connect does, unless the server is not required.
//! The set of servers may change at any time. It also holds the services of [`super::remote::server`], whose tools are named
//! in the same way.
//!
//! `rmcp` speaks the protocol, over the transports of this module. Those of `rmcp` have no limits on the depth and the
//! number of values of a message, on the silence of a server and on the rate of its notifications, and they would end a
//! program without the programs that it has started.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use futures::future::BoxFuture;
use reqwest::Client;
use tokio_util::sync::CancellationToken;

use super::remote::server::{ServiceLimits, ServiceTool, ToolService};
use super::toolbox::{Tool, ToolSource};
use crate::definition::mcp::{self, McpReference, McpServerDefinition};
use crate::definition::servers::{McpOwner, OwnedServers, ServerDefinition};
use crate::domain::Invalid;
use crate::domain::identity::Tenant;
use crate::domain::machine::Failure;
use crate::domain::mcp_login::LoginKey;
use crate::domain::tenant::Tenants;
use crate::domain::time::Clock;
use crate::model::pieces::PieceLimits;

mod connection;
mod discovery;
mod elicitation;
mod error;
mod http;
mod inbox;
mod input;
mod listed_tool;
mod login_tool;
mod message;
mod notices;
mod oauth;
mod outcome;
mod request_headers;
mod server;
mod signals;
mod sse;
mod stdio;
mod tool;
mod transport;

pub use oauth::{
    AuthorizationCode, LoginStore, LoginStoreError, LoginTarget, PendingLogin, RedirectAnswer, revoke_tokens,
};

use login_tool::LoginTool;
use oauth::LoginParts;
use server::{Endpoint, McpServer};
use tool::McpTool;

/// Spawns a detached task.
pub type SpawnServer = Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>;

/// The limits on a server's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct McpLimits {
    /// The longest message that is read, in bytes.
    pub max_message_bytes: usize,
    /// The time limits for the pieces of an answer.
    pub pieces: PieceLimits,
}

/// The dependencies of all MCP connections.
pub struct McpEnvironment {
    /// The environment variables that every program inherits.
    pub inherited: BTreeMap<String, String>,
    /// The HTTP client.
    pub client: Client,
    /// The limits on messages.
    pub limits: McpLimits,
    /// The limits on the answers of services behind HTTP.
    pub answers: ServiceLimits,
    /// Spawns the connection tasks.
    pub spawn: SpawnServer,
    /// Cancelled at shutdown, to end the connection tasks.
    pub soft: CancellationToken,
    /// The logins to servers that require one; none if they cannot be read.
    pub logins: Option<Arc<dyn LoginStore>>,
    /// The clock by which tokens of logins expire.
    pub clock: Arc<dyn Clock>,
}

impl McpEnvironment {
    fn endpoint(&self, key: &ServerKey, definition: &McpServerDefinition) -> Result<Endpoint, Invalid> {
        let label = key.owner.label(&key.name);
        let own = key.tenant.as_ref().map(|tenant| LoginKey::new(Some(tenant), &label));
        let login = LoginParts {
            name: key.name.clone(),
            client: self.client.clone(),
            store: self.logins.clone(),
            clock: Arc::clone(&self.clock),
            spawn: Arc::clone(&self.spawn),
            keys: own.into_iter().chain([LoginKey::new(None, &label)]).collect(),
        };
        let endpoint = Endpoint::of(definition, &self.inherited, login);
        endpoint.map_err(|error| Invalid {
            field: format!("mcp_servers.{}.{}", key.name, error.field),
            ..error
        })
    }

    /// Connects to a server, lists its tools, and closes the connection. Returns the names of the tools that the
    /// definition allows.
    ///
    /// # Errors
    /// A text for the operator: the definition is invalid, or the server cannot be started or reached.
    pub async fn list_tools(
        &self,
        owner: McpOwner,
        name: &str,
        definition: &ServerDefinition,
    ) -> Result<Vec<String>, String> {
        let key = ServerKey {
            owner,
            name: name.to_owned(),
            tenant: None,
        };
        match self.create(&key, definition).map_err(|error| error.to_string())? {
            AnyServer::Mcp(server) => server.list_once().await,
            AnyServer::Http(service) => service.list_once().await,
        }
    }

    /// Creates a server. Its connection task is not started yet.
    fn create(&self, key: &ServerKey, definition: &ServerDefinition) -> Result<AnyServer, Invalid> {
        let name = &key.name;
        match definition {
            ServerDefinition::Mcp(definition) => {
                let endpoint = self.endpoint(key, definition)?;
                let server = McpServer::new(name, definition, endpoint, self.limits, Arc::clone(&self.spawn));
                Ok(AnyServer::Mcp(Arc::new(server)))
            }
            ServerDefinition::Http(definition) => {
                let service = ToolService::new(name, definition, self.client.clone(), self.answers);
                let service = service.map_err(|error| Invalid {
                    field: format!("tool_servers.{name}.{}", error.field),
                    ..error
                })?;
                Ok(AnyServer::Http(Arc::new(service)))
            }
        }
    }

    /// Starts the connection task of a server, which replaces `old`.
    fn start(
        &self,
        key: &ServerKey,
        definition: &ServerDefinition,
        old: Option<RunningServer>,
    ) -> Result<RunningServer, Invalid> {
        let spawn = &self.spawn;
        let stop = self.soft.child_token();
        let server = self.create(key, definition)?;
        match &server {
            AnyServer::Mcp(server) => spawn(Box::pin(Arc::clone(server).run(stop.clone()))),
            AnyServer::Http(service) => spawn(Box::pin(Arc::clone(service).run(stop.clone()))),
        }
        let replaced = old.and_then(|old| {
            if !old.server.is_in_use() {
                old.stop.cancel();
                return None;
            }
            server.connect_soon();
            let new = server.clone();
            let old_stop = old.stop;
            spawn(Box::pin(async move {
                // The old server is not kept for longer if the attempt fails: its definition may have tools and credentials that
                // the new one takes away, and runs would hide that the new one does not work.
                new.attempted().await;
                old_stop.cancel();
            }));
            Some(if old.server.is_attempted() {
                old.server
            } else {
                old.replaced.unwrap_or(old.server)
            })
        });
        Ok(RunningServer {
            definition: definition.clone(),
            server,
            stop,
            replaced,
        })
    }
}

/// The current MCP servers. Cheap to clone.
#[derive(Clone, Default)]
pub struct McpServers {
    /// `None` if MCP servers are not supported.
    environment: Option<Arc<McpEnvironment>>,
    running: Arc<RwLock<BTreeMap<ServerKey, RunningServer>>>,
    /// The settings of tenants. A tenant has a connection of its own to a server for whose address it has headers, and to one
    /// that requires a login, since it may have one of its own.
    tenants: Arc<Tenants>,
    /// The tenant whose agents use the servers, if it has settings.
    tenant: Option<Tenant>,
}

/// The key of a connection to a server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ServerKey {
    owner: McpOwner,
    name: String,
    /// The tenant whose headers and login it has; none for all others.
    tenant: Option<Tenant>,
}

/// A server with its connection task.
struct RunningServer {
    definition: ServerDefinition,
    server: AnyServer,
    /// Ends the connection task.
    stop: CancellationToken,
    /// The replaced server. Its tools stay on offer until the new server has listed its own.
    replaced: Option<AnyServer>,
}

/// A server of either kind.
#[derive(Clone)]
enum AnyServer {
    Mcp(Arc<McpServer>),
    Http(Arc<ToolService>),
}

impl AnyServer {
    /// Returns whether it is connected before its tools are needed.
    fn connects_at_start(&self) -> bool {
        match self {
            Self::Mcp(server) => server.connects_at_start,
            Self::Http(_) => true,
        }
    }

    /// Returns whether it is connected already, or tries to be.
    fn is_in_use(&self) -> bool {
        match self {
            Self::Mcp(server) => server.is_in_use(),
            Self::Http(_) => true,
        }
    }

    /// Has it connect, if it waits until it is needed.
    fn connect_soon(&self) {
        match self {
            Self::Mcp(server) => server.connect_soon(),
            Self::Http(_) => {}
        }
    }

    fn is_attempted(&self) -> bool {
        match self {
            Self::Mcp(server) => server.is_attempted(),
            Self::Http(service) => service.is_attempted(),
        }
    }

    async fn attempted(&self) {
        match self {
            Self::Mcp(server) => server.attempted().await,
            Self::Http(service) => service.attempted().await,
        }
    }

    fn tools(&self) -> Vec<AnyTool> {
        match self {
            Self::Mcp(server) => {
                let listed = server.tools();
                match LoginTool::of(server).filter(|_| listed.is_empty()) {
                    Some(tool) => vec![AnyTool::Login(Arc::new(tool))],
                    None => {
                        let tools = listed.into_iter().map(|listed| McpTool::new(server, listed));
                        tools.map(AnyTool::Mcp).collect()
                    }
                }
            }
            Self::Http(service) => service.tools().into_iter().map(AnyTool::Http).collect(),
        }
    }
}

/// A tool of a server of either kind.
enum AnyTool {
    Mcp(McpTool),
    /// The one in place of all tools of a server to which nobody has logged in.
    Login(Arc<LoginTool>),
    Http(Arc<ServiceTool>),
}

impl AnyTool {
    /// Returns the tool's name at its server.
    fn name(&self) -> &str {
        match self {
            Self::Mcp(tool) => tool.name(),
            Self::Login(_) => LoginTool::NAME,
            Self::Http(tool) => &tool.name,
        }
    }

    fn into_tool(self) -> Arc<dyn Tool> {
        match self {
            Self::Mcp(tool) => Arc::new(tool),
            Self::Login(tool) => tool,
            Self::Http(tool) => tool,
        }
    }
}

impl RunningServer {
    fn tools(&self) -> Vec<AnyTool> {
        match &self.replaced {
            Some(replaced) if !self.server.is_attempted() => replaced.tools(),
            Some(_) | None => self.server.tools(),
        }
    }
}

impl McpServers {
    /// Creates an empty set of servers.
    pub fn new(environment: McpEnvironment) -> Self {
        Self {
            environment: Some(Arc::new(environment)),
            ..Self::default()
        }
    }

    /// Returns the servers with these settings of tenants.
    #[must_use]
    pub fn with_tenants(self, tenants: Arc<Tenants>) -> Self {
        Self { tenants, ..self }
    }

    /// Returns the same servers as the agents of a tenant use them: with its headers, and only the tools that it may use.
    #[must_use]
    pub fn for_tenant(&self, tenant: &Tenant) -> Self {
        Self {
            tenant: Some(tenant.clone()),
            ..self.clone()
        }
    }

    /// Returns all connections to these servers: the one for all tenants, and those of tenants with headers for it, or for
    /// which there may be a login.
    fn connections(&self, wanted: &OwnedServers) -> BTreeMap<ServerKey, ServerDefinition> {
        let mut all = BTreeMap::new();
        for ((owner, name), definition) in wanted {
            let shared = ServerKey {
                owner: owner.clone(),
                name: name.clone(),
                tenant: None,
            };
            for (tenant, settings) in self.tenants.iter() {
                let own = match settings.headers_for(definition.url(), definition.headers()) {
                    Some(headers) => definition.clone().with_headers(headers),
                    None if definition.needs_login() => definition.clone(),
                    None => continue,
                };
                let key = ServerKey {
                    tenant: Some(tenant.clone()),
                    ..shared.clone()
                };
                all.insert(key, own);
            }
            all.insert(shared, definition.clone());
        }
        all
    }

    /// Checks that all of these definitions are valid.
    ///
    /// # Errors
    /// The field of a definition that is invalid.
    pub fn verify(&self, wanted: &OwnedServers) -> Result<(), Invalid> {
        let Some(environment) = &self.environment else {
            return Ok(());
        };
        self.connections(wanted)
            .iter()
            .try_for_each(|(key, definition)| environment.create(key, definition).map(drop))
    }

    /// Replaces the set of servers; unchanged servers keep their connections. A changed server stays connected until
    /// its replacement has listed its tools or has failed to, and answers the calls made before. Returns whether anything
    /// has changed.
    ///
    /// # Errors
    /// The field of a definition that is invalid; nothing changes then.
    pub fn replace(&self, wanted: &OwnedServers) -> Result<bool, Invalid> {
        self.verify(wanted)?;
        let Some(environment) = &self.environment else {
            return Ok(false);
        };
        let wanted = self.connections(wanted);
        let mut running = self.running.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = false;
        running.retain(|key, old| {
            let is_kept = wanted.contains_key(key);
            if !is_kept {
                changed = true;
                old.stop.cancel();
            }
            is_kept
        });
        for (key, definition) in wanted {
            if running.get(&key).is_some_and(|old| old.definition == definition) {
                continue;
            }
            changed = true;
            let new = environment.start(&key, &definition, running.remove(&key))?;
            running.insert(key, new);
        }
        Ok(changed)
    }

    /// Waits until each server that is connected at the start has listed its tools, or its `start_timeout_s` is over.
    pub async fn ready(&self) {
        let all: Vec<AnyServer> = {
            let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
            let servers = running.values().map(|running| running.server.clone());
            servers.filter(AnyServer::connects_at_start).collect()
        };
        for server in all {
            server.attempted().await;
        }
    }

    /// Returns the names of the servers that all agents may use.
    pub fn common(&self) -> BTreeSet<String> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        running
            .keys()
            .filter(|key| key.owner == McpOwner::Everyone)
            .map(|key| key.name.clone())
            .collect()
    }

    /// Returns sources for the tools that `owner` refers to as `server/tool` or `server/*`; other names are ignored, and so
    /// are tools that the tenant may not use.
    pub fn sources<'a>(&self, names: impl Iterator<Item = &'a String>, owner: &McpOwner) -> Vec<Arc<dyn ToolSource>> {
        let mut wanted: BTreeMap<&str, Option<BTreeSet<String>>> = BTreeMap::new();
        for reference in names.filter_map(|name| McpReference::read(name)) {
            let only = wanted.entry(reference.server).or_insert_with(|| Some(BTreeSet::new()));
            match reference.tool {
                Some(tool) => only.iter_mut().for_each(|only| only.extend([tool.to_owned()])),
                None => *only = None,
            }
        }
        let source = |(name, only): (&str, Option<BTreeSet<String>>)| -> Arc<dyn ToolSource> {
            Arc::new(Selection {
                servers: self.clone(),
                name: name.to_owned(),
                keys: self.lookup_order(name, owner),
                only,
            })
        };
        wanted.into_iter().map(source).collect()
    }

    /// Returns the keys of a server in the order in which it is looked up: those of the tenant precede.
    fn lookup_order(&self, name: &str, owner: &McpOwner) -> Vec<ServerKey> {
        let mut keys = vec![];
        for owner in owner.lookup_order() {
            let shared = ServerKey {
                owner,
                name: name.to_owned(),
                tenant: None,
            };
            keys.extend(self.tenant.clone().map(|tenant| ServerKey {
                tenant: Some(tenant),
                ..shared.clone()
            }));
            keys.push(shared);
        }
        keys
    }

    /// Returns whether the tenant may use a tool of a server.
    fn allows(&self, server: &str, tool: &str) -> bool {
        let settings = self.tenant.as_ref().map(|tenant| self.tenants.of(tenant));
        settings.is_none_or(|settings| settings.tools.allows(&format!("{server}/{tool}")))
    }

    /// Returns the first of these servers that exists; none if that is no MCP server.
    fn mcp_server(&self, keys: &[ServerKey]) -> Option<Arc<McpServer>> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        match &keys.iter().find_map(|key| running.get(key))?.server {
            AnyServer::Mcp(server) => Some(Arc::clone(server)),
            AnyServer::Http(_) => None,
        }
    }

    /// Returns the tools of the first of these servers that exists.
    fn tools(&self, keys: &[ServerKey]) -> Vec<AnyTool> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter()
            .find_map(|key| running.get(key))
            .map(RunningServer::tools)
            .unwrap_or_default()
    }
}

/// Some or all tools of one server.
struct Selection {
    servers: McpServers,
    /// The name of the server.
    name: String,
    /// The possible keys of the server; the first that exists counts.
    keys: Vec<ServerKey>,
    only: Option<BTreeSet<String>>,
}

impl ToolSource for Selection {
    fn tools(&self) -> Vec<Arc<dyn Tool>> {
        let is_wanted = |tool: &AnyTool| {
            let is_named = self.only.as_ref().is_none_or(|only| only.contains(tool.name()));
            let is_offered = is_named || matches!(tool, AnyTool::Login(_));
            is_offered && self.servers.allows(&self.name, tool.name())
        };
        let tools = self.servers.tools(&self.keys).into_iter().filter(is_wanted);
        tools.map(AnyTool::into_tool).collect()
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut waited_for: Option<Arc<McpServer>> = None;
            while let Some(server) = self.mcp_server() {
                // It may have been replaced meanwhile.
                if waited_for.as_ref().is_some_and(|other| Arc::ptr_eq(other, &server)) {
                    return;
                }
                server.listed().await;
                waited_for = Some(server);
            }
        })
    }

    fn problem(&self) -> Option<Failure> {
        self.mcp_server()?.problem()
    }

    fn is_required(&self) -> bool {
        self.mcp_server().is_none_or(|server| server.is_required)
    }

    fn may_have(&self, name: &str) -> bool {
        match &self.only {
            Some(only) => only.iter().any(|tool| mcp::model_name(&self.name, tool) == name),
            None => name.starts_with(&format!("{}__", self.name)),
        }
    }
}

impl Selection {
    /// Returns the server, if it is one of MCP with a tool that the tenant may use.
    fn mcp_server(&self) -> Option<Arc<McpServer>> {
        let may_use = |tool: &String| self.servers.allows(&self.name, tool);
        let is_used = self.only.as_ref().is_none_or(|only| only.iter().any(may_use));
        is_used.then(|| self.servers.mcp_server(&self.keys)).flatten()
    }
}
