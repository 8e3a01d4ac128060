//! The values that are bound to a statement.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::{Arguments, Encode, IntoArguments, Type};

use super::{Sqlite, SqliteValue};

/// The values of a statement. Its text has numbers for them (`$1`, `$2`), or question marks in their order.
#[derive(Debug, Default, Clone)]
pub struct SqliteArguments(SqliteArgumentBuffer);

/// The values that were encoded so far.
#[derive(Debug, Default, Clone)]
pub struct SqliteArgumentBuffer(Vec<SqliteValue>);

impl SqliteArgumentBuffer {
    /// Adds a value.
    pub(super) fn push(&mut self, value: SqliteValue) {
        self.0.push(value);
    }
}

impl SqliteArguments {
    /// Returns the value with this number, which begins at 1.
    pub(super) fn get(&self, number: usize) -> Option<&SqliteValue> {
        self.0.0.get(number.checked_sub(1)?)
    }
}

impl Arguments for SqliteArguments {
    type Database = Sqlite;

    fn reserve(&mut self, additional: usize, _size: usize) {
        self.0.0.reserve(additional);
    }

    fn add<'t, T>(&mut self, value: T) -> Result<(), BoxDynError>
    where
        T: Encode<'t, Sqlite> + Type<Sqlite>,
    {
        let before = self.0.0.len();
        match value.encode(&mut self.0) {
            Ok(IsNull::No) => Ok(()),
            Ok(IsNull::Yes) => {
                self.0.push(SqliteValue::Null);
                Ok(())
            }
            Err(error) => {
                self.0.0.truncate(before);
                Err(error)
            }
        }
    }

    fn len(&self) -> usize {
        self.0.0.len()
    }
}

impl IntoArguments<Sqlite> for SqliteArguments {
    fn into_arguments(self) -> SqliteArguments {
        self
    }
}
