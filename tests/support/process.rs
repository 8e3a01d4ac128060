//! A server in a process of its own, which a test can signal and kill, and what it logs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// The number of lines that a [`Log`] keeps.
const KEPT_LINES: usize = 4000;

/// The latest lines that the processes of one server have logged. Clones share the lines.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<watch::Sender<Vec<String>>>);

impl Log {
    /// Adds a line.
    pub(crate) fn push(&self, line: &str) {
        self.0.send_modify(|lines| {
            if lines.len() >= KEPT_LINES {
                lines.drain(..KEPT_LINES / 2);
            }
            lines.push(line.to_owned());
        });
    }

    /// Returns the lines as one text.
    pub(crate) fn text(&self) -> String {
        self.0.borrow().join("\n")
    }

    /// Removes all lines.
    pub(crate) fn clear(&self) {
        self.0.send_modify(Vec::clear);
    }

    /// Waits until a line contains one of `words`; panics after 30 s.
    pub(crate) async fn gets_one_of(&self, words: &[&str]) {
        let has_one = |lines: &Vec<String>| lines.iter().any(|line| words.iter().any(|word| line.contains(word)));
        let mut lines = self.0.subscribe();
        let waiting = tokio::time::timeout(Duration::from_secs(30), lines.wait_for(has_one));
        let has_come = waiting.await.is_ok();
        assert!(has_come, "none of {words:?} is in the log:\n{}", self.text());
    }
}

/// A process of the server. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    address: watch::Receiver<Option<String>>,
    log: Log,
}

/// Returns the command that runs the server in a folder. `ADJUTANT_KILL_PROGRAM` names another build of the program.
pub(crate) fn server_in(folder: &Path) -> Command {
    let built = std::env::var("ADJUTANT_KILL_PROGRAM");
    let program = built.unwrap_or_else(|_| env!("CARGO_BIN_EXE_adjutant").to_owned());
    let mut command = Command::new(program);
    command.current_dir(folder);
    command
}

impl Process {
    /// Starts a process that adds its lines to `log`. It need not listen yet.
    pub(crate) fn spawn(mut command: Command, log: &Log) -> Self {
        if !command.get_envs().any(|variable| variable.0 == "ADJUTANT_LOG") {
            command.env("ADJUTANT_LOG", "info");
        }
        command.env("NO_COLOR", "1").stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let listening = watch::Sender::new(None);
        let address = listening.subscribe();
        let written = log.clone();
        // Reads to the end: a full pipe would block the server.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(port) = port_in(&line) {
                    listening.send_replace(Some(format!("http://127.0.0.1:{port}")));
                }
                written.push(&line);
            }
        });
        Self {
            child,
            address,
            log: log.clone(),
        }
    }

    /// Wraps a process whose log the test reads itself.
    pub(crate) fn of(child: Child) -> Self {
        Self {
            child,
            address: watch::Sender::default().subscribe(),
            log: Log::default(),
        }
    }

    /// Starts a process and waits until it listens.
    pub(crate) async fn start(command: Command) -> Self {
        let process = Self::spawn(command, &Log::default());
        process.base().await;
        process
    }

    /// Waits until the process listens and returns its address; panics after 60 s, or when the process ends.
    pub(crate) async fn base(&self) -> String {
        let mut address = self.address.clone();
        let listening = tokio::time::timeout(Duration::from_secs(60), address.wait_for(Option::is_some)).await;
        let found = listening.ok().and_then(Result::ok).and_then(|found| found.clone());
        found.unwrap_or_else(|| panic!("the server does not listen:\n{}", self.log.text()))
    }

    /// Returns the id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let mut kill = Command::new("kill");
        kill.args([format!("-{name}"), self.id().to_string()]);
        let sent = kill.status().expect("kill can be called");
        assert!(sent.success(), "the signal {name} was not sent");
    }

    /// Waits for the end of the process; panics after 60 s.
    pub(crate) async fn ends(mut self) -> ExitStatus {
        let log = self.log.clone();
        let ending = async {
            let mut pause = tokio::time::interval(Duration::from_millis(5));
            loop {
                if let Some(status) = self.child.try_wait().expect("the status of the process") {
                    return status;
                }
                pause.tick().await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), ending).await;
        ended.unwrap_or_else(|_| panic!("the process does not end:\n{}", log.text()))
    }

    /// Sends SIGTERM and waits for the end, which has to be a successful one.
    pub(crate) async fn terminates(self) {
        let log = self.log.clone();
        self.signal("TERM");
        let status = self.ends().await;
        assert!(status.success(), "the process ended with {status}:\n{}", log.text());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the port in the log line `listening`, in either log format.
pub(crate) fn port_in(line: &str) -> Option<&str> {
    let listens = line.contains("listening");
    let rest = listens
        .then(|| line.split_once("127.0.0.1:").or_else(|| line.split_once("0.0.0.0:")))??
        .1;
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest.get(..end)
}
