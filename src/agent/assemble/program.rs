//! Subagents that are programs: what an agent has besides, it has from its parent or not at all.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Map;

use super::{STEP_LIMIT, Unusable, Workshop};
use crate::agent::{Agent, Forks, Runnable, Shares};
use crate::definition::{AgentDefinition, AnswerFormat, Mode, SubagentDefinition, SystemPrompt};
use crate::domain::field::DeclaredFields;
use crate::domain::machine::{Failure, Plan};
use crate::domain::state::{State, Update};
use crate::middleware::structured::native::NativeAnswer;
use crate::model::ModelError;
use crate::tool::{Halt, Scope, Toolbox};

impl Workshop {
    /// The agent of a subagent that is the program `name`.
    pub(super) fn program(&self, parent: &AgentDefinition, subagent: &SubagentDefinition, name: &str) -> Agent {
        let found = self.runnables.get(name).cloned();
        let declared = DeclaredFields::new(&parent.state);
        let no_model = ModelError::Misconfigured {
            message: format!("`{}` is a program", subagent.name),
        };
        Agent {
            name: subagent.name.clone(),
            model: Unusable::because(no_model),
            settings: Map::new(),
            system_prompt: SystemPrompt::default(),
            stack: vec![],
            plan: Plan {
                step_limit: STEP_LIMIT,
                rules: declared.rules(),
                is_work: true,
                ..Plan::default()
            },
            toolbox: Toolbox::default(),
            checks: HashMap::new(),
            fields: vec![],
            context: None,
            limits: subagent.limits.clone().unwrap_or_default(),
            declared,
            subagents: None,
            forks: Forks::default(),
            is_fork: subagent.mode == Mode::Fork,
            shares: Shares::default(),
            initial: subagent.beginning(),
            url: None,
            form: subagent
                .response_format
                .as_ref()
                .map(|format| NativeAnswer::new(&AnswerFormat::of(format))),
            display_text: subagent.display_text.clone(),
            runnable: Some(found.unwrap_or_else(|| Arc::new(Missing(name.to_owned())))),
        }
    }
}

/// Stands in for a program that the server does not have any more; says so when it is to work.
struct Missing(String);

#[async_trait]
impl Runnable for Missing {
    async fn run(&self, _: &Scope, _: State) -> Result<Update, Halt> {
        let message = format!("this server has no program `{}`", self.0);
        Err(Failure::new("RunnableNotFoundError", message).into())
    }
}
