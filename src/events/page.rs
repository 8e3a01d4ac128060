//! Pages of stored events, up to where memory takes over.

use crate::db::events::LoggedEvent;

/// The number of stored events that are read at once.
pub(super) const PAGE: i64 = 256;

/// Cuts a `page` that was read after number `after` down to the events up to `floor`; memory has the others. Returns it
/// with the number up to which everything is read.
pub(super) fn limit_page(floor: Option<i64>, after: i64, mut page: Vec<LoggedEvent>) -> (Vec<LoggedEvent>, i64) {
    let is_full = i64::try_from(page.len()).is_ok_and(|len| len == PAGE);
    let Some(floor) = floor else {
        let last = page.last().map_or(after, |logged| logged.seq);
        return (page, last);
    };
    let beyond = page.partition_point(|logged| logged.seq <= floor);
    let has_more = is_full && beyond == page.len();
    page.truncate(beyond);
    let last = page.last().filter(|_| has_more).map_or(floor, |logged| logged.seq);
    (page, last)
}
