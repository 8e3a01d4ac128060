//! The loop of one agent.
//!
//! ```text
//!            ┌──────────────── Loop::drive ────────────────┐
//!            │                                             │
//!  Machine ──┤  next ──► perform ──► …_done ──► writes ─┐  ├──► LoopOutcome
//!            │   ▲                                      │  │
//!            │   └── Journal::commit before each ◄──────┘  │
//!            │       call of a model or tool               │
//!            └─────────────────────────────────────────────┘
//!                       │ a delegated call
//!                       ▼
//!                 Loop::drive, one level down
//! ```
//!
//! The driver performs every action and decides nothing: [`crate::domain::machine`] decides, and [`crate::runtime`]
//! provides the journal. A subagent is the same loop, which calls itself with the child's machine and the child's
//! journal. An agent either asks a model and runs its calls, or is a program that does the whole work in one step:
//! [`AgentKind`].

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::definition::{AnswerFormat, SystemPrompt, form_name, form_problem};
use crate::domain::Invalid;
use crate::domain::approvers::Approvers;
use crate::domain::context::ContextSchema;
use crate::domain::declared_fields::DeclaredFields;
use crate::domain::event::Fact;
use crate::domain::graph::Field;
use crate::domain::interrupt::Interrupt;
use crate::domain::limits::Limits;
use crate::domain::machine::{Failure, HookPoint, Plan};
use crate::domain::message::Message;
use crate::domain::run::Lineage;
use crate::domain::state::Update;
use crate::domain::state_size::StateSize;
use crate::middleware::Middleware;
use crate::middleware::structured::{self, native::NativeAnswer};
use crate::middleware::summarization::Summarization;
use crate::model::{Model, ModelError};
use crate::tool::files::AgentFiles;
use crate::tool::{ArgumentCheck, Runnable, Scope, Tool, Toolbox};

mod answer;
mod answer_filters;
pub mod assemble;
mod calls;
mod compact;
mod delegate;
mod driver;
mod fallback;
mod graph;
mod hook_calls;
pub mod journal;
mod program;
mod progress;
mod step;
mod subagent;
pub mod subagent_registry;
mod trace;
mod waiting;

pub use journal::{
    Child, ChildAdmission, ChildRecord, ChildStart, ExitReason, Journal, NewChildRun, PendingWrite, WaitingAgent,
};
pub use step::with_ids as identified;
pub use subagent_registry::{Forks, SubagentRegistry};
pub use trace::set_conversation;

/// An assembled agent, ready to run and shared by all its runs.
pub struct Agent {
    /// The name, known to clients as `lc_agent_name`.
    pub name: String,
    /// The public names of the hooks in running order, or of the program, and the step limit.
    pub plan: Plan,
    /// The limits of one run.
    pub limits: Limits,
    /// The declared fields of the state.
    pub declared: DeclaredFields,
    /// True if the agent is a fork, which continues its caller's conversation.
    pub is_fork: bool,
    /// The parts of the state that are shared with the caller.
    pub shares: SharedState,
    /// The approvers who answer its questions, unless a question is assigned to others.
    pub approvers: Approvers,
    /// The text that user interfaces show while the agent runs.
    pub display_text: Option<String>,
    /// The initial messages of a subagent.
    pub initial: Vec<Arc<Message>>,
    /// The kind of agent, with its parts.
    pub kind: AgentKind,
}

/// The kinds of agents.
pub enum AgentKind {
    /// A model with tools: the model is asked, and its calls are run, until it makes no more calls.
    ModelLoop(Box<ModelLoop>),
    /// A program that does all of the work.
    Program(Box<AgentProgram>),
}

/// The parts of an agent with a model.
pub struct ModelLoop {
    /// The name of the model, as `provider:model-name`.
    pub model_name: String,
    /// The model. If it is an error, every request to the model fails with it.
    pub model: Result<Arc<dyn Model>, ModelError>,
    /// The provider settings of every request to the model.
    pub settings: Map<String, Value>,
    /// The models that are asked, in their order, when the model fails.
    pub fallbacks: Vec<FallbackModel>,
    /// The instructions, including the text that middleware added.
    pub system_prompt: SystemPrompt,
    /// The middleware, outermost first.
    pub stack: Vec<Arc<dyn Middleware>>,
    /// The tools.
    pub toolbox: Toolbox,
    /// The checks of arguments, by tool name. Tools of servers, which come and go, make their own.
    pub checks: HashMap<String, ArgumentCheck>,
    /// The state fields of the middleware, besides the messages.
    pub fields: Vec<Field>,
    /// The schema for the context of runs, if the definition has one.
    pub context: Option<ContextSchema>,
    /// The subagents; none if the agent cannot delegate.
    pub subagents: Option<Arc<SubagentRegistry>>,
    /// The subagents that run as forks of this agent (`mode = "fork"`).
    pub forks: Forks,
    /// The JSON Schema of the context and of what a run may choose, as clients see it.
    pub settings_schema: Option<Value>,
    /// The policy that summarises its conversation, unless that is switched off.
    pub summarization: Option<Summarization>,
    /// Its files, for the tools that read them while it works.
    pub files: AgentFiles,
}

/// A model that is asked when the one before it fails.
pub struct FallbackModel {
    /// The name, as `provider:model-name`.
    pub name: String,
    /// The model. If it is an error, the next one is asked.
    pub model: Result<Arc<dyn Model>, ModelError>,
    /// The provider settings of every request to this model.
    pub settings: Map<String, Value>,
}

/// The parts of an agent that is a program.
pub struct AgentProgram {
    /// The program.
    pub runnable: Arc<dyn Runnable>,
    /// The form of the result, if the delegating agent asked for one.
    pub form: Option<NativeAnswer>,
    /// The identity on the other server, for a remote agent.
    pub remote: Option<RemoteIdentity>,
    /// The schema for the context of runs, if the definition of a main agent has one.
    pub context: Option<ContextSchema>,
}

/// The identity of a remote agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteIdentity {
    /// The key of the definition on that server.
    pub graph_id: String,
    /// The address of the server.
    pub url: String,
}

/// The parts of the state that a subagent shares with its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedState {
    /// True if files are shared.
    pub files: bool,
    /// True if state fields are shared.
    pub fields: bool,
}

impl Default for SharedState {
    fn default() -> Self {
        Self {
            files: true,
            fields: true,
        }
    }
}

impl SharedState {
    /// Returns the part of `update` that is shared.
    pub(crate) fn of(self, mut update: Update) -> Update {
        if !self.files {
            update.files.clear();
        }
        if !self.fields {
            update.fields.clear();
        }
        update
    }
}

impl Agent {
    /// Validates a client's state update: its fields, and whether the agent's policies take its messages.
    ///
    /// # Errors
    /// Names the field, or the message.
    pub fn check_update(&self, update: &Update) -> Result<(), Invalid> {
        self.declared.check(update)?;
        self.check_content(update)
    }

    /// Validates that the agent's policies take the content of messages. A program accepts any content.
    ///
    /// # Errors
    /// Names the message.
    pub fn check_content(&self, update: &Update) -> Result<(), Invalid> {
        for (at, message) in update.messages.iter().enumerate() {
            let mut problems = self.stack().iter().filter_map(|policy| policy.input_problem(message));
            if let Some(problem) = problems.next() {
                return Err(Invalid::new(format!("messages[{at}].content"), problem));
            }
        }
        Ok(())
    }

    /// Returns the parts of an agent with a model.
    pub fn model_loop(&self) -> Option<&ModelLoop> {
        match &self.kind {
            AgentKind::ModelLoop(own) => Some(own),
            AgentKind::Program(_) => None,
        }
    }

    /// Returns the parts of an agent that is a program.
    pub fn program(&self) -> Option<&AgentProgram> {
        match &self.kind {
            AgentKind::ModelLoop(_) => None,
            AgentKind::Program(own) => Some(own),
        }
    }

    /// Returns the identity of a remote agent.
    pub fn remote(&self) -> Option<&RemoteIdentity> {
        self.program()?.remote.as_ref()
    }

    /// Returns the middleware, outermost first.
    pub fn stack(&self) -> &[Arc<dyn Middleware>] {
        self.model_loop().map_or(&[], |own| &own.stack)
    }

    /// Returns the tool with this name.
    pub fn tool(&self, name: &str) -> Option<Arc<dyn Tool>> {
        self.model_loop()?.toolbox.get(name)
    }

    /// Returns the names of the tools.
    fn tool_names(&self) -> Vec<String> {
        self.model_loop().map_or_else(Vec::new, |own| own.toolbox.names())
    }

    /// Returns the argument check of the tool with this name.
    fn check_of(&self, tool: &str) -> Option<&ArgumentCheck> {
        self.model_loop()?.checks.get(tool)
    }

    /// Returns the subagents; none if the agent cannot delegate.
    pub fn subagents(&self) -> Option<&Arc<SubagentRegistry>> {
        self.model_loop()?.subagents.as_ref()
    }

    /// Returns the subagent of this name that is defined with the agent, for `depth` delegations below the top of that
    /// definition.
    pub fn own_subagent(&self, name: &str, depth: u32) -> Option<Arc<Self>> {
        let own = self.model_loop()?;
        let described = || own.subagents.as_ref()?.get(name, depth);
        own.forks.get(name).or_else(described)
    }

    /// Returns its files, for the tools that read them while it works. Those of a program are in the state.
    pub fn files(&self) -> AgentFiles {
        self.model_loop()
            .map_or_else(AgentFiles::default, |own| own.files.clone())
    }

    /// Returns the state fields of the middleware.
    pub fn fields(&self) -> &[Field] {
        self.model_loop().map_or(&[], |own| &own.fields)
    }

    /// Returns the schema for the context of runs.
    pub fn context(&self) -> Option<&ContextSchema> {
        match &self.kind {
            AgentKind::ModelLoop(own) => own.context.as_ref(),
            AgentKind::Program(own) => own.context.as_ref(),
        }
    }

    /// Returns the reason why the agent cannot answer in this form instead of its own; `None` if it can.
    pub fn form_problem(&self, format: &Value) -> Option<String> {
        if self.remote().is_some() {
            let problem = "it works on another server, which cannot be told of a form: say in the description what the \
                           result has to look like";
            return Some(problem.to_owned());
        }
        let own = self.fields().iter().find(|field| field.name == structured::FIELD);
        let own = own.map(|field| AnswerFormat {
            schema: field.schema.clone(),
            ..AnswerFormat::default()
        });
        let own: Vec<String> = own
            .iter()
            .flat_map(AnswerFormat::alternatives)
            .filter_map(|one| form_name(&one))
            .collect();
        let is_taken = |tool: &str| self.tool(tool).is_some() && !own.iter().any(|name| name == tool);
        form_problem(format, is_taken)
    }

    /// Returns the middleware of hook number `at` at `point`.
    fn hook(&self, point: HookPoint, at: usize) -> Option<&Arc<dyn Middleware>> {
        let name = self
            .plan
            .hooks(point)
            .get(at)?
            .strip_suffix(point.word())?
            .strip_suffix('.')?;
        self.stack().iter().find(|policy| policy.name() == name)
    }
}

/// The loop of one agent on one lane of a thread.
pub struct Loop<'a> {
    /// The agent.
    pub agent: &'a Agent,
    /// The hooks, with the step limit of this run.
    pub plan: Plan,
    /// The place in the tree of delegations.
    pub lineage: &'a Lineage,
    /// The scope for tools and middleware.
    pub scope: Scope,
    /// The journal of the lane.
    pub journal: &'a dyn Journal,
    /// The client's breakpoints.
    pub breakpoints: Breakpoints,
    /// The depth from which the agent's levels of delegation are counted.
    pub base: u32,
    /// Cancelled when the server shuts down, or has lost the run: the loop ends at the next commit, and another process goes
    /// on. Unlike `scope.stop` it does not abort a call that cannot be repeated.
    pub leave: CancellationToken,
    /// The size of the state.
    pub state_size: StateSize,
}

/// The outcome of a loop.
#[derive(Debug, Clone, PartialEq)]
pub enum LoopOutcome {
    /// The agent is done.
    Done,
    /// The run waits for the answers to these questions, its own and those of its children.
    Parked(Vec<Interrupt>),
    /// A breakpoint of the client was reached.
    Paused,
    /// The run failed.
    Failed(Failure),
}

/// The nodes at which a client wants the run to stop; `*` means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breakpoints {
    /// The nodes to stop before.
    pub before: Vec<String>,
    /// The nodes to stop after.
    pub after: Vec<String>,
}

impl Breakpoints {
    fn contains(list: &[String], node: &str) -> bool {
        list.iter().any(|name| name == "*" || name == node)
    }
}

/// Creates the event for the end of a loop.
fn end_fact(outcome: &LoopOutcome, depth: u32) -> Fact {
    use crate::domain::run::RunStatus;
    let waits = matches!(outcome, LoopOutcome::Parked(_) | LoopOutcome::Paused);
    let (status, error) = match outcome {
        LoopOutcome::Done | LoopOutcome::Paused => (RunStatus::Success, None),
        // A waiting run of the main agent is a success for its client; a waiting child run has not ended.
        LoopOutcome::Parked(_) if depth == 0 => (RunStatus::Success, None),
        LoopOutcome::Parked(_) => (RunStatus::Interrupted, None),
        LoopOutcome::Failed(failure) => (RunStatus::Error, Some(failure.clone())),
    };
    Fact::Ended {
        status,
        error,
        waits,
        used: None,
    }
}

#[cfg(test)]
mod tests;
