//! Migrations, in the table that sqlx uses.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use sqlx::migrate::{AppliedMigration, Migrate, MigrateError, Migration};
use sqlx::{AssertSqlSafe, Connection, query, query_as, query_scalar, raw_sql};

use super::SqliteConnection;

impl Migrate for SqliteConnection {
    fn create_schema_if_not_exists<'e>(&'e mut self, schema_name: &'e str) -> BoxFuture<'e, Result<(), MigrateError>> {
        Box::pin(async move {
            Err(MigrateError::CreateSchemasNotSupported(format!(
                "the schema {schema_name} would be a file of its own in SQLite"
            )))
        })
    }

    fn ensure_migrations_table<'e>(&'e mut self, table_name: &'e str) -> BoxFuture<'e, Result<(), MigrateError>> {
        let create = format!(
            "create table if not exists {table_name} (\
             version bigint primary key, \
             description text not null, \
             installed_on timestamp not null default current_timestamp, \
             success boolean not null, \
             checksum blob not null, \
             execution_time bigint not null)"
        );
        Box::pin(async move {
            raw_sql(AssertSqlSafe(create)).execute(self).await?;
            Ok(())
        })
    }

    fn dirty_version<'e>(&'e mut self, table_name: &'e str) -> BoxFuture<'e, Result<Option<i64>, MigrateError>> {
        let select = format!("select version from {table_name} where success = false order by version limit 1");
        Box::pin(async move { Ok(query_scalar(AssertSqlSafe(select)).fetch_optional(self).await?) })
    }

    fn list_applied_migrations<'e>(
        &'e mut self,
        table_name: &'e str,
    ) -> BoxFuture<'e, Result<Vec<AppliedMigration>, MigrateError>> {
        let select = format!("select version, checksum from {table_name} order by version");
        Box::pin(async move {
            let rows: Vec<(i64, Vec<u8>)> = query_as(AssertSqlSafe(select)).fetch_all(self).await?;
            let applied = rows.into_iter().map(|(version, checksum)| AppliedMigration {
                version,
                checksum: checksum.into(),
            });
            Ok(applied.collect())
        })
    }

    /// The server locks the file before it opens it.
    fn lock(&mut self) -> BoxFuture<'_, Result<(), MigrateError>> {
        Box::pin(async { Ok(()) })
    }

    fn unlock(&mut self) -> BoxFuture<'_, Result<(), MigrateError>> {
        Box::pin(async { Ok(()) })
    }

    fn apply<'e>(
        &'e mut self,
        table_name: &'e str,
        migration: &'e Migration,
    ) -> BoxFuture<'e, Result<Duration, MigrateError>> {
        Box::pin(async move {
            let begun = Instant::now();
            if migration.no_tx {
                apply_statements(self, table_name, migration).await?;
            } else {
                let mut transaction = self.begin().await?;
                apply_statements(&mut transaction, table_name, migration).await?;
                transaction.commit().await?;
            }
            let elapsed = begun.elapsed();
            let update = format!("update {table_name} set execution_time = $1 where version = $2");
            query(AssertSqlSafe(update))
                .bind(i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX))
                .bind(migration.version)
                .execute(self)
                .await?;
            Ok(elapsed)
        })
    }

    /// No migration is reverted here: a former release cannot read what a later one has stored.
    fn revert<'e>(
        &'e mut self,
        _table_name: &'e str,
        migration: &'e Migration,
    ) -> BoxFuture<'e, Result<Duration, MigrateError>> {
        Box::pin(async move { Err(MigrateError::VersionMissing(migration.version)) })
    }
}

/// Executes the statements of a migration, and notes that they were.
async fn apply_statements(
    conn: &mut SqliteConnection,
    table_name: &str,
    migration: &Migration,
) -> Result<(), MigrateError> {
    raw_sql(migration.sql.clone())
        .execute(&mut *conn)
        .await
        .map_err(|error| MigrateError::ExecuteMigration(error, migration.version))?;
    let insert = format!(
        "insert into {table_name} (version, description, success, checksum, execution_time) values ($1, $2, true, $3, -1)"
    );
    query(AssertSqlSafe(insert))
        .bind(migration.version)
        .bind(&*migration.description)
        .bind(&*migration.checksum)
        .execute(conn)
        .await?;
    Ok(())
}
