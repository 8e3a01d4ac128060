//! The Postgres server of the tests: the one named by `ADJUTANT_TEST_POSTGRES_URL`, or else one that is started from
//! the installed programs for the lifetime of this process. Without either, the tests on Postgres are skipped with a
//! message.
//!
//! New databases on a server that was started here have the tables already, so that tests do not create them each time.
//!
//! Tests connect as an ordinary role that owns its databases: row-level security does not hold for superusers.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, Connection, PgConnection, query_scalar, raw_sql};
use tokio::sync::{OnceCell, mpsc, oneshot};

/// The environment variable with the URL of the server.
const SERVER: &str = "ADJUTANT_TEST_POSTGRES_URL";

/// The role as which tests connect, and its password.
const ROLE: &str = "adjutant_tests";
const PASSWORD: &str = "adjutant";

/// The database of which new databases are copies, on a server that was started here.
const TEMPLATE: &str = "adjutant_template";

/// A shell script that starts a server in a new directory, prints the directory, and waits until standard input closes.
/// The system closes it when this process ends, in whatever way; the script then stops the server and deletes the
/// directory. Signals for a terminal or a group of processes must not end the script before that.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
cd /
# In memory, where there is room, since each test creates and drops some 300 files.
place=$2
room=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')
[ "${room:-0}" -gt 4000000 ] && place=/dev/shm
dir=$(mktemp -d "$place/adjutant-postgres-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
"$1/initdb" -D "$dir/data" -U adjutant -A trust -E UTF8 --locale=C --no-sync >"$dir/initdb.log" 2>&1 || { cat "$dir/initdb.log"; exit 1; }
"$1/postgres" -D "$dir/data" -k "$dir" -c listen_addresses= -c fsync=off -c synchronous_commit=off -c full_page_writes=off \
    -c wal_level=minimal -c max_wal_senders=0 -c min_wal_size=32MB -c max_wal_size=128MB \
    -c autovacuum=off -c max_connections=300 -c dynamic_shared_memory_type=mmap >"$dir/log" 2>&1 </dev/null &
server=$!
tries=0
until [ -S "$dir/.s.PGSQL.5432" ] && "$1/pg_isready" -q -h "$dir"; do
    tries=$((tries + 1))
    [ $tries -gt 300 ] && { cat "$dir/log"; kill -QUIT $server; exit 1; }
    sleep 0.1
done
echo "ready $dir"
read -r _
kill -QUIT $server
wait $server
"#;

/// The server of the tests.
struct DatabaseServer {
    /// The URL of a superuser, or of the role that the environment names.
    admin: String,
    /// The URL of the ordinary role.
    ordinary: String,
    /// The clauses with which databases are created.
    clauses: String,
    administrator: Administrator,
}

/// A statement, and where its outcome goes.
type Order = (String, oneshot::Sender<sqlx::Result<()>>);

/// The connection that creates and drops databases, one after the other, as long as this process lives. To connect for each
/// of these statements would cost as much as the statements.
#[derive(Clone)]
struct Administrator(mpsc::UnboundedSender<Order>);

/// A database for one test.
pub(crate) struct Database {
    /// The URL of the database, for an ordinary role that owns it.
    pub(crate) url: String,
    /// The URL of the database for a superuser; equal to `url` if the tests have none.
    pub(crate) admin: String,
    name: String,
    administrator: Administrator,
}

/// Creates a database without rows; `None` if there is no server.
pub(crate) async fn fresh_database() -> Option<Database> {
    static FOUND: OnceCell<Option<DatabaseServer>> = OnceCell::const_new();
    let server = FOUND.get_or_init(find_server).await.as_ref()?;
    let name = format!("adjutant_test_{}", uuid::Uuid::new_v4().simple());
    let create = format!("create database {name} {}", server.clauses);
    server.administrator.executes(create).await;
    Some(Database {
        url: url_of_database(&server.ordinary, &name),
        admin: url_of_database(&server.admin, &name),
        name,
        administrator: server.administrator.clone(),
    })
}

/// Connects to a database as the server does for itself: the rows of all tenants are found.
pub(crate) async fn connect(url: &str) -> PgConnection {
    let mut conn = PgConnection::connect(url).await.expect("a connection");
    raw_sql("set adjutant.tenant = '*'")
        .execute(&mut conn)
        .await
        .expect("the setting is made");
    conn
}

impl Administrator {
    /// Connects in a thread that has a runtime of its own: those of tests end with them.
    fn connect(url: String) -> Self {
        let (orders, queue) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(execute_all(&url, queue));
        });
        Self(orders)
    }

    /// Executes a statement.
    async fn executes(&self, sql: String) {
        let (outcome, executed) = oneshot::channel();
        self.0.send((sql, outcome)).expect("the test server answers");
        let executed = executed.await.expect("the test server answers");
        executed.expect("the statement is executed");
    }
}

async fn execute_all(url: &str, mut queue: mpsc::UnboundedReceiver<Order>) {
    let mut conn = PgConnection::connect(url).await.expect("the test server answers");
    while let Some((sql, outcome)) = queue.recv().await {
        let executed = raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.map(drop);
        // A test that has failed meanwhile does not wait for it.
        let _ = outcome.send(executed);
    }
}

impl Database {
    /// Drops the database. After a failed test it is kept for inspection.
    pub(crate) async fn discard(self) {
        let sql = format!("drop database if exists {} with (force)", self.name);
        self.administrator.executes(sql).await;
    }
}

/// Returns the URL of another database on the same server.
fn url_of_database(url: &str, database: &str) -> String {
    let (place, settings) = url.split_once('?').unwrap_or((url, ""));
    let scheme_end = place.find("://").map_or(0, |at| at + 3);
    let server_end = place[scheme_end..].find('/').map_or(place.len(), |at| scheme_end + at);
    let mark = if settings.is_empty() { "" } else { "?" };
    format!("{}/{database}{mark}{settings}", &place[..server_end])
}

/// Returns the URL of another role on the same server.
fn url_of_role(url: &str, role: &str, password: &str) -> String {
    let server_begin = url.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = url.split_at(server_begin);
    let server_end = rest.find(['/', '?']).unwrap_or(rest.len());
    let host = rest[..server_end].rfind('@').map_or(0, |at| at + 1);
    format!("{scheme}{role}:{password}@{}", &rest[host..])
}

async fn find_server() -> Option<DatabaseServer> {
    let named = std::env::var_os(SERVER)
        .and_then(|url| url.into_string().ok())
        .filter(|url| !url.is_empty());
    if let Some(url) = named {
        return Some(with_ordinary_role(url).await);
    }
    let Some(url) = start_server() else {
        // Not `eprintln!`, whose output is hidden for passing tests.
        let text = format!("\n*** THE POSTGRES HALF OF THE TESTS IS SKIPPED: set {SERVER} or install Postgres ***\n");
        let _ = std::io::stderr().write_all(text.as_bytes());
        return None;
    };
    let mut server = with_ordinary_role(url).await;
    let template = format!("create database {TEMPLATE} {}", server.clauses);
    server.administrator.executes(template).await;
    create_tables(&url_of_database(&server.ordinary, TEMPLATE)).await;
    server.clauses.push_str(&format!(" template {TEMPLATE}"));
    if copies_files(&server.admin).await {
        server.clauses.push_str(" strategy file_copy");
    }
    Some(server)
}

/// Returns whether a database can be copied by its files, which takes an eighth of the time that it takes by the log. Before
/// version 15 Postgres knows no other way, and no clause for it.
async fn copies_files(url: &str) -> bool {
    const SQL: &str = "select current_setting('server_version_num')::int >= 150000";
    let mut conn = PgConnection::connect(url).await.expect("the test server answers");
    let is_known: bool = query_scalar(SQL).fetch_one(&mut conn).await.expect("a version");
    conn.close().await.expect("a clean close");
    is_known
}

/// Creates the ordinary role, unless the role of `admin` is one.
async fn with_ordinary_role(admin: String) -> DatabaseServer {
    const IS_SUPERUSER: &str = "select rolsuper from pg_roles where rolname = current_user";
    let mut conn = PgConnection::connect(&admin).await.expect("the test server answers");
    let is_superuser: bool = query_scalar(IS_SUPERUSER)
        .fetch_one(&mut conn)
        .await
        .expect("the role is known");
    if !is_superuser {
        return DatabaseServer {
            ordinary: admin.clone(),
            clauses: String::new(),
            administrator: Administrator::connect(admin.clone()),
            admin,
        };
    }
    // Test programs that run at the same time on a named server share the role.
    let create = format!(
        "do $$ begin create role {ROLE} login nosuperuser nobypassrls password '{PASSWORD}'; \
         exception when duplicate_object or unique_violation then null; end $$"
    );
    raw_sql(AssertSqlSafe(create))
        .execute(&mut conn)
        .await
        .expect("the role is created");
    conn.close().await.expect("a clean close");
    DatabaseServer {
        ordinary: url_of_role(&admin, ROLE, PASSWORD),
        clauses: format!("owner {ROLE}"),
        administrator: Administrator::connect(admin.clone()),
        admin,
    }
}

/// Creates the tables in the database that new databases are copies of.
async fn create_tables(template: &str) {
    let mut conn = connect(template).await;
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/postgres"));
    let migrator = Migrator::new(folder).await.expect("the folder can be read");
    migrator.run(&mut conn).await.expect("the tables are created");
    conn.close().await.expect("a clean close");
    // The first connection after a change of the tables writes the file from which the next ones read the catalogue. The
    // copies have it, too.
    let first = connect(template).await;
    first.close().await.expect("a clean close");
}

fn start_server() -> Option<String> {
    static PIPES: Mutex<Vec<std::process::ChildStdin>> = Mutex::new(Vec::new());
    let programs = installed_programs()?;
    let mut command = as_ordinary_user();
    command
        .args(["sh", "-c", SCRIPT, "postgres", &programs])
        .arg(std::env::temp_dir());
    // Outside the process group of the tests, whose signals would end the server before it is cleaned up.
    command.process_group(0);
    let started = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = started.spawn().ok()?;
    // Kept until the process ends, which closes the pipe and stops the server.
    PIPES
        .lock()
        .expect("the lock is never poisoned")
        .push(child.stdin.take()?);
    let mut text = String::new();
    let mut output = BufReader::new(child.stdout.take()?);
    while output.read_line(&mut text).ok()? > 0 {
        if let Some(directory) = text.lines().last().and_then(|line| line.strip_prefix("ready ")) {
            return Some(format!("postgres://adjutant@localhost/postgres?host={directory}"));
        }
    }
    let _ = writeln!(std::io::stderr(), "Postgres did not start: {text}");
    None
}

/// Returns the directory of the newest installed Postgres.
pub(crate) fn installed_programs() -> Option<String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .map(|version| version.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .max_by_key(|bin| bin.parent().and_then(|v| v.file_name()?.to_str()?.parse::<u32>().ok()));
    let on_path = || {
        let found = Command::new("sh").args(["-c", "command -v initdb"]).output().ok()?;
        let path = String::from_utf8(found.stdout).ok()?;
        Some(Path::new(path.trim()).parent()?.to_owned()).filter(|bin| bin.join("postgres").exists())
    };
    newest.or_else(on_path)?.to_str().map(str::to_owned)
}

/// Returns a command that runs as an ordinary user, since Postgres refuses to run as root.
pub(crate) fn as_ordinary_user() -> Command {
    let id = |args: &[&str]| {
        let output = Command::new("id")
            .args(args)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    let user = ["postgres", "nobody"]
        .into_iter()
        .find_map(|name| Some((id(&["-u", name])?, id(&["-g", name])?)));
    match (id(&["-u"]).as_deref(), user) {
        (Some("0"), Some((user, group))) => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", &user, "--regid", &group, "--clear-groups", "--"]);
            command
        }
        (_, _) => Command::new("env"),
    }
}
