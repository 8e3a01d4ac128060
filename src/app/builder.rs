//! Servers that have more than their configuration says: tools, policies, models and subagents written in Rust.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;

use super::{App, keys};
use crate::config::{self, Loaded, LogFormat, Problem, Problems, Settings};
use crate::db::Db;
use crate::definition::AgentDefinition;
use crate::definition::check::{is_word, tool_name_problem};
use crate::domain::time::{Clock, SystemClock};
use crate::logging;
use crate::middleware::Middleware;
use crate::model::providers::Source;
use crate::model::{Model, ModelError};
use crate::shutdown::Shutdown;
use crate::tool::{Runnable, Tool};

/// The policies that cannot be replaced: what they hold back would not be held back any more.
const FIXED: [&str; 4] = [
    "HumanInTheLoopMiddleware",
    "LimitsMiddleware",
    "RepeatedFailuresMiddleware",
    "SubAgentMiddleware",
];

/// Where names are registered, in messages.
const PROGRAM: &str = "the program";

/// What a program has registered, by name.
#[derive(Clone, Default)]
pub(super) struct Registered {
    pub(super) tools: BTreeMap<String, Arc<dyn Tool>>,
    pub(super) policies: BTreeMap<String, Arc<dyn Middleware>>,
    pub(super) runnables: BTreeMap<String, Arc<dyn Runnable>>,
    sources: BTreeMap<String, Source>,
    /// Models by the name after the colon, by the name before it.
    models: BTreeMap<String, BTreeMap<String, Arc<dyn Model>>>,
}

/// Puts a server together. Made by [`App::builder`].
///
/// What is registered here, definitions name like anything that the configuration declares: tools in `tools`, policies in
/// `middleware`, models in `model`, programs in the `runnable` of a subagent. Definitions may come from files, from code
/// and over HTTP, all at once.
#[derive(Default)]
pub struct Builder {
    settings: Settings,
    registered: Registered,
    mistakes: Vec<Problem>,
    clock: Option<Arc<dyn Clock>>,
}

impl Builder {
    /// Takes what the command line and the environment say, as [`config::Arguments`] reads them.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        let embedded = std::mem::take(&mut self.settings.embedded);
        self.settings = Settings { embedded, ..settings };
        self
    }

    /// Reads this file instead of `adjutant.toml` in the working directory.
    #[must_use]
    pub fn config_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.config = Some(path.into());
        self
    }

    /// Takes this as the text of the configuration, in the place of a file.
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

    /// Registers a policy under its own name. An agent that lists it in `middleware` has it inside the policies of the
    /// server, or, if it has the name of one of them, in that one's place.
    #[must_use]
    pub fn middleware(mut self, policy: impl Middleware + 'static) -> Self {
        let name = policy.name().to_owned();
        if FIXED.contains(&name.as_str()) {
            self.mistakes
                .push(mistake(format!("the policy `{name}` of the server cannot be replaced")));
        }
        self.check_word("policy", &name);
        self.settings.embedded.names.middleware.insert(name.clone());
        add(
            &mut self.registered.policies,
            "policy",
            name,
            Arc::new(policy),
            &mut self.mistakes,
        );
        self
    }

    /// Registers one model under the name by which definitions use it, as in `lab:small`.
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

    /// Registers a provider: `make` is asked for the model of the name after the colon, once for each name.
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

    /// Registers a program that subagents can be, under the name by which their `runnable` names it. One program may serve
    /// several subagents.
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

    /// Defines an agent in code, beside those of files.
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

    /// Lives by this clock instead of the machine's.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock: Some(clock),
            ..self
        }
    }

    fn check_word(&mut self, what: &str, name: &str) {
        if !is_word(name, 64, ".") {
            let message = format!("the {what} name `{name}` must be 1 to 64 letters, digits, `_`, `-` or `.`");
            self.mistakes.push(mistake(message));
        }
    }

    /// Reads and checks the configuration. Nothing is opened yet.
    ///
    /// # Errors
    /// Everything that is wrong with the configuration and with what was registered.
    pub fn load(self) -> Result<Prepared, Problems> {
        let loaded = config::load(&self.settings);
        let clock = self.clock.unwrap_or_else(|| Arc::new(SystemClock));
        match loaded {
            Ok(mut loaded) if self.mistakes.is_empty() => {
                loaded.warnings.0.extend(keys::missing(&loaded, &self.registered));
                Ok(Prepared {
                    loaded,
                    registered: self.registered,
                    clock,
                })
            }
            Ok(_) => Err(Problems(self.mistakes)),
            Err(problems) => Err(Problems(self.mistakes.into_iter().chain(problems.0).collect())),
        }
    }

    /// Reads the configuration, opens the database, and goes on with the runs that were left unfinished. The server then
    /// waits for [`App::serve`].
    ///
    /// # Errors
    /// When the configuration is wrong, the database cannot be opened, or an agent cannot be assembled.
    pub async fn start(self) -> anyhow::Result<App> {
        let prepared = self.load()?;
        let shutdown = Shutdown::new(prepared.loaded.config.server.shutdown_deadline());
        prepared.start(shutdown).await
    }

    /// Serves at the configured address until the process is told to stop.
    ///
    /// # Errors
    /// As [`Builder::start`], and when the address is taken or the server fails.
    pub async fn serve(self) -> anyhow::Result<()> {
        Box::pin(self.load()?.serve()).await
    }
}

/// A server whose configuration was read and found good.
pub struct Prepared {
    loaded: Loaded,
    registered: Registered,
    clock: Arc<dyn Clock>,
}

impl Prepared {
    /// The configuration, with what is odd about it.
    pub fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Opens the database, assembles the agents, and goes on with the runs that were left unfinished.
    ///
    /// # Errors
    /// When the database cannot be opened or an agent cannot be assembled.
    pub async fn start(self, shutdown: Shutdown) -> anyhow::Result<App> {
        let db = self.open_database(&shutdown).await?;
        Box::pin(self.start_on(db, shutdown)).await
    }

    async fn open_database(&self, shutdown: &Shutdown) -> anyhow::Result<Db> {
        let opened = super::database(&self.loaded.config.storage, shutdown).await;
        // The tasks that were started already are not missed.
        opened.inspect_err(|_| shutdown.begin())
    }

    async fn start_on(self, db: Db, shutdown: Shutdown) -> anyhow::Result<App> {
        let opened = App::open(self.loaded.config, self.registered, db, shutdown.clone(), self.clock).await;
        opened.inspect_err(|_| shutdown.begin())
    }

    /// Serves at the configured address until the process is told to stop.
    ///
    /// # Errors
    /// When the address is taken, the server cannot start, or fails.
    pub async fn serve(self) -> anyhow::Result<()> {
        for warning in &self.loaded.warnings.0 {
            tracing::warn!(%warning, "odd configuration");
        }
        let agents: Vec<&str> = self.loaded.config.agents.keys().map(String::as_str).collect();
        tracing::info!(
            source = self.loaded.source,
            agents = shown(&agents),
            "configuration loaded"
        );
        let server = &self.loaded.config.server;
        let shutdown = Shutdown::new(server.shutdown_deadline());
        shutdown.listen_for_signals();
        // Before the port is bound: whoever finds it bound finds a server. Before the agents are assembled and runs go on:
        // a second server, whose port is taken, must not do that.
        let db = self.open_database(&shutdown).await?;
        let listener = TcpListener::bind(&server.listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", server.listen));
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => {
                shutdown.begin();
                db.close().await;
                return Err(error);
            }
        };
        let greeting = self.greeting(listener.local_addr()?);
        let app = Box::pin(self.start_on(db, shutdown)).await?;
        greeting.iter().for_each(|line| logging::print(line));
        app.serve(listener).await
    }

    /// What whoever starts the server by hand wants to know, a line each. Programs read logs in JSON, and libraries do not
    /// print: there it is in the log alone.
    fn greeting(&self, address: SocketAddr) -> Vec<String> {
        let config = &self.loaded.config;
        if config.log.format != LogFormat::Text || !logging::is_started() {
            return vec![];
        }
        let agents: Vec<&str> = config.agents.keys().map(String::as_str).collect();
        let serves = match self.loaded.is_demonstration() {
            true => {
                "Serves the built-in demonstration, whose model is a script: no configuration was found.".to_owned()
            }
            false => format!("Serves {}.", self.loaded.source),
        };
        let document = format!("API document: {}", super::document_url(address));
        vec![serves, document, format!("Agents: {}", shown(&agents))]
    }
}

impl Registered {
    /// The providers of the program: those that make models of any name, and those with models of certain names.
    pub(super) fn sources(&self) -> BTreeMap<String, Source> {
        let mut sources = self.sources.clone();
        for (provider, models) in &self.models {
            let other = sources.remove(provider);
            let models = models.clone();
            let provider = provider.clone();
            let key = provider.clone();
            let source: Source = Arc::new(move |name| match (models.get(name), &other) {
                (Some(model), _) => Ok(Arc::clone(model)),
                (None, Some(other)) => other(name),
                (None, None) => {
                    let known: Vec<&str> = models.keys().map(String::as_str).collect();
                    let message = format!("`{provider}` has no model `{name}`; it has {}", known.join(", "));
                    Err(ModelError::Misconfigured { message })
                }
            });
            sources.insert(key, source);
        }
        sources
    }
}

fn mistake(message: impl Into<String>) -> Problem {
    Problem::in_file(PROGRAM, message)
}

/// These names, or the first of them.
fn shown(names: &[&str]) -> String {
    const MOST: usize = 20;
    let first = names.iter().take(MOST).copied().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MOST).filter(|more| *more > 0) {
        Some(more) => format!("{first} and {more} more"),
        None if names.is_empty() => "none".to_owned(),
        None => first,
    }
}

/// Registers a thing; a name that is taken is a mistake.
fn add<T>(all: &mut BTreeMap<String, T>, what: &str, name: String, thing: T, mistakes: &mut Vec<Problem>) {
    match all.entry(name) {
        Entry::Occupied(taken) => mistakes.push(mistake(format!("the {what} `{}` is registered twice", taken.key()))),
        Entry::Vacant(free) => drop(free.insert(thing)),
    }
}
