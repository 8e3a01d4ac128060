//! A server without HTTP, on a database of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use adjutant::agent::assemble::AgentFactory;
use adjutant::db::Db;
use adjutant::definition::provider::ProviderKind;
use adjutant::definition::{AgentDefinition, SubagentDefinition, ToolDefinition, ToolKind, ValidationContext};
use adjutant::domain::background::PollPolicy;
use adjutant::domain::id::ThreadId;
use adjutant::domain::identity::Identity;
use adjutant::domain::ruling::NoPolicies;
use adjutant::domain::run::{Run, RunRequest};
use adjutant::domain::size::SizeLimits;
use adjutant::domain::time::{SystemClock, Timestamp};
use adjutant::domain::trace::Tracer;
use adjutant::events::{After, Events};
use adjutant::metrics::Metrics;
use adjutant::model::pieces::PieceLimits;
use adjutant::model::providers::{ApiKeySource, ContextWindows, ProviderConfig, Providers, RequestSettings};
use adjutant::net::ssrf::AddressRules;
use adjutant::peer::{PeerAnswerLimits, PeerPolicy, Peers};
use adjutant::runtime::{
    AgentSources, AssistantRef, AuditSettings, FileAgent, FileAgents, NewRun, Retention, RunBounds, RuntimeHandles,
    RuntimeParts, SharingRules, Store, StoreSettings, Target, WebhookSettings, Webhooks,
};
use adjutant::shutdown::Shutdown;
use adjutant::tool::{Tool, demo};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// The agent used by all benchmarks.
pub(crate) const AGENT: &str = "bench";

/// The parts between HTTP and the database, assembled as in `app.rs`.
pub(crate) struct Lab {
    pub(crate) db: Db,
    pub(crate) events: Events,
    pub(crate) runtime: RuntimeHandles,
    /// The database file, with SQLite.
    pub(crate) file: Option<PathBuf>,
    shutdown: Shutdown,
    _directory: TempDir,
}

/// Returns the databases to measure: a new SQLite file, and the Postgres URL of the environment.
pub(crate) fn databases() -> Vec<Option<String>> {
    let postgres = adjutant::config::variable("ADJUTANT_TEST_POSTGRES_URL");
    std::iter::once(None).chain(postgres.map(Some)).collect()
}

/// Returns webhook settings; no run of the benchmarks has a webhook.
fn webhook_settings() -> WebhookSettings {
    WebhookSettings {
        allow_private: false,
        private_hosts: vec![],
        allowed_hosts: vec![],
        require_https: true,
        headers: BTreeMap::new(),
        secret: None,
        tenant_secrets: BTreeMap::new(),
        timeout: Duration::from_secs(10),
        attempts: 1,
        retry: Duration::from_secs(5),
        keep: Duration::from_secs(60),
    }
}

/// Returns the clients for remote servers, which the benchmarks do not use.
fn peers() -> Peers {
    let reach = PeerPolicy {
        rules: AddressRules::default(),
        patience: Duration::from_secs(1),
        polling: PollPolicy::default(),
        answers: PeerAnswerLimits {
            max_bytes: 16 << 20,
            max_stream_bytes: 512 << 20,
            max_event_bytes: 8 << 20,
            pieces: PieceLimits::default(),
        },
        headers: BTreeMap::new(),
    };
    Peers::new(reach, Arc::new(|_, _| {})).expect("a client")
}

impl Lab {
    /// Opens the server on the database at `url`, or on a new file.
    pub(crate) async fn open(url: Option<&str>) -> Self {
        let shutdown = Shutdown::new(Duration::from_secs(5));
        let directory = tempfile::tempdir().expect("a directory");
        let file = url.is_none().then(|| directory.path().join("bench.db"));
        let place = file.as_ref().map(|file| format!("sqlite://{}", file.display()));
        let url = place.as_deref().or(url).expect("one of the two");
        let owner = shutdown.clone();
        let db = Db::open(url, &move |name, task| drop(owner.spawn(name, task)))
            .await
            .expect("the database opens");
        let events = Events::new(db.clone(), shutdown.soft().clone());
        let scripted = ProviderConfig {
            kind: ProviderKind::Scripted,
            base_url: None,
            api_key: ApiKeySource::None,
            windows: ContextWindows::default(),
            requests: RequestSettings::default(),
        };
        let providers = Providers::new(BTreeMap::from([("scripted".to_owned(), scripted)]), |_| None);
        let factory = AgentFactory {
            tools: Arc::new(tools()),
            ..AgentFactory::new(providers, peers())
        };
        let defined = FileAgent {
            graph_id: AGENT.to_owned(),
            place: "here".to_owned(),
            definition: agent(),
        };
        let files = FileAgents {
            agents: vec![defined],
            ..FileAgents::default()
        };
        let store = Store::open(db.clone(), Arc::new(SystemClock), StoreSettings::default(), None).await;
        let parts = RuntimeParts {
            db: db.clone(),
            events: events.clone(),
            sources: AgentSources {
                factory,
                validation_context: ValidationContext::default(),
                files,
            },
            clock: Arc::new(SystemClock),
            shutdown: shutdown.clone(),
            metrics: Metrics::new(Timestamp(0), []),
            tracer: Tracer::default(),
            store: store.expect("a store without an index"),
            retention: Retention::default(),
            webhooks: Webhooks::new(webhook_settings(), |_| Map::new()).expect("a client"),
            lease: Duration::from_secs(30),
            heartbeat: Duration::from_secs(5),
            claims: true,
            max_concurrent_runs: 256,
            bounds: RunBounds {
                waiting: 100_000,
                waiting_on_thread: 1_000,
                at_work: Duration::from_secs(86_400),
            },
            sizes: SizeLimits::default(),
            max_calls: 512,
            max_calls_per_run: 64,
            sharing: SharingRules::default(),
            policies: Arc::new(NoPolicies),
            audit: AuditSettings::default(),
            quotas: Arc::default(),
            tenants: Arc::default(),
        };
        let runtime = RuntimeHandles::open(parts).await.expect("the lease");
        Self {
            db,
            events,
            runtime,
            file,
            shutdown,
            _directory: directory,
        }
    }

    pub(crate) async fn close(self) {
        self.shutdown.begin();
        self.runtime.runs.close().await;
        self.db.close().await;
        self.shutdown.finished().await.expect("all tasks end well");
    }

    /// Starts a run of `script` on `thread`.
    pub(crate) async fn start(&self, thread: ThreadId, script: &Value, after: Duration) -> Run {
        let input = json!({"messages": [{"role": "user", "content": script.to_string()}]});
        let request = NewRun {
            target: Target::ThreadOrNew(thread),
            caller: Arc::new(Identity::unauthenticated()),
            assistant: AssistantRef::Graph(AGENT.to_owned()),
            request: RunRequest {
                input: Some(input),
                ..RunRequest::default()
            },
            resume: None,
            metadata: Map::new(),
            after,
        };
        self.runtime.runs.start(request).await.expect("the run is admitted")
    }

    /// Runs `script` on `thread` and waits for its end, as `runs/wait` does.
    pub(crate) async fn run(&self, thread: ThreadId, script: &Value) {
        let run = self.start(thread, script, Duration::ZERO).await;
        let mut tail = self.events.tail(&run, After::Start);
        while tail.next().await.expect("the log can be read").is_some() {}
    }
}

fn tools() -> BTreeMap<String, Arc<dyn Tool>> {
    let definition = ToolDefinition {
        kind: ToolKind::Builtin,
        builtin: Some("lookup".to_owned()),
        ..ToolDefinition::default()
    };
    let lookup = demo::built_in("lookup", &definition).expect("a tool of the demonstration");
    BTreeMap::from([("lookup".to_owned(), lookup)])
}

fn agent() -> AgentDefinition {
    let researcher = SubagentDefinition {
        name: "researcher".to_owned(),
        description: "Researches one question.".to_owned(),
        system_prompt: "You research.".into(),
        ..SubagentDefinition::default()
    };
    AgentDefinition {
        model: "scripted:bench".into(),
        system_prompt: "You are measured.".into(),
        tools: vec!["lookup".to_owned()],
        subagents: vec![researcher],
        ..AgentDefinition::default()
    }
}

/// Returns a script with one answer without calls.
pub(crate) fn one_step() -> Value {
    json!({"script": [{"text": "That is all."}]})
}

/// Returns a script with `count` rounds of an answer and one call, and a last answer.
pub(crate) fn tool_steps(count: usize) -> Value {
    let call = json!({"tool_calls": [{"name": "lookup", "args": {"query": "rust"}}]});
    let steps: Vec<Value> = std::iter::repeat_n(call, count)
        .chain([json!({"text": "Done."})])
        .collect();
    json!({"script": steps})
}

/// Returns a script with `count` parallel delegations, each with one tool call.
pub(crate) fn delegations(count: usize) -> Value {
    let args = json!({"subagent_type": "researcher", "description": tool_steps(1).to_string()});
    let calls = vec![json!({"name": "task", "args": args}); count];
    json!({"script": [{"tool_calls": calls}, {"text": "Done."}]})
}

/// Returns a script with an answer in `count` pieces, the first of them after `first_ms`.
pub(crate) fn pieces(count: usize, first_ms: u64) -> Value {
    json!({"script": [{"text": "word ".repeat(count), "first_ms": first_ms}], "chunk": 5})
}
