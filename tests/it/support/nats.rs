//! A NATS server for one test.

use std::fmt::Write as _;
use std::process::{Child, Command, Stdio};

use async_nats::{Client, Message, Subscriber};
use futures::StreamExt;

use super::eventually;
use super::rented_postgres::free_port;
use super::server::skipped;

/// A NATS server. It ends when this value is dropped.
pub(crate) struct Nats {
    program: &'static str,
    port: u16,
    child: Option<Child>,
    folder: tempfile::TempDir,
}

impl Nats {
    /// Starts one with JetStream; `None` if nats-server is not installed on this machine.
    pub(crate) async fn starts() -> Option<Self> {
        Self::starts_with("jetstream {\n  max_mem: 134217728\n  max_file: 0\n}\n").await
    }

    /// Starts one with these lines in its configuration.
    pub(crate) async fn starts_with(lines: &str) -> Option<Self> {
        let program = [
            "/usr/sbin/nats-server",
            "/usr/local/bin/nats-server",
            "/usr/bin/nats-server",
        ]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists());
        let Some(program) = program else {
            return skipped("nats-server");
        };
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let mut text = format!("listen: 127.0.0.1:{port}\nserver_name: test\n{lines}");
        if let Some(at) = text.find("jetstream {\n") {
            let store = format!("  store_dir: \"{}\"\n", folder.path().join("store").display());
            text.insert_str(at + "jetstream {\n".len(), &store);
        }
        writeln!(text).expect("a string");
        std::fs::write(folder.path().join("nats.conf"), text).expect("a configuration");
        let mut nats = Self {
            program,
            port,
            child: None,
            folder,
        };
        nats.comes_back().await;
        Some(nats)
    }

    /// Returns its address without a login.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the section of the configuration with which servers use it.
    pub(crate) fn section(&self) -> String {
        format!("[cluster]\nnats = \"nats://{}\"\n", self.address())
    }

    /// Kills it. What it has in memory is lost.
    pub(crate) fn is_killed(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it at the same address, and waits until it listens.
    pub(crate) async fn comes_back(&mut self) {
        let child = Command::new(self.program)
            .arg("-c")
            .arg(self.folder.path().join("nats.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(child.expect("it starts"));
        let address = self.address();
        eventually(async || tokio::net::TcpStream::connect(&address).await.is_ok()).await;
    }

    /// Returns a client that knows nothing of adjutant.
    pub(crate) async fn client(&self) -> Client {
        async_nats::connect(self.address()).await.expect("a connection")
    }

    /// Hears all messages with this subject from now on.
    pub(crate) async fn hears(&self, subject: &'static str) -> Wire {
        let client = self.client().await;
        let messages = client.subscribe(subject).await.expect("a subscription");
        client.flush().await.expect("it is known");
        Wire { client, messages }
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        self.is_killed();
    }
}

/// Messages between servers.
pub(crate) struct Wire {
    /// The client that hears them.
    pub(crate) client: Client,
    messages: Subscriber,
}

impl Wire {
    /// Waits for the next message.
    pub(crate) async fn next(&mut self) -> Message {
        self.messages.next().await.expect("a message")
    }

    /// Publishes a message.
    pub(crate) async fn says(&self, subject: &str, payload: impl Into<Vec<u8>>) {
        let payload: Vec<u8> = payload.into();
        let published = self.client.publish(subject.to_owned(), payload.into()).await;
        published.expect("a connection");
        self.client.flush().await.expect("it is sent");
    }
}
