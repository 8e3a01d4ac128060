//! Policy: the agent has tools with which it remembers things beyond its thread, and looks them up.

use super::{Contribution, Middleware};
use crate::definition::builtins;
use crate::domain::item::template::NamespaceTemplate;
use crate::tool::store::tools;

/// What the agent is told about its memory.
const PROMPT: &str = "You have a long-term memory that outlives this conversation. Look into it with `store_search` when \
    something from earlier may matter.";

/// The policy.
pub struct StoreAccess {
    template: NamespaceTemplate,
    read_only: bool,
}

impl StoreAccess {
    /// Tools that reach the namespace that a run makes of `template`; only those that read, if `read_only`.
    pub fn new(template: NamespaceTemplate, read_only: bool) -> Self {
        Self { template, read_only }
    }
}

impl Middleware for StoreAccess {
    fn name(&self) -> &str {
        builtins::STORE
    }

    fn contribution(&self) -> Contribution {
        let tools = tools(&self.template, self.read_only);
        Contribution {
            tools,
            prompt: Some(PROMPT.to_owned()),
            fields: vec![],
        }
    }
}
