//! The clock of the database. The clocks of servers differ.

/// The SQL expression for the current time of the database, in microseconds since 1970.
pub(in crate::db) const NOW_SQLITE: &str = "cast(unixepoch('subsec') * 1000000 as bigint)";
/// The same on Postgres. Not `now()`, which is the start of the transaction: it may have waited for a lock since.
pub(in crate::db) const NOW_POSTGRES: &str = "cast(extract(epoch from clock_timestamp()) * 1000000 as bigint)";
