//! A Postgres behind a pooler that shares its sessions between transactions.

use std::process::Command;
use std::str::FromStr;

use adjutant::Adjutant;
use serde_json::json;
use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinSet;

use super::takeover;
use crate::support::actors::Human;
use crate::support::command::command;
use crate::support::pgbouncer::{PgBouncer, SESSIONS};
use crate::support::postgres::fresh_database;
use crate::support::{Engine, TestServer, lookup, mail, play, script, task};

/// Returns the name of the server's database.
fn database_name(server: &TestServer) -> String {
    let options = PgConnectOptions::from_str(&server.database_url()).expect("a URL");
    options.get_database().expect("a database").to_owned()
}

/// Plays a test with a server behind a pooler, which outlives the server.
async fn play_behind_a_pooler(test: impl AsyncFnOnce(TestServer, &PgBouncer)) {
    let Some(elsewhere) = fresh_database().await else {
        return;
    };
    if let Some(pooler) = PgBouncer::starts(&elsewhere.url).await {
        play(Engine::Postgres, async |server: TestServer| {
            let direct = server.database_url();
            let pooled = pooler.url(&database_name(&server));
            let lines = format!("url = \"{pooled}\"\ndirect_url = \"{direct}\"\nconnections = 8");
            server.is_reconfigured(&format!("url = \"{direct}\""), &lines).await;
            test(server, &pooler).await;
        })
        .await;
    }
    elsewhere.discard().await;
}

/// Returns the number of sessions in the database besides the one that asks.
async fn sessions(server: &TestServer) -> i64 {
    let sql = "select count(*) from pg_stat_activity \
        where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()";
    server.number_in_database(sql).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_runs_share_few_sessions() {
    play_behind_a_pooler(async |server, _| {
        // On a slow machine a renewal waits longer for one of the sessions than the leases of the harness last.
        server.is_reconfigured("lease_s = 2.0", "lease_s = 60.0").await;
        let mut runs = JoinSet::new();
        for number in 0..12 {
            let human = server.human("agent").await;
            runs.spawn(async move {
                let work = script().calls(lookup("c1", "x")).says("found");
                let text = script()
                    .calls_all([task("t1", "researcher", work), mail("m1", "bob")])
                    .says(&format!("done {number}"));
                human.says(text).await;
                let run = human.approves(&human.question().await).await;
                run.finishes().await;
                let said = human.transcript().await;
                let record = run.record().await;
                assert_eq!(said.last(), Some(&format!("ai: done {number}")), "{record:#}");
                assert_eq!(human.status().await.as_str(), "idle");
            });
        }
        while let Some(ended) = runs.join_next().await {
            ended.expect("the run is done");
        }
        // The connection that listens is not one of the pooler's.
        let open = sessions(&server).await;
        assert!(open <= SESSIONS + 1, "{open}");
        let found = server.client().post("/threads/search", json!({"limit": 50})).await.ok();
        assert_eq!(found.as_array().map(Vec::len), Some(12));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_behind_a_pooler_is_replaced_before_its_lease_is_over() {
    play_behind_a_pooler(async |server, _| {
        takeover::a_killed_process_is_replaced_before_its_lease_is_over(server).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_cancelled_through_another_server_behind_a_pooler() {
    play_behind_a_pooler(async |server, _| {
        server.tools.hold("lookup");
        let alice = server.human("plain").await;
        let run = alice.asks(script().calls(lookup("l1", "x")).says("done")).await;
        server.tools.called("lookup", 1).await;
        let twin = server.starts_twin().await;
        let there = Human::at(twin.client.clone(), "plain", &alice.thread);
        there.run(&run.record().await).is_cancelled("interrupt").await.ok();
        assert_eq!(run.status().await, "interrupted");
        server.tools.let_go("lookup");
        twin.stops().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_url_of_another_database_is_refused() {
    play_behind_a_pooler(async |server, pooler| {
        let text = format!(
            "[storage]\nurl = \"{}\"\ndirect_url = \"{}\"\n",
            pooler.url("postgres"),
            server.database_url()
        );
        let Err(error) = Adjutant::builder().config_text(text).start().await else {
            panic!("it starts")
        };
        let error = format!("{error:#}");
        assert!(error.contains("lead to different databases"), "{error}");
    })
    .await;
}

/// Runs the program with an action and the configuration of the server. Returns what it prints.
fn prints(server: &TestServer, action: &str) -> String {
    let output = command(server, &[action]);
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vacuum_goes_past_the_pooler() {
    play_behind_a_pooler(async |server, _| {
        let text = prints(&server, "vacuum");
        assert!(text.contains(" tables were rewritten: "), "{text}");
        assert!(!text.contains("Not everything was rewritten"), "{text}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_looks_past_the_pooler() {
    play_behind_a_pooler(async |server, _| {
        let text = prints(&server, "doctor");
        for line in [
            "a notification arrives: sessions are kept",
            "the pooler leads to the same database",
        ] {
            assert!(text.contains(line), "{text}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_names_a_pooler_of_another_database() {
    play_behind_a_pooler(async |server, pooler| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("adjutant.toml");
        let text = format!(
            "[storage]\nurl = \"{}\"\ndirect_url = \"{}\"\n",
            pooler.url("postgres"),
            server.database_url()
        );
        std::fs::write(&file, text).expect("a file");
        let output = Command::new(env!("CARGO_BIN_EXE_adjutant"))
            .args(["doctor", "--listen", "127.0.0.1:0", "--config"])
            .arg(&file)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{said}");
        let pooler_line = said.lines().find(|line| line.starts_with("fail  database pooler "));
        assert!(
            pooler_line.is_some_and(|line| line.contains("lead to different databases")),
            "{said}"
        );
    })
    .await;
}
