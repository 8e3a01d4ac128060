//! Tools of MCP servers: programs that are started and restarted, and servers behind HTTP.
//!
//! Each server has a keeper, which connects to it, asks for its tools, and connects again when the connection is lost. The
//! tools that were told last stay on offer meanwhile; a call waits for the connection for a while. Of the protocol only
//! what tools need is spoken. Which servers there are may change at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use futures::future::BoxFuture;
use reqwest::Client;
use tokio_util::sync::CancellationToken;

use super::{Tool, ToolSource};
use crate::definition::mcp::{McpOwner, McpReference, McpServerDefinition, OwnedServers};
use crate::domain::Invalid;
use crate::model::pieces::PieceLimits;

mod http;
mod message;
mod outcome;
mod server;
mod sse;
mod stdio;
mod tool;
mod waiting;
mod wire;

use server::{McpServer, Place};
use tool::McpTool;

/// Starts a task that nobody waits for.
pub type Spawn = Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>;

/// The bounds of what servers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct McpLimits {
    /// The longest message that is read, in bytes.
    pub max_message_bytes: usize,
    /// How long nothing of an answer may arrive.
    pub pieces: PieceLimits,
}

/// What servers are reached with.
pub struct McpGround {
    /// The environment variables that every program sees.
    pub inherited: BTreeMap<String, String>,
    /// Talks to servers behind HTTP.
    pub client: Client,
    /// How much is read of a server, and how long it may take to answer.
    pub limits: McpLimits,
    /// Starts the keepers.
    pub spawn: Spawn,
    /// Ends them.
    pub soft: CancellationToken,
}

impl McpGround {
    fn place(&self, name: &str, definition: &McpServerDefinition) -> Result<Place, Invalid> {
        let place = Place::of(definition, &self.inherited, &self.client);
        place.map_err(|error| Invalid {
            field: format!("mcp_servers.{name}.{}", error.field),
            ..error
        })
    }

    /// Starts the keeper of a server, which stands in the place of `old` from now on.
    fn start(&self, name: &str, definition: &McpServerDefinition, old: Option<Running>) -> Result<Running, Invalid> {
        let spawn = &self.spawn;
        let stop = self.soft.child_token();
        let place = self.place(name, definition)?;
        let server = McpServer::new(name, definition, (place, self.limits), Arc::clone(spawn));
        let server = Arc::new(server);
        spawn(Box::pin(Arc::clone(&server).keep(stop.clone())));
        let before = old.map(|old| {
            let new = Arc::clone(&server);
            let left = old.stop;
            spawn(Box::pin(async move {
                new.tried().await;
                left.cancel();
            }));
            if old.server.is_tried() {
                old.server
            } else {
                old.before.unwrap_or(old.server)
            }
        });
        Ok(Running {
            definition: definition.clone(),
            server,
            stop,
            before,
        })
    }
}

/// The MCP servers that there are now. Cheap to clone.
#[derive(Clone, Default)]
pub struct McpServers {
    /// Without it there can be none.
    ground: Option<Arc<McpGround>>,
    running: Arc<RwLock<BTreeMap<(McpOwner, String), Running>>>,
}

/// A server with its keeper.
struct Running {
    definition: McpServerDefinition,
    server: Arc<McpServer>,
    /// Ends its keeper.
    stop: CancellationToken,
    /// The one in whose place it stands. Its tools stay on offer until this one has told its own.
    before: Option<Arc<McpServer>>,
}

impl Running {
    fn tools(&self) -> Vec<Arc<McpTool>> {
        match &self.before {
            Some(before) if !self.server.is_tried() => before.tools(),
            Some(_) | None => self.server.tools(),
        }
    }
}

impl McpServers {
    /// None yet.
    pub fn new(ground: McpGround) -> Self {
        Self {
            ground: Some(Arc::new(ground)),
            running: Arc::default(),
        }
    }

    /// Whether all of these can be used.
    ///
    /// # Errors
    /// Names the field of a definition that cannot.
    pub fn verify(&self, wanted: &OwnedServers) -> Result<(), Invalid> {
        let Some(ground) = &self.ground else { return Ok(()) };
        wanted
            .iter()
            .try_for_each(|((_, name), definition)| ground.place(name, definition).map(drop))
    }

    /// Has these servers from now on and no others; those that stay the same go on undisturbed. One that is to be another
    /// one is left only when its successor has told its tools, and answers the calls that it was asked before. Returns
    /// whether anything has changed.
    ///
    /// # Errors
    /// Names the field of a definition that cannot be used; nothing changes then.
    pub fn replace(&self, wanted: &OwnedServers) -> Result<bool, Invalid> {
        self.verify(wanted)?;
        let Some(ground) = &self.ground else { return Ok(false) };
        let mut running = self.running.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = false;
        running.retain(|key, old| {
            let stays = wanted.contains_key(key);
            if !stays {
                changed = true;
                old.stop.cancel();
            }
            stays
        });
        for (key, definition) in wanted {
            if running.get(key).is_some_and(|old| old.definition == *definition) {
                continue;
            }
            changed = true;
            let new = ground.start(&key.1, definition, running.remove(key))?;
            running.insert(key.clone(), new);
        }
        Ok(changed)
    }

    /// Returns when each has told its tools or has had its time.
    pub async fn ready(&self) {
        let all: Vec<Arc<McpServer>> = {
            let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
            running.values().map(|running| Arc::clone(&running.server)).collect()
        };
        for server in all {
            server.tried().await;
        }
    }

    /// The names of the servers that all agents may use.
    pub fn common(&self) -> BTreeSet<String> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        running
            .keys()
            .filter(|(owner, _)| *owner == McpOwner::Everyone)
            .map(|(_, name)| name.clone())
            .collect()
    }

    /// What stands for these tools, as `owner` names them: `server/tool` and `server/*`; other names are passed over.
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
            let keys = owner
                .outwards()
                .into_iter()
                .map(|owner| (owner, name.to_owned()))
                .collect();
            Arc::new(Selection {
                servers: self.clone(),
                keys,
                only,
            })
        };
        wanted.into_iter().map(source).collect()
    }

    /// The tools of the first of these servers that there is.
    fn tools(&self, keys: &[(McpOwner, String)]) -> Vec<Arc<McpTool>> {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter()
            .find_map(|key| running.get(key))
            .map(Running::tools)
            .unwrap_or_default()
    }
}

/// Some tools of a server, or all that it has.
struct Selection {
    servers: McpServers,
    /// The server, by all keys that it may have. The first that there is counts.
    keys: Vec<(McpOwner, String)>,
    only: Option<BTreeSet<String>>,
}

impl ToolSource for Selection {
    fn tools(&self) -> Vec<Arc<dyn Tool>> {
        let is_wanted = |tool: &Arc<McpTool>| self.only.as_ref().is_none_or(|only| only.contains(&tool.name));
        let tools = self.servers.tools(&self.keys).into_iter().filter(is_wanted);
        tools.map(|tool| tool as Arc<dyn Tool>).collect()
    }
}
