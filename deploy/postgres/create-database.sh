#!/bin/sh
# Runs once, when the database is created. The server's role owns its database and is no superuser, so that row-level security
# keeps tenants apart (docs/tenants.md).
set -eu
psql --username "${POSTGRES_USER:-postgres}" --dbname postgres --no-psqlrc --set ON_ERROR_STOP=1 \
    --set password="$(cat "${DATABASE_PASSWORD_FILE:-/run/secrets/database_password}")" <<'SQL'
create role adjutant login nosuperuser nobypassrls password :'password';
create database adjutant owner adjutant;
SQL
