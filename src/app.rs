//! The assembly of the server: builds its parts from the configuration, and starts and stops them in order.
//!
//! What the program calls from here returns a boxed future. The body of an `async fn` is compiled in the crate that polls
//! it, so the whole server would be compiled once more with the program.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::Client;
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::agent::assemble::AgentFactory;
use crate::auth::Authenticator;
use crate::config::{self, Config, KeySource, Problems, ProviderSection, Storage, SweepStrategy, TimeToLive, Watch};
use crate::db::{Db, DbAddress, DbError, DbLimits, Engine, RowAccess};
use crate::definition::builtins::policy_tools;
use crate::definition::provider::ProviderKind;
use crate::definition::{HarnessProfiles, ToolDefinition, ToolKind};
use crate::domain::Invalid;
use crate::domain::background::PollPolicy;
use crate::domain::backoff::Backoff;
use crate::domain::item::TextPath;
use crate::domain::name_patterns::NamePatterns;
use crate::domain::quota::Quotas;
use crate::domain::ruling::{AccessPolicies, NoPolicies};
use crate::domain::size::SizeLimits;
use crate::domain::tenant::Tenants;
use crate::domain::thread::{Ttl, TtlStrategy};
use crate::domain::time::Clock;
use crate::domain::trace::Tracer;
use crate::events::Events;
use crate::events::live::{LiveLimits, NatsSettings};
use crate::http::{
    self, ApiParts, ApiSettings, BodyLimits, CorsSettings, HostRules, OriginRules, ResponseBudget, StreamLimiter,
    StreamLimits, TenantSites,
};
use crate::metrics::Metrics;
use crate::model::limits::AnswerLimits;
use crate::model::pieces::PieceLimits;
use crate::model::providers::{ApiKeySource, ContextWindows, ProviderConfig, Providers, RequestSettings};
use crate::net::ssrf::AddressRules;
use crate::peer::{PeerAnswerLimits, PeerPolicy, Peers};
use crate::runtime::{
    AgentSources, AuditSettings, IndexParts, Retention, RunBounds, RuntimeHandles, RuntimeParts, SharingRules, Store,
    StoreSettings, WebhookSettings, Webhooks, spawn_essential,
};
use crate::shutdown::Shutdown;
use crate::telemetry::Telemetry;
use crate::tool::mcp::{self, McpEnvironment, McpLimits, McpServers};
use crate::tool::remote::server::ServiceLimits;
use crate::tool::remote::{self, RemoteTool};
use crate::tool::sandboxes::{SandboxService, SandboxServices};
use crate::tool::{Tool, demo};

mod builder;
mod check_command;
mod client_command;
mod connect;
mod credentials;
mod data_commands;
mod definitions;
mod encryption;
mod execution;
mod explain;
mod health;
mod init;
mod key_commands;
mod keys;
mod mcp_commands;
mod mcp_logins;
mod migrate_command;
mod own_secrets;
mod registered;
mod start_report;
mod telemetry;
mod tenants;
mod vacuum_command;

pub use builder::{Builder, Prepared};
pub use check_command::{CheckResult, run as run_check};
pub use client_command::run as run_client_command;
pub use connect::{CheckStatus, ConnectionCheck};
pub use data_commands::run as run_data_command;
pub use health::ask as ask_health;
pub use init::run as init;
pub use key_commands::run as run_key_command;
pub use mcp_commands::run as run_mcp_command;
pub use migrate_command::run as run_migrate_command;
pub use vacuum_command::run as run_vacuum_command;

use mcp_logins::ServerLogins;
use registered::Registered;

/// The server with all its parts.
pub struct App {
    config: Config,
    db: Db,
    events: Events,
    runtime: RuntimeHandles,
    store: Store,
    auth: Authenticator,
    quotas: Arc<Quotas>,
    tenants: Arc<Tenants>,
    metrics: Metrics,
    tracer: Tracer,
    telemetry: Option<Arc<Telemetry>>,
    clock: Arc<dyn Clock>,
    shutdown: Shutdown,
}

impl App {
    /// Returns a builder for a server.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Assembles the agents and starts the worker, which continues unfinished runs. The caller works for the server
    /// itself.
    async fn open(
        config: Config,
        file_warnings: Problems,
        registered: Registered,
        db: Db,
        shutdown: Shutdown,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let events = Events::new(db.clone(), shutdown.soft().clone());
        if db.engine() == Engine::Postgres {
            spawn_essential(&shutdown, "watch", events.clone().watch());
        }
        let providers = Arc::new(providers(&config).with_own(registered.sources()));
        let index = config
            .store
            .index
            .as_ref()
            .map(|index| index_parts(index, &providers))
            .transpose()?;
        let store = Store::open(db.clone(), Arc::clone(&clock), store_settings(&config.store), index)
            .await
            .context("could not open the vector index of the Store")?;
        let tenants = Arc::new(config.tenant_settings()?);
        let logins = ServerLogins::stored(&db, &clock);
        let mut sources = agent_sources(&config, registered, providers, &tenants, logins, &shutdown).await?;
        sources.files.remarks = definitions::remarks(file_warnings);
        let tool_names = sources.validation_context.tools.iter().cloned();
        let metrics = Metrics::new(clock.now(), tool_names.chain(policy_tools().map(str::to_owned)));
        if db.engine() == Engine::Postgres {
            let limits = LiveLimits {
                interval: config.cluster.live_interval(),
                bytes_per_second: config.cluster.live_bytes_per_s,
            };
            let nats = nats_settings(&config.cluster)?;
            let exchanging = events.clone().exchange_chunks(limits, nats, metrics.live().clone());
            spawn_essential(&shutdown, "chunks of answers", exchanging);
        }
        let telemetry = telemetry::open(&config.telemetry, &metrics, &shutdown)?;
        let tracer = telemetry::tracer(&config.telemetry, telemetry.as_ref(), &clock);
        let quotas = Arc::new(config.quotas.quotas(&config.prices));
        let runtime = RuntimeHandles::open(RuntimeParts {
            db: db.clone(),
            events: events.clone(),
            sources,
            clock: Arc::clone(&clock),
            shutdown: shutdown.clone(),
            metrics: metrics.clone(),
            tracer: tracer.clone(),
            store: store.clone(),
            retention: retention(&config),
            webhooks: webhooks(&config).context("could not create the webhook sender")?,
            lease: config.runtime.lease(),
            heartbeat: config.runtime.heartbeat(),
            claims: config.cluster.role.claims(),
            max_concurrent_runs: usize::try_from(config.runtime.max_concurrent_runs).unwrap_or(usize::MAX),
            bounds: run_bounds(&config.runtime),
            sizes: SizeLimits {
                file: config.runtime.max_file_bytes,
                state: config.runtime.max_state_bytes,
            },
            sharing: sharing_rules(config.auth.as_ref()).context("[auth.sharing] cannot be used")?,
            policies: access_policies(config.auth.as_ref()),
            audit: AuditSettings {
                reads: config.audit.reads,
                keep: config.audit.keep(),
            },
            quotas: Arc::clone(&quotas),
            tenants: Arc::clone(&tenants),
            max_calls: config.runtime.max_calls,
            max_calls_per_run: config.runtime.max_calls_per_run,
        })
        .await
        .context("could not load the agents or continue their runs")?;
        let auth = credentials::authenticator(config.auth.as_ref(), &db, &clock)?;
        if let Ok(keys) = auth.keys() {
            let recording = keys.clone().record_uses(shutdown.soft().clone());
            spawn_essential(&shutdown, "uses of API keys", recording);
        }
        if let Some(pause) = config.runtime.reload() {
            let watch = Watch::new(&config.files);
            let soft = shutdown.soft().clone();
            let following = definitions::reload_on_change(watch, runtime.definitions.clone(), pause, soft);
            shutdown.spawn_essential("definition files", RowAccess::Server.scope(following));
        }
        Ok(Self {
            config,
            db,
            events,
            runtime,
            store,
            auth,
            quotas,
            tenants,
            metrics,
            tracer,
            telemetry,
            clock,
            shutdown,
        })
    }

    /// Returns the shutdown signals of the server.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Serves HTTP until the shutdown starts, then waits for running work.
    ///
    /// # Errors
    /// Returns an error if the listener fails, if an essential task ended, or if tasks were dropped by a second signal
    /// or at the deadline.
    pub fn serve(self, listener: TcpListener) -> BoxFuture<'static, anyhow::Result<()>> {
        Box::pin(async move {
            let address = listener.local_addr()?;
            self.check_address(address)?;
            let stream_limits = StreamLimits {
                per_thread: self.config.server.max_streams_per_thread,
                per_client: self.config.server.max_streams_per_client,
            };
            let api = ApiParts {
                access: self.runtime.access.clone(),
                audit: self.runtime.audit.clone(),
                db: self.db.clone(),
                events: self.events.clone(),
                runs: self.runtime.runs.clone(),
                crons: self.runtime.crons.clone(),
                deliveries: self.runtime.deliveries.clone(),
                threads: self.runtime.threads.clone(),
                interrupts: self.runtime.interrupts.clone(),
                assistants: self.runtime.assistants.clone(),
                definitions: self.runtime.definitions.clone(),
                store: self.store.clone(),
                auth: self.auth.clone(),
                clock: Arc::clone(&self.clock),
                metrics: self.metrics.clone(),
                tracer: self.tracer.clone(),
                streams: StreamLimiter::new(stream_limits, Arc::clone(&self.quotas)),
                stored: self.runtime.stored.clone(),
                call_tokens: self.runtime.call_tokens.clone(),
                call_files: self.runtime.call_files.clone(),
                quotas: Arc::clone(&self.quotas),
                answers: ResponseBudget::new(self.config.server.max_answer_bytes),
                settings: ApiSettings {
                    access_log: self.config.log.access,
                    serves_clients: self.config.cluster.role.serves_clients(),
                    ..api_settings(&self.config.server, address, &self.tenants)
                },
            };
            let role = self.config.cluster.role;
            let document = role
                .serves_clients()
                .then(|| format!("http://{}/docs", health::reachable(address)));
            let role = role.word();
            tracing::info!(%address, database = %self.config.storage.url, role, document, "listening");
            let max_connections = self
                .config
                .server
                .max_connections
                .unwrap_or_else(http::max_connections_for_descriptors);
            let drained = CancellationToken::new();
            let serving = http::serve(
                listener,
                http::router(api),
                max_connections,
                self.metrics.clone(),
                drained.clone(),
            );
            let draining = async {
                self.shutdown.soft().cancelled().await;
                // Requests are answered until the work has left, so that it can be asked whether the server is ready.
                tokio::join!(
                    tokio::time::sleep(self.config.server.drain()),
                    self.runtime.runs.wait_until_idle()
                );
                drained.cancel();
            };
            let serving = async { tokio::join!(serving, draining) };
            let hard = self.shutdown.hard().clone();
            let serving = async {
                hard.run_until_cancelled(serving.boxed()).await;
                self.shutdown.begin();
                // Runs store their last step before the database is closed.
                hard.run_until_cancelled(self.runtime.runs.wait_until_idle()).await;
                RowAccess::Server.scope(self.runtime.runs.close()).await;
                self.db.close().await;
                if let Some(telemetry) = &self.telemetry {
                    // After the runs, whose spans have ended by now.
                    hard.run_until_cancelled(telemetry.close()).await;
                }
            };
            // Both at once: the deadline starts with the first signal.
            let ((), finished) = tokio::join!(serving, self.shutdown.finished());
            finished?;
            tracing::info!("stopped");
            Ok(())
        })
    }

    /// Refuses to listen on a public address without authentication, unless `insecure_no_auth` is set.
    fn check_address(&self, address: SocketAddr) -> anyhow::Result<()> {
        let may_be_public = self.config.auth.is_some() || self.config.files.settings.insecure_no_auth;
        if may_be_public || address.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        Err(anyhow!("{address} {}", config::NEEDS_AUTH))
    }
}

/// Reads the definition files, connects to their MCP servers, and returns what agents are made of.
async fn agent_sources(
    config: &Config,
    registered: Registered,
    providers: Arc<Providers>,
    tenants: &Arc<Tenants>,
    logins: ServerLogins,
    shutdown: &Shutdown,
) -> anyhow::Result<AgentSources> {
    let client = remote::client().context("could not create the HTTP client for tools")?;
    let mut tools = tools(config, &client)?;
    tools.extend(registered.tools);
    let parts_of_tenants = tenants::parts(config, tenants, &providers, &tools, &client)?;
    let files = definitions::of_files(config);
    let sandboxes = sandboxes(config, &client)?;
    let servers = mcp_servers(client, &config.answers, logins, shutdown).with_tenants(Arc::clone(tenants));
    servers
        .replace(&files.all_servers())
        .map_err(|error| anyhow!("{error}"))?;
    servers.ready().await;
    let factory = AgentFactory {
        providers,
        tools: Arc::new(tools),
        runnables: Arc::new(registered.runnables),
        policies: Arc::new(registered.policies),
        servers,
        peers: peers(config, shutdown).context("could not create the HTTP client for remote agents")?,
        commands: registered.commands,
        sandboxes,
        profiles: Arc::new(HarnessProfiles(config.profiles.clone())),
        agents: NamePatterns::default(),
        tenants: Arc::new(parts_of_tenants),
    };
    Ok(AgentSources {
        factory,
        validation_context: config::validation_context(config),
        files,
    })
}

/// Returns the HTTP settings of a server bound to `address`.
fn api_settings(server: &config::Server, address: SocketAddr, tenants: &Tenants) -> ApiSettings {
    // A host name in `listen` is accepted as a name of the server.
    let listen = server.listen.rsplit_once(':').map(|(host, _)| host.to_owned());
    let named = listen.filter(|host| !host.starts_with('[') && host.parse::<IpAddr>().is_err());
    let hosts: Vec<String> = server.hosts.iter().cloned().chain(named).collect();
    let sites = TenantSites::new(&server.cors_origins, &hosts, Some(address.ip()), tenants);
    let of_tenants = tenants.iter().flat_map(|(_, settings)| settings.hosts.iter().flatten());
    let all_hosts: Vec<String> = hosts.iter().chain(of_tenants).cloned().collect();
    ApiSettings {
        bodies: BodyLimits {
            max: server.max_body_bytes,
            total: server.max_body_bytes_total,
            timeout: server.body_timeout(),
        },
        heartbeat: server.keep_alive(),
        cors: cors(server, tenants),
        request: server.request(),
        console: server.console,
        hosts: HostRules::new(&all_hosts, Some(address.ip())),
        sites,
        access_log: false,
        serves_clients: true,
    }
}

/// Returns the rules by which owners share resources.
fn sharing_rules(section: Option<&config::AuthSection>) -> Result<SharingRules, Invalid> {
    let Some(section) = section else {
        return Ok(SharingRules::default());
    };
    Ok(SharingRules {
        threads: section.sharing.threads.rule()?,
        assistants: section.sharing.assistants.rule()?,
    })
}

/// Returns the access policies.
fn access_policies(section: Option<&config::AuthSection>) -> Arc<dyn AccessPolicies> {
    match section.and_then(|section| section.policies.loaded.clone()) {
        Some(policies) => policies,
        None => Arc::new(NoPolicies),
    }
}

/// Returns the settings of the connection to NATS; none if pieces of answers go over Postgres.
fn nats_settings(section: &config::ClusterSection) -> anyhow::Result<Option<NatsSettings>> {
    let Some(url) = &section.nats else {
        return Ok(None);
    };
    let servers = url
        .servers()
        .map_err(|reason| anyhow!("`nats` in [cluster] {reason}"))?;
    Ok(Some(NatsSettings {
        servers,
        credentials: section.nats_credentials.clone(),
        sslrootcert: section.nats_sslrootcert.clone(),
        sslcert: section.nats_sslcert.clone(),
        sslkey: section.nats_sslkey.clone(),
        prefix: section.nats_prefix.clone(),
        stream_bytes: section.nats_stream_bytes,
    }))
}

/// Returns the limits of queued runs and of a run's time.
fn run_bounds(runtime: &config::Runtime) -> RunBounds {
    RunBounds {
        waiting: runtime.max_queued_runs,
        waiting_on_thread: runtime.max_queued_runs_per_thread,
        at_work: runtime.max_run(),
    }
}

/// Returns the retention of threads and checkpoints.
fn retention(config: &Config) -> Retention {
    let ttl = |section: &TimeToLive| Ttl {
        after: section.after(),
        strategy: match section.strategy {
            SweepStrategy::Delete => TtlStrategy::Delete,
            SweepStrategy::KeepLatest => TtlStrategy::KeepLatest,
        },
    };
    let threads = config.threads.ttl.as_ref();
    let checkpoints = config.checkpointer.ttl.as_ref();
    let intervals = threads.iter().chain(&checkpoints).map(|section| section.interval());
    let interval = intervals.min().unwrap_or(Retention::default().interval);
    Retention {
        threads: threads.map(ttl),
        checkpoints: checkpoints.map(ttl),
        interval,
    }
}

/// Creates the webhook sender.
fn webhooks(config: &Config) -> anyhow::Result<Webhooks> {
    let section = &config.webhooks;
    let settings = WebhookSettings {
        allow_private: section.allow_private,
        private_hosts: section.private_hosts.clone(),
        allowed_hosts: section.allowed_hosts.clone(),
        require_https: section.require_https,
        headers: section.headers.clone(),
        secret: secret(section.key())?,
        tenant_secrets: tenants::webhook_secrets(config)?,
        timeout: section.timeout(),
        attempts: section.attempts,
        retry: section.retry(),
        keep: section.keep(),
    };
    Webhooks::new(settings, http::wire::webhook_report::render).map_err(|error| anyhow!("{error}"))
}

/// Opens the database. If one of its tasks ends, the server stops.
async fn database(config: &Config, shutdown: &Shutdown) -> anyhow::Result<Db> {
    let storage = &config.storage;
    let keys = encryption::master_keys(config.encryption.as_ref()).await?;
    let spawn = |name, task: BoxFuture<'static, ()>| shutdown.spawn_essential(name, task.map(Ok::<(), Infallible>));
    let opened = Db::open_with_keys(&database_address(storage), database_limits(storage), keys, &spawn).await;
    let opened = opened.map_err(|error| with_advice(error, storage));
    opened.with_context(|| format!("could not open {}", storage.url))
}

/// Adds what an operator can do about a Postgres that could not be opened.
fn with_advice(error: DbError, storage: &Storage) -> anyhow::Error {
    match error.advice().filter(|_| storage.url.is_postgres()) {
        Some(advice) => anyhow!("{error}: {advice}"),
        None => error.into(),
    }
}

/// Opens the database for a command of an operator, which works for the server itself, and closes it at the end. `hint` says
/// what to do if a server has the SQLite file open; tasks of the database have until `deadline` to finish.
async fn with_database<T>(
    config: &Config,
    deadline: Duration,
    hint: &'static str,
    command: impl AsyncFnOnce(&Db) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let shutdown = Shutdown::new(deadline);
    let opened = database(config, &shutdown).await;
    let db = opened.map_err(|error| explain_in_use(error, hint))?;
    let done = RowAccess::Server.scope(command(&db)).await;
    shutdown.begin();
    db.close().await;
    shutdown.finished().await?;
    done
}

fn database_address(storage: &Storage) -> DbAddress {
    DbAddress {
        url: storage.url.expose().to_owned(),
        direct_url: storage.direct_url.as_ref().map(|url| url.expose().to_owned()),
        prepared_statements: storage.prepares_statements(),
    }
}

fn database_limits(storage: &Storage) -> DbLimits {
    DbLimits {
        statement: storage.statement_timeout(),
        connect: storage.connect_timeout(),
        connections: storage.connections,
        blob_min_chars: storage.blob_min_chars,
    }
}

/// Adds what to do if a server has the SQLite file open.
fn explain_in_use(error: anyhow::Error, hint: &'static str) -> anyhow::Error {
    let is_in_use = |cause: &DbError| matches!(cause, DbError::InUse { .. });
    match error.downcast_ref::<DbError>().is_some_and(is_in_use) {
        true => error.context(hint),
        false => error,
    }
}

/// Creates the clients for the remote agents of other servers.
fn peers(config: &Config, shutdown: &Shutdown) -> anyhow::Result<Peers> {
    let section = &config.peers;
    let rules = AddressRules {
        allow_private: section.allow_private,
        private_hosts: section.private_hosts.clone(),
        allowed_hosts: section.allowed_hosts.clone(),
        require_https: section.require_https,
    };
    let shutdown = shutdown.clone();
    let spawn = Arc::new(move |name, task| drop(shutdown.spawn(name, task)));
    let polling = PollPolicy {
        backoff: Backoff::doubling(section.first_look(), section.longest_look()),
        patience: section.background_patience(),
    };
    let answers = PeerAnswerLimits {
        max_bytes: config.answers.max_remote_agent_bytes,
        max_stream_bytes: config.answers.max_remote_stream_bytes,
        max_event_bytes: config.answers.max_line_bytes,
        pieces: piece_limits(&config.answers),
    };
    let headers = section.headers.clone();
    let patience = section.patience();
    Ok(Peers::new(
        PeerPolicy {
            rules,
            headers,
            patience,
            polling,
            answers,
        },
        spawn,
    )?)
}

/// Returns the secret, read from the configuration, the environment or a file.
fn secret(source: KeySource) -> anyhow::Result<Option<SecretString>> {
    Ok(match source {
        KeySource::Inline(secret) => Some(secret),
        KeySource::Variable { name, value } => {
            Some(value.ok_or_else(|| anyhow!("the environment variable {name} is not set"))?)
        }
        KeySource::File(path) => {
            let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            Some(text.trim().to_owned().into())
        }
        KeySource::None => None,
    })
}

/// Returns the CORS settings.
fn cors(server: &config::Server, tenants: &Tenants) -> CorsSettings {
    let of_tenants = tenants
        .iter()
        .flat_map(|(_, settings)| settings.cors_origins.iter().flatten());
    // Preflight requests have no credentials, so the tenant is not known yet.
    let origins: Vec<String> = server.cors_origins.iter().chain(of_tenants).cloned().collect();
    CorsSettings {
        origins: OriginRules::new(&origins),
        credentials: server.cors_credentials,
        expose_headers: server.cors_expose_headers.clone(),
        max_age: server.cors_max_age(),
        private_network: server.cors_private_network,
    }
}

/// Returns the time to live of items in the Store.
fn store_settings(store: &config::StoreSection) -> StoreSettings {
    StoreSettings {
        default_ttl: store.ttl.default_ttl(),
        refresh_on_read: store.ttl.refresh_on_read,
        sweep_interval: store.ttl.sweep_interval(),
    }
}

/// Returns the embedder and the indexed fields of the Store.
fn index_parts(index: &config::IndexSection, providers: &Providers) -> anyhow::Result<IndexParts> {
    let fields = TextPath::read_all("store.index.fields", &index.fields)?;
    Ok(IndexParts {
        embedder: providers.embedder(&index.embed, index.dims),
        fields,
    })
}

/// Creates the model providers.
fn providers(config: &Config) -> Providers {
    let configured = config
        .providers
        .iter()
        .map(|(name, section)| (name.clone(), provider(section)));
    Providers::new(configured.collect(), config::variable).with_limits(answer_limits(&config.answers))
}

/// Returns the timeouts for pieces of responses from tools, MCP servers and remote agents.
fn piece_limits(answers: &config::AnswersSection) -> PieceLimits {
    PieceLimits::of_others(answers.first_byte(), answers.between_bytes())
}

/// Returns the limits of models' answers.
fn answer_limits(answers: &config::AnswersSection) -> AnswerLimits {
    AnswerLimits {
        pieces: PieceLimits::of_models(answers.first_token(), answers.between_tokens()),
        max_answer_bytes: answers.max_model_bytes,
        max_line_bytes: answers.max_line_bytes,
        max_error_bytes: answers.max_error_bytes,
    }
}

fn provider(section: &ProviderSection) -> ProviderConfig {
    let kind = section.kind.unwrap_or(ProviderKind::OpenAi);
    ProviderConfig {
        kind,
        base_url: section.base_url.clone(),
        api_key: api_key(section),
        windows: context_windows(section),
        requests: request_settings(section),
    }
}

/// Returns the configured settings of requests to a provider.
fn request_settings(section: &ProviderSection) -> RequestSettings {
    RequestSettings {
        headers: section.headers.clone(),
        max_retries: section.max_retries.and_then(|retries| usize::try_from(retries).ok()),
        first_token: section.first_token(),
        between_tokens: section.between_tokens(),
        prompt_caching: section.prompt_caching,
    }
}

/// Returns the configured context windows of a provider's models.
fn context_windows(section: &ProviderSection) -> ContextWindows {
    ContextWindows {
        of_all: section.max_input_tokens,
        by_model: section.max_input_tokens_by_model.clone(),
    }
}

/// Returns the source of a provider's key.
fn api_key(section: &ProviderSection) -> ApiKeySource {
    match section.key() {
        KeySource::Inline(key) => ApiKeySource::Inline(key),
        KeySource::Variable { name, value } => ApiKeySource::Env { name, value },
        KeySource::File(path) => ApiKeySource::File(path),
        KeySource::None => ApiKeySource::None,
    }
}

/// Creates the pool of MCP servers, which is empty at first.
fn mcp_servers(
    client: Client,
    answers: &config::AnswersSection,
    logins: ServerLogins,
    shutdown: &Shutdown,
) -> McpServers {
    McpServers::new(mcp_servers_environment(client, answers, logins, shutdown))
}

/// Returns the environment of connections to MCP servers.
fn mcp_servers_environment(
    client: Client,
    answers: &config::AnswersSection,
    logins: ServerLogins,
    shutdown: &Shutdown,
) -> McpEnvironment {
    let limits = McpLimits {
        max_message_bytes: answers.max_mcp_bytes,
        pieces: piece_limits(answers),
    };
    let soft = shutdown.soft().clone();
    let shutdown = shutdown.clone();
    let spawn: mcp::SpawnServer = Arc::new(move |task| drop(shutdown.spawn("mcp", task)));
    McpEnvironment {
        inherited: config::inherited(),
        client,
        limits,
        answers: service_limits(answers),
        spawn,
        soft,
        logins: logins.store,
        clock: logins.clock,
    }
}

/// Returns the limits of answers of services of tools and sandboxes.
fn service_limits(answers: &config::AnswersSection) -> ServiceLimits {
    ServiceLimits {
        max_bytes: answers.max_tool_bytes,
        pieces: piece_limits(answers),
    }
}

/// Creates the clients of the sandbox services.
fn sandboxes(config: &Config, client: &Client) -> anyhow::Result<SandboxServices> {
    let limits = service_limits(&config.answers);
    let services = config.sandboxes.iter().map(|(name, definition)| {
        let service = SandboxService::new(name, definition, client.clone(), limits);
        Ok((name.clone(), service?))
    });
    Ok(SandboxServices::new(services.collect::<anyhow::Result<Vec<_>>>()?))
}

/// Creates a tool behind HTTP.
fn http_tool(
    config: &Config,
    name: &str,
    definition: &ToolDefinition,
    client: &Client,
) -> anyhow::Result<Arc<dyn Tool>> {
    let tool = RemoteTool::new(name, definition, client.clone())?;
    let tool = tool.with_longest_answer(config.answers.max_tool_bytes);
    Ok(Arc::new(tool.with_pieces(piece_limits(&config.answers))))
}

/// Creates the tools of the configuration.
fn tools(config: &Config, client: &Client) -> anyhow::Result<BTreeMap<String, Arc<dyn Tool>>> {
    let tool = |(name, definition): (&String, &ToolDefinition)| {
        let made = match definition.kind {
            ToolKind::Http => http_tool(config, name, definition, client)?,
            ToolKind::Builtin => demo::built_in(name, definition)
                .ok_or_else(|| anyhow!("tool {name}: there is no built-in tool of that name"))?,
        };
        Ok((name.clone(), made))
    };
    config.tools.iter().map(tool).collect()
}
