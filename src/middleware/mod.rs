//! Policies around the loop. One file, one policy.
//!
//! With two policies A and B, registered in this order, one round of the loop goes
//!
//! ```text
//! A.before_agent  B.before_agent
//!   A.before_model  B.before_model
//!     A.wrap_model_call( B.wrap_model_call( model ) )
//!   B.after_model  A.after_model
//!     A.wrap_tool_call( B.wrap_tool_call( tool ) )        for each call, side by side
//! B.after_agent  A.after_agent
//! ```
//!
//! A policy changes the state only by what it returns, and waits for a human only by [`Halt::Ask`]. It does not know the
//! driver, the journal or the database. Neighbours: [`crate::tool`] below, [`crate::agent`] above.

use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::definition::{Diagnostic, read};
use crate::domain::call::EDITED_CALLS;
use crate::domain::call::ToolOutput;
use crate::domain::graph::Field;
use crate::domain::interrupt::{Action, Question};
use crate::domain::machine::{HookPoint, Jump};
use crate::domain::message::{Message, ToolCall};
use crate::domain::state::{State, Update};
use crate::model::ModelRequest;
use crate::tool::{CallOutcome, Halt, Scope, Tool};

pub mod addendum;
pub mod approval;
pub mod background;
pub mod context_editing;
pub mod delegation;
pub mod files;
pub mod limits;
pub mod memory;
pub mod ordered;
mod reminder;
pub mod repair;
pub mod repeated_failures;
pub mod skills;
pub mod store;
pub mod structured;
pub mod todos;
pub mod until;

/// A policy. Every method has a default that does nothing.
#[async_trait]
pub trait Middleware: Send + Sync {
    /// Its public name, unique within an agent; part of the names of its hooks (`name.after_model`).
    fn name(&self) -> &str;

    /// The same policy as these settings, which stand where a definition lists it, make it; none when it takes no settings.
    ///
    /// # Errors
    /// What makes no sense, with fields relative to the settings.
    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        let _ = settings;
        Ok(None)
    }

    /// The moments at which its hooks are to run. A hook that is not listed here is never called.
    fn moments(&self) -> &[HookPoint] {
        &[]
    }

    /// What it brings along, asked once when the agent is assembled.
    fn contribution(&self) -> Contribution {
        Contribution::default()
    }

    /// Runs the hook of `moment`.
    ///
    /// # Errors
    /// [`Halt::Ask`] parks the run; the hook is run again, with [`Scope::answer`] set, when somebody has answered.
    async fn hook(&self, moment: HookPoint, scope: &Scope, state: &State) -> Result<HookResult, Halt> {
        let _ = (moment, scope, state);
        Ok(HookResult::default())
    }

    /// Stands around a question to the model. May change the request, ask several times, or not at all.
    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        next.ask(request).await
    }

    /// Stands around one tool call.
    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        next.call(call).await
    }

    /// Whether a human has to approve `call` before it is made, whatever way it came.
    fn needs_approval(&self, call: &ToolCall) -> bool {
        let _ = call;
        false
    }

    /// The question whether `call`, which needs an approval, may be made.
    fn approval_question(&self, call: &ToolCall) -> Option<Question> {
        let _ = call;
        None
    }

    /// Looks at the result of a call before it is written down: a tool's, or a subagent's, which may come long after its
    /// call went through [`Middleware::wrap_tool_call`], maybe in another process.
    fn receive(&self, scope: &Scope, state: &State, call: &ToolCall, answer: ToolOutput) -> ToolOutput {
        let _ = (scope, state, call);
        answer
    }
}

/// Returns the policies of the server that read the settings with which a definition lists them.
pub fn listed() -> Vec<Arc<dyn Middleware>> {
    vec![
        Arc::new(context_editing::ContextEditing::default()),
        Arc::new(todos::Todos::new()),
    ]
}

/// Reads the settings of a policy.
///
/// # Errors
/// Everything that has the wrong shape, with its field.
pub fn read_settings<T: DeserializeOwned>(settings: &Map<String, Value>) -> Result<T, Vec<Diagnostic>> {
    let reading = read(Value::Object(settings.clone()));
    match reading.value {
        Some(value) if reading.findings.is_empty() => Ok(value),
        Some(_) | None => Err(reading.findings),
    }
}

/// What a policy brings along.
#[derive(Clone, Default)]
pub struct Contribution {
    /// Tools it offers.
    pub tools: Vec<Arc<dyn Tool>>,
    /// Text that it adds to the instructions.
    pub prompt: Option<String>,
    /// Fields of the state that it keeps and clients see.
    pub fields: Vec<Field>,
}

/// What a hook did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HookResult {
    /// What it writes.
    pub update: Update,
    /// Where the loop goes instead of on.
    pub jump: Option<Jump>,
    /// The calls that a human has approved, as they will run. One that needs an approval and has none is asked about before
    /// it is made.
    pub reviewed: Vec<ToolCall>,
}

impl From<Update> for HookResult {
    fn from(update: Update) -> Self {
        Self {
            update,
            jump: None,
            reviewed: vec![],
        }
    }
}

/// The model's answer on its way back through the policies.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelAnswer {
    /// The answer.
    pub message: Message,
    /// What policies write beside it. A policy that asks again drops what the first answer brought.
    pub extra: Update,
}

/// The innermost layer: really asks the model.
pub type AskModel<'a> = dyn Fn(ModelRequest) -> BoxFuture<'a, Result<ModelAnswer, Halt>> + Send + Sync + 'a;

/// The innermost layer: really makes the call.
pub type MakeCall<'a> = dyn Fn(ToolCall) -> BoxFuture<'a, Result<CallOutcome, Halt>> + Send + Sync + 'a;

/// The calls of the model's last answer that have no result yet, as they are going to run: with the reviewer's edits.
///
/// Within one step this is the same for every call of the step, since results are written when all are there; so a rule
/// about several calls of one message, built on this list, comes out the same whenever and however often it is asked.
pub fn open_calls(state: &State) -> Vec<ToolCall> {
    let Some(at) = state.messages.iter().rposition(|message| message.is_ai()) else {
        return vec![];
    };
    let later = &state.messages[at + 1..];
    let open = |call: &&ToolCall| !later.iter().any(|message| message.answers() == Some(call.id.as_str()));
    state.messages[at]
        .tool_calls()
        .iter()
        .filter(open)
        .map(|call| edited(state, call).unwrap_or(call.clone()))
        .collect()
}

/// The call that a reviewer put in the place of `call`, if one did.
fn edited(state: &State, call: &ToolCall) -> Option<ToolCall> {
    let action = state.fields.get(EDITED_CALLS)?.get(&call.id)?;
    let action: Action = serde_json::from_value(action.clone()).ok()?;
    Some(ToolCall::new(call.id.clone(), action.name, action.args))
}

/// The layers inside a policy, for a question to the model.
#[derive(Clone, Copy)]
pub struct NextModel<'a> {
    /// The policies still to pass, outermost first.
    pub rest: &'a [Arc<dyn Middleware>],
    /// What lies inside the last of them.
    pub ask: &'a AskModel<'a>,
    /// Who asks.
    pub scope: &'a Scope,
    /// The state at the time of the question.
    pub state: &'a State,
}

impl NextModel<'_> {
    /// Passes the request on and waits for the answer.
    ///
    /// # Errors
    /// As the inner layers say.
    pub async fn ask(self, request: ModelRequest) -> Result<ModelAnswer, Halt> {
        match self.rest.split_first() {
            Some((policy, rest)) => policy.wrap_model_call(request, NextModel { rest, ..self }).await,
            None => (self.ask)(request).await,
        }
    }
}

/// The layers inside a policy, for one tool call.
#[derive(Clone, Copy)]
pub struct NextCall<'a> {
    /// The policies still to pass, outermost first.
    pub rest: &'a [Arc<dyn Middleware>],
    /// What lies inside the last of them.
    pub make: &'a MakeCall<'a>,
    /// Who calls.
    pub scope: &'a Scope,
    /// The state as it stood when the step began.
    pub state: &'a State,
}

impl NextCall<'_> {
    /// Passes the call on and waits for its outcome.
    ///
    /// # Errors
    /// As the inner layers say.
    pub async fn call(self, call: ToolCall) -> Result<CallOutcome, Halt> {
        match self.rest.split_first() {
            Some((policy, rest)) => policy.wrap_tool_call(call, NextCall { rest, ..self }).await,
            None => (self.make)(call).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;
    use crate::definition::{AgentDefinition, builtins};
    use crate::domain::item::template::NamespaceTemplate;
    use crate::domain::message::{Role, ToolStatus};
    use crate::tool::files::StateFiles;

    #[test]
    fn policies_bring_along_the_tools_that_the_table_of_definitions_names() {
        let template = NamespaceTemplate::read(&["a".to_owned()]).expect("a template");
        let policies: [Arc<dyn Middleware>; 4] = [
            Arc::new(todos::Todos::new()),
            Arc::new(store::StoreAccess::new(template, false)),
            Arc::new(background::BackgroundWork::new(vec![])),
            Arc::new(files::FileTools::new(
                Arc::new(StateFiles),
                &AgentDefinition::default().spec("a"),
            )),
        ];
        for policy in policies {
            let tools = policy.contribution().tools;
            let brought: Vec<String> = tools.iter().map(|tool| tool.spec().name.clone()).collect();
            let mut named = builtins::Builtin::tools_of(policy.name()).to_vec();
            // The name is reserved; there is no such tool.
            named.retain(|name| *name != "execute");
            assert_eq!(brought, named, "{}", policy.name());
        }
    }

    #[test]
    fn open_calls_are_those_without_a_result_as_they_will_run() {
        let calls = ["a", "b", "c"].map(|id| ToolCall::new(id, "send", Map::new()));
        let role = Role::Ai {
            tool_calls: calls.to_vec(),
            invalid_tool_calls: vec![],
            usage_metadata: None,
        };
        let rejected = Message::tool(&calls[1], ToolStatus::Error, "no");
        let mut state = State {
            messages: vec![Arc::new(Message::new(role, "")), Arc::new(rejected)],
            ..State::default()
        };
        state.fields.insert(
            EDITED_CALLS.to_owned(),
            json!({"c": {"name": "other", "args": {"x": 1}}}),
        );
        let edited = ToolCall::new("c", "other", Map::from_iter([("x".to_owned(), json!(1))]));
        assert_eq!(open_calls(&state), [calls[0].clone(), edited]);
        assert_eq!(open_calls(&State::default()), []);
    }
}
