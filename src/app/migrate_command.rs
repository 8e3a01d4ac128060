//! `adjutant migrate`: brings the tables of the configured database up to date, without serving.

use anyhow::Context;
use futures::future::LocalBoxFuture;

use super::builder::Prepared;
use crate::config::MigrateCommand;
use crate::db::Engine;
use crate::db::inspection::migrate;
use crate::db::migration::TableState;

/// The hint for operators of a SQLite database, which has one process at a time.
const IN_USE: &str =
    "A server is using the database: stop it first. It brings the tables up to date itself when it starts";

/// The refusal to finish an upgrade.
const FORMER_AT_WORK: &str = "a server of the former release is at work: stop it first, then finish the upgrade";

/// Brings the tables up to date and returns the text to print.
///
/// # Errors
/// Returns an error if the database cannot be opened, if its tables are those of another program, or if the upgrade is to be
/// finished and a server of the former release is at work.
pub fn run<'p>(prepared: &'p Prepared, command: &MigrateCommand) -> LocalBoxFuture<'p, anyhow::Result<String>> {
    let finishes = command.finish;
    Box::pin(async move {
        let storage = &prepared.loaded().config.storage;
        let limits = super::database_limits(storage);
        let migrated = migrate(storage.session_url().expose(), limits, finishes).await;
        let migrated = migrated.map_err(|error| super::with_advice(error, storage));
        let migrated = migrated.with_context(|| format!("could not bring {} up to date", storage.session_url()));
        let before = migrated.map_err(|error| super::explain_in_use(error, IN_USE))?;
        let done = match before.tables {
            TableState::InMemory => "a database in memory has its tables only while a server runs".to_owned(),
            TableState::NoFile | TableState::None => "the tables were created".to_owned(),
            TableState::Current => "the tables are current".to_owned(),
            TableState::Behind(1) => "1 migration was applied".to_owned(),
            TableState::Behind(count) => format!("{count} migrations were applied"),
        };
        if finishes && !before.is_finished {
            anyhow::bail!("{done}; {FORMER_AT_WORK}");
        }
        let end = match (before.engine, before.is_finished) {
            (Engine::Sqlite, _) | (Engine::Postgres, true) => "",
            (Engine::Postgres, false) => "; when no server of the former release is left, run this with --finish",
        };
        Ok(format!("{}: {done}{end}\n", before.engine))
    })
}
