//! The end of a statement.

/// The result of statements that have ended.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SqliteQueryResult {
    pub(super) changed: u64,
}

impl SqliteQueryResult {
    /// Returns the number of rows that were inserted, updated or deleted.
    pub fn rows_affected(&self) -> u64 {
        self.changed
    }
}

impl Extend<Self> for SqliteQueryResult {
    fn extend<T: IntoIterator<Item = Self>>(&mut self, results: T) {
        for result in results {
            self.changed += result.changed;
        }
    }
}
