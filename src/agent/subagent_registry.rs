//! Whom an agent can delegate to.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use serde_json::Value;

use super::Agent;
use crate::domain::limits::Limits;
use crate::domain::visibility::Visibility;

/// The subagents of an agent. They all share it, so that nested delegation finds the same names at every depth.
pub struct SubagentRegistry {
    /// How deep delegations may nest under the agent that has it.
    pub max_depth: u32,
    entries: BTreeMap<String, Entry>,
    agents: BTreeMap<String, ReferencedAgent>,
    /// How much clients see of those who are not seen in full.
    visibility: BTreeMap<String, Visibility>,
    this: Weak<SubagentRegistry>,
}

/// A subagent that is another agent of this server, with a definition of its own.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReferencedAgent {
    /// The key of its definition.
    pub graph_id: String,
    /// What one delegation may use; what the agent itself says when absent.
    pub limits: Option<Limits>,
    /// How many steps one delegation may take; as many as the agent itself says when absent.
    pub step_limit: Option<u32>,
    /// What a user interface shows while it works.
    pub display_text: Option<String>,
}

/// Builds a subagent, with the roster if it may delegate in its turn, and with another form of its result if one is given.
pub type Build = Box<dyn Fn(Option<Arc<SubagentRegistry>>, Option<&Value>) -> Agent + Send + Sync>;

/// Builds a fork, with another form of its result if one is given.
pub type BuildFork = Box<dyn Fn(Option<&Value>) -> Agent + Send + Sync>;

/// The forks of an agent, by name. They are made of it, and built when first needed.
#[derive(Default)]
pub struct Forks(BTreeMap<String, (BuildFork, OnceLock<Arc<Agent>>)>);

impl Forks {
    /// Forks that these functions build.
    pub fn new(builders: impl IntoIterator<Item = (String, BuildFork)>) -> Self {
        Self(
            builders
                .into_iter()
                .map(|(name, build)| (name, (build, OnceLock::new())))
                .collect(),
        )
    }

    /// The fork of this name.
    pub fn get(&self, name: &str) -> Option<Arc<Agent>> {
        self.0
            .get(name)
            .map(|(build, built)| Arc::clone(built.get_or_init(|| Arc::new(build(None)))))
    }

    /// The same for one delegation whose result has this form.
    pub fn in_form(&self, name: &str, format: &Value) -> Option<Arc<Agent>> {
        self.0.get(name).map(|(build, _)| Arc::new(build(Some(format))))
    }
}

struct Entry {
    build: Build,
    /// Built when first needed: one that may delegate further, and one that may not.
    nesting: OnceLock<Arc<Agent>>,
    plain: OnceLock<Arc<Agent>>,
}

impl SubagentRegistry {
    /// Whether any of the subagents is another agent of this server.
    pub fn has_references(&self) -> bool {
        !self.agents.is_empty()
    }

    /// A roster of subagents that are described with their parent, and of `agents`, which are not; with how much clients see
    /// of those who are not seen in full.
    pub fn new(
        max_depth: u32,
        builders: impl IntoIterator<Item = (String, Build)>,
        agents: BTreeMap<String, ReferencedAgent>,
        visibility: BTreeMap<String, Visibility>,
    ) -> Arc<Self> {
        let entry = |build| Entry {
            build,
            nesting: OnceLock::new(),
            plain: OnceLock::new(),
        };
        let entries = builders.into_iter().map(|(name, build)| (name, entry(build))).collect();
        Arc::new_cyclic(|this| Self {
            max_depth,
            entries,
            agents,
            visibility,
            this: Weak::clone(this),
        })
    }

    /// The names of those that are described with their parent.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// How much clients see of the subagent of this name.
    pub fn visibility(&self, name: &str) -> Visibility {
        self.visibility.get(name).copied().unwrap_or_default()
    }

    /// The agent of this server that goes by this name here.
    pub fn referenced(&self, name: &str) -> Option<&ReferencedAgent> {
        self.agents.get(name)
    }

    /// The subagent of this name that is described with its parent, as it is `depth` delegations below the agent at the top
    /// of that description.
    pub fn get(&self, name: &str, depth: u32) -> Option<Arc<Agent>> {
        let entry = self.entries.get(name)?;
        let agent = if depth < self.max_depth {
            entry
                .nesting
                .get_or_init(|| Arc::new((entry.build)(self.this.upgrade(), None)))
        } else {
            entry.plain.get_or_init(|| Arc::new((entry.build)(None, None)))
        };
        Some(Arc::clone(agent))
    }

    /// The same for one delegation whose result has this form.
    pub fn in_form(&self, name: &str, depth: u32, format: &Value) -> Option<Arc<Agent>> {
        let entry = self.entries.get(name)?;
        let roster = (depth < self.max_depth).then(|| self.this.upgrade()).flatten();
        Some(Arc::new((entry.build)(roster, Some(format))))
    }
}
