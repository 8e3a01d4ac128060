//! A NATS server for one test.

use std::process::{Child, Command, Stdio};

use async_nats::{Client, Message, Subscriber};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::StreamExt;
use nkeys::KeyPair;
use serde_json::{Value, json};

use super::authority::CertificateFiles;
use super::eventually;
use super::rented_postgres::free_port;
use super::server::installed;

/// The lines of the configuration of a NATS with JetStream.
pub(crate) const JETSTREAM: &str = "jetstream {\n  max_mem: 134217728\n  max_file: 0\n}\n";
/// The lines of the configuration of a NATS that asks for a login.
pub(crate) const LOGIN: &str = "authorization {\n  user: me\n  password: s3cret\n}\n";

/// A NATS server. It ends when this value is dropped.
pub(crate) struct Nats {
    program: String,
    port: u16,
    child: Option<Child>,
    folder: tempfile::TempDir,
}

impl Nats {
    /// Starts one with JetStream; `None` if nats-server is not installed on this machine.
    pub(crate) async fn starts() -> Option<Self> {
        Self::starts_with(JETSTREAM).await
    }

    /// Starts one with these lines in its configuration.
    pub(crate) async fn starts_with(lines: &str) -> Option<Self> {
        let program = installed("nats-server")?;
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let store = folder.path().join("store").display().to_string();
        let lines = lines.replace("jetstream {\n", &format!("jetstream {{\n  store_dir: \"{store}\"\n"));
        let text = format!("listen: 127.0.0.1:{port}\nserver_name: test\n{lines}\n");
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
        let child = Command::new(&self.program)
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

impl CertificateFiles {
    /// Writes a certificate and its key: `NAME.crt` and `NAME.key`.
    pub(crate) fn has_pair(&self, name: &str, (certificate, key): &(String, String)) {
        std::fs::write(self.path(&format!("{name}.crt")), certificate).expect("a file");
        std::fs::write(self.path(&format!("{name}.key")), key).expect("a file");
    }

    /// Returns the lines of a NATS that has this certificate, with more lines of its section `tls`.
    pub(crate) fn tls(&self, name: &str, more: &str) -> String {
        let [certificate, key] = ["crt", "key"].map(|kind| self.path(&format!("{name}.{kind}")));
        format!("{JETSTREAM}tls {{\n  cert_file: \"{certificate}\"\n  key_file: \"{key}\"\n{more}}}\n")
    }

    /// Returns the section of the configuration with which servers use it, if they trust this authority.
    pub(crate) fn section(&self, nats: &Nats, authority: &str) -> String {
        let file = self.path(authority);
        format!(
            "[cluster]\nnats = \"tls://{}\"\nnats_sslrootcert = \"{file}\"\n",
            nats.address()
        )
    }
}

/// Returns a token of NATS about `subject`, signed by `issuer`.
fn token(issuer: &KeyPair, subject: &KeyPair, about: &Value) -> String {
    let claims = json!({"jti": "1", "iat": 1_700_000_000, "iss": issuer.public_key(), "name": "test",
        "sub": subject.public_key(), "nats": about});
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let header = encode(&json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let signed = format!("{header}.{}", encode(&claims));
    let signature = issuer.sign(signed.as_bytes()).expect("a signature");
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Returns the configuration of a NATS with one account, and the credentials of its user as in a file.
pub(crate) fn with_account() -> (String, String) {
    let operator = KeyPair::new_operator();
    let account = KeyPair::new_account();
    let user = KeyPair::new_user();
    let operator_token = token(&operator, &operator, &json!({"type": "operator", "version": 2}));
    let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1});
    let about = json!({"type": "account", "version": 2, "limits": limits});
    let account_token = token(&operator, &account, &about);
    let about = json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1});
    let user_token = token(&account, &user, &about);
    let configuration = format!(
        "operator: {operator_token}\nresolver: MEMORY\nresolver_preload: {{ {}: {account_token} }}\n",
        account.public_key()
    );
    let seed = user.seed().expect("a seed");
    let credentials = format!(
        "-----BEGIN NATS USER JWT-----\n{user_token}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    (configuration, credentials)
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
