//! Agents and tools for tests, which count their effects.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use crate::agent::assemble::plan;
use crate::agent::subagent_registry::{Build, SubagentRegistry};
use crate::agent::{Agent, AgentKind, ModelLoop, SharedState};
use crate::definition::{AfterCrash, ApprovalRule, OnError};
use crate::domain::call::ToolOutput;
use crate::domain::interrupt::{Question, QuestionKind};
use crate::domain::machine::{Failure, HookPoint};
use crate::domain::message::{Message, ToolCall, ToolStatus};
use crate::domain::run::DelegatedTask;
use crate::domain::state::{File, State, Update};
use crate::middleware::approval::Approval;
use crate::middleware::delegation::{SubagentList, SubagentSummary, Subagents};
use crate::middleware::{HookResult, Middleware};
use crate::model::ToolSpec;
use crate::model::providers::scripted::Scripted;
use crate::tool::{CallOutcome, Delegation, Halt, Scope, Tool, Toolbox};

/// The effects outside the server: the number of times that each call took effect.
#[derive(Default)]
pub(super) struct World {
    effects: Mutex<BTreeMap<String, usize>>,
}

impl World {
    pub(super) fn effects(&self) -> BTreeMap<String, usize> {
        self.effects.lock().unwrap().clone()
    }

    pub(super) fn happened(&self, key: &str) -> usize {
        self.effects().get(key).copied().unwrap_or(0)
    }
}

/// Returns a number derived from a name.
pub(super) fn number(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// The properties of a tool.
pub(super) struct Act {
    spec: Arc<ToolSpec>,
    world: Arc<World>,
}

/// No effect outside: writes the call's id into the file `path`.
pub(super) const JOT: &str = "jot";
/// Deletes the file `path`.
pub(super) const ERASE: &str = "erase";
/// Has an effect; after a crash a human is asked.
pub(super) const SEND: &str = "send";
/// Has an effect and needs approval; after a crash a human is asked.
pub(super) const PAY: &str = "pay";
/// Has an effect that may be repeated.
pub(super) const COUNT: &str = "count";
/// Asks a question before an effect that may be repeated.
pub(super) const INQUIRE: &str = "inquire";
/// Asks a question before an effect; after a crash a human is asked about the outcome.
pub(super) const CONFESS: &str = "confess";
/// Has an effect; after a crash it counts as failed.
pub(super) const SHOUT: &str = "shout";
/// Fails.
pub(super) const FAIL: &str = "fail";
/// Has an effect and fails, and the run with it.
pub(super) const BREAK: &str = "break";

/// Delegates to a subagent, as a tool behind HTTP may.
pub(super) const SPAWN: &str = "spawn";

pub(super) const TOOLS: [&str; 11] = [
    JOT, ERASE, SEND, PAY, COUNT, INQUIRE, CONFESS, SHOUT, FAIL, BREAK, SPAWN,
];

impl Act {
    fn has_effect(name: &str) -> bool {
        matches!(name, SEND | PAY | COUNT | INQUIRE | CONFESS | SHOUT | BREAK)
    }

    fn asks(&self) -> bool {
        matches!(self.spec.name.as_str(), INQUIRE | CONFESS)
    }
}

/// Returns the result of a call that took effect.
pub(super) fn outcome_of(tool: &str, key: &str) -> String {
    match tool {
        INQUIRE | CONFESS => format!("{tool} {key}: {}", reply_to(key)),
        _ => format!("{tool} {key}"),
    }
}

/// Returns the human's answer to the question of a call.
pub(super) fn reply_to(key: &str) -> Value {
    json!(number(key) % 7)
}

#[async_trait]
impl Tool for Act {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    fn has_effects(&self) -> bool {
        Self::has_effect(&self.spec.name)
    }

    fn after_crash(&self) -> AfterCrash {
        match self.spec.name.as_str() {
            SEND | PAY | CONFESS | BREAK => AfterCrash::Ask,
            SHOUT => AfterCrash::Fail,
            _ => AfterCrash::Repeat,
        }
    }

    fn on_error(&self) -> OnError {
        if self.spec.name == BREAK {
            OnError::FailRun
        } else {
            OnError::Report
        }
    }

    async fn call(&self, scope: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        let name = self.spec.name.as_str();
        for _ in 0..number(&call.id) % 3 {
            tokio::task::yield_now().await;
        }
        if name == SPAWN {
            let text = |name: &str| {
                call.args
                    .get(name)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            let order = DelegatedTask {
                description: text("description"),
                ..DelegatedTask::default()
            };
            return Ok(CallOutcome::Delegate(Delegation {
                subagent: text("subagent_type"),
                order,
            }));
        }
        if self.asks() && scope.answer.is_none() {
            let kind = QuestionKind::Question;
            let calls = vec![call.id.clone()];
            return Err(Question {
                kind,
                value: json!(call.id),
                schema: json!({}).into(),
                calls,
                key: None,
                approvers: Default::default(),
                ..Question::default()
            }
            .into());
        }
        if Self::has_effect(name) {
            *self.world.effects.lock().unwrap().entry(call.id.clone()).or_default() += 1;
            tokio::task::yield_now().await;
        }
        if name == FAIL || name == BREAK {
            return Err(Halt::Fail(Failure::new("ToolError", format!("{} failed", call.id))));
        }
        let text = match &scope.answer {
            Some(answer) => format!("{name} {}: {answer}", call.id),
            None => format!("{name} {}", call.id),
        };
        let mut answer = ToolOutput::message(Message::tool(call, ToolStatus::Success, text));
        if let Some(path) = call.args.get("path").and_then(Value::as_str) {
            let file = (name == JOT).then(|| Arc::new(File::text(call.id.as_str(), scope.now())));
            answer.writes.merge(Update {
                files: BTreeMap::from([(path.to_owned(), file)]),
                ..Update::none()
            });
        }
        Ok(CallOutcome::Answer(answer))
    }
}

/// Counts its hooks in the state, so that a hook that is applied twice is detected.
struct Tally;

#[async_trait]
impl Middleware for Tally {
    fn name(&self) -> &str {
        "Tally"
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[
            HookPoint::BeforeAgent,
            HookPoint::BeforeModel,
            HookPoint::AfterModel,
            HookPoint::AfterAgent,
        ]
    }

    async fn hook(&self, point: HookPoint, _: &Scope, state: &State) -> Result<HookResult, Halt> {
        let count = state.count(point.word());
        Ok(Update::field(point.word(), json!(count + 1)).into())
    }
}

/// Returns an agent with this middleware and all tools, and with `task` if it has subagents.
pub(super) fn agent_of(
    name: &str,
    world: &Arc<World>,
    roster: Option<Arc<SubagentRegistry>>,
    mut stack: Vec<Arc<dyn Middleware>>,
) -> Agent {
    if roster.is_some() {
        let card = |name: &str| SubagentSummary {
            name: name.to_owned(),
            ..SubagentSummary::default()
        };
        stack.push(Arc::new(Subagents::new(&SubagentList {
            subagents: ["one", "two"].map(card).to_vec(),
            ..SubagentList::default()
        })));
    }
    let acts = TOOLS.map(|name| {
        let spec = ToolSpec {
            name: name.to_owned(),
            description: String::new(),
            parameters: json!({"type": "object", "properties": {
                "path": {"type": "string"}, "description": {"type": "string"}, "subagent_type": {"type": "string"}
            }}),
        };
        Arc::new(Act {
            spec: Arc::new(spec),
            world: Arc::clone(world),
        }) as Arc<dyn Tool>
    });
    let contributed = stack
        .iter()
        .flat_map(|policy| policy.contribution().tools)
        .collect::<Vec<_>>();
    let toolbox = Toolbox::new(contributed.into_iter().chain(acts));
    let checks = toolbox.argument_checks();
    Agent {
        name: name.to_owned(),
        plan: plan(&stack, 10_000, Arc::default()),
        limits: crate::domain::limits::Limits::default(),
        declared: crate::domain::declared_fields::DeclaredFields::default(),
        is_fork: false,
        shares: SharedState::default(),
        approvers: Default::default(),
        display_text: None,
        initial: vec![],
        kind: AgentKind::ModelLoop(Box::new(ModelLoop {
            model_name: "scripted:mock".to_owned(),
            model: Ok(Arc::new(Scripted::new("mock"))),
            fallbacks: vec![],
            settings: Map::new(),
            system_prompt: "".into(),
            stack,
            toolbox,
            checks,
            fields: vec![],
            settings_schema: None,
            context: None,
            subagents: roster,
            forks: crate::agent::Forks::default(),
            summarization: None,
            files: crate::tool::files::AgentFiles::default(),
        })),
    }
}

/// Returns a registry of the subagents `one` and `two`, which are built like the agent itself.
pub(super) fn roster(
    world: &Arc<World>,
    depth: u32,
    policies: fn(&Arc<World>) -> Vec<Arc<dyn Middleware>>,
) -> Arc<SubagentRegistry> {
    let builders = ["one", "two"].map(|name| {
        let world = Arc::clone(world);
        let build: Build = Box::new(move |roster, _| agent_of(name, &world, roster, policies(&world)));
        (name.to_owned(), build)
    });
    SubagentRegistry::new(depth, builders, BTreeMap::new(), BTreeMap::new())
}

/// Returns middleware that counts its hooks and asks before payments.
pub(super) fn careful(world: &Arc<World>) -> Vec<Arc<dyn Middleware>> {
    let bare = agent_of("", world, None, vec![]);
    let rules = BTreeMap::from([(PAY.to_owned(), ApprovalRule::Switch(true))]);
    vec![
        Arc::new(Tally),
        Arc::new(Approval::new(
            rules,
            bare.model_loop().expect("it asks a model").toolbox.clone(),
        )),
    ]
}

/// Returns a main agent that delegates `depth` levels down, counts its hooks and asks before payments.
pub(super) fn careful_agent(world: &Arc<World>, depth: u32) -> Agent {
    agent_of("main", world, Some(roster(world, depth, careful)), careful(world))
}

/// Returns a main agent with subagents and without middleware.
pub(super) fn plain_agent(world: &Arc<World>, depth: u32) -> Agent {
    agent_of("main", world, Some(roster(world, depth, |_| vec![])), vec![])
}
