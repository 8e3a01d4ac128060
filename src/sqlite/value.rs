//! Values of columns and of arguments.

use std::borrow::Cow;
use std::fmt;

use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};
use sqlx::TypeInfo;

use super::Sqlite;

/// The storage class of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqliteTypeInfo {
    /// No value.
    Null,
    /// A whole number of 64 bits.
    Integer,
    /// A floating point number of 64 bits.
    Real,
    /// A text.
    Text,
    /// Bytes.
    Blob,
}

/// The name in SQL.
impl fmt::Display for SqliteTypeInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TypeInfo for SqliteTypeInfo {
    fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    fn name(&self) -> &str {
        match self {
            Self::Null => "NULL",
            Self::Integer => "INTEGER",
            Self::Real => "REAL",
            Self::Text => "TEXT",
            Self::Blob => "BLOB",
        }
    }
}

/// A value of a column, or one that is bound to a statement.
#[derive(Debug, Clone, PartialEq)]
pub enum SqliteValue {
    /// No value.
    Null,
    /// A whole number.
    Integer(i64),
    /// A floating point number.
    Real(f64),
    /// The bytes of a text, which SQLite does not check.
    Text(Vec<u8>),
    /// Bytes.
    Blob(Vec<u8>),
}

impl SqliteValue {
    /// Copies a value of a row.
    pub(super) fn of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(number) => Self::Integer(number),
            ValueRef::Real(number) => Self::Real(number),
            ValueRef::Text(text) => Self::Text(text.to_vec()),
            ValueRef::Blob(bytes) => Self::Blob(bytes.to_vec()),
        }
    }

    fn storage_class(&self) -> SqliteTypeInfo {
        match self {
            Self::Null => SqliteTypeInfo::Null,
            Self::Integer(_) => SqliteTypeInfo::Integer,
            Self::Real(_) => SqliteTypeInfo::Real,
            Self::Text(_) => SqliteTypeInfo::Text,
            Self::Blob(_) => SqliteTypeInfo::Blob,
        }
    }
}

impl ToSql for SqliteValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Real(number) => ValueRef::Real(*number),
            Self::Text(text) => ValueRef::Text(text),
            Self::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl sqlx::Value for SqliteValue {
    type Database = Sqlite;

    fn as_ref(&self) -> SqliteValueRef<'_> {
        SqliteValueRef(self)
    }

    fn type_info(&self) -> Cow<'_, SqliteTypeInfo> {
        Cow::Owned(self.storage_class())
    }

    fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}

/// A value of a row.
#[derive(Debug, Clone, Copy)]
pub struct SqliteValueRef<'r>(pub(super) &'r SqliteValue);

impl<'r> sqlx::ValueRef<'r> for SqliteValueRef<'r> {
    type Database = Sqlite;

    fn to_owned(&self) -> SqliteValue {
        self.0.clone()
    }

    fn type_info(&self) -> Cow<'_, SqliteTypeInfo> {
        Cow::Owned(self.0.storage_class())
    }

    fn is_null(&self) -> bool {
        matches!(self.0, SqliteValue::Null)
    }
}
