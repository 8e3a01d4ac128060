//! Subagents that are programs, and those that are agents of other servers.

use std::sync::Arc;

use async_trait::async_trait;

use super::{AgentFactory, STEP_LIMIT};
use crate::agent::{Agent, AgentKind, AgentProgram, RemoteIdentity, SharedState};
use crate::definition::{AfterCrash, AgentDefinition, AnswerFormat, SubagentDefinition, SubagentMode};
use crate::domain::approvers::Approvers;
use crate::domain::field::DeclaredFields;
use crate::domain::machine::{Failure, MODEL, Plan, RUNNABLE};
use crate::domain::state::{State, Update};
use crate::middleware::structured::native::NativeAnswer;
use crate::peer::RemoteAgent;
use crate::tool::{Halt, Runnable, Scope};

impl AgentFactory {
    /// Builds the agent of a subagent that is the registered program `name`.
    pub(super) fn program(&self, parent: &AgentDefinition, subagent: &SubagentDefinition, name: &str) -> Agent {
        let missing = || {
            let message = format!("this server has no program `{name}`");
            FailingProgram::shared(Failure::new("RunnableNotFoundError", message), AfterCrash::default())
        };
        let own = AgentProgram {
            runnable: self.runnables.get(name).cloned().unwrap_or_else(missing),
            form: subagent
                .response_format
                .as_ref()
                .map(|format| NativeAnswer::new(&AnswerFormat::of(format))),
            remote: None,
        };
        let program = agent(subagent, RUNNABLE, DeclaredFields::new(&parent.state), own);
        let approvers = subagent.approvers.as_ref().unwrap_or(&parent.approvers);
        Agent {
            approvers: approvers.clone(),
            ..program
        }
    }

    /// Builds the agent of a subagent that is the agent `graph_id` of the server at `url`. Clients see its work at the
    /// node of the model.
    pub(super) fn remote_agent(
        &self,
        subagent: &SubagentDefinition,
        graph_id: &str,
        url: &str,
        is_owners: bool,
    ) -> Agent {
        let runnable: Arc<dyn Runnable> = match self.peers.peer(url, &subagent.headers.0, is_owners) {
            Ok(peer) => Arc::new(RemoteAgent::new(
                self.peers.clone(),
                peer,
                graph_id,
                subagent.recursion_limit,
            )),
            Err(invalid) => {
                let message = format!("The agent `{graph_id}` cannot be reached: its {invalid}.");
                FailingProgram::shared(Failure::new("ModelConfigurationError", message), AfterCrash::Repeat)
            }
        };
        let own = AgentProgram {
            runnable,
            form: None,
            remote: Some(RemoteIdentity {
                graph_id: graph_id.to_owned(),
                url: url.to_owned(),
            }),
        };
        agent(subagent, MODEL, DeclaredFields::default(), own)
    }
}

/// Builds the agent of a subagent that works at `node`.
fn agent(subagent: &SubagentDefinition, node: &'static str, declared: DeclaredFields, own: AgentProgram) -> Agent {
    Agent {
        name: subagent.name.clone(),
        plan: Plan {
            step_limit: STEP_LIMIT,
            rules: declared.rules(),
            program: Some(node),
            ..Plan::default()
        },
        limits: subagent.limits.clone().unwrap_or_default(),
        declared,
        is_fork: subagent.mode == SubagentMode::Fork,
        shares: SharedState::default(),
        // Those of an agent of another server are named there.
        approvers: Approvers::default(),
        display_text: subagent.display_text.clone(),
        initial: subagent.beginning(),
        kind: AgentKind::Program(own),
    }
}

/// A program that is not available: fails with the reason when it is run.
struct FailingProgram {
    failure: Failure,
    after_crash: AfterCrash,
}

impl FailingProgram {
    fn shared(failure: Failure, after_crash: AfterCrash) -> Arc<dyn Runnable> {
        Arc::new(Self { failure, after_crash })
    }
}

#[async_trait]
impl Runnable for FailingProgram {
    fn after_crash(&self) -> AfterCrash {
        self.after_crash
    }

    async fn run(&self, _: &Scope, _: State) -> Result<Update, Halt> {
        Err(self.failure.clone().into())
    }
}
