//! Subagents that are agents of another server.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Map;

use super::{STEP_LIMIT, Unusable, Workshop, plan};
use crate::agent::{Agent, Forks, Shares};
use crate::definition::{Mode, SubagentDefinition, SystemPrompt};
use crate::domain::field::{DeclaredFields, Rules};
use crate::middleware::Middleware;
use crate::middleware::limits::Counted;
use crate::model::{Model, ModelError};
use crate::peer::Delegate;
use crate::tool::Toolbox;

impl Workshop {
    /// A subagent that works on another server: an agent whose model is the agent there, and that has nothing else.
    pub(super) fn elsewhere(
        &self,
        subagent: &SubagentDefinition,
        (graph_id, url): (&str, &str),
        is_owners: bool,
    ) -> Agent {
        let peer = self.peers.peer(url, &subagent.headers.0, is_owners);
        let model: Arc<dyn Model> = match peer {
            Ok(peer) => Arc::new(Delegate::new(
                self.peers.clone(),
                peer,
                graph_id,
                subagent.recursion_limit,
            )),
            Err(invalid) => {
                let message = format!("The agent `{graph_id}` cannot be reached: its {invalid}.");
                Unusable::because(ModelError::Misconfigured { message })
            }
        };
        let stack: Vec<Arc<dyn Middleware>> = vec![Arc::new(Counted)];
        Agent {
            name: subagent.name.clone(),
            model,
            settings: Map::new(),
            system_prompt: SystemPrompt::default(),
            plan: plan(&stack, STEP_LIMIT, Rules::default()),
            stack,
            toolbox: Toolbox::default(),
            checks: HashMap::new(),
            fields: vec![],
            declared: DeclaredFields::default(),
            context: None,
            limits: subagent.limits.clone().unwrap_or_default(),
            subagents: None,
            forks: Forks::default(),
            is_fork: subagent.mode == Mode::Fork,
            shares: Shares::default(),
            display_text: subagent.display_text.clone(),
            initial: vec![],
            runnable: None,
            form: None,
            url: subagent.url.clone(),
        }
    }
}
