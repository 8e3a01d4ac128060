//! The tenant for which the database is read and written: the second fence between tenants.
//!
//! The first fence are the filters in the statements of this module. The second one stands in Postgres: every table
//! with content of tenants has a policy (row-level security), and every transaction says for which tenant it works. So a
//! statement whose filter is missing or wrong still finds and changes nothing of another tenant.
//!
//! The task that works says for which tenant, with [`RowAccess::scope`]: a request for the tenant of its caller, a run
//! for the tenant of its thread, and claims, sweeps and other work of the server for the server itself. Work that does
//! not say so is refused, on both engines: it is a fault of the program.

use futures::future::Either;
use sqlx::{AssertSqlSafe, PgConnection, query_scalar};

use super::batch::PlainStatements;
use super::error::{DbError, DbResult};
use crate::domain::access::Ownership;
use crate::domain::identity::{Identity, Tenant};

tokio::task_local! {
    /// For whom the current task works.
    static CURRENT: RowAccess;
}

/// The rows that a task may read and write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowAccess {
    /// The rows of this tenant. The default assistants, which belong to the server, can be read.
    Tenant(Tenant),
    /// The rows of all tenants: the server itself works.
    Server,
}

impl RowAccess {
    /// Returns the access of a request: that of the tenant of its caller. Without authentication every caller may do
    /// everything.
    pub fn of_caller(caller: &Identity) -> Self {
        match caller.is_unrestricted() {
            true => Self::Server,
            false => Self::Tenant(caller.tenant.clone()),
        }
    }

    /// Returns the access of work on what belongs to this tenant.
    pub fn of_owner(ownership: &Ownership) -> Self {
        match ownership.is_of_server() {
            true => Self::Server,
            false => Self::Tenant(ownership.tenant.clone()),
        }
    }

    /// Returns for whom the current task works; `None` if it does not say so.
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Runs work with this access. Tasks that the work starts do not have it, unless they are started with
    /// [`Self::in_current`].
    pub fn scope<W: Future>(self, work: W) -> impl Future<Output = W::Output> {
        CURRENT.scope(self, work)
    }

    /// Calls a function with this access.
    pub fn sync_scope<T>(self, work: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self, work)
    }

    /// Returns work for a task of its own, with the access of the current task.
    pub fn in_current<W: Future>(work: W) -> impl Future<Output = W::Output> {
        match Self::current() {
            Some(access) => Either::Left(access.scope(work)),
            None => Either::Right(work),
        }
    }

    /// Returns for whom the current task works.
    ///
    /// # Errors
    /// [`DbError::Unbound`] if it does not say so.
    pub(in crate::db) fn required() -> DbResult<Self> {
        let access = Self::current();
        access.ok_or_else(|| {
            tracing::error!("a task used the database without saying for which tenant; it was refused");
            DbError::Unbound
        })
    }

    /// Returns the name in the place of a tenant: `*` for the server.
    pub(in crate::db) fn word(&self) -> String {
        match self {
            Self::Tenant(tenant) => tenant.as_str().to_owned(),
            Self::Server => Ownership::of_server().tenant.as_str().to_owned(),
        }
    }

    /// Returns `begin` for a transaction of Postgres with this access. It is part of a message, so it costs no round trip, and
    /// `set local` ends with the transaction: a connection carries nothing over to its next user.
    pub(in crate::db) fn begin(&self, begin: &PlainStatements) -> PlainStatements {
        let mut begin = begin.clone();
        begin.push(&format!("set local {}", self.setting()));
        begin
    }

    /// Returns the statement that gives a connection of Postgres this access until it is closed.
    pub(in crate::db) fn set_session(&self) -> AssertSqlSafe<String> {
        AssertSqlSafe(format!("set {}", self.setting()))
    }

    fn setting(&self) -> String {
        // A string with `e` is read alike whatever `standard_conforming_strings` is.
        let word = self.word().replace('\\', "\\\\").replace('\'', "''");
        format!("adjutant.tenant = e'{word}'")
    }
}

/// Logs a warning if row-level security does not hold for the role of the connection.
pub(in crate::db) async fn warn_without_effect(conn: &mut PgConnection) -> DbResult<()> {
    if let Some(role) = exempt_role(conn).await? {
        tracing::warn!(
            role,
            "row-level security has no effect, since the role of `storage.url` is a superuser or has BYPASSRLS; filters \
             in statements still keep tenants apart. For the second fence create a role with `create role NAME login \
             nosuperuser nobypassrls`, make it the owner of the database and its tables, and name it in `storage.url`"
        );
    }
    Ok(())
}

/// Returns the role of the connection if row-level security does not hold for it.
pub(in crate::db) async fn exempt_role(conn: &mut PgConnection) -> DbResult<Option<String>> {
    const SQL: &str = "select rolname::text from pg_roles where rolname = current_user and (rolsuper or rolbypassrls)";
    Ok(query_scalar(SQL).fetch_optional(conn).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> RowAccess {
        RowAccess::Tenant(Tenant::stored(name.to_owned()))
    }

    #[test]
    fn the_name_of_a_tenant_is_quoted() {
        let begin = PlainStatements::new("begin", 1);
        let begun = |access: RowAccess| access.begin(&begin).text().to_owned();
        assert_eq!(begun(tenant("acme")), "begin; set local adjutant.tenant = e'acme'");
        assert_eq!(begun(RowAccess::Server), "begin; set local adjutant.tenant = e'*'");
        assert_eq!(
            begun(tenant("a'; drop table runs; --")),
            "begin; set local adjutant.tenant = e'a''; drop table runs; --'"
        );
        assert_eq!(
            begun(tenant("a\\'; --")),
            "begin; set local adjutant.tenant = e'a\\\\''; --'"
        );
    }

    #[tokio::test]
    async fn a_task_keeps_the_access_that_it_carries_and_no_other() {
        let (carried, lost) = tenant("acme")
            .scope(async {
                let carried = tokio::spawn(RowAccess::in_current(async { RowAccess::current() }));
                let lost = tokio::spawn(async { RowAccess::current() });
                (carried.await.expect("a task"), lost.await.expect("a task"))
            })
            .await;
        assert_eq!(carried, Some(tenant("acme")));
        assert_eq!(lost, None);
        assert_eq!(RowAccess::current(), None);
    }
}
