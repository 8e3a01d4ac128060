//! Agents and subagents that are programs, and those that are agents of other servers.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::{AgentFactory, STEP_LIMIT, Source};
use crate::agent::{Agent, AgentKind, AgentProgram, RemoteIdentity, SharedState};
use crate::definition::{AfterCrash, AgentDefinition, AnswerFormat, Headers, SubagentDefinition, SubagentMode};
use crate::domain::approvers::Approvers;
use crate::domain::context::ContextSchema;
use crate::domain::declared_fields::DeclaredFields;
use crate::domain::limits::Limits;
use crate::domain::machine::{Failure, MODEL, Plan, RUNNABLE};
use crate::domain::state::{State, Update};
use crate::middleware::structured::native::NativeAnswer;
use crate::peer::RemoteAgent;
use crate::tool::{Halt, Runnable, Scope};

impl AgentFactory {
    /// Builds the main agent of a definition that is a program, or an agent of another server; none for an agent with
    /// a model. The result has this form, if one is given.
    pub(super) fn main_program(&self, source: &Source, format: Option<&Value>) -> Option<Agent> {
        let definition = &*source.definition;
        let name = definition.name_or(&source.graph_id).to_owned();
        let limits = definition.limits.clone().unwrap_or_default();
        if let Some(runnable) = &definition.runnable {
            let form = format.or(definition.response_format.as_ref());
            let own = AgentProgram {
                context: definition.context_schema.clone().map(ContextSchema::new),
                ..self.registered(runnable, form)
            };
            let program = agent(name, limits, RUNNABLE, DeclaredFields::new(&definition.state), own);
            return Some(Agent {
                approvers: definition.approvers.clone(),
                ..program
            });
        }
        let (graph_id, url) = definition.remote()?;
        let own = self.remote(
            graph_id,
            url,
            &definition.headers,
            definition.recursion_limit,
            source.is_owners,
        );
        Some(agent(name, limits, MODEL, DeclaredFields::default(), own))
    }

    /// Builds the agent of a subagent that is the registered program `name`.
    pub(super) fn program(&self, parent: &AgentDefinition, subagent: &SubagentDefinition, name: &str) -> Agent {
        let own = self.registered(name, subagent.response_format.as_ref());
        let approvers = subagent.approvers.as_ref().unwrap_or(&parent.approvers);
        Agent {
            approvers: approvers.clone(),
            ..of_subagent(subagent, RUNNABLE, DeclaredFields::new(&parent.state), own)
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
        let own = self.remote(graph_id, url, &subagent.headers, subagent.recursion_limit, is_owners);
        of_subagent(subagent, MODEL, DeclaredFields::default(), own)
    }

    /// Returns the registered program `name`, whose result has this form.
    fn registered(&self, name: &str, form: Option<&Value>) -> AgentProgram {
        let missing = || {
            let message = format!("this server has no program `{name}`");
            FailingProgram::shared(Failure::new("RunnableNotFoundError", message), AfterCrash::default())
        };
        AgentProgram {
            runnable: self.runnables.get(name).cloned().unwrap_or_else(missing),
            form: form.map(|format| NativeAnswer::new(&AnswerFormat::of(format))),
            remote: None,
            context: None,
        }
    }

    /// Returns the agent `graph_id` of the server at `url` as a program.
    fn remote(
        &self,
        graph_id: &str,
        url: &str,
        headers: &Headers,
        step_limit: Option<u32>,
        is_owners: bool,
    ) -> AgentProgram {
        let runnable: Arc<dyn Runnable> = match self.peers.peer(url, &headers.0, is_owners) {
            Ok(peer) => Arc::new(RemoteAgent::new(self.peers.clone(), peer, graph_id, step_limit)),
            Err(invalid) => {
                let message = format!("The agent `{graph_id}` cannot be reached: its {invalid}.");
                FailingProgram::shared(Failure::new("ModelConfigurationError", message), AfterCrash::Repeat)
            }
        };
        AgentProgram {
            runnable,
            form: None,
            remote: Some(RemoteIdentity {
                graph_id: graph_id.to_owned(),
                url: url.to_owned(),
            }),
            context: None,
        }
    }
}

/// Builds the agent of a subagent that works at `node`.
fn of_subagent(
    subagent: &SubagentDefinition,
    node: &'static str,
    declared: DeclaredFields,
    own: AgentProgram,
) -> Agent {
    let limits = subagent.limits.clone().unwrap_or_default();
    Agent {
        is_fork: subagent.mode == SubagentMode::Fork,
        display_text: subagent.display_text.clone(),
        initial: subagent.beginning(),
        ..agent(subagent.name.clone(), limits, node, declared, own)
    }
}

/// Builds an agent that works at `node`.
fn agent(name: String, limits: Limits, node: &'static str, declared: DeclaredFields, own: AgentProgram) -> Agent {
    Agent {
        name,
        plan: Plan {
            step_limit: STEP_LIMIT,
            rules: declared.rules(),
            program: Some(node),
            ..Plan::default()
        },
        limits,
        declared,
        is_fork: false,
        shares: SharedState::default(),
        // The server of a remote agent names its approvers.
        approvers: Approvers::default(),
        display_text: None,
        initial: vec![],
        kind: AgentKind::Program(Box::new(own)),
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
