//! Erases everything that belongs to a user or to a tenant, and finds it for an export.
//!
//! Everything is deleted in batches, each a transaction. Erasing that was interrupted is finished by erasing again.

use futures::future::BoxFuture;
use sqlx::{QueryBuilder, query, query_scalar};
use uuid::Uuid;

use super::audit;
use super::definitions;
use super::engine::on_engine;
use super::engine::sealing::destroy_keys;
use super::interrupts;
use super::jobs;
use super::mcp_logins;
use super::{Db, DbResult, Tx};
use crate::domain::access::Ownership;
use crate::domain::account::end_of_subject;
use crate::domain::id::ThreadId;
use crate::domain::identity::{Tenant, UserId};
use crate::domain::job::JobKind;
use crate::domain::time::Timestamp;

/// The most rows that one transaction deletes from a table; of threads, which have most rows elsewhere, only one.
const BATCH: i64 = 200;

/// The user or tenant whose data it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSubject {
    /// The tenant.
    pub tenant: Tenant,
    /// The user; the whole tenant if absent.
    pub user: Option<UserId>,
}

impl DataSubject {
    /// Creates the subject for the data of one user.
    pub fn user(owner: Ownership) -> Self {
        Self {
            tenant: owner.tenant,
            user: Some(owner.owner),
        }
    }
}

/// The data of a user or a tenant that is not found by tenant and user alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErasureRequest {
    /// The user or tenant whose data is erased.
    pub subject: DataSubject,
    /// The beginning of the names of idempotency keys, for each client that the subject is.
    pub clients: Vec<String>,
    /// The beginning of the accounts whose daily use is recorded.
    pub account: String,
    /// True to erase the entries of the audit, too.
    pub with_audit: bool,
}

/// The numbers of erased rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErasedRows {
    /// The API keys.
    pub keys: u64,
    /// The threads.
    pub threads: u64,
    /// The assistants.
    pub assistants: u64,
    /// The agents that clients defined, of a tenant.
    pub agents: u64,
    /// The crons.
    pub crons: u64,
    /// The items of the Store.
    pub items: u64,
    /// The webhook deliveries.
    pub deliveries: u64,
    /// The entries of the audit.
    pub audit: u64,
    /// The data keys, of a tenant.
    pub data_keys: u64,
}

impl DataSubject {
    /// Appends the condition that a row belongs to the subject.
    fn push_condition<DB>(&self, sql: &mut QueryBuilder<DB>, user_column: &'static str)
    where
        DB: sqlx::Database,
        for<'q> String: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        sql.push("tenant = ").push_bind(self.tenant.as_str().to_owned());
        if let Some(user) = &self.user {
            sql.push(" and ")
                .push(user_column)
                .push(" = ")
                .push_bind(user.as_str().to_owned());
        }
    }
}

/// Returns up to `limit` threads of a user or tenant, ordered by id, after thread `after`. Unfinished copies are among
/// them.
pub async fn threads_of(
    tx: &mut Tx<'_>,
    subject: &DataSubject,
    after: Option<ThreadId>,
    limit: i64,
) -> DbResult<Vec<ThreadId>> {
    let found: Vec<Uuid> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select thread_id from threads where ");
        subject.push_condition(&mut sql, "owner");
        sql.push(" and thread_id > ")
            .push_bind(after.map_or(Uuid::nil(), |after| after.0));
        sql.push(" order by thread_id limit ").push_bind(limit);
        sql.build_query_scalar().fetch_all(conn).await
    })?;
    Ok(found.into_iter().map(ThreadId).collect())
}

/// Returns the users of a tenant that own something.
pub async fn owners_of(tx: &mut Tx<'_>, tenant: &Tenant) -> DbResult<Vec<UserId>> {
    const SQL: &str = "select owner from threads where tenant = $1 union select owner from assistants where tenant = $1 \
        union select owner from crons where tenant = $1 union select owner from items where tenant = $1 \
        union select owner from deliveries where tenant = $1 union select user_id from api_keys where tenant = $1";
    let found: Vec<String> = on_engine!(tx, |conn| query_scalar(SQL).bind(tenant.as_str()).fetch_all(conn).await)?;
    Ok(found.into_iter().map(UserId::stored).collect())
}

/// A table whose rows have a tenant and a user.
#[derive(Clone, Copy)]
struct OwnedTable {
    name: &'static str,
    /// The primary key.
    key: &'static str,
    user: &'static str,
    /// The kind of the jobs for its rows, whose primary key is an id then.
    job: Option<JobKind>,
}

const API_KEYS: OwnedTable = OwnedTable {
    name: "api_keys",
    key: "key_id",
    user: "user_id",
    job: None,
};
const TICKETS: OwnedTable = OwnedTable {
    name: "auth_tickets",
    key: "digest",
    ..API_KEYS
};
const CRONS: OwnedTable = OwnedTable {
    name: "crons",
    key: "cron_id",
    user: "owner",
    job: Some(JobKind::Cron),
};
const ASSISTANTS: OwnedTable = OwnedTable {
    name: "assistants",
    key: "assistant_id",
    user: "owner",
    job: None,
};
const ITEMS: OwnedTable = OwnedTable {
    name: "items",
    key: "tenant, owner, namespace, key",
    user: "owner",
    job: None,
};
const DELIVERIES: OwnedTable = OwnedTable {
    name: "deliveries",
    key: "delivery_id",
    user: "owner",
    job: Some(JobKind::Webhook),
};
const AUDIT: OwnedTable = OwnedTable {
    name: "audit",
    key: "tenant, entry_id",
    user: "user_id",
    job: None,
};

/// Deletes some rows of a table, with their jobs. Returns their number.
async fn delete_some(tx: &mut Tx<'_>, table: OwnedTable, subject: &DataSubject) -> DbResult<u64> {
    tx.erase_traces();
    if let Some(kind) = table.job {
        return delete_with_jobs(tx, table, kind, subject).await;
    }
    let deleted = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(format!(
            "delete from {} where ({}) in (select {} from {} where ",
            table.name, table.key, table.key, table.name
        ));
        subject.push_condition(&mut sql, table.user);
        sql.push(format!(" order by {} limit {BATCH})", table.key));
        sql.build().execute(conn).await.map(|done| done.rows_affected())
    })?;
    Ok(deleted)
}

async fn delete_with_jobs(tx: &mut Tx<'_>, table: OwnedTable, kind: JobKind, subject: &DataSubject) -> DbResult<u64> {
    let ids: Vec<Uuid> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(format!("select {} from {} where ", table.key, table.name));
        subject.push_condition(&mut sql, table.user);
        sql.push(format!(" order by {} limit {BATCH}", table.key));
        sql.build_query_scalar().fetch_all(conn).await
    })?;
    let mut deleted = 0;
    for id in ids {
        // The job is locked before its row, in the same order as when a worker settles the job.
        jobs::delete(tx, kind, id).await?;
        deleted += on_engine!(tx, |conn| {
            let mut sql = QueryBuilder::new(format!("delete from {} where {} = ", table.name, table.key));
            sql.push_bind(id);
            sql.build().execute(conn).await.map(|done| done.rows_affected())
        })?;
    }
    Ok(deleted)
}

/// Deletes what is found by a beginning of its text: idempotency keys and the daily use of accounts. The keys of a tenant are found
/// by the tenant: a user may have some and own nothing, as after an erasure that was interrupted.
async fn delete_by_names(tx: &mut Tx<'_>, request: &ErasureRequest) -> DbResult<()> {
    const ANSWERS: &str = "delete from idempotency_keys where idempotency_key >= $1 and idempotency_key < $2";
    const ANSWERS_OF_TENANT: &str = "delete from idempotency_keys where tenant = $1";
    const USAGE: &str = "delete from daily_usage where subject >= $1 and subject < $2";
    tx.erase_traces();
    if request.subject.user.is_none() {
        let tenant = request.subject.tenant.as_str();
        on_engine!(tx, |conn| query(ANSWERS_OF_TENANT)
            .bind(tenant)
            .execute(conn)
            .await
            .map(drop))?;
    }
    for client in &request.clients {
        // `;` follows `:`, with which the beginning ends.
        let end = format!("{};", client.strip_suffix(':').unwrap_or(client));
        on_engine!(tx, |conn| query(ANSWERS)
            .bind(client)
            .bind(end)
            .execute(conn)
            .await
            .map(drop))?;
    }
    let end = end_of_subject(&request.account);
    on_engine!(tx, |conn| query(USAGE)
        .bind(&request.account)
        .bind(end)
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

impl Db {
    /// Erases everything that belongs to a user or a tenant, credentials first. `delete_thread` deletes a thread and returns
    /// whether it was there. Of a tenant, the data keys are destroyed at the end, so that what was encrypted under them can
    /// be read nowhere any more, not even from a backup.
    ///
    /// # Errors
    /// Returns an error when the database fails. What was erased before stays erased.
    pub async fn erase<F>(&self, request: ErasureRequest, delete_thread: F) -> DbResult<ErasedRows>
    where
        F: Fn(ThreadId) -> BoxFuture<'static, DbResult<bool>> + Send + Sync,
    {
        let subject = &request.subject;
        let keys = self.erase_rows(API_KEYS, subject).await?;
        self.erase_rows(TICKETS, subject).await?;
        let erased = ErasedRows {
            keys,
            crons: self.erase_rows(CRONS, subject).await?,
            threads: self.erase_threads(subject, delete_thread).await?,
            assistants: self.erase_rows(ASSISTANTS, subject).await?,
            agents: match subject.user {
                Some(_) => 0,
                None => self.erase_agents(&subject.tenant).await?,
            },
            items: self.erase_rows(ITEMS, subject).await?,
            deliveries: self.erase_rows(DELIVERIES, subject).await?,
            audit: match (request.with_audit, &subject.user) {
                (true, Some(user)) => self.erase_audit_of(&subject.tenant, user).await?,
                (true, None) => self.erase_rows(AUDIT, subject).await?,
                (false, _) => 0,
            },
            data_keys: 0,
        };
        let of_tenant = subject.user.is_none().then(|| subject.tenant.clone());
        let data_keys = self.write(move |tx| {
            Box::pin(async move {
                delete_by_names(tx, &request).await?;
                match of_tenant {
                    Some(tenant) => {
                        mcp_logins::delete_of_tenant(tx, &tenant).await?;
                        interrupts::delete_schemas_of_tenant(tx, &tenant).await?;
                        destroy_keys(tx, tenant.as_str()).await
                    }
                    None => Ok(0),
                }
            })
        });
        Ok(ErasedRows {
            data_keys: data_keys.await?,
            ..erased
        })
    }

    async fn erase_rows(&self, table: OwnedTable, subject: &DataSubject) -> DbResult<u64> {
        let mut all = 0;
        loop {
            let subject = subject.clone();
            let write = self.write(move |tx| Box::pin(async move { delete_some(tx, table, &subject).await }));
            let deleted: u64 = write.await?;
            if deleted == 0 {
                return Ok(all);
            }
            all += deleted;
        }
    }

    /// Erases the entries of the audit about a user.
    async fn erase_audit_of(&self, tenant: &Tenant, user: &UserId) -> DbResult<u64> {
        let mut all = 0;
        loop {
            let deleted = self.erase_audit_once(tenant, user).await?;
            // Entries with smaller ids than those that were looked at may have been stored meanwhile.
            if deleted == 0 {
                return Ok(all);
            }
            all += deleted;
        }
    }

    /// Goes once through the audit of a tenant and erases the entries about a user. They are read before they are deleted:
    /// other writes do not wait for that.
    async fn erase_audit_once(&self, tenant: &Tenant, user: &UserId) -> DbResult<u64> {
        let mut all = 0;
        let mut after = Uuid::nil();
        loop {
            let of_tenant = tenant.clone();
            let of_user = user.clone();
            let read = self.search(move |tx| {
                Box::pin(
                    async move { audit::ids_of_user(tx, &of_tenant, &of_user, after, audit::ENTRIES_OF_PART).await },
                )
            });
            let part = read.await?;
            for ids in part.found.chunks(usize::try_from(BATCH).unwrap_or(1)) {
                let of_tenant = tenant.clone();
                let ids = ids.to_vec();
                let write = self.write(move |tx| {
                    Box::pin(async move {
                        tx.erase_traces();
                        audit::delete(tx, &of_tenant, &ids).await
                    })
                });
                let deleted: u64 = write.await?;
                all += deleted;
            }
            let Some(end) = part.end else { return Ok(all) };
            after = end;
        }
    }

    /// Erases the agents that clients of a tenant defined, each in a transaction.
    async fn erase_agents(&self, tenant: &Tenant) -> DbResult<u64> {
        let mut all = 0;
        loop {
            let tenant = tenant.clone();
            let write =
                self.write(move |tx| Box::pin(async move { definitions::erase_one_of_tenant(tx, &tenant).await }));
            let was_there: bool = write.await?;
            if !was_there {
                break;
            }
            all += 1;
        }
        // A content that was replaced or deleted before has no tenant any more, so all contents without use are erased.
        loop {
            let write = self.write(move |tx| {
                Box::pin(async move {
                    tx.erase_traces();
                    definitions::lock_changes(tx).await?;
                    definitions::sweep(tx, Timestamp(i64::MAX)).await
                })
            });
            let swept: u64 = write.await?;
            if swept == 0 {
                return Ok(all);
            }
        }
    }

    async fn erase_threads<F>(&self, subject: &DataSubject, delete_thread: F) -> DbResult<u64>
    where
        F: Fn(ThreadId) -> BoxFuture<'static, DbResult<bool>> + Send + Sync,
    {
        let mut all = 0;
        loop {
            let subject = subject.clone();
            let read = self.read(move |tx| Box::pin(async move { threads_of(tx, &subject, None, BATCH).await }));
            let found = read.await?;
            if found.is_empty() {
                return Ok(all);
            }
            for thread in found {
                all += u64::from(delete_thread(thread).await?);
            }
        }
    }
}
