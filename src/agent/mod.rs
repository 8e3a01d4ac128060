//! How one run proceeds.
//!
//! ```text
//!            ┌──────────────── Loop::drive ────────────────┐
//!            │                                             │
//!  Machine ──┤  next ──► perform ──► …_done ──► notes ──┐  ├──► Ending
//!            │   ▲                                      │  │
//!            │   └── Journal::commit, before the world ◄┘  │
//!            │       is touched again                      │
//!            └─────────────────────────────────────────────┘
//!                       │ a delegated call
//!                       ▼
//!                 Loop::drive, one level down
//! ```
//!
//! The driver is the only one who acts; it decides nothing. A subagent is the same loop called by itself with the child's
//! machine and the child's journal. An agent either asks a model and makes its calls, or is a program that does the whole
//! work in one step: [`AgentKind`]. Neighbours: [`crate::domain::machine`] decides, [`crate::runtime`] provides the
//! journal.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::definition::{AnswerFormat, SystemPrompt, form_name, form_problem};
use crate::domain::Invalid;
use crate::domain::context::ContextSchema;
use crate::domain::event::Fact;
use crate::domain::field::DeclaredFields;
use crate::domain::graph::Field;
use crate::domain::interrupt::Interrupt;
use crate::domain::limits::Limits;
use crate::domain::machine::{Failure, HookPoint, Plan};
use crate::domain::message::Message;
use crate::domain::run::Lineage;
use crate::domain::state::Update;
use crate::middleware::Middleware;
use crate::middleware::structured::{self, native::NativeAnswer};
use crate::model::{Model, ModelError};
use crate::tool::{ArgumentCheck, Runnable, Scope, Tool, Toolbox};

mod answer;
pub mod assemble;
mod call_ids;
mod calls;
mod delegate;
mod driver;
mod graph;
pub mod journal;
mod program;
mod progress;
mod state_size;
pub mod subagent_registry;

pub use driver::with_ids as identified;
pub use journal::{Child, ChildAdmission, ExitReason, Journal, NewChildRun, PendingWrite};
pub use state_size::StateSize;
pub use subagent_registry::{Forks, SubagentRegistry};

/// An assembled definition, ready to run. Shared by all its runs.
pub struct Agent {
    /// `lc_agent_name`.
    pub name: String,
    /// The public names of the hooks, in running order, or of the program, and the step limit.
    pub plan: Plan,
    /// What one run of it may use.
    pub limits: Limits,
    /// The declared fields of the state.
    pub declared: DeclaredFields,
    /// Whether it begins with the conversation of its caller.
    pub is_fork: bool,
    /// What it shares with its caller.
    pub shares: SharedState,
    /// What a user interface shows while it works.
    pub display_text: Option<String>,
    /// The messages with which it begins as a subagent.
    pub initial: Vec<Arc<Message>>,
    /// How it works.
    pub kind: AgentKind,
}

/// How an agent works.
pub enum AgentKind {
    /// A model is asked, and its calls are made, until it has no more calls.
    ModelLoop(Box<ModelLoop>),
    /// A program does the whole work.
    Program(AgentProgram),
}

/// What an agent has that asks a model.
pub struct ModelLoop {
    /// The model, or why it cannot be had: then asking it fails.
    pub model: Result<Arc<dyn Model>, ModelError>,
    /// Provider settings sent with every question.
    pub settings: Map<String, Value>,
    /// The instructions, with what policies added.
    pub system_prompt: SystemPrompt,
    /// The policies, outermost first.
    pub stack: Vec<Arc<dyn Middleware>>,
    /// What it can call.
    pub toolbox: Toolbox,
    /// The schema checks of those tools, by name.
    pub checks: HashMap<String, ArgumentCheck>,
    /// The fields of its state besides the conversation.
    pub fields: Vec<Field>,
    /// What the context of its runs has to fit, if its owner says so.
    pub context: Option<ContextSchema>,
    /// Whom it can delegate to; none if it cannot.
    pub subagents: Option<Arc<SubagentRegistry>>,
    /// Those of them that go on as it does, with its conversation.
    pub forks: Forks,
}

/// What an agent has that is a program.
pub struct AgentProgram {
    /// The program.
    pub runnable: Arc<dyn Runnable>,
    /// The form of what it comes to, if whoever delegated asks for one.
    pub form: Option<NativeAnswer>,
    /// The agent of another server that does the work, when one does.
    pub remote: Option<RemoteIdentity>,
}

/// Which agent of which server a remote agent is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteIdentity {
    /// The key of its definition there.
    pub graph_id: String,
    /// The address of the server.
    pub url: String,
}

/// What a subagent shares with its caller, besides the order and the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedState {
    /// The files.
    pub files: bool,
    /// The fields of the state.
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
    /// What of `update` may pass between the two.
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
    /// Refuses a write of a client into the state that does not fit the declared fields, or whose messages cannot be sent to
    /// the agent's model.
    ///
    /// # Errors
    /// Names the field, or the message and the block.
    pub fn check_update(&self, update: &Update) -> Result<(), Invalid> {
        self.declared.check(update)?;
        self.check_content(update)
    }

    /// Refuses what a human says that cannot be sent to the agent's model. A program reads what it likes.
    ///
    /// # Errors
    /// Names the message and the block.
    pub fn check_content(&self, update: &Update) -> Result<(), Invalid> {
        let Some(Ok(model)) = self.model_loop().map(|own| &own.model) else {
            return Ok(());
        };
        for (at, message) in update.messages.iter().enumerate() {
            if let Some((block, reason)) = message.unsupported(|block| model.refusal(block)) {
                return Err(Invalid::new(format!("messages[{at}].content[{block}]"), reason));
            }
        }
        Ok(())
    }

    /// What it has if it asks a model.
    pub fn model_loop(&self) -> Option<&ModelLoop> {
        match &self.kind {
            AgentKind::ModelLoop(own) => Some(own),
            AgentKind::Program(_) => None,
        }
    }

    /// What it has if it is a program.
    pub fn program(&self) -> Option<&AgentProgram> {
        match &self.kind {
            AgentKind::ModelLoop(_) => None,
            AgentKind::Program(own) => Some(own),
        }
    }

    /// Which agent of which server it is, if it works on another one.
    pub fn remote(&self) -> Option<&RemoteIdentity> {
        self.program()?.remote.as_ref()
    }

    /// The policies around it, outermost first.
    pub fn stack(&self) -> &[Arc<dyn Middleware>] {
        self.model_loop().map_or(&[], |own| &own.stack)
    }

    /// The tool of this name that it can call.
    pub fn tool(&self, name: &str) -> Option<Arc<dyn Tool>> {
        self.model_loop()?.toolbox.get(name)
    }

    /// The names of the tools that it can call.
    fn tool_names(&self) -> Vec<String> {
        self.model_loop().map_or_else(Vec::new, |own| own.toolbox.names())
    }

    /// The check of the arguments of the tool of this name.
    fn check_of(&self, tool: &str) -> Option<&ArgumentCheck> {
        self.model_loop()?.checks.get(tool)
    }

    /// Whom it can delegate to; none if it cannot.
    pub fn subagents(&self) -> Option<&Arc<SubagentRegistry>> {
        self.model_loop()?.subagents.as_ref()
    }

    /// The fields of its state besides the conversation and the declared ones.
    pub fn fields(&self) -> &[Field] {
        self.model_loop().map_or(&[], |own| &own.fields)
    }

    /// What the context of its runs has to fit, if its owner says so.
    pub fn context(&self) -> Option<&ContextSchema> {
        self.model_loop()?.context.as_ref()
    }

    /// Why it cannot answer in this form in the place of its own; `None` when it can.
    pub fn form_problem(&self, format: &Value) -> Option<String> {
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

    /// The policy that owns hook `at` of `point`.
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

/// One agent at work on one lane of a thread.
pub struct Loop<'a> {
    /// Who.
    pub agent: &'a Agent,
    /// Its hooks, with the step limit of this run.
    pub plan: Plan,
    /// Where in the tree of delegations.
    pub lineage: &'a Lineage,
    /// What its tools and policies may know.
    pub scope: Scope,
    /// Where it writes.
    pub journal: &'a dyn Journal,
    /// Where it has to stop for its client.
    pub breakpoints: Breakpoints,
    /// How deep in the tree the agent is in whose definition this one stands: its levels are counted from there.
    pub base: u32,
    /// Tells when to leave at the next commit. Unlike `scope.stop` it does not break off a call whose outcome nobody would
    /// know then.
    pub leave: CancellationToken,
    /// How large its state is.
    pub state_size: StateSize,
}

/// How a loop came to its end.
#[derive(Debug, Clone, PartialEq)]
pub enum LoopOutcome {
    /// The agent is done.
    Done,
    /// Nothing can go on before these questions are answered: its own, and those of its children.
    Parked(Vec<Interrupt>),
    /// A breakpoint of the client was reached.
    Paused,
    /// It cannot go on.
    Failed(Failure),
}

/// The nodes that a client wants to stop at; `*` means all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Breakpoints {
    /// Stop before these.
    pub before: Vec<String>,
    /// Stop after these.
    pub after: Vec<String>,
}

impl Breakpoints {
    fn hit(list: &[String], node: &str) -> bool {
        list.iter().any(|name| name == "*" || name == node)
    }
}

/// The event that tells how a loop ended.
fn ended(ending: &LoopOutcome, depth: u32) -> Fact {
    use crate::domain::run::RunStatus;
    let waits = matches!(ending, LoopOutcome::Parked(_) | LoopOutcome::Paused);
    let (status, error) = match ending {
        LoopOutcome::Done | LoopOutcome::Paused => (RunStatus::Success, None),
        // To its client a run that waits has done what it could; a child that waits is not done.
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
