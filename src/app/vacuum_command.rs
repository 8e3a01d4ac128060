//! `adjutant vacuum`: rewrites the files of the configured database, so that deleted rows are in none of them any more.

use std::io::Write;

use anyhow::{Context, bail};
use futures::future::LocalBoxFuture;

use super::builder::Prepared;
use crate::db::Engine;
use crate::db::vacuum::{VacuumProblem, VacuumReport, vacuum};

/// The hint for operators of a SQLite database, which has one process at a time.
const IN_USE: &str = "A server is using the database: stop it first";

/// The copies of data that the command does not reach on SQLite.
const BEYOND_SQLITE: &str =
    "backups and other copies of the file, snapshots of the disk, and blocks that the disk has freed";
/// The copies of data that the command does not reach on Postgres.
const BEYOND_POSTGRES: &str = "the write-ahead log until it is overwritten, its archive, backups, the log of Postgres if it has \
    statements, snapshots of the disk, and blocks that the disk has freed";

/// Rewrites the files, and writes to `output` what is done.
///
/// # Errors
/// Returns an error if the database cannot be opened or fails, if something could not be rewritten, or if `output` is closed.
pub fn run<'a>(prepared: &'a Prepared, output: &'a mut (dyn Write + Send)) -> LocalBoxFuture<'a, anyhow::Result<()>> {
    Box::pin(async move {
        let storage = &prepared.loaded().config.storage;
        let mut announce = |table: &str, bytes: u64| {
            // Output that is closed does not stop the work; the summary tells it.
            let _ = writeln!(output, "rewriting {table}: {bytes} bytes");
        };
        let limits = super::database_limits(storage);
        let done = vacuum(storage.session_url().expose(), limits, &mut announce).await;
        let done = done.with_context(|| format!("could not rewrite {}", storage.session_url()));
        let report = done.map_err(|error| super::explain_in_use(error, IN_USE))?;
        output.write_all(summary(&report).as_bytes())?;
        if report.problems.is_empty() {
            return Ok(());
        }
        let problems: Vec<String> = report.problems.iter().map(explain).collect();
        bail!(
            "Not everything was rewritten, so deleted data may still be in the files:\n- {}\nRun the command again afterwards",
            problems.join("\n- ")
        )
    })
}

/// Returns the lines about what was done.
fn summary(report: &VacuumReport) -> String {
    let VacuumReport {
        engine,
        tables,
        bytes_before,
        bytes_after,
        has_checkpoint,
        problems: _,
    } = report;
    let beyond = match engine {
        Engine::Sqlite => BEYOND_SQLITE,
        Engine::Postgres => BEYOND_POSTGRES,
    };
    let checkpoint = match has_checkpoint {
        Some(true) => "a checkpoint was made\n",
        Some(false) => "no checkpoint was made, since the role may not (pg_checkpoint): Postgres makes one by itself\n",
        None => "",
    };
    format!(
        "{engine}: {tables} tables were rewritten: {bytes_before} bytes before, {bytes_after} bytes now\n{checkpoint}Not \
         reached: {beyond}\n"
    )
}

/// Returns the sentence about a problem.
fn explain(problem: &VacuumProblem) -> String {
    match problem {
        VacuumProblem::StillVisible(to) => format!(
            "what was deleted may still be read by: {}. End that, or wait for its end",
            to.join(", ")
        ),
        VacuumProblem::Locked(table) => {
            format!("{table}: others held it for longer than `statement_timeout_s` of [storage]")
        }
        VacuumProblem::Deadlocked(table) => {
            format!("{table}: others held it, and waited for this command meanwhile (a deadlock), twice")
        }
        VacuumProblem::NotOwned(table) => format!(
            "{table}: the role may not rewrite it. Name the owner of the database and its tables in --database-url"
        ),
        VacuumProblem::LogInUse => {
            "the write-ahead log: another program reads the database. End that program".to_owned()
        }
    }
}
