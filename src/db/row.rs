//! Rows of the database as structs.

/// Declares a struct that is read from rows of both engines: each field is the column of the same name. A field that
/// begins with `..` is a struct of other columns of the same row.
///
/// The derive of sqlx does the same. But it needs the drivers of both engines while the compiler runs, so a build would
/// compile them twice.
macro_rules! from_row {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$column_attribute:meta])* $column_visibility:vis $column:ident: $value:ty,)*
            $(..$part:ident: $columns:ty,)*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $name {
            $($(#[$column_attribute])* $column_visibility $column: $value,)*
            $($part: $columns,)*
        }

        impl<'r> ::sqlx::FromRow<'r, $crate::sqlite::SqliteRow> for $name {
            fn from_row(row: &'r $crate::sqlite::SqliteRow) -> ::sqlx::Result<Self> {
                Ok(Self {
                    $($column: ::sqlx::Row::try_get(row, stringify!($column))?,)*
                    $($part: ::sqlx::FromRow::from_row(row)?,)*
                })
            }
        }

        impl<'r> ::sqlx::FromRow<'r, ::sqlx::postgres::PgRow> for $name {
            fn from_row(row: &'r ::sqlx::postgres::PgRow) -> ::sqlx::Result<Self> {
                Ok(Self {
                    $($column: ::sqlx::Row::try_get(row, stringify!($column))?,)*
                    $($part: ::sqlx::FromRow::from_row(row)?,)*
                })
            }
        }
    };
}
pub(in crate::db) use from_row;
