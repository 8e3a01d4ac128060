//! The subagents that an agent can delegate to.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use serde_json::Value;

use super::Agent;
use crate::domain::limits::Limits;
use crate::domain::visibility::Visibility;

/// The subagents of an agent. Subagents share the registry, so that nested delegation finds the same names at every
/// depth.
pub struct SubagentRegistry {
    /// The maximum depth of delegations below the agent.
    pub max_depth: u32,
    entries: BTreeMap<String, RegistryEntry>,
    agents: BTreeMap<String, ReferencedAgent>,
    /// The visibility of subagents to clients, if it is not full.
    visibility: BTreeMap<String, Visibility>,
    weak_self: Weak<SubagentRegistry>,
}

/// A subagent that is another agent of this server, with its own definition.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReferencedAgent {
    /// The key of the definition.
    pub graph_id: String,
    /// The limits of one delegation; the agent's own if absent.
    pub limits: Option<Limits>,
    /// The step limit of one delegation; the agent's own if absent.
    pub step_limit: Option<u32>,
    /// The text that user interfaces show while the subagent runs.
    pub display_text: Option<String>,
}

/// A function that builds a subagent: with the registry if it may delegate, and with another response format if
/// given.
pub type Build = Box<dyn Fn(Option<Arc<SubagentRegistry>>, Option<&Value>) -> Agent + Send + Sync>;

/// A function that builds a fork, with another response format if given.
pub type BuildFork = Box<dyn Fn(Option<&Value>) -> Agent + Send + Sync>;

/// The forks of an agent, by name. They are derived from the agent, and built when they are first needed.
#[derive(Default)]
pub struct Forks(BTreeMap<String, (BuildFork, OnceLock<Arc<Agent>>)>);

impl Forks {
    /// Creates the forks that these functions build.
    pub fn new(builders: impl IntoIterator<Item = (String, BuildFork)>) -> Self {
        Self(
            builders
                .into_iter()
                .map(|(name, build)| (name, (build, OnceLock::new())))
                .collect(),
        )
    }

    /// Returns the fork with this name.
    pub fn get(&self, name: &str) -> Option<Arc<Agent>> {
        self.0
            .get(name)
            .map(|(build, built)| Arc::clone(built.get_or_init(|| Arc::new(build(None)))))
    }

    /// Returns the fork for one delegation with this response format.
    pub fn in_form(&self, name: &str, format: &Value) -> Option<Arc<Agent>> {
        self.0.get(name).map(|(build, _)| Arc::new(build(Some(format))))
    }
}

struct RegistryEntry {
    build: Build,
    /// Built when first needed: with the registry, and without.
    delegating: OnceLock<Arc<Agent>>,
    leaf: OnceLock<Arc<Agent>>,
}

impl SubagentRegistry {
    /// Returns whether any subagent is another agent of this server.
    pub fn has_references(&self) -> bool {
        !self.agents.is_empty()
    }

    /// Creates a registry of the subagents that are defined with their parent, and of `agents`, which have their own
    /// definitions. `visibility` lists those that are not fully visible to clients.
    pub fn new(
        max_depth: u32,
        builders: impl IntoIterator<Item = (String, Build)>,
        agents: BTreeMap<String, ReferencedAgent>,
        visibility: BTreeMap<String, Visibility>,
    ) -> Arc<Self> {
        let entry = |build| RegistryEntry {
            build,
            delegating: OnceLock::new(),
            leaf: OnceLock::new(),
        };
        let entries = builders.into_iter().map(|(name, build)| (name, entry(build))).collect();
        Arc::new_cyclic(|weak_self| Self {
            max_depth,
            entries,
            agents,
            visibility,
            weak_self: Weak::clone(weak_self),
        })
    }

    /// Returns the names of the subagents that are defined with their parent.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Returns the visibility of the subagent with this name.
    pub fn visibility(&self, name: &str) -> Visibility {
        self.visibility.get(name).copied().unwrap_or_default()
    }

    /// Returns the referenced agent with this name.
    pub fn referenced(&self, name: &str) -> Option<&ReferencedAgent> {
        self.agents.get(name)
    }

    /// Returns the subagent with this name, if it is defined with its parent, for `depth` delegations below the top
    /// of that definition.
    pub fn get(&self, name: &str, depth: u32) -> Option<Arc<Agent>> {
        let entry = self.entries.get(name)?;
        let agent = if depth < self.max_depth {
            entry
                .delegating
                .get_or_init(|| Arc::new((entry.build)(self.weak_self.upgrade(), None)))
        } else {
            entry.leaf.get_or_init(|| Arc::new((entry.build)(None, None)))
        };
        Some(Arc::clone(agent))
    }

    /// Returns the subagent for one delegation with this response format.
    pub fn in_form(&self, name: &str, depth: u32, format: &Value) -> Option<Arc<Agent>> {
        let entry = self.entries.get(name)?;
        let registry = (depth < self.max_depth).then(|| self.weak_self.upgrade()).flatten();
        Some(Arc::new((entry.build)(registry, Some(format))))
    }
}
