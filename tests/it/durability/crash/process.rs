//! A server in a process of its own that can be killed at any instant, with its database and the tools it calls.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::watch;

use super::effects::EffectLog;
use crate::support::{Engine, postgres};

/// How many lines of its log are kept of each process.
const KEPT_LINES: usize = 400;

/// The program, in a place where nobody builds another one while the tests run.
fn program() -> &'static Path {
    static PLACE: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let place = PLACE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a directory");
        let program = folder.path().join("adjutant");
        let built =
            std::env::var("ADJUTANT_KILL_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_adjutant").to_owned());
        std::fs::copy(built, &program).expect("the program can be copied");
        (folder, program)
    });
    &place.1
}

/// What the processes of a house said.
type Log = Arc<watch::Sender<Vec<String>>>;

fn write(log: &Log, line: String) {
    log.send_modify(|lines| {
        if lines.len() >= KEPT_LINES {
            lines.drain(..KEPT_LINES / 2);
        }
        lines.push(line);
    });
}

/// One process.
pub(super) struct Process {
    child: Child,
    address: watch::Receiver<Option<String>>,
}

impl Process {
    /// Starts one that writes its log to `log`. It may not listen yet.
    fn start(configuration: &Path, log: &Log) -> Self {
        let mut command = Command::new(program());
        let folder = configuration.parent().expect("a folder");
        command
            .arg("--config")
            .arg(configuration)
            .current_dir(folder)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.env("ADJUTANT_LOG", "info").spawn().expect("the program starts");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let (listens, address) = watch::channel(None);
        let log = Arc::clone(log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(found) = address_in(&line) {
                    listens.send_replace(Some(found));
                }
                write(&log, line);
            }
        });
        Self { child, address }
    }

    /// Where it listens, as soon as it does; none if it ended before.
    async fn address(&self) -> Option<String> {
        let mut address = self.address.clone();
        let said = tokio::time::timeout(Duration::from_secs(30), address.wait_for(Option::is_some)).await;
        said.expect("it listens within half a minute")
            .ok()
            .and_then(|found| found.clone())
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill")
            .args([&format!("-{name}"), &id])
            .status()
            .expect("kill can be called");
        assert!(sent.success(), "the signal {name} was not sent");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the line `listening` of the log.
fn address_in(line: &str) -> Option<String> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let fields = line.get("fields").unwrap_or(&line);
    let is_it = [&line["message"], &fields["message"]]
        .into_iter()
        .any(|message| message == "listening");
    is_it.then(|| fields["address"].as_str().map(|address| format!("http://{address}")))?
}

/// A process, its database and its tools.
pub(super) struct KillableServer {
    /// The tools, which live here in the test.
    pub(super) desk: Arc<EffectLog>,
    log: Log,
    process: tokio::sync::Mutex<Option<Process>>,
    /// Where the server is; none while it is dead.
    base: watch::Sender<Option<String>>,
    shared: Arc<Environment>,
}

/// What several houses can stand on.
pub(super) struct Environment {
    folder: TempDir,
    database: Mutex<Option<postgres::Database>>,
    url: String,
}

impl Environment {
    /// An empty database; none when there is no such engine on this machine.
    pub(super) async fn fresh(engine: Engine) -> Option<Arc<Self>> {
        let folder = tempfile::tempdir().expect("a directory");
        let (database, url) = match engine {
            Engine::Sqlite => (
                None,
                format!("sqlite://{}", folder.path().join("adjutant.db").display()),
            ),
            Engine::Postgres => {
                let database = postgres::fresh_database().await?;
                let url = database.url.clone();
                (Some(database), url)
            }
        };
        Some(Arc::new(Self {
            folder,
            database: Mutex::new(database),
            url,
        }))
    }

    /// Takes the database away.
    pub(super) async fn clear(&self) {
        let database = self.database.lock().unwrap().take();
        if let Some(database) = database {
            database.discard().await;
        }
    }
}

impl KillableServer {
    /// Starts a server on `ground`.
    pub(super) async fn build(ground: &Arc<Environment>, desk: &Arc<EffectLog>) -> Arc<Self> {
        let text = include_str!("agents.toml")
            .replace("DATABASE", &ground.url)
            .replace("TOOLS", &desk.base);
        std::fs::write(ground.folder.path().join("adjutant.toml"), text).expect("a configuration");
        let house = Self {
            desk: Arc::clone(desk),
            log: Arc::default(),
            process: tokio::sync::Mutex::default(),
            base: watch::Sender::new(None),
            shared: Arc::clone(ground),
        };
        house.opens().await;
        Arc::new(house)
    }

    fn configuration(&self) -> PathBuf {
        self.shared.folder.path().join("adjutant.toml")
    }

    async fn opens(&self) {
        let mut process = self.process.lock().await;
        let started = process.insert(Process::start(&self.configuration(), &self.log));
        let address = started.address().await;
        assert!(address.is_some(), "the server did not start:\n{}", self.log());
        self.base.send_replace(address);
    }

    /// The process dies where it is, and another one begins. With `again`, that one dies too, so long after its start.
    pub(super) async fn is_killed_and_started_again(&self, again: Option<Duration>) {
        self.is_killed().await;
        if let Some(delay) = again {
            let short = Process::start(&self.configuration(), &self.log);
            // The one kind of sleep that is the point of these tests.
            tokio::time::sleep(delay).await;
            drop(short);
            self.note("killed once more");
        }
        self.opens().await;
    }

    /// The process dies where it is.
    pub(super) async fn is_killed(&self) {
        let mut process = self.process.lock().await;
        self.base.send_replace(None);
        drop(process.take());
        self.note("killed");
    }

    /// The process is asked to leave, and another one begins.
    pub(super) async fn is_stopped_and_started_again(&self) {
        let mut process = self.process.lock().await;
        self.base.send_replace(None);
        let mut old = process.take().expect("a process");
        old.signal("TERM");
        let ended = tokio::task::spawn_blocking(move || old.child.wait());
        let ended = tokio::time::timeout(Duration::from_secs(40), ended)
            .await
            .expect("it ends in time");
        let status = ended.expect("waiting does not panic").expect("an end");
        assert!(status.success(), "the process ended with {status}:\n{}", self.log());
        self.note("stopped");
        drop(process);
        self.opens().await;
    }

    /// The process sleeps, as on a machine that is suspended.
    pub(super) async fn sleeps(&self) {
        self.process.lock().await.as_ref().expect("a process").signal("STOP");
    }

    /// It wakes up again.
    pub(super) async fn wakes(&self) {
        self.process.lock().await.as_ref().expect("a process").signal("CONT");
    }

    /// Where the server is, as soon as it is there.
    pub(super) async fn base(&self) -> String {
        let mut base = self.base.subscribe();
        let found = base.wait_for(Option::is_some).await.expect("the house stands");
        found.clone().expect("somebody is there")
    }

    fn note(&self, what: &str) {
        write(&self.log, format!("--- {what} ---"));
    }

    /// What the processes said.
    pub(super) fn log(&self) -> String {
        self.log.borrow().join("\n")
    }

    /// What was said so far no longer counts.
    pub(super) fn forgets_what_it_said(&self) {
        self.log.send_modify(Vec::clear);
    }

    /// Waits until it has said one of these.
    pub(super) async fn says_one_of(&self, words: &[&str]) {
        let mut log = self.log.subscribe();
        let heard = |lines: &Vec<String>| lines.iter().any(|line| words.iter().any(|word| line.contains(word)));
        let waited = tokio::time::timeout(Duration::from_secs(30), log.wait_for(heard))
            .await
            .is_ok();
        assert!(waited, "it did not say any of {words:?}:\n{}", self.log());
    }

    /// Nobody lives here any more, and the ground is free.
    pub(super) async fn is_torn_down(&self) {
        self.is_killed().await;
    }
}
