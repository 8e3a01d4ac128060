//! The statements of Postgres that are prepared for batches.

use std::borrow::Cow;
use std::collections::HashMap;

use sqlx::postgres::PgTypeInfo;

use super::values::PostgresValues;

/// The most statements that are prepared on a connection. For another one, the statement that was not used for longest is
/// deallocated.
const MOST_PREPARED: usize = 256;

/// The statements that are prepared on a connection with `prepare`, to be executed by name in a batch. The driver has statements of
/// its own, whose names it keeps to itself.
#[derive(Debug, Default)]
pub(in crate::db) struct PreparedStatements {
    by_text: HashMap<Cow<'static, str>, PreparedStatement>,
    /// The number of the last name. No name is used twice.
    last_name: usize,
    /// The number of uses so far.
    uses: u64,
}

/// A statement that is prepared, or being prepared.
#[derive(Debug, Clone)]
pub(super) struct PreparedStatement {
    /// The number in its name.
    pub(super) name: usize,
    types: Vec<PgTypeInfo>,
    last_use: u64,
}

impl PreparedStatement {
    /// Returns whether the statement is prepared for values of these types.
    pub(super) fn fits(&self, values: &PostgresValues) -> bool {
        self.types.iter().eq(values.types())
    }
}

impl PreparedStatements {
    /// Returns the statement with this text and values of these types, if it is prepared.
    pub(super) fn find(&mut self, sql: &str, values: &PostgresValues) -> Option<usize> {
        let statement = self.by_text.get_mut(sql)?;
        if !statement.fits(values) {
            return None;
        }
        self.uses += 1;
        statement.last_use = self.uses;
        Some(statement.name)
    }

    /// Returns a statement that is to be prepared for values of these types.
    pub(super) fn name(&mut self, values: &PostgresValues) -> PreparedStatement {
        self.last_name += 1;
        self.uses += 1;
        PreparedStatement {
            name: self.last_name,
            types: values.types().cloned().collect(),
            last_use: self.uses,
        }
    }

    /// Notes that a statement is prepared.
    pub(super) fn insert(&mut self, sql: Cow<'static, str>, statement: PreparedStatement) {
        self.by_text.insert(sql, statement);
    }

    /// Removes the statement that has to be deallocated before `sql` is prepared, and returns the number in its name. This is a
    /// statement with the same text for other types, or the oldest statement if there is no room.
    pub(super) fn take_replaced(&mut self, sql: &str) -> Option<usize> {
        if let Some(other) = self.by_text.remove(sql) {
            return Some(other.name);
        }
        if self.by_text.len() < MOST_PREPARED {
            return None;
        }
        let oldest = self.by_text.iter().min_by_key(|(_, statement)| statement.last_use);
        let sql = oldest.map(|(sql, _)| sql.clone())?;
        self.by_text.remove(&sql).map(|statement| statement.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_number() -> PostgresValues {
        let mut values = PostgresValues::default();
        values.add(1_i64);
        values
    }

    fn of_text() -> PostgresValues {
        let mut values = PostgresValues::default();
        values.add("a");
        values
    }

    #[test]
    fn a_statement_is_prepared_for_types() {
        let mut prepared = PreparedStatements::default();
        assert_eq!(prepared.find("select $1", &of_number()), None);
        let statement = prepared.name(&of_number());
        prepared.insert("select $1".into(), statement);
        assert_eq!(prepared.find("select $1", &of_number()), Some(1));
        assert_eq!(prepared.find("select $1", &of_text()), None);
        assert_eq!(prepared.take_replaced("select $1"), Some(1));
        assert_eq!(prepared.take_replaced("select $1"), None);
    }

    #[test]
    fn the_statement_that_was_not_used_for_longest_is_deallocated() {
        let mut prepared = PreparedStatements::default();
        for number in 1..=MOST_PREPARED {
            let sql = format!("select {number}");
            assert_eq!(prepared.take_replaced(&sql), None);
            let statement = prepared.name(&of_number());
            prepared.insert(sql.into(), statement);
        }
        prepared.find("select 1", &of_number());
        assert_eq!(prepared.take_replaced("select 0"), Some(2));
        assert_eq!(prepared.take_replaced("select 0"), None);
        assert_eq!(prepared.find("select 2", &of_number()), None);
    }
}
