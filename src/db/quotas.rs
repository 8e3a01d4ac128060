//! The table of what accounts have used on a day.

use sqlx::{query, query_as};

use super::engine::on_engine;
use super::{DbResult, Tx};
use crate::domain::quota::DayUse;

/// Adds the use of a run to that of `subject` on a day. Runs with the same `slot` wait for each other's commits.
pub async fn add(tx: &mut Tx<'_>, subject: &str, day: i64, slot: i32, used: DayUse) -> DbResult<()> {
    const SQL: &str = "insert into daily_usage (subject, day, slot, tokens, cost_micros) values ($1, $2, $3, $4, $5) \
        on conflict (subject, day, slot) do update set tokens = daily_usage.tokens + excluded.tokens, \
        cost_micros = daily_usage.cost_micros + excluded.cost_micros";
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    on_engine!(tx, |conn| query(SQL)
        .bind(subject)
        .bind(day)
        .bind(slot)
        .bind(whole(used.tokens))
        .bind(whole(used.cost_micros))
        .execute(conn)
        .await
        .map(drop))?;
    Ok(())
}

/// Returns what the accounts that begin with `subject` have used on a day.
pub async fn used(tx: &mut Tx<'_>, subject: &str, day: i64) -> DbResult<DayUse> {
    const SQL: &str = "select cast(coalesce(sum(tokens), 0) as bigint), cast(coalesce(sum(cost_micros), 0) as bigint) \
        from daily_usage where subject = $1 and day = $2";
    let sums: (i64, i64) = on_engine!(tx, |conn| query_as(SQL).bind(subject).bind(day).fetch_one(conn).await)?;
    let whole = |count: i64| u64::try_from(count).unwrap_or(0);
    Ok(DayUse {
        tokens: whole(sums.0),
        cost_micros: whole(sums.1),
    })
}

/// Deletes up to `limit` rows of the days before `day`. Returns their number.
pub async fn sweep(tx: &mut Tx<'_>, day: i64, limit: i64) -> DbResult<u64> {
    const SQL: &str = "delete from daily_usage where (subject, day, slot) in \
        (select subject, day, slot from daily_usage where day < $1 order by day limit $2)";
    let swept = on_engine!(tx, |conn| query(SQL)
        .bind(day)
        .bind(limit)
        .execute(conn)
        .await
        .map(|done| done.rows_affected()))?;
    Ok(swept)
}
