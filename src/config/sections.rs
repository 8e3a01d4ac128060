//! The sections of the configuration file and their defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;

use crate::definition::ClientRules;
use crate::definition::provider::ProviderKind;

/// `[server]`: how clients reach the server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// The address to listen on, as `host:port`. Port 0 takes any free one.
    pub listen: String,
    /// The web origins whose pages may call the server, besides its own: origins as in `https://chat.example.org`,
    /// `loopback` for all pages of this machine, or `*` alone for all there are.
    pub cors_origins: Vec<String>,
    /// The names under which the server is called, besides `localhost` and the address that it listens on: names,
    /// `*.example.org` for all below a domain, or `*` for any.
    pub hosts: Vec<String>,
    /// Whether the pages of `cors_origins` may send cookies; only for origins that are named.
    pub cors_credentials: bool,
    /// Headers of answers that the pages of `cors_origins` may read, besides those that the SDKs need.
    pub cors_expose_headers: Vec<String>,
    /// For how long a browser may remember what pages are allowed to do, in seconds.
    pub cors_max_age_s: f64,
    /// Whether pages from public addresses may call this server at a private one.
    pub cors_private_network: bool,
    /// The largest request body, in bytes.
    pub max_body_bytes: usize,
    /// What the request bodies under way may take together, in bytes: their text, and 128 for each value in it, which is
    /// about what it takes once it is parsed.
    pub max_body_bytes_total: usize,
    /// How long no byte of a request body may come, in seconds; ten times that for the whole of it.
    pub body_timeout_s: f64,
    /// How many connections may be open at once; as many as the limit of file descriptors allows, when absent.
    pub max_connections: Option<usize>,
    /// The largest answer with states or a list of threads, in bytes: a history or a search ends early beyond it. One state is
    /// never cut in two.
    pub max_answer_bytes: usize,
    /// How long a request may take until its answer begins, in seconds. Streams and waiting for a run begin at once.
    pub request_s: f64,
    /// How many streams of one thread may be open at once: of its runs and of itself, waits and sockets.
    pub max_streams_per_thread: usize,
    /// How many streams of one client, which is an address, may be open at once.
    pub max_streams_per_client: usize,
    /// How often a stream without news sends a sign of life, in seconds.
    pub keep_alive_s: f64,
    /// How long running steps may take to come to a commit when the server stops, in seconds.
    pub shutdown_s: f64,
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
            shutdown_s: 30.0,
        }
    }
}

impl Server {
    /// [`Server::keep_alive_s`] as a duration.
    pub fn keep_alive(&self) -> Duration {
        seconds(self.keep_alive_s)
    }

    /// [`Server::body_timeout_s`] as a duration.
    pub fn body_timeout(&self) -> Duration {
        seconds(self.body_timeout_s)
    }

    /// [`Server::request_s`] as a duration.
    pub fn request(&self) -> Duration {
        seconds(self.request_s)
    }

    /// [`Server::cors_max_age_s`] as a duration.
    pub fn cors_max_age(&self) -> Duration {
        seconds(self.cors_max_age_s)
    }

    /// [`Server::shutdown_s`] as a duration.
    pub fn shutdown_deadline(&self) -> Duration {
        seconds(self.shutdown_s)
    }
}

/// `[storage]`: where threads, runs and events are kept.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// `sqlite://FILE`, `sqlite::memory:` or `postgres://…`.
    pub url: DatabaseUrl,
    /// How long one statement may take, and wait for the locks of others, in seconds.
    pub statement_timeout_s: f64,
}

impl Default for Storage {
    fn default() -> Self {
        Self {
            url: DatabaseUrl::default(),
            statement_timeout_s: 10.0,
        }
    }
}

impl Storage {
    /// [`Storage::statement_timeout_s`] as a duration.
    pub fn statement_timeout(&self) -> Duration {
        seconds(self.statement_timeout_s)
    }
}

/// The address of a database. It may hold a password, so printing it shows everything but that.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(transparent)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// The address as it was given, for the database driver only.
    pub fn expose(&self) -> &str {
        &self.0
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
        // Whoever writes a password into the query, or an address that cannot be read, gets no more than the scheme.
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
            Err(_) => write!(f, "{scheme}:…"),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// `[runtime]`: how runs are carried out.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// How many runs this process carries out at the same time; others wait.
    pub max_concurrent_runs: u32,
    /// How many calls of tools behind HTTP and of MCP servers this process makes at the same time; others wait.
    pub max_calls: usize,
    /// How many calls of tools and requests to models one run makes at the same time, with its subagents; others wait.
    pub max_calls_per_run: usize,
    /// How long a claimed run stays claimed without a sign of life, in seconds. After a crash this is how long it
    /// takes until another process goes on with it.
    pub lease_s: f64,
    /// How often the sign of life is given, in seconds; less than the lease.
    pub heartbeat_s: f64,
    /// How often the server looks whether the files that define agents have changed, in seconds; 0 for never.
    pub reload_s: f64,
    /// How long a run and its subagents may be at work, in seconds; waiting for humans does not count. Limits of agents may be
    /// shorter.
    pub max_run_s: f64,
    /// How many runs may wait for their turn in the whole database, delayed ones included; beyond it new ones are refused.
    pub max_queued_runs: u64,
    /// How many runs may wait for their turn on one thread; beyond it new ones are refused.
    pub max_queued_runs_per_thread: u64,
    /// The largest file of a workspace, in bytes of its content.
    pub max_file_bytes: usize,
    /// The largest state of a thread, in bytes of texts, names and numbers: conversation, files and fields together.
    pub max_state_bytes: usize,
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            max_concurrent_runs: 1000,
            max_calls: 512,
            max_calls_per_run: 64,
            lease_s: 15.0,
            heartbeat_s: 5.0,
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
    /// [`Runtime::lease_s`] as a duration.
    pub fn lease(&self) -> Duration {
        seconds(self.lease_s)
    }

    /// [`Runtime::heartbeat_s`] as a duration.
    pub fn heartbeat(&self) -> Duration {
        seconds(self.heartbeat_s)
    }

    /// [`Runtime::max_run_s`] as a duration.
    pub fn max_run(&self) -> Duration {
        seconds(self.max_run_s)
    }

    /// [`Runtime::reload_s`] as a duration; none for never.
    pub fn reload(&self) -> Option<Duration> {
        (self.reload_s > 0.0).then(|| seconds(self.reload_s))
    }
}

/// `[agents_api]`: whether clients may define agents over HTTP, and what such definitions may use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AgentsApi {
    /// Whether `PUT` and `DELETE /agents/{graph_id}` are answered, and agents that clients have defined can run.
    pub enabled: bool,
    /// The tools that they may use, by name, those of MCP servers as `server/tool`; also registered programs and policies.
    /// A name that ends in `*` means all that begin like it.
    pub tools: Vec<String>,
    /// The models that they may use, as in `openai:gpt-5` or `openai:*`.
    pub models: Vec<String>,
    /// The agents that their subagents may be: those of this server by `graph_id`, those of others by address.
    pub agents: Vec<String>,
}

impl AgentsApi {
    /// What definitions of clients may use.
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

/// `[threads]` and `[checkpointer]`: how long things are kept.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionSections {
    /// After which time they go; never when absent.
    pub ttl: Option<TimeToLive>,
}

/// How long threads, or their histories, are kept.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TimeToLive {
    /// What is removed: `delete` removes the thread, `keep_latest` all of its history but the newest state.
    #[serde(default)]
    pub strategy: SweepStrategy,
    /// After how many minutes without a change.
    pub default_ttl: f64,
    /// How often the server looks for what can be removed, in minutes.
    #[serde(default = "every_minute")]
    pub sweep_interval_minutes: f64,
}

fn every_minute() -> f64 {
    1.0
}

/// What becomes of something whose time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "snake_case")]
pub enum SweepStrategy {
    /// The thread is deleted.
    #[default]
    Delete,
    /// The thread stays with its newest state; its history goes.
    KeepLatest,
}

impl TimeToLive {
    /// [`TimeToLive::default_ttl`] as a duration.
    pub fn after(&self) -> Duration {
        seconds(self.default_ttl * 60.0)
    }

    /// [`TimeToLive::sweep_interval_minutes`] as a duration.
    pub fn interval(&self) -> Duration {
        seconds(self.sweep_interval_minutes * 60.0)
    }
}

/// `[log]`: what the server writes to its standard error.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// How a line looks.
    pub format: LogFormat,
    /// Which lines, as in `info,adjutant=debug`.
    pub filter: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            filter: "info".to_owned(),
        }
    }
}

/// How a line of the log looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema, serde::Serialize))]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// `[providers.NAME]`: where models come from. `NAME:model` in an agent refers to it.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ProviderSection {
    /// The protocol it speaks; needed.
    pub kind: Option<ProviderKind>,
    /// Its address, when not the public one.
    pub base_url: Option<String>,
    /// The environment variable that holds the key.
    pub api_key_env: Option<String>,
    /// The file that holds the key; beside the configuration file when not absolute.
    pub api_key_file: Option<PathBuf>,
    /// The key itself.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub api_key: Option<SecretString>,
}

/// Where a secret comes from.
#[derive(Debug, Clone)]
pub enum KeySource {
    /// The configuration itself.
    Inline(SecretString),
    /// An environment variable. That it is not set is told when a model of the provider is first used.
    Variable {
        /// Its name.
        name: String,
        /// What it holds, if it is set.
        value: Option<SecretString>,
    },
    /// A file, read when a model of the provider is first used.
    File(PathBuf),
    /// Nothing is said of a key.
    None,
}

impl KeySource {
    /// The one of these three that is given.
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
    /// Where its key comes from.
    pub fn key(&self) -> KeySource {
        KeySource::of(
            self.api_key_env.as_ref(),
            self.api_key_file.as_ref(),
            self.api_key.as_ref(),
        )
    }
}

/// A time that was checked when the configuration was read; one that makes no sense counts as none.
pub(super) fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

/// The named entries of a section, in the order of their names.
pub type NamedEntries<T> = BTreeMap<String, T>;
