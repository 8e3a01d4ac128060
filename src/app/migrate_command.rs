//! `adjutant migrate`: brings the tables of the configured database up to date, without serving.

use anyhow::Context;
use futures::future::LocalBoxFuture;

use super::builder::Prepared;
use crate::db::Engine;
use crate::db::inspection::migrate;
use crate::db::migration::TableState;

/// The hint for operators of a SQLite database, which has one process at a time.
const IN_USE: &str =
    "A server is using the database: stop it first. It brings the tables up to date itself when it starts";

/// Brings the tables up to date and returns the text to print.
///
/// # Errors
/// Returns an error if the database cannot be opened, or if its tables are those of another program.
pub fn run(prepared: &Prepared) -> LocalBoxFuture<'_, anyhow::Result<String>> {
    Box::pin(async move {
        let storage = &prepared.loaded().config.storage;
        let migrated = migrate(storage.session_url().expose(), super::database_limits(storage)).await;
        let migrated = migrated.with_context(|| format!("could not bring {} up to date", storage.session_url()));
        let before = migrated.map_err(|error| super::explain_in_use(error, IN_USE))?;
        let engine = match before.engine {
            Engine::Sqlite => "SQLite",
            Engine::Postgres => "Postgres",
        };
        let done = match before.tables {
            TableState::InMemory => "a database in memory has its tables only while a server runs".to_owned(),
            TableState::NoFile | TableState::None => "the tables were created".to_owned(),
            TableState::Current => "the tables are current".to_owned(),
            TableState::Behind(1) => "1 migration was applied".to_owned(),
            TableState::Behind(count) => format!("{count} migrations were applied"),
        };
        Ok(format!("{engine}: {done}\n"))
    })
}
