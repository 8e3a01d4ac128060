//! Policy: the agent can hand work to subagents.
//!
//! Offers the `task` tool. The tool itself starts nothing: it returns a wish, and the loop decides about it.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use super::{Contribution, Middleware, NextCall};
use crate::domain::call::Answer;
use crate::domain::message::ToolCall;
use crate::domain::state::State;
use crate::model::ToolSpec;
use crate::tool::{CallOutcome, Delegation, Halt, Scope, Tool};

/// The tool's name.
pub const TASK: &str = "task";
/// The arguments of the tool.
const DESCRIPTION: &str = "description";
const SUBAGENT: &str = "subagent_type";
/// Stands for the list of subagents in a text.
const SLOT: &str = "{available_agents}";

const STANDARD_TEXT: &str = "Hands a piece of work to a subagent and waits for its report.\n\n\
    Subagents:\n{available_agents}\n\n\
    A subagent begins with an empty conversation. It knows nothing of yours, so the description has to say everything: \
    what is to be done, with which facts, and what the report shall contain. It shares your files. You see its last \
    message and nothing else, and the user sees nothing of it unless you pass it on. You cannot talk to it while it \
    works, and it is gone when it has reported.\n\n\
    Delegate work that takes many steps or much reading and of which you need only the outcome. Do simple things \
    yourself. Pieces that do not depend on each other can run at the same time: put several calls into one message.";

/// What a delegating model knows of a subagent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubagentCard {
    /// The name it is called by.
    pub name: String,
    /// What it is for.
    pub description: String,
}

/// The policy.
#[derive(Clone)]
pub struct Subagents {
    tool: Arc<Task>,
    prompt: Option<String>,
}

impl Subagents {
    /// Delegation to `subagents`, in this order. `task_description` replaces the standard description of the tool, and
    /// `{available_agents}` in it is replaced by the list; `task_system_prompt` is added to the agent's instructions,
    /// followed by the list.
    pub fn new(subagents: Vec<SubagentCard>, task_description: Option<&str>, task_system_prompt: Option<&str>) -> Self {
        let lines: Vec<String> =
            subagents.iter().map(|card| format!("- {}: {}", card.name, card.description)).collect();
        let list = lines.join("\n");
        let names: Vec<String> = subagents.into_iter().map(|card| card.name).collect();
        let parameters = json!({
            "type": "object",
            "properties": {
                DESCRIPTION: {
                    "type": "string",
                    "description": "The whole work order: all that the subagent is told.",
                },
                SUBAGENT: {"type": "string", "enum": names, "description": "Which subagent does it."},
            },
            "required": [DESCRIPTION, SUBAGENT],
            "additionalProperties": false,
        });
        let description = task_description.unwrap_or(STANDARD_TEXT).replace(SLOT, &list);
        let spec = Arc::new(ToolSpec { name: TASK.to_owned(), description, parameters });
        let prompt = task_system_prompt.map(|text| format!("{text}\n\nSubagents you can give work to:\n{list}"));
        Self { tool: Arc::new(Task { spec, names }), prompt }
    }
}

#[async_trait]
impl Middleware for Subagents {
    fn name(&self) -> &str {
        "SubAgentMiddleware"
    }

    fn contribution(&self) -> Contribution {
        Contribution { tools: vec![self.tool.clone()], prompt: self.prompt.clone(), ..Contribution::default() }
    }

    /// Looks at the arguments before the schema does: these mistakes are common, and the schema's words would not help.
    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        match self.tool.refusal(&call) {
            Some(text) if call.name == TASK => Ok(CallOutcome::Answer(Answer::error(&call, text))),
            Some(_) | None => next.call(call).await,
        }
    }
}

struct Task {
    spec: Arc<ToolSpec>,
    names: Vec<String>,
}

impl Task {
    /// What is wrong with the call, if the model is likely to repeat it unless told precisely.
    fn refusal(&self, call: &ToolCall) -> Option<String> {
        let unknown: Vec<String> = call
            .args
            .keys()
            .filter(|key| *key != DESCRIPTION && *key != SUBAGENT)
            .map(|key| format!("`{key}`"))
            .collect();
        if !unknown.is_empty() {
            return Some(format!(
                "Error: `task` has no argument {}. All instructions for the subagent belong in `{DESCRIPTION}`. \
                 Nothing was run; call again with `{DESCRIPTION}` and `{SUBAGENT}` only.",
                unknown.join(", ")
            ));
        }
        let wanted = call.args.get(SUBAGENT)?.as_str()?;
        if self.names.iter().any(|name| name == wanted) {
            return None;
        }
        let names: Vec<String> = self.names.iter().map(|name| format!("`{name}`")).collect();
        Some(format!(
            "We cannot invoke subagent {wanted} because it does not exist, the only allowed types are {}",
            names.join(", ")
        ))
    }
}

#[async_trait]
impl Tool for Task {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    async fn call(&self, _: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        if let Some(text) = self.refusal(call) {
            return Ok(CallOutcome::Answer(Answer::error(call, text)));
        }
        let argument = |name: &str| call.args.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
        Ok(CallOutcome::Delegate(Delegation { subagent: argument(SUBAGENT), description: argument(DESCRIPTION) }))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use serde_json::Value;

    use super::*;
    use crate::domain::time::Timestamp;

    fn cards() -> Vec<SubagentCard> {
        [("researcher", "Researches."), ("mailer", "Mails.")]
            .map(|(name, description)| SubagentCard { name: name.to_owned(), description: description.to_owned() })
            .to_vec()
    }

    fn policy() -> Subagents {
        Subagents::new(cards(), None, None)
    }

    fn task(args: Value) -> ToolCall {
        ToolCall::new("c", TASK, args.as_object().cloned().unwrap_or_default())
    }

    async fn outcome(call: ToolCall) -> CallOutcome {
        let policy = policy();
        let (scope, state) = (Scope::sample(Timestamp(0)), State::default());
        let make = |call: ToolCall| async { policy.tool.call(&scope, &state, &{ call }).await }.boxed();
        let next = NextCall { rest: &[], make: &make, scope: &scope, state: &state };
        policy.wrap_tool_call(call, next).await.expect("an outcome")
    }

    async fn refused(args: Value) -> String {
        match outcome(task(args)).await {
            CallOutcome::Answer(answer) => answer.writes.messages[0].content.text(),
            CallOutcome::Delegate(wish) => panic!("{wish:?}"),
        }
    }

    #[tokio::test]
    async fn a_call_is_a_wish_to_delegate() {
        let wish = Delegation { subagent: "mailer".to_owned(), description: "write".to_owned() };
        let call = task(json!({"description": "write", "subagent_type": "mailer"}));
        assert_eq!(outcome(call).await, CallOutcome::Delegate(wish));
    }

    #[tokio::test]
    async fn an_unknown_subagent_is_refused_with_the_names_of_those_that_exist() {
        let text = refused(json!({"description": "x", "subagent_type": "nobody"})).await;
        assert!(text.contains("nobody") && text.ends_with("`researcher`, `mailer`"), "{text}");
    }

    #[tokio::test]
    async fn an_invented_argument_is_refused_with_a_word_on_where_instructions_belong() {
        let text = refused(json!({"description": "x", "subagent_type": "mailer", "prompt": "y"})).await;
        assert!(text.contains("`prompt`") && text.contains("belong in `description`"), "{text}");
    }

    #[test]
    fn the_model_sees_which_subagents_there_are() {
        let spec = policy().tool.spec.clone();
        assert!(spec.description.contains("- researcher: Researches.\n- mailer: Mails."));
        assert_eq!(spec.parameters["properties"][SUBAGENT]["enum"], json!(["researcher", "mailer"]));
        assert!(policy().contribution().prompt.is_none());
    }

    #[test]
    fn own_texts_take_the_place_of_the_standard_ones() {
        let own = Subagents::new(cards(), Some("Agents: {available_agents}!"), Some("Delegate much."));
        assert_eq!(own.tool.spec.description, "Agents: - researcher: Researches.\n- mailer: Mails.!");
        let prompt = own.contribution().prompt.unwrap_or_default();
        assert!(prompt.starts_with("Delegate much.\n\n") && prompt.ends_with("- mailer: Mails."), "{prompt}");
        let verbatim = Subagents::new(cards(), Some("Nothing listed."), None);
        assert_eq!(verbatim.tool.spec.description, "Nothing listed.");
    }
}
