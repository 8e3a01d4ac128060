//! Middleware: tools that read and write the Store, the agent's memory beyond the thread.

use super::{Contribution, Middleware};
use crate::definition::builtins;
use crate::domain::item::template::NamespaceTemplate;
use crate::tool::store::tools;

/// The text about the memory in the instructions.
const PROMPT: &str = "You have a long-term memory that outlives this conversation. Look into it with `store_search` when \
    something from earlier may matter.";

/// The Store middleware.
pub struct StoreAccess {
    template: NamespaceTemplate,
    read_only: bool,
}

impl StoreAccess {
    /// Creates tools for the namespace that each run fills into `template`; only the reading ones if `read_only`.
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
