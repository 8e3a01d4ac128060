//! A Postgres server without a server of ours: its clock, its connections, and whether sessions stay together.

use std::time::{Duration, Instant};

use const_format::concatcp;
use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Connection, PgConnection, query_scalar};

use crate::db::engine::session_lock::check_same_database;
use crate::db::engine::{NOW_POSTGRES, PostgresHosts, pool_hosts};
use crate::db::{DbAddress, DbError, DbLimits, DbResult};
use crate::domain::id::WorkerId;
use crate::domain::time::{Clock, Timestamp};

/// The time within which a notification has to arrive.
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(3);

/// The difference between two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockDifference {
    /// The difference without its sign.
    pub size: Duration,
    /// True if the clock of the database is ahead.
    pub is_ahead: bool,
    /// The time that the database took to answer. The difference is known no better than that.
    pub round_trip: Duration,
}

/// The connections that a Postgres server has left for a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionCount {
    /// The connections that are free.
    pub free: i64,
    /// The most that there may be.
    pub maximum: i64,
}

/// Compares the clock of the database with another clock.
///
/// # Errors
/// If the database cannot be reached or fails.
pub async fn clock_difference(url: &str, limits: DbLimits, clock: &dyn Clock) -> DbResult<ClockDifference> {
    const NOW: &str = concatcp!("select ", NOW_POSTGRES);
    let mut conn = connect(url, limits).await?;
    // The first statement of a connection takes longer.
    let _: i64 = query_scalar(NOW).fetch_one(&mut conn).await?;
    let asked_at = clock.now();
    let begun = Instant::now();
    let theirs: i64 = query_scalar(NOW).fetch_one(&mut conn).await?;
    let round_trip = begun.elapsed();
    conn.close().await?;
    let ours = asked_at.plus(round_trip / 2);
    let theirs = Timestamp(theirs);
    let is_ahead = theirs > ours;
    let size = if is_ahead {
        theirs.since(ours)
    } else {
        ours.since(theirs)
    };
    Ok(ClockDifference {
        size,
        is_ahead,
        round_trip,
    })
}

/// Counts the connections that the role of `url` can still open.
///
/// # Errors
/// If the database cannot be reached or fails.
pub async fn count_connections(url: &str, limits: DbLimits) -> DbResult<ConnectionCount> {
    let mut conn = connect(url, limits).await?;
    // A limit of the role or of the database is -1 where there is none.
    let sql = "with server as (select current_setting('max_connections')::bigint \
            - current_setting('superuser_reserved_connections')::bigint as most, \
            (select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()) as used), \
        role as (select case when rolconnlimit < 0 then null else rolconnlimit::bigint end as most, \
            (select count(*) from pg_stat_activity where usename = current_user and pid <> pg_backend_pid()) as used \
            from pg_roles where rolname = current_user), \
        base as (select case when datconnlimit < 0 then null else datconnlimit::bigint end as most, \
            (select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()) as used \
            from pg_database where datname = current_database()) \
        select least(server.most - server.used, role.most - role.used, base.most - base.used), \
            least(server.most, role.most, base.most) \
        from server, role, base";
    let (free, maximum): (i64, i64) = sqlx::query_as(sql).fetch_one(&mut conn).await?;
    conn.close().await?;
    Ok(ConnectionCount { free, maximum })
}

/// Finds out whether a connection belongs to one session of the database: whether a notification reaches the connection
/// that listens. Behind a pooler that shares sessions between transactions it does not.
///
/// # Errors
/// If the database cannot be reached or fails.
pub async fn keeps_sessions(url: &str, limits: DbLimits) -> DbResult<bool> {
    let hosts = as_check(PostgresHosts::of(url)?);
    let mut conn = hosts.connect(limits).await?;
    // A listener takes its connection from a pool.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(limits.connect)
        .connect_lazy_with(hosts.latest_options());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.eager_reconnect(false);
    let channel = format!("adjutant_check_{}", WorkerId::mint().0.simple());
    listener.listen(&channel).await?;
    query_scalar::<_, ()>("select pg_notify($1, '')")
        .bind(&channel)
        .fetch_one(&mut conn)
        .await?;
    conn.close().await?;
    let received = tokio::time::timeout(NOTIFICATION_TIMEOUT, listener.try_recv()).await;
    match received {
        Ok(Ok(notification)) => Ok(notification.is_some()),
        Ok(Err(error)) => Err(DbError::from(error)),
        Err(_) => Ok(false),
    }
}

/// Checks that the URL of a pooler and the one past it lead to the same database.
///
/// # Errors
/// [`DbError::CannotOpen`] if they do not; others if one of the two cannot be reached or fails.
pub async fn check_address(address: &DbAddress, limits: DbLimits) -> DbResult<()> {
    let mut direct = connect(address.session_url(), limits).await?;
    let mut pooled = as_check(pool_hosts(address)?).connect(limits).await?;
    check_same_database(&mut direct, &mut pooled).await?;
    pooled.close().await?;
    direct.close().await?;
    Ok(())
}

/// Connects for a check.
///
/// # Errors
/// If the database cannot be reached, or takes no writes.
pub(super) async fn connect(url: &str, limits: DbLimits) -> DbResult<PgConnection> {
    as_check(PostgresHosts::of(url)?).connect(limits).await
}

/// Gives connections the name of a check.
fn as_check(hosts: PostgresHosts) -> PostgresHosts {
    hosts.with_options(|options| options.application_name("adjutant check"))
}
