//! `adjutant check --connect` and `adjutant doctor`: a look at everything that the configuration refers to. No model and
//! no tool is called, and nothing is written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use reqwest::{Client, Method, StatusCode, redirect};
use serde::Serialize;
use tokio::net::TcpListener;

use super::builder::Prepared;
use super::{credentials, encryption, keys, secret, webhooks};
use crate::auth::count_issuer_keys;
use crate::config::{Config, SecretSection};
use crate::db::DbError;
use crate::db::inspection::{DatabaseState, inspect};
use crate::db::migration::TableState;
use crate::definition::{SandboxServiceDefinition, ToolKind};
use crate::domain::time::{Clock, SystemClock};
use crate::net;
use crate::shutdown::Shutdown;
use crate::tool::sandboxes::SandboxService;

mod agents;
#[cfg(feature = "nats")]
mod nats;
mod postgres;
mod providers;

/// The maximum number of checks at the same time.
const MAX_PARALLEL: usize = 32;

/// The time for connections to close at the end.
const DEADLINE: Duration = Duration::from_secs(5);

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConnectionCheck {
    /// The kind of the checked thing: `database`, `provider`, `mcp_server`, `tool` and so on.
    pub kind: &'static str,
    /// Its name in the configuration.
    pub name: String,
    /// The result.
    pub status: CheckStatus,
    /// The finding, as a sentence.
    pub message: String,
    /// The advice, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The time that it took, in milliseconds.
    pub duration_ms: u64,
}

/// The result of a check as a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// The thing can be used.
    Ok,
    /// The thing can be used, but something is odd, or could not be checked.
    Warn,
    /// The thing cannot be used.
    Fail,
}

impl CheckStatus {
    /// Returns the word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// The finding of a check.
struct CheckOutcome {
    status: CheckStatus,
    message: String,
    advice: Option<String>,
}

impl CheckOutcome {
    fn ok(message: impl Into<String>) -> Self {
        Self {
            status: CheckStatus::Ok,
            message: message.into(),
            advice: None,
        }
    }

    fn warn(message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            status: CheckStatus::Warn,
            message: message.into(),
            advice: Some(advice.into()),
        }
    }

    fn fail(message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            status: CheckStatus::Fail,
            message: message.into(),
            advice: Some(advice.into()),
        }
    }
}

/// A check that is to be made.
struct PlannedCheck {
    kind: &'static str,
    name: String,
    work: BoxFuture<'static, CheckOutcome>,
}

impl PlannedCheck {
    fn new(
        kind: &'static str,
        name: impl Into<String>,
        work: impl Future<Output = CheckOutcome> + Send + 'static,
    ) -> Self {
        Self {
            kind,
            name: name.into(),
            work: Box::pin(work),
        }
    }

    async fn run(self, limit: Duration) -> ConnectionCheck {
        let begun = Instant::now();
        let found = tokio::time::timeout(limit, self.work).await;
        let found = found.unwrap_or_else(|_| {
            let message = format!("did not answer within {} s", limit.as_secs_f64());
            CheckOutcome::fail(
                message,
                "check the address and the network, or give `--timeout` more seconds",
            )
        });
        ConnectionCheck {
            kind: self.kind,
            name: self.name,
            status: found.status,
            message: found.message,
            advice: found.advice,
            duration_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Makes all checks side by side, each for at most `limit`.
///
/// # Errors
/// Returns an error if an HTTP client cannot be created.
pub(super) async fn run(prepared: &Prepared, limit: Duration) -> anyhow::Result<Vec<ConnectionCheck>> {
    let shutdown = Shutdown::new(DEADLINE);
    let planned = plan(prepared, &shutdown)?;
    let checks = futures::stream::iter(planned.into_iter().map(|check| check.run(limit)));
    let results = checks.buffered(MAX_PARALLEL).collect().await;
    shutdown.begin();
    // Checks that did not end in time have been reported already.
    let _ = shutdown.finished().await;
    Ok(results)
}

fn plan(prepared: &Prepared, shutdown: &Shutdown) -> anyhow::Result<Vec<PlannedCheck>> {
    let config = &prepared.loaded().config;
    let client = net::client_builder().redirect(redirect::Policy::none()).build()?;
    let mut planned = vec![listen(config), database(config)];
    planned.extend(postgres::plan(config));
    #[cfg(feature = "nats")]
    planned.extend(nats::plan(config)?);
    planned.extend(master_keys(config));
    planned.extend(secrets(config));
    planned.extend(providers::plan(prepared, &client));
    planned.extend(tools(config, &client));
    planned.extend(sandboxes(config, &client));
    planned.extend(agents::servers(config, shutdown)?);
    planned.extend(agents::remote_agents(config, shutdown)?);
    planned.extend(authentication(config, &client));
    Ok(planned)
}

fn listen(config: &Config) -> PlannedCheck {
    let listen = config.server.listen.clone();
    PlannedCheck::new("listen", listen.clone(), async move {
        match TcpListener::bind(&listen).await {
            Ok(_) => CheckOutcome::ok("the address is free"),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => CheckOutcome::warn(
                "the address is in use",
                "fine if the server is running; otherwise stop the other program, or set `listen` in [server]",
            ),
            Err(error) => CheckOutcome::fail(
                format!("the server cannot listen here: {error}"),
                "set `listen` in [server] to an address of this machine",
            ),
        }
    })
}

fn database(config: &Config) -> PlannedCheck {
    let url = config.storage.session_url().clone();
    let limits = super::database_limits(&config.storage);
    let is_postgres = url.is_postgres();
    let has_keys = config.encryption.is_some();
    PlannedCheck::new("database", url.to_string(), async move {
        match inspect(url.expose(), limits).await {
            Ok(state) => describe_tables(&state, has_keys),
            Err(error @ DbError::InUse { .. }) => CheckOutcome::warn(
                error.to_string(),
                "fine if that is this server; its own health check tests the database: `adjutant health --db`",
            ),
            Err(error) => {
                let advice = error.advice().filter(|_| is_postgres);
                let advice = advice.unwrap_or("set `url` in [storage], or the rights of the database");
                CheckOutcome::fail(error.to_string(), advice)
            }
        }
    })
}

/// Describes a database; `has_keys` if the configuration has a section `[encryption]`.
fn describe_tables(state: &DatabaseState, has_keys: bool) -> CheckOutcome {
    let engine = state.engine;
    if let Some(master) = state.master_key.as_ref().filter(|_| !has_keys) {
        return CheckOutcome::fail(
            format!("{engine}: has values that are encrypted under the key `{master}`"),
            "add the section [encryption] with this key",
        );
    }
    match state.tables {
        TableState::InMemory => CheckOutcome::warn(
            format!("{engine} in memory"),
            "everything is lost when the server stops; name a file or use Postgres to keep it",
        ),
        TableState::NoFile => CheckOutcome::ok(format!("{engine}: the file will be created when the server starts")),
        TableState::None => CheckOutcome::ok(format!(
            "{engine}: can be written; the tables will be created when the server starts"
        )),
        TableState::Current if state.is_finished => {
            CheckOutcome::ok(format!("{engine}: can be written, and the tables are current"))
        }
        TableState::Current => CheckOutcome::ok(format!(
            "{engine}: can be written, and the tables are current; when no server of the former release is left, \
             `adjutant migrate --finish` lets servers store shorter rows, and each question once"
        )),
        TableState::Behind(count) => CheckOutcome::warn(
            format!("{engine}: can be written; {count} migrations are due"),
            "`adjutant migrate` applies them, or the server when it starts; make a backup before",
        ),
    }
}

fn master_keys(config: &Config) -> Option<PlannedCheck> {
    let section = config.encryption.clone()?;
    Some(PlannedCheck::new("encryption", "master keys", async move {
        match encryption::master_keys(Some(&section)).await {
            Ok(_) => CheckOutcome::ok("the keys can be read"),
            Err(error) => CheckOutcome::fail(
                format!("{error:#}"),
                "correct `key_file` or `key_command` in [encryption]",
            ),
        }
    }))
}

fn secrets(config: &Config) -> Vec<PlannedCheck> {
    let folder = config.files.folder().to_path_buf();
    let check = |(name, section): (&String, &SecretSection)| {
        let section = section.clone();
        let folder = folder.clone();
        let advice = format!("correct the section [secrets.{name}]");
        PlannedCheck::new("secret", name.clone(), async move {
            match section.check_readable(&folder).await {
                Ok(()) => CheckOutcome::ok("can be read"),
                Err(reason) => CheckOutcome::fail(format!("cannot be read: {reason}"), advice),
            }
        })
    };
    let mut planned: Vec<PlannedCheck> = config.secrets.iter().map(check).collect();
    let of_tenants = config.tenants.values().any(|section| section.webhook_secret.is_some());
    if of_tenants || !matches!(secret(config.webhooks.key()), Ok(None)) {
        let sender = webhooks(config).map(drop);
        planned.push(PlannedCheck::new("secret", "webhooks", async move {
            match sender {
                Ok(()) => CheckOutcome::ok("the secrets that sign webhooks can be read"),
                Err(error) => CheckOutcome::fail(
                    format!("{error:#}"),
                    "correct the secret in [webhooks] or of the tenant",
                ),
            }
        }));
    }
    planned
}

fn tools(config: &Config, client: &Client) -> Vec<PlannedCheck> {
    let http = config.tools.iter().filter(|(_, tool)| tool.kind == ToolKind::Http);
    let check = |(name, url): (&String, &String)| {
        let client = client.clone();
        let url = url.clone();
        let advice = format!("start the service, or correct `url` in [tools.{name}]");
        PlannedCheck::new("tool", name.clone(), async move {
            check_reachable(&client, &url, &advice).await
        })
    };
    http.map(|(name, tool)| (name, &tool.url)).map(check).collect()
}

fn sandboxes(config: &Config, client: &Client) -> Vec<PlannedCheck> {
    let limits = super::service_limits(&config.answers);
    let check = |(name, definition): (&String, &SandboxServiceDefinition)| {
        let service = SandboxService::new(name, definition, client.clone(), limits);
        let advice = format!("start the service, or correct `url` and `headers` in [sandboxes.{name}]");
        PlannedCheck::new("sandbox", name.clone(), async move {
            let checked = match service {
                Ok(service) => service.check().await,
                Err(invalid) => Err(invalid.to_string()),
            };
            match checked {
                Ok(()) => CheckOutcome::ok("answers as a sandbox service; no sandbox was created"),
                Err(reason) => CheckOutcome::fail(reason, advice),
            }
        })
    };
    config.sandboxes.iter().map(check).collect()
}

fn authentication(config: &Config, client: &Client) -> Vec<PlannedCheck> {
    let Some(auth) = &config.auth else { return vec![] };
    let mut planned = vec![];
    for section in &auth.keys {
        let key = credentials::configured_key(section).map(drop);
        planned.push(PlannedCheck::new("api_key", section.name.clone(), async move {
            match key {
                Ok(()) => CheckOutcome::ok("can be read"),
                Err(error) => CheckOutcome::fail(format!("{error:#}"), "set its variable or its file"),
            }
        }));
    }
    for section in &auth.jwt {
        let settings = credentials::issuer(section);
        let is_fetched = section.algorithms.iter().any(|algorithm| !algorithm.is_symmetric());
        planned.push(PlannedCheck::new("issuer", section.issuer.clone(), async move {
            let advice = "correct `issuer`, `jwks_url` or the secret in [[auth.jwt]]";
            let settings = match settings {
                Ok(settings) => settings,
                Err(error) => return CheckOutcome::fail(format!("{error:#}"), advice),
            };
            if !is_fetched {
                return CheckOutcome::ok("the secret can be read");
            }
            let clock: Arc<dyn Clock> = Arc::new(SystemClock);
            match count_issuer_keys(&settings, clock).await {
                Ok(1) => CheckOutcome::ok("has 1 key for signatures"),
                Ok(count) => CheckOutcome::ok(format!("has {count} keys for signatures")),
                Err(reason) => CheckOutcome::fail(format!("its keys cannot be fetched: {reason}"), advice),
            }
        }));
    }
    if let Some(hook) = &auth.hook {
        let client = client.clone();
        let url = hook.url.clone();
        planned.push(PlannedCheck::new("hook", "auth.hook", async move {
            check_reachable(&client, &url, "start the service, or correct `url` in [auth.hook]").await
        }));
    }
    planned
}

/// Finds out whether a server answers at an address, without calling what is there: a HEAD, and OPTIONS if the path is
/// unknown to HEAD. Headers with secrets are not sent.
async fn check_reachable(client: &Client, url: &str, advice: &str) -> CheckOutcome {
    let mut last = None;
    for method in [Method::HEAD, Method::OPTIONS] {
        let name = method.to_string();
        let sent = client.request(method, url).send().await;
        let status = match sent {
            Ok(response) => response.status(),
            Err(error) => {
                let reason = net::describe_error(&error);
                return CheckOutcome::fail(format!("cannot be reached: {reason}"), advice);
            }
        };
        if status != StatusCode::NOT_FOUND && !status.is_server_error() {
            return CheckOutcome::ok(format!("answers ({} to {name}); it was not called", status.as_u16()));
        }
        last = Some(status);
    }
    let status = last.map(|status| status.as_u16()).unwrap_or_default();
    let message = format!("the server answers, but with {status} at this path; it was not called");
    CheckOutcome::warn(message, advice)
}
