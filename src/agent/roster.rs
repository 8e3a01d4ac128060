//! Whom an agent can delegate to.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use super::Agent;

/// The subagents of an agent. They all share it, so that nested delegation finds the same names at every depth.
pub struct Roster {
    /// How deep delegations may nest under the main agent.
    pub max_depth: u32,
    entries: BTreeMap<String, Entry>,
    this: Weak<Roster>,
}

/// Builds a subagent, with the roster if it may delegate in its turn.
pub type Build = Box<dyn Fn(Option<Arc<Roster>>) -> Agent + Send + Sync>;

struct Entry {
    build: Build,
    /// Built when first needed: one that may delegate further, and one that may not.
    nesting: OnceLock<Arc<Agent>>,
    plain: OnceLock<Arc<Agent>>,
}

impl Roster {
    /// A roster of these subagents.
    pub fn new(max_depth: u32, builders: impl IntoIterator<Item = (String, Build)>) -> Arc<Self> {
        let entry = |build| Entry { build, nesting: OnceLock::new(), plain: OnceLock::new() };
        let entries = builders.into_iter().map(|(name, build)| (name, entry(build))).collect();
        Arc::new_cyclic(|this| Self { max_depth, entries, this: Weak::clone(this) })
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The subagent of this name, as it is `depth` delegations below the main agent.
    pub fn get(&self, name: &str, depth: u32) -> Option<Arc<Agent>> {
        let entry = self.entries.get(name)?;
        let agent = if depth < self.max_depth {
            entry.nesting.get_or_init(|| Arc::new((entry.build)(self.this.upgrade())))
        } else {
            entry.plain.get_or_init(|| Arc::new((entry.build)(None)))
        };
        Some(Arc::clone(agent))
    }
}
