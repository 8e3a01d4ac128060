//! The commands about the data of users and tenants: `rekey`, `export-user`, `delete-user` and `delete-tenant`. They work
//! on the configured database.

use std::io::Write;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use futures::future::{BoxFuture, LocalBoxFuture};

use super::builder::Prepared;
use crate::config::DataCommand;
use crate::db::erasure::{self, DataSubject, ErasedRows, ErasureRequest};
use crate::db::{Db, DbResult, RekeyProgress, RekeyTarget};
use crate::domain::access::Ownership;
use crate::domain::account::{Account, QuotaLevel};
use crate::domain::id::ThreadId;
use crate::domain::identity::{Tenant, UserId};
use crate::domain::time::{Clock, SystemClock};
use crate::http::export;
use crate::http::users::{erasure_of_user, idempotency_prefix};
use crate::runtime::delete_thread;

/// The time for tasks of the database to finish.
const DEADLINE: Duration = Duration::from_secs(30);

/// The hint for operators of a SQLite database, which has one process at a time.
const IN_USE: &str = "A server is using the database: stop it first";

/// Runs a command, which writes its result to `output`.
///
/// # Errors
/// Returns an error if an argument is invalid, if the database cannot be opened or fails, or if `output` is closed.
pub fn run<'a>(
    prepared: &'a Prepared,
    command: &'a DataCommand,
    output: &'a mut (dyn Write + Send),
) -> LocalBoxFuture<'a, anyhow::Result<()>> {
    let config = &prepared.loaded().config;
    Box::pin(super::with_database(config, DEADLINE, IN_USE, async move |db| {
        run_on(db, command, output).await
    }))
}

async fn run_on(db: &Db, command: &DataCommand, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    match command {
        DataCommand::Rekey {
            settings: _,
            new_data_keys,
            plain,
        } => {
            let target = match (plain, new_data_keys) {
                (true, _) => RekeyTarget::Plain,
                (false, true) => RekeyTarget::NewDataKeys,
                (false, false) => RekeyTarget::FirstMasterKey,
            };
            rekey(db, target, output).await
        }
        DataCommand::ExportUser {
            settings: _,
            user,
            tenant,
        } => {
            let mut lines = pin!(export::user_lines(db.clone(), owner(tenant, user)?, None));
            while let Some(chunk) = lines.next().await {
                output.write_all(&chunk?)?;
            }
            Ok(())
        }
        DataCommand::DeleteUser {
            settings: _,
            user,
            tenant,
            audit,
        } => {
            let request = erasure_of_user(owner(tenant, user)?, *audit);
            report_erased(erase(db, request).await?, output)
        }
        DataCommand::DeleteTenant {
            settings: _,
            tenant,
            audit,
        } => {
            let tenant = Tenant::new("TENANT", tenant)?;
            let of_tenant = tenant.clone();
            let owners = db.read(move |tx| Box::pin(async move { erasure::owners_of(tx, &of_tenant).await }));
            let account = Account::of_owner(&Ownership {
                tenant: tenant.clone(),
                owner: UserId::default(),
            });
            let owners = owners.await?.into_iter().map(|owner| Ownership {
                tenant: tenant.clone(),
                owner,
            });
            let request = ErasureRequest {
                clients: owners.map(|owner| idempotency_prefix(&owner)).collect(),
                account: account.subject(QuotaLevel::Tenant).unwrap_or_default().to_owned(),
                with_audit: *audit,
                subject: DataSubject {
                    tenant: tenant.clone(),
                    user: None,
                },
            };
            report_erased(erase(db, request).await?, output)
        }
    }
}

fn owner(tenant: &str, user: &str) -> anyhow::Result<Ownership> {
    Ok(Ownership {
        tenant: Tenant::new("--tenant", tenant)?,
        owner: UserId::new("USER", user)?,
    })
}

/// Erases data. No server is at work on the threads, so their rows are all that there is. What they have left on other servers
/// is cancelled by the next server of this database.
async fn erase(db: &Db, request: ErasureRequest) -> DbResult<ErasedRows> {
    let of_threads = db.clone();
    let delete = move |thread: ThreadId| -> BoxFuture<'static, DbResult<bool>> {
        let db = of_threads.clone();
        let now = SystemClock.now();
        Box::pin(async move { db.write(move |tx| Box::pin(delete_thread(tx, thread, now))).await })
    };
    db.erase(request, delete).await
}

async fn rekey(db: &Db, target: RekeyTarget, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let mut last = RekeyProgress::default();
    let mut lines: Vec<String> = vec![];
    let report = |table: &str, progress: RekeyProgress| {
        let rows = progress.rows - last.rows;
        let values = progress.values - last.values;
        lines.push(format!("{table}: {rows} rows read, {values} values rewritten"));
        last = progress;
    };
    let done = db.rekey(target, report).await.context("could not rekey the database")?;
    for line in lines {
        writeln!(output, "{line}")?;
    }
    writeln!(output, "{} data keys wrapped anew", done.rewrapped)?;
    if done.unreadable > 0 {
        writeln!(
            output,
            "{} values could not be read and stay as they are",
            done.unreadable
        )?;
    }
    Ok(())
}

fn report_erased(erased: ErasedRows, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let ErasedRows {
        keys,
        threads,
        assistants,
        agents,
        crons,
        items,
        deliveries,
        audit,
        data_keys,
    } = erased;
    let counts = [
        ("API keys", keys),
        ("threads", threads),
        ("assistants", assistants),
        ("agents", agents),
        ("crons", crons),
        ("items", items),
        ("webhook deliveries", deliveries),
        ("entries of the audit", audit),
        ("data keys", data_keys),
    ];
    for (what, count) in counts {
        writeln!(output, "{what} deleted: {count}")?;
    }
    Ok(())
}
