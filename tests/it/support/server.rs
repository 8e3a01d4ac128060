//! The server under test: the real application over a real socket, on either engine, in this process or in one of its
//! own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adjutant::domain::time::ManualClock;
use adjutant::sqlite::SqliteConnectOptions;
use adjutant::{Adjutant, Builder, Shutdown};
use serde_json::{Value, json};
use sqlx::Connection;
use sqlx::migrate::Migrator;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, OnceCell};
use tokio::task::JoinHandle;

use super::actors::Human;
use super::client::Client;
use super::postgres;
use super::process::{Log, Process, server_in};
use super::program;
use super::provider::Provider;
use super::tools::Tools;

/// The database engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// A SQLite file.
    Sqlite,
    /// A database of its own on the Postgres test server.
    Postgres,
}

/// A caller of a server with authentication.
struct Caller {
    name: &'static str,
    tenant: &'static str,
    role: &'static str,
    /// Further lines of the key.
    more: &'static str,
}

/// The callers of a server with authentication. The harness itself is the first.
const CALLERS: [Caller; 9] = [
    Caller::new("harness", "default", "admin"),
    Caller::new("ann", "acme", "user"),
    Caller::new("bob", "acme", "user"),
    Caller::new("root", "acme", "admin"),
    Caller::new("operator", "acme", "operator"),
    Caller::new("root-of-other", "other", "admin"),
    Caller::new("eve", "acme", "approver"),
    Caller::new("approver-of-other", "other", "approver"),
    Caller {
        more: "expires_at = \"2020-01-01T00:00:00Z\"\n",
        ..Caller::new("expired", "acme", "admin")
    },
];

impl Caller {
    const fn new(name: &'static str, tenant: &'static str, role: &'static str) -> Self {
        Self {
            name,
            tenant,
            role,
            more: "",
        }
    }

    /// Returns the secret of the caller.
    fn key(&self) -> String {
        format!("the-secret-key-of-{}-0123456789abcdef", self.name)
    }

    /// Returns the lines of the configuration for the key.
    fn configuration(&self) -> String {
        let Self {
            name,
            tenant,
            role,
            more,
        } = self;
        format!(
            "[[auth.keys]]\nname = \"{name}\"\nuser = \"{name}\"\ntenant = \"{tenant}\"\nroles = [\"{role}\"]\n\
             key_file = \"keys/{name}\"\n{more}"
        )
    }
}

/// The keys of the callers of a server with authentication.
pub(crate) struct Keys(Client);

impl Keys {
    /// Returns a client of this caller.
    pub(crate) fn client(&self, name: &str) -> Client {
        self.with(&self.text(name))
    }

    /// Returns the key of this caller.
    pub(crate) fn text(&self, name: &str) -> String {
        let caller = CALLERS.iter().find(|caller| caller.name == name);
        caller.expect("a caller").key()
    }

    /// Returns a client with this key.
    pub(crate) fn with(&self, key: &str) -> Client {
        self.0.with_key(key)
    }

    /// Returns a client without a key.
    pub(crate) fn nobody(&self) -> Client {
        self.0.with_key("")
    }
}

/// A server under test. Clones share the same server.
#[derive(Clone)]
pub(crate) struct TestServer {
    client: Client,
    /// The tools that its agents call.
    pub(crate) tools: Tools,
    /// The provider of the agents that are not scripted.
    pub(crate) models: Provider,
    /// The database engine.
    pub(crate) engine: Engine,
    shared: Arc<Shared>,
}

/// The shared state of a server under test: its folder, database and process.
struct Shared {
    folder: TempDir,
    database: std::sync::Mutex<Option<Database>>,
    running: Mutex<Running>,
    /// The server's clock, if it is not the system clock.
    clock: std::sync::Mutex<Option<ManualClock>>,
    fakes: Shutdown,
    /// True if the server is embedded in the test program.
    embedded: AtomicBool,
    /// The role of its processes, if not the default.
    role: std::sync::Mutex<Option<&'static str>>,
    /// The log of the processes of the server.
    log: Log,
}

/// The database of one server.
enum Database {
    InFile(PathBuf),
    OnServer(postgres::Database),
}

impl Database {
    async fn fresh(engine: Engine, folder: &Path) -> Option<Self> {
        match engine {
            Engine::Sqlite => {
                let file = folder.join("adjutant.db");
                std::fs::write(&file, sqlite_template().await).expect("a database");
                Some(Self::InFile(file))
            }
            Engine::Postgres => {
                let database = postgres::fresh_database().await;
                assert!(
                    database.is_some() || !is_everything_required(),
                    "there is no Postgres, and a skip is a failure"
                );
                database.map(Self::OnServer)
            }
        }
    }

    fn url(&self) -> String {
        match self {
            Self::InFile(path) => format!("sqlite://{}", path.display()),
            Self::OnServer(database) => database.url.clone(),
        }
    }
}

/// Returns a SQLite file that has the tables already, so that tests do not create them each time.
async fn sqlite_template() -> &'static [u8] {
    static TEMPLATE: OnceCell<Vec<u8>> = OnceCell::const_new();
    let create = async || {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("template.db");
        let options = SqliteConnectOptions::of_file(&file).create_if_missing(true);
        let mut conn = options.pragma("journal_mode", "wal").open().expect("a file");
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/sqlite"));
        let migrator = Migrator::new(folder).await.expect("the folder can be read");
        migrator.run(&mut conn).await.expect("the tables are created");
        // All is in the file itself when the last connection has closed.
        conn.close().await.expect("a clean close");
        std::fs::read(file).expect("the database")
    };
    TEMPLATE.get_or_init(create).await
}

/// Returns whether a test that cannot run on this machine is a failure.
pub(crate) fn is_everything_required() -> bool {
    std::env::var("ADJUTANT_TEST_REQUIRE_ALL").is_ok_and(|value| value == "1")
}

/// Reports that a test cannot run on this machine.
pub(crate) fn skipped<T>(what: &str) -> Option<T> {
    assert!(!is_everything_required(), "there is no {what}, and a skip is a failure");
    // Not `eprintln!`, whose output is hidden for passing tests.
    let text = format!("\n*** A TEST IS SKIPPED: there is no {what} ***\n");
    std::io::stderr()
        .write_all(text.as_bytes())
        .expect("standard error is open");
    None
}

/// Returns the path of a program that packages of the system install; none, after saying so, if it is not there.
pub(crate) fn installed(program: &str) -> Option<String> {
    ["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"]
        .into_iter()
        .map(|folder| format!("{folder}/{program}"))
        .find(|path| Path::new(path).exists())
        .or_else(|| skipped(program))
}

/// Returns the Python that `ADJUTANT_TEST_PYTHON` names, else `python3`; none, after saying so, if it does not have these
/// modules, which are those of `packages`.
pub(crate) fn python_with(modules: &[&str], packages: &str) -> Option<String> {
    let named = std::env::var("ADJUTANT_TEST_PYTHON")
        .ok()
        .filter(|name| !name.is_empty());
    let python = named.unwrap_or_else(|| "python3".to_owned());
    let find = format!("import importlib.util as u; assert all(map(u.find_spec, {modules:?}))");
    let mut probe = Command::new(&python);
    probe.args(["-c", &find]).stdout(Stdio::null()).stderr(Stdio::null());
    let found = probe.status().is_ok_and(|status| status.success());
    found
        .then_some(python)
        .or_else(|| skipped(&format!("Python with {packages} (ADJUTANT_TEST_PYTHON)")))
}

enum Running {
    InProcess(Shutdown, JoinHandle<Option<anyhow::Result<()>>>),
    ChildProcess(Process),
    NotYet,
    Stopped,
}

impl TestServer {
    /// Prepares a server, which starts when it is used; `None` if the engine is not installed on this machine.
    pub(crate) async fn start(engine: Engine) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a directory");
        let database = Database::fresh(engine, folder.path()).await?;
        let fakes = Shutdown::new(Duration::from_secs(30));
        let tools = Tools::start(&fakes).await;
        let models = Provider::start(&fakes).await;
        let agents = include_str!("agents.toml")
            .replace("DATABASE", &database.url())
            .replace("TOOLS", &tools.base)
            .replace("MODELS", &models.base);
        std::fs::write(folder.path().join("adjutant.toml"), agents).expect("a configuration");
        let database = std::sync::Mutex::new(Some(database));
        let shared = Shared {
            folder,
            database,
            running: Mutex::new(Running::NotYet),
            clock: Default::default(),
            fakes,
            embedded: AtomicBool::new(false),
            role: std::sync::Mutex::default(),
            log: Log::default(),
        };
        Some(Self {
            client: Client::new(""),
            tools,
            models,
            engine,
            shared: Arc::new(shared),
        })
    }

    /// Returns an HTTP client of the server.
    pub(crate) fn client(&self) -> Client {
        self.starts_if_new();
        self.client.clone()
    }

    /// Starts the server unless it has started before. A test that only configures the server first pays for one start.
    fn starts_if_new(&self) {
        let starting = async {
            let mut running = self.shared.running.lock().await;
            if matches!(*running, Running::NotYet) {
                let (base, started) = start_in_process(self.builder(), self.clock()).await;
                *running = started;
                self.client.moved_to(&base);
            }
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(starting));
    }

    /// Creates a user of an agent on a thread of their own.
    pub(crate) async fn human(&self, agent: &str) -> Human {
        Human::on_new_thread(self.client(), agent).await
    }

    /// Restarts the server as a process of its own, on the same database.
    pub(crate) async fn moves_into_a_process(&self) {
        let mut running = self.shared.running.lock().await;
        stop(std::mem::replace(&mut *running, Running::Stopped)).await;
        *running = Running::ChildProcess(self.start_process(self.process_command()).await);
    }

    /// Restarts the server as a process of its own that logs with this filter.
    pub(crate) async fn moves_into_a_process_that_logs(&self, filter: &str) {
        let mut running = self.shared.running.lock().await;
        stop(std::mem::replace(&mut *running, Running::Stopped)).await;
        let mut command = self.process_command();
        command.env("ADJUTANT_LOG", filter);
        *running = Running::ChildProcess(self.start_process(command).await);
    }

    /// Restarts the server as a process that survives writes beyond the limit of file sizes. Returns the process id.
    pub(crate) async fn moves_into_a_process_that_outlives_a_full_disk(&self) -> u32 {
        let mut running = self.shared.running.lock().await;
        stop(std::mem::replace(&mut *running, Running::Stopped)).await;
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "trap '' XFSZ; exec \"$0\" --config \"$1\"",
            env!("CARGO_BIN_EXE_adjutant"),
        ]);
        command.arg(self.configuration()).current_dir(self.shared.folder.path());
        let process = self.start_process(command).await;
        let id = process.id();
        *running = Running::ChildProcess(process);
        id
    }

    /// Returns the peak memory of the server's process, in MiB.
    pub(crate) async fn peak_memory(&self) -> u64 {
        self.memory("VmHWM:").await / 1024
    }

    /// Returns the memory that the server's process has for itself, without the files that it has mapped, in KiB.
    pub(crate) async fn own_memory(&self) -> u64 {
        self.memory("RssAnon:").await
    }

    async fn memory(&self, kind: &str) -> u64 {
        let running = self.shared.running.lock().await;
        let status = std::fs::read_to_string(format!("/proc/{}/status", running.process().id())).expect("it is alive");
        let line = status.lines().find_map(|line| line.strip_prefix(kind)).expect("a line");
        let number = line.trim().trim_end_matches(" kB").trim();
        number.parse().expect("a number")
    }

    /// Kills the process and starts another one.
    pub(crate) async fn is_killed_and_started_again(&self) {
        let mut running = self.shared.running.lock().await;
        self.kill(&mut running);
        *running = Running::ChildProcess(self.start_process(self.process_command()).await);
    }

    /// Kills the process, kills the next one after `delay`, which may be before that one listens, and starts a third.
    pub(crate) async fn is_killed_twice_and_started_again(&self, delay: Duration) {
        let mut running = self.shared.running.lock().await;
        self.kill(&mut running);
        let second = Process::spawn(self.process_command(), &self.shared.log);
        // A random instant is what these tests are about.
        tokio::time::sleep(delay).await;
        drop(second);
        self.shared.log.push("--- killed once more ---");
        *running = Running::ChildProcess(self.start_process(self.process_command()).await);
    }

    /// Has the processes that start from now on this role.
    pub(crate) fn takes_role(&self, role: &'static str) {
        *self.shared.role.lock().unwrap() = Some(role);
    }

    /// Sends a signal to the process.
    pub(crate) async fn gets_signal(&self, name: &str) {
        self.shared.running.lock().await.process().signal(name);
    }

    /// Waits for the end of the process, which has to be a successful one.
    pub(crate) async fn ends_well(&self) {
        let running = std::mem::replace(&mut *self.shared.running.lock().await, Running::Stopped);
        let Running::ChildProcess(process) = running else {
            panic!("the server is not a process of its own");
        };
        let status = process.ends().await;
        assert!(
            status.success(),
            "the process ended with {status}:\n{}",
            self.shared.log.text()
        );
    }

    /// Kills the process.
    pub(crate) async fn is_killed(&self) {
        self.kill(&mut *self.shared.running.lock().await);
    }

    /// Stops the process in good order and starts another one.
    pub(crate) async fn is_terminated_and_started_again(&self) {
        let mut running = self.shared.running.lock().await;
        self.client.server_is_down();
        stop(std::mem::replace(&mut *running, Running::Stopped)).await;
        self.shared.log.push("--- terminated ---");
        *running = Running::ChildProcess(self.start_process(self.process_command()).await);
    }

    /// Suspends the process, as a machine does that sleeps.
    pub(crate) async fn is_suspended(&self) {
        self.shared.running.lock().await.process().signal("STOP");
    }

    /// Continues the suspended process.
    pub(crate) async fn is_continued(&self) {
        self.shared.running.lock().await.process().signal("CONT");
    }

    /// Returns what the processes of the server have logged.
    pub(crate) fn log(&self) -> &Log {
        &self.shared.log
    }

    fn kill(&self, running: &mut Running) {
        let Running::ChildProcess(process) = std::mem::replace(running, Running::Stopped) else {
            panic!("only a process can be killed");
        };
        self.client.server_is_down();
        drop(process);
        self.shared.log.push("--- killed ---");
    }

    /// Starts a process and lets the client use its address.
    async fn start_process(&self, command: Command) -> Process {
        let process = Process::spawn(command, &self.shared.log);
        self.client.moved_to(&process.base().await);
        process
    }

    /// Stops the server.
    pub(crate) async fn is_stopped(&self) {
        let mut running = self.shared.running.lock().await;
        stop(std::mem::replace(&mut *running, Running::Stopped)).await;
    }

    /// Restarts the server, if it has started.
    pub(crate) async fn is_stopped_and_started_again(&self) {
        let mut running = self.shared.running.lock().await;
        if matches!(*running, Running::NotYet) {
            return;
        }
        stop(std::mem::replace(&mut *running, Running::Stopped)).await;
        let (base, started) = start_in_process(self.builder(), self.clock()).await;
        *running = started;
        self.client.moved_to(&base);
    }

    /// Restarts the server with these lines in its section `[server]`.
    pub(crate) async fn is_configured(&self, lines: &str) {
        let path = self.configuration();
        let old = std::fs::read_to_string(&path).expect("a configuration");
        std::fs::write(&path, old.replacen("[server]\n", &format!("[server]\n{lines}\n"), 1)).expect("it can change");
        self.is_stopped_and_started_again().await;
    }

    /// Restarts the server with `new` instead of `old` in its configuration.
    pub(crate) async fn is_reconfigured(&self, old: &str, new: &str) {
        self.configuration_changes(old, new);
        self.is_stopped_and_started_again().await;
    }

    /// Restarts the server such that it notices at once when its files change. Other servers never look.
    pub(crate) async fn watches_its_files(&self) {
        self.is_reconfigured("reload_s = 0\n", "reload_s = 0.05\n").await;
    }

    /// Lets the server, from its next start on, search for expired data and look for due jobs several times a second.
    pub(crate) fn sweeps_often(&self) {
        let path = self.configuration();
        let text = std::fs::read_to_string(&path).expect("a configuration");
        let often = text.replace("sweep_interval_minutes = 0.016\n", "sweep_interval_minutes = 0.003\n");
        std::fs::write(&path, often).expect("it can change");
    }

    /// Restarts the server with a clock that only the test moves. The server notices within a fraction of a second.
    pub(crate) async fn uses_clock(&self, clock: &ManualClock) {
        *self.shared.clock.lock().unwrap() = Some(clock.clone());
        self.sweeps_often();
        self.is_stopped_and_started_again().await;
    }

    fn clock(&self) -> Option<ManualClock> {
        self.shared.clock.lock().unwrap().clone()
    }

    /// Starts a second server on the same database, with the same clock.
    pub(crate) async fn starts_twin(&self) -> Twin {
        self.starts_twin_with(self.clock()).await
    }

    /// Starts a second server on the same database, with this clock or the system clock.
    pub(crate) async fn starts_twin_with(&self, clock: Option<ManualClock>) -> Twin {
        self.starts_if_new();
        let (base, running) = start_in_process(self.builder(), clock).await;
        Twin {
            client: Client::new(&base),
            running,
        }
    }

    /// Starts a process on the same database with the same tools, beside the process of this server.
    pub(crate) async fn starts_second_process(&self) -> Self {
        self.starts_process_beside(None).await
    }

    /// Starts a process with this role on the same database with the same tools, beside the process of this server.
    pub(crate) async fn starts_second_process_as(&self, role: &'static str) -> Self {
        self.starts_process_beside(Some(role)).await
    }

    async fn starts_process_beside(&self, role: Option<&'static str>) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        std::fs::copy(self.configuration(), folder.path().join("adjutant.toml")).expect("a configuration");
        let shared = Shared {
            folder,
            database: std::sync::Mutex::default(),
            running: Mutex::new(Running::Stopped),
            clock: std::sync::Mutex::default(),
            fakes: Shutdown::new(Duration::from_secs(30)),
            embedded: AtomicBool::new(self.shared.embedded.load(Ordering::Relaxed)),
            role: std::sync::Mutex::new(role),
            log: Log::default(),
        };
        let second = Self {
            client: Client::new(""),
            tools: self.tools.clone(),
            models: self.models.clone(),
            engine: self.engine,
            shared: Arc::new(shared),
        };
        second.moves_into_a_process().await;
        second
    }

    /// Restarts the server with another key for this agent's definition.
    pub(crate) async fn renames_agent(&self, old: &str, new: &str) {
        let path = self.configuration();
        let text = std::fs::read_to_string(&path).expect("a configuration");
        let text = text.replace(&format!("[agents.{old}"), &format!("[agents.{new}"));
        std::fs::write(&path, text).expect("it can change");
        self.is_stopped_and_started_again().await;
    }

    /// Restarts the server with these lines at the end of its configuration.
    pub(crate) async fn is_configured_with(&self, lines: &str) {
        let path = self.configuration();
        let old = std::fs::read_to_string(&path).expect("a configuration");
        std::fs::write(&path, format!("{old}\n{lines}")).expect("it can change");
        self.is_stopped_and_started_again().await;
    }

    /// Replaces `old` by `new` in the configuration file.
    pub(crate) fn configuration_changes(&self, old: &str, new: &str) {
        let text = std::fs::read_to_string(self.configuration()).expect("a configuration");
        assert!(text.contains(old), "{old} is not in the configuration");
        std::fs::write(self.configuration(), text.replace(old, new)).expect("it can change");
    }

    /// Writes a file next to the configuration.
    pub(crate) fn file_is_written(&self, path: &str, text: &str) {
        let path = self.shared.folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        std::fs::write(path, text).expect("it can be written");
    }

    /// Returns the path of a file below the folder of the server.
    pub(crate) fn path_of(&self, path: &str) -> PathBuf {
        self.shared.folder.path().join(path)
    }

    /// Returns the URL of the database.
    pub(crate) fn database_url(&self) -> String {
        self.starts_if_new();
        self.shared.database.lock().unwrap().as_ref().expect("a database").url()
    }

    /// Returns the URL of the database for a superuser of Postgres; none if the tests have none.
    pub(crate) fn admin_url(&self) -> Option<String> {
        match self.shared.database.lock().unwrap().as_ref() {
            Some(Database::OnServer(database)) if database.admin != database.url => Some(database.admin.clone()),
            Some(Database::OnServer(_) | Database::InFile(_)) | None => None,
        }
    }

    /// Restarts the server with authentication, and returns the keys of its callers.
    pub(crate) async fn is_protected(&self) -> Keys {
        self.is_protected_with("", "").await
    }

    /// Restarts the server with authentication, with these lines in the section `[auth]`, and these after it.
    pub(crate) async fn is_protected_with(&self, in_section: &str, after: &str) -> Keys {
        let folder = self.shared.folder.path();
        std::fs::create_dir_all(folder.join("keys")).expect("a folder");
        let mut lines = format!("[auth]\n{in_section}\n");
        for caller in CALLERS {
            std::fs::write(folder.join("keys").join(caller.name), caller.key()).expect("a key");
            lines.push_str(&caller.configuration());
        }
        lines.push_str(after);
        self.client.uses_key(&CALLERS[0].key());
        self.is_configured_with(&lines).await;
        Keys(self.client())
    }

    /// Restarts the server, embedded in the test program.
    pub(crate) async fn is_embedded(&self) {
        self.shared.embedded.store(true, Ordering::Relaxed);
        self.is_configured_with(program::CONFIGURATION).await;
    }

    fn builder(&self) -> Builder {
        let builder = match self.shared.embedded.load(Ordering::Relaxed) {
            true => program::program(&self.configuration(), &self.tools.base),
            false => Adjutant::builder().config_file(self.configuration()),
        };
        builder.sandbox_program(env!("CARGO_BIN_EXE_adjutant"))
    }

    /// Returns the command that runs the server in a process of its own.
    fn process_command(&self) -> Command {
        let configuration = self.configuration();
        if self.shared.embedded.load(Ordering::Relaxed) {
            return program::command(&configuration, &self.tools.base);
        }
        let mut command = server_in(self.shared.folder.path());
        command.arg("--config").arg(configuration);
        if let Some(role) = *self.shared.role.lock().unwrap() {
            command.args(["--role", role]);
        }
        command
    }

    /// Returns the path of the configuration.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.shared.folder.path().join("adjutant.toml")
    }

    /// Checks that nothing is running, and removes the server with all its resources.
    pub(crate) async fn finish(self) {
        let is_running = !matches!(*self.shared.running.lock().await, Running::NotYet | Running::Stopped);
        if is_running {
            self.nothing_is_left().await;
        }
        let mut running = self.shared.running.lock().await;
        stop(std::mem::replace(&mut *running, Running::Stopped)).await;
        drop(running);
        self.shared.fakes.begin();
        self.shared.fakes.force();
        let database = self.shared.database.lock().unwrap().take();
        if let Some(Database::OnServer(database)) = database {
            database.discard().await;
        }
    }

    /// Waits until all runs have ended; panics after 60 s.
    async fn nothing_is_left(&self) {
        let ended = async {
            while !self.unfinished().await.is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        assert!(ended.is_ok(), "these are still running: {:#?}", self.unfinished().await);
    }

    /// Returns the busy threads and the unfinished runs.
    async fn unfinished(&self) -> Vec<Value> {
        // Without their values: some tests leave long threads.
        let busy = json!({"status": "busy", "select": ["thread_id", "status", "metadata"]});
        let busy = self.client.post("/threads/search", busy).await.ok();
        let mut left = busy.as_array().expect("a list").clone();
        let all = json!({"limit": 1000, "select": ["thread_id"]});
        let threads = self.client.post("/threads/search", all).await.ok();
        for thread in threads
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|thread| thread["thread_id"].as_str())
        {
            let runs = self.client.get(&format!("/threads/{thread}/runs?limit=1000")).await;
            // The thread of a stateless run may be deleted between the two requests.
            if runs.status == 404 {
                continue;
            }
            let is_unfinished = |run: &Value| run["status"] == "pending" || run["status"] == "running";
            left.extend(
                runs.ok()
                    .as_array()
                    .expect("a list")
                    .iter()
                    .filter(|run| is_unfinished(run))
                    .cloned(),
            );
        }
        left
    }
}

/// A second server on the same database.
pub(crate) struct Twin {
    /// The HTTP client of the server.
    pub(crate) client: Client,
    running: Running,
}

impl Twin {
    /// Stops the server.
    pub(crate) async fn stops(self) {
        stop(self.running).await;
    }
}

/// Starts the application in this process, with the system clock or another one.
async fn start_in_process(builder: Builder, clock: Option<ManualClock>) -> (String, Running) {
    let builder = match clock {
        Some(clock) => builder.clock(Arc::new(clock)),
        None => builder,
    };
    let app = builder.start().await.unwrap_or_else(|error| panic!("{error:#}"));
    let shutdown = app.shutdown().clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base = format!("http://{}", listener.local_addr().unwrap());
    // Not one of the application's own tasks, which would wait for itself at shutdown.
    let serving = Shutdown::default().spawn("server", app.serve(listener));
    (base, Running::InProcess(shutdown, serving))
}

impl Running {
    fn process(&self) -> &Process {
        let Self::ChildProcess(process) = self else {
            panic!("the server is not a process of its own")
        };
        process
    }
}

async fn stop(running: Running) {
    match running {
        Running::InProcess(shutdown, serving) => {
            shutdown.begin();
            let ended = serving.await.expect("the server does not panic");
            ended
                .expect("the server was not dropped")
                .expect("the server ends in good order");
            assert_eq!(shutdown.tasks(), 0, "tasks are left");
        }
        Running::ChildProcess(process) => process.terminates().await,
        Running::NotYet | Running::Stopped => {}
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.fakes.force();
    }
}
