//! Questions about the pending and running runs of one thread.
//!
//! On SQLite each of the two statuses has an index by thread. On Postgres both are in one, `runs_in_flight`. There, the indexes of
//! one status are in other orders, and hold few rows while the server is idle: then Postgres takes one of them for as good as that
//! by thread. A connection keeps such a plan, which reads the runs of all threads when many wait or are at work. So on Postgres a
//! condition names both statuses, which only `runs_in_flight` fulfils, and tells them apart by their order.
//!
//! The texts have `{pending}` and `{running}` for the conditions. These name the column `status` without a table, so they belong
//! into a query of `runs` alone.

/// Returns the text for SQLite of a question about a thread, or a part of it.
macro_rules! of_thread_on_sqlite {
    ($sql:expr) => {{
        const WITH_PENDING: &str = ::const_format::str_replace!($sql, "{pending}", "status = 'pending'");
        ::const_format::str_replace!(WITH_PENDING, "{running}", "status = 'running'")
    }};
}
pub(in crate::db) use of_thread_on_sqlite;

/// Returns the text for Postgres of a question about a thread, or a part of it.
macro_rules! of_thread_on_postgres {
    ($sql:expr) => {{
        const WITH_PENDING: &str = ::const_format::str_replace!(
            $sql,
            "{pending}",
            "status in ('pending', 'running') and status < 'running'"
        );
        ::const_format::str_replace!(
            WITH_PENDING,
            "{running}",
            "status in ('pending', 'running') and status > 'pending'"
        )
    }};
}
pub(in crate::db) use of_thread_on_postgres;
