//! The test harness: servers, clients, scripts, tools and other fakes. It contains no tests.

pub(crate) mod actors;
pub(crate) mod client;
pub(crate) mod mcp;
pub(crate) mod misbehaving_server;
#[path = "../../support/postgres.rs"]
pub(crate) mod postgres;
pub(crate) mod postgres_proxy;
pub(crate) mod program;
pub(crate) mod provider;
pub(crate) mod proxy;
#[path = "../../support/schemas.rs"]
pub(crate) mod schemas;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod sse;
pub(crate) mod tools;
pub(crate) mod viewer;
pub(crate) mod webhook_receiver;

pub(crate) use actors::{Human, transcript};
pub(crate) use script::{call, lookup, mail, script, task};
pub(crate) use server::{Engine, TestServer};

/// Runs a test on one engine, and checks that no run is left afterwards.
pub(crate) async fn play<F: Future<Output = ()>>(engine: Engine, test: impl FnOnce(TestServer) -> F) {
    if let Some(server) = TestServer::start(engine).await {
        Box::pin(test(server.clone())).await;
        Box::pin(server.finish()).await;
    }
}

/// Polls until a condition holds, for changes that the server does not notify of.
pub(crate) async fn eventually(happened: impl AsyncFn() -> bool) {
    let waits = async {
        let mut pause = tokio::time::interval(std::time::Duration::from_millis(10));
        while !happened().await {
            pause.tick().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), waits)
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
