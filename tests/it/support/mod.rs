//! The test harness: servers, clients, scripts, tools and other fakes. It contains no tests.

use std::io::Write;
use std::time::{Duration, Instant};

use adjutant::Shutdown;
use axum::Router;
use tokio::net::TcpListener;

pub(crate) mod actors;
pub(crate) mod authority;
pub(crate) mod authorization_server;
pub(crate) mod client;
pub(crate) mod collector;
pub(crate) mod command;
pub(crate) mod database;
pub(crate) mod load_balancer;
pub(crate) mod mcp;
pub(crate) mod misbehaving_server;
#[cfg(feature = "nats")]
pub(crate) mod nats;
pub(crate) mod pgbouncer;
#[path = "../../support/postgres.rs"]
pub(crate) mod postgres;
pub(crate) mod postgres_proxy;
#[path = "../../support/process.rs"]
pub(crate) mod process;
pub(crate) mod program;
pub(crate) mod provider;
pub(crate) mod proxy;
pub(crate) mod rented_postgres;
pub(crate) mod replicated_postgres;
#[path = "../../support/schemas.rs"]
pub(crate) mod schemas;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod sse;
pub(crate) mod terminal;
pub(crate) mod tools;
pub(crate) mod viewer;
pub(crate) mod webhook_receiver;

pub(crate) use actors::{Human, approval, continuation, transcript};
pub(crate) use script::{call, lookup, mail, mailer, script, task, two_mailers};
pub(crate) use server::{Engine, Keys, TestServer};

/// The time after which a test fails that would otherwise hold up all others. The longest take a minute or two.
const TEST_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Runs a test on one engine, and checks that no run is left afterwards. `ADJUTANT_TEST_TIMES` names a file to which
/// the durations of the start, the test and the end are added, in seconds.
pub(crate) async fn play<F: Future<Output = ()>>(engine: Engine, test: impl FnOnce(TestServer) -> F) {
    let began = Instant::now();
    let Some(server) = TestServer::start(engine).await else {
        return;
    };
    let started = Instant::now();
    let in_time = tokio::time::timeout(TEST_TIMEOUT, Box::pin(test(server.clone()))).await;
    assert!(
        in_time.is_ok(),
        "the test does not end; its processes logged:\n{}",
        server.log().text()
    );
    let tested = Instant::now();
    Box::pin(server.finish()).await;
    let times = [started - began, tested - started, tested.elapsed()];
    if let Ok(file) = std::env::var("ADJUTANT_TEST_TIMES") {
        write_times(&file, times).expect("the file of durations");
    }
}

fn write_times(file: &str, times: [Duration; 3]) -> std::io::Result<()> {
    let [start, test, end] = times.map(|time| time.as_secs_f64());
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test without a name");
    let mut file = std::fs::File::options().create(true).append(true).open(file)?;
    file.write_all(format!("{test:.3} {start:.3} {end:.3} {name}\n").as_bytes())
}

/// Serves a router at a free port until `around` shuts down, and returns its address.
pub(crate) async fn starts_service(name: &'static str, router: Router, around: &Shutdown) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    around.spawn(name, async move { axum::serve(listener, router).await });
    base
}

/// Polls until a condition holds, for changes that the server does not notify of.
pub(crate) async fn eventually(happened: impl AsyncFn() -> bool) {
    let waits = async {
        let mut pause = tokio::time::interval(Duration::from_millis(10));
        while !happened().await {
            pause.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waits)
        .await
        .expect("it did not happen");
}

/// Defines two tests for each function, one on each engine.
macro_rules! on_both_engines {
    ($($name:ident),* $(,)?) => {
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::support::play($crate::support::Engine::Sqlite, super::$name).await;
            })*
        }

        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::support::play($crate::support::Engine::Postgres, super::$name).await;
            })*
        }
    };
}
pub(crate) use on_both_engines;

/// Makes a test of each function that needs several servers on one database, which only Postgres has.
macro_rules! on_postgres {
    ($($name:ident),* $(,)?) => {
        mod only_on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::support::play($crate::support::Engine::Postgres, super::$name).await;
            })*
        }
    };
}
pub(crate) use on_postgres;

/// Makes a test of each function to which the engine makes no difference.
macro_rules! without_postgres {
    ($($name:ident),* $(,)?) => {
        mod only_on_sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::support::play($crate::support::Engine::Sqlite, super::$name).await;
            })*
        }
    };
}
pub(crate) use without_postgres;
