//! A Postgres with a standby that replicates it synchronously. The primary can be killed or suspended like a machine, and
//! the standby can be promoted.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};

use super::postgres::{as_ordinary_user, installed_programs};
use super::server::skipped;

/// A shell script like the one of the other server of the tests. It starts two servers, each on a socket in a folder of its
/// own, and does what it reads until its input ends.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
cd /
dir=$(mktemp -d "$2/adjutant-replicated-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/primary" "$dir/standby"
serve() {
    "$bin/postgres" -D "$dir/$1/data" -k "$dir/$1" -c cluster_name="$1" -c listen_addresses= -c fsync=off -c autovacuum=off \
        -c max_connections=200 -c wal_level=replica -c max_wal_size=128MB >"$dir/$1/log" 2>&1 </dev/null &
}
awaits() {
    tries=0
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -gt 300 ] && { cat "$dir"/*/log; kill -QUIT $primary $standby; exit 1; }
        sleep 0.1
    done
}
is_in_step() {
    "$bin/psql" -h "$dir/primary" -U admin -d postgres -Atc "select sync_state from pg_stat_replication" | grep -qx sync
}
# The processes of the primary: it and its children.
processes() {
    echo $primary
    grep -l "^PPid:[[:space:]]*$primary\$" /proc/[0-9]*/status 2>/dev/null | cut -d/ -f3
}
bin=$1
"$bin/initdb" -D "$dir/primary/data" -U admin -A trust -E UTF8 --locale=C --no-sync >"$dir/primary/log" 2>&1 \
    || { cat "$dir/primary/log"; exit 1; }
serve primary
primary=$!
awaits "$bin/pg_isready" -q -h "$dir/primary"
"$bin/pg_basebackup" -h "$dir/primary" -U admin -D "$dir/standby/data" -R -X stream -c fast --no-sync >"$dir/standby/log" 2>&1 \
    || { cat "$dir/standby/log"; kill -QUIT $primary; exit 1; }
serve standby
standby=$!
awaits "$bin/pg_isready" -q -h "$dir/standby"
echo "synchronous_standby_names = 'standby'" >>"$dir/primary/data/postgresql.conf"
kill -HUP $primary
awaits is_in_step
echo "ready $dir"
while read -r wish; do
    case $wish in
        kill) kill -KILL $(processes); wait $primary ;;
        promote) "$bin/pg_ctl" promote -w -D "$dir/standby/data" >"$dir/promotion" 2>&1 || { cat "$dir/promotion"; exit 1; } ;;
    esac
    echo "done $wish"
done
kill -QUIT $primary $standby
wait
"#;

/// The two servers. They stop when this value is dropped.
pub(crate) struct ReplicatedPostgres {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    folder: String,
}

impl ReplicatedPostgres {
    /// Starts both servers, with a database for an ordinary role; `None` if Postgres is not installed on this machine.
    pub(crate) async fn start() -> Option<Self> {
        let Some(programs) = installed_programs() else {
            return skipped("Postgres");
        };
        let mut command = as_ordinary_user();
        command
            .args(["sh", "-c", SCRIPT, "postgres", &programs])
            .arg(std::env::temp_dir())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("a shell");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        let folder = read_to(&mut output, "ready ");
        let servers = Self {
            input: child.stdin.take(),
            child,
            output,
            folder,
        };
        for sql in [
            "create role serving login nosuperuser",
            "create database serving owner serving",
        ] {
            servers.primary_executes(sql).await;
        }
        Some(servers)
    }

    /// Returns the URL of the database on the primary.
    pub(crate) fn primary(&self) -> String {
        self.url("primary")
    }

    /// Returns the URL of the database on the standby.
    pub(crate) fn standby(&self) -> String {
        self.url("standby")
    }

    /// Returns the URL of the database on both servers, the standby first. `password` begins with a colon, or is empty.
    pub(crate) fn both(&self, password: &str) -> String {
        let folder = &self.folder;
        format!("postgres://serving{password}@localhost/serving?host={folder}/standby,{folder}/primary")
    }

    /// Executes a statement on the primary as a superuser.
    pub(crate) async fn primary_executes(&self, sql: &str) {
        let url = format!("postgres://admin@localhost/postgres?host={}/primary", self.folder);
        let mut admin = PgConnection::connect(&url).await.expect("a connection");
        raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut admin)
            .await
            .expect("it is executed");
        admin.close().await.expect("a clean close");
    }

    fn url(&self, server: &str) -> String {
        format!("postgres://serving@localhost/serving?host={}/{server}", self.folder)
    }

    /// Kills all processes of the primary at once.
    pub(crate) fn primary_is_killed(&mut self) {
        self.does("kill");
    }

    /// Promotes the standby, which is a primary then.
    pub(crate) fn standby_is_promoted(&mut self) {
        self.does("promote");
    }

    fn does(&mut self, wish: &str) {
        let input = self.input.as_mut().expect("it is open");
        writeln!(input, "{wish}").expect("the script reads");
        read_to(&mut self.output, &format!("done {wish}"));
    }
}

/// Reads the output of a script up to a line that begins with these words, and returns the rest of the line.
pub(super) fn read_to(output: &mut impl BufRead, words: &str) -> String {
    let mut said = vec![];
    loop {
        let mut line = String::new();
        let length = output.read_line(&mut line).expect("text");
        assert!(length > 0, "Postgres does not do what it has to: {said:?}");
        if let Some(rest) = line.trim_end().strip_prefix(words) {
            return rest.to_owned();
        }
        said.push(line);
    }
}

impl Drop for ReplicatedPostgres {
    fn drop(&mut self) {
        // The script ends the servers when its input ends.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
