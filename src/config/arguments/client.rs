//! The commands that talk to a server.

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand, ValueEnum};
use secrecy::SecretString;

use super::CommandLineSettings;

/// The commands that talk to a server over HTTP. Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 a run
/// waits for an approval, 130 cancelled by Ctrl-C.
#[derive(Debug, Clone, Subcommand)]
pub enum ClientCommand {
    /// Talks to an agent in the terminal, and asks for approvals there.
    ///
    /// In a terminal it is a conversation; `/help` lists its commands. Otherwise the message is read from standard
    /// input, the answer goes to standard output, and progress to standard error. Without a running server on this
    /// machine, and without --server, one is started for the duration of the chat.
    ///
    /// Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not found, 4 the run waits for an approval, 130 cancelled.
    Chat(Box<ChatArguments>),
    /// Lists, shows and cancels runs.
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Lists, shows and deletes threads.
    #[command(subcommand)]
    Threads(ThreadsCommand),
    /// Lists, shows and answers interrupts: approvals and other questions to people.
    #[command(subcommand)]
    Interrupts(InterruptsCommand),
    /// Lists and revokes approvals and rejections that hold for the rest of a thread.
    #[command(subcommand)]
    Approvals(ApprovalsCommand),
    /// Lists and shows agents.
    #[command(subcommand)]
    Agents(AgentsCommand),
}

impl ClientCommand {
    /// Returns the settings, for the address of the server.
    pub fn settings(&self) -> &CommandLineSettings {
        &self.server().settings
    }

    /// Returns the settings, to change them.
    pub fn settings_mut(&mut self) -> &mut CommandLineSettings {
        &mut self.server_mut().settings
    }

    /// Returns the options about the server.
    pub fn server(&self) -> &ServerOptions {
        match self {
            Self::Chat(arguments) => &arguments.server,
            Self::Runs(command) => match command {
                RunsCommand::List { server, .. }
                | RunsCommand::Show { server, .. }
                | RunsCommand::Tree { server, .. }
                | RunsCommand::Cancel { server, .. } => server,
            },
            Self::Threads(command) => match command {
                ThreadsCommand::List { server, .. }
                | ThreadsCommand::Show { server, .. }
                | ThreadsCommand::History { server, .. }
                | ThreadsCommand::Delete { server, .. } => server,
            },
            Self::Interrupts(command) => match command {
                InterruptsCommand::List { server, .. } | InterruptsCommand::Show { server, .. } => server,
                InterruptsCommand::Resolve(arguments) => &arguments.server,
            },
            Self::Approvals(command) => match command {
                ApprovalsCommand::List { server, .. } | ApprovalsCommand::Revoke { server, .. } => server,
            },
            Self::Agents(command) => match command {
                AgentsCommand::List { server, .. }
                | AgentsCommand::Show { server, .. }
                | AgentsCommand::Graph { server, .. } => server,
            },
        }
    }

    fn server_mut(&mut self) -> &mut ServerOptions {
        match self {
            Self::Chat(arguments) => &mut arguments.server,
            Self::Runs(command) => match command {
                RunsCommand::List { server, .. }
                | RunsCommand::Show { server, .. }
                | RunsCommand::Tree { server, .. }
                | RunsCommand::Cancel { server, .. } => server,
            },
            Self::Threads(command) => match command {
                ThreadsCommand::List { server, .. }
                | ThreadsCommand::Show { server, .. }
                | ThreadsCommand::History { server, .. }
                | ThreadsCommand::Delete { server, .. } => server,
            },
            Self::Interrupts(command) => match command {
                InterruptsCommand::List { server, .. } | InterruptsCommand::Show { server, .. } => server,
                InterruptsCommand::Resolve(arguments) => &mut arguments.server,
            },
            Self::Approvals(command) => match command {
                ApprovalsCommand::List { server, .. } | ApprovalsCommand::Revoke { server, .. } => server,
            },
            Self::Agents(command) => match command {
                AgentsCommand::List { server, .. }
                | AgentsCommand::Show { server, .. }
                | AgentsCommand::Graph { server, .. } => server,
            },
        }
    }
}

/// The server that a command talks to.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerOptions {
    /// The address of the server, as in `https://agents.example.org`; the configured address of this machine's server if
    /// absent.
    #[arg(long, value_name = "URL", env = "ADJUTANT_URL", hide_env_values = true)]
    pub server: Option<String>,
    /// The API key or token. Prefer the variable: other users of the machine can see arguments.
    #[arg(long, value_name = "KEY", env = "ADJUTANT_API_KEY", hide_env_values = true)]
    pub api_key: Option<SecretString>,
    /// Send the key even over http to another machine, where others may read it.
    #[arg(long, env = "ADJUTANT_INSECURE_HTTP", value_parser = BoolishValueParser::new())]
    pub insecure_http: bool,
    /// The settings, for the configured address.
    #[command(flatten, next_help_heading = "Options of the server on this machine")]
    pub settings: CommandLineSettings,
}

/// The form of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OutputFormat {
    /// A table or a text for people.
    #[default]
    Table,
    /// JSON: one value.
    Json,
    /// JSON: one object on each line.
    Jsonl,
}

/// The form in which a result is printed.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct OutputOptions {
    /// The form of the output.
    #[arg(long, short, value_enum, value_name = "FORMAT", default_value_t)]
    output: OutputFormat,
    /// The same as --output json.
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

impl OutputOptions {
    /// Returns the form of the output.
    pub fn format(self) -> OutputFormat {
        if self.json { OutputFormat::Json } else { self.output }
    }
}

/// The options of `chat`.
#[derive(Debug, Clone, Args)]
pub struct ChatArguments {
    /// The agent, or the id of an assistant. May be left out if the server has one agent, or one called `agent`.
    pub agent: Option<String>,
    /// The thread to continue: its id or the beginning of it, or `last`.
    #[arg(long, value_name = "ID", conflicts_with = "new")]
    pub thread: Option<String>,
    /// Begin a new thread, which is the default.
    #[arg(long)]
    pub new: bool,
    /// A message to send. The command ends with the answer.
    #[arg(long, short, value_name = "TEXT")]
    pub message: Option<String>,
    /// The context of the runs, as a JSON object.
    #[arg(long, value_name = "JSON")]
    pub context: Option<String>,
    /// Print the events of the thread as JSON lines, and a last line with the result.
    #[arg(long)]
    pub json: bool,
    /// The server.
    #[command(flatten)]
    pub server: ServerOptions,
}

/// The commands about runs.
#[derive(Debug, Clone, Subcommand)]
pub enum RunsCommand {
    /// Lists runs, the newest first.
    List {
        /// Only runs of this thread.
        #[arg(long, value_name = "ID")]
        thread: Option<String>,
        /// Only runs with this status: pending, running, success, error, timeout or interrupted.
        #[arg(long, value_name = "STATUS", value_parser = ["pending", "running", "success", "error", "timeout", "interrupted"])]
        status: Option<String>,
        /// Only runs of this agent or assistant.
        #[arg(long, value_name = "AGENT")]
        agent: Option<String>,
        /// Only runs since then: 30m, 12h, 7d, or a date such as 2026-11-25.
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// The largest number of runs.
        #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Shows a run.
    Show {
        /// The id of the run, or the beginning of it.
        run: String,
        /// The thread of the run; searched for if absent.
        #[arg(long, value_name = "ID")]
        thread: Option<String>,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Shows a run with the runs of its subagents below it.
    Tree {
        /// The id of the run, or the beginning of it.
        run: String,
        /// The thread of the run; searched for if absent.
        #[arg(long, value_name = "ID")]
        thread: Option<String>,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Cancels a run, with all runs below it.
    Cancel {
        /// The id of the run.
        run: String,
        /// The thread of the run; searched for if absent.
        #[arg(long, value_name = "ID")]
        thread: Option<String>,
        /// Also take back what the run has done to the thread.
        #[arg(long)]
        rollback: bool,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
}

/// The commands about threads.
#[derive(Debug, Clone, Subcommand)]
pub enum ThreadsCommand {
    /// Lists threads, the last changed first.
    List {
        /// Only threads with this status: idle, busy, interrupted or error.
        #[arg(long, value_name = "STATUS", value_parser = ["idle", "busy", "interrupted", "error"])]
        status: Option<String>,
        /// Only threads on which this agent worked last.
        #[arg(long, value_name = "AGENT")]
        agent: Option<String>,
        /// Only threads that changed since then: 30m, 12h, 7d, or a date such as 2026-11-25.
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// The largest number of threads.
        #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Shows a thread: its conversation, files and todos.
    Show {
        /// The id of the thread, or the beginning of it, or `last`.
        thread: String,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Lists the checkpoints of a thread, the newest first.
    History {
        /// The id of the thread, or the beginning of it, or `last`.
        thread: String,
        /// The largest number of checkpoints.
        #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Deletes a thread with its runs and its history.
    Delete {
        /// The whole id of the thread.
        thread: String,
        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
}

/// The commands about interrupts.
#[derive(Debug, Clone, Subcommand)]
pub enum InterruptsCommand {
    /// Lists interrupts, the oldest first.
    List {
        /// Only interrupts with this status: pending, resolved, dropped or expired.
        #[arg(long, value_name = "STATUS", default_value = "pending", value_parser = ["pending", "resolved", "dropped", "expired"])]
        status: String,
        /// Only interrupts of this thread.
        #[arg(long, value_name = "ID")]
        thread: Option<String>,
        /// Only interrupts of this agent.
        #[arg(long, value_name = "AGENT")]
        agent: Option<String>,
        /// Only interrupts since then: 30m, 12h, 7d, or a date such as 2026-11-25.
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// The largest number of interrupts.
        #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Shows an interrupt with all arguments of its tool calls.
    Show {
        /// The id of the interrupt, or the beginning of it.
        interrupt: String,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Answers an interrupt; the run continues.
    Resolve(Box<ResolveArguments>),
}

/// The options of `interrupts resolve`.
#[derive(Debug, Clone, Args)]
pub struct ResolveArguments {
    /// The id of the interrupt, or its first 8 digits or more.
    pub interrupt: String,
    /// The answer.
    #[command(flatten)]
    pub answer: AnswerOptions,
    /// Remember the decision for the rest of the thread: later calls of the same tool by the same agent are not asked
    /// about. For `--approve` and `--reject`.
    #[arg(long)]
    pub always: bool,
    /// The output.
    #[command(flatten)]
    pub output: OutputOptions,
    /// The server.
    #[command(flatten)]
    pub server: ServerOptions,
}

/// An answer to an interrupt. One of them is needed.
#[derive(Debug, Clone, Default, Args)]
#[group(required = true, multiple = false)]
pub struct AnswerOptions {
    /// Approve all tool calls of the interrupt.
    #[arg(long)]
    pub approve: bool,
    /// Reject all tool calls of the interrupt, with a reason for the model.
    #[arg(long, value_name = "REASON", num_args = 0..=1, default_missing_value = "")]
    pub reject: Option<String>,
    /// Make another call instead: its arguments as JSON, or `{"name": …, "args": …}`. `@FILE` reads a file, `@-`
    /// standard input.
    #[arg(long, value_name = "JSON")]
    pub edit: Option<String>,
    /// The result of the tool call, or the answer to a question. JSON is sent as JSON, anything else as a text.
    /// `@FILE` reads a file, `@-` standard input.
    #[arg(long, value_name = "TEXT")]
    pub respond: Option<String>,
    /// A list with one decision for each tool call, as JSON. `@FILE` reads a file, `@-` standard input.
    #[arg(long, value_name = "JSON")]
    pub decisions: Option<String>,
}

/// The commands about decisions that hold for the rest of a thread.
#[derive(Debug, Clone, Subcommand)]
pub enum ApprovalsCommand {
    /// Lists the decisions that hold for the rest of a thread, the oldest first.
    List {
        /// The id of the thread, or the beginning of it, or `last`.
        thread: String,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Revokes such a decision: the next call that it covers is asked about again.
    Revoke {
        /// The id of the thread, or the beginning of it, or `last`.
        thread: String,
        /// The id of the decision, or the beginning of it.
        approval: String,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
}

/// The commands about agents.
#[derive(Debug, Clone, Subcommand)]
pub enum AgentsCommand {
    /// Lists agents.
    List {
        /// Only agents with this text in their names.
        #[arg(long, value_name = "TEXT")]
        name: Option<String>,
        /// The largest number of agents.
        #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Shows an agent with its subagents.
    Show {
        /// The name of the agent.
        agent: String,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Prints the nodes and edges of an agent and its subagents.
    Graph {
        /// The name of the agent.
        agent: String,
        /// The output.
        #[command(flatten)]
        output: OutputOptions,
        /// The server.
        #[command(flatten)]
        server: ServerOptions,
    },
}
