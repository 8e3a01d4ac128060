//! Pages of lists with large rows: reads rows in batches until the page is full or takes too much memory.

use super::DbResult;
use super::json::unless_corrupt;

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
            is_over: limit <= 0,
        }
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
            let weight = weigh(&row);
            if weight > self.left && !self.part.rows.is_empty() {
                (self.part.is_cut, self.is_over) = (true, true);
                return Ok(());
            }
            self.left = self.left.saturating_sub(weight);
            self.part.rows.push(unless_corrupt(read(row))?);
        }
        self.is_over = is_last || self.count() >= self.limit;
        Ok(())
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
}
