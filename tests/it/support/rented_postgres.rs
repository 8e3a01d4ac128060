//! A Postgres as it is rented: it is reached over TCP with TLS only, and roles have few rights.

use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};

use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};

use super::authority::CertificateFiles;
use super::postgres::{as_ordinary_user, installed_programs};
use super::replicated_postgres::read_to;
use super::server::skipped;

/// A shell script like the one of the other server of the tests. This one listens on a port of its own, with TLS.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
cd /
dir=$(mktemp -d "$2/adjutant-rented-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
"$1/initdb" -D "$dir/data" -U admin -A trust -E UTF8 --locale=C --no-sync >"$dir/initdb.log" 2>&1 || { cat "$dir/initdb.log"; exit 1; }
umask 077
printf '%s' "$ADJUTANT_TEST_CERTIFICATE" >"$dir/server.crt"
printf '%s' "$ADJUTANT_TEST_KEY" >"$dir/server.key"
printf 'local all all trust\nhostssl all all all trust\n' >"$dir/data/pg_hba.conf"
"$1/postgres" -D "$dir/data" -k "$dir" -p "$3" -c listen_addresses=127.0.0.1 -c fsync=off -c autovacuum=off \
    -c ssl=on -c ssl_cert_file="$dir/server.crt" -c ssl_key_file="$dir/server.key" >"$dir/log" 2>&1 </dev/null &
server=$!
tries=0
until [ -S "$dir/.s.PGSQL.$3" ] && "$1/pg_isready" -q -h "$dir" -p "$3"; do
    tries=$((tries + 1))
    [ $tries -gt 300 ] && { cat "$dir/log"; kill -QUIT $server; exit 1; }
    sleep 0.1
done
echo "ready $dir"
read -r _
kill -QUIT $server
wait $server
"#;

/// The server. It stops when this value is dropped.
pub(crate) struct RentedPostgres {
    child: Child,
    port: u16,
    socket_folder: String,
    files: CertificateFiles,
}

impl RentedPostgres {
    /// Starts the server with a certificate for `localhost`; `None` if Postgres is not installed on this machine.
    pub(crate) fn start() -> Option<Self> {
        let Some(programs) = installed_programs() else {
            return skipped("Postgres");
        };
        let files = CertificateFiles::new();
        let (certificate, key) = files.authority.issues("localhost");
        let port = free_port();
        let mut command = as_ordinary_user();
        command
            .args(["sh", "-c", SCRIPT, "postgres", &programs])
            .arg(std::env::temp_dir())
            .arg(port.to_string())
            .env("ADJUTANT_TEST_CERTIFICATE", certificate)
            .env("ADJUTANT_TEST_KEY", key)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("a shell");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let socket_folder = read_to(&mut output, "ready ");
        Some(Self {
            socket_folder,
            child,
            port,
            files,
        })
    }

    /// Returns the URL of the database `postgres` at a host, as a role, with the parameters of the URL.
    pub(crate) fn url(&self, role: &str, host: &str, parameters: &str) -> String {
        format!("postgres://{role}@{host}:{}/postgres?{parameters}", self.port)
    }

    /// Returns the parameters for a mode of TLS with this authority: `ca` or `other-ca`.
    pub(crate) fn parameters(&self, mode: &str, authority: &str) -> String {
        let file = self.files.path(&format!("{authority}.pem"));
        format!("sslmode={mode}&sslrootcert={file}")
    }

    /// Connects as a superuser.
    pub(crate) async fn admin(&self) -> PgConnection {
        let url = format!(
            "postgres://admin@localhost:{}/postgres?host={}",
            self.port, self.socket_folder
        );
        PgConnection::connect(&url).await.expect("a connection")
    }

    /// Executes statements as a superuser.
    pub(crate) async fn executes(&self, sql: String) {
        let mut conn = self.admin().await;
        raw_sql(AssertSqlSafe(sql))
            .execute(&mut conn)
            .await
            .expect("it is executed");
        conn.close().await.expect("a clean close");
    }
}

impl Drop for RentedPostgres {
    fn drop(&mut self) {
        // The script ends the server when its input ends.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Returns a port that is free now, below those that the system gives to outgoing connections: one of these could take it
/// before its use.
pub(super) fn free_port() -> u16 {
    let random_port = || {
        let bytes = uuid::Uuid::new_v4().into_bytes();
        10_240 + u16::from_le_bytes([bytes[0], bytes[1]]) % 22_528
    };
    let mut ports = std::iter::repeat_with(random_port);
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.find(is_free).expect("a free port")
}
