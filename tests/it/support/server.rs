//! The server under test: the real application over a real socket, on either engine, in this process or in its own.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use adjutant::domain::time::ManualClock;
use adjutant::{Adjutant, Builder, Shutdown};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::actors::Human;
use super::client::Client;
use super::postgres;
use super::program;
use super::provider::Provider;
use super::tools::Tools;

/// Which database is behind the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    /// A file.
    Sqlite,
    /// A database of its own on the test server.
    Postgres,
}

/// A server under test. Clones are handles of the same.
#[derive(Clone)]
pub(crate) struct TestServer {
    client: Client,
    /// The tools that its agents call.
    pub(crate) tools: Tools,
    /// The provider of the agents that are not scripted.
    pub(crate) models: Provider,
    /// Which database it has.
    pub(crate) engine: Engine,
    place: Arc<Place>,
}

/// What a server leaves behind, and what it runs in.
struct Place {
    folder: TempDir,
    database: std::sync::Mutex<Option<Database>>,
    running: Mutex<Running>,
    /// The clock that the server lives by, when it is not the machine's.
    clock: std::sync::Mutex<Option<ManualClock>>,
    around: Shutdown,
    /// Whether the server is part of the program of the tests.
    embedded: AtomicBool,
}

/// The database of one server.
enum Database {
    InFile(PathBuf),
    OnServer(postgres::Database),
}

impl Database {
    async fn fresh(engine: Engine, folder: &Path) -> Option<Self> {
        match engine {
            Engine::Sqlite => Some(Self::InFile(folder.join("adjutant.db"))),
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

/// Whether what cannot be tested on this machine is a failure.
pub(crate) fn is_everything_required() -> bool {
    std::env::var("ADJUTANT_TEST_REQUIRE_ALL").is_ok_and(|value| value == "1")
}

/// Says that something cannot be tested on this machine.
pub(crate) fn skipped<T>(what: &str) -> Option<T> {
    assert!(!is_everything_required(), "there is no {what}, and a skip is a failure");
    // Not `eprintln!`: what that writes is hidden from those who run passing tests.
    let text = format!("\n*** A TEST IS SKIPPED: there is no {what} ***\n");
    std::io::stderr()
        .write_all(text.as_bytes())
        .expect("somebody reads this");
    None
}

enum Running {
    Here(Shutdown, JoinHandle<Option<anyhow::Result<()>>>),
    There(Child),
    Nowhere,
}

impl TestServer {
    /// Starts a server; none when there is no such engine on this machine.
    pub(crate) async fn start(engine: Engine) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a directory");
        let database = Database::fresh(engine, folder.path()).await?;
        let around = Shutdown::new(Duration::from_secs(30));
        let tools = Tools::start(&around).await;
        let models = Provider::start(&around).await;
        let agents = include_str!("agents.toml")
            .replace("DATABASE", &database.url())
            .replace("TOOLS", &tools.base)
            .replace("MODELS", &models.base);
        std::fs::write(folder.path().join("adjutant.toml"), agents).expect("a configuration");
        let builder = Adjutant::builder().config_file(folder.path().join("adjutant.toml"));
        let (base, running) = run_here(builder, None).await;
        let database = std::sync::Mutex::new(Some(database));
        let place = Place {
            folder,
            database,
            running: Mutex::new(running),
            clock: Default::default(),
            around,
            embedded: AtomicBool::new(false),
        };
        Some(Self {
            client: Client::new(&base),
            tools,
            models,
            engine,
            place: Arc::new(place),
        })
    }

    /// Somebody who talks HTTP to it.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Somebody who talks to an agent on a thread of their own.
    pub(crate) async fn human(&self, agent: &str) -> Human {
        Human::arrives(self.client(), agent).await
    }

    /// From now on the server is a process of its own, on the same database.
    pub(crate) async fn moves_into_a_process(&self) {
        let mut running = self.place.running.lock().await;
        stop(std::mem::replace(&mut *running, Running::Nowhere)).await;
        let (base, child) = self.run_there();
        *running = Running::There(child);
        self.client.moved_to(&base);
    }

    /// The same; a write beyond the limit of file sizes is an error for the process, and does not end it. Returns its id.
    pub(crate) async fn moves_into_a_process_that_outlives_a_full_disk(&self) -> u32 {
        let mut running = self.place.running.lock().await;
        stop(std::mem::replace(&mut *running, Running::Nowhere)).await;
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "trap '' XFSZ; exec \"$0\" --config \"$1\"",
            env!("CARGO_BIN_EXE_adjutant"),
        ]);
        command.arg(self.configuration()).current_dir(self.place.folder.path());
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let (base, child) = start(command);
        let id = child.id();
        *running = Running::There(child);
        self.client.moved_to(&base);
        id
    }

    /// The most memory that the process of the server ever had, in MiB.
    pub(crate) async fn peak_memory(&self) -> u64 {
        let running = self.place.running.lock().await;
        let Running::There(child) = &*running else {
            panic!("only of a process it is known")
        };
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it is alive");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .expect("the peak");
        line.trim()
            .trim_end_matches(" kB")
            .trim()
            .parse::<u64>()
            .expect("a number")
            / 1024
    }

    /// The process dies at once, and another one begins where it was.
    pub(crate) async fn is_killed_and_started_again(&self) {
        let mut running = self.place.running.lock().await;
        let Running::There(mut child) = std::mem::replace(&mut *running, Running::Nowhere) else {
            panic!("only a process can be killed");
        };
        child.kill().expect("SIGKILL");
        child.wait().expect("it is dead");
        let (base, child) = self.run_there();
        *running = Running::There(child);
        self.client.moved_to(&base);
    }

    /// The server stops in good order, and nobody is in its place.
    pub(crate) async fn goes_away(&self) {
        let mut running = self.place.running.lock().await;
        stop(std::mem::replace(&mut *running, Running::Nowhere)).await;
    }

    /// The server stops in good order and another one begins where it was.
    pub(crate) async fn is_stopped_and_started_again(&self) {
        let mut running = self.place.running.lock().await;
        stop(std::mem::replace(&mut *running, Running::Nowhere)).await;
        let (base, started) = run_here(self.builder(), self.clock()).await;
        *running = started;
        self.client.moved_to(&base);
    }

    /// The server stops in good order and another one begins, with these lines in its section `[server]`.
    pub(crate) async fn is_configured(&self, lines: &str) {
        let place = self.configuration();
        let old = std::fs::read_to_string(&place).expect("a configuration");
        std::fs::write(&place, old.replacen("[server]\n", &format!("[server]\n{lines}\n"), 1)).expect("it can change");
        self.is_stopped_and_started_again().await;
    }

    /// The server stops in good order and another one begins, whose configuration says `new` where it said `old`.
    pub(crate) async fn is_configured_by(&self, old: &str, new: &str) {
        self.configuration_changes(old, new);
        self.is_stopped_and_started_again().await;
    }

    /// The server stops in good order and another one begins, which lives by a clock that only the scene moves.
    pub(crate) async fn lives_by(&self, clock: &ManualClock) {
        *self.place.clock.lock().unwrap() = Some(clock.clone());
        self.is_stopped_and_started_again().await;
    }

    fn clock(&self) -> Option<ManualClock> {
        self.place.clock.lock().unwrap().clone()
    }

    /// A second server begins on the same database, by the same clock.
    pub(crate) async fn gets_a_twin(&self) -> Twin {
        self.gets_a_twin_by(self.clock()).await
    }

    /// A second server begins on the same database, by this clock or by the machine's.
    pub(crate) async fn gets_a_twin_by(&self, clock: Option<ManualClock>) -> Twin {
        let (base, running) = run_here(self.builder(), clock).await;
        Twin {
            client: Client::new(&base),
            running,
        }
    }

    /// The server stops in good order and another one begins, in which this agent's definition has another key.
    pub(crate) async fn renames_agent(&self, old: &str, new: &str) {
        let place = self.configuration();
        let text = std::fs::read_to_string(&place).expect("a configuration");
        let text = text.replace(&format!("[agents.{old}"), &format!("[agents.{new}"));
        std::fs::write(&place, text).expect("it can change");
        self.is_stopped_and_started_again().await;
    }

    /// The server stops in good order and another one begins, with these lines at the end of its configuration.
    pub(crate) async fn is_configured_with(&self, lines: &str) {
        let place = self.configuration();
        let old = std::fs::read_to_string(&place).expect("a configuration");
        std::fs::write(&place, format!("{old}\n{lines}")).expect("it can change");
        self.is_stopped_and_started_again().await;
    }

    /// Somebody changes its configuration while it runs.
    pub(crate) fn configuration_changes(&self, old: &str, new: &str) {
        let text = std::fs::read_to_string(self.configuration()).expect("a configuration");
        assert!(text.contains(old), "{old} is not in the configuration");
        std::fs::write(self.configuration(), text.replace(old, new)).expect("it can change");
    }

    /// Somebody writes a file beside its configuration while it runs.
    pub(crate) fn file_is_written(&self, path: &str, text: &str) {
        let path = self.place.folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("it can be made");
        std::fs::write(path, text).expect("it can be written");
    }

    /// The address of its database.
    pub(crate) fn database_url(&self) -> String {
        self.place.database.lock().unwrap().as_ref().expect("a database").url()
    }

    /// The server stops in good order; from now on it is part of the program of the tests.
    pub(crate) async fn is_embedded(&self) {
        self.place.embedded.store(true, Ordering::Relaxed);
        self.is_configured_with(program::CONFIGURATION).await;
    }

    fn builder(&self) -> Builder {
        match self.place.embedded.load(Ordering::Relaxed) {
            true => program::program(&self.configuration(), &self.tools.base),
            false => Adjutant::builder().config_file(self.configuration()),
        }
    }

    /// Starts the server in a process of its own.
    fn run_there(&self) -> (String, Child) {
        match self.place.embedded.load(Ordering::Relaxed) {
            true => run_the_program(&self.configuration(), &self.tools.base),
            false => run_there(&self.configuration()),
        }
    }

    /// Where its configuration is.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.place.folder.path().join("adjutant.toml")
    }

    /// Nothing may be left at work; then everything goes.
    pub(crate) async fn finish(self) {
        self.nothing_is_left().await;
        let mut running = self.place.running.lock().await;
        stop(std::mem::replace(&mut *running, Running::Nowhere)).await;
        drop(running);
        self.place.around.begin();
        self.place.around.force();
        let database = self.place.database.lock().unwrap().take();
        if let Some(Database::OnServer(database)) = database {
            database.discard().await;
        }
    }

    /// What a scene set going may take its time after the last line of it, but it has to come to its end.
    async fn nothing_is_left(&self) {
        let came = async {
            while !self.at_work().await.is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let came = tokio::time::timeout(Duration::from_secs(60), came).await;
        assert!(came.is_ok(), "this is left at work: {:#?}", self.at_work().await);
    }

    /// The threads that are busy, and the runs that are not over.
    async fn at_work(&self) -> Vec<Value> {
        let busy = self
            .client
            .post("/threads/search", json!({"status": "busy"}))
            .await
            .ok();
        let mut left = busy.as_array().expect("a list").clone();
        let threads = self.client.post("/threads/search", json!({"limit": 1000})).await.ok();
        for thread in threads
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|thread| thread["thread_id"].as_str())
        {
            let runs = self.client.get(&format!("/threads/{thread}/runs?limit=1000")).await;
            // The thread of a stateless run may go away between the two questions.
            if runs.status == 404 {
                continue;
            }
            let at_work = |run: &Value| run["status"] == "pending" || run["status"] == "running";
            left.extend(
                runs.ok()
                    .as_array()
                    .expect("a list")
                    .iter()
                    .filter(|run| at_work(run))
                    .cloned(),
            );
        }
        left
    }
}

/// A second server on the database of another one.
pub(crate) struct Twin {
    /// Somebody who talks HTTP to it.
    pub(crate) client: Client,
    running: Running,
}

impl Twin {
    /// It stops in good order.
    pub(crate) async fn leaves(self) {
        stop(self.running).await;
    }
}

/// Starts the application in this process, by the machine's clock or another one.
async fn run_here(builder: Builder, clock: Option<ManualClock>) -> (String, Running) {
    let builder = match clock {
        Some(clock) => builder.clock(Arc::new(clock)),
        None => builder,
    };
    let app = builder.start().await.unwrap_or_else(|error| panic!("{error:#}"));
    let shutdown = app.shutdown().clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base = format!("http://{}", listener.local_addr().unwrap());
    // Not a task of the application's own, which would wait for itself.
    let serving = Shutdown::default().spawn("server", app.serve(listener));
    (base, Running::Here(shutdown, serving))
}

/// Starts the program in a process of its own.
fn run_there(configuration: &Path) -> (String, Child) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
    let folder = configuration.parent().expect("a folder");
    command
        .arg("--config")
        .arg(configuration)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    start(command)
}

/// Starts the program of the tests in a process of its own: this one, once more.
fn run_the_program(configuration: &Path, tools: &str) -> (String, Child) {
    let mut command = Command::new(std::env::current_exe().expect("the program of the tests"));
    command.args(["--exact", "support::program::the_program", "--ignored", "--nocapture"]);
    command.env(program::CONFIG, configuration).env(program::TOOLS, tools);
    command.current_dir(configuration.parent().expect("a folder"));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    start(command)
}

/// Starts the program with these arguments, in a folder.
pub(crate) fn run_in_a_folder(arguments: &[&str], folder: &Path) -> (String, Child) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
    command
        .args(["--listen", "127.0.0.1:0"])
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    start(command)
}

/// Starts the program on all addresses of this machine, as its owner may want behind a proxy.
pub(crate) fn run_public(folder: &Path) -> (String, Child) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
    command.args(["--listen", "0.0.0.0:0", "--insecure-no-auth"]);
    command.current_dir(folder).stdin(Stdio::null()).stderr(Stdio::piped());
    start(command)
}

/// Starts the program with no more than so many file descriptors.
pub(crate) fn run_with_descriptors(limit: usize, folder: &Path) -> (String, Child) {
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_adjutant");
    command.args([
        "-c",
        &format!("ulimit -n {limit} && exec '{program}' --listen 127.0.0.1:0"),
    ]);
    command.current_dir(folder).stdin(Stdio::null()).stderr(Stdio::piped());
    start(command)
}

/// Waits for the line in which the program says where it listens.
fn start(mut command: Command) -> (String, Child) {
    command.env("ADJUTANT_LOG", "info").env("NO_COLOR", "1");
    let mut child = command.spawn().expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut said = vec![];
    let base = loop {
        let line = lines
            .next()
            .unwrap_or_else(|| panic!("it did not listen: {said:#?}"))
            .expect("text");
        if let Some(port) = port_in(&line) {
            break format!("http://127.0.0.1:{port}");
        }
        said.push(line);
    };
    // A pipe that nobody reads would stop the program when it is full.
    std::thread::spawn(move || lines.for_each(drop));
    (base, child)
}

/// The port in the line `listening`, in either form of the log.
pub(crate) fn port_in(line: &str) -> Option<&str> {
    let listens = line.contains("listening");
    let rest = listens
        .then(|| line.split_once("127.0.0.1:").or_else(|| line.split_once("0.0.0.0:")))??
        .1;
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..end)
}

async fn stop(running: Running) {
    match running {
        Running::Here(shutdown, serving) => {
            shutdown.begin();
            let ended = serving.await.expect("the server does not panic");
            ended
                .expect("the server was not dropped")
                .expect("the server ends in good order");
            assert_eq!(shutdown.tasks(), 0, "tasks are left");
        }
        Running::There(mut child) => {
            let id = child.id().to_string();
            Command::new("kill").args(["-TERM", &id]).status().expect("SIGTERM");
            let status = child.wait().expect("an end");
            assert!(status.success(), "the process ended with {status}");
        }
        Running::Nowhere => {}
    }
}

impl Drop for Place {
    /// What a failed test left running goes with it.
    fn drop(&mut self) {
        if let Running::There(child) = self.running.get_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.around.force();
    }
}
