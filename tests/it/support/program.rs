//! A program that embeds the server, with its own tools, policies, models and subagents.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use adjutant::{
    Adjutant, AfterCrash, AgentDefinition, Builder, CallOutcome, Delegation, Failure, File, Halt, HookPoint,
    HookResult, Message, Middleware, Model, ModelAnswer, ModelError, ModelEvent, ModelRequest, NextModel, Question,
    QuestionKind, Runnable, Scope, State, Tool, ToolCall, ToolOutput, ToolSpec, ToolStatus, Update, async_trait,
};
use futures::stream::{self, BoxStream, StreamExt};
use serde_json::{Value, json};

/// The program's additions to the test configuration.
pub(crate) const CONFIGURATION: &str = include_str!("program.toml");

/// The environment variables of the program's process.
const CONFIG: &str = "ADJUTANT_TEST_PROGRAM_CONFIG";
const TOOLS: &str = "ADJUTANT_TEST_PROGRAM_TOOLS";

/// Builds the program. Its subagents call the tool `dig` at `tools`.
pub(crate) fn program(configuration: &Path, tools: &str) -> Builder {
    let dig = |rule| Dig {
        url: format!("{tools}/dig"),
        rule,
    };
    let coded: AgentDefinition = serde_json::from_value(json!({
        "model": "own:echo", "system_prompt": "You are coded.",
    }))
    .expect("a definition");
    Adjutant::builder()
        .config_file(configuration)
        .runnable("echo", echo)
        .runnable("mute", async |_: Scope, _: State| Ok(Update::none()))
        .runnable("wrecked", wrecked)
        .runnable("asks", asks)
        .runnable("fills", fills)
        .runnable("scribe", scribe)
        .runnable("dig", dig(None))
        .runnable("dig_again", dig(Some(AfterCrash::Repeat)))
        .runnable("dig_once", dig(Some(AfterCrash::Fail)))
        .tool(OwnTool::named("hand_over"))
        .tool(OwnTool::named("boom"))
        .tool(OwnTool::named("consult"))
        .middleware(Stamp)
        .middleware(Doubt)
        .middleware(Passed("Innermost"))
        .middleware(Passed("PatchToolCallsMiddleware"))
        .provider("own", |name| Ok(Arc::new(EchoModel(name.to_owned()))))
        .agent("coded", coded)
}

fn order(state: &State) -> String {
    state
        .messages
        .last()
        .map(|message| message.content.text())
        .unwrap_or_default()
}

fn says(text: impl Into<String>) -> Update {
    Update::messages([Message::ai(text.into())])
}

async fn echo(scope: Scope, state: State) -> Result<Update, Halt> {
    scope.progress.send(json!({"from": scope.agent})).await;
    let path = scope.path.join("/");
    Ok(says(format!("{path} heard: {}", order(&state))))
}

async fn wrecked(_: Scope, state: State) -> Result<Update, Halt> {
    match order(&state).as_str() {
        "panic" => panic!("as it was told"),
        "private" => Ok(Update {
            fields: [("_own".to_owned(), json!(1))].into(),
            ..says("done")
        }),
        why => Err(Failure::new("WreckedError", why).into()),
    }
}

/// Asks one question, or two at once if its task is `two`.
async fn asks(scope: Scope, state: State) -> Result<Update, Halt> {
    let wants_two = order(&state) == "two";
    if let (true, [(one, first), (other, second)]) = (wants_two, &scope.answers[..]) {
        let key = |question: &Question| question.key.clone().unwrap_or_default();
        return Ok(says(format!("told: {}={first} {}={second}", key(one), key(other))));
    }
    if let Some(answer) = scope.answer {
        return Ok(says(format!("told: {answer}")));
    }
    if !wants_two {
        return Err(which().into());
    }
    let keyed = |key: &str| Question {
        key: Some(key.to_owned()),
        ..which()
    };
    Err(Halt::Ask(vec![keyed("a"), keyed("b")]))
}

/// Returns a question that is answered with a text.
fn which() -> Question {
    let schema = json!({"type": "string"});
    Question {
        kind: QuestionKind::Question,
        value: json!("which?"),
        schema: schema.into(),
        calls: vec![],
        key: None,
        approvers: Default::default(),
        ..Question::default()
    }
}

/// Returns the text of its order; for a `response_format` it can also fill `structured_response`.
async fn fills(scope: Scope, state: State) -> Result<Update, Halt> {
    match (order(&state), scope.form) {
        (order, Some(form)) if order == "field" => {
            let fields = [("structured_response".to_owned(), json!({"summary": form["title"]}))].into();
            Ok(Update {
                fields,
                ..says("filled in")
            })
        }
        (order, _) => Ok(says(order)),
    }
}

async fn scribe(scope: Scope, state: State) -> Result<Update, Halt> {
    let seen: Vec<&String> = state.files.keys().collect();
    let mut update = says(format!(
        "seen: {seen:?}, notes: {}",
        state.fields.get("notes").unwrap_or(&Value::Null)
    ));
    update
        .files
        .insert("/new.txt".to_owned(), Some(Arc::new(File::text("new", scope.now()))));
    update.files.extend(state.files.keys().map(|path| (path.clone(), None)));
    update.fields.insert("notes".to_owned(), json!(["from the scribe"]));
    Ok(update)
}

/// A subagent whose work the tests can observe and hold back.
struct Dig {
    url: String,
    rule: Option<AfterCrash>,
}

#[async_trait]
impl Runnable for Dig {
    fn after_crash(&self) -> AfterCrash {
        self.rule.unwrap_or_default()
    }

    async fn run(&self, scope: &Scope, _: State) -> Result<Update, Halt> {
        let key = scope.task.map(|task| task.to_string()).unwrap_or_default();
        let body = json!({"name": "dig", "args": {}});
        let sent = adjutant::net::client_builder()
            .build()
            .expect("a client")
            .post(&self.url)
            .header("idempotency-key", key)
            .json(&body)
            .send()
            .await;
        sent.map_err(|error| Failure::new("DigError", error.to_string()))?;
        Ok(says("dug"))
    }
}

/// A tool that delegates its arguments to a subagent, asks a human, or panics.
struct OwnTool(Arc<ToolSpec>);

impl OwnTool {
    fn named(name: &str) -> Self {
        let text = json!({"type": "string"});
        let properties = json!({"work": text, "to": text});
        let parameters = json!({"type": "object", "properties": properties});
        Self(Arc::new(ToolSpec {
            name: name.to_owned(),
            description: "One of the program's.".to_owned(),
            parameters,
        }))
    }
}

#[async_trait]
impl Tool for OwnTool {
    fn spec(&self) -> &Arc<ToolSpec> {
        &self.0
    }

    async fn call(&self, scope: &Scope, _: &State, call: &ToolCall) -> Result<CallOutcome, Halt> {
        if self.0.name == "consult" {
            let answer = scope.answer.as_ref().ok_or_else(|| Halt::from(which()))?;
            let result = Message::tool(call, ToolStatus::Success, format!("consulted: {answer}"));
            return Ok(CallOutcome::Answer(ToolOutput::message(result)));
        }
        assert_eq!(self.0.name, "hand_over", "as it was told");
        let arg = |name: &str| {
            call.args
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        Ok(CallOutcome::Delegate(Delegation::to(arg("to"), arg("work"))))
    }
}

/// A policy that marks the answers of its agent.
struct Stamp;

#[async_trait]
impl Middleware for Stamp {
    fn name(&self) -> &str {
        "Stamp"
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let mut answer = next.ask(request).await?;
        answer
            .message
            .additional_kwargs
            .insert("stamp".to_owned(), json!(next.scope.agent));
        Ok(answer)
    }
}

/// A policy that writes its name into the answers that pass it.
struct Passed(&'static str);

#[async_trait]
impl Middleware for Passed {
    fn name(&self) -> &str {
        self.0
    }

    async fn wrap_model_call(&self, request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let mut answer = next.ask(request).await?;
        let passed = answer.message.additional_kwargs.entry("passed".to_owned());
        if let Value::Array(names) = passed.or_insert_with(|| json!([])) {
            names.push(json!(self.0));
        }
        Ok(answer)
    }
}

/// A policy that asks about the last message before the model reads it.
struct Doubt;

#[async_trait]
impl Middleware for Doubt {
    fn name(&self) -> &str {
        "Doubt"
    }

    fn hook_points(&self) -> &[HookPoint] {
        &[HookPoint::BeforeModel]
    }

    async fn hook(&self, _: HookPoint, scope: &Scope, state: &State) -> Result<HookResult, Halt> {
        if scope.answer.is_some() {
            return Ok(HookResult::default());
        }
        let value = json!(format!("Is it true that {}?", order(state)));
        Err(Question { value, ..which() }.into())
    }
}

/// A model that answers with its name and its last message.
struct EchoModel(String);

#[async_trait]
impl Model for EchoModel {
    fn identity(&self) -> (&str, &str) {
        ("own", &self.0)
    }

    async fn ask(
        &self,
        request: ModelRequest,
    ) -> Result<BoxStream<'static, Result<ModelEvent, ModelError>>, ModelError> {
        let last = request
            .messages
            .last()
            .map(|message| message.content.text())
            .unwrap_or_default();
        let answer = Message::ai(format!("{} of the program: {last}", self.0));
        Ok(stream::iter([Ok(ModelEvent::Done(Box::new(answer)))]).boxed())
    }
}

/// Returns the command that runs the program in a process of its own: this executable with the one test that calls
/// [`serves`].
pub(crate) fn command(configuration: &Path, tools: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the program of the tests"));
    command.args([
        "--exact",
        "agents::embedding::a_program_runs_in_a_process_of_its_own",
        "--nocapture",
    ]);
    command.env(CONFIG, configuration).env(TOOLS, tools);
    command.current_dir(configuration.parent().expect("a folder"));
    command.stdout(Stdio::null());
    command
}

/// Serves until the process ends, if this process was started by [`command`]. Returns whether it was.
pub(crate) async fn serves() -> bool {
    let Ok(configuration) = std::env::var(CONFIG) else {
        return false;
    };
    let tools = std::env::var(TOOLS).expect("where the tools are");
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let served = program(Path::new(&configuration), &tools).serve().await;
    served.expect("it serves");
    true
}
