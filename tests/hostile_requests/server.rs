//! The server under test, in a process with a memory limit, and a plain client.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::MEMORY;
use super::parties::Parties;
use super::process::Process;

/// The server in a process of its own.
pub(crate) struct Server {
    /// The address, as `http://host:port`.
    pub(crate) base: String,
    process: Process,
}

/// The resources of the process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resources {
    descriptors: usize,
    threads: usize,
}

impl Resources {
    /// Returns whether this is no more than `before`, apart from pooled connections and threads.
    pub(crate) fn is_about(self, before: Self) -> bool {
        self.descriptors <= before.descriptors + 48 && self.threads <= before.threads + 48
    }
}

impl Server {
    /// Writes the configuration and starts the server with a memory limit.
    pub(crate) async fn start(folder: &Path, database: &str, parties: &Parties) -> Self {
        let configuration = folder.join("adjutant.toml");
        std::fs::write(&configuration, parties.configuration(database)).unwrap();
        // The shell sets the limit and replaces itself with the server. The allocator must not reserve pages in
        // advance.
        let mut command = Command::new("sh");
        let limit = MEMORY / 1024;
        command.args([
            "-c",
            &format!("ulimit -d {limit}; exec \"$0\" \"$@\""),
            env!("CARGO_BIN_EXE_adjutant"),
        ]);
        command.arg("--config").arg(&configuration).current_dir(folder);
        command.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
        let process = Process::start(command).await;
        Self {
            base: process.base().await,
            process,
        }
    }

    /// Creates a client of the server.
    pub(crate) fn client(&self) -> Client {
        Client {
            http: adjutant::net::client_builder().no_proxy().build().unwrap(),
            base: self.base.clone(),
        }
    }

    /// Returns the peak memory, in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.figure("VmHWM:") * 1024
    }

    /// Returns the current resources.
    pub(crate) fn resources(&self) -> Resources {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.process.id()))
            .unwrap()
            .count();
        let threads = usize::try_from(self.figure("Threads:")).unwrap();
        Resources { descriptors, threads }
    }

    /// Returns a number from `/proc/…/status`.
    fn figure(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()));
        let status = status.expect("the server is alive");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("a number in the status");
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// Stops the server.
    pub(crate) async fn stop(self) {
        self.process.terminates().await;
    }
}

/// A client that panics on error statuses.
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    /// Sends a GET request and returns the body; a string if it is not JSON.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let response = self.http.get(format!("{}{path}", self.base)).send().await.unwrap();
        Self::read(path, response).await
    }

    /// Sends a GET request and returns the body like [`Self::get`], or `None` if the status is 404.
    pub(crate) async fn get_if_exists(&self, path: &str) -> Option<Value> {
        let response = self.http.get(format!("{}{path}", self.base)).send().await.unwrap();
        if response.status() == 404 {
            return None;
        }
        Some(Self::read(path, response).await)
    }

    /// Sends a POST request and returns the body.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let response = self
            .http
            .post(format!("{}{path}", self.base))
            .json(&body)
            .send()
            .await
            .unwrap();
        Self::read(path, response).await
    }

    async fn read(path: &str, response: reqwest::Response) -> Value {
        let status = response.status();
        let text = response.text().await.unwrap();
        assert!(status.is_success(), "{path}: {status} {}", &text[..text.len().min(500)]);
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }

    /// Cancels all runs, and deletes the crons that would start new ones.
    pub(crate) async fn cancel_everything(&self) {
        let crons = self
            .post("/runs/crons/search", json!({"limit": 1000, "select": ["cron_id"]}))
            .await;
        for cron in crons
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|cron| cron["cron_id"].as_str())
        {
            self.http
                .delete(format!("{}/runs/crons/{cron}", self.base))
                .send()
                .await
                .unwrap();
        }
        let cancel = self
            .http
            .post(format!("{}/runs/cancel", self.base))
            .json(&json!({"status": "all"}));
        let status = cancel.send().await.unwrap().status();
        // The status is 404 if there is nothing to cancel.
        assert!(status.is_success() || status == 404, "/runs/cancel: {status}");
    }
}
