//! The builder of servers with tools, policies, models and subagents written in Rust.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use futures::future::LocalBoxFuture;
use tokio::net::TcpListener;

use super::registered::Registered;
use super::start_report::{StartReport, name_list};
use super::{App, execution, keys};
use crate::config::{self, CommandLineSettings, LoadedConfig, LogFormat, Problem, Problems};
use crate::db::{Db, RowAccess};
use crate::definition::builtins::Builtin;
use crate::definition::words::is_word;
use crate::definition::{AgentDefinition, RegisteredPolicy, tool_name_problem};
use crate::domain::time::{Clock, SystemClock};
use crate::logging;
use crate::middleware::{self, Middleware};
use crate::model::{Model, ModelError};
use crate::shutdown::Shutdown;
use crate::tool::execute::CommandLauncher;
use crate::tool::{Runnable, Tool};

/// The file name used in errors about registrations.
const PROGRAM_SOURCE: &str = "the program";

/// A builder for a server. Created by [`App::builder`].
///
/// Definitions refer to registered parts as to those of the configuration: tools in `tools`, policies in `middleware`,
/// models in `model`, programs in `runnable`. Definitions may come from files, from code and over
/// HTTP at the same time.
#[derive(Default)]
pub struct Builder {
    settings: CommandLineSettings,
    registered: Registered,
    mistakes: Vec<Problem>,
    clock: Option<Arc<dyn Clock>>,
}

impl Builder {
    /// Sets the command line and the environment, as parsed by [`config::Arguments`].
    #[must_use]
    pub fn settings(mut self, settings: CommandLineSettings) -> Self {
        let embedded = std::mem::take(&mut self.settings.embedded);
        self.settings = CommandLineSettings { embedded, ..settings };
        self
    }

    /// Sets the configuration file, instead of `adjutant.toml` in the working directory.
    #[must_use]
    pub fn config_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.config = Some(path.into());
        self
    }

    /// Sets the text of the configuration, instead of a file.
    #[must_use]
    pub fn config_text(mut self, text: impl Into<String>) -> Self {
        self.settings.embedded.text = Some(text.into());
        self
    }

    /// Registers a tool under its own name.
    #[must_use]
    pub fn tool(mut self, tool: impl Tool + 'static) -> Self {
        let name = tool.spec().name.clone();
        self.mistakes.extend(tool_name_problem(&name).map(mistake));
        self.settings.embedded.names.tools.insert(name.clone());
        add(
            &mut self.registered.tools,
            "tool",
            name,
            Arc::new(tool),
            &mut self.mistakes,
        );
        self
    }

    /// Registers a policy under its own name. For an agent that lists it in `middleware`, it is placed inside the
    /// server's policies, or replaces the policy of the server with the same name.
    #[must_use]
    pub fn middleware(mut self, policy: impl Middleware + 'static) -> Self {
        let name = policy.name().to_owned();
        if Builtin::find(&name).is_some_and(|builtin| !builtin.is_replaceable) {
            self.mistakes
                .push(mistake(format!("the policy `{name}` of the server cannot be replaced")));
        }
        self.check_word("policy", &name);
        let policy: Arc<dyn Middleware> = Arc::new(policy);
        self.name_policy(&name, &policy);
        add(
            &mut self.registered.policies,
            "policy",
            name,
            policy,
            &mut self.mistakes,
        );
        self
    }

    /// Registers one model under the name that definitions use, as in `lab:small`.
    #[must_use]
    pub fn model(mut self, name: &str, model: impl Model + 'static) -> Self {
        let Some((provider, name)) = name.split_once(':').filter(|(_, name)| !name.is_empty()) else {
            self.mistakes.push(mistake(format!(
                "the model name `{name}` must be `provider:model-name`"
            )));
            return self;
        };
        self.check_word("provider", provider);
        self.settings.embedded.names.providers.insert(provider.to_owned());
        let models = self.registered.models.entry(provider.to_owned()).or_default();
        add(models, "model", name.to_owned(), Arc::new(model), &mut self.mistakes);
        self
    }

    /// Registers a provider: `make` creates the model for the name after the colon, once for each name.
    #[must_use]
    pub fn provider(
        mut self,
        name: &str,
        make: impl Fn(&str) -> Result<Arc<dyn Model>, ModelError> + Send + Sync + 'static,
    ) -> Self {
        self.check_word("provider", name);
        self.settings.embedded.names.providers.insert(name.to_owned());
        add(
            &mut self.registered.sources,
            "provider",
            name.to_owned(),
            Arc::new(make),
            &mut self.mistakes,
        );
        self
    }

    /// Registers a program under the name that the `runnable` of agents and subagents refers to. Several may use one
    /// program.
    #[must_use]
    pub fn runnable(mut self, name: &str, runnable: impl Runnable + 'static) -> Self {
        self.check_word("program", name);
        self.settings.embedded.names.runnables.insert(name.to_owned());
        add(
            &mut self.registered.runnables,
            "program",
            name.to_owned(),
            Arc::new(runnable),
            &mut self.mistakes,
        );
        self
    }

    /// Adds an agent definition in code, beside those of files.
    #[must_use]
    pub fn agent(mut self, graph_id: &str, definition: AgentDefinition) -> Self {
        if self
            .settings
            .embedded
            .agents
            .insert(graph_id.to_owned(), definition)
            .is_some()
        {
            self.mistakes
                .push(mistake(format!("the agent `{graph_id}` is defined twice")));
        }
        self
    }

    /// Sets the program that supervises the commands of agents: `adjutant` itself, or any program whose `main` first
    /// calls [`crate::sandbox::play_role`]. Without it an agent with `execute` is refused.
    #[must_use]
    pub fn sandbox_program(mut self, program: impl Into<PathBuf>) -> Self {
        self.registered.commands = CommandLauncher::new(Some(program.into()));
        self
    }

    /// Replaces the system clock.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock: Some(clock),
            ..self
        }
    }

    /// Lets definitions list this policy.
    fn name_policy(&mut self, name: &str, policy: &Arc<dyn Middleware>) {
        let policy = Arc::clone(policy);
        let distinguished_by = policy.distinguished_by();
        let model_setting = policy.model_setting();
        let tools_setting = policy.tools_setting();
        let tools = policy.contribution().tools.into_iter();
        let tools: Vec<String> = tools.map(|tool| tool.spec().name.clone()).collect();
        let registered = RegisteredPolicy::new(move |settings| match policy.configured(settings) {
            Ok(configured) => configured.map(|_| vec![]),
            Err(findings) => Some(findings),
        })
        .distinguished_by(distinguished_by)
        .with_model_setting(model_setting)
        .with_tools_setting(tools_setting)
        .with_tools(tools);
        self.settings
            .embedded
            .names
            .middleware
            .insert(name.to_owned(), registered);
    }

    /// Registers the built-in middleware that definitions may list, unless the program has registered one with the
    /// same name.
    fn add_listed_policies(&mut self) {
        for policy in middleware::listed() {
            let name = policy.name().to_owned();
            if !self.registered.policies.contains_key(&name) {
                self.name_policy(&name, &policy);
                self.registered.policies.insert(name, policy);
            }
        }
    }

    fn check_word(&mut self, what: &str, name: &str) {
        if !is_word(name, 64, ".") {
            let message = format!("the {what} name `{name}` must be 1 to 64 letters, digits, `_`, `-` or `.`");
            self.mistakes.push(mistake(message));
        }
    }

    /// Reads and validates the configuration. Opens nothing yet.
    ///
    /// # Errors
    /// Returns all errors in the configuration and in the registrations.
    pub fn load(mut self) -> Result<Prepared, Problems> {
        self.add_listed_policies();
        let loaded = config::load(&self.settings);
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock));
        match loaded {
            Ok(mut loaded) if self.mistakes.is_empty() => {
                let problems = execution::problems(&loaded);
                if !problems.is_empty() {
                    return Err(Problems(problems));
                }
                let file_warnings = loaded.warnings.clone();
                loaded.warnings.0.extend(keys::missing(&loaded, &self.registered));
                Ok(Prepared {
                    loaded,
                    file_warnings,
                    registered: self.registered,
                    clock,
                })
            }
            Ok(_) => Err(Problems(self.mistakes)),
            Err(problems) => Err(Problems(self.mistakes.into_iter().chain(problems.0).collect())),
        }
    }

    /// Reads the configuration, opens the database, and continues unfinished runs. Call [`App::serve`] to serve HTTP.
    ///
    /// # Errors
    /// Returns an error if the configuration is invalid, the database cannot be opened, or an agent cannot be
    /// assembled.
    pub async fn start(self) -> anyhow::Result<App> {
        let prepared = self.load()?;
        let shutdown = Shutdown::new(prepared.loaded.config.server.shutdown_deadline());
        prepared.start(shutdown).await
    }

    /// Serves at the configured address until the process is stopped.
    ///
    /// # Errors
    /// As [`Builder::start`], and if the address is in use or the server fails.
    pub async fn serve(self) -> anyhow::Result<()> {
        self.load()?.serve().await
    }
}

/// A server with a valid configuration.
pub struct Prepared {
    loaded: LoadedConfig,
    /// The warnings that reading the files again gives, too.
    file_warnings: Problems,
    registered: Registered,
    clock: Arc<dyn Clock>,
}

impl Prepared {
    /// Returns the configuration with its warnings.
    pub fn loaded(&self) -> &LoadedConfig {
        &self.loaded
    }

    /// Returns the parts that the program has registered.
    pub(super) fn registered(&self) -> &Registered {
        &self.registered
    }

    /// Opens the database, assembles the agents, and continues unfinished runs.
    ///
    /// # Errors
    /// Returns an error if the database cannot be opened or an agent cannot be assembled.
    pub fn start(self, shutdown: Shutdown) -> LocalBoxFuture<'static, anyhow::Result<App>> {
        Box::pin(async move {
            let db = self.open_database(&shutdown).await?;
            Box::pin(self.start_on(db, shutdown)).await
        })
    }

    async fn open_database(&self, shutdown: &Shutdown) -> anyhow::Result<Db> {
        let opened = super::database(&self.loaded.config, shutdown).await;
        // Stops the tasks that were started already.
        opened.inspect_err(|_| shutdown.begin())
    }

    async fn start_on(self, db: Db, shutdown: Shutdown) -> anyhow::Result<App> {
        let config = self.loaded.config;
        let warnings = self.file_warnings;
        // Without this handle the tasks of the database would end before the shutdown has begun, and the log would blame them.
        let kept = db.clone();
        let opening = App::open(config, warnings, self.registered, db, shutdown.clone(), self.clock);
        let opened = RowAccess::Server.scope(opening).await;
        if opened.is_err() {
            shutdown.begin();
            kept.close().await;
        }
        opened
    }

    /// Serves at the configured address until the process is stopped.
    ///
    /// # Errors
    /// Returns an error if the address is in use, or if the server cannot start or fails.
    pub fn serve(self) -> LocalBoxFuture<'static, anyhow::Result<()>> {
        Box::pin(async move {
            for warning in &self.loaded.warnings.0 {
                tracing::warn!(%warning, "configuration warning");
            }
            let agents: Vec<&str> = self.loaded.config.agents.keys().map(String::as_str).collect();
            tracing::info!(
                source = self.loaded.source,
                agents = name_list(&agents),
                "configuration loaded"
            );
            for (agent, reason) in execution::refused(&self.loaded.config, &self.registered.commands) {
                tracing::warn!(agent, reason, "the commands of an agent will be refused");
            }
            let server = &self.loaded.config.server;
            let shutdown = Shutdown::new(server.shutdown_deadline());
            shutdown.listen_for_signals();
            // The database is opened before the port is bound, so that a client that connects gets an answer. Agents are
            // assembled and runs continued only after that: a second server with the same port must not do so.
            let db = self.open_database(&shutdown).await?;
            let listener = TcpListener::bind(&server.listen).await;
            let listener = match listener {
                Ok(listener) => listener,
                Err(error) => {
                    shutdown.begin();
                    db.close().await;
                    return Err(cannot_listen(&server.listen, &error));
                }
            };
            let report = self.start_report(listener.local_addr()?);
            let is_read_by_person = self.loaded.config.log.format == LogFormat::Text && logging::is_on_terminal();
            let app = Box::pin(self.start_on(db, shutdown)).await?;
            match is_read_by_person {
                true => logging::print(&report.text()),
                false => report.log(),
            }
            app.serve(listener).await
        })
    }

    /// Returns what the server says about itself when it listens at `address`.
    fn start_report(&self, address: SocketAddr) -> StartReport {
        let missing = keys::missing_keys(&self.loaded, &self.registered);
        StartReport::new(&self.loaded, missing, address)
    }
}

/// Returns the error of an address at which the server cannot listen, with what to do if that is known.
fn cannot_listen(address: &str, error: &io::Error) -> anyhow::Error {
    let advice = [
        (
            io::ErrorKind::AddrInUse,
            ": another program listens there, perhaps a server that is still stopping; end it, or choose another address with \
             --listen",
        ),
        (
            io::ErrorKind::AddrNotAvailable,
            ": this machine has no such address; 127.0.0.1 is for its own programs, and 0.0.0.0 stands for all of its \
             addresses",
        ),
        (
            io::ErrorKind::PermissionDenied,
            ": ports below 1024 need a right (CAP_NET_BIND_SERVICE); choose another port with --listen",
        ),
    ];
    let known = advice.into_iter().find(|(kind, _)| *kind == error.kind());
    let advice = known.map_or("", |(_, advice)| advice);
    anyhow!("cannot listen on {address}: {error}{advice}")
}

fn mistake(message: impl Into<String>) -> Problem {
    Problem::in_file(PROGRAM_SOURCE, message)
}

/// Registers a part; a name that is in use is an error.
fn add<T>(all: &mut BTreeMap<String, T>, what: &str, name: String, thing: T, mistakes: &mut Vec<Problem>) {
    match all.entry(name) {
        Entry::Occupied(taken) => mistakes.push(mistake(format!("the {what} `{}` is registered twice", taken.key()))),
        Entry::Vacant(free) => drop(free.insert(thing)),
    }
}
