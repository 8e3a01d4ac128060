//! Pages of lists with large rows: reads rows in batches until the page is full or takes too much memory.

use super::DbResult;
use super::codec::json::unless_corrupt;

/// The size of the first batch. The average size of its rows determines the next batch.
const FIRST_BATCH: i64 = 16;

/// The page of a list that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageQuery {
    /// The maximum number of rows.
    pub limit: i64,
    /// The number of rows to skip.
    pub offset: i64,
    /// The approximate memory the page may take, in bytes.
    pub bytes: usize,
}

/// A page of a list, or the beginning of a page that would take too much memory.
#[derive(Debug, Clone, PartialEq)]
pub struct ListPart<T> {
    /// The rows in order; none for a row that cannot be read.
    pub rows: Vec<Option<T>>,
    /// True when the page ended early, at its limit of memory.
    pub is_cut: bool,
}

impl<T> ListPart<T> {
    /// Returns the rows that can be read.
    pub fn into_items(self) -> Vec<T> {
        self.rows.into_iter().flatten().collect()
    }

    /// Returns the page with `change` applied to each row.
    pub fn map<U>(self, change: impl Fn(T) -> U) -> ListPart<U> {
        let rows = self.rows.into_iter().map(|row| row.map(&change)).collect();
        ListPart {
            rows,
            is_cut: self.is_cut,
        }
    }
}

/// A page that is being read.
pub(super) struct ListBuilder<T> {
    part: ListPart<T>,
    limit: i64,
    bytes: usize,
    left: usize,
    to_skip: i64,
    is_over: bool,
}

impl<T> ListBuilder<T> {
    /// Starts a page of at most `limit` rows and `bytes` of memory. The first row is taken whatever its size.
    pub(super) fn new(limit: i64, bytes: usize) -> Self {
        let part = ListPart {
            rows: vec![],
            is_cut: false,
        };
        Self {
            part,
            limit,
            bytes,
            left: bytes,
            to_skip: 0,
            is_over: limit <= 0,
        }
    }

    /// Starts a page whose rows are added one by one, of which the first `to_skip` are left out.
    pub(super) fn skipping(to_skip: i64, limit: i64, bytes: usize) -> Self {
        Self {
            to_skip,
            ..Self::new(limit, bytes)
        }
    }

    /// Returns whether the page is complete.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the number of rows read so far.
    pub(super) fn count(&self) -> i64 {
        i64::try_from(self.part.rows.len()).unwrap_or(i64::MAX)
    }

    /// Returns the number of rows to read next; none when the page is complete.
    pub(super) fn next(&self) -> Option<i64> {
        if self.is_over {
            return None;
        }
        let rest = self.limit - self.count();
        let Ok(count) = usize::try_from(self.count()) else {
            return None;
        };
        if count == 0 {
            return Some(rest.min(FIRST_BATCH));
        }
        let average = ((self.bytes - self.left) / count).max(1);
        let fitting = i64::try_from(self.left / average).unwrap_or(i64::MAX);
        Some(fitting.clamp(1, rest))
    }

    /// Adds the rows of a batch of which `wanted` were requested.
    ///
    /// # Errors
    /// Those of `read`, except [`DbError::Corrupt`](super::DbError::Corrupt).
    pub(super) fn take<R>(
        &mut self,
        wanted: i64,
        rows: Vec<R>,
        weigh: impl Fn(&R) -> usize,
        read: impl Fn(R) -> DbResult<T>,
    ) -> DbResult<()> {
        let is_last = i64::try_from(rows.len()).is_ok_and(|count| count < wanted);
        for row in rows {
            if !self.has_room(weigh(&row)) {
                return Ok(());
            }
            self.part.rows.push(unless_corrupt(read(row))?);
        }
        self.is_over = is_last || self.count() >= self.limit;
        Ok(())
    }

    /// Adds a row that takes `weight` bytes of memory, unless it is one of those to skip, or the page is complete.
    pub(super) fn add(&mut self, weight: usize, row: T) {
        if self.to_skip > 0 {
            self.to_skip -= 1;
        } else if !self.is_over && self.has_room(weight) {
            self.part.rows.push(Some(row));
            self.is_over = self.count() >= self.limit;
        }
    }

    /// Takes the memory of the next row. Returns false if there is not enough of it: the page is cut there.
    fn has_room(&mut self, weight: usize) -> bool {
        let has_room = weight <= self.left || self.part.rows.is_empty();
        if has_room {
            self.left = self.left.saturating_sub(weight);
        } else {
            self.part.is_cut = true;
            self.is_over = true;
        }
        has_room
    }

    /// Returns the page.
    pub(super) fn finish(self) -> ListPart<T> {
        self.part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a page of a list whose rows have these sizes. Returns the sizes of the batches, and the page.
    fn filled(list: &[usize], limit: i64, bytes: usize) -> (Vec<i64>, ListPart<usize>) {
        let mut filling = ListBuilder::new(limit, bytes);
        let mut asked = vec![];
        while let Some(next) = filling.next() {
            asked.push(next);
            let from = usize::try_from(filling.count()).unwrap();
            let most = usize::try_from(next).unwrap();
            let rows: Vec<usize> = list.iter().skip(from).take(most).copied().collect();
            filling
                .take(next, rows, |row| *row, Ok)
                .expect("rows of numbers can be read");
        }
        (asked, filling.finish())
    }

    #[test]
    fn small_rows_are_read_in_two_batches_and_large_ones_end_the_page() {
        let (asked, part) = filled(&[10; 500], 300, 1_000_000);
        assert_eq!(asked, vec![16, 284]);
        assert_eq!(part.rows.len(), 300);
        assert!(!part.is_cut);
        let (_, part) = filled(&[10; 5], 300, 1_000_000);
        assert_eq!(part.rows.len(), 5);
        assert!(!part.is_cut);
        let (_, part) = filled(&[400; 100], 300, 1000);
        assert_eq!(part.rows.len(), 2);
        assert!(part.is_cut);
        let (_, part) = filled(&[5000; 2], 300, 1000);
        assert_eq!(part.rows.len(), 1, "the first row is taken whatever its size");
        assert!(part.is_cut, "the first row is taken whatever its size");
        let (_, part) = filled(&[500; 2], 300, 1000);
        assert_eq!(part.rows.len(), 2);
        assert!(!part.is_cut);
    }

    #[test]
    fn rows_that_are_added_one_by_one_are_skipped_counted_and_weighed() {
        let added = |limit: i64, bytes: usize| {
            let mut page = ListBuilder::skipping(2, limit, bytes);
            for row in 1..=6 {
                page.add(100, row);
            }
            let is_over = page.is_over();
            (page.finish(), is_over)
        };
        let (part, is_over) = added(3, 1_000);
        assert_eq!(part.rows, [Some(3), Some(4), Some(5)]);
        assert!(!part.is_cut);
        assert!(is_over);
        let (part, is_over) = added(9, 1_000);
        assert_eq!(part.rows, [Some(3), Some(4), Some(5), Some(6)]);
        assert!(!is_over, "there may be more");
        let (part, is_over) = added(9, 250);
        assert_eq!(part.rows, [Some(3), Some(4)]);
        assert!(part.is_cut);
        assert!(is_over);
        let (part, _) = added(0, 1_000);
        assert!(part.rows.is_empty());
    }
}
