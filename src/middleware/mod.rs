//! Middleware around the loop of an agent. One file for each.
//!
//! With the middleware A and B, in this order, one round of the loop is
//!
//! ```text
//! A.before_agent  B.before_agent
//!   A.before_model  B.before_model
//!     A.wrap_model_call( B.wrap_model_call( model ) )
//!   B.after_model  A.after_model
//!     A.wrap_tool_call( B.wrap_tool_call( tool ) )        for each call, in parallel
//! B.after_agent  A.after_agent
//! ```
//!
//! Middleware changes the state only by the updates it returns, and waits for a human only with [`Halt::Ask`]. It has
//! no access to the driver, the journal or the database.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::definition::{Diagnostic, read};
use crate::domain::call::{ToolOutput, edited_call};
use crate::domain::graph::Field;
use crate::domain::interrupt::Question;
use crate::domain::machine::{Failure, HookPoint, Jump};
use crate::domain::message::{Message, ToolCall, answered_calls};
use crate::domain::remembered::RememberedDecision;
use crate::domain::state::{State, Update};
use crate::domain::state_size::StateSize;
use crate::model::{Model, ModelError, ModelRequest, ToolSpec};
use crate::tool::{CallOutcome, Halt, Scope, Tool};

pub mod approval;
pub mod ask_user;
pub mod background;
pub mod context_editing;
pub mod dangling_calls;
pub mod delegation;
pub mod files;
mod forced_call;
pub mod limits;
pub mod memory;
pub mod model_call;
pub mod model_call_limit;
pub mod permissions;
pub mod pii;
pub mod prompt_override;
pub mod prompt_suffix;
mod reminder;
pub mod repeated_failures;
pub mod rubric;
pub mod skills;
pub mod store;
pub mod structured;
pub mod summarization;
pub mod todos;
pub mod tool_call_limit;
pub mod tool_emulation;
pub mod tool_retry;
pub mod tool_selection;
pub mod unsupported_content;
pub mod until_tool;

/// Middleware of the agent loop. Every method has a default that does nothing.
#[async_trait]
pub trait Middleware: Send + Sync {
    /// Returns the public name, which is unique within an agent and part of the names of its hooks
    /// (`name.after_model`).
    fn name(&self) -> &str;

    /// Creates the middleware with these settings, which a definition gives where it lists the middleware; `None` if
    /// it takes no settings.
    ///
    /// # Errors
    /// The invalid settings, with fields relative to them.
    fn configured(&self, settings: &Map<String, Value>) -> Result<Option<Arc<dyn Middleware>>, Vec<Diagnostic>> {
        let _ = settings;
        Ok(None)
    }

    /// Returns the setting by which several of this middleware in one list differ; `None` if it can be listed once.
    /// Then the configured ones have different names.
    fn distinguished_by(&self) -> Option<&'static str> {
        None
    }

    /// Returns the setting that is the name of a model, which [`AgentParts::model_named`] finds; `None` if no setting is.
    /// The checks of definitions read it.
    fn model_setting(&self) -> Option<&'static str> {
        None
    }

    /// Returns the setting that names a tool or tools of the agent; `None` if no setting does. The checks of definitions
    /// warn of tools that the agent lacks.
    fn tools_setting(&self) -> Option<&'static str> {
        None
    }

    /// Creates the middleware for one agent, with the parts of the agent that it needs; `None` if it needs none.
    fn for_agent(&self, parts: &AgentParts<'_>) -> Option<Arc<dyn Middleware>> {
        let _ = parts;
        None
    }

    /// Returns the hook points at which [`Middleware::hook`] is called.
    fn hook_points(&self) -> &[HookPoint] {
        &[]
    }

    /// Returns the tools, texts and fields that the middleware adds; called once when the agent is assembled.
    fn contribution(&self) -> Contribution {
        Contribution::default()
    }

    /// Runs the hook at `point`.
    ///
    /// # Errors
    /// [`Halt::Ask`] raises an interrupt; the hook runs again, with [`Scope::answer`] set, when it is answered.
    async fn hook(&self, point: HookPoint, scope: &Scope, state: &State) -> Result<HookResult, Halt> {
        let _ = (point, scope, state);
        Ok(HookResult::default())
    }

    /// Returns whether the hook at `point` may call tools in this state. Then [`Middleware::hook_with_tools`] is called
    /// in place of [`Middleware::hook`].
    fn calls_tools(&self, point: HookPoint, state: &State) -> bool {
        let _ = (point, state);
        false
    }

    /// Runs the hook at `point` with the tools of the agent. It is called only if [`Middleware::calls_tools`] says so.
    ///
    /// # Errors
    /// As [`Middleware::hook`].
    async fn hook_with_tools(
        &self,
        point: HookPoint,
        scope: &Scope,
        state: &State,
        tools: &dyn HookTools,
    ) -> Result<HookResult, Halt> {
        let _ = tools;
        self.hook(point, scope, state).await
    }

    /// Wraps a model call. May change the request, call the model several times, or not at all.
    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        next.ask(request).await
    }

    /// Returns a filter for the text of an answer, which is applied while the answer is streamed; `None` if the text
    /// stays as it is. The filter of the innermost middleware comes first.
    fn answer_filter(&self) -> Option<Box<dyn TextFilter>> {
        None
    }

    /// Returns the reason why the agent does not take a message from a client; `None` if it does.
    fn input_problem(&self, message: &Message) -> Option<String> {
        let _ = message;
        None
    }

    /// Returns whether the pieces of results that tools send while they run are kept from clients.
    fn withholds_tool_output(&self) -> bool {
        false
    }

    /// Wraps a tool call.
    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        next.call(call).await
    }

    /// Returns whether a human has to approve `call` of the agent of this scope before it runs, whatever its source.
    fn needs_approval(&self, scope: &Scope, call: &ToolCall) -> bool {
        let _ = scope;
        let _ = call;
        false
    }

    /// Returns the question about `call`, which needs approval.
    fn approval_question(&self, call: &ToolCall) -> Option<Question> {
        let _ = call;
        None
    }

    /// Returns the answer to the question about `call` that reviewers have given before, for the rest of the thread.
    fn remembered_answer(&self, scope: &Scope, call: &ToolCall, remembered: &[RememberedDecision]) -> Option<Value> {
        let _ = (scope, call, remembered);
        None
    }

    /// Processes the result of a call before it is recorded. The result of a subagent may arrive long after its call
    /// went through [`Middleware::wrap_tool_call`], possibly in another process.
    fn receive(&self, scope: &Scope, state: &State, call: &ToolCall, answer: ToolOutput) -> ToolOutput {
        let _ = (scope, state, call);
        answer
    }
}

/// Returns the built-in middleware that definitions may list with settings.
pub fn listed() -> Vec<Arc<dyn Middleware>> {
    vec![
        Arc::new(ask_user::AskUser::new()),
        Arc::new(context_editing::ContextEditing::default()),
        Arc::new(model_call_limit::ModelCallLimit::default()),
        Arc::new(tool_call_limit::ToolCallLimit::default()),
        Arc::new(tool_retry::ToolRetry::default()),
        Arc::new(pii::Pii::default()),
        Arc::new(tool_selection::ToolSelection::default()),
        Arc::new(tool_emulation::ToolEmulation::default()),
        Arc::new(rubric::Rubric::default()),
        Arc::new(todos::Todos::new()),
    ]
}

/// The models that a middleware asks, in their order: the next one when a model fails. Cheap to clone.
#[derive(Clone)]
pub struct MiddlewareModel(Arc<[ModelWithSettings]>);

/// A model, and the settings of all requests to it.
#[derive(Clone)]
pub struct ModelWithSettings {
    /// The model, or why it cannot be used.
    pub model: Result<Arc<dyn Model>, ModelError>,
    /// The provider settings of each request. Those of a request precede.
    pub settings: Map<String, Value>,
}

impl MiddlewareModel {
    /// Creates it with these models.
    pub fn new(models: impl IntoIterator<Item = ModelWithSettings>) -> Self {
        Self(models.into_iter().collect())
    }

    /// Returns the models in the order in which they are asked.
    pub fn models(&self) -> &[ModelWithSettings] {
        &self.0
    }

    /// Returns the largest input that all of the models take, in tokens: the smallest of the context windows that are
    /// known.
    pub fn max_input_tokens(&self) -> Option<u64> {
        let usable = self.0.iter().filter_map(|own| own.model.as_ref().ok());
        usable.filter_map(|model| model.max_input_tokens()).min()
    }
}

impl From<Result<Arc<dyn Model>, ModelError>> for MiddlewareModel {
    fn from(model: Result<Arc<dyn Model>, ModelError>) -> Self {
        Self::new([ModelWithSettings {
            model,
            settings: Map::new(),
        }])
    }
}

/// The parts of an agent that a middleware may need.
#[derive(Clone, Copy)]
pub struct AgentParts<'a> {
    /// The agent's models.
    pub model: &'a MiddlewareModel,
    /// Returns the model of a name.
    pub models: &'a (dyn Fn(&str) -> MiddlewareModel + Sync),
    /// The tools by which the model gives its final answer.
    pub answer_tools: &'a [String],
}

impl AgentParts<'_> {
    /// Returns the model of this name, or the agent's own.
    pub fn model_named(&self, name: Option<&str>) -> MiddlewareModel {
        name.map_or_else(|| self.model.clone(), |name| (self.models)(name))
    }
}

/// The maximum number of names in a setting that is a list of names.
const MOST_NAMES: usize = 256;

/// Returns the name of one of several middleware of the same kind, which differ in
/// [`distinguished_by`](Middleware::distinguished_by).
pub fn instance_name(kind: &str, setting: &str) -> String {
    format!("{kind}[{setting}]")
}

/// Parses the settings of a middleware.
///
/// # Errors
/// The invalid fields.
pub fn read_settings<T: DeserializeOwned>(settings: &Map<String, Value>) -> Result<T, Vec<Diagnostic>> {
    let reading = read(Value::Object(settings.clone()));
    match reading.value {
        Some(value) if reading.findings.is_empty() => Ok(value),
        Some(_) | None => Err(reading.findings),
    }
}

/// The tools, texts and fields that a middleware adds to an agent.
#[derive(Clone, Default)]
pub struct Contribution {
    /// The tools.
    pub tools: Vec<Arc<dyn Tool>>,
    /// The text for the instructions.
    pub prompt: Option<String>,
    /// The state fields that the middleware keeps and clients can read.
    pub fields: Vec<Field>,
}

/// The result of a hook.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HookResult {
    /// The writes.
    pub update: Update,
    /// The place where the loop continues, if not at the next step.
    pub jump: Option<Jump>,
    /// The calls that a human has approved, as they will run. A call that needs approval and is not among them is
    /// asked about before it runs.
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

/// The tools of an agent, for a hook.
#[async_trait]
pub trait HookTools: Send + Sync {
    /// Returns the specifications of the tools that are there now.
    fn specs(&self) -> Vec<Arc<ToolSpec>>;

    /// Makes a call, which goes through the middleware of the agent like a call of the model. The hook alone gets the
    /// result, and nothing of it is stored. A hook is run again after a crash, so that calls that must not be repeated,
    /// and calls about which a human would have to be asked, are error results.
    ///
    /// # Errors
    /// [`Halt::Fail`] if the tool fails and its failure ends the run; [`Halt::Stopped`] if the run has to stop.
    async fn call(&self, call: ToolCall) -> Result<ToolOutput, Halt>;
}

/// Rewrites a text that arrives in pieces.
pub trait TextFilter: Send {
    /// Takes the next piece. Returns the text that may be shown now; the rest is held back.
    fn push(&mut self, text: &str) -> String;

    /// Ends the text. Returns the rest of it.
    ///
    /// # Errors
    /// The failure of a run whose answer must not be taken.
    fn finish(&mut self) -> Result<String, Failure>;
}

/// The model's answer on its way back through the middleware.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelAnswer {
    /// The answer.
    pub message: Message,
    /// The writes of the middleware beside the message. A middleware that calls the model again drops those of the
    /// first answer.
    pub extra: Update,
}

/// The innermost layer of a model call.
pub type AskModel<'a> = dyn Fn(ModelRequest) -> BoxFuture<'a, Result<ModelAnswer, Halt>> + Send + Sync + 'a;

/// The innermost layer of a tool call.
pub type MakeCall<'a> = dyn Fn(ToolCall) -> BoxFuture<'a, Result<CallOutcome, Halt>> + Send + Sync + 'a;

/// Returns the calls of the model's last answer that have no result yet, with the reviewer's edits.
///
/// Within one step the list is the same for every call, since results are written together. A rule about several
/// calls of one message, based on this list, therefore always gives the same result.
pub fn open_calls(state: &State) -> Vec<Cow<'_, ToolCall>> {
    let Some((answer, later)) = state.messages.last_answer() else {
        return vec![];
    };
    let answered = answered_calls(later);
    let calls = answer.tool_calls().iter();
    calls
        .filter(|call| !answered.contains(call.id.as_str()))
        .map(|call| edited(state, call).map_or(Cow::Borrowed(call), Cow::Owned))
        .collect()
}

/// Returns the call that a reviewer put in the place of `call`, if there is one.
fn edited(state: &State, call: &ToolCall) -> Option<ToolCall> {
    let action = edited_call(state, &call.id)?;
    Some(ToolCall::new(call.id.clone(), action.name, action.args))
}

/// The inner layers of a model call.
#[derive(Clone, Copy)]
pub struct NextModel<'a> {
    /// The remaining middleware, outermost first.
    pub rest: &'a [Arc<dyn Middleware>],
    /// The innermost layer.
    pub ask: &'a AskModel<'a>,
    /// The scope of the agent.
    pub scope: &'a Scope,
    /// The state at the time of the call.
    pub state: &'a State,
    /// The size of the state.
    pub size: &'a StateSize,
}

impl NextModel<'_> {
    /// Passes the request to the inner layers and returns the answer.
    ///
    /// # Errors
    /// The errors of the inner layers.
    pub async fn ask(self, request: ModelRequest) -> Result<ModelAnswer, Halt> {
        match self.rest.split_first() {
            Some((policy, rest)) => policy.wrap_model_call(request, NextModel { rest, ..self }).await,
            None => (self.ask)(request).await,
        }
    }
}

/// The inner layers of a tool call.
#[derive(Clone, Copy)]
pub struct NextCall<'a> {
    /// The remaining middleware, outermost first.
    pub rest: &'a [Arc<dyn Middleware>],
    /// The innermost layer.
    pub make: &'a MakeCall<'a>,
    /// The scope of the call.
    pub scope: &'a Scope,
    /// The state at the start of the step.
    pub state: &'a State,
    /// The specification of the tool, if there is such a tool.
    pub spec: Option<&'a ToolSpec>,
    /// True if the call may be made again although nobody knows whether it took effect.
    pub may_repeat: bool,
}

impl NextCall<'_> {
    /// Passes the call to the inner layers and returns its outcome.
    ///
    /// # Errors
    /// The errors of the inner layers.
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
    use crate::domain::call::EDITED_CALLS;
    use crate::domain::item::template::NamespaceTemplate;
    use crate::domain::message::{Role, ToolStatus};
    use crate::tool::files::StateFiles;

    #[test]
    fn listed_middleware_says_which_settings_name_models_and_tools() {
        let all = listed();
        let models = all.iter().filter_map(|one| Some((one.name(), one.model_setting()?)));
        let models: Vec<(&str, &str)> = models.collect();
        assert_eq!(
            models,
            [
                ("LLMToolSelectorMiddleware", "model"),
                ("LLMToolEmulator", "model"),
                ("RubricMiddleware", "model"),
            ]
        );
        let tools = all.iter().filter_map(|one| Some((one.name(), one.tools_setting()?)));
        let tools: Vec<(&str, &str)> = tools.collect();
        assert_eq!(
            tools,
            [
                ("ContextEditingMiddleware", "exclude_tools"),
                ("ToolCallLimitMiddleware", "tool"),
                ("ToolRetryMiddleware", "tools"),
                ("LLMToolSelectorMiddleware", "always_include"),
                ("LLMToolEmulator", "tools"),
                ("RubricMiddleware", "tools"),
            ]
        );
    }

    #[test]
    fn middleware_adds_the_tools_that_the_table_of_definitions_names() {
        let template = NamespaceTemplate::read(&["a".to_owned()]).expect("a template");
        let settings = crate::definition::SummarizationSettings {
            tool: true,
            ..Default::default()
        };
        let model: Arc<dyn Model> = Arc::new(crate::model::providers::scripted::Scripted::new("m"));
        let policies: [Arc<dyn Middleware>; 6] = [
            Arc::new(ask_user::AskUser::new()),
            Arc::new(summarization::Summarization::new(
                &settings,
                &Ok(model).into(),
                None,
                true,
            )),
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
            // The tool is there only if the agent may run commands.
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
            messages: vec![Arc::new(Message::new(role, "")), Arc::new(rejected)].into(),
            ..State::default()
        };
        state.fields.insert(
            EDITED_CALLS.to_owned(),
            json!({"c": {"name": "other", "args": {"x": 1}}}),
        );
        let edited = ToolCall::new("c", "other", Map::from_iter([("x".to_owned(), json!(1))]));
        let open = open_calls(&state);
        assert!(
            matches!(open[0], Cow::Borrowed(_)),
            "each call of an answer asks for all of them, so none is copied without need"
        );
        let open: Vec<ToolCall> = open.into_iter().map(Cow::into_owned).collect();
        assert_eq!(open, [calls[0].clone(), edited]);
        assert!(open_calls(&State::default()).is_empty());
    }
}
