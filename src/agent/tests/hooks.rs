//! Tests of middleware: the order of hooks, and the values that pass through them.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::cast::{COUNT, INQUIRE, SEND, SPAWN, World, agent_of};
use super::{RunInput, Stage, questions, script};
use crate::agent::LoopOutcome;
use crate::domain::interrupt::{Question, QuestionKind};
use crate::domain::machine::{HookPoint, Jump};
use crate::domain::message::{Message, ToolCall};
use crate::domain::state::{State, Update};
use crate::domain::summarization::EVENT;
use crate::middleware::{HookResult, HookTools, Middleware, ModelAnswer, NextCall, NextModel};
use crate::model::ModelRequest;
use crate::tool::{CallOutcome, Halt, Scope};

type Log = Arc<Mutex<Vec<String>>>;

/// Records its hooks.
struct Probe(&'static str, Log);

impl Probe {
    fn note(&self, what: &str) {
        self.1.lock().unwrap().push(format!("{}.{what}", self.0));
    }
}

const ALL: [HookPoint; 4] = [
    HookPoint::BeforeAgent,
    HookPoint::BeforeModel,
    HookPoint::AfterModel,
    HookPoint::AfterAgent,
];

#[async_trait]
impl Middleware for Probe {
    fn name(&self) -> &str {
        self.0
    }

    fn hook_points(&self) -> &[HookPoint] {
        &ALL
    }

    async fn hook(&self, point: HookPoint, _: &Scope, _: &State) -> Result<HookResult, Halt> {
        self.note(point.word());
        Ok(HookResult::default())
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        self.note("model(");
        let answer = next.ask(request).await;
        self.note(")model");
        answer
    }

    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        self.note("tool(");
        let outcome = next.call(call).await;
        self.note(")tool");
        outcome
    }
}

/// Calls the inner layers twice, and again after failures.
struct Stubborn;

#[async_trait]
impl Middleware for Stubborn {
    fn name(&self) -> &str {
        "Stubborn"
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let _ = next.ask(request.clone()).await;
        next.ask(request).await
    }

    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        match next.call(call.clone()).await {
            Err(halt) if halt.is_failure() => next.call(call).await,
            outcome => outcome,
        }
    }
}

/// Writes a field beside each answer of the model.
#[derive(Default)]
struct Scribe(Mutex<u32>);

#[async_trait]
impl Middleware for Scribe {
    fn name(&self) -> &str {
        "Scribe"
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let mut answer = next.ask(request).await?;
        let mut count = self.0.lock().unwrap();
        *count += 1;
        answer
            .extra
            .merge(Update::field(format!("written_{count}"), json!(true)));
        Ok(answer)
    }
}

/// Asks a human before each tool call, and at one hook point.
struct Doubtful(HookPoint);

impl Doubtful {
    fn asks(&self, scope: &Scope) -> Result<Value, Halt> {
        let question = || Question {
            kind: QuestionKind::Question,
            value: json!("really?"),
            schema: json!({}).into(),
            calls: vec![],
            key: None,
            approvers: Default::default(),
            ..Question::default()
        };
        scope.answer.clone().ok_or_else(|| question().into())
    }
}

#[async_trait]
impl Middleware for Doubtful {
    fn name(&self) -> &str {
        "Doubtful"
    }

    fn hook_points(&self) -> &[HookPoint] {
        std::slice::from_ref(&self.0)
    }

    async fn hook(&self, _: HookPoint, scope: &Scope, _: &State) -> Result<HookResult, Halt> {
        Ok(Update::field("told", self.asks(scope)?).into())
    }

    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        self.asks(next.scope)?;
        next.call(call).await
    }
}

/// Records the texts of requests to the model.
struct Reader(Log);

#[async_trait]
impl Middleware for Reader {
    fn name(&self) -> &str {
        "Reader"
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let texts = request.messages.iter().map(|message| message.content.text());
        self.0.lock().unwrap().extend(texts);
        next.ask(request).await
    }
}

/// Ends the agent before the first model call.
struct Impatient;

#[async_trait]
impl Middleware for Impatient {
    fn name(&self) -> &str {
        "Impatient"
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::BeforeModel]
    }

    async fn hook(&self, _: HookPoint, _: &Scope, _: &State) -> Result<HookResult, Halt> {
        Ok(HookResult {
            update: Update::messages([Message::ai("enough")]),
            jump: Some(Jump::End),
            ..HookResult::default()
        })
    }
}

/// Calls tools when the agent is done.
struct Curious;

#[async_trait]
impl Middleware for Curious {
    fn name(&self) -> &str {
        "Curious"
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::BeforeAgent, HookPoint::AfterAgent]
    }

    fn calls_tools(&self, point: HookPoint, _: &State) -> bool {
        point == HookPoint::AfterAgent
    }

    async fn hook_with_tools(
        &self,
        _: HookPoint,
        _: &Scope,
        _: &State,
        tools: &dyn HookTools,
    ) -> Result<HookResult, Halt> {
        let mut seen: Vec<String> = vec![];
        for name in [COUNT, SEND, INQUIRE, SPAWN, "no_such_tool"] {
            let output = tools.call(ToolCall::new("h1", name, Map::new())).await?;
            seen.extend(output.writes.messages.iter().map(|message| message.content.text()));
        }
        Ok(Update::field("seen", json!(seen)).into())
    }
}

fn stage(stack: Vec<Arc<dyn Middleware>>) -> (Stage, Arc<World>) {
    let world = Arc::new(World::default());
    (Stage::new(agent_of("main", &world, None, stack)), world)
}

fn probes() -> (Vec<Arc<dyn Middleware>>, Log) {
    let log = Log::default();
    (
        vec![
            Arc::new(Probe("A", Arc::clone(&log))),
            Arc::new(Probe("B", Arc::clone(&log))),
        ],
        log,
    )
}

fn lines(log: &Log) -> String {
    std::mem::take(&mut *log.lock().unwrap()).join(" ")
}

#[tokio::test]
async fn two_policies_act_in_the_order_that_is_printed_in_the_documentation() {
    let (stack, log) = probes();
    let (stage, _) = stage(stack);
    assert_eq!(
        stage.hears(script(&[&[("a", COUNT, json!({}))]])).await,
        LoopOutcome::Done
    );
    let round = "A.before_model B.before_model A.model( B.model( B.)model A.)model B.after_model A.after_model";
    let expected = format!(
        "A.before_agent B.before_agent {round} A.tool( B.tool( B.)tool A.)tool {round} B.after_agent A.after_agent"
    );
    assert_eq!(lines(&log), expected);
}

#[tokio::test]
async fn earlier_hooks_do_not_run_again_after_an_answer() {
    let (mut stack, log) = probes();
    stack.insert(1, Arc::new(Doubtful(HookPoint::BeforeModel)));
    let (stage, _) = stage(stack);
    let waits = stage.hears("hello").await;
    assert_eq!(lines(&log), "A.before_agent B.before_agent A.before_model");
    assert_eq!(
        stage.is_answered(&questions(&waits)[0], json!("yes")).await,
        LoopOutcome::Done
    );
    let round = "B.before_model A.model( B.model( B.)model A.)model B.after_model A.after_model";
    assert_eq!(lines(&log), format!("{round} B.after_agent A.after_agent"));
    assert_eq!(stage.state().fields["told"], json!("yes"));
}

#[tokio::test]
async fn a_failed_or_dropped_model_call_writes_nothing() {
    let (stage, _) = stage(vec![Arc::new(Stubborn), Arc::new(Scribe::default())]);
    assert_eq!(
        stage.hears(r#"{"script": [{"text": "hello"}]}"#).await,
        LoopOutcome::Done
    );
    let state = stage.state();
    assert_eq!(state.fields.keys().collect::<Vec<_>>(), ["written_2"]);
    assert_eq!(
        state.messages.recent().iter().filter(|message| message.is_ai()).count(),
        1
    );
}

#[tokio::test]
async fn a_retry_wins_over_a_model_that_fails_once() {
    let (stage, _) = stage(vec![Arc::new(Stubborn)]);
    let script = r#"{"script": [{"text": "hello", "fail_first": 1}]}"#;
    assert_eq!(stage.hears(script).await, LoopOutcome::Done);
    assert_eq!(stage.state().last_ai().unwrap().content.text(), "hello");
}

#[tokio::test]
async fn a_question_inside_a_retry_is_asked_once() {
    let (stage, world) = stage(vec![Arc::new(Stubborn)]);
    let waits = stage.hears(script(&[&[("a", INQUIRE, json!({}))]])).await;
    let asked = questions(&waits);
    assert_eq!(asked.len(), 1);
    assert_eq!(world.happened("a"), 0);
    assert_eq!(stage.is_answered(&asked[0], json!(1)).await, LoopOutcome::Done);
    assert_eq!(stage.results(), vec!["inquire a: 1".to_owned()]);
    assert_eq!(world.happened("a"), 1);
}

#[tokio::test]
async fn a_question_around_a_call_passes_through_other_middleware() {
    let (stage, world) = stage(vec![
        Arc::new(Stubborn),
        Arc::new(Doubtful(HookPoint::AfterAgent)),
        Arc::new(Stubborn),
    ]);
    let waits = stage
        .hears(script(&[&[("a", COUNT, json!({})), ("b", COUNT, json!({}))]]))
        .await;
    let asked = questions(&waits);
    assert_eq!(asked.len(), 2);
    assert_eq!(world.effects().len(), 0);
    let still = stage.is_answered(&asked[1], json!("yes")).await;
    assert_eq!(questions(&still), vec![asked[0].clone()]);
    assert_eq!(world.happened("b"), 1);
    let last = stage.is_answered(&asked[0], json!("yes")).await;
    assert_eq!(questions(&last).len(), 1, "the hook after the agent asks as well");
}

#[tokio::test]
async fn a_jump_to_the_end_skips_the_model_but_not_the_last_hooks() {
    let (mut stack, log) = probes();
    stack.insert(0, Arc::new(Impatient));
    let (stage, _) = stage(stack);
    assert_eq!(
        stage
            .runs(RunInput::Input(Update::messages([Message::human("hi")])))
            .await,
        LoopOutcome::Done
    );
    assert_eq!(lines(&log), "A.before_agent B.before_agent B.after_agent A.after_agent");
    assert_eq!(stage.state().last_ai().unwrap().content.text(), "enough");
    assert_eq!(stage.store.deltas(), 0);
}

#[tokio::test]
async fn a_hook_makes_the_calls_that_may_be_repeated_and_alone_gets_their_results() {
    let (stage, world) = stage(vec![Arc::new(Curious)]);
    assert_eq!(stage.hears(script(&[])).await, LoopOutcome::Done);
    let seen = stage.state().fields["seen"].clone();
    let expected = [
        "count h1",
        "must not be repeated",
        "a human would have to be asked",
        "delegates to a subagent",
        "no_such_tool",
    ];
    assert_eq!(seen.as_array().map(Vec::len), Some(expected.len()), "{seen}");
    for (at, text) in expected.into_iter().enumerate() {
        assert!(seen[at].as_str().unwrap().contains(text), "{text}: {seen}");
    }
    assert_eq!(world.happened("h1"), 1);
    assert_eq!(stage.results(), Vec::<String>::new());
}

#[tokio::test]
async fn an_agent_without_summaries_reads_that_of_messages_that_have_left_the_state() {
    let log = Log::default();
    let reader: Arc<dyn Middleware> = Arc::new(Reader(Arc::clone(&log)));
    let said = [
        Message::human("0"),
        Message::ai("1"),
        Message::human("2"),
        Message::ai("3"),
        Message::human("4"),
    ];
    let with_ids = said.into_iter().enumerate();
    let with_ids = with_ids.map(|(at, message)| message.with_id(format!("m{at}")));
    let mut input = Update::messages(with_ids);
    let summary = json!({"type": "human", "content": "S"});
    let event = json!({"last_message_id": "m2", "summary_message": summary, "left_until": "m1"});
    input.fields.insert(EVENT.to_owned(), event);
    stage(vec![reader]).0.runs(RunInput::Input(input)).await;
    assert_eq!(*log.lock().unwrap(), ["S", "3", "4"]);
}
