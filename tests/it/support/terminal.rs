//! The program as people use it: in a pipe, and in a terminal.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::server::skipped;

/// The output and the end of a program.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Done {
    /// Returns all that the program has written.
    pub(crate) fn all(&self) -> String {
        format!("{}{}", self.output, self.errors)
    }
}

/// Returns the command that runs the program in a folder, which is also its home, against a server.
pub(crate) fn program(folder: &Path, base: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adjutant"));
    command.args(arguments);
    prepare(&mut command, folder, base);
    command
}

fn prepare(command: &mut Command, folder: &Path, base: &str) {
    for variable in [
        "ADJUTANT_API_KEY",
        "ADJUTANT_CONFIG",
        "ADJUTANT_LISTEN",
        "VISUAL",
        "EDITOR",
        "XDG_STATE_HOME",
    ] {
        command.env_remove(variable);
    }
    command
        .current_dir(folder)
        .env("HOME", folder)
        .env("TERM", "xterm")
        .env("NO_COLOR", "1");
    match base {
        "" => command.env_remove("ADJUTANT_URL"),
        base => command.env("ADJUTANT_URL", base),
    };
}

/// Runs a command to its end with this standard input.
pub(crate) async fn runs(mut command: Command, input: &str) -> Done {
    let input = input.to_owned();
    let running = tokio::task::spawn_blocking(move || {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        // A program that ends early does not read it all.
        let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
        child.wait_with_output().expect("it ends")
    });
    let output = tokio::time::timeout(Duration::from_secs(120), running).await;
    let output = output.expect("it ends in time").expect("it was called");
    Done {
        code: output.status.code().unwrap_or(-1),
        output: String::from_utf8(output.stdout).expect("text"),
        errors: String::from_utf8(output.stderr).expect("text"),
    }
}

/// The program in a terminal. Dropping it kills it.
pub(crate) struct Terminal {
    child: Child,
    keyboard: Option<ChildStdin>,
    screen: Arc<watch::Sender<String>>,
    /// The length of the text that the test has seen.
    seen: usize,
}

impl Terminal {
    /// Opens a terminal in which the program runs; `None` without the program `script`, which makes terminals.
    pub(crate) fn open(folder: &Path, base: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Option<Self> {
        let mut words = vec![env!("CARGO_BIN_EXE_adjutant")];
        words.extend(arguments);
        let quoted: Vec<String> = words
            .iter()
            .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
            .collect();
        let mut command = Command::new("script");
        command.args([
            "-q",
            "-f",
            "-e",
            "-c",
            &format!("exec {}", quoted.join(" ")),
            "/dev/null",
        ]);
        prepare(&mut command, folder, base);
        command.envs(variables.iter().copied()).env("SHELL", "/bin/sh");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else {
            return skipped("the program `script` of util-linux is not installed");
        };
        let keyboard = child.stdin.take();
        let mut output = child.stdout.take().expect("a pipe");
        let screen = Arc::new(watch::Sender::new(String::new()));
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            let mut rest = vec![];
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                rest.extend_from_slice(&bytes[..read]);
                let whole = match std::str::from_utf8(&rest) {
                    Ok(text) => text.len(),
                    Err(error) => error.valid_up_to(),
                };
                let text = String::from_utf8(rest.drain(..whole).collect()).expect("text");
                shown.send_modify(|screen| screen.push_str(&text));
            }
        });
        Some(Self {
            child,
            keyboard,
            screen,
            seen: 0,
        })
    }

    /// Types keys. `\r` is Enter, `\u{3}` Ctrl-C and `\u{4}` Ctrl-D.
    pub(crate) fn types(&mut self, keys: &str) {
        let keyboard = self.keyboard.as_mut().expect("it runs");
        keyboard.write_all(keys.as_bytes()).expect("it reads");
        keyboard.flush().expect("it reads");
    }

    /// Waits until the terminal shows a text behind what was waited for before.
    pub(crate) async fn shows(&mut self, text: &str) {
        let mut screen = self.screen.subscribe();
        let seen = self.seen;
        let shown = screen.wait_for(|screen| screen[seen..].contains(text));
        let shown = tokio::time::timeout(Duration::from_secs(60), shown).await;
        let at = shown
            .ok()
            .and_then(Result::ok)
            .and_then(|screen| screen[seen..].find(text));
        let at = at.unwrap_or_else(|| panic!("{text:?} does not appear in:\n{}", &self.text()[seen..]));
        self.seen = seen + at + text.len();
    }

    /// Returns everything that was written to the terminal.
    pub(crate) fn text(&self) -> String {
        self.screen.borrow().clone()
    }

    /// Waits for the end of the program, and returns its exit code.
    pub(crate) async fn ends(mut self) -> i32 {
        let ending = async {
            let mut pause = tokio::time::interval(Duration::from_millis(10));
            loop {
                if let Some(status) = self.child.try_wait().expect("the status") {
                    return status.code().unwrap_or(-1);
                }
                pause.tick().await;
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), ending).await;
        ended.unwrap_or_else(|_| panic!("it does not end:\n{}", self.text()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
