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
//! machine and the child's journal. Neighbours: [`crate::domain::machine`] decides, [`crate::runtime`] provides the
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
use crate::domain::machine::{Failure, Moment, Plan};
use crate::domain::message::Message;
use crate::domain::run::Lineage;
use crate::domain::state::Update;
use crate::middleware::Middleware;
use crate::middleware::structured::{self, native::NativeAnswer};
use crate::model::Model;
use crate::tool::{ArgumentCheck, Scope, Toolbox};

pub mod assemble;
mod call_ids;
mod calls;
mod delegate;
mod drawing;
mod driver;
mod growth;
mod hearing;
pub mod journal;
pub mod roster;
pub mod runnable;
mod speech;
mod work;

pub use driver::with_ids as identified;
pub use growth::Growth;
pub use journal::{Child, ChildVerdict, ChildWish, Journal, Note, Stop};
pub use roster::{Forks, Roster};
pub use runnable::Runnable;

/// An assembled definition, ready to run. Shared by all its runs.
pub struct Agent {
    /// `lc_agent_name`.
    pub name: String,
    /// The model it thinks with.
    pub model: Arc<dyn Model>,
    /// Provider settings sent with every question.
    pub settings: Map<String, Value>,
    /// The instructions, with what policies added.
    pub system_prompt: SystemPrompt,
    /// The policies, outermost first.
    pub stack: Vec<Arc<dyn Middleware>>,
    /// The public names of the hooks, in running order, and the step limit.
    pub plan: Plan,
    /// What it can call.
    pub toolbox: Toolbox,
    /// The schema checks of those tools, by name.
    pub checks: HashMap<String, ArgumentCheck>,
    /// The fields of its state besides the conversation.
    pub fields: Vec<Field>,
    /// What the context of its runs has to fit, if its owner says so.
    pub context: Option<ContextSchema>,
    /// What one run of it may use.
    pub limits: Limits,
    /// The declared fields of the state.
    pub declared: DeclaredFields,
    /// Whom it can delegate to; none if it cannot.
    pub subagents: Option<Arc<Roster>>,
    /// Those of them that go on as it does, with its conversation.
    pub forks: Forks,
    /// Whether it begins with the conversation of its caller.
    pub is_fork: bool,
    /// What it shares with its caller.
    pub shares: Shares,
    /// What a user interface shows while it works.
    pub display_text: Option<String>,
    /// The messages with which it begins as a subagent.
    pub initial: Vec<Arc<Message>>,
    /// The program that does its work, in the place of model, policies and tools.
    pub runnable: Option<Arc<dyn Runnable>>,
    /// The form of what the program comes to, if whoever delegated asks for one.
    pub form: Option<NativeAnswer>,
    /// The server that does its work, when that is another one.
    pub url: Option<String>,
}

/// What a subagent shares with its caller, besides the order and the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// The files.
    pub files: bool,
    /// The fields of the state.
    pub fields: bool,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            files: true,
            fields: true,
        }
    }
}

impl Shares {
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
        let is_program = self.runnable.is_some();
        for (at, message) in update.messages.iter().enumerate().filter(|_| !is_program) {
            if let Some((block, reason)) = message.unsupported(|block| self.model.refusal(block)) {
                return Err(Invalid::new(format!("messages[{at}].content[{block}]"), reason));
            }
        }
        Ok(())
    }

    /// Why it cannot answer in this form in the place of its own; `None` when it can.
    pub fn form_problem(&self, format: &Value) -> Option<String> {
        let own = self.fields.iter().find(|field| field.name == structured::FIELD);
        let own = own.map(|field| AnswerFormat {
            schema: field.schema.clone(),
            ..AnswerFormat::default()
        });
        let own: Vec<String> = own
            .iter()
            .flat_map(AnswerFormat::alternatives)
            .filter_map(|one| form_name(&one))
            .collect();
        let is_taken = |tool: &str| self.toolbox.get(tool).is_some() && !own.iter().any(|name| name == tool);
        form_problem(format, is_taken)
    }

    /// The policy that owns hook `at` of `moment`.
    fn hook(&self, moment: Moment, at: usize) -> Option<&Arc<dyn Middleware>> {
        let name = self
            .plan
            .hooks(moment)
            .get(at)?
            .strip_suffix(moment.word())?
            .strip_suffix('.')?;
        self.stack.iter().find(|policy| policy.name() == name)
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
    pub growth: Growth,
}

/// How a loop came to its end.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
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
fn ended(ending: &Ending, depth: u32) -> Fact {
    use crate::domain::run::RunStatus;
    let waits = matches!(ending, Ending::Parked(_) | Ending::Paused);
    let (status, error) = match ending {
        Ending::Done | Ending::Paused => (RunStatus::Success, None),
        // To its client a run that waits has done what it could; a child that waits is not done.
        Ending::Parked(_) if depth == 0 => (RunStatus::Success, None),
        Ending::Parked(_) => (RunStatus::Interrupted, None),
        Ending::Failed(failure) => (RunStatus::Error, Some(failure.clone())),
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
