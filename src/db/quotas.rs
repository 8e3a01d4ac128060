//! The table of what accounts have used on a day.

use std::collections::HashMap;

use sqlx::{QueryBuilder, query};

use super::engine::on_engine;
use super::{DbResult, Tx};
use crate::domain::quota::DayUse;

/// Adds the use of a run to that of each of these subjects on a day, in this order. Runs with the same `slot` wait for
/// each other's commits.
pub async fn add(tx: &mut Tx<'_>, subjects: &[&str], day: i64, slot: i32, used: DayUse) -> DbResult<()> {
    const SUM: &str = " on conflict (subject, day, slot) do update set tokens = daily_usage.tokens + excluded.tokens, \
        cost_micros = daily_usage.cost_micros + excluded.cost_micros";
    if subjects.is_empty() {
        return Ok(());
    }
    let whole = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("insert into daily_usage (subject, day, slot, tokens, cost_micros) ");
        sql.push_values(subjects, |mut row, subject| {
            row.push_bind(*subject)
                .push_bind(day)
                .push_bind(slot)
                .push_bind(whole(used.tokens))
                .push_bind(whole(used.cost_micros));
        });
        sql.push(SUM);
        sql.build().execute(conn).await.map(drop)
    })?;
    Ok(())
}

/// Returns what the accounts that begin with each of these subjects have used on a day. Subjects without a use are left
/// out.
pub async fn used(tx: &mut Tx<'_>, subjects: &[&str], day: i64) -> DbResult<HashMap<String, DayUse>> {
    if subjects.is_empty() {
        return Ok(HashMap::new());
    }
    let rows: Vec<(String, i64, i64)> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new(
            "select subject, cast(sum(tokens) as bigint), cast(sum(cost_micros) as bigint) from daily_usage where day = ",
        );
        sql.push_bind(day).push(" and subject in (");
        let mut wanted = sql.separated(", ");
        for subject in subjects {
            wanted.push_bind(*subject);
        }
        sql.push(") group by subject");
        sql.build_query_as().fetch_all(conn).await
    })?;
    let whole = |count: i64| u64::try_from(count).unwrap_or(0);
    let sum_of = |(subject, tokens, cost_micros)| {
        let used = DayUse {
            tokens: whole(tokens),
            cost_micros: whole(cost_micros),
        };
        (subject, used)
    };
    Ok(rows.into_iter().map(sum_of).collect())
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
