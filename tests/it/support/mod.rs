//! The test harness: servers, clients, scripts, tools and other fakes. It contains no tests.

pub(crate) mod actors;
pub(crate) mod client;
pub(crate) mod door;
pub(crate) mod ear;
pub(crate) mod mcp;
#[path = "../../support/postgres.rs"]
pub(crate) mod postgres;
pub(crate) mod postgres_door;
pub(crate) mod program;
pub(crate) mod provider;
#[path = "../../support/schemas.rs"]
pub(crate) mod schemas;
pub(crate) mod script;
pub(crate) mod server;
pub(crate) mod sse;
pub(crate) mod tools;
pub(crate) mod viewer;
pub(crate) mod wild;

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
    ($($(#[$note:meta])* async fn $name:ident($server:ident: TestServer) $body:block)*) => {
        $($(#[$note])* async fn $name($server: TestServer) $body)*

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
