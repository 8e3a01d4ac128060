//! A Postgres of a provider: encrypted connections, roles with few rights, few connections.

use std::process::Command;

use adjutant::Adjutant;
use serde_json::json;
use sqlx::query_scalar;

use crate::support::rented_postgres::RentedPostgres;
use crate::support::{Engine, TestServer, play, script};

/// Returns the error of a server that does not start with this database.
pub(super) async fn refusal(url: &str) -> String {
    let text = format!("[storage]\nurl = {url:?}\n");
    let Err(error) = Adjutant::builder().config_text(text).start().await else {
        panic!("it starts with {url}")
    };
    format!("{error:#}")
}

/// Restarts the server with another database and more lines in the section `[storage]`.
async fn moves_to(server: &TestServer, url: &str, lines: &str) {
    let old = format!("url = \"{}\"", server.database_url());
    server.is_reconfigured(&old, &format!("url = \"{url}\"\n{lines}")).await;
}

/// Runs the program with a command, and options behind it, and this database. Returns whether it has succeeded, and what it has printed.
pub(super) fn runs_command(command: &str, url: &str) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_adjutant"))
        .args(command.split(' '))
        .args(["--database-url", url])
        .current_dir(std::env::temp_dir())
        .output()
        .expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_encrypted_and_the_certificate_is_checked() {
    // It outlives the server, which is asked about its work at the end.
    let Some(postgres) = RentedPostgres::start() else {
        return;
    };
    play(Engine::Postgres, async |server: TestServer| {
        postgres
            .executes("alter database postgres owner to admin".to_owned())
            .await;
        let url = postgres.url("admin", "localhost", &postgres.parameters("verify-full", "ca"));
        moves_to(&server, &url, "connections = 4").await;
        let alice = server.human("agent").await;
        alice.says(script().says("hello")).await;
        let mut admin = postgres.admin().await;
        let open = "select count(*) from pg_stat_ssl s join pg_stat_activity a using (pid) \
            where a.application_name = 'adjutant' and s.ssl";
        let encrypted: i64 = query_scalar(open).fetch_one(&mut admin).await.expect("a number");
        assert!(
            (2..=6).contains(&encrypted),
            "{encrypted}: four, the one that listens and the one of the lease"
        );
        let plain = "select count(*) from pg_stat_activity where application_name = 'adjutant' and client_addr is null";
        let plain: i64 = query_scalar(plain).fetch_one(&mut admin).await.expect("a number");
        assert_eq!(plain, 0);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_mode_of_tls_refuses_what_it_has_to() {
    let Some(postgres) = RentedPostgres::start() else {
        return;
    };
    let url =
        |host: &str, mode: &str, authority: &str| postgres.url("admin", host, &postgres.parameters(mode, authority));
    let certificate = "correct `sslmode` and `sslrootcert` in [storage]";
    for (url, reason, advice) in [
        (url("localhost", "verify-full", "other-ca"), "certificate", certificate),
        (url("localhost", "verify-ca", "other-ca"), "certificate", certificate),
        (url("127.0.0.1", "verify-full", "ca"), "not valid for name", certificate),
        (url("localhost", "disable", "ca"), "no encryption", "or `sslmode` there"),
        (
            postgres.url("admin", "localhost", "sslmode=verify-full"),
            "certificate",
            certificate,
        ),
        (
            postgres.url("admin", "localhost", "sslmode=verify-full&sslrootcert=/no/such.pem"),
            "No such file",
            "correct the path in [storage]",
        ),
    ] {
        let error = refusal(&url).await;
        assert!(error.contains(reason) && error.contains(advice), "{url}: {error}");
    }
    for url in [
        url("127.0.0.1", "verify-ca", "ca"),
        url("127.0.0.1", "require", "ca"),
        postgres.url("admin", "127.0.0.1", "sslmode=require"),
        postgres.url("admin", "127.0.0.1", "sslmode=prefer"),
    ] {
        let (is_done, said) = runs_command("migrate", &url);
        assert!(is_done, "{url}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_of_each_host_in_a_list_has_to_be_for_its_name() {
    let Some(postgres) = RentedPostgres::start() else {
        return;
    };
    let one = postgres.url("admin", "localhost", &postgres.parameters("verify-full", "ca"));
    let port = one.split_once("@localhost:").and_then(|(_, rest)| rest.split_once('/'));
    let (port, _) = port.expect("a port");
    let list = |names: [&str; 2]| {
        let hosts = names.map(|name| format!("{name}:{port}")).join(",");
        one.replace(&format!("localhost:{port}"), &hosts)
    };
    let (is_done, said) = runs_command("migrate", &list(["127.0.0.1", "localhost"]));
    assert!(is_done, "{said}");
    let error = refusal(&list(["127.0.0.1", "127.0.0.1"])).await;
    assert_eq!(error.matches("not valid for name").count(), 2, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_role_may_not_create_tables_serves_after_a_migration() {
    // It outlives the server, which is asked about its work at the end.
    let Some(postgres) = RentedPostgres::start() else {
        return;
    };
    play(Engine::Postgres, async |server: TestServer| {
        let roles = "create role owner login nosuperuser; create role serving login nosuperuser; \
            alter database postgres owner to owner; grant all on schema public to owner";
        postgres.executes(roles.to_owned()).await;
        let url = |role: &str| postgres.url(role, "localhost", "sslmode=require");
        let error = refusal(&url("serving")).await;
        assert!(
            error.contains("permission denied")
                && error.contains("run `adjutant migrate` as the role that owns the tables"),
            "{error}"
        );
        // Rights for the tables of later releases, too: a migration makes tables, and nobody grants anything after it.
        for rights in ["select, insert, update, delete on tables", "usage on sequences"] {
            let sql = format!("alter default privileges for role owner in schema public grant {rights} to serving");
            postgres.executes(sql).await;
        }
        let (is_done, said) = runs_command("migrate", &url("owner"));
        assert!(is_done && said.contains("the tables were created"), "{said}");
        let (is_done, said) = runs_command("migrate", &url("owner"));
        assert!(is_done && said.contains("the tables are current"), "{said}");
        let migrations = "revoke insert, update, delete on _sqlx_migrations from serving";
        postgres.executes(migrations.to_owned()).await;
        moves_to(&server, &url("serving"), "").await;
        let alice = server.human("agent").await;
        alice.says(script().says("hello")).await;
        assert_eq!(
            alice.state().await["values"]["messages"].as_array().map(Vec::len),
            Some(2)
        );
        alice.client().delete(&format!("/threads/{}", alice.thread)).await;
        let item = json!({"namespace": ["a"], "key": "k", "value": {"n": 1}});
        alice.client().put("/store/items", item).await.ok();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_rewritten_by_their_owner_only() {
    let Some(postgres) = RentedPostgres::start() else {
        return;
    };
    let roles = "create role owner login nosuperuser; create role serving login nosuperuser; \
        alter database postgres owner to owner; grant all on schema public to owner";
    postgres.executes(roles.to_owned()).await;
    let url = |role: &str| postgres.url(role, "localhost", "sslmode=require");
    let (is_done, said) = runs_command("vacuum", &url("owner"));
    assert!(!is_done && said.contains("has no tables of this program"), "{said}");
    let (is_done, said) = runs_command("migrate", &url("owner"));
    assert!(is_done, "{said}");
    let rights = "grant select, insert, update, delete on all tables in schema public to serving";
    postgres.executes(rights.to_owned()).await;
    let (is_done, said) = runs_command("vacuum", &url("serving"));
    assert!(!is_done && said.contains("Postgres: 0 tables were rewritten"), "{said}");
    for table in ["public.threads", "pg_catalog.pg_statistic"] {
        assert!(
            said.contains(&format!("- {table}: the role may not rewrite it")),
            "{said}"
        );
    }
    let (is_done, said) = runs_command("vacuum", &url("owner"));
    assert!(is_done && said.contains(" tables were rewritten: "), "{said}");
    assert!(said.contains("no checkpoint was made"), "{said}");
    let (is_done, said) = runs_command("vacuum", &url("admin"));
    assert!(is_done && said.contains("a checkpoint was made"), "{said}");
}

#[test]
fn the_tables_of_sqlite_are_created_by_the_command_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/adjutant.db", folder.path().display());
    let (is_done, said) = runs_command("migrate", &url);
    assert!(is_done && said.contains("SQLite: the tables were created"), "{said}");
    let (is_done, said) = runs_command("migrate", &url);
    assert!(is_done && said.contains("SQLite: the tables are current"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_another_build_are_refused_with_what_to_do() {
    play(Engine::Postgres, async |server: TestServer| {
        server.client().thread().await;
        server
            .executes_sql("update _sqlx_migrations set checksum = '\\x00'")
            .await;
        let error = refusal(&server.database_url()).await;
        assert!(error.contains("another build of the server"), "{error}");
        assert!(error.contains("a new database"), "{error}");
    })
    .await;
}
