//! The sections of the configuration file and their defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;

use crate::definition::provider::{PromptCaching, ProviderKind};
use crate::definition::{ClientRules, Headers};
use crate::domain::nats::NatsUrl;
use crate::domain::postgres_url::PostgresUrl;

/// `[server]`: the HTTP server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// The address to listen on, as `host:port`. Port 0 takes any free port.
    pub listen: String,
    /// The web origins whose pages may call the server, besides its own: origins such as `https://chat.example.org`,
    /// `loopback` for all pages of this machine, or `*` alone for all origins.
    pub cors_origins: Vec<String>,
    /// The host names that requests may use, besides `localhost` and the address that the server listens on (any IP address if
    /// that is `0.0.0.0`): names, `*.example.org` for all below a domain, or `*` for any.
    pub hosts: Vec<String>,
    /// True if pages of `cors_origins` may send cookies; only for origins that are listed by name.
    pub cors_credentials: bool,
    /// The response headers that pages of `cors_origins` may read, besides those that the SDKs need.
    pub cors_expose_headers: Vec<String>,
    /// The time for which a browser may cache the result of a preflight request, in seconds.
    pub cors_max_age_s: f64,
    /// True if pages from public addresses may call this server at a private address.
    pub cors_private_network: bool,
    /// The maximum size of a request body, in bytes.
    pub max_body_bytes: usize,
    /// The maximum memory for all request bodies at the same time, in bytes: their text, and 128 for each value in
    /// it, which is about the size of the parsed value.
    pub max_body_bytes_total: usize,
    /// The maximum time without data of a request body, in seconds; ten times that for the whole body.
    pub body_timeout_s: f64,
    /// The maximum number of open connections; by default, as many as the limit of file descriptors allows.
    pub max_connections: Option<usize>,
    /// The maximum size of a response with states or a list of threads, in bytes: a history or a search ends early
    /// beyond it. A single state is always complete.
    pub max_answer_bytes: usize,
    /// The maximum time until the response to a request begins, in seconds. Streams and waiting requests begin at
    /// once.
    pub request_s: f64,
    /// The maximum number of open streams for one thread: streams of its runs and of the thread, waiting requests and
    /// WebSockets.
    pub max_streams_per_thread: usize,
    /// The maximum number of open streams for one client address.
    pub max_streams_per_client: usize,
    /// The time after which a stream without events sends a keep-alive, in seconds; at least 0.1.
    pub keep_alive_s: f64,
    /// The time for which a server that stops still takes requests while `GET /ready` answers 503, in seconds, so that
    /// load balancers notice. It ends with the work of the server at the earliest.
    pub drain_s: f64,
    /// The time that running steps have to reach a commit when the server stops, in seconds.
    pub shutdown_s: f64,
    /// True if browsers get the console at `/`.
    pub console: bool,
    /// True if the system may write a core file when the process crashes, and debuggers may attach to it. Core files
    /// contain keys and conversations.
    pub allow_core_files: bool,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8123".to_owned(),
            cors_origins: vec!["loopback".to_owned()],
            hosts: vec![],
            cors_credentials: false,
            cors_expose_headers: vec![],
            cors_max_age_s: 600.0,
            cors_private_network: false,
            max_body_bytes: 4 * 1024 * 1024,
            max_body_bytes_total: 64 * 1024 * 1024,
            body_timeout_s: 30.0,
            max_connections: None,
            max_answer_bytes: 32 * 1024 * 1024,
            request_s: 30.0,
            max_streams_per_thread: 256,
            max_streams_per_client: 4096,
            keep_alive_s: 5.0,
            drain_s: 0.0,
            shutdown_s: 30.0,
            console: true,
            allow_core_files: false,
        }
    }
}

impl Server {
    /// Returns [`Server::keep_alive_s`] as a duration.
    pub fn keep_alive(&self) -> Duration {
        seconds(self.keep_alive_s)
    }

    /// Returns [`Server::body_timeout_s`] as a duration.
    pub fn body_timeout(&self) -> Duration {
        seconds(self.body_timeout_s)
    }

    /// Returns [`Server::request_s`] as a duration.
    pub fn request(&self) -> Duration {
        seconds(self.request_s)
    }

    /// Returns [`Server::cors_max_age_s`] as a duration.
    pub fn cors_max_age(&self) -> Duration {
        seconds(self.cors_max_age_s)
    }

    /// Returns [`Server::drain_s`] as a duration.
    pub fn drain(&self) -> Duration {
        seconds(self.drain_s)
    }

    /// Returns [`Server::shutdown_s`] as a duration.
    pub fn shutdown_deadline(&self) -> Duration {
        seconds(self.shutdown_s)
    }
}

/// `[storage]`: the database for threads, runs and events.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// The URL: `sqlite://FILE`, `sqlite::memory:` or `postgres://…`, which may list several hosts.
    pub url: DatabaseUrl,
    /// The URL of Postgres itself, if `url` leads to a pooler that shares sessions between transactions, such as
    /// PgBouncer with `pool_mode = transaction`. One connection that listens, and migrations, go past the pooler.
    pub direct_url: Option<DatabaseUrl>,
    /// True if statements of Postgres are prepared once for each connection. The default is true, and false with
    /// `direct_url`: a pooler has to keep prepared statements (PgBouncer with `max_prepared_statements`).
    pub prepared_statements: Option<bool>,
    /// The maximum time of one statement, including the wait for locks, in seconds.
    pub statement_timeout_s: f64,
    /// The number of connections to Postgres, besides one that listens for notifications and one that renews the lease.
    /// Searches use up to a quarter of them. SQLite has connections of its own.
    pub connections: u32,
    /// The time to connect to a host of Postgres, in seconds: when the server starts, and when it looks for the primary.
    pub connect_timeout_s: f64,
    /// The number of characters from which base64 content of messages (images, audio, files) is stored as a blob: once for
    /// each tenant, however often it is sent.
    pub blob_min_chars: usize,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            url: DatabaseUrl::default(),
            direct_url: None,
            prepared_statements: None,
            statement_timeout_s: 10.0,
            connections: 16,
            connect_timeout_s: 5.0,
            blob_min_chars: 16 * 1024,
        }
    }
}

impl Storage {
    /// Returns the URL for work that needs a session for longer than a transaction.
    pub fn session_url(&self) -> &DatabaseUrl {
        self.direct_url.as_ref().unwrap_or(&self.url)
    }

    /// Returns whether statements are prepared once for each connection.
    pub fn prepares_statements(&self) -> bool {
        self.prepared_statements.unwrap_or(self.direct_url.is_none())
    }

    /// Returns [`Storage::statement_timeout_s`] as a duration.
    pub fn statement_timeout(&self) -> Duration {
        seconds(self.statement_timeout_s)
    }

    /// Returns [`Storage::connect_timeout_s`] as a duration.
    pub fn connect_timeout(&self) -> Duration {
        seconds(self.connect_timeout_s)
    }
}

/// The URL of a database. It may contain a password, which is not printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(transparent)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// Returns the URL as it was given, for the database driver only.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns whether the database is a Postgres.
    pub fn is_postgres(&self) -> bool {
        self.0.starts_with("postgres://") || self.0.starts_with("postgresql://")
    }

    /// Returns whether the database is a SQLite file, which has one server.
    pub fn is_sqlite(&self) -> bool {
        self.0.starts_with("sqlite:")
    }
}

impl From<&str> for DatabaseUrl {
    fn from(url: &str) -> Self {
        Self(url.to_owned())
    }
}

impl Default for DatabaseUrl {
    fn default() -> Self {
        Self::from("sqlite://adjutant.db")
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // If the URL is invalid, or has a password in the query, only its scheme is printed.
        let scheme = self.0.split(':').next().unwrap_or_default();
        if scheme == "sqlite" {
            return f.write_str(&self.0);
        }
        match url::Url::parse(&self.0) {
            Ok(mut url) => {
                url.set_query(None);
                if url.password().is_some() && url.set_password(Some("***")).is_err() {
                    return write!(f, "{scheme}:…");
                }
                write!(f, "{url}")
            }
            Err(_) => match PostgresUrl::printable(&self.0) {
                Some(url) => f.write_str(&url),
                None => write!(f, "{scheme}:…"),
            },
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// `[runtime]`: the execution of runs.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// The maximum number of runs that this process executes at the same time; others are queued.
    pub max_concurrent_runs: u32,
    /// The maximum number of calls to tools behind HTTP and to MCP servers that this process makes at the same time;
    /// others wait.
    pub max_calls: usize,
    /// The maximum number of tool calls and model requests that one run makes at the same time, including its
    /// subagents; others wait.
    pub max_calls_per_run: usize,
    /// The time after which a lease on a run expires if it is not renewed, in seconds; at least 1. Another process
    /// takes over the runs of one that is suspended or cut off after this time, and those of one that has ended within
    /// two seconds.
    pub lease_s: f64,
    /// The interval at which leases are renewed, in seconds; at least 0.1, and at most half of the lease.
    pub heartbeat_s: f64,
    /// The interval at which the server checks the files with agent definitions for changes, in seconds; at least 0.05,
    /// or 0 for never.
    pub reload_s: f64,
    /// The maximum running time of a run and its subagents, in seconds; waiting for humans does not count. The limits
    /// of agents may be lower.
    pub max_run_s: f64,
    /// The maximum number of queued runs in the whole database, including delayed ones; beyond it, new runs are
    /// refused.
    pub max_queued_runs: u64,
    /// The maximum number of queued runs on one thread; beyond it, new runs are refused.
    pub max_queued_runs_per_thread: u64,
    /// The maximum size of a file in a workspace, in bytes of its content.
    pub max_file_bytes: usize,
    /// The maximum size of the state of a thread, in bytes of texts, names and numbers: messages, files and fields
    /// together. It does not bound the length of a thread: what was summarised leaves the state when that is half full.
    pub max_state_bytes: usize,
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            max_concurrent_runs: 1000,
            max_calls: 512,
            max_calls_per_run: 64,
            lease_s: 6.0,
            heartbeat_s: 2.0,
            reload_s: 1.0,
            max_run_s: 86_400.0,
            max_queued_runs: 100_000,
            max_queued_runs_per_thread: 1_000,
            max_file_bytes: 4 * 1024 * 1024,
            max_state_bytes: 32 * 1024 * 1024,
        }
    }
}

impl Runtime {
    /// Returns [`Runtime::lease_s`] as a duration.
    pub fn lease(&self) -> Duration {
        seconds(self.lease_s)
    }

    /// Returns [`Runtime::heartbeat_s`] as a duration.
    pub fn heartbeat(&self) -> Duration {
        seconds(self.heartbeat_s)
    }

    /// Returns [`Runtime::max_run_s`] as a duration.
    pub fn max_run(&self) -> Duration {
        seconds(self.max_run_s)
    }

    /// Returns [`Runtime::reload_s`] as a duration; none for never.
    pub fn reload(&self) -> Option<Duration> {
        (self.reload_s > 0.0).then(|| seconds(self.reload_s))
    }
}

/// The work of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "snake_case")]
pub enum ServerRole {
    /// Everything.
    #[default]
    All,
    /// Requests of clients: it admits and streams runs, and claims none.
    Api,
    /// Runs and jobs: it answers requests about its health only.
    Worker,
}

impl ServerRole {
    /// Returns the word for it in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Api => "api",
            Self::Worker => "worker",
        }
    }

    /// Returns whether the server claims runs and jobs.
    pub fn claims(self) -> bool {
        self != Self::Api
    }

    /// Returns whether the server answers the requests of clients.
    pub fn serves_clients(self) -> bool {
        self != Self::Worker
    }
}

/// `[cluster]`: the work of this server among those on the same Postgres, and what they send each other.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ClusterSection {
    /// The work of this server: `all`, `api` or `worker`. One with the role `api` admits and streams runs, and works on
    /// none; one with the role `worker` works on them, and answers requests about its health only.
    pub role: ServerRole,
    /// The interval at which pieces of answers are sent to servers with readers for them, in seconds. The default is
    /// 0.05, and 0.005 with `nats`.
    pub live_interval_s: Option<f64>,
    /// The most bytes of such pieces that this server sends in a second. Pieces beyond it, and all with 0, reach the
    /// readers at other servers with the whole answer.
    pub live_bytes_per_s: u32,
    /// The URL of NATS, which then carries the pieces instead of Postgres: `nats://HOST:PORT`, or `tls://HOST:PORT`, with
    /// `USER:PASSWORD@` or `TOKEN@` before the host if NATS asks for it. Several servers of one NATS cluster have commas
    /// between them.
    pub nats: Option<NatsUrl>,
    /// The file with the credentials of a NATS user (`.creds`), relative to the configuration file.
    pub nats_credentials: Option<PathBuf>,
    /// The file with the authorities whose certificates of NATS are trusted (PEM), relative to the configuration file. The
    /// default are the authorities of the system. It needs `tls://` in `nats`.
    pub nats_sslrootcert: Option<PathBuf>,
    /// The file with the certificate that this server presents to a NATS that asks for one (PEM), relative to the
    /// configuration file. It needs `nats_sslkey`.
    pub nats_sslcert: Option<PathBuf>,
    /// The file with the key of that certificate (PEM, without a password), relative to the configuration file.
    pub nats_sslkey: Option<PathBuf>,
    /// The first part of all subjects in NATS. Servers on different databases keep apart without it; a copy of a
    /// database needs another one than its original.
    pub nats_prefix: String,
    /// The memory that NATS may use for the pieces of the last minute, in bytes. Readers who join in the middle of an
    /// answer get its beginning from there. With 0, the server that works on the run sends it again.
    pub nats_stream_bytes: u32,
}

/// The default interval between messages with pieces of answers over Postgres, in seconds.
const LIVE_INTERVAL_S: f64 = 0.05;
/// The default interval over NATS, in seconds: its messages cost no transaction.
const NATS_INTERVAL_S: f64 = 0.005;

impl Default for ClusterSection {
    fn default() -> Self {
        Self {
            role: ServerRole::default(),
            live_interval_s: None,
            live_bytes_per_s: 4 * 1024 * 1024,
            nats: None,
            nats_credentials: None,
            nats_sslrootcert: None,
            nats_sslcert: None,
            nats_sslkey: None,
            nats_prefix: "adjutant".to_owned(),
            nats_stream_bytes: 64 * 1024 * 1024,
        }
    }
}

impl ClusterSection {
    /// Returns [`ClusterSection::live_interval_s`] or its default as a duration.
    pub fn live_interval(&self) -> Duration {
        let default = match self.nats {
            Some(_) => NATS_INTERVAL_S,
            None => LIVE_INTERVAL_S,
        };
        seconds(self.live_interval_s.unwrap_or(default))
    }

    /// Makes paths relative to the folder of the configuration file.
    pub(super) fn settle_files(&mut self, beside: &Path) {
        let files = [
            &mut self.nats_credentials,
            &mut self.nats_sslrootcert,
            &mut self.nats_sslcert,
            &mut self.nats_sslkey,
        ];
        for file in files.into_iter().flatten() {
            *file = beside.join(&*file);
        }
    }
}

/// `[audit]`: who did what, on a server with authentication.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AuditSection {
    /// True to record requests that change nothing as well. Changes and refusals are always recorded.
    pub reads: bool,
    /// The time for which an entry is kept, in days; 0 for ever.
    pub keep_days: f64,
}

impl Default for AuditSection {
    fn default() -> Self {
        Self {
            reads: false,
            keep_days: 365.0,
        }
    }
}

impl AuditSection {
    /// Returns [`AuditSection::keep_days`] as a duration; none for ever.
    pub fn keep(&self) -> Option<Duration> {
        (self.keep_days > 0.0).then(|| seconds(self.keep_days * 86_400.0))
    }
}

/// `[agents_api]`: whether clients may define agents over HTTP, and what these agents may use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AgentsApi {
    /// True if `PUT` and `DELETE /agents/{graph_id}` are enabled, and agents that clients have defined can run.
    pub enabled: bool,
    /// The tools that such agents may use, by name; those of MCP servers as `server/tool`. Also names of registered
    /// programs and middleware. A name that ends in `*` is a prefix.
    pub tools: Vec<String>,
    /// The models that such agents may use, as in `openai:gpt-5` or `openai:*`.
    pub models: Vec<String>,
    /// The agents that may be subagents: those of this server by `graph_id`, those of other servers by address.
    pub agents: Vec<String>,
}

impl AgentsApi {
    /// Returns the rules for definitions of clients.
    pub fn rules(&self) -> ClientRules {
        let Self {
            enabled,
            tools,
            models,
            agents,
        } = self.clone();
        ClientRules {
            enabled,
            tools,
            models,
            agents,
        }
    }
}

/// `[threads]` and `[checkpointer]`: the time to live of threads and of their histories.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionSections {
    /// The time to live; unlimited if absent.
    pub ttl: Option<TimeToLive>,
}

/// The time to live of threads or of their histories.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TimeToLive {
    /// The action on expiry: `delete` deletes the thread, `keep_latest` deletes its history except the newest state.
    #[serde(default)]
    pub strategy: SweepStrategy,
    /// The time since the last change, in minutes.
    pub default_ttl: f64,
    /// The interval at which the server removes expired data, in minutes; at least 0.002.
    #[serde(default = "every_minute")]
    pub sweep_interval_minutes: f64,
}

fn every_minute() -> f64 {
    1.0
}

/// The action on expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "snake_case")]
pub enum SweepStrategy {
    /// Delete the thread.
    #[default]
    Delete,
    /// Delete the history and keep the thread with its newest state.
    KeepLatest,
}

impl TimeToLive {
    /// Returns [`TimeToLive::default_ttl`] as a duration.
    pub fn after(&self) -> Duration {
        seconds(self.default_ttl * 60.0)
    }

    /// Returns [`TimeToLive::sweep_interval_minutes`] as a duration.
    pub fn interval(&self) -> Duration {
        seconds(self.sweep_interval_minutes * 60.0)
    }
}

/// `[log]`: the log on standard error.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// The format of a line.
    pub format: LogFormat,
    /// The filter, as in `info,adjutant=debug`.
    pub filter: String,
    /// True if each request gets a line: the access log.
    pub access: bool,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            filter: "info".to_owned(),
            access: false,
        }
    }
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Plain text.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

impl LogFormat {
    /// Returns the word for the format.
    pub fn word(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// `[providers.NAME]`: the model providers. `NAME:model` in an agent refers to one.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ProviderSection {
    /// The protocol; required.
    pub kind: Option<ProviderKind>,
    /// The base URL, if not the public one.
    pub base_url: Option<String>,
    /// The environment variable with the API key.
    pub api_key_env: Option<String>,
    /// The file with the API key, relative to the configuration file.
    pub api_key_file: Option<PathBuf>,
    /// The API key itself.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub api_key: Option<SecretString>,
    /// The context window of its models, in tokens, where it is not the known one.
    pub max_input_tokens: Option<u64>,
    /// The context windows of single models, in tokens, by the name after the colon.
    pub max_input_tokens_by_model: BTreeMap<String, u64>,
    /// Headers of every request to it. They precede those of the protocol, may contain secrets and are never printed.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub headers: Headers,
    /// The number of times that a request that failed for a passing reason is repeated; 2 when absent.
    pub max_retries: Option<u32>,
    /// The maximum time from a request to the first piece of an answer, in seconds; `[answers] first_token_s` when
    /// absent.
    pub first_token_s: Option<f64>,
    /// The maximum time between two pieces of an answer, in seconds; `[answers] between_tokens_s` when absent.
    pub between_tokens_s: Option<f64>,
    /// The use of its cache: `markers` for Claude behind a gateway, a `key` for each conversation, or `off`; `auto` when
    /// absent: as it is known for the provider and the model.
    pub prompt_caching: Option<PromptCaching>,
}

impl ProviderSection {
    /// Returns [`ProviderSection::first_token_s`] as a duration.
    pub fn first_token(&self) -> Option<Duration> {
        self.first_token_s.map(seconds)
    }

    /// Returns [`ProviderSection::between_tokens_s`] as a duration.
    pub fn between_tokens(&self) -> Option<Duration> {
        self.between_tokens_s.map(seconds)
    }
}

/// The source of a secret.
#[derive(Debug, Clone)]
pub enum KeySource {
    /// The configuration.
    Inline(SecretString),
    /// An environment variable. If it is not set, the first use of the provider reports that.
    Variable {
        /// The name.
        name: String,
        /// The value, if it is set.
        value: Option<SecretString>,
    },
    /// A file, read when a model of the provider is first used.
    File(PathBuf),
    /// No source is given.
    None,
}

impl KeySource {
    /// Returns the source that is given, of these three.
    pub(super) fn of(variable: Option<&String>, file: Option<&PathBuf>, inline: Option<&SecretString>) -> Self {
        if let Some(name) = variable {
            let value = super::variable(name).map(|value| SecretString::from(value.trim().to_owned()));
            return Self::Variable {
                name: name.clone(),
                value,
            };
        }
        match (file, inline) {
            (Some(path), _) => Self::File(path.clone()),
            (None, Some(key)) => Self::Inline(key.clone()),
            (None, None) => Self::None,
        }
    }
}

impl ProviderSection {
    /// Returns the source of the API key.
    pub fn key(&self) -> KeySource {
        KeySource::of(
            self.api_key_env.as_ref(),
            self.api_key_file.as_ref(),
            self.api_key.as_ref(),
        )
    }
}

/// Converts a validated time; an invalid one becomes zero.
pub(super) fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

/// The named entries of a section, ordered by name.
pub type NamedEntries<T> = BTreeMap<String, T>;
