//! `adjutant mcp`: logins to MCP servers that require a user at a browser, directly in the configured database.

mod redirect;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, Read, Write};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use futures::future::LocalBoxFuture;
use reqwest::Url;

use super::builder::Prepared;
use super::definitions;
use crate::config::{Config, LoginOptions, McpCommand};
use crate::db::{Db, DbResult, audit, mcp_logins};
use crate::definition::mcp::{McpOAuth, McpServerDefinition};
use crate::definition::servers::ServerDefinition;
use crate::domain::audit::AuditEntry;
use crate::domain::identity::Tenant;
use crate::domain::mcp_login::{LoginKey, LoginStatus, McpLogin};
use crate::domain::oauth_scopes::OAuthScopes;
use crate::domain::suggestion::nearest;
use crate::domain::time::{Clock, SystemClock, Timestamp};
use crate::tool::mcp::{AuthorizationCode, LoginTarget, PendingLogin, RedirectAnswer, revoke_tokens};
use crate::tool::remote;

/// The time for tasks of the database to finish.
const DEADLINE: Duration = Duration::from_secs(10);
/// The longest address that is read from standard input, in bytes.
const MAX_PASTED_BYTES: u64 = 64 * 1024;

/// The hint for operators of a SQLite database, which has one process at a time.
const IN_USE: &str = "A server is using the database: stop it first. On Postgres servers may run meanwhile";

/// Runs a command, which writes its result to `output`.
///
/// # Errors
/// Returns an error if there is no such server or tenant, if the database cannot be opened, or if the login fails.
pub fn run<'a>(
    prepared: &'a Prepared,
    command: &'a McpCommand,
    output: &'a mut (dyn Write + Send),
) -> LocalBoxFuture<'a, anyhow::Result<()>> {
    let config = &prepared.loaded().config;
    let servers = servers_with_login(config);
    Box::pin(super::with_database(config, DEADLINE, IN_USE, async move |db| {
        let logins = Logins { config, servers, db };
        logins.run(command, output).await
    }))
}

/// Returns the servers that require a login, by the names under which operators find them.
fn servers_with_login(config: &Config) -> BTreeMap<String, McpServerDefinition> {
    let all = definitions::of_files(config).all_servers();
    let mut found = BTreeMap::new();
    for (key, definition) in all {
        if let ServerDefinition::Mcp(definition) = definition
            && definition.needs_login()
        {
            found.insert(key.0.label(&key.1), *definition);
        }
    }
    found
}

/// The logins of a configuration and its database.
struct Logins<'a> {
    config: &'a Config,
    servers: BTreeMap<String, McpServerDefinition>,
    db: &'a Db,
}

impl Logins<'_> {
    async fn run(&self, command: &McpCommand, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
        match command {
            McpCommand::Login { settings: _, options } => self.log_in(options, output).await,
            McpCommand::Logout {
                settings: _,
                server,
                tenant,
            } => {
                let key = self.key(server, tenant.as_deref())?;
                self.log_out(&key, output).await
            }
            McpCommand::List { settings: _ } => self.list(output).await,
        }
    }

    /// Returns the key of a login. Only tenants with a section of the configuration have connections of their own.
    fn key(&self, server: &str, tenant: Option<&str>) -> anyhow::Result<LoginKey> {
        let Some(name) = tenant else {
            return Ok(LoginKey::new(None, server));
        };
        let tenant = Tenant::new("--tenant", name)?;
        if !self.config.tenant_sections()?.contains_key(&tenant) {
            bail!("the tenant `{name}` has no section [tenants.{name}], so its agents use the login for all tenants");
        }
        Ok(LoginKey::new(Some(&tenant), server))
    }

    fn definition(&self, server: &str) -> anyhow::Result<&McpServerDefinition> {
        self.servers.get(server).ok_or_else(|| {
            let known = self.servers.keys().map(String::as_str);
            let hint = match nearest(server, known.clone()) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None if self.servers.is_empty() => "there is none".to_owned(),
                None => format!("there are: {}", known.collect::<Vec<_>>().join(", ")),
            };
            anyhow!(
                "there is no MCP server `{server}` with `grant = \"authorization_code\"` in its section `oauth`; {hint}"
            )
        })
    }

    async fn log_in(&self, options: &LoginOptions, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
        let server = &options.server;
        let definition = self.definition(server)?;
        let key = self.key(server, options.tenant.as_deref())?;
        let listener = redirect::Listener::bind(options.port).await;
        let listener = listener.with_context(|| format!("cannot listen on port {} of this machine", options.port))?;
        let target = LoginTarget {
            client: remote::client()?,
            definition,
            redirect: listener.address()?,
            further_scopes: self.further_scopes(&key, definition).await,
        };
        let pending = PendingLogin::begin(target).await;
        let pending = pending.map_err(|reason| anyhow!("cannot log in to `{server}`: {reason}"))?;
        let missing = pending.missing_scopes();
        if !missing.is_empty() {
            let section = McpOAuth::section(server);
            writeln!(
                output,
                "The server has asked for the scopes {missing}. The login does not ask for them, since `scopes` in \
                 `{section}` does not have them: add them there if agents may use them, and log in again."
            )?;
        }
        writeln!(output, "Open this address in a browser:\n\n{}\n", pending.address())?;
        output.flush()?;
        let login = match options.paste {
            true => {
                writeln!(
                    output,
                    "The browser will then fail to open an address that begins with {}. Paste that address here:",
                    listener.address()?
                )?;
                output.flush()?;
                drop(listener);
                let code = pasted_code(&pending).await?;
                exchange(pending, code, &key).await?
            }
            false => {
                let limit = Duration::from_secs(options.timeout.into());
                let answered = within(limit, listener.next_answer(&pending)).await?;
                answered
                    .finish(async |code| exchange(pending, code, &key).await)
                    .await?
            }
        };
        self.store(&login).await?;
        writeln!(
            output,
            "Logged in to {}. {}",
            describe(&key),
            describe_end(&login.status)
        )?;
        if !self.db.is_sealing() {
            let note = "The tokens are stored in clear: see `[encryption]`, which encrypts them in the database.";
            writeln!(output, "{note}")?;
        }
        Ok(())
    }

    /// Returns the scopes that earlier logins to a server have lacked.
    async fn further_scopes(&self, key: &LoginKey, definition: &McpServerDefinition) -> OAuthScopes {
        let wanted = key.clone();
        let read = self
            .db
            .read(move |tx| Box::pin(async move { mcp_logins::find(tx, &wanted).await }));
        let found = read.await.unwrap_or_else(|error| {
            // The new login takes its place, whatever it is.
            tracing::warn!(%error, "the earlier login cannot be read, so the scopes that it has lacked are not known");
            None
        });
        let url = definition.url.as_deref().unwrap_or_default();
        let found = found.filter(|login| login.status.is_for(url));
        found.map(|login| login.secrets.further_scopes()).unwrap_or_default()
    }

    async fn store(&self, login: &McpLogin) -> DbResult<()> {
        let login = login.clone();
        let entry = entry("mcp_servers:login", &login.status.key, login.status.logged_in_at);
        let write = self.db.write(move |tx| {
            Box::pin(async move {
                mcp_logins::put(tx, &login).await?;
                audit::insert(tx, &entry).await
            })
        });
        write.await
    }

    async fn log_out(&self, key: &LoginKey, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
        let wanted = key.clone();
        let entry = entry("mcp_servers:logout", key, SystemClock.now());
        let write = self.db.write(move |tx| {
            Box::pin(async move {
                let login = mcp_logins::find(tx, &wanted).await?;
                if mcp_logins::delete(tx, &wanted).await? {
                    audit::insert(tx, &entry).await?;
                }
                DbResult::Ok(login)
            })
        });
        let login = write.await?;
        let login = login.ok_or_else(|| anyhow!("nobody is logged in to {}", describe(key)))?;
        writeln!(output, "Logged out of {}.", describe(key))?;
        let revoked = match remote::client() {
            Ok(client) if login.status.ended_at.is_none() => revoke_tokens(&client, &login).await,
            Ok(_) => Ok(true),
            Err(error) => Err(error.to_string()),
        };
        match revoked {
            Ok(true) => {}
            Ok(false) => writeln!(
                output,
                "{} has no address at which tokens are revoked: theirs end by themselves, or in your account there.",
                login.status.issuer
            )?,
            Err(reason) => writeln!(
                output,
                "{} did not revoke the tokens ({reason}): end them in your account there.",
                login.status.issuer
            )?,
        }
        Ok(())
    }

    async fn list(&self, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
        let read = self.db.read(|tx| {
            Box::pin(async move { Ok((mcp_logins::list(tx).await?, mcp_logins::missing_scopes(tx).await?)) })
        });
        let (logins, missing) = read.await?;
        let text = self.table(&logins, &missing, SystemClock.now())?;
        output.write_all(text.as_bytes())?;
        Ok(())
    }

    /// Returns a table of all servers that require a login, and of all logins with the scopes that they lack.
    fn table(
        &self,
        logins: &[LoginStatus],
        missing: &BTreeMap<LoginKey, OAuthScopes>,
        now: Timestamp,
    ) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        add_row(
            &mut text,
            ["server", "tenant", "status", "until", "authorization server"],
        )?;
        for (server, definition) in &self.servers {
            let url = definition.url.as_deref().unwrap_or_default();
            let of_server = logins.iter().filter(|login| login.key.server == *server);
            for login in of_server.clone() {
                let status = login.problem(url, now).unwrap_or("logged in");
                add_login(&mut text, login, status)?;
                if let Some(missing) = missing.get(&login.key) {
                    writeln!(text, "  missing scopes: {missing}")?;
                }
            }
            if !of_server.clone().any(|login| login.key.own_tenant().is_none()) {
                add_row(&mut text, [server, "all", "not logged in", "", ""])?;
            }
        }
        for login in logins
            .iter()
            .filter(|login| !self.servers.contains_key(&login.key.server))
        {
            add_login(&mut text, login, "not in the configuration")?;
        }
        Ok(text)
    }
}

fn add_login(text: &mut String, login: &LoginStatus, status: &str) -> std::fmt::Result {
    let tenant = login.key.own_tenant().map_or("all", Tenant::as_str);
    let until = match (login.is_renewable, login.expires_at) {
        (true, _) => "renewed".to_owned(),
        (false, Some(end)) => end.to_second(),
        (false, None) => "refused".to_owned(),
    };
    add_row(text, [&login.key.server, tenant, status, &until, &login.issuer])
}

fn add_row(text: &mut String, cells: [&str; 5]) -> std::fmt::Result {
    let [server, tenant, status, until, issuer] = cells;
    let line = format!("{server:<24} {tenant:<14} {status:<26} {until:<21} {issuer}");
    writeln!(text, "{}", line.trim_end())
}

/// Returns the name of a login for people.
fn describe(key: &LoginKey) -> String {
    match key.own_tenant() {
        Some(tenant) => format!("`{}` for the tenant `{tenant}`", key.server),
        None => format!("`{}`", key.server),
    }
}

fn describe_end(status: &LoginStatus) -> String {
    match (status.is_renewable, status.expires_at) {
        (true, _) => "The server renews the login by itself.".to_owned(),
        (false, Some(end)) => format!(
            "The login ends at {}, since there is no refresh token.",
            end.to_second()
        ),
        (false, None) => "There is no refresh token: the login ends when the server refuses it.".to_owned(),
    }
}

/// Returns an entry of the audit about a login.
fn entry(action: &str, key: &LoginKey, now: Timestamp) -> AuditEntry {
    let tenant = key.own_tenant().cloned().unwrap_or_default();
    AuditEntry::of_command(&tenant, action, format!("mcp_server:{}", key.server), now)
}

/// Waits for the user.
async fn within<T>(limit: Duration, answer: impl Future<Output = T>) -> anyhow::Result<T> {
    let answered = tokio::time::timeout(limit, answer).await;
    answered.map_err(|_| anyhow!("nobody logged in within {} s (`--timeout`)", limit.as_secs()))
}

/// Reads the address to which the browser was redirected from standard input.
async fn pasted_code(pending: &PendingLogin) -> anyhow::Result<AuthorizationCode> {
    let reading = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin()
            .lock()
            .take(MAX_PASTED_BYTES)
            .read_line(&mut line)
            .map(|_| line)
    });
    let line = reading.await?.context("cannot read the address")?;
    let address = Url::parse(line.trim()).map_err(|_| anyhow!("that is no address"))?;
    match pending.read_redirect(address.query().unwrap_or_default()) {
        RedirectAnswer::Granted(code) => Ok(code),
        RedirectAnswer::Refused(reason) => Err(anyhow!(reason)),
        RedirectAnswer::Foreign => Err(anyhow!(
            "that is not the address of this login: its `state` is another one"
        )),
    }
}

async fn exchange(pending: PendingLogin, code: AuthorizationCode, key: &LoginKey) -> anyhow::Result<McpLogin> {
    let login = pending.exchange(code, key.clone(), SystemClock.now()).await;
    login.map_err(|reason| anyhow!("cannot log in to {}: {reason}", describe(key)))
}
