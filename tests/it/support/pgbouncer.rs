//! PgBouncer in transaction mode in front of a database.

use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;

use super::eventually;
use super::postgres::as_ordinary_user;
use super::rented_postgres::free_port;
use super::server::installed;

/// The number of sessions that all clients share.
pub(crate) const SESSIONS: i64 = 2;

/// A PgBouncer. It ends when this value is dropped.
pub(crate) struct PgBouncer {
    child: Child,
    port: u16,
    role: String,
    _folder: tempfile::TempDir,
}

impl PgBouncer {
    /// Starts one in front of the Postgres of a URL; `None` if it is not installed on this machine.
    pub(crate) async fn starts(url: &str) -> Option<Self> {
        let program = installed("pgbouncer")?;
        let folder = tempfile::tempdir().expect("a folder");
        // It refuses to run as root, and another user has to read its configuration.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("it can change");
        let postgres = PgConnectOptions::from_str(url).expect("a URL");
        let host = match postgres.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => postgres.get_host().to_owned(),
        };
        let role = postgres.get_username().to_owned();
        let port = free_port();
        let configuration = format!(
            "[databases]\n* = host={host} port={} user={role} password=adjutant\n\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = {SESSIONS}\n",
            postgres.get_port()
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, configuration).expect("a configuration");
        let child = as_ordinary_user()
            .arg(program)
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let pooler = Self {
            child: child.expect("it starts"),
            port,
            role,
            _folder: folder,
        };
        eventually(async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await;
        Some(pooler)
    }

    /// Returns the URL of a database behind it.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://{}@127.0.0.1:{}/{database}", self.role, self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
